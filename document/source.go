package document

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// kind is where a piece of text comes from.
type kind uint8

const (
	literal kind = iota
	fromTopic
	fromPartition
	fromOffset
	fromKey
	fromCustomer
	fromTimestamp // the record's, in UTC
	fromHeader
	fromField
)

// source is one place of a record that gives a text.
type source struct {
	kind    kind
	text    string         // a literal, a header's name, a timestamp's layout, a field's pointer as written
	pointer pointer        // fromField
	pattern *regexp.Regexp // fromKey: its one group is taken; nil: the whole key
}

// keptByNull reports whether a record without a value still has the text; by
// is where customers come from.
func (s *source) keptByNull(by *source) bool {
	switch s.kind {
	case fromField, fromPartition, fromOffset:
		return false
	case fromCustomer:
		return by != nil && by.keptByNull(nil)
	default:
		return true
	}
}

// parseSource reads `key`, `header:h`, `field:/p`. ok is false for anything
// else.
func parseSource(s string) (src source, ok bool, err error) {
	name, arg, _ := strings.Cut(s, ":")
	switch {
	case s == "key":
		return source{kind: fromKey}, true, nil
	case name == "header" && arg != "":
		return source{kind: fromHeader, text: arg}, true, nil
	case name == "field" && arg != "":
		p, err := parsePointer(arg)
		return source{kind: fromField, text: arg, pointer: p}, err == nil, err
	}
	return source{}, false, nil
}

// lack is why a source gave no text.
type lack uint8

const (
	lacksNothing lack = iota
	absent            // no such key, header or field, or an empty one, or a field that is neither text, number nor truth value
	notText           // not UTF-8, or an escape that is no character
	notJSON           // the document cannot be followed
)

// value returns the source's text in rec. doc is the record's document, nil
// where it has none, and out.Customer is already set. The bytes are the
// record's or stand in out's scratch.
func (s *source) value(rec *kgo.Record, doc []byte, out *Result) ([]byte, lack) {
	var b []byte
	switch s.kind {
	case fromKey:
		b = rec.Key
		if s.pattern != nil && b != nil {
			m := s.pattern.FindSubmatchIndex(b)
			if m == nil || m[2] < 0 {
				return nil, absent
			}
			b = b[m[2]:m[3]]
		}
	case fromHeader:
		b = header(rec, s.text)
	case fromField:
		return s.field(doc, out)
	case fromCustomer:
		b = out.Customer
	default:
		from := len(out.scratch)
		out.scratch = s.appendOwn(out.scratch, rec)
		return out.scratch[from:], lacksNothing
	}
	if len(b) == 0 {
		return nil, absent
	}
	return b, lacksNothing
}

// appendOwn appends what every record has.
func (s *source) appendOwn(dst []byte, rec *kgo.Record) []byte {
	switch s.kind {
	case literal:
		return append(dst, s.text...)
	case fromTopic:
		return append(dst, rec.Topic...)
	case fromPartition:
		return strconv.AppendInt(dst, int64(rec.Partition), 10)
	case fromOffset:
		return strconv.AppendInt(dst, rec.Offset, 10)
	default: // fromTimestamp
		return rec.Timestamp.UTC().AppendFormat(dst, s.text)
	}
}

// header returns the last header of that name, as Kafka's own clients do.
func header(rec *kgo.Record, name string) []byte {
	if mutantHeader {
		for _, h := range rec.Headers {
			if h.Key == name {
				return h.Value
			}
		}
	}
	for i := len(rec.Headers) - 1; i >= 0; i-- {
		if rec.Headers[i].Key == name {
			return rec.Headers[i].Value
		}
	}
	return nil
}

// field returns a field's text: a string's characters, a number or a truth
// value as it is written.
func (s *source) field(doc []byte, out *Result) ([]byte, lack) {
	if doc == nil {
		return nil, absent
	}
	raw, ok := s.pointer.find(doc[bomLength(doc):], &out.check.scratch)
	switch {
	case !ok:
		return nil, notJSON
	case raw == nil || raw[0] == '{' || raw[0] == '[' || string(raw) == "null" || string(raw) == `""`:
		return nil, absent
	case raw[0] != '"':
		return raw, lacksNothing
	}
	from := len(out.scratch)
	out.scratch, ok = unescape(out.scratch, raw[1:len(raw)-1])
	if b := out.scratch[from:]; ok && utf8.Valid(b) {
		return b, lacksNothing
	}
	return nil, notText
}
