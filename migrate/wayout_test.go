package migrate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

type act func(context.Context, *Manager) error

func pausing(ctx context.Context, m *Manager) error {
	_, err := m.Pause(ctx, request())
	return err
}

func resuming(applyMapping bool) act {
	return func(ctx context.Context, m *Manager) error {
		_, err := m.Resume(ctx, request(), applyMapping)
		return err
	}
}

func limiting(value string) act {
	return func(ctx context.Context, m *Manager) error {
		_, err := m.SetLimits(ctx, request(), map[string]string{"concurrency": value})
		return err
	}
}

func verifying(c Check) act {
	return func(ctx context.Context, m *Manager) error {
		_, _, err := m.Verify(ctx, request(), c, nil)
		return err
	}
}

func cutting(c Cut) act {
	return func(ctx context.Context, m *Manager) error {
		_, err := m.Cutover(ctx, request(), c)
		return err
	}
}

func rolling(customers ...string) act {
	return func(ctx context.Context, m *Manager) error {
		_, err := m.Rollback(ctx, request(), customers)
		return err
	}
}

// detour is a verb beside the road from PLANNED to DROPPED. A process that takes
// it is killed at each of its writes. From whatever is left the verb can be
// repeated, and it can be taken back.
type detour struct {
	name  string
	first act // what must have been done before; nil: nothing
	do    act
	back  act
	holds func(w *world) bool // once it is done
	gone  func(w *world) bool // once it is taken back
}

// take kills a process at each write of a detour.
func (w *world) take(d detour) {
	w.Helper()
	kills, way := 0, 0
	for _, after := range []bool{false, true} {
		for _, repeated := range []bool{false, true} {
			first := 1 + way%detourStride
			way++
			for n, finished := first, false; !finished; n += detourStride {
				if d.first != nil {
					w.check(d.first(w.Context(), w.m))
				}
				process, kill := context.WithCancel(w.Context())
				k := &killer{next: w.es.Transport(), after: after, left: n, killed: kill}
				err := d.do(process, w.manager("killed", k))
				kill()
				synctest.Wait() // its last request has ended
				if finished = !k.dead; finished {
					w.check(err)
				} else {
					kills++
				}
				at := fmt.Sprintf("%s, killed at write %d (%s), carried out %t", d.name, n, k.lastDid, after)
				status, err := w.m.Status(w.Context(), jobName)
				w.check(err)
				if !strings.HasPrefix(status.Next, "sluice migrate ") {
					w.Errorf("%s: the status names no way on but %q", at, status.Next)
				}
				if repeated {
					if err := d.do(w.Context(), w.m); err != nil {
						w.Fatalf("%s: repeated: %v", at, err)
					}
					if !d.holds(w) {
						w.Fatalf("%s: repeated, and not in force", at)
					}
				}
				if err := d.back(w.Context(), w.m); err != nil {
					w.Fatalf("%s: taken back: %v", at, err)
				}
				if !d.gone(w) {
					w.Fatalf("%s: taken back, and still in force", at)
				}
			}
		}
	}
	if kills < 8/detourStride { // each changes the job and the audit log
		w.Errorf("%s: killed %d times only", d.name, kills)
	}
}

func (w *world) table() *partition.Table {
	w.Helper()
	t, err := w.tables.Load(w.Context(), stream)
	w.check(err)
	return t.Table
}

// A process is killed at each write of a verb that changes a job on its way; the
// verb is repeated, or taken back, and in the end the job comes to its end.
func TestKilledOnDetoursOfACopy(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(60)
		stop := w.consume()
		running := func(w *world) bool { return w.job().Paused == "" }
		for _, d := range []detour{
			{"pause", nil, pausing, resuming(false), func(w *world) bool { return !running(w) }, running},
			{"resume", pausing, resuming(false), resuming(false), running, running},
			{
				"throttle", nil, limiting("3"), limiting("16"),
				func(w *world) bool { return w.job().Throttle.Concurrency == 3 }, func(w *world) bool { return w.job().Throttle.Concurrency == 16 },
			},
		} {
			w.take(d)
		}
		field := 0
		applied := func(w *world) bool {
			name := fmt.Sprintf(`"f%d"`, field)
			for _, index := range w.job().indices() {
				if !strings.Contains(string(w.call(http.MethodGet, "/"+index+"/_mapping", "")), name) {
					return false
				}
			}
			definitions, err := w.client.Definitions(w.Context(), source)
			w.check(err)
			hash, err := mappingHash(definitions[source].Mappings)
			w.check(err)
			return running(w) && hash == w.job().Mapping
		}
		w.take(detour{"resume with the mapping", func(ctx context.Context, m *Manager) error {
			field++
			w.call(http.MethodPut, "/"+source+"/_mapping", fmt.Sprintf(`{"properties":{"f%d":{"type":"keyword"}}}`, field))
			return pausing(ctx, m)
		}, resuming(true), resuming(true), applied, applied})
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.state(Synced)
		w.same()
	})
}

// The same of the verbs of a job that is SYNCED: which readers are where can
// always be taken back.
func TestKilledOnDetoursOfReaders(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(60)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.check(verifying(Check{Level: L1})(w.Context(), w.m))
		half, all := 50.0, 100.0
		read := func(is func(r partition.Read) bool) func(*world) bool {
			return func(w *world) bool {
				j, r := w.job(), w.table().Read
				return is(r) && (j.State == Cutover) == r.AnyNew() && (j.FullAt != nil) == r.AllNew()
			}
		}
		nobody := read(func(r partition.Read) bool { return !r.AnyNew() })
		back := rolling()
		for _, d := range []detour{
			{"cut over some", nil, cutting(Cut{Customers: []string{"c1", "c3"}}), back, read(func(r partition.Read) bool { return slices.Equal(r.Allow, []string{"c1", "c3"}) }), nobody},
			{"cut over half", nil, cutting(Cut{Percent: &half}), back, read(func(r partition.Read) bool { return r.Percent == 5000 }), nobody},
			{"cut over more", cutting(Cut{Customers: []string{"c1"}}), cutting(Cut{Percent: &half}), back, read(func(r partition.Read) bool { return r.Percent == 5000 && len(r.Allow) == 1 }), nobody},
			{"cut over fewer", cutting(Cut{All: true}), cutting(Cut{Percent: &half}), back, read(func(r partition.Read) bool { return r.Percent == 5000 }), nobody},
			{"cut over all", nil, cutting(Cut{All: true}), back, read(partition.Read.AllNew), nobody},
			{"roll some back", cutting(Cut{Percent: &all}), rolling("c1"), back, read(func(r partition.Read) bool { return slices.Equal(r.Deny, []string{"c1"}) }), nobody},
			{"cut some over again", func(ctx context.Context, m *Manager) error {
				return errors.Join(cutting(Cut{Percent: &all})(ctx, m), rolling("c1")(ctx, m))
			}, cutting(Cut{Customers: []string{"c1"}}), back, read(partition.Read.AllNew), nobody},
			{"roll all back", cutting(Cut{All: true}), rolling(), back, nobody, nobody},
		} {
			w.take(d)
		}
		// From anywhere in between the job can be given up.
		w.check(cancelling(w.Context(), w.m))
		stop()
		w.nothingLeft()
	})
}

// A verification, and a repair, that is killed at any write leaves nothing that
// a later one does not find; once something was repaired no older report lets a
// customer be cut over.
func TestKilledOnDetoursOfVerify(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(60)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		clean := func(w *world) bool { return w.job().Verified.Clean() && w.job().Verified.Stale == "" }
		check := verifying(Check{Level: L1})
		w.take(detour{"verify", nil, check, check, clean, clean})
		n, stale, before := 0, 0, ""
		// On the old side only, and its customer is marked.
		missing := func(ctx context.Context) error {
			n++
			w.call(http.MethodPut, fmt.Sprintf("/%s/_doc/missing%d?version=%d&version_type=external", source, n, epochs+1), `{"customer":"c1","n":1}`)
			err := w.control.Create(ctx, dirtyID(jobName, "c1"), map[string]string{"side": "new"})
			if errors.Is(err, elastic.ErrConflict) {
				err = nil
			}
			return err
		}
		mended := func(w *world) bool {
			dirty, err := w.m.store.dirty(w.Context(), jobName)
			w.check(err)
			_, there := w.shown(w.job().indices()...)[fmt.Sprintf("missing%d", n)]
			return there && len(dirty) == 0
		}
		repair := verifying(Check{Level: L1, Repair: true})
		w.take(detour{"repair", func(ctx context.Context, m *Manager) error {
			w.check(check(ctx, m))
			before = w.job().Verified.ID
			sleepFor(w, time.Second) // or the next would have the same
			return missing(ctx)
		}, repair, func(ctx context.Context, m *Manager) error {
			if _, there := w.shown(w.job().indices()...)[fmt.Sprintf("missing%d", n)]; there && w.job().Verified.ID == before {
				_, err := m.Cutover(ctx, request(), Cut{Customers: []string{"c2"}})
				w.refused(err, "is stale")
				stale++
			}
			return errors.Join(repair(ctx, m), check(ctx, m))
		}, mended, func(w *world) bool { return mended(w) && clean(w) }})
		if stale == 0 {
			w.Error("no repair was killed between what it mended and its report")
		}
		w.check(cutting(Cut{All: true})(w.Context(), w.m))
		w.check(rolling()(w.Context(), w.m))
		w.same()
		w.check(cancelling(w.Context(), w.m))
		stop()
		w.nothingLeft()
	})
}

// nothingLeft demands that a cancelled job has left nothing but what tells of it.
func (w *world) nothingLeft() {
	w.Helper()
	w.state(Cancelled)
	for _, index := range w.es.Indices() {
		if strings.HasPrefix(index, source+"-p") {
			w.Errorf("%s is left behind", index)
		}
	}
	w.kept("job", "plan", "event", "lease", "reports", "routing")
	t, err := w.tables.Load(w.Context(), stream)
	if errors.Is(err, partition.ErrNotFound) {
		return // create did not come so far
	}
	w.check(err)
	if t.Write != partition.W0 || t.Job != "" || t.Read.AnyNew() {
		w.Errorf("the routing table is left in %s, job %q, read %+v", t.Write, t.Job, t.Read)
	}
}

// kept demands that the control index holds documents of these kinds only.
func (w *world) kept(kinds ...string) {
	w.Helper()
	ids, err := w.control.List(w.Context(), "", true)
	w.check(err)
	for _, id := range ids {
		if kind, _, _ := strings.Cut(id, ":"); !slices.Contains(kinds, kind) {
			w.Errorf("the control document %s is left behind", id)
		}
	}
}

// escape leads out of whatever state a job is in: back to one index, or, where
// the new side alone is written already, on to its end.
func escape(way act, end State) func(context.Context, *Manager, Plan) (bool, error) {
	return func(ctx context.Context, m *Manager, p Plan) (bool, error) {
		j, err := m.store.load(ctx, jobName)
		if errors.Is(err, ErrNoJob) {
			return true, nil // it was killed before there was one
		}
		if err != nil {
			return false, err
		}
		switch j.State {
		case Cutover:
			table, err := m.table(ctx, j)
			if err != nil {
				return false, err
			}
			if table.Write == partition.W3 {
				return forward(ctx, m, p)
			}
			return false, rolling()(ctx, m)
		case Completed, Dropped:
			return forward(ctx, m, p)
		case Planned:
			if end == Created && j.Round == 1 {
				return forward(ctx, m, p) // detach needs what create has not made yet
			}
		case end:
			if end == Cancelled || j.Round > 1 {
				return true, nil
			}
		}
		return false, way(ctx, m)
	}
}

// Whatever was written last before a process was killed, there is a way out:
// after a roll-back, where readers were on the new side, cancel and detach. The
// old index is left as if there had been no job. What was written up to one write
// and what up to before the next is the same, so each way is tried at all of them.
func TestWayOutAfterEachWrite(t *testing.T) {
	for _, c := range []struct {
		name  string
		way   act
		end   State
		after bool
	}{
		{"cancel", cancelling, Cancelled, false},
		{"detach", detaching, Created, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			finished := false
			for n := 1; !finished && !t.Failed(); n += stride {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					inBubble(t, func(w *world) { finished = w.leaveAt(n, c.after, c.way, c.end) })
				})
			}
		})
	}
}

// leaveAt says whether the first process came to the end before its n-th write.
func (w *world) leaveAt(n int, after bool, way act, end State) bool {
	w.seed(60, 5)
	finished, k := w.killedWalk(n, after, 4, forward, escape(way, end))
	if w.Failed() {
		return finished
	}
	where := []string{source}
	j, err := w.m.store.load(w.Context(), jobName)
	switch {
	case errors.Is(err, ErrNoJob):
	case err != nil:
		w.Error(err)
	case j.State == Dropped:
		where = j.indices()
		if job := w.table().Job; job != "" {
			w.Errorf("killed at %s: the stream still belongs to job %s", k.lastDid, job)
		}
		w.kept("job", "plan", "event", "lease", "reports", "routing", "item")
	case j.State != end:
		w.Errorf("killed at %s: the job is %s", k.lastDid, j.State)
	case end == Cancelled:
		w.nothingLeft()
	default:
		w.kept("job", "plan", "event", "lease", "reports", "routing")
		for _, index := range w.es.Indices() {
			if strings.HasPrefix(index, source+"-p") && !strings.Contains(index, "-r2") {
				w.Errorf("killed at %s: %s is left behind", k.lastDid, index)
			}
		}
	}
	if have, fold := w.shown(where...), w.fold(); !sameDocs(have, fold) {
		w.Errorf("killed at %s: the end is not the fold of the log: %d documents, want %d", k.lastDid, len(have), len(fold))
	}
	return finished
}
