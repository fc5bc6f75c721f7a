package deploy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// composed is the compose file as Docker's own loader reads it: what its schema
// does not know is an error.
func composed(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"compose/compose.yaml"}, cli.WithInterpolation(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// Each service has an image of a fixed version, listens on this machine alone,
// and mounts what is there.
func TestCompose(t *testing.T) {
	project := composed(t)
	for _, name := range []string{"kafka", "elasticsearch", "sluice", "prometheus", "grafana"} {
		service, err := project.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		_, tag, tagged := strings.Cut(service.Image, ":")
		if !tagged || tag == "latest" {
			t.Errorf("%s: the image %s has no version", name, service.Image)
		}
		// Compose copies these into the container before it starts, which such a
		// root refuses (docker/compose issue 12031).
		if service.ReadOnly && len(service.Configs)+len(service.Secrets) > 0 {
			t.Errorf("%s: its root is read-only, and cannot be given configs or secrets", name)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to the network", name, port.Published)
			}
		}
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind || !volume.ReadOnly {
				t.Errorf("%s: %s is not mounted for reading only", name, volume.Target)
			}
			if info, err := os.Stat(volume.Source); err != nil || info.IsDir() {
				t.Errorf("%s: what is mounted at %s is no file: %v", name, volume.Target, err)
			}
		}
	}

	sluice := project.Services["sluice"]
	if context := sluice.Build.Context; !same(t, context, "..") {
		t.Errorf("the image is built of %s", context)
	}
	if grace := time.Duration(*sluice.StopGracePeriod); grace < 40*time.Second {
		t.Errorf("Sluice is given %s to end: shutdown_timeout is 30s and it may take 10 s more", grace)
	}
	// Its configuration is one, and what it names is served.
	config, err := os.ReadFile("compose/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, mounted := range sluice.Volumes {
		if mounted.Target == "/etc/sluice/sluice.yaml" {
			continue
		}
		if !strings.Contains(string(config), mounted.Target) {
			t.Errorf("%s is mounted and not used", mounted.Target)
		}
		config = []byte(strings.ReplaceAll(string(config), mounted.Target, mounted.Source))
	}
	file := filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	validate := exec.Command(program(t), "validate", "--offline", "-c", file)
	validate.Env = os.Environ()
	for name, value := range sluice.Environment {
		validate.Env = append(validate.Env, name+"="+*value)
	}
	out, err := validate.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(*project.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"], *sluice.Environment["KAFKA_BROKERS"]) {
		t.Errorf("the broker does not call itself %s", *sluice.Environment["KAFKA_BROKERS"])
	}
}

// same says whether two paths name one folder.
func same(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

// Prometheus scrapes Sluice and loads the rules; Grafana reads from Prometheus
// and shows the dashboard.
func TestComposeMonitoring(t *testing.T) {
	project := composed(t)
	at := func(service, target string) string {
		for _, volume := range project.Services[service].Volumes {
			if volume.Target == target {
				return volume.Source
			}
		}
		t.Fatalf("%s has no %s", service, target)
		return ""
	}
	read := func(file string, into any) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}

	var prometheus struct {
		Global        map[string]string `json:"global"`
		RuleFiles     []string          `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `json:"job_name"`
			StaticConfigs []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	read(at("prometheus", "/etc/prometheus/prometheus.yml"), &prometheus)
	for _, file := range prometheus.RuleFiles {
		if !same(t, at("prometheus", file), rulesFile) {
			t.Errorf("%s is not the rules of the chart", file)
		}
	}
	var targets []string
	for _, scrape := range prometheus.ScrapeConfigs {
		for _, static := range scrape.StaticConfigs {
			targets = append(targets, static.Targets...)
		}
	}
	if len(prometheus.RuleFiles) != 1 || !slices.Equal(targets, []string{"sluice:9600"}) {
		t.Errorf("Prometheus loads %v and scrapes %v", prometheus.RuleFiles, targets)
	}

	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name, Type, Access, URL string
			IsDefault               bool
		} `json:"datasources"`
	}
	read(at("grafana", "/etc/grafana/provisioning/datasources/sluice.yaml"), &sources)
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" || sources.Datasources[0].Type != "prometheus" {
		t.Errorf("Grafana reads from %+v", sources.Datasources)
	}
	var providers struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name, Type     string
			AllowUIUpdates bool              `json:"allowUiUpdates"`
			Options        map[string]string `json:"options"`
		} `json:"providers"`
	}
	read(at("grafana", "/etc/grafana/provisioning/dashboards/sluice.yaml"), &providers)
	home := *project.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if len(providers.Providers) != 1 || providers.Providers[0].Options["path"] != filepath.Dir(home) {
		t.Errorf("Grafana takes dashboards from %+v, its home is %s", providers.Providers, home)
	}
	var dashboard struct {
		Title string `json:"title"`
	}
	text, err := os.ReadFile(at("grafana", home))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil || dashboard.Title != "Sluice" {
		t.Errorf("the dashboard is %q: %v", dashboard.Title, err)
	}
}

// Prometheus understands its configuration.
func TestComposePrometheus(t *testing.T) {
	promtool := installed(t, "promtool")
	text, err := os.ReadFile("compose/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/etc/prometheus/rules.yaml", rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "config", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
