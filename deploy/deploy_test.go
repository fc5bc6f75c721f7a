// Package deploy_test renders what stands in this folder as a cluster's tools
// would, and holds it against the Kubernetes API's own types, against the
// rules that a hardened cluster enforces, and against the program's own check
// of its configuration.
//
// It is a module of its own: none of what it needs goes into the program.
package deploy_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "writes testdata/*.golden.yaml anew")

// render returns the documents that the chart makes of values, in a fixed
// order, or what Helm would say instead.
func render(values string) ([][]byte, error) {
	files, err := renderFiles(values)
	if err != nil {
		return nil, err
	}
	var documents [][]byte
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			documents = append(documents, split([]byte(files[name]))...)
		}
	}
	return documents, nil
}

// renderFiles returns all that the chart renders, by the file it stands in.
func renderFiles(values string) (map[string]string, error) {
	chart, err := loader.Load("helm/sluice")
	if err != nil {
		return nil, err
	}
	parsed, err := loader.LoadValues(strings.NewReader(values))
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: "events", Namespace: "search", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, parsed, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

func split(file []byte) (documents [][]byte) {
	for d := range bytes.SplitSeq(file, []byte("\n---\n")) {
		if d = bytes.TrimSpace(bytes.TrimPrefix(d, []byte("---\n"))); len(d) > 0 && !onlyComments(d) {
			documents = append(documents, d)
		}
	}
	return documents
}

func onlyComments(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// object is what every document is asked for.
type object struct {
	kind, name string
	typed      any
	document   []byte
}

func (o object) String() string { return o.kind + "/" + o.name }

// scaledObject is what the chart uses of KEDA's resource (keda.sh/v1alpha1).
type scaledObject struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		ScaleTargetRef  struct{ APIVersion, Kind, Name string } `json:"scaleTargetRef"`
		MinReplicaCount int                                     `json:"minReplicaCount"`
		MaxReplicaCount int                                     `json:"maxReplicaCount"`
		CooldownPeriod  int                                     `json:"cooldownPeriod"`
		Triggers        []struct {
			Type              string            `json:"type"`
			Metadata          map[string]string `json:"metadata"`
			AuthenticationRef *struct {
				Name string `json:"name"`
			} `json:"authenticationRef"`
		} `json:"triggers"`
	} `json:"spec"`
}

// parse holds a document against the types of the API: a field that does not
// exist is an error.
func parse(t *testing.T, document []byte) object {
	t.Helper()
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := yaml.Unmarshal(document, &head); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	kinds := map[string]any{
		"v1/ConfigMap": &core.ConfigMap{}, "v1/Secret": &core.Secret{}, "v1/ServiceAccount": &core.ServiceAccount{},
		"v1/Service": &core.Service{}, "apps/v1/StatefulSet": &apps.StatefulSet{}, "apps/v1/Deployment": &apps.Deployment{},
		"policy/v1/PodDisruptionBudget": &policy.PodDisruptionBudget{}, "networking.k8s.io/v1/NetworkPolicy": &networking.NetworkPolicy{},
		"batch/v1/Job": &batch.Job{}, "batch/v1/CronJob": &batch.CronJob{},
		"monitoring.coreos.com/v1/ServiceMonitor": &monitoring.ServiceMonitor{},
		"monitoring.coreos.com/v1/PrometheusRule": &monitoring.PrometheusRule{},
		"keda.sh/v1alpha1/ScaledObject":           &scaledObject{},
	}
	o := object{kind: head.Kind, name: head.Metadata.Name, typed: kinds[head.APIVersion+"/"+head.Kind], document: document}
	if o.typed == nil {
		t.Fatalf("nothing is known of %s %s", head.APIVersion, head.Kind)
	}
	if err := yaml.UnmarshalStrict(document, o.typed); err != nil {
		t.Errorf("%s: %v in\n%s", o, err, document)
	}
	return o
}

// pod returns what an object runs.
func (o object) pod() (core.PodTemplateSpec, bool) {
	switch x := o.typed.(type) {
	case *apps.StatefulSet:
		return x.Spec.Template, true
	case *apps.Deployment:
		return x.Spec.Template, true
	case *batch.Job:
		return x.Spec.Template, true
	case *batch.CronJob:
		return x.Spec.JobTemplate.Spec.Template, true
	}
	return core.PodTemplateSpec{}, false
}

// checkPod holds a pod against the "restricted" Pod Security Standard, and
// against what Sluice promises: no token, no writable root, no secret in the
// environment.
func checkPod(t *testing.T, o object, pod core.PodTemplateSpec) {
	t.Helper()
	spec, wrong := pod.Spec, func(format string, args ...any) { t.Errorf("%s: "+format, append([]any{o}, args...)...) }
	if against := restricted(t, pod); against != "" {
		wrong("the restricted Pod Security Standard has against it: %s", against)
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		wrong("a service-account token is mounted")
	}
	if spec.HostNetwork || spec.HostPID || spec.HostIPC {
		wrong("shares a namespace with the node")
	}
	s := spec.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser != 65532 {
		wrong("does not run as 65532")
	}
	if s == nil || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		wrong("has no seccomp profile")
	}
	mounted := map[string]bool{}
	for _, c := range spec.Containers {
		x := c.SecurityContext
		if x == nil || x.AllowPrivilegeEscalation == nil || *x.AllowPrivilegeEscalation ||
			x.ReadOnlyRootFilesystem == nil || !*x.ReadOnlyRootFilesystem ||
			x.Capabilities == nil || !slices.Equal(x.Capabilities.Drop, []core.Capability{"ALL"}) || len(x.Capabilities.Add) > 0 {
			wrong("container %s is not locked down", c.Name)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			wrong("container %s has no memory limit or no CPU request", c.Name)
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				wrong("%s is a secret in the environment", e.Name)
			}
		}
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
			if !m.ReadOnly {
				wrong("%s can be written", m.MountPath)
			}
		}
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			wrong("mounts %s of the node", v.HostPath.Path)
		}
		if !mounted[v.Name] {
			wrong("volume %s is not mounted", v.Name)
		}
	}
}

// checkSet holds the objects of a release against each other.
func checkSet(t *testing.T, objects []object) {
	t.Helper()
	var workload *core.PodTemplateSpec
	named := map[string]*object{}
	for i, o := range objects {
		if named[o.String()] != nil {
			t.Errorf("%s is there twice", o)
		}
		named[o.String()] = &objects[i]
		if pod, ok := o.pod(); ok {
			checkPod(t, o, pod)
			if o.kind == "StatefulSet" || o.kind == "Deployment" {
				workload = &pod
			}
		}
	}
	if workload == nil {
		t.Fatal("nothing runs")
	}
	matches := func(o object, selector *meta.LabelSelector, pod core.PodTemplateSpec) bool {
		s, err := meta.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Errorf("%s: %v", o, err)
			return false
		}
		return s.Matches(labels.Set(pod.Labels))
	}
	// What is meant for the replicas is not for the pods of Jobs, but for a
	// NetworkPolicy: those need the same servers.
	selects := func(o object, selector *meta.LabelSelector) {
		t.Helper()
		if !matches(o, selector, *workload) {
			t.Errorf("%s does not select the replicas", o)
		}
		for _, other := range objects {
			pod, ok := other.pod()
			if !ok || other.kind == "StatefulSet" || other.kind == "Deployment" {
				continue
			}
			if matches(o, selector, pod) != (o.kind == "NetworkPolicy") {
				t.Errorf("%s selects %v of the pods of %s", o, o.kind != "NetworkPolicy", other)
			}
		}
	}
	for _, o := range objects {
		switch x := o.typed.(type) {
		case *apps.StatefulSet:
			selects(o, x.Spec.Selector)
			if named["Service/"+x.Spec.ServiceName] == nil {
				t.Errorf("%s has no Service %s", o, x.Spec.ServiceName)
			}
		case *apps.Deployment:
			selects(o, x.Spec.Selector)
		case *core.Service:
			selects(o, &meta.LabelSelector{MatchLabels: x.Spec.Selector})
		case *policy.PodDisruptionBudget:
			selects(o, x.Spec.Selector)
		case *networking.NetworkPolicy:
			selects(o, &x.Spec.PodSelector)
		case *scaledObject:
			if r := x.Spec.ScaleTargetRef; named[r.Kind+"/"+r.Name] == nil {
				t.Errorf("%s scales %s/%s, which is not there", o, r.Kind, r.Name)
			}
		}
	}
}

// program is the binary of this tree.
func program(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "sluice")
	build := exec.Command("go", "build", "-o", binary, "./cmd/sluice")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// checkConfig lets the program judge the configuration of a ConfigMap. Of the files
// that it names, none exists here: a certificate, its key and a secret stand for them.
func checkConfig(t *testing.T, binary, config string) {
	t.Helper()
	dir := t.TempDir()
	server := httptest.NewTLSServer(nil)
	server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"crt":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		"key":    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"secret": []byte("s3cret\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config = regexp.MustCompile(`/etc/sluice/(admin|secrets)/[^\s"]+`).ReplaceAllStringFunc(config, func(file string) string {
		switch filepath.Ext(file) {
		case ".crt":
			return filepath.Join(dir, "crt")
		case ".key":
			return filepath.Join(dir, "key")
		default:
			return filepath.Join(dir, "secret")
		}
	})
	file := filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	validate := exec.Command(binary, "validate", "--offline", "-c", file)
	validate.Env = append(os.Environ(), "POD_NAME=events-sluice-0", "KAFKA_BROKERS=kafka:9092", "ELASTICSEARCH_URL=http://elasticsearch:9200")
	if out, err := validate.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, config)
	}
}

// token is made anew each time.
var token = regexp.MustCompile(`(?m)^(\s*token:) .*$`)

func golden(t *testing.T, name string, documents [][]byte) {
	t.Helper()
	got := token.ReplaceAll(bytes.Join(documents, []byte("\n---\n")), []byte("$1 RANDOM"))
	got = append(got, '\n')
	file := filepath.Join("testdata", name+".golden.yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs: look at the change, then go test -update ./... in this folder\n%s", file, firstDifference(got, want))
	}
}

func firstDifference(got, want []byte) string {
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if a, b := at(g, i), at(w, i); a != b {
			return fmt.Sprintf("line %d: %q, want %q", i+1, a, b)
		}
	}
	return "only in their ends"
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

func TestChart(t *testing.T) {
	binary := program(t)
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".values.yaml")
		t.Run(name, func(t *testing.T) {
			values, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			documents, err := render(string(values))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, documents)
			check(t, binary, map[string]bool{}, documents)
		})
	}
}

// check parses documents and holds them against all rules; configurations that
// were judged before are not again.
func check(t *testing.T, binary string, judged map[string]bool, documents [][]byte) {
	t.Helper()
	var objects []object
	for _, d := range documents {
		o := parse(t, d)
		objects = append(objects, o)
		if err := admit(t, o); err != nil {
			t.Errorf("a server refuses %s: %v", o, err)
		}
		if c, ok := o.typed.(*core.ConfigMap); ok && c.Data["sluice.yaml"] != "" && !judged[c.Data["sluice.yaml"]] {
			judged[c.Data["sluice.yaml"]] = true
			checkConfig(t, binary, c.Data["sluice.yaml"])
		}
	}
	checkSet(t, objects)
}

// Each combination of what can be switched on and off is taken by a server, with
// connections, names and extras that take turns.
func TestChartCombinations(t *testing.T) {
	binary := program(t)
	switches := []string{
		"staticMembership: %v", "podDisruptionBudget: {enabled: %v}", "serviceAccount: {create: %v, name: who}", "keda: {enabled: %v}",
		"serviceMonitor: {enabled: %v}", "prometheusRule: {enabled: %v}", "networkPolicy: {enabled: %v, egress: [{ports: [{port: 9092}]}]}",
		"migration: {enabled: %v, job: orders-of-all-customers-of-december-2026, parallelism: 2}", "purge: {enabled: %v}",
	}
	turns := [][]string{
		{
			"",
			"config: {kafka: {tls: {enabled: true}, sasl: {mechanism: SCRAM-SHA-512, username: me, password_file: /etc/sluice/secrets/kafka.login/password}}, documents: {index: events, deletes: tombstone}}\nsecrets: [{name: kafka.login}]",
			"config: {kafka: {tls: {enabled: true, ca_file: /etc/sluice/secrets/tls/ca.crt, cert_file: /etc/sluice/secrets/tls/tls.crt, key_file: /etc/sluice/secrets/tls/tls.key}}, elasticsearch: {addresses: [\"https://es:9200\"], tls: {ca_file: /etc/sluice/secrets/tls/ca.crt, cert_file: /etc/sluice/secrets/tls/tls.crt, key_file: /etc/sluice/secrets/tls/tls.key}}, admin: {tls: {cert_file: /etc/sluice/secrets/tls/tls.crt, key_file: /etc/sluice/secrets/tls/tls.key}}}\nsecrets: [{name: tls}]",
		},
		{"", "admin: {existingSecret: token}", "fullnameOverride: a-name-of-fifty-two-letters-which-is-the-longest-one", "nameOverride: a-name-of-fifty-two-letters-which-is-the-longest-one", "replicas: 50"},
		{"", "extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: \"http://collector:4318\"}]\nextraVolumes: [{name: ca, configMap: {name: ca}}]\nextraVolumeMounts: [{name: ca, mountPath: /etc/sluice/ca, readOnly: true}]"},
	}
	judged := map[string]bool{} // configurations
	for n := range 1 << len(switches) {
		var values []string
		for i, s := range switches {
			values = append(values, fmt.Sprintf(s, n>>i&1 == 1))
		}
		for i, turn := range turns {
			values = append(values, turn[(n+n>>4)/(i+1)%len(turn)])
		}
		all := strings.Join(values, "\n")
		documents, err := render(all)
		if err != nil {
			t.Fatalf("%v of\n%s", err, all)
		}
		check(t, binary, judged, documents)
		if t.Failed() {
			t.Fatalf("the values were\n%s", all)
		}
	}
}

// A Job cannot be changed: whatever it runs is another Job then, under another
// name, which no label is too short for.
func TestChartMigrationJob(t *testing.T) {
	job := func(values string) *batch.Job {
		t.Helper()
		documents, err := render("migration: {enabled: true, job: j7}\n" + values)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range documents {
			if j, ok := parse(t, d).typed.(*batch.Job); ok {
				return j
			}
		}
		t.Fatal("there is no Job")
		return nil
	}
	first := job("")
	names := map[string]string{first.Name: "as it is"}
	for _, values := range []string{
		"image: {tag: next}", "config: {log: {level: debug}}", "migration: {enabled: true, job: j7, parallelism: 2}",
		"migration: {enabled: true, job: j8}", "migration: {enabled: true, job: j7, resources: {limits: {memory: 1Gi}}}", "nodeSelector: {pool: data}",
		"secrets: [{name: tls}]", "extraEnv: [{name: A, value: b}]",
		"fullnameOverride: a-name-of-fifty-two-letters-which-is-the-longest-one",
	} {
		j := job(values)
		if was := names[j.Name]; was != "" || len(j.Name) > 63 {
			t.Errorf("%s: the Job is called %s, as with %q", values, j.Name, was)
		}
		names[j.Name] = values
	}
	for _, values := range []string{"replicas: 5", "resources: {limits: {memory: 2Gi}}", "networkPolicy: {enabled: true}"} {
		if j := job(values); j.Name != first.Name {
			t.Errorf("%s: the Job runs the same, and is another", values)
		}
	}
	if first.Spec.TTLSecondsAfterFinished != nil {
		t.Error("a Job that goes by itself is made anew by the next upgrade")
	}
}

// A Job's pod that ends with 2 or 78 ends the Job, one that a node's drain ends does
// not count, and all else is tried again.
func TestChartJobsEnd(t *testing.T) {
	documents, err := render("migration: {enabled: true, job: j7}\npurge: {enabled: true, resources: {limits: {memory: 99Mi}}}")
	if err != nil {
		t.Fatal(err)
	}
	jobs := 0
	for _, d := range documents {
		var spec batch.JobSpec
		switch x := parse(t, d).typed.(type) {
		case *batch.Job:
			spec = x.Spec
		case *batch.CronJob:
			spec = x.Spec.JobTemplate.Spec
			if m := spec.Template.Spec.Containers[0].Resources.Limits.Memory(); m.String() != "99Mi" {
				t.Errorf("the purge may use %s", m)
			}
		default:
			continue
		}
		jobs++
		// As the Job controller reads them: the first rule that fits decides.
		decide := func(code int32, disrupted bool) batch.PodFailurePolicyAction {
			for _, rule := range spec.PodFailurePolicy.Rules {
				if on := rule.OnExitCodes; on != nil && on.Operator == batch.PodFailurePolicyOnExitCodesOpIn && slices.Contains(on.Values, code) {
					return rule.Action
				}
				for _, on := range rule.OnPodConditions {
					if on.Type == core.DisruptionTarget && on.Status == core.ConditionTrue && disrupted {
						return rule.Action
					}
				}
			}
			return batch.PodFailurePolicyActionCount
		}
		for code, want := range map[int32]batch.PodFailurePolicyAction{
			1: batch.PodFailurePolicyActionCount, 2: batch.PodFailurePolicyActionFailJob,
			75: batch.PodFailurePolicyActionCount, 78: batch.PodFailurePolicyActionFailJob, 137: batch.PodFailurePolicyActionCount,
		} {
			if got := decide(code, false); got != want {
				t.Errorf("exit code %d: %s, want %s", code, got, want)
			}
		}
		if got := decide(143, true); got != batch.PodFailurePolicyActionIgnore {
			t.Errorf("a drained node: %s", got)
		}
		if spec.Template.Spec.RestartPolicy != core.RestartPolicyNever {
			t.Error("the kubelet restarts the container, and no rule is asked")
		}
	}
	if jobs != 2 {
		t.Errorf("there are %d jobs", jobs)
	}
}

// The pod is given longer than the program takes to drain.
func TestChartGrace(t *testing.T) {
	for timeout, want := range map[string]int64{`""`: 45, "30s": 45, "2m": 135, "1m30s": 105, "1500ms": 17, "1h": 3615} {
		documents, err := render("config: {shutdown_timeout: " + timeout + "}")
		if err != nil {
			t.Errorf("%s: %v", timeout, err)
			continue
		}
		for _, d := range documents {
			if pod, ok := parse(t, d).pod(); ok && *pod.Spec.TerminationGracePeriodSeconds != want {
				t.Errorf("%s: %d s, want %d", timeout, *pod.Spec.TerminationGracePeriodSeconds, want)
			}
		}
	}
}

// With a certificate of the admin port, probes and Prometheus speak TLS to it, and
// so do the commands that the chart prints.
func TestChartAdminTLS(t *testing.T) {
	for values, tls := range map[string]bool{
		"serviceMonitor: {enabled: true}": false,
		"serviceMonitor: {enabled: true, tlsConfig: {serverName: sluice}}\nconfig: {admin: {tls: {cert_file: /etc/sluice/secrets/tls/tls.crt, key_file: /etc/sluice/secrets/tls/tls.key}}}": true,
	} {
		documents, err := render(values)
		if err != nil {
			t.Fatal(err)
		}
		files, err := renderFiles(values)
		if err != nil {
			t.Fatal(err)
		}
		notes, want := files["sluice/templates/NOTES.txt"], map[bool]string{false: "http", true: "https"}[tls]
		if strings.Count(notes, "://") != 2 || strings.Count(notes, want+"://127.0.0.1:9600") != 2 {
			t.Errorf("with %s the notes say:\n%s", want, notes)
		}
		for _, d := range documents {
			o := parse(t, d)
			if pod, ok := o.pod(); ok {
				c := pod.Spec.Containers[0]
				for _, probe := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
					if (probe.HTTPGet.Scheme == core.URISchemeHTTPS) != tls {
						t.Errorf("%s: %s is asked by %q", o, probe.HTTPGet.Path, probe.HTTPGet.Scheme)
					}
				}
			}
			if m, ok := o.typed.(*monitoring.ServiceMonitor); ok {
				if e := m.Spec.Endpoints[0]; (e.Scheme != nil && *e.Scheme == "https") != tls || (e.TLSConfig != nil) != tls {
					t.Errorf("Prometheus scrapes by %v, %v", e.Scheme, e.TLSConfig)
				}
			}
		}
	}
}

// A change of the configuration changes the pods, and nothing else does.
func TestChartRestartsOnAChangedConfiguration(t *testing.T) {
	sum := func(values string) string {
		documents, err := render(values)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range documents {
			if pod, ok := parse(t, d).pod(); ok {
				return pod.Annotations["checksum/config"]
			}
		}
		t.Fatal("no pod")
		return ""
	}
	if sum("") != sum("replicas: 5") || sum("") == sum("config: {indexer: {flush_interval: 2s}}") {
		t.Error("the checksum does not follow the configuration")
	}
}

// What cannot work is refused when the chart is rendered.
func TestChartRefuses(t *testing.T) {
	for values, say := range map[string]string{
		"replica: 3": "replica",
		"config: {elasticsearch: {password: hunter2}}":                       "password",
		"config: {kafka: {sasl: {password: hunter2}}}":                       "password",
		"config: {kafka: {instance_id: me}}":                                 "instance_id",
		"config: {admin: {address: \"0.0.0.0:1\"}}":                          "address",
		"config: {shutdown_timeout: soon}":                                   "no duration such as 30s",
		"keda: {enabled: true}\nconfig: {kafka: {topics: [\"^events-.*\"]}}": "KEDA needs topics by name",
		"migration: {enabled: true}":                                         "job",
		"admin: {port: 80}":                                                  "port",
		"migration: {enabled: true, job: J7}":                                "/migration/job",
		"keda: {enabled: true, minReplicas: 4, maxReplicas: 3}":              "keda.minReplicas: 4 is more than keda.maxReplicas, 3",
		"resources: {limit: {memory: 1Gi}}":                                  "limit",
		"resources: {limits: {memory: 1GB}}":                                 "/resources/limits/memory",
	} {
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v, want an error that names %s", values, err, say)
		}
	}
}

// Each value of the wrong type, and each key that the chart does not know, is refused
// with words that say where it stands.
func TestChartSchema(t *testing.T) {
	text, err := os.ReadFile("helm/sluice/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	refused := func(path []string, value any, words ...string) {
		t.Helper()
		for i := len(path) - 1; i >= 0; i-- {
			value = map[string]any{path[i]: value}
		}
		text, err := yaml.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		_, err = render(string(text))
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s%v, want an error with %q", text, err, w)
			}
		}
	}
	// What is in them is not the chart's to say, or may have any name.
	free := []string{"config", "affinity", "nodeSelector", "podAnnotations", "podLabels", "annotations", "labels", "tlsConfig", "requests", "limits"}
	tried := 0
	var walk func(path []string, value any)
	walk = func(path []string, value any) {
		tried++
		if len(path) > 0 {
			// A value of one type stands in no place of another.
			wrong := map[bool]any{true: []string{"wrong"}, false: "wrong"}
			_, text := value.(string)
			refused(path, wrong[text], "/"+strings.Join(path, "/"))
		}
		object, ok := value.(map[string]any)
		if !ok || len(path) > 0 && slices.Contains(free, path[len(path)-1]) {
			return
		}
		refused(append(slices.Clone(path), "nonsense"), 1, "additional properties 'nonsense' not allowed")
		for key, v := range object {
			walk(append(slices.Clone(path), key), v)
		}
	}
	walk(nil, values)
	if tried < 60 {
		t.Errorf("only %d values were tried", tried)
	}
}

func TestKustomize(t *testing.T) {
	binary := program(t)
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "kustomize/example")
	if err != nil {
		t.Fatal(err)
	}
	all, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	documents := split(all)
	golden(t, "kustomize", documents)
	check(t, binary, map[string]bool{}, documents)
}

// The unit is understood by systemd, and what it may do is little.
func TestSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	unit, err := os.ReadFile("systemd/sluice.service")
	if err != nil {
		t.Fatal(err)
	}
	// RestartPreventExitStatus, which ends the tries with a wrong configuration,
	// knows of the main process only.
	if !bytes.Contains(unit, []byte("\nRestartPreventExitStatus=2 78\n")) || bytes.Contains(unit, []byte("\nExecStartPre=")) {
		t.Error("a wrong configuration is tried again and again")
	}
	file := filepath.Join(t.TempDir(), "sluice.service")
	unit = bytes.ReplaceAll(unit, []byte("/usr/local/bin/sluice"), []byte("/bin/true"))
	if err := os.WriteFile(file, unit, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", file}, {"security", "--offline=true", "--threshold=20", file}} {
		if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
