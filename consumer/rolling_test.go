//go:build synctests

package consumer

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rolling is an upgrade of every replica of a group under load, one after the
// other, as a StatefulSet or a Deployment does it.
type rolling struct {
	*world
	replicas, partitions int

	// Guarded by world.mu.
	sent    map[tp][]time.Time // when each record was produced
	longest map[tp]time.Duration
	owner   map[tp]int // the replica that handled the last record
	moved   int        // how often that became another one
}

const (
	rollingBulk    = 50 * time.Millisecond // a bulk request
	rollingRecords = 500 * time.Millisecond
	rollingStart   = 4 * time.Second // from the end of a process to the next one's first line
)

// keepProtocols has a static member come back with what it said when it joined
// first. Kafka keeps the generation when such a member's protocol is the same by
// name; kfake wants its metadata to be the same too, in which a new process has
// no partitions yet.
func (r *rolling) keepProtocols() {
	first := map[string][]kmsg.JoinGroupRequestProtocol{}
	r.kafka.ControlKey(int16(kmsg.JoinGroup), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		join := kreq.(*kmsg.JoinGroupRequest)
		if join.InstanceID == nil {
			return nil, nil, false
		}
		if join.MemberID != "" {
			first[*join.InstanceID] = slices.Clone(join.Protocols)
		} else if protocols := first[*join.InstanceID]; protocols != nil {
			join.Protocols = protocols
		}
		return nil, nil, false
	})
}

// replica starts the process of replica i.
func (r *rolling) replica(i int, static bool, protocol string, inFlight *sync.WaitGroup) *member {
	m := r.start(func(s *sink, as []*act) {
		if len(as) > 0 {
			inFlight.Go(func() { pass(rollingBulk); s.index(as) })
		}
	}, func(c *Config, o *Options) {
		if static {
			c.InstanceID = "sluice-" + strconv.Itoa(i)
		}
		c.GroupProtocol = protocol
		c.SessionTimeout, c.RebalanceTimeout, c.DrainTimeout = 45*time.Second, time.Minute, 5*time.Second
		c.CommitInterval, c.Fetch.MaxWait = time.Second, 500*time.Millisecond
		o.Kafka = slices.Clone(r.dial)
	})
	m.sink.mu.Lock()
	m.sink.note = func(_ string, k tp, offset int64) { // r.mu is held
		r.longest[k] = max(r.longest[k], time.Since(r.sent[k][offset]))
		if last, ok := r.owner[k]; ok && last != i {
			r.moved++
		}
		r.owner[k] = i
	}
	m.sink.mu.Unlock()
	return m
}

// load produces a record to every partition, again and again, until done.
func (r *rolling) load(done <-chan struct{}) {
	for {
		records := make([]*kgo.Record, r.partitions)
		r.mu.Lock()
		for p := range records {
			k := tp{testTopic, int32(p)}
			// What is committed was checked then: looking at it again and again
			// would be most of the work.
			r.produced[k] = slices.DeleteFunc(r.produced[k], func(offset int64) bool { return offset < r.commits[k]-1 })
			records[p] = &kgo.Record{Topic: testTopic, Partition: int32(p), Key: []byte("k"), Value: []byte("{}")}
			r.produced[k] = append(r.produced[k], r.next[k])
			r.sent[k] = append(r.sent[k], time.Now())
			r.next[k]++
		}
		r.mu.Unlock()
		if err := r.client.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
			r.t.Error(err)
		}
		select {
		case <-done:
			return
		case <-time.After(rollingRecords):
		}
	}
}

// serving waits until all that is produced is handled as fast as it comes: the
// replica that was started last has its share.
func (r *rolling) serving(m *member) {
	r.t.Helper()
	r.wait("the replica's partitions", func() bool {
		s := m.Status().Partitions
		return len(s) > 0 && !slices.ContainsFunc(s, func(p PartitionStatus) bool { return p.State != StateRunning })
	})
}

// A rolling upgrade. With static membership no partition moves and the group
// keeps its generation: a partition stands still while its process is away.
// Without, every leave and join is a rebalance. docs/scaling.md has the figures
// of 1,000 partitions over 50 replicas (SLUICE_ROLLING=1000/50).
func TestRollingUpgrade(t *testing.T) {
	replicas, partitions := 5, 50
	if size := os.Getenv("SLUICE_ROLLING"); size != "" {
		if _, err := fmt.Sscanf(size, "%d/%d", &partitions, &replicas); err != nil {
			t.Fatalf("SLUICE_ROLLING=%s is not PARTITIONS/REPLICAS", size)
		}
	}
	for _, test := range []struct {
		name, protocol string
		static         bool
	}{
		{"static members", "classic", true},
		{"members that leave", "classic", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorldOver(t, new(kfake.VirtualNetwork), int32(partitions))
				r := &rolling{world: w, replicas: replicas, partitions: partitions, sent: map[tp][]time.Time{}, longest: map[tp]time.Duration{}, owner: map[tp]int{}}
				r.keepProtocols()
				var inFlight, producing sync.WaitGroup
				members := make([]*member, replicas)
				for i := range members {
					members[i] = r.replica(i, test.static, test.protocol, &inFlight)
				}
				done := make(chan struct{})
				producing.Go(func() { r.load(done) })
				w.wait("the partitions to be shared evenly", func() bool {
					shares := map[int]int{}
					for _, i := range r.owner {
						shares[i]++
					}
					return len(r.owner) == partitions && len(shares) == replicas && w.kafka.GroupInfo(testGroup).State == "Stable"
				})
				pass(10 * time.Second)
				generation := w.kafka.GroupInfo(testGroup).Epoch
				w.mu.Lock()
				clear(r.longest)
				calm := r.moved
				w.mu.Unlock()
				began := time.Now()
				for i, m := range members {
					if err := m.end(); err != nil {
						t.Error(err)
					}
					pass(rollingStart)
					members[i] = r.replica(i, test.static, test.protocol, &inFlight)
					r.serving(members[i])
					pass(time.Second) // until the next is upgraded
				}
				took := time.Since(began)
				close(done)
				producing.Wait()
				w.waitAllCommitted()
				generations := w.kafka.GroupInfo(testGroup).Epoch - generation
				w.mu.Lock()
				again := 0
				pauses := make([]time.Duration, 0, partitions)
				for k, d := range r.longest {
					pauses = append(pauses, d)
					for _, n := range w.handled[k] {
						again += n - 1
					}
				}
				moved := r.moved - calm
				w.mu.Unlock()
				slices.Sort(pauses)
				at := func(share float64) string {
					return pauses[int(share*float64(len(pauses)-1))].Round(10 * time.Millisecond).String()
				}
				t.Logf("%d partitions over %d replicas, %s: upgraded in %s, %d generations, %d partitions moved, %d records twice; the longest wait of a record, by partition: median %s, p99 %s, longest %s",
					partitions, replicas, test.name, took.Round(time.Second), generations, moved, again, at(0.5), at(0.99), at(1))
				if again > 0 {
					t.Errorf("%d records were delivered again after clean stops", again)
				}
				if test.static && (generations > 0 || moved > 0) {
					t.Errorf("static members: %d generations, %d partitions moved; want none", generations, moved)
				}
				if test.static && pauses[len(pauses)-1] > rollingStart+4*time.Second {
					t.Errorf("a partition stood still for %s, of which %s are the start of a process", at(1), rollingStart)
				}
				for _, m := range members {
					if err := m.end(); err != nil {
						t.Error(err)
					}
				}
				inFlight.Wait()
			})
		})
	}
}
