package indexer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func scaling() Scaling {
	return Scaling{
		Enabled: true, Min: 1, ActiveRatio: 1,
		UpAfter: 60, UpCooldown: 60 * time.Second,
		DownAfter: 30, DownCooldown: 30 * time.Second, IdleInterval: 30 * time.Second,
	}
}

// told is a list of observations, some of them repeated, each a while after
// the one before.
type told struct {
	times int // 0: once
	after time.Duration
	observation
}

func full(times int) told { return told{times, time.Millisecond, observation{flush: "bytes"}} }

// paced flushes are full ones, one a second.
func paced(times int) told { return told{times, time.Second, observation{flush: "bytes"}} }
func timed(times int) told { return told{times, time.Second, observation{flush: "interval"}} }
func flushes(reason string, times int) told {
	return told{times, time.Second, observation{flush: reason}}
}
func later(d time.Duration) told { return told{1, d, observation{}} }
func answers(answered, turned int) told {
	return told{1, time.Millisecond, observation{answered: answered, turned: turned}}
}
func cores(n int) told { return told{1, time.Millisecond, observation{procs: n}} }

func TestDecide(t *testing.T) {
	set := func(f func(*Scaling)) Scaling {
		s := scaling()
		f(&s)
		return s
	}
	for name, c := range map[string]struct {
		cfg   Scaling
		procs int
		start int // 0: as it comes
		told  []told
		want  int
	}{
		"begins at min":          {set(func(s *Scaling) { s.Min = 2 }), 8, 0, nil, 2},
		"min is above the cores": {set(func(s *Scaling) { s.Min = 4 }), 2, 0, nil, 4},

		"up after 60 full ones":           {scaling(), 8, 0, []told{full(60)}, 2},
		"not after 59":                    {scaling(), 8, 0, []told{full(59)}, 1},
		"documents are full too":          {scaling(), 8, 0, []told{full(59), flushes("documents", 1)}, 2},
		"a timed one breaks the run":      {scaling(), 8, 0, []told{full(59), timed(1), full(59)}, 1},
		"one of pressure does not":        {scaling(), 8, 0, []told{full(59), flushes("memory", 1), flushes("drain", 1), flushes("probe", 1), flushes("alone", 1), full(1)}, 2},
		"one step for one run":            {set(func(s *Scaling) { s.UpCooldown = 0 }), 8, 0, []told{full(119)}, 2},
		"the next run, the next step":     {set(func(s *Scaling) { s.UpCooldown = 0 }), 8, 0, []told{full(120)}, 3},
		"no further one in the cool-down": {scaling(), 8, 0, []told{full(60), paced(59)}, 2},
		"one after it":                    {scaling(), 8, 0, []told{full(60), paced(60)}, 3},
		"nor soon after one less":         {scaling(), 8, 3, []told{timed(30), paced(59)}, 2},
		"a long run steps after it":       {scaling(), 8, 0, []told{full(600), paced(59), full(1000)}, 3},
		"up to the cores":                 {set(func(s *Scaling) { s.UpCooldown = 0 }), 3, 0, []told{full(600)}, 3},
		"times the ratio, rounded up":     {set(func(s *Scaling) { s.UpCooldown, s.ActiveRatio = 0, 0.3 }), 4, 0, []told{full(600)}, 2},
		"one at least":                    {set(func(s *Scaling) { s.UpCooldown, s.ActiveRatio = 0, 0.25 }), 1, 0, []told{full(600)}, 1},
		"max counts more than the cores":  {set(func(s *Scaling) { s.UpCooldown, s.Max = 0, 5 }), 2, 0, []told{full(600)}, 5},
		"min and max are one":             {set(func(s *Scaling) { s.UpCooldown, s.Min, s.Max = 0, 3, 3 }), 8, 0, []told{full(600), later(time.Hour), timed(900), cores(1), answers(100, 100)}, 3},

		"down after 30 timed ones":         {scaling(), 8, 4, []told{timed(30)}, 3},
		"not after 29":                     {scaling(), 8, 4, []told{timed(29)}, 4},
		"a full one breaks the run":        {scaling(), 8, 4, []told{timed(29), full(1), timed(29)}, 4},
		"the rest of a burst for nothing":  {scaling(), 8, 4, []told{flushes("dry", 100)}, 4},
		"pressure counts for nothing":      {scaling(), 8, 4, []told{flushes("memory", 100), flushes("drain", 100)}, 4},
		"nor beside full ones":             {scaling(), 8, 4, []told{full(10), flushes("memory", 100), full(10), flushes("probe", 20), full(1)}, 4},
		"one step for one run of them":     {set(func(s *Scaling) { s.DownCooldown = 0 }), 8, 4, []told{timed(59)}, 3},
		"not within 30 s of the last":      {scaling(), 8, 4, []told{timed(30), timed(29)}, 3},
		"the next after 30 s":              {scaling(), 8, 4, []told{timed(60)}, 2},
		"down to min":                      {set(func(s *Scaling) { s.Min = 2 }), 8, 4, []told{timed(300)}, 2},
		"idle for 30 s":                    {scaling(), 8, 4, []told{full(1), later(30 * time.Second)}, 3},
		"not for 29 s":                     {scaling(), 8, 4, []told{full(1), later(29 * time.Second)}, 4},
		"idle for long, step by step":      {scaling(), 8, 4, []told{full(1), later(30 * time.Second), later(30 * time.Second), later(10 * time.Second)}, 2},
		"a lone action is as good as idle": {scaling(), 8, 4, []told{full(1), flushes("probe", 20), flushes("alone", 10)}, 3},
		"growth needs a full flush now":    {scaling(), 8, 2, []told{timed(30), full(100), later(70 * time.Second)}, 1},

		"fewer cores, at once":           {scaling(), 8, 8, []told{full(60), cores(2)}, 2},
		"more cores are room, no reason": {scaling(), 2, 2, []told{cores(8)}, 2},
		"and are grown into":             {scaling(), 2, 2, []told{cores(8), full(60)}, 3},

		"429s hold growth":                {scaling(), 8, 0, []told{answers(1000, 10), full(600)}, 1},
		"and step down":                   {scaling(), 8, 4, []told{answers(1000, 10)}, 3},
		"with the cool-down":              {scaling(), 8, 4, []told{answers(1000, 10), answers(1000, 10)}, 3},
		"and again after it":              {scaling(), 8, 4, []told{answers(1000, 10), later(29 * time.Second), answers(1000, 10), later(time.Second), answers(1000, 10)}, 2},
		"less than 1 % is nothing":        {scaling(), 8, 4, []told{answers(1000, 9), full(60)}, 5},
		"a storm is forgotten":            {scaling(), 8, 2, []told{answers(1e9, 1e9), later(70 * time.Second), answers(1000, 0), full(60)}, 2},
		"whole requests count their docs": {scaling(), 8, 0, []told{answers(98_000, 0), answers(1000, 1000), full(600)}, 1},

		"switched off it is max":       {set(func(s *Scaling) { s.Enabled, s.Max = false, 6 }), 2, 0, []told{timed(100), answers(10, 10), later(time.Hour)}, 6},
		"or what the cores say":        {set(func(s *Scaling) { s.Enabled = false }), 4, 0, []told{timed(100)}, 4},
		"and follows them, both ways":  {set(func(s *Scaling) { s.Enabled = false }), 4, 0, []told{cores(2), cores(7)}, 7},
		"a step needs no clock before": {scaling(), 8, 4, []told{timed(30)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_000_000, 0)
			s := newScaler(c.cfg, c.procs, now)
			if c.start > 0 {
				s.n = c.start
			}
			for _, o := range c.told {
				for range max(1, o.times) {
					now = now.Add(o.after)
					s = decide(s, o.observation, now)
				}
			}
			if s.n != c.want {
				t.Errorf("%d indexers, want %d; last change: %s", s.n, c.want, s.why)
			}
		})
	}
}

// Whatever is told: the bounds hold, a step is one, and no two of them lie
// within a cool-down.
func TestDecideAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Scaling{
			Enabled: true, Min: rapid.IntRange(1, 3).Draw(t, "min"), ActiveRatio: rapid.Float64Range(0.1, 2).Draw(t, "ratio"),
			UpAfter: rapid.IntRange(1, 5).Draw(t, "up"), UpCooldown: 20 * time.Second,
			DownAfter: rapid.IntRange(1, 5).Draw(t, "down"), DownCooldown: 10 * time.Second, IdleInterval: 15 * time.Second,
		}
		if rapid.Bool().Draw(t, "max") {
			cfg.Max = rapid.IntRange(cfg.Min, 6).Draw(t, "max")
		}
		now := time.Unix(1_000_000, 0)
		s := newScaler(cfg, rapid.IntRange(1, 8).Draw(t, "procs"), now)
		reasons := []string{"", "bytes", "documents", "interval", "dry", "again", "memory", "drain", "probe", "alone"}
		for range rapid.IntRange(1, 200).Draw(t, "observations") {
			o := observation{flush: rapid.SampledFrom(reasons).Draw(t, "flush")}
			if rapid.IntRange(0, 9).Draw(t, "answer") == 0 {
				o.answered = 100
				o.turned = rapid.IntRange(0, 2).Draw(t, "turned")
			}
			if rapid.IntRange(0, 19).Draw(t, "change") == 0 {
				o.procs = rapid.IntRange(1, 8).Draw(t, "procs")
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 8000).Draw(t, "ms")) * time.Millisecond)
			was := s
			s = decide(s, o, now)
			least, most := s.bounds()
			if s.n < least || s.n > most {
				t.Fatalf("%d indexers of %d to %d", s.n, least, most)
			}
			if was.n > most || s.n == was.n {
				continue
			}
			since := now.Sub(was.changed)
			if s.n == was.n+1 && (was.changed.IsZero() || since >= cfg.UpCooldown) && !s.throttled(now) ||
				s.n == was.n-1 && (was.changed.IsZero() || since >= cfg.DownCooldown) {
				continue
			}
			t.Fatalf("from %d to %d, %v after the last change (%s)", was.n, s.n, since, s.why)
		}
	})
}

// The whole loop, with the real Indexer on a virtual clock: load makes indexers
// come up to the bound, a trickle and silence make them go, 429s hold them
// down, and health after a storm lets them come again.
func TestScaling(t *testing.T) {
	var storm bool
	faults := rand.New(rand.NewPCG(1, 1))
	setup := func(c *Config, _ *Options) {
		c.Scaling = scaling()
		c.Scaling.Max = 4
		c.FlushDocuments = 2
	}
	rig(t, setup, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.latency = func() time.Duration { return 100 * time.Millisecond }
		s.item = func(action) *fault {
			if storm && chance(faults, 0.05) {
				return &fault{429, "es_rejected_execution_exception", "full"}
			}
			return nil
		}
		n := uint64(0)
		send := func(docs int, every, lasts time.Duration) {
			for start := time.Now(); time.Since(start) < lasts; {
				for range docs {
					add(t, w, index(rec, n, "a", fmt.Sprint(n), `{}`))
					n++
				}
				w.Publish()
				pass(every)
			}
			synctest.Wait()
		}
		expect := func(when string, least, most int) {
			t.Helper()
			if got := x.Status().Indexers; got < least || got > most {
				t.Errorf("%s: %d indexers, want %d to %d", when, got, least, most)
			}
		}
		const load = 4 // documents each 400 ms: 5 full requests a second
		expect("at first", 1, 1)
		send(load, 400*time.Millisecond, 30*time.Second)
		expect("after 30 s of load", 2, 2)
		send(load, 400*time.Millisecond, 60*time.Second)
		expect("after another minute", 3, 3)
		send(load, 400*time.Millisecond, 10*time.Minute)
		expect("after ten minutes", 4, 4)
		send(1, 1100*time.Millisecond, 45*time.Second)
		expect("after 45 s of a trickle", 3, 3)
		send(1, 1100*time.Millisecond, 5*time.Minute)
		expect("after five minutes of a trickle", 1, 1)
		send(load, 400*time.Millisecond, 5*time.Minute)
		expect("under load again", 4, 4)
		locked(&s.mu, func() bool { storm = true; return true })
		send(load, 400*time.Millisecond, 3*time.Minute)
		expect("in a storm of 429s", 1, 1)
		if !x.Status().Throttled {
			t.Error("not throttled in a storm of 429s")
		}
		locked(&s.mu, func() bool { storm = false; return false })
		send(load, 400*time.Millisecond, 6*time.Minute)
		expect("after the storm", 4, 4)
		if x.Status().Throttled {
			t.Error("still throttled minutes after a storm")
		}
		waitFor(t, x, rec, int(n))
		pass(10 * time.Minute)
		synctest.Wait()
		expect("idle", 1, 1)
	})
}
