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

// synced is a world whose job is SYNCED, with customer c2 in buckets.
func (w *world) synced(docs int) {
	w.Helper()
	w.seed(docs, 5)
	w.check(w.tables.Create(w.Context(), partition.New(stream, source)))
	p := w.plan(3)
	p.Large = []string{"c2"}
	w.check(p.Seal())
	_, err := w.m.Create(w.Context(), request(), p)
	w.check(err)
	stop := w.consume()
	w.toSynced()
	stop()
}

// Each class of difference is found by the levels that can, and mended.
func TestVerifyFindsAndRepairs(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		table, err := w.tables.Load(w.Context(), stream)
		w.check(err)
		router := partition.NewRouter(table.Table, partition.CacheOptions{})
		put := func(index, id, customer string, version int64, n int) {
			w.call(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version=%d&version_type=external_gte", index, id, version), fmt.Sprintf(`{"customer":%q,"n":%d}`, customer, n))
		}
		to := func(customer string) string { return router.Route([]byte(customer)).New }
		for _, i := range []int{0, 2} { // customers c0 and, in buckets, c2
			customer := fmt.Sprintf("c%d", i)
			at := func(k int) string { return fmt.Sprintf("d%d", 10*k+5+i) }
			w.call(http.MethodDelete, "/"+to(customer)+"/_doc/"+at(1), "")
			put(source, at(2), customer, epochs+1, 1)
			put(to(customer), at(3), customer, epochs+1, 1)
			put(to(customer), at(4), customer, 1, 77)
			put(to(customer), "extra-"+customer, customer, epochs+1, 1)
		}
		all := map[string]int64{missingOnNew: 2, newOlder: 2, oldOlder: 2, contentDiffers: 2, extraOnNew: 2}
		without := func(classes ...string) map[string]int64 {
			left := maps.Clone(all)
			for _, class := range classes {
				delete(left, class)
			}
			return left
		}
		for _, c := range []struct {
			check Check
			want  map[string]int64
		}{
			{Check{Level: L0}, map[string]int64{}}, // one more and one less is no other number
			{Check{Level: L1}, without(contentDiffers)},
			{Check{Level: L2, Full: true}, all},
			{Check{Level: L2, Customer: "c2"}, map[string]int64{missingOnNew: 1, newOlder: 1, oldOlder: 1, contentDiffers: 1, extraOnNew: 1}},
		} {
			r := w.verify(c.check)
			if !maps.Equal(r.Classes, c.want) {
				w.Errorf("%+v: %v, want %v", c.check, r.Classes, c.want)
			}
			if c.check.Customer == "" && c.check.Level != L0 && fmt.Sprint(r.Bad) != "[c0 c2]" {
				w.Errorf("%+v: bad are %v", c.check, r.Bad)
			}
		}
		// A copy does not go over a delete that the server remembers.
		if r := w.verify(Check{Level: L2, Full: true, Repair: true}); r.Classes[missingOnNew] != 2 {
			w.Errorf("%+v", r)
		}
		sleepFor(w, leastGC+time.Minute)
		if r := w.verify(Check{Level: L2, Full: true, Repair: true, Authority: "old"}); r.Repaired != 4 || !r.Clean() || r.Stale == "" {
			w.Errorf("%+v", r)
		}
		if r := w.verify(Check{Level: L2, Full: true}); !r.Clean() {
			w.Errorf("after the repair: %+v", r)
		}
		w.same()
	})
}

// L0 sees that documents are missing, and which.
func TestVerifyCounts(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		for _, index := range w.job().indices() {
			for d := range w.es.Docs(index) {
				if strings.Contains(string(d.Source), `"c3"`) {
					w.call(http.MethodDelete, "/"+index+"/_doc/"+d.ID, "")
					break
				}
			}
		}
		if r := w.verify(Check{Level: L0}); r.Classes[missingOnNew] != 1 || fmt.Sprint(r.Bad) != "[c3]" || r.Old != 300 || r.New != 299 {
			w.Errorf("%+v", r)
		}
	})
}

// A repair must not undo what a live write does between its look and its write.
func TestRepairLosesAgainstALiveWrite(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		index := ""
		for _, i := range w.job().indices() {
			if _, _, found := w.es.Get(i, "d7"); found {
				index = i
			}
		}
		w.call(http.MethodDelete, "/"+index+"/_doc/d7", "")
		sleepFor(w, 20*time.Minute) // the delete's version is forgotten
		release := make(chan struct{})
		w.es.Inject(embedded.Rule{API: "bulk", Index: index, Next: 1, Fault: embedded.Fault{Hold: release}})
		report := make(chan *Report, 1)
		go func() { report <- w.verify(Check{Level: L1, Repair: true}) }()
		sleepFor(w, time.Second)
		w.log.put("d7", "c2", 42)
		stop := w.consume()
		sleepFor(w, time.Second)
		close(release)
		<-report
		stop()
		w.same()
	})
}

func TestCutoverNext(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		w.verify(Check{Level: L1})
		percent := func() int {
			table, err := w.tables.Load(w.Context(), stream)
			w.check(err)
			return table.Read.Percent
		}
		var steps []int
		for range 4 {
			_, err := w.m.Cutover(w.Context(), request(), Cut{Next: true, Bake: time.Hour})
			w.check(err)
			steps = append(steps, percent())
			_, err = w.m.Cutover(w.Context(), request(), Cut{Next: true, Bake: time.Hour})
			if len(steps) < 4 {
				w.refused(err, "is to bake for 1h0m0s")
			} else {
				w.refused(err, "sluice migrate complete --job j7")
			}
			sleepFor(w, time.Hour)
		}
		if !slices.Equal(steps, []int{100, 500, 2500, 10_000}) {
			w.Errorf("steps %v", steps)
		}
	})
}

// A plan measures by the customer's field where there is one, and by reading all
// documents where there is none; big customers get their own partition.
func TestPlan(t *testing.T) {
	inBubble(t, func(w *world) {
		var b strings.Builder
		for i := range 2000 {
			customer, size := "small"+fmt.Sprint(i%40), 20
			if i%2 == 0 {
				customer, size = "whale", 200
			}
			fmt.Fprintf(&b, `{"index":{"_index":%q,"_id":"%s:%d"}}`+"\n"+`{"customer":%q,"text":%q}`+"\n", source, customer, i, customer, strings.Repeat("x", size))
		}
		w.call(http.MethodPost, "/_bulk?refresh=true", b.String())
		layouts := map[string]string{}
		for _, from := range []string{"field:/customer", "id:^([^:]+):"} {
			p, err := w.m.Plan(w.Context(), Wish{Customer: from, Source: source, TargetShard: 100_000, Replicas: -1})
			w.check(err)
			if p.Docs != 2000 || p.Layout.Customers != 21 || p.Layout.Replicas != 0 {
				w.Errorf("%s: %d documents, %d customers, %d replicas", from, p.Docs, p.Layout.Customers, p.Layout.Replicas)
			}
			own := p.Layout.Overrides["whale"]
			if own == "" {
				w.Errorf("%s: the whale has no partition of its own: %v", from, p.Layout.Overrides)
			}
			for _, planned := range p.Layout.Partitions {
				if planned.Own == "whale" && planned.Bytes < p.Bytes*7/10 {
					w.Errorf("%s: the whale has %d of %d bytes", from, planned.Bytes, p.Bytes)
				}
			}
			layouts[from] = p.Layout.Hash
		}
		if layouts["field:/customer"] != layouts["id:^([^:]+):"] {
			w.Errorf("two ways to measure, two plans: %v", layouts)
		}
	})
}

func TestCreateRefusals(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(100, 5)
		good := w.plan(2)
		refused := func(say string, p Plan) {
			w.Helper()
			_, err := w.m.Create(w.Context(), request(), p)
			if err == nil || !strings.Contains(err.Error(), say) {
				w.Errorf("want a refusal that says %q: %v", say, err)
			}
			if _, err := w.m.store.load(w.Context(), jobName); err == nil {
				w.Errorf("%s: the job was made", say)
			}
		}
		edited := good
		edited.Docs = 1
		refused("changed by hand", edited)
		seal := func(edit func(*Plan)) Plan {
			p := good
			edit(&p)
			w.check(p.Seal())
			return p
		}
		refused("had 10 documents when the plan was made and has 100", seal(func(p *Plan) { p.Docs = 10 }))
		refused("is no index", seal(func(p *Plan) { p.Source = "other" }))
		refused("is for stream x", seal(func(p *Plan) { p.Stream = "x" }))
		w.call(http.MethodPut, "/events-p001-j7", "{}")
		refused("events-p001-j7 exists and does not carry the job's name", good)
		w.call(http.MethodDelete, "/events-p001-j7", "")
		w.call(http.MethodPut, "/events/_settings", `{"index.final_pipeline":"p"}`)
		refused("a second time", good)
		w.call(http.MethodPut, "/events/_settings", `{"index.final_pipeline":null}`)
		other := partition.New(stream, "elsewhere")
		w.check(w.tables.Create(w.Context(), other))
		refused("the legacy index of stream events is elsewhere", good)
	})
}

// The audit log has no gaps and finds its end whatever its length.
func TestEvents(t *testing.T) {
	inBubble(t, func(w *world) {
		for n := range 230 {
			w.check(w.m.store.record(w.Context(), jobName, Event{Verb: fmt.Sprint(n)}))
		}
		events, err := w.m.Events(w.Context(), jobName, 1)
		w.check(err)
		for n, e := range events {
			if e.Seq != n+1 || e.Verb != fmt.Sprint(n) {
				w.Fatalf("event %d is %+v", n+1, e)
			}
		}
		later, err := w.m.Events(w.Context(), jobName, 229)
		w.check(err)
		if len(events) != 230 || len(later) != 2 {
			w.Errorf("%d and %d events", len(events), len(later))
		}
	})
}
