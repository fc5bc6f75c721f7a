package migrate

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// accepting verifies with classes accepted, for a reason.
func (w *world) accepting(check Check, classes ...string) *Report {
	w.Helper()
	r := request()
	r.Reason = "the old mapping"
	check.Accept = classes
	report, _, err := w.m.Verify(w.Context(), r, check, nil)
	w.check(err)
	return report
}

func (w *world) dirty() []string {
	w.Helper()
	dirty, err := w.m.store.dirty(w.Context(), jobName)
	w.check(err)
	slices.Sort(dirty)
	return dirty
}

// oldRefuses lets the legacy index refuse documents for good.
func (w *world) oldRefuses(ids ...string) {
	w.es.Inject(embedded.Rule{API: "bulk", Index: source, Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
		if a.Index == source && slices.Contains(ids, string(a.ID)) {
			return &embedded.ItemError{Status: http.StatusBadRequest, Type: "document_parsing_exception", Reason: "no"}
		}
		return nil
	}}})
}

// What the legacy index refuses for good leaves differences that no repair takes
// away: an update, an insert, and a deletion that it should keep a tombstone of. A
// migration comes to its end once somebody has accepted them.
func TestAcceptWhatTheOldSideRefuses(t *testing.T) {
	inBubble(t, func(w *world) {
		w.log.keeps = true
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.oldRefuses("d7", "fresh", "d9")
		w.log.put("d7", "c2", 1)
		w.log.put("d8", "c3", 1)
		w.log.put("fresh", "c1", 1)
		w.log.remove("d9", "c4")
		sleepFor(w, time.Second)
		one := Cut{Customers: []string{"c2"}}
		differ := map[string]int64{oldOlder: 2, extraOnNew: 1}
		for _, repair := range []bool{false, true} {
			if r := w.verify(Check{Level: L1, Repair: repair}); !maps.Equal(r.Classes, differ) {
				w.Errorf("they differ in %v, want %v", r.Classes, differ)
			}
		}
		_, err := w.m.Cutover(w.Context(), request(), one)
		w.refused(err, "sluice migrate verify --repair --accept old_older --accept extra_on_new --reason TEXT --job j7")

		// Nobody else's reasons, and nothing that readers would lose.
		r := request()
		for _, c := range []struct {
			reason, say string
			check       Check
		}{
			{"", "accepting differences needs a reason: repeat with --reason", Check{Level: L1, Accept: []string{oldOlder}}},
			{"so", "repeat with --level L1 or L2", Check{Level: L0, Accept: []string{oldOlder}}},
			{"so", "missing_on_new cannot be accepted, only old_older, extra_on_new, foreign", Check{Level: L1, Accept: []string{oldOlder, missingOnNew}}},
		} {
			r.Reason = c.reason
			_, _, err := w.m.Verify(w.Context(), r, c.check, nil)
			w.refused(err, c.say)
		}
		if dirty := w.dirty(); fmt.Sprint(dirty) != "[c1 c2 c4]" {
			w.Errorf("dirty are %v", dirty)
		}

		if r := w.accepting(Check{Level: L1}, oldOlder); !maps.Equal(r.Classes, map[string]int64{extraOnNew: 1}) || fmt.Sprint(r.Bad) != "[c1]" || !maps.Equal(r.Accepted, map[string]int64{oldOlder: 2}) {
			w.Errorf("%+v", r)
		}
		if dirty := w.dirty(); fmt.Sprint(dirty) != "[c1]" {
			w.Errorf("dirty are %v", dirty)
		}
		report := w.accepting(Check{Level: L1}, oldOlder, extraOnNew)
		if !report.Clean() || !maps.Equal(report.Accepted, differ) || len(w.dirty()) > 0 {
			w.Errorf("%+v, dirty are %v", report, w.dirty())
		}
		if say := report.Summary(); !strings.HasSuffix(say, ": clean; accepted by test: old_older 2, extra_on_new 1 (the old mapping)") {
			w.Error(say)
		}
		_, err = w.m.Cutover(w.Context(), request(), one)
		w.check(err)

		// Whatever is refused later blocks again.
		w.log.put("d7", "c2", 2)
		sleepFor(w, time.Second)
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.refused(err, "refused records of c2")
		w.accepting(Check{Level: L1}, oldOlder, extraOnNew)
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.check(err)
		sleepFor(w, time.Minute)
		w.verify(Check{Level: L1})
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, "no clean verification")
		w.accepting(Check{Level: L1}, oldOlder, extraOnNew)
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.check(err)
		w.state(Completed)
		stop()
	})
}

// A refusal while differences are being accepted is none of those that were
// looked at.
func TestAcceptLosesAgainstALaterRefusal(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		w.oldRefuses("d7")
		w.log.put("d7", "c2", 1)
		stop := w.consume()
		sleepFor(w, time.Second)
		if dirty := w.dirty(); fmt.Sprint(dirty) != "[c2]" {
			w.Errorf("dirty are %v", dirty)
		}
		release := make(chan struct{})
		held := w.es.Inject(embedded.Rule{API: "search", Index: source, Next: 1, Fault: embedded.Fault{Hold: release}})
		report := make(chan *Report, 1)
		go func() { report <- w.accepting(Check{Level: L1}, oldOlder) }()
		sleepFor(w, time.Second)
		var mark map[string]any
		seqNo, term, err := w.control.Get(w.Context(), dirtyID(jobName, "c2"), &mark)
		w.check(err)
		w.check(w.control.Update(w.Context(), dirtyID(jobName, "c2"), map[string]any{"count": 2}, seqNo, term))
		close(release)
		if r := <-report; !r.Clean() || held.Hits() == 0 {
			w.Errorf("%+v", r)
		}
		if dirty := w.dirty(); fmt.Sprint(dirty) != "[c2]" {
			w.Errorf("dirty are %v", dirty)
		}
		stop()
	})
}

// A copy in the index partition of another customer would be found for ever, and
// a newer deletion that the new side has refused is missing there.
func TestAcceptTakesOnlyWhatTheNewSideHasNewer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.log.keeps = true
		w.synced(50)
		table := partition.NewRouter(w.table(), partition.CacheOptions{})
		elsewhere := ""
		for _, t := range w.job().Targets {
			if t.Index != table.Route([]byte("c3")).New {
				elsewhere = t.Index
			}
		}
		w.call(http.MethodPut, "/"+elsewhere+"/_doc/d3?version=1&version_type=external", `{"customer":"c3","n":-3}`)
		w.es.Inject(embedded.Rule{API: "bulk", Index: "events-*", Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
			if a.Index != source && string(a.ID) == "d6" {
				return &embedded.ItemError{Status: http.StatusBadRequest, Type: "document_parsing_exception", Reason: "no"}
			}
			return nil
		}}})
		w.log.remove("d6", "c1")
		stop := w.consume()
		sleepFor(w, time.Second)
		stop()
		r := w.accepting(Check{Level: L1}, oldOlder, extraOnNew)
		if !maps.Equal(r.Classes, map[string]int64{extraOnNew: 1, newOlder: 1}) || len(r.Accepted) > 0 || fmt.Sprint(r.Bad) != "[c1 c3]" || fmt.Sprint(w.dirty()) != "[c1]" {
			w.Errorf("%+v, dirty are %v", r, w.dirty())
		}
	})
}

// What somebody else has written to the legacy index counts for ever, also once
// both sides have it.
func TestAcceptForeignWrites(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		w.call(http.MethodPut, "/"+source+"/_doc/d7?refresh=true", `{"customer":"c2","n":99}`)
		stop := w.consume()
		if r := w.verify(Check{Level: L2, Full: true, Repair: true}); r.Foreign != 1 || r.Repaired != 1 || len(r.Classes) > 0 {
			w.Errorf("%+v", r)
		}
		w.verify(Check{Level: L2})
		_, err := w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.refused(err, "stop the other writer of events, then sluice migrate verify --repair --accept foreign --reason TEXT --job j7")
		if r := w.accepting(Check{Level: L2}, foreignWrites); !r.Clean() || !maps.Equal(r.Accepted, map[string]int64{foreignWrites: 1}) {
			w.Errorf("%+v", r)
		}
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.check(err)
		sleepFor(w, time.Minute)
		w.verify(Check{Level: L2})
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, "--accept foreign")
		w.accepting(Check{Level: L2}, foreignWrites)
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.check(err)
		stop()
	})
}
