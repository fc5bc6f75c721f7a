package migrate

import (
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"
)

// A dry run of any verb, in any state that it may be asked in, changes nothing:
// neither the control index nor an index.
func TestDryRunsChangeNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		dry := request()
		dry.DryRun = true
		everything := func() map[string]stored {
			all := map[string]stored{}
			for _, index := range w.es.Indices() {
				for d := range w.es.Docs(index) {
					all[index+"/"+d.ID] = stored{d.Version, string(d.Source)}
				}
			}
			return all
		}
		tried := func() {
			w.Helper()
			before := everything()
			ctx, half := w.Context(), 50.0
			for name, verb := range map[string]func() (Result, error){
				"create":     func() (Result, error) { return w.m.Create(ctx, dry, w.plan(2)) },
				"dual-write": func() (Result, error) { return w.m.DualWrite(ctx, dry) },
				"source":     func() (Result, error) { return w.m.Source(ctx, dry, FromKafka) },
				"backfill":   func() (Result, error) { return w.m.Backfill(ctx, dry, []string{"*"}, nil) },
				"run":        func() (Result, error) { return w.m.Run(ctx, dry, nil) },
				"pause":      func() (Result, error) { return w.m.Pause(ctx, dry) },
				"resume":     func() (Result, error) { return w.m.Resume(ctx, dry, true) },
				"throttle":   func() (Result, error) { return w.m.SetLimits(ctx, dry, map[string]string{"lag": "1s"}) },
				"verify": func() (Result, error) {
					_, r, err := w.m.Verify(ctx, dry, Check{Level: L1, Repair: true}, nil)
					return r, err
				},
				"cutover":  func() (Result, error) { return w.m.Cutover(ctx, dry, Cut{Percent: &half}) },
				"rollback": func() (Result, error) { return w.m.Rollback(ctx, dry, nil) },
				"complete": func() (Result, error) { return w.m.Complete(ctx, dry, 0, 0) },
				"drop":     func() (Result, error) { return w.m.Drop(ctx, dry, source, true) },
				"cancel":   func() (Result, error) { return w.m.Cancel(ctx, dry, nil) },
				"detach":   func() (Result, error) { return w.m.Detach(ctx, dry, nil) },
			} {
				r, err := verb()
				if err != nil || len(r.Actions) == 0 && len(r.Refusals) == 0 {
					w.Errorf("%s of a job that is %s: %+v, %v", name, w.job().State, r, err)
				}
				if after := everything(); !reflect.DeepEqual(after, before) {
					w.Fatalf("%s of a job that is %s has changed something", name, w.job().State)
				}
			}
		}
		w.seed(20, 5)
		w.create(2)
		tried()
		_, err := w.m.DualWrite(w.Context(), request())
		w.check(err)
		tried()
		w.log.adopt()
		tried()
		stop := w.consume()
		_, err = w.m.Run(w.Context(), request(), nil)
		w.check(err)
		stop()
		w.state(Synced)
		tried()
		w.verify(Check{Level: L1})
		w.check(cutting(Cut{All: true})(w.Context(), w.m))
		tried()
	})
}

// After a customer's cut-over the new side is right about it, before it the old.
func TestRepairFollowsTheReaders(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		w.verify(Check{Level: L1})
		w.check(cutting(Cut{Customers: []string{"c1"}})(w.Context(), w.m))
		newSide := map[string]string{}
		for _, index := range w.job().indices() {
			for d := range w.es.Docs(index) {
				newSide[d.ID] = index
			}
		}
		for _, i := range []int{1, 2} { // of c1 and of c2
			id := fmt.Sprintf("d%d", i)
			w.call(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version=1&version_type=external_gte", newSide[id], id), fmt.Sprintf(`{"customer":"c%d","n":77}`, i))
		}
		if r := w.verify(Check{Level: L2, Full: true, Repair: true}); r.Repaired != 2 || !r.Clean() {
			w.Errorf("%+v", r)
		}
		for id, want := range map[string]string{"d1": `{"customer":"c1","n":77}`, "d2": `{"customer":"c2","n":-2}`} {
			if have := w.shown(source)[id].body; have != want {
				w.Errorf("%s on the old side: %s, want %s", id, have, want)
			}
		}
		w.same()
	})
}

// Nothing is completed while one side has refused a record: the other may hold
// the only copy.
func TestCompleteRefusesDirtyCustomers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		w.verify(Check{Level: L1})
		w.check(cutting(Cut{All: true})(w.Context(), w.m))
		sleepFor(w, time.Second)
		w.verify(Check{Level: L1})
		w.check(w.control.Create(w.Context(), dirtyID(jobName, "c3"), map[string]string{"side": "new"}))
		_, err := w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, "verify --repair --customer c3")
		w.verify(Check{Level: L1, Repair: true, Customer: "c3"})
		stop := w.consume()
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.check(err)
		stop()
		w.state(Completed)
	})
}
