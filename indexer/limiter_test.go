package indexer

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// feed adds documents for the targets in turn as fast as they are taken, until
// the returned function is called.
func feed(t *testing.T, w *Writer, rec *recorder, targets ...string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		body := fmt.Sprintf(`{"pad":%q}`, strings.Repeat("x", 150))
		for n := uint64(0); ; n++ {
			if err := w.Add(ctx, index(rec, n, targets[n%uint64(len(targets))], fmt.Sprint(n), body)); err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			if n%20 == 0 {
				w.Publish()
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// busy sets an Indexer up whose requests are small and many.
func busy(c *Config, _ *Options) {
	c.FlushBytes, c.Requests.Max = 2<<10, 64
}

// sharing makes the server work on k requests at a time: more wait for each
// other. Its least answer takes a second, times slow.
func (s *server) sharing(k float64, slow *float64) {
	noise := rand.New(rand.NewPCG(3, 3))
	s.latency = func() time.Duration {
		factor := *slow * math.Max(1, float64(s.serving)/k) * math.Exp(0.1*noise.NormFloat64())
		return time.Duration(factor * float64(time.Second))
	}
}

// The whole loop, with the real Indexer on a virtual clock: up to what the
// server does at a time within seconds, through a brown-out, and back.
func TestRequestsInFlight(t *testing.T) {
	slow := 1.0
	rig(t, busy, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.sharing(12, &slow)
		defer feed(t, w, rec, "a")()
		rate := func(d time.Duration) float64 {
			before := rec.count()
			pass(d)
			synctest.Wait()
			return float64(rec.count()-before) / d.Seconds()
		}
		rate(5 * time.Second)
		if n := locked(&s.mu, func() int { return s.serving }); n < 12 {
			t.Errorf("%d requests in flight after 5 s", n)
		}
		rate(25 * time.Second)
		before := rate(60 * time.Second)
		if n := x.Status().RequestsLimit; n < 10 || n > 24 {
			t.Errorf("limit %d where the server does 12 at a time", n)
		}
		locked(&s.mu, func() bool { slow = 5; return true })
		rate(30 * time.Second)
		locked(&s.mu, func() bool { slow = 1; return true })
		rate(15 * time.Second)
		if after := rate(30 * time.Second); after < 0.9*before {
			t.Errorf("%.0f documents a second before a brown-out, %.0f after it", before, after)
		}
	})
}

// A server that refuses the ninth request is left alone with eight, and those
// that it refused wait with their permits.
func TestRequestsRefused(t *testing.T) {
	slow, refused := 1.0, 0
	rig(t, busy, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.sharing(64, &slow)
		s.refuse = func(serving int) bool {
			if serving > 8 {
				refused++
				return true
			}
			return false
		}
		defer feed(t, w, rec, "a")()
		pass(60 * time.Second)
		counts := func() [2]int {
			return locked(&s.mu, func() [2]int { return [2]int{s.requests, refused} })
		}
		before, docs := counts(), rec.count()
		pass(10 * time.Minute)
		synctest.Wait()
		after := counts()
		if requests, refused := after[0]-before[0], after[1]-before[1]; refused*50 > requests {
			t.Errorf("%d of %d requests were refused", refused, requests)
		}
		if n := x.Status().RequestsLimit; n < 7 || n > 9 {
			t.Errorf("limit %d", n)
		}
		if got, most := rec.count()-docs, 600*8*2048/len(`{"index":{"_index":"a","_id":"10000"}}`+strings.Repeat("x", 160)); got < most*8/10 {
			t.Errorf("%d documents, %d possible", got, most)
		}
	})
}

// A target that is always throttled backs off alone: it does not take the
// requests of the others.
func TestThrottledTargetKeepsTheLimit(t *testing.T) {
	slow := 1.0
	rig(t, busy, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.sharing(12, &slow)
		s.item = func(a action) *fault {
			if a.target == "hot" {
				return &fault{http.StatusTooManyRequests, "es_rejected_execution_exception", "full"}
			}
			return nil
		}
		defer feed(t, w, rec, slices.Concat([]string{"hot"}, slices.Repeat([]string{"a"}, 200))...)()
		pass(time.Minute)
		synctest.Wait()
		if n := x.Status().RequestsLimit; n < 8 {
			t.Errorf("limit %d because of one target", n)
		}
	})
}
