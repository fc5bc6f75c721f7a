package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// records are the topics as a migration reads them again. What a record becomes
// depends on the record, the rules and the recorded generations alone, so that
// it is what the consumers write.
type records struct{ *servers }

var _ migrate.Log = records{}

// Parts implements migrate.Log.
func (r records) Parts(ctx context.Context, ends migrate.Offsets) (parts []migrate.LogPart, refusals []migrate.Refusal, err error) {
	refuse := func(remedy, format string, args ...any) {
		refusals = append(refusals, migrate.Refusal{Why: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if reset := r.cfg.Kafka.Reset; reset != "earliest" {
		refuse("", "kafka.reset is %s: the consumers may have begun behind the first record", reset)
	}
	for _, topic := range slices.Sorted(maps.Keys(ends)) {
		rules := r.mapper.Rules(topic)
		if rules.Version() != document.VersionSequence {
			refuse("", "the records of %s have versions that do not say which one a document was made from (documents.version: sequence does)", topic)
			continue
		}
		state, err := describeTopic(ctx, r.kafka, topic)
		if err != nil {
			return nil, nil, err
		}
		list, err := r.generations(ctx, topic)
		if err != nil {
			return nil, nil, err
		}
		if err := list.Check(generation.Topic{Name: topic, ID: state.id, Partitions: int32(len(state.ends))}); err != nil { //nolint:gosec // partitions are few
			refuse("then repeat", "%v", err)
			continue
		}
		if slices.ContainsFunc(list, func(e generation.Entry) bool { return e.TopicID != state.id }) {
			refuse("", "topic %s was made anew: what it held before is in the index only", topic)
		}
		if index, shared := r.mapper.SharedIndex(topic); shared {
			others, err := generation.Join(ctx, r.control, index, topic) // it has joined when it was consumed
			if err != nil {
				return nil, nil, err
			}
			for _, other := range others {
				if ends[other] == nil {
					refuse("", "topic %s has written to %s too and is not consumed any more", other, index)
				}
			}
		}
		deletes, err := deleteRetention(ctx, r.kafka, topic)
		if err != nil {
			return nil, nil, err
		}
		if deletes >= 0 && !rules.KeyedByKey() {
			refuse("", "topic %s is compacted by key, and documents.id is something else: records are gone whose documents are not", topic)
		}
		for _, p := range slices.Sorted(maps.Keys(ends[topic])) {
			if start := state.starts[p]; start > 0 {
				refuse("", "the log of %s/%d begins at %d: what was before is in the index only", topic, p, start)
				break // others will be the same
			}
			if first, _ := list.At(state.id, p, 0); first == 0 {
				refuse("", "no generation is recorded for the first records of %s/%d", topic, p)
				break
			}
			parts = append(parts, migrate.LogPart{Topic: topic, TopicID: state.id, Partition: p, End: ends[topic][p], Deletes: max(0, deletes)})
		}
	}
	return parts, refusals, nil
}

// newSide routes records to the index partitions only, with deletes as tombstone
// documents.
type newSide struct{ *partition.Router }

// Route implements document.Router.
func (n newSide) Route(customer []byte) partition.Route {
	return partition.Route{New: n.Router.Route(customer).New, Shadow: true}
}

// Legacy implements document.Router: a record without a customer goes there and
// not here.
func (newSide) Legacy() string { return "" }

// Open implements migrate.Log.
func (r records) Open(ctx context.Context, part migrate.LogPart, table *partition.Table, from, end int64) (migrate.LogReader, error) {
	p := sourcePartition{part.Topic, part.Partition}
	state, err := describeTopic(ctx, r.kafka, part.Topic)
	switch {
	case err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition):
		return nil, err
	case err != nil || state.id != part.TopicID:
		return nil, &migrate.LostError{Topic: part.Topic, Partition: part.Partition, Why: "the topic was made anew"}
	case from < end && state.starts[part.Partition] > from:
		return nil, begins(part, state.starts[part.Partition], from)
	}
	list, err := r.generations(ctx, part.Topic)
	if err != nil {
		return nil, err
	}
	opts, err := app.KafkaOptions(r.cfg)
	if err != nil {
		return nil, err
	}
	t, err := newTail(map[sourcePartition]int64{p: from}, r.cfg.Kafka.IsolationLevel != "read_uncommitted", append(opts, kgo.FetchMaxPartitionBytes(logFetch)))
	if err != nil {
		return nil, err
	}
	r.mapper.Use(newSide{partition.NewRouter(table, partition.CacheOptions{})})
	return &recordReader{records: r, tail: t, part: part, at: p, rules: r.mapper.Rules(part.Topic), list: list, end: end}, nil
}

func begins(part migrate.LogPart, start, from int64) *migrate.LostError {
	return &migrate.LostError{Topic: part.Topic, Partition: part.Partition, Why: fmt.Sprintf("the log begins at %d by now, and is needed from %d on", start, from)}
}

const (
	logFetch = 2 << 20 // bytes of a fetch, as they are sent
	logPage  = 2000    // records of a page
)

// recordReader reads one source partition up to an offset.
type recordReader struct {
	records
	tail  *tail
	part  migrate.LogPart
	at    sourcePartition
	rules *document.Rules
	list  generation.List
	end   int64

	result     document.Result
	generation int
	until      int64 // the generation holds below it
}

// Close implements migrate.LogReader.
func (r *recordReader) Close() { r.tail.close() }

// Next implements migrate.LogReader.
func (r *recordReader) Next(ctx context.Context) (migrate.LogPage, error) {
	page := migrate.LogPage{}
	for r.tail.next[r.at] < r.end {
		fetched, err := r.tail.some(ctx, r.at, r.end, logPage)
		if errors.Is(err, kerr.OffsetOutOfRange) {
			return page, r.outOfRange(ctx, err)
		}
		if err != nil {
			return page, err
		}
		for _, rec := range fetched {
			if err := r.add(rec, &page); err != nil {
				return page, err
			}
		}
		if len(page.Writes)+page.Ignored > 0 {
			break
		}
	}
	page.Next = r.tail.next[r.at]
	return page, nil
}

// outOfRange tells a log that begins later by now from one that was truncated or
// whose leader is behind.
func (r *recordReader) outOfRange(ctx context.Context, err error) error {
	state, errState := describeTopic(ctx, r.kafka, r.part.Topic)
	if errState != nil {
		return errState
	}
	if start, next := state.starts[r.part.Partition], r.tail.next[r.at]; start > next {
		return begins(r.part, start, next)
	}
	return err
}

// add puts what a record becomes into a page.
func (r *recordReader) add(rec *kgo.Record, page *migrate.LogPage) error {
	if rec.Offset >= r.until {
		if r.generation, r.until = r.list.At(r.part.TopicID, rec.Partition, rec.Offset); r.generation == 0 {
			return fmt.Errorf("%s/%d/%d: no generation is recorded for it", rec.Topic, rec.Partition, rec.Offset)
		}
	}
	r.rules.Map(rec, r.generation, &r.result)
	if r.result.Verdict != document.Send {
		page.Ignored++ // the consumers have not written it either
		return nil
	}
	w := migrate.LogWrite{Action: r.result.Action, Offset: rec.Offset}
	// The result's memory is used again for the next record.
	w.ID, w.Routing = bytes.Clone(w.ID), bytes.Clone(w.Routing)
	w.Target = strings.Clone(w.Target)
	if r.result.Changed {
		w.Body = bytes.Clone(w.Body)
	}
	page.Writes = append(page.Writes, w)
	return nil
}

// some waits for records of a partition below end, and returns up to most of
// them; none where the log holds none there. The tail's position moves behind
// them.
func (t *tail) some(ctx context.Context, p sourcePartition, end int64, most int) ([]*kgo.Record, error) {
	for t.next[p] < end {
		polling, cancel := context.WithTimeout(ctx, idle)
		fetches := t.client.PollRecords(polling, most)
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for _, e := range fetches.Errors() {
			if !errors.Is(e.Err, context.DeadlineExceeded) {
				return nil, fmt.Errorf("reading %s/%d: %w", e.Topic, e.Partition, e.Err)
			}
		}
		var records []*kgo.Record
		for r := range fetches.RecordsAll() {
			if r.Offset >= end {
				t.next[p] = end
				break
			}
			t.next[p] = r.Offset + 1
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
		}
		if len(records) > 0 {
			return records, nil
		}
		if fetches.Empty() {
			var err error
			if t.next[p], err = t.passHole(ctx, p, end); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}
