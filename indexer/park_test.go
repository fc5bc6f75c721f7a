package indexer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// parker is a recorder that is asked to park.
type parker struct {
	*recorder
	mu    sync.Mutex
	asked []string
}

func (p *parker) Park(target, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, target+": "+reason)
}

func blocks(target string) func(a action) *fault {
	return func(a action) *fault {
		if a.target == target {
			return &fault{403, "cluster_block_exception", "index [" + target + "] blocked by"}
		}
		return nil
	}
}

// What a source has waiting for a target comes back whole and in order, once
// nothing of that target is on the wire, and is never reported; others' stays.
func TestTakeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.item = blocks("held")
		answered := make(chan struct{})
		var slow bool
		s.latency = func() time.Duration {
			if slow {
				return 10 * time.Second
			}
			return 0
		}
		x := New(testConfig(), testOptions(s))
		w, rec, other := x.NewWriter(), newRecorder(t), newRecorder(t)
		for seq := range uint64(50) {
			add(t, w, index(rec, seq, "held", fmt.Sprint("k", seq%7), fmt.Sprintf(`{"n":%d}`, seq)))
		}
		add(t, w, index(other, 1, "held", "x", `{}`))
		add(t, w, remove(rec, 50, "held", "k1"))
		w.Publish()
		pass(1500 * time.Millisecond) // it is held now
		s.mu.Lock()
		slow = true // the next probe takes long
		s.mu.Unlock()
		pass(2 * time.Second)
		for seq := uint64(51); seq < 60; seq++ {
			add(t, w, index(rec, seq, "held", fmt.Sprint("k", seq%7), fmt.Sprintf(`{"n":%d}`, seq)))
		}
		w.Publish()

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("too long"))
		defer cancel()
		if taken, err := x.TakeBack(ctx, rec, "held"); err == nil {
			t.Errorf("%d actions came back while one was on the wire", len(taken))
		}
		go func() {
			defer close(answered)
			taken, err := x.TakeBack(t.Context(), rec, "held")
			if err != nil || len(taken) != 60 {
				t.Errorf("%d actions, %v", len(taken), err)
			}
			for i, a := range taken {
				want := fmt.Sprintf(`{"n":%d}`, i)
				if i == 50 {
					want = ""
				}
				if a.Seq != uint64(i) || string(a.Body) != want || i != 50 && !strings.HasPrefix(string(a.Meta), "mk") {
					t.Errorf("action %d came back as %d, %s, %s", i, a.Seq, a.Body, a.Meta)
				}
			}
		}()
		<-answered
		s.mu.Lock()
		slow, s.item = false, nil
		s.mu.Unlock()
		waitFor(t, x, other, 1)
		if n := rec.count(); n != 0 {
			t.Errorf("%d actions that came back were reported", n)
		}
		closeAll(t, x)
	})
}

// The sources of a held target are asked to park when it fills half of what held
// targets may, and of no other.
func TestAskedToPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.item = blocks("held")
		opt := testOptions(s)
		opt.HeldBytes, opt.Park = 10<<10, true
		x := New(testConfig(), opt)
		w, rec := x.NewWriter(), &parker{recorder: newRecorder(t)}
		asked := func() []string {
			rec.mu.Lock()
			defer rec.mu.Unlock()
			return rec.asked
		}
		body := `{"x":"` + strings.Repeat("y", 1000) + `"}`
		put := func(target string, from, n uint64) {
			for seq := from; seq < from+n; seq++ {
				add(t, w, index(rec, seq, target, fmt.Sprint(seq), body))
			}
			w.Publish()
			pass(2 * time.Second)
			synctest.Wait()
		}
		put("held", 0, 3)
		put("open", 100, 20)
		if got := asked(); len(got) != 0 {
			t.Errorf("asked %v below the share", got)
		}
		put("held", 200, 4)
		if got := asked(); len(got) == 0 || got[0] != "held: cluster_block_exception" {
			t.Errorf("asked %v above the share", got)
		}
		if _, err := x.TakeBack(t.Context(), rec, "held"); err != nil {
			t.Error(err)
		}
		n := len(asked())
		put("open", 300, 20)
		if got := asked(); len(got) != n {
			t.Errorf("asked %v although nothing is held", got[n:])
		}
		closeAll(t, x)
	})
}
