//go:build integration

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestMigrateFromTheTopics fills the new side from a compacted topic in place of
// the index, while a process consumes it: what is there in the end is the same
// documents at the same versions.
func TestMigrateFromTheTopics(t *testing.T) {
	kafka, elasticsearch := startKafka(t, nil), startElasticsearch(t, elasticsearchOptions{})
	topic, letters, legacy, group, stream := unique(t, "orders"), unique(t, "letters"), unique(t, "orders"), unique(t, "sluice"), unique(t, "stream")
	compact := map[string]*string{"cleanup.policy": new("compact"), "min.cleanable.dirty.ratio": new("0.01"), "segment.ms": new("500")}
	_, err := kafka.Admin.CreateTopic(t.Context(), 3, 1, compact, topic)
	must(t, err)
	kafka.CreateTopic(t, letters, 1)
	elasticsearch.CreateIndex(t, legacy, `{"properties":{"n":{"type":"long"}}}`)
	control := "." + unique(t, "control")
	config := fmt.Sprintf(`
kafka: {brokers: [%q], group_id: %s, topics: [%s], session_timeout: 6s, commit_interval: 200ms}
elasticsearch: {addresses: [%q]}
documents: {index: %s, id: key, customer: "key:^(c[0-9]+)-"}
routing: {stream: %s, control_index: %s, refresh_interval: 200ms, max_staleness: 1s}
indexer: {flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), legacy, stream, control, letters)
	t.Cleanup(func() {
		for _, path := range []string{"/" + control, "/" + stream + "-p000-j1," + stream + "-p001-j1", "/_index_template/sluice-j1"} {
			_, _ = request(context.Background(), http.MethodDelete, elasticsearch.URL()+path, nil)
		}
	})
	want := map[string]string{}
	produce := func(rounds, from int) {
		var records []*kgo.Record
		for round := range rounds {
			for i := range 500 {
				r := &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "c%d-k%d", i%7, i), Value: fmt.Appendf(nil, `{"n":%d}`, from+round)}
				want[string(r.Key)] = string(r.Value)
				if (i+round)%6 == 0 {
					r.Value = nil
					delete(want, string(r.Key))
				}
				records = append(records, r)
			}
		}
		produceAside(t, kafka, records).Wait()
	}
	produce(8, 0)
	runCommand(t, config, "routes", "init")
	process := startSluice(t, config)
	kafka.AwaitNoLag(t, time.Minute, group, topic, process.Check)
	elasticsearch.Do(t, http.MethodPost, "/"+legacy+"/_refresh", "") // a plan counts what a search sees

	plan := filepath.Join(t.TempDir(), "plan.json")
	runCommand(t, config, "migrate", "plan", "--source", legacy, "--partitions", "2", "--replicas", "0", "-o", plan)
	runCommand(t, config, "migrate", "create", "--plan", plan, "--job", "j1")
	runCommand(t, config, "migrate", "throttle", "--job", "j1", "--set", "lag=1m", "--set", "disk=99", "--set", "queue=10000")
	produce(2, 100) // part of it is written to both sides
	runCommand(t, config, "migrate", "run", "--job", "j1", "--source", "kafka")
	produce(2, 200)
	kafka.AwaitNoLag(t, time.Minute, group, topic, process.Check)
	runCommand(t, config, "migrate", "verify", "--job", "j1", "--level", "L2", "--full")

	elasticsearch.Do(t, http.MethodPost, "/"+legacy+","+stream+"-p*/_refresh", "")
	type document struct {
		version int64
		body    string
	}
	read := func(indices string) map[string]document {
		var page struct {
			Hits struct {
				Hits []struct {
					ID      string          `json:"_id"`
					Version int64           `json:"_version"`
					Source  json.RawMessage `json:"_source"`
				} `json:"hits"`
			} `json:"hits"`
		}
		text := elasticsearch.Do(t, http.MethodPost, "/"+indices+"/_search", `{"size":1000,"version":true}`)
		must(t, json.Unmarshal(text, &page))
		docs := map[string]document{}
		for _, hit := range page.Hits.Hits {
			docs[hit.ID] = document{hit.Version, string(hit.Source)}
		}
		return docs
	}
	old, renewed := read(legacy), read(stream+"-p*")
	if len(old) != len(want) || !maps.Equal(old, renewed) {
		t.Errorf("%d documents on the old side, %d on the new, want %d, and the same", len(old), len(renewed), len(want))
	}
	for key, body := range want {
		if renewed[key].body != body {
			t.Errorf("%s is %+v, want %s", key, renewed[key], body)
		}
	}
	if line := runCommand(t, config, "migrate", "status", "--job", "j1"); !strings.Contains(line, "SYNCED 100.0%") || !strings.Contains(line, "offsets") {
		t.Errorf("the status is %s", line)
	}
}
