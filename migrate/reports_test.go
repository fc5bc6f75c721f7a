package migrate

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// The last few reports are kept, those of one customer too, and outlive the job.
func TestReportsAreKept(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(50)
		reports := func() []*Report {
			all, err := w.m.Reports(w.Context(), jobName)
			w.check(err)
			return all
		}
		if n := len(reports()); n != 0 {
			w.Errorf("%d reports before the first verification", n)
		}
		var ids []string
		for i := range mostReports + 2 {
			check := Check{Level: L1}
			if i == mostReports+1 {
				check.Customer = "c3"
			}
			ids = append([]string{w.verify(check).ID}, ids...)
			sleepFor(w, time.Second)
		}
		_, err := w.m.store.change(w.Context(), jobName, func(j *Job) error { j.Verified.Stale = "for a test"; return nil })
		w.check(err)
		all := reports()
		if len(all) != mostReports {
			w.Fatalf("%d reports, want %d", len(all), mostReports)
		}
		for i, r := range all {
			if r.ID != ids[i] {
				w.Errorf("report %d is %s, want %s", i, r.ID, ids[i])
			}
		}
		if all[0].Only != "c3" || all[0].Stale != "" || all[1].Stale != "for a test" {
			w.Errorf("%+v, %+v", all[0], all[1])
		}
		stop := w.consume()
		w.check(cancelling(w.Context(), w.m))
		stop()
		if n := len(reports()); n != mostReports {
			w.Errorf("%d reports are left of a cancelled job", n)
		}
	})
}

// otherContent changes a document of the new side at its version.
func (w *world) otherContent(id, customer string) {
	w.Helper()
	table, err := w.tables.Load(w.Context(), stream)
	w.check(err)
	index := partition.NewRouter(table.Table, partition.CacheOptions{}).Route([]byte(customer)).New
	_, version, found := w.es.Get(index, id)
	if !found {
		w.Fatalf("%s is not in %s", id, index)
	}
	w.call(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version=%d&version_type=external_gte", index, id, version), fmt.Sprintf(`{"customer":%q,"n":77777}`, customer))
}

// The default level compares all contents of those who are cut over next, not
// only those of a hundredth.
func TestVerifyComparesWhoIsCutOverNext(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		if r := w.verify(Check{Level: L2}); !r.Clean() || r.Ahead != 100 {
			w.Fatalf("%+v", r)
		}
		w.otherContent("d8", "c3")
		if xxhash.Sum64String("d8") <= firstShare {
			w.Fatal("it is in the hundredth: choose another")
		}
		if r := w.verify(Check{Level: L2}); fmt.Sprint(reported(r)) != "[d8]" || r.Classes[contentDiffers] != 1 {
			w.Errorf("%+v", r)
		}
	})
}

// A sample that may not hold all takes those first who are next, after those who
// are cut over already.
func TestSampleTakesWhoIsNext(t *testing.T) {
	of := func(_, _ string, source []byte) ([]byte, bool) { return source, true }
	const customers, most, cut = 2000, 400, 500
	v := &verification{job: &Job{Name: "j7"}, by: Customers{of: of}, cut: cut, customers: map[string]bool{}}
	v.Manager = &Manager{}
	p := &partSum{part: part{Index: "new"}}
	p.restart(v.cut)
	for i := range 5 * customers {
		hit := elastic.Hit{Index: "new", ID: fmt.Sprint(i), Source: fmt.Appendf(nil, "c%d", i%customers)}
		if err := v.sumUp(p, &hit, most); err != nil {
			t.Fatal(err)
		}
	}
	end := p.reaches(cut)
	if len(p.Sample) > most || len(p.Sample) < most/4 || end <= cut || end > partition.Percent/2 {
		t.Fatalf("%d documents, all of the customers from %d to %d", len(p.Sample), cut, end)
	}
	others := 0
	for i := range 5 * customers {
		customer := fmt.Sprintf("c%d", i%customers)
		rank := partition.Rank(customer, "j7")
		_, sampled := p.Sample[fmt.Sprint(i)]
		switch next := rank >= cut && rank < end; {
		case next && !sampled:
			t.Errorf("%s is next (%d) and its document %d is not compared", customer, rank, i)
		case !next && sampled:
			others++
		}
	}
	if others < 20 {
		t.Errorf("%d documents of others: nothing is left to chance", others)
	}
	for at, want := range map[int]int{0: 0, cut - 1: cut - 1, cut: end, cut + 1: end, end: end, end + 1: end + 1} {
		if got := p.reaches(at); got != want {
			t.Errorf("once %d are cut over it reaches %d, want %d", at, got, want)
		}
	}
}

// A verification says how long it needs, and what it does when it does not read.
func TestVerifyShowsItsETA(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(3000)
		w.m.partNumbers = 10
		_, err := w.m.SetLimits(w.Context(), request(), map[string]string{"concurrency": "1"})
		w.check(err)
		slow := w.es.Inject(embedded.Rule{API: "search", Fault: embedded.Fault{Delay: time.Second}})
		w.log.lag = Lag{Records: 12, Seconds: 1.5}
		began := time.Now()
		wait := w.verifyAside(Check{Level: L1})
		sleepFor(w, 45*time.Second)
		status, err := w.m.Status(w.Context(), jobName)
		w.check(err)
		told := time.Since(began)
		for _, want := range []string{"verifying ", " eta ", " lag 1.5s conc 1/1"} {
			if line := status.Line(); !strings.Contains(line, want) {
				w.Errorf("%q does not say %q", line, want)
			}
		}
		if r, err := wait(); err != nil || !r.Clean() {
			w.Errorf("%+v, %v", r, err)
		}
		// It counts the last page and what comes after the reading only roughly, and the
		// two sides are not read at one speed.
		if left := (time.Since(began) - told).Seconds(); status.ETA < left/3 || status.ETA > 3*left {
			w.Errorf("it said that it needs %.0f s more and needed %.0f s", status.ETA, left)
		}
		slow.Remove()

		w.log.lag = Lag{}
		w.otherContent("d8", "c3")
		slow = w.es.Inject(embedded.Rule{Fault: embedded.Fault{Delay: 15 * time.Second}, Match: func(r *embedded.Request) bool {
			return strings.HasSuffix(r.Path, "_mget") && strings.Contains(string(r.Body), `"d8"`)
		}})
		wait = w.verifyAside(Check{Level: L2})
		sleepFor(w, 10*time.Second)
		status, err = w.m.Status(w.Context(), jobName)
		w.check(err)
		if line := status.Line(); !strings.Contains(line, "documents one by one)") {
			w.Errorf("%q does not say what it does", line)
		}
		if _, err := wait(); err != nil {
			w.Error(err)
		}
		slow.Remove()
	})
}

// What a copy does is shown from its first second on, not with the next renewal
// of its lease.
func TestStatusOfACopyThatBegins(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(300)
		w.m.Period = 30 * time.Second
		stop := w.consume()
		defer stop()
		w.log.lag = Lag{Records: 12, Seconds: 1.5}
		slow := w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Fault: embedded.Fault{Delay: 2 * time.Second}})
		defer slow.Remove()
		done := make(chan error, 1)
		go func() { done <- w.m.Work(w.Context(), jobName, nil) }()
		for deadline := time.Now().Add(time.Minute); ; sleepFor(w, 100*time.Millisecond) {
			status, err := w.m.Status(w.Context(), jobName)
			w.check(err)
			if time.Now().After(deadline) {
				w.Fatalf("no copy begins: %s", status.Line())
			}
			if status.State != Backfilling {
				continue
			}
			sleepFor(w, time.Second)
			status, err = w.m.Status(w.Context(), jobName)
			w.check(err)
			if line := status.Line(); !strings.Contains(line, "lag 1.5s conc 4/16") {
				w.Errorf("after a second: %q", line)
			}
			break
		}
		w.check(<-done)
	})
}
