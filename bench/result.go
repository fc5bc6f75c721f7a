package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A report is what a measurement writes to its JSON file.
type report struct {
	Taken   time.Time `json:"taken"`
	Command string    `json:"command"`
	Machine machine   `json:"machine"`

	Comparisons []comparison    `json:"comparisons,omitempty"`
	Limiter     *limiterResults `json:"limiter,omitempty"`
	Quotas      []quotaResult   `json:"quotas,omitempty"`
	QuotaChange []quotaChange   `json:"quota_change,omitempty"`
	LiveCopy    *liveCopy       `json:"live_copy,omitempty"`
}

// machine is what a report was taken on.
type machine struct {
	CPUs      int    `json:"cpus"`
	Model     string `json:"model"`
	MemoryMiB int    `json:"memory_mib"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	Commit    string `json:"commit"`
}

// pathFlags say where something lies on this machine, which is of no interest
// on another.
var pathFlags = []string{"out", "sluice", "rsyslogd", "otelcol", "kafka-image", "elasticsearch-image", "opensearch-image", "cities"}

// newReport begins a report of the command that these flags are of.
func newReport(flags *flag.FlagSet) report {
	m := machine{CPUs: cpus(), Go: runtime.Version(), Model: fieldOf("/proc/cpuinfo", "model name")}
	_, _ = fmt.Sscan(fieldOf("/proc/meminfo", "MemTotal"), &m.MemoryMiB) // KiB; 0 where it is not told
	m.MemoryMiB >>= 10
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	if commit, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(commit))
	}
	command := "bench " + flags.Name()
	flags.Visit(func(f *flag.Flag) {
		if !slices.Contains(pathFlags, f.Name) {
			command += " -" + f.Name + "=" + f.Value.String()
		}
	})
	return report{Taken: time.Now().UTC().Truncate(time.Second), Command: command, Machine: m}
}

// cpus is how many CPUs the machine has.
func cpus() int { return runtime.NumCPU() }

// fieldOf returns the value of the first line "name : value" of a file of /proc.
func fieldOf(file, name string) string {
	content, _ := os.ReadFile(file) // not on every system
	for line := range strings.Lines(string(content)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// write writes the report to a file, or nothing where file is "".
func (r report) write(file string) error {
	if file == "" {
		return nil
	}
	content, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}

func readReport(file string) (report, error) {
	var r report
	content, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.NewDecoder(bytes.NewReader(content)).Decode(&r); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// A comparison is a scenario and its runs, in the order in which they were made.
type comparison struct {
	Scenario scenario `json:"scenario"`
	Runs     []run    `json:"runs"`
}

// A measure of a run that programs are compared by.
type measureOf struct {
	name string
	unit string
	of   func(run) float64
}

var (
	cpuMeasure    = measureOf{"CPU", "s/M", func(r run) float64 { return r.CPUPerM }}
	speedMeasure  = measureOf{"documents", "k/s", func(r run) float64 { return r.DocsPerS / 1000 }}
	memoryMeasure = measureOf{"memory", "MiB", func(r run) float64 { return r.MemoryMiB }}
)

// programs names the programs of a comparison, in the order of their first run.
func (c comparison) programs() []string {
	var names []string
	for _, r := range c.Runs {
		if !slices.Contains(names, r.Program) {
			names = append(names, r.Program)
		}
	}
	return names
}

// of returns the measure of a program's runs that count, in order.
func (c comparison) of(program string, m measureOf) []float64 {
	var values []float64
	for _, r := range c.Runs {
		if r.Program == program && r.Note == "" {
			values = append(values, m.of(r))
		}
	}
	return values
}

// ratios compares each run of a program that counts with the yardstick's run of
// the same round.
func (c comparison) ratios(program, yardstick string, m measureOf) []float64 {
	rounds := map[string][]run{}
	for _, r := range c.Runs {
		rounds[r.Program] = append(rounds[r.Program], r)
	}
	var values []float64
	for i := range min(len(rounds[program]), len(rounds[yardstick])) {
		if a, b := rounds[program][i], rounds[yardstick][i]; a.Note == "" && b.Note == "" {
			values = append(values, m.of(a)/m.of(b))
		}
	}
	return values
}

// A spread is the median of values, the least and the most of them.
type spread struct{ Median, Least, Most float64 }

// spreadOf describes values; of none it is all zero.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}

// goal says whether a ratio keeps to the scenario's goal; "" where it has none.
func (s scenario) goal(m measureOf, ratio float64) string {
	const noise = 0.005 // ratios are told with two digits
	var goal string
	var met bool
	switch {
	case m.name == cpuMeasure.name && s.MostCPU > 0:
		goal, met = fmt.Sprintf("<= %.2f", s.MostCPU), ratio < s.MostCPU+noise
	case m.name == speedMeasure.name && s.LeastSpeed > 0:
		goal, met = fmt.Sprintf(">= %.2f", s.LeastSpeed), ratio > s.LeastSpeed-noise
	default:
		return ""
	}
	if met {
		return goal + " met"
	}
	return goal + " MISSED"
}

// table prints comparisons: medians, and as ratio the median of the pairs'
// ratios with the least and the most.
func table(w io.Writer, comparisons []comparison, yardstick string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "scenario\tprogram\truns\tCPU s/M\tratio\t\tdocs/s\tratio\t\tMiB\tforeign CPU\t")
	for _, c := range comparisons {
		for _, name := range c.programs() {
			valid := c.of(name, cpuMeasure)
			foreign := spreadOf(c.of(name, measureOf{of: func(r run) float64 { return r.ForeignCPU }}))
			fmt.Fprintf(t, "%s\t%s\t%d\t", c.Scenario.Name, name, len(valid))
			for _, m := range []measureOf{cpuMeasure, speedMeasure} {
				value := spreadOf(c.of(name, m)).Median
				if m.name == speedMeasure.name {
					fmt.Fprintf(t, "%.0fk\t", value)
				} else {
					fmt.Fprintf(t, "%.2f\t", value)
				}
				if ratios := c.ratios(name, yardstick, m); name != yardstick && len(ratios) > 0 {
					ratio := spreadOf(ratios)
					fmt.Fprintf(t, "%.2f (%.2f-%.2f)\t", ratio.Median, ratio.Least, ratio.Most)
					if strings.HasPrefix(name, "sluice") {
						fmt.Fprintf(t, "%s\t", c.Scenario.goal(m, ratio.Median))
					} else {
						fmt.Fprint(t, "\t")
					}
				} else {
					fmt.Fprint(t, "\t\t")
				}
			}
			fmt.Fprintf(t, "%.0f\t%.0f %%\t\n", spreadOf(c.of(name, memoryMeasure)).Median, 100*foreign.Median)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range comparisons {
		for _, r := range c.Runs {
			if r.Note != "" {
				fmt.Fprintf(w, "does not count: %s, %s: %s\n", c.Scenario.Name, r.Program, r.Note)
			} else if r.Duplicates > 0 || r.Checked == checkedNot {
				fmt.Fprintf(w, "%s, %s: %d documents twice; checked: %s\n", c.Scenario.Name, r.Program, r.Duplicates, r.Checked)
			}
		}
	}
	return nil
}
