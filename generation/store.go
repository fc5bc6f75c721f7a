package generation

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Store keeps control documents: JSON objects by id, read in real time and
// changed by compare-and-set only.
//
// An error that says that the document is absent has a method
// NotFound() bool, one that says that it exists already or has changed since
// it was read has Conflict() bool; both may be wrapped.
type Store interface {
	// Get decodes the document into doc, a pointer, and returns its version.
	Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error)
	// Create stores a document that must not exist yet.
	Create(ctx context.Context, id string, doc any) error
	// Update replaces the document if its version is still this one.
	Update(ctx context.Context, id string, doc any, seqNo, primaryTerm int64) error
}

// Format is the version of the control document's layout. A document of a
// later one is refused: it may hold rules that this program does not know.
const Format = 1

// document is the control document `generation:<topic>`.
type document struct {
	Format  int    `json:"format"`
	Topic   string `json:"topic"`
	Entries List   `json:"entries"`
}

// ID returns the id of a topic's control document.
func ID(topic string) string { return "generation:" + topic }

// attempts bounds how often a compare-and-set is tried anew. Writers are few:
// replicas at first sight of a topic, and one operator.
const attempts = 5

// Load reads a topic's list, in real time; it is empty where nothing is
// recorded.
func Load(ctx context.Context, s Store, topic string) (List, error) {
	list, _, _, err := load(ctx, s, topic)
	return list, err
}

func load(ctx context.Context, s Store, topic string) (list List, seqNo, primaryTerm int64, err error) {
	var doc document
	seqNo, primaryTerm, err = s.Get(ctx, ID(topic), &doc)
	switch {
	case isNotFound(err):
		return nil, 0, 0, nil
	case err != nil:
		return nil, 0, 0, fmt.Errorf("generation: topic %s: reading its generations: %w", topic, err)
	case doc.Format > Format:
		return nil, 0, 0, fmt.Errorf("generation: topic %s: control document %s has format %d, this program knows %d: update Sluice", topic, ID(topic), doc.Format, Format)
	case doc.Format < 1 || doc.Topic != topic || len(doc.Entries) == 0:
		return nil, 0, 0, fmt.Errorf("generation: control document %s is not one of topic %s (format %d, topic %q, %d entries): restore it", ID(topic), topic, doc.Format, doc.Topic, len(doc.Entries))
	}
	if err := doc.Entries.Validate(); err != nil {
		return nil, 0, 0, fmt.Errorf("generation: control document %s is damaged: %w: restore it", ID(topic), err)
	}
	return doc.Entries, seqNo, primaryTerm, nil
}

// Ensure returns the list of a topic that is about to be consumed, and records
// the first entry where there is none: one above the highest generation of
// others, which are the other topics that write to the same index with ids that
// do not hold the topic (none with disjoint keys). Several replicas may call it
// at once; all get the same list.
//
// The list comes with a *NeedsRaiseError where the topic is not what it was:
// none of its records may be written then.
func Ensure(ctx context.Context, s Store, t Topic, others ...string) (List, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	for range attempts {
		list, err := Load(ctx, s, t.Name)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 || t.Committed > 0 {
			return list, list.Check(t)
		}
		first := Entry{Generation: 1, TopicID: t.ID, Partitions: t.Partitions}
		for _, other := range others {
			if other == t.Name {
				continue
			}
			theirs, err := Load(ctx, s, other)
			if err != nil {
				return nil, err
			}
			first.Generation = max(first.Generation, theirs.Highest()+1)
		}
		list = List{first}
		if err := list.Validate(); err != nil {
			return nil, fmt.Errorf("generation: topic %s: no generation is left above those of %v: %w", t.Name, others, err)
		}
		err = s.Create(ctx, ID(t.Name), document{Format, t.Name, list})
		if err == nil {
			return list, nil
		}
		if !isConflict(err) { // else another replica was first: read what it recorded
			return nil, fmt.Errorf("generation: topic %s: recording its first generation: %w", t.Name, err)
		}
	}
	return nil, fmt.Errorf("generation: topic %s: its control document comes and goes: is something else writing to it?", t.Name)
}

// writers is the control document `index:<index>`: every topic that has ever
// written to an index with ids that other topics' records may have.
type writers struct {
	Format int      `json:"format"`
	Index  string   `json:"index"`
	Topics []string `json:"topics"`
}

// Join notes that a topic writes to an index, given as its name or template,
// with ids that other topics' records may have, and returns the other topics
// that do or ever did: a topic that replaces another one must be above it
// although nothing reads the old one any more.
//
// A topic that was recorded before it came to this index, and is not above them,
// is refused with a *NeedsRaiseError, and not noted, until it is raised.
func Join(ctx context.Context, s Store, index, topic string) (others []string, err error) {
	id := "index:" + index
	for range attempts {
		doc := writers{Format: Format, Index: index}
		seqNo, primaryTerm, err := s.Get(ctx, id, &doc)
		absent := isNotFound(err)
		switch {
		case err != nil && !absent:
			return nil, fmt.Errorf("generation: topic %s: reading who writes to index %s: %w", topic, index, err)
		case doc.Format > Format:
			return nil, fmt.Errorf("generation: topic %s: control document %s has format %d, this program knows %d: update Sluice", topic, id, doc.Format, Format)
		}
		others = slices.DeleteFunc(slices.Clone(doc.Topics), func(t string) bool { return t == topic })
		if len(others) < len(doc.Topics) {
			return others, nil // it is there already
		}
		if err := mayMove(ctx, s, topic, others); err != nil {
			return nil, err
		}
		doc.Topics = append(doc.Topics, topic)
		if absent {
			err = s.Create(ctx, id, doc)
		} else {
			err = s.Update(ctx, id, doc, seqNo, primaryTerm)
		}
		if err == nil {
			return others, nil
		}
		if !isConflict(err) { // else another replica was faster
			return nil, fmt.Errorf("generation: topic %s: recording that it writes to index %s: %w", topic, index, err)
		}
	}
	return nil, fmt.Errorf("generation: topic %s: control document %s comes and goes: is something else writing to it?", topic, id)
}

// mayMove says whether a topic may come to an index that others have written to:
// if it is new, or above them all.
func mayMove(ctx context.Context, s Store, topic string, others []string) error {
	own, err := Load(ctx, s, topic)
	if err != nil || len(own) == 0 {
		return err
	}
	highest := 0
	for _, other := range others {
		theirs, err := Load(ctx, s, other)
		if err != nil {
			return err
		}
		highest = max(highest, theirs.Highest())
	}
	if own.Highest() > highest {
		return nil
	}
	return &NeedsRaiseError{Topic: Topic{Name: topic}, Recorded: own[len(own)-1], Why: Moved, To: highest + 1}
}

// Apply raises a topic's generation as p says and records the result by
// compare-and-set. The list before is returned too. Errors are those of
// List.Raise and of the store; in doubt, when an answer was lost, Load says
// what is recorded.
func Apply(ctx context.Context, s Store, p Raise) (before, after List, err error) {
	before, seqNo, primaryTerm, err := load(ctx, s, p.Name)
	if err != nil {
		return nil, nil, err
	}
	after, err = before.Raise(p)
	if err != nil {
		return before, nil, err
	}
	doc := document{Format, p.Name, after}
	if len(before) == 0 {
		err = s.Create(ctx, ID(p.Name), doc)
	} else {
		err = s.Update(ctx, ID(p.Name), doc, seqNo, primaryTerm)
	}
	switch {
	case isConflict(err):
		return before, nil, fmt.Errorf("generation: topic %s: its list changed meanwhile: look at sluice generation show, then raise again: %w", p.Name, err)
	case err != nil:
		return before, nil, fmt.Errorf("generation: topic %s: recording the raise: %w", p.Name, err)
	}
	return before, after, nil
}

func isNotFound(err error) bool {
	var e interface{ NotFound() bool }
	return errors.As(err, &e) && e.NotFound()
}

func isConflict(err error) bool {
	var e interface{ Conflict() bool }
	return errors.As(err, &e) && e.Conflict()
}
