package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// routedSettings are those of a stream whose customer is what a key has before
// its slash.
const routedSettings = `
kafka: {session_timeout: 2s}
documents: {index: legacy, id: key, customer: 'key:^([^/]+)/'}
routing: {stream: events, refresh_interval: 20ms}
`

// routedWorld is a world whose stream is routed by customer. Its oracle knows
// every table: a commit may pass a record only if each side that the table in
// force asks for has it. Between two commits of one epoch that is its table.
type routedWorld struct {
	*world
	control *elastic.Control
	store   *partition.Store

	mu     sync.Mutex
	tables map[int64]*partition.Router
	log    map[[2]int64]*kgo.Record  // by partition and offset
	passed map[[2]int64]passage      // before the record was known
	last   map[int32]embedded.Commit // as far as a member of the time can have made it
	stands map[int32]consumer.FencePosition
	asked  map[int32][]string // the last commits, refused ones too
	wrong  []string
	// excused are keys of records that some side must refuse.
	excused map[string]bool
}

func newRoutedWorld(t testing.TB, partitions int32) *routedWorld {
	t.Helper()
	return newRoutedWorldOf(t, worldOptions{partitions: partitions})
}

func newRoutedWorldOf(t testing.TB, o worldOptions) *routedWorld {
	t.Helper()
	w := &routedWorld{
		world: newWorld(t, o), tables: map[int64]*partition.Router{},
		log: map[[2]int64]*kgo.Record{}, passed: map[[2]int64]passage{}, last: map[int32]embedded.Commit{}, stands: map[int32]consumer.FencePosition{}, asked: map[int32][]string{}, excused: map[string]bool{},
	}
	w.effect = nil // what is checked in its place stands here
	client, err := elastic.New(w.config("").Elasticsearch, elastic.WithRoundTripper(w.es.Transport()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	w.control = client.Control(control)
	if err := w.control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.store = partition.NewStore(w.control)
	w.kafka.WatchCommits(w.commit)
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, text := range w.wrong[:min(len(w.wrong), 5)] {
			t.Error(text)
		}
		if n := len(w.wrong); n > 5 {
			t.Errorf("and %d more commits were wrong", n-5)
		}
	})
	return w
}

// send produces records and tells the oracle of them. What is committed before
// it knows is looked at then.
func (w *routedWorld) send(records ...*kgo.Record) {
	w.t.Helper()
	w.produce(records...)
	w.tell(records)
}

// sendTo is send to the partitions that the records name.
func (w *routedWorld) sendTo(records ...*kgo.Record) {
	w.t.Helper()
	w.produceTo(records...)
	w.tell(records)
}

func (w *routedWorld) tell(records []*kgo.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range records {
		w.log[[2]int64{int64(r.Partition), r.Offset}] = r
		if p, ok := w.passed[[2]int64{int64(r.Partition), r.Offset}]; ok {
			w.required(r, p)
		}
	}
}

// commit checks what a commit passes, and under which epoch.
func (w *routedWorld) commit(c embedded.Commit) {
	if c.Group != group || c.Topic != topic {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	epoch, last := epochOf(c.Metadata), w.last[c.Partition]
	w.asked[c.Partition] = append(w.asked[c.Partition], fmt.Sprintf("  %s %s: %d under epoch %d", time.Now().Format(time.StampMilli), c.MemberID, c.Offset, epoch))
	if n := len(w.asked[c.Partition]); n > 20 {
		w.asked[c.Partition] = slices.Delete(w.asked[c.Partition], 0, n-20)
	}
	before := epochOf(last.Metadata)
	if epoch < before || c.Offset < last.Offset {
		return // of a member that lost the partition: the broker refuses it, which stood checks
	}
	w.last[c.Partition] = c
	if w.tables[epoch] == nil {
		w.complain("%s/%d committed under epoch %d, which nobody stored", c.Topic, c.Partition, epoch)
		return
	}
	for at := last.Offset; at < c.Offset; at++ {
		p := passage{at, max(before, 1), epoch}
		if r := w.log[[2]int64{int64(c.Partition), at}]; r != nil {
			w.required(r, p)
		} else {
			w.passed[[2]int64{int64(c.Partition), at}] = p
		}
	}
}

// passage is a record that a commit passed, and the epochs of the commit before
// and of this one: it was written by the table of one of them, or of one in
// between.
type passage struct{ offset, from, to int64 }

func (w *routedWorld) complain(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// required checks that each side that a table of the time asked for has a
// record, or a newer one of its id.
func (w *routedWorld) required(r *kgo.Record, p passage) {
	customer, _, ok := strings.Cut(string(r.Key), "/")
	if !ok || w.excused[string(r.Key)] {
		return // dead-lettered
	}
	version, err := document.Sequence(1, r.Offset)
	if err != nil {
		w.complain("%v", err)
	}
	has := func(index string) bool {
		peak, ok := w.es.Peak(index, string(r.Key))
		return index == "" || ok && peak >= version
	}
	for epoch := p.from; epoch <= p.to; epoch++ {
		if table := w.tables[epoch]; table != nil {
			if to := table.Route([]byte(customer)); has(to.Legacy) && has(to.New) {
				return
			}
		}
	}
	w.complain("%s/%d/%d was passed by epochs %d to %d, and a side of each does not have it", r.Topic, r.Partition, r.Offset, p.from, p.to)
}

func epochOf(metadata string) int64 {
	var m struct {
		Epoch int64 `json:"e"`
	}
	_ = json.Unmarshal([]byte(metadata), &m) // "" before the first commit
	return m.Epoch
}

// excuse tells the oracle of a key whose record some side must refuse.
func (w *routedWorld) excuse(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excused[key] = true
}

// begin stores the first table and makes its indices.
func (w *routedWorld) begin(t *partition.Table) {
	w.t.Helper()
	w.know(t)
	if err := w.store.Create(context.Background(), t); err != nil {
		w.t.Fatal(err)
	}
}

func (w *routedWorld) know(t *partition.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tables[t.Epoch] = partition.NewRouter(t, partition.CacheOptions{})
}

// change stores the table that follows, and returns it. Customers that it moves
// have no documents: the test's care.
func (w *routedWorld) change(edit func(*partition.Table) error) *partition.Table {
	w.t.Helper()
	read, err := w.store.Load(context.Background(), "events")
	if err != nil {
		w.t.Fatal(err)
	}
	next, err := read.Change(partition.Change{By: "test", At: time.Now(), Documents: func(func(string) bool) {}, Edit: edit})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range next.Partitions {
		w.makeIndex(p.Index)
	}
	w.know(next)
	if err := w.store.Update(context.Background(), read, next); err != nil {
		w.t.Fatal(err)
	}
	return next
}

// makeIndex makes an index, if it is not there.
func (w *routedWorld) makeIndex(name string) {
	if slices.Contains(w.es.Indices(), name) {
		return
	}
	w.must(http.MethodPut, "/"+name, fmt.Sprintf(`{"mappings":{"properties":{%q:{"type":"boolean"}}}}`, document.TombstoneField))
}

// stood checks that what the brokers hold has not gone back.
func (w *routedWorld) stood(f consumer.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range f.Positions {
		if old, ok := w.stands[p.Partition]; ok && (p.Epoch < old.Epoch || p.Offset < old.Offset) {
			w.complain("%s/%d went back from %d under epoch %d to %d under epoch %d, the last commits that were asked for are\n%s",
				p.Topic, p.Partition, old.Offset, old.Epoch, p.Offset, p.Epoch, strings.Join(w.asked[p.Partition], "\n"))
		}
		w.stands[p.Partition] = p
	}
}

// fence waits until the group has committed under an epoch, and returns the
// offsets.
func (w *routedWorld) fence(epoch int64, programs ...*program) map[int32]int64 {
	w.t.Helper()
	var f consumer.Fence
	w.await(fmt.Sprintf("the fence of epoch %d", epoch), func() (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		f, err = consumer.ReadFence(ctx, w.admin, consumer.Config{GroupID: group, Topics: []string{topic}}, nil, epoch)
		if err != nil {
			return err
		}
		if w.stood(f); !f.Passed() {
			return fmt.Errorf("behind: %v", f.Laggards())
		}
		return nil
	}, programs...)
	return f.Offsets()[topic]
}

// committedAll is where the group stands in each partition.
func (w *routedWorld) committedAll() map[int32]int64 {
	at := map[int32]int64{}
	for _, p := range w.kafka.PartitionInfos(topic) {
		at[p.Partition] = max(w.committed(topic, p.Partition), 0)
	}
	return at
}

// partitioned puts n index partitions into a table, over which the slots are
// spread; prefix names them.
func partitioned(t *partition.Table, prefix string, n int) {
	if t.Partitions == nil {
		t.Partitions = map[string]partition.Partition{}
	}
	name := func(i int) string { return fmt.Sprintf("%s%03d", prefix, i) }
	for i := range n {
		t.Partitions[name(i)] = partition.Partition{Index: "events-" + name(i), State: partition.Active}
	}
	t.SlotMap = nil
	for slot := range t.Slots {
		t.SlotMap = append(t.SlotMap, name(slot*n/t.Slots))
	}
}

// A routingRun is one run of TestRouting: how much of everything.
type routingRun struct {
	customers, partitions, records int
	rounds                         int // changes of the table after W3
	processes                      bool
}

// TestRouting takes a stream through the write modes and many changes of its
// table, under kills, zombies, servers that turn requests away, and a producer
// that does not stop. At each commit every side that the commit's epoch asks for
// must have what it passes; at the end nothing may be lost, misrouted or stale,
// and both sides must be equal for what was written under both.
// SLUICE_TEST_ROUTING=full runs it with processes, 10,000 customers and 50
// changes.
func TestRouting(t *testing.T) {
	run := routingRun{customers: 1000, partitions: 24, records: 400, rounds: 4}
	if os.Getenv("SLUICE_TEST_ROUTING") == "full" {
		run = routingRun{customers: 10_000, partitions: 24, records: 1500, rounds: 39, processes: true}
	}
	newRoutingStorm(t, run).run()
}

// routingStorm is a run under way.
type routingStorm struct {
	*routedWorld
	routingRun
	rand    *rand.Rand
	members []*member
	now     *partition.Table
	changes int
}

// member is a Sluice in this process or in one of its own.
type member struct {
	program *program
	process *process
}

func newRoutingStorm(t *testing.T, run routingRun) *routingStorm {
	s := &routingStorm{routedWorld: newRoutedWorld(t, 12), routingRun: run, rand: rand.New(rand.NewPCG(1, 2))}
	s.now = partition.New("events", "legacy")
	s.makeIndex("legacy")
	s.begin(s.now)
	for range 3 {
		s.members = append(s.members, s.join())
	}
	return s
}

func (s *routingStorm) join() *member {
	if s.processes {
		return &member{process: s.launch(routedSettings)}
	}
	return &member{program: s.start(routedSettings)}
}

// zombieSleep is far beyond the session timeout of routedSettings.
const zombieSleep = 8 * time.Second

// trouble is what a change of the table meets: kill and replace a member, freeze
// one beyond its session, have actions turned away, or nothing.
func (s *routingStorm) trouble() (over func()) {
	i := s.rand.IntN(len(s.members))
	m := s.members[i]
	switch s.changes % 4 {
	case 0:
		if m.process != nil {
			m.process.end(syscall.SIGKILL)
		} else {
			m.program.kill()
		}
		s.members[i] = s.join()
	case 1:
		// A zombie: its session ends, and it goes on with what it has in hand. It
		// wakes by itself: a member whose join was cut off stays one for kfake.
		var wake func()
		if m.process != nil {
			_ = m.process.cmd.Process.Signal(syscall.SIGSTOP)
			wake = func() { _ = m.process.cmd.Process.Signal(syscall.SIGCONT) }
		} else {
			m.program.network.cutKafka()
			wake = m.program.network.mend
		}
		timer := time.AfterFunc(zombieSleep, wake)
		return func() {
			timer.Stop()
			wake()
		}
	case 2:
		rule := s.es.Inject(embedded.Rule{API: "bulk", Next: 50, Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
			if len(a.ID)%3 != 0 {
				return nil
			}
			return &embedded.ItemError{Status: 429, Type: "es_rejected_execution_exception", Reason: "full"}
		}}})
		return rule.Remove
	}
	return func() {}
}

// programs are the members in this process, whose books must balance.
func (s *routingStorm) programs() (all []*program) {
	for _, m := range s.members {
		if m.program != nil {
			all = append(all, m.program)
		}
	}
	return all
}

// step produces, stores a change, produces on, has trouble, and waits for the
// fence. It returns the offsets that were committed just before the change was
// stored, and those of the fence.
func (s *routingStorm) step(edit func(*partition.Table) error) (before, fence map[int32]int64) {
	s.t.Helper()
	s.traffic()
	before = s.committedAll()
	s.now = s.change(edit)
	s.changes++
	s.traffic()
	over := s.trouble()
	fence = s.fence(s.now.Epoch, s.programs()...)
	over()
	return before, fence
}

// traffic produces records of all customers: documents that change and go, and
// some without a customer.
func (s *routingStorm) traffic() {
	s.t.Helper()
	batch := make([]*kgo.Record, s.records)
	for i := range batch {
		// Most of it is of a few customers.
		customer := int(float64(s.customers) * s.rand.Float64() * s.rand.Float64() * s.rand.Float64())
		r := record(fmt.Sprintf("c%d/%d", customer, s.rand.IntN(5)), s.rand.IntN(1_000_000))
		switch s.rand.IntN(100) {
		case 0, 1, 2, 3, 4, 5, 6, 7:
			r.Value = nil
		case 8:
			r.Key = []byte("nobody's")
		}
		batch[i] = r
	}
	s.send(batch...)
}

// firsts are the first records of customers that nobody knew.
func (s *routingStorm) firsts(customers ...string) {
	s.t.Helper()
	for _, c := range customers {
		s.send(record(c+"/1", 1), record(c+"/2", 2), tombstone(c+"/1"))
	}
}

func (s *routingStorm) run() {
	// A migration that is given up.
	s.step(func(t *partition.Table) error { t.Job = "j1"; partitioned(t, "a", s.partitions); return nil })
	s.step(func(t *partition.Table) error { t.Write = partition.W1; return nil })
	s.step(func(t *partition.Table) error { t.Detach(); return nil })
	// And one that goes through.
	s.step(func(t *partition.Table) error { t.Job = "j2"; partitioned(t, "b", s.partitions); return nil })
	_, dual := s.step(func(t *partition.Table) error { t.Write = partition.W1; return nil })
	s.step(func(t *partition.Table) error {
		t.Overrides = map[string]string{"new-1": "b001", "new-2*": "b002"}
		return nil
	})
	s.firsts("new-1", "new-22")
	s.step(func(t *partition.Table) error { t.Write = partition.W2; return nil })
	s.step(func(t *partition.Table) error { t.Read.Allow, t.Read.Salt = []string{"c1"}, "j2"; return nil })
	s.step(func(t *partition.Table) error { t.Read.Percent = 1000; return nil })
	s.step(func(t *partition.Table) error { t.Read.Percent = partition.Percent; return nil })
	last, _ := s.step(func(t *partition.Table) error { t.Write, t.Job = partition.W3, ""; return nil })
	// From now on customers get places of their own before their first record.
	for round := range s.rounds {
		name := fmt.Sprintf("late-%d", round)
		s.step(func(t *partition.Table) error {
			if round%3 == 0 {
				t.Partitions[fmt.Sprintf("l%03d", round)] = partition.Partition{Index: fmt.Sprintf("events-l%03d", round), State: partition.Active}
				t.Overrides[name] = fmt.Sprintf("l%03d", round)
				return nil
			}
			if round%3 == 1 {
				t.Overrides[name+"*"] = fmt.Sprintf("b%03d", round%s.partitions)
				return nil
			}
			t.Overrides["never-"+name] = "b000"
			return nil
		})
		s.firsts(name)
	}
	s.traffic()
	for most := s.lag(topic) / 2; s.lag(topic) > 0; most /= 2 { // each half has its own patience
		s.await(fmt.Sprintf("lag %d", most), func() error {
			if n := s.lag(topic); n > most {
				return fmt.Errorf("lag is %d", n)
			}
			return nil
		}, s.programs()...)
	}
	s.t.Logf("%d changes, %d records", s.changes, len(s.log))
	s.check(dual, last)
}

// check holds all indices against the log. dual is where writing to both sides
// is known to have begun, last what was committed when it was still going on.
func (s *routingStorm) check(dual, last map[int32]int64) {
	s.t.Helper()
	type state struct {
		record  *kgo.Record
		version int64
	}
	newest := map[string]state{}
	s.mu.Lock()
	for _, r := range s.log {
		version, err := document.Sequence(1, r.Offset)
		if err != nil {
			s.t.Fatal(err)
		}
		if old, ok := newest[string(r.Key)]; !ok || old.version < version {
			newest[string(r.Key)] = state{r, version}
		}
	}
	s.mu.Unlock()
	router := partition.NewRouter(s.now, partition.CacheOptions{})
	var lost, stale, misrouted, unequal, both int
	holds := func(index, id string, want state) (missing, old bool) {
		source, version, found := s.es.Get(index, id)
		if found && strings.Contains(string(source), document.TombstoneField) {
			found = false
		}
		switch {
		case found != (want.record.Value != nil):
			return true, false
		case found && (version != want.version || string(source) != string(want.record.Value)):
			return false, true
		}
		return false, false
	}
	for id, want := range newest {
		customer, _, ok := strings.Cut(id, "/")
		if !ok {
			continue
		}
		at := want.record.Partition
		if want.record.Offset >= dual[at] {
			missing, old := holds(router.Route([]byte(customer)).New, id, want)
			lost, stale = lost+count(missing), stale+count(old)
		}
		if want.record.Offset < last[at] {
			missing, old := holds("legacy", id, want)
			lost, stale = lost+count(missing), stale+count(old)
			if want.record.Offset >= dual[at] {
				both++
			}
			unequal += count(missing || old)
		}
	}
	for _, index := range s.es.Indices() {
		if !strings.HasPrefix(index, "events-b") && !strings.HasPrefix(index, "events-l") {
			continue
		}
		for d := range s.es.Docs(index) {
			customer, _, _ := strings.Cut(d.ID, "/")
			if router.Route([]byte(customer)).New != index {
				misrouted++
			}
		}
	}
	if lost+stale+misrouted+unequal > 0 {
		s.t.Errorf("%d lost, %d stale, %d misrouted, %d differ between the sides", lost, stale, misrouted, unequal)
	}
	if both == 0 {
		s.t.Error("no document was written to both sides: the test shows nothing")
	}
	letters := map[int64]bool{}
	for _, l := range s.letters() {
		if string(l.Key) != "nobody's" {
			s.t.Errorf("a dead letter of %q", l.Key)
		}
		letters[l.Offset] = true
	}
	if len(letters) == 0 {
		s.t.Error("no record without a customer was dead-lettered")
	}
	s.t.Logf("%d ids, %d of them written to both sides, %d dead letters", len(newest), both, len(letters))
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
