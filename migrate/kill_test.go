package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// killer is the way of a process to the cluster until the process is killed: at
// a certain write, before it is carried out or before its answer is read.
type killer struct {
	next    http.RoundTripper
	after   bool // the write is carried out
	killed  context.CancelFunc
	mu      sync.Mutex
	left    int
	dead    bool
	lastDid string
}

var errKilled = errors.New("killed")

func (k *killer) RoundTrip(req *http.Request) (*http.Response, error) {
	k.mu.Lock()
	if k.dead {
		k.mu.Unlock()
		return nil, errKilled
	}
	if isWrite(req) {
		if k.left--; k.left == 0 {
			k.dead = true
			k.lastDid = req.Method + " " + req.URL.Path
		}
	}
	dead := k.dead
	k.mu.Unlock()
	if !dead {
		return k.next.RoundTrip(req)
	}
	if k.after {
		if resp, err := k.next.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	}
	k.killed()
	return nil, errKilled
}

func isWrite(req *http.Request) bool {
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return false
	}
	for _, read := range []string{"_search", "_mget", "_refresh", "_count"} {
		if strings.HasSuffix(req.URL.Path, read) {
			return false
		}
	}
	return true
}

// forward does the next thing that leads to DROPPED, by the job's state only.
func forward(ctx context.Context, m *Manager, p Plan) (over bool, err error) {
	j, err := m.store.load(ctx, jobName)
	if errors.Is(err, ErrNoJob) {
		_, err = m.Create(ctx, request(), p)
		return false, err
	}
	if err != nil {
		return false, err
	}
	switch j.State {
	case Planned:
		_, err = m.Create(ctx, request(), p)
	case Created:
		if w := m.Group.(*journal).w; w.fromLog && j.from() != FromKafka { //nolint:forcetypeassert // it is, in all tests
			_, err = m.Source(ctx, request(), FromKafka)
			break
		}
		_, err = m.DualWrite(ctx, request())
	case Dual, Backfilling, Draining, Sweeping:
		err = m.Work(ctx, jobName, nil)
	case Synced:
		if j.Verified == nil {
			_, _, err = m.Verify(ctx, request(), Check{Level: L2}, nil)
		} else {
			_, err = m.Cutover(ctx, request(), Cut{All: true})
		}
	case Cutover:
		switch {
		case j.FullAt == nil:
			_, err = m.Cutover(ctx, request(), Cut{All: true})
		case j.Verified.At.Before(*j.FullAt):
			_, _, err = m.Verify(ctx, request(), Check{Level: L1}, nil)
		default:
			_, err = m.Complete(ctx, request(), 0, 0)
		}
	case Completed:
		_, err = m.Drop(ctx, request(), source, true)
	case Dropped:
		return true, nil
	default:
		return false, fmt.Errorf("no way on from %s", j.State)
	}
	return false, err
}

// backward returns a way that leads into a state and then back, by one verb.
func backward(turn State, verb func(context.Context, *Manager) error, end State) func(context.Context, *Manager, Plan) (bool, error) {
	return func(ctx context.Context, m *Manager, p Plan) (bool, error) {
		j, err := m.store.load(ctx, jobName)
		if err != nil && !errors.Is(err, ErrNoJob) {
			return false, err
		}
		turned := err == nil && (j.State == turn || j.State == Cancelling || j.State == Detaching || j.State == Planned && j.Round > 1)
		switch {
		case err == nil && j.State == end && (end != Created || j.Round > 1):
			return true, nil
		case turned:
			return false, verb(ctx, m)
		}
		return forward(ctx, m, p)
	}
}

func cancelling(ctx context.Context, m *Manager) error {
	_, err := m.Cancel(ctx, request(), nil)
	return err
}

func detaching(ctx context.Context, m *Manager) error {
	_, err := m.Detach(ctx, request(), nil)
	return err
}

// A process is killed at its first write, its second, and so on, before or after
// the write is carried out; another one goes on by what it finds. The end must be
// the one that nobody was killed on the way to.
func TestKilledAtEachWrite(t *testing.T) {
	for _, c := range []struct {
		name    string
		step    func(context.Context, *Manager, Plan) (bool, error)
		end     State
		fromLog bool
	}{
		{"forward", forward, Dropped, false},
		{"forward from the log", forward, Dropped, true},
		{"cancel when synced", backward(Synced, cancelling, Cancelled), Cancelled, false},
		{"cancel when created", backward(Created, cancelling, Cancelled), Cancelled, false},
		{"detach when dual", backward(Dual, detaching, Created), Created, false},
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/carried out %t", c.name, after), func(t *testing.T) {
				t.Parallel()
				finished := false
				for n := 1; !finished && !t.Failed(); n += stride {
					t.Run(fmt.Sprint(n), func(t *testing.T) {
						inBubble(t, func(w *world) {
							w.fromLog = c.fromLog
							finished = w.killAt(n, after, c.step, c.end)
						})
					})
				}
			})
		}
	}
}

// killedWalk lets a process walk beside live records, kills it at its n-th write,
// and lets another one go on in the second way. It says whether the first came to
// its end before, and what killed it. All records have arrived when it returns.
func (w *world) killedWalk(n int, after bool, seed uint64, first, second func(context.Context, *Manager, Plan) (bool, error)) (finished bool, k *killer) {
	p := w.plan(2)
	live, stop := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.log.run(live, rand.New(rand.NewPCG(uint64(n), seed)), 5, 100)
	}()
	process, kill := context.WithCancel(w.Context())
	defer kill()
	k = &killer{next: w.es.Transport(), after: after, left: n, killed: kill}
	finished = w.walk(process, w.manager("first", k), p, first) == nil
	synctest.Wait() // its last request has ended
	if !finished {
		if err := w.walk(w.Context(), w.m, p, second); err != nil {
			w.Errorf("killed at %s: %v", k.lastDid, err)
		}
	}
	stop()
	<-done
	w.log.adopt()
	w.log.deliver()
	return finished, k
}

// killAt says whether the first process came to the end before its n-th write.
func (w *world) killAt(n int, after bool, step func(context.Context, *Manager, Plan) (bool, error), end State) bool {
	if w.fromLog {
		w.fill(60, 5)
	} else {
		w.seed(60, 5)
	}
	finished, k := w.killedWalk(n, after, 3, step, step)
	j := w.job()
	if j.State != end {
		w.Errorf("killed at %s: the job is %s", k.lastDid, j.State)
	}
	fold := w.fold()
	var indices []string
	switch end {
	case Dropped:
		indices = j.indices()
		if w.tombstonesLeft() != 0 {
			w.Errorf("killed at %s: tombstones are left", k.lastDid)
		}
	default:
		indices = []string{source}
	}
	if have := w.shown(indices...); !sameDocs(have, fold) {
		w.Errorf("killed at %s: the end is not the fold of the log: %d documents, want %d", k.lastDid, len(have), len(fold))
	}
	for _, index := range w.es.Indices() {
		ours := strings.HasPrefix(index, source+"-p")
		if ours && (end == Cancelled || end == Created && !strings.Contains(index, "-r2")) {
			w.Errorf("killed at %s: %s is left behind", k.lastDid, index)
		}
	}
	return finished
}

// walk takes steps until the end, or an error; what passes by itself is awaited.
func (w *world) walk(ctx context.Context, m *Manager, p Plan, step func(context.Context, *Manager, Plan) (bool, error)) error {
	for range 200 {
		over, err := step(ctx, m, p)
		var refused *RefusedError
		if ctx.Err() != nil {
			return errKilled
		}
		if errors.As(err, &refused) && refused.Later {
			err = nil
		}
		if over || err != nil {
			return err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the job does not come to its end")
}

// fold is what an index must show: the legacy documents, and the log over them.
func (w *world) fold() map[string]stored {
	docs := map[string]stored{}
	for i := range 60 {
		if w.fromLog {
			break
		}
		docs[fmt.Sprintf("d%d", i)] = stored{1, fmt.Sprintf(`{"customer":"c%d","n":%d}`, i%5, -i)}
	}
	for p := range w.log.entries {
		for at, e := range w.log.entries[p][:w.log.committed[p].offset] {
			if delete(docs, e.id); !e.deleted {
				docs[e.id] = stored{versionOf(at), e.body}
			}
		}
	}
	return docs
}

func sameDocs(a, b map[string]stored) bool {
	if len(a) != len(b) {
		return false
	}
	for id, d := range a {
		if b[id] != d {
			return false
		}
	}
	return true
}
