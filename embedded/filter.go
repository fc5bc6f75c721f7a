package embedded

import (
	"bytes"
	"path"
	"strings"
)

// A filter is a filter_path: patterns of what to keep and, with a minus, of what
// to leave out. Like the real one it leaves out objects and arrays of which
// nothing is left.
type filter struct {
	keep, drop [][]string
}

func newFilter(paths string) *filter {
	f := &filter{}
	for _, p := range strings.Split(paths, ",") {
		if out, ok := strings.CutPrefix(p, "-"); ok {
			f.drop = append(f.drop, strings.Split(out, "."))
		} else if p != "" {
			f.keep = append(f.keep, strings.Split(p, "."))
		}
	}
	return f
}

// step follows patterns into member key: whether one of them ends there, and
// what is left of the others.
func step(patterns [][]string, key string) (matched bool, rest [][]string) {
	for _, p := range patterns {
		if p[0] == "**" {
			if len(p) == 1 {
				return true, nil
			}
			rest = append(rest, p)
			m, r := step([][]string{p[1:]}, key)
			matched = matched || m
			rest = append(rest, r...)
			continue
		}
		if ok, err := path.Match(p[0], key); err != nil || !ok {
			continue
		}
		if len(p) == 1 {
			return true, nil
		}
		rest = append(rest, p[1:])
	}
	return matched, rest
}

// apply filters a JSON object. What is not JSON comes back as it is.
func (f *filter) apply(body []byte) []byte {
	l := &lexer{b: body}
	if l.value() != tokObject {
		return body
	}
	out, _ := f.object(l, nil, f.keep, f.drop, len(f.keep) == 0)
	if l.err != nil {
		return body
	}
	if out == nil {
		out = []byte("{}")
	}
	return out
}

// object appends what is kept of an object; all says that everything is kept
// but for drop. It reports whether anything was appended.
func (f *filter) object(l *lexer, dst []byte, keep, drop [][]string, all bool) ([]byte, bool) {
	dst = append(dst, '{')
	any := false
	empty := true
	for first := true; l.name(first); first = false {
		empty = false
		key := string(l.text())
		k := l.member()
		whole, rest := all, [][]string(nil)
		if !all {
			whole, rest = step(keep, key)
		}
		gone, dropRest := step(drop, key)
		mark := len(dst)
		if any {
			dst = append(dst, ',')
		}
		dst = appendString(dst, key)
		dst = append(dst, ':')
		var kept bool
		dst, kept = f.value(l, dst, k, rest, dropRest, whole, gone)
		if !kept {
			dst = dst[:mark]
		}
		any = any || kept
	}
	return append(dst, '}'), any || empty && all
}

func (f *filter) value(l *lexer, dst []byte, k tokenKind, keep, drop [][]string, all, gone bool) ([]byte, bool) {
	from := l.start
	if gone || !all && len(keep) == 0 || k != tokObject && k != tokArray {
		l.skip(k)
		if gone || !all {
			return dst, false
		}
		return append(dst, bytes.TrimSpace(l.b[from:l.i])...), true
	}
	if k == tokObject {
		return f.object(l, dst, keep, drop, all)
	}
	dst = append(dst, '[')
	any := false
	empty := true
	for first := true; l.more(first); first = false {
		empty = false
		mark := len(dst)
		if any {
			dst = append(dst, ',')
		}
		k := l.member()
		var kept bool
		if dst, kept = f.value(l, dst, k, keep, drop, all, false); !kept {
			dst = dst[:mark]
		}
		any = any || kept
	}
	return append(dst, ']'), any || empty && all
}

// The members of a bulk item, as a set.
const (
	itemIndex uint32 = 1 << iota
	itemID
	itemVersion
	itemResult
	itemRefresh
	itemShards
	itemSeq
	itemTerm
	itemGet
	itemStatus
	itemError
	errorType
	errorReason
	errorUUID
	errorShard
	errorIndex
	errorCause
)

const everyMember = 1<<17 - 1

// A bulkFilter is a filter_path worked out for bulk answers, which are too many
// and too long to be built whole and cut down.
type bulkFilter struct {
	errors, took, ingest bool
	items                [4]uint32 // by opType
	// whole is set for filters that reach deeper than the sets can say: the
	// answer is built and then filtered.
	whole *filter
}

var bulkMembers = map[string]uint32{
	"_index": itemIndex, "_id": itemID, "_version": itemVersion, "result": itemResult,
	"forced_refresh": itemRefresh, "_shards": itemShards, "_seq_no": itemSeq, "_primary_term": itemTerm, "get": itemGet, "status": itemStatus,
}

var errorMembers = map[string]uint32{
	"type": errorType, "reason": errorReason, "index_uuid": errorUUID, "shard": errorShard,
	"index": errorIndex, "caused_by": errorCause,
}

func newBulkFilter(paths string) *bulkFilter {
	b := &bulkFilter{errors: true, took: true, ingest: true, items: [4]uint32{everyMember, everyMember, everyMember, everyMember}}
	if paths == "" {
		return b
	}
	f := newFilter(paths)
	b.errors, b.took, b.ingest = f.leaf("errors"), f.leaf("took"), f.leaf("ingest_took")
	for op := range b.items {
		var set uint32
		for name, bit := range bulkMembers {
			kept, partly := f.member("items", opNames[op], name)
			if partly && (name == "_shards" || name == "get") {
				b.whole = f
			}
			if kept {
				set |= bit
			}
		}
		for name, bit := range errorMembers {
			kept, partly := f.member("items", opNames[op], "error", name)
			if partly && name == "caused_by" {
				b.whole = f
			}
			if kept {
				set |= bit | itemError
			}
		}
		b.items[op] = set
	}
	if b.whole != nil {
		return &bulkFilter{errors: true, took: true, ingest: true, items: [4]uint32{everyMember, everyMember, everyMember, everyMember}, whole: f}
	}
	return b
}

func (f *filter) leaf(name string) bool {
	kept, _ := f.member(name)
	return kept
}

// member says whether the value at a path is kept, and whether the filter says
// something about what is below it.
func (f *filter) member(at ...string) (kept, partly bool) {
	kept = len(f.keep) == 0
	keep, drop := f.keep, f.drop
	for _, key := range at {
		if !kept {
			kept, keep = step(keep, key)
		}
		var gone bool
		if gone, drop = step(drop, key); gone {
			return false, false
		}
	}
	return kept, !kept && len(keep) > 0 || kept && len(drop) > 0
}

// dropLastItem removes the last item of a bulk answer.
func dropLastItem(body []byte) []byte {
	l := &lexer{b: body}
	if l.value() != tokObject {
		return body
	}
	for first := true; l.name(first); first = false {
		key := string(l.text())
		k := l.member()
		if key != "items" || k != tokArray {
			l.skip(k)
			continue
		}
		cut, end := l.i, l.i
		for first := true; l.more(first); first = false {
			cut = end
			l.skip(l.member())
			end = l.i
		}
		return append(append([]byte(nil), body[:cut]...), body[end:]...)
	}
	return body
}
