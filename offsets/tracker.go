// Package offsets knows how far one assignment of a source partition may be
// committed.
//
// Promise: Committable never passes a record that was delivered and is not
// handled, whatever the order in which records are settled. Offsets that hold
// no record (compaction, transaction markers, aborted records) never hold it
// back.
//
// It does not promise anything across assignments: a partition that is lost
// and comes back starts with a new Tracker. It knows no Kafka, no clock and no
// lock; its owner serialises the calls.
package offsets

import (
	"fmt"
	"slices"
	"sort"
)

// MaxTargets is the most targets that one record can wait for.
const MaxTargets = 127

// A record's state is one byte: the targets it still waits for, and whether
// one of them gave it up. Zero is handled.
const (
	waiting   = 0x7f
	abandoned = 0x80
)

// Tracker follows the records of one assignment from delivery to settlement.
// It holds nine bytes for each record between the oldest one that is not
// handled and the newest; every call is O(1) amortised, and none allocates
// while the ring is large enough. The zero value is ready for use.
type Tracker struct {
	// A ring over the sequence numbers [head, tail): record seq is at
	// seq & (len-1). Sequence numbers are dense, offsets are not.
	offsets []int64
	states  []uint8
	head    uint64 // first record that is not handled, or tail
	tail    uint64 // sequence number of the next record

	position    int64 // after the last offset that was delivered or passed
	started     bool  // position holds something
	outstanding int   // records that wait for a target
	targets     int   // settlements that records wait for
}

// Deliver takes the record at offset, which waits for one target, and returns
// its sequence number: 0 for the first, one more for each later one. It panics
// if offset is below Position, since the same record would be counted twice.
func (t *Tracker) Deliver(offset int64) uint64 {
	if t.started && offset < t.position {
		panic(fmt.Sprintf("offsets: offset %d delivered at position %d", offset, t.position))
	}
	if t.tail-t.head == uint64(len(t.offsets)) {
		t.grow()
	}
	seq := t.tail
	i := seq & uint64(len(t.offsets)-1)
	t.offsets[i], t.states[i] = offset, 1
	t.tail++
	t.outstanding++
	t.targets++
	t.position, t.started = offset+1, true
	return seq
}

// Require makes the record seq wait for targets (1 to MaxTargets) settlements
// in place of one. It must come before the first of them.
func (t *Tracker) Require(seq uint64, targets int) {
	if targets < 1 || targets > MaxTargets {
		panic(fmt.Sprintf("offsets: a record cannot wait for %d targets", targets))
	}
	i, ok := t.index(seq)
	if !ok || t.states[i] != 1 {
		panic(fmt.Sprintf("offsets: targets set for record %d, which is settled or was never delivered", seq))
	}
	t.states[i] = uint8(targets)
	t.targets += targets - 1
}

// Settle says that one target of each record of seqs is done with it: handled,
// or given up. It returns how many records waited for nothing else and are now
// handled, or abandoned because a target gave them up. An abandoned record
// holds Committable for good: only another delivery, in another assignment,
// can handle it.
//
// Each target settles a record once. A settlement too many is a bug of the
// caller: it changes nothing and is reported as a *SettledError, after the
// other records were settled.
func (t *Tracker) Settle(seqs []uint64, handled bool) (nHandled, nAbandoned int, err error) {
	var wrong *SettledError
	for _, seq := range seqs {
		i, ok := t.index(seq)
		if !ok || t.states[i]&waiting == 0 {
			if mutantFirst {
				continue
			}
			if wrong == nil {
				wrong = &SettledError{Seq: seq}
			}
			wrong.Count++
			continue
		}
		s := t.states[i] - 1
		t.targets--
		if mutantFirst {
			t.targets -= int(s & waiting)
			s &^= waiting
		}
		if !handled {
			s |= abandoned
		}
		t.states[i] = s
		switch s {
		case 0:
			nHandled++
		case abandoned:
			nAbandoned++
		}
	}
	t.outstanding -= nHandled + nAbandoned
	if mutantHighest && handled {
		t.head = max(t.head, slices.Max(seqs)+1)
	}
	mask := uint64(len(t.states) - 1)
	for t.head < t.tail && t.states[t.head&mask] == 0 {
		t.head++
	}
	if wrong != nil {
		return nHandled, nAbandoned, wrong
	}
	return nHandled, nAbandoned, nil
}

// Undeliver takes back the record seq and all after it, none of which any
// target has settled: they were delivered but went nowhere. Position falls to
// the offset of seq. It returns how many records it took back.
func (t *Tracker) Undeliver(seq uint64) int {
	if seq >= t.tail {
		return 0
	}
	i, ok := t.index(seq)
	if !ok {
		panic(fmt.Sprintf("offsets: record %d taken back after it was handled", seq))
	}
	for s := seq; s < t.tail; s++ {
		j, _ := t.index(s)
		if t.states[j]&waiting == 0 || t.states[j]&abandoned != 0 {
			panic(fmt.Sprintf("offsets: record %d taken back after it was settled", s))
		}
		t.targets -= int(t.states[j])
		if mutantBack {
			t.targets += int(t.states[j]) - 1
		}
	}
	n := int(t.tail - seq)
	t.position = t.offsets[i]
	t.tail = seq
	t.outstanding -= n
	return n
}

// Advance moves Position up to position: what lies between holds no record.
func (t *Tracker) Advance(position int64) {
	if mutantHole && t.started {
		return
	}
	if !t.started || position > t.position {
		t.position, t.started = position, true
	}
}

// Committable is the offset that may be committed: that of the first delivered
// record that is not handled, else Position. It is false before the first
// Deliver or Advance.
func (t *Tracker) Committable() (offset int64, ok bool) {
	if t.head < t.tail {
		return t.offsets[t.head&uint64(len(t.offsets)-1)], true
	}
	return t.position, t.started
}

// Position is the offset after the last one that was delivered or passed: the
// next record to fetch. It is false before the first Deliver or Advance.
func (t *Tracker) Position() (offset int64, ok bool) { return t.position, t.started }

// Outstanding is the number of records that wait for a target.
func (t *Tracker) Outstanding() int { return t.outstanding }

// Waiting is the number of settlements to come: each record that waits counts
// as often as it has targets that are not done with it.
func (t *Tracker) Waiting() int { return t.targets }

// Waits says whether the record seq waits for a target.
func (t *Tracker) Waits(seq uint64) bool {
	i, ok := t.index(seq)
	return ok && t.states[i]&waiting != 0
}

// Next is the sequence number that the next delivered record gets.
func (t *Tracker) Next() uint64 { return t.tail }

// Offset is the offset of the record seq; it is false once the record and all
// before it are handled.
func (t *Tracker) Offset(seq uint64) (offset int64, ok bool) {
	i, ok := t.index(seq)
	if !ok {
		return 0, false
	}
	return t.offsets[i], true
}

// Find returns the sequence number of the record at offset, if it waits for a
// target.
func (t *Tracker) Find(offset int64) (seq uint64, ok bool) {
	n := sort.Search(int(t.tail-t.head), func(i int) bool {
		return t.offsets[(t.head+uint64(i))&uint64(len(t.offsets)-1)] >= offset
	})
	seq = t.head + uint64(n)
	i, ok := t.index(seq)
	return seq, ok && t.offsets[i] == offset && t.states[i]&waiting != 0
}

// index is where record seq lies in the ring.
func (t *Tracker) index(seq uint64) (uint64, bool) {
	if seq < t.head || seq >= t.tail {
		return 0, false
	}
	return seq & uint64(len(t.offsets)-1), true
}

// grow doubles the full ring.
func (t *Tracker) grow() {
	n := max(8, 2*len(t.offsets))
	offsets, states := make([]int64, n), make([]uint8, n)
	for seq := t.head; seq < t.tail; seq++ {
		i, j := seq&uint64(len(t.offsets)-1), seq&uint64(n-1)
		offsets[j], states[j] = t.offsets[i], t.states[i]
		if mutantGrow {
			states[j] &= waiting
		}
	}
	t.offsets, t.states = offsets, states
}

// SettledError reports settlements of records that waited for none.
type SettledError struct {
	Seq   uint64 // the first of them
	Count int
}

func (e *SettledError) Error() string {
	return fmt.Sprintf("offsets: %d settlements too many, the first of record %d: it was settled before or never delivered", e.Count, e.Seq)
}
