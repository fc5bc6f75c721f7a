// Package bulk reads Elasticsearch bulk requests and writes the answers that
// Elasticsearch would give, without storing anything.
package bulk

import (
	"bytes"
	"errors"
	"strconv"
)

// Action is one action of a bulk request. Its fields alias the request body.
type Action struct {
	op    int
	index []byte
	id    []byte
	// Doc is the document, nil for a delete.
	Doc []byte
}

// ErrMalformed is returned for a body that isn't a bulk request.
var ErrMalformed = errors.New("malformed action/metadata line")

// Parse calls each for every action of body, in order, and returns how many
// there were. The action line is read for its name, _index and _id; documents
// are split at newlines and not looked into.
func Parse(body []byte, each func(Action)) (int, error) {
	n := 0
	for len(body) > 0 {
		var line []byte
		line, body = cut(body)
		if len(line) == 0 {
			continue
		}
		a := Action{op: -1}
		name := quoted(line)
		for op := range ops {
			if string(name) == ops[op] {
				a.op = op
			}
		}
		if a.op < 0 {
			return n, ErrMalformed
		}
		a.index = value(line, `"_index"`)
		a.id = value(line, `"_id"`)
		if ops[a.op] != "delete" {
			if len(body) == 0 {
				return n, ErrMalformed
			}
			a.Doc, body = cut(body)
		}
		each(a)
		n++
	}
	return n, nil
}

func cut(b []byte) (line, rest []byte) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return b[:i], b[i+1:]
	}
	return b, nil
}

// quoted returns the first string literal in b.
func quoted(b []byte) []byte {
	i := bytes.IndexByte(b, '"')
	if i < 0 {
		return nil
	}
	b = b[i+1:]
	j := bytes.IndexByte(b, '"')
	if j < 0 {
		return nil
	}
	return b[:j]
}

func value(line []byte, key string) []byte {
	i := bytes.Index(line, []byte(key))
	if i < 0 {
		return nil
	}
	return quoted(line[i+len(key):])
}

// Outcome is what happens to one action.
type Outcome int

// The outcomes: stored, turned away for now (429), refused for good (400).
const (
	Stored Outcome = iota
	Rejected
	Invalid
)

// Response builds the answer to one bulk request. Its buffer is reused.
type Response struct {
	filter  *Filter
	index   string
	items   []byte
	failed  bool
	counter uint64
	out     []byte
}

// Reset starts an answer. Index is the one named in the URL, if any; firstID
// numbers the ids given to documents that came without.
func (r *Response) Reset(f *Filter, index string, firstID uint64) {
	r.filter, r.index, r.counter = f, index, firstID
	r.items, r.failed = r.items[:0], false
}

// Add appends the item for one action.
func (r *Response) Add(a Action, o Outcome) {
	show := leavesOK
	if o != Stored {
		r.failed = true
		show = leavesFailed
	}
	r.counter++
	show &= r.filter.items[a.op]
	if show == 0 {
		return // Elasticsearch leaves out what is empty, the whole item here.
	}
	b := r.items
	if len(b) > 0 {
		b = append(b, ',')
	}
	b = append(b, `{"`...)
	b = append(b, ops[a.op]...)
	b = append(b, `":`...)
	sep := byte('{')
	field := func(name string) {
		b = append(b, sep, '"')
		b = append(b, name...)
		b = append(b, `":`...)
		sep = ','
	}
	if show&leafIndex != 0 {
		field("_index")
		b = append(b, '"')
		if a.index != nil {
			b = append(b, a.index...)
		} else {
			b = append(b, r.index...)
		}
		b = append(b, '"')
	}
	if show&leafID != 0 {
		field("_id")
		b = append(b, '"')
		if a.id != nil {
			b = append(b, a.id...)
		} else {
			b = appendID(b, r.counter)
		}
		b = append(b, '"')
	}
	if show&leafVersion != 0 {
		field("_version")
		b = append(b, '1')
	}
	if show&leafResult != 0 {
		field("result")
		b = append(b, `"created"`...)
	}
	if show&leafShards != 0 {
		field("_shards")
		b = append(b, `{"total":2,"successful":1,"failed":0}`...)
	}
	if show&leafSeqNo != 0 {
		field("_seq_no")
		b = strconv.AppendUint(b, r.counter, 10)
	}
	if show&leafTerm != 0 {
		field("_primary_term")
		b = append(b, '1')
	}
	if show&leafStatus != 0 {
		field("status")
		b = append(b, statuses[o]...)
	}
	if show&(leafType|leafReason) != 0 {
		field("error")
		sep = '{'
		if show&leafType != 0 {
			field("type")
			b = append(b, errorTypes[o]...)
		}
		if show&leafReason != 0 {
			field("reason")
			b = append(b, errorReasons[o]...)
		}
		b = append(b, '}')
	}
	b = append(b, "}}"...)
	r.items = b
}

var (
	statuses     = [...]string{"201", "429", "400"}
	errorTypes   = [...]string{"", `"es_rejected_execution_exception"`, `"document_parsing_exception"`}
	errorReasons = [...]string{
		"",
		`"rejected execution of coordinating operation [coordinating_and_primary_bytes=0, all_bytes=0]"`,
		`"[1:1] failed to parse field [latency_ms] of type [long]"`,
	}
)

// appendID appends an id as long as the ones Elasticsearch makes.
func appendID(b []byte, n uint64) []byte {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	b = append(b, "nullsink-"...)
	for i := range 11 {
		b = append(b, digits[n>>(60-6*i)&63])
	}
	return b
}

// Bytes finishes the answer. It is valid until the next Reset.
func (r *Response) Bytes(tookMillis int64) []byte {
	b := r.out[:0]
	sep := byte('{')
	if r.filter.top&leafErrors != 0 {
		b = append(b, sep)
		b = append(b, `"errors":`...)
		b = strconv.AppendBool(b, r.failed)
		sep = ','
	}
	if r.filter.top&leafTook != 0 {
		b = append(b, sep)
		b = append(b, `"took":`...)
		b = strconv.AppendInt(b, tookMillis, 10)
		sep = ','
	}
	if len(r.items) > 0 {
		b = append(b, sep)
		b = append(b, `"items":[`...)
		b = append(b, r.items...)
		b = append(b, ']')
		sep = ','
	}
	if sep == '{' {
		b = append(b, '{')
	}
	b = append(b, '}')
	r.out = b
	return b
}
