// Package scenarios tries the whole program, as cmd/sluice builds it, against
// a Kafka and an Elasticsearch inside the process: what people who run such
// pipelines have met in the field, one test a situation.
package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/generation"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := removeBinary(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// The names that every world uses unless a test says otherwise.
const (
	topic   = "events"
	index   = "events"
	letters = "dead"
	group   = "g"
	control = ".sluice-control"
)

// settings are those of a deployment but for times, so that tests are short.
// What a test gives lies over them.
const settings = `
kafka:
  group_id: g
  topics: [events]
  session_timeout: 20s
  rebalance_timeout: 10s
  drain_timeout: 2s
  commit_interval: 20ms
  fetch: {max_wait: 50ms}
elasticsearch: {request_timeout: 2s}
documents: {index: events}
indexer:
  flush_interval: 20ms
  retry: {initial: 10ms, max: 100ms}
dead_letter: {topic: dead}
memory: {limit: 64MiB}
admin: {address: "127.0.0.1:0"}
shutdown_timeout: 5s
`

// world is a Kafka with the topics events and dead, an Elasticsearch, and what
// was written to them. Every commit is checked by an oracle, and by Cleanup
// that nothing was wrong with any.
type world struct {
	t     testing.TB
	kafka *embedded.Kafka
	es    *embedded.Elasticsearch
	admin *kadm.Client
	// virtual says that it has no sockets and belongs to a bubble.
	virtual bool
	// url is where programs reach Elasticsearch.
	url string

	// effect is what a record does to Elasticsearch, for the oracle; the
	// default is that of a key id with a sequence version. nil: not checked.
	effect func(*kgo.Record) embedded.Effect
	oracle *embedded.Oracle

	mu  sync.Mutex
	log []*kgo.Record     // all that was produced, in order
	ids map[string]string // topic ids by name

	lists struct {
		name    string
		version int64
		list    generation.List
	}
}

// worldOptions change a world.
type worldOptions struct {
	partitions int32 // of the topic events; 1 by default
	brokers    int
	virtual    bool // no sockets, for a synctest bubble
	topics     map[string]int32
	kafka      []kfake.Opt
	client     []kgo.Opt // of the test's own clients
}

func newWorld(t testing.TB, o worldOptions) *world {
	t.Helper()
	topics := map[string]int32{topic: max(o.partitions, 1), letters: 1}
	maps.Copy(topics, o.topics)
	k, err := embedded.StartKafka(embedded.KafkaConfig{
		Brokers: o.brokers, Topics: topics, Virtual: o.virtual, Client: o.client,
		Options: append([]kfake.Opt{
			kfake.GroupMinSessionTimeout(100 * time.Millisecond),
			kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
		}, o.kafka...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	w := &world{t: t, kafka: k, es: embedded.NewElasticsearch(embedded.Config{History: true}), virtual: o.virtual, ids: map[string]string{}}
	t.Cleanup(w.es.Close)
	w.url = "http://elasticsearch:9200"
	if !o.virtual {
		if w.url, err = w.es.Start("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kgo.NewClient(append(k.ClientOptions(), kgo.MetadataMinAge(10*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.admin = kadm.NewClient(client)
	w.effect = w.sequenced
	w.judge()
	t.Cleanup(w.verdict)
	return w
}

// judge begins a new oracle, which knows nothing of what was before: for topics
// that are made anew.
func (w *world) judge() {
	w.oracle = embedded.NewOracle(func(r *kgo.Record) bool {
		return w.effect == nil || embedded.StoredIn(w.es, w.effect)(r)
	})
	w.oracle.Watch(w.kafka)
}

// verdict fails the test for each commit that passed a record which was neither
// stored nor among the dead letters.
func (w *world) verdict() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	aside := []string{letters}
	if w.kafka.TopicInfo(app.ParkedTopic(letters)) != nil {
		aside = append(aside, app.ParkedTopic(letters))
	}
	if err := w.oracle.ReadLetters(ctx, w.kafka, aside...); err != nil {
		w.t.Error(err)
	}
	violations := w.oracle.Violations()
	for _, v := range violations[:min(len(violations), 3)] {
		w.t.Error(v)
	}
}

// sequenced is the effect of a record whose key is its id.
func (w *world) sequenced(r *kgo.Record) embedded.Effect {
	w.mu.Lock()
	id := w.ids[r.Topic]
	w.mu.Unlock()
	list := w.generations(r.Topic)
	gen, _ := list.At(id, r.Partition, r.Offset)
	version, err := document.Sequence(gen, r.Offset)
	if err != nil {
		version = 1 // nothing is recorded: nothing can be stored
	}
	return embedded.Effect{Index: index, ID: string(r.Key), Version: version, Ignored: len(r.Key) == 0}
}

// produce writes records, with partitions from their keys, and remembers them.
func (w *world) produce(records ...*kgo.Record) {
	w.t.Helper()
	w.write(w.kafka.Produce, records)
}

// produceTo writes records to the partitions that they name.
func (w *world) produceTo(records ...*kgo.Record) {
	w.t.Helper()
	w.write(w.kafka.ProduceTo, records)
}

func (w *world) write(produce func(context.Context, ...*kgo.Record) error, records []*kgo.Record) {
	w.t.Helper()
	for _, r := range records {
		if r.Topic == "" {
			r.Topic = topic
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Commits may pass these records before produce returns; the oracle looks
	// at them then.
	if err := produce(ctx, records...); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	for _, r := range records {
		if _, known := w.ids[r.Topic]; !known {
			w.ids[r.Topic] = w.topicID(r.Topic)
		}
	}
	w.log = append(w.log, records...)
	w.mu.Unlock()
	w.oracle.Produced(records...)
}

// topicID is how Kafka identifies a topic of this name now.
func (w *world) topicID(name string) string {
	info := w.kafka.TopicInfo(name)
	if info == nil {
		w.t.Fatalf("there is no topic %s", name)
	}
	return kadm.TopicID(info.TopicID).String()
}

// record is one with a key and a small document.
func record(key string, n int) *kgo.Record {
	return &kgo.Record{Key: []byte(key), Value: fmt.Appendf(nil, `{"n":%d}`, n)}
}

// records are n with keys of their own.
func records(n int) []*kgo.Record {
	all := make([]*kgo.Record, n)
	for i := range all {
		all[i] = record(fmt.Sprintf("k%d", i), i)
	}
	return all
}

// tombstone is a record with a key and no value.
func tombstone(key string) *kgo.Record { return &kgo.Record{Key: []byte(key)} }

// fold is what the index must hold: per key the newest record that was
// produced.
func (w *world) fold() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[string]string{}
	for _, r := range w.log {
		if r.Value == nil {
			delete(want, string(r.Key))
		} else {
			want[string(r.Key)] = string(r.Value)
		}
	}
	return want
}

// documents is what an index holds.
func (w *world) documents(name string) map[string]string {
	got := map[string]string{}
	for d := range w.es.Docs(name) {
		got[d.ID] = string(d.Source)
	}
	return got
}

// checkFold fails the test unless the index is the fold of what was produced.
func (w *world) checkFold() {
	w.t.Helper()
	w.checkIndex(index, w.fold())
}

func (w *world) checkIndex(name string, want map[string]string) {
	w.t.Helper()
	got := w.documents(name)
	if maps.Equal(got, want) {
		return
	}
	shown := 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if got[id] != want[id] && shown < 5 {
			w.t.Errorf("%s/%s is %.80q, want %.80q", name, id, got[id], want[id])
			shown++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[id]; !ok && shown < 10 {
			w.t.Errorf("%s/%s should not be there: %.80q", name, id, got[id])
			shown++
		}
	}
	w.t.Errorf("%s holds %d documents, want %d", name, len(got), len(want))
}

// generations is what the control index records for a topic.
func (w *world) generations(name string) generation.List {
	source, version, found := w.es.Get(control, generation.ID(name))
	if !found {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lists.name != name || w.lists.version != version { // the oracle asks for every record
		var doc struct{ Entries generation.List }
		if err := json.Unmarshal(source, &doc); err != nil {
			w.t.Error(err)
		}
		w.lists.name, w.lists.version, w.lists.list = name, version, doc.Entries
	}
	return w.lists.list
}

// letters reads the dead letters.
func (w *world) letters() []*kgo.Record {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	all, err := w.kafka.ReadAll(ctx, letters)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// committed is a group's committed offset, -1 for none.
func (w *world) committed(name string, partition int32) int64 {
	if info := w.kafka.GroupInfo(group); info != nil {
		if c, ok := info.Commits[name][partition]; ok {
			return c.Offset
		}
	}
	return -1
}

// lag is how many offsets of a topic the group has not committed.
func (w *world) lag(name string) (lag int64) {
	for _, p := range w.kafka.PartitionInfos(name) {
		lag += p.LastStableOffset - max(w.committed(name, p.Partition), 0)
	}
	return lag
}

// awaitDone waits until the group has committed all of the topic events.
func (w *world) awaitDone(apps ...*program) {
	w.t.Helper()
	w.await("lag 0", func() error {
		if n := w.lag(topic); n != 0 {
			return fmt.Errorf("lag is %d", n)
		}
		return nil
	}, apps...)
}

// patience is how long await waits: far above what anything takes.
const patience = 2 * time.Minute

// await waits until f succeeds, and fails the test if it does not in time. What
// it waits for is other goroutines' and cannot tell, so it asks again; at each
// time the books of the apps must balance.
func (w *world) await(what string, f func() error, apps ...*program) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	every := 5 * time.Millisecond
	if w.virtual {
		every = 50 * time.Millisecond // a look costs time, and this clock waits for it
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		for _, a := range apps {
			a.audit()
		}
		err := f()
		if err == nil {
			return
		}
		for _, a := range apps {
			select {
			case <-a.ended:
				w.t.Fatalf("waiting for %s (%v): a program ended: %v", what, err, a.err)
			default:
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain for %s: %v", what, err)
		}
		<-ticker.C
	}
}

// program is one Sluice that runs in this process.
type program struct {
	*app.App
	w       *world
	metrics *prometheus.Registry
	log     *output
	network *network
	cancel  context.CancelFunc
	ended   chan struct{} // closed when Run has returned
	err     error         // its result, after ended
}

// start runs a Sluice with the settings of this package, what yaml lays over
// them, and changes of what yaml may not say. It is stopped after the test.
func (w *world) start(yaml string, changes ...func(*config.Config, *app.Options)) *program {
	w.t.Helper()
	cfg := w.config(yaml)
	p := &program{w: w, metrics: prometheus.NewRegistry(), log: &output{}, network: newNetwork(w), ended: make(chan struct{})}
	o := app.Options{
		Log: zerolog.New(p.log).Level(zerolog.InfoLevel), Version: "test", Metrics: p.metrics,
		// New partitions and rebalances are seen at once, although sessions
		// outlive the stalls of a loaded machine.
		Kafka:   []kgo.Opt{kgo.HeartbeatInterval(100 * time.Millisecond), kgo.Dialer(p.network.dial), kgo.MetadataMinAge(20 * time.Millisecond), kgo.MetadataMaxAge(200 * time.Millisecond)},
		Elastic: []elastic.Option{elastic.WithRoundTripper(p.network)},
	}
	for _, change := range changes {
		change(cfg, &o)
	}
	var err error
	if p.App, err = app.New(cfg, o); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.ended)
		p.err = p.Run(ctx)
	}()
	w.t.Cleanup(func() {
		p.network.mend()
		_ = p.stop() // a test that minds has looked
		p.audit()
		if n := p.sum("sluice_internal_errors_total"); n != 0 {
			w.t.Errorf("%v internal errors", n)
		}
		if w.t.Failed() {
			w.t.Logf("the program's log ends with:\n%s", p.log.tail())
		}
	})
	return p
}

// config is the settings of this package with yaml over them.
func (w *world) config(yaml string) *config.Config {
	w.t.Helper()
	cfg, err := config.Parse([]config.Source{{Name: "settings", Data: []byte(settings)}, {Name: "test", Data: []byte(yaml)}}, []string{
		fmt.Sprintf("kafka.brokers=[%s]", strings.Join(w.kafka.Addresses(), ",")),
		fmt.Sprintf("elasticsearch.addresses=[%q]", w.url),
	}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.Admin.Address = "" // a bubble's clock stands still while something listens
	return cfg
}

// stop does what SIGTERM does, and returns what the program ended with.
func (p *program) stop() error {
	p.cancel()
	<-p.ended
	return p.err
}

// kill cuts the program off from everything, as SIGKILL does, and ends it.
// Nothing that it does from now on is seen outside.
func (p *program) kill() {
	p.network.cut()
	p.cancel()
	<-p.ended
}

// sum adds up the samples of a metric that have all of the labels, given as
// name, value, name, value.
func (p *program) sum(name string, labels ...string) float64 {
	return sumOf(p.gather(), name, labels...)
}

func (p *program) gather() map[string]*dto.MetricFamily {
	families, err := p.metrics.Gather()
	if err != nil {
		p.w.t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
		if problem := unlisted(f); problem != "" {
			p.w.t.Error(problem)
		}
	}
	return byName
}

// listed is the golden file of metrics: type and labels by name, tab between
// them.
var listed = sync.OnceValues(func() (map[string]string, error) {
	text, err := os.ReadFile("../app/testdata/metrics.txt")
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(line, "\t", 4)
		all[fields[0]] = fields[1] + "\t" + fields[2]
	}
	return all, err
})

// unlisted says how a metric differs from the golden file of them; "": not at
// all, or it is the Go runtime's.
func unlisted(f *dto.MetricFamily) string {
	if !strings.HasPrefix(f.GetName(), "sluice_") || len(f.GetMetric()) == 0 {
		return ""
	}
	all, err := listed()
	if err != nil {
		return err.Error()
	}
	var labels []string
	for _, l := range f.GetMetric()[0].GetLabel() { // sorted
		labels = append(labels, l.GetName())
	}
	got := strings.ToLower(f.GetType().String()) + "\t" + strings.Join(labels, ",")
	if want := all[f.GetName()]; got != want {
		return fmt.Sprintf("%s is %q, and the golden file says %q", f.GetName(), got, want)
	}
	return ""
}

func sumOf(families map[string]*dto.MetricFamily, name string, labels ...string) (sum float64) {
	for _, m := range families[name].GetMetric() {
		matches := true
		for i := 0; i < len(labels); i += 2 {
			matches = matches && labelOf(m, labels[i]) == labels[i+1]
		}
		if matches {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// outcomes is the sum of a kind of outcome: indexed, deleted, stale, ...
func (p *program) outcomes(outcome string) int {
	return int(p.sum("sluice_records_total", "outcome", outcome))
}

// audit fails the test unless every record that was consumed is accounted for,
// once, per topic and partition, and no more bytes are held than may be.
func (p *program) audit() {
	p.w.t.Helper()
	families := p.gather()
	for _, m := range families["sluice_records_consumed_total"].GetMetric() {
		where := []string{"topic", labelOf(m, "topic"), "partition", labelOf(m, "partition")}
		accounted := sumOf(families, "sluice_records_total", where...) + sumOf(families, "sluice_records_in_flight", where...)
		if consumed := m.GetCounter().GetValue(); consumed != accounted {
			p.w.t.Fatalf("the ledger of %v does not balance: consumed %v, accounted for %v", where, consumed, accounted)
		}
	}
	if used, limit := sumOf(families, "sluice_memory_used_bytes"), sumOf(families, "sluice_memory_limit_bytes"); used > limit {
		p.w.t.Fatalf("%v bytes are held, the limit is %v", used, limit)
	}
}

// partitions are the states of the partitions that the program holds.
func (p *program) partitions() []consumer.PartitionStatus {
	return p.App.Status().(app.Status).Consumer.Partitions
}

// partition is the state of one partition, false where it is not held.
func (p *program) partition(name string, partition int32) (consumer.PartitionStatus, bool) {
	for _, s := range p.partitions() {
		if s.Topic == name && s.Partition == partition {
			return s, true
		}
	}
	return consumer.PartitionStatus{}, false
}

// awaitHalt waits until a partition is halted and returns why.
func (p *program) awaitHalt(name string, partition int32) (h consumer.Halt) {
	p.w.t.Helper()
	p.w.await(fmt.Sprintf("%s/%d to halt", name, partition), func() error {
		s, ok := p.partition(name, partition)
		if !ok || s.Halt == nil {
			return fmt.Errorf("held %v, %+v", ok, s)
		}
		h = *s.Halt
		return nil
	}, p)
	return h
}

// awaitHeld waits until the program holds n partitions.
func (p *program) awaitHeld(n int) {
	p.w.t.Helper()
	p.w.await(fmt.Sprintf("%d partitions", n), func() error {
		if held := len(p.partitions()); held != n {
			return fmt.Errorf("%d are held", held)
		}
		return nil
	}, p)
}

// errCut is what a program meets that is cut off.
var errCut = errors.New("scenarios: the network is cut")

// network is a program's way to the servers. It can be cut.
type network struct {
	w    *world
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	http http.RoundTripper

	mu      sync.Mutex
	noKafka bool
	down    context.Context // ends when it is cut
	lower   context.CancelCauseFunc
	conns   map[net.Conn]bool
}

func newNetwork(w *world) *network {
	n := &network{w: w, conns: map[net.Conn]bool{}}
	n.down, n.lower = context.WithCancelCause(context.Background())
	n.dial = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if n.kafkaCut() {
			return nil, errCut
		}
		conn, err := w.kafka.Dial(ctx, protocol, address)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.noKafka {
			_ = conn.Close()
			return nil, errCut
		}
		n.conns[conn] = true
		return &trackedConn{conn, n}, nil
	}
	n.http = w.es.Transport()
	return n
}

// RoundTrip implements http.RoundTripper.
func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	if down.Err() != nil {
		return nil, errCut
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	unlink := context.AfterFunc(down, func() { cancel(errCut) })
	resp, err := n.http.RoundTrip(req.WithContext(ctx))
	if err != nil {
		unlink()
		cancel(nil)
		return nil, err
	}
	resp.Body = &cutBody{resp.Body, func() { unlink(); cancel(nil) }}
	return resp, nil
}

type cutBody struct {
	io.ReadCloser
	done func()
}

func (b *cutBody) Close() error {
	b.done()
	return b.ReadCloser.Close()
}

type trackedConn struct {
	net.Conn
	n *network
}

func (c *trackedConn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c.Conn)
	c.n.mu.Unlock()
	return c.Conn.Close()
}

// cut breaks what is connected; nothing connects until mend.
func (n *network) cut() {
	n.mu.Lock()
	n.lower(errCut)
	n.mu.Unlock()
	n.cutKafka()
}

func (n *network) kafkaCut() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.noKafka
}

// cutKafka is cut for Kafka alone.
func (n *network) cutKafka() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noKafka = true
	for conn := range n.conns {
		_ = conn.Close()
	}
	clear(n.conns)
}

// mend ends a cut.
func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noKafka = false
	if n.down.Err() != nil {
		n.down, n.lower = context.WithCancelCause(context.Background())
	}
}

// output is a buffer for several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// tail is the end of what was written.
func (o *output) tail() string {
	text := o.String()
	return text[max(0, len(text)-4<<10):]
}
