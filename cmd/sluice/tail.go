package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// sourcePartition names a source partition.
type sourcePartition struct {
	topic  string
	number int32
}

// tail reads partitions of topics from given offsets on and knows when it has
// seen all that was written before it was asked.
type tail struct {
	client    *kgo.Client
	kafka     *kadm.Client
	committed bool // records of open transactions are not read
	next      map[sourcePartition]int64
}

// newTail returns a tail that must be closed; opts are those of every client,
// read_committed among them where that is configured.
func newTail(from map[sourcePartition]int64, committed bool, opts []kgo.Opt) (*tail, error) {
	offsets := map[string]map[int32]kgo.Offset{}
	t := &tail{committed: committed, next: map[sourcePartition]int64{}}
	for p, offset := range from {
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.Offset{}
		}
		offsets[p.topic][p.number] = kgo.NewOffset().At(offset)
		t.next[p] = offset
	}
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	var err error
	t.client, err = kgo.NewClient(append(slices.Clip(opts),
		kgo.ConsumePartitions(offsets),
		kgo.FetchIsolationLevel(level),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // what is deleted while it is read must not be passed over
		kgo.KeepControlRecords(),                    // they take offsets
	)...)
	if err != nil {
		return nil, err
	}
	t.kafka = kadm.NewClient(t.client)
	return t, nil
}

func (t *tail) close() { t.client.Close() }

// idle is how long nothing comes before it is asked whether anything is to.
const idle = time.Second

// catchUp reads to what is the end of every partition when it is called, and
// hands each record to see, in the order of its partition.
func (t *tail) catchUp(ctx context.Context, see func(*kgo.Record)) error {
	behind, err := t.behind(ctx)
	if err != nil {
		return err
	}
	for len(behind) > 0 {
		polling, cancel := context.WithTimeout(ctx, idle)
		fetches := t.client.PollFetches(polling)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range fetches.Errors() {
			if errors.Is(e.Err, context.DeadlineExceeded) {
				continue
			}
			return fmt.Errorf("reading %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
		for r := range fetches.RecordsAll() {
			p := sourcePartition{r.Topic, r.Partition}
			t.next[p] = r.Offset + 1
			if !r.Attrs.IsControl() {
				see(r)
			}
		}
		for p, end := range behind {
			if t.next[p] < end && fetches.Empty() {
				// Compaction may have left nothing up to the end. The client
				// does not tell.
				if t.next[p], err = t.passHole(ctx, p, end); err != nil {
					return err
				}
			}
			if t.next[p] >= end {
				delete(behind, p)
			}
		}
	}
	return nil
}

// behind returns the ends of the partitions that have not been read to theirs.
func (t *tail) behind(ctx context.Context) (map[sourcePartition]int64, error) {
	var topics []string
	for p := range t.next {
		topics = append(topics, p.topic)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	if len(topics) == 0 {
		return nil, nil
	}
	list := t.kafka.ListEndOffsets
	if t.committed {
		list = t.kafka.ListCommittedOffsets
	}
	ends, err := offsets(list(ctx, topics...))
	if err != nil {
		return nil, fmt.Errorf("last offsets: %w", err)
	}
	behind := map[sourcePartition]int64{}
	for p, next := range t.next {
		if end := ends[p.topic][p.number]; next < end {
			behind[p] = end
		}
	}
	return behind, nil
}

// passHole returns end where the log of p holds no record between the tail's
// next offset and end, else that next offset.
func (t *tail) passHole(ctx context.Context, p sourcePartition, end int64) (int64, error) {
	for at := t.next[p]; at < end; {
		raw, err := t.fetch(ctx, p, at)
		if err != nil {
			return 0, fmt.Errorf("reading %s/%d at %d: %w", p.topic, p.number, at, err)
		}
		if len(raw) == 0 {
			return end, nil
		}
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(raw); err != nil {
			return t.next[p], nil //nolint:nilerr // the client reads on, and says what it cannot read
		}
		after := batch.FirstOffset + int64(batch.LastOffsetDelta) + 1
		if batch.NumRecords > 0 || after <= at {
			return t.next[p], nil
		}
		at = after
	}
	return end, nil
}

// fetch reads the batches at an offset past the client's own position.
func (t *tail) fetch(ctx context.Context, p sourcePartition, at int64) ([]byte, error) {
	return rawFetch(ctx, t.client, p, at, t.committed)
}

// rawFetch reads the batches of a partition at an offset, as the broker sends
// them; none where it has none there.
func rawFetch(ctx context.Context, client *kgo.Client, p sourcePartition, at int64, committed bool) ([]byte, error) {
	metadata, err := kadm.NewClient(client).Metadata(ctx, p.topic)
	if err != nil {
		return nil, err
	}
	detail := metadata.Topics[p.topic]
	leader, ok := detail.Partitions[p.number]
	if !ok || leader.Leader < 0 {
		return nil, errors.New("the partition has no leader now: try again")
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MinBytes, req.MaxWaitMillis = 1<<20, 0, 100
	if committed {
		req.IsolationLevel = 1
	}
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = p.topic, detail.ID
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.FetchOffset, part.PartitionMaxBytes = p.number, at, 1<<20
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	answer, err := client.Broker(int(leader.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	res, ok := answer.(*kmsg.FetchResponse)
	if !ok || len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1 {
		return nil, errors.New("an answer without the partition")
	}
	got := res.Topics[0].Partitions[0]
	return got.RecordBatches, kerr.ErrorForCode(got.ErrorCode)
}

// afterBatch returns the offset behind a batch that begins at or below at, by
// its header, which may be whole where its content is not; else the offset
// behind at.
func afterBatch(raw []byte, at int64) int64 {
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(raw); err == nil && batch.LastOffsetDelta >= 0 {
		if last := batch.FirstOffset + int64(batch.LastOffsetDelta); last >= at {
			return last + 1
		}
	}
	return at + 1
}
