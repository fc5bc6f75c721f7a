//go:build integration

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka is one real broker.
type Kafka struct {
	*server
	// Client produces and administers; it belongs to the test.
	Client  *kgo.Client
	Admin   *kadm.Client
	options []kgo.Opt // of every other client that the test needs
}

// kafkaOptions changes a broker's settings, by the names of the public image.
type kafkaOptions map[string]string

// startKafka gives the broker that tests share, or, with options, a broker for
// this test alone.
func startKafka(t *testing.T, options kafkaOptions) *Kafka {
	t.Helper()
	spec := kafkaSpec(options)
	k := &Kafka{}
	if options == nil {
		k.server = sharedServer(t, "kafka", spec)
	} else {
		k.server = ownServer(t, spec)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.address), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	k.Client, k.Admin = client, kadm.NewClient(client)
	return k
}

func kafkaSpec(options kafkaOptions) serverSpec {
	return serverSpec{
		image: os.Getenv(kafkaImage),
		port:  9092,
		env: func(hostPort int) map[string]string {
			// The public image drops its defaults as soon as one setting is given.
			env := map[string]string{
				"CLUSTER_ID":                                     "c2x1aWNlLXRlc3QtMDAwMQ",
				"KAFKA_NODE_ID":                                  "1",
				"KAFKA_PROCESS_ROLES":                            "broker,controller",
				"KAFKA_LISTENERS":                                "OUTSIDE://0.0.0.0:9092,INSIDE://localhost:9094,CONTROLLER://localhost:9093",
				"KAFKA_ADVERTISED_LISTENERS":                     fmt.Sprintf("OUTSIDE://127.0.0.1:%d,INSIDE://localhost:9094", hostPort),
				"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
				"KAFKA_INTER_BROKER_LISTENER_NAME":               "INSIDE",
				"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
				"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:9093",
				"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
				"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
				"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
				"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":         "0",
				// A killed member is missed soon.
				"KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
				// The same for the consumer protocol, where the broker decides.
				"KAFKA_GROUP_CONSUMER_SESSION_TIMEOUT_MS":        "6000",
				"KAFKA_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS":    "1000",
				"KAFKA_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS":     "500",
				"KAFKA_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
				"KAFKA_LOG_CLEANER_BACKOFF_MS":                   "100",
			}
			maps.Copy(env, options)
			return env
		},
		ready: func(ctx context.Context, address string) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			client, err := kgo.NewClient(kgo.SeedBrokers(address))
			if err != nil {
				return err
			}
			defer client.Close()
			// Before it is registered, a broker answers and knows of none.
			brokers, err := kadm.NewClient(client).ListBrokers(ctx)
			if err == nil && len(brokers) == 0 {
				err = errors.New("the broker is not registered yet")
			}
			return err
		},
	}
}

// Brokers gives the addresses for a client's configuration.
func (k *Kafka) Brokers() []string { return []string{k.address} }

// CreateTopic makes a topic.
func (k *Kafka) CreateTopic(t *testing.T, topic string, partitions int32) {
	t.Helper()
	if _, err := k.Admin.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatalf("creating topic %s: %v", topic, err)
	}
}

// ProduceEvery writes what next makes, again and again at that pace, until stop is
// called or the test ends. next is not called any more when stop has returned.
func (k *Kafka) ProduceEvery(t *testing.T, pace time.Duration, next func() []*kgo.Record) (stop func()) {
	t.Helper()
	stopped := make(chan struct{})
	var producing sync.WaitGroup
	producing.Go(func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			if err := k.Client.ProduceSync(t.Context(), next()...).FirstErr(); err != nil {
				t.Errorf("producing: %v", err)
				return
			}
			select {
			case <-tick.C:
			case <-stopped:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(stopped); producing.Wait() })
	t.Cleanup(stop)
	return stop
}

// ReadAll gives the records that stand in a topic now, a partition after the
// other.
func (k *Kafka) ReadAll(t *testing.T, topic string) []*kgo.Record {
	t.Helper()
	ends, err := k.Admin.ListEndOffsets(t.Context(), topic)
	if err != nil || ends.Error() != nil {
		t.Fatalf("the end of %s: %v", topic, errors.Join(err, ends.Error()))
	}
	start := map[string]map[int32]kgo.Offset{topic: {}}
	missing := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			start[topic][o.Partition] = kgo.NewOffset().AtStart()
			missing[o.Partition] = o.Offset
		}
	})
	if len(missing) == 0 {
		return nil
	}
	client, err := kgo.NewClient(append(slices.Clip(k.options), kgo.SeedBrokers(k.address), kgo.ConsumePartitions(start))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	byPartition := map[int32][]*kgo.Record{}
	for len(missing) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("reading %s: %v", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, open := missing[r.Partition]
			if !open {
				return // written since
			}
			byPartition[r.Partition] = append(byPartition[r.Partition], r)
			if r.Offset+1 >= end {
				delete(missing, r.Partition)
			}
		})
	}
	var all []*kgo.Record
	for partition := range int32(len(ends[topic])) {
		all = append(all, byPartition[partition]...)
	}
	return all
}

// Committed gives a group's committed offset per partition of the topic; a
// partition without a commit is absent.
func (k *Kafka) Committed(ctx context.Context, group, topic string) (map[int32]int64, error) {
	commits, err := k.Admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	committed := map[int32]int64{}
	for partition, commit := range commits[topic] {
		committed[partition] = commit.At
	}
	return committed, commits.Error()
}

// Lag gives how many offsets of the topic the group has not committed.
func (k *Kafka) Lag(ctx context.Context, group, topic string) (int64, error) {
	committed, err := k.Committed(ctx, group, topic)
	if err != nil {
		return 0, err
	}
	ends, err := k.Admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	var lag int64
	ends.Each(func(o kadm.ListedOffset) { lag += o.Offset - committed[o.Partition] })
	return lag, ends.Error()
}

// AwaitNoLag waits until the group has committed all of the topic. While it
// waits, check is asked for a reason to give up.
func (k *Kafka) AwaitNoLag(t *testing.T, timeout time.Duration, group, topic string, check func() error) {
	t.Helper()
	await(t, timeout, "lag 0 of group "+group, func() error {
		if err := check(); err != nil {
			return stop{err}
		}
		lag, err := k.Lag(t.Context(), group, topic)
		if err == nil && lag != 0 {
			err = fmt.Errorf("lag is %d", lag)
		}
		return err
	})
}
