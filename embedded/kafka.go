package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// KafkaConfig configures a [Kafka].
type KafkaConfig struct {
	// Brokers is the number of brokers; 1 by default.
	Brokers int
	// Topics are created at start: name and number of partitions.
	Topics map[string]int32
	// Virtual keeps the brokers off real sockets, as a synctest bubble needs it.
	// Clients must then be made with [Kafka.ClientOptions]; the build tag
	// synctests makes kgo's mutexes ones that the bubble's clock understands.
	Virtual bool
	// Options are further options for kfake.
	Options []kfake.Opt
	// Client are further options of [Kafka.ClientOptions]: what clients need
	// where Options ask for TLS or credentials.
	Client []kgo.Opt
}

// Kafka is a cluster of kfake brokers inside the process. Its methods are safe
// for concurrent use.
type Kafka struct {
	*kfake.Cluster
	network *kfake.VirtualNetwork
	brokers int
	client  []kgo.Opt

	unwatch func() // ends WatchSessions

	mu       sync.Mutex
	watchers []func(Commit)
}

// A Commit is one partition's offset in an OffsetCommit request.
type Commit struct {
	Group     string
	MemberID  string
	Topic     string
	Partition int32
	Offset    int64
	Metadata  string
}

// virtualPort is the port of the first broker on a virtual network, which has
// no real ones to take.
const virtualPort = 9092

// StartKafka starts a cluster.
func StartKafka(cfg KafkaConfig) (*Kafka, error) {
	k := &Kafka{brokers: max(cfg.Brokers, 1), client: cfg.Client}
	opts := []kfake.Opt{kfake.NumBrokers(k.brokers), kfake.ClusterID("embedded")}
	if cfg.Virtual {
		k.network = &kfake.VirtualNetwork{}
		ports := make([]int, k.brokers)
		for i := range ports {
			ports[i] = virtualPort + i
		}
		opts = append(opts, kfake.ListenFn(k.network.Listen), kfake.Ports(ports...))
	}
	for _, topic := range sortedKeys(cfg.Topics) {
		opts = append(opts, kfake.SeedTopics(cfg.Topics[topic], topic))
	}
	c, err := kfake.NewCluster(append(opts, cfg.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded kafka: %w", err)
	}
	k.Cluster = c
	k.observe()
	k.unwatch = WatchSessions(c, k.ClientOptions()...)
	return k, nil
}

// Close ends the cluster.
func (k *Kafka) Close() {
	k.unwatch()
	k.Cluster.Close()
}

// Addresses returns the brokers' addresses.
func (k *Kafka) Addresses() []string { return k.ListenAddrs() }

// ClientOptions returns what a client needs to reach the cluster.
func (k *Kafka) ClientOptions() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(k.Addresses()...)}
	if k.network != nil {
		opts = append(opts, kgo.Dialer(k.DialContext))
	}
	return append(opts, k.client...)
}

// DialContext connects to a broker of a [KafkaConfig.Virtual] cluster: for a
// test that wants the connection to misbehave.
func (k *Kafka) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := k.network.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return distant{conn}, nil
}

// distant is a connection on which what is sent takes a while to arrive. A
// client that asks again at once, as kgo's fetches do while a broker and its
// metadata disagree, would otherwise do so for ever: the virtual clock stands
// still while anyone has something to do.
type distant struct{ net.Conn }

func (c distant) Write(b []byte) (int, error) {
	time.Sleep(100 * time.Microsecond) //nolint:forbidigo // it is the virtual clock that is to go on
	return c.Conn.Write(b)
}

// Dial connects to a broker, as the clients of [Kafka.ClientOptions] do.
func (k *Kafka) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if k.network != nil {
		return k.DialContext(ctx, network, address)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// WatchCommits calls fn for each partition of every OffsetCommit before the
// broker handles it: a commit that the broker refuses is seen, too. fn runs on
// the cluster's own goroutine: it must not block and not call the cluster.
func (k *Kafka) WatchCommits(fn func(Commit)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watchers = append(k.watchers, fn)
}

// observe puts a control on OffsetCommit that never answers.
func (k *Kafka) observe() {
	k.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		r := req.(*kmsg.OffsetCommitRequest)
		k.mu.Lock()
		watchers := k.watchers
		k.mu.Unlock()
		if len(watchers) == 0 {
			return nil, nil, false
		}
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				c := Commit{Group: r.Group, MemberID: r.MemberID, Topic: t.Topic, Partition: p.Partition, Offset: p.Offset}
				if c.Topic == "" {
					c.Topic = k.topicName(t.TopicID)
				}
				if p.Metadata != nil {
					c.Metadata = *p.Metadata
				}
				for _, w := range watchers {
					w(c)
				}
			}
		}
		return nil, nil, false
	})
}

// topicName resolves the topic id that newer commits carry.
func (k *Kafka) topicName(id [16]byte) string {
	if t := k.TopicIDInfo(id); t != nil {
		return t.Topic
	}
	return ""
}

// Hiccup makes every broker drop the connections of requests with these keys
// (none: all but ApiVersions) until the returned function is called.
func (k *Kafka) Hiccup(keys ...kmsg.Key) (end func()) {
	var mu sync.Mutex
	over := false
	drop := func(req kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			k.DropControl()
			return nil, nil, false
		}
		if req.Key() == int16(kmsg.ApiVersions) {
			return nil, nil, false
		}
		k.KeepControl()
		return nil, errHiccup, true
	}
	if len(keys) == 0 {
		k.Control(drop)
	}
	for _, key := range keys {
		k.ControlKey(int16(key), drop)
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
	}
}

var errHiccup = errors.New("embedded kafka: the connection is dropped by the test")

// NotLeader makes produces and fetches of a topic fail with
// NOT_LEADER_FOR_PARTITION until the fault is removed.
func (k *Kafka) NotLeader(topic string) *kfake.FaultHandle {
	return k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce, kmsg.Fetch}, Topic: topic, Err: kerr.NotLeaderForPartition, Count: -1})
}

// FailCommits answers a group's next n OffsetCommits (negative: all) with err.
func (k *Kafka) FailCommits(group string, err *kerr.Error, n int) *kfake.FaultHandle {
	return k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: err, Count: n})
}

// Produce writes records and waits for the brokers' word. It fills in their
// offsets, and their partitions from their keys; keyless records go round.
func (k *Kafka) Produce(ctx context.Context, records ...*kgo.Record) error {
	return k.produce(ctx, kgo.StickyKeyPartitioner(nil), records)
}

// ProduceTo writes records to the partitions that they name.
func (k *Kafka) ProduceTo(ctx context.Context, records ...*kgo.Record) error {
	return k.produce(ctx, kgo.ManualPartitioner(), records)
}

func (k *Kafka) produce(ctx context.Context, p kgo.Partitioner, records []*kgo.Record) error {
	// A test may cut the connection at any moment, also before its first answer.
	client, err := kgo.NewClient(append(k.ClientOptions(), kgo.RecordPartitioner(p), kgo.ProducerLinger(time.Millisecond), kgo.AlwaysRetryEOF())...)
	if err != nil {
		return fmt.Errorf("embedded kafka: %w", err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("embedded kafka: produce: %w", err)
	}
	return nil
}

// ReadAll returns the records that a topic's partitions hold at the moment of
// the call, each partition's in order; a topic that does not exist holds none.
// Aborted and control records are left out.
func (k *Kafka) ReadAll(ctx context.Context, topic string) ([]*kgo.Record, error) {
	from := map[int32]kgo.Offset{}
	end := map[int32]int64{}
	for _, p := range k.PartitionInfos(topic) {
		if p.LastStableOffset > p.LogStartOffset {
			from[p.Partition] = kgo.NewOffset().At(p.LogStartOffset)
			end[p.Partition] = p.LastStableOffset
		}
	}
	if len(end) == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(append(k.ClientOptions(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))...)
	if err != nil {
		return nil, fmt.Errorf("embedded kafka: %w", err)
	}
	defer client.Close()
	var out []*kgo.Record
	for len(end) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("embedded kafka: read %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			last, open := end[r.Partition]
			if open && r.Offset < last && !r.Attrs.IsControl() {
				out = append(out, r)
			}
			if open && r.Offset+1 >= last {
				delete(end, r.Partition)
			}
		})
	}
	return out, nil
}
