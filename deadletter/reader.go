package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Filter selects letters; what is empty selects all.
type Filter struct {
	Type  string // error type
	Topic string // that the record came from
	// Since and Until bound the time at which the letter was written: from
	// Since on, before Until.
	Since, Until time.Time
}

func (f Filter) selects(l *Letter) bool {
	return (f.Type == "" || f.Type == l.Type) &&
		(f.Topic == "" || f.Topic == l.Topic) &&
		(f.Since.IsZero() || !l.Stored.Time.Before(f.Since)) &&
		(f.Until.IsZero() || l.Stored.Time.Before(f.Until))
}

// Reader reads letters back.
type Reader struct {
	topic string
	kafka []kgo.Opt
}

// NewReader returns a reader of a dead-letter topic; kafka are the options of
// every client of this process.
func NewReader(topic string, kafka ...kgo.Opt) *Reader { return &Reader{topic: topic, kafka: kafka} }

// List reads the topic from its start to what is its end now, in order within
// each of its partitions. A record that is no letter, and a letter of which
// parts are missing, comes as an error that wraps ErrNotLetter, with Stored
// filled in; any other error ends the list.
func (r *Reader) List(ctx context.Context, f Filter) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		if err := r.list(ctx, f, yield); err != nil {
			yield(Letter{}, fmt.Errorf("reading the dead letters in %s: %w", r.topic, err))
		}
	}
}

// list calls yield until it returns false.
func (r *Reader) list(ctx context.Context, f Filter, yield func(Letter, error) bool) error {
	from, ends, err := r.bounds(ctx)
	if err != nil {
		return err
	}
	if len(ends) == 0 {
		return nil
	}
	client, err := kgo.NewClient(append(slices.Clip(r.kafka),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: from}),
		kgo.KeepControlRecords(), // they take offsets: without them the end may never be seen
	)...)
	if err != nil {
		return err
	}
	defer client.Close()

	halves := map[string]*whole{}
	for len(ends) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("partition %d: %w", e.Partition, e.Err)
		}
		for rec := range fetches.RecordsAll() {
			end, ok := ends[rec.Partition]
			if !ok || rec.Offset >= end {
				delete(ends, rec.Partition)
				continue
			}
			if rec.Offset == end-1 {
				delete(ends, rec.Partition)
			}
			if rec.Attrs.IsControl() {
				continue
			}
			l, complete, err := assemble(halves, rec)
			if err != nil {
				l = Letter{Stored: Stored{rec.Partition, rec.Offset, rec.Timestamp}}
			} else if !complete || !f.selects(&l) {
				continue
			}
			if !yield(l, err) {
				return nil
			}
		}
	}
	for _, h := range halves {
		if h.missing > 0 && !yield(Letter{Stored: h.stored}, fmt.Errorf("%w: %d of its %d parts are missing", ErrNotLetter, h.missing, len(h.parts))) {
			return nil
		}
	}
	return nil
}

// bounds returns where to begin and the ends of the partitions that hold
// anything.
func (r *Reader) bounds(ctx context.Context) (from map[int32]kgo.Offset, ends map[int32]int64, err error) {
	client, err := kgo.NewClient(r.kafka...)
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	if _, err := checkTopic(ctx, client, r.topic); err != nil {
		return nil, nil, err
	}
	adm := kadm.NewClient(client)
	starts, err := adm.ListStartOffsets(ctx, r.topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	lasts, err := adm.ListEndOffsets(ctx, r.topic)
	if err == nil {
		err = lasts.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	from, ends = map[int32]kgo.Offset{}, map[int32]int64{}
	lasts.Each(func(last kadm.ListedOffset) {
		start, ok := starts.Lookup(r.topic, last.Partition)
		if ok && start.Offset < last.Offset {
			from[last.Partition] = kgo.NewOffset().At(start.Offset)
			ends[last.Partition] = last.Offset
		}
	})
	return from, ends, nil
}

// whole is a letter that was cut into parts.
type whole struct {
	parts   [][]byte
	missing int
	stored  Stored
}

// assemble returns the letter that a record is or completes. A part that comes
// twice counts once: letters may be written again.
func assemble(halves map[string]*whole, r *kgo.Record) (l Letter, complete bool, err error) {
	l, part, parts, err := parse(r)
	if err != nil || parts == 1 {
		return l, err == nil, err
	}
	id := fmt.Sprintf("%s/%d/%d/%d", l.Topic, l.Partition, l.Offset, parts)
	h := halves[id]
	if h == nil {
		h = &whole{parts: make([][]byte, parts), missing: parts}
		halves[id] = h
	}
	h.stored = l.Stored
	if h.missing == 0 || h.parts[part-1] != nil {
		return l, false, nil
	}
	h.parts[part-1] = r.Value
	if h.missing--; h.missing > 0 {
		return l, false, nil
	}
	l.Value = slices.Concat(h.parts...)
	clear(h.parts)
	return l, true, nil
}

// IsNotLetter reports whether an error of List is about one record only, so
// that the list goes on.
func IsNotLetter(err error) bool { return errors.Is(err, ErrNotLetter) }
