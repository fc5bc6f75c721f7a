package migrate

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/embedded"
)

// S17: what a runner has on its way when another takes over does not land while
// that one copies, either.
func TestS17FormerRunnerIsShutOut(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		late, copies := make(chan struct{}), make(chan struct{})
		copying := func(f embedded.Fault) *embedded.Injection {
			return w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Fault: f})
		}
		formers := copying(embedded.Fault{Hold: late, Late: true})
		ctx, kill := context.WithCancel(w.Context())
		first := make(chan error, 1)
		go func() { first <- w.manager("first", nil).Work(ctx, jobName, nil) }()
		synctest.Wait()
		if formers.Hits() == 0 {
			w.Fatal("no copy was held")
		}
		formers.Remove()
		kill()
		if err := <-first; err == nil {
			w.Error("the first runner came to its end")
		}
		held := copying(embedded.Fault{Hold: copies})
		stop := w.consume()
		wait := w.start(w.m)
		for held.Hits() == 0 {
			sleepFor(w, 100*time.Millisecond)
		}
		close(late)
		sleepFor(w, time.Second)
		if docs := w.shown(w.job().indices()...); len(docs) > 0 {
			w.Errorf("a runner that has lost its lease wrote %d documents", len(docs))
		}
		held.Remove()
		close(copies)
		w.check(wait())
		stop()
		w.same()
	})
}

// S40: a consumer that has not seen the cancelled job's last table writes to the
// new indices, which are there until it has.
func TestS40CancelAwaitsTheFence(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		indices := w.job().indices()
		done := make(chan error, 1)
		go func() { _, err := w.m.Cancel(w.Context(), request(), nil); done <- err }()
		sleepFor(w, time.Second)
		w.log.adopt(0, 1, 3)
		w.log.put("d1", "c1", 1)
		w.log.deliver()
		sleepFor(w, time.Minute)
		w.state(Cancelling)
		for _, index := range indices {
			if !slices.Contains(w.es.Indices(), index) {
				w.Errorf("%s was deleted before the fence", index)
			}
		}
		w.log.adopt()
		w.check(<-done)
		w.state(Cancelled)
		for _, index := range indices {
			if slices.Contains(w.es.Indices(), index) {
				w.Errorf("%s is left", index)
			}
		}
	})
}

// S42: a purge stores the tombstone's own version, so that the very next one is
// newer, whatever the distance of versions is.
func TestS42PurgeKeepsTheVersion(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		w.log.remove("d7", "c2")
		w.log.deliver() // as a tombstone
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		next := versionOf(0) + 1
		for _, index := range w.job().indices() {
			if _, deleted, known := w.es.Known(index, "d7"); known && deleted {
				w.log.write(index, entry{id: "d7", customer: "c2", body: `{"customer":"c2","n":1}`}, next, false)
			}
		}
		if docs := w.shown(w.job().indices()...); docs["d7"].version != next {
			w.Errorf("the record after a purged tombstone is not there: %+v", docs["d7"])
		}
	})
}
