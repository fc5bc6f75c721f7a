package bulk

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// An encoded action has a fixed layout, so that what was sent can be read back
// from its bytes (IDOf, Open) and nothing has to be kept beside them:
//
//	{"OP":{"_id":"ID","version":N,"version_type":"T","routing":"R","_index":"I","pipeline":"P","require_alias":true}}\n
//	BODY\n
//
// Parts that an action does not use are left out. Every op but index has a
// name of six letters. All text is escaped, so no part can imitate another:
// an unescaped quote ends a part, the first line break ends the action line.
const (
	idKey       = `"_id":"`
	versionKey  = `"version":`
	external    = `,"version_type":"external",`
	externalGTE = `,"version_type":"external_gte",`
	routingKey  = `"routing":"`

	doc       = `{"doc":`
	docUpsert = `{"doc_as_upsert":true,"doc":`
	docEnd    = "}\n"
)

// Head is the part of an action line that all actions of one (op, target,
// pipeline, require_alias) share, encoded once. It is read only, and safe for
// concurrent use.
type Head struct {
	op   Op
	open string // {"index":{
	tail string // "_index":"events"}} and a line break
}

// NewHead encodes what all actions of this kind share. Deletes take neither
// pipeline nor requireAlias: the server ignores both.
func NewHead(op Op, target, pipeline string, requireAlias bool) *Head {
	return &Head{op: op, open: open(op), tail: string(appendTail(nil, op, target, pipeline, requireAlias))}
}

// Append appends the encoded action to dst and returns it, like the built-in
// append; it allocates only where dst is too small (see Bound). The action's
// Op, Target, Pipeline and RequireAlias are those of the head and are not
// looked at.
//
// ID and Routing must be valid UTF-8: they are escaped, not checked. Body must
// be one line. Whether the server accepts the combination (a version with
// Create, Update or Upsert, a version without an id) is the caller's affair.
func (h *Head) Append(dst []byte, a *Action) []byte {
	dst = appendOwn(dst, h.open, a)
	dst = append(dst, h.tail...)
	return appendBody(dst, h.op, a.Body)
}

// Append is Head.Append for an action whose head is not at hand.
func Append(dst []byte, a *Action) []byte {
	dst = appendOwn(dst, open(a.Op), a)
	dst = appendTail(dst, a.Op, a.Target, a.Pipeline, a.RequireAlias)
	return appendBody(dst, a.Op, a.Body)
}

// Bound is the most bytes that the encoded action takes.
func Bound(a *Action) int {
	const (
		fixed = 224 // all names and a version: 214
		worst = 6   // \u001f
	)
	return fixed + worst*(len(a.ID)+len(a.Routing)+len(a.Target)+len(a.Pipeline)) + len(a.Body)
}

func open(op Op) string {
	switch op {
	case Index:
		return `{"index":{`
	case Create:
		return `{"create":{`
	case Update, Upsert:
		return `{"update":{`
	case Delete:
		return `{"delete":{`
	}
	panic("bulk: action without an op")
}

// appendOwn appends what belongs to one action: id, version, routing.
func appendOwn(dst []byte, open string, a *Action) []byte {
	dst = append(dst, open...)
	if len(a.ID) > 0 {
		dst = append(dst, idKey...)
		dst = appendEscaped(dst, a.ID)
		dst = append(dst, `",`...)
	}
	if a.VersionType != Internal {
		dst = append(dst, versionKey...)
		dst = strconv.AppendInt(dst, a.Version, 10)
		if a.VersionType == External {
			dst = append(dst, external...)
		} else {
			dst = append(dst, externalGTE...)
		}
	}
	if len(a.Routing) > 0 {
		dst = append(dst, routingKey...)
		dst = appendEscaped(dst, a.Routing)
		dst = append(dst, `",`...)
	}
	return dst
}

func appendTail(dst []byte, op Op, target, pipeline string, requireAlias bool) []byte {
	dst = append(dst, `"_index":"`...)
	dst = appendEscaped(dst, target)
	dst = append(dst, '"')
	if op != Delete {
		if pipeline != "" {
			dst = append(dst, `,"pipeline":"`...)
			dst = appendEscaped(dst, pipeline)
			dst = append(dst, '"')
		}
		if requireAlias {
			dst = append(dst, `,"require_alias":true`...)
		}
	}
	return append(dst, "}}\n"...)
}

func appendBody(dst []byte, op Op, body []byte) []byte {
	switch op {
	case Delete:
		return dst
	case Update:
		dst = append(dst, doc...)
		dst = append(dst, body...)
		return append(dst, docEnd...)
	case Upsert:
		dst = append(dst, docUpsert...)
		dst = append(dst, body...)
		return append(dst, docEnd...)
	default:
		dst = append(dst, body...)
		return append(dst, '\n')
	}
}

// appendEscaped appends s as the inside of a JSON string.
func appendEscaped[T string | []byte](dst []byte, s T) []byte {
	at := len(dst)
	dst = append(dst, s...)
	if safe(dst[at:]) {
		return dst
	}
	dst = dst[:at]
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// safe says whether b needs no escape: no control character, quote or
// backslash. It looks at eight bytes at a time: the subtractions borrow into a
// byte's top bit exactly where the byte is below the bound, or, behind such a
// byte, perhaps once too often; so "none" is always right, and so is "some".
func safe(b []byte) bool {
	const (
		ones = 0x0101010101010101
		tops = 0x8080808080808080
	)
	for len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		if ((w-ones*' ')&^w|(quote-ones)&^quote|(slash-ones)&^slash)&tops != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c < ' ' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Sent is what an encoded action says. Its slices point into the encoding.
type Sent struct {
	Op          Op
	ID          []byte // as it stands on the wire, escaped; nil: none
	VersionType VersionType
	Version     int64
	Body        []byte // as in Action; nil for Delete
}

// IDOf returns the id of an encoded action as it stands on the wire, escaped;
// nil where it has none. Two actions of one target concern the same document
// exactly where these bytes are equal.
func IDOf(encoded []byte) []byte {
	at := len(`{"create":{`)
	if encoded[2] == 'i' {
		at = len(`{"index":{`)
	}
	if encoded[at+1] != '_' || encoded[at+2] != 'i' || encoded[at+3] != 'd' {
		return nil // "version", "routing" or "_index"
	}
	id := encoded[at+len(idKey):]
	for i := 0; ; i++ {
		i += bytes.IndexByte(id[i:], '"')
		escapes := 0
		for i > escapes && id[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return id[:i:i]
		}
	}
}

// Open reads an action that Append encoded, whole and alone, back.
func Open(encoded []byte) Sent {
	s := Sent{ID: IDOf(encoded)}
	eol := bytes.IndexByte(encoded, '\n')
	line, body := encoded[:eol], encoded[eol+1:]
	switch line[2] {
	case 'i':
		s.Op = Index
	case 'c':
		s.Op = Create
	case 'd':
		s.Op = Delete
	default:
		s.Op = Update
		if bytes.HasPrefix(body, []byte(docUpsert)) {
			s.Op = Upsert
		}
	}
	rest := line[bytes.IndexByte(line[1:], '{')+2:]
	if s.ID != nil {
		rest = rest[len(idKey)+len(s.ID)+len(`",`):]
	}
	if bytes.HasPrefix(rest, []byte(versionKey)) {
		rest = rest[len(versionKey):]
		end := bytes.IndexByte(rest, ',')
		s.Version, _ = strconv.ParseInt(string(rest[:end]), 10, 64)
		s.VersionType = External
		if bytes.HasPrefix(rest[end:], []byte(externalGTE)) {
			s.VersionType = ExternalGTE
		}
	}
	switch s.Op {
	case Delete:
	case Update:
		s.Body = body[len(doc) : len(body)-len(docEnd)]
	case Upsert:
		s.Body = body[len(docUpsert) : len(body)-len(docEnd)]
	default:
		s.Body = body[:len(body)-1]
	}
	return s
}
