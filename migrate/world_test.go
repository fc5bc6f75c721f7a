package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

const (
	stream  = "events"
	source  = "events"
	jobName = "j7"
	epochs  = 1 << 53 // the lowest version that consumers write: generation 1
)

// world is a cluster, a log and consumers that write it to whatever sides the
// routing table names, by the rules of adoption.
type world struct {
	*testing.T
	es      *embedded.Elasticsearch
	client  *elastic.Client
	control *elastic.Control
	tables  *partition.Store
	log     *journal
	m       *Manager
	told    []string
	fromLog bool // all that the source holds comes from the log
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t)) })
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, es: embedded.NewElasticsearch(embedded.Config{History: true})}
	t.Cleanup(w.es.Close)
	client, err := elastic.New(elastic.Config{Addresses: []string{"http://es:9200"}}, elastic.WithRoundTripper(w.es.Transport()))
	w.check(err)
	w.client, w.control = client, client.Control(".sluice-control")
	w.check(w.control.Open(t.Context()))
	w.tables = partition.NewStore(w.control)
	w.log = &journal{w: w, committed: make([]commit, sourcePartitions), members: 1, routers: map[int64]*partition.Router{}, epoch: make([]int64, sourcePartitions)}
	w.m = w.manager("a", nil)
	w.call(http.MethodPut, "/"+source, `{"settings":{"number_of_shards":3,"number_of_replicas":0},"mappings":{"properties":{"customer":{"type":"keyword"},"n":{"type":"long"}}}}`)
	return w
}

// manager is one process; through is where its requests go (nil: the cluster).
func (w *world) manager(owner string, through http.RoundTripper) *Manager {
	w.Helper()
	client := w.client
	if through != nil {
		var err error
		client, err = elastic.New(elastic.Config{Addresses: []string{"http://es:9200"}}, elastic.WithRoundTripper(through), elastic.WithVersion("job"))
		w.check(err)
	}
	control := client.Control(".sluice-control")
	return New(Config{
		Cluster: client, Control: control, Tables: partition.NewStore(control), Group: w.log, Records: w.log, Stream: stream, Owner: owner,
		Versions:     Versions{Ours: func(v int64) bool { return v >= epochs }},
		MaxStaleness: time.Second, Period: 3 * time.Second, Poll: 200 * time.Millisecond,
	})
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// call sends a request that must succeed.
func (w *world) call(method, path, body string) []byte {
	w.Helper()
	status, text := w.try(method, path, body)
	if status >= 300 {
		w.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	return text
}

func (w *world) try(method, path, body string) (int, []byte) {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, "http://es:9200"+path, strings.NewReader(body))
	w.check(err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.es.Transport().RoundTrip(req)
	w.check(err)
	defer resp.Body.Close()
	var text json.RawMessage
	_ = json.NewDecoder(resp.Body).Decode(&text) // some answers have no body
	return resp.StatusCode, text
}

// plan is a plan for so many partitions, by hand.
func (w *world) plan(partitions int) Plan {
	w.Helper()
	w.call(http.MethodPost, "/"+source+"/_refresh", "")
	stats, err := w.client.IndexStats(w.Context(), source)
	w.check(err)
	layout, err := partition.MakePlan(partition.PlanInput{Prefix: source, Partitions: partitions})
	w.check(err)
	p := Plan{Schema: schema, Stream: stream, Source: source, Docs: stats.Docs, Bytes: stats.Bytes, Customer: "field:/customer", Layout: layout}
	w.check(p.Seal())
	return p
}

func request() Request { return Request{Job: jobName, Actor: "test", Yes: true} }

// create makes the table of the stream, as consumers need it, and the job.
func (w *world) create(partitions int) {
	w.Helper()
	t := partition.New(stream, source)
	w.check(w.tables.Create(w.Context(), t))
	_, err := w.m.Create(w.Context(), request(), w.plan(partitions))
	w.check(err)
}

// toSynced walks the job from CREATED to SYNCED.
func (w *world) toSynced() {
	w.Helper()
	_, err := w.m.DualWrite(w.Context(), request())
	w.check(err)
	w.check(w.m.Work(w.Context(), jobName, w.tell))
	w.state(Synced)
}

func (w *world) tell(text string) { w.told = append(w.told, text) }

func (w *world) job() *Job {
	w.Helper()
	j, err := w.m.store.load(w.Context(), jobName)
	w.check(err)
	return j
}

func (w *world) state(want State) {
	w.Helper()
	if have := w.job().State; have != want {
		w.Fatalf("the job is %s, want %s", have, want)
	}
}

// refused demands a refusal that says something.
func (w *world) refused(err error, say string) {
	w.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), say) {
		w.Fatalf("want a refusal that says %q, got: %v", say, err)
	}
	for _, r := range refused.Refusals {
		if r.Remedy == "" {
			w.Errorf("no remedy is named: %s", r.Why)
		}
	}
	events, err := w.m.Events(w.Context(), jobName, 1)
	w.check(err)
	if len(events) == 0 || !strings.Contains(events[len(events)-1].Result, say) {
		w.Errorf("the audit log does not hold the refusal: %+v", events)
	}
}

func (w *world) verify(check Check) *Report {
	w.Helper()
	report, _, err := w.m.Verify(w.Context(), request(), check, nil)
	w.check(err)
	return report
}

const sourcePartitions = 4

type entry struct {
	id, customer string
	deleted      bool
	body         string
}

type commit struct{ offset, epoch int64 }

// journal is a log of four partitions and the group that writes it to the
// cluster. It is the Group of the tests.
type journal struct {
	w       *world
	members int

	mu        sync.Mutex
	entries   [sourcePartitions][]entry
	committed []commit
	epoch     []int64 // by partition: what its owner has adopted
	lag       Lag
	parked    string // what is parked; "": nothing
	frozen    [sourcePartitions]bool
	log       logState
	keeps     bool                        // documents.deletes: tombstone
	routers   map[int64]*partition.Router // by epoch
}

func partitionOf(id string) int {
	n := 0
	for _, c := range id {
		n = n*31 + int(c)
	}
	return (n%sourcePartitions + sourcePartitions) % sourcePartitions
}

func versionOf(offset int) int64 { return epochs + int64(offset+1)<<8 }

// put appends an upsert to the log, remove a deletion.
func (j *journal) put(id, customer string, n int) {
	j.append(entry{id: id, customer: customer, body: fmt.Sprintf(`{"customer":%q,"n":%d}`, customer, n)})
}

func (j *journal) remove(id, customer string) {
	j.append(entry{id: id, customer: customer, deleted: true})
}

func (j *journal) append(e entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := partitionOf(e.id)
	j.entries[p] = append(j.entries[p], e)
}

// adopt lets the owners of these partitions (none: all) take the table that is
// published, and commits with its epoch before anything is written under it.
func (j *journal) adopt(partitions ...int) {
	j.w.Helper()
	table, err := j.w.tables.Load(j.w.Context(), stream)
	if errors.Is(err, partition.ErrNotFound) {
		return
	}
	j.w.check(err)
	if partitions == nil {
		partitions = []int{0, 1, 2, 3}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.routers[table.Epoch] == nil {
		j.routers[table.Epoch] = partition.NewRouter(table.Table, partition.CacheOptions{})
	}
	for _, p := range partitions {
		if !j.frozen[p] {
			j.epoch[p] = table.Epoch
			j.committed[p].epoch = table.Epoch
		}
	}
}

// deliver writes all that is not committed yet, by the table that each owner
// has adopted, which must still be the published one or one whose sides are
// still required.
func (j *journal) deliver() {
	for p := range sourcePartitions {
		for j.next(p) {
		}
	}
}

// next handles one record of a partition. It says whether there was one.
func (j *journal) next(p int) bool {
	j.w.Helper()
	j.mu.Lock()
	at := int(j.committed[p].offset)
	if j.frozen[p] || at >= len(j.entries[p]) {
		j.mu.Unlock()
		return false
	}
	e, epoch := j.entries[p][at], j.epoch[p]
	j.mu.Unlock()
	route := j.tableAt(epoch).Route([]byte(e.customer))
	if route.Legacy != "" {
		j.write(route.Legacy, e, versionOf(at), false)
	}
	if route.New != "" {
		j.write(route.New, e, versionOf(at), route.Shadow)
	}
	j.mu.Lock()
	j.committed[p].offset++
	j.mu.Unlock()
	return true
}

// tableAt returns the router of an epoch, as its adopters remember it.
func (j *journal) tableAt(epoch int64) *partition.Router {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.routers[epoch] == nil {
		j.routers[epoch] = partition.NewRouter(partition.New(stream, source), partition.CacheOptions{})
	}
	return j.routers[epoch]
}

// write sends one write until it is settled, as a consumer does.
func (j *journal) write(index string, e entry, version int64, shadow bool) {
	j.w.Helper()
	a := bulk.Action{Op: bulk.Index, VersionType: bulk.External, Version: version, Target: index, ID: []byte(e.id), Body: []byte(e.body)}
	if e.deleted {
		a.Op, a.Body = bulk.Delete, nil
		if shadow || j.keeps {
			a.Op, a.Body = bulk.Index, []byte(`{"_sluice_deleted":true,"_sluice_deleted_at":1}`)
		}
	}
	s := &sender{client: j.w.client, query: deleting()}
	ends, err := s.send(j.w.Context(), []bulk.Action{a}, 1<<20)
	if err != nil && j.w.Context().Err() == nil {
		j.w.Errorf("a live write: %v", err)
	}
	if err == nil && ends[0].ending == failed {
		// Rejected by one side: marked, then a dead letter.
		err := j.w.control.Create(j.w.Context(), dirtyID(jobName, e.customer), map[string]string{"side": index})
		if err != nil && !errors.Is(err, elastic.ErrConflict) {
			j.w.Error(err)
		}
	}
}

// run delivers and adopts until ctx ends, and appends random records meanwhile.
func (j *journal) run(ctx context.Context, r *rand.Rand, customers, ids int) {
	for n := 0; ctx.Err() == nil; n++ {
		if n%5 == 0 {
			j.adopt()
		}
		id := r.IntN(ids)
		customer := "c" + strconv.Itoa(id%customers)
		if r.IntN(4) == 0 {
			j.remove("d"+strconv.Itoa(id), customer)
		} else {
			j.put("d"+strconv.Itoa(id), customer, n)
		}
		j.deliver()
		if sleep(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

func (j *journal) Fence(_ context.Context, epoch int64) (Fence, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := Fence{Epoch: epoch, Passed: true, Offsets: Offsets{"t": {}}}
	for p, c := range j.committed {
		f.Offsets["t"][int32(p)] = c.offset
		if c.epoch < epoch {
			f.Passed = false
			f.Laggards = append(f.Laggards, fmt.Sprintf("t/%d", p))
		}
	}
	if j.parked != "" {
		f.Passed = false
		f.Laggards = append(f.Laggards, j.parked)
	}
	return f, nil
}

func (j *journal) Ends(context.Context) (Offsets, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ends := Offsets{"t": {}}
	for p, entries := range j.entries {
		ends["t"][int32(p)] = int64(len(entries))
	}
	return ends, nil
}

func (j *journal) Passed(_ context.Context, ends Offsets) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, end := range ends["t"] {
		if j.committed[p].offset < end {
			return fmt.Sprintf("t/%d", p), nil
		}
	}
	return "", nil
}

func (j *journal) Behind(context.Context, time.Duration) (Lag, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lag, nil
}

func (j *journal) HighestEpoch(context.Context) (int64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	highest := int64(0)
	for _, c := range j.committed {
		highest = max(highest, c.epoch)
	}
	return highest, nil
}

func (j *journal) Members(context.Context) (int, error) { return j.members, nil }

// stored is what an index shows of a document.
type stored struct {
	version int64
	body    string
}

func (w *world) shown(indices ...string) map[string]stored {
	docs := map[string]stored{}
	for _, index := range indices {
		for d := range w.es.Docs(index) {
			if !tombstoneSource(d.Source) {
				docs[d.ID] = stored{d.Version, string(d.Source)}
			}
		}
	}
	return docs
}

// same demands that both sides show the same documents, at the same versions,
// each in its customer's partition.
func (w *world) same() {
	w.Helper()
	j := w.job()
	old, renewed := w.shown(j.Source), w.shown(j.indices()...)
	for _, id := range slices.Sorted(maps.Keys(old)) {
		if renewed[id] != old[id] {
			w.Errorf("%s: old %+v, new %+v", id, old[id], renewed[id])
		}
	}
	for id := range renewed {
		if _, ok := old[id]; !ok {
			w.Errorf("%s is on the new side only: %+v", id, renewed[id])
		}
	}
	table, err := w.tables.Load(w.Context(), stream)
	w.check(err)
	router := partition.NewRouter(table.Table, partition.CacheOptions{})
	by, err := ParseCustomers("field:/customer")
	w.check(err)
	for _, index := range j.indices() {
		for d := range w.es.Docs(index) {
			customer, ok := by.Of(d.ID, "", d.Source)
			if want := router.Route([]byte(customer)).New; ok && want != "" && want != index {
				w.Errorf("%s of customer %s is in %s, not in %s", d.ID, customer, index, want)
			}
		}
	}
}

// tombstonesLeft counts the tombstone documents of the new side.
func (w *world) tombstonesLeft() int {
	n := 0
	for _, index := range w.job().indices() {
		for d := range w.es.Docs(index) {
			if tombstoneSource(d.Source) {
				n++
			}
		}
	}
	return n
}

// seed puts legacy documents into the source, with internal versions.
func (w *world) seed(docs, customers int) {
	w.Helper()
	var b strings.Builder
	for i := range docs {
		fmt.Fprintf(&b, `{"index":{"_index":%q,"_id":"d%d"}}`+"\n"+`{"customer":"c%d","n":%d}`+"\n", source, i, i%customers, -i)
	}
	w.call(http.MethodPost, "/_bulk?refresh=true", b.String())
}
