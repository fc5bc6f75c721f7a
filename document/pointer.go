package document

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// pointer is an RFC 6901 JSON pointer, ready to be followed in raw bytes.
type pointer []step

// step is one reference token. In an array it is an index, where it can be.
type step struct {
	name  string
	index int // -1: not an index
}

var errPointer = errors.New(`a JSON pointer begins with "/" and escapes "~" as "~0" and "/" as "~1"`)

// parsePointer reads a pointer. The empty pointer, the whole document, is
// refused: it can be neither an id nor a name.
func parsePointer(s string) (pointer, error) {
	if !strings.HasPrefix(s, "/") {
		return nil, errPointer
	}
	var p pointer
	for token := range strings.SplitSeq(s[1:], "/") {
		for i := range len(token) {
			if token[i] == '~' && (i+1 == len(token) || token[i+1] != '0' && token[i+1] != '1') {
				return nil, errPointer
			}
		}
		name := strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		index, err := strconv.Atoi(name)
		if err != nil || strconv.Itoa(index) != name || index < 0 {
			index = -1
		}
		p = append(p, step{name, index})
	}
	return p, nil
}

// find returns the raw value that p points at in the document doc; nil: there
// is none. Where a name occurs twice its last member counts, as in
// encoding/json. ok is false where doc is not JSON; it is followed, not
// checked, so a document that is not JSON may pass.
func (p pointer) find(doc []byte, scratch *[]byte) (raw []byte, ok bool) {
	doc = doc[space(doc, 0):]
	for _, s := range p {
		if len(doc) == 0 {
			return nil, false
		}
		switch doc[0] {
		case '{':
			doc, ok = findMember(doc, s.name, scratch)
		case '[':
			doc, ok = findElement(doc, s.index)
		default:
			return nil, true
		}
		if !ok || doc == nil {
			return nil, ok
		}
	}
	return doc, true
}

// findMember returns the value of the last member called name of the object b.
func findMember(b []byte, name string, scratch *[]byte) (value []byte, ok bool) {
	i := 1
	for first := true; ; first = false {
		m, more, ok := nextMember(b, i, first)
		if !ok {
			return nil, false
		}
		if !more {
			return value, true
		}
		i = m.valueEnd
		raw := b[m.name:m.nameEnd]
		if string(raw) == name {
			value = b[m.value:m.valueEnd]
			continue
		}
		// An escape is longer than what it stands for.
		if len(raw) > len(name) && bytes.IndexByte(raw, '\\') >= 0 {
			text, ok := unescape((*scratch)[:0], raw)
			*scratch = text
			if ok && string(text) == name {
				value = b[m.value:m.valueEnd]
			}
		}
	}
}

// findElement returns the element of the array b at index.
func findElement(b []byte, index int) (value []byte, ok bool) {
	i := space(b, 1)
	if i < len(b) && b[i] == ']' {
		return nil, true
	}
	for n := 0; ; n++ {
		end := valueEnd(b, i)
		if end < 0 {
			return nil, false
		}
		if n == index {
			value = b[i:end]
		}
		i = space(b, end)
		switch {
		case i < len(b) && b[i] == ']':
			return value, true
		case i < len(b) && b[i] == ',':
			i = space(b, i+1)
		default:
			return nil, false
		}
	}
}
