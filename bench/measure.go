package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A run is one measurement of one program.
type run struct {
	Program    string  `json:"program"`
	Docs       int64   `json:"docs"`       // different ones that arrived
	Duplicates int64   `json:"duplicates"` // that arrived again
	Checked    string  `json:"checked"`    // how: one of the constants below
	Seconds    float64 `json:"seconds"`    // from the first bulk request to the last answer
	// DocsPerS is the speed between a twentieth and nineteen twentieths of the
	// documents: a run is short, and neither how a program gets going nor how
	// long its last batch waits for more is its speed.
	DocsPerS  float64 `json:"docs_per_s"`
	CPUPerM   float64 `json:"cpu_s_per_m_docs"` // of the program, from start to end
	MemoryMiB float64 `json:"memory_mib"`       // peaks of its processes, added up
	Requests  int64   `json:"requests,omitempty"`
	InFlight  int64   `json:"most_in_flight,omitempty"`
	WireBytes int64   `json:"wire_bytes,omitempty"`
	// ForeignCPU is the share of the machine that went to what is no part of
	// the measurement.
	ForeignCPU float64 `json:"foreign_cpu"`
	// Note says what went wrong; such a run counts for nothing.
	Note string `json:"note,omitempty"`
}

// What is known of the documents that arrived.
const (
	checkedBytes  = "bytes"   // each is there, byte for byte
	checkedNumber = "number"  // each is there
	checkedNot    = "altered" // each is there, in another form
)

// Limits of a run.
const (
	runLimit  = 4 * time.Minute  // from start to the last document
	idleLimit = 20 * time.Second // without a document, once some have come
	stopLimit = 45 * time.Second // from SIGTERM to the end
	tick      = 25 * time.Millisecond
)

// A watch tells how far a sink is.
type watch func(ctx context.Context) (stats, error)

// measure runs a program, which may be several processes, until the sink has
// docs different documents, stops it, and tells what it took. own are the
// processes of the harness that work for it.
func measure(ctx context.Context, program string, commands []*exec.Cmd, docs int64, progress watch, own []int) (run, error) {
	r := run{Program: program}
	machine, err := busy(own)
	if err != nil {
		return r, err
	}
	start := time.Now()
	p, err := startProcesses(commands)
	if err != nil {
		return r, fmt.Errorf("starting %s: %w", program, err)
	}
	got, rate, note, err := await(ctx, p, docs, progress, start)
	if err != nil {
		p.kill()
		return r, err
	}
	elapsed := time.Since(start).Seconds()
	after, err := busy(append(own, p.pids()...))
	if err != nil {
		p.kill()
		return r, err
	}
	if !p.stop(ctx) {
		note = strings.TrimPrefix(note+"; killed, it did not stop", "; ")
	}
	cpu, rss := p.usage()

	r.Docs, r.Duplicates, r.Requests, r.InFlight, r.WireBytes, r.Note = got.Distinct, got.Duplicates, got.Requests, got.MaxInFlight, got.WireBytes, note
	r.MemoryMiB = float64(rss) / 1024
	r.ForeignCPU = max(0, after-machine) / (elapsed * float64(cpus()))
	if r.Docs == 0 {
		r.Note = "no document arrived; " + note
		return r, nil
	}
	r.Seconds = got.Last.Sub(got.First).Seconds()
	if r.DocsPerS = rate.perSecond(); r.DocsPerS == 0 && r.Note == "" {
		r.Note = "over too soon to tell its speed: measure more documents (-docs)"
	}
	r.CPUPerM = cpu / float64(r.Docs) * 1e6
	return r, nil
}

// await waits until the sink has everything; note says why it did not.
func await(ctx context.Context, p *processes, docs int64, progress watch, start time.Time) (got stats, rate pace, note string, err error) {
	rate.from, rate.to = docs/20, docs-docs/20
	changed := start
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		ended := false
		select {
		case <-ctx.Done():
			return got, rate, "", ctx.Err()
		case <-p.ended:
			ended = true
		case <-ticker.C:
		}
		last := got.Docs
		if got, err = progress(ctx); err != nil {
			return got, rate, "", err
		}
		if got.Docs != last {
			changed = time.Now()
			rate.add(got)
		}
		switch {
		case got.Distinct >= docs:
			return got, rate, "", nil
		case ended:
			return got, rate, "it ended early", nil
		case time.Since(start) > runLimit:
			return got, rate, "timed out", nil
		case got.Docs > 0 && time.Since(changed) > idleLimit:
			return got, rate, "stalled", nil
		}
	}
}

// A pace finds the speed between two counts of documents, of looks at a sink.
type pace struct {
	from, to    int64
	first, last stats // the first look at or above from, and the first at or above to
}

func (p *pace) add(s stats) {
	if s.Distinct >= p.from && p.first.Distinct == 0 {
		p.first = s
	}
	if s.Distinct >= p.to && p.last.Distinct == 0 {
		p.last = s
	}
}

// perSecond is 0 where too little was seen.
func (p *pace) perSecond() float64 {
	seconds := p.last.Last.Sub(p.first.Last).Seconds()
	if seconds <= 0 {
		return 0
	}
	return float64(p.last.Distinct-p.first.Distinct) / seconds
}

// processes are the processes of a program.
type processes struct {
	commands []*exec.Cmd
	ended    chan struct{} // closed when the last one has
}

func startProcesses(commands []*exec.Cmd) (*processes, error) {
	p := &processes{ended: make(chan struct{})}
	exits := make(chan struct{})
	for _, command := range commands {
		if err := command.Start(); err != nil {
			p.kill()
			return nil, err
		}
		if output, ok := command.Stdout.(*os.File); ok {
			_ = output.Close() // the child has its own
		}
		p.commands = append(p.commands, command)
		go func() {
			_ = command.Wait() // the sink tells whether it did what it should
			exits <- struct{}{}
		}()
	}
	go func() {
		for range commands {
			<-exits
		}
		close(p.ended)
	}()
	return p, nil
}

func (p *processes) pids() []int {
	var pids []int
	for _, command := range p.commands {
		pids = append(pids, command.Process.Pid)
	}
	return pids
}

// stop ends them with SIGTERM and says whether they went by themselves.
func (p *processes) stop(ctx context.Context) bool {
	for _, command := range p.commands {
		_ = command.Process.Signal(syscall.SIGTERM) // it may have ended
	}
	select {
	case <-p.ended:
		return true
	case <-ctx.Done():
	case <-time.After(stopLimit):
	}
	p.kill()
	<-p.ended
	return false
}

func (p *processes) kill() {
	for _, command := range p.commands {
		_ = command.Process.Kill() // it may have ended
	}
}

// usage returns the CPU seconds of all, and the sum of their peak memory in KiB.
func (p *processes) usage() (cpu float64, rss int64) {
	for _, command := range p.commands {
		usage := command.ProcessState.SysUsage().(*syscall.Rusage)
		cpu += command.ProcessState.UserTime().Seconds() + command.ProcessState.SystemTime().Seconds()
		rss += usage.Maxrss
	}
	return cpu, rss
}

// sinkWatch watches a nullsink.
func sinkWatch(url string) watch {
	return func(ctx context.Context) (stats, error) {
		var st stats
		return st, getJSON(ctx, url+"/stats", &st)
	}
}

// indexWatch watches an index of a real Elasticsearch by its count of index
// operations, which needs no refresh, so a document that comes twice counts
// twice. First and Last are the moments at which a change was seen: right to
// one tick.
func indexWatch(url, index string) watch {
	var st stats
	return func(ctx context.Context) (stats, error) {
		var answer struct {
			All struct {
				Primaries struct {
					Indexing struct {
						Total int64 `json:"index_total"`
					} `json:"indexing"`
				} `json:"primaries"`
			} `json:"_all"`
		}
		if err := getJSON(ctx, url+"/"+index+"/_stats/indexing?filter_path=_all.primaries.indexing.index_total", &answer); err != nil {
			return st, err
		}
		if n := answer.All.Primaries.Indexing.Total; n != st.Docs {
			now := time.Now()
			if st.Docs == 0 {
				st.First = now
			}
			st.Docs, st.Distinct, st.Last = n, n, now
		}
		return st, nil
	}
}

// call makes an HTTP request and decodes the JSON answer into out, where it is
// not nil. An answer that is not 2xx is an error.
func call(ctx context.Context, method, url, body string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func getJSON(ctx context.Context, url string, out any) error {
	return call(ctx, http.MethodGet, url, "", out)
}

const userHz = 100 // clock ticks a second in /proc

// busy returns the CPU seconds that the machine has spent on everything but
// this process and the given ones.
func busy(without []int) (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system float64
	if _, err := fmt.Sscanf(string(b), "cpu %f %f %f", &user, &nice, &system); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	total := (user + nice + system) / userHz
	for _, pid := range append(without, os.Getpid()) {
		used, err := cpuOf(pid)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return 0, err
		}
		total -= used
	}
	return total, nil
}

// cpuOf returns the CPU seconds that a running process has used.
func cpuOf(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("process %d: short stat line", pid)
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / userHz, errors.Join(err1, err2)
}
