package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// runner moves one job on, while it holds the job's lease.
type runner struct {
	m     *Manager
	lease *lease
	tell  func(format string, args ...any)
	// changed hears of progress that status should show before the lease is renewed.
	changed chan struct{}

	mu struct {
		sync.Mutex
		progress Progress
	}
}

// Work holds the job's lease and moves it from DUAL to SYNCED, through backfill,
// drain and sweep. Several may be started: one works, the others stand by and
// take over if it falls silent. told hears what is being waited for.
func (m *Manager) Work(ctx context.Context, name string, told func(string)) error {
	job, err := m.store.load(ctx, name)
	if err != nil {
		return err
	}
	if !working(job.State) {
		return nil
	}
	tell := func(format string, args ...any) {
		if told != nil {
			told(fmt.Sprintf(format, args...))
		}
	}
	l, err := acquire(ctx, m.store, name, m.Owner, m.Period, func(owner string) {
		tell("job %s is worked on by %s; standing by", name, owner)
	})
	if err != nil {
		return err
	}
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &runner{m: m, lease: l, tell: tell, changed: make(chan struct{}, 1)}
	kept := make(chan struct{})
	go func() { // ends with work
		defer close(kept)
		l.keep(work, r.snapshot, r.changed, stop)
	}()
	err = r.run(work, name)
	if work.Err() != nil {
		err = context.Cause(work)
	}
	stop(nil)
	<-kept
	if !errors.Is(err, errLeaseLost) {
		free, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		l.release(free)
	}
	return err
}

// working says whether a runner has something to do in a state.
func working(s State) bool {
	return s == Dual || s == Backfilling || s == Draining || s == Sweeping
}

func (r *runner) run(ctx context.Context, name string) error {
	steps := map[State]func(context.Context, *Job) error{
		Dual: r.begin, Backfilling: r.copy, Draining: r.drain, Sweeping: r.sweep,
	}
	for wait := time.Second; ; {
		job, err := r.m.store.load(ctx, name)
		if err == nil {
			step := steps[job.State]
			if step == nil {
				return nil
			}
			r.tell("job %s: %s", name, job.State)
			err = step(ctx, job)
		}
		switch {
		case err == nil, errors.Is(err, errAgain):
			wait = time.Second
			continue
		case ctx.Err() != nil || !passing(err):
			return err
		}
		// Each step looks at what is true now, so it is simply repeated.
		r.m.Log.Warn().Err(err).Str("job", name).Msg("trying again")
		r.tell("trying again: %v", err)
		r.report(Progress{Reason: err.Error(), Class: "trouble"}, false)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 30*time.Second)
	}
}

// stuck is an error that no repetition helps against, and says what would.
type stuck struct{ error }

func (s stuck) Unwrap() error { return s.error }

func stuckf(remedy, format string, args ...any) error {
	return stuck{fmt.Errorf("%w: %s", fmt.Errorf(format, args...), remedy)}
}

// passing says whether an error of a step may pass by itself: what the cluster
// or the brokers did not answer, or have no room for now.
func passing(err error) bool {
	var s stuck
	var refused *RefusedError
	var moved *MovedError
	var conflict *partition.ConflictError
	var change *partition.RefusedError
	switch {
	case errors.As(err, &s), errors.As(err, &refused), errors.As(err, &moved), errors.As(err, &change), fatal(err), errors.Is(err, ErrNoJob):
		return false
	case errors.As(err, &conflict):
		return true // the step decides anew
	}
	var answer *elastic.Error
	return !errors.As(err, &answer) || passes(answer.Status)
}

// bound says how long a write may take, so that none is on its way when another
// runner may have the lease.
func (r *runner) bound() (time.Duration, error) {
	left := r.lease.left()
	if left <= 0 {
		return 0, errLeaseLost
	}
	return left, nil
}

func (r *runner) report(p Progress, rated bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.mu.progress
	if !rated {
		p.Rate = before.Rate
	}
	r.mu.progress = p
	if rated || p.Concurrency != before.Concurrency || p.Max != before.Max || p.Class != before.Class {
		select {
		case r.changed <- struct{}{}:
		default: // it will be told
		}
	}
}

func (r *runner) snapshot() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.progress
}

// dropAliases returns what takes the backfill aliases of every lease away.
func (m *Manager) dropAliases(ctx context.Context, j *Job) ([]elastic.AliasAction, error) {
	var actions []elastic.AliasAction
	for _, t := range j.Targets {
		definitions, err := m.Cluster.Definitions(ctx, t.Index)
		if err != nil {
			return nil, err
		}
		for alias := range definitions[t.Index].Aliases {
			if strings.HasPrefix(alias, backfillAlias(t.Index)) {
				actions = append(actions, elastic.AliasAction{Index: t.Index, Alias: alias, Remove: true})
			}
		}
	}
	return actions, nil
}

// drain shuts every copy out: without its alias a stalled runner writes nothing
// more, and the write block waits for what is inside the index already. Live
// writes wait for a moment.
func (r *runner) drain(ctx context.Context, j *Job) error {
	actions, err := r.m.dropAliases(ctx, j)
	if err != nil {
		return err
	}
	if mutantOpenDrain {
		actions = nil
	}
	if err := r.m.Cluster.UpdateAliases(ctx, actions); err != nil {
		return err
	}
	for _, t := range j.Targets {
		if mutantNoPulse {
			break
		}
		if err := r.m.pulse(ctx, t.Index); err != nil {
			return err
		}
	}
	_, err = r.m.store.move(ctx, j.Name, Sweeping, nil, Draining)
	return err
}

// pulse puts a write block on an index and takes it away again.
func (m *Manager) pulse(ctx context.Context, index string) error {
	err := m.Cluster.BlockWrites(ctx, index)
	// Whatever became of the block, it must not stay.
	open, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(err, m.Cluster.PutSettings(open, index, map[string]any{"index.blocks.write": nil}))
}

// sweep makes deletes real again, waits until every consumer does so, and then
// removes the tombstone documents, each at its own version: what is newer stays.
func (r *runner) sweep(ctx context.Context, j *Job) error {
	if mutantEarlyPurge {
		if err := r.purgeAll(ctx, j); err != nil {
			return err
		}
	}
	table, err := r.m.reroute(ctx, j, func(t *partition.Table) error {
		if t.Write != partition.W1 {
			return errSame
		}
		t.Write = partition.W2
		return nil
	})
	if err != nil {
		return err
	}
	if table.Write != partition.W2 {
		return stuckf("begin anew: sluice migrate detach --job "+j.Name, "the routing table of stream %s is in %s and a sweep needs W2", r.m.Stream, table.Write)
	}
	epoch := table.Epoch
	if mutantUnfencedPurge {
		epoch = 0
	}
	fence, err := r.m.awaitFence(ctx, epoch, func(f Fence) {
		r.tell("the fence of epoch %d waits for %s", f.Epoch, laggards(f))
	})
	if err != nil {
		return err
	}
	if !mutantEarlyPurge {
		if err := r.purgeAll(ctx, j); err != nil {
			return err
		}
	}
	restore := map[string]any{}
	for name, value := range j.Restore {
		restore[name] = value
		if value == "" {
			restore[name] = nil
		}
	}
	if len(restore) > 0 {
		for _, t := range j.Targets {
			if err := r.m.Cluster.PutSettings(ctx, t.Index, restore); err != nil {
				return err
			}
		}
	}
	_, err = r.m.store.move(ctx, j.Name, Synced, func(j *Job) { j.Fence = fence }, Sweeping)
	return err
}

const sweepPage = 1000

// purgeAll removes the tombstone documents of the new side, unless they are to
// stay.
func (r *runner) purgeAll(ctx context.Context, j *Job) error {
	if r.m.Tombstones {
		return nil
	}
	for _, t := range j.Targets {
		if err := r.purge(ctx, t.Index); err != nil {
			return err
		}
	}
	return nil
}

// purge removes the tombstone documents of an index, until a search finds none.
func (r *runner) purge(ctx context.Context, index string) error {
	s := &sender{client: r.m.Cluster, bounds: r.bound, query: deleting()}
	for {
		if err := r.m.Cluster.Refresh(ctx, index); err != nil {
			return err
		}
		page, err := r.m.Cluster.Search(ctx, index, map[string]any{
			"size": sweepPage, "version": true, "_source": false, "track_total_hits": true, "query": tombstones(),
		})
		if err != nil {
			return err
		}
		if len(page.Hits) == 0 {
			return nil
		}
		r.tell("%s: %d tombstones to remove", index, page.Total)
		actions := make([]bulk.Action, len(page.Hits))
		for i, hit := range page.Hits {
			actions[i] = bulk.Action{
				Op: bulk.Delete, VersionType: bulk.ExternalGTE, Version: hit.Version, Target: index, ID: []byte(hit.ID), Routing: []byte(hit.Routing),
			}
			if mutantPurgeBumps {
				actions[i].Version++
			}
		}
		ends, err := s.send(ctx, actions, 1<<20)
		if err != nil {
			return err
		}
		for i, end := range ends {
			if end.ending == failed {
				return stuckf("delete it by hand at its version, or begin anew with sluice migrate detach", "a tombstone in %s cannot be deleted: %d %s (document %q)", index, end.status, end.kind, page.Hits[i].ID)
			}
		}
	}
}
