package scenarios

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// V48: a process that gets half a CPU, on a machine with more, takes one for
// GOMAXPROCS; under load no heartbeat is late, nothing is lost, and when the
// quota is raised GOMAXPROCS follows.
func TestV48_CPUQuota(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skip("a machine with one CPU cannot tell its CPUs from a quota")
	}
	w := newWorld(t, worldOptions{partitions: 6})
	p := w.launch("kafka: {session_timeout: 6s}\nelasticsearch: {request_timeout: 20s}\nprocs: {interval: 100ms}")
	limit := limitCPU(t, p)
	limit(0.5)
	procs := func(want float64) {
		t.Helper()
		w.await(fmt.Sprintf("GOMAXPROCS %v", want), func() error {
			if got := p.metric("go_sched_gomaxprocs_threads"); got != want {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}
	procs(1)
	w.produce(records(1000)...)
	w.awaitDone()
	member, rebalances := w.members(), p.metric("sluice_rebalances_total")
	for range 20 {
		w.produce(records(1000)...)
	}
	w.awaitDone()
	procs(1)
	if now := w.members(); now != member {
		t.Errorf("the group was %s and is %s: heartbeats came late", member, now)
	}
	if n := p.metric("sluice_rebalances_total") - rebalances; n != 0 {
		t.Errorf("%v rebalances", n)
	}
	limit(2)
	procs(2)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.checkFold()
	w.checkLetters(nil)
}

// members are the ids of the group's members; one that was thrown out comes
// back under another.
func (w *world) members() (ids string) {
	for _, m := range w.kafka.GroupInfo(group).Members {
		ids += m.MemberID + " "
	}
	return ids
}

// limitCPU puts the process into a control group of its own, of version 1 or 2,
// and returns what sets how many CPUs it may use. Where this may not be done
// the test is skipped.
func limitCPU(t *testing.T, p *process) (set func(cpus float64)) {
	t.Helper()
	const root, period = "/sys/fs/cgroup", 100_000 // microseconds
	parent, file, format := filepath.Join(root, "cpu"), "cpu.cfs_quota_us", "%d"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		parent, file, format = root, "cpu.max", "%d "+strconv.Itoa(period)
	}
	dir, err := os.MkdirTemp(parent, "sluice-test-")
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, file))
		t.Cleanup(func() {
			_ = p.cmd.Process.Kill() // it may be gone
			<-p.exited
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Skipf("no control group can be made here: %v", err)
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cgroup.procs", strconv.Itoa(p.cmd.Process.Pid))
	return func(cpus float64) {
		t.Helper()
		write(file, fmt.Sprintf(format, int(cpus*period)))
	}
}
