package indexer

import (
	"math"
	"time"
)

// limiter decides how many bulk requests may be in flight. It is a pure state
// machine: samples go in, limit comes out; Indexer.mu guards it.
//
// It learns by experiment, as PCC does (Dong and others, NSDI 2015): it tries
// another limit, compares the throughput with the one before, keeps what was
// worth it and takes back what was not. So there is no reference that could be
// stale or follow the present: after a change of the server the next trial
// tells what is right now. Throughput is limit/time (Little's law); more
// requests are worth it if they bring at least worthMore of what they would if
// none had to wait for another. (Kleinrock's power, throughput/time, would ask
// for a half.)
//
// Trials begin with doubling, one round trip each, like the slow start of TCP.
// One that fails makes the next ones small, those that succeed make them large
// again. While none succeeds the limiter waits longer and longer between them;
// a sudden change of the service time ends the wait.
//
// A 429 takes back the trial at hand, else a quarter of the limit: once in a
// round trip, since requests that began before the last change tell about the
// limit before. The limit that was refused is remembered, like the last maximum
// of CUBIC (RFC 9438): growth stops below it and goes beyond it by a single
// request, until one has passed.
type limiter struct {
	least, most int
	limit       int
	since       time.Time // of limit: requests that began earlier say nothing of it

	round   measure   // of the samples at hand
	started time.Time // the first of them
	seen    measure   // of the latest rounds at this limit
	trial   *trial    // nil: none, the limit is held
	stride  int       // of this trial, or of the next one
	down    bool      // the next trial is of a lower limit
	wait    float64   // rounds until the next trial; 0: as soon as it can be judged
	waited  float64

	refusedAt int // the least limit that got a 429 and has not passed since; 0: none
	peak      int // the limit before a series of cuts; 0: it is reached again, or given up
	cost      cost
}

// trial is an experiment with another limit.
type trial struct {
	from         int
	before, seen measure // at the limit before, and now
}

const (
	// A larger limit is kept if it brought this share of itself as throughput,
	// a smaller one if it took less than that of it.
	worthMore, worthLess = 0.25, 0.05
	// A service time that differs by this factor is news.
	news = 1.4
	// Rounds between trials, first and at most, and how they grow: slowly after
	// cuts, since storms pass.
	firstWait, longestWait = 4, 32
	waitLonger, waitABit   = 2, 1.25
	// longestTrial is the most samples that a trial takes: for a fifth.
	longestTrial = 40
	// heldRound is the least number of samples of a round while the limit is
	// held: fewer are no news.
	heldRound = 4
	// shortestRound keeps hiccups of milliseconds out.
	shortestRound = 100 * time.Millisecond
)

// strides are the factors by which trials change the limit.
var strides = [...]float64{1.2, 1.5, 2}

const widest = len(strides) - 1

// sure returns the samples that it takes to tell what a trial with this ratio
// of limits brings: a small change must be told from the noise.
func sure(growth float64) float64 {
	ln := math.Log(growth)
	return min(longestTrial, 1.3/(ln*ln))
}

func newLimiter(least, most int) *limiter {
	return &limiter{least: least, most: most, limit: least, stride: widest}
}

// current returns the requests that may be in flight.
func (l *limiter) current() int { return l.limit }

// sample takes one finished request: when it began, how long it took, its bytes
// before compression, whether the server turned it away, and the requests in
// flight with it.
func (l *limiter) sample(now, began time.Time, took time.Duration, bytes int64, throttled bool, inFlight int) {
	switch {
	case began.Before(l.since):
		return
	case throttled:
		if inFlight <= l.limit { // else the last cut is yet to be felt
			l.refused(now)
		}
		return
	case inFlight < l.limit:
		return // there is too little to send to tell what the limit does
	}
	if l.round.n == 0 {
		l.started = began
	}
	l.round.add(took, bytes)
	l.cost.add(took, bytes)
	if l.round.n < l.enough() || now.Sub(l.started) < shortestRound {
		return
	}
	round := l.round
	l.round = measure{}
	if l.trial == nil {
		l.look(now, round)
	} else {
		l.judge(now, round)
	}
}

// enough returns the samples of a round.
func (l *limiter) enough() float64 {
	limit := float64(l.limit)
	switch {
	case l.stride == widest && (l.trial != nil || l.wait == 0):
		return limit / 2
	case l.peak > 0:
		return limit
	}
	return math.Max(heldRound, limit)
}

// look takes a round at the limit that is held.
func (l *limiter) look(now time.Time, round measure) {
	if l.seen.n > 0 && round.n >= heldRound {
		change := l.cost.time(round) / l.cost.time(l.seen)
		if change > news || change < 1/news {
			l.startOver(now, l.limit, change)
			return
		}
	}
	if l.seen.n >= longestTrial {
		l.seen.fade() // the latest count most
	}
	l.seen.merge(round)
	l.waited++
	l.tryNext(now)
}

// tryNext begins the next trial if it is time to, there is one, and enough is
// known to compare it with.
func (l *limiter) tryNext(now time.Time) {
	if l.waited < l.wait {
		return
	}
	to := l.next()
	switch {
	case to == l.limit:
		l.hold(now, l.limit, !l.down)
		l.waitMore(waitLonger)
	case l.stride == widest || l.seen.n >= sure(float64(to)/float64(l.limit)):
		l.trial = &trial{from: l.limit, before: l.seen}
		l.set(now, to)
	}
}

// startOver forgets what was seen, as the service time has changed by itself,
// and tries next what suits: more, unless it is longer now.
func (l *limiter) startOver(now time.Time, limit int, change float64) {
	down := change > 1 && l.peak == 0
	l.hold(now, limit, down)
	l.seen, l.wait, l.stride = measure{}, 0, widest
	if down {
		l.stride = 0
	}
}

// judge takes a round of a trial and ends it when there is enough to tell.
func (l *limiter) judge(now time.Time, round measure) {
	t := l.trial
	t.seen.merge(round)
	growth := float64(l.limit) / float64(t.from)
	slowdown := l.cost.time(t.seen) / l.cost.time(t.before)
	down := growth < 1
	if down && l.cost.time(round)/l.cost.time(t.before) < growth/news {
		l.trial = nil
		l.startOver(now, t.from, slowdown) // fewer requests do not do that: the server became faster
		return
	}
	gain := 1 - math.Log(slowdown)/math.Log(growth)
	better := !down && gain >= worthMore || down && gain <= worthLess
	if l.peak > 0 {
		better = true // it was good before the cuts, and is not refused any more
	}
	if t.seen.n < sure(growth) && (!better || l.stride < widest) {
		return // in haste one may succeed, not fail
	}
	l.trial = nil
	if l.refusedAt <= l.limit {
		l.refusedAt = 0 // it has passed
	}
	if better {
		l.seen = t.seen
		l.stride = max(l.stride, 1)
		l.wait = 0
		if l.peak > 0 && l.limit >= l.peak {
			l.peak, l.stride = 0, 0
		}
		if l.limit+1 == l.refusedAt {
			l.wait = firstWait
		}
		l.hold(now, l.limit, down)
		l.tryNext(now)
		return
	}
	l.seen = t.before
	if l.stride > 0 {
		l.stride--
		l.wait = 0
		l.hold(now, t.from, down)
		l.tryNext(now)
		return
	}
	l.hold(now, t.from, !down)
	l.waitMore(waitLonger)
}

// refused takes a 429.
func (l *limiter) refused(now time.Time) {
	t := l.trial
	if t == nil && l.peak > 0 && now.Sub(l.since) < l.cost.perRequest() {
		return // the last cut is yet to be felt
	}
	l.refusedAt = l.limit
	l.trial = nil
	switch {
	case t == nil || t.from > l.limit: // a cut
		l.peak = max(l.peak, l.limit)
		l.seen, l.wait, l.stride = measure{}, 0, widest
		l.hold(now, max(l.least, l.limit*3/4), false)
	case l.peak > 0:
		l.seen, l.stride = t.before, widest
		l.hold(now, t.from, false)
		l.waitMore(waitABit)
	default:
		l.seen, l.stride = t.before, 0
		l.hold(now, t.from, l.refusedAt == t.from+1)
		l.waitMore(waitLonger)
	}
}

// waitMore lengthens the time between trials.
func (l *limiter) waitMore(factor float64) {
	l.wait = max(firstWait, l.wait*factor)
	if l.wait > longestWait {
		l.wait = longestWait
		l.peak = 0
	}
}

// next returns the limit that is to be tried, the present one if there is none.
func (l *limiter) next() int {
	from := l.limit
	factor := strides[l.stride]
	if l.down {
		return max(l.least, min(from-1, int(float64(from)/factor)))
	}
	to := max(from+1, int(math.Ceil(float64(from)*factor)))
	if from < l.peak {
		to = min(to, l.peak)
	}
	if l.refusedAt > from+1 {
		to = min(to, l.refusedAt-1)
	}
	return min(to, l.most)
}

// hold keeps a limit until the next trial, in the given direction.
func (l *limiter) hold(now time.Time, limit int, down bool) {
	l.down = down
	l.waited = 0
	l.set(now, limit)
}

func (l *limiter) set(now time.Time, limit int) {
	l.limit, l.since, l.round = limit, now, measure{}
}

// measure sums up requests.
type measure struct {
	n     float64 // requests
	took  float64 // seconds
	bytes float64
}

func (m *measure) add(took time.Duration, bytes int64) {
	m.n++
	m.took += took.Seconds()
	m.bytes += float64(bytes)
}

func (m *measure) merge(o measure) {
	m.n += o.n
	m.took += o.took
	m.bytes += o.bytes
}

// fade takes away a quarter of the weight of what is in m.
func (m *measure) fade() {
	m.n *= 0.75
	m.took *= 0.75
	m.bytes *= 0.75
}

// cost tells what requests of different sizes cost: a fixed part and one for
// each byte, by least squares over about the last costMemory requests. Only
// the ratio of the two is used: it does not depend on the load.
type cost struct {
	n, x, y, xx, xy float64 // sums of bytes and seconds, fading
	fixed           float64 // the fixed part, in bytes that cost as much
}

const costMemory = 256

func (c *cost) add(took time.Duration, bytes int64) {
	const keep = 1 - 1.0/costMemory
	x, y := float64(bytes), took.Seconds()
	c.n, c.x, c.y = c.n*keep+1, c.x*keep+x, c.y*keep+y
	c.xx, c.xy = c.xx*keep+x*x, c.xy*keep+x*y
	mean := c.x / c.n
	variance := c.xx/c.n - mean*mean
	if variance < 0.01*mean*mean {
		return // all of a size: their cost cannot be told apart, and need not
	}
	slope := (c.xy/c.n - mean*c.y/c.n) / variance
	most := 16 * mean // the bytes hardly matter
	if c.fixed = most; slope > 0 {
		c.fixed = min(most, max(0, c.y/c.n/slope-mean))
	}
}

// perRequest returns the mean time of a request.
func (c *cost) perRequest() time.Duration {
	if c.n == 0 {
		return 0
	}
	return time.Duration(c.y / c.n * float64(time.Second))
}

// time returns the seconds that m's requests took for each byte or what costs
// as much.
func (c *cost) time(m measure) float64 {
	return m.took / (m.bytes + c.fixed*m.n)
}
