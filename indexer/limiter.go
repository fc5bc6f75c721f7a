package indexer

import (
	"math"
	"time"
)

// limiter decides how many bulk requests may be in flight. It is a pure state
// machine: samples go in, limit comes out; Indexer.mu guards it.
//
// It starts at min and doubles once per round trip until the first sign of
// saturation (slow start), then grows by one per round trip. A sign is a 429,
// which cuts at most once per round trip, or a service time per byte well
// above the long-window minimum (the gradient of Vegas-like limiters, see
// Netflix concurrency-limits), which shrinks in proportion.
type limiter struct {
	min, max  int
	limit     float64
	slowStart bool

	cut bool // the last round trip ended with a cut for a 429

	// The running round trip.
	samples   int
	throttled bool
	saturated bool // the limit was reached
	sum       float64
	sumN      int

	// Service time per byte: the least of two windows, so that it follows the
	// server with a delay and forgets.
	least, lastLeast float64
	windowEnd        time.Time
}

const (
	limiterWindow    = time.Minute
	limiterTolerance = 1.5  // service time above the minimum that is still healthy
	limiterCut       = 0.75 // after a 429
)

func newLimiter(least, most int) *limiter {
	return &limiter{min: least, max: most, limit: float64(least), slowStart: true}
}

// current returns the requests that may be in flight.
func (l *limiter) current() int { return int(l.limit) }

// sample takes one finished request: how long it took, its bytes on the wire
// before compression, whether it was as large as they come (small ones say
// little about the time per byte), whether the server turned it or items of it
// away, and the requests in flight with it.
func (l *limiter) sample(now time.Time, took time.Duration, bytes int64, full, throttled bool, inFlight int) {
	l.samples++
	l.throttled = l.throttled || throttled
	l.saturated = l.saturated || inFlight >= l.current()
	if full && !throttled && bytes > 0 {
		perByte := float64(took) / float64(bytes)
		l.sum += perByte
		l.sumN++
		if now.After(l.windowEnd) {
			l.windowEnd = now.Add(limiterWindow)
			l.lastLeast, l.least = l.least, 0
		}
		if l.least == 0 || perByte < l.least {
			l.least = perByte
		}
	}
	if l.samples < l.current() {
		return
	}
	l.cut = l.throttled
	switch gradient := l.gradient(); {
	case l.throttled:
		l.slowStart = false
		l.limit *= limiterCut
	case gradient < 1:
		l.slowStart = false
		l.limit *= max(gradient, limiterCut)
	case !l.saturated:
	case l.slowStart:
		l.limit *= 2
	default:
		l.limit++
	}
	l.limit = math.Max(float64(l.min), math.Min(float64(l.max), l.limit))
	l.samples, l.throttled, l.saturated, l.sum, l.sumN = 0, false, false, 0, 0
}

// gradient is 1 while the round trip's service time per byte is healthy and
// falls below 1 in proportion to its excess.
func (l *limiter) gradient() float64 {
	least := l.least
	if l.lastLeast > 0 && (least == 0 || l.lastLeast < least) {
		least = l.lastLeast
	}
	if l.sumN == 0 || least == 0 {
		return 1
	}
	return min(1, limiterTolerance*least*float64(l.sumN)/l.sum)
}
