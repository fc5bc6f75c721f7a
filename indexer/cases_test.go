package indexer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/memory"
)

// rig sets up an indexer with one writer and one source in a bubble.
func rig(t *testing.T, change func(*Config, *Options), f func(s *server, x *Indexer, w *Writer, rec *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		cfg, opt := testConfig(), testOptions(s)
		if change != nil {
			change(&cfg, &opt)
		}
		x := New(cfg, opt)
		f(s, x, x.NewWriter(), newRecorder(t))
		closeAll(t, x)
	})
}

func TestFlushes(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		add(t, w, index(rec, 1, "a", "1", `{}`))
		w.Publish()
		pass(900 * time.Millisecond)
		synctest.Wait()
		if rec.count() != 0 {
			t.Error("sent before flush_interval")
		}
		pass(200 * time.Millisecond)
		synctest.Wait()
		if rec.got[1] != Indexed {
			t.Error("not sent after flush_interval")
		}
		for seq := range uint64(1000) {
			add(t, w, index(rec, 10+seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		synctest.Wait()
		if rec.count() != 1001 {
			t.Errorf("flush_documents reached: %d reported", rec.count())
		}
		big := `{"x":"` + strings.Repeat("y", 40<<10) + `"}`
		add(t, w, index(rec, 5000, "a", "x", big))
		add(t, w, index(rec, 5001, "a", "y", big))
		w.Publish()
		synctest.Wait()
		if rec.count() != 1003 {
			t.Errorf("flush_bytes reached: %d reported", rec.count())
		}
		// The rest of a burst: it goes soon, and what comes after it does not.
		for seq := range uint64(2) {
			add(t, w, index(rec, 6000+seq, "a", fmt.Sprint(seq), `{}`))
			w.Publish()
			pass(110 * time.Millisecond)
			synctest.Wait()
			if rec.count() != 1004 {
				t.Errorf("%d reported after rest %d of a burst", rec.count(), seq)
			}
		}
	})
}

// What waits for another try closes its own id only: later actions on it come
// after, others of its lane go on.
func TestOnlyTheOwnIDIsClosed(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		busy := true
		s.item = func(a action) *fault {
			if a.id == "hot" && busy {
				return &fault{400, "strict_dynamic_mapping_exception", "first try"}
			}
			return nil
		}
		add(t, w, index(rec, 1, "a", "hot", `{"v":1}`))
		add(t, w, index(rec, 2, "a", "cold", `{}`))
		w.Publish()
		pass(1001 * time.Millisecond)
		synctest.Wait()
		busy = false
		add(t, w, index(rec, 3, "a", "hot", `{"v":2}`))
		w.Publish()
		waitFor(t, x, rec, 3)
		if s.docs["a/hot"] != `{"v":2}` || rec.got[1] != Indexed || s.applied["a/hot"] != 2 {
			t.Errorf("holds %s, applied %d times", s.docs["a/hot"], s.applied["a/hot"])
		}
	})
}

// The earlier of two actions on one id in one request is not sent again when
// the later was written.
func TestSupersededIsStale(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.item = func(a action) *fault {
			if strings.Contains(a.body, "first") {
				return &fault{429, "es_rejected_execution_exception", "full"}
			}
			return nil
		}
		add(t, w, index(rec, 1, "a", "id", `{"v":"first"}`))
		add(t, w, remove(rec, 2, "a", "id"))
		w.Publish()
		waitFor(t, x, rec, 2)
		if rec.got[1] != Stale || rec.got[2] != Deleted || len(s.docs) != 0 {
			t.Errorf("outcomes %v, docs %v", rec.got, s.docs)
		}
	})
}

// An action that an ingest pipeline drops writes nothing: an earlier one of its
// id that is tried again is not stale.
func TestDroppedSupersedesNothing(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		busy := true
		s.item = func(a action) *fault {
			if busy && strings.Contains(a.body, "first") {
				busy = false
				return &fault{429, "es_rejected_execution_exception", "full"}
			}
			return nil
		}
		s.noop = func(a action) bool { return strings.Contains(a.body, "second") }
		add(t, w, index(rec, 1, "a", "id", `{"v":"first"}`))
		add(t, w, index(rec, 2, "a", "id", `{"v":"second"}`))
		w.Publish()
		waitFor(t, x, rec, 2)
		if rec.got[1] != Indexed || rec.got[2] != Ignored || s.docs["a/id"] != `{"v":"first"}` {
			t.Errorf("outcomes %v, holds %q", rec.got, s.docs["a/id"])
		}
	})
}

// A key that moved to another source partition: its older action may come later.
// That it was written, or met a newer version, says nothing of the newer one.
func TestOlderSupersedesNothing(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		turnedAway := 0
		s.item = func(a action) *fault {
			if strings.Contains(a.body, "newer") && turnedAway == 0 {
				turnedAway++
				return &fault{429, "es_rejected_execution_exception", "full"}
			}
			return nil
		}
		for seq, body := range []string{`{"v":"newer"}`, `{"v":"older"}`} {
			a := index(rec, uint64(seq), "a", "id", body)
			a.Version, a.VersionType = int64(2-seq), bulk.External
			add(t, w, a)
		}
		w.Publish()
		waitFor(t, x, rec, 2)
		if rec.got[0] != Indexed || turnedAway != 1 {
			t.Errorf("outcomes %v, turned away %d times", rec.got, turnedAway)
		}
	})
}

// One action per id and request for updates, whose outcome depends on what is
// stored.
func TestOneUpdatePerRequest(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		for seq := range uint64(5) {
			a := index(rec, seq, "a", "id", fmt.Sprintf(`{"v":%d}`, seq))
			a.Op = bulk.Upsert
			add(t, w, a)
		}
		w.Publish()
		waitFor(t, x, rec, 5)
		if !slices.Equal(s.sizes, []int{1, 1, 1, 1, 1}) || s.docs["a/id"] != `{"doc_as_upsert":true,"doc":{"v":4}}` {
			t.Errorf("requests of %v actions, holds %s", s.sizes, s.docs["a/id"])
		}
	})
}

// A refused request is split in a way that costs O(log n) requests a bad
// record.
func TestSplitting(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.before = func(r *request) *http.Response {
			if slices.ContainsFunc(r.actions, func(a action) bool { return a.id == "500" }) {
				return answer(400, `{"error":{"type":"illegal_argument_exception","reason":"no"},"status":400}`)
			}
			return nil
		}
		for seq := range uint64(1000) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		waitFor(t, x, rec, 1000)
		if r := rec.rejected[500]; len(rec.rejected) != 1 || r == nil ||
			r.Status != 400 || r.Type != "illegal_argument_exception" || string(r.Meta) != "m500" || string(r.Body) != "{}" {
			t.Errorf("rejected %+v", rec.rejected)
		}
		if s.requests > 25 {
			t.Errorf("%d requests for one bad record of 1000", s.requests)
		}
	})
}

// 413: split to fit, the one record that never fits is rejected, what fits is
// learnt.
func TestTooLarge(t *testing.T) {
	rig(t, func(c *Config, _ *Options) { c.FlushBytes = 1 << 20; c.FlushDocuments = 100000 },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.refuseOver = 256 << 10
			pad := strings.Repeat("x", 4<<10)
			for seq := range uint64(1000) {
				body := fmt.Sprintf(`{"p":%q}`, pad)
				if seq == 77 {
					body = fmt.Sprintf(`{"p":%q}`, strings.Repeat("y", 300<<10))
				}
				add(t, w, index(rec, seq, "a", fmt.Sprint(seq), body))
			}
			w.Publish()
			waitFor(t, x, rec, 1000)
			if len(rec.rejected) != 1 || rec.rejected[77] == nil || rec.rejected[77].Status != 413 {
				t.Errorf("rejected %v", rec.rejected)
			}
			if x.bodyLimit > 256<<10 {
				t.Errorf("limit %d is not learnt", x.bodyLimit)
			}
		})
}

// A record whose request is never answered is isolated, the others go on; it is
// never rejected by time, and an operator can skip it.
func TestNeverAnswered(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.fail = func(r *request) error {
			if slices.ContainsFunc(r.actions, func(a action) bool { return a.id == "13" }) {
				return errReset
			}
			return nil
		}
		for seq := range uint64(200) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		for i := range uint64(300) {
			pass(time.Second)
			add(t, w, index(rec, 1000+i, "a", fmt.Sprint("other", i), `{}`))
			w.Publish()
		}
		waitFor(t, x, rec, 499)
		if got := x.Status(); got.BlockedOn != 1 {
			t.Errorf("status %+v", got)
		}
		pass(time.Hour)
		if len(rec.rejected) != 0 {
			t.Error("rejected by time")
		}
		for range 100 { // it may be on the wire
			if x.Skip(rec, 13) {
				break
			}
			pass(100 * time.Millisecond)
		}
		if r := rec.rejected[13]; r == nil || r.Type != "skipped" {
			t.Errorf("rejected %+v", rec.rejected)
		}
		if got := x.Status(); got.BlockedOn != 0 {
			t.Errorf("status %+v", got)
		}
	})
}

// Both actions of a record under dual write are reported, each once, whatever
// becomes of the other; an operator skips those that are left.
func TestTwoActionsOfARecord(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, _ *recorder) {
		s.item = func(a action) *fault {
			if a.target == "new" {
				return &fault{403, "cluster_block_exception", "blocked"}
			}
			return nil
		}
		src := &sides{of: map[uint64][]string{}}
		for seq := range uint64(3) {
			for _, target := range []string{"old", "new"} {
				add(t, w, index(src, seq, target, fmt.Sprint(seq), `{}`))
			}
		}
		w.Publish()
		pass(time.Minute)
		if got := src.String(); got != "0 [indexed] 1 [indexed] 2 [indexed]" {
			t.Errorf("while one side is blocked: %s", got)
		}
		for range 100 { // one of them may be on the wire, as a probe
			if x.Skip(src, 1) {
				break
			}
			pass(100 * time.Millisecond)
		}
		locked(&s.mu, func() any { s.item = nil; return nil })
		pass(time.Minute)
		if got := src.String(); got != "0 [indexed indexed] 1 [indexed skipped] 2 [indexed indexed]" {
			t.Errorf("at the end: %s", got)
		}
		if x.Skip(src, 1) {
			t.Error("skipped twice")
		}
	})
}

// sides is a Source whose records have several actions.
type sides struct {
	mu sync.Mutex
	of map[uint64][]string
}

func (s *sides) add(seq uint64, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[seq] = append(s.of[seq], what)
}

func (s *sides) Settle(o Outcome, seqs []uint64) {
	for _, seq := range seqs {
		s.add(seq, o.String())
	}
}

func (s *sides) Reject(seq uint64, r *Rejection)            { s.add(seq, r.Type) }
func (s *sides) Conflict(seq uint64, _ int64, _ *Rejection) { s.add(seq, "conflict") }

func (s *sides) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, seq := range slices.Sorted(maps.Keys(s.of)) {
		all = append(all, fmt.Sprint(seq, " ", s.of[seq]))
	}
	return strings.Join(all, " ")
}

// A record that blocked and is answered at last blocks no more, whatever the
// answer.
func TestAnsweredAtLast(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		silent := true
		s.fail = func(r *request) error {
			for _, a := range r.actions {
				if a.id == "bad" && silent {
					return errReset
				}
			}
			return nil
		}
		tries := 0
		s.item = func(a action) *fault {
			if a.id == "bad" {
				if tries++; tries == 1 {
					return &fault{400, "strict_dynamic_mapping_exception", "first try"}
				}
			}
			return nil
		}
		add(t, w, index(rec, 0, "a", "bad", `{}`))
		w.Publish()
		for i := range uint64(300) {
			pass(time.Second)
			add(t, w, index(rec, 1+i, "a", fmt.Sprint("other", i), `{}`))
			w.Publish()
		}
		if got := x.Status(); got.BlockedOn != 1 {
			t.Fatalf("status %+v", got)
		}
		s.mu.Lock()
		silent = false
		s.mu.Unlock()
		waitFor(t, x, rec, 301)
		if got := x.Status(); got.BlockedOn != 0 {
			t.Errorf("status %+v", got)
		}
	})
}

// gateway answers for the server behind it while that is gone.
type gateway struct {
	Transport
	gone   *atomic.Bool
	status int
	tells  bool // GET / is answered as always
}

func (g gateway) Perform(req *http.Request) (*http.Response, error) {
	if g.gone.Load() && (!g.tells || req.Method != http.MethodGet) {
		return answer(g.status, "<html>Service Unavailable</html>"), nil
	}
	return g.Transport.Perform(req)
}

// An outage behind a gateway that answers is nobody's fault either: no request
// is split, and no record is called the cause.
func TestGatewayWithoutServer(t *testing.T) {
	t.Run("503", func(t *testing.T) { gatewayWithoutServer(t, 503, false) })
	// A server that fails at every request is no better than none.
	t.Run("500", func(t *testing.T) { gatewayWithoutServer(t, 500, false) })
	t.Run("500 of bulk requests", func(t *testing.T) { gatewayWithoutServer(t, 500, true) })
}

func gatewayWithoutServer(t *testing.T, status int, tells bool) {
	gone := &atomic.Bool{}
	rig(t, func(_ *Config, o *Options) { o.Transport = gateway{o.Transport, gone, status, tells} }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		gone.Store(true)
		for seq := range uint64(500) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(time.Hour)
		if got := x.Status(); got.BlockedOn != 0 || rec.count() != 0 {
			t.Errorf("%d reported, status %+v", rec.count(), got)
		}
		gone.Store(false)
		waitFor(t, x, rec, 500)
		if n := locked(&s.mu, func() int { return s.requests }); n != 1 {
			t.Errorf("%d requests, want the one that waited", n)
		}
	})
}

// While every request is turned away the limit goes on falling, though all
// batches keep their permits; then it comes back.
func TestLimitFallsWhileAllIsTurnedAway(t *testing.T) {
	rig(t, func(c *Config, _ *Options) { c.Requests = Requests{Min: 1, Max: 32} }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.latency = func() time.Duration { return 100 * time.Millisecond }
		x.mu.Lock()
		x.limiter.limit = 32
		x.mu.Unlock()
		full := true
		s.refuse = func(int) bool { return full }
		const docs = 64 * 1000 // of 64 full requests
		done := make(chan struct{})
		go func() {
			defer close(done)
			for seq := range uint64(docs) {
				add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
			}
			w.Publish()
		}()
		pass(30 * time.Second)
		if got := x.Status(); got.RequestsLimit != 1 {
			t.Errorf("the limit is %d after 30 s of nothing but 429s", got.RequestsLimit)
		}
		before := locked(&s.mu, func() int { return s.requests })
		pass(10 * time.Second)
		if n := locked(&s.mu, func() int { return s.requests }) - before; n > 110 {
			t.Errorf("%d requests in 10 s at a limit of 1 and 100 ms each", n)
		}
		locked(&s.mu, func() any { full = false; return nil })
		waitFor(t, x, rec, docs)
		<-done
	})
}

// A blocked target waits alone, with one probe a second, and resumes by itself.
func TestHeldTarget(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		blocked, tries := true, 0
		s.item = func(a action) *fault {
			if a.target == "full" && blocked {
				tries++
				return &fault{429, "cluster_block_exception", "disk usage exceeded flood-stage watermark"}
			}
			return nil
		}
		for seq := range uint64(500) {
			add(t, w, index(rec, seq, "full", fmt.Sprint(seq), `{}`))
			add(t, w, index(rec, 1000+seq, "free", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		waitFor(t, x, rec, 500)
		count := func() int { return locked(&s.mu, func() int { return tries }) }
		first := count()
		pass(10 * time.Minute)
		if n := count() - first; n > 610 || n < 300 {
			t.Errorf("%d tries in ten minutes", n)
		}
		if st := x.Status(); len(st.Held) != 1 || st.Held[0].Target != "full" || st.Held[0].Type != "cluster_block_exception" {
			t.Errorf("status %+v", st)
		}
		s.mu.Lock()
		blocked = false
		s.mu.Unlock()
		pass(3 * time.Second)
		synctest.Wait()
		if rec.count() != 1000 || len(rec.rejected) != 0 || len(x.Status().Held) != 0 {
			t.Errorf("%d reported, %d rejected", rec.count(), len(rec.rejected))
		}
	})
}

// What waits for one id goes in requests of the configured size, too.
func TestHotIDFitsItsRequests(t *testing.T) {
	rig(t, func(c *Config, _ *Options) { c.FlushDocuments = 10 }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		busy := true
		s.item = func(a action) *fault {
			if busy {
				return &fault{403, "cluster_block_exception", "blocked"}
			}
			return nil
		}
		for seq := range uint64(200) {
			add(t, w, index(rec, seq, "a", "hot", fmt.Sprintf(`{"v":%d}`, seq)))
			if seq%10 == 9 {
				w.Publish()
				pass(2 * time.Second)
			}
		}
		s.mu.Lock()
		busy = false
		s.mu.Unlock()
		waitFor(t, x, rec, 200)
		for _, n := range s.sizes {
			if n > 20 {
				t.Errorf("requests of %v actions", s.sizes)
				break
			}
		}
		if s.docs["a/hot"] != `{"v":199}` {
			t.Errorf("holds %s", s.docs["a/hot"])
		}
	})
}

// Too many rejections hold the target instead of emptying it into the dead
// letters, until 100 probes in a row are accepted.
func TestRejectionBreaker(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		wrong := true
		s.item = func(a action) *fault {
			if wrong {
				return &fault{400, "document_parsing_exception", "wrong mapping"}
			}
			return nil
		}
		for seq := range uint64(20_000) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(time.Hour)
		if n := len(rec.rejected); n < 1000 || n > 6000 {
			t.Errorf("%d rejected", n)
		}
		if st := x.Status(); len(st.Held) != 1 {
			t.Errorf("status %+v", st)
		}
		rejected := len(rec.rejected)
		s.mu.Lock()
		wrong = false
		s.mu.Unlock()
		waitFor(t, x, rec, 20_000)
		if len(rec.rejected) != rejected {
			t.Errorf("%d rejected while held", len(rec.rejected)-rejected)
		}
	})
}

func TestReleaseByHand(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		wrong := true
		s.item = func(action) *fault {
			if wrong {
				return &fault{400, "document_parsing_exception", "wrong mapping"}
			}
			return nil
		}
		for seq := range uint64(5000) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(time.Minute)
		s.mu.Lock()
		wrong = false
		s.mu.Unlock()
		if x.Release("b") || !x.Release("a") {
			t.Error("release")
		}
		synctest.Wait()
		pass(time.Second)
		synctest.Wait()
		if rec.count() != 5000 {
			t.Errorf("%d reported", rec.count())
		}
	})
}

// A server that refuses the credentials gets one request a second; nothing is
// rejected, and everything goes on when it changes its mind.
func TestCredentials(t *testing.T) {
	reloads := 0
	rig(t, func(_ *Config, o *Options) { o.Reload = func() { reloads++ } },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			out := true
			s.before = func(*request) *http.Response {
				if out {
					return answer(401, `{"error":{"type":"security_exception","reason":"x"},"status":401}`)
				}
				return nil
			}
			for seq := range uint64(5000) {
				add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
			}
			w.Publish()
			pass(time.Minute)
			if st := x.Status(); st.HoldAll == "" || s.requests > 70 || reloads == 0 {
				t.Errorf("%d requests, %d reloads, status %+v", s.requests, reloads, st)
			}
			s.mu.Lock()
			out = false
			s.mu.Unlock()
			pass(10 * time.Second)
			synctest.Wait()
			if rec.count() != 5000 || x.Status().HoldAll != "" {
				t.Errorf("%d reported", rec.count())
			}
		})
}

// A wrong path or a proxy refuses everything: nothing may be rejected.
func TestEverythingRefused(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.before = func(*request) *http.Response { return answer(400, "Bad Request") }
		for seq := range uint64(100) {
			add(t, w, index(rec, seq, fmt.Sprint("t", seq%3), fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(time.Hour)
		if len(rec.rejected) != 0 {
			t.Errorf("%d rejected", len(rec.rejected))
		}
		if x.Status().HoldAll == "" {
			t.Error("not all is held")
		}
		s.mu.Lock()
		s.before = nil
		s.mu.Unlock()
		waitFor(t, x, rec, 100)
		if len(rec.rejected) != 0 {
			t.Errorf("%d rejected", len(rec.rejected))
		}
	})
}

// Drain sends what is queued and gives up what waits; after Drop nothing of
// the source is sent or reported.
func TestDrainAndDrop(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		other := newRecorder(t)
		s.item = func(a action) *fault {
			if a.target == "held" {
				return &fault{403, "cluster_block_exception", "blocked"}
			}
			return nil
		}
		for seq := range uint64(10) {
			add(t, w, index(rec, seq, "held", fmt.Sprint(seq), `{}`))
			add(t, w, index(other, seq, "held", fmt.Sprint("o", seq), `{}`))
		}
		w.Publish()
		pass(5 * time.Second)
		add(t, w, index(rec, 10, "free", "x", `{}`))
		w.Publish()
		x.Drain(rec)
		synctest.Wait()
		pass(10 * time.Millisecond)
		synctest.Wait()
		if rec.count() != 11 || rec.got[10] != Indexed || rec.got[3] != Abandoned || other.count() != 0 {
			t.Errorf("reported %v, other %v", rec.got, other.got)
		}
		x.Drop(rec)
		third := newRecorder(t)
		s.latency = func() time.Duration { return time.Second }
		add(t, w, index(third, 1, "free", "1", `{}`))
		w.Publish()
		x.Drop(third)
		add(t, w, index(third, 2, "free", "2", `{}`))
		w.Publish()
		x.Drop(other)
		pass(time.Minute)
		if third.got[1] != 0 || s.applied["free/1"] != 0 {
			t.Error("sent after it was dropped")
		}
	})
}

// Whoever waits for memory waits with its context, and goes on as soon as
// something was acknowledged.
func TestMemory(t *testing.T) {
	rig(t, func(_ *Config, o *Options) { o.Budget = memory.New(1 << 20) },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			down := true
			s.fail = func(*request) error {
				if down {
					return errReset
				}
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			body := fmt.Sprintf(`{"p":%q}`, strings.Repeat("x", 1000))
			n := uint64(0)
			var err error
			for ; err == nil; n++ {
				err = w.Add(ctx, index(rec, n, "a", fmt.Sprint(n), body))
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if used := x.opt.Budget.Used(); used > 1<<20+64<<10 {
				t.Errorf("%d bytes taken of 1 MiB", used)
			}
			s.mu.Lock()
			down = false
			s.mu.Unlock()
			for ; n < 5000; n++ {
				add(t, w, index(rec, n, "a", fmt.Sprint(n), body))
			}
			w.Publish()
			waitFor(t, x, rec, 4999) // all but the one that was not taken
		})
}

// Held targets fill their share, then everybody waits, until one is released.
func TestHeldShare(t *testing.T) {
	rig(t, func(_ *Config, o *Options) { o.HeldBytes = 256 << 10 },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			blocked := true
			s.item = func(a action) *fault {
				if a.target == "held" && blocked {
					return &fault{403, "cluster_block_exception", "blocked"}
				}
				return nil
			}
			body := fmt.Sprintf(`{"p":%q}`, strings.Repeat("x", 1000))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			n := uint64(0)
			var err error
			for ; err == nil && n < 10_000; n++ {
				err = w.Add(ctx, index(rec, n, []string{"held", "free"}[n%2], fmt.Sprint(n), body))
				if n%10 == 0 {
					pass(10 * time.Millisecond)
					w.Publish()
				}
			}
			if !errors.Is(err, context.DeadlineExceeded) || n < 400 || n > 1500 {
				t.Errorf("%v after %d", err, n)
			}
			s.mu.Lock()
			blocked = false
			s.mu.Unlock()
			add(t, w, index(rec, 20_000, "free", "x", body))
			w.Publish()
			waitFor(t, x, rec, int(n))
		})
}

// A closed gate keeps everything back.
// Whoever waits because the indexers have enough goes on when what they had is
// dropped, also while nothing is sent.
func TestDropMakesRoom(t *testing.T) {
	rig(t, func(_ *Config, o *Options) { o.Gate = func() bool { return false } },
		func(_ *server, x *Indexer, w *Writer, rec *recorder) {
			gone := newRecorder(t)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for seq := uint64(0); seq < 1000 && w.Add(ctx, index(gone, seq, "a", fmt.Sprint(seq), strings.Repeat("x", 4<<10))) == nil; seq++ {
			}
			x.Drop(gone)
			ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := w.Add(ctx, index(rec, 1, "b", "1", `{}`)); err != nil {
				t.Errorf("it waits for room: %v", err)
			}
			w.Publish()
		})
}

func TestGate(t *testing.T) {
	open := false
	rig(t, func(_ *Config, o *Options) { o.Gate = func() bool { return open } },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			add(t, w, index(rec, 1, "a", "1", `{}`))
			w.Publish()
			pass(time.Minute)
			synctest.Wait()
			if s.requests != 0 {
				t.Error("sent through a closed gate")
			}
			x.mu.Lock()
			open = true
			x.mu.Unlock()
			pass(time.Second)
			synctest.Wait()
			if rec.count() != 1 {
				t.Error("not sent")
			}
		})
}

// The halves of a request that was split are requests, too: none starts while
// the gate is closed.
func TestGateBetweenHalves(t *testing.T) {
	open := true
	rig(t, func(_ *Config, o *Options) { o.Gate = func() bool { return open } },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.latency = func() time.Duration { return 10 * time.Second }
			s.before = func(r *request) *http.Response {
				if len(r.actions) > 1 {
					return answer(413, "")
				}
				return nil
			}
			for seq := range uint64(4) {
				add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
			}
			w.Publish()
			pass(5 * time.Second)
			x.mu.Lock()
			open = false
			x.mu.Unlock()
			pass(time.Minute)
			synctest.Wait()
			if n := locked(&s.mu, func() int { return s.requests }); n != 1 {
				t.Errorf("%d requests, want the one that was out when the gate closed", n)
			}
			x.mu.Lock()
			open = true
			x.mu.Unlock()
			waitFor(t, x, rec, 4)
		})
}

// Workers retire and join between batches.
func TestResize(t *testing.T) {
	setup := func(c *Config, _ *Options) { c.Scaling = Scaling{ActiveRatio: 1} }
	rig(t, setup, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		n := uint64(0)
		for _, size := range []int{1, 8, 1, 3} {
			x.SetProcs(size)
			for range 300 {
				add(t, w, index(rec, n, "a", fmt.Sprint(n), `{}`))
				n++
			}
			w.Publish()
			pass(2 * time.Second)
			synctest.Wait()
			if got := x.Status().Indexers; got != size {
				t.Errorf("%d indexers, want %d", got, size)
			}
		}
		waitFor(t, x, rec, int(n))
	})
}

// One lane of a target may be in many requests' way for long: the others use
// all permits.
func TestParallel(t *testing.T) {
	rig(t, func(c *Config, _ *Options) { c.FlushDocuments = 50 },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.latency = func() time.Duration { return time.Second }
			most := 0
			s.before = func(*request) *http.Response {
				if n := len(s.inFlight); n > most {
					most = n
				}
				return nil
			}
			for n := range uint64(20000) {
				add(t, w, index(rec, n, "a", fmt.Sprint(n), `{}`))
			}
			w.Publish()
			start := time.Now()
			waitFor(t, x, rec, 20000)
			if took := time.Since(start); took > 100*time.Second {
				t.Errorf("400 requests of 1 s took %v with 8 permits", took)
			}
		})
}

func TestAddDoesNotAllocate(t *testing.T) {
	s := newServer(t)
	x := New(testConfig(), testOptions(s))
	defer x.Close()
	w := x.NewWriter()
	rec := newRecorder(t)
	a := index(rec, 1, "a", "some id", `{"a":1}`)
	add(t, w, a)
	if n := testing.AllocsPerRun(20, func() { _ = w.Add(context.Background(), a) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A server that answers drops and failures out of order is not believed: no
// failure is taken for a drop.
func TestShuffledAnswer(t *testing.T) {
	rig(t, func(_ *Config, o *Options) { o.Unordered = func() bool { return true } },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.item = func(a action) *fault {
				if a.body == `{"fail":1}` {
					return &fault{400, "illegal_argument_exception", "pipeline"}
				}
				return nil
			}
			s.noop = func(a action) bool { return a.body == `{"drop":1}` }
			s.shuffle = true
			for seq, body := range []string{`{"fail":1}`, `{"drop":1}`, `{}`, `{"drop":1}`, `{"fail":1}`, `{}`} {
				add(t, w, index(rec, uint64(seq), "a", fmt.Sprint(seq), body))
			}
			w.Publish()
			waitFor(t, x, rec, 6)
			for seq, want := range map[uint64]Outcome{1: Ignored, 2: Indexed, 3: Ignored, 5: Indexed} {
				if rec.got[seq] != want {
					t.Errorf("action %d: outcome %d, want %d", seq, rec.got[seq], want)
				}
			}
			if len(rec.rejected) != 2 || rec.rejected[0] == nil || rec.rejected[4] == nil {
				t.Errorf("rejected %v", rec.rejected)
			}
		})
}

// An answer that tells of deletes where none were sent, or of something else
// where deletes were, is another request's: the same actions are sent again.
func TestAnotherRequestsAnswer(t *testing.T) {
	const written, deleted = `{"index":{"status":201}}`, `{"delete":{"status":200}}`
	const full = `{"%s":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"r"}}}`
	for _, items := range [][]string{
		{written, written},
		{deleted, deleted},
		{fmt.Sprintf(full, "delete"), deleted},
		{written, fmt.Sprintf(full, "index")},
	} {
		rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.before = func(r *request) *http.Response {
				if len(r.actions) == 2 && r.n == 1 {
					return answer(200, `{"errors":`+fmt.Sprint(strings.Contains(strings.Join(items, ""), "error"))+`,"items":[`+strings.Join(items, ",")+`]}`)
				}
				return nil
			}
			add(t, w, index(rec, 0, "a", "0", `{}`))
			gone := index(rec, 1, "a", "1", "")
			gone.Op = bulk.Delete
			add(t, w, gone)
			w.Publish()
			waitFor(t, x, rec, 2)
			if rec.got[0] != Indexed || rec.got[1] != Deleted || s.docs["a/0"] != "{}" || s.requests != 2 {
				t.Errorf("%s: outcomes %v after %d requests, holds %v", items, rec.got, s.requests, s.docs)
			}
		})
	}
}

// Each action is counted once, under its target and how it ended.
func TestDocumentsAreCounted(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.item = func(a action) *fault {
			switch a.body {
			case `{"bad":1}`:
				return &fault{400, "document_parsing_exception", "failed to parse"}
			case `{"repeat":1}`:
				return &fault{409, "version_conflict_engine_exception", "[1]: version conflict, current version [7] is higher or equal to the one provided [7]"}
			case `{"old":1}`:
				return &fault{409, "version_conflict_engine_exception", "[1]: version conflict, current version [9] is higher or equal to the one provided [7]"}
			}
			return nil
		}
		const n = 1000
		for seq := range uint64(n) {
			a := index(rec, seq, []string{"a", "b"}[seq%2], fmt.Sprint(seq), `{}`)
			a.Version, a.VersionType = 7, bulk.External
			switch seq {
			case 10, 12, 14:
				a.Body = []byte(`{"bad":1}`)
			case 21:
				a.Body = []byte(`{"repeat":1}`)
			case 23, 25:
				a.Body = []byte(`{"old":1}`)
			}
			add(t, w, a)
		}
		for seq := range uint64(4) {
			add(t, w, remove(rec, n+seq, "a", fmt.Sprint("gone", seq)))
		}
		w.Publish()
		waitFor(t, x, rec, n+4)
		for labels, want := range map[[2]string]float64{
			{"a", "indexed"}: 497, {"b", "indexed"}: 497, {"a", "rejected"}: 3, {"b", "rejected"}: 0, {"a", "deleted"}: 4,
			{"b", "stale"}: 1, {"a", "stale"}: 0, {"b", "conflict"}: 2,
		} {
			var m dto.Metric
			if err := x.metrics.documents.WithLabelValues(labels[0], labels[1]).Write(&m); err != nil {
				t.Fatal(err)
			}
			if got := m.GetCounter().GetValue(); got != want {
				t.Errorf("%v: %v, want %v", labels, got, want)
			}
		}
	})
}

// Time-named indices that do not exist are let through at a bounded rate; those
// that exist, and other targets, are not held up.
func TestNewIndicesPerHour(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.exists = func(index string) bool { return strings.HasPrefix(index, "old") }
		n := 0
		put := func(target string, perHour int) {
			a := index(rec, uint64(n), target, fmt.Sprint(n), `{}`)
			a.NewPerHour = perHour
			add(t, w, a)
			n++
		}
		for i := range 10 {
			put(fmt.Sprint("new-", i), 4)
			put(fmt.Sprint("old-", i), 4)
			put("plain", 0)
		}
		w.Publish()
		for hour, want := range []int{24, 28, 30} {
			pass(10 * time.Second)
			synctest.Wait()
			if got := rec.count(); got != want {
				t.Errorf("hour %d: %d written, want %d", hour, got, want)
			}
			if held := len(x.Status().Held); held != 30-want {
				t.Errorf("hour %d: %d targets held", hour, held)
			}
			pass(time.Hour)
		}
	})
}

// A record that the server always fails at, and that is the last one for its
// target, is told from a failing server by what its first request had accepted.
func TestLastRecordFails(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.item = func(a action) *fault {
			if a.id == "2" {
				return &fault{500, "null_pointer_exception", "x"}
			}
			return nil
		}
		for seq := range uint64(3) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(time.Minute)
		synctest.Wait()
		if len(rec.rejected) != 1 || rec.rejected[2] == nil || rec.rejected[2].Attempts != 10 || rec.count() != 3 {
			t.Errorf("rejected %v, status %+v", rec.rejected, x.Status())
		}
	})
}
