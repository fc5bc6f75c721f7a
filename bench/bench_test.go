package main

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/config"
)

// A run that does not count must leave no trace in medians and ratios, and
// ratios must be of the same round.
func TestOnlyRunsOfOneRoundAreCompared(t *testing.T) {
	c := comparison{Scenario: scenario{MostCPU: 1, LeastSpeed: 1}, Runs: []run{
		{Program: "floor", CPUPerM: 2, DocsPerS: 100},
		{Program: "sluice", CPUPerM: 1, DocsPerS: 200},
		{Program: "floor", CPUPerM: 1e6, Note: "stalled"},
		{Program: "sluice", CPUPerM: 2, DocsPerS: 300},
		{Program: "floor", CPUPerM: 4, DocsPerS: 50},
		{Program: "sluice", CPUPerM: 5, DocsPerS: 25},
	}}
	if got, want := c.of("floor", cpuMeasure), []float64{2, 4}; !slices.Equal(got, want) {
		t.Errorf("CPU of the floor: %v, want %v", got, want)
	}
	if got, want := c.ratios("sluice", "floor", cpuMeasure), []float64{0.5, 1.25}; !slices.Equal(got, want) {
		t.Errorf("ratios: %v, want %v", got, want)
	}
	if got, want := spreadOf(c.ratios("sluice", "floor", speedMeasure)), (spread{1.25, 0.5, 2}); got != want {
		t.Errorf("speed: %v, want %v", got, want)
	}
	var out bytes.Buffer
	if err := table(&out, []comparison{c}, "floor"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.88 (0.50-1.25)  <= 1.00 met", "1.25 (0.50-2.00)  >= 1.00 met", "does not count: , floor: stalled"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
	if got := spreadOf(nil); got != (spread{}) {
		t.Errorf("nothing was measured, and it says %v", got)
	}
}

func TestGoalsThatAreMissedAreCalledMissed(t *testing.T) {
	s := scenario{MostCPU: 1, LeastSpeed: 0.95}
	for _, tc := range []struct {
		m     measureOf
		ratio float64
		want  string
	}{
		{cpuMeasure, 1, "<= 1.00 met"},
		{cpuMeasure, 1.02, "<= 1.00 MISSED"},
		{speedMeasure, 0.94, ">= 0.95 MISSED"},
		{speedMeasure, 0.95, ">= 0.95 met"},
		{memoryMeasure, 9, ""},
	} {
		if got := s.goal(tc.m, tc.ratio); got != tc.want {
			t.Errorf("%s %.2f: %q, want %q", tc.m.name, tc.ratio, got, tc.want)
		}
	}
}

// A flag must not change a scenario that a goal was set for and keep the goal.
func TestAFlagMakesAnotherScenario(t *testing.T) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	chosen := scenarioFlags(fs, "core")
	if err := fs.Parse([]string{"-scenarios", "plain,slow-zipf", "-doc-bytes", "10000", "-keys", "customer"}); err != nil {
		t.Fatal(err)
	}
	scenarios, err := chosen()
	if err != nil {
		t.Fatal(err)
	}
	if len(scenarios) != 2 {
		t.Fatalf("%d scenarios, want the two that are named", len(scenarios))
	}
	for _, s := range scenarios {
		if s.DocBytes != 10_000 || s.Keys != keysCustomer || s.MostCPU != 0 || s.LeastSpeed != 0 || s.Docs*int64(s.DocBytes) > mostVolume {
			t.Errorf("%+v", s)
		}
	}
	if got := scenarios[0].Name + " " + scenarios[1].Name; got != "plain+doc-bytes+keys slow-zipf+doc-bytes" {
		t.Errorf("named %q", got)
	}
	if _, err := named("nonsense"); err == nil {
		t.Error("a scenario that does not exist was found")
	}
	if core[0].DocBytes != 0 {
		t.Error("a flag changed the list")
	}
}

// Sluice runs with its defaults, but for what a scenario names.
func TestSluiceIsConfiguredAsTheScenarioSays(t *testing.T) {
	defaults, err := config.Load(nil, nil, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Concat(core, sweep) {
		s = s.defaults()
		p := place{Brokers: []string{"127.0.0.1:9092"}, Sink: "http://127.0.0.1:9200", Index: "bench", Group: "g", Dir: t.TempDir()}
		line, err := sluiceProgram("sluice", "sluice", "").command(p, s)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load([]string{line[len(line)-1]}, nil, os.LookupEnv)
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		if cfg.Documents.ID != defaults.Documents.ID || cfg.Documents.Version != defaults.Documents.Version || cfg.Indexer != defaults.Indexer || cfg.Memory != defaults.Memory {
			t.Errorf("%s: not the defaults", s.Name)
		}
		if cfg.Elasticsearch.CompressionLevel != s.Gzip || (cfg.Documents.Validate == "strict") != s.Strict || strings.Contains(cfg.Documents.Index, "$") != (s.Targets > 1) ||
			cfg.Documents.Customer != s.Customer || (cfg.Routing.Stream != "") != (s.Routed > 0) {
			t.Errorf("%s: not what the scenario is about", s.Name)
		}
	}
}

// Every kind of report can be drawn, also where nothing counted.
func TestReportsAreDrawn(t *testing.T) {
	r := report{
		Comparisons: []comparison{{Scenario: scenario{Name: "plain"}, Runs: []run{
			{Program: "floor", CPUPerM: 2, DocsPerS: 1e5, MemoryMiB: 100},
			{Program: "sluice", CPUPerM: 1, DocsPerS: 2e5, MemoryMiB: 50},
			{Program: "rsyslog", Note: "stalled"},
		}}},
		Quotas:      []quotaResult{{Mode: "runtime", CPUs: 1, run: run{DocsPerS: 1e5}}},
		QuotaChange: []quotaChange{{Mode: "runtime", CPUs: []float64{0.5, 1.5}, PhaseS: 2, DocsPer: []float64{1, 2, 3, 4}}},
		Limiter:     &limiterResults{Far: judgeFar(farDiary(16, 16)), Bare: []rateResult{{Limit: 0, DocsPerS: 1, Round: 1}, {Limit: 2, DocsPerS: 2, Round: 1}}},
	}
	file := t.TempDir() + "/r.json"
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	read, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	images := read.draw()
	for _, name := range []string{"-cpu", "-speed", "-memory", "", "-change", "-far", "-nodes", "-simulated"} {
		svg := string(images[name])
		if !strings.HasPrefix(svg, "<svg ") || strings.Contains(svg, "NaN") {
			t.Errorf("%q: %.300s", name, svg)
		}
	}
	if !strings.Contains(string(images["-cpu"]), ">0.50<") {
		t.Error("the ratio is not in the chart")
	}
}

// Every program's configuration is filled in, whatever the scenario.
func TestConfigurationsAreFilledIn(t *testing.T) {
	programs, err := (&options{programs: "floor,sluice,rsyslog,otelcol,otelcol-wait,otelcol-json"}).chosen()
	if err != nil {
		t.Fatal(err)
	}
	for _, prog := range programs {
		p := place{Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"}, Sink: "http://127.0.0.1:9200", Index: "bench", Group: "g-7", Dir: t.TempDir()}
		line, err := prog.command(p, scenario{Gzip: 1}.defaults())
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(line, " ")
		for _, word := range line {
			if content, err := os.ReadFile(word); err == nil {
				text += string(content)
			}
		}
		if !strings.Contains(text, "g-7") || !strings.Contains(text, "127.0.0.1:2") || !strings.Contains(text, "9200") || strings.Contains(text, "{{") || strings.Contains(text, "@") {
			t.Errorf("%s: %s", prog.name, text)
		}
	}
}

// The start and the end of a run are no part of its speed.
func TestThePaceLeavesOutStartAndEnd(t *testing.T) {
	p := pace{from: 50, to: 950}
	at := time.Unix(1000, 0)
	for _, look := range []struct {
		seconds float64
		docs    int64
	}{{5, 10}, {6, 100}, {7, 500}, {8, 900}, {8.25, 1000}, {60, 1001}} {
		p.add(stats{Distinct: look.docs, Last: at.Add(time.Duration(look.seconds * float64(time.Second)))})
	}
	if got := p.perSecond(); got != 400 {
		t.Errorf("%v documents a second, want 900 in 2.25 seconds", got)
	}
	if got := (&pace{}).perSecond(); got != 0 {
		t.Errorf("nothing was seen, and it says %v", got)
	}
}
