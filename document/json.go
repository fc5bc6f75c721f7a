package document

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// The JSON of this package never builds values: it checks, skips and copies
// bytes. Positions are byte offsets; -1 stands for "not JSON".

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// stringEnd returns the position after the closing quote of the string whose
// content begins at i. It looks at quotes and backslashes only.
func stringEnd(b []byte, i int) int {
	for i < len(b) {
		i = plain(b, i)
		switch {
		case i >= len(b):
			return -1
		case b[i] == '"':
			return i + 1
		case b[i] == '\\':
			i += 2
		default: // a control character: whether it may stand here is not asked
			i++
		}
	}
	return -1
}

// plain returns the first position at or after i of a quote, a backslash or a
// control character, or len(b). It reads eight bytes at a time: in each byte
// of m the high bit says that the byte is one of these. A borrow can set a bit
// falsely, but only above a true one, and the lowest is taken.
func plain(b []byte, i int) int {
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		q := w ^ ones*'"'
		s := w ^ ones*'\\'
		m := ((q - ones) &^ q) | ((s - ones) &^ s) | ((w - ones*0x20) &^ w)
		if m &= highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// space returns the first position at or after i that holds no white space.
func space(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isDigit(c byte) bool { return c-'0' <= 9 }

// valueEnd returns the position after the value that begins at i. It follows
// strings and brackets and trusts the rest, but for a slash outside a string:
// some servers read comments, and what stands in one must not be taken for
// content.
func valueEnd(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return stringEnd(b, i+1)
	case '{', '[':
	default:
		start := i
		for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != '}' && b[i] != ']' {
			if b[i] == '/' || b[i] == '"' || b[i] == ':' {
				return -1
			}
			i++
		}
		if i == start {
			return -1
		}
		return i
	}
	for depth := 0; i < len(b); {
		switch b[i] {
		case '"':
			if i = stringEnd(b, i+1); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '/':
			return -1
		}
		i++
	}
	return -1
}

// member is one member of an object, as positions in the text.
type member struct {
	name, nameEnd   int // without the quotes
	value, valueEnd int
}

// nextMember reads the member that begins at or after i, where i follows the
// opening brace or a member. more is false at the closing brace. ok is false
// where the text is not JSON.
func nextMember(b []byte, i int, first bool) (m member, more, ok bool) {
	i = space(b, i)
	if i < len(b) && b[i] == '}' {
		return m, false, true
	}
	if !first {
		if i >= len(b) || b[i] != ',' {
			return m, false, false
		}
		i = space(b, i+1)
	}
	if i >= len(b) || b[i] != '"' {
		return m, false, false
	}
	m.name = i + 1
	if i = stringEnd(b, i+1); i < 0 {
		return m, false, false
	}
	m.nameEnd = i - 1
	i = space(b, i)
	if i >= len(b) || b[i] != ':' {
		return m, false, false
	}
	m.value = space(b, i+1)
	m.valueEnd = valueEnd(b, m.value)
	return m, true, m.valueEnd >= 0
}

// unescape appends the text of a string's content to dst. ok is false where
// an escape is not JSON or names half a surrogate pair; encoding/json puts
// U+FFFD for the latter, which would make one text of two.
func unescape(dst, s []byte) (_ []byte, ok bool) {
	for {
		n := bytes.IndexByte(s, '\\')
		if n < 0 {
			return append(dst, s...), true
		}
		dst = append(dst, s[:n]...)
		s = s[n:]
		if len(s) < 2 {
			return dst, false
		}
		switch c := s[1]; c {
		case '"', '\\', '/':
			dst = append(dst, c)
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
			r, n := unicodeEscape(s)
			if n == 0 {
				return dst, false
			}
			dst = utf8.AppendRune(dst, r)
			s = s[n:]
			continue
		default:
			return dst, false
		}
		s = s[2:]
	}
}

// unicodeEscape reads the \uXXXX, or the pair of them, at the beginning of s.
// n is its length: 0 where there is none, or half a surrogate pair.
func unicodeEscape(s []byte) (r rune, n int) {
	r = hex4(s)
	switch {
	case r < 0:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	}
	if r = utf16.DecodeRune(r, hex4(s[6:])); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// hex4 reads the \uXXXX at the beginning of s; -1: there is none.
func hex4(s []byte) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range s[2:6] {
		switch {
		case isDigit(c):
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func appendString[T string | []byte](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	// Most strings need no escape: copy first, look at the copy, begin anew
	// where it does not do.
	from := len(dst)
	dst = append(dst, s...)
	if plain(dst, from) == len(dst) && utf8.Valid(dst[from:]) {
		return append(dst, '"')
	}
	dst = dst[:from]
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			// The conversion of at most four bytes stays on the stack.
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += n
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
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
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendCompact appends the valid JSON text b without the white space outside
// its strings.
func appendCompact(dst, b []byte) []byte {
	start := 0
	for i := 0; i < len(b); {
		switch {
		case b[i] == '"':
			i = stringEnd(b, i+1)
		case isSpace(b[i]):
			dst = append(dst, b[start:i]...)
			i = space(b, i)
			start = i
		default:
			i++
		}
	}
	return append(dst, b[start:]...)
}
