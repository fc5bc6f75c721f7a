package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	maxReasons = 100 // values of the metric's label
)

var (
	// ErrRefused is a letter that the topic never takes, alone. Its record must
	// block its partition until the topic is corrected or the record skipped.
	ErrRefused = errors.New("the dead-letter topic refuses the letter (a compacted topic takes none without a key: set its cleanup.policy to delete): correct the topic and restart, or skip the record")
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
	return "the letter is too large for the dead-letter topic: raise the topic's max.message.bytes and restart, set dead_letter.oversize: chunk, or skip the record"
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

// Writer writes letters. All methods are safe for concurrent use.
type Writer struct {
	topic   string
	chunk   bool
	release string
	client  *kgo.Client
	budget  *memory.Budget
	log     zerolog.Logger

	written  *prometheus.CounterVec
	waiting  prometheus.GaugeFunc
	cancel   context.CancelFunc
	stopped  sync.WaitGroup
	wake     chan struct{} // of capacity 1
	shutdown sync.Once

	mu struct {
		sync.Mutex
		closed bool
		// letters are all that were not reported yet; each leaves once. idle
		// is closed when the last one leaves, nil while nobody asks.
		letters map[*letter]struct{}
		bytes   int64
		idle    chan struct{}
		// queue are the parts that are not with the client. checked says that
		// the topic was there and nothing failed since; failures are those in
		// a row.
		queue    []*part
		checked  bool
		failures int
		onWire   int64 // bytes with the client, see window
		progress time.Time
		alarm    string
		since    time.Time
		reasons  map[string]struct{} // values of the metric's label so far
	}
}

// letter is one call of Write.
type letter struct {
	Letter
	done func(error)
	size int64
	left int // parts that are not acknowledged
	// chunk is the bytes of value in a part; 0: whole.
	chunk int
}

// part is one record of a letter.
type part struct {
	of     *letter
	record *kgo.Record
	weight int64 // what it takes of the window
	alone  bool
}

// Status is what the writer is doing.
type Status struct {
	Letters int   // not acknowledged
	Bytes   int64 // what they take in memory
	// Alarm is why letters cannot be written at present ("": they can), and
	// Since when.
	Alarm string
	Since time.Time
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
		topic: cfg.Topic, chunk: cfg.Oversize == "chunk", release: o.Release, client: client, budget: o.Budget,
		log: o.Log.With().Str("dead_letter_topic", cfg.Topic).Logger(), cancel: cancel, wake: make(chan struct{}, 1),
		written: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_dead_letters_total", Help: "Dead letters that the brokers acknowledged, by error type.",
		}, []string{"reason"}),
	}
	w.waiting = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_dead_letters_waiting", Help: "Dead letters that the brokers have not acknowledged yet.",
	}, func() float64 { return float64(w.Status().Letters) })
	w.mu.letters = map[*letter]struct{}{}
	w.mu.reasons = map[string]struct{}{}
	w.stopped.Go(func() { w.run(ctx) })
	return w, nil
}

// Write takes a letter and never blocks. Its bytes must not change until done,
// which is called once: with nil after the brokers' acknowledgement, with an
// error that wraps ErrRefused (also where it is ErrOversize), or with ErrClosed
// (which may be before Write returns). done must not block; it runs on the
// writer's goroutines.
func (w *Writer) Write(l Letter, done func(error)) {
	l.Release = w.release
	e := &letter{Letter: l, done: done, size: l.size(), left: 1}
	record := &kgo.Record{Topic: w.topic, Key: l.Key, Value: l.Value, Headers: l.headers()}

	w.mu.Lock()
	if w.mu.closed {
		w.mu.Unlock()
		done(ErrClosed)
		return
	}
	if len(w.mu.letters) == 0 {
		w.mu.progress = time.Now()
	}
	w.mu.letters[e] = struct{}{}
	w.mu.bytes += e.size
	w.mu.queue = append(w.mu.queue, &part{of: e, record: record, weight: e.size})
	w.mu.Unlock()
	if w.budget != nil {
		w.budget.Force(e.size)
	}
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
	if w.mu.checked {
		return 0, false
	}
	if w.mu.failures > 0 {
		pause = min(firstBackoff<<min(w.mu.failures-1, 10), maxBackoff)
	}
	return pause, true
}

// checkedNow notes how looking for the topic ended. Where letters wait, only
// their acknowledgement ends an alarm: it may have had another cause.
func (w *Writer) checkedNow(err error) {
	w.mu.Lock()
	w.mu.checked = err == nil
	if err != nil {
		w.mu.failures++
	}
	waiting := len(w.mu.letters) > 0
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
	for len(w.mu.queue) > 0 {
		p := w.mu.queue[0]
		weight := p.weight
		if p.alone {
			weight = window
		}
		if w.mu.onWire > 0 && w.mu.onWire+weight > window {
			break
		}
		w.mu.queue[0], w.mu.queue = nil, w.mu.queue[1:]
		if _, ok := w.mu.letters[p.of]; !ok {
			continue
		}
		p.weight = weight
		w.mu.onWire += weight
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
	w.mu.onWire -= p.weight
	switch {
	case err == nil:
		w.mu.progress = time.Now()
		w.mu.failures = 0
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
		w.mu.progress = time.Now() // an answer
		parts := w.split(p.of)
		w.mu.queue = append(w.mu.queue, parts...)
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
		if w.mu.checked { // the first of what failed together
			w.mu.checked = false
			w.mu.failures++
		}
		w.requeue(p)
		w.mu.Unlock()
		w.raise(err.Error())
	}
}

// requeue puts a part back. The record is a new one: the client has stamped the
// one that failed. w.mu is held.
func (w *Writer) requeue(p *part) {
	r := p.record
	p.record = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
	w.mu.queue = append(w.mu.queue, p)
}

// split cuts a letter that was refused into parts, smaller ones each time; nil
// where that is not wanted or of no use. w.mu is held.
func (w *Writer) split(l *letter) []*part {
	if !w.chunk || len(l.Value) <= minChunk {
		return nil
	}
	if _, ok := w.mu.letters[l]; !ok {
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
	delete(w.mu.letters, l)
	w.mu.letters[&next] = struct{}{}
	headers := l.headers()
	values := slices.Collect(slices.Chunk(l.Value, l.chunk))
	next.left = len(values)
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

// report tells the caller how its letter ended, once.
func (w *Writer) report(l *letter, err error) {
	w.mu.Lock()
	if _, ok := w.mu.letters[l]; !ok {
		w.mu.Unlock()
		return
	}
	delete(w.mu.letters, l)
	w.mu.bytes -= l.size
	reason := l.Type
	if _, ok := w.mu.reasons[reason]; !ok && err == nil {
		if len(w.mu.reasons) >= maxReasons {
			reason = "other"
		}
		w.mu.reasons[reason] = struct{}{}
	}
	if len(w.mu.letters) == 0 && w.mu.idle != nil {
		close(w.mu.idle)
		w.mu.idle = nil
	}
	w.mu.Unlock()
	if w.budget != nil {
		w.budget.Give(l.size)
	}
	event := w.log.Info()
	if err != nil {
		event = w.log.Error().Err(err)
	} else {
		w.written.WithLabelValues(reason).Inc()
	}
	if !errors.Is(err, ErrClosed) {
		event.Str("topic", l.Topic).Int32("partition", l.Partition).Int64("offset", l.Offset).Str("type", l.Type).Int("status", l.Status).Msg("dead letter")
	}
	l.done(err)
}

// watch alarms where letters wait and the brokers say nothing, and has the
// topic looked for.
func (w *Writer) watch() {
	w.mu.Lock()
	silent := len(w.mu.letters) > 0 && time.Since(w.mu.progress) >= alarmAfter
	if silent {
		w.mu.checked = false
		w.mu.failures++
	}
	quiet := w.mu.alarm == ""
	w.mu.Unlock()
	if silent && quiet {
		w.raise("the brokers acknowledge nothing")
	}
}

// raise sets the alarm; the log hears of the first one only.
func (w *Writer) raise(why string) {
	w.mu.Lock()
	first := w.mu.alarm == ""
	w.mu.alarm = why
	if first {
		w.mu.since = time.Now()
	}
	letters := len(w.mu.letters)
	w.mu.Unlock()
	if first {
		w.log.Error().Str("reason", why).Int("letters", letters).Msg("dead letters cannot be written: their records wait")
	}
}

func (w *Writer) calm() {
	w.mu.Lock()
	over := w.mu.alarm != ""
	since := w.mu.since
	w.mu.alarm, w.mu.since = "", time.Time{}
	w.mu.Unlock()
	if over {
		w.log.Info().Dur("after", time.Since(since)).Msg("dead letters can be written again")
	}
}

// Status says what the writer is doing.
func (w *Writer) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Status{Letters: len(w.mu.letters), Bytes: w.mu.bytes, Alarm: w.mu.alarm, Since: w.mu.since}
}

// Close takes no more letters and waits until all are acknowledged, or until
// ctx ends: what is left then is reported with ErrClosed, and the cause is
// returned. When it returns, all letters were reported and nothing runs any
// more. It may be called again.
func (w *Writer) Close(ctx context.Context) (err error) {
	w.shutdown.Do(func() {
		w.mu.Lock()
		w.mu.closed = true
		idle := make(chan struct{})
		if len(w.mu.letters) == 0 {
			close(idle)
		} else {
			w.mu.idle = idle
		}
		w.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			err = fmt.Errorf("dead letters: %d were not acknowledged in time: %w", w.Status().Letters, context.Cause(ctx))
		}
		w.cancel()
		w.stopped.Wait()
		// The client goes first: it may still be reading what letters hold.
		w.client.Close()
		w.mu.Lock()
		left := make([]*letter, 0, len(w.mu.letters))
		for l := range w.mu.letters {
			left = append(left, l)
		}
		w.mu.Unlock()
		for _, l := range left {
			w.report(l, ErrClosed)
		}
	})
	return err
}

// Describe sends the descriptions of the writer's metrics.
func (w *Writer) Describe(ch chan<- *prometheus.Desc) {
	w.written.Describe(ch)
	w.waiting.Describe(ch)
}

// Collect sends the writer's metrics.
func (w *Writer) Collect(ch chan<- prometheus.Metric) {
	w.written.Collect(ch)
	w.waiting.Collect(ch)
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
		return id, fmt.Errorf("looking for the dead-letter topic %s: %w", topic, err)
	}
	return res.Topics[0].TopicID, nil
}
