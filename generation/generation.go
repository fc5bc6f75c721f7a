// Package generation keeps, per topic, the recorded generations that stand
// above the offset in the version of every keyed document (DESIGN 5.2).
//
// Its promise: which generation a record belongs to depends on the topic's id,
// the partition, the offset and the recorded list, and on nothing else, so
// that it is the same on every replay; and of two records of one key the later
// one never belongs to the lower generation, whatever raises lie between them.
// A list only ever grows.
//
// It does no Kafka I/O: what a decision needs to know about the topic is
// handed in (Topic, Raise). Lists are kept behind Store.
package generation

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Max is the highest generation: ten bits of the version hold it.
const Max = 1023

// Entry is one recorded generation.
type Entry struct {
	Generation int    `json:"generation"` // 1 to Max
	TopicID    string `json:"topic_id"`
	// Partitions is the topic's partition count when the entry was made.
	Partitions int32 `json:"partitions"`
	// Start holds, by partition, the first offset that belongs to the entry. A
	// partition that is absent starts at 0.
	Start map[int32]int64 `json:"start,omitempty"`
}

// List is all that was recorded for one topic, oldest first. Its methods
// change neither the list nor its maps.
type List []Entry

// At returns the generation of a record: the last entry of the topic's id
// whose start is at or below the offset; 0 where there is none, which must
// never be written. The answer is the same for all offsets of the partition
// from this one up to, not including, until (MaxInt64: no end).
func (l List) At(topicID string, partition int32, offset int64) (generation int, until int64) {
	until = math.MaxInt64
	for _, e := range slices.Backward(l) {
		if e.TopicID != topicID {
			continue
		}
		start := e.Start[partition]
		if start < offset || start == offset && !mutantStart {
			return e.Generation, until
		}
		until = min(until, start)
	}
	return 0, until
}

// Highest returns the highest recorded generation, 0 for an empty list.
func (l List) Highest() int {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].Generation
}

// Validate reports what no list that this package made can hold: generations
// that do not grow or leave 1 to Max, an entry without topic id or partitions,
// a start for a partition that the entry does not have or below 0.
func (l List) Validate() error {
	last := 0
	for i, e := range l {
		switch {
		case e.Generation <= last || e.Generation > Max:
			return fmt.Errorf("entry %d: generation %d is not between %d and %d", i, e.Generation, last+1, Max)
		case e.TopicID == "":
			return fmt.Errorf("entry %d: no topic id", i)
		case e.Partitions < 1:
			return fmt.Errorf("entry %d: %d partitions", i, e.Partitions)
		}
		for p, start := range e.Start {
			if p < 0 || p >= e.Partitions || start < 0 {
				return fmt.Errorf("entry %d: start %d of partition %d among %d", i, start, p, e.Partitions)
			}
		}
		last = e.Generation
	}
	return nil
}

// Extends reports, as an error, what keeps l from being earlier with entries
// added: the one change that a recorded list may undergo.
func (l List) Extends(earlier List) error {
	if len(l) < len(earlier) {
		return fmt.Errorf("%d entries where %d were recorded", len(l), len(earlier))
	}
	for i, e := range earlier {
		if !e.equal(l[i]) {
			return fmt.Errorf("entry %d (generation %d) differs from the recorded one", i, e.Generation)
		}
	}
	return l.Validate()
}

func (e Entry) equal(o Entry) bool {
	return e.Generation == o.Generation && e.TopicID == o.TopicID && e.Partitions == o.Partitions && maps.Equal(e.Start, o.Start)
}

// Topic is a topic as its brokers and the group's commits describe it now.
type Topic struct {
	Name       string
	ID         string // must not be empty
	Partitions int32
	// AnyPartitions says that the partition count is of no consequence: ids
	// are positions or made by the server, so that no key moves.
	AnyPartitions bool
	// Committed is the highest generation in the metadata of the topic's
	// commits, under whatever topic id; 0 where none carries one.
	Committed int
}

func (t Topic) validate() error {
	if t.Name == "" || t.ID == "" || t.Partitions < 1 {
		return fmt.Errorf("generation: topic %q has id %q and %d partitions: its metadata is not known yet, try again", t.Name, t.ID, t.Partitions)
	}
	return nil
}

// Why says what is wrong between a topic and its list.
type Why string

// What Check can find.
const (
	// Recreated: the topic was deleted and made anew.
	Recreated Why = "the topic was re-created"
	// Repartitioned: keys moved to other partitions.
	Repartitioned Why = "its partition count changed"
	// Lost: commits carry a generation that is not recorded.
	Lost Why = "its commits carry a generation that the control index does not know (the control index was lost or is another one)"
	// Moved: it writes to another index than before, where other topics have
	// written in generations that are not below its own.
	Moved Why = "it writes to another index now, to which other topics have written in a generation that is not below its own: their documents would keep its records out"
)

// NeedsRaiseError says that records of a topic must not be written before its
// generation is raised: their versions would be below those of older records.
type NeedsRaiseError struct {
	Topic    Topic
	Recorded Entry // the last one; zero where nothing is recorded
	Why      Why
	// To is the generation that it needs at least; 0: any higher one.
	To int
}

// Error names the difference and the command that ends it.
func (e *NeedsRaiseError) Error() string {
	what := ""
	switch e.Why {
	case Recreated:
		what = fmt.Sprintf(" (id %s, recorded %s)", e.Topic.ID, e.Recorded.TopicID)
	case Repartitioned:
		what = fmt.Sprintf(" (%d, recorded %d)", e.Topic.Partitions, e.Recorded.Partitions)
	case Lost:
		what = fmt.Sprintf(" (%d, recorded %d)", e.Topic.Committed, e.Recorded.Generation)
	}
	to := ""
	if e.To > 0 {
		what = fmt.Sprintf(" (recorded %d)", e.Recorded.Generation)
		to = fmt.Sprintf(" --to %d", e.To)
	}
	return fmt.Sprintf("generation: topic %s: %s%s: stop every group that uses it and run: sluice generation raise --topic %s%s",
		e.Topic.Name, e.Why, what, e.Topic.Name, to)
}

// Check returns a *NeedsRaiseError where the topic is no longer what its last
// entry describes, or where nothing that fits its commits is recorded.
func (l List) Check(t Topic) error {
	if err := t.validate(); err != nil {
		return err
	}
	var last Entry
	if len(l) > 0 {
		last = l[len(l)-1]
	}
	switch {
	case t.Committed > last.Generation:
		return &NeedsRaiseError{Topic: t, Recorded: last, Why: Lost}
	case len(l) == 0:
		return errors.New("generation: nothing is recorded for topic " + t.Name)
	case t.ID != last.TopicID:
		return &NeedsRaiseError{Topic: t, Recorded: last, Why: Recreated}
	case t.Partitions != last.Partitions && !t.AnyPartitions:
		return &NeedsRaiseError{Topic: t, Recorded: last, Why: Repartitioned}
	}
	return nil
}
