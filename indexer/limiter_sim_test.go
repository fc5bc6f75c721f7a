package indexer

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// A closed loop of clients and a server in virtual time, to try the limiter
// beside what others have published: discrete events, no goroutines, the same
// on every run.

// algorithm decides how many requests may be in flight.
type algorithm interface {
	current() int
	sample(now, began time.Time, took time.Duration, bytes int64, throttled bool, inFlight int)
}

// fixed is no algorithm: always so many.
type fixed int

func (f fixed) current() int                                                 { return int(f) }
func (fixed) sample(_, _ time.Time, _ time.Duration, _ int64, _ bool, _ int) {}

// aimd is the rule of Vector's adaptive request concurrency, as its
// documentation tells it: once per mean round trip one more if the limit was
// reached and the time is no longer than the moving average (weight 0.4),
// times 0.9 after a 429 or if the time is 2.5 deviations above.
type aimd struct {
	limit               float64
	mean, variance      float64
	sum                 float64
	n                   int
	reached, turnedAway bool
	next                time.Time
}

func (a *aimd) current() int { return int(a.limit) }

func (a *aimd) sample(now, _ time.Time, took time.Duration, _ int64, throttled bool, inFlight int) {
	a.reached = a.reached || inFlight >= a.current()
	a.turnedAway = a.turnedAway || throttled
	if !throttled {
		a.sum += took.Seconds()
		a.n++
	}
	if now.Before(a.next) || a.n == 0 && !a.turnedAway {
		return
	}
	rtt := a.mean
	if a.n > 0 {
		rtt = a.sum / float64(a.n)
	}
	if a.mean == 0 {
		a.mean = rtt
	}
	switch threshold := 2.5 * math.Sqrt(a.variance); {
	case a.turnedAway || rtt >= a.mean+math.Max(threshold, a.mean*0.001):
		a.limit = math.Max(1, math.Floor(a.limit*0.9))
	case a.reached && rtt <= a.mean*1.0001:
		a.limit = math.Min(64, a.limit+1)
	}
	const alpha = 0.4
	d := rtt - a.mean
	a.mean += alpha * d
	a.variance = (1 - alpha) * (a.variance + alpha*d*d)
	a.next = now.Add(time.Duration(a.mean * float64(time.Second)))
	a.sum, a.n, a.reached, a.turnedAway = 0, 0, false, false
}

// gradient2 is the rule of that name of Netflix' concurrency-limits with its
// defaults (but for the bounds): the ratio of a long average of the time to
// the last one, with a tolerance of 1.5, and room for a queue of 4. It hears
// of no rejections.
type gradient2 struct {
	limit, long float64
	n           int
}

func (g *gradient2) current() int { return int(g.limit) }

func (g *gradient2) sample(_, _ time.Time, took time.Duration, _ int64, _ bool, inFlight int) {
	short := took.Seconds()
	const window = 600
	if g.n++; g.n <= 10 {
		g.long += (short - g.long) / float64(g.n)
	} else {
		g.long += (short - g.long) * 2 / (window + 1)
	}
	if g.long/short > 2 {
		g.long *= 0.95
	}
	if float64(inFlight) < g.limit/2 {
		return
	}
	gradient := math.Max(0.5, math.Min(1, 1.5*g.long/short))
	g.limit = math.Max(1, math.Min(64, 0.8*g.limit+0.2*(g.limit*gradient+4)))
}

// world is a server, what is sent to it, and for how long.
type world struct {
	name  string
	bulk  time.Duration // of a request of 4 MiB that is alone
	fixed float64       // the part of it that does not depend on the size
	delay time.Duration // on the network, which takes nothing of the server
	// slower is how much longer a request takes with n in the server.
	slower func(n int, at time.Duration) float64
	refuse func(n int, at time.Duration) bool         // answers 429 at once to one that finds n there; nil: never
	noise  float64                                    // sigma of each request's time, log-normal
	wander float64                                    // sigma of the server's speed, which changes over ten bulks
	size   func(r *rand.Rand, at time.Duration) int64 // of a request; nil: 4 MiB
	every  func(at time.Duration) time.Duration       // a request comes so often; nil or 0: there is always one
	warm   int                                        // round trips that do not count
	lasts  int                                        // round trips
}

const bulkBytes = 4 << 20

// knee is a server that does k requests at a time without loss.
func knee(k float64) func(int, time.Duration) float64 {
	return func(n int, _ time.Duration) float64 { return math.Max(1, float64(n)/k) }
}

// usl is a server by the universal scalability law of Gunther: contention a,
// coherence b.
func usl(a, b float64) func(int, time.Duration) float64 {
	return func(n int, _ time.Duration) float64 {
		return 1 + a*float64(n-1) + b*float64(n)*float64(n-1)
	}
}

// flight is one request in the server or on its way.
type flight struct {
	bytes int64
	began time.Duration
	left  float64 // seconds of service, alone
	pause time.Duration
}

// run is what came of a world.
type run struct {
	w        world
	done     []event // bytes of answered requests
	refusals []time.Duration
	attempts []time.Duration // when requests were sent
	limits   []event
	inFlight []event
}

type event struct {
	at time.Duration
	n  int
}

// timers is a heap of what happens when.
type timers []timer

type timer struct {
	at time.Duration
	f  func()
}

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at < t[j].at }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// simulate lets the algorithm work in the world.
func simulate(w world, a algorithm, seed uint64) *run {
	var (
		r        = &run{w: w}
		rnd      = rand.New(rand.NewPCG(seed, 7))
		epoch    = time.Unix(0, 0)
		now      time.Duration
		todo     timers
		serving  []*flight
		inFlight int
		waiting  int // requests that came and were not sent yet
		speed    = 1.0
		drift    float64
		end      = time.Duration(w.lasts) * w.bulk
	)
	after := func(d time.Duration, f func()) { heap.Push(&todo, timer{now + d, f}) }
	var send func(f *flight)
	claim := func() {
		for inFlight < a.current() && (w.every == nil || w.every(now) == 0 || waiting > 0) {
			waiting = max(0, waiting-1)
			inFlight++
			f := &flight{bytes: bulkBytes}
			if w.size != nil {
				f.bytes = w.size(rnd, now)
			}
			send(f)
		}
		r.limits = append(r.limits, event{now, a.current()})
		r.inFlight = append(r.inFlight, event{now, inFlight})
	}
	answer := func(f *flight, refused bool) {
		a.sample(epoch.Add(now), epoch.Add(f.began), now-f.began, f.bytes, refused, inFlight)
		if refused {
			r.refusals = append(r.refusals, now)
			upper := max(3*f.pause, 100*time.Millisecond+1)
			f.pause = min(5*time.Second, 100*time.Millisecond+time.Duration(rnd.Int64N(int64(upper-100*time.Millisecond+1))))
			after(f.pause, func() { send(f) }) // with its permit
		} else {
			r.done = append(r.done, event{now, int(f.bytes)})
			inFlight--
		}
		claim()
	}
	send = func(f *flight) {
		f.began = now
		r.attempts = append(r.attempts, now)
		f.left = w.bulk.Seconds() * (w.fixed + (1-w.fixed)*float64(f.bytes)/bulkBytes) *
			math.Exp(w.noise*rnd.NormFloat64()-w.noise*w.noise/2)
		after(w.delay/2, func() {
			if w.refuse != nil && w.refuse(len(serving), now) {
				after(w.delay/2+time.Millisecond, func() { answer(f, true) })
				return
			}
			serving = append(serving, f)
		})
	}
	if w.every != nil {
		var arrive func()
		arrive = func() {
			d := w.every(now)
			if d == 0 {
				d = w.bulk
				claim()
			} else {
				waiting++
				claim()
			}
			after(d, arrive)
		}
		arrive()
	}
	if w.wander > 0 {
		var move func()
		move = func() {
			const keep = 0.9
			drift = keep*drift + math.Sqrt(1-keep*keep)*w.wander*rnd.NormFloat64()
			speed = math.Exp(drift)
			after(w.bulk, move)
		}
		move()
	}
	claim()
	// The rate of the server may change with time: look again this often.
	tick := w.bulk / 4
	for now < end {
		rate := 0.0
		if len(serving) > 0 {
			rate = speed / w.slower(len(serving), now)
		}
		next := now + tick
		if len(todo) > 0 {
			next = min(next, todo[0].at)
		}
		var first *flight
		for _, f := range serving {
			if at := now + time.Duration(f.left/rate*float64(time.Second)) + 1; at <= next {
				next, first = at, f
			}
		}
		for _, f := range serving {
			f.left -= rate * (next - now).Seconds()
		}
		now = next
		if first != nil {
			serving = slices.DeleteFunc(serving, func(f *flight) bool { return f == first })
			after(w.delay/2, func() { answer(first, false) })
		}
		for len(todo) > 0 && todo[0].at <= now {
			heap.Pop(&todo).(timer).f()
		}
	}
	return r
}

// rate returns the bytes per bulk time between two moments.
func (r *run) rate(from, to time.Duration) float64 {
	sum := 0.0
	for _, d := range r.done {
		if d.at >= from && d.at < to {
			sum += float64(d.n)
		}
	}
	return sum / bulkBytes / (to - from).Seconds() * r.w.bulk.Seconds()
}

func (r *run) trips(n int) time.Duration { return time.Duration(n) * r.w.bulk }

// steady is the rate after the warm-up.
func (r *run) steady() float64 { return r.rate(r.trips(r.w.warm), r.trips(r.w.lasts)) }

// refused is the share of requests that were refused after the warm-up.
func (r *run) refused() float64 {
	late := func(all []time.Duration) float64 {
		i, _ := slices.BinarySearch(all, r.trips(r.w.warm))
		return float64(len(all) - i)
	}
	return late(r.refusals) / math.Max(1, late(r.attempts))
}

// reached is when so many were in flight first, in round trips; infinite: never.
func (r *run) reached(n int) float64 {
	for _, f := range r.inFlight {
		if f.n >= n {
			return f.at.Seconds() / r.w.bulk.Seconds()
		}
	}
	return math.Inf(1)
}

// limit returns the quantiles 0.05, 0.5 and 0.95 of the limit over the time
// after the warm-up.
func (r *run) limit() (low, median, high int) {
	from, to := r.trips(r.w.warm), r.trips(r.w.lasts)
	held := map[int]time.Duration{}
	for i, l := range r.limits {
		until := to
		if i+1 < len(r.limits) {
			until = r.limits[i+1].at
		}
		held[l.n] += max(0, until-max(l.at, from))
	}
	quantile := func(q float64) (n int) {
		for sum := held[0]; sum.Seconds() < q*(to-from).Seconds(); sum += held[n] {
			n++
		}
		return n
	}
	return quantile(0.05), quantile(0.5), quantile(0.95)
}

// swing is how far the rate of ten round trips is off the mean, in nineteen of
// twenty cases, after the warm-up.
func (r *run) swing() float64 {
	var off []float64
	for n := r.w.warm; n+10 <= r.w.lasts; n += 10 {
		off = append(off, math.Abs(r.rate(r.trips(n), r.trips(n+10))/r.steady()-1))
	}
	slices.Sort(off)
	return off[len(off)*19/20]
}

// best returns the highest steady rate of a fixed limit, and the least limit
// that comes within 1 % of it.
func best(w world) (limit int, rate float64) {
	limits := []int{2, 4, 8, 14, 16, 24, 32, 40, 48, 64}
	rates := make([]float64, len(limits))
	for i, n := range limits {
		rates[i] = simulate(w, fixed(n), 0).steady()
	}
	rate = slices.Max(rates)
	return limits[slices.IndexFunc(rates, func(r float64) bool { return r >= 0.99*rate })], rate
}

// rules are ours and what is compared with it.
var rules = []struct {
	name string
	make func() algorithm
}{
	{"sluice", func() algorithm { return newLimiter(1, 64) }},
	{"fixed 1", func() algorithm { return fixed(1) }},
	{"fixed 32", func() algorithm { return fixed(32) }},
	{"AIMD", func() algorithm { return &aimd{limit: 1} }},
	{"gradient2", func() algorithm { return &gradient2{limit: 1} }},
}

// TestLimiterSimulation holds the limiter against its bars on servers that stay
// as they are, and prints what the published rules make of them.
func TestLimiterSimulation(t *testing.T) {
	const unbounded = 64
	mixed := func(r *rand.Rand, _ time.Duration) int64 {
		if r.IntN(2) == 0 {
			return bulkBytes / 20
		}
		return bulkBytes
	}
	refuseOver := func(n int) func(int, time.Duration) bool {
		return func(serving int, _ time.Duration) bool { return serving >= n }
	}
	const s, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		world
		least float64 // of the best fixed limit's rate
		most  int     // the limit that it may have in nineteen of twenty cases
		swing float64 // 0: the server's own is larger
	}{
		{world{name: "16 at a time", bulk: s, slower: knee(16), noise: 0.2, warm: 30, lasts: 600}, 0.95, 32, 0.2},
		// A single request is a quarter.
		{world{name: "4 at a time", bulk: s, slower: knee(4), noise: 0.2, warm: 30, lasts: 600}, 0.95, 8, 0.25},
		{world{name: "48 at a time", bulk: s, slower: knee(48), noise: 0.2, warm: 30, lasts: 600}, 0.95, unbounded, 0.2},
		// The last tenth would take twice as many requests.
		{world{name: "ever slower", bulk: s, slower: usl(0.03, 0.0005), noise: 0.2, warm: 30, lasts: 600}, 0.88, unbounded, 0.25},
		{world{name: "thrashes", bulk: s, slower: usl(0, 0.004), noise: 0.2, warm: 30, lasts: 600}, 0.9, 24, 0.2},
		{world{name: "16, rough", bulk: s, slower: knee(16), noise: 0.4, wander: 0.1, warm: 30, lasts: 600}, 0.88, unbounded, 0},
		{world{name: "8, far away", bulk: 100 * ms, delay: 200 * ms, slower: knee(8), noise: 0.2, warm: 100, lasts: 2000}, 0.95, unbounded, 0.2},
		{world{name: "16, mixed sizes", bulk: s, fixed: 0.1, slower: knee(16), noise: 0.2, size: mixed, warm: 30, lasts: 400}, 0.95, unbounded, 0.2},
		{world{name: "32, refuses the 17th", bulk: s, slower: knee(32), refuse: refuseOver(16), noise: 0.2, warm: 60, lasts: 600}, 0.95, 17, 0.2},
		{world{name: "16, refuses the 25th", bulk: s, slower: knee(16), refuse: refuseOver(24), noise: 0.2, warm: 60, lasts: 600}, 0.95, 25, 0.2},
		{world{name: "2 cores, 4 ms", bulk: 4 * ms, slower: knee(2), noise: 0.3, wander: 0.1, warm: 500, lasts: 6000}, 0.95, 4, 0},
		{world{name: "2 cores, 1 ms", bulk: ms, slower: knee(2), noise: 0.3, wander: 0.1, warm: 2000, lasts: 8000}, 0.95, 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, rate := best(c.world)
			var table strings.Builder
			defer func() { t.Log(table.String()) }()
			fmt.Fprintf(&table, "\n%-21s %6s %7s %7s %12s %6s %6s\n", "", "rate", "of best", "refused", "limit", "swing", "to 16")
			fmt.Fprintf(&table, "%-21s %6.1f %7s %7s %7d\n", "the best fixed limit", rate, "", "", n)
			for _, rule := range rules {
				if rule.name != "sluice" && !testing.Verbose() {
					break // the others are there to be looked at
				}
				for seed := range uint64(5) {
					r := simulate(c.world, rule.make(), seed)
					low, median, high := r.limit()
					share := r.steady() / rate
					if seed == 0 {
						fmt.Fprintf(&table, "%-21s %6.1f %6.1f%% %6.2f%% %4d %3d %3d %5.1f%% %6.1f\n", rule.name,
							r.steady(), 100*share, 100*r.refused(), low, median, high, 100*r.swing(), r.reached(16))
					}
					if rule.name != "sluice" {
						break
					}
					if share < c.least {
						t.Errorf("seed %d: rate %.1f, %.1f %% of that of the best fixed limit", seed, r.steady(), 100*share)
					}
					if r.refused() > 0.01 {
						t.Errorf("seed %d: %.1f %% of the requests were refused", seed, 100*r.refused())
					}
					if high > c.most {
						t.Errorf("seed %d: the limit was %d, %d, %d", seed, low, median, high)
					}
					if swing := r.swing(); c.swing > 0 && swing > c.swing {
						t.Errorf("seed %d: the rate swings by %.1f %%", seed, 100*swing)
					}
					if at := r.reached(16); c.bulk == s && c.wander == 0 && n >= 12 && at > 5 {
						t.Errorf("seed %d: 16 in flight after %.1f round trips", seed, at)
					}
				}
			}
		})
	}
}

// The server is in trouble for 30 s: how soon is the former rate back?
func TestLimiterRecovers(t *testing.T) {
	const from, to = 60 * time.Second, 90 * time.Second
	within := func(at time.Duration) bool { return at >= from && at < to }
	slow := func(k, less, factor float64) func(int, time.Duration) float64 {
		return func(n int, at time.Duration) float64 {
			if within(at) {
				return factor * knee(less)(n, at)
			}
			return knee(k)(n, at)
		}
	}
	refuse := func(most int) func(int, time.Duration) bool {
		return func(n int, at time.Duration) bool { return within(at) && n >= most }
	}
	for _, c := range []struct {
		world
		trips int // until it is back
	}{
		{world{name: "a fifth of the speed", slower: slow(16, 16, 5)}, 10},
		{world{name: "a fifth of the speed, of 48", slower: slow(48, 48, 5)}, 10},
		{world{name: "3 at a time", slower: slow(16, 3, 1)}, 10},
		{world{name: "4 at a time, of 48", slower: slow(48, 4, 1)}, 10},
		{world{name: "refuses all", slower: knee(16), refuse: refuse(0)}, 12},
		{world{name: "refuses all, of 48", slower: knee(48), refuse: refuse(0)}, 12},
		{world{name: "refuses the 3rd", slower: knee(16), refuse: refuse(2)}, 15},
		{world{name: "refuses the 3rd, of 48", slower: knee(48), refuse: refuse(2)}, 20},
		{world{name: "half the speed, refuses the 5th", slower: slow(16, 16, 2), refuse: refuse(4)}, 15},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.bulk, c.noise, c.warm, c.lasts = time.Second, 0.2, 60, 130
			var table strings.Builder
			defer func() { t.Log(table.String()) }()
			fmt.Fprintf(&table, "\n%-10s %7s %7s %7s %7s %8s\n", "", "before", "in it", "+5..10", fmt.Sprintf("+%d..", c.trips), "refused")
			for _, rule := range rules {
				if rule.name != "sluice" && !testing.Verbose() {
					break // the others are there to be looked at
				}
				for seed := range uint64(5) {
					r := simulate(c.world, rule.make(), seed)
					before := r.rate(20*time.Second, from)
					back := r.rate(to+r.trips(c.trips), to+r.trips(c.trips+10)) / before
					if seed == 0 {
						fmt.Fprintf(&table, "%-10s %7.1f %7.1f %6.0f%% %6.0f%% %7.1f%%\n", rule.name, before, r.rate(from, to),
							100*r.rate(to+r.trips(5), to+r.trips(10))/before, 100*back, 100*r.refused())
					}
					if rule.name != "sluice" {
						break
					}
					if back < 0.9 {
						t.Errorf("seed %d: at %.0f %% of the former rate after %d round trips", seed, 100*back, c.trips)
					}
				}
			}
		})
	}
}

// A server that gets room for more is used after a while.
func TestLimiterGrows(t *testing.T) {
	w := world{bulk: time.Second, noise: 0.2, warm: 30, lasts: 400, slower: func(n int, at time.Duration) float64 {
		if at < 100*time.Second {
			return knee(12)(n, at)
		}
		return knee(32)(n, at)
	}}
	for seed := range uint64(5) {
		r := simulate(w, newLimiter(1, 64), seed)
		if got := r.rate(300*time.Second, 400*time.Second); got < 0.9*32 {
			t.Errorf("seed %d: rate %.1f", seed, got)
		}
	}
}

// Small bulks that come now and then say nothing about the limit.
func TestLimiterTrickle(t *testing.T) {
	trickle := func(at time.Duration) bool { return at >= 100*time.Second && at < 400*time.Second }
	for seed := range uint64(5) {
		w := world{
			bulk: time.Second, fixed: 0.01, noise: 0.2, slower: knee(16), warm: 120, lasts: 440,
			every: func(at time.Duration) time.Duration {
				if trickle(at) {
					return 250 * time.Millisecond
				}
				return 0
			},
			size: func(r *rand.Rand, at time.Duration) int64 {
				if trickle(at) {
					return 1000
				}
				return bulkBytes
			},
		}
		r := simulate(w, newLimiter(1, 64), seed)
		first := r.limits[slices.IndexFunc(r.limits, func(l event) bool { return l.at >= 120*time.Second })].n
		last := r.limits[slices.IndexFunc(r.limits, func(l event) bool { return l.at >= 399*time.Second })].n
		if first != last || first < 12 {
			t.Errorf("seed %d: the limit went from %d to %d", seed, first, last)
		}
		before, after := r.rate(50*time.Second, 100*time.Second), r.rate(405*time.Second, 440*time.Second)
		if after < 0.9*before {
			t.Errorf("seed %d: rate %.1f before, %.1f after", seed, before, after)
		}
	}
	w := world{
		bulk: time.Second, noise: 0.2, slower: knee(16), lasts: 200,
		every: func(time.Duration) time.Duration { return 2 * time.Second },
	}
	if _, _, high := simulate(w, newLimiter(1, 64), 0).limit(); high > 2 {
		t.Errorf("limit %d for one bulk at a time", high)
	}
}
