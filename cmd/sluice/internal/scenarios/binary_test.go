package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// binaryDir holds the program; "" until it is built.
var binaryDir string

// binary builds cmd/sluice, once, for tests that need a process to kill, or an
// operator's command.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-scenarios-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "sluice")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/sluicehq/sluice/cmd/sluice").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building cmd/sluice: %w\n%s", err, out)
	}
	return path, nil
})

func removeBinary() error {
	if binaryDir == "" {
		return nil
	}
	return os.RemoveAll(binaryDir)
}

// process is one Sluice in a process of its own.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	log    *output
	exited chan struct{}
}

// files writes the settings of this package and yaml, and gives them as flags.
func (w *world) files(yaml string) []string {
	w.t.Helper()
	dir := w.t.TempDir()
	args := []string{
		"--set", fmt.Sprintf("kafka.brokers=[%s]", strings.Join(w.kafka.Addresses(), ",")),
		"--set", fmt.Sprintf("elasticsearch.addresses=[%q]", w.url),
	}
	for name, text := range map[string]string{"settings.yaml": settings, "test.yaml": yaml} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	args = append(args, "-c", filepath.Join(dir, "settings.yaml"))
	if strings.TrimSpace(yaml) != "" {
		args = append(args, "-c", filepath.Join(dir, "test.yaml"))
	}
	return args
}

// launch starts `sluice run`, with more variables in its environment. It is
// killed after the test if it still runs.
func (w *world) launch(yaml string, variables ...string) *process {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	p := &process{t: w.t, cmd: exec.Command(path, append([]string{"run"}, w.files(yaml)...)...), log: &output{}, exited: make(chan struct{})}
	// What the tests themselves may have in memory is not for the program.
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "GOGC=") || strings.HasPrefix(entry, "GOMEMLIMIT=") || strings.HasPrefix(entry, "OTEL_")
	}), variables...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(p.exited)
		_ = p.cmd.Wait() // ProcessState tells
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may be gone
		<-p.exited
		if w.t.Failed() {
			w.t.Logf("sluice run ended with %v, its log with:\n%s", p.cmd.ProcessState, p.log.tail())
		}
	})
	return p
}

// end sends a signal that ends the process and gives its exit code, -1 when the
// signal ended it.
func (p *process) end(signal syscall.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatalf("%v: %v", signal, err)
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("sluice runs on after %v", signal)
	}
	return p.cmd.ProcessState.ExitCode()
}

// sluice runs a command of an operator and gives its exit code and all that it
// printed.
func (w *world) sluice(yaml string, args ...string) (code int, printed string) {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, append(args, w.files(yaml)...)...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return code, string(out)
}

// raise runs `sluice generation raise` for a topic, which must succeed.
func (w *world) raise(yaml, name string, args ...string) {
	w.t.Helper()
	if code, printed := w.sluice(yaml, append([]string{"generation", "raise", "--topic", name}, args...)...); code != 0 {
		w.t.Fatalf("generation raise: exit code %d: %s", code, printed)
	}
}

// metric reads the sum of a metric's samples from the process; NaN where it
// does not serve yet.
func (p *process) metric(name string) (sum float64) {
	p.t.Helper()
	url := p.adminURL()
	if url == "" {
		return math.NaN()
	}
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return math.NaN()
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return sumOf(families, name)
}

// adminURL is where the process serves, "" before it does.
func (p *process) adminURL() string {
	for line := range strings.Lines(p.log.String()) {
		var said struct{ URL string }
		if json.Unmarshal([]byte(line), &said) == nil && said.URL != "" {
			return strings.TrimSuffix(said.URL, "/")
		}
	}
	return ""
}

// highWater is the most memory that the process ever had resident, in bytes.
func (p *process) highWater() int {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Skip("the system does not tell how much memory is resident")
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	p.t.Skip("the system does not tell how much memory is resident")
	return 0
}
