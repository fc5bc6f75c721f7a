//go:build integration

package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestKafkaKeepsItsAddressAndData checks the harness: what other tests do to a
// broker must not lose records by itself.
func TestKafkaKeepsItsAddressAndData(t *testing.T) {
	kafka := startKafka(t, kafkaOptions{})
	topic := unique(t, "t")
	kafka.CreateTopic(t, topic, 3)
	var want []string
	produce := func(n int) {
		t.Helper()
		for range n {
			value := fmt.Sprintf(`{"n":%d}`, len(want))
			want = append(want, value)
			record := &kgo.Record{Topic: topic, Key: []byte(value), Value: []byte(value)}
			if err := kafka.Client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(10)
	kafka.Kill(t)
	kafka.Restart(t)
	produce(10)
	kafka.Pause(t)
	kafka.Unpause(t)
	produce(1)
	got := map[string]bool{}
	for _, record := range kafka.ReadAll(t, topic) {
		got[string(record.Value)] = true
	}
	for _, value := range want {
		if !got[value] {
			t.Errorf("%s is missing", value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

// TestBulkWithExternalVersions holds the server to what Sluice's order of
// writes rests on: an external version below the stored one is refused, with
// the stored version in the text; a delete leaves its version behind.
func TestBulkWithExternalVersions(t *testing.T) {
	for _, flavour := range []struct {
		name    string
		options elasticsearchOptions
	}{
		{"Elasticsearch", elasticsearchOptions{Settings: map[string]string{}}},
		{"OpenSearch", elasticsearchOptions{OpenSearch: true, Settings: map[string]string{}}},
	} {
		t.Run(flavour.name, func(t *testing.T) {
			server := startElasticsearch(t, flavour.options)
			index := unique(t, "i")
			server.CreateIndex(t, index, `{"dynamic":false}`)
			bulk := func(lines ...string) string {
				t.Helper()
				answer := server.Do(t, http.MethodPost, "/"+index+"/_bulk?filter_path=items.*.status,items.*.error.reason", strings.Join(lines, "\n")+"\n")
				var parsed struct {
					Items []map[string]struct {
						Status int `json:"status"`
						Error  struct {
							Reason string `json:"reason"`
						} `json:"error"`
					} `json:"items"`
				}
				if err := json.Unmarshal(answer, &parsed); err != nil {
					t.Fatal(err)
				}
				var results []string
				for _, item := range parsed.Items {
					for _, result := range item {
						results = append(results, strings.TrimSpace(fmt.Sprint(result.Status, " ", result.Error.Reason)))
					}
				}
				return strings.Join(results, "; ")
			}
			action := func(op string, version int64) string {
				return fmt.Sprintf(`{%q:{"_id":"a","version":%d,"version_type":"external"}}`, op, version)
			}
			const newest = int64(1)<<53 + 1 // above what a float64 holds
			const refused = "409 [a]: version conflict, current version [%d] is higher or equal to the one provided [%d]"
			for _, step := range []struct{ got, want string }{
				{bulk(action("index", 10), `{"n": 10}`), "201"},
				{bulk(action("index", newest), `{"n": 20}`), "200"},
				{bulk(action("index", newest), `{"n": 20}`), fmt.Sprintf(refused, newest, newest)},
				{bulk(action("index", 10), `{"n": 10}`, action("delete", newest+1)), fmt.Sprintf(refused, newest, 10) + "; 200"},
				{bulk(action("index", newest), `{"n": 20}`), fmt.Sprintf(refused, newest+1, newest)},
				{bulk(action("index", newest+2), `{"n":  30}`), "201"},
			} {
				if step.got != step.want {
					t.Errorf("got %s, want %s", step.got, step.want)
				}
			}
			compare(t, server.Documents(t, index), map[string]string{"a": `{"n":  30}`})

			server.Kill(t)
			server.Restart(t)
			compare(t, server.Documents(t, index), map[string]string{"a": `{"n":  30}`})
		})
	}
}

// TestLedgerFindsWhatDoesNotBalance checks the checker that every scrape of
// every other test goes through.
func TestLedgerFindsWhatDoesNotBalance(t *testing.T) {
	const balanced = `# HELP sluice_records_total Records.
sluice_records_consumed_total{partition="0",topic="t"} 10
sluice_records_consumed_total{partition="1",topic="t"} 3
sluice_records_in_flight{partition="0",topic="t"} 2
sluice_records_total{outcome="indexed",partition="0",topic="t"} 7
sluice_records_total{outcome="stale",partition="0",topic="t"} 1
sluice_records_total{outcome="indexed",partition="1",topic="t"} 3
sluice_memory_used_bytes 1.6777216e+07
sluice_memory_limit_bytes 1.6777216e+07
`
	metrics, err := parseMetrics(strings.NewReader(balanced))
	if err != nil {
		t.Fatal(err)
	}
	if err := metrics.ledger(); err != nil {
		t.Error(err)
	}
	if err := metrics.budget(); err != nil {
		t.Error(err)
	}
	if got := metrics.Sum("sluice_records_total", `outcome="indexed"`, `topic="t"`); got != 10 {
		t.Errorf("the sum is %v, want 10", got)
	}
	for _, change := range []struct{ from, to string }{
		{`topic="t"} 10`, `topic="t"} 11`},
		{`topic="t"} 7`, `topic="t"} 6`},
		// Another partition's surplus is no excuse.
		{`partition="0",topic="t"} 1`, `partition="1",topic="t"} 1`},
		{`sluice_records_consumed_total{partition="1",topic="t"} 3` + "\n", ""},
		{`limit_bytes 1.6777216e+07`, `limit_bytes 1.6777215e+07`},
	} {
		metrics, err := parseMetrics(strings.NewReader(strings.Replace(balanced, change.from, change.to, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if metrics.ledger() == nil && metrics.budget() == nil {
			t.Errorf("with %q for %q nothing was found", change.to, change.from)
		}
	}
}
