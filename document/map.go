package document

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// maxID is the longest id that the server takes, in bytes. A longer one makes
// it refuse the whole request.
const maxID = 512

// hashedID begins an id that stands for a longer one. Under long_ids: hash a
// short id that begins like this is hashed as well, so that no record can
// choose the id of another.
const hashedID = "sha256:"

// TombstoneField marks a document that stands for a deletion, and
// TombstoneTimeField holds the deleting record's time in Unix milliseconds.
const (
	TombstoneField     = "_sluice_deleted"
	TombstoneTimeField = "_sluice_deleted_at"
)

// NoPipeline is the name that makes the server run no default pipeline:
// tombstones carry it, since a pipeline could drop or change one.
const NoPipeline = "_none"

// Map decides what becomes of rec, a record of the Rules' topic, and writes it
// to out. generation is the recorded one that rec belongs to, from 1 on; it is
// not looked at where NeedsGeneration is false. rec is read, never kept beyond
// out, and never written.
func (r *Rules) Map(rec *kgo.Record, generation int, out *Result) {
	out.begin()
	if p := r.action(rec, generation, out); p != nil {
		out.Action = bulk.Action{}
		if out.Verdict == 0 {
			out.end(Reject, p)
		}
	}
}

// action fills out. A problem that it returns is a rejection, unless it set
// another verdict.
func (r *Rules) action(rec *kgo.Record, generation int, out *Result) *problem {
	var doc []byte
	null := rec.Value == nil
	if null {
		if p := r.null(rec, out); p != nil {
			return p
		}
	} else {
		var p *problem
		if doc, p = r.document(rec, out); p != nil {
			return p
		}
	}

	if r.customer != nil {
		customer, l := r.customer.value(rec, doc, out)
		if l == notJSON {
			return problemNotJSON
		}
		out.Customer = customer
	}

	a := &out.Action
	how := &r.keyed
	if p := r.identify(rec, doc, generation, out, &how); p != nil {
		if null && p == problemNoID {
			out.end(Ignore, problemKeylessNull)
		}
		return p
	}
	out.Ordered = how.ordered

	if p := r.setVersion(how, rec, doc, generation, out); p != nil {
		return p
	}

	if r.timeNamed && !r.inWindow(rec.Timestamp) {
		return problemTimeWindow
	}
	var to partition.Route
	var p *problem
	table := r.stream.routing.Load()
	if table != nil {
		to, p = r.route(table.router, out)
	} else {
		a.Target, p = r.index.resolve(rec, doc, out)
	}
	if p != nil {
		return p
	}
	if r.routing != nil {
		routing, l := r.routing.value(rec, doc, out)
		if l != lacksNothing || !utf8.Valid(routing) {
			return problemNoRouting
		}
		a.Routing = routing
	}
	a.RequireAlias = r.alias
	if null {
		a.Op = bulk.Delete
		if mutantDelete {
			a.Version, a.VersionType = 0, bulk.Internal
		}
		if r.tomb {
			out.tombstone(rec, a)
			out.Tombstone = true
		}
	} else {
		a.Op = how.op
		a.Pipeline = r.pipeline
		a.Body = doc
	}
	if table != nil {
		r.twin(to, rec, out)
	}
	out.Verdict = Send
	return nil
}

// null applies on_null; nil: the record is a delete.
func (r *Rules) null(rec *kgo.Record, out *Result) *problem {
	switch r.onNull {
	case nullIgnore:
		out.end(Ignore, problemNullValue)
	case nullFail:
		out.end(Halt, problemNullValue)
	case nullDeadLetter:
		out.end(DeadLetter, problemNullValue)
	default:
		if r.idKind == idAuto && len(rec.Key) == 0 {
			out.end(Ignore, problemKeylessNull)
			return problemKeylessNull
		}
		return nil
	}
	return problemNullValue
}

// identify sets the action's id, and how to the plan for such ids.
func (r *Rules) identify(rec *kgo.Record, doc []byte, generation int, out *Result, how **plan) *problem {
	switch {
	case r.idKind == idNone:
		*how = &r.single
		return nil
	case r.idKind == idPosition || r.idKind == idAuto && len(rec.Key) == 0:
		*how = &r.single
		from := len(out.scratch)
		out.scratch = appendPosition(out.scratch, rec, generation)
		out.Action.ID = out.scratch[from:]
		return nil
	}
	var id []byte
	var l lack
	if len(r.id) == 1 {
		id, l = r.id[0].value(rec, doc, out)
	} else {
		id, l = r.id.join(rec, doc, out)
	}
	switch {
	case l == notJSON:
		return problemNotJSON
	case l == notText:
		return problemIDNotUTF8
	case l != lacksNothing:
		return problemNoID
	case !utf8.Valid(id):
		return problemIDNotUTF8
	case len(id) > maxID && !r.hashLong:
		return problemIDTooLong
	case r.hashLong && (len(id) > maxID || bytes.HasPrefix(id, []byte(hashedID)) && !mutantHash):
		sum := sha256.Sum256(id)
		from := len(out.scratch)
		out.scratch = append(out.scratch, hashedID...)
		out.scratch = base64.RawURLEncoding.AppendEncode(out.scratch, sum[:])
		id = out.scratch[from:]
	}
	out.Action.ID = id
	return nil
}

// join returns the template's text for rec. Its parts are gathered first,
// since a part may use the scratch itself.
func (t template) join(rec *kgo.Record, doc []byte, out *Result) ([]byte, lack) {
	id := out.name[:0]
	for i := range t {
		part, l := t[i].value(rec, doc, out)
		if l != lacksNothing {
			return nil, l
		}
		id = append(id, part...)
	}
	out.name = id
	from := len(out.scratch)
	out.scratch = append(out.scratch, id...)
	return out.scratch[from:], lacksNothing
}

// appendPosition appends topic+partition+offset, from generation 2 on
// topic+gN+partition+offset. A topic's name holds no plus sign and a number no
// letter, so no two positions are the same.
func appendPosition(dst []byte, rec *kgo.Record, generation int) []byte {
	dst = append(dst, rec.Topic...)
	if generation > 1 {
		dst = append(dst, "+g"...)
		dst = strconv.AppendInt(dst, int64(generation), 10)
	}
	dst = append(dst, '+')
	dst = strconv.AppendInt(dst, int64(rec.Partition), 10)
	dst = append(dst, '+')
	return strconv.AppendInt(dst, rec.Offset, 10)
}

// setVersion sets the action's version by the plan.
func (r *Rules) setVersion(how *plan, rec *kgo.Record, doc []byte, generation int, out *Result) *problem {
	a := &out.Action
	a.VersionType = how.versionType
	switch how.version {
	case VersionNone:
	case VersionSequence:
		v, err := Sequence(generation, rec.Offset)
		if err != nil {
			// Not the record's fault: no later one of its partition fits either.
			out.end(Halt, problemSequenceRange)
			return problemSequenceRange
		}
		a.Version = v
	case VersionOffset:
		a.Version = rec.Offset
	case VersionTimestamp:
		if a.Version = rec.Timestamp.UnixMilli(); a.Version < 0 {
			return problemBadVersion
		}
	case VersionField, VersionHeader:
		text, l := r.version.value(rec, doc, out)
		if l == notJSON {
			return problemNotJSON
		}
		v, ok := parseVersion(text)
		if !ok {
			return problemBadVersion
		}
		a.Version = v
	}
	return nil
}

// parseVersion reads decimal digits, up to 2^63-1.
func parseVersion(b []byte) (v int64, ok bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	for _, c := range b {
		if !isDigit(c) {
			return 0, false
		}
		v = v*10 + int64(c-'0') // 19 digits overflow into the sign at most
		if v < 0 {
			return 0, false
		}
	}
	return v, true
}

// inWindow reports whether a record's time may name an index.
func (r *Rules) inWindow(t time.Time) bool {
	age := time.Since(t)
	return age <= r.past && age >= -r.future
}

// tombstone turns the delete a into a document that keeps its version for good,
// where the server forgets a delete's after index.gc_deletes.
func (out *Result) tombstone(rec *kgo.Record, a *bulk.Action) {
	from := len(out.scratch)
	out.scratch = AppendTombstone(out.scratch, rec.Timestamp)
	out.Changed = true
	a.Op = bulk.Index
	a.Pipeline = NoPipeline
	a.Body = out.scratch[from:]
}

// AppendTombstone appends the document that stands for a deletion by a record
// of time t. The action that carries it has op index, the delete's version and
// NoPipeline.
func AppendTombstone(dst []byte, t time.Time) []byte {
	dst = append(dst, `{"`+TombstoneField+`":true,"`+TombstoneTimeField+`":`...)
	dst = strconv.AppendInt(dst, t.UnixMilli(), 10)
	return append(dst, '}')
}
