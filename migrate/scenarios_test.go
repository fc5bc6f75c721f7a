package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// The situations that a migration must come out of right, by their numbers in
// docs/migrations.md.

// consume lets the group adopt and deliver until the returned function is called.
func (w *world) consume() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, 100*time.Millisecond) == nil {
			w.log.adopt()
			w.log.deliver()
		}
	}()
	w.Cleanup(func() { cancel(); <-done })
	return func() {
		cancel()
		<-done
		w.log.adopt()
		w.log.deliver()
	}
}

// dual brings a job of two partitions to where both sides are written.
func (w *world) dual(docs int) {
	w.Helper()
	w.seed(docs, 5)
	w.create(2)
	_, err := w.m.DualWrite(w.Context(), request())
	w.check(err)
	w.log.adopt()
}

// start works on the job in the background; the returned function waits for it.
func (w *world) start(m *Manager) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- m.Work(w.Context(), jobName, nil) }()
	return func() error { return <-done }
}

// copying injects a fault into the next bulk request of the backfill.
func (w *world) copying(f embedded.Fault) *embedded.Injection {
	return w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Next: 1, Fault: f})
}

// S1 to S6: live operations between the moment at which the backfill has read a
// document and the moment at which its copy lands.
func TestS1toS6LiveBesideACopy(t *testing.T) {
	for name, live := range map[string]func(w *world){
		"S1 update":                           func(w *world) { w.log.put("d7", "c2", 1) },
		"S3 delete":                           func(w *world) { w.log.remove("d7", "c2") },
		"S5 delete and re-create":             func(w *world) { w.log.remove("d7", "c2"); w.log.put("d7", "c2", 2) },
		"S6 update of a document at v5000":    func(w *world) { w.log.put("old", "c2", 1) },
		"S6 delete of a document at v5000":    func(w *world) { w.log.remove("old", "c2") },
		"delete of what is on neither side":   func(w *world) { w.log.remove("nowhere", "c1") },
		"S4 delete, which the server forgets": func(w *world) { w.log.remove("d7", "c2"); w.log.deliver(); w.es.Restart() },
		"update, delete, update, all forgotten": func(w *world) {
			w.log.put("d7", "c2", 1)
			w.log.remove("d7", "c2")
			w.log.put("d7", "c2", 3)
			w.log.deliver()
			w.es.Restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.call(http.MethodDelete, "/events", "") // one shard is one page, which is held whole
				w.call(http.MethodPut, "/events", `{"settings":{"number_of_shards":1,"number_of_replicas":0},"mappings":{"properties":{"customer":{"type":"keyword"}}}}`)
				w.call(http.MethodPut, "/events/_doc/old?version=5000&version_type=external", `{"customer":"c2","n":0}`)
				w.dual(20)
				release := make(chan struct{})
				held := w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Fault: embedded.Fault{Hold: release}})
				wait := w.start(w.m)
				synctest.Wait()
				if held.Hits() == 0 {
					w.Fatal("no copy was held")
				}
				live(w)
				w.log.deliver()
				held.Remove()
				close(release)
				stop := w.consume()
				w.check(wait())
				stop()
				w.state(Synced)
				w.same()
				if n := w.tombstonesLeft(); n > 0 {
					w.Errorf("%d tombstones are left", n)
				}
				status, err := w.m.Status(w.Context(), jobName)
				w.check(err)
				if status.Seen != 21 || status.Seen != status.Written+status.Newer || strings.HasPrefix(name, "S") && status.Newer == 0 {
					w.Errorf("seen %d, written %d, superseded %d", status.Seen, status.Written, status.Newer)
				}
			})
		})
	}
}

func TestS2CopyBeforeUpdate(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.log.put("d7", "c2", 1)
		stop()
		w.same()
	})
}

// S9, S10: the fence waits for each partition, idle ones too, and names those
// that it waits for.
func TestS9TheFenceWaitsForLaggards(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(20, 5)
		w.create(2)
		w.log.adopt()
		_, err := w.m.DualWrite(w.Context(), request())
		w.check(err)
		w.log.adopt(0, 1, 3)
		_, err = w.m.Backfill(w.Context(), request(), nil, nil)
		w.refused(err, "t/2")
		status, err := w.m.Status(w.Context(), jobName)
		w.check(err)
		if line := status.Line(); !strings.Contains(line, "fence waits for t/2") {
			w.Errorf("the status says %q", line)
		}
		// The laggard writes to the old side only, until it adopts.
		w.log.put("late", "c1", 1)
		for partitionOf("late") != 2 {
			w.Fatal("the record is to be the laggard's: name it otherwise")
		}
		w.log.deliver()
		if len(w.shown(w.job().indices()...)) != 0 {
			w.Error("a laggard wrote to the new side")
		}
		stop := w.consume()
		_, err = w.m.Backfill(w.Context(), request(), nil, nil)
		w.refused(err, "t/2") // it has not been idle for long enough to adopt
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.same()
	})
}

// S14: one side refuses a record for good: the customer is dirty until it is
// repaired, and everything else goes on.
func TestS14OneSideRefuses(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		bad := w.es.Inject(embedded.Rule{API: "bulk", Index: "events-p*", Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
			if string(a.ID) == "d7" {
				return &embedded.ItemError{Status: 400, Type: "document_parsing_exception", Reason: "no"}
			}
			return nil
		}}})
		w.log.put("d7", "c2", 1)
		w.log.put("d8", "c3", 1)
		stop()
		w.verify(Check{Level: L1}) // finds it too
		_, err := w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c2"}})
		w.refused(err, "verify --repair --customer c2")
		_, err = w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c3"}})
		w.check(err) // another customer's affair
		_, err = w.m.Rollback(w.Context(), request(), nil)
		w.check(err)

		if r := w.verify(Check{Level: L1, Repair: true, Customer: "c2"}); r.Clean() {
			w.Error("a repair that is refused is called clean")
		}
		_, err = w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c2"}})
		w.refused(err, "refused records of c2")
		bad.Remove()
		if r := w.verify(Check{Level: L1, Repair: true, Customer: "c2"}); !r.Clean() || r.Repaired != 1 {
			w.Errorf("the repair: %+v", r)
		}
		if r := w.verify(Check{Level: L1}); !r.Clean() {
			w.Errorf("after the repair: %+v", r)
		}
		_, err = w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c2"}})
		w.check(err)
		w.same()
	})
}

// S15: the way out of a new side that cannot take its records.
func TestS15Detach(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(50)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		before := w.job().indices()
		_, err := w.m.Detach(w.Context(), request(), nil)
		w.check(err)
		w.state(Created)
		for _, index := range before {
			if status, _ := w.try(http.MethodHead, "/"+index, ""); status != http.StatusNotFound {
				w.Errorf("%s is still there", index)
			}
		}
		w.log.put("d1", "c1", 9)
		w.log.remove("d2", "c2")
		w.toSynced()
		stop()
		w.same()
		if r := w.verify(Check{Level: L2, Full: true}); !r.Clean() {
			w.Errorf("%+v", r)
		}
	})
}

// S16: of two runners one works, the other says who, and takes over.
func TestS16TwoRunners(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(3000)
		stop := w.consume()
		k := &killer{next: w.es.Transport(), left: 12}
		ctx, kill := context.WithCancel(w.Context())
		k.killed = kill
		first := make(chan error, 1)
		go func() { first <- w.manager("first", k).Work(ctx, jobName, nil) }()
		synctest.Wait()
		var told []string
		second := w.manager("second", nil)
		w.check(second.Work(w.Context(), jobName, func(text string) { told = append(told, text) }))
		if err := <-first; err == nil {
			w.Error("the first runner was not killed")
		}
		if !strings.Contains(strings.Join(told, "\n"), "worked on by first; standing by") {
			w.Errorf("the second runner said %q", told)
		}
		stop()
		w.state(Synced)
		w.same()
	})
}

// S17: a runner that was paused past its lease sends its last bulk when all is
// over: it must not land, since nobody remembers the delete any more.
func TestS17StalledRunner(t *testing.T) {
	for name, hold := range map[string]func(release chan struct{}) embedded.Fault{
		"on its way":       func(release chan struct{}) embedded.Fault { return embedded.Fault{Hold: release, Late: true} },
		"inside the index": func(release chan struct{}) embedded.Fault { return embedded.Fault{HoldWrite: release} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.dual(20)
				release := make(chan struct{})
				held := w.copying(hold(release))
				ctx, pause := context.WithCancel(w.Context())
				first := make(chan error, 1)
				go func() { first <- w.manager("first", nil).Work(ctx, jobName, nil) }()
				synctest.Wait()
				if held.Hits() != 1 {
					w.Fatal("no copy was held")
				}
				pause()
				if err := <-first; err == nil {
					w.Error("the first runner came to its end")
				}
				for i := range 20 {
					w.log.remove(fmt.Sprintf("d%d", i), fmt.Sprintf("c%d", i%5))
				}
				w.log.deliver()
				stop := w.consume()
				wait := w.start(w.m)
				if name == "inside the index" {
					sleepFor(w, time.Minute)
					w.state(Draining) // it waits for the write that it cannot shut out
					close(release)
				}
				w.check(wait())
				w.es.Restart() // forgets the deletes
				if name == "on its way" {
					close(release)
					synctest.Wait()
				}
				stop()
				w.state(Synced)
				w.same()
				if left := w.shown(w.job().indices()...); len(left) > 0 {
					w.Errorf("resurrected: %v", left)
				}
			})
		})
	}
}

// S18, S20: searches that fail, lose shards or are cut count for nothing and are
// repeated.
func TestS18FaultsInTheScan(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(4000)
		w.es.Inject(embedded.Rule{API: "search", Index: source, Share: 0.2, Fault: embedded.Fault{Refuse: true}})
		w.es.Inject(embedded.Rule{API: "search", Index: source, Share: 0.2, Fault: embedded.Fault{FailShards: true}})
		w.es.Inject(embedded.Rule{API: "search", Index: source, Share: 0.1, Fault: embedded.Fault{Cut: true, CutAfter: 100}})
		w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Share: 0.2, Fault: embedded.Fault{Drop: true}})
		w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Share: 0.2, Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
			if len(a.ID)%2 == 0 {
				return &embedded.ItemError{Status: 429, Type: "es_rejected_execution_exception", Reason: "full"}
			}
			return nil
		}}})
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.same()
		status, err := w.m.Status(w.Context(), jobName)
		w.check(err)
		if status.Seen != 4000 || status.Written+status.Newer != 4000 {
			w.Errorf("seen %d, written %d, superseded %d", status.Seen, status.Written, status.Newer)
		}
	})
}

// S21: that there were no more rows is not proven by there being no more rows.
func TestS21CompletionIsProven(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		// A runner that would take the end of a connection for the end of the data.
		r := &runner{m: w.m, tell: func(string, ...any) {}, changed: make(chan struct{}, 1)}
		w.check(r.begin(w.Context(), w.job()))
		j := w.job()
		for n := j.Backfill.First; n < j.Backfill.First+j.Backfill.Count; n++ {
			item := j.Backfill.item(n)
			item.Cursor, item.Done = item.To, true
			w.check(w.control.Create(w.Context(), itemID(jobName, n), item))
		}
		stop := w.consume()
		err := w.m.Work(w.Context(), jobName, nil)
		stop()
		if err == nil || !strings.Contains(err.Error(), "has not seen") {
			w.Errorf("an empty copy was taken for a whole one: %v", err)
		}
		w.state(Backfilling)
	})
}

// S22: somebody else writes to the old index after the fence.
func TestS22ForeignWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.call(http.MethodPut, "/events/_doc/d3", `{"customer":"c3","n":99}`)
		stop()
		if r := w.verify(Check{Level: L1}); r.Foreign != 1 || r.Classes[newOlder] != 1 {
			w.Errorf("%+v", r)
		}
		_, err := w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c1"}})
		w.refused(err, "written by somebody else")
	})
}

// S23: somebody else deletes from the old index. Nobody but an operator can say
// which side is right.
func TestS23ForeignDelete(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.call(http.MethodDelete, "/events/_doc/d3", "")
		if r := w.verify(Check{Level: L1, Repair: true}); r.Classes[extraOnNew] != 1 || r.Repaired != 0 {
			w.Errorf("%+v", r)
		}
		if r := w.verify(Check{Level: L1, Repair: true, Authority: "old"}); !r.Clean() || r.Repaired != 1 {
			w.Errorf("%+v", r)
		}
		w.same()
	})
}

// S24: the source's mapping changes: the job stops, or makes the change too.
func TestS24MappingChanges(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		w.call(http.MethodPut, "/events/_mapping", `{"properties":{"added":{"type":"keyword"}}}`)
		stop := w.consume()
		release := make(chan struct{})
		w.copying(embedded.Fault{Hold: release})
		wait := w.start(w.m)
		synctest.Wait()
		if why := w.job().Paused; !strings.Contains(why, "--apply-mapping") {
			w.Errorf("paused: %q", why)
		}
		_, err := w.m.Resume(w.Context(), request(), true)
		w.check(err)
		close(release)
		w.check(wait())
		for _, index := range w.job().indices() {
			if text := string(w.call(http.MethodGet, "/"+index+"/_mapping", "")); !strings.Contains(text, "added") {
				w.Errorf("%s has no field added: %s", index, text)
			}
		}
		w.verify(Check{Level: L1})
		w.call(http.MethodPut, "/events/_mapping", `{"properties":{"later":{"type":"keyword"}}}`)
		_, err = w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c1"}})
		w.refused(err, "mapping of events has changed")
		stop()
	})
}

// S28: a document whose customer changes leaves a copy with the old customer.
func TestS28CustomerChanges(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		table, err := w.tables.Load(w.Context(), stream)
		w.check(err)
		router := partition.NewRouter(table.Table, partition.CacheOptions{})
		other := ""
		for i := 0; other == "" || router.Route([]byte(other)).New == router.Route([]byte("c3")).New; i++ {
			other = fmt.Sprintf("x%d", i)
		}
		w.log.put("d3", other, 1)
		stop()
		if r := w.verify(Check{Level: L1}); r.Classes[extraOnNew] != 1 || r.Samples[extraOnNew][0] != "c3/d3" {
			w.Errorf("%+v", r)
		}
		if r := w.verify(Check{Level: L1, Repair: true}); !r.Clean() {
			w.Errorf("%+v", r)
		}
		w.same()
	})
}

// S30: a reader with the old table and one with the new one both find all.
func TestS30ReadersOfTwoTables(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.verify(Check{Level: L1})
		before, err := w.tables.Load(w.Context(), stream)
		w.check(err)
		_, err = w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c3"}})
		w.check(err)
		w.log.put("d3", "c3", 42)
		w.log.remove("d8", "c3")
		stop()
		after, err := w.tables.Load(w.Context(), stream)
		w.check(err)
		found := map[string]string{}
		for name, table := range map[string]*partition.Table{"old": before.Table, "new": after.Table} {
			index := partition.NewRouter(table, partition.CacheOptions{}).Read([]byte("c3"))
			w.call(http.MethodPost, "/"+index+"/_refresh", "")
			var answer struct {
				Hits struct {
					Hits json.RawMessage `json:"hits"`
				} `json:"hits"`
			}
			w.check(json.Unmarshal(w.call(http.MethodPost, "/"+index+"/_search", `{"query":{"term":{"customer":"c3"}},"sort":[{"n":"asc"}],"_source":["n"]}`), &answer))
			var hits []struct {
				ID string `json:"_id"`
			}
			w.check(json.Unmarshal(answer.Hits.Hits, &hits))
			found[name] = fmt.Sprint(hits)
			if name == "new" && index == source {
				w.Error("the customer was not cut over")
			}
		}
		if found["old"] != found["new"] || !strings.Contains(found["old"], "d3") || strings.Contains(found["old"], "d8") {
			w.Errorf("readers find %v", found)
		}
	})
}

// S31: a cut-over is refused with the reason and what would help.
func TestS31CutoverRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		one := Cut{Customers: []string{"c1"}}
		_, err := w.m.Cutover(w.Context(), request(), one)
		w.refused(err, "this needs SYNCED or CUTOVER: sluice migrate backfill --job j7")
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		refused := func(say string) {
			w.Helper()
			_, err := w.m.Cutover(w.Context(), request(), one)
			w.refused(err, say)
		}
		refused("sluice migrate verify --job j7")
		w.verify(Check{Level: L1})
		w.log.lag = Lag{Records: 1000, Seconds: 9.1, Over: true}
		refused("live lag is 9.1s > 5s (1000 records)")
		w.log.lag = Lag{}
		w.log.parked = "t/0: records for events-p000 are parked"
		refused("records for events-p000 are parked")
		w.log.parked = ""
		w.es.SetHealth("yellow")
		refused("yellow")
		w.es.SetHealth("green")
		w.check(w.control.Create(w.Context(), dirtyID(jobName, "c1"), map[string]string{"side": "new"}))
		refused("verify --repair --customer c1")
		w.verify(Check{Level: L1, Repair: true})
		sleepFor(w, VerifyAge+time.Second)
		refused("over 24h0m0s ago")
		w.verify(Check{Level: L1})
		r := request()
		r.Yes = false
		_, err = w.m.Cutover(w.Context(), r, Cut{All: true})
		w.refused(err, "--yes")
		// A dry run says the same and changes nothing.
		r.DryRun = true
		result, err := w.m.Cutover(w.Context(), r, Cut{All: true})
		w.check(err)
		if len(result.Refusals) != 1 || len(result.Actions) != 1 {
			w.Errorf("%+v", result)
		}
		w.state(Synced)
		_, err = w.m.Cutover(w.Context(), request(), one)
		w.check(err)
		w.state(Cutover)
	})
}

// S32, S33: a percent only adds customers; a lower one and a roll-back take
// exactly those back, and the old index is current all the time.
func TestS32PercentAndRollback(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(200)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.verify(Check{Level: L1})
		cut := func(percent float64) map[int]bool {
			_, err := w.m.Cutover(w.Context(), request(), Cut{Percent: &percent})
			w.check(err)
			table, err := w.tables.Load(w.Context(), stream)
			w.check(err)
			router := partition.NewRouter(table.Table, partition.CacheOptions{})
			cut := map[int]bool{}
			for i := range 1000 {
				if router.Read(fmt.Appendf(nil, "x%d", i)) != source {
					cut[i] = true
				}
			}
			return cut
		}
		ten, forty := cut(10), cut(40)
		for i := range ten {
			if !forty[i] {
				w.Errorf("x%d was taken back by a higher percent", i)
			}
		}
		again := cut(10)
		if len(ten) < 50 || len(forty) < 300 || len(again) != len(ten) {
			w.Errorf("%d, %d and %d of 1000 customers at 10, 40 and 10 percent", len(ten), len(forty), len(again))
		}
		if none := cut(0); len(none) > 0 {
			w.Errorf("%d customers at 0 percent", len(none))
		}
		w.state(Synced)
		cut(100)
		_, err := w.m.Rollback(w.Context(), request(), []string{"x1"})
		w.check(err)
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, "not every customer")
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.refused(err, "held back by a roll-back: x1")
		_, err = w.m.Rollback(w.Context(), request(), nil)
		w.check(err)
		w.state(Synced)
		w.log.put("d1", "c1", 7)
		stop()
		w.same()
	})
}

// S34, S35: complete waits until no reader can use an older table; a roll-back
// meanwhile wins; after it there is no way back by a flag.
func TestS34CompleteWaitsForReaders(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		defer stop()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.verify(Check{Level: L1})
		_, err := w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.check(err)
		sleepFor(w, time.Second)
		w.verify(Check{Level: L1})

		failed := make(chan error, 1)
		go func() { _, err := w.m.Complete(w.Context(), request(), 0, 0); failed <- err }()
		synctest.Wait()
		_, err = w.m.Rollback(w.Context(), request(), []string{"c1"})
		w.check(err)
		var conflict *partition.ConflictError
		if err := <-failed; !errors.As(err, &conflict) || conflict.Read >= conflict.Stored {
			w.Errorf("complete went over a roll-back: %v", err)
		}
		w.state(Cutover)

		_, err = w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c1"}})
		w.check(err)
		sleepFor(w, time.Second)
		w.verify(Check{Level: L1})
		began := time.Now()
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.check(err)
		if waited := time.Since(began); waited < w.m.MaxStaleness {
			w.Errorf("complete waited %s for readers that may be %s behind", waited, w.m.MaxStaleness)
		}
		if status, text := w.try(http.MethodPut, "/events/_doc/late", `{"customer":"c1"}`); status != http.StatusForbidden {
			w.Errorf("a write to the old index: %d %s", status, text)
		}
		_, err = w.m.Rollback(w.Context(), request(), nil)
		w.refused(err, "has missed records")
		_, err = w.m.Drop(w.Context(), request(), "event", true)
		w.refused(err, "--confirm events")
	})
}

// S37: of two operators who change the routes at once one is refused, with both
// epochs.
func TestS37TwoOperators(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		defer stop()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.verify(Check{Level: L1})
		release := make(chan struct{})
		w.es.Inject(embedded.Rule{Next: 1, Fault: embedded.Fault{Hold: release}, Match: func(r *embedded.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.Path, "routing:")
		}})
		first := make(chan error, 1)
		go func() {
			_, err := w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c1"}})
			first <- err
		}()
		synctest.Wait()
		_, err := w.manager("other", nil).Cutover(w.Context(), request(), Cut{Customers: []string{"c2"}})
		w.check(err)
		close(release)
		var conflict *partition.ConflictError
		if err := <-first; !errors.As(err, &conflict) || conflict.Stored != conflict.Read+1 {
			w.Errorf("two changes were merged: %v", err)
		}
		table, err := w.tables.Load(w.Context(), stream)
		w.check(err)
		if fmt.Sprint(table.Read.Allow) != "[c2]" {
			w.Errorf("read from the new side: %v", table.Read.Allow)
		}
	})
}

// S38: without the routing table nothing is changed.
func TestS38TableUnreachable(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(20, 5)
		w.create(2)
		down := w.es.Inject(embedded.Rule{Fault: embedded.Fault{Refuse: true}, Match: func(r *embedded.Request) bool { return strings.Contains(r.Path, "routing:") }})
		if _, err := w.m.DualWrite(w.Context(), request()); err == nil {
			w.Error("a transition without a table")
		}
		w.state(Created)
		down.Remove()
		w.log.adopt()
		stop := w.consume()
		w.toSynced()
		stop()
		w.same()
	})
}

// S40: cancel takes back all that the job has made, and nothing else.
func TestS40CancelInMidBackfill(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		w.call(http.MethodPut, "/events-p009-j7", `{}`) // another's, by a name like the job's
		release := make(chan struct{})
		w.copying(embedded.Fault{Hold: release, Late: true})
		stop := w.consume()
		wait := w.start(w.m)
		synctest.Wait()
		w.state(Backfilling)
		_, err := w.manager("operator", nil).Cancel(w.Context(), request(), nil)
		w.check(err)
		if err := wait(); err == nil {
			w.Error("the runner went on")
		}
		close(release)
		w.log.put("d1", "c1", 7)
		stop()
		w.state(Cancelled)
		for _, index := range w.es.Indices() {
			if strings.HasPrefix(index, "events-p") && index != "events-p009-j7" {
				w.Errorf("%s is left", index)
			}
		}
		if len(w.shown(source)) != 20 {
			w.Error("the old index has changed")
		}
		events, err := w.m.Events(w.Context(), jobName, 1)
		w.check(err)
		if last := events[len(events)-1]; last.Verb != "cancel" || last.To != Cancelled || last.Result != "done" {
			w.Errorf("the audit log ends with %+v", last)
		}
		// The stream is free for another job.
		r := request()
		r.Job = "j8"
		_, err = w.m.Create(w.Context(), r, w.plan(3))
		w.check(err)
	})
}

// S40 too: an index that does not carry the job's name is not deleted.
func TestS40CancelSparesOthers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		defer stop()
		index := w.job().indices()[0]
		w.call(http.MethodDelete, "/"+index, "")
		w.call(http.MethodPut, "/"+index, `{"mappings":{"_meta":{"sluice":{"job":"j9"}}}}`)
		if _, err := w.m.Cancel(w.Context(), request(), nil); err == nil || !strings.Contains(err.Error(), "j9") {
			w.Errorf("cancel: %v", err)
		}
		if status, _ := w.try(http.MethodHead, "/"+index, ""); status != http.StatusOK {
			w.Error("another job's index was deleted")
		}
	})
}

// S42: a record that replaces a tombstone while it is purged wins in either
// order.
func TestS42PurgeBesideALiveRecord(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		w.log.remove("d7", "c2")
		w.log.remove("d8", "c3")
		w.log.deliver()
		release := make(chan struct{})
		purge := w.es.Inject(embedded.Rule{API: "bulk", Index: "events-p*-j7", Next: 1, Fault: embedded.Fault{Hold: release}, Match: func(r *embedded.Request) bool {
			return strings.Contains(string(r.Body), `"delete"`)
		}})
		stop := w.consume()
		wait := w.start(w.m)
		for purge.Hits() == 0 {
			sleepFor(w, 100*time.Millisecond)
		}
		w.log.put("d7", "c2", 1) // before the purge
		w.log.deliver()
		close(release)
		w.check(wait())
		w.log.put("d8", "c3", 1) // after it
		stop()
		w.same()
		if w.tombstonesLeft() > 0 {
			w.Error("tombstones are left")
		}
	})
}

// S43: a document in flux is looked at again once the consumers have passed.
func TestS43Settling(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		// On the old side already, and still on its way to the new one.
		w.log.put("d7", "c2", 1)
		p := partitionOf("d7")
		w.log.write(source, w.log.entries[p][len(w.log.entries[p])-1], versionOf(len(w.log.entries[p])-1), false)
		report := make(chan *Report, 1)
		go func() { report <- w.verify(Check{Level: L1}) }()
		synctest.Wait()
		w.log.deliver()
		if r := <-report; !r.Clean() || r.Settled != 1 {
			w.Errorf("%+v", r)
		}
	})
}

// A document that changes each time it is looked at is reported, not failed.
func TestS43Unsettled(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		n := int64(0)
		w.es.Inject(embedded.Rule{Match: func(r *embedded.Request) bool {
			return strings.HasSuffix(r.Path, "_mget") && strings.Contains(string(r.Body), `"d7"`)
		}, Fault: embedded.Fault{Edit: func(body []byte) []byte {
			n++
			w.try(http.MethodPut, fmt.Sprintf("/events/_doc/d7?version=%d&version_type=external", epochs+n<<8), `{"customer":"c2","n":1}`)
			return body
		}}})
		w.call(http.MethodPut, "/events/_doc/d7?version_type=external&version="+fmt.Sprint(int64(epochs)), `{"customer":"c2","n":1}`)
		r := w.verify(Check{Level: L1})
		if r.Unsettled != 1 || len(r.Classes) != 0 || fmt.Sprint(r.Bad) != "[c2]" {
			w.Errorf("%+v", r)
		}
	})
}

// S45: a copy that rests for two weeks goes on where it was.
func TestS45TwoWeeksOfRest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(3000)
		k := &killer{next: w.es.Transport(), left: 14}
		ctx, kill := context.WithCancel(w.Context())
		k.killed = kill
		if err := w.manager("first", k).Work(ctx, jobName, nil); err == nil {
			w.Fatal("it was not killed")
		}
		w.state(Backfilling)
		w.log.remove("d17", "c2")
		w.log.put("d18", "c3", 1)
		w.log.deliver()
		sleepFor(w, 14*24*time.Hour)
		w.es.Restart()
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.same()
	})
}

// Where shards cannot be addressed a point in time is read, and all of it again
// when it is lost.
func TestPointInTime(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.es.Inject(embedded.Rule{Match: func(r *embedded.Request) bool { return strings.Contains(r.Path, "_stats") }, Fault: embedded.Fault{Edit: func(body []byte) []byte {
					var stats map[string]any
					w.check(json.Unmarshal(body, &stats))
					for _, index := range stats["indices"].(map[string]any) {
						delete(index.(map[string]any), "shards")
					}
					text, err := json.Marshal(stats)
					w.check(err)
					return text
				}}})
				w.dual(3000)
				if lost {
					n := 0
					w.es.Inject(embedded.Rule{API: "search", Next: 1, Fault: embedded.Fault{Status: 404, Body: []byte(`{"error":{"type":"search_phase_execution_exception","reason":"all shards failed"},"status":404}`)}, Match: func(r *embedded.Request) bool {
						n++
						return strings.Contains(string(r.Body), `"pit"`) && n > 20
					}})
				}
				live, end := context.WithCancel(w.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					w.log.run(live, rand.New(rand.NewPCG(5, 5)), 5, 3500)
				}()
				w.check(w.m.Work(w.Context(), jobName, nil))
				end()
				<-done
				w.log.deliver()
				w.same()
				if r := w.verify(Check{Level: L2}); !r.Clean() {
					w.Errorf("%+v", r)
				}
				if again := w.job().Backfill.First > 0; again != lost {
					w.Errorf("begun anew: %t", again)
				}
			})
		})
	}
}

// Documents that cannot be copied keep the job from going on until they are
// mended or waived by name.
func TestFailedDocuments(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		for _, body := range []string{`{"n":1}`, `{"customer":"c1","n":2}`} {
			w.call(http.MethodPost, "/events/_doc?refresh=true", body)
		}
		bad := w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
			if string(a.ID) == "d7" {
				return &embedded.ItemError{Status: 400, Type: "document_parsing_exception", Reason: "no"}
			}
			return nil
		}}})
		stop := w.consume()
		_, err := w.m.Backfill(w.Context(), request(), nil, nil)
		w.refused(err, "2 documents could not be copied")
		w.state(Backfilling)
		failures, err := w.m.Failures(w.Context(), jobName)
		w.check(err)
		if len(failures) != 2 {
			w.Errorf("%+v", failures)
		}
		bad.Remove()
		_, err = w.m.Backfill(w.Context(), request(), nil, nil)
		w.refused(err, "1 documents could not be copied")
		for _, f := range failures {
			if f.Type == "no_customer" {
				_, err = w.m.Backfill(w.Context(), request(), []string{f.ID}, nil)
				w.check(err)
			}
		}
		w.state(Synced)
		status, err := w.m.Status(w.Context(), jobName)
		w.check(err)
		if status.Seen != 22 || status.Seen != status.Written+status.Newer+status.Failed || status.Failed != 2 {
			w.Errorf("%d = %d + %d + %d", status.Seen, status.Written, status.Newer, status.Failed)
		}
		stop()
		if r := w.verify(Check{Level: L1}); !r.Clean() {
			w.Errorf("%+v", r)
		}
	})
}

// Nothing is copied before the fence of dual writing, and no tombstone is purged
// before that of real deletes: a laggard still writes by the old table.
func TestFencesAreAwaited(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(20, 5)
		w.create(2)
		w.log.adopt()
		_, err := w.m.DualWrite(w.Context(), request())
		w.check(err)
		w.log.adopt(0, 1, 3)
		wait := w.start(w.m)
		sleepFor(w, time.Minute)
		w.state(Dual)

		w.log.adopt()
		w.log.remove("d7", "c2")
		w.log.deliver()
		w.log.mu.Lock()
		w.log.frozen[partitionOf("late")] = true
		w.log.mu.Unlock()
		stop := w.consume()
		sleepFor(w, time.Minute)
		w.state(Sweeping)
		if w.tombstonesLeft() != 1 {
			w.Errorf("%d tombstones before the fence of real deletes, want 1", w.tombstonesLeft())
		}
		w.log.remove("late", "c1")
		w.log.write(w.job().indices()[0], entry{id: "late", customer: "c1", deleted: true}, versionOf(0), true) // by the table of before
		w.log.mu.Lock()
		w.log.frozen[partitionOf("late")] = false
		w.log.mu.Unlock()
		w.check(wait())
		stop()
		w.same()
		if w.tombstonesLeft() != 0 {
			w.Error("a tombstone is left")
		}
	})
}

// S17 too: not another runner's but the runner's own request, which it gave up
// and sent again.
func TestS17OwnLateRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		release := make(chan struct{})
		held := w.copying(embedded.Fault{Hold: release, Late: true})
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		if held.Hits() != 1 {
			w.Fatal("no copy was held")
		}
		for i := range 20 {
			w.log.remove(fmt.Sprintf("d%d", i), fmt.Sprintf("c%d", i%5))
		}
		stop()
		w.es.Restart() // forgets the deletes
		close(release)
		synctest.Wait()
		if left := w.shown(w.job().indices()...); len(left) > 0 {
			w.Errorf("resurrected: %v", left)
		}
	})
}
