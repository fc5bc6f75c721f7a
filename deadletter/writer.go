package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/memory"
)

const (
	// window bounds the bytes that the brokers have not acknowledged, and with
	// them a batch: below Kafka's default max.message.bytes (1 MiB), so that a
	// batch is never refused for its size while each of its letters would be
	// taken. A letter above it travels alone.
	window = 512 << 10
	// maxBatch is the largest letter the client sends at all. What a topic
	// takes is the brokers' to say, and counts after compression.
	maxBatch = 64 << 20
	minChunk = 1 << 10

	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
	checkTimeout = 10 * time.Second
	// alarmAfter is how long letters may wait without any being acknowledged.
	alarmAfter = 10 * time.Second
)

var (
	// ErrRefused is a letter that the topic or the index never takes, alone. Its
	// record must block its partition until that is corrected or the record
	// skipped.
	ErrRefused = errors.New("the letter is refused where dead letters go (a compacted topic takes none without a key: set its cleanup.policy to delete; an index must take any document): correct that and restart, or skip the record")
	// ErrOversize is an ErrRefused for the letter's size, after compression.
	ErrOversize error = oversize{}
	// ErrClosed is a letter that was given up because the writer closed.
	ErrClosed = errors.New("the dead-letter writer is closed")
	// ErrTopicMissing is a dead-letter topic that does not exist. Sluice never
	// creates it: its partitions, replicas and retention are an operator's to
	// choose.
	ErrTopicMissing = errors.New("the dead-letter topic does not exist: create it")
)

type oversize struct{}

func (oversize) Error() string {
	return "the letter is too large for where dead letters go: raise the topic's max.message.bytes (of an index, the servers' http.max_content_length) and restart, or skip the record with --discard"
}

func (oversize) Is(target error) bool { return target == ErrRefused }

// Options is what a Writer needs beside its section of the configuration.
type Options struct {
	// Kafka are the options of every client of this process: brokers, TLS,
	// SASL, client id.
	Kafka   []kgo.Opt
	Budget  *memory.Budget
	Release string // Sluice's version
	Log     zerolog.Logger
}

// Writer writes letters to a topic. All methods are safe for concurrent use.
type Writer struct {
	book
	topic  string
	chunk  bool
	client *kgo.Client

	cancel   context.CancelFunc
	stopped  sync.WaitGroup
	wake     chan struct{} // of capacity 1
	shutdown sync.Once

	// All below: under mu.

	// queue are the parts that are not with the client. checked says that the
	// topic was there and nothing failed since; failures are those in a row.
	queue    []*part
	checked  bool
	failures int
	onWire   int64 // bytes with the client, see window
	progress time.Time
}

// part is one record of a letter.
type part struct {
	of     *letter
	record *kgo.Record
	weight int64 // what it takes of the window
	alone  bool
}

// New starts a writer for cfg.Topic, which is looked for at once: while it is
// missing, Status alarms.
func New(cfg Config, o Options) (*Writer, error) {
	if cfg.Topic == "" {
		return nil, errors.New("dead_letter.topic is empty")
	}
	if cfg.Oversize != "hold" && cfg.Oversize != "chunk" {
		return nil, fmt.Errorf("dead_letter.oversize is %q: it must be hold or chunk", cfg.Oversize)
	}
	client, err := kgo.NewClient(append(slices.Clip(o.Kafka),
		kgo.RequiredAcks(kgo.AllISRAcks()), // and idempotent, the client's default: a letter retried by the client is stored once
		kgo.ProducerBatchMaxBytes(maxBatch),
		kgo.MaxBufferedRecords(window), // more than the window can hold: producing never blocks
		kgo.ProducerLinger(0),
	)...)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writer{
		topic: cfg.Topic, chunk: cfg.Oversize == "chunk", client: client,
		cancel: cancel, wake: make(chan struct{}, 1),
	}
	w.open(o.Budget, o.Release, o.Log.With().Str("dead_letter_topic", cfg.Topic).Logger())
	w.stopped.Go(func() { w.run(ctx) })
	return w, nil
}

// Write takes a letter and never blocks. Its bytes must not change until done,
// which is called once: with nil after the brokers' acknowledgement, with an
// error that wraps ErrRefused (also where it is ErrOversize), or with ErrClosed
// (which may be before Write returns). done must not block; it runs on the
// writer's goroutines.
func (w *Writer) Write(l Letter, done func(error)) {
	w.take(l, done, func(e *letter) {
		if len(w.letters) == 1 {
			w.progress = time.Now()
		}
		record := &kgo.Record{Topic: w.topic, Key: l.Key, Value: l.Value, Headers: e.headers()}
		w.queue = append(w.queue, &part{of: e, record: record, weight: e.size})
	})
	w.poke()
}

func (w *Writer) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run hands parts to the client as the window allows. After a failure it waits,
// looks for the topic and goes on. It ends with ctx.
func (w *Writer) run(ctx context.Context) {
	ticker := time.NewTicker(time.Second) // for the alarm about silence
	defer ticker.Stop()
	var id [16]byte // the topic's, when it was last there
	for {
		if pause, unchecked := w.unchecked(); unchecked {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			now, err := checkTopic(ctx, w.client, w.topic)
			if ctx.Err() != nil {
				return
			}
			if err == nil && now != id {
				// The client holds on to a topic that it knows: one that was
				// re-created it would never write to. What it still has comes
				// back as failed and is queued again.
				w.client.PurgeTopicsFromProducing(w.topic)
				id = now
			}
			w.checkedNow(err)
			continue
		}
		w.dispatch()
		select {
		case <-w.wake:
		case <-ticker.C:
			w.watch()
		case <-ctx.Done():
			return
		}
	}
}

// unchecked reports whether the topic must be looked for, and after which
// pause.
func (w *Writer) unchecked() (pause time.Duration, unchecked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checked {
		return 0, false
	}
	if w.failures > 0 {
		pause = min(firstBackoff<<min(w.failures-1, 10), maxBackoff)
	}
	return pause, true
}

// checkedNow notes how looking for the topic ended. Where letters wait, only
// their acknowledgement ends an alarm: it may have had another cause.
func (w *Writer) checkedNow(err error) {
	w.mu.Lock()
	w.checked = err == nil
	if err != nil {
		w.failures++
	}
	waiting := len(w.letters) > 0
	w.mu.Unlock()
	switch {
	case err != nil:
		w.raise(err.Error())
	case !waiting:
		w.calm()
	}
}

// dispatch produces what the window has room for, in order.
func (w *Writer) dispatch() {
	w.mu.Lock()
	var now []*part
	for len(w.queue) > 0 {
		p := w.queue[0]
		weight := p.weight
		if p.alone {
			weight = window
		}
		if w.onWire > 0 && w.onWire+weight > window {
			break
		}
		w.queue[0], w.queue = nil, w.queue[1:]
		if _, ok := w.letters[p.of]; !ok {
			continue
		}
		p.weight = weight
		w.onWire += weight
		now = append(now, p)
	}
	w.mu.Unlock()
	for _, p := range now {
		// The context is not the writer's: a record in a request must not be
		// given up by it, the client's Close ends it.
		w.client.Produce(context.Background(), p.record, func(_ *kgo.Record, err error) { w.produced(p, err) })
	}
}

// produced hears how a part fared.
func (w *Writer) produced(p *part, err error) {
	defer w.poke()
	w.mu.Lock()
	w.onWire -= p.weight
	switch {
	case err == nil:
		w.progress = time.Now()
		w.failures = 0
		p.of.left--
		last := p.of.left == 0
		w.mu.Unlock()
		w.calm()
		if last {
			w.report(p.of, nil)
		}
	case !p.alone && (errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.InvalidRecord)):
		// Perhaps only the batch, or another letter in it: once more, alone.
		p.alone = true
		w.requeue(p)
		w.mu.Unlock()
	case errors.Is(err, kerr.MessageTooLarge):
		w.progress = time.Now() // an answer
		parts := w.split(p.of)
		w.queue = append(w.queue, parts...)
		w.mu.Unlock()
		if parts == nil {
			w.report(p.of, fmt.Errorf("%s/%d/%d: %w", p.of.Topic, p.of.Partition, p.of.Offset, ErrOversize))
		}
	case errors.Is(err, kerr.InvalidRecord):
		w.mu.Unlock()
		w.report(p.of, fmt.Errorf("%s/%d/%d: %w", p.of.Topic, p.of.Partition, p.of.Offset, ErrRefused))
	case errors.Is(err, kgo.ErrClientClosed):
		w.mu.Unlock()
		w.report(p.of, ErrClosed)
	default:
		if w.checked { // the first of what failed together
			w.checked = false
			w.failures++
		}
		w.requeue(p)
		w.mu.Unlock()
		w.raise(remedied(err, "WRITE", w.topic).Error())
	}
}

// requeue puts a part back. The record is a new one: the client has stamped the
// one that failed. mu is held.
func (w *Writer) requeue(p *part) {
	r := p.record
	p.record = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
	w.queue = append(w.queue, p)
}

// split cuts a letter that was refused into parts, smaller ones each time; nil
// where that is not wanted or of no use. mu is held.
func (w *Writer) split(l *letter) []*part {
	if !w.chunk || len(l.Value) <= minChunk {
		return nil
	}
	if _, ok := w.letters[l]; !ok {
		return nil
	}
	switch l.chunk {
	case 0:
		l.chunk = max(minChunk, min(len(l.Value)/2, window))
	case minChunk:
		return nil
	default:
		l.chunk = max(minChunk, l.chunk/2)
	}
	// Parts of an earlier cut that are still queued or on the wire belong to a
	// letter that is no longer waited for.
	next := *l
	delete(w.letters, l)
	w.letters[&next] = struct{}{}
	headers := l.headers()
	values := slices.Collect(slices.Chunk(l.Value, l.chunk))
	next.left = len(values)
	if mutantPart {
		next.left = 1
	}
	parts := make([]*part, len(values))
	for i, value := range values {
		parts[i] = &part{
			of: &next, weight: l.size - int64(len(l.Value)) + int64(len(value)),
			record: &kgo.Record{Topic: w.topic, Key: l.Key, Value: value, Headers: append(slices.Clip(headers),
				kgo.RecordHeader{Key: headerChunk, Value: fmt.Appendf(nil, "%d/%d", i+1, len(values))})},
		}
	}
	return parts
}

// watch alarms where letters wait and the brokers say nothing, and has the
// topic looked for.
func (w *Writer) watch() {
	w.mu.Lock()
	silent := len(w.letters) > 0 && time.Since(w.progress) >= alarmAfter
	if silent {
		w.checked = false
		w.failures++
	}
	quiet := w.alarm == ""
	w.mu.Unlock()
	if silent && quiet {
		w.raise("the brokers acknowledge nothing")
	}
}

// Close takes no more letters and waits until all are acknowledged, or until
// ctx ends: what is left then is reported with ErrClosed, and the cause is
// returned. When it returns, all letters were reported and nothing runs any
// more. It may be called again.
func (w *Writer) Close(ctx context.Context) (err error) {
	w.shutdown.Do(func() {
		err = w.settle(ctx)
		w.cancel()
		w.stopped.Wait()
		// The client goes first: it may still be reading what letters hold.
		w.client.Close()
		w.giveUp()
	})
	return err
}

// Check says whether the dead-letter topic is there and may be described. It
// is ErrTopicMissing, wrapped, where it is not.
func Check(ctx context.Context, topic string, kafka ...kgo.Opt) error {
	client, err := kgo.NewClient(kafka...)
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	defer client.Close()
	_, err = checkTopic(ctx, client, topic)
	return err
}

// remedied adds to a broker's refusal for want of a right which one that is; any
// other error stays as it is.
func remedied(err error, right, topic string) error {
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return fmt.Errorf("%w: allow %s on the topic %s", err, right, topic)
	}
	return err
}

// checkTopic returns the topic's id; it is zero with old brokers.
func checkTopic(ctx context.Context, client *kgo.Client, topic string) (id [16]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, t)
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return id, fmt.Errorf("looking for the dead-letter topic %s: %w", topic, err)
	}
	if len(res.Topics) != 1 {
		return id, fmt.Errorf("looking for the dead-letter topic %s: the brokers name %d topics", topic, len(res.Topics))
	}
	err = kerr.ErrorForCode(res.Topics[0].ErrorCode)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return id, fmt.Errorf("%s: %w", topic, ErrTopicMissing)
	case err != nil:
		return id, fmt.Errorf("looking for the dead-letter topic %s: %w", topic, remedied(err, "WRITE", topic))
	}
	return res.Topics[0].TopicID, nil
}
