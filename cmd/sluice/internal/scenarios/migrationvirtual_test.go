//go:build synctests

package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// splitRun is how much of everything a run of TestMigration has.
type splitRun struct {
	documents, customers int
	deletes              string // documents.deletes
	gc                   string // index.gc_deletes of all indices
}

// The kills of a run.
const (
	jobKills      = 20
	consumerKills = 10
	outages       = 3 // of Elasticsearch, which has forgotten its deletes afterwards
)

// TestMigration takes a stream with the program's own consumers through a whole
// migration, from create to complete, with five cut-overs and two roll-backs,
// while a third of the documents is changed or deleted: processes of the job and
// of the consumers are killed again and again, and Elasticsearch goes away and
// comes back without its deletes. At each commit every side that the table asks
// for must have what it passes; at the end the new side is the fold of the log:
// nothing is lost, stale, resurrected or misrouted.
//
// Deletes that are tombstone documents are proof against a server that forgets
// deletes at once; real deletes against delays within index.gc_deletes.
//
// SLUICE_TEST_MIGRATION=full does it with 2,000,000 documents of 300 customers,
// SLUICE_TEST_MIGRATION=N with N documents.
func TestMigration(t *testing.T) {
	documents := 6000
	switch text := os.Getenv("SLUICE_TEST_MIGRATION"); text {
	case "":
	case "full":
		documents = 2_000_000
	default:
		var err error
		if documents, err = strconv.Atoi(text); err != nil {
			t.Fatalf("SLUICE_TEST_MIGRATION=%s: want full, or a number of documents", text)
		}
	}
	for _, run := range []splitRun{
		{deletes: "tombstone", gc: "1s"},
		{deletes: "hard", gc: "15m"},
	} {
		t.Run(run.deletes, func(t *testing.T) {
			run.documents, run.customers = documents, min(300, documents/200)
			began := time.Now()
			bubble(t, func(t *testing.T) {
				s := newSplit(t, run)
				s.run()
				t.Logf("%d documents, %d records, %d of them since dual writing began; killed: %d of the job, %d consumers; Elasticsearch was away %d times; %s of the cluster's time",
					run.documents, s.sent(), s.changed(), s.killed, s.replaced, s.away, time.Since(s.began).Round(time.Second))
			})
			t.Logf("took %s", time.Since(began).Round(time.Second))
		})
	}
}

// split is a run under way.
type split struct {
	*routedWorld
	splitRun
	yaml     string
	cfg      *config.Config
	random   *rand.Rand
	members  []*program
	operator *migrate.Manager // that nobody kills
	began    time.Time

	lives, killed, replaced, away int
	loaded                        int // records before dual writing

	producer struct {
		sync.Mutex
		random *rand.Rand
		serial int
		sent   int
	}
}

const splitJob = "j1"

func newSplit(t *testing.T, run splitRun) *split {
	s := &split{
		routedWorld: newRoutedWorldOf(t, worldOptions{partitions: 6, virtual: true}), splitRun: run,
		random: rand.New(rand.NewPCG(3, 1)), began: time.Now(),
	}
	s.producer.random = rand.New(rand.NewPCG(3, 2))
	s.yaml = fmt.Sprintf(`
kafka: {session_timeout: 2s, commit_interval: 200ms}
elasticsearch: {compression_level: 0}
documents: {index: legacy, id: key, customer: 'key:^([^/]+)/', deletes: %s}
routing: {stream: events, refresh_interval: 200ms, max_staleness: 10s}
memory: {limit: 256MiB}
`, run.deletes)
	s.cfg = s.config(s.yaml)
	s.operator, _, _ = s.process(0)
	return s
}

// process is one of `sluice migrate`, which is killed at its n-th request; 0:
// never. It logs into the output.
func (s *split) process(n int) (*migrate.Manager, *mortal, *output) {
	s.t.Helper()
	life := &mortal{next: s.es.Transport(), left: n, sees: s.foresee, after: n%2 == 0}
	life.ctx, life.kill = context.WithCancel(context.Background())
	client, err := elastic.New(s.cfg.Elasticsearch, elastic.WithRoundTripper(life))
	if err != nil {
		s.t.Fatal(err)
	}
	mapper, err := app.Mapper(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	group := app.Group{Config: s.cfg, Kafka: s.admin, Control: client.Control(control)}
	log := &output{}
	m := app.NewMigrations(s.cfg, mapper, client, group, fmt.Sprintf("process %d", s.lives), zerolog.New(log))
	m.Period, m.Poll = 5*time.Second, 200*time.Millisecond
	return m, life, log
}

// mortal is the way of a process to Elasticsearch, until it is killed: before a
// request is carried out, or before its answer is read. Every request takes its
// time, so that the others go on meanwhile.
type mortal struct {
	next  http.RoundTripper
	sees  func(table []byte) // hears of routing tables that the process stores
	after bool

	ctx  context.Context // ends with the process
	kill context.CancelFunc

	mu   sync.Mutex
	left int // requests until it is killed; 0: it was, or is not to be
	died bool
}

// dead says whether it was killed at its request.
func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.died
}

// roundTrip is how long a request of the job takes.
const roundTrip = 50 * time.Millisecond

var errKilled = errors.New("scenarios: the process is killed")

func (m *mortal) RoundTrip(req *http.Request) (*http.Response, error) {
	timer := time.NewTimer(roundTrip)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if m.ctx.Err() != nil {
		return nil, errKilled
	}
	m.mu.Lock()
	last := m.left == 1
	m.left = max(0, m.left-1)
	m.died = m.died || last
	m.mu.Unlock()
	if last && !m.after {
		m.kill()
		return nil, errKilled
	}
	if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "routing") && req.GetBody != nil {
		if body, err := req.GetBody(); err == nil {
			table, _ := io.ReadAll(body) // of memory
			m.sees(table)
		}
	}
	resp, err := m.next.RoundTrip(req)
	if last && err == nil {
		_ = resp.Body.Close()
		m.kill()
		return nil, errKilled
	}
	return resp, err
}

// foresee tells the oracle of a table before it is stored.
func (s *split) foresee(document []byte) {
	table, err := partition.Parse(document)
	if err != nil {
		s.t.Errorf("a table that nobody can read is stored: %v", err)
		return
	}
	s.know(table)
}

// verb does something with the job in processes of which so many are killed, at
// one of their first requests, until one of them comes to its end. Something else
// happens to the cluster in each life of the first ones.
func (s *split) verb(name string, kills, most int, do func(context.Context, *migrate.Manager) error, over func(*migrate.Job) bool) {
	s.t.Helper()
	for tries := 0; ; tries++ {
		n := 0
		if kills > 0 {
			n = 1 + s.random.IntN(most)
		}
		s.lives++
		m, life, log := s.process(n)
		ended := make(chan error, 1)
		go func() { ended <- do(life.ctx, m) }()
		s.trouble()
		var err error
		select {
		case err = <-ended:
		case <-time.After(20*time.Minute + time.Duration(s.documents)*2*time.Millisecond): // by far more than any takes
			s.tell(name, log)
			life.kill()
			s.t.Fatalf("%s did not come to its end: %v", name, <-ended)
		}
		life.kill()
		killed := life.dead()
		if killed {
			s.killed++
			kills--
		}
		if over != nil && err != nil {
			status, errStatus := s.operator.Status(s.t.Context(), splitJob)
			if errStatus == nil && over(status.Job) {
				err, killed = nil, false
			}
		}
		var refused *migrate.RefusedError
		switch {
		case killed:
		case err == nil:
			return
		case errors.As(err, &refused) && !refused.Later:
			s.t.Fatalf("%s: %v", name, err)
		case tries > 100:
			s.t.Fatalf("%s does not come to its end: %v", name, err)
		}
		pass(time.Duration(s.random.IntN(1000)) * time.Millisecond)
	}
}

// tell logs all that there is to know of a job that does not come to its end.
func (s *split) tell(verb string, log *output) {
	s.t.Helper()
	status, err := s.operator.Status(s.t.Context(), splitJob)
	if err != nil {
		s.t.Errorf("status: %v", err)
	}
	text, err := json.MarshalIndent(status, "", " ")
	if err != nil {
		s.t.Errorf("status: %v", err)
	}
	s.t.Logf("%s\nlog of %s:\n%s", text, verb, log)
	for i, member := range s.members {
		s.t.Logf("log of member %d:\n%s", i, member.log.tail())
	}
}

// trouble replaces a consumer, or takes Elasticsearch away for a while, at a
// moment of the next seconds, as long as some of either are due.
func (s *split) trouble() {
	s.t.Helper()
	if s.replaced < consumerKills {
		pass(time.Duration(s.random.IntN(3000)) * time.Millisecond)
		i := s.random.IntN(len(s.members))
		s.members[i].kill()
		s.members[i] = s.start(s.yaml)
		s.replaced++
	}
	if s.lives%4 == 3 && s.away < outages {
		refused := s.es.Inject(embedded.Rule{Fault: embedded.Refused()})
		s.es.Restart()
		s.away++
		pass(3 * time.Second)
		refused.Remove()
	}
}

// load puts the documents into the legacy index: one half was there before the
// stream began, at versions of the index's own, the other comes from the log.
func (s *split) load() {
	s.t.Helper()
	s.must(http.MethodPut, "/legacy", fmt.Sprintf(`{"settings":{"number_of_shards":3,"number_of_replicas":0,"gc_deletes":%q},"mappings":{"properties":{"n":{"type":"long"},%q:{"type":"boolean"}}}}`,
		s.gc, document.TombstoneField))
	table := partition.New("events", "legacy")
	s.begin(table)
	for range 3 {
		s.members = append(s.members, s.start(s.yaml))
	}
	const chunk = 10_000
	for from := 0; from < s.documents; from += chunk {
		var bulk strings.Builder
		var batch []*kgo.Record
		for i := from; i < min(from+chunk, s.documents); i++ {
			if i%2 == 0 {
				fmt.Fprintf(&bulk, `{"index":{"_index":"legacy","_id":%q}}`+"\n%s\n", s.id(i), legacyBody(i))
			} else {
				batch = append(batch, s.record(i))
			}
		}
		s.must(http.MethodPost, "/_bulk", bulk.String())
		s.send(batch...)
	}
	s.drained()
	s.loaded = s.sent()
}

func (s *split) id(i int) string { return fmt.Sprintf("c%d/%d", i%s.customers, i) }

func legacyBody(i int) string { return fmt.Sprintf(`{"n":%d,"from":"before"}`, i) }

// record is the next one of a document.
func (s *split) record(i int) *kgo.Record {
	s.producer.Lock()
	defer s.producer.Unlock()
	s.producer.serial++
	s.producer.sent++
	return &kgo.Record{Key: []byte(s.id(i)), Value: fmt.Appendf(nil, `{"n":%d,"from":"the log"}`, s.producer.serial)}
}

func (s *split) sent() int {
	s.producer.Lock()
	defer s.producer.Unlock()
	return s.producer.sent
}

// changed is how many records were sent since dual writing began.
func (s *split) changed() int { return s.sent() - s.loaded }

// produceChanges produces so many records of what is there, was there, or is
// new: a third of them are deletes.
func (s *split) produceChanges(n int) {
	s.t.Helper()
	batch := make([]*kgo.Record, n)
	for k := range batch {
		s.producer.Lock()
		i := s.producer.random.IntN(s.documents + s.documents/50)
		gone := s.producer.random.IntN(3) == 0
		s.producer.Unlock()
		batch[k] = s.record(i)
		if gone {
			batch[k].Value = nil
		}
	}
	s.send(batch...)
}

// traffic produces changes until it is told to stop.
func (s *split) traffic() (stop func()) {
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with ending
		defer close(ended)
		for {
			select {
			case <-ending:
				return
			default:
			}
			s.produceChanges(max(2, s.documents/10_000))
			pass(100 * time.Millisecond)
		}
	}()
	stop = sync.OnceFunc(func() {
		close(ending)
		<-ended
	})
	s.t.Cleanup(stop)
	return stop
}

// drained waits until all that was produced is committed.
func (s *split) drained() {
	s.t.Helper()
	for most := s.lag(topic) / 2; s.lag(topic) > 0; most /= 2 {
		s.await(fmt.Sprintf("lag %d", most), func() error {
			if n := s.lag(topic); n > most {
				return fmt.Errorf("lag is %d", n)
			}
			return nil
		}, s.members...)
	}
}

func (s *split) run() {
	s.load()
	stop := s.traffic()
	request := migrate.Request{Job: splitJob, Actor: "test", Yes: true}
	var plan migrate.Plan
	s.must(http.MethodPost, "/legacy/_refresh", "")
	s.verb("plan", 0, 0, func(ctx context.Context, m *migrate.Manager) (err error) {
		plan, err = m.Plan(ctx, migrate.Wish{Source: "legacy", Customer: `id:^([^/]+)/`, Partitions: 8, Replicas: -1})
		return err
	}, nil)
	made := func(j *migrate.Job) bool { return j.State != migrate.Planned }
	s.verb("create", 2, 12, func(ctx context.Context, m *migrate.Manager) error {
		_, err := m.Create(ctx, request, plan)
		return err
	}, made)
	status, err := s.operator.Status(s.t.Context(), splitJob)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, target := range status.Targets {
		s.must(http.MethodPut, "/"+target.Index+"/_settings", fmt.Sprintf(`{"index.gc_deletes":%q}`, s.gc))
	}
	s.verb("dual-write", 1, 4, func(ctx context.Context, m *migrate.Manager) error {
		_, err := m.DualWrite(ctx, request)
		return err
	}, nil)
	verify := func(kills, most int) {
		s.t.Helper()
		s.verb("verify", kills, most, func(ctx context.Context, m *migrate.Manager) error {
			report, _, err := m.Verify(ctx, request, migrate.Check{Level: migrate.L2}, nil)
			if err == nil && !report.Clean() {
				s.t.Errorf("a verification is not clean: %+v", report)
			}
			return err
		}, nil)
	}
	s.verb("run", 9, max(60, s.documents/12_000), func(ctx context.Context, m *migrate.Manager) error {
		return m.Work(ctx, splitJob, nil)
	}, nil)
	verify(2, 20)
	cutover := func(kills int, cut migrate.Cut) {
		s.t.Helper()
		s.verb("cutover", kills, 12, func(ctx context.Context, m *migrate.Manager) error {
			_, err := m.Cutover(ctx, request, cut)
			return err
		}, nil)
	}
	rollback := func(kills int, customers ...string) {
		s.t.Helper()
		s.verb("rollback", kills, 6, func(ctx context.Context, m *migrate.Manager) error {
			_, err := m.Rollback(ctx, request, customers)
			return err
		}, nil)
	}
	percent := func(p float64) migrate.Cut { return migrate.Cut{Percent: &p} }
	cutover(1, migrate.Cut{Customers: []string{"c1", "c2"}})
	cutover(0, percent(10))
	rollback(1)
	cutover(1, percent(50))
	rollback(0, "c1")
	cutover(0, migrate.Cut{Customers: []string{"c1"}})
	cutover(1, migrate.Cut{All: true})
	for s.changed() < s.documents*3/10 {
		s.produceChanges(min(10_000, s.documents*3/10-s.changed()))
	}
	verify(0, 0)
	stop()
	s.drained()
	s.hold("the legacy index", "legacy")
	s.hold("the new side", s.targets()...)
	stop = s.traffic()
	s.verb("complete", jobKills-s.killed, 20, func(ctx context.Context, m *migrate.Manager) error {
		_, err := m.Complete(ctx, request, 0, 0)
		return err
	}, func(j *migrate.Job) bool { return j.State == migrate.Completed })
	pass(5 * time.Second)
	stop()
	s.drained()
	s.hold("the new side in the end", s.targets()...)
	if s.killed < jobKills || s.replaced < consumerKills || s.away < outages {
		s.t.Errorf("%d processes of the job were killed, %d consumers, and Elasticsearch %d times", s.killed, s.replaced, s.away)
	}
}

func (s *split) targets() (indices []string) {
	s.t.Helper()
	status, err := s.operator.Status(s.t.Context(), splitJob)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, t := range status.Targets {
		indices = append(indices, t.Index)
	}
	return indices
}

// hold fails the test unless what these indices show is the fold of the log over
// what was there before, each document in the place of its customer.
func (s *split) hold(what string, indices ...string) {
	s.t.Helper()
	type state struct {
		offset int64
		value  []byte
	}
	newest := make(map[string]state, s.documents)
	s.mu.Lock()
	for _, r := range s.routedWorld.log {
		if old, ok := newest[string(r.Key)]; !ok || old.offset < r.Offset {
			newest[string(r.Key)] = state{r.Offset, r.Value}
		}
	}
	s.mu.Unlock()
	for i := 0; i < s.documents; i += 2 {
		if _, ok := newest[s.id(i)]; !ok {
			newest[s.id(i)] = state{-1, []byte(legacyBody(i))}
		}
	}
	stored, err := s.store.Load(s.t.Context(), "events")
	if err != nil {
		s.t.Fatal(err)
	}
	router := partition.NewRouter(stored.Table, partition.CacheOptions{})
	live, right := 0, 0
	var stale, resurrected, phantom, misrouted int
	for _, want := range newest {
		live += count(want.value != nil)
	}
	for _, name := range indices {
		for d := range s.es.Docs(name) {
			if strings.Contains(string(d.Source), document.TombstoneField) {
				continue
			}
			want, known := newest[d.ID]
			customer, _, _ := strings.Cut(d.ID, "/")
			version := int64(1) // the first of an index's own
			if want.offset >= 0 {
				version = sequence(&kgo.Record{Offset: want.offset})
			}
			switch {
			case !known:
				phantom++
			case want.value == nil:
				resurrected++
			case name != "legacy" && router.Route([]byte(customer)).New != name:
				misrouted++
			case d.Version != version || string(d.Source) != string(want.value):
				stale++
			default:
				right++
			}
		}
	}
	if lost := live - right - stale - misrouted; lost+stale+resurrected+phantom+misrouted != 0 {
		s.t.Errorf("%s: %d lost, %d stale, %d resurrected, %d phantom, %d misrouted of %d documents", what, lost, stale, resurrected, phantom, misrouted, live)
	}
	s.t.Logf("%s: %d ids, %d live", what, len(newest), live)
}
