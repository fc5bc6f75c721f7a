package indexer

import "time"

// The rejection breaker looks at the records of one target that got a final
// answer within breakerWindow, and trips when more than a share of them, and of
// at least breakerLeast, was rejected: a wrong mapping would else empty a topic
// into the dead letters.
const (
	breakerWindow  = 5 * time.Minute
	breakerBuckets = 5
	breakerLeast   = 1000
	// breakerProbes accepted probes in a row close it again; from breakerBulk
	// on they are sent in bulk.
	breakerProbes = 100
	breakerBulk   = 10
)

// breaker counts final answers in buckets of time. The zero value is ready.
type breaker struct {
	buckets [breakerBuckets]struct {
		number          int64
		total, rejected int
	}
}

// add counts n final answers of which rejected were rejections, and says
// whether the breaker trips.
func (b *breaker) add(now time.Time, n, rejected int, share float64) bool {
	number := now.UnixNano() / int64(breakerWindow/breakerBuckets)
	k := &b.buckets[number%breakerBuckets]
	if k.number != number {
		k.number, k.total, k.rejected = number, 0, 0
	}
	k.total += n
	k.rejected += rejected
	if rejected == 0 {
		return false
	}
	var total, bad int
	for i := range b.buckets {
		if k := &b.buckets[i]; number-k.number < breakerBuckets {
			total += k.total
			bad += k.rejected
		}
	}
	return total >= breakerLeast && float64(bad) > share*float64(total)
}
