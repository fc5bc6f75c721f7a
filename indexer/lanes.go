package indexer

import (
	"math/bits"
	"slices"
)

// The ordered actions of a target are spread over lanes by their ids' hashes, so
// that several requests can carry them at once. Each lane fills chunks of its
// own, whose cost must not be paid for a few actions each: a target has as many
// lanes as its share of the traffic needs, a power of two up to laneCount, and a
// target of which everything is has them all.
//
// The writers learn of another number with their next chunks. It must not
// change the order of any id's actions:
//
//   - An id is in one lane of a width, and another of another. So chunks for
//     another width wait, in t.later, until all lanes are empty and no request
//     holds one; meanwhile all ordered chunks that come wait behind them.
//   - Nothing waits there for long: while something does, the lanes are flushed
//     at once, and whatever empties a lane or frees it calls turn.
//   - What waits there counts in the target's queue like all else, and goes with
//     it: it is parked, drained, dropped and given back.

// laneCount is the most lanes of a target, and so the most requests that its
// ordered actions can be in at once. A power of two.
const laneCount = 64

// laneOf returns the number of a hash's lane among so many.
func laneOf(hash uint64, width int) int { return int(hash) & (width - 1) }

// widthFor returns how many lanes a share of part in all is worth: the least
// power of two that is no less than the same share of laneCount.
func widthFor(part, all int64) int {
	n := (laneCount*part + all - 1) / all
	return 1 << bits.Len64(uint64(min(max(n, 1), laneCount))-1)
}

// begunTargets is about how many targets can be there before a new one begins
// with half of the lanes: of thousands that come at once none is worth many.
const begunTargets = 8

// begin gives a target the lanes that it has until the traffic tells.
func (t *target) begin(others int) {
	t.width = widthFor(begunTargets, int64(begunTargets+others))
	t.wanted.Store(int32(t.width))
}

// measure counts what is published for a target, and decides with every
// FlushBytes of it how many lanes each of the targets is worth: more at once,
// fewer only where it is worth a quarter, since each change lets it wait.
func (x *Indexer) measure(t *target, bytes int64) {
	tr := &x.traffic
	if t.recentAt != tr.period {
		t.recent >>= min(tr.period-t.recentAt, 63)
		t.recentAt = tr.period
		tr.targets = append(tr.targets, t)
	}
	t.recent += bytes
	tr.recent += bytes
	if tr.since += bytes; tr.since < int64(x.cfg.FlushBytes) {
		return
	}
	for _, t := range tr.targets {
		width, now := widthFor(t.recent, tr.recent), int(t.wanted.Load())
		if width > now || width <= now/4 {
			t.wanted.Store(int32(width))
		}
	}
	clear(tr.targets)
	tr.targets = tr.targets[:0]
	tr.since = 0
	tr.recent /= 2
	tr.period++
}

// traffic is what was published of late. Half of it is forgotten each period.
type traffic struct {
	recent  int64     // bytes, of all targets
	since   int64     // bytes of this period
	period  uint64    // its number, from 1 on
	targets []*target // with bytes in this period
}

// put queues a chunk: in its lane, or to wait for the lanes that it is for.
func (t *target) put(c *chunk) {
	switch {
	case c.width == 0:
		t.lane(0, false).push(c)
	case c.width == t.width && len(t.later) == 0:
		t.lane(c.entries[0].hash, true).push(c)
	default:
		t.later = append(t.later, c)
		t.tally(int64(len(c.wire)))
		t.turn()
	}
}

// turn changes the lanes to those that what waits is for, as soon as the present
// ones are empty and no request holds them. Of several widths it is the least:
// what is of one lane of more is of one of fewer, too.
func (t *target) turn() {
	if len(t.later) == 0 || t.inUse() && !mutantLanes {
		return
	}
	later := t.later
	t.later = nil
	t.width = laneCount
	for _, c := range later {
		t.width = min(t.width, c.width)
	}
	for _, c := range later {
		t.tally(-int64(len(c.wire)))
		t.lane(c.entries[0].hash, true).push(c)
	}
}

// inUse says that an ordered lane has chunks, or is in a request.
func (t *target) inUse() bool {
	return slices.ContainsFunc(t.lanes[:], func(l *lane) bool { return l != nil && (l.busy || len(l.chunks) > 0) })
}

// turning says that there are lanes to be flushed for the sake of what waits
// for other ones.
func (t *target) turning() bool {
	return len(t.later) > 0 && slices.ContainsFunc(t.ready, func(l *lane) bool { return l.ordered })
}

// tally counts wire bytes that come to the target's queue, or leave it.
func (t *target) tally(bytes int64) {
	t.queued += bytes
	*t.all += bytes
}

// chunks yields all that is queued.
func (t *target) chunks(yield func(*chunk) bool) {
	for _, l := range append(t.lanes[:], t.unordered) {
		if l == nil {
			continue
		}
		for _, c := range l.chunks {
			if !yield(c) {
				return
			}
		}
	}
	for _, c := range t.later {
		if !yield(c) {
			return
		}
	}
}
