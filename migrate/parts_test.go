package migrate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// differing are the ids that the sides show differently, or at other versions.
func (w *world) differing() []string {
	j := w.job()
	old, renewed := w.shown(j.Source), w.shown(j.indices()...)
	ids := map[string]bool{}
	for id := range old {
		if renewed[id] != old[id] {
			ids[id] = true
		}
	}
	for id := range renewed {
		if renewed[id] != old[id] {
			ids[id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// reported are the ids that a report names: no class has more samples than it
// keeps in these tests.
func reported(r *Report) []string {
	var ids []string
	for _, samples := range r.Samples {
		for _, sample := range samples {
			_, id, _ := strings.Cut(sample, "/")
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// disturb writes to one side what no record has written, or takes something
// away.
func (w *world) disturb(r *rand.Rand, full bool) {
	table, err := w.tables.Load(w.Context(), stream)
	w.check(err)
	router := partition.NewRouter(table.Table, partition.CacheOptions{})
	i := r.IntN(300)
	id, customer := fmt.Sprintf("d%d", i), fmt.Sprintf("c%d", i%5)
	index := source
	if r.IntN(2) == 0 {
		index = router.Route([]byte(customer)).New
	}
	version := epochs + r.Int64N(1<<40)
	switch kind := r.IntN(5); {
	case kind < 3:
		w.try(http.MethodDelete, "/"+index+"/_doc/"+id, "")
	case kind == 3 && full: // other contents at the version that is there
		if _, v, ok := w.es.Get(index, id); ok {
			version = v
		}
		fallthrough
	default:
		w.try(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version=%d&version_type=external_gte", index, id, version), fmt.Sprintf(`{"customer":%q,"n":%d}`, customer, r.IntN(1000)))
	}
}

// Whatever happens between two verifications, and wherever the one before was
// killed: what a report names is what differs, although most is not read again.
func TestVerifyFindsWhatHasChanged(t *testing.T) {
	for seed := range uint64(verifySeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 17))
				w.synced(300)
				w.m.partNumbers = 10
				check := Check{Level: L1}
				if seed%2 == 1 {
					check = Check{Level: L2, Full: true}
				}
				reused, killed := 0, 0
				const rounds = 15
				for range rounds {
					switch r.IntN(4) {
					case 0:
						for range r.IntN(3) {
							i := r.IntN(300)
							w.log.put(fmt.Sprintf("d%d", i), fmt.Sprintf("c%d", i%5), r.IntN(1000))
						}
					case 1:
						w.log.remove(fmt.Sprintf("d%d", r.IntN(300)), "c1")
					case 2:
						for range r.IntN(4) {
							w.disturb(r, check.Full)
						}
					}
					w.log.adopt()
					w.log.deliver()
					if r.IntN(3) > 0 {
						process, kill := context.WithCancel(w.Context())
						k := &killer{next: w.es.Transport(), after: r.IntN(2) == 0, left: 1 + r.IntN(12), killed: kill}
						m := w.manager("first", k)
						m.partNumbers = w.m.partNumbers
						if _, _, err := m.Verify(process, request(), check, nil); err != nil {
							killed++
						}
						kill()
						synctest.Wait() // its last request has ended, or another run could meet it
						w.disturb(r, check.Full)
					}
					want := w.differing()
					report := w.verify(check)
					if got := reported(report); !slices.Equal(got, want) {
						w.Fatalf("reported %v, and %v differ: %+v", got, want, report)
					}
					if report.Reused > 0 {
						reused++
					}
					if len(want) > 4 {
						report := w.verify(Check{Level: check.Level, Full: check.Full, Repair: true, Authority: "old"})
						if report.Reused == 0 {
							w.Errorf("all was read again for a repair: %+v", report)
						}
						sleepFor(w, leastGC+time.Minute)
						w.verify(Check{Level: check.Level, Full: check.Full, Repair: true, Authority: "old"})
						if left := w.differing(); len(left) > 0 {
							w.Fatalf("%v differ after the repair", left)
						}
					}
				}
				if reused < 8 || killed < 1 {
					w.Errorf("%d of %d verifications had something to go on from, %d were killed", reused, rounds, killed)
				}
			})
		})
	}
}

// One delete on each side: no count differs, no document is new. Only what was
// read again tells.
func TestVerifyFindsADeleteOnEachSide(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		w.m.partNumbers = 10
		if r := w.verify(Check{Level: L1}); !r.Clean() || r.Reused != 0 {
			w.Fatalf("%+v", r)
		}
		index := ""
		for _, i := range w.job().indices() {
			if _, _, found := w.es.Get(i, "d7"); found {
				index = i
			}
		}
		w.call(http.MethodDelete, "/"+index+"/_doc/d7", "")
		w.call(http.MethodDelete, "/"+source+"/_doc/d12", "") // of the same customer
		if r := w.verify(Check{Level: L1}); fmt.Sprint(reported(r)) != "[d12 d7]" || r.Reused < 400 {
			w.Errorf("%+v", r)
		}
	})
}

// A second run asks for counts, and reads nothing where nothing has changed; one
// that was killed goes on where it was.
func TestVerifyGoesOn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(2000)
		w.m.partNumbers = 200
		count := func(counted *int, kill func(), at int) *embedded.Injection {
			return w.es.Inject(embedded.Rule{API: "search", Index: "events*", Fault: embedded.Fault{Delay: 300 * time.Millisecond}, Match: func(q *embedded.Request) bool {
				if strings.Contains(string(q.Body), `"size":0`) {
					return false
				}
				if *counted++; *counted == at {
					kill()
				}
				return true
			}})
		}
		var pages, again, third int
		process, kill := context.WithCancel(w.Context())
		first := count(&pages, kill, 12)
		if _, _, err := w.m.Verify(process, request(), Check{Level: L1}, nil); !errors.Is(err, context.Canceled) {
			w.Fatalf("it was not killed: %v", err)
		}
		first.Remove()
		second := count(&again, nil, -1)
		r := w.verify(Check{Level: L1})
		second.Remove()
		if !r.Clean() || r.Old != 2000 || r.New != 2000 || r.Reused < 800 {
			w.Errorf("%+v", r)
		}
		last := count(&third, nil, -1)
		if r := w.verify(Check{Level: L2}); !r.Clean() || r.Reused != 4000 || r.Sampled == 0 || r.Customers != 5 {
			w.Errorf("%+v", r)
		}
		last.Remove()
		if third != 0 {
			w.Errorf("%d pages were read of what had not changed (%d and %d before)", third, pages, again)
		}
		// With other contents in the sums all is read.
		if r := w.verify(Check{Level: L2, Full: true}); !r.Clean() || r.Reused != 0 {
			w.Errorf("%+v", r)
		}
	})
}

// Of two verifications at once one ends, and says why.
func TestVerifyTwiceAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(500)
		slow := w.es.Inject(embedded.Rule{API: "search", Fault: embedded.Fault{Delay: 200 * time.Millisecond}})
		ends := make(chan error, 2)
		for n := range 2 {
			go func() {
				_, _, err := w.manager(fmt.Sprint(n), nil).Verify(w.Context(), request(), Check{Level: L1}, nil)
				ends <- err
			}()
		}
		for range 2 {
			if err := <-ends; err != nil && !errors.Is(err, errOtherVerify) {
				w.Error(err)
			}
		}
		slow.Remove()
		if r := w.verify(Check{Level: L1}); !r.Clean() || r.Old != 500 {
			w.Errorf("%+v", r)
		}
	})
}
