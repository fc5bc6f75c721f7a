package embedded

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxNesting is how deep the server's parser goes.
const maxNesting = 1000

// A tokenKind names a JSON token as the server's messages do.
type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokObject
	tokObjectEnd
	tokArray
	tokArrayEnd
	tokString
	tokInt
	tokFloat
	tokTrue
	tokFalse
	tokNull
)

var tokenNames = [...]string{
	"EOF", "START_OBJECT", "END_OBJECT", "START_ARRAY", "END_ARRAY", "VALUE_STRING",
	"VALUE_NUMBER_INT", "VALUE_NUMBER_FLOAT", "VALUE_TRUE", "VALUE_FALSE", "VALUE_NULL",
}

func (k tokenKind) String() string { return tokenNames[k] }

// A lexer splits JSON into tokens as the server's parser does: strict, but for
// comments and a byte order mark, and lax about surrogates and overlong UTF-8.
// Its first error sticks.
type lexer struct {
	b     []byte
	i     int
	start int // of the last token
	// val is the last token's text: the raw inside of a string, a number's digits.
	val     []byte
	escaped bool // val holds a backslash
	err     *syntaxError
}

// A syntaxError says where a text stops being JSON.
type syntaxError struct {
	msg string
	at  int // byte offset
	eof bool
}

func (l *lexer) fail(at int, msg string) tokenKind {
	if l.err == nil {
		l.err = &syntaxError{msg: msg, at: at}
	}
	return tokEOF
}

func (l *lexer) failEOF(msg string) tokenKind {
	if l.err == nil {
		l.err = &syntaxError{msg: msg, at: len(l.b), eof: true}
	}
	return tokEOF
}

// space skips white space and comments.
func (l *lexer) space() {
	for l.i < len(l.b) {
		switch c := l.b[l.i]; {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			l.i++
		case c == '/' && l.i+1 < len(l.b) && l.b[l.i+1] == '*':
			end := bytes.Index(l.b[l.i+2:], []byte("*/"))
			if end < 0 {
				l.i = len(l.b)
				l.failEOF("Unexpected end-of-input in a comment")
				return
			}
			l.i += 2 + end + 2
		case c == '/' && l.i+1 < len(l.b) && l.b[l.i+1] == '/':
			end := bytes.IndexByte(l.b[l.i:], '\n')
			if end < 0 {
				l.i = len(l.b)
				return
			}
			l.i += end
		default:
			return
		}
	}
}

func (l *lexer) bom() {
	if bytes.HasPrefix(l.b, []byte("\xef\xbb\xbf")) {
		l.i = 3
	}
}

// value reads the next token where a value may stand. At the end of the input
// it returns tokEOF without an error.
func (l *lexer) value() tokenKind {
	l.space()
	if l.err != nil {
		return tokEOF
	}
	l.start = l.i
	if l.i >= len(l.b) {
		return tokEOF
	}
	switch c := l.b[l.i]; c {
	case '{':
		l.i++
		return tokObject
	case '}':
		l.i++
		return tokObjectEnd
	case '[':
		l.i++
		return tokArray
	case ']':
		l.i++
		return tokArrayEnd
	case '"':
		if l.str("VALUE_STRING", "string value") {
			return tokString
		}
		return tokEOF
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return l.number()
	default:
		return l.literal(c)
	}
}

func (l *lexer) literal(c byte) tokenKind {
	end := l.i
	for end < len(l.b) && isWord(l.b[end]) {
		end++
	}
	word := string(l.b[l.i:end])
	switch word {
	case "true":
		l.val, l.i = l.b[l.i:end], end
		return tokTrue
	case "false":
		l.val, l.i = l.b[l.i:end], end
		return tokFalse
	case "null":
		l.val, l.i = l.b[l.i:end], end
		return tokNull
	case "NaN", "Infinity":
		return l.fail(end, "Non-standard token '"+word+"': enable `JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS` to allow")
	}
	switch {
	case word != "":
		return l.fail(end, "Unrecognized token '"+word+"': was expecting (JSON String, Number, Array, Object or token 'null', 'true' or 'false')")
	case c < 0x20:
		return l.fail(l.i, "Illegal character ((CTRL-CHAR, code "+strconv.Itoa(int(c))+")): only regular white space (\\r, \\n, \\t) is allowed between tokens")
	case c == '+':
		return l.fail(l.i+1, "Unexpected character ('+' (code 43)) in numeric value: JSON spec does not allow numbers to have plus signs: enable `JsonReadFeature.ALLOW_LEADING_PLUS_SIGN_FOR_NUMBERS` to allow")
	default:
		return l.fail(l.i, l.unexpected(l.i)+": expected a valid value (JSON String, Number, Array, Object or token 'null', 'true' or 'false')")
	}
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// unexpected names the character at offset at.
func (l *lexer) unexpected(at int) string {
	r, _ := utf8.DecodeRune(l.b[at:])
	return "Unexpected character ('" + string(r) + "' (code " + strconv.Itoa(int(r)) + "))"
}

func (l *lexer) number() tokenKind {
	b, i := l.b, l.i
	digits := func() int {
		n := i
		for i < len(b) && b[i]-'0' < 10 {
			i++
		}
		return i - n
	}
	bad := func(rest string) tokenKind {
		if i >= len(b) {
			return l.failEOF("Unexpected end-of-input in a number")
		}
		return l.fail(i, l.unexpected(i)+" in numeric value: "+rest)
	}
	if b[i] == '-' {
		i++
		if bytes.HasPrefix(b[i:], []byte("Infinity")) {
			return l.fail(i+8, "Non-standard token '-Infinity': enable `JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS` to allow")
		}
	}
	first := i
	n := digits()
	if n == 0 {
		return bad("expected digit (0-9) to follow minus sign, for valid numeric value")
	}
	if n > 1 && b[first] == '0' {
		return l.fail(first+1, "Invalid numeric value: Leading zeroes not allowed")
	}
	kind := tokInt
	if i < len(b) && b[i] == '.' {
		i++
		kind = tokFloat
		if digits() == 0 {
			return bad("Decimal point not followed by a digit")
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		kind = tokFloat
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if digits() == 0 {
			return bad("Exponent indicator not followed by a digit")
		}
	}
	if i < len(b) {
		switch c := b[i]; c {
		case ' ', '\n', '\t', '\r', ',', ']', '}', '/':
		default:
			return l.fail(i, l.unexpected(i)+": Expected space separating root-level values")
		}
	}
	l.val, l.i = b[l.i:i], i
	return kind
}

// str reads a string; l.b[l.i] is its opening quote. What and where go into
// error texts.
func (l *lexer) str(what, where string) bool {
	b, i := l.b, l.i+1
	first := i
	l.escaped = false
	for {
		// Eight bytes at a time, as long as none of them is a quote, a
		// backslash, a control character or outside ASCII.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			const lo, hi = 0x0101010101010101, 0x8080808080808080
			quote, slash := w^lo*'"', w^lo*'\\'
			if (w|(w-lo*0x20)|(quote-lo)|(slash-lo))&hi != 0 {
				break
			}
			i += 8
		}
		if i >= len(b) {
			l.failEOF("Unexpected end-of-input in " + what)
			return false
		}
		switch c := b[i]; {
		case c == '"':
			l.val, l.i = b[first:i], i+1
			return true
		case c == '\\':
			l.escaped = true
			n := l.escape(i)
			if n == 0 {
				return false
			}
			i += n
		case c < 0x20:
			l.fail(i, "Illegal unquoted character ((CTRL-CHAR, code "+strconv.Itoa(int(c))+")): has to be escaped using backslash to be included in "+where)
			return false
		case c < 0x80:
			i++
		default:
			n := l.multibyte(i)
			if n == 0 {
				return false
			}
			i += n
		}
	}
}

// escape returns the length of the escape sequence at i, or 0 and an error.
func (l *lexer) escape(i int) int {
	if i+1 >= len(l.b) {
		l.failEOF("Unexpected end-of-input in character escape sequence")
		return 0
	}
	switch c := l.b[i+1]; c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(l.b) {
				l.failEOF("Unexpected end-of-input in character escape sequence")
				return 0
			}
			if unhex(l.b[k]) < 0 {
				l.fail(k, l.unexpected(k)+": expected a hex-digit for character escape sequence")
				return 0
			}
		}
		return 6
	default:
		l.fail(i+1, "Unrecognized character escape '"+string(rune(c))+"' (code "+strconv.Itoa(int(c))+")")
		return 0
	}
}

func unhex(c byte) rune {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0')
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10
	}
	return -1
}

// multibyte returns the length of the UTF-8 sequence at i, or 0 and an error.
// Like the server's parser it looks at the form of the bytes, not at what they
// encode: surrogates and overlong forms pass.
func (l *lexer) multibyte(i int) int {
	var n int
	switch c := l.b[i]; {
	case c&0xe0 == 0xc0:
		n = 2
	case c&0xf0 == 0xe0:
		n = 3
	case c&0xf8 == 0xf0:
		n = 4
	default:
		l.fail(i, "Invalid UTF-8 start byte 0x"+strconv.FormatInt(int64(c), 16))
		return 0
	}
	for k := i + 1; k < i+n; k++ {
		if k >= len(l.b) {
			l.failEOF("Unexpected end-of-input in a character")
			return 0
		}
		if l.b[k]&0xc0 != 0x80 {
			l.fail(k, "Invalid UTF-8 middle byte 0x"+strconv.FormatInt(int64(l.b[k]), 16))
			return 0
		}
	}
	return n
}

// name reads a member's name and its colon. first says that no comma is due.
// It returns false at the end of the object, which it consumes, or on an error.
func (l *lexer) name(first bool) bool {
	l.space()
	if l.err != nil {
		return false
	}
	if l.i >= len(l.b) {
		l.failEOF("Unexpected end-of-input: expected close marker for Object")
		return false
	}
	if l.b[l.i] == '}' {
		l.i++
		return false
	}
	if !first {
		if c := l.b[l.i]; c != ',' {
			if c == ']' {
				l.fail(l.i, "Unexpected close marker ']': expected '}'")
			} else {
				l.fail(l.i, l.unexpected(l.i)+": was expecting comma to separate Object entries")
			}
			return false
		}
		l.i++
		l.space()
		if l.i >= len(l.b) {
			l.failEOF("Unexpected end-of-input within/between Object entries")
			return false
		}
	}
	if l.b[l.i] != '"' {
		l.fail(l.i, l.unexpected(l.i)+": was expecting double-quote to start field name")
		return false
	}
	l.start = l.i
	if !l.str("FIELD_NAME", "name") {
		return false
	}
	l.space()
	if l.i >= len(l.b) {
		l.failEOF("Unexpected end-of-input within/between Object entries")
		return false
	}
	if l.b[l.i] != ':' {
		l.fail(l.i, l.unexpected(l.i)+": was expecting a colon to separate field name and value")
		return false
	}
	l.i++
	return true
}

// more says whether an array has another element; it consumes the comma before
// it, or the end of the array.
func (l *lexer) more(first bool) bool {
	l.space()
	if l.err != nil {
		return false
	}
	if l.i >= len(l.b) {
		l.failEOF("Unexpected end-of-input: expected close marker for Array")
		return false
	}
	switch c := l.b[l.i]; {
	case c == ']':
		l.i++
		return false
	case first:
		return true
	case c == ',':
		l.i++
		l.space()
		if l.i < len(l.b) && l.b[l.i] == ']' {
			l.fail(l.i, l.unexpected(l.i)+": expected a value")
			return false
		}
		return true
	case c == '}':
		l.fail(l.i, "Unexpected close marker '}': expected ']'")
		return false
	default:
		l.fail(l.i, l.unexpected(l.i)+": was expecting comma to separate Array entries")
		return false
	}
}

// member reads the token of a member's or an element's value: an end marker or
// the end of the input is an error there.
func (l *lexer) member() tokenKind {
	k := l.value()
	switch k {
	case tokEOF:
		if l.err == nil {
			l.failEOF("Unexpected end-of-input within/between entries")
		}
	case tokObjectEnd, tokArrayEnd:
		return l.fail(l.start, l.unexpected(l.start)+": expected a value")
	}
	return k
}

// skip reads the rest of the value whose first token k was read, without
// looking at names.
func (l *lexer) skip(k tokenKind) {
	depth := 0
	l.skipDepth(k, &depth)
}

func (l *lexer) skipDepth(k tokenKind, depth *int) {
	if k != tokObject && k != tokArray {
		return
	}
	if *depth++; *depth > maxNesting {
		l.fail(l.start, "Document nesting depth (1001) exceeds the maximum allowed (1000, from `StreamReadConstraints.getMaxNestingDepth()`)")
		return
	}
	for first := true; ; first = false {
		if k == tokObject && !l.name(first) || k == tokArray && !l.more(first) {
			break
		}
		l.skipDepth(l.member(), depth)
		if l.err != nil {
			return
		}
	}
	*depth--
}

// unescape appends the meaning of a string's raw inside. Lone surrogates become
// the replacement character.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		switch c = raw[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw[i+2:])
			i += 6
			if r >= 0xd800 && r < 0xdc00 && i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
				if low := hex4(raw[i+2:]); low >= 0xdc00 && low < 0xe000 {
					r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}

func hex4(b []byte) rune {
	return unhex(b[0])<<12 | unhex(b[1])<<8 | unhex(b[2])<<4 | unhex(b[3])
}

// text returns the last string token's meaning. It shares the input where it
// can.
func (l *lexer) text() []byte {
	if !l.escaped {
		return l.val
	}
	return unescape(nil, l.val)
}

// appendString appends s as a JSON string.
func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < 0x80 {
			continue
		}
		if c >= 0x80 {
			r, n := utf8.DecodeRuneInString(string(s[i:min(i+4, len(s))]))
			if r == utf8.RuneError && n <= 1 {
				dst = append(append(dst, s[from:i]...), "\ufffd"...)
				from = i + 1
				continue
			}
			i += n - 1
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			const hex = "0123456789ABCDEF"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// source quotes up to 500 bytes of a text, as the server's parser does in its
// messages.
func (e *syntaxError) source(b []byte) string {
	var s strings.Builder
	s.WriteString("\n at [Source: (byte[])\"")
	cut := min(len(b), 500)
	s.WriteString(strings.ToValidUTF8(string(b[:cut]), "\ufffd"))
	s.WriteByte('"')
	if cut < len(b) {
		s.WriteString("[truncated " + strconv.Itoa(len(b)-cut) + " bytes]")
	}
	s.WriteString("; line: 1, column: " + strconv.Itoa(e.at+1) + "]")
	return s.String()
}
