package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// startParked runs a cluster with a dead-letter topic, and a log of parked
// records beside it.
func startParked(t *testing.T, topics ...string) (*kfake.Cluster, *ParkedLog) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(3, topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	l, err := NewParkedLog(topic+".parked", ParkedOptions{
		Kafka:       []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)},
		DeadLetters: topic, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return cluster, l
}

func parkedExample(offset int64) Parked {
	return Parked{
		Group: "g", Token: 7, TopicID: "id", Topic: "events", Partition: 3, Offset: offset, Timestamp: time.UnixMilli(1700000000123),
		Key: []byte("k\x00\xb8"), Value: []byte("v\xff"), Target: "events-1", Generation: 2,
		Headers: []kgo.RecordHeader{{Key: "trace", Value: nil}, {Key: "sluice.topic", Value: []byte("mine")}},
	}
}

func readParked(t *testing.T, l *ParkedLog, partition int32) (all []Parked) {
	t.Helper()
	end, err := l.End(t.Context(), partition)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < end; {
		records, next, err := l.Read(t.Context(), partition, at)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, records...)
		at = next
	}
	return all
}

// A record comes back as it was, in order; the topic is made where it is
// missing.
func TestParkedAppendAndRead(t *testing.T) {
	cluster, l := startParked(t, topic)
	place, end, id, err := l.Place(t.Context(), "events-1", "events", 3)
	if err != nil || end != 0 || id == "" {
		t.Fatal(place, end, id, err)
	}
	if info := cluster.TopicInfo(topic + ".parked"); info == nil || info.Configs["retention.ms"] == nil || *info.Configs["retention.ms"] != "-1" {
		t.Errorf("the topic was made as %+v", info)
	}
	var want []Parked
	for i := range int64(500) {
		p := parkedExample(i)
		switch i % 3 {
		case 0:
			p.Key, p.Value = nil, nil
			p.Twin, p.Side = true, "new"
		case 1:
			p.Value = bytes.Repeat([]byte{byte(i)}, 5000)
		}
		want = append(want, p)
	}
	for i := 0; i < len(want); i += 100 {
		end, err := l.Append(t.Context(), place, want[i:i+100])
		if err != nil || end != int64(i+100) {
			t.Fatal(end, err)
		}
	}
	got := readParked(t, l, place)
	if len(got) != len(want) {
		t.Fatalf("%d records", len(got))
	}
	for i := range got {
		want[i].At = int64(i)
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("got  %+v\nwant %+v", got[i], want[i])
		}
	}
}

// An append that cannot be carried out waits, and says so; it is in order
// afterwards.
func TestParkedTrouble(t *testing.T) {
	cluster, l := startParked(t, topic, topic+".parked")
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: 2, When: func(kmsg.Request) bool {
		return true
	}})
	var all []Parked
	for i := range int64(10) {
		all = append(all, parkedExample(i))
	}
	if _, err := l.Append(t.Context(), 1, all); err != nil {
		t.Fatal(err)
	}
	// Of a batch that was refused a part may stand there, even without what comes
	// before it; all of it comes again after that, in order.
	var offsets []int64
	for _, p := range readParked(t, l, 1) {
		offsets = append(offsets, p.Offset)
	}
	if n := len(offsets) - 10; n < 0 || !slices.Equal(offsets[n:], []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("the records are %v, want 0 to 9 at the end", offsets)
	}
	if why, _ := l.Trouble(); why != "" {
		t.Error(why)
	}

	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	ended := make(chan error)
	go func() {
		_, err := l.Append(ctx, 1, all)
		ended <- err
	}()
	for why := ""; why == ""; {
		why, _ = l.Trouble()
	}
	cancel(enough)
	if err := <-ended; err == nil {
		t.Error("it was appended")
	}
	if why, _ := l.Trouble(); why != "" {
		t.Error("nobody waits any more, but for ", why)
	}
}

// An append ends with its context, also where it is not known whether the brokers
// have the records: the client does not give those up before they answer.
func TestParkedGivenUp(t *testing.T) {
	cluster, l := startParked(t, topic, topic+".parked")
	sent := make(chan struct{}, 1)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		select {
		case sent <- struct{}{}:
		default:
		}
		return nil, errors.New("the connection breaks"), true
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := l.Append(ctx, 1, []Parked{parkedExample(0)})
		ended <- err
	}()
	<-sent
	<-sent // once more, so the first is known to have failed
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Records that were deleted before they were replayed are a loss that is said.
func TestParkedLost(t *testing.T) {
	_, l := startParked(t, topic, topic+".parked")
	for i := range int64(5) {
		if _, err := l.Append(t.Context(), 0, []Parked{parkedExample(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var at kadm.Offsets
	at.Add(kadm.Offset{Topic: topic + ".parked", Partition: 0, At: 3})
	if _, err := l.kafka.DeleteRecords(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	_, _, err := l.Read(t.Context(), 0, 1)
	var lost *ParkedLostError
	if !errors.As(err, &lost) || lost.From != 1 || lost.Start != 3 {
		t.Errorf("%v", err)
	}
	if records, next, err := l.Read(t.Context(), 0, 3); err != nil || len(records) == 0 || records[0].Offset != 3 || next < 4 {
		t.Errorf("%d records, next %d: %v", len(records), next, err)
	}
}

// What others write to the topic is passed over.
func TestParkedForeign(t *testing.T) {
	_, l := startParked(t, topic, topic+".parked")
	if err := l.client.ProduceSync(t.Context(), &kgo.Record{Topic: topic + ".parked", Value: []byte("what")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), 0, []Parked{parkedExample(1)}); err != nil {
		t.Fatal(err)
	}
	if got := readParked(t, l, 0); len(got) != 1 || got[0].At != 1 {
		t.Errorf("%+v", got)
	}
}

func TestParkedPlace(t *testing.T) {
	seen := map[int32]bool{}
	for i := range 100 {
		p := ParkedPlace(fmt.Sprint("customer-", i), "events", 1, 6)
		if p < 0 || p >= 6 || p != ParkedPlace(fmt.Sprint("customer-", i), "events", 1, 6) {
			t.Error(p)
		}
		seen[p] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d of 6 partitions are used", len(seen))
	}
}

// A record that is too large is named; those before it are there, and those after
// it can be appended next. The topic is made to take what the dead letters' does.
func TestParkedOversize(t *testing.T) {
	cluster, l := startParked(t, topic)
	admin := kadm.NewClient(l.client)
	limit := "20000"
	if _, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit}}, topic); err != nil {
		t.Fatal(err)
	}
	place, _, _, err := l.Place(t.Context(), "events-1", "events", 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := cluster.TopicInfo(topic + ".parked").Configs["max.message.bytes"]; got == nil || *got != limit {
		t.Errorf("max.message.bytes of the new topic: %v", got)
	}
	const large = 20
	var all []Parked
	for i := range int64(40) {
		p := parkedExample(i)
		p.Value = make([]byte, 1000)
		if i == large {
			p.Value = make([]byte, 100_000)
			_, _ = rand.NewChaCha8([32]byte{}).Read(p.Value) // does not fail
		}
		all = append(all, p)
	}
	end, err := l.Append(t.Context(), place, all)
	var e *ParkedOversizeError
	if !errors.As(err, &e) || e.Index != large || end < large || !strings.Contains(err.Error(), "max.message.bytes") {
		t.Fatal(end, err)
	}
	if _, err := l.Append(t.Context(), place, all[large+1:]); err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for _, p := range readParked(t, l, place) {
		seen[p.Offset] = true
	}
	if len(seen) != len(all)-1 || seen[large] {
		t.Errorf("%d records, the large one among them: %t", len(seen), seen[large])
	}
	if why, _ := l.Trouble(); why != "" {
		t.Error(why)
	}
}

// Many lanes that open, and read, together ask the brokers once or twice, and
// each learns where the topic ends after it came.
func TestParkedTogether(t *testing.T) {
	cluster, l := startParked(t, topic, topic+".parked")
	var all []Parked
	for i := range int64(300) {
		all = append(all, parkedExample(i))
	}
	if _, err := l.Append(t.Context(), 1, all); err != nil {
		t.Fatal(err)
	}
	var lists, fetches atomic.Int64
	for key, n := range map[kmsg.Key]*atomic.Int64{kmsg.ListOffsets: &lists, kmsg.Fetch: &fetches} {
		cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			n.Add(1)
			return nil, nil, false
		})
	}
	const lanes = 200
	var together sync.WaitGroup
	for i := range lanes {
		together.Go(func() {
			if end, err := l.End(t.Context(), 1); err != nil || end != int64(len(all)) {
				t.Errorf("end %d, %v", end, err)
			}
			n := 0
			for at := int64(i); at < int64(len(all)); {
				records, next, err := l.Read(t.Context(), 1, at)
				if err != nil || len(records) == 0 || records[0].At != at {
					t.Errorf("at %d: %d records, %v", at, len(records), err)
					return
				}
				n, at = n+len(records), next
			}
			if n != len(all)-i {
				t.Errorf("%d records from %d on", n, i)
			}
		})
	}
	together.Wait()
	// Two brokers are asked each time; and those that come first read at once.
	if n := lists.Load(); n > lanes/4 {
		t.Errorf("offsets were listed %d times", n)
	}
	if n := fetches.Load(); n > lanes/4 {
		t.Errorf("%d fetches", n)
	}
	if l.kept > parkedKept {
		t.Errorf("%d bytes are kept", l.kept)
	}
	if end, err := l.Append(t.Context(), 1, all[:1]); err != nil || end != int64(len(all))+1 {
		t.Fatal(end, err)
	}
	if end, err := l.End(t.Context(), 1); err != nil || end != int64(len(all))+1 {
		t.Errorf("a look of before answers: end %d, %v", end, err)
	}
}
