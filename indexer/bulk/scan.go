package bulk

import "bytes"

// The functions below read JSON (RFC 8259) at b[i] and return the index behind
// what they read, or a negative number where the bytes are cut or not JSON.
// They accept what encoding/json accepts, up to maxDepth.

// maxDepth bounds the recursion. Answers nest about ten levels (causes).
const maxDepth = 256

const bad = -1

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// token reads c and the white space around it.
func token(b []byte, i int, c byte) int {
	if i = space(b, i); i == len(b) || b[i] != c {
		return bad
	}
	return space(b, i+1)
}

// text reads a string; it stands in b[i+1 : end-1], escaped.
func text(b []byte, i int) (end int) {
	if i >= len(b) || b[i] != '"' {
		return bad
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return bad
		case c == '\\':
			if i++; i == len(b) {
				return bad
			}
			if b[i] == 'u' {
				for range 4 {
					if i++; i == len(b) || !isHex(b[i]) {
						return bad
					}
				}
			} else if bytes.IndexByte([]byte(`"\/bfnrt`), b[i]) < 0 {
				return bad
			}
		}
	}
	return bad
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// member reads a name, a colon and the white space around it. Names of answers
// have no escapes: one with an escape is refused, so that no name passes by
// unrecognised.
func member(b []byte, i int) (name []byte, at int) {
	end := text(b, i)
	if end < 0 {
		return nil, bad
	}
	name = b[i+1 : end-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		return nil, bad
	}
	return name, token(b, end, ':')
}

// more reads what follows an element: a comma (i is the next element) or the
// closing bracket (done).
func more(b []byte, i int, closing byte) (next int, done bool) {
	i = space(b, i)
	if i == len(b) {
		return bad, true
	}
	switch b[i] {
	case ',':
		return space(b, i+1), false
	case closing:
		return i + 1, true
	}
	return bad, true
}

// object reads an object. For each member, read gets the name and where its
// value begins, and returns where it ends.
func object(b []byte, i int, read func(name []byte, i int) int) int {
	if i = token(b, i, '{'); i < 0 {
		return bad
	}
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for done := false; !done; {
		name, at := member(b, i)
		if at < 0 {
			return bad
		}
		if i = read(name, at); i < 0 {
			return bad
		}
		i, done = more(b, i, '}')
	}
	return i
}

// skip reads any value.
func skip(b []byte, i, depth int) int {
	if i >= len(b) || depth == 0 {
		return bad
	}
	switch b[i] {
	case '{':
		return object(b, i, func(_ []byte, i int) int { return skip(b, i, depth-1) })
	case '[':
		i = space(b, i+1)
		if i < len(b) && b[i] == ']' {
			return i + 1
		}
		for done := false; !done; {
			if i = skip(b, i, depth-1); i < 0 {
				return bad
			}
			i, done = more(b, i, ']')
		}
		return i
	case '"':
		return text(b, i)
	case 't':
		return literal(b, i, "true")
	case 'f':
		return literal(b, i, "false")
	case 'n':
		return literal(b, i, "null")
	default:
		return number(b, i)
	}
}

func literal(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return bad
	}
	return i + len(word)
}

func number(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = digits(b, i); i < 0 {
		return bad
	}
	if i < len(b) && b[i] == '.' {
		if i = digits(b, i+1); i < 0 {
			return bad
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digits(b, i)
	}
	return i
}

// digits reads at least one digit.
func digits(b []byte, i int) int {
	from := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	if i == from {
		return bad
	}
	return i
}
