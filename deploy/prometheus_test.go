package deploy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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

// dashboardQueries are the expressions of a dashboard, by panel and letter,
// with its variables filled in.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("grafana/sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				RefID string `json:"refId"`
				Expr  string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$topic", ".*").Replace(target.Expr)
		}
	}
	return queries
}

// A Prometheus that watches a demo knows everything that the dashboard asks,
// loads the rules, and finds the metrics clean.
func TestDashboard(t *testing.T) {
	prometheus, promtool := installed(t, "prometheus"), installed(t, "promtool")
	queries := dashboardQueries(t)
	if len(queries) < 20 {
		t.Fatalf("only %d queries were found", len(queries))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	demo := exec.CommandContext(ctx, program(t), "demo", "--duration", "90s", "--rate", "500", "--set", "admin.address=127.0.0.1:0")
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
	var target string
	select {
	case target = <-admin:
	case <-ctx.Done():
		t.Fatal("the demo does not listen")
	}

	dir := t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs: [{job_name: sluice, static_configs: [{targets: [%q]}]}]\n", rules, target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freePort(t)
	start(t, exec.CommandContext(ctx, prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn"))

	for name, query := range queries {
		await(ctx, t, fmt.Sprintf("%s: %s", name, query), func() error {
			var answer struct {
				Status, Error string
				Data          struct{ Result []json.RawMessage }
			}
			if err := get(ctx, "http://"+address+"/api/v1/query?query="+url.QueryEscape(query), &answer); err != nil {
				return err
			}
			if answer.Status != "success" {
				return fmt.Errorf("%s", answer.Error)
			}
			if len(answer.Data.Result) == 0 {
				return fmt.Errorf("no data")
			}
			return nil
		})
	}
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
