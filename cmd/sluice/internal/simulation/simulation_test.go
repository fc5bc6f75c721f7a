//go:build synctests

package simulation

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// totals are what all scenarios of a run add up to.
type totals struct {
	mu                                        sync.Mutex
	scenarios, records, rebalances, violation int
	parking, parked                           int // scenarios in which records were parked, and how many
	commits, checks                           int64
	virtual                                   time.Duration
	windows, hits                             map[string]int
}

func (t *totals) add(w *world) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scenarios++
	t.records += w.s.records
	t.rebalances += w.rebalances
	if w.parkedRecords > 0 {
		t.parking++
	}
	t.parked += w.parkedRecords
	t.commits += w.commits.Load()
	t.checks += w.checks.Load()
	t.virtual += w.took
	t.violation += len(w.problems)
	for _, s := range w.s.steps {
		if s.kind != books {
			t.windows[s.kind]++
		}
	}
	for kind, n := range w.hits {
		t.hits[kind] += n
	}
}

func (t *totals) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "totals: %d scenarios, %d records, %d rebalances seen by members, %.1f virtual hours\n", t.scenarios, t.records, t.rebalances, t.virtual.Hours())
	fmt.Fprintf(&b, "totals: %d records parked, in %d scenarios\n", t.parked, t.parking)
	fmt.Fprintf(&b, "totals: %d commits of partitions checked against what is stored, %d records looked up\n", t.commits, t.checks)
	fmt.Fprintf(&b, "totals: what happened (planned, met):")
	for _, kind := range slices.Sorted(maps.Keys(t.windows)) {
		fmt.Fprintf(&b, " %s (%d, %d)", kind, t.windows[kind], t.hits[kind])
	}
	fmt.Fprintf(&b, "\ntotals: %d violations", t.violation)
	return b.String()
}

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, text)
	}
	return n
}

const (
	// few is how many scenarios an ordinary `go test` runs.
	few = 20
	// again is how often a seed is run that is named: schedules differ.
	again = 200
	// enough failures end a run.
	enough = 3
	// workers is how many scenarios run at once.
	workers = 2
)

// TestSimulation runs the scenarios of the seeds from SLUICE_SIMULATION_FROM
// (1) on, SLUICE_SIMULATIONS of them, or SLUICE_SIMULATION_SEED alone, again
// and again.
func TestSimulation(t *testing.T) {
	n := number(t, "SLUICE_SIMULATIONS", few)
	seed := number(t, "SLUICE_SIMULATION_SEED", 0)
	from := number(t, "SLUICE_SIMULATION_FROM", 1)
	next := func(i uint64) uint64 { return from + i }
	if seed != 0 {
		n = number(t, "SLUICE_SIMULATIONS", again)
		next = func(uint64) uint64 { return seed }
	}
	var begun, failed atomic.Uint64
	t.Run("seeds", func(t *testing.T) {
		for worker := range workers {
			t.Run(fmt.Sprintf("worker %d", worker), func(t *testing.T) {
				t.Parallel()
				for i := begun.Add(1) - 1; i < n && failed.Load() < enough; i = begun.Add(1) - 1 {
					w := simulate(t, derive(next(i)))
					all.add(w)
					if len(w.problems) > 0 {
						failed.Add(1)
						t.Errorf("%s\n%s\nreplay with: make simulate SEED=%d\nlast log lines:\n%s",
							w.s, strings.Join(w.problems, "\n"), w.s.seed, w.log.tail(int(number(t, "SLUICE_SIMULATION_LOG", 40))))
					}
				}
			})
		}
	})
}

// all is what TestMain prints at the end, where `make` looks for it.
var all = &totals{windows: map[string]int{}, hits: map[string]int{}}

func TestMain(m *testing.M) {
	debug.SetGCPercent(200) // the worlds are small and short-lived
	code := m.Run()
	if all.scenarios > 0 {
		fmt.Println(all)
	}
	os.Exit(code)
}

// stacks returns what the goroutines of bubbles do.
func stacks() string {
	text := make([]byte, 4<<20)
	var b strings.Builder
	for stack := range strings.SplitSeq(string(text[:runtime.Stack(text, true)]), "\n\n") {
		if head, _, _ := strings.Cut(stack, "\n"); strings.Contains(head, "synctest bubble") {
			b.WriteString(stack + "\n\n")
		}
	}
	return b.String()
}

// simulate runs a scenario in a bubble, which ends only when no goroutine is
// left.
func simulate(t *testing.T, s *scenario) (w *world) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			if w == nil {
				w = &world{s: s, log: &logbook{}}
			}
			w.problems = append(w.problems, fmt.Sprint(p), stacks())
		}
	}()
	synctest.Test(t, func(*testing.T) { w = run(s) })
	return w
}
