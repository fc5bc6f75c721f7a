package indexer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWidthFor(t *testing.T) {
	for _, c := range []struct {
		part, all int64
		want      int
	}{
		{1, 1, 64},
		{0, 1, 1},
		{1, 1 << 40, 1},
		{1 << 40, 1 << 40, 64},
		{1, 64, 1},
		{2, 127, 2},
		{1, 10, 8},
		{1, 9, 8},
		{1, 8, 8},
		{51, 100, 64},
		{1, 2, 32},
	} {
		if got := widthFor(c.part, c.all); got != c.want {
			t.Errorf("%d of %d: %d lanes, want %d", c.part, c.all, got, c.want)
		}
	}
	for part := range int64(1001) {
		n := widthFor(part, 1000)
		if n < 1 || n > laneCount || n&(n-1) != 0 || int64(n)*1000 < laneCount*part {
			t.Errorf("%d of 1000: %d lanes", part, n)
		}
	}
}

// How many lanes targets are worth, period by period of their traffic.
func TestLanesFollowTheTraffic(t *testing.T) {
	type period map[string]int64 // percent of the bytes
	even := func(n int) period {
		p := period{}
		for i := range n {
			p[fmt.Sprint(i)] = int64(100 / n)
		}
		return p
	}
	for name, c := range map[string]struct {
		periods []period
		want    map[string]int
	}{
		"alone":                          {[]period{{"a": 100}}, map[string]int{"a": 64}},
		"ten":                            {[]period{even(10)}, map[string]int{"0": 8, "9": 8}},
		"a tenth is narrowed":            {[]period{{"a": 100}, {"a": 10, "b": 90}, {"a": 10, "b": 90}, {"a": 10, "b": 90}}, map[string]int{"a": 16, "b": 64}},
		"a half is not":                  {[]period{{"a": 100}, {"a": 50, "b": 50}, {"a": 50, "b": 50}, {"a": 50, "b": 50}}, map[string]int{"a": 64, "b": 64}},
		"one that grows is widened":      {[]period{even(100), {"0": 60, "1": 40}}, map[string]int{"0": 32, "1": 32, "2": 1}},
		"what was long ago is none":      {[]period{{"a": 100}, {"b": 100}, {"b": 100}, {"b": 100}, {"b": 100}, {"b": 99, "a": 1}}, map[string]int{"a": 2, "b": 64}},
		"a bad period does not unsettle": {[]period{{"a": 100}, {"b": 100}, {"a": 100}, {"b": 100}}, map[string]int{"a": 64, "b": 64}},
	} {
		t.Run(name, func(t *testing.T) {
			const flush = 1000
			x := &Indexer{cfg: Config{FlushBytes: flush}, traffic: traffic{period: 1}}
			targets := map[string]*target{}
			for _, p := range c.periods {
				for name, percent := range p {
					if targets[name] == nil {
						targets[name] = new(target)
						targets[name].begin(len(targets) - 1)
					}
					x.measure(targets[name], percent*flush/100)
				}
			}
			if x.traffic.period != uint64(1+len(c.periods)) || len(x.traffic.targets) != 0 {
				t.Errorf("traffic %+v", x.traffic)
			}
			for name, want := range c.want {
				if got := int(targets[name].wanted.Load()); got != want {
					t.Errorf("%s is worth %d lanes, want %d", name, got, want)
				}
			}
		})
	}
}

// A lone target has all lanes from its first action on; of a thousand that come
// at once each has one, and one of them that all then comes for has all again.
func TestLanesOfManyTargets(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		seq := uint64(0)
		put := func(target string, n int) {
			for range n {
				add(t, w, index(rec, seq, target, fmt.Sprint(seq), `{"x":"0123456789012345678901234567890123456789"}`))
				seq++
			}
		}
		width := func(target string) int {
			w.Publish()
			waitFor(t, x, rec, int(seq))
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.targets[target].width
		}
		put("0", 1000)
		if n := width("0"); n != laneCount {
			t.Errorf("the only target has %d lanes", n)
		}
		for range 20 {
			for i := range 1000 {
				put(fmt.Sprint(i), 1)
			}
			w.Publish()
		}
		lanes := 0
		for i := range 1000 {
			lanes += width(fmt.Sprint(i))
		}
		if lanes > 1300 { // one that began with two keeps them
			t.Errorf("1000 targets have %d lanes", lanes)
		}
		for range 5 {
			put("7", 1000)
			width("7")
		}
		if n := width("7"); n != laneCount {
			t.Errorf("the only target that is written has %d lanes", n)
		}
		settledQueues(t, x)
	})
}

// settledQueues sees that nothing is queued, nor counted as queued.
func settledQueues(t *testing.T, x *Indexer) {
	t.Helper()
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, tg := range x.targets {
		if tg.queued != 0 || tg.readyBytes != 0 || tg.readyDocs != 0 || tg.waitBytes != 0 || tg.waitDocs != 0 ||
			!tg.empty() || tg.inUse() || len(tg.queues) != 0 {
			t.Errorf("%s is not empty: %+v", tg.name, tg)
		}
	}
	if x.queued != 0 {
		t.Errorf("%d bytes count as queued", x.queued)
	}
}

// Lanes that are to change are flushed at once, the new ones wait until no
// request holds an old one, and then for nothing but what others wait for.
func TestLanesChange(t *testing.T) {
	for _, widths := range [][2]int32{{1, 64}, {64, 1}, {8, 16}} {
		t.Run(fmt.Sprint(widths), func(t *testing.T) {
			const latency = 10 * time.Second
			rig(t, func(c *Config, _ *Options) { c.FlushInterval = time.Hour }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
				s.latency = func() time.Duration { return latency }
				seq := uint64(0)
				put := func(width int32) *target {
					tg := x.target("a", 0)
					tg.wanted.Store(width)
					for i := range 100 {
						add(t, w, index(rec, seq, "a", fmt.Sprint(i), fmt.Sprintf(`{"v":%d}`, seq)))
						seq++
					}
					w.Publish()
					synctest.Wait()
					return tg
				}
				state := func(tg *target, requests, width int, later bool) {
					t.Helper()
					x.mu.Lock()
					defer x.mu.Unlock()
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.requests != requests || tg.width != width || len(tg.later) > 0 != later {
						t.Errorf("%d requests, %d lanes, %d chunks wait; want %d, %d, %t", s.requests, tg.width, len(tg.later), requests, width, later)
					}
				}
				from, to := int(widths[0]), int(widths[1])
				tg := put(widths[0])
				state(tg, 0, from, false)
				put(widths[1])
				state(tg, 1, from, true)
				pass(latency - time.Second)
				put(widths[1])
				state(tg, 1, from, true)
				pass(2 * time.Second)
				synctest.Wait()
				state(tg, 1, to, false)
				if n := rec.count(); n != 100 {
					t.Errorf("%d settled by the first request", n)
				}
				waitFor(t, x, rec, int(seq))
				for i := range 100 {
					if got, want := s.docs[fmt.Sprint("a/", i)], fmt.Sprintf(`{"v":%d}`, 200+i); got != want {
						t.Errorf("%d holds %s, want %s", i, got, want)
					}
				}
				settledQueues(t, x)
			})
		})
	}
}

// What waits for other lanes is held, told of, taken back, drained and dropped
// with all else.
func TestWhatWaitsForLanes(t *testing.T) {
	// Of the target, 20 actions are in one lane and 40 wait for eight others,
	// half of them of another source.
	held := func(t *testing.T, f func(s *server, x *Indexer, rec, other *recorder, tg *target)) {
		rig(t, func(_ *Config, o *Options) { o.HeldBytes = 1 << 20 }, func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.item = func(action) *fault { return &fault{403, "cluster_block_exception", "blocked by"} }
			other := newRecorder(t)
			tg := x.target("a", 0)
			for round, width := range []int32{1, 8, 8} {
				tg.wanted.Store(width)
				for i := range 20 {
					src := []*recorder{rec, rec, other}[round]
					add(t, w, index(src, uint64(20*round+i), "a", fmt.Sprint(i), fmt.Sprintf(`{"v":%d}`, round)))
				}
				w.Publish()
				if round == 0 {
					x.mu.Lock()
					x.hold(time.Now(), tg, "cluster_block_exception", false)
					x.mu.Unlock()
				}
			}
			x.mu.Lock()
			if len(tg.later) == 0 || tg.width != 1 {
				t.Errorf("%d lanes, %d chunks wait", tg.width, len(tg.later))
			}
			bytes, queued, sources := tg.queued+tg.waitBytes, x.queued, len(tg.sources())
			x.mu.Unlock()
			if st := x.Status(); len(st.Held) != 1 || st.Held[0].Bytes != bytes || queued != bytes || sources != 2 {
				t.Errorf("status %+v, %d bytes, %d of them queued, %d sources", st.Held, bytes, queued, sources)
			}
			f(s, x, rec, other, tg)
			settledQueues(t, x)
		})
	}
	lanes := func(t *testing.T, x *Indexer, tg *target, want int) {
		t.Helper()
		x.mu.Lock()
		defer x.mu.Unlock()
		if tg.width != want || len(tg.later) != 0 {
			t.Errorf("%d lanes, %d chunks wait", tg.width, len(tg.later))
		}
	}
	mend := func(s *server, x *Indexer) {
		locked(&s.mu, func() any { s.item = nil; return nil })
		x.Release("a")
	}
	written := func(t *testing.T, s *server, version int) {
		t.Helper()
		for i := range 20 {
			if got, want := s.docs[fmt.Sprint("a/", i)], fmt.Sprintf(`{"v":%d}`, version); got != want {
				t.Errorf("%d holds %s, want %s", i, got, want)
			}
		}
	}
	t.Run("released", func(t *testing.T) {
		held(t, func(s *server, x *Indexer, rec, other *recorder, tg *target) {
			mend(s, x)
			waitFor(t, x, rec, 40)
			waitFor(t, x, other, 20)
			written(t, s, 2)
			lanes(t, x, tg, 8)
		})
	})
	t.Run("probed until it is free", func(t *testing.T) {
		held(t, func(s *server, x *Indexer, rec, other *recorder, tg *target) {
			pass(10 * time.Second)
			synctest.Wait()
			if x.Status().Held == nil {
				t.Error("not held any more")
			}
			locked(&s.mu, func() any { s.item = nil; return nil })
			waitFor(t, x, rec, 40)
			waitFor(t, x, other, 20)
			written(t, s, 2)
		})
	})
	t.Run("taken back", func(t *testing.T) {
		held(t, func(s *server, x *Indexer, rec, other *recorder, tg *target) {
			taken, err := x.TakeBack(context.Background(), rec, "a")
			if err != nil || len(taken) != 40 || !slices.IsSortedFunc(taken, func(a, b TakenBack) int { return int(a.Seq) - int(b.Seq) }) {
				t.Errorf("%d taken back, %v", len(taken), err)
			}
			mend(s, x)
			waitFor(t, x, other, 20)
			written(t, s, 2)
		})
	})
	t.Run("drained", func(t *testing.T) {
		held(t, func(s *server, x *Indexer, rec, other *recorder, tg *target) {
			x.Drain(rec)
			synctest.Wait()
			for seq := range uint64(40) {
				if rec.got[seq] != Abandoned {
					t.Errorf("action %d ended as %v", seq, rec.got[seq])
				}
			}
			mend(s, x)
			waitFor(t, x, other, 20)
			written(t, s, 2)
		})
	})
	t.Run("dropped", func(t *testing.T) {
		held(t, func(s *server, x *Indexer, rec, other *recorder, tg *target) {
			x.Drop(other)
			mend(s, x)
			waitFor(t, x, rec, 40)
			written(t, s, 1)
		})
	})
	t.Run("the lanes are dropped", func(t *testing.T) {
		held(t, func(s *server, x *Indexer, rec, other *recorder, tg *target) {
			x.Drop(rec)
			lanes(t, x, tg, 8)
			mend(s, x)
			waitFor(t, x, other, 20)
			written(t, s, 2)
		})
	})
	t.Run("given back", func(t *testing.T) {
		rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
			s.latency = func() time.Duration { return time.Hour }
			for i, width := range []int32{64, 1} {
				x.target("a", 0).wanted.Store(width)
				add(t, w, index(rec, uint64(i), "a", "id", `{}`))
				w.Publish()
				pass(2 * time.Second)
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			if n := len(x.targets["a"].later); n != 1 {
				t.Errorf("%d chunks wait", n)
			}
		})
	})
}

// Widths change all the time, at random, while actions and whole requests are
// turned away, fail and are not answered, the target is held, and sources come,
// are taken back from and go: the server sees no id in two requests, each id
// ends with its last action, and nothing stays queued.
func TestLanesChangeAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { lanesChangeAtRandom(t, seed) })
	}
}

func lanesChangeAtRandom(t *testing.T, seed uint64) {
	change := func(c *Config, o *Options) { o.MaxShare = 0; c.Retry.Max = 2 * time.Second }
	rig(t, change, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		faults := rand.New(rand.NewPCG(seed, 1))
		calm, blocked := false, false
		s.latency = func() time.Duration { return time.Duration(faults.IntN(400)) * time.Millisecond }
		s.fail = func(*request) error {
			if !calm && chance(faults, 0.05) {
				return errReset
			}
			return nil
		}
		s.before = func(*request) *http.Response {
			if !calm && chance(faults, 0.05) {
				return answer(429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`)
			}
			return nil
		}
		s.item = func(a action) *fault {
			switch {
			case calm:
			case blocked && a.target == "a":
				return &fault{403, "cluster_block_exception", "index [a] blocked by"}
			case chance(faults, 0.02):
				return &fault{429, "es_rejected_execution_exception", "full"}
			case chance(faults, 0.01):
				return &fault{400, "document_parsing_exception", "once"}
			}
			return nil
		}
		rnd := rand.New(rand.NewPCG(seed, 2))
		last := map[string]string{}
		lastSeq := map[string]uint64{}
		const n = 2000
		for seq := range uint64(n) {
			target, id := []string{"a", "b"}[rnd.IntN(2)], fmt.Sprint(rnd.IntN(50))
			body := fmt.Sprintf(`{"v":%d}`, seq)
			if seq%10 == 0 { // also the first of all
				a := index(rec, seq, target, fmt.Sprint("unordered", seq), body)
				a.Ordered = false
				add(t, w, a)
				continue
			}
			add(t, w, index(rec, seq, target, id, body))
			last[target+"/"+id], lastSeq[target+"/"+id] = body, seq
			if rnd.IntN(15) > 0 {
				continue
			}
			w.Publish()
			w.targets[target].t.wanted.Store(1 << rnd.IntN(7))
			pass(time.Duration(rnd.IntN(200)) * time.Millisecond)
			if rnd.IntN(20) == 0 {
				locked(&s.mu, func() any { blocked = !blocked; return nil })
			}
			if rnd.IntN(40) == 0 {
				// All that waits is taken back, and sent again in order.
				back, err := x.TakeBack(context.Background(), rec, "a")
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range back {
					again := index(rec, b.Seq, "a", string(b.Meta[1:]), string(b.Body))
					again.Ordered = b.Seq%10 > 0
					add(t, w, again)
				}
				w.Publish()
			}
		}
		// One whose records are dropped changes nothing.
		gone := newRecorder(t)
		for i := range uint64(50) {
			w.targets["b"].t.wanted.Store(1 << rnd.IntN(7))
			add(t, w, index(gone, i, "b", fmt.Sprint("gone", i), `{}`))
			w.Publish()
		}
		x.Drop(gone)
		locked(&gone.mu, func() any { gone.closed = true; return nil })
		locked(&s.mu, func() any { calm = true; return nil })
		waitFor(t, x, rec, n)
		for k, body := range last {
			if rec.rejected[lastSeq[k]] == nil && s.docs[k] != body {
				t.Errorf("%s holds %s, want %s", k, s.docs[k], body)
			}
		}
		settledQueues(t, x)
	})
}
