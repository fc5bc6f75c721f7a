package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// options are the flags that all comparisons have.
type options struct {
	rounds     int
	programs   string
	budget     time.Duration
	out        string
	sluice     string
	rsyslog    string
	otelcol    string
	self, temp string
}

func (o *options) flags(fs *flag.FlagSet, programs string) {
	fs.IntVar(&o.rounds, "rounds", 5, "runs of each program, in turns")
	fs.StringVar(&o.programs, "programs", programs, "floor, sluice, rsyslog, otelcol, otelcol-wait or otelcol-json, commas between; the first is the yardstick")
	fs.DurationVar(&o.budget, "budget", 30*time.Minute, "begin no round after this long")
	fs.StringVar(&o.out, "out", "", "file for the results, JSON")
	fs.StringVar(&o.sluice, "sluice", "deploy/build/sluice", "the program to measure")
	fs.StringVar(&o.rsyslog, "rsyslogd", "rsyslogd", "with imkafka and omelasticsearch")
	fs.StringVar(&o.otelcol, "otelcol", "deploy/build/otelcol", "the collector of bench/peers/otelcol")
}

// begin reads the flags of a command that runs scenarios, and prepares.
func (o *options) begin(fs *flag.FlagSet, args []string, scenarios func() ([]scenario, error)) (chosen []scenario, end func(), err error) {
	if err := fs.Parse(args); err != nil {
		return nil, nil, err
	}
	if chosen, err = scenarios(); err != nil {
		return nil, nil, err
	}
	end, err = o.prepare()
	return chosen, end, err
}

// prepare makes the folder for temporary files, which end removes.
func (o *options) prepare() (end func(), err error) {
	if o.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if o.temp, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return nil, err
	}
	return func() { _ = os.RemoveAll(o.temp) }, nil // only logs would stay
}

// chosen returns the programs to compare.
func (o *options) chosen() ([]program, error) {
	known := []program{
		floorProgram(o.self),
		sluiceProgram(o.sluice, "sluice", ""),
		rsyslogProgram(o.rsyslog),
		otelcolProgram(o.otelcol, "otelcol", "raw", "bytes", false),
		otelcolProgram(o.otelcol, "otelcol-wait", "raw", "bytes", true),
		otelcolProgram(o.otelcol, "otelcol-json", "json", "bodymap", false),
	}
	var chosen []program
	for name := range strings.SplitSeq(o.programs, ",") {
		i := slices.IndexFunc(known, func(p program) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no program %q", name)
		}
		chosen = append(chosen, known[i])
	}
	return chosen, nil
}

// compare runs programs in turns between kfakesrv and nullsink.
func compare(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	var o options
	o.flags(fs, "floor,sluice")
	scenarios := scenarioFlags(fs, "core")
	chosen, end, err := o.begin(fs, args, scenarios)
	if err != nil {
		return err
	}
	defer end()
	programs, err := o.chosen()
	if err != nil {
		return err
	}
	// A topic is loaded once for all scenarios that read it.
	slices.SortStableFunc(chosen, func(a, b scenario) int {
		return firstWith(chosen, a.topic) - firstWith(chosen, b.topic)
	})
	var (
		result = newReport(fs)
		until  = time.Now().Add(o.budget)
		stage  *stage
	)
	for _, s := range chosen {
		if stage == nil || stage.topic != s.topic {
			if stage != nil {
				stage.close()
			}
			if stage, err = o.newStage(ctx, s.topic); err != nil {
				return err
			}
			defer stage.close()
		}
		c, err := o.takeTurns(ctx, s, programs, until, stage)
		if err != nil {
			return err
		}
		result.Comparisons = append(result.Comparisons, c)
		if err := result.write(o.out); err != nil {
			return err
		}
		if err := table(os.Stdout, []comparison{c}, programs[0].name); err != nil {
			return err
		}
	}
	return table(os.Stdout, result.Comparisons, programs[0].name)
}

func firstWith(scenarios []scenario, t topic) int {
	return slices.IndexFunc(scenarios, func(s scenario) bool { return s.topic == t })
}

// A venue is where runs take place: it gives each one a place of its own.
type venue interface {
	// run lets a program move the documents and tells what it took.
	run(ctx context.Context, s scenario, p program, group string) (run, error)
}

// takeTurns runs the programs in turns. The first run only warms up what the
// programs share and does not count.
func (o *options) takeTurns(ctx context.Context, s scenario, programs []program, until time.Time, v venue) (comparison, error) {
	c := comparison{Scenario: s}
	if _, err := v.run(ctx, s, programs[0], s.Name+"-warm"); err != nil {
		return c, err
	}
	for round := range o.rounds {
		if time.Now().After(until) {
			fmt.Fprintf(os.Stderr, "%s: the budget is spent after %d rounds\n", s.Name, round)
			break
		}
		for _, p := range programs {
			r, err := v.run(ctx, s, p, fmt.Sprintf("%s-%s-%d", s.Name, p.name, round))
			if err != nil {
				return c, err
			}
			fmt.Fprintf(os.Stderr, "%s %d: %-7s %7.2f CPU s/M  %8.0f docs/s  %5.0f MiB  foreign %2.0f %%  %s\n",
				s.Name, round+1, p.name, r.CPUPerM, r.DocsPerS, r.MemoryMiB, 100*r.ForeignCPU, r.Note)
			c.Runs = append(c.Runs, r)
		}
	}
	return c, nil
}

// stage is the venue of compare: a broker with one topic, and a sink.
type stage struct {
	topic  topic
	temp   string
	self   string
	broker child
	filled broker
	sinks  map[time.Duration]*sinkChild // by latency
}

type sinkChild struct {
	child
	listening
}

func (o *options) newStage(ctx context.Context, t topic) (*stage, error) {
	s := &stage{topic: t, temp: o.temp, self: o.self, sinks: map[time.Duration]*sinkChild{}}
	var err error
	s.broker, err = startChild(ctx, &s.filled, o.self, append([]string{"kfakesrv"}, t.args()...)...)
	if err != nil {
		return nil, fmt.Errorf("filling a topic: %w", err)
	}
	return s, nil
}

// sink returns the sink of that latency. It lives as long as the broker, since
// it keeps what Sluice has noted of the topic.
func (s *stage) sink(ctx context.Context, latency time.Duration) (*sinkChild, error) {
	if sink := s.sinks[latency]; sink != nil {
		return sink, nil
	}
	sink := new(sinkChild)
	var err error
	sink.child, err = startChild(ctx, &sink.listening, s.self, "nullsink", "-verify", fmt.Sprint(s.topic.Docs), "-latency", latency.String())
	if err != nil {
		return nil, fmt.Errorf("starting a sink: %w", err)
	}
	s.sinks[latency] = sink
	return sink, nil
}

func (s *stage) run(ctx context.Context, sc scenario, p program, group string) (run, error) {
	sink, err := s.sink(ctx, sc.Latency)
	if err != nil {
		return run{}, err
	}
	url := "http://" + sink.Address
	if err := call(ctx, "POST", url+"/stats/reset", "", nil); err != nil {
		return run{}, err
	}
	commands, err := p.commands(ctx, place{Brokers: s.filled.Brokers, Sink: url, Index: "bench", Group: group}, sc, s.temp)
	if err != nil {
		return run{}, err
	}
	r, err := measure(ctx, p.name, commands, sc.Docs, sinkWatch(url), []int{s.broker.pid(), sink.pid()})
	if err != nil {
		return r, err
	}
	// What a program sends while it stops may be repeats.
	got, err := sinkWatch(url)(ctx)
	if err != nil {
		return r, err
	}
	r.Duplicates, r.Checked = got.Duplicates, checkedBytes
	if got.Sum != s.filled.Sum {
		r.Checked = checkedNot
	}
	if r.Note == "" && p.faithful && r.Checked != checkedBytes {
		r.Note = "the documents are not what they were"
	}
	if r.Note != "" {
		r.Note += outputOf(filepath.Join(s.temp, group+"-0", "output"))
	}
	return r, nil
}

func (s *stage) close() {
	s.broker.stop()
	for _, sink := range s.sinks {
		sink.stop()
	}
	s.sinks = nil
}

// outputOf returns the end of what a process has printed, to stand in a note.
func outputOf(file string) string {
	content, err := os.ReadFile(file)
	if err != nil || len(content) == 0 {
		return ""
	}
	const most = 1000
	return ": ..." + strings.TrimSpace(string(content[max(0, len(content)-most):]))
}

// A child is a part of the harness that runs as a process of its own.
type child struct{ command *exec.Cmd }

// startChild starts a process and decodes the line of JSON that it prints when
// it is ready.
func startChild(ctx context.Context, ready any, name string, args ...string) (child, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return child{}, err
	}
	if err := command.Start(); err != nil {
		return child{}, err
	}
	c := child{command}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, ready)
	}
	if err != nil {
		c.stop()
		return child{}, errors.Join(fmt.Errorf("%s %s is not ready", filepath.Base(name), args[0]), ctx.Err())
	}
	return c, nil
}

func (c child) pid() int { return c.command.Process.Pid }

func (c child) stop() {
	if c.command.ProcessState == nil {
		_ = c.command.Process.Kill() // it keeps nothing
		_ = c.command.Wait()         // killed
	}
}
