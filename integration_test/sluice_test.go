//go:build integration

package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Sluice is one `sluice run`, a process of its own. From its start to its end
// its metrics are read, and every scrape is held to what must be true at any.
type Sluice struct {
	admin  string // host:port
	cmd    *exec.Cmd
	log    logBuffer
	exited chan struct{} // closed once the process is gone and the watch is over

	mu struct {
		sync.Mutex
		last   Metrics
		broken error // the first scrape that was not right
	}
}

// binary builds cmd/sluice once. SLUICE_TEST_RACE=1 builds it with the race
// detector.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "sluice")
	args := []string{"build", "-o", path}
	if os.Getenv("SLUICE_TEST_RACE") == "1" {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "../cmd/sluice")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building cmd/sluice: %w\n%s", err, out)
	}
	return path, nil
})

// startSluice runs `sluice run` with a configuration and returns when it serves
// its metrics. It is killed after the test if it still runs.
func startSluice(t *testing.T, config string) *Sluice {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &Sluice{admin: fmt.Sprintf("127.0.0.1:%d", port), exited: make(chan struct{})}
	s.cmd = exec.Command(path, "run", "-c", file, "--set", "admin.address="+s.admin, "--log-format", "json")
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watching, stopWatching := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(watching) })
	go func() { // ends with the process
		defer close(s.exited)
		_ = s.cmd.Wait() // ProcessState tells
		stopWatching()
		watch.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may be gone
		<-s.exited
		if t.Failed() {
			t.Logf("sluice %d ended with %v, its log with:\n%s", s.cmd.Process.Pid, s.cmd.ProcessState, s.log.tail())
		}
	})
	await(t, time.Minute, "sluice to serve metrics", func() error {
		if err := s.Check(); err != nil {
			return err
		}
		if s.Metrics() == nil {
			return errors.New("nothing was scraped yet")
		}
		return nil
	})
	return s
}

// watch reads the metrics until ctx ends, twenty times a second.
func (s *Sluice) watch(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		metrics, err := s.scrape(ctx)
		if err == nil {
			err = errors.Join(metrics.ledger(), metrics.budget())
			s.mu.Lock()
			s.mu.last = metrics
			if s.mu.broken == nil {
				s.mu.broken = err
			}
			s.mu.Unlock()
		} // else it has not begun to serve, or is ending
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Sluice) scrape(ctx context.Context) (Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/metrics: %s", resp.Status)
	}
	return parseMetrics(resp.Body)
}

// Metrics gives the last scrape, nil before the first.
func (s *Sluice) Metrics() Metrics {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.last
}

// Check fails, for good, when the process has ended or a scrape was wrong.
func (s *Sluice) Check() error {
	s.mu.Lock()
	broken := s.mu.broken
	s.mu.Unlock()
	if broken != nil {
		return stop{broken}
	}
	select {
	case <-s.exited:
		return stop{fmt.Errorf("sluice has ended: %v", s.cmd.ProcessState)}
	default:
		return nil
	}
}

// AwaitOutcomes waits until the process has handled n records in some way.
func (s *Sluice) AwaitOutcomes(t *testing.T, timeout time.Duration, n float64) {
	t.Helper()
	await(t, timeout, fmt.Sprintf("%.0f handled records", n), func() error {
		if err := s.Check(); err != nil {
			return err
		}
		if handled := s.Metrics().Sum("sluice_records_total"); handled < n {
			return fmt.Errorf("%.0f are handled", handled)
		}
		return nil
	})
}

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (s *Sluice) Signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("%v to sluice: %v", signal, err)
	}
}

// End sends a signal that ends the process and gives its exit code, -1 when the
// signal ended it. Up to then every scrape must have been right.
func (s *Sluice) End(t *testing.T, signal syscall.Signal) int {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	s.Signal(t, signal)
	select {
	case <-s.exited:
	case <-time.After(2 * time.Minute):
		t.Fatalf("sluice still runs two minutes after %v", signal)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.broken != nil {
		t.Fatal(s.mu.broken)
	}
	return s.cmd.ProcessState.ExitCode()
}

// Metrics is one scrape.
type Metrics []sample

// sample is one line of a scrape.
type sample struct {
	name   string
	labels string // as they stand between the braces, in the server's order
	value  float64
}

// parseMetrics reads the Prometheus text format as client_golang writes it.
func parseMetrics(r io.Reader) (Metrics, error) {
	metrics := Metrics{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		series, number, ok := cutLast(line, ' ')
		value, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("no sample: %q", line)
		}
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		metrics = append(metrics, sample{name, labels, value})
	}
	return metrics, lines.Err()
}

func cutLast(s string, separator byte) (before, after string, found bool) {
	i := strings.LastIndexByte(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// label gives the value of one label; values with a quote in them do not occur.
func (s *sample) label(name string) string {
	for pair := range strings.SplitSeq(s.labels, ",") {
		if value, found := strings.CutPrefix(pair, name+`="`); found {
			return strings.TrimSuffix(value, `"`)
		}
	}
	return ""
}

// Sum adds up the samples of a name that have all the labels, such as
// `outcome="indexed"`.
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
next:
	for i := range m {
		if m[i].name != name {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(","+m[i].labels+",", ","+label+",") {
				continue next
			}
		}
		sum += m[i].value
	}
	return sum
}

// ledger fails unless every record that was consumed is accounted for, once,
// per topic and partition.
func (m Metrics) ledger() error {
	consumed, accounted := map[string]float64{}, map[string]float64{}
	for i := range m {
		s := &m[i]
		partition := s.label("topic") + "/" + s.label("partition")
		switch s.name {
		case "sluice_records_consumed_total":
			consumed[partition] += s.value
		case "sluice_records_total", "sluice_records_in_flight":
			accounted[partition] += s.value
		}
	}
	var failed []error
	for partition, n := range consumed {
		if accounted[partition] != n {
			failed = append(failed, fmt.Errorf("the ledger of %s does not balance: consumed %.0f, accounted for %.0f", partition, n, accounted[partition]))
		}
	}
	for partition, n := range accounted {
		if _, known := consumed[partition]; !known && n != 0 {
			failed = append(failed, fmt.Errorf("the ledger of %s does not balance: nothing consumed, accounted for %.0f", partition, n))
		}
	}
	return errors.Join(failed...)
}

// budget fails when more bytes are held than the limit allows.
func (m Metrics) budget() error {
	if used, limit := m.Sum("sluice_memory_used_bytes"), m.Sum("sluice_memory_limit_bytes"); used > limit {
		return fmt.Errorf("%.0f bytes are held, the limit is %.0f", used, limit)
	}
	return nil
}

// logBuffer keeps what a process printed.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) tail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	const most = 8 << 10
	text := b.buf.Bytes()
	return string(text[max(0, len(text)-most):])
}
