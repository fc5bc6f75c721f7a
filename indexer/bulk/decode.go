package bulk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// FilterPath is the filter_path to send with each bulk request. It cuts an
// item of an answer from about 200 bytes to 44 and keeps all that a verdict
// needs:
//
//   - status is in every item, so that items can be counted: a filter that
//     matches nothing in an item makes the server leave out the item, or all
//     of `items` when everything went well;
//   - result tells `noop` (an ingest pipeline dropped the document: 200 as for
//     an update) and `not_found` (a delete: 404, yet no error);
//   - error.type and error.reason name the refusal. The reason of a version
//     conflict is the only place where the stored version stands; the cause's
//     reason is often the only useful one ("failed to parse").
//
// Errors of the whole request are never filtered.
const FilterPath = "errors,items.*.status,items.*.result,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"

// ErrUnusable marks an answer that proves nothing about the actions that were
// sent: it is cut, not JSON, not an answer of _bulk, or has not exactly one
// item with a status per action. The same actions must be sent again.
var ErrUnusable = errors.New("bulk: unusable answer")

// Result is what became of a document.
type Result uint8

// The results. Other is any that Sluice does not know.
const (
	Other Result = iota
	Created
	Updated
	Deleted
	NotFound // a delete of what was not there: status 404, no error
	Noop     // dropped by an ingest pipeline, or an update that changes nothing
)

// Item is one action's part of an answer. Its texts point into the answer.
type Item struct {
	Op     Op // Update also for Upsert
	Status int
	Result Result
	// Failed says that the item carries an error.
	Failed bool
	Type   Text // of the error, such as document_parsing_exception
	Reason Text // may quote the document
	Cause  Text // reason of the error's cause; may quote the document
}

// Text is the inside of a JSON string as it stands in an answer, escaped.
type Text []byte

// String returns the text unescaped, as valid UTF-8.
func (t Text) String() string {
	if bytes.IndexByte(t, '\\') < 0 && utf8.Valid(t) {
		return string(t)
	}
	quoted := append(append([]byte{'"'}, t...), '"')
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return "" // not from a decoded answer
	}
	return s
}

// Summary counts the items of an answer. Written + Deleted + Visited = n.
type Summary struct {
	Written int // status 200 or 201 of an index, create or update; also an update that changed nothing
	Deleted int // deletes, also of what was not there
	Visited int // all others
}

// Decode reads the answer to a bulk request of n actions. It calls visit, in
// order, for each item that is not a plain success (see Summary), with the
// item's position; the item is valid until the answer's buffer is reused. Every
// item that is not visited was written or deleted.
//
// The whole answer is checked before the first visit, so an error
// (ErrUnusable) means that visit was not called. It must be complete JSON with
// `errors` and n `items`; other members (took), their order (7.17 puts took
// first) and white space do not matter.
func Decode(answer []byte, n int, visit func(i int, it Item)) (Summary, error) {
	var (
		sum     Summary
		failed  bool // an item carries an error
		said    bool // `errors` is true
		errs    int  // position of `errors`, 0: not seen
		items   int  // position of `items`, 0: not seen
		problem error
	)
	end := object(answer, 0, func(name []byte, i int) int {
		switch string(name) {
		case "errors":
			if errs != 0 {
				return bad
			}
			errs = i
			said = literal(answer, i, "true") > 0
			if said {
				return i + len("true")
			}
			return literal(answer, i, "false")
		case "items":
			if items != 0 {
				return bad
			}
			items = i
			w := walk{answer: answer, n: n}
			i = w.run(items)
			sum, failed, problem = w.sum, w.failed, w.problem
			return i
		default:
			return skip(answer, i, maxDepth)
		}
	})
	switch {
	case problem != nil:
		return Summary{}, problem
	case end < 0 || space(answer, end) != len(answer):
		return Summary{}, fmt.Errorf("%w: cut, or not the JSON of a bulk answer (%d bytes)", ErrUnusable, len(answer))
	case errs == 0 || items == 0:
		return Summary{}, fmt.Errorf("%w: no `errors` or no `items` in it", ErrUnusable)
	case said && !failed:
		return Summary{}, fmt.Errorf("%w: `errors` is true, but no item has an error", ErrUnusable)
	}
	if sum.Visited > 0 {
		w := walk{answer: answer, n: n, visit: visit}
		w.run(items)
	}
	return sum, nil
}

// walk goes through the items of an answer.
//
// Most items of an answer are the same bytes: {"index":{"result":"created",
// "status":201}}. So the last plain successes are remembered as bytes, and an
// item that repeats one of them is counted without being parsed. This holds for
// any member order and white space, and proves as much as parsing does.
type walk struct {
	answer  []byte
	n       int
	visit   func(i int, it Item) // nil: only check and count
	sum     Summary
	failed  bool
	problem error
	memo    [4]struct {
		item    []byte
		deleted bool
	}
	next int // the memo to replace
}

// run reads the array of items at b[i].
func (w *walk) run(i int) int {
	b := w.answer
	if i = token(b, i, '['); i < 0 {
		return bad
	}
	count := 0
	if i < len(b) && b[i] == ']' {
		return w.finish(count, i+1)
	}
items:
	for done := false; !done; count++ {
		for m := range w.memo {
			if e := &w.memo[m]; e.item != nil && bytes.HasPrefix(b[i:], e.item) {
				from := i
				i, done = more(b, i+len(e.item), ']')
				same := 1
				if !done {
					i, same = repeats(b, from, i)
				}
				w.tally(e.deleted, same)
				count += same - 1
				continue items
			}
		}
		var it Item
		from := i
		if i = parseItem(b, i, &it); i < 0 {
			return bad
		}
		if it.Op == 0 || it.Status == 0 {
			w.problem = fmt.Errorf("%w: item %d has no known action or no status", ErrUnusable, count)
			return bad
		}
		w.failed = w.failed || it.Failed
		if plain, deleted := it.plain(); plain {
			w.memo[w.next].item, w.memo[w.next].deleted = b[from:i], deleted
			w.next = (w.next + 1) % len(w.memo)
			w.tally(deleted, 1)
		} else {
			w.sum.Visited++
			if w.visit != nil {
				w.visit(count, it)
			}
		}
		i, done = more(b, i, ']')
	}
	if i < 0 {
		return bad
	}
	return w.finish(count, i)
}

func (w *walk) tally(deleted bool, n int) {
	if deleted {
		w.sum.Deleted += n
	} else {
		w.sum.Written += n
	}
}

// repeats goes on behind b[from:to], an item and its comma, as long as the
// same bytes follow, comparing twice as many at a time. It returns where they
// end, and how often they stand there in all.
func repeats(b []byte, from, to int) (end, n int) {
	size := to - from
	n = 1
	for k := 1; to+k*size <= len(b) && bytes.Equal(b[to-k*size:to], b[to:to+k*size]); k = min(2*k, 64) {
		to += k * size
		n += k
	}
	return to, n
}

func (w *walk) finish(count, i int) int {
	if count != w.n {
		w.problem = fmt.Errorf("%w: %d items for %d actions", ErrUnusable, count, w.n)
		return bad
	}
	return i
}

// plain says whether the item is a success that needs no verdict.
func (it *Item) plain() (plain, deleted bool) {
	if it.Failed {
		return false, false
	}
	ok := it.Status == 200 || it.Status == 201
	if it.Op == Delete {
		return ok || it.Status == 404 && it.Result == NotFound, true
	}
	return ok && (it.Result != Noop || it.Op == Update), false
}

// parseItem reads {"index":{...}}: one action with its members.
func parseItem(b []byte, i int, it *Item) int {
	actions := 0
	i = object(b, i, func(action []byte, i int) int {
		actions++
		it.Op = opOf(action)
		return object(b, i, func(name []byte, i int) int {
			switch string(name) {
			case "status":
				return status(b, i, &it.Status)
			case "result":
				end := text(b, i)
				if end >= 0 {
					it.Result = resultOf(b[i+1 : end-1])
				}
				return end
			case "error":
				it.Failed = true
				return parseError(b, i, it)
			default:
				return skip(b, i, maxDepth)
			}
		})
	})
	if actions != 1 {
		return bad
	}
	return i
}

// parseError reads the error of an item or of a request: an object, or a bare
// string as in some of a request.
func parseError(b []byte, i int, it *Item) int {
	it.Type, it.Reason, it.Cause = nil, nil, nil
	if i < len(b) && b[i] == '"' {
		return textInto(b, i, &it.Reason)
	}
	return object(b, i, func(name []byte, i int) int {
		switch string(name) {
		case "type":
			return textInto(b, i, &it.Type)
		case "reason":
			return textInto(b, i, &it.Reason)
		case "caused_by":
			return object(b, i, func(name []byte, i int) int {
				if string(name) == "reason" {
					return textInto(b, i, &it.Cause)
				}
				return skip(b, i, maxDepth)
			})
		default:
			return skip(b, i, maxDepth)
		}
	})
}

// textInto reads a string or null.
func textInto(b []byte, i int, t *Text) int {
	if i < len(b) && b[i] == 'n' {
		*t = nil
		return literal(b, i, "null")
	}
	end := text(b, i)
	if end >= 0 {
		*t = b[i+1 : end-1 : end-1]
	}
	return end
}

// status reads three digits.
func status(b []byte, i int, into *int) int {
	if end := digits(b, i); end != i+3 || b[i] == '0' {
		return bad
	}
	*into = int(b[i]-'0')*100 + int(b[i+1]-'0')*10 + int(b[i+2]-'0')
	return i + 3
}

func opOf(action []byte) Op {
	switch string(action) {
	case "index":
		return Index
	case "create":
		return Create
	case "update":
		return Update
	case "delete":
		return Delete
	}
	return 0
}

func resultOf(result []byte) Result {
	switch string(result) {
	case "created":
		return Created
	case "updated":
		return Updated
	case "deleted":
		return Deleted
	case "not_found":
		return NotFound
	case "noop":
		return Noop
	}
	return Other
}

// DecodeError reads the error of a whole request, such as
// {"error":{"type":T,"reason":R},"status":400}. Both are empty where the body
// is none (an empty body, a proxy's page).
func DecodeError(body []byte) (errorType, reason Text) {
	var it Item
	end := object(body, 0, func(name []byte, i int) int {
		if string(name) == "error" {
			return parseError(body, i, &it)
		}
		return skip(body, i, maxDepth)
	})
	if end < 0 {
		return nil, nil
	}
	return it.Type, it.Reason
}
