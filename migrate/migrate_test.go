package migrate

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// A whole migration beside live writes and deletes, with everything that the
// states promise looked at.
func TestWholeMigration(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(3000, 20)
		w.create(8)
		ctx, stop := context.WithCancel(w.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.log.run(ctx, rand.New(rand.NewPCG(1, 1)), 20, 4000)
		}()
		w.toSynced()
		if n := w.tombstonesLeft(); n != 0 {
			w.Errorf("%d tombstones are left", n)
		}
		report := w.verify(Check{Level: L2})
		if !report.Clean() || report.Customers != 20 || report.Sampled == 0 {
			w.Errorf("verification: %+v", report)
		}
		ten := 10.0
		for _, cut := range []Cut{{Customers: []string{"c3"}}, {Percent: &ten}, {All: true}} {
			_, err := w.m.Cutover(w.Context(), request(), cut)
			w.check(err)
		}
		w.state(Cutover)
		_, err := w.m.Rollback(w.Context(), request(), nil)
		w.check(err)
		w.state(Synced)
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.check(err)
		_, err = w.m.Complete(w.Context(), request(), time.Minute, time.Minute)
		w.refused(err, "not for 1m")
		sleepFor(w, time.Minute)
		if report := w.verify(Check{Level: L1}); !report.Clean() {
			w.Errorf("verification: %+v", report)
		}
		_, err = w.m.Complete(w.Context(), request(), time.Minute, time.Minute)
		w.check(err)
		stop()
		<-done
		j := w.job()
		if j.Done == nil || j.Done.SourceDocs == 0 || j.Done.TargetDocs < j.Done.SourceDocs-200 {
			w.Errorf("at the end: %+v", j.Done)
		}
		sleepFor(w, time.Minute)
		// A consumer that was slow has marked a customer after the end.
		w.check(w.control.Create(w.Context(), dirtyID(jobName, "c1"), map[string]string{"side": "old"}))
		_, err = w.m.Drop(w.Context(), request(), source, true)
		w.check(err)
		w.state(Dropped)
		w.kept("job", "plan", "event", "lease", "reports", "routing")
		if w.es.Count(source) != 0 {
			w.Error("the legacy index is still there")
		}
	})
}

// sleepFor lets virtual time pass.
func sleepFor(w *world, d time.Duration) {
	w.Helper()
	w.check(sleep(w.Context(), d))
}
