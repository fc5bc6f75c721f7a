package consumer

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// decoding finds batches whose checksum is right and whose records cannot all
// be read. Of those the client hands out what it could read and says nothing of
// the rest: it goes on behind the batch, or asks for it again for ever.
//
// It hears twice of each batch, from one goroutine: the pool of records is asked
// for as many as the header claims, then the hook tells how many there were. Two
// brokers' batches may be read at once, and which of them an answer belongs to
// is known by the number only. So a batch that reads as many records as another
// one claims, which is being read in the same moment, may be blamed on the other
// partition; that one is found to be in order then.
type decoding struct {
	mu sync.Mutex
	// claimed counts the batches that are being read, by the records that they
	// claim.
	claimed map[int]int
	// suspect is called with a partition of which a batch was cut short.
	suspect func(topic string, partition int32)
}

// watchedPool tells what the client is about to read.
type watchedPool struct {
	*recordPool
	decoding *decoding
}

// GetRecords implements kgo.PoolRecords.
func (p watchedPool) GetRecords(n int) []kgo.Record {
	p.decoding.begin(n)
	return p.recordPool.GetRecords(n)
}

// begin notes that a batch of n records is about to be read.
func (d *decoding) begin(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claimed == nil {
		d.claimed = make(map[int]int)
	}
	d.claimed[n]++
}

// end notes that n records of a batch were read. A batch that was not begun, for
// its checksum is wrong or it is not needed, ends with 0.
func (d *decoding) end(topic string, partition int32, n int) {
	d.mu.Lock()
	if d.claimed[n] > 0 {
		d.claimed[n]--
		if d.claimed[n] == 0 {
			delete(d.claimed, n)
		}
		d.mu.Unlock()
		return
	}
	least := -1
	for m := range d.claimed {
		if m > n && (least < 0 || m < least) {
			least = m
		}
	}
	if least >= 0 {
		if d.claimed[least]--; d.claimed[least] == 0 {
			delete(d.claimed, least)
		}
	}
	d.mu.Unlock()
	if least >= 0 {
		d.suspect(topic, partition)
	}
}

// suspect keeps what the client hands out of a partition from being taken until
// its log has been looked at. It is called before the client has the records of
// the batch.
func (c *Consumer) suspect(topic string, partition int32) {
	a := c.holding(tp{topic, partition})
	if a == nil || a.suspect.Swap(true) {
		return
	}
	c.pauses.set(pauseSuspect, a)
	c.tasks.Go(func() {
		for c.stopping.Err() == nil && c.holding(tp{topic, partition}) == a {
			from, found, err := c.inspect(c.stopping, a)
			if err == nil {
				c.do(func() { c.inspected(a, from, found) })
				return
			}
			c.log.Warn().Str("topic", topic).Int32("partition", partition).Err(err).Msg("a batch may hold records that cannot be read, and the log cannot be looked at; trying again")
			t := time.NewTimer(fetchRetry)
			select {
			case <-t.C:
			case <-c.stopping.Done():
			}
			t.Stop()
		}
	})
}

// inspection is what a look at a part of a log found: the records before the
// first batch that cannot be read, and that batch, if there is one.
type inspection struct {
	records []*kgo.Record
	bad     string // what is wrong; "": nothing
	at      int64  // the offset at which nothing more can be read
}

// inspect reads the log of a from its next offset on, from.
func (c *Consumer) inspect(ctx context.Context, a *assignment) (from int64, found inspection, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTries*fetchRetry)
	defer cancel()
	if from = a.fetchedNow(); from < 0 {
		if from, _, err = c.logRange(ctx, a); err != nil {
			return from, found, err
		}
	}
	rp, err := c.rawFetch(ctx, a.l.topic, a.id, from)
	if err != nil {
		return from, found, err
	}
	isolation := kgo.ReadCommitted()
	if !c.committedOnly() {
		isolation = kgo.ReadUncommitted()
	}
	return from, inspectBatches(c.unpack, kgo.ProcessFetchPartitionOpts{
		KeepControlRecords: true, Offset: from, IsolationLevel: isolation, Topic: a.l.topic, Partition: a.id,
	}, rp), nil
}

// The header of a batch: its first offset, length, leader epoch, magic, checksum,
// attributes, the last record's distance, and at the end the number of records.
const (
	batchLength    = 8
	batchMagic     = 16
	batchLastDelta = 23
	batchCount     = 57
	batchHeader    = 61
)

// inspectBatches counts the records of each batch.
func inspectBatches(unpack kgo.Decompressor, o kgo.ProcessFetchPartitionOpts, rp *kmsg.FetchResponseTopicPartition) (found inspection) {
	raw := rp.RecordBatches
	good := 0 // bytes
	for rest := raw; len(rest) >= batchHeader && rest[batchMagic] == 2; rest = raw[good:] {
		size := batchLength + 4 + int(binary.BigEndian.Uint32(rest[batchLength:]))
		if size > len(rest) {
			break // cut by the size of the fetch
		}
		first := int64(binary.BigEndian.Uint64(rest))
		last := first + int64(int32(binary.BigEndian.Uint32(rest[batchLastDelta:])))
		claimed := int(int32(binary.BigEndian.Uint32(rest[batchCount:])))
		one := kmsg.FetchResponseTopicPartition{Partition: rp.Partition, RecordBatches: rest[:size]}
		read := 0
		fp, _ := kgo.ProcessFetchPartition(o, &one, unpack, func(m kgo.FetchBatchMetrics) { read = m.NumRecords })
		if fp.Err != nil {
			break // of that the client itself tells
		}
		if last >= o.Offset && read < claimed {
			found.at = max(first, o.Offset)
			found.bad = fmt.Sprintf("the batch of offsets %d to %d claims %d records, of which %d can be read", first, last, claimed, read)
			break
		}
		good += size
	}
	// At once, since what was aborted shows in the batches' order only.
	fine := *rp
	fine.RecordBatches = raw[:good]
	fp, _ := kgo.ProcessFetchPartition(o, &fine, unpack, nil)
	found.records = fp.Records
	return found
}

// inspected queues the records before a batch that cannot be read, and halts the
// partition there. It runs in the poll loop, with turn held.
func (c *Consumer) inspected(a *assignment, from int64, found inspection) {
	if c.holding(tp{a.l.topic, a.id}) != a {
		return
	}
	a.suspect.Store(false)
	if at := a.fetchedNow(); at >= 0 && at != from {
		c.suspect(a.l.topic, a.id) // it was set back meanwhile
		return
	}
	if len(found.records) > 0 {
		if _, err := a.enqueue(found.records); err != nil {
			c.dataLoss(a, err)
			return
		}
		c.dispatcher.ready(a)
		c.checkMemory()
	}
	if found.bad != "" {
		c.halt(a, &Halt{Kind: HaltUndecodable, Offset: found.at, Type: found.bad, Since: c.now()})
	} else if at := a.fetchedNow(); at >= 0 {
		c.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{a.l.topic: {a.id: {Epoch: -1, Offset: at}}})
	}
	c.pauses.clear(pauseSuspect, a)
}
