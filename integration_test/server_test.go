//go:build integration

package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

// server is a container whose one port lies at an address that it keeps when
// it is killed and started again.
type server struct {
	address   string // 127.0.0.1:port
	container testcontainers.Container
}

// serverSpec says how to run a server.
type serverSpec struct {
	image string
	port  int // inside the container
	// env is given the host port, which a broker must advertise.
	env func(hostPort int) map[string]string
	// files are put into the container before it starts.
	files []testcontainers.ContainerFile
	// ready fails until the server at address does its work.
	ready func(ctx context.Context, address string) error
}

// startTimeout is far above what a start takes on a busy machine (20 s).
const startTimeout = 2 * time.Minute

func startServer(ctx context.Context, spec serverSpec) (*server, error) {
	var failed error
	for range 3 { // another process may take the port between choice and use
		s, err := tryStartServer(ctx, spec)
		if err == nil {
			return s, nil
		}
		failed = err
		if text := err.Error(); !strings.Contains(text, "address already in use") && !strings.Contains(text, "port is already allocated") {
			break
		}
	}
	return nil, failed
}

func tryStartServer(ctx context.Context, spec serverSpec) (*server, error) {
	hostPort, err := freePort()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(hostPort))
	exposed := fmt.Sprintf("%d/tcp", spec.port)
	ready := wait.ForNop(func(ctx context.Context, target wait.StrategyTarget) error {
		return poll(ctx, func() error {
			state, err := target.State(ctx)
			if err == nil && !state.Running {
				return stop{fmt.Errorf("the container ended with exit code %d", state.ExitCode)}
			}
			return spec.ready(ctx, address)
		})
	}).WithStartupTimeout(startTimeout)
	ctr, err := testcontainers.Run(ctx, spec.image,
		testcontainers.WithExposedPorts(exposed),
		testcontainers.WithEnv(spec.env(hostPort)),
		testcontainers.WithFiles(spec.files...),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) {
			host.PortBindings = network.PortMap{network.MustParsePort(exposed): {{HostPort: strconv.Itoa(hostPort)}}}
		}),
		testcontainers.WithWaitStrategyAndDeadline(startTimeout, ready))
	if err != nil {
		err = fmt.Errorf("%s: %w%s", spec.image, err, lastLog(ctr))
		return nil, errors.Join(err, testcontainers.TerminateContainer(ctr))
	}
	return &server{address: address, container: ctr}, nil
}

// lastLog gives the end of a container's log, to stand in an error.
func lastLog(ctr *testcontainers.DockerContainer) string {
	if ctr == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	log, err := ctr.Logs(ctx)
	if err != nil {
		return ""
	}
	defer log.Close()
	text, _ := io.ReadAll(log)
	const most = 4 << 10
	return "\nits log ends with:\n" + string(text[max(0, len(text)-most):])
}

// Pause freezes the server: it accepts connections and never answers.
func (s *server) Pause(t *testing.T) {
	t.Helper()
	must(t, s.do(t.Context(), func(engine *testcontainers.DockerClient, id string) error {
		_, err := engine.ContainerPause(t.Context(), id, client.ContainerPauseOptions{})
		return err
	}))
}

// Unpause lets a paused server go on.
func (s *server) Unpause(t *testing.T) {
	t.Helper()
	must(t, s.do(t.Context(), func(engine *testcontainers.DockerClient, id string) error {
		_, err := engine.ContainerUnpause(t.Context(), id, client.ContainerUnpauseOptions{})
		return err
	}))
}

// Kill ends the server with SIGKILL and returns when it is gone: connections
// are refused from then on.
func (s *server) Kill(t *testing.T) {
	t.Helper()
	must(t, s.kill(t.Context()))
}

// Stop ends the server in an orderly way and returns when it is gone.
func (s *server) Stop(t *testing.T) {
	t.Helper()
	grace := time.Minute
	must(t, s.container.Stop(t.Context(), &grace))
}

// Restart starts a stopped or killed server at its old address, with its data,
// and returns when it is ready.
func (s *server) Restart(t *testing.T) {
	t.Helper()
	must(t, s.container.Start(t.Context()))
}

func (s *server) kill(ctx context.Context) error {
	return s.do(ctx, func(engine *testcontainers.DockerClient, id string) error {
		if _, err := engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			return err
		}
		gone := engine.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case <-gone.Result:
			return nil
		case err := <-gone.Error:
			return err
		}
	})
}

// do calls f with the engine and the container's id.
func (s *server) do(ctx context.Context, f func(engine *testcontainers.DockerClient, id string) error) error {
	engine, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return err
	}
	defer engine.Close()
	return f(engine, s.container.GetContainerID())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// stop makes poll end with the error inside.
type stop struct{ error }

// poll calls f until it succeeds, fails with a stop, or ctx ends; then the last
// failure is part of the error. Other processes are what is waited for, so
// there is nothing better than to ask again.
func poll(ctx context.Context, f func() error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := f()
		var final stop
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return final.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// await fails the test unless f succeeds within the time.
func await(t *testing.T, timeout time.Duration, what string, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := poll(ctx, f); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// shared holds the servers that tests have in common: each is started when it
// is first asked for and stopped at the end of the run. Tests use topics and
// indices of their own, and leave a server as they found it.
var shared struct {
	sync.Mutex
	servers map[string]*server
}

// sharedServer gives the server of that name, starting it if need be.
func sharedServer(t *testing.T, name string, spec serverSpec) *server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if s, running := shared.servers[name]; running {
		return s
	}
	s, err := startServer(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if shared.servers == nil {
		shared.servers = map[string]*server{}
	}
	shared.servers[name] = s
	return s
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	var failed []error
	for _, s := range shared.servers {
		failed = append(failed, testcontainers.TerminateContainer(s.container, testcontainers.StopTimeout(0)))
	}
	return errors.Join(failed...)
}

// ownServer starts a server for one test.
func ownServer(t *testing.T, spec serverSpec) *server {
	t.Helper()
	s, err := startServer(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeServer(t, s) })
	return s
}

func removeServer(t *testing.T, s *server) {
	if err := testcontainers.TerminateContainer(s.container, testcontainers.StopTimeout(0)); err != nil {
		t.Errorf("removing a server: %v", err)
	}
}

// containerFile is a file that anybody in the container may read.
func containerFile(path, text string) testcontainers.ContainerFile {
	return testcontainers.ContainerFile{Reader: strings.NewReader(text), ContainerFilePath: path, FileMode: 0o644}
}

// unique gives a name for a topic, an index or a group that no other test has,
// nor this one when it ran before (-count).
func unique(t *testing.T, prefix string) string {
	t.Helper()
	name := prefix + "-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	if n := repetition(t); n > 0 {
		name += "-" + strconv.Itoa(n)
	}
	return name
}

// repetitions are which one of its runs each test is, and the runs of a name.
var repetitions = struct {
	sync.Mutex
	of   map[*testing.T]int
	runs map[string]int
}{of: map[*testing.T]int{}, runs: map[string]int{}}

// repetition says how often a test of this name ran before.
func repetition(t *testing.T) int {
	repetitions.Lock()
	defer repetitions.Unlock()
	n, known := repetitions.of[t]
	if !known {
		n = repetitions.runs[t.Name()]
		repetitions.of[t] = n
		repetitions.runs[t.Name()]++
	}
	return n
}

// cached opens a data file that make test-integration has fetched, and skips
// the test where it is not there.
func cached(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile("cache/" + name)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("cache/%s is not there: make test-integration fetches it where npm is installed", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(content)
}
