package indexer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Targets that are not used any more are forgotten, here and in the metrics,
// whose totals stay. However many there are, few have series of their own.
func TestIdleTargetsAreForgotten(t *testing.T) {
	for _, targets := range []int{1000, 100_000} {
		if testing.Short() && targets > 1000 {
			continue
		}
		t.Run(fmt.Sprint(targets), func(t *testing.T) {
			rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
				const round = 1000
				most, seq := 0, uint64(0)
				for first := 0; first < targets; first += round {
					for n := range round {
						a := index(rec, seq, fmt.Sprint("t", first+n), "1", `{}`)
						a.Ordered = n%2 == 0
						add(t, w, a)
						seq++
					}
					w.Publish()
					pass(30 * time.Second)
					waitFor(t, x, rec, int(seq))
					most = max(most, len(x.targets))
				}
				// A minute until the writer closes one, and those that it is quiet for.
				if bound := round * (2 + 2*(1+quietSweeps)); most > bound {
					t.Errorf("%d targets at once, want at most %d", most, bound)
				}
				if n := series(t, x); n > mostLabels+1 {
					t.Errorf("%d series", n)
				}
				for range quietSweeps + 2 {
					add(t, w, index(rec, seq, "kept", fmt.Sprint(seq), `{}`))
					seq++
					w.Publish()
					pass(sweepEvery + time.Second)
				}
				waitFor(t, x, rec, int(seq))
				if len(x.targets) != 1 || len(w.targets) != 1 || x.targets["kept"] == nil {
					t.Errorf("%d targets are left, the writer has %d", len(x.targets), len(w.targets))
				}
				if n := series(t, x); n > 2 {
					t.Errorf("%d series are left", n)
				}
				if got := total(t, x); got != float64(seq) {
					t.Errorf("%v documents counted, %d were written", got, seq)
				}
				// One that comes back is as good as new.
				add(t, w, index(rec, seq, "t1", "2", `{}`))
				w.Publish()
				waitFor(t, x, rec, int(seq)+1)
			})
		})
	}
}

// A writer that is closed keeps no target; and while many writers come and go, a
// target is not forgotten sooner.
func TestClosedWriterKeepsNothing(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		other := x.NewWriter()
		add(t, other, index(rec, 0, "a", "1", `{}`))
		other.Close()
		waitFor(t, x, rec, 1)
		for range 3 * quietSweeps {
			x.NewWriter().Close()
		}
		if x.targets["a"] == nil || x.targets["a"].writers != 0 {
			t.Errorf("%+v", x.targets["a"])
		}
		for seq := range uint64(quietSweeps + 2) {
			add(t, w, index(rec, seq+1, "kept", fmt.Sprint(seq), `{}`))
			w.Publish()
			pass(sweepEvery + time.Second)
		}
		waitFor(t, x, rec, quietSweeps+3)
		if x.targets["a"] != nil {
			t.Error("the target is kept for ever")
		}
	})
}

// A target with something on its way, or that is held, is never forgotten: a
// second one of its name would overtake the first.
func TestBusyTargetsAreKept(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		silent := true
		s.fail = func(*request) error {
			if silent {
				return errReset
			}
			return nil
		}
		a := index(rec, 0, "a", "1", `{}`)
		a.Ordered = false
		add(t, w, a)
		add(t, w, index(rec, 1, "b", "1", `{}`))
		w.Publish()
		ta, tb := x.targets["a"], x.targets["b"]
		for range 3 * quietSweeps {
			pass(sweepEvery)
			w.Publish()
		}
		if x.targets["a"] != ta || x.targets["b"] != tb || len(w.targets) != 0 {
			t.Error("a target was forgotten while its action was on the way")
		}
		locked(&s.mu, func() any { silent = false; return nil })
		waitFor(t, x, rec, 2)
	})
}

// A target is not closed while an action of it waits for room: a second one of
// its name, with chunks of its own, would overtake the first.
func TestWaitingForRoomKeepsTheTarget(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		add(t, w, index(rec, 0, "a", "id", `{"v":0}`))
		w.Publish()
		waitFor(t, x, rec, 1)
		for range 2 {
			pass(sweepEvery - time.Second) // unused, as far as the first sweep saw
			w.Publish()
		}
		pass(sweepEvery)
		x.mu.Lock()
		x.room = make(chan struct{})
		x.mu.Unlock()
		time.AfterFunc(time.Second, func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.checkRoom()
		})
		w.targets["a"].t.wanted.Store(1)
		pad := strings.Repeat("x", chunkSizes[len(chunkSizes)-1]/2) // two need two chunks
		add(t, w, index(rec, 1, "a", "id", `{"v":1}`))
		add(t, w, index(rec, 2, "a", "id", fmt.Sprintf(`{"v":2,"pad":%q}`, pad)))
		add(t, w, index(rec, 3, "a", "other", fmt.Sprintf(`{"pad":%q}`, pad)))
		w.Publish()
		waitFor(t, x, rec, 4)
		if got := s.docs["a/id"]; !strings.HasPrefix(got, `{"v":2`) {
			t.Errorf("holds %.20s, the action before the last", got)
		}
	})
}

// series counts the targets in sluice_documents_total.
func series(t *testing.T, x *Indexer) int { n, _ := gather(t, x); return n }

// total sums sluice_documents_total up.
func total(t *testing.T, x *Indexer) float64 { _, sum := gather(t, x); return sum }

func gather(t *testing.T, x *Indexer) (series int, sum float64) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(x.metrics.documents)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			series++
			sum += m.Counter.GetValue()
		}
	}
	return series, sum
}
