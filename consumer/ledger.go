package consumer

import (
	"sync"

	"github.com/sluicehq/sluice/indexer"
)

// outcome is how a record ended, as the ledger counts it.
type outcome uint8

const (
	outIndexed outcome = iota
	outDeleted
	outStale
	outDeadLettered
	outParked
	outIgnored
	outAbandoned
	outcomes
)

// outcomeNames are the values of the label `outcome`.
var outcomeNames = [outcomes]string{"indexed", "deleted", "stale", "dead_lettered", "parked", "ignored", "abandoned"}

// outcomeOf translates the indexer's word.
func outcomeOf(o indexer.Outcome) outcome {
	switch o {
	case indexer.Indexed:
		return outIndexed
	case indexer.Deleted:
		return outDeleted
	case indexer.Stale:
		return outStale
	case indexer.Ignored:
		return outIgnored
	default:
		return outAbandoned
	}
}

// ledger counts the records of one source partition for the life of the
// process, over all its assignments:
//
//	consumed = the sum of counts + in flight
//
// which holds whenever mu is free. A record is consumed when it enters the
// queue; it is in flight while it is queued or waits for a target.
type ledger struct {
	topic     string
	partition int32

	// mu also guards the assignment cur: what a record leaves and what it
	// enters change together.
	mu       sync.Mutex
	consumed uint64
	counts   [outcomes]uint64
	cur      *assignment // nil while the partition is not held
}

// inFlight is what the current assignment holds; mu must be held.
func (l *ledger) inFlight() uint64 {
	if l.cur == nil {
		return 0
	}
	return uint64(l.cur.queued + l.cur.tracker.Outstanding())
}
