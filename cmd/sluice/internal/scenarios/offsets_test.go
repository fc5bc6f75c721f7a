package scenarios

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/embedded"
)

// sooner gives a killed member up after three seconds.
const sooner = "kafka: {session_timeout: 3s}\n"

// Hard kill with work in flight: nothing was committed for it, all of it is
// there after a restart, and what had been applied is absorbed as stale.
func TestV01_HardKill(t *testing.T) {
	for name, c := range map[string]struct {
		fault   embedded.Fault
		applied bool
	}{
		"bulk dropped":              {embedded.Unanswered(), false},
		"bulk applied, answer lost": {embedded.Fault{Apply: true, Never: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.produce(records(500)...)
			held := w.es.Inject(embedded.Rule{API: "bulk", Fault: c.fault})
			p := w.launch(sooner)
			w.await("a bulk in flight", func() error {
				if held.Hits() == 0 || c.applied && w.es.Count(index) == 0 {
					return errors.New("none yet")
				}
				return nil
			})
			if code := p.end(syscall.SIGKILL); code != -1 {
				t.Fatalf("exit code %d", code)
			}
			held.Remove()
			if at := w.committed(topic, 0); at > 0 {
				t.Errorf("%d was committed, nothing was answered", at)
			}
			q := w.start(sooner)
			w.awaitDone(q)
			w.checkFold()
			// What the first process wrote is not written again.
			indexed, stale := q.outcomes("indexed"), q.outcomes("stale")
			if writes := len(w.es.Ops(index)); indexed+stale != 500 || writes != 500 || (stale > 0) != c.applied {
				t.Errorf("%d were indexed and %d stale after the restart, of 500 writes %d were accepted in all", indexed, stale, writes)
			}
		})
	}
}

// The destination's name has nothing to do with commits: after a clean stop no
// record is read again.
func TestV04_DestinationIsRewritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 3})
	w.must("PUT", "/events-a-1", "{}")
	w.must("POST", "/_aliases", `{"actions":[{"add":{"index":"events-a-1","alias":"events-a","is_write_index":true}}]}`)
	w.effect = func(r *kgo.Record) embedded.Effect {
		return embedded.Effect{Index: "events-" + string(r.Headers[0].Value), ID: string(r.Key), Version: sequence(r)}
	}
	batch := func(from int) []*kgo.Record {
		rs := make([]*kgo.Record, 300)
		for i := range rs {
			rs[i] = record(fmt.Sprintf("k%d", from+i), i)
			rs[i].Headers = []kgo.RecordHeader{{Key: "customer", Value: []byte{byte('a' + i%3)}}}
		}
		return rs
	}
	const yaml = `documents: {index: "events-${customer}", customer: "header:customer"}`
	w.produce(batch(0)...)
	p := w.start(yaml + "\nkafka: {commit_interval: 1h}") // the stop must commit
	written := func(n int) {
		t.Helper()
		w.await("documents", func() error {
			if got := w.es.Count("events-a-1") + w.es.Count("events-a-2") + w.es.Count("events-b") + w.es.Count("events-c"); got != n {
				return fmt.Errorf("%d", got)
			}
			return nil
		}, p)
	}
	written(300)
	// The alias moves on to another index in midstream.
	w.must("PUT", "/events-a-2", "{}")
	w.must("POST", "/_aliases", `{"actions":[{"add":{"index":"events-a-1","alias":"events-a","is_write_index":false}},{"add":{"index":"events-a-2","alias":"events-a","is_write_index":true}}]}`)
	w.produce(batch(1000)...)
	written(600)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	for name := range w.kafka.GroupInfo(group).Commits {
		if name != topic {
			t.Errorf("something was committed for %q", name)
		}
	}
	q := w.start(yaml)
	q.awaitHeld(3)
	w.produce(batch(2000)...)
	w.awaitDone(q)
	if n := q.sum("sluice_records_consumed_total"); n != 300 {
		t.Errorf("%v records were read after the restart, want the 300 new ones", n)
	}
	if n := w.es.Count("events-a-1") + w.es.Count("events-a-2") + w.es.Count("events-b") + w.es.Count("events-c"); n != 900 {
		t.Errorf("%d documents, want 900", n)
	}
}

// A commit that timed out at the client and is applied later does not have the
// last word: the group ends at the highest position.
func TestV05_LateDuplicateOfACommit(t *testing.T) {
	t.Run("timed out and applied", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		p := w.start("")
		w.produce(records(100)...)
		w.awaitDone(p)
		f := w.kafka.FailCommits(group, kerr.RequestTimedOut, 3)
		for i := range 5 {
			w.produce(records(10 * (i + 1))...)
		}
		w.await("the faults", func() error {
			if f.Hits() < 3 {
				return fmt.Errorf("%d", f.Hits())
			}
			return nil
		}, p)
		w.awaitDone(p)
		w.checkFold()
		if n := len(w.oracle.Backwards()); n != 0 {
			t.Errorf("%d commits went backwards", n)
		}
	})
}

// deliver hands a request to the broker as it was sent.
func (w *world) deliver(req kmsg.Request) {
	w.t.Helper()
	client, err := kgo.NewClient(w.kafka.ClientOptions()...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Request(context.Background(), req); err != nil {
		w.t.Fatal(err)
	}
}

// SIGTERM with a half-filled batch: flushed and committed at once, exit code 0,
// and nothing is read again.
func TestV10_SigtermWithAHalfFilledBatch(t *testing.T) {
	t.Parallel()
	const yaml = "indexer: {flush_interval: 60s}"
	w := newWorld(t, worldOptions{})
	w.produce(records(100)...)
	p := w.launch(yaml)
	w.await("100 records in the batch", func() error {
		if n := p.metric("sluice_records_in_flight"); n != 100 {
			return fmt.Errorf("%v in flight", n)
		}
		return nil
	})
	if n := w.es.Count(index); n != 0 {
		t.Fatalf("%d documents before the linger was over", n)
	}
	began := time.Now()
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 5*time.Second { // shutdown_timeout
		t.Errorf("it took %v", took)
	}
	w.checkFold()
	if at := w.committed(topic, 0); at != 100 {
		t.Errorf("committed %d of 100", at)
	}
	w.produce(records(1)...)
	q := w.start("")
	w.awaitDone(q)
	if n := q.sum("sluice_records_consumed_total"); n != 1 {
		t.Errorf("%v records were read after the restart, want the new one", n)
	}
}

// Partitions added while running: with position ids every record of them is
// read from its first; with keys as ids the topic halts until its generation
// is raised, and then every record is read.
func TestV11_PartitionsAdded(t *testing.T) {
	t.Run("position ids", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{partitions: 12})
		w.effect = nil
		p := w.start("documents: {id: position}")
		w.produceEach(12, 0)
		w.awaitDone(p)
		w.addPartitions(topic, 18)
		w.produceEach(18, 1) // before anybody has noticed
		w.awaitDone(p)
		if n := w.es.Count(index); n != 30 {
			t.Errorf("%d documents, want 30", n)
		}
	})
	t.Run("key ids", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{partitions: 12})
		p := w.start("")
		w.produceEach(12, 0)
		w.awaitDone(p)
		w.addPartitions(topic, 18)
		w.produceEach(18, 1)
		for i := range int32(18) {
			if h := p.awaitHalt(topic, i); h.Kind != consumer.HaltGeneration || !strings.Contains(h.Type, "sluice generation raise --topic events") {
				t.Fatalf("partition %d: %+v", i, h)
			}
		}
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		w.raise("", topic, "--accept-reordering")
		w.awaitDone(w.start(""))
		w.checkFold()
	})
	t.Run("latest is an explicit choice", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		if p := w.start(""); strings.Contains(p.log.String(), "latest") || w.config("").Kafka.Reset != "earliest" {
			t.Error("the default is not earliest")
		}
		if p := w.start("kafka: {reset: latest}"); !strings.Contains(p.log.String(), "kafka.reset is latest: records that are written before a partition is first seen are never read") {
			t.Errorf("no warning: %s", p.log)
		}
	})
}

// addPartitions makes the topic have n.
func (w *world) addPartitions(name string, n int) {
	w.t.Helper()
	if _, err := w.admin.UpdatePartitions(context.Background(), n, name); err != nil {
		w.t.Fatal(err)
	}
}

// produceEach writes one record to each of the first n partitions, with keys
// that are the same in every round.
func (w *world) produceEach(n, round int) {
	w.t.Helper()
	for i := range n {
		r := record(fmt.Sprintf("k%d", (i+5*round)%n), 100*round+i)
		r.Partition = int32(i)
		w.produceTo(r)
	}
}

// Compaction leaves holes in the middle, at batches' ends and at the end of the
// log: what is left is indexed, and the lag is 0.
func TestV12_CompactionHoles(t *testing.T) {
	const compacted = "compacted"
	const yaml = "kafka: {topics: [compacted]}"
	for name, reading := range map[string]bool{"before it is read": false, "while it is read": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			if err := w.kafka.CreateTopic(compacted, 1, map[string]string{
				"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0",
			}); err != nil {
				t.Fatal(err)
			}
			w.effect = nil // of a record that is gone before it is read nothing is to be seen
			var p *program
			if reading {
				p = w.start(yaml)
			}
			write := func(rs ...*kgo.Record) {
				for _, r := range rs {
					r.Topic = compacted
				}
				w.produce(rs...)
			}
			for round := range 5 {
				var batch []*kgo.Record
				for i := range 20 {
					batch = append(batch, record(fmt.Sprintf("k%d", i%(7+round)), 100*round+i))
				}
				write(batch...)
				w.kafka.Compact()
			}
			write(tombstone("k0"), tombstone("k1"), tombstone("k2"))
			w.kafka.Compact()
			w.kafka.Compact() // tombstones go one round later
			if p == nil {
				p = w.start(yaml)
			}
			w.await("lag 0", func() error {
				if s, ok := p.partition(compacted, 0); !ok || s.Lag != 0 || s.End != 103 {
					return fmt.Errorf("%+v", s)
				}
				return nil
			}, p)
			w.checkFold()
			if n := p.sum("sluice_records_consumed_total"); n > 60 && !reading {
				t.Errorf("%v records were read: nothing was compacted", n)
			}
		})
	}
}

// Of transactions exactly the committed records are indexed; the lag is 0
// although the logs end with markers.
func TestV13_AbortedTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 3})
	p := w.start("")
	ctx := t.Context()
	done := make(chan error, 3)
	var want [3]map[string]string
	for producer := range 3 {
		go func() {
			done <- func() error {
				want[producer] = map[string]string{}
				client, err := kgo.NewClient(append(w.kafka.ClientOptions(), kgo.TransactionalID(fmt.Sprint("t", producer)), kgo.DefaultProduceTopic(topic))...)
				if err != nil {
					return err
				}
				defer client.Close()
				for i := range 60 {
					if err := client.BeginTransaction(); err != nil {
						return err
					}
					commit, n := kgo.TryCommit, 3
					switch i % 20 {
					case 7:
						commit = kgo.TryAbort
					case 13:
						commit, n = kgo.TryAbort, 0
					}
					for j := range n {
						key, value := fmt.Sprintf("p%d-%d", producer, (i+j)%25), fmt.Sprintf(`{"n":%d}`, 10*i+j)
						if err := client.ProduceSync(ctx, &kgo.Record{Key: []byte(key), Value: []byte(value)}).FirstErr(); err != nil {
							return err
						}
						if commit == kgo.TryCommit {
							want[producer][key] = value
						}
					}
					if err := client.EndTransaction(ctx, commit); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	w.awaitDone(p)
	all := map[string]string{}
	for _, part := range want {
		for k, v := range part {
			all[k] = v
		}
	}
	w.checkIndex(index, all)
	if n := p.sum("sluice_records_consumed_total"); n != 3*54*3 {
		t.Errorf("%v records were read, want those of 3 times 54 transactions of 3", n)
	}
	w.await("the lag metric to be 0", func() error {
		if n := p.sum("sluice_consumer_lag"); n != 0 {
			return fmt.Errorf("it is %v", n)
		}
		return nil
	}, p)
}

// A truncated log is reported as data loss, with what is lost, and never passed
// over; other partitions go on.
func TestV14_TruncatedLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2, brokers: 2})
	p := w.start("")
	w.produceEach(2, 0)
	for range 9 {
		w.produceEach(2, 1)
	}
	w.awaitDone(p)
	// The new leader has only seen 5 of the 10 records of partition 0.
	w.truncated(0, 5)
	if err := w.kafka.MoveTopicPartition(topic, 0, 1-w.kafka.LeaderFor(topic, 0)); err != nil {
		t.Fatal(err)
	}
	h := p.awaitHalt(topic, 0)
	if h.Kind != consumer.HaltDataLoss || h.Offset != 10 || !strings.Contains(h.Type, "5") {
		t.Errorf("%+v", h)
	}
	if n := p.sum("sluice_data_loss_total"); n != 1 {
		t.Errorf("%v losses are counted", n)
	}
	r := record("other", 1)
	r.Partition = 1
	w.produceTo(r)
	w.await("the other partition to go on", func() error {
		if at := w.committed(topic, 1); at != 11 {
			return fmt.Errorf("committed %d", at)
		}
		return nil
	}, p)
}

// truncated makes brokers say that the epochs before the present one of a
// partition ended at an offset.
func (w *world) truncated(partition int32, end int64) {
	w.epochsEnd(end, func(r *kmsg.OffsetForLeaderEpochRequest) bool {
		return len(r.Topics) == 1 && len(r.Topics[0].Partitions) == 1 && r.Topics[0].Partitions[0].Partition == partition
	})
}

// epochsEnd makes brokers say of partitions that every epoch ended at an offset.
func (w *world) epochsEnd(end int64, which func(*kmsg.OffsetForLeaderEpochRequest) bool) {
	w.kafka.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		r := req.(*kmsg.OffsetForLeaderEpochRequest)
		resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, p.LeaderEpoch, end
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, which(r)
	})
}

// produceGarbage appends a batch of n records to a partition whose checksum is
// right and whose content is no gzip.
func (w *world) produceGarbage(partition int32, n int32) {
	w.t.Helper()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: 1, LastOffsetDelta: n - 1, NumRecords: n,
		FirstTimestamp: time.Now().UnixMilli(), MaxTimestamp: time.Now().UnixMilli(),
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, Records: []byte("this is no gzip at all"),
	}
	raw := batch.AppendTo(nil)
	batch.Length = int32(len(raw) - 12)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 1000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.TopicID = topic, w.kafka.TopicInfo(topic).TopicID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, batch.AppendTo(nil)
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	client, err := kgo.NewClient(w.kafka.ClientOptions()...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	resp, err := req.RequestWith(context.Background(), client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// One connection that never answers: the request's own limit ends it, it is
// sent again on another connection, and the others never wait.
func TestV18_StuckConnection(t *testing.T) {
	t.Parallel()
	const limit = 15 * time.Second // so that the others are done before, however busy the machine is
	w := newWorld(t, worldOptions{partitions: 4})
	proxy := newProxy(t, w.es.URL())
	p := w.start("elasticsearch: {request_timeout: 15s, compression_level: 0}\nindexer: {requests: {min: 4, max: 4}, flush_documents: 25}", func(cfg *config.Config, o *app.Options) {
		o.Elastic = nil // real connections
		cfg.Elasticsearch.Addresses = []string{proxy.url}
	})
	w.produce(records(100)...)
	w.awaitDone(p)
	proxy.sticky.Store(true)
	began := time.Now()
	w.produce(records(400)...)
	w.await("the stuck connection", func() error {
		if proxy.sticked.Load() == 0 {
			return errors.New("nothing was sent over it")
		}
		return nil
	}, p)
	// All but what is stuck passes while it is stuck.
	w.await("the others", func() error {
		if n := p.outcomes("indexed"); n < 100+300 {
			return fmt.Errorf("%d are indexed", n)
		}
		return nil
	}, p)
	if took := time.Since(began); took > limit {
		t.Errorf("the others waited: %v", took)
	}
	w.awaitDone(p)
	w.checkFold()
	if took := time.Since(began); took < limit/2 {
		t.Errorf("nothing was stuck: %v", took)
	}
}

// proxy stands before a server and can let one connection go dumb.
type proxy struct {
	url     string
	sticky  atomic.Bool // the next bytes that come make their connection stick
	sticked atomic.Int32
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{url: "http://" + l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", strings.TrimPrefix(server, "http://"))
			if err != nil {
				_ = conn.Close()
				continue
			}
			mu.Lock()
			open = append(open, conn, up)
			mu.Unlock()
			wg.Go(func() { p.forward(up, conn) })
			wg.Go(func() { _, _ = io.Copy(conn, up); _ = conn.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return p
}

// forward passes on what the client sends until the connection sticks; then it
// reads and says nothing.
func (p *proxy) forward(up, conn net.Conn) {
	defer up.Close()
	buf := make([]byte, 32<<10)
	stuck := false
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if p.sticky.CompareAndSwap(true, false) {
			stuck = true
			p.sticked.Add(1)
		}
		if !stuck {
			if _, err := up.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// A newer program goes on where an older one committed and is of the same
// balancer family: it joins the running group, the older one leaves, and no
// record is read twice.
func TestV19_Upgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 6})
	w.effect = nil // what the older one did is not in the index
	w.produceEach(6, 0)
	w.produceEach(6, 1)
	// What version 1 of the layout committed, with a field of a later one.
	commits := kadm.Offsets{}
	for i := range int32(6) {
		commits.AddOffset(topic, i, 1, -1)
		o := commits[topic][i]
		o.Metadata = `{"v":1,"e":0,"g":1,"t":"` + w.topicID(topic) + `","n":6,"later":true}`
		commits[topic][i] = o
	}
	if err := w.admin.CommitAllOffsets(t.Context(), group, commits); err != nil {
		t.Fatal(err)
	}
	w.record(1)

	var families sync.Map
	w.kafka.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		join := req.(*kmsg.JoinGroupRequest)
		for _, p := range join.Protocols {
			families.Store(join.ProtocolType+" "+p.Name, true)
		}
		return nil, nil, false
	})
	older := w.start("")
	w.awaitDone(older)
	newer := w.start("")
	newer.awaitHeld(3)
	older.awaitHeld(3)
	w.produceEach(6, 2)
	w.awaitDone(older, newer)
	if err := older.stop(); err != nil {
		t.Fatal(err)
	}
	newer.awaitHeld(6)
	w.produceEach(6, 3)
	w.awaitDone(newer)
	if n := older.sum("sluice_records_consumed_total") + newer.sum("sluice_records_consumed_total"); n != 18 {
		t.Errorf("%v records were read, want the 18 that were not committed", n)
	}
	families.Range(func(family, _ any) bool {
		if family != "consumer cooperative-sticky" {
			t.Errorf("it joined with %q: a member of another version could not be beside it", family)
		}
		return true
	})
}

// record writes the first generation of the topic events into the control
// index, as an older program would have.
func (w *world) record(partitionGeneration int) {
	w.t.Helper()
	p := w.start("kafka: {group_id: other}")
	p.awaitHeld(len(w.kafka.PartitionInfos(topic)))
	w.await("the generation", func() error {
		if w.generations(topic).Highest() != partitionGeneration {
			return errors.New("not recorded")
		}
		return nil
	})
	if err := p.stop(); err != nil {
		w.t.Fatal(err)
	}
}

// Large records and an Elasticsearch that stalls, or takes its time over each
// of many requests: no more bytes are held than memory.limit, and the process
// stays within it and a fifth, also when all goes on.
func TestV47_BigRecordsAndASlowSink(t *testing.T) {
	const limit = 256 << 20
	for name, c := range map[string]struct {
		settings string
		held     float64 // at least, so that the limit matters
	}{
		// One request, the next one, and what is on its way to it.
		"stalled": {"", limit / 16},
		"slow":    {"indexer: {requests: {min: 64, max: 64}}\nelasticsearch: {compression_level: 0, request_timeout: 20s}", limit * 2 / 5},
		// What is on the wire is held twice, since these records do not shrink.
		"slow and compressed": {"indexer: {requests: {min: 64, max: 64}}\nelasticsearch: {request_timeout: 20s}", limit / 4},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{partitions: 12, kafka: []kfake.Opt{
				// An endless topic of records of 200 kB that takes no memory itself.
				kfake.SyntheticFetch(kfake.SyntheticBatch{Records: 1, RecordBytes: 200_000, RandomFrac: 1}),
			}})
			w.effect = nil
			// To its epochs that topic is empty: a member that was thrown out and
			// comes back would find it cut.
			w.epochsEnd(math.MaxInt64, func(*kmsg.OffsetForLeaderEpochRequest) bool { return true })
			release := make(chan struct{})
			fault := embedded.Held(release)
			if name != "stalled" {
				// Nothing is stored meanwhile: an endless topic would fill the
				// memory of the test's own Elasticsearch.
				fault = embedded.Unavailable()
				fault.Delay = 2 * time.Second
			}
			slowed := w.es.Inject(embedded.Rule{API: "bulk", Fault: fault})
			p := w.launch("documents: {id: position, format: raw}\nmemory: {limit: 256MiB}\n" + c.settings)
			var held float64
			full := func() error {
				before := held
				held = p.metric("sluice_memory_used_bytes")
				if held > limit {
					t.Fatalf("%.1f MiB are held, the limit is %d", held/(1<<20), limit>>20)
				}
				if paused := p.metric("sluice_partitions_paused"); paused != 12 || held != before || held < c.held {
					return fmt.Errorf("%v partitions are paused, %v bytes are held", paused, held)
				}
				return nil
			}
			w.await("memory to be full", full)
			// Requests end and are sent again, or others are, all the time.
			hits := slowed.Hits()
			w.await("more requests", func() error {
				if n := slowed.Hits(); n < hits+3 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			w.await("memory to be full again", full)
			slowed.Remove()
			close(release)
			read := p.metric("sluice_records_consumed_total")
			w.await("it to go on", func() error {
				if n := p.metric("sluice_records_consumed_total"); !(n > read+300) {
					return fmt.Errorf("%v records are read", n)
				}
				return nil
			})
			peak := p.highWater()
			t.Logf("%.1f MiB were held, resident were at most %d MiB", held/(1<<20), peak>>20)
			if peak > limit+limit/5 {
				t.Errorf("%d MiB were resident, the limit is %d", peak>>20, limit>>20)
			}
			if code := p.end(syscall.SIGKILL); code != -1 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
