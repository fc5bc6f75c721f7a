package app

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/migrate"
)

var update = flag.Bool("update", false, "writes testdata/metrics.txt and the table of docs/metrics.md anew")

const (
	metricsGolden = "testdata/metrics.txt"
	metricsPage   = "../../../../docs/metrics.md"
)

// metric is one that the process can export.
type metric struct {
	name, kind string
	labels     []string
	help       string
}

// everything is a configuration under which every metric is registered.
const everything = `
kafka: {brokers: ["127.0.0.1:1"], group_id: g, topics: [events]}
elasticsearch: {addresses: ["http://127.0.0.1:1"]}
documents: {index: events, customer: "header:customer"}
indexer: {held: park}
dead_letter: {topic: dead}
routing: {stream: events}
`

// register returns the registry of a program that is built and not run.
func register(t *testing.T) *prometheus.Registry {
	t.Helper()
	cfg, err := config.Parse([]config.Source{{Name: "everything", Data: []byte(everything)}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin.Address = ""
	registry := prometheus.NewRegistry()
	a, err := New(cfg, Options{Log: zerolog.Nop(), Version: "test", Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return registry
}

// desc is how a descriptor prints itself; it has no other way to be read.
var desc = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),.*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// described returns the metrics of Sluice's own that a registry can export, by
// name. Those of the Go runtime and of the process are client_golang's.
func described(t *testing.T, registry *prometheus.Registry) []metric {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descs)
		close(descs)
	}()
	kinds := map[string]string{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	var all []metric
	for d := range descs {
		part := desc.FindStringSubmatch(d.String())
		if part == nil {
			t.Fatalf("a descriptor prints itself in another way: %s", d)
		}
		name, err1 := strconv.Unquote(part[1])
		help, err2 := strconv.Unquote(part[2])
		if err1 != nil || err2 != nil {
			t.Fatalf("%s: %v, %v", d, err1, err2)
		}
		if !strings.HasPrefix(name, "sluice_") {
			continue
		}
		m := metric{name: name, help: help, kind: kinds[name]}
		for pair := range strings.SplitSeq(part[3], ",") {
			if label, _, ok := strings.Cut(pair, "="); ok {
				m.labels = append(m.labels, label)
			}
		}
		if part[4] != "" {
			m.labels = append(m.labels, strings.Split(part[4], ",")...)
		}
		slices.Sort(m.labels)
		// One without a sample yet: by its name, which the harness of the
		// scenarios compares with what is exported.
		if m.kind == "" {
			m.kind = "gauge"
			if strings.HasSuffix(name, "_total") {
				m.kind = "counter"
			}
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(all, func(a, b metric) bool { return a.name == b.name && slices.Equal(a.labels, b.labels) })
}

// The metrics are an interface: dashboards and alerts of others hang on them.
func TestMetricsAreThoseOfTheGoldenFile(t *testing.T) {
	all := described(t, register(t))
	var golden, table strings.Builder
	table.WriteString("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for i, m := range all {
		if i > 0 && all[i-1].name == m.name {
			t.Errorf("%s has two sets of labels", m.name)
		}
		fmt.Fprintf(&golden, "%s\t%s\t%s\t%s\n", m.name, m.kind, strings.Join(m.labels, ","), m.help)
		labels := "–"
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labels, m.help)
		if slices.Contains(m.labels, "customer") {
			t.Errorf("%s: there are as many customers as there are: they are no label", m.name)
		}
	}
	compare(t, metricsGolden, "", golden.String())
	compare(t, metricsPage, "metrics", table.String())
}

// compare compares a file, or what stands in a page between the comments
// <!-- section --> and <!-- /section -->, with what it should be.
func compare(t *testing.T, file, section, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	before, got, after := "", string(text), ""
	if section != "" {
		var opens, closes bool
		before, got, opens = strings.Cut(string(text), "<!-- "+section+" -->\n")
		got, after, closes = strings.Cut(got, "<!-- /"+section+" -->\n")
		if !opens || !closes {
			t.Fatalf("%s has no section %q", file, section)
		}
		before, after = before+"<!-- "+section+" -->\n", "<!-- /"+section+" -->\n"+after
	}
	if got == want {
		return
	}
	if !*update {
		t.Errorf("%s is not what the program does (go test -run %s -update ./cmd/sluice/internal/app writes it):\n%s", file, t.Name(), difference(got, want))
		return
	}
	if err := os.WriteFile(file, []byte(before+want+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// difference are the lines of one text only.
func difference(got, want string) string {
	var b strings.Builder
	have, should := slices.Collect(strings.Lines(got)), slices.Collect(strings.Lines(want))
	for _, line := range have {
		if !slices.Contains(should, line) {
			b.WriteString("- " + line)
		}
	}
	for _, line := range should {
		if !slices.Contains(have, line) {
			b.WriteString("+ " + line)
		}
	}
	return b.String()
}

// Names, units and help are as Prometheus wants them, also by its own tool
// where that is installed.
func TestMetricsAreClean(t *testing.T) {
	var text bytes.Buffer
	for _, m := range described(t, register(t)) {
		var labels []string
		for _, l := range m.labels {
			labels = append(labels, l+`="x"`)
		}
		sample := m.name + "{" + strings.Join(labels, ",") + "} 0\n"
		if m.kind == "histogram" {
			sample = fmt.Sprintf("%[1]s_bucket{le=\"+Inf\"} 0\n%[1]s_sum 0\n%[1]s_count 0\n", m.name)
		}
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n%s", m.name, m.help, m.name, m.kind, sample)
	}
	problems, err := promlint.New(bytes.NewReader(text.Bytes())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not installed: the linter alone has looked")
		return
	}
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = &text
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// A migration has metrics until it has come to its end, and a scrape asks for the
// next look.
func TestJobMetrics(t *testing.T) {
	status := func(name string, state migrate.State) *migrate.Status {
		return &migrate.Status{Job: &migrate.Job{Name: name, State: state}}
	}
	running := status("j7", migrate.Backfilling)
	running.Backfill.Count, running.Failed = 4, 3 // and nothing left to copy
	running.Items, running.Written, running.Newer = 1, 70, 20
	running.Progress = migrate.Progress{Rate: 1500, Reason: "live lag 9.1s > 5s", Class: "lag"}
	running.Fence.Laggards = []string{"events/3", "events/4"}
	running.Verified = &migrate.Report{At: time.Unix(1700000000, 0), Unsettled: 2}
	m := &jobMetrics{known: []*migrate.Status{running, status("j6", migrate.Completed), status("j5", migrate.Cancelled)}}
	want := `# HELP sluice_migration_documents Documents that a migration's backfill has copied, by outcome: written, superseded (something newer was there) or failed.
# TYPE sluice_migration_documents gauge
sluice_migration_documents{migration="j7",outcome="failed"} 3
sluice_migration_documents{migration="j7",outcome="superseded"} 20
sluice_migration_documents{migration="j7",outcome="written"} 70
# HELP sluice_migration_documents_per_second Documents that a migration's backfill copies in a second, or its verification reads.
# TYPE sluice_migration_documents_per_second gauge
sluice_migration_documents_per_second{migration="j7"} 1500
# HELP sluice_migration_fence_laggards Source partitions that the fence of a migration waits for; none where the process does not know.
# TYPE sluice_migration_fence_laggards gauge
sluice_migration_fence_laggards{migration="j7"} 2
# HELP sluice_migration_items_left Work items of a migration's backfill that are not done.
# TYPE sluice_migration_items_left gauge
sluice_migration_items_left{migration="j7"} 3
# HELP sluice_migration_paused 1 while a migration is paused, else 0; /v1/jobs says why.
# TYPE sluice_migration_paused gauge
sluice_migration_paused{migration="j7"} 0
# HELP sluice_migration_progress_ratio The share of a migration's documents that the backfill has seen, 0 to 1.
# TYPE sluice_migration_progress_ratio gauge
sluice_migration_progress_ratio{migration="j7"} 1
# HELP sluice_migration_state 1 for the state that a migration is in.
# TYPE sluice_migration_state gauge
sluice_migration_state{migration="j7",state="BACKFILLING"} 1
# HELP sluice_migration_throttled 1 while a migration's backfill or verification is throttled, by the kind of reason; /v1/jobs says more.
# TYPE sluice_migration_throttled gauge
sluice_migration_throttled{migration="j7",reason="lag"} 1
# HELP sluice_migration_verified_timestamp_seconds When the last verification of a migration began, in Unix time.
# TYPE sluice_migration_verified_timestamp_seconds gauge
sluice_migration_verified_timestamp_seconds{migration="j7"} 1.7e+09
# HELP sluice_migration_verify_differences Documents that the last verification of a migration found to differ, by class.
# TYPE sluice_migration_verify_differences gauge
sluice_migration_verify_differences{class="content_differs",migration="j7"} 0
sluice_migration_verify_differences{class="duplicate_id_in_old",migration="j7"} 0
sluice_migration_verify_differences{class="extra_on_new",migration="j7"} 0
sluice_migration_verify_differences{class="foreign",migration="j7"} 0
sluice_migration_verify_differences{class="missing_on_new",migration="j7"} 0
sluice_migration_verify_differences{class="new_older",migration="j7"} 0
sluice_migration_verify_differences{class="old_older",migration="j7"} 0
sluice_migration_verify_differences{class="unsettled",migration="j7"} 2
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if !m.asked.Load() {
		t.Error("the jobs are not read anew for the next scrape")
	}
}
