//go:build synctests

package simulation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/generation"
)

// world is one run of a scenario, inside a synctest bubble.
type world struct {
	s       *scenario
	start   time.Time
	kafka   *embedded.Kafka
	es      *embedded.Elasticsearch
	oracle  *embedded.Oracle
	byPlace map[place]*planned // of what was written and counts; see mu
	log     *logbook

	mu       sync.Mutex // guards what follows; never held while waiting
	members  []*member  // by number; nil: not started
	problems []string
	hits     map[string]int // what was met, by kind of fault
	highest  map[place]int64

	old   chan struct{} // closed when all is produced that comes before the growth
	grown chan struct{} // closed when the topic has grown

	commits, checks atomic.Int64 // of the oracle
	rebalances      int
	parkedRecords   int
	took            time.Duration
}

// place names a record, or with offset 0 a partition.
type place struct {
	topic     string
	partition int32
	offset    int64
}

// member is one Sluice.
type member struct {
	n       int
	link    *link
	app     *app.App
	metrics *prometheus.Registry
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // valid once done is closed
	killed  bool
	checked bool
}

// logbook keeps what members say, with virtual times.
type logbook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// tail returns the last n lines.
func (l *logbook) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(l.b.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf("%v: ", time.Since(w.start).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, text)
}

// met counts what a fault fell on.
func (w *world) met(kind string, hits int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits[kind] += hits
}

// run plays the scenario. It leaves nothing running.
func run(s *scenario) *world {
	w := &world{
		s: s, start: time.Now(), log: &logbook{}, byPlace: map[place]*planned{}, hits: map[string]int{},
		highest: map[place]int64{}, members: make([]*member, s.members), old: make(chan struct{}), grown: make(chan struct{}),
	}
	defer func() { w.took = time.Since(w.start) }()
	if err := w.setUp(); err != nil {
		w.fail("the servers: %v", err)
		return w
	}
	defer func() {
		w.endAll() // whatever happened
		w.es.Close()
		w.kafka.Close()
		pass(time.Minute) // for what only has to see that it is over
	}()
	ctx, cancel := context.WithTimeout(context.Background(), load+patience+time.Hour)
	defer cancel()

	var producing sync.WaitGroup
	producing.Go(func() {
		if err := w.produce(ctx); err != nil {
			w.fail("the producer: %v", err)
		}
	})
	w.play()
	producing.Wait()
	if w.settled() {
		w.stopAll()
		w.check(ctx)
	}
	return w
}

// settled waits until everything is committed.
func (w *world) settled() bool {
	deadline := time.Now().Add(patience)
	for {
		w.watchCommits()
		behind := w.lag()
		switch {
		case len(w.problems) > 0:
			return false
		case behind == "" && w.parked() == 0:
			return true
		case time.Now().After(deadline):
			w.fail("not all is committed, or parked records were not replayed, %v after the last fault: %s\n%s", patience, behind, w.status())
			return false
		}
		pass(time.Second)
	}
}

// parked counts the lanes that are open by the states in the control index:
// their owners may be gone, or have yet to come.
func (w *world) parked() (n int) {
	for d := range w.es.Docs(control) {
		if !strings.HasPrefix(d.ID, "parked:") {
			continue
		}
		var state deadletter.ParkedState
		if err := json.Unmarshal(d.Source, &state); err != nil {
			w.fail("%s: %v", d.ID, err)
		}
		n += len(state.Lanes)
	}
	return n
}

func (m *member) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *member) name() string { return fmt.Sprintf("member-%d", m.n) }

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

func (w *world) setUp() error {
	kafka, err := embedded.StartKafka(embedded.KafkaConfig{
		Brokers: w.s.brokers, Virtual: true,
		Options: []kfake.Opt{
			kfake.GroupMinSessionTimeout(time.Second),
			kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
		},
	})
	if err != nil {
		return err
	}
	w.kafka = kafka
	flavour := embedded.FlavourElasticsearch
	if w.s.cfg.openSearch {
		flavour = embedded.FlavourOpenSearch
	}
	w.es = embedded.NewElasticsearch(embedded.Config{Flavour: flavour, History: true, Seed: w.s.seed})
	for _, t := range w.s.topics {
		if err := kafka.CreateTopic(t.name, t.partitions, nil); err != nil {
			return err
		}
		for tenant := range t.tenants {
			w.put(fmt.Sprintf("/i-%s-%d", t.name, tenant), fmt.Sprintf(
				`{"settings":{"index":{"number_of_shards":%d,"gc_deletes":%q}},"mappings":{"properties":{"n":{"type":"long"}}}}`, t.shards, deletesKept))
		}
	}
	// A letter counts from when the broker has it, not from when it was made.
	if err := kafka.CreateTopic(deadLetters, 1, map[string]string{"message.timestamp.type": "LogAppendTime"}); err != nil {
		return err
	}
	if w.s.cfg.parks {
		if err := kafka.CreateTopic(app.ParkedTopic(deadLetters), 2, map[string]string{"message.timestamp.type": "LogAppendTime"}); err != nil {
			return err
		}
	}
	stored := embedded.StoredIn(w.es, w.effect)
	w.oracle = embedded.NewOracle(func(r *kgo.Record) bool {
		w.checks.Add(1)
		return stored(r)
	})
	w.oracle.Watch(kafka)
	kafka.WatchCommits(func(embedded.Commit) { w.commits.Add(1) })
	return nil
}

// joinPatience is how much longer than the rebalance time-out a member waits for
// the answer to its join. The fake broker counts members that join one short
// after one has left in the middle of a sync, and begins its own wait anew with
// each join: were members to join again sooner than that, in turns, it would
// never end. A real broker does neither.
const joinPatience = 90 * time.Second

// effect is what the oracle looks for.
func (w *world) effect(r *kgo.Record) embedded.Effect {
	w.mu.Lock()
	p := w.byPlace[place{r.Topic, r.Partition, r.Offset}]
	w.mu.Unlock()
	return embedded.Effect{Index: p.index, ID: p.doc, Version: w.s.version(p), Ignored: p.fate == ignored}
}

// put asks the embedded Elasticsearch directly, past all faults of members.
func (w *world) put(path, body string) {
	req, err := http.NewRequest(http.MethodPut, "http://elasticsearch"+path, strings.NewReader(body))
	if err != nil {
		w.fail("PUT %s: %v", path, err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(simulationHeader, "1")
	resp, err := w.es.Transport().RoundTrip(req)
	if err != nil {
		w.fail("PUT %s: %v", path, err)
		return
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		w.fail("PUT %s: %d %s %v", path, resp.StatusCode, text, err)
	}
}

// simulationHeader marks requests that no fault may fall on.
const simulationHeader = "X-Simulation"

// produce writes the batches at their times. Where the topic grows, those that
// come after wait for that.
func (w *world) produce(ctx context.Context) error {
	old := len(w.s.batches)
	if i := slices.IndexFunc(w.s.batches, func(b batchPlan) bool { return b.grown }); i >= 0 {
		old = i
	}
	err := w.produceAll(ctx, w.s.batches[:old])
	close(w.old)
	if err != nil || w.s.grow == nil {
		return err
	}
	<-w.grown
	return w.produceAll(ctx, w.s.batches[old:])
}

func (w *world) produceAll(ctx context.Context, batches []batchPlan) error {
	opts := append(w.kafka.ClientOptions(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if w.s.cfg.transactions {
		opts = append(opts, kgo.TransactionalID("producer"))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, b := range batches {
		pass(b.at - time.Since(w.start))
		if w.s.cfg.transactions {
			if err := client.BeginTransaction(); err != nil {
				return err
			}
		}
		records := make([]*kgo.Record, len(b.records))
		for i, p := range b.records {
			records[i] = p.Record
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		if !b.abort {
			w.produced(b.records)
		}
		if w.s.cfg.transactions {
			if err := client.EndTransaction(ctx, kgo.TransactionEndTry(!b.abort)); err != nil {
				return fmt.Errorf("ending a transaction: %w", err)
			}
		}
	}
	return nil
}

// produced tells the oracle of records that count.
func (w *world) produced(batch []*planned) {
	w.mu.Lock()
	for _, p := range batch {
		if p.doc == "" {
			p.doc = p.position()
		}
		w.byPlace[place{p.Topic, p.Partition, p.Offset}] = p
	}
	w.mu.Unlock()
	for _, p := range batch {
		w.oracle.Produced(p.Record)
	}
}

// play does the steps at their times, and undoes them at theirs.
func (w *world) play() {
	type event struct {
		at time.Duration
		do func()
	}
	var events []event
	ends := map[int]func(){} // of the faults in force, by step
	end := func(i int) {
		if f := ends[i]; f != nil {
			f()
		}
		delete(ends, i)
	}
	for i, s := range w.s.steps {
		events = append(events, event{s.at, func() {
			w.watchCommits()
			w.met(s.kind, 0)
			if s.kind == "growth" { // no operator grows a topic amid trouble; a frozen member is nobody's knowledge
				for i := range ends {
					if w.s.steps[i].kind != "zombie" {
						end(i)
					}
				}
			}
			ends[i] = s.begin(w)
		}})
		events = append(events, event{s.at + s.lasts, func() { end(i) }})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		pass(e.at - time.Since(w.start))
		e.do()
	}
}

// growTopic stops all members, gives the first topic more partitions and
// raises its generation, as an operator does.
func (w *world) growTopic() {
	defer close(w.grown)
	<-w.old
	w.stopAll()
	for range 300 {
		if g := w.kafka.GroupInfo(group); g == nil || len(g.Members) == 0 {
			break
		}
		pass(time.Second)
	}
	if err := w.raise(context.Background()); err != nil {
		w.fail("the growth: %v", err)
	}
}

func (w *world) raise(ctx context.Context) error {
	name := w.s.topics[0].name
	cfg, err := w.s.config()
	if err != nil {
		return err
	}
	cluster, err := elastic.New(cfg.Elasticsearch, elastic.WithRoundTripper(unharmed{w.es.Transport()}))
	if err != nil {
		return err
	}
	defer func() { _ = cluster.Close(ctx) }() // nothing of it runs
	store := cluster.Control(control)
	if err := store.Open(ctx); err != nil {
		return err
	}
	client, err := kgo.NewClient(w.kafka.ClientOptions()...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	before, err := admin.ListTopics(ctx, name)
	if err != nil {
		return err
	}
	// It is recorded even if no member has come so far.
	t := generation.Topic{Name: name, ID: before[name].ID.String(), Partitions: int32(len(before[name].Partitions))}
	if _, err := generation.Ensure(ctx, store, t); err != nil {
		return err
	}
	if _, err := admin.UpdatePartitions(ctx, int(w.s.grow.partitions), name); err != nil {
		return err
	}
	t.Partitions = w.s.grow.partitions
	ends := map[int32]int64{}
	for _, p := range w.kafka.PartitionInfos(name) {
		ends[p.Partition] = p.HighWatermark
	}
	_, _, err = generation.Apply(ctx, store, generation.Raise{Topic: t, LogEnds: ends, LogEndsLater: ends})
	return err
}

// unharmed sends requests that no fault falls on.
type unharmed struct{ next http.RoundTripper }

func (u unharmed) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header.Set(simulationHeader, "1")
	return u.next.RoundTrip(req)
}

// join starts a member.
func (w *world) join(n int) { w.joinAs(n, n) }

// joinAs starts a member in the place of another one, if places have names.
func (w *world) joinAs(n, instance int) {
	cfg, err := w.s.config()
	if err != nil {
		w.fail("configuration: %v", err)
		return
	}
	cfg.Kafka.Brokers = w.kafka.Addresses()
	m := &member{
		n: n, link: newLink(w.kafka.DialContext, w.es.Transport()), metrics: prometheus.NewRegistry(), done: make(chan struct{}),
	}
	cfg.Kafka.ClientID = m.name()
	if w.s.cfg.static {
		cfg.Kafka.InstanceID = fmt.Sprintf("place-%d", instance)
	}
	log := zerolog.New(w.log).Level(zerolog.InfoLevel).Hook(clock{w.start}).With().Int("member", n).Logger()
	m.app, err = app.New(cfg, app.Options{
		Log: log, Version: "simulation", Metrics: m.metrics,
		Kafka: []kgo.Opt{kgo.Dialer(m.link.dial), kgo.RequestTimeoutOverhead(joinPatience)}, Elastic: []elastic.Option{elastic.WithRoundTripper(m.link)},
	})
	if err != nil {
		w.fail("member %d: %v", n, err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	w.mu.Lock()
	w.members[n] = m
	w.mu.Unlock()
	go func() { // ends with the member
		defer close(m.done)
		m.err = m.app.Run(ctx)
	}()
}

// clock puts the scenario's time on log lines.
type clock struct{ start time.Time }

func (c clock) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str("t", time.Since(c.start).Round(time.Millisecond).String())
}

func (w *world) member(n int) *member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.members[n]
}

// leave asks a member to stop, as SIGTERM does.
func (w *world) leave(n int) {
	if m := w.member(n); m != nil {
		m.cancel()
	}
}

// kill ends a member as far as the servers can see. What it still does, alone,
// is of no consequence.
func (w *world) kill(n int) {
	if m := w.member(n); m != nil {
		m.killed = true
		m.link.cutOff()
		m.cancel()
	}
}

// reap waits for a member's end and checks what it leaves.
func (w *world) reap(m *member) {
	if m.checked {
		return
	}
	m.checked = true
	select {
	case <-m.done:
	case <-time.After(5 * time.Minute):
		w.fail("member %d did not end within 5 minutes of being asked to\n%s", m.n, w.status())
		m.link.cutOff()
		<-m.done
	}
	// Letters that cannot be written in time are given up, and that is said.
	lettersLate := m.err != nil && strings.Contains(m.err.Error(), "were not acknowledged in time") && w.s.has("kafka dead letters")
	if m.err != nil && !m.killed && !m.link.wasFrozen() && !lettersLate {
		w.fail("member %d ended with %v", m.n, m.err)
	}
	w.checkLedger(m)
	m.link.cutOff()
}

// stopAll ends all members one by one, so that their partitions move once more.
func (w *world) stopAll() {
	for _, m := range w.members {
		if m != nil {
			m.cancel()
			w.reap(m)
		}
	}
}

// endAll ends what is left after a failure.
func (w *world) endAll() {
	for _, m := range w.members {
		if m != nil {
			m.cancel()
			m.link.cutOff()
			<-m.done
		}
	}
}

// lag says what is not committed, "" for nothing.
func (w *world) lag() string {
	commits := map[string]map[int32]kfake.GroupCommit{}
	if g := w.kafka.GroupInfo(group); g != nil {
		commits = g.Commits
	}
	var behind []string
	for _, t := range w.s.topics {
		for _, p := range w.kafka.PartitionInfos(t.name) {
			if at := commits[t.name][p.Partition].Offset; at < p.LastStableOffset {
				behind = append(behind, fmt.Sprintf("%s/%d is at %d of %d", t.name, p.Partition, at, p.LastStableOffset))
			}
		}
	}
	return strings.Join(behind, ", ")
}

// watchCommits looks whether what is committed has gone back. A commit that a
// frozen network delivers late may do that for a while; see scenario.late.
func (w *world) watchCommits() {
	g := w.kafka.GroupInfo(group)
	if g == nil {
		return
	}
	for topic, partitions := range g.Commits {
		for p, c := range partitions {
			k := place{topic, p, 0}
			if c.Offset < w.highest[k] && !w.s.late() {
				w.fail("the commit of %s/%d went back from %d to %d", topic, p, w.highest[k], c.Offset)
			}
			w.highest[k] = max(w.highest[k], c.Offset)
		}
	}
}
