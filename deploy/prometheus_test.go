package deploy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

const rulesFile = "helm/sluice/rules.yaml"

// installed finds a program of Prometheus, or skips the test.
func installed(t *testing.T, name string) string {
	t.Helper()
	file, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: apt-get install prometheus)", name)
	}
	return file
}

type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

func readRules(t *testing.T) (rules ruleFile) {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// Every alert fires when it should and not before.
func TestRules(t *testing.T) {
	promtool := installed(t, "promtool")
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", "testdata/rules_test.yaml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Every alert has a test and a section of the runbook, to which it leads.
func TestEveryAlertIsExplained(t *testing.T) {
	runbook, err := os.ReadFile("../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("testdata/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range readRules(t).Groups {
		for _, r := range group.Rules {
			if !strings.Contains(string(runbook), "\n## "+r.Alert+"\n") {
				t.Errorf("docs/alerts.md has no section %s", r.Alert)
			}
			if !strings.Contains(string(runbook), "`"+r.Expr+"`") {
				t.Errorf("docs/alerts.md does not show %s", r.Expr)
			}
			if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/alerts.md#"+strings.ToLower(r.Alert)) {
				t.Errorf("%s leads to %s", r.Alert, r.Annotations["runbook_url"])
			}
			if n := strings.Count(string(tests), "alertname: "+r.Alert+"\n") + strings.Count(string(tests), "alertname: "+r.Alert+","); n < 2 {
				t.Errorf("%s is tried %d times; try when it fires and when it does not", r.Alert, n)
			}
		}
	}
}

type panel struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	} `json:"targets"`
}

func dashboardPanels(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile("grafana/sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	return dashboard.Panels
}

// dashboardQueries are the expressions of the dashboard, by panel and letter, with
// its variables filled in.
func dashboardQueries(t *testing.T, interval string) map[string]string {
	t.Helper()
	queries := map[string]string{}
	for _, p := range dashboardPanels(t) {
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = strings.NewReplacer("$__rate_interval", interval, "$instance", ".*", "$topic", ".*").Replace(target.Expr)
		}
	}
	return queries
}

// No panel covers another, and each metric that the dashboard and the rules ask for
// is one of the program's: "or vector(0)" would hide that it is not.
func TestDashboardIsWhole(t *testing.T) {
	panels := dashboardPanels(t)
	for i, p := range panels {
		for _, q := range panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q covers %q", p.Title, q.Title)
			}
		}
	}
	known, err := os.ReadFile("../docs/metrics.md") // which a test writes
	if err != nil {
		t.Fatal(err)
	}
	asked := slices.Collect(maps.Values(dashboardQueries(t, "1m")))
	for _, group := range readRules(t).Groups {
		for _, r := range group.Rules {
			asked = append(asked, r.Expr)
		}
	}
	for _, expr := range asked {
		for _, name := range regexp.MustCompile(`sluice_\w+`).FindAllString(expr, -1) {
			if !strings.Contains(string(known), "| `"+strings.TrimSuffix(name, "_bucket")+"` |") {
				t.Errorf("there is no metric %s, which is asked for by %s", name, expr)
			}
		}
	}
	for _, metric := range []string{
		"sluice_trouble", "sluice_targets_held", "sluice_largest_customer_share_ratio", "sluice_migration_progress_ratio",
		"sluice_migration_fence_laggards", "sluice_migration_throttled", "sluice_migration_paused", "sluice_migration_verify_differences",
	} {
		if !slices.ContainsFunc(slices.Collect(maps.Values(dashboardQueries(t, "1m"))), func(q string) bool { return strings.Contains(q, metric+"{") }) {
			t.Errorf("the dashboard does not show %s", metric)
		}
	}
}

// A counter comes with its first event: the dashboard shows that one too, and each
// once.
func TestDashboardFirstEvent(t *testing.T) {
	promtool := installed(t, "promtool")
	for name, label := range map[string]string{"Dead letters A": "reason", "Group B": "class"} {
		query := dashboardQueries(t, "5m")[name]
		counter := regexp.MustCompile(`sluice_\w+_total`).FindString(query)
		beside := "" // what "or vector(0)" adds
		if strings.Contains(query, "vector(0)") {
			beside = "{labels: '{}', value: 0}, "
		}
		test := fmt.Sprintf(`
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series: [{series: '%[1]s{%[2]s="x",instance="a"}', values: '_x9 1x40 2x40'}]
    promql_expr_test:
      - {expr: '%[3]s', eval_time: 12m, exp_samples: [%[4]s{labels: '{%[2]s="x"}', value: 1}]}
      - {expr: '%[3]s', eval_time: 30m, exp_samples: [%[4]s{labels: '{%[2]s="x"}', value: 0}]}
      - {expr: 'round(%[3]s)', eval_time: 52m, exp_samples: [%[4]s{labels: '{%[2]s="x"}', value: 1}]} # extrapolated
`, counter, label, query, beside)
		file := filepath.Join(t.TempDir(), "test.yaml")
		if err := os.WriteFile(file, []byte(test), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// startDemo starts a demo and returns its admin address.
func startDemo(ctx context.Context, t *testing.T, binary string, args ...string) string {
	t.Helper()
	demo := exec.CommandContext(ctx, binary, append([]string{"demo", "--set", "admin.address=127.0.0.1:0"}, args...)...)
	said, err := demo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, demo)
	admin := make(chan string, 1)
	go func() { // ends with the demo
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if _, address, ok := strings.Cut(lines.Text(), "metrics and profiles: http://"); ok {
				admin <- address
			}
		}
	}()
	select {
	case address := <-admin:
		return address
	case <-ctx.Done():
		t.Fatal("the demo does not listen")
		return ""
	}
}

// A Prometheus that watches a demo with faults and one with a migration knows
// everything that the dashboard asks, loads the rules, and finds the metrics clean.
func TestDashboard(t *testing.T) {
	prometheus, promtool := installed(t, "prometheus"), installed(t, "promtool")
	queries := dashboardQueries(t, "10s")
	if len(queries) < 40 {
		t.Fatalf("only %d queries were found", len(queries))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	binary := program(t)
	target := startDemo(ctx, t, binary, "--duration", "150s", "--rate", "500")
	migration := startDemo(ctx, t, binary, "--migrate", "--duration", "2m", "--rate", "200", "--customers", "500")

	dir := t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs: [{job_name: sluice, static_configs: [{targets: [%q, %q]}]}]\n", rules, target, migration)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freePort(t)
	start(t, exec.CommandContext(ctx, prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn"))

	// A migration has no data when it is over, so all are asked in turns.
	await(ctx, t, "the dashboard", func() error {
		var without []string
		for name, query := range queries {
			var answer struct {
				Status, Error string
				Data          struct{ Result []json.RawMessage }
			}
			if err := get(ctx, "http://"+address+"/api/v1/query?query="+url.QueryEscape(query), &answer); err != nil {
				return err
			}
			switch {
			case answer.Status != "success":
				without = append(without, fmt.Sprintf("%s: %s: %s", name, query, answer.Error))
			case len(answer.Data.Result) == 0:
				without = append(without, fmt.Sprintf("%s: %s: no data", name, query))
			default:
				delete(queries, name)
			}
		}
		if len(without) > 0 {
			return errors.New(strings.Join(without, "\n"))
		}
		return nil
	})
	var loaded struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Health, LastError, Name string }
			}
		}
	}
	await(ctx, t, "the rules", func() error {
		if err := get(ctx, "http://"+address+"/api/v1/rules", &loaded); err != nil {
			return err
		}
		for _, g := range loaded.Data.Groups {
			for _, r := range g.Rules {
				if r.Health != "ok" {
					return fmt.Errorf("%s is %s %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		return nil
	})
	if n := len(loaded.Data.Groups); n != len(readRules(t).Groups) {
		t.Errorf("%d groups of rules were loaded", n)
	}

	resp, err := http.Get("http://" + target + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	check := exec.CommandContext(ctx, promtool, "check", "metrics")
	check.Stdin = resp.Body
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// start starts a program that ends, at the latest, with the test.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		done := time.AfterFunc(cmd.WaitDelay, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // ended by us
		done.Stop()
	})
}

// freePort is an address that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// await tries until it works, or until ctx ends.
func await(ctx context.Context, t *testing.T, what string, try func() error) {
	t.Helper()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Errorf("%s: %v", what, err)
			return
		}
	}
}

func get(ctx context.Context, address string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
