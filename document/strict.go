package document

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// serverDepth is how deep Elasticsearch 8 reads JSON. A value that is
// compacted is checked to this depth under `validate: server` too.
const serverDepth = 1000

// checker checks one JSON object against RFC 8259. Beyond it: the text is
// UTF-8, escapes name no half surrogate pairs, nothing is deeper than
// maxDepth, and, with names, no field at the top has a name that the server
// refuses. Numbers may have any size. Names that occur twice, and names further
// down, which a disabled or flattened object may have, are left to the server.
//
// It needs neither recursion nor memory that grows with the text: one bit a
// level, kept from call to call.
type checker struct {
	maxDepth int
	names    bool
	objects  []uint64 // a bit per open level: 1 is an object, 0 an array
	metadata bool     // out: a name at the top is a metadata field's
	scratch  []byte
}

// object returns nil where b is one object and nothing else.
func (c *checker) object(b []byte) *problem {
	if !utf8.Valid(b) {
		return problemNotUTF8
	}
	c.metadata = false
	if words := (c.maxDepth + 63) / 64; len(c.objects) < words {
		c.objects = make([]uint64, words)
	}
	i := space(b, 0)
	if i == len(b) || b[i] != '{' {
		return problemNotObject
	}
	for depth := 0; ; {
		// At the first byte of a value.
		if i >= len(b) {
			return invalidAt(i)
		}
		start := i
		switch first := b[i]; first {
		case '{', '[':
			if depth == c.maxDepth {
				return problemTooDeep
			}
			bit := uint64(1) << (depth & 63)
			if first == '{' {
				c.objects[depth>>6] |= bit
			} else {
				c.objects[depth>>6] &^= bit
			}
			depth++
			i = space(b, i+1)
			if i < len(b) && b[i] == first+2 { // ASCII: the closing bracket stands two after the opening one
				break // and is read below
			}
			if first == '{' {
				var p *problem
				if i, p = c.name(b, i, depth); p != nil {
					return p
				}
			}
			continue
		case '"':
			i = checkedString(b, i+1)
		case 't':
			i = word(b, i, "true")
		case 'f':
			i = word(b, i, "false")
		case 'n':
			i = word(b, i, "null")
		default:
			i = number(b, i)
		}
		if i < 0 {
			return invalidAt(start)
		}
		// After a value: it may close levels; a comma leads to the next.
		for {
			i = space(b, i)
			if depth == 0 {
				if i < len(b) {
					return invalidAt(i)
				}
				return nil
			}
			if i >= len(b) {
				return invalidAt(i)
			}
			inObject := c.objects[(depth-1)>>6]>>((depth-1)&63)&1 == 1
			if b[i] == ',' {
				i = space(b, i+1)
				if inObject {
					var p *problem
					if i, p = c.name(b, i, depth); p != nil {
						return p
					}
				}
				break
			}
			if b[i] != '}' && b[i] != ']' || inObject != (b[i] == '}') {
				return invalidAt(i)
			}
			depth--
			i++
		}
	}
}

// name reads a member's name and its colon, from the opening quote at i, and
// returns where the value begins.
func (c *checker) name(b []byte, i, depth int) (int, *problem) {
	if i >= len(b) || b[i] != '"' {
		return 0, invalidAt(i)
	}
	end := plain(b, i+1)
	escaped := end >= len(b) || b[end] != '"'
	if !escaped {
		end++
	} else if end = checkedString(b, end); end < 0 {
		return 0, invalidAt(i)
	}
	if c.names && depth == 1 {
		name := b[i+1 : end-1]
		if escaped {
			c.scratch, _ = unescape(c.scratch[:0], name)
			name = c.scratch
		}
		if !acceptedName(name) {
			return 0, problemFieldName
		}
		if name[0] == '_' && isMetadata(name) {
			c.metadata = true
		}
	}
	i = space(b, end)
	if i >= len(b) || b[i] != ':' {
		return 0, invalidAt(i)
	}
	return space(b, i+1), nil
}

// checkedString is stringEnd for a string that must be JSON.
func checkedString(b []byte, i int) int {
	for {
		i = plain(b, i)
		if i >= len(b) {
			return -1
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			if i+1 >= len(b) {
				return -1
			}
			switch b[i+1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				_, n := unicodeEscape(b[i:])
				if n == 0 {
					return -1
				}
				i += n
			default:
				return -1
			}
		default:
			return -1
		}
	}
}

func word(b []byte, i int, w string) int {
	if len(b)-i < len(w) || string(b[i:i+len(w)]) != w {
		return -1
	}
	return i + len(w)
}

// number returns the position after the number at i.
func number(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b) || !isDigit(b[i]):
		return -1
	case b[i] == '0':
		i++
	default:
		i = digits(b, i)
	}
	if i < len(b) && b[i] == '.' {
		if i = digits(b, i+1); i < 0 {
			return -1
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

// digits returns the position after the digits at i, -1 where there is none.
func digits(b []byte, i int) int {
	start := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func invalidAt(i int) *problem {
	return &problem{TypeInvalidJSON, fmt.Sprintf("the value is not JSON at byte %d", i)}
}

// acceptedName reports whether the server takes name for a field at the top of
// a document: it reads dots as levels, passes over those at the end, and
// refuses a level that is empty or white space.
func acceptedName(name []byte) bool {
	if len(name) > 0 && name[0] > ' ' && bytes.IndexByte(name, '.') < 0 {
		return true
	}
	name = bytes.TrimRight(name, ".")
	for level := range bytes.SplitSeq(name, []byte{'.'}) {
		if space(level, 0) == len(level) {
			return false
		}
	}
	return true
}

// isMetadata reports whether name is a metadata field's, which the server
// refuses inside a document. Left out are _doc_count, which a document may
// hold, and _type, which is an ordinary name from Elasticsearch 8 on.
func isMetadata(name []byte) bool {
	switch string(name) {
	case "_id", "_index", "_source", "_routing", "_version", "_seq_no", "_ignored",
		"_field_names", "_nested_path", "_tier", "_data_stream_timestamp", "_ignored_source":
		return true
	}
	return false
}

// appendStripped appends the valid object b without its metadata fields.
func (c *checker) appendStripped(dst, b []byte) []byte {
	dst = append(dst, '{')
	i, kept := space(b, 0)+1, 0
	for first := true; ; first = false {
		m, more, _ := nextMember(b, i, first)
		if !more {
			return append(dst, '}')
		}
		i = m.valueEnd
		c.scratch, _ = unescape(c.scratch[:0], b[m.name:m.nameEnd])
		if isMetadata(c.scratch) {
			continue
		}
		if kept++; kept > 1 {
			dst = append(dst, ',')
		}
		dst = append(dst, b[m.name-1:m.valueEnd]...)
	}
}
