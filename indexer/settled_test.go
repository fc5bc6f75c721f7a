package indexer

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/memory"
)

// What a drained source has on the wire, and must be tried again, is reported as
// abandoned, whatever the answer: who drains waits for it.
func TestDrainedOnTheWire(t *testing.T) {
	item := func(status int, kind string) func(*server) {
		return func(s *server) { s.item = func(action) *fault { return &fault{status, kind, "no"} } }
	}
	whole := func(status int) func(*server) {
		return func(s *server) { s.before = func(*request) *http.Response { return answer(status, "") } }
	}
	for name, change := range map[string]func(*server){
		"an item is turned away": item(429, "es_rejected_execution_exception"),
		"an item is refused":     item(400, "document_parsing_exception"),
		"an item fails":          item(500, "exception"),
		"the target is blocked":  item(403, "cluster_block_exception"),
		"too many requests":      whole(429),
		"unavailable":            whole(503),
		"a bad request":          whole(400),
		"a wrong path":           whole(404),
		"no answer":              func(s *server) { s.fail = func(*request) error { return errReset } },
	} {
		t.Run(name, func(t *testing.T) {
			rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
				s.latency = func() time.Duration { return 5 * time.Second }
				change(s)
				for seq := range uint64(4) {
					add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
				}
				w.Publish()
				pass(2 * time.Second)
				x.Drain(rec)
				pass(10 * time.Second)
				synctest.Wait()
				for seq := range uint64(4) {
					if rec.got[seq] != Abandoned {
						t.Errorf("action %d ended as %v", seq, rec.got[seq])
					}
				}
			})
		})
	}
}

// A large answer that breaks off does not keep others from being read.
func TestLargeAnswerBreaksOff(t *testing.T) {
	rig(t, func(c *Config, o *Options) { c.Requests.Max, o.Budget = 64, memory.New(8<<20) }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		large := strings.Repeat(" ", x.smallAnswer())
		s.after = func(r *request) *http.Response {
			items := strings.TrimSuffix(strings.Repeat(`{"index":{"status":201}},`, len(r.actions)), ",")
			resp := answer(200, large+`{"errors":false,"items":[`+items+`]}`)
			if r.n <= 3 {
				resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(large), iotest.ErrReader(io.ErrUnexpectedEOF)))
			}
			return resp
		}
		for seq := range uint64(4) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		waitFor(t, x, rec, 4)
		if len(rec.rejected) > 0 {
			t.Errorf("%d rejected", len(rec.rejected))
		}
	})
}

// Two ids of one hash are two documents: an action on the one is never taken for
// a newer one on the other.
func TestOneHashTwoIDs(t *testing.T) {
	c := new(chunk)
	for version, id := range []string{"a", "b", "a"} {
		a := index(nil, 0, "index", id, `{}`)
		a.Version, a.VersionType = int64(version)+1, bulk.External
		c.wire = bulk.Append(c.wire, &a.Action)
		c.entries = append(c.entries, entry{hash: 7, version: a.Version, end: uint32(len(c.wire)), ordered: true})
	}
	sent := []ref{{c, 0}, {c, 1}, {c, 2}}
	if supersededBy(sent, 0, 1) || supersededBy(sent, 1, 2) {
		t.Error("an action on another id counts")
	}
	if !supersededBy(sent, 0, 2) || supersededBy(sent, 2, 0) {
		t.Error("the newer action on the same id does not count")
	}
}

// What tripped the breaker is forgotten when it closes: a rejection soon after is
// one among those that were accepted.
func TestBreakerBeginsAnew(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		wrong := true
		s.item = func(a action) *fault {
			if wrong || a.id == "bad" {
				return &fault{400, "document_parsing_exception", "wrong mapping"}
			}
			return nil
		}
		for seq := range uint64(3000) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(5 * time.Second)
		if st := x.Status(); len(st.Held) != 1 || st.Held[0].Type != "too_many_rejections" {
			t.Fatalf("status %+v", st)
		}
		s.mu.Lock()
		wrong = false
		s.mu.Unlock()
		waitFor(t, x, rec, 3000)
		add(t, w, index(rec, 3000, "a", "bad", `{}`))
		w.Publish()
		waitFor(t, x, rec, 3001)
		if st := x.Status(); len(st.Held) != 0 {
			t.Errorf("held again: %+v", st)
		}
	})
}
