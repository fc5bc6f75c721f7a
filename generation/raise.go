package generation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Raise is what a raise needs to know. Every group that uses the topic with
// this control index must be empty while it is gathered and until the list is
// saved.
//
// What is wrong with the topic decides which offsets count:
//
//   - Its id is new, or nothing was recorded: none, all start at 0.
//   - Its partition count changed: LogEnds and LogEndsLater; with Diverged,
//     also Committed.
//   - Neither (versions of a foreign writer, a truncation): Committed and
//     Diverged.
type Raise struct {
	Topic
	// To is the new generation; 0 is the one after the highest known.
	To int
	// LogEnds are the log ends of the partitions, LogEndsLater the same read
	// again after a few seconds: producers that still write show by the
	// difference.
	LogEnds, LogEndsLater map[int32]int64
	// AcceptReordering raises although producers write: keys that they moved
	// to another partition before the raise may keep an older value.
	AcceptReordering bool
	// Committed are the lowest committed offsets of all groups that use the
	// topic with this control index, or the log's start where that is higher;
	// absent: 0.
	Committed map[int32]int64
	// Diverged are the first offsets, of the partitions that were truncated,
	// at which the log is no longer the one that was consumed.
	Diverged map[int32]int64
}

// ErrProducing refuses a raise after a change of the partition count while
// producers write.
var ErrProducing = errors.New("producers still write to it: stop them and try again, or accept with --accept-reordering that keys which moved between partitions may keep an older value")

// RewindError refuses a raise that would let records of an older generation,
// not read yet, overtake newer ones that are read already: the partitions must
// be read again from Offsets on first.
type RewindError struct {
	Topic   string
	Offsets map[int32]int64 // by partition
}

// Error names the partitions, the offsets and the remedy.
func (e *RewindError) Error() string {
	return fmt.Sprintf("generation: topic %s: other partitions still hold unread records from before its last raise; "+
		"reset these partitions to these offsets (or lower) with sluice reset, then raise again: %v", e.Topic, e.Offsets)
}

// Raise returns the list with the entries that p calls for added. Almost always
// that is one; where unread records lie on both sides of an earlier raise, the
// raises above it are repeated, so that all records from the new start on keep
// their order among themselves.
func (l List) Raise(p Raise) (List, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	known := max(l.Highest(), p.Topic.Committed)
	next := known + 1
	if p.To != 0 {
		next = p.To
	}
	switch {
	case next <= known:
		return nil, fmt.Errorf("generation: topic %s: --to %d: a generation only goes up, and %d is in use", p.Name, next, known)
	case next > Max:
		return nil, fmt.Errorf("generation: topic %s: %d is above the highest generation, %d", p.Name, next, Max)
	}

	grown := slices.Clone(l)
	add := func(start map[int32]int64) {
		grown = append(grown, Entry{Generation: next, TopicID: p.ID, Partitions: p.Partitions, Start: start})
		next++
	}
	last := Entry{}
	if len(l) > 0 {
		last = l[len(l)-1]
	}
	switch {
	case last.TopicID != p.ID:
		add(nil)
	case p.Partitions < last.Partitions:
		return nil, fmt.Errorf("generation: topic %s has %d partitions and had %d under the same id: its metadata is not settled, try again", p.Name, p.Partitions, last.Partitions)
	case p.Partitions > last.Partitions:
		ends, err := p.oldLogEnds(last.Partitions)
		if err != nil {
			return nil, err
		}
		// What was lost is made good first, as if the count had not changed:
		// the log ends must stand above every record that exists.
		if len(p.Diverged) > 0 {
			if err := l.repeat(p, p.unread(last.Partitions), add); err != nil {
				return nil, err
			}
		}
		add(ends)
	default:
		if err := l.repeat(p, p.unread(p.Partitions), add); err != nil {
			return nil, err
		}
	}
	if err := grown.Extends(l); err != nil {
		return nil, fmt.Errorf("generation: topic %s: cannot raise: %w", p.Name, err)
	}
	return grown, nil
}

// oldLogEnds is the start vector after a change of the partition count: the
// partitions that are new are absent from it.
func (p Raise) oldLogEnds(old int32) (map[int32]int64, error) {
	ends := make(map[int32]int64, old)
	for i := range old {
		end, ok := p.LogEnds[i]
		later, okLater := p.LogEndsLater[i]
		if !ok || !okLater {
			return nil, fmt.Errorf("generation: topic %s: the log end of partition %d is not known", p.Name, i)
		}
		if end != later && !p.AcceptReordering {
			return nil, fmt.Errorf("generation: topic %s: %w", p.Name, ErrProducing)
		}
		ends[i] = end
	}
	for i := old; i < p.Partitions; i++ {
		if p.LogEnds[i] != p.LogEndsLater[i] && !p.AcceptReordering {
			return nil, fmt.Errorf("generation: topic %s: %w", p.Name, ErrProducing)
		}
	}
	return ends, nil
}

// unread is the start vector of what must be written anew: of each of the
// first partitions, from what is not committed on, or from where its log
// changed if that is lower.
func (p Raise) unread(partitions int32) map[int32]int64 {
	start := make(map[int32]int64, partitions)
	for i := range partitions {
		start[i] = p.Committed[i]
		if offset, ok := p.Diverged[i]; ok {
			start[i] = min(start[i], offset)
		}
	}
	return start
}

// repeat adds an entry at start, which may lie below the starts of entries that
// are there, and then those entries anew: without that, records of two
// generations would fall into one, and keys that moved to another partition
// between the two would be compared by offset.
//
// The order also holds towards what stays below start only if no record there
// belongs to a generation above the lowest that is raised. Such a record was
// read before an older one of its key: raised above it, the older would win.
func (l List) repeat(p Raise, start map[int32]int64, add func(map[int32]int64)) error {
	lowest := Max
	for i, offset := range start {
		generation, _ := l.At(p.ID, i, offset)
		lowest = min(lowest, generation)
	}
	rewind := map[int32]int64{}
	for i, offset := range start {
		for _, e := range l.above(p.ID, lowest) {
			if first := e.Start[i]; first < offset {
				offset = first
				rewind[i] = first
			}
		}
	}
	if len(rewind) > 0 && !mutantRewind {
		return &RewindError{p.Name, rewind}
	}
	add(start)
	for _, e := range l.above(p.ID, lowest) {
		// What a truncated partition holds now from there on was written after
		// every raise, also where its offset is below an earlier start.
		again := maps.Clone(e.Start)
		for i, first := range again {
			if offset, ok := p.Diverged[i]; ok {
				again[i] = min(first, offset)
			}
		}
		add(again)
	}
	return nil
}

func (l List) above(topicID string, generation int) (above List) {
	for _, e := range l {
		if e.TopicID == topicID && e.Generation > generation {
			above = append(above, e)
		}
	}
	return above
}
