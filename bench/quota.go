package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// quotaResult is a run of Sluice under a CPU quota.
type quotaResult struct {
	Mode      string  `json:"mode"` // procs.mode
	CPUs      float64 `json:"cpus"`
	Gzip      int     `json:"gzip"`
	Throttled float64 `json:"throttled"` // share of the periods in which it was stopped
	run
}

// quotaChange is the speed of Sluice while its quota changes.
type quotaChange struct {
	Mode string `json:"mode"`
	// Each phase is a quota that holds for as long.
	CPUs    []float64 `json:"cpus"`
	PhaseS  float64   `json:"phase_s"`
	DocsPer []float64 `json:"docs_per_s"` // of each second
}

// quotaModes are the values of procs.mode.
var quotaModes = []string{"automaxprocs", "runtime"}

const (
	quotaPhase    = 8 * time.Second // of a live change
	changeDocs    = 4_000_000       // more than what moves meanwhile, with gzip
	quotaInterval = "2s"            // procs.interval, so that a phase shows both
)

// quota measures procs.mode under CPU quotas, in a cgroup that it makes.
func quota(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("quota", flag.ContinueOnError)
	var o options
	o.flags(fs, "sluice")
	scenarios := scenarioFlags(fs, "plain,gzip")
	chosen, end, err := o.begin(fs, args, scenarios)
	if err != nil {
		return err
	}
	defer end()
	group, err := newCgroup()
	if err != nil {
		return err
	}
	defer group.remove()
	stage, err := o.newStage(ctx, chosen[0].topic)
	if err != nil {
		return err
	}
	defer stage.close()

	result := newReport(fs)
	modes := map[string]program{}
	for _, mode := range quotaModes {
		modes[mode] = group.inside(sluiceProgram(o.sluice, mode, fmt.Sprintf("procs: {mode: %s, interval: %s}\n", mode, quotaInterval)))
	}
	for round := range o.rounds {
		for _, s := range chosen {
			for _, cpus := range []float64{0.5, 1, 1.5} {
				for _, mode := range quotaModes {
					r := quotaResult{Mode: mode, CPUs: cpus, Gzip: s.Gzip}
					if err := group.limit(cpus); err != nil {
						return err
					}
					before, err := group.periods()
					if err != nil {
						return err
					}
					if r.run, err = stage.run(ctx, s, modes[mode], fmt.Sprintf("quota-%s-%v-%s-%d", s.Name, cpus, mode, round)); err != nil {
						return err
					}
					after, err := group.periods()
					if err != nil {
						return err
					}
					r.Throttled = float64(after.throttled-before.throttled) / float64(max(1, after.all-before.all))
					fmt.Fprintf(os.Stderr, "%d: %.1f CPUs, gzip %d, %-12s %8.0f docs/s %6.2f CPU s/M, throttled in %2.0f %% of the periods, foreign %2.0f %% %s\n",
						round+1, cpus, s.Gzip, mode, r.DocsPerS, r.CPUPerM, 100*r.Throttled, 100*r.ForeignCPU, r.Note)
					result.Quotas = append(result.Quotas, r)
				}
			}
		}
		if err := result.write(o.out); err != nil {
			return err
		}
	}
	// The run with the change must not come to the topic's end.
	long := chosen[len(chosen)-1]
	long.Docs = changeDocs
	stage.close()
	if stage, err = o.newStage(ctx, long.topic); err != nil {
		return err
	}
	defer stage.close()
	for _, mode := range quotaModes {
		change, err := o.changeQuota(ctx, stage, long, group, modes[mode])
		if err != nil {
			return err
		}
		result.QuotaChange = append(result.QuotaChange, change)
	}
	if err := result.write(o.out); err != nil {
		return err
	}
	return quotaTable(os.Stdout, result)
}

// changeQuota watches one run while its quota changes.
func (o *options) changeQuota(ctx context.Context, v *stage, s scenario, group *cgroup, p program) (quotaChange, error) {
	change := quotaChange{Mode: p.name, CPUs: []float64{0.5, 1.5, 0.5}, PhaseS: quotaPhase.Seconds()}
	sink, err := v.sink(ctx, s.Latency)
	if err != nil {
		return change, err
	}
	url := "http://" + sink.Address
	if err := group.limit(change.CPUs[0]); err != nil {
		return change, err
	}
	commands, err := p.commands(ctx, place{Brokers: v.filled.Brokers, Sink: url, Index: "bench", Group: "change-" + p.name}, s, v.temp)
	if err != nil {
		return change, err
	}
	before, err := sinkWatch(url)(ctx)
	if err != nil {
		return change, err
	}
	start := before
	running, err := startProcesses(commands)
	if err != nil {
		return change, err
	}
	defer func() {
		running.kill() // there is nothing to finish
		<-running.ended
	}()
	for got := before; got.Docs == before.Docs; { // it starts
		pause(ctx, tick)
		if got, err = sinkWatch(url)(ctx); err != nil {
			return change, err
		}
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	seconds := int(quotaPhase.Seconds())
	for second := range seconds * len(change.CPUs) {
		if second%seconds == 0 {
			if err := group.limit(change.CPUs[second/seconds]); err != nil {
				return change, err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return change, ctx.Err()
		}
		got, err := sinkWatch(url)(ctx)
		if err != nil {
			return change, err
		}
		if got.Docs-start.Docs >= s.Docs {
			break // a fast machine, and the topic's end
		}
		change.DocsPer = append(change.DocsPer, float64(got.Docs-before.Docs))
		before = got
	}
	return change, nil
}

func quotaTable(w io.Writer, r report) error {
	type key struct {
		cpus float64
		gzip int
		mode string
	}
	var order []key
	byKey := map[key][]quotaResult{}
	for _, q := range r.Quotas {
		k := key{q.CPUs, q.Gzip, q.Mode}
		if q.Note != "" {
			fmt.Fprintf(w, "does not count: %v CPUs, %s: %s\n", q.CPUs, q.Mode, q.Note)
			continue
		}
		if byKey[k] == nil {
			order = append(order, k)
		}
		byKey[k] = append(byKey[k], q)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CPUs\tgzip\tmode\truns\tdocs/s\tCPU s/M\tthrottled\tMiB\t")
	for _, k := range order {
		median := func(of func(quotaResult) float64) float64 {
			var values []float64
			for _, q := range byKey[k] {
				values = append(values, of(q))
			}
			return spreadOf(values).Median
		}
		fmt.Fprintf(t, "%.1f\t%d\t%s\t%d\t%.0fk\t%.2f\t%.0f %%\t%.0f\t\n", k.cpus, k.gzip, k.mode, len(byKey[k]),
			median(func(q quotaResult) float64 { return q.DocsPerS / 1000 }), median(func(q quotaResult) float64 { return q.CPUPerM }),
			median(func(q quotaResult) float64 { return 100 * q.Throttled }), median(func(q quotaResult) float64 { return q.MemoryMiB }))
	}
	return t.Flush()
}

// A cgroup bounds the CPU of processes. It speaks version 1 where the machine
// has its cpu controller there, else version 2.
type cgroup struct {
	path string
	v1   bool
}

const quotaPeriod = 100_000 // microseconds

func newCgroup() (*cgroup, error) {
	g := &cgroup{path: "/sys/fs/cgroup/cpu", v1: true}
	if _, err := os.Stat(g.path + "/cpu.cfs_quota_us"); err != nil {
		g.path, g.v1 = "/sys/fs/cgroup", false
	}
	g.path += fmt.Sprintf("/sluice-bench-%d", os.Getpid())
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return nil, fmt.Errorf("a cgroup is needed, so run it as root where cgroups can be written: %w", err)
	}
	// The quota is to be the limit, not what else runs on the machine.
	weight, most := "cpu.weight", "10000"
	if g.v1 {
		weight, most = "cpu.shares", "262144"
	}
	return g, g.write(weight, most)
}

func (g *cgroup) remove() { _ = os.Remove(g.path) } // fails while a process is in it, and stays then

func (g *cgroup) write(file, text string) error {
	return os.WriteFile(filepath.Join(g.path, file), []byte(text), 0o644)
}

// limit sets the quota.
func (g *cgroup) limit(cpus float64) error {
	quota := strconv.Itoa(int(cpus * quotaPeriod))
	if g.v1 {
		return errors.Join(g.write("cpu.cfs_period_us", strconv.Itoa(quotaPeriod)), g.write("cpu.cfs_quota_us", quota))
	}
	return g.write("cpu.max", quota+" "+strconv.Itoa(quotaPeriod))
}

// periods counts the periods in which something ran, and those of them in which
// it was stopped.
type periods struct{ all, throttled int64 }

func (g *cgroup) periods() (periods, error) {
	content, err := os.ReadFile(filepath.Join(g.path, "cpu.stat"))
	if err != nil {
		return periods{}, err
	}
	return readPeriods(string(content))
}

func readPeriods(stat string) (p periods, err error) {
	for line := range strings.Lines(stat) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "nr_periods":
			p.all, err = strconv.ParseInt(value, 10, 64)
		case "nr_throttled":
			p.throttled, err = strconv.ParseInt(value, 10, 64)
		}
		if err != nil {
			return p, fmt.Errorf("cpu.stat: %w", err)
		}
	}
	return p, nil
}

// inside makes a program start in the cgroup: it must be there before it looks
// for its quota.
func (g *cgroup) inside(p program) program {
	command := p.command
	p.command = func(at place, s scenario) ([]string, error) {
		line, err := command(at, s)
		if err != nil {
			return nil, err
		}
		sh, err := exec.LookPath("sh")
		if err != nil {
			return nil, err
		}
		return append([]string{sh, "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, g.path}, line...), nil
	}
	return p
}
