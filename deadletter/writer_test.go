package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "dead"

// lines is a log whose lines a test can wait for.
type lines struct {
	mu   sync.Mutex
	all  []string
	more chan struct{} // closed and replaced with each line
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	close(l.more)
	l.more = make(chan struct{})
	return len(p), nil
}

func (l *lines) count(text string) (n int, more chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n, l.more
}

func (l *lines) wait(t *testing.T, text string) {
	t.Helper()
	for {
		n, more := l.count(text)
		if n > 0 {
			return
		}
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatalf("no line with %q", text)
		}
	}
}

type fixture struct {
	*testing.T
	cluster *kfake.Cluster
	budget  *memory.Budget
	log     *lines
	opts    []kgo.Opt
	writer  *Writer
}

// start runs a cluster, with the topic unless it is to be missing, and a
// writer.
func start(t *testing.T, cfg Config, missing bool, topicConfig map[string]string) *fixture {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	if !missing {
		if err := cluster.CreateTopic(topic, 3, topicConfig); err != nil {
			t.Fatal(err)
		}
	}
	if cfg.Oversize == "" {
		cfg.Oversize = "hold"
	}
	cfg.Topic = topic
	f := &fixture{
		T: t, cluster: cluster, budget: memory.New(1 << 40), log: &lines{more: make(chan struct{})},
		opts: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)},
	}
	f.writer, err = New(cfg, Options{Kafka: f.opts, Budget: f.budget, Release: "1.2.3", Log: zerolog.New(f.log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.writer.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if f.budget.Used() != 0 {
			t.Errorf("%d bytes were not given back", f.budget.Used())
		}
	})
	return f
}

// write writes a letter and returns where its outcome comes; a second outcome
// fails the test.
func (f *fixture) write(l Letter) <-chan error {
	outcome := make(chan error, 1)
	f.writer.Write(l, func(err error) {
		select {
		case outcome <- err:
		default:
			f.Errorf("%s/%d/%d was reported twice", l.Topic, l.Partition, l.Offset)
		}
	})
	return outcome
}

// failProduce has the next count produce requests answered with err.
func (f *fixture) failProduce(count int, err *kerr.Error) {
	f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Err: err, Count: count})
}

func (f *fixture) list(filter Filter) (letters []Letter) {
	f.Helper()
	for l, err := range NewReader(topic, f.opts...).List(f.Context(), filter) {
		if err != nil {
			f.Fatal(err)
		}
		letters = append(letters, l)
	}
	return letters
}

func example(offset int64) Letter {
	return Letter{
		Topic: "events", Partition: 7, Offset: offset, Timestamp: time.UnixMilli(1700000000123),
		Key: []byte("k\x00\xb8"), Value: []byte(`{"age": "s3cret` + "\xb8"),
		Headers: []kgo.RecordHeader{{Key: "trace", Value: []byte("x\xff")}, {Key: "trace", Value: nil}, {Key: "sluice.offset", Value: []byte("mine")}},
		Reason:  "failed to parse field [age] of type [long]. Preview of field's value: 's3cret'",
		Type:    "document_parsing_exception", Status: 400, Target: "events-1", Side: "new", Attempts: 2, Sequence: 1<<53 + 77, Generation: 1,
	}
}

// V43, V53: the letter holds all of the record and the reason, and is found by
// a log line that holds no content.
func TestWriteAndList(t *testing.T) {
	f := start(t, Config{}, false, nil)
	if err := <-f.write(example(42)); err != nil {
		t.Fatal(err)
	}
	empty := Letter{Topic: "other", Timestamp: time.UnixMilli(-1), Type: "position"} // null key and value
	if err := <-f.write(empty); err != nil {
		t.Fatal(err)
	}

	got := f.list(Filter{Topic: "events"})
	if len(got) != 1 {
		t.Fatalf("%d letters", len(got))
	}
	want := example(42)
	want.Release = "1.2.3"
	want.Reason = "failed to parse field [age] of type [long]. Preview of field's value: '…"
	want.Stored = got[0].Stored
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("got  %+v\nwant %+v", got[0], want)
	}
	got = f.list(Filter{Type: "position"})
	empty.Release, empty.Stored, empty.Headers = "1.2.3", got[0].Stored, got[0].Headers
	if len(got) != 1 || len(got[0].Headers) != 0 || !reflect.DeepEqual(got[0], empty) {
		t.Errorf("got  %+v\nwant %+v", got, empty)
	}

	if n, _ := f.log.count(`"topic":"events","partition":7,"offset":42,"type":"document_parsing_exception"`); n != 1 {
		t.Errorf("%d log lines: %s", n, f.log.all)
	}
	if n, _ := f.log.count("s3cret"); n != 0 {
		t.Errorf("content in the log: %s", f.log.all)
	}
	if err := testutil.CollectAndCompare(f.writer, strings.NewReader(`
# HELP sluice_dead_letters_total Dead letters that were acknowledged, by error type.
# TYPE sluice_dead_letters_total counter
sluice_dead_letters_total{reason="document_parsing_exception"} 1
sluice_dead_letters_total{reason="position"} 1
# HELP sluice_dead_letters_waiting Dead letters that were not acknowledged yet.
# TYPE sluice_dead_letters_waiting gauge
sluice_dead_letters_waiting 0
`)); err != nil {
		t.Error(err)
	}
}

// The headers on the wire are an interface: others read them.
func TestHeaders(t *testing.T) {
	l := example(42)
	l.Release = "1.2.3"
	var got []string
	for _, h := range l.headers() {
		got = append(got, h.Key+"="+string(h.Value))
	}
	want := []string{
		"trace=x\xff", "trace=", "sluice.offset=mine",
		"sluice.topic=events", "sluice.partition=7", "sluice.offset=42", "sluice.timestamp=1700000000123",
		"sluice.reason=failed to parse field [age] of type [long]. Preview of field's value: '…",
		"sluice.type=document_parsing_exception", "sluice.status=400", "sluice.target=events-1", "sluice.side=new",
		"sluice.attempts=2", "sluice.sequence=9007199254741069", "sluice.generation=1", "sluice.release=1.2.3",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Invariant 5: nothing is reported before the acknowledgement, and a budget is
// charged until then.
func TestNotBeforeTheAcknowledgement(t *testing.T) {
	f := start(t, Config{}, false, nil)
	arrived, release := make(chan struct{}), make(chan struct{})
	f.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(arrived)
		f.cluster.SleepControl(func() { <-release })
		return nil, nil, false
	})
	outcome := f.write(example(1))
	<-arrived
	select {
	case err := <-outcome:
		t.Errorf("reported before the brokers answered: %v", err)
	default:
	}
	s := f.writer.Status()
	if s.Letters != 1 || s.Bytes == 0 || f.budget.Used() != s.Bytes {
		t.Errorf("%+v with %d bytes charged", s, f.budget.Used())
	}
	close(release)
	if err := <-outcome; err != nil {
		t.Error(err)
	}
}

func TestTopicMissing(t *testing.T) {
	f := start(t, Config{}, true, nil)
	if err := Check(t.Context(), topic, f.opts...); !errors.Is(err, ErrTopicMissing) {
		t.Errorf("Check: %v", err)
	}
	f.log.wait(t, "dead letters cannot be written") // at the start, without a letter
	outcome := f.write(example(1))
	if s := f.writer.Status(); !strings.Contains(s.Alarm, ErrTopicMissing.Error()) || s.Since.IsZero() || s.Letters != 1 {
		t.Errorf("%+v", s)
	}
	if err := f.cluster.CreateTopic(topic, 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	f.log.wait(t, "dead letters can be written again")
	if s := f.writer.Status(); s.Alarm != "" || !s.Since.IsZero() {
		t.Errorf("%+v", s)
	}
	if n, _ := f.log.count("dead letters cannot be written"); n != 1 {
		t.Errorf("the alarm was logged %d times", n)
	}
}

// A topic that vanishes while running is waited for, too.
func TestTopicDeleted(t *testing.T) {
	f := start(t, Config{}, false, nil)
	if err := <-f.write(example(1)); err != nil {
		t.Fatal(err)
	}
	if err := f.cluster.DeleteTopic(topic); err != nil {
		t.Fatal(err)
	}
	outcome := f.write(example(2))
	f.log.wait(t, "dead letters cannot be written")
	if err := f.cluster.CreateTopic(topic, 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	if got := f.list(Filter{}); len(got) != 1 || got[0].Offset != 2 {
		t.Errorf("%+v", got)
	}
}

func TestRefusedAndTriedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		err   *kerr.Error
		alarm bool
	}{
		"not leader": {kerr.NotLeaderForPartition, false}, // the client's own business
		"no rights":  {kerr.TopicAuthorizationFailed, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, Config{}, false, nil)
			f.failProduce(2, tt.err)
			if err := <-f.write(example(1)); err != nil {
				t.Error(err)
			}
			if n, _ := f.log.count("dead letters cannot be written"); n == 1 != tt.alarm {
				t.Errorf("the alarm was logged %d times", n)
			}
			if got := f.list(Filter{}); len(got) != 1 {
				t.Errorf("%d letters", len(got))
			}
		})
	}
}

// One letter that the topic does not take fails neither its neighbours nor
// itself for ever.
func TestRefused(t *testing.T) {
	f := start(t, Config{}, false, nil)
	refuses := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: func(req kmsg.Request) bool {
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range t.Partitions {
				if bytes.Contains(p.Records, []byte("unwanted")) {
					return true
				}
			}
		}
		return false
	}})
	defer refuses.Remove()
	var outcomes []<-chan error
	for i := range 20 {
		l := example(int64(i))
		l.Key, l.Value = nil, random(2000) // does not compress: the brokers see the mark
		if i == 5 {
			l.Value = append(l.Value, "unwanted"...)
		}
		outcomes = append(outcomes, f.write(l))
	}
	for i, outcome := range outcomes {
		if err := <-outcome; errors.Is(err, ErrRefused) != (i == 5) || errors.Is(err, ErrOversize) || err != nil && i != 5 {
			t.Errorf("letter %d: %v", i, err)
		}
	}
}

func TestBrokersAway(t *testing.T) {
	f := start(t, Config{}, false, nil)
	if err := <-f.write(example(1)); err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool
	away.Store(true)
	f.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		f.cluster.KeepControl()
		if away.Load() {
			return nil, errors.New("away"), true
		}
		return nil, nil, false
	})
	outcome := f.write(example(2))
	// Silence is an alarm after ten seconds; the test turns the clock.
	f.writer.mu.Lock()
	f.writer.progress = time.Now().Add(-alarmAfter)
	f.writer.mu.Unlock()
	f.log.wait(t, "acknowledge nothing")
	away.Store(false)
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	if s := f.writer.Status(); s.Alarm != "" {
		t.Errorf("%+v", s)
	}
}

// random does not compress.
func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{})
	b := make([]byte, n)
	_, _ = r.Read(b) // never fails
	return b
}

// Of letters that were refused together, only the one that is too large is
// given back.
func TestOversizeHold(t *testing.T) {
	f := start(t, Config{}, false, map[string]string{"max.message.bytes": "20000"})
	var outcomes []<-chan error
	for i := range 50 {
		l := example(int64(i))
		l.Key = nil // into few batches
		l.Value = random(5000)
		if i == 20 {
			l.Value = random(30000)
		}
		outcomes = append(outcomes, f.write(l))
	}
	for i, outcome := range outcomes {
		if err := <-outcome; errors.Is(err, ErrOversize) != (i == 20) || errors.Is(err, ErrRefused) != (i == 20) || err != nil && i != 20 {
			t.Errorf("letter %d: %v", i, err)
		}
	}
	if got := f.list(Filter{}); len(got) != 49 {
		t.Errorf("%d letters", len(got))
	}
}

func TestOversizeChunk(t *testing.T) {
	f := start(t, Config{Oversize: "chunk"}, false, map[string]string{"max.message.bytes": "20000"})
	l := example(1)
	l.Value = random(300_000)
	small, hopeless := example(2), example(3)
	hopeless.Headers = []kgo.RecordHeader{{Key: "h", Value: random(25_000)}}
	hopeless.Value = random(5000)
	large, other, never := f.write(l), f.write(small), f.write(hopeless)
	if err := errors.Join(<-large, <-other); err != nil {
		t.Error(err)
	}
	if err := <-never; !errors.Is(err, ErrOversize) {
		t.Errorf("headers that are too large: %v", err)
	}
	got := map[int64]Letter{}
	for _, l := range f.list(Filter{}) {
		got[l.Offset] = l
	}
	if len(got) != 2 || !bytes.Equal(got[1].Value, l.Value) || !reflect.DeepEqual(got[1].Headers, l.Headers) || !bytes.Equal(got[2].Value, small.Value) {
		t.Errorf("%d letters, the large one with %d bytes", len(got), len(got[1].Value))
	}
}

func TestMany(t *testing.T) {
	f := start(t, Config{}, false, nil)
	const n = 5000
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		if i == n/2 {
			f.failProduce(1, kerr.TopicAuthorizationFailed)
		}
		l := example(int64(i))
		l.Key = fmt.Append(nil, i)
		f.writer.Write(l, func(err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, l := range f.list(Filter{}) {
		seen[l.Offset] = true
	}
	if len(seen) != n {
		t.Errorf("%d of %d letters", len(seen), n)
	}
}

func TestClose(t *testing.T) {
	f := start(t, Config{}, true, nil)
	outcome := f.write(example(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := f.writer.Close(ctx); !errors.Is(err, cause) {
		t.Errorf("Close: %v", err)
	}
	if err := <-outcome; !errors.Is(err, ErrClosed) {
		t.Errorf("outcome: %v", err)
	}
	if err := <-f.write(example(2)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if s := f.writer.Status(); s.Letters != 0 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
}

// Close waits for the acknowledgements.
func TestCloseFlushes(t *testing.T) {
	f := start(t, Config{}, false, nil)
	f.failProduce(1, kerr.TopicAuthorizationFailed)
	outcome := f.write(example(1))
	if err := f.writer.Close(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-outcome:
		if err != nil {
			t.Error(err)
		}
	default:
		t.Error("Close returned before the outcome was reported")
	}
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{{Oversize: "hold"}, {Topic: "t"}, {Topic: "t", Oversize: "drop"}} {
		if w, err := New(cfg, Options{}); err == nil {
			t.Errorf("%+v was accepted", cfg)
			_ = w.Close(t.Context())
		}
	}
}

// The metric's label is bounded, whatever types a server makes up.
func TestReasonsAreBounded(t *testing.T) {
	f := start(t, Config{}, false, nil)
	for i := range maxReasons + 20 {
		l := example(int64(i))
		l.Type = fmt.Sprintf("type_%d", i)
		if err := <-f.write(l); err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(f.writer)
	if n, err := testutil.GatherAndCount(reg, "sluice_dead_letters_total"); err != nil || n != maxReasons+1 {
		t.Errorf("%d series, %v", n, err)
	}
}
