package indexer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/sluicehq/sluice/indexer/bulk"
)

func upsert(src Source, seq uint64, target, id, body string) *Action {
	a := index(src, seq, target, id, body)
	a.Op = bulk.Upsert
	return a
}

// A second update of an id waits until the first has its answer: it must not
// go in another request beside it.
func TestOneUpdateAtOnce(t *testing.T) {
	rig(t, func(c *Config, _ *Options) { c.Requests.Min = 4 },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.latency = func() time.Duration { return 5 * time.Second } // the server reports ids that are in two requests
			for seq := range uint64(5) {
				add(t, w, upsert(rec, seq, "a", "id", fmt.Sprintf(`{"v":%d}`, seq)))
			}
			w.Publish()
			waitFor(t, x, rec, 5)
			if s.docs["a/id"] != `{"doc_as_upsert":true,"doc":{"v":4}}` {
				t.Errorf("holds %s", s.docs["a/id"])
			}
		})
}

// A delete that shares a request with a later update of its id could fail
// alone, and the update would then change what should be gone.
func TestDeleteBeforeUpdate(t *testing.T) {
	rig(t, func(c *Config, _ *Options) { c.Requests.Min = 4 },
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			add(t, w, remove(rec, 1, "a", "id"))
			w.Publish() // chunks of their own
			add(t, w, upsert(rec, 2, "a", "id", `{"v":1}`))
			w.Publish()
			add(t, w, remove(rec, 3, "a", "id"))
			w.Publish()
			waitFor(t, x, rec, 3)
			for _, n := range s.sizes {
				if n > 1 {
					t.Errorf("requests of %v actions", s.sizes)
				}
			}
		})
}

// Updates and deletes without versions, with faults that pass: each id ends as
// its last action left it, and every action was carried out in order.
func TestUpdatesInOrder(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rig(t, func(c *Config, _ *Options) { c.Requests, c.FlushDocuments = Requests{Min: 4, Max: 8}, 20 },
				func(s *server, x *Indexer, w *Writer, rec *recorder) { updatesInOrder(t, s, x, w, rec, seed) })
		})
	}
}

func updatesInOrder(t *testing.T, s *server, x *Indexer, w *Writer, rec *recorder, seed uint64) {
	faults := rand.New(rand.NewPCG(seed, 1))
	calm := false
	s.latency = func() time.Duration { return time.Duration(faults.IntN(2000)) * time.Millisecond }
	s.before = func(r *request) *http.Response {
		switch p := faults.Float64(); {
		case calm:
		case p < 0.05:
			return answer(429, "")
		case p < 0.1:
			return answer(503, "")
		case p < 0.15 && len(r.actions) > 3:
			return answer(413, "")
		}
		return nil
	}
	s.after = func(*request) *http.Response {
		if !calm && chance(faults, 0.1) {
			return answer(503, "")
		}
		return nil
	}
	last := map[string]int{} // the number of the last action that was carried out, by id
	s.item = func(a action) *fault {
		if !calm && chance(faults, 0.1) {
			return &fault{429, "es_rejected_execution_exception", "full"}
		}
		var n int
		if a.op != "delete" {
			if _, err := fmt.Sscanf(a.body, `{"doc_as_upsert":true,"doc":{"v":%d}}`, &n); err != nil {
				t.Errorf("body %s: %v", a.body, err)
			}
			if n < last[a.id] {
				t.Errorf("%s: action %d after %d", a.id, n, last[a.id])
			}
			last[a.id] = n
		}
		return nil
	}
	draw := rand.New(rand.NewPCG(seed, 2))
	want := map[string]string{}
	const n = 600
	for seq := range uint64(n) {
		id := fmt.Sprint(draw.IntN(30))
		if chance(draw, 0.2) {
			add(t, w, remove(rec, seq, "a", id))
			delete(want, "a/"+id)
		} else {
			add(t, w, upsert(rec, seq, "a", id, fmt.Sprintf(`{"v":%d}`, seq)))
			want["a/"+id] = fmt.Sprintf(`{"doc_as_upsert":true,"doc":{"v":%d}}`, seq)
		}
		if chance(draw, 0.1) {
			w.Publish()
			pass(time.Duration(draw.IntN(1000)) * time.Millisecond)
		}
	}
	w.Publish()
	pass(time.Minute)
	s.mu.Lock()
	calm = true
	s.mu.Unlock()
	waitFor(t, x, rec, n)
	if !maps.Equal(s.docs, want) {
		t.Errorf("holds %v, want %v", s.docs, want)
	}
}
