package consumer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// produceCut appends a batch whose header claims n records, of which the first
// ones can be read; its checksum is right.
func (w *world) produceCut(partition int32, n, readable int) {
	w.t.Helper()
	var records []byte
	for i := range readable {
		r := []byte{0, 0}                               // attributes, time
		r = binary.AppendVarint(r, int64(i))            // offset
		r = append(binary.AppendVarint(r, 1), 'k')      // key
		r = append(binary.AppendVarint(r, 2), '{', '}') // value
		r = append(r, 0)                                // headers
		records = append(binary.AppendVarint(records, int64(len(r))), r...)
	}
	records = append(records, 0x7f, 0xff) // a length that is more than there is
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(n - 1), NumRecords: int32(n), FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, Records: records,
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - 12)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 1000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = testTopic, w.kafka.TopicInfo(testTopic).TopicID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, batch.AppendTo(nil)
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(w.t.Context(), w.client.Broker(int(w.kafka.LeaderFor(testTopic, partition))))
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	k := tp{testTopic, partition}
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		w.produced[k] = append(w.produced[k], w.next[k])
		w.next[k]++
	}
}

// V15: a batch whose checksum is right and whose records cannot all be read, of
// which the client says nothing, is neither passed over nor asked for again for
// ever: its partition halts on it, with what was before it handled, others go
// on, and an operator discards it.
func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	for _, before := range []int{0, 5} {
		for _, readable := range []int{0, 2} {
			for _, after := range []int{0, 5} {
				t.Run(fmt.Sprintf("%d before, %d readable, %d after", before, readable, after), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, 2)
					if before > 0 {
						w.produce(0, before)
					}
					w.produceCut(0, 4, readable)
					if after > 0 {
						w.produce(0, after)
					}
					w.produce(1, 3)
					m := w.start(atOnce)
					s := m.waitState(0, StateHalted)
					if s.Halt.Kind != HaltUndecodable || s.Halt.Offset != int64(before) {
						t.Errorf("halt %+v", s.Halt)
					}
					w.produce(1, 3)
					w.wait("its neighbour", func() bool { return w.commits[tp{testTopic, 1}] == 6 })
					w.wait("what was before it", func() bool { return before == 0 || w.commits[tp{testTopic, 0}] == int64(before) })
					if n := m.total(outIndexed); n != uint64(before)+6 {
						t.Errorf("%d records indexed", n)
					}
					for o := range int64(4) {
						w.markHandled(int64(before) + o)
					}
					if err := m.Skip(t.Context(), testTopic, 0, int64(before), true); err != nil {
						t.Fatal(err)
					}
					w.produce(0, 3)
					w.waitAllCommitted()
					w.wait("the books", func() bool { return m.total(outIndexed) == uint64(before+after)+9 })
				})
			}
		}
	}
}

// A partition that is suspected for nothing goes on, with nothing lost: also
// where the log cannot be looked at for a while.
func TestSuspectedForNothing(t *testing.T) {
	w := newWorld(t, 1)
	m := w.start(shuffled(1))
	w.produce(0, 100)
	w.wait("some to be handled", func() bool { return m.total(outIndexed) > 0 })
	for range 20 {
		m.Consumer.suspect(testTopic, 0)
		w.produce(0, 50)
	}
	w.waitAllCommitted()
	if n := m.total(outIndexed); n != 1100 {
		t.Errorf("%d records indexed", n)
	}
}

func TestDecoding(t *testing.T) {
	blamed := ""
	d := decoding{suspect: func(topic string, _ int32) { blamed += topic }}
	expect := func(want string) {
		t.Helper()
		if blamed != want {
			t.Errorf("blamed %q, want %q", blamed, want)
		}
		blamed = ""
	}
	d.begin(3)
	d.end("a", 0, 3)
	d.end("a", 0, 0) // a wrong checksum
	d.begin(0)
	d.end("a", 0, 0) // compaction left nothing
	expect("")
	d.begin(7)
	d.end("a", 0, 0)
	expect("a")
	d.begin(10)
	d.begin(5)
	d.end("a", 0, 5)
	d.end("b", 0, 9)
	expect("b")
	d.begin(10)
	d.begin(5) // of a
	d.end("b", 0, 5)
	d.end("a", 0, 5)
	expect("a") // in b's place, in the one moment that is known of
	if len(d.claimed) != 0 {
		t.Errorf("left %v", d.claimed)
	}
}

// What was aborted before a batch that cannot be read stays away, and what the
// same producer wrote afterwards does not.
func TestInspectionKnowsTransactions(t *testing.T) {
	w := newWorld(t, 1)
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var committed []int64
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: testTopic, Key: []byte("k"), Value: []byte("{}")}
		if err := errors.Join(cl.ProduceSync(t.Context(), r).FirstErr(), cl.EndTransaction(t.Context(), end)); err != nil {
			t.Fatal(err)
		}
		if end == kgo.TryCommit {
			committed = append(committed, r.Offset)
		}
	}
	w.mu.Lock()
	w.produced[tp{testTopic, 0}], w.next[tp{testTopic, 0}] = committed, 6
	w.mu.Unlock()
	w.produceCut(0, 2, 1)
	m := w.start(atOnce)
	if s := m.waitState(0, StateHalted); s.Halt.Offset != 6 {
		t.Errorf("halt %+v", s.Halt)
	}
	w.wait("the commit before it", func() bool { return w.commits[tp{testTopic, 0}] == 6 })
	if n := m.total(outIndexed); n != 2 {
		t.Errorf("%d records indexed", n)
	}
}

// BenchmarkDecoding is what the watch costs a batch.
func BenchmarkDecoding(b *testing.B) {
	var d decoding
	var blamed atomic.Bool
	d.suspect = func(string, int32) { blamed.Store(true) }
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			d.begin(100)
			d.end("t", 0, 100)
		}
	})
	if blamed.Load() {
		b.Error("blamed")
	}
}
