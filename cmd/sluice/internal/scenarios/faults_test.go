//go:build synctests

package scenarios

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/embedded"
)

var update = flag.Bool("update", false, "writes the table of docs/troubleshooting.md anew")

// fault is something that goes wrong in a deployment, one at a time, and what
// names the cause to who looks in one place only.
type fault struct {
	symptom string // what somebody notices
	cause   string
	yaml    string // configuration
	world   worldOptions
	begin   func(w *world, p *program)
	// status picks what /v1/status says of it: the values at paths into its JSON,
	// a star being the first element that has the rest.
	status []string
	// metric is the series that says it, log the message and the fields of the line
	// that does.
	metric string
	log    string
	fields []string
	// wants are in the status and in the line.
	wants, logged []string
	remedy        string // what to type, or to do
}

// faults are those of docs/troubleshooting.md.
var faults = []fault{
	{
		symptom: "nothing is read, all replicas say `starting`", cause: "no broker is reached",
		begin:  func(_ *world, p *program) { p.network.cutKafka() },
		status: []string{"state", "reason"}, wants: []string{"starting", "waiting for Kafka: no broker tells of the topics"},
		metric: `sluice_trouble{cause="kafka"}`,
		log:    "this member has no part in the group; trying again", fields: []string{"trouble"}, logged: []string{"no broker tells of the topics"},
		remedy: "`sluice validate -c sluice.yaml` from the same machine: it names what cannot be reached. Then `kafka.brokers`, and the brokers' `advertised.listeners`",
	},
	{
		symptom: "a topic's lag grows, others go on", cause: "the right to read it is missing",
		begin: func(w *world, _ *program) {
			w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Err: kerr.TopicAuthorizationFailed})
		},
		status: []string{"consumer.partitions.*.reason"}, wants: []string{"TOPIC_AUTHORIZATION_FAILED", "READ"},
		metric: `sluice_trouble{cause="topic_waits"}`,
		log:    "fetch failed, trying again", fields: []string{"error"}, logged: []string{"TOPIC_AUTHORIZATION_FAILED", "allow READ"},
		remedy: "allow READ and DESCRIBE on the topic to the user that the reason names; no restart is needed",
	},
	{
		symptom: "one index gets nothing, others do", cause: "the index is blocked",
		begin: func(w *world, _ *program) {
			w.must(http.MethodPut, "/"+index, `{"settings":{"index.blocks.write":true}}`)
		},
		status: []string{"held.*.target", "held.*.reason"}, wants: []string{index, "cluster_block_exception"},
		metric: `sluice_targets_held{reason="cluster_block_exception"}`,
		log:    "target held: its records wait, others go on; it is tried once a second", fields: []string{"target", "type"}, logged: []string{index, "cluster_block_exception"},
		remedy: "`sluice target list -c sluice.yaml`; free disk, or `PUT /INDEX/_settings {\"index.blocks.write\": null}`",
	},
	{
		symptom: "documents are missing, dead letters grow", cause: "documents do not fit the mapping",
		begin: func(w *world, _ *program) {
			w.mapping(`{"properties":{"n":{"type":"long"}}}`)
			w.effect = nil
		},
		status: []string{"dead_letters.reasons"}, wants: []string{parsing},
		metric: `sluice_dead_letters_total{reason="` + parsing + `"}`,
		log:    "dead letter", fields: []string{"type", "status"}, logged: []string{parsing},
		remedy: "`sluice deadletter list -c sluice.yaml --since 1h` names the field; mend the mapping, then `sluice deadletter replay -c sluice.yaml --type document_parsing_exception`",
	},
	{
		symptom: "lag grows although nothing stands", cause: "one customer sends most of all bytes",
		yaml:   "documents: {customer: 'header:customer'}",
		status: []string{"customers.*.customer", "customers.*.share"}, wants: []string{"acme"},
		metric: `sluice_largest_customer_share_ratio`,
		log:    "one customer sends most of all bytes: sluice status says who", fields: []string{"share"}, logged: []string{"0."},
		remedy: "`sluice status -c sluice.yaml` or `sluice top -c sluice.yaml`: see [the noisy customer](operations.md#the-noisy-customer)",
	},
	{
		symptom: "lag grows, requests take seconds", cause: "Elasticsearch is slow",
		begin: func(w *world, _ *program) {
			w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Slow(1200 * time.Millisecond)})
		},
		status: []string{"state", "reason"}, wants: []string{"throttled", "Elasticsearch is slow: a bulk request takes 1.2s"},
		metric: `sluice_trouble{cause="elasticsearch_slow"}`,
		log:    "state changed", fields: []string{"state", "reason"}, logged: []string{"Elasticsearch is slow"},
		remedy: "the cluster's hot threads, merges, disks and `refresh_interval`; more replicas of Sluice do not help. `sluice_bulk_request_seconds` has the times",
	},
	{
		symptom: "nothing is written, `throttled` first, then `waiting for Elasticsearch`", cause: "Elasticsearch takes requests and answers none: it is frozen, or a firewall drops what it says",
		begin:  func(w *world, _ *program) { w.es.Inject(embedded.Rule{Fault: embedded.Unanswered()}) },
		status: []string{"state", "reason"}, wants: []string{"waiting for Elasticsearch", "it does not answer"},
		metric: `sluice_trouble{cause="elasticsearch_silent"}`,
		log:    "state changed", fields: []string{"state", "reason"}, logged: []string{"waiting for Elasticsearch reason=it does not answer"},
		remedy: "`sluice validate -c sluice.yaml` from the same machine; the node's log (a pause of its collector, a stuck disk), and what stands between",
	},
	{
		symptom: "one partition stands, others go on", cause: "a batch in Kafka cannot be decoded",
		begin:  func(w *world, _ *program) { w.produceGarbage(0, 4) },
		status: []string{"state", "consumer.partitions.*.halt.kind", "consumer.partitions.*.halt.offset"}, wants: []string{"blocked on a record", "undecodable"},
		metric: `sluice_partition_halted{kind="undecodable",partition="0",topic="events"}`,
		log:    "partition halted: it waits for an operator", fields: []string{"kind", "offset", "type"}, logged: []string{"undecodable"},
		remedy: "`kcat -C -t events -p 0 -o 0 -c 1`: if it cannot read it either, `sluice skip -c sluice.yaml events/0/0 --discard`",
	},
	{
		symptom: "reading pauses again and again, or for long", cause: "the memory budget is full",
		yaml: "memory: {limit: 16MiB, held_share: 25%}\nindexer: {flush_bytes: 256KiB}",
		begin: func(w *world, _ *program) {
			w.must(http.MethodPut, "/"+index, `{"settings":{"index.blocks.write":true}}`)
			w.produceFilled(2000, 8<<10)
		},
		status: []string{"state", "reason", "memory"}, wants: []string{"throttled", "memory is full"},
		metric: `sluice_trouble{cause="memory_full"}`,
		log:    "state changed", fields: []string{"state", "reason"}, logged: []string{"memory is full of records that wait for Elasticsearch"},
		remedy: "release the held target, or set `indexer.held: park`; where nothing is held Elasticsearch takes less than comes: see the row about slowness, or raise `memory.limit`",
	},
	{
		symptom: "nothing is written, all replicas say `waiting for Elasticsearch`", cause: "a wrong password",
		begin:  func(w *world, _ *program) { w.es.Inject(embedded.Rule{Fault: embedded.Unauthorized()}) },
		status: []string{"state", "reason"}, wants: []string{"waiting for Elasticsearch", "the credentials are refused"},
		metric: `sluice_bulk_requests_total{status="401"}`,
		log:    "Elasticsearch refuses all requests: nothing is written, nothing is lost; it is tried once a second", fields: []string{"reason"}, logged: []string{"the credentials are refused"},
		remedy: "put the right one into the file that the configuration names: it is read again by itself. `kill -HUP` where it stands in the configuration's environment does not help: restart",
	},
	{
		symptom: "documents of one producer are missing, dead letters grow", cause: "its clock is wrong",
		yaml:   "documents: {index: 'events-${timestamp:2006-01-02}', time_window: {past: 30d, future: 1d}}",
		begin:  func(w *world, _ *program) { w.effect = nil },
		status: []string{"dead_letters.reasons"}, wants: []string{"outside_time_window"},
		metric: `sluice_dead_letters_total{reason="outside_time_window"}`,
		log:    "dead letter", fields: []string{"type"}, logged: []string{"outside_time_window"},
		remedy: "`sluice deadletter list -c sluice.yaml --type outside_time_window` shows their times; set the clock (NTP), then replay with a wider `documents.time_window`",
	},
}

// Each fault is named, with its cause, by /v1/status alone, by the metrics
// alone and by the log alone; docs/troubleshooting.md shows what they say.
func TestFaultsAreNamed(t *testing.T) {
	rows := make([]string, len(faults))
	for i, f := range faults {
		t.Run(f.cause, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f.world.virtual = true
				w := newWorld(t, f.world)
				p := w.start(f.yaml)
				p.awaitHeld(1)
				pass(2 * time.Second)
				if v := f.inMetrics(p); v != 0 {
					t.Errorf("%s is %v although nothing is wrong", f.metric, v)
				}
				if f.begin != nil {
					f.begin(w, p)
				}
				if f.cause != "no broker is reached" {
					w.produce(f.records()...)
				}
				var status, line string
				var value float64
				w.await("all three to name it", func() error {
					pass(250 * time.Millisecond)
					status, line, value = f.inStatus(t, p), f.inLog(p.log.String()), f.inMetrics(p)
					for _, want := range f.wants {
						if !strings.Contains(status, want) {
							return fmt.Errorf("the status says %s, not %q", status, want)
						}
					}
					for _, want := range f.logged {
						if line == "" || !strings.Contains(line, want) {
							return fmt.Errorf("the log says %q, not %q", line, want)
						}
					}
					if value <= 0 {
						return fmt.Errorf("%s is %v", f.metric, value)
					}
					return nil
				}, p)
				rows[i] = fmt.Sprintf("| %s | %s | %s | `%s` | %s | %s |\n", f.symptom, f.cause, code(status), f.metric, code(line), f.remedy)
			})
		})
	}
	if t.Failed() {
		return
	}
	const page, opens, closes = "../../../../docs/troubleshooting.md", "<!-- faults -->\n", "<!-- /faults -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), opens)
	got, after, ok2 := strings.Cut(rest, closes)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %s", page, opens)
	}
	want := "| symptom | cause | `/v1/status` says | the metric | the log says | what helps |\n| --- | --- | --- | --- | --- | --- |\n" + strings.Join(rows, "")
	if got == want {
		return
	}
	if !*update {
		t.Errorf("%s shows something else (go test -tags synctests ./cmd/sluice/internal/scenarios -run FaultsAreNamed -update):\n%s", page, want)
		return
	}
	if err := os.WriteFile(page, []byte(before+opens+want+closes+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// records are those under which a fault shows: of one customer among many, and
// of a clock that is years behind where that is the fault.
func (f *fault) records() (all []*kgo.Record) {
	for i := range 400 {
		r := record(fmt.Sprintf("k%d", i), i)
		customer := fmt.Sprintf("c%d", i)
		if i%2 == 0 {
			customer = "acme"
			r.Value = fmt.Appendf(nil, `{"n":%d,"filler":%q}`, i, strings.Repeat("x", 500))
		}
		r.Headers = []kgo.RecordHeader{{Key: "customer", Value: []byte(customer)}}
		switch {
		case f.cause == "its clock is wrong":
			r.Timestamp = time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC)
		case f.cause == "documents do not fit the mapping" && i%50 == 0:
			r.Value = []byte(`{"n":"a text"}`)
		}
		all = append(all, r)
	}
	return all
}

// inStatus is what /v1/status says at the fault's paths.
func (f *fault) inStatus(t *testing.T, p *program) string {
	text, err := json.Marshal(p.App.Status().(app.Status))
	if err != nil {
		t.Fatal(err)
	}
	var status any
	if err := json.Unmarshal(text, &status); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, path := range f.status {
		if v := at(status, strings.Split(path, ".")); v != nil {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, fmt.Sprintf("%s: %s", strings.ReplaceAll(path, ".*", "[]"), text))
		}
	}
	return steady(strings.Join(said, ", "))
}

// at follows a path into decoded JSON; nil: there is nothing.
func at(v any, path []string) any {
	if len(path) == 0 {
		return v
	}
	switch v := v.(type) {
	case map[string]any:
		return at(v[path[0]], path[1:])
	case []any:
		for _, e := range v {
			if found := at(e, path[1:]); found != nil {
				return found
			}
		}
	}
	return nil
}

// inLog is the fault's line, of which only the message and its fields are kept.
func (f *fault) inLog(log string) string {
	for line := range strings.Lines(log) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) != nil || fields["message"] != f.log {
			continue
		}
		said := f.log
		for _, name := range f.fields {
			if v, ok := fields[name]; ok {
				said += fmt.Sprintf(" %s=%v", name, v)
			}
		}
		matches := true
		said = steady(said)
		for _, want := range f.logged {
			matches = matches && strings.Contains(said, want)
		}
		if matches {
			return said
		}
	}
	return ""
}

// inMetrics is the sum of the fault's series.
func (f *fault) inMetrics(p *program) float64 {
	name, labels, _ := strings.Cut(strings.TrimSuffix(f.metric, "}"), "{")
	var pairs []string
	for pair := range strings.SplitSeq(labels, ",") {
		if label, value, ok := strings.Cut(pair, "="); ok {
			pairs = append(pairs, label, strings.Trim(value, `"`))
		}
	}
	return p.sum(name, pairs...)
}

// steady replaces what differs from run to run.
func steady(text string) string {
	for _, r := range []struct{ what, by string }{
		{"scenarios: the network is cut", "connection refused"},
		{`127\.0\.0\.1:\d+`, "kafka:9092"},
		{`\[?::1\]?:\d+`, "kafka:9092"},
		{`0\.\d\d+`, "0.…"},
		{`"used_bytes":\d+`, `"used_bytes":…`},
		{`bytes=\d[\d.e+]*`, "bytes=…"},
	} {
		text = regexp.MustCompile(r.what).ReplaceAllString(text, r.by)
	}
	return text
}

// code is a text as code within a table.
func code(text string) string {
	return "`" + strings.ReplaceAll(strings.ReplaceAll(text, "`", "'"), "|", "\\|") + "`"
}

// Each has a cause of its own.
func TestFaultsDiffer(t *testing.T) {
	causes := map[string]bool{}
	for _, f := range faults {
		causes[f.cause] = true
	}
	if len(causes) != len(faults) {
		t.Errorf("%d causes: %q", len(causes), slices.Sorted(maps.Keys(causes)))
	}
}
