package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/credentials"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/memory"
)

// env is an environment for tests.
func env(variables map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}
}

func parse(t *testing.T, text string, sets ...string) *Config {
	t.Helper()
	cfg, err := Parse([]Source{{"sluice.yaml", []byte(text)}}, sets, env(nil))
	if err != nil {
		t.Fatalf("Parse:\n%v", err)
	}
	return cfg
}

func TestNothingGivesTheDefaults(t *testing.T) {
	for _, text := range []string{"", "# only a comment\n", "---\n", "kafka:\n  # all commented out\ndocuments:\n"} {
		if cfg := parse(t, text); !reflect.DeepEqual(cfg, Default()) {
			t.Errorf("%q does not give the defaults", text)
		}
	}
	cfg, err := Load(nil, nil, nil)
	if err != nil || !reflect.DeepEqual(cfg, Default()) {
		t.Errorf("no files do not give the defaults: %v", err)
	}
}

// The design's listing of all keys is the interface that others use.
func TestTheDesignsListingIsTheDefault(t *testing.T) {
	design, err := os.ReadFile("../docs/DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, listing, _ := strings.Cut(string(design), "```yaml\n")
	listing, _, found := strings.Cut(listing, "```")
	if !found {
		t.Fatal("the listing is gone from docs/DESIGN.md")
	}
	want := Default()
	// The listing's only override is an example.
	audit := want.Documents
	audit.ID, audit.Index = "position", "${topic}"
	want.Overrides = []document.Override{{Topics: []string{"audit", "^logs-.*"}, Documents: audit}}
	if got := parse(t, listing); !reflect.DeepEqual(got, want) {
		t.Errorf("the listing gives\n%s\nwant\n%s", Redacted(got), Redacted(want))
	}
}

func TestLaterFilesAndFlagsWin(t *testing.T) {
	sources := []Source{
		{"base.yaml", []byte("kafka: {topics: [a, b], group_id: base, client_id: base}\ndocuments: {index: base}\n")},
		{"site.yaml", []byte("kafka: {topics: [c], group_id: site}\ndocuments:\n")},
	}
	cfg, err := Parse(sources, []string{
		"kafka.group_id=flag", "kafka.fetch.max_wait=2s", "kafka.brokers=[one:1, two:2]", "kafka.rack=",
		"documents.index=events-${topic}", `overrides=[{topics: [x], documents: {id: key}}]`, "kafka.group_id=last",
	}, env(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Kafka.Topics = []string{"c"}
	want.Kafka.ClientID = "base"
	want.Kafka.GroupID = "last"
	want.Kafka.Fetch.MaxWait = 2 * time.Second
	want.Kafka.Brokers = []string{"one:1", "two:2"}
	want.Documents.Index = "events-${topic}"
	over := want.Documents
	over.ID = "key"
	want.Overrides = []document.Override{{Topics: []string{"x"}, Documents: over}}
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got\n%s\nwant\n%s", Redacted(cfg), Redacted(want))
	}
}

func TestOverridesLieOverDocuments(t *testing.T) {
	// `overrides` comes first in the file and its base all the same.
	cfg := parse(t, `
overrides:
  - topics: [audit]
    documents: {id: position, time_window: {past: 30d}}
  - topics: [logs]
documents:
  index: all
  time_window: {future: 2d}
  metadata: {include: [topic]}
`)
	first := cfg.Documents
	first.ID = "position"
	first.TimeWindow.Past = 30 * day
	want := []document.Override{
		{Topics: []string{"audit"}, Documents: first},
		{Topics: []string{"logs"}, Documents: cfg.Documents},
	}
	if !reflect.DeepEqual(cfg.Overrides, want) {
		t.Errorf("got %+v\nwant %+v", cfg.Overrides, want)
	}
	if cfg.Documents.Index != "all" || cfg.Documents.TimeWindow.Future != 2*day {
		t.Errorf("documents = %+v", cfg.Documents)
	}
}

func TestVariables(t *testing.T) {
	variables := map[string]string{
		"HOST": "kafka:9092", "WAIT": "3s", "SIZE": "8MiB", "N": "7", "ON": "false", "SHARE": "10%", "EMPTY": "",
		"YAML": "{a: b}", "NESTED": "${env:HOST}", "PASSWORD": "a$b",
	}
	cfg, err := Parse([]Source{{"sluice.yaml", []byte(`
kafka:
  brokers: ["${env:HOST}", "${env:NONE:-other:1}"]
  group_id: g-${env:N}-${env:EMPTY}x
  client_id: ${env:YAML}
  rack: ${env:NESTED}
  sasl: {mechanism: PLAIN, username: "${env:EMPTY:-u}", password: "${env:PASSWORD:?give one}"}
documents: {index: "events-${customer}", customer: key, pipeline: "$${env:HOST}"}
indexer:
  flush_interval: ${env:WAIT}
  flush_bytes: ${env:SIZE}
  requests: {max: "${env:N}"}
  scaling: {enabled: "${env:ON}", active_ratio: "0.${env:N}"}
memory: {held_share: "${env:SHARE}"}
`)}}, nil, env(variables))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Kafka.Brokers = []string{"kafka:9092", "other:1"}
	want.Kafka.GroupID = "g-7-x"
	want.Kafka.ClientID = "{a: b}"
	want.Kafka.Rack = "${env:HOST}"
	want.Kafka.SASL.Mechanism, want.Kafka.SASL.Username, want.Kafka.SASL.Password = "PLAIN", "u", "a$b"
	want.Documents.Index, want.Documents.Customer, want.Documents.Pipeline = "events-${customer}", "key", "${env:HOST}"
	want.Indexer.FlushInterval = 3 * time.Second
	want.Indexer.FlushBytes = 8 << 20
	want.Indexer.Requests.Max = 7
	want.Indexer.Scaling.Enabled = false
	want.Indexer.Scaling.ActiveRatio = 0.7
	want.Memory.HeldShare = 0.1
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got\n%s\nwant\n%s", Redacted(cfg), Redacted(want))
	}
}

// Everything that is not a string leaf is no place for a variable.
func TestKeysHoldNoVariables(t *testing.T) {
	_, err := Parse([]Source{{"sluice.yaml", []byte("${env:SECTION}: {}\n")}}, nil, env(map[string]string{"SECTION": "kafka"}))
	if err == nil || !strings.Contains(err.Error(), "sluice.yaml:1:1: ${env:SECTION}: unknown key") {
		t.Errorf("err = %v", err)
	}
}

func TestCloudIDReplacesTheDefaultAddress(t *testing.T) {
	const id = "prod:ZXhhbXBsZS5jb20kYWJjJGRlZg=="
	if cfg := parse(t, "elasticsearch: {cloud_id: '"+id+"', api_key: k}\n"); len(cfg.Elasticsearch.Addresses) != 0 || cfg.Elasticsearch.CloudID != id {
		t.Errorf("elasticsearch = %+v", cfg.Elasticsearch)
	}
}

// A text is what stands there, whatever YAML would make of it.
func TestTextsAreTakenAsTheyStand(t *testing.T) {
	cfg := parse(t, "kafka: {reset: 2026-01-31T12:00:00Z, group_id: 0123, client_id: true, rack: 1_0}\nindexer: {flush_documents: \"7\"}\n")
	k := cfg.Kafka
	if k.Reset != "2026-01-31T12:00:00Z" || k.GroupID != "0123" || k.ClientID != "true" || k.Rack != "1_0" || cfg.Indexer.FlushDocuments != 7 {
		t.Errorf("%+v", k)
	}
}

func TestLoadReadsFiles(t *testing.T) {
	dir := t.TempDir()
	one := filepath.Join(dir, "one.yaml")
	if err := os.WriteFile(one, []byte("kafka: {group_id: one}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load([]string{one}, nil, nil)
	if err != nil || cfg.Kafka.GroupID != "one" {
		t.Errorf("Load = %v", err)
	}
	missing := filepath.Join(dir, "missing.yaml")
	_, err = Load([]string{one, missing}, []string{"kafka.group_i=x"}, nil)
	want := missing + ": cannot be read: no such file or directory; check the path given to --config and who may read it\n" +
		"--set kafka.group_i: unknown key; did you mean group_id?"
	if err == nil || err.Error() != want {
		t.Errorf("err =\n%v\nwant\n%s", err, want)
	}
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != 78 {
		t.Error("the error does not carry exit code 78")
	}
}

func TestRedactedIsTheConfigurationWithoutItsSecrets(t *testing.T) {
	cfg := parse(t, `
kafka: {sasl: {mechanism: PLAIN, username: u, password: hunter2}}
elasticsearch: {api_key: hunter3}
overrides: [{topics: ["^a"], documents: {index: other, time_window: {past: 36h}}}]
memory: {limit: 100MB, max_record: 5MiB, held_share: 12.5%}
indexer: {flush_interval: 1m30s, flush_bytes: 1000B}
`)
	dump := Redacted(cfg)
	for _, secret := range []string{"hunter2", "hunter3"} {
		if strings.Contains(string(dump), secret) {
			t.Errorf("the dump shows %s", secret)
		}
	}
	if n := strings.Count(string(dump), "[redacted]"); n != 2 {
		t.Errorf("%d secrets are marked, want 2:\n%s", n, dump)
	}
	got := parse(t, string(dump))
	for _, c := range []*Config{got, cfg} {
		c.Kafka.SASL.Password, c.Elasticsearch.APIKey = "", ""
	}
	if !reflect.DeepEqual(got, cfg) {
		t.Errorf("the dump loads as\n%s\nwant\n%s", Redacted(got), Redacted(cfg))
	}
	if got := parse(t, string(Redacted(Default()))); !reflect.DeepEqual(got, Default()) {
		t.Errorf("the dump of the defaults loads as\n%s", Redacted(got))
	}
}

// Whatever is wrong, the values of secrets and variables are not shown.
func TestErrorsShowNoSecret(t *testing.T) {
	const secret = "hunter2"
	dir := t.TempDir()
	tests := []string{
		"elasticsearch: {addresses: ['https://u:" + secret + "@host:9200']}",
		"elasticsearch: {addresses: ['https://u:" + secret + "@host:92x00']}",
		"elasticsearch: {addresses: ['" + secret + "']}",
		"elasticsearch: {password: *" + secret + "}",
		"elasticsearch: {password: &" + secret + "}",
		"elasticsearch: {password: !" + secret + " x}",
		"elasticsearch: {password: [" + secret + "]}",
		"elasticsearch: {password: {" + secret + ": " + secret + ", " + secret + ": 1}}",
		"elasticsearch: {password: " + secret + ", password_file: " + dir + "/x}",
		"elasticsearch: {password: '${env:" + "X" + ":-" + secret + "'}",
		"kafka: {brokers: ['${env:SECRET}://']}",
		"kafka: {topics: ['${env:SECRET} x', '^(${env:SECRET}']}",
		"kafka: {reset: '${env:SECRET}'}",
		"kafka: {instance_id: '${env:SECRET} x'}",
		"kafka: {session_timeout: '${env:SECRET}'}",
		"kafka: {fetch: {max_bytes: '${env:SECRET}'}}",
		"kafka: {tls: {enabled: '${env:SECRET}', ca_file: '/${env:SECRET}'}}",
		"kafka: {sasl: {mechanism: '${env:SECRET}'}}",
		"kafka: {sasl: {mechanism: OAUTHBEARER, token_file: '/${env:SECRET}'}}",
		"kafka: {group_protocol: '${env:SECRET}'}",
		"indexer: {requests: {max: '${env:SECRET}'}}",
		"indexer: {scaling: {active_ratio: '${env:SECRET}'}}",
		"memory: {held_share: '${env:SECRET}'}",
		"dead_letter: {topic: '${env:SECRET} x'}",
		"routing: {control_index: '${env:SECRET} x'}",
		"admin: {address: '${env:SECRET}'}",
		"admin: {address: '${env:SECRET}:9600'}",
		"admin: {token_file: '/${env:SECRET}'}",
		"admin: {tls: {cert_file: '/${env:SECRET}', key_file: /x}}",
		"admin: {tls: {cert_file: /x, key_file: '/${env:SECRET}'}}",
		"documents: {index: '${env:SECRET} x'}",
		"documents: {index: '-${env:SECRET}'}",
		"documents: {index: 'x-${timestamp:${env:SECRET}}'}",
		"documents: {index: 'x-${${env:SECRET}}'}",
		"documents: {id: '${${env:SECRET}}'}",
		"documents: {id: 'field:${env:SECRET}'}",
		"documents: {op: '${env:SECRET}'}",
		"documents: {version: '${env:SECRET}'}",
		"documents: {customer: 'key:(${env:SECRET}'}",
		"documents: {timestamp: '${env:SECRET}'}",
		"documents: {metadata: {field: m, include: ['${env:SECRET}']}}",
		"documents: {routing: '${env:SECRET}'}",
		"overrides: [{topics: ['^(${env:SECRET}'], documents: {format: '${env:SECRET}'}}]",
		"log: {level: '${env:SECRET}'}",
	}
	for _, text := range tests {
		_, err := Parse([]Source{{"sluice.yaml", []byte(text + "\n")}}, nil, env(map[string]string{"SECRET": secret}))
		if err == nil {
			t.Errorf("%s\nis accepted", text)
		} else if strings.Contains(err.Error(), secret) && !strings.Contains(text, "{"+secret) {
			t.Errorf("%s\nshows the secret:\n%v", text, err)
		}
	}
	for _, set := range []string{"elasticsearch.password: " + secret, "elasticsearch.password=*" + secret, "elasticsearch.password='" + secret} {
		_, err := Parse(nil, []string{set}, env(nil))
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("--set %q: %v", set, err)
		}
	}
}

func TestUnits(t *testing.T) {
	durations := map[string]time.Duration{
		"250ms": 250 * time.Millisecond, "1s": time.Second, "1h30m": 90 * time.Minute, "365d": 365 * day,
		"1d12h": 36 * time.Hour, "0": 0, "0s": 0, "1.5h": 90 * time.Minute, "-1s": -time.Second,
	}
	for text, want := range durations {
		if got, ok := parseDuration(text); !ok || got != want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "1", "10", "d", "1x", "-1d", "1d-2h", "1.5d", "1 s", "1d2", "200000d", "106751d24h", "365d5d"} {
		if got, ok := parseDuration(text); ok {
			t.Errorf("parseDuration(%q) = %v, want a refusal", text, got)
		}
	}
	for _, d := range []time.Duration{0, time.Nanosecond, 1500 * time.Millisecond, time.Second, time.Minute, 90 * time.Second, 10 * time.Minute, time.Hour, 100 * time.Minute, day, 36 * time.Hour, 365 * day} {
		if got, ok := parseDuration(formatDuration(d)); !ok || got != d {
			t.Errorf("%v is written %q and read %v, %v", d, formatDuration(d), got, ok)
		}
	}
	sizes := map[string]int64{"0B": 0, "1B": 1, "1KB": 1000, "1KiB": 1024, "4MiB": 4 << 20, "4 MiB": 4 << 20, "1.5GiB": 3 << 29, "2GB": 2e9, "10MB": 1e7}
	for text, want := range sizes {
		if got, ok := parseSize(text); !ok || int64(got) != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", text, got, ok, want)
		}
		if got, ok := parseSize(formatSize(mustSize(t, text))); !ok || int64(got) != want {
			t.Errorf("%s is written %s", text, formatSize(mustSize(t, text)))
		}
	}
	for _, text := range []string{"", "1", "MiB", "-1MiB", "1TiB", "infB", "nanB", "0x1B", "99999999GiB", "1M"} {
		if got, ok := parseSize(text); ok {
			t.Errorf("parseSize(%q) = %d, want a refusal", text, got)
		}
	}
	for text, want := range map[string]float64{"0%": 0, "25%": 0.25, "12.5 %": 0.125, "100%": 1} {
		if got, ok := parseShare(text); !ok || float64(got) != want {
			t.Errorf("parseShare(%q) = %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "%", "25", "0.25", "101%", "-1%", "nan%"} {
		if got, ok := parseShare(text); ok {
			t.Errorf("parseShare(%q) = %v, want a refusal", text, got)
		}
	}
}

func mustSize(t *testing.T, text string) memory.Size {
	t.Helper()
	n, ok := parseSize(text)
	if !ok {
		t.Fatalf("parseSize(%q) fails", text)
	}
	return n
}

// A key of any type can be decoded, dumped, and written down in full.
func TestEveryKeyIsKnownByItsPath(t *testing.T) {
	all := keys("", reflect.TypeFor[Config]())
	if len(all) < 100 {
		t.Fatalf("%d keys", len(all))
	}
	for _, key := range all {
		if strings.HasSuffix(key, ".") || strings.Contains(key, "..") {
			t.Errorf("%s: a field has no yaml tag", key)
		}
	}
	var secret credentials.Secret
	if lookup(reflect.ValueOf(Default()).Elem(), "kafka.sasl.password").Type() != reflect.TypeOf(secret) {
		t.Error("lookup does not find kafka.sasl.password")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("kafka: {topics: [a]}\n"))
	f.Add([]byte("documents:\n  index: x-${customer}\n  customer: key:(.)\n"))
	f.Add([]byte("overrides: [{topics: ['^a'], documents: {id: 'field:/a'}}]"))
	f.Add([]byte("a: &a [*a]\n<<: *a\n? [x]\n: y\n"))
	f.Add([]byte("memory: {limit: '${env:X:-1GiB}'}\n--- \nb"))
	f.Add([]byte("indexer:\n\tflush_bytes: 1"))
	f.Add(Redacted(Default()))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "file") {
			return // no reading of files of the machine, some of which have no end
		}
		cfg, err := Parse([]Source{{"fuzz.yaml", data}}, nil, env(map[string]string{"X": "x"}))
		if err == nil {
			if _, err := Parse([]Source{{"dump.yaml", Redacted(cfg)}}, nil, env(nil)); err != nil {
				t.Errorf("the dump is not accepted: %v\n%s", err, Redacted(cfg))
			}
			return
		}
		var errs Errors
		if !errors.As(err, &errs) || len(errs) == 0 {
			t.Fatalf("not Errors: %v", err)
		}
		for _, e := range errs {
			if e.Position.Name != "fuzz.yaml" || e.Position.Line < 1 || e.Problem == "" {
				t.Errorf("without a position: %+v", e)
			}
		}
	})
}
