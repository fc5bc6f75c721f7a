package embedded

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
)

// update carries out an update action: it merges the partial document into the
// stored one and writes the result, unless somebody else has written meanwhile.
func (es *Elasticsearch) update(b *bulkRequest, ix *index, s *shard, it *bulkItem, now int64) (result, *doc) {
	cur := s.get(string(it.id))
	w := it.write
	if cur == nil {
		switch {
		case it.upsert != nil:
			w.source = it.upsert
		case !it.asUpsert:
			return result{err: newError(http.StatusNotFound, "document_missing_exception", "["+string(it.id)+"]: document missing",
				"index_uuid", ix.uuid, "shard", strconv.Itoa(s.n), "index", ix.name)}, nil
		}
		w.op, w.ifSeq, w.ifTerm = opCreate, unset, 0
	} else {
		if it.ifSeq != unset && (it.ifSeq != cur.seq || it.ifTerm != cur.term) {
			return result{err: s.conflictError(it.id, conflict(&w, cur, false))}, nil
		}
		merged, changed, ok := mergeDocs(cur.source, it.source)
		if !ok {
			if err := ix.check(&b.doc, it.id, it.source); err != nil {
				return result{err: err}, nil
			}
			return result{err: docParsing("Malformed content, must start with an object")}, nil
		}
		if !changed && !it.keepNoop {
			return result{version: cur.version, seq: cur.seq, term: cur.term, status: http.StatusOK, result: "noop"}, it.answerSource(cur)
		}
		w.op, w.source, w.ifSeq, w.ifTerm = opIndex, merged, cur.seq, cur.term
		if len(w.routing) == 0 {
			w.routing = []byte(cur.routing)
		}
	}
	if err := ix.check(&b.doc, it.id, w.source); err != nil {
		return result{err: err}, nil
	}
	r := s.apply(&w, now)
	if r.err != nil {
		return r, nil
	}
	return r, it.answerSource(&doc{source: w.source, seq: r.seq, term: r.term})
}

func (it *bulkItem) answerSource(d *doc) *doc {
	if it.wantsSource {
		return d
	}
	return nil
}

// mergeDocs merges the partial document into base and says whether it changed
// anything. ok is false where partial is no object.
func mergeDocs(base, partial []byte) (merged []byte, changed, ok bool) {
	a, err := decodeObject(base)
	if err != nil {
		return nil, false, false
	}
	b, err := decodeObject(partial)
	if err != nil {
		return nil, false, false
	}
	changed = mergeMaps(a, b)
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(a) != nil {
		return nil, false, false
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), changed, true
}

func decodeObject(b []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var m map[string]any
	err := d.Decode(&m)
	if m == nil {
		m = map[string]any{}
	}
	return m, err
}

func mergeMaps(a, b map[string]any) bool {
	changed := false
	for k, v := range b {
		old, have := a[k]
		om, ok1 := old.(map[string]any)
		vm, ok2 := v.(map[string]any)
		switch {
		case ok1 && ok2:
			changed = mergeMaps(om, vm) || changed
		case !have || !reflect.DeepEqual(old, v):
			a[k] = v
			changed = true
		}
	}
	return changed
}

// A sourceFilter says what of a document's source is shown.
type sourceFilter struct {
	none bool
	f    *filter
}

func querySource(q url.Values) sourceFilter {
	var s sourceFilter
	var f filter
	switch v := q.Get("_source"); v {
	case "", "true":
	case "false":
		s.none = true
	default:
		f.include(strings.Split(v, ","))
	}
	if v := q.Get("_source_includes"); v != "" {
		f.include(strings.Split(v, ","))
	}
	if v := q.Get("_source_excludes"); v != "" {
		f.exclude(strings.Split(v, ","))
	}
	if f.keep != nil || f.drop != nil {
		s.f = &f
	}
	return s
}

func bodySource(v any) sourceFilter {
	var s sourceFilter
	var f filter
	switch v := v.(type) {
	case nil:
	case bool:
		s.none = !v
	case map[string]any:
		f.include(stringList(v, "includes", "include"))
		f.exclude(stringList(v, "excludes", "exclude"))
	default:
		f.include(stringList(map[string]any{"v": v}, "v"))
	}
	if f.keep != nil || f.drop != nil {
		s.f = &f
	}
	return s
}

func (f *filter) include(paths []string) {
	for _, p := range paths {
		f.keep = append(f.keep, strings.Split(p, "."))
	}
}

func (f *filter) exclude(paths []string) {
	for _, p := range paths {
		f.drop = append(f.drop, strings.Split(p, "."))
	}
}

func (s sourceFilter) apply(source []byte) ([]byte, bool) {
	if s.none {
		return nil, false
	}
	if s.f == nil {
		return source, true
	}
	return s.f.apply(source), true
}
