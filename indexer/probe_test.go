package indexer

import (
	"testing"
	"testing/synctest"
	"time"
)

// The time of a held target's probe comes while the only id with something to
// send is in a request: there is nothing to probe with, until that has ended.
func TestNothingToProbeWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := testOptions(newServer(t))
		options.Gate = func() bool { return false } // the test claims
		x := New(testConfig(), options)
		defer closeAll(t, x)
		w, rec := x.NewWriter(), newRecorder(t)
		add(t, w, index(rec, 1, "i", "a", `{}`))
		held := w.targets["i"].t
		w.Publish()

		x.mu.Lock()
		defer x.mu.Unlock()
		c := held.ready[0].chunks[0]
		q := held.queue(&c.entries[0])
		q.flights = 1
		held.hold = &hold{kind: "index_closed_exception"}
		if b, _ := x.claim(time.Now()); b != nil {
			t.Error("a probe of an action whose id is in a request")
		}
		held.release(q)
		x.activate(held)
		b, _ := x.claim(time.Now())
		if b == nil || b.probe != held.hold || len(b.chunks) != 1 {
			t.Fatalf("no probe of what can be sent: %+v", b)
		}
		b.seal()
		x.inFlight++
		x.letGo(b)
	})
}
