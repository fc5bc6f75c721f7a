package indexer

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// A server that says when to come back is not asked before, neither for a
// whole request nor for the items of one.
func TestRetryAfter(t *testing.T) {
	const asked = 30 * time.Second // retry.max is 5 s
	for name, refusal := range map[string]struct {
		status int
		body   string
	}{
		"request": {429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`},
		"items":   {200, `{"errors":true,"items":[{"index":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"full"}}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
				var times []time.Time
				s.before = func(*request) *http.Response {
					if times = append(times, time.Now()); len(times) > 1 {
						return nil
					}
					resp := answer(refusal.status, refusal.body)
					resp.Header.Set("Retry-After", "30")
					return resp
				}
				add(t, w, index(rec, 1, "a", "1", `{}`))
				w.Publish()
				waitFor(t, x, rec, 1)
				if len(times) != 2 || rec.got[1] != Indexed {
					t.Fatalf("%d requests, outcome %v", len(times), rec.got)
				}
				if waited := times[1].Sub(times[0]); waited < asked {
					t.Errorf("it came back after %v, the server asked for %v", waited, asked)
				}
			})
		})
	}
}

// A probe that is refused leaves its target held, since the same moment: it is
// one alarm, however long the cause lasts.
func TestRefusedProbeKeepsTheHold(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.item = func(action) *fault { return &fault{403, "cluster_block_exception", "blocked"} }
		add(t, w, index(rec, 1, "a", "1", `{}`))
		w.Publish()
		pass(5 * time.Second)
		first := x.Status().Held
		probes := locked(&s.mu, func() int { return s.requests })
		pass(time.Minute)
		last := x.Status().Held
		if len(first) != 1 || len(last) != 1 || last[0].Since != first[0].Since {
			t.Errorf("held %+v, a minute later %+v", first, last)
		}
		if n := locked(&s.mu, func() int { return s.requests }); n < probes+10 {
			t.Errorf("%d probes in a minute", n-probes)
		}
		x.Drop(rec)
	})
}

// A request is on the wire while its source is dropped, and turned away: the
// source's part of it is not sent again. Its partition is another member's now.
func TestDroppedIsNotSentAgain(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.latency = func() time.Duration { return 2 * time.Second }
		first := true
		s.before = func(*request) *http.Response {
			if !first {
				return nil
			}
			first = false
			return answer(429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`)
		}
		other := newRecorder(t)
		add(t, w, index(rec, 1, "a", "1", `{}`))
		add(t, w, index(other, 1, "a", "2", `{}`))
		w.Publish()
		pass(2 * time.Second) // it was sent after one, and is answered after three
		if n := locked(&s.mu, func() int { return s.serving }); n != 1 {
			t.Fatalf("%d requests are on the wire", n)
		}
		x.Drop(rec)
		waitFor(t, x, other, 1)
		if s.applied["a/1"] != 0 || s.applied["a/2"] != 1 {
			t.Errorf("applied %v", s.applied)
		}
	})
}

// drip is an answer that never ends and counts how many like it have given more
// than a small answer and are not closed.
type drip struct {
	given     int
	now, most *atomic.Int32
}

func (d *drip) Read(p []byte) (int, error) {
	before := d.given
	d.given += len(p)
	if before <= smallAnswer && d.given > smallAnswer {
		d.most.Store(max(d.most.Load(), d.now.Add(1)))
		pass(time.Second) // time for others to come as far
	}
	return len(p), nil
}

func (d *drip) Close() error {
	if d.given > smallAnswer {
		d.now.Add(-1)
	}
	return nil
}

// However many requests are answered without end, no more than one at a time is
// read beyond a small answer, and everything is written once the server is well.
func TestAnswersWithoutEnd(t *testing.T) {
	rig(t, func(c *Config, _ *Options) {
		c.FlushDocuments, c.Requests.Min = 10, 8
		c.Retry = Retry{Initial: time.Second, Max: time.Second, ItemAttempts: 1}
	}, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		var now, most atomic.Int32
		lies := 8
		s.before = func(*request) *http.Response {
			if lies == 0 {
				return nil
			}
			lies--
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: &drip{now: &now, most: &most}}
		}
		for seq := range uint64(160) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		waitFor(t, x, rec, 160)
		if lies != 0 || most.Load() != 1 || len(rec.rejected) != 0 {
			t.Errorf("%d lies left, %d answers read at once, rejected %v", lies, most.Load(), rec.rejected)
		}
	})
}
