package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The rooms of the house are what the interfaces ask for.
var (
	_ Rules       = (*document.Rules)(nil)
	_ Writer      = (*indexer.Writer)(nil)
	_ Sink        = (*indexer.Indexer)(nil)
	_ DeadLetters = (*deadletter.Writer)(nil)
)

const (
	testTopic = "events"
	testGroup = "g"
)

// world is a Kafka, what is in it, and what the members of the group have done
// with it. It checks every commit that the broker sees.
type world struct {
	t       *testing.T
	kafka   *kfake.Cluster
	client  *kgo.Client
	adm     *kadm.Client
	topics  []string
	control *control
	dial    []kgo.Opt // how clients reach it

	refuse  atomic.Bool  // commits are refused
	refused atomic.Int64 // how many were

	mu       sync.Mutex
	produced map[tp][]int64       // offsets that hold a record
	next     map[tp]int64         // the next offset
	handled  map[tp]map[int64]int // how often each was handled
	commits  map[tp]int64         // the last that the broker saw
	metas    map[tp]string        // and its metadata
	onCommit func(k tp, offset int64, m commitMeta)
	// dual is the epoch from which on a record needs both sides, halves those of
	// which one side has it: see sideDone.
	dual    int64
	halves  map[tp]map[int64]string
	commitN int           // commit requests
	changed chan struct{} // closed and replaced at each change
}

func newWorld(t *testing.T, partitions int32, opts ...kfake.Opt) *world {
	t.Helper()
	return newWorldOver(t, nil, partitions, opts...)
}

// newWorldOver is newWorld whose Kafka is on a network of its own; nil: on the
// host's.
func newWorldOver(t *testing.T, network *kfake.VirtualNetwork, partitions int32, opts ...kfake.Opt) *world {
	t.Helper()
	var dial []kgo.Opt
	if network != nil {
		opts = append(opts, kfake.ListenFn(network.Listen), kfake.Ports(9001, 9002))
		dial = append(dial, kgo.Dialer(network.DialContext))
	}
	opts = append([]kfake.Opt{
		kfake.NumBrokers(2), kfake.SeedTopics(partitions, testTopic),
		kfake.GroupMinSessionTimeout(100 * time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	}, opts...)
	k, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	t.Cleanup(embedded.WatchSessions(k, append(dial, kgo.SeedBrokers(k.ListenAddrs()...))...))
	w := &world{
		t: t, kafka: k, topics: []string{testTopic}, control: &control{}, dial: dial,
		produced: map[tp][]int64{}, next: map[tp]int64{}, handled: map[tp]map[int64]int{}, commits: map[tp]int64{}, metas: map[tp]string{}, halves: map[tp]map[int64]string{},
		changed: make(chan struct{}),
	}
	w.connect()
	committed := make(chan struct{}, 1)
	k.ControlKey(int16(kmsg.OffsetCommit), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if w.refuse.Load() {
			w.refused.Add(1)
			return refusedCommit(kreq.(*kmsg.OffsetCommitRequest)), nil, true
		}
		w.sawCommit(kreq.(*kmsg.OffsetCommitRequest))
		select {
		case committed <- struct{}{}:
		default:
		}
		return nil, nil, false
	})
	done, watch := make(chan struct{}), sync.WaitGroup{}
	watch.Go(func() { w.watchCommits(committed, done) })
	t.Cleanup(func() { close(done); watch.Wait() })
	return w
}

// refusedCommit is an answer that takes none of the offsets.
func refusedCommit(req *kmsg.OffsetCommitRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, t := range req.Topics {
		out := kmsg.NewOffsetCommitResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			at := kmsg.NewOffsetCommitResponseTopicPartition()
			at.Partition, at.ErrorCode = p.Partition, kerr.UnknownServerError.Code
			out.Partitions = append(out.Partitions, at)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// watchCommits looks at what the group has committed after each request: never
// less than before. A request that the broker refuses counts for nothing.
func (w *world) watchCommits(committed, done <-chan struct{}) {
	stored := map[tp]int64{}
	for {
		select {
		case <-committed:
		case <-done:
			return
		}
		info := w.kafka.GroupInfo(testGroup)
		if info == nil {
			continue
		}
		for topic, partitions := range info.Commits {
			for partition, c := range partitions {
				k := tp{topic, partition}
				if last, ok := stored[k]; ok && c.Offset < last {
					w.t.Errorf("%s/%d: the commit went down from %d to %d", topic, partition, last, c.Offset)
				}
				stored[k] = c.Offset
			}
		}
	}
}

// connect makes a client that knows the topics as they are now.
func (w *world) connect() {
	w.t.Helper()
	cl, err := kgo.NewClient(append(w.dial, kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cl.Close)
	w.client, w.adm = cl, kadm.NewClient(cl)
}

func (w *world) sawCommit(req *kmsg.OffsetCommitRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commitN++
	for _, t := range req.Topics {
		name := t.Topic
		if name == "" {
			name = w.kafka.TopicIDInfo(t.TopicID).Topic
		}
		for _, p := range t.Partitions {
			k := tp{name, p.Partition}
			for _, o := range w.produced[k] {
				if o < p.Offset && w.handled[k][o] == 0 {
					w.t.Errorf("%s/%d: offset %d is committed, %d is not handled", name, p.Partition, p.Offset, o)
					break
				}
			}
			w.commits[k] = p.Offset
			if p.Metadata != nil {
				w.metas[k] = *p.Metadata
				if m, ok := parseCommitMeta(*p.Metadata); ok && w.onCommit != nil {
					w.onCommit(k, p.Offset, m)
				}
			}
		}
	}
	w.touch()
}

// touch wakes those who wait for a change; w.mu must be held.
func (w *world) touch() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// wait waits until cond, which is called with w.mu held, is true.
func (w *world) wait(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		w.mu.Lock()
		ok, changed := cond(), w.changed
		w.mu.Unlock()
		if ok {
			return
		}
		if w.t.Failed() {
			w.t.FailNow() // what went wrong may keep this from ever being
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // what cond looks at may not touch
		case <-deadline:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("waited in vain for %s; commits %v", what, w.commits)
		}
	}
}

func (w *world) produce(partition int32, n int) {
	w.t.Helper()
	w.produceTo(testTopic, partition, n, func(i int) (key, value string) {
		return "k" + strconv.Itoa(i), `{"n":` + strconv.Itoa(i) + `}`
	})
}

func (w *world) produceTo(topic string, partition int32, n int, content func(int) (key, value string)) {
	w.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		k, v := content(i)
		recs[i] = &kgo.Record{Topic: topic, Partition: partition, Key: []byte(k), Value: []byte(v)}
	}
	// A commit may come before ProduceSync returns; the check must not be blind
	// to these records then. One producer a partition: the offsets are known.
	k := tp{topic, partition}
	w.mu.Lock()
	next := w.next[k]
	for i := range recs {
		w.produced[k] = append(w.produced[k], next+int64(i))
	}
	w.next[k] += int64(n)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	if err := w.client.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		w.t.Error(err)
		return
	}
	for i, r := range recs {
		if r.Offset != next+int64(i) {
			w.t.Errorf("%v: a record went to offset %d, not %d", k, r.Offset, next+int64(i))
		}
	}
}

// waitAllCommitted waits until every produced record is handled and committed.
func (w *world) waitAllCommitted() {
	w.t.Helper()
	w.wait("all to be committed", func() bool {
		for k, offsets := range w.produced {
			if len(offsets) > 0 && w.commits[k] <= offsets[len(offsets)-1] {
				return false
			}
		}
		return true
	})
}

// control is a recorded list of generations without a control index.
type control struct {
	mu   sync.Mutex
	list generation.List
	err  error
	asks int
}

func (g *control) Ensure(_ context.Context, t generation.Topic) (generation.List, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asks++
	if g.err != nil {
		return nil, g.err
	}
	if g.list == nil && t.Committed == 0 {
		g.list = generation.List{{Generation: 1, TopicID: t.ID, Partitions: t.Partitions}}
	}
	return g.list, g.list.Check(t)
}

func (g *control) set(f func(*control)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
}

// rules are simple: the key is the id, and the value's first letters say what
// becomes of the record.
type rules struct {
	policy  document.Policy
	version document.VersionMode
}

func (r rules) OnRejected() document.Policy   { return r.policy }
func (r rules) TimeNamed() (int, bool)        { return 0, false }
func (r rules) Version() document.VersionMode { return r.version }
func (r rules) NeedsGeneration() bool         { return r.version == document.VersionSequence }
func (r rules) NeedsRaise() bool              { return r.version == document.VersionSequence }

func (r rules) Map(rec *kgo.Record, gen int, out *document.Result) {
	out.Type, out.Reason = "", ""
	switch string(rec.Value) {
	case "ignore":
		out.Verdict = document.Ignore
		return
	case "reject":
		out.Verdict, out.Type = document.Reject, "bad_document"
		return
	case "letter":
		out.Verdict, out.Type = document.DeadLetter, "null_value"
		return
	case "halt":
		out.Verdict, out.Type = document.Halt, "null_value"
		return
	}
	out.Verdict, out.Ordered = document.Send, true
	out.Action = bulk.Action{Op: bulk.Index, Target: "index", ID: rec.Key, Body: rec.Value}
	switch r.version {
	case document.VersionSequence:
		v, err := document.Sequence(gen, rec.Offset)
		if err != nil {
			panic(err)
		}
		out.Action.Version, out.Action.VersionType = v, bulk.External
	case document.VersionOffset:
		out.Action.Version, out.Action.VersionType = rec.Offset, bulk.External
	}
}

// act is an action that the fake sink holds.
type act struct {
	src     indexer.Source
	seq     uint64
	tp      tp
	offset  int64
	id      string
	body    string
	target  string
	meta    []byte
	version int64
}

// sink stands in for the indexer. A settler decides what becomes of published
// actions; nil holds them until settleAll.
type sink struct {
	w *world

	mu        sync.Mutex
	open      []*act
	published []*act
	drained   map[indexer.Source]bool
	dropped   map[indexer.Source]bool
	settler   func(*sink, []*act)
	wake      chan struct{}
	full      bool          // Add waits
	room      chan struct{} // closed when full ends
	adds      int
	publishes int
	note      func(target string, k tp, offset int64) // of what is indexed

	stop chan struct{}
	done sync.WaitGroup
}

func newSink(w *world, settler func(*sink, []*act)) *sink {
	s := &sink{w: w, drained: map[indexer.Source]bool{}, dropped: map[indexer.Source]bool{}, settler: settler, wake: make(chan struct{}, 1), stop: make(chan struct{}), room: make(chan struct{})}
	s.done.Go(s.run)
	w.t.Cleanup(func() { close(s.stop); s.done.Wait() })
	return s
}

func (s *sink) run() {
	for {
		select {
		case <-s.wake:
		case <-s.stop:
			return
		}
		s.mu.Lock()
		settler := s.settler
		s.mu.Unlock()
		if settler != nil {
			settler(s, s.take(nil))
		}
	}
}

func (s *sink) setSettler(f func(*sink, []*act)) {
	s.mu.Lock()
	s.settler = f
	s.mu.Unlock()
	s.kick()
}

func (s *sink) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take removes published actions that pick chooses; nil: all.
func (s *sink) take(pick func(*act) bool) (taken []*act) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = slices.DeleteFunc(s.published, func(a *act) bool {
		if s.dropped[a.src] || pick == nil || pick(a) {
			if !s.dropped[a.src] {
				taken = append(taken, a)
			}
			return true
		}
		return false
	})
	return taken
}

func (s *sink) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.published)
}

// added is how many actions were ever added.
func (s *sink) added() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.adds
}

func (s *sink) Add(ctx context.Context, a *indexer.Action) error {
	s.mu.Lock()
	for s.full {
		room := s.room
		s.mu.Unlock()
		s.Publish()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	src := a.Source.(*assignment)
	if s.drained[a.Source] || s.dropped[a.Source] {
		s.w.t.Errorf("an action was added to %s/%d after its end", src.l.topic, src.id)
	}
	offset, ok := src.offset(a.Seq)
	if !ok {
		s.w.t.Error("an action of no record")
	}
	s.adds++
	s.open = append(s.open, &act{a.Source, a.Seq, tp{src.l.topic, src.id}, offset, string(a.ID), string(a.Body), a.Target, slices.Clone(a.Meta), a.Version})
	return nil
}

func (s *sink) Publish() {
	s.mu.Lock()
	s.published = append(s.published, s.open...)
	s.open = nil
	s.publishes++
	s.mu.Unlock()
	s.kick()
}

func (s *sink) setFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full = full; !full {
		close(s.room)
		s.room = make(chan struct{})
	}
}

func (s *sink) Drain(src indexer.Source) {
	s.mu.Lock()
	s.drained[src] = true
	s.mu.Unlock()
	s.kick()
}

func (s *sink) Drop(src indexer.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped[src] = true
}

func (s *sink) Skip(src indexer.Source, seq uint64) bool {
	got := s.take(func(a *act) bool { return a.src == src && a.seq == seq })
	if len(got) == 0 {
		return false
	}
	got[0].reject("skipped")
	return true
}

func (a *act) reject(kind string) {
	a.src.Reject(a.seq, &indexer.Rejection{Target: a.target, Status: 400, Type: kind, Version: a.version, Meta: a.meta, Body: []byte(a.body)})
}

// index settles actions as indexed.
func (s *sink) index(as []*act) {
	s.w.mu.Lock()
	for _, a := range as {
		if s.note != nil {
			s.note(a.target, a.tp, a.offset)
		}
		s.w.sideDone(a.target, a.tp, a.offset)
	}
	s.w.mu.Unlock()
	by := map[indexer.Source][]uint64{}
	for _, a := range as {
		by[a.src] = append(by[a.src], a.seq)
	}
	for src, seqs := range by {
		src.Settle(indexer.Indexed, seqs)
	}
}

// sideDone notes that a target is done with a record. Targets of a routed stream
// are side@epoch. w.mu must be held.
func (w *world) sideDone(target string, k tp, offset int64) {
	side, epoch, routed := strings.Cut(target, "@")
	n, _ := strconv.ParseInt(epoch, 10, 64)
	if routed && n >= w.dual {
		if w.halves[k] == nil {
			w.halves[k] = map[int64]string{}
		}
		if half := w.halves[k][offset]; half == "" || half == side {
			w.halves[k][offset] = side
			return
		}
		delete(w.halves[k], offset)
	}
	w.handle(k, offset)
}

// handle notes that a record is handled; w.mu must be held.
func (w *world) handle(k tp, offset int64) {
	if w.handled[k] == nil {
		w.handled[k] = map[int64]int{}
	}
	w.handled[k][offset]++
	w.touch()
}

func atOnce(s *sink, as []*act) { s.index(as) }

// letters stands in for the dead-letter writer.
type letters struct {
	w *world

	mu      sync.Mutex
	written []deadletter.Letter
	hold    bool
	waiting []func()
	err     error
}

func (l *letters) Write(x deadletter.Letter, done func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		go done(l.err)
		return
	}
	ack := func() {
		l.mu.Lock()
		l.written = append(l.written, x)
		l.mu.Unlock()
		l.w.mu.Lock()
		l.w.sideDone(x.Target, tp{x.Topic, x.Partition}, x.Offset)
		l.w.mu.Unlock()
		done(nil)
	}
	if l.hold {
		l.waiting = append(l.waiting, ack)
		return
	}
	go ack()
}

func (l *letters) release() {
	l.mu.Lock()
	waiting := l.waiting
	l.waiting, l.hold = nil, false
	l.mu.Unlock()
	for _, f := range waiting {
		f()
	}
}

func (l *letters) all() []deadletter.Letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.written)
}

// member is a running consumer of the world.
type member struct {
	*Consumer
	sink    *sink
	letters *letters
	budget  *memory.Budget
	err     chan error
	cancel  context.CancelFunc
	once    sync.Once
	result  error
}

func (w *world) config() Config {
	return Config{
		Brokers: w.kafka.ListenAddrs(), GroupID: testGroup, Topics: w.topics, Reset: "earliest", OnDataLoss: "halt",
		ClientID: "test", SessionTimeout: 15 * time.Second, RebalanceTimeout: 10 * time.Second,
		DrainTimeout: 2 * time.Second, CommitInterval: 20 * time.Millisecond, Fetch: Fetch{MaxWait: 20 * time.Millisecond},
	}
}

type change func(*Config, *Options)

func withRules(r rules) change {
	return func(_ *Config, o *Options) { o.Rules = func(string) Rules { return r } }
}

func (w *world) start(settler func(*sink, []*act), changes ...change) *member {
	w.t.Helper()
	m := &member{sink: newSink(w, settler), letters: &letters{w: w}, budget: memory.New(64 << 20), err: make(chan error, 1)}
	cfg := w.config()
	logs := io.Discard
	if testing.Verbose() {
		logs = zerolog.NewTestWriter(w.t)
	}
	o := Options{
		Rules: func(string) Rules {
			return rules{policy: document.ToDeadLetter, version: document.VersionSequence}
		},
		Writer: m.sink, Sink: m.sink, Budget: m.budget, DeadLetters: m.letters, Generations: w.control,
		ShutdownTimeout: 5 * time.Second, Log: zerolog.New(logs).Level(zerolog.InfoLevel),
		// A heartbeat tells of a rebalance: soon, although the session outlives
		// the stalls of a loaded machine.
		Kafka: append(w.dial, kgo.HeartbeatInterval(100*time.Millisecond)),
	}
	for _, f := range changes {
		f(&cfg, &o)
	}
	m.budget = o.Budget
	c, err := New(cfg, o)
	if err != nil {
		w.t.Fatal(err)
	}
	m.Consumer = c
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.err <- c.Run(ctx) }()
	w.t.Cleanup(func() { _ = m.end() }) // a test that minds has looked
	return m
}

// end asks the member to stop, waits, and checks its books.
func (m *member) end() error {
	m.once.Do(func() {
		m.cancel()
		select {
		case m.result = <-m.err:
		case <-time.After(2 * time.Minute):
			m.result = errors.New("Run did not end")
			m.sink.w.t.Error(m.result)
			return
		}
		m.checkBooks()
		if n := m.budget.Used(); n != 0 {
			m.sink.w.t.Errorf("%d bytes of the budget were never given back", n)
		}
		if n := m.counters.bugs.Load(); n != 0 {
			m.sink.w.t.Errorf("%d internal errors", n)
		}
	})
	return m.result
}

// checkBooks checks invariant 7.
func (m *member) checkBooks() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, l := range m.ledgers {
		l.mu.Lock()
		sum := l.inFlight()
		for _, n := range l.counts {
			sum += n
		}
		if sum != l.consumed {
			m.sink.w.t.Errorf("%v: consumed %d, outcomes %v and %d in flight", k, l.consumed, l.counts, l.inFlight())
		}
		l.mu.Unlock()
	}
}

func (m *member) total(o outcome) (n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.ledgers {
		l.mu.Lock()
		n += l.counts[o]
		l.mu.Unlock()
	}
	return n
}

func (m *member) partition(p int32) (PartitionStatus, bool) {
	for _, s := range m.Status().Partitions {
		if s.Topic == testTopic && s.Partition == p {
			return s, true
		}
	}
	return PartitionStatus{}, false
}

// paused is the number of partitions that are not fetched.
func (m *member) paused() int {
	if !m.running.Load() {
		return 0
	}
	return m.pauses.count()
}

func (m *member) state(p int32) string {
	s, _ := m.partition(p)
	return s.State
}

// waitState waits for a partition's state.
func (m *member) waitState(p int32, state string) PartitionStatus {
	m.sink.w.t.Helper()
	m.sink.w.wait(fmt.Sprintf("partition %d to be %s", p, state), func() bool { return m.state(p) == state })
	s, _ := m.partition(p)
	return s
}

// shuffled settles actions after a while, in random order.
func shuffled(seed uint64) func(*sink, []*act) {
	r := rand.New(rand.NewPCG(seed, 1))
	var pool []*act
	return func(s *sink, as []*act) {
		pool = append(pool, as...)
		r.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
		n := len(pool)
		if n > 50 {
			n = n/2 + r.IntN(n/2)
		}
		now := slices.DeleteFunc(slices.Clone(pool[:n]), func(a *act) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.dropped[a.src]
		})
		s.index(now)
		if pool = slices.Delete(pool, 0, n); len(pool) > 0 {
			s.kick()
		}
	}
}
