package document

import (
	"bytes"
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// format is how a value is read.
type format uint8

const (
	formatJSON format = iota
	formatText        // UTF-8 text, put into raw_field as it is
	formatRaw         // any bytes, put into raw_field as base64
)

// document returns the document for a value that is not null, or why there is
// none.
func (r *Rules) document(rec *kgo.Record, out *Result) ([]byte, *problem) {
	var doc []byte
	var p *problem
	if r.format == formatJSON {
		doc, p = r.framed(rec.Value, out)
	} else {
		doc, p = r.wrapped(rec.Value, out)
	}
	if p == nil && r.splices {
		doc, p = r.spliced(rec, doc, out)
	}
	return doc, p
}

// framed returns the value as one line that begins and ends like an object.
func (r *Rules) framed(value []byte, out *Result) ([]byte, *problem) {
	doc := value
	if len(doc) < 2 || doc[0] != '{' || doc[len(doc)-1] != '}' {
		doc = bytes.Trim(value, " \t\r\n")
		out.Changed = len(doc) != len(value)
		body := doc[bomLength(doc):]
		switch {
		case len(body) == 0:
			return nil, problemEmptyValue
		case body[0] != '{':
			return nil, problemNotObject
		case body[len(body)-1] != '}':
			return nil, problemNotClosed
		}
	}
	if bytes.IndexByte(doc, '\n') >= 0 || bytes.IndexByte(doc, '\r') >= 0 {
		return r.compacted(doc, out)
	}
	if r.strict {
		if p := r.checked(doc, out, r.maxDepth); p != nil {
			return nil, p
		}
		if out.check.metadata {
			if !r.strip {
				return nil, problemMetadata
			}
			out.Changed = true
			from := len(out.scratch)
			out.scratch = out.check.appendStripped(out.scratch, doc)
			return out.scratch[from:], nil
		}
	}
	return doc, nil
}

// compacted returns a document with line breaks as one line. It is checked
// first: in what is not JSON, white space outside strings cannot be told from
// other white space.
func (r *Rules) compacted(doc []byte, out *Result) ([]byte, *problem) {
	depth := serverDepth
	if r.strict {
		depth = r.maxDepth
	}
	if p := r.checked(doc, out, depth); p != nil {
		return nil, p
	}
	out.Changed = true
	from := len(out.scratch)
	switch {
	case out.check.metadata && !r.strip:
		return nil, problemMetadata
	case out.check.metadata:
		doc = out.check.appendStripped(nil, doc)
	}
	out.scratch = appendCompact(out.scratch, doc)
	return out.scratch[from:], nil
}

func (r *Rules) checked(doc []byte, out *Result, depth int) *problem {
	out.check.names, out.check.maxDepth = r.strict, depth
	return out.check.object(doc)
}

// bomLength returns the length of the byte-order mark that doc begins with.
// The server takes one.
func bomLength(doc []byte) int {
	if len(doc) >= 3 && doc[0] == 0xEF && doc[1] == 0xBB && doc[2] == 0xBF {
		return 3
	}
	return 0
}

// wrapped returns an object with the value as its one field.
func (r *Rules) wrapped(value []byte, out *Result) ([]byte, *problem) {
	out.Changed = true
	from := len(out.scratch)
	b := out.scratch
	b = append(b, '{')
	b = appendString(b, r.rawField)
	b = append(b, ':')
	if r.format == formatText {
		if !utf8.Valid(value) {
			return nil, problemNotUTF8
		}
		b = appendString(b, value)
	} else {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, value)
		b = append(b, '"')
	}
	b = append(b, '}')
	out.scratch = b
	return b[from:], nil
}

// spliced returns doc with the metadata object and the timestamp in front of
// its own fields.
func (r *Rules) spliced(rec *kgo.Record, doc []byte, out *Result) ([]byte, *problem) {
	open := bomLength(doc) + 1
	var stamp []byte // a JSON value
	if len(r.timestamps) > 0 {
		var p *problem
		if stamp, p = r.timestamp(rec, doc, out); p != nil {
			return nil, p
		}
	}
	if stamp == nil && r.metadata == nil {
		return doc, nil
	}
	out.Changed = true
	from := len(out.scratch)
	b := out.scratch
	b = append(b, doc[:open]...)
	if r.metadata != nil {
		b = append(b, r.metadataOpen...)
		for i, part := range r.metadata {
			if i > 0 {
				b = append(b, ',')
			}
			b = part(b, rec)
		}
		b = append(b, '}')
	}
	if stamp != nil {
		if r.metadata != nil {
			b = append(b, ',')
		}
		b = append(b, `"@timestamp":`...)
		b = append(b, stamp...)
	}
	if rest := space(doc, open); rest < len(doc) && doc[rest] != '}' {
		b = append(b, ',')
	}
	b = append(b, doc[open:]...)
	out.scratch = b
	return b[from:], nil
}

// timestampPointer is the field that data streams need.
var timestampPointer = pointer{{name: "@timestamp", index: -1}}

// timestamp returns the JSON value to fill @timestamp with; nil: the document
// has one, or none of the places that are configured has a time.
func (r *Rules) timestamp(rec *kgo.Record, doc []byte, out *Result) ([]byte, *problem) {
	own := doc[bomLength(doc):]
	raw, ok := timestampPointer.find(own, &out.check.scratch)
	if !ok {
		return nil, problemNotJSON
	}
	if raw != nil {
		return nil, nil
	}
	for i := range r.timestamps {
		src := &r.timestamps[i]
		if src.kind == fromTimestamp {
			from := len(out.scratch)
			out.scratch = appendTime(out.scratch, rec.Timestamp)
			if len(out.scratch) > from {
				return out.scratch[from:], nil
			}
			continue
		}
		raw, ok := src.pointer.find(own, &out.check.scratch)
		if !ok {
			return nil, problemNotJSON
		}
		if raw != nil && (raw[0] == '"' || raw[0] == '-' || isDigit(raw[0])) {
			return raw, nil
		}
	}
	return nil, nil
}

// appendTime appends t in UTC with milliseconds as a JSON string, and nothing
// where the record has no time (-1) or one beyond the calendar.
func appendTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	if t.UnixMilli() < 0 || t.Year() > 9999 {
		return dst
	}
	return t.AppendFormat(dst, `"2006-01-02T15:04:05.000Z"`)
}

// metadataParts are the parts of the spliced metadata, by the names that
// documents.metadata.include knows. A part that the record lacks is null.
var metadataParts = map[string]func(dst []byte, rec *kgo.Record) []byte{
	"topic": func(dst []byte, rec *kgo.Record) []byte {
		return appendString(append(dst, `"topic":`...), rec.Topic)
	},
	"partition": func(dst []byte, rec *kgo.Record) []byte {
		return (&source{kind: fromPartition}).appendOwn(append(dst, `"partition":`...), rec)
	},
	"offset": func(dst []byte, rec *kgo.Record) []byte {
		return (&source{kind: fromOffset}).appendOwn(append(dst, `"offset":`...), rec)
	},
	"timestamp": func(dst []byte, rec *kgo.Record) []byte {
		dst = append(dst, `"timestamp":`...)
		from := len(dst)
		if dst = appendTime(dst, rec.Timestamp); len(dst) == from {
			dst = append(dst, "null"...)
		}
		return dst
	},
	"key": func(dst []byte, rec *kgo.Record) []byte {
		return appendNullable(append(dst, `"key":`...), rec.Key)
	},
	// A list of pairs, not an object: a header may occur twice, and its name
	// need not be one that the server takes for a field.
	"headers": func(dst []byte, rec *kgo.Record) []byte {
		dst = append(dst, `"headers":[`...)
		for i, h := range rec.Headers {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(append(dst, `{"key":`...), h.Key)
			dst = appendNullable(append(dst, `,"value":`...), h.Value)
			dst = append(dst, '}')
		}
		return append(dst, ']')
	},
}

func appendNullable(dst, s []byte) []byte {
	if s == nil {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}
