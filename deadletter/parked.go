package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Parked is a record that waits in the parked topic for its target.
type Parked struct {
	// Group and Token are whose it is: see ParkedState.
	Group string
	Token int64
	// TopicID, Topic, Partition and Offset are where the record came from;
	// Timestamp is its own.
	TopicID   string
	Topic     string
	Partition int32
	Offset    int64
	Timestamp time.Time // in milliseconds
	// Key, Value and Headers are the record's, as they were.
	Key, Value []byte
	Headers    []kgo.RecordHeader

	Target     string // the lane's
	Generation int    // the recorded one that the record belongs to; 0: its rules need none
	// Side is that of a stream that is routed which the target is for: see
	// Letter.Side.
	Side string
	// Twin says that the record went to another target, too, which has it or has
	// it parked by itself.
	Twin bool

	// At is the offset in the parked topic: filled in by Read.
	At int64
}

// The headers that only parked records have. headerTopic comes first here, too.
const (
	headerGroup   = "sluice.group"
	headerToken   = "sluice.token"
	headerTopicID = "sluice.topic_id"
	headerTwin    = "sluice.twin"
)

func (p *Parked) headers() []kgo.RecordHeader {
	number := func(n int64) []byte { return strconv.AppendInt(nil, n, 10) }
	all := append(slices.Clip(p.Headers),
		kgo.RecordHeader{Key: headerTopic, Value: []byte(p.Topic)},
		kgo.RecordHeader{Key: headerPartition, Value: number(int64(p.Partition))},
		kgo.RecordHeader{Key: headerOffset, Value: number(p.Offset)},
		kgo.RecordHeader{Key: headerTimestamp, Value: number(p.Timestamp.UnixMilli())},
		kgo.RecordHeader{Key: headerTarget, Value: []byte(p.Target)},
		kgo.RecordHeader{Key: headerGeneration, Value: number(int64(p.Generation))},
		kgo.RecordHeader{Key: headerGroup, Value: []byte(p.Group)},
		kgo.RecordHeader{Key: headerToken, Value: number(p.Token)},
		kgo.RecordHeader{Key: headerTopicID, Value: []byte(p.TopicID)},
	)
	if p.Side != "" {
		all = append(all, kgo.RecordHeader{Key: headerSide, Value: []byte(p.Side)})
	}
	if p.Twin {
		all = append(all, kgo.RecordHeader{Key: headerTwin})
	}
	return all
}

// Size is what the record takes in memory until it is acknowledged, roughly.
func (p *Parked) Size() int64 {
	const overhead = 768 // its own headers, this struct, the client's record
	n := overhead + len(p.Key) + len(p.Value)
	for _, h := range p.Headers {
		n += len(h.Key) + len(h.Value) + 40
	}
	return int64(n)
}

// parseParked is the reverse of headers; false: Sluice did not write it.
func parseParked(r *kgo.Record) (p Parked, ok bool) {
	first := -1
	for i, h := range r.Headers {
		if h.Key == headerTopic {
			first = i
		}
	}
	if first < 0 {
		return p, false
	}
	ok = true
	number := func(h kgo.RecordHeader, bits int) int64 {
		n, err := strconv.ParseInt(string(h.Value), 10, bits)
		ok = ok && err == nil
		return n
	}
	p = Parked{Key: r.Key, Value: r.Value, Headers: r.Headers[:first:first], At: r.Offset}
	owned := false
	for _, h := range r.Headers[first:] {
		switch h.Key {
		case headerTopic:
			p.Topic = string(h.Value)
		case headerPartition:
			p.Partition = int32(number(h, 32))
		case headerOffset:
			p.Offset = number(h, 64)
		case headerTimestamp:
			p.Timestamp = time.UnixMilli(number(h, 64))
		case headerTarget:
			p.Target = string(h.Value)
		case headerGeneration:
			p.Generation = int(number(h, 32))
		case headerGroup:
			p.Group = string(h.Value)
		case headerToken:
			p.Token = number(h, 64)
			owned = true
		case headerTopicID:
			p.TopicID = string(h.Value)
		case headerSide:
			p.Side = string(h.Value)
		case headerTwin:
			p.Twin = true
		}
	}
	return p, ok && owned
}

// ParkedOversizeError says that a record is larger than the parked topic takes.
type ParkedOversizeError struct {
	Topic string
	Index int // of the record, among those to be appended: those before it are
	Bytes int64
}

func (e *ParkedOversizeError) Error() string {
	return fmt.Sprintf("a record of about %d bytes is too large for the parked topic %s: raise its max.message.bytes to that of the topics that are read", e.Bytes, e.Topic)
}

// ParkedLostError says that records which were parked are in the parked topic no
// more, and were not replayed: its retention took them, or it was made anew.
type ParkedLostError struct {
	Topic     string
	Partition int32
	From      int64 // the first that is missing
	Start     int64 // where the log begins now
}

func (e *ParkedLostError) Error() string {
	return fmt.Sprintf("parked records are lost: offsets %d to %d of %s/%d were deleted before they were replayed: give the topic no retention limit (retention.ms=-1, retention.bytes=-1); kafka.on_data_loss: resume goes on without them",
		e.From, e.Start-1, e.Topic, e.Partition)
}

const (
	// parkedFetch is how much one Read fetches, in compressed bytes; a larger
	// batch comes whole.
	parkedFetch = 1 << 20
	// parkedFetches is how many fetches are under way at most, and parkedKept how
	// many bytes of records are kept of those that were: lanes of one partition
	// read the same ones.
	parkedFetches = 4
	parkedKept    = 4 << 20
	// ParkedWindow is the most bytes of records that callers should append at
	// once: see window.
	ParkedWindow = window
)

// ParkedOptions is what a ParkedLog needs.
type ParkedOptions struct {
	// Kafka are the options of every client of this process.
	Kafka []kgo.Opt
	// DeadLetters is the topic after which a missing one is made.
	DeadLetters string
	Log         zerolog.Logger
}

// ParkedLog is the topic of parked records: a log for each of its partitions.
// All methods are safe for concurrent use, but records of one lane must be
// appended one call after the other.
type ParkedLog struct {
	topic   string
	letters string
	log     zerolog.Logger
	client  *kgo.Client
	kafka   *kadm.Client
	written prometheus.Counter

	// looking is taken by whoever looks at the topic, and guards last.
	looking chan struct{}
	looks   atomic.Int64 // that were begun
	last    *parkedLook
	// fetching has an element for each fetch that is under way.
	fetching chan struct{}

	mu       sync.Mutex
	known    *parkedTopic   // nil: to be asked for
	chunks   []*parkedChunk // that were fetched last, the newest at the end
	kept     int64          // bytes of chunks
	trouble  string         // why nothing can be appended; "": it can
	since    time.Time
	troubled int // appends that cannot be carried out
}

// parkedLook is what the topic was, and where it ended, at one moment.
type parkedLook struct {
	number int64 // of looks
	topic  *parkedTopic
	ends   kadm.ListedOffsets
	err    error
}

// parkedChunk is what one fetch brought. It never changes.
type parkedChunk struct {
	topic      [16]byte
	partition  int32
	from, next int64
	records    []Parked
	size       int64
}

type parkedTopic struct {
	id      [16]byte
	leaders []int32 // by partition; -1: none
}

// NewParkedLog returns the log of a topic; nothing is sent yet.
func NewParkedLog(topic string, o ParkedOptions) (*ParkedLog, error) {
	client, err := kgo.NewClient(append(slices.Clip(o.Kafka),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()), // and idempotent, the client's default: in order, and once
		kgo.ProducerBatchMaxBytes(maxBatch),
		kgo.MaxBufferedRecords(1<<20),
		kgo.ProducerLinger(0),
	)...)
	if err != nil {
		return nil, fmt.Errorf("parked records: %w", err)
	}
	return &ParkedLog{
		topic: topic, letters: o.DeadLetters, client: client, kafka: kadm.NewClient(client),
		looking: make(chan struct{}, 1), fetching: make(chan struct{}, parkedFetches),
		log: o.Log.With().Str("parked_topic", topic).Logger(),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_parked_records_total", Help: "Records that were parked, repeats included.",
		}),
	}, nil
}

// Close ends what is under way.
func (l *ParkedLog) Close() { l.client.Close() }

// describe returns what the topic is, from memory where fresh is false. One that
// does not exist is made.
func (l *ParkedLog) describe(ctx context.Context, fresh bool) (*parkedTopic, error) {
	l.mu.Lock()
	known := l.known
	l.mu.Unlock()
	if known != nil && !fresh {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	now, err := l.ask(ctx)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		if err = l.create(ctx); err == nil {
			now, err = l.ask(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the parked topic %s: %w", l.topic, remedied(err, "WRITE and READ", l.topic))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known != nil && l.known.id != now.id {
		l.client.PurgeTopicsFromProducing(l.topic) // the client holds on to a topic that it knows
	}
	l.known = now
	return now, nil
}

// Exists says whether the topic is there. It is made before the first record is
// parked, or by hand.
func (l *ParkedLog) Exists(ctx context.Context) (bool, error) {
	_, err := l.ask(ctx)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return false, nil
	}
	return false, fmt.Errorf("the parked topic %s: whether it exists: %w", l.topic, err)
}

func (l *ParkedLog) ask(ctx context.Context) (*parkedTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(l.topic)
	req.Topics = append(req.Topics, t)
	res, err := req.RequestWith(ctx, l.client)
	if err != nil {
		return nil, err
	}
	if len(res.Topics) != 1 {
		return nil, fmt.Errorf("the brokers name %d topics", len(res.Topics))
	}
	if err := kerr.ErrorForCode(res.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	now := &parkedTopic{id: res.Topics[0].TopicID, leaders: make([]int32, len(res.Topics[0].Partitions))}
	for i := range now.leaders {
		now.leaders[i] = -1
	}
	for _, p := range res.Topics[0].Partitions {
		if int(p.Partition) < len(now.leaders) {
			now.leaders[p.Partition] = p.Leader
		}
	}
	return now, nil
}

// ParkedConfigs are the settings that a parked topic is made with: nothing may
// delete what was not replayed.
func ParkedConfigs() map[string]*string {
	text := func(s string) *string { return &s }
	return map[string]*string{"cleanup.policy": text("delete"), "retention.ms": text("-1"), "retention.bytes": text("-1")}
}

// create makes the topic like that of the dead letters.
func (l *ParkedLog) create(ctx context.Context) error {
	like, err := l.kafka.ListTopics(ctx, l.letters)
	if err != nil {
		return err
	}
	d := like[l.letters]
	if d.Err != nil {
		return fmt.Errorf("does not exist, nor does dead_letter.topic, like which it would be made: %w", d.Err)
	}
	configs := ParkedConfigs()
	if largest := l.largestLetter(ctx); largest != "" {
		configs["max.message.bytes"] = &largest
	}
	res, err := l.kafka.CreateTopic(ctx, int32(len(d.Partitions)), int16(d.Partitions.NumReplicas()), configs, l.topic)
	if err == nil {
		err = res.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("does not exist and cannot be made: create it, with cleanup.policy=delete and retention.ms=-1, or allow CREATE on it: %w", err)
	}
	l.log.Info().Int("partitions", len(d.Partitions)).Msg("the topic of parked records was made")
	return nil
}

// largestLetter is the max.message.bytes that the dead-letter topic was given,
// "" where it has the brokers' own, or may not be asked for it.
func (l *ParkedLog) largestLetter(ctx context.Context) string {
	configs, err := l.kafka.DescribeTopicConfigs(ctx, l.letters)
	if err != nil {
		return ""
	}
	for _, topic := range configs {
		for _, c := range topic.Configs {
			if c.Key == "max.message.bytes" && c.Source == kmsg.ConfigSourceDynamicTopicConfig && c.Value != nil {
				return *c.Value
			}
		}
	}
	return ""
}

// Place returns the partition for a lane's records, where it ends now, and the
// topic's id.
func (l *ParkedLog) Place(ctx context.Context, target, topic string, partition int32) (place int32, end int64, id string, err error) {
	now, err := l.look(ctx)
	if err != nil {
		return 0, 0, "", err
	}
	place = ParkedPlace(target, topic, partition, len(now.topic.leaders))
	end, err = l.endOf(now, place)
	return place, end, kadm.TopicID(now.topic.id).String(), err
}

// End returns where a partition of the topic ends now.
func (l *ParkedLog) End(ctx context.Context, partition int32) (int64, error) {
	now, err := l.look(ctx)
	if err != nil {
		return 0, err
	}
	return l.endOf(now, partition)
}

func (l *ParkedLog) endOf(now *parkedLook, partition int32) (int64, error) {
	end, ok := now.ends.Lookup(l.topic, partition)
	if !ok {
		return 0, fmt.Errorf("the parked topic %s has no partition %d", l.topic, partition)
	}
	if end.Err != nil {
		return 0, fmt.Errorf("the parked topic %s/%d: where it ends: %w", l.topic, partition, end.Err)
	}
	return end.Offset, nil
}

// look asks what the topic is and where it ends. Many lanes may ask together:
// they share an answer that was asked for after each of them came.
func (l *ParkedLog) look(ctx context.Context) (*parkedLook, error) {
	came := l.looks.Load()
	select {
	case l.looking <- struct{}{}:
		defer func() { <-l.looking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l.last != nil && l.last.number > came {
		return l.last, l.last.err
	}
	now := &parkedLook{number: l.looks.Add(1)}
	if now.topic, now.err = l.describe(ctx, true); now.err == nil {
		asking, cancel := context.WithTimeout(ctx, checkTimeout)
		if now.ends, now.err = l.kafka.ListEndOffsets(asking, l.topic); now.err != nil {
			now.err = fmt.Errorf("the parked topic %s: where it ends: %w", l.topic, now.err)
		}
		cancel()
	}
	if ctx.Err() == nil { // else it is this caller's end
		l.last = now
	}
	return now, now.err
}

// Append adds records to a partition and returns the offset after the last one,
// once the brokers have acknowledged all. They stand there in order; where some
// had to be written again, all after the first of them were, too. It tries until
// ctx ends; what is there then is not known. Where a record is too large, the
// error is a *ParkedOversizeError, and the offset the one after those before it,
// 0 where there are none; of those after it some may stand there.
func (l *ParkedLog) Append(ctx context.Context, partition int32, records []Parked) (end int64, err error) {
	alone, done, failures := false, 0, 0
	for done < len(records) {
		try := records[done:]
		if alone {
			try = try[:1]
		}
		n, last, err := l.append(ctx, partition, try)
		done, end = done+n, max(end, last)
		switch {
		case err == nil:
		case errors.Is(err, kerr.MessageTooLarge) && len(try) == 1:
			l.works(failures > 0)
			return end, &ParkedOversizeError{l.topic, done, records[done].Size()}
		case errors.Is(err, kerr.MessageTooLarge):
			alone = true // perhaps only the batch is
		case ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed):
			l.works(failures > 0)
			return 0, err
		default:
			l.fails(remedied(err, "WRITE", l.topic), failures == 0)
			failures++
			select {
			case <-time.After(min(firstBackoff<<min(failures-1, 10), maxBackoff)):
			case <-ctx.Done():
				l.works(true)
				return 0, context.Cause(ctx)
			}
			_, _ = l.describe(ctx, true) // a topic that is missing may be made
		}
	}
	l.works(failures > 0)
	return end, nil
}

// append tries once; n is how many of the first were acknowledged, end the offset
// after the last of them, 0 where there is none. It does not wait longer than ctx: records whose request was sent the client keeps until a
// broker has answered, which it may never do.
func (l *ParkedLog) append(ctx context.Context, partition int32, records []Parked) (n int, end int64, err error) {
	results := make([]error, len(records))
	all := make([]*kgo.Record, len(records))
	ended := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(len(records)))
	for i := range records {
		p := &records[i]
		all[i] = &kgo.Record{Topic: l.topic, Partition: partition, Key: p.Key, Value: p.Value, Headers: p.headers()}
		l.client.Produce(ctx, all[i], func(_ *kgo.Record, err error) {
			results[i] = err
			if left.Add(-1) == 0 {
				close(ended)
			}
		})
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
	for n < len(records) && results[n] == nil {
		n++
	}
	l.written.Add(float64(n))
	if n > 0 {
		end = all[n-1].Offset + 1
	}
	if n < len(records) {
		return n, end, results[n]
	}
	return n, end, nil
}

func (l *ParkedLog) fails(err error, first bool) {
	l.mu.Lock()
	if first {
		l.troubled++
	}
	said := l.trouble != ""
	if l.trouble = err.Error(); !said {
		l.since = time.Now()
	}
	l.mu.Unlock()
	if !said {
		l.log.Error().Err(err).Msg("records cannot be parked: they wait")
	}
}

// works ends an append; after says that it could not be carried out before.
func (l *ParkedLog) works(after bool) {
	if !after {
		return
	}
	l.mu.Lock()
	l.troubled--
	over := l.troubled == 0
	if over {
		l.trouble, l.since = "", time.Time{}
	}
	l.mu.Unlock()
	if over {
		l.log.Info().Msg("records can be parked again")
	}
}

// Trouble is why records cannot be parked at present, and since when; "": they
// can.
func (l *ParkedLog) Trouble() (why string, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble, l.since
}

// Read returns the parked records of a partition that stand at or after from,
// some of them, and where to go on. It does not wait for more to come. What
// Sluice did not write is passed over. The records are not the caller's to
// change: others may be given them too. An error that is a *ParkedLostError says
// that the log begins later.
func (l *ParkedLog) Read(ctx context.Context, partition int32, from int64) (records []Parked, next int64, err error) {
	if c := l.chunkAt(partition, from); c != nil {
		return c.since(from), c.next, nil
	}
	select {
	case l.fetching <- struct{}{}:
		defer func() { <-l.fetching }()
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
	if c := l.chunkAt(partition, from); c != nil { // somebody has fetched it meanwhile
		return c.since(from), c.next, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	topic, fp, next, err := l.fetch(ctx, partition, from)
	if err == nil {
		err = fp.Err
	}
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange) || err == nil && fp.LogStartOffset > from:
		starts, err := l.kafka.ListStartOffsets(ctx, l.topic)
		if err != nil {
			return nil, 0, fmt.Errorf("the parked topic %s: where it begins: %w", l.topic, err)
		}
		start, _ := starts.Lookup(l.topic, partition)
		return nil, 0, &ParkedLostError{l.topic, partition, from, max(start.Offset, 0)}
	case err != nil:
		l.mu.Lock()
		l.known = nil // its leader may have moved
		l.mu.Unlock()
		return nil, 0, fmt.Errorf("reading the parked topic %s/%d at %d: %w", l.topic, partition, from, remedied(err, "READ", l.topic))
	}
	c := &parkedChunk{topic: topic, partition: partition, from: from, next: next}
	for _, r := range fp.Records {
		if p, ok := parseParked(r); ok {
			c.records = append(c.records, p)
			c.size += p.Size()
		}
	}
	l.keep(c)
	return c.records, next, nil
}

// chunkAt is a kept chunk that an offset lies in; nil: there is none.
func (l *ParkedLog) chunkAt(partition int32, offset int64) *parkedChunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.chunks {
		if c.partition == partition && c.from <= offset && offset < c.next && l.known != nil && c.topic == l.known.id {
			return c
		}
	}
	return nil
}

// since are the records of a chunk at or after an offset.
func (c *parkedChunk) since(offset int64) []Parked {
	i, _ := slices.BinarySearchFunc(c.records, offset, func(p Parked, offset int64) int { return cmp.Compare(p.At, offset) })
	return c.records[i:]
}

// keep keeps a chunk for those who read the same, until newer ones take its
// place.
func (l *ParkedLog) keep(c *parkedChunk) {
	if c.next <= c.from || c.size > parkedKept {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chunks = append(l.chunks, c)
	l.kept += c.size
	for l.kept > parkedKept {
		l.kept -= l.chunks[0].size
		l.chunks[0] = nil
		l.chunks = l.chunks[1:]
	}
}

// fetch is one request.
func (l *ParkedLog) fetch(ctx context.Context, partition int32, from int64) (topic [16]byte, fp kgo.FetchPartition, next int64, err error) {
	now, err := l.describe(ctx, false)
	if err != nil {
		return topic, fp, 0, err
	}
	if int(partition) >= len(now.leaders) || now.leaders[partition] < 0 {
		return topic, fp, 0, errors.New("the partition has no leader now")
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MinBytes, req.MaxWaitMillis = parkedFetch, 0, 100
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = l.topic, now.id
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, from, parkedFetch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	res, err := l.client.Broker(int(now.leaders[partition])).RetriableRequest(ctx, req)
	if err != nil {
		return topic, fp, 0, err
	}
	resp := res.(*kmsg.FetchResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return topic, fp, 0, cmp.Or(kerr.ErrorForCode(resp.ErrorCode), errors.New("the answer does not hold the partition"))
	}
	fp, next = kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: from, Topic: l.topic, Partition: partition,
	}, &resp.Topics[0].Partitions[0], kgo.DefaultDecompressor(), nil)
	return now.id, fp, next, nil
}

// Describe sends the description of the log's metrics.
func (l *ParkedLog) Describe(ch chan<- *prometheus.Desc) { l.written.Describe(ch) }

// Collect sends the log's metrics.
func (l *ParkedLog) Collect(ch chan<- prometheus.Metric) { l.written.Collect(ch) }
