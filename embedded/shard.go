package embedded

import (
	"net/http"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type opType uint8

const (
	opIndex opType = iota
	opCreate
	opUpdate
	opDelete
)

var opNames = [...]string{"index", "create", "update", "delete"}

func (o opType) String() string { return opNames[o] }

type versionType uint8

const (
	internal versionType = iota
	external
	externalGTE
)

// unset is a version, sequence number or primary term that a request did not
// name.
const unset = -1 << 62

// A doc is one state of a document. It is immutable but for its place in the
// shard; a deleted state is what Elasticsearch remembers of a delete.
type doc struct {
	id, routing string
	source      []byte
	version     int64
	seq, term   int64
	at          int64 // Unix nanoseconds of the delete; 0: not deleted
	slot        *slot
}

func (d *doc) deleted() bool { return d.at != 0 }

// A slot is what a shard knows of one id.
type slot struct {
	now   *doc // what real-time gets and version checks see
	shown *doc // what searches see: the state at the last refresh
	dirty bool // on the shard's dirty list
}

// A shard holds the documents of one primary. No lock is held while anything
// waits, so a synctest bubble never stops on one.
type shard struct {
	ix *index
	n  int

	searches atomic.Int64 // that it answered

	mu struct {
		sync.Mutex
		slots      map[string]*slot
		nextSeq    int64
		dirty      []*slot
		dirtySince int64  // Unix nanoseconds of the first write since the last refresh
		deletes    []*doc // in the order of their deletion, for pruning
		// shown holds the searchable documents by sequence number, and states
		// that are no longer searchable until it is compacted.
		shown []*doc
		live  int   // searchable documents
		count int   // documents
		bytes int64 // of their sources
		// With Config.History: every accepted write, and the highest version ever
		// accepted of each id.
		ops  []Op
		peak map[string]int64
	}
}

// An Op is one accepted write, for tests that look for resurrections.
type Op struct {
	ID      string
	Delete  bool
	Version int64
	Seq     int64
}

func newShard(ix *index, n int) *shard {
	s := &shard{ix: ix, n: n}
	s.mu.slots = map[string]*slot{}
	return s
}

// A write is one operation on a shard.
type write struct {
	op            opType
	vtype         versionType
	id, routing   []byte
	source        []byte
	version       int64
	ifSeq, ifTerm int64
}

// A result is what a write did. On a conflict err is set.
type result struct {
	version int64
	seq     int64
	term    int64
	status  int
	result  string
	err     *apiError
}

// current returns what version checks see of an id: nil for an id that was
// never written or whose delete is forgotten.
func (s *shard) current(sl *slot, now int64) *doc {
	if sl == nil || sl.now == nil {
		return nil
	}
	if d := sl.now; d.deleted() && now-d.at > s.ix.gcDeletes.Load() {
		return nil
	}
	return sl.now
}

// apply carries out an index, create or delete. The source is copied.
func (s *shard) apply(w *write, now int64) result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applyLocked(w, now)
}

func (s *shard) applyLocked(w *write, now int64) result {
	s.refreshDue(now)
	sl := s.mu.slots[string(w.id)]
	cur := s.current(sl, now)
	gone := cur == nil || cur.deleted()
	if reason := conflict(w, cur, gone); reason != "" {
		return result{err: s.conflictError(w.id, reason)}
	}
	version := w.version
	if w.vtype == internal {
		version = 1
		if cur != nil {
			version = cur.version + 1
		}
	}
	if sl == nil {
		sl = &slot{}
	}
	d := &doc{version: version, seq: s.mu.nextSeq, term: s.ix.term.Load(), slot: sl}
	s.mu.nextSeq++
	if sl.now != nil {
		d.id = sl.now.id
	} else {
		d.id = string(w.id)
		s.mu.slots[d.id] = sl
	}
	if len(w.routing) > 0 {
		d.routing = string(w.routing)
	}
	r := result{version: version, seq: d.seq, term: d.term, status: http.StatusOK}
	switch {
	case w.op == opDelete:
		d.at = now
		s.mu.deletes = append(s.mu.deletes, d)
		r.result = "deleted"
		if gone {
			r.result, r.status = "not_found", http.StatusNotFound
		} else {
			s.mu.count--
			s.mu.bytes -= int64(len(cur.source))
		}
	case gone:
		s.mu.count++
		r.result, r.status = "created", http.StatusCreated
	default:
		s.mu.bytes -= int64(len(cur.source))
		r.result = "updated"
	}
	if w.op != opDelete {
		s.mu.bytes += int64(len(w.source))
		d.source = append([]byte(nil), w.source...)
	}
	sl.now = d
	if !sl.dirty {
		sl.dirty = true
		if len(s.mu.dirty) == 0 {
			s.mu.dirtySince = now
		}
		s.mu.dirty = append(s.mu.dirty, sl)
	}
	if s.ix.es.cfg.History {
		if s.mu.peak == nil {
			s.mu.peak = map[string]int64{}
		}
		s.mu.peak[d.id] = max(s.mu.peak[d.id], version)
		s.mu.ops = append(s.mu.ops, Op{ID: d.id, Delete: w.op == opDelete, Version: version, Seq: d.seq})
	}
	return r
}

// conflict returns why a write is refused, or "".
func conflict(w *write, cur *doc, gone bool) string {
	if w.ifSeq != unset {
		required := "required seqNo [" + strconv.FormatInt(w.ifSeq, 10) + "], primary term [" + strconv.FormatInt(w.ifTerm, 10) + "]."
		if cur == nil || gone && w.op != opDelete {
			return required + " but no document was found"
		}
		if cur.seq != w.ifSeq || cur.term != w.ifTerm {
			return required + " current document has seqNo [" + strconv.FormatInt(cur.seq, 10) +
				"] and primary term [" + strconv.FormatInt(cur.term, 10) + "]"
		}
		return ""
	}
	switch {
	case w.op == opCreate && !gone:
		return "document already exists (current version [" + strconv.FormatInt(cur.version, 10) + "])"
	case w.vtype == external && cur != nil && cur.version >= w.version:
		return "current version [" + strconv.FormatInt(cur.version, 10) + "] is higher or equal to the one provided [" +
			strconv.FormatInt(w.version, 10) + "]"
	case w.vtype == externalGTE && cur != nil && cur.version > w.version:
		return "current version [" + strconv.FormatInt(cur.version, 10) + "] is higher than the one provided [" +
			strconv.FormatInt(w.version, 10) + "]"
	}
	return ""
}

func (s *shard) conflictError(id []byte, reason string) *apiError {
	return newError(http.StatusConflict, "version_conflict_engine_exception", "["+string(id)+"]: version conflict, "+reason,
		"index_uuid", s.ix.uuid, "shard", strconv.Itoa(s.n), "index", s.ix.name)
}

// get returns the real-time state of a document, or nil.
func (s *shard) get(id string) *doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.mu.slots[id]; sl != nil && sl.now != nil && !sl.now.deleted() {
		return sl.now
	}
	return nil
}

// shownDoc returns the searchable state of a document, or nil.
func (s *shard) shownDoc(id string, now int64) *doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshDue(now)
	if sl := s.mu.slots[id]; sl != nil {
		return sl.shown
	}
	return nil
}

// refreshDue refreshes when the refresh interval has passed since the first
// write that is not searchable yet. So a write stays invisible for the whole
// interval unless something refreshes: the least that the real one promises.
func (s *shard) refreshDue(now int64) {
	if every := s.ix.refreshEvery.Load(); len(s.mu.dirty) > 0 && every >= 0 && now-s.mu.dirtySince >= every {
		s.refreshLocked(now)
	}
}

func (s *shard) refresh(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshLocked(now)
}

func (s *shard) refreshLocked(now int64) {
	added := len(s.mu.shown)
	for i, sl := range s.mu.dirty {
		s.mu.dirty[i] = nil
		sl.dirty = false
		if sl.shown != nil {
			s.mu.live--
		}
		sl.shown = nil
		if sl.now != nil && !sl.now.deleted() {
			sl.shown = sl.now
			s.mu.live++
			s.mu.shown = append(s.mu.shown, sl.now)
		}
	}
	s.mu.dirty = s.mu.dirty[:0]
	// A slot's place among the dirty is that of its first write: sort what is
	// new by its last.
	fresh := s.mu.shown[added:]
	if !sort.SliceIsSorted(fresh, func(i, j int) bool { return fresh[i].seq < fresh[j].seq }) {
		sort.Slice(fresh, func(i, j int) bool { return fresh[i].seq < fresh[j].seq })
	}
	if len(s.mu.shown) > 2*s.mu.live+1024 {
		// A new slice: searches may still read the old one.
		kept := make([]*doc, 0, s.mu.live)
		for _, d := range s.mu.shown {
			if d.slot.shown == d {
				kept = append(kept, d)
			}
		}
		s.mu.shown = kept
	}
	s.prune(now)
}

// prune forgets deletes that are older than index.gc_deletes.
func (s *shard) prune(now int64) {
	keep := s.ix.gcDeletes.Load()
	n := 0
	for _, d := range s.mu.deletes {
		if now-d.at <= keep {
			break
		}
		n++
		if sl := d.slot; sl.now == d && sl.shown == nil && !sl.dirty {
			sl.now = nil
			delete(s.mu.slots, d.id)
		}
	}
	if n > 0 {
		s.mu.deletes = append([]*doc(nil), s.mu.deletes[n:]...)
	}
}

// forget drops all knowledge of deletes: a restart, or a move of the primary.
func (s *shard) forget(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshLocked(now)
	for id, sl := range s.mu.slots {
		if sl.now == nil || sl.now.deleted() {
			delete(s.mu.slots, id)
		}
	}
	s.mu.deletes = nil
}

// snapshot returns the searchable documents with from <= _seq_no <= to, in that
// order, at most limit of them (negative: all).
func (s *shard) snapshot(now int64, from, to int64, limit int) []*doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshDue(now)
	all := s.mu.shown
	lo := sort.Search(len(all), func(i int) bool { return all[i].seq >= from })
	hi := lo + sort.Search(len(all)-lo, func(i int) bool { return all[lo+i].seq > to })
	var out []*doc
	for _, d := range all[lo:hi] {
		if len(out) == limit {
			break
		}
		if d.slot.shown == d {
			out = append(out, d)
		}
	}
	return out
}

type shardStats struct {
	docs, deleted int
	maxSeq        int64
	bytes         int64
	searches      int64
}

func (s *shard) stats(now int64) shardStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshDue(now)
	return shardStats{docs: s.mu.live, deleted: len(s.mu.deletes), maxSeq: s.mu.nextSeq - 1, bytes: s.mu.bytes, searches: s.searches.Load()}
}

func nanos() int64 { return time.Now().UnixNano() }
