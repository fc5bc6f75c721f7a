package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/partition"
)

// Request is what every verb has in common.
type Request struct {
	Job    string
	Actor  string // who asks
	Reason string // why
	DryRun bool   // say what would be done or refused, and change nothing
	Yes    bool   // of verbs that ask for it
	Args   string // the verb's own arguments, for the audit log
}

// Result is what a verb did, or would do.
type Result struct {
	Job      string    `json:"job"`
	Verb     string    `json:"verb"`
	From     State     `json:"from,omitempty"`
	To       State     `json:"to,omitempty"`
	Epoch    int64     `json:"epoch,omitempty"`
	DryRun   bool      `json:"dry_run,omitempty"`
	Actions  []string  `json:"actions,omitempty"`
	Refusals []Refusal `json:"refusals,omitempty"`
	Later    bool      `json:"later,omitempty"` // all of them pass by themselves
}

// step is a verb made ready: what it would do, why it may not, and how.
type step struct {
	actions  []string
	refusals []Refusal
	passing  int // how many of the refusals pass by themselves
	act      func(context.Context) error
}

func (s *step) does(format string, args ...any) {
	s.actions = append(s.actions, fmt.Sprintf(format, args...))
}

func (s *step) refuse(remedy, format string, args ...any) {
	s.refusals = append(s.refusals, Refusal{fmt.Sprintf(format, args...), remedy})
}

// wait refuses for a reason that passes by itself.
func (s *step) wait(remedy, format string, args ...any) {
	s.passing++
	s.refuse(remedy, format, args...)
}

// needs refuses a verb in any other state.
func (s *step) needs(j *Job, states ...State) bool {
	if slices.Contains(states, j.State) {
		return true
	}
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	s.refuse(j.next(), "job %s is %s, and this needs %s", j.Name, j.State, strings.Join(names, " or "))
	return false
}

// next is the command that leads on from a state.
func (j *Job) next() string {
	verb := map[State]string{
		Planned: "create --plan FILE", Created: "dual-write", Dual: "backfill", Backfilling: "backfill", Draining: "backfill", Sweeping: "backfill",
		Synced: "cutover --next", Cutover: "cutover --next", Completed: "drop --confirm " + j.Source,
		Cancelling: "cancel", Detaching: "detach",
	}[j.State]
	switch {
	case j.State == Planned && j.Round > 1:
		verb = "detach"
	case j.State == Synced && j.Verified == nil:
		verb = "verify"
	case j.State == Cutover && j.FullAt != nil:
		verb = "complete"
	case verb == "":
		return "it has come to its end: plan another one (sluice migrate plan)"
	}
	return "sluice migrate " + verb + " --job " + j.Name
}

// do prepares a verb, refuses it or carries it out, and keeps a record of either.
func (m *Manager) do(ctx context.Context, r Request, verb string, prepare func(context.Context, *Job) (*step, error)) (Result, error) {
	result := Result{Job: r.Job, Verb: verb, DryRun: r.DryRun}
	job, err := m.store.load(ctx, r.Job)
	if err != nil {
		return result, err
	}
	result.From = job.State
	s, err := prepare(ctx, job)
	if err != nil {
		return result, err
	}
	result.Actions, result.Refusals = s.actions, s.refusals
	result.Later = len(s.refusals) > 0 && s.passing == len(s.refusals)
	if r.DryRun {
		return result, nil
	}
	if len(s.refusals) > 0 {
		err = &RefusedError{verb, s.refusals, result.Later}
	} else {
		err = s.act(ctx)
	}
	return m.finish(ctx, r, result, err)
}

// finish writes the audit log.
func (m *Manager) finish(ctx context.Context, r Request, result Result, err error) (Result, error) {
	told := "done"
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		told = err.Error()
	case err != nil:
		told = "failed: " + err.Error()
	}
	// Also where the caller has gone meanwhile: what was done must be told.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	if job, errLoad := m.store.load(ctx, r.Job); errLoad == nil {
		result.To = job.State
		if result.From == "" {
			result.From = job.State
		}
	} else {
		err = errors.Join(err, errLoad)
	}
	if table, errTable := m.Tables.Load(ctx, m.Stream); errTable == nil {
		result.Epoch = table.Epoch
	}
	return result, errors.Join(err, m.store.record(ctx, r.Job, Event{
		Time: time.Now().UTC().Truncate(time.Millisecond), Actor: r.Actor, Verb: result.Verb, Args: r.Args, Reason: r.Reason,
		From: result.From, To: result.To, Epoch: result.Epoch, Result: told,
	}))
}

// checkVersions refuses what dual writing would refuse long after it was planned.
func (m *Manager) checkVersions(s *step) {
	if m.Versions.Problem != "" {
		s.refuse("change the configuration, restart the consumers, then repeat", "%s", m.Versions.Problem)
	}
}

// DualWrite publishes W1: from the fence on, live records go to both sides. It
// does not wait for the fence.
func (m *Manager) DualWrite(ctx context.Context, r Request) (Result, error) {
	return m.do(ctx, r, "dual-write", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if j.State == Dual {
			s.does("nothing: it writes to both sides already")
			s.act = func(context.Context) error { return nil }
			return s, nil
		}
		if !s.needs(j, Created) {
			return s, nil
		}
		table, err := m.table(ctx, j)
		if err != nil {
			return nil, err
		}
		m.checkVersions(s)
		members, err := m.Group.Members(ctx)
		if err != nil {
			return nil, err
		}
		if members == 0 {
			s.refuse("start sluice run", "the group has no members: nobody would write")
		}
		// The proof needs an empty new side; a late write must not have soiled it.
		if table.Write == partition.W0 {
			for _, t := range j.Targets {
				n, err := m.Cluster.Count(ctx, t.Index, nil)
				if err != nil {
					return nil, err
				}
				if n > 0 {
					s.refuse("sluice migrate detach --job "+j.Name+" makes new ones", "%s holds %d documents and must be empty", t.Index, n)
				}
			}
		}
		s.does("routing table of stream %s: W1, epoch %d", m.Stream, table.Epoch+1)
		s.act = func(ctx context.Context) error {
			table, err := m.reroute(ctx, j, func(t *partition.Table) error {
				if t.Write == partition.W1 {
					return errSame
				}
				t.Write = partition.W1
				return nil
			})
			if err != nil {
				return err
			}
			_, err = m.store.move(ctx, j.Name, Dual, func(j *Job) { j.Fence = Fence{Epoch: table.Epoch} }, Created, Dual)
			return err
		}
		return s, nil
	})
}

// Backfill refuses where the fence has not passed, and else works on the job up
// to SYNCED. waive names failed documents that may be missing; * is all.
func (m *Manager) Backfill(ctx context.Context, r Request, waive []string, told func(string)) (Result, error) {
	return m.do(ctx, r, "backfill", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Dual, Backfilling, Draining, Sweeping) {
			return s, nil
		}
		if j.State == Dual {
			fence, err := m.Group.Fence(ctx, j.Fence.Epoch)
			if err != nil {
				return nil, err
			}
			if !fence.Passed {
				s.wait("wait until every replica of sluice run has seen the table (sluice migrate status), then repeat; run waits by itself",
					"the fence of epoch %d has not passed: %s", j.Fence.Epoch, laggards(fence))
			}
			if err := m.checkRoom(ctx, s, j); err != nil {
				return nil, err
			}
		}
		s.does("copy what %s holds from before the fence into %d indices, then drain and sweep", j.Source, len(j.Targets))
		s.act = func(ctx context.Context) error {
			if len(waive) > 0 {
				if _, err := m.store.change(ctx, j.Name, func(j *Job) error {
					j.Waived = append(j.Waived, waive...)
					return nil
				}); err != nil {
					return err
				}
			}
			return m.Work(ctx, j.Name, told)
		}
		return s, nil
	})
}

// Run is Backfill that waits for the fence by itself.
func (m *Manager) Run(ctx context.Context, r Request, told func(string)) (Result, error) {
	return m.do(ctx, r, "run", func(_ context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Dual, Backfilling, Draining, Sweeping) {
			return s, nil
		}
		s.does("wait for the fence, copy what %s holds from before it into %d indices, then drain and sweep", j.Source, len(j.Targets))
		s.act = func(ctx context.Context) error { return m.Work(ctx, j.Name, told) }
		return s, nil
	})
}

// checkRoom refuses a copy that the cluster has no room or no health for.
func (m *Manager) checkRoom(ctx context.Context, s *step, j *Job) error {
	health, err := m.Cluster.Health(ctx, append(j.indices(), j.Source)...)
	if err != nil {
		return err
	}
	if health.Status == "red" {
		s.refuse("make its shards available", "%s or one of the new indices is red", j.Source)
	}
	stats, err := m.Cluster.IndexStats(ctx, j.Source)
	if err != nil {
		return err
	}
	replicas := 0
	for _, t := range j.Targets {
		replicas = max(replicas, t.Replicas)
	}
	need := stats.Bytes * int64(1+replicas) * 6 / 5
	return m.checkDisk(ctx, s, need)
}

// checkDisk refuses where so many bytes more would take the disks over the low
// watermark.
func (m *Manager) checkDisk(ctx context.Context, s *step, need int64) error {
	nodes, err := m.Cluster.Nodes(ctx)
	if err != nil {
		return err
	}
	mark, err := m.lowWatermark(ctx)
	if err != nil {
		return err
	}
	room := int64(0)
	for _, n := range nodes {
		room += max(0, n.DiskFree-mark.keep(n.DiskTotal))
	}
	if need > room {
		s.refuse("add disks or nodes, or plan fewer replicas", "the copy needs about %s and the data nodes have %s below the low watermark", size(need), size(room))
	}
	return nil
}

// lowWatermark is how full the disks of data nodes may become before the cluster
// puts no more shards there.
func (m *Manager) lowWatermark(ctx context.Context) (diskMark, error) {
	return m.diskMark(ctx, "low", 85)
}

func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// Pause stops the copy at the end of the pages under way. It has no time limit.
func (m *Manager) Pause(ctx context.Context, r Request) (Result, error) {
	return m.flag(ctx, r, "pause", nil, func(j *Job) error {
		why := "by " + r.Actor
		if r.Reason != "" {
			why += ": " + r.Reason
		}
		j.Paused = why
		return nil
	})
}

// Resume ends a pause. With applyMapping changes of the source's mapping are
// made on the new indices too, from now on.
func (m *Manager) Resume(ctx context.Context, r Request, applyMapping bool) (Result, error) {
	var before func(context.Context, *Job) error
	if applyMapping {
		before = m.applyMapping
	}
	return m.flag(ctx, r, "resume", before, func(j *Job) error {
		j.Paused, j.ApplyMapping = "", j.ApplyMapping || applyMapping
		return nil
	})
}

// SetLimits changes limits of the throttle, by name.
func (m *Manager) SetLimits(ctx context.Context, r Request, set map[string]string) (Result, error) {
	return m.flag(ctx, r, "throttle", nil, func(j *Job) error {
		for name, value := range set {
			if err := j.Throttle.Set(name, value); err != nil {
				return err
			}
		}
		return nil
	})
}

// flag changes something of a job that its state does not hang on, after what is
// to be done before (nil: nothing).
func (m *Manager) flag(ctx context.Context, r Request, verb string, before func(context.Context, *Job) error, edit func(*Job) error) (Result, error) {
	return m.do(ctx, r, verb, func(_ context.Context, j *Job) (*step, error) {
		s := &step{}
		if j.Over() {
			s.refuse(j.next(), "job %s is %s", j.Name, j.State)
			return s, nil
		}
		trial := *j
		if err := edit(&trial); err != nil {
			return nil, err
		}
		s.does("job %s: %s %s", j.Name, verb, r.Args)
		s.act = func(ctx context.Context) error {
			if before != nil {
				if err := before(ctx, j); err != nil {
					return err
				}
			}
			_, err := m.store.change(ctx, j.Name, edit)
			return err
		}
		return s, nil
	})
}
