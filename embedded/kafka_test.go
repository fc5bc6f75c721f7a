package embedded

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func mustKafka(t *testing.T, cfg KafkaConfig) *Kafka {
	t.Helper()
	k, err := StartKafka(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func mustClient(t *testing.T, k *Kafka, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(k.ClientOptions(), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func numbered(n int) []*kgo.Record {
	out := make([]*kgo.Record, n)
	for i := range out {
		out[i] = &kgo.Record{Topic: "events", Key: []byte("k" + strconv.Itoa(i)), Value: []byte(`{"n":` + strconv.Itoa(i) + `}`)}
	}
	return out
}

// consume polls n records as a member of a group and commits what commit says.
func consume(ctx context.Context, t *testing.T, k *Kafka, n int, commit func(*kgo.Client)) {
	t.Helper()
	c := mustClient(t, k, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("events"), kgo.DisableAutoCommit())
	defer c.Close()
	for n > 0 {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Error("records are missing")
			return
		}
		n -= fetches.NumRecords()
	}
	commit(c)
}

func at(topic string, partition int32, offset int64) map[string]map[int32]kgo.EpochOffset {
	return map[string]map[int32]kgo.EpochOffset{topic: {partition: {Epoch: -1, Offset: offset}}}
}

func TestOracle(t *testing.T) {
	stored := func(n int64) func(*kgo.Record) bool {
		return func(r *kgo.Record) bool { return r.Offset < n }
	}
	for _, tc := range []struct {
		name   string
		held   int64
		commit int64
		want   int
	}{
		{"all held", 10, 10, 0},
		{"commit before flush", 7, 10, 3},
		{"commit below what is held", 7, 5, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				k := mustKafka(t, KafkaConfig{Virtual: true, Topics: map[string]int32{"events": 1}})
				defer k.Close()
				o := NewOracle(stored(tc.held))
				o.Watch(k)
				records := numbered(10)
				if err := k.ProduceTo(ctx, records...); err != nil {
					t.Fatal(err)
				}
				o.Produced(records[:5]...)
				consume(ctx, t, k, 10, func(c *kgo.Client) {
					c.CommitOffsetsSync(ctx, at("events", 0, tc.commit), func(_ *kgo.Client, _ *kmsgCommit, _ *kmsgCommitResponse, err error) {
						if err != nil {
							t.Error(err)
						}
					})
				})
				// What the oracle hears of late is checked late.
				if err := o.Read(ctx, k, "events"); err != nil {
					t.Fatal(err)
				}
				if v := o.Violations(); len(v) != tc.want {
					t.Errorf("violations %v, want %d", v, tc.want)
				}
				if b := o.Backwards(); len(b) != 0 {
					t.Errorf("commits went back: %v", b)
				}
				o.Commit(Commit{Group: "g", Topic: "events", Offset: tc.commit - 1})
				if b := o.Backwards(); len(b) != 1 {
					t.Errorf("backwards %v, want one", b)
				}
			})
		})
	}
}

func TestOracleLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		k := mustKafka(t, KafkaConfig{Virtual: true, Brokers: 2, Topics: map[string]int32{"events": 1, "dead": 2}})
		defer k.Close()
		o := NewOracle(func(*kgo.Record) bool { return false })
		records := numbered(3)
		if err := k.ProduceTo(ctx, records...); err != nil {
			t.Fatal(err)
		}
		o.Produced(records...)
		letter := func(offset string) *kgo.Record {
			return &kgo.Record{Topic: "dead", Value: []byte("x"), Headers: []kgo.RecordHeader{
				{Key: "sluice.topic", Value: []byte("events")},
				{Key: "sluice.partition", Value: []byte("0")},
				{Key: "sluice.offset", Value: []byte(offset)},
			}}
		}
		if err := k.Produce(ctx, letter("0")); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		o.Commit(Commit{Group: "g", Topic: "events", Offset: 3})
		pass(time.Second)
		if err := k.Produce(ctx, letter("1")); err != nil {
			t.Fatal(err)
		}
		if err := o.ReadLetters(ctx, k, "dead", "none"); err != nil {
			t.Fatal(err)
		}
		v := o.Violations()
		if len(v) != 2 || v[0].Record.Offset != 1 || v[1].Record.Offset != 2 {
			t.Errorf("violations %v: the letter of 0 came in time, that of 1 too late, 2 has none", v)
		}
	})
}

func TestStoredIn(t *testing.T) {
	es := NewElasticsearch(Config{History: true})
	defer es.Close()
	bulk(t, es, `{"index":{"_index":"i","_id":"a","version":7,"version_type":"external"}}`, `{}`,
		`{"delete":{"_index":"i","_id":"b","version":9,"version_type":"external"}}`)
	es.Restart() // forgets the delete; the oracle does not
	held := StoredIn(es, func(r *kgo.Record) Effect {
		return Effect{Index: "i", ID: string(r.Key), Version: r.Offset, Ignored: len(r.Key) == 0}
	})
	for _, tc := range []struct {
		key    string
		offset int64
		want   bool
	}{{"a", 7, true}, {"a", 6, true}, {"a", 8, false}, {"b", 9, true}, {"c", 1, false}, {"", 1, true}} {
		if got := held(&kgo.Record{Key: []byte(tc.key), Offset: tc.offset}); got != tc.want {
			t.Errorf("key %q version %d held: %v, want %v", tc.key, tc.offset, got, tc.want)
		}
	}
}

func TestKafkaFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		k := mustKafka(t, KafkaConfig{Virtual: true, Topics: map[string]int32{"events": 1}})
		defer k.Close()
		end := k.Hiccup()
		time.AfterFunc(5*time.Second, end)
		start := time.Now()
		if err := k.Produce(ctx, numbered(1)...); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 5*time.Second {
			t.Errorf("a produce came through after %v of a hiccup of 5s", took)
		}
		h := k.NotLeader("events")
		time.AfterFunc(5*time.Second, h.Remove)
		if err := k.Produce(ctx, numbered(1)...); err != nil {
			t.Fatal(err)
		}
		if h.Hits() == 0 {
			t.Error("nobody met the fault")
		}
		k.FailCommits("g", kerr.RebalanceInProgress, 1)
		consume(ctx, t, k, 2, func(c *kgo.Client) {
			var errs []error
			for range 2 {
				c.CommitOffsetsSync(ctx, at("events", 0, 2), func(_ *kgo.Client, _ *kmsgCommit, r *kmsgCommitResponse, err error) {
					if err == nil {
						err = kerr.ErrorForCode(r.Topics[0].Partitions[0].ErrorCode)
					}
					errs = append(errs, err)
				})
			}
			if len(errs) != 2 || errs[0] == nil || errs[1] != nil {
				t.Errorf("commits ended with %v, want one failure and one success", errs)
			}
		})
	})
}

// A client that asks again and again must not stop the virtual clock.
func TestVirtualBrokersAreAtADistance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := mustKafka(t, KafkaConfig{Virtual: true})
		defer k.Close()
		client, err := kgo.NewClient(k.ClientOptions()...)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		start := time.Now()
		for range 10 {
			if err := client.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < time.Millisecond {
			t.Errorf("ten requests took %v", took)
		}
	})
}
