package indexer

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// has says whether a request carries an action on an id.
func (r *request) has(id string) bool {
	return slices.ContainsFunc(r.actions, func(a action) bool { return a.id == id })
}

// A bad record of each kind at the end of a topic: none of its tries waits for a
// flush interval, and it costs O(log n) requests.
func TestTriesWaitForNoFlush(t *testing.T) {
	for _, kind := range []string{"refused", "fails", "spoils", "silent"} {
		t.Run(kind, func(t *testing.T) { triesWaitForNoFlush(t, kind) })
	}
}

func triesWaitForNoFlush(t *testing.T, kind string) {
	const n, bad, interval = 1000, 600, 5 * time.Minute
	change := func(c *Config, _ *Options) {
		c.FlushDocuments, c.FlushInterval = n, interval
		c.Retry = Retry{Initial: 5 * time.Second, Max: 5 * time.Second, ItemAttempts: 10}
	}
	rig(t, change,
		func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.fail = func(r *request) error {
				if r.has("silent") {
					return errReset
				}
				return nil
			}
			s.before = func(r *request) *http.Response {
				if r.has("spoils") {
					return answer(400, `{"error":{"type":"illegal_argument_exception","reason":"no"},"status":400}`)
				}
				return nil
			}
			s.item = func(a action) *fault {
				switch a.id {
				case "refused":
					return &fault{400, "document_parsing_exception", "no"}
				case "fails":
					return &fault{500, "null_pointer_exception", "null"}
				}
				return nil
			}
			for seq := range uint64(n) {
				id := fmt.Sprint(seq)
				if seq == bad {
					id = kind
				}
				add(t, w, index(rec, seq, "a", id, `{}`))
			}
			w.Publish()
			began := time.Now()
			synctest.Wait()
			for len(rec.rejected)+x.Status().BlockedOn == 0 && time.Since(began) < interval {
				pass(time.Second)
				synctest.Wait()
			}
			if took := time.Since(began); took >= interval || rec.count()+x.Status().BlockedOn != n {
				t.Errorf("after %v %d are settled", took, rec.count())
			}
			// Three tries of all, two requests for each halving, of which ten
			// are enough, and ten tries of the record.
			requests := locked(&s.mu, func() int { return s.requests })
			if requests > 3+2*10+10 {
				t.Errorf("%d requests, of %v actions", requests, s.sizes)
			}
			pass(time.Hour)
			if more := locked(&s.mu, func() int { return s.requests }) - requests; more > 3*3600 || kind != "silent" && more > 0 {
				t.Errorf("%d requests in the next hour", more)
			}
			x.Drop(rec)
		})
}

// A slow topic with bad records: its new records do not go with the tries, so
// a flush costs two requests and not one for each bad record.
func TestTriesHurryNothingNew(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.item = func(a action) *fault {
			if a.target == "a" && a.body == `{"bad":1}` {
				return &fault{400, "document_parsing_exception", "no"}
			}
			return nil
		}
		x.opt.MaxShare = 0 // half of them are bad
		const seconds, each = 20, 20
		for i := range uint64(seconds * each) {
			add(t, w, index(rec, 2*i, "a", fmt.Sprint("bad", i), `{"bad":1}`))
			add(t, w, index(rec, 2*i+1, "a", fmt.Sprint(i), `{}`))
			w.Publish()
			pass(time.Second / each)
		}
		waitFor(t, x, rec, 2*seconds*each)
		if requests := locked(&s.mu, func() int { return s.requests }); requests > 2*seconds+2 || len(rec.rejected) != seconds*each {
			t.Errorf("%d requests in %d s, %d rejected", requests, seconds, len(rec.rejected))
		}
	})
}

// A server that goes away while a record is looked for: no more is cut than the
// way down to one action, and what else there is waits for its return.
func TestOutageWhileHalving(t *testing.T) {
	const n, pause = 1000, 5 * time.Second
	rig(t, func(c *Config, _ *Options) {
		c.FlushDocuments = n
		c.Retry = Retry{Initial: pause, Max: pause, ItemAttempts: 10}
	}, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		gone, mended := false, false
		s.fail = func(r *request) error {
			if mended {
				return nil
			}
			gone = gone || len(r.actions) == n/2 // the first half: there is something to look for
			if gone || r.has("900") {
				return errReset
			}
			return nil
		}
		for seq := range uint64(n) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		pass(time.Minute)
		if !locked(&s.mu, func() bool { return gone }) {
			t.Fatal("nothing was looked for")
		}
		// Down to one action at once; then two batches are sent again every 5 s.
		pass(time.Minute)
		if requests := locked(&s.mu, func() int { return s.requests }); requests > 100 {
			t.Errorf("%d requests to a server that is gone, of %v actions", requests, s.sizes)
		}
		locked(&s.mu, func() any {
			mended = true
			return nil
		})
		waitFor(t, x, rec, n)
		if len(rec.rejected) != 0 || x.Status().BlockedOn != 0 {
			t.Errorf("rejected %v, status %+v", rec.rejected, x.Status())
		}
	})
}

// A record that is most of a request which is too large is taken out of it at
// once, and says nothing about what others may fill.
func TestTooLargeByOne(t *testing.T) {
	const limit = 256 << 10
	rig(t, func(c *Config, _ *Options) { c.FlushBytes = 2 * limit }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.refuseOver = limit
		for seq := range uint64(500) {
			body := `{}`
			if seq == 333 {
				body = fmt.Sprintf(`{"p":%q}`, strings.Repeat("y", limit))
			}
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), body))
		}
		w.Publish()
		waitFor(t, x, rec, 500)
		if r := rec.rejected[333]; len(rec.rejected) != 1 || r == nil || r.Status != 413 {
			t.Errorf("rejected %v", rec.rejected)
		}
		if s.requests != 4 || x.bodyLimit != 2*limit {
			t.Errorf("%d requests, of %v actions; of at most %d bytes from now on", s.requests, s.sizes, x.bodyLimit)
		}
	})
}
