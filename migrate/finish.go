package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// Complete makes the new side the only one: it waits until no reader can use
// the legacy index any more, publishes W3, waits for its fence and blocks writes
// to the legacy index. minBake is how long all customers must have been cut over,
// keep how long the legacy index is kept at least.
func (m *Manager) Complete(ctx context.Context, r Request, minBake, keep time.Duration) (Result, error) {
	return m.do(ctx, r, "complete", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Cutover) {
			return s, nil
		}
		table, err := m.table(ctx, j)
		if err != nil {
			return nil, err
		}
		if table.Write != partition.W3 { // else an earlier try was stopped after the point of no return
			switch {
			case !table.Read.AllNew() || j.FullAt == nil:
				s.refuse("sluice migrate cutover --all --job "+j.Name, "not every customer is read from the new side")
			case time.Since(*j.FullAt) < minBake:
				s.wait("wait, or name a shorter --min-bake", "all customers are cut over since %s only, not for %s", time.Since(*j.FullAt).Round(time.Second), minBake)
			case j.Verified == nil || j.Verified.Stale != "" || len(j.Verified.Bad) > 0 || j.Verified.At.Before(*j.FullAt):
				s.refuse("sluice migrate verify --job "+j.Name, "no clean verification since all customers are cut over")
			case j.Verified.Foreign > 0:
				s.refuseForeign(j)
			}
			// What one side has refused since is on the other only.
			dirty, err := m.store.dirty(ctx, j.Name)
			if err != nil {
				return nil, err
			}
			if len(dirty) > 0 {
				s.refuseDirty(j, dirty)
			}
			if err := m.checkMapping(ctx, s, j); err != nil {
				return nil, err
			}
			if !r.Yes {
				s.refuse("repeat with --yes", "there is no way back by a flag from here: %s will miss records", j.Source)
			}
		}
		s.does("wait %s for readers of older routing tables, write to the new side only, block writes to %s", m.MaxStaleness+time.Second, j.Source)
		s.act = func(ctx context.Context) error { return m.complete(ctx, j, keep) }
		return s, nil
	})
}

func (m *Manager) complete(ctx context.Context, j *Job, keep time.Duration) error {
	read, err := m.table(ctx, j)
	if err != nil {
		return err
	}
	table := read.Table
	if table.Write != partition.W3 {
		if err := m.awaitReaders(ctx); err != nil {
			return err
		}
		// From the very table that was waited for: a roll-back meanwhile wins.
		next, err := m.next(read, func(t *partition.Table) error {
			t.Write = partition.W3
			return nil
		})
		if err != nil {
			return err
		}
		if err := m.Tables.Update(ctx, read, next); err != nil {
			return err
		}
		table = next
	}
	fence, err := m.awaitFence(ctx, table.Epoch, nil)
	if err != nil {
		return err
	}
	if err := m.Cluster.BlockWrites(ctx, j.Source); err != nil {
		return err
	}
	var all []elastic.AliasAction
	for _, t := range j.Targets {
		all = append(all, elastic.AliasAction{Index: t.Index, Alias: j.Prefix + "-all", Filter: alive()})
	}
	if err := m.Cluster.UpdateAliases(ctx, all); err != nil {
		return err
	}
	done := Done{At: time.Now().UTC().Truncate(time.Millisecond)}
	done.KeptUntil = done.At.Add(keep)
	if j.Verified != nil {
		done.LastVerify = j.Verified.ID
	}
	if err := m.Cluster.Refresh(ctx, j.Source); err != nil {
		return err
	}
	for _, t := range j.Targets {
		if err := m.Cluster.Refresh(ctx, t.Index); err != nil {
			return err
		}
		n, err := m.Cluster.Count(ctx, t.Index, alive())
		if err != nil {
			return err
		}
		done.TargetDocs += n
	}
	if done.SourceDocs, err = m.Cluster.Count(ctx, j.Source, alive()); err != nil {
		return err
	}
	stats, err := m.Cluster.IndexStats(ctx, j.Source)
	if err != nil {
		return err
	}
	done.Searches, done.SourceBytes = stats.Searches, stats.Bytes
	if err := m.store.forget(ctx, j.Name, verifyPrefix, dirtyPrefix); err != nil {
		return err
	}
	if _, err = m.store.move(ctx, j.Name, Completed, func(j *Job) { j.Fence, j.Done = fence, &done }, Cutover); err != nil {
		return err
	}
	// Once more: a verification that has not seen the end yet has gone on.
	return m.store.forget(ctx, j.Name, verifyPrefix)
}

// Drop deletes the legacy index. confirm is its name, typed by the operator;
// searched accepts that it has been searched since the job was completed.
func (m *Manager) Drop(ctx context.Context, r Request, confirm string, searched bool) (Result, error) {
	return m.do(ctx, r, "drop", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Completed) {
			return s, nil
		}
		if confirm != j.Source {
			s.refuse("repeat with --confirm "+word(j.Source), "%q is not the name of the legacy index", confirm)
		}
		if until := j.Done.KeptUntil; time.Now().Before(until) {
			s.wait("wait until then", "%s is kept until %s", j.Source, until.Format(time.RFC3339))
		}
		definitions, err := m.Cluster.Definitions(ctx, j.Source)
		if err != nil {
			return nil, err
		}
		if source, there := definitions[j.Source]; there {
			for alias := range source.Aliases {
				s.refuse("take the alias off it, or point it to "+j.Prefix+"-all", "the alias %s still leads to it", alias)
			}
			stats, err := m.Cluster.IndexStats(ctx, j.Source)
			if err != nil {
				return nil, err
			}
			if n := stats.Searches - j.Done.Searches; n > 0 && !searched {
				s.refuse("find who reads it; where that is of no matter, repeat with --searched", "%s has answered %d searches (counted by shard) since the job was completed", j.Source, n)
			}
		}
		s.does("delete %s with %d documents", j.Source, j.Done.SourceDocs)
		s.act = func(ctx context.Context) error {
			// The table lets go of the index first, and of the job with it: a drop that
			// was interrupted after it goes on without.
			table, err := m.Tables.Load(ctx, m.Stream)
			if err != nil {
				return err
			}
			if table.Job == j.Name {
				if _, err := m.reroute(ctx, j, func(t *partition.Table) error {
					t.Job = ""
					if t.Legacy != nil {
						t.Legacy.State = partition.Retired
					}
					return nil
				}); err != nil {
					return err
				}
			}
			if err := m.Cluster.DeleteIndex(ctx, j.Source); err != nil {
				return err
			}
			// Whatever was still on its way when the job was completed.
			if err := m.store.forget(ctx, j.Name, verifyPrefix, dirtyPrefix, failedPrefix, itemPrefix); err != nil {
				return err
			}
			_, err = m.store.move(ctx, j.Name, Dropped, nil, Completed)
			return err
		}
		return s, nil
	})
}

// Cancel ends a job before its cut-over: live records go to the legacy index
// only, then the new indices are deleted. The legacy index is not touched, the
// audit log stays.
func (m *Manager) Cancel(ctx context.Context, r Request, told func(string)) (Result, error) {
	return m.do(ctx, r, "cancel", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Planned, Created, Dual, Backfilling, Draining, Sweeping, Synced, Cancelling, Detaching) {
			s.refusals[0].Remedy = "roll back first: sluice migrate rollback --all --job " + j.Name
			if j.State != Cutover {
				s.refusals[0].Remedy = j.next()
			}
			return s, nil
		}
		s.does("write to %s only, wait for the fence, delete %s", j.Source, shorten(j.indices()))
		s.act = func(ctx context.Context) error {
			if _, err := m.store.move(ctx, j.Name, Cancelling, nil, j.State, Cancelling); err != nil {
				return err
			}
			if err := m.takeBack(ctx, j, true, told); err != nil {
				return err
			}
			if err := m.store.forget(ctx, j.Name, verifyPrefix, dirtyPrefix, failedPrefix, itemPrefix); err != nil {
				return err
			}
			_, err := m.store.move(ctx, j.Name, Cancelled, func(j *Job) { j.Backfill = Backfill{} }, Cancelling)
			return err
		}
		return s, nil
	})
}

// Detach takes the new side out, as Cancel does, and makes it anew under other
// names: the job is CREATED again. It is the way out of a new side that cannot
// take its records.
func (m *Manager) Detach(ctx context.Context, r Request, told func(string)) (Result, error) {
	return m.do(ctx, r, "detach", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if (j.State != Planned || j.Round == 1) && !s.needs(j, Created, Dual, Backfilling, Draining, Sweeping, Synced, Detaching) {
			if j.State == Cutover {
				s.refusals[0].Remedy = "roll back first: sluice migrate rollback --all --job " + j.Name
			}
			return s, nil
		}
		s.does("write to %s only, wait for the fence, delete %s and make new ones", j.Source, shorten(j.indices()))
		s.act = func(ctx context.Context) error {
			if j.State != Planned {
				if _, err := m.store.move(ctx, j.Name, Detaching, nil, j.State, Detaching); err != nil {
					return err
				}
				if err := m.takeBack(ctx, j, false, told); err != nil {
					return err
				}
				// What was found out about the former new side says nothing of the next.
				if err := m.store.forget(ctx, j.Name, verifyPrefix, dirtyPrefix, failedPrefix, itemPrefix); err != nil {
					return err
				}
				if _, err := m.store.move(ctx, j.Name, Planned, (*Job).again, Detaching); err != nil {
					return err
				}
			}
			return m.build(ctx, j.Name)
		}
		return s, nil
	})
}

// takeBack makes W0 of the routing table, waits until nobody writes to the new
// side, nor reads from it, and deletes the indices that carry the job's name.
func (m *Manager) takeBack(ctx context.Context, j *Job, forGood bool, told func(string)) error {
	read, err := m.Tables.Load(ctx, m.Stream)
	if errors.Is(err, partition.ErrNotFound) || err == nil && read.Job != j.Name {
		// The job never reached the table, or has let go of it already.
		return m.deleteTargets(ctx, j)
	}
	if err != nil {
		return err
	}
	table, err := m.reroute(ctx, j, func(t *partition.Table) error {
		if t.Write == partition.W0 && len(t.SlotMap) == 0 {
			return errSame
		}
		t.Detach()
		t.Read = partition.Read{}
		return nil
	})
	if err != nil {
		return err
	}
	// A runner that died in its drain has left a write block, which would hold live
	// records up until the fence; a late copy does no harm to what is deleted.
	if err := m.unblock(ctx, j); err != nil {
		return err
	}
	// Live records that are held for one of the new indices are written to the
	// legacy index only from here on, so the fence passes.
	epoch := table.Epoch
	if mutantUnfencedCancel {
		epoch = 0
	}
	if _, err := m.awaitFence(ctx, epoch, func(f Fence) {
		if told != nil {
			told(fmt.Sprintf("the fence of epoch %d waits for %s", f.Epoch, laggards(f)))
		}
	}); err != nil {
		return err
	}
	if j.EverCut {
		if err := m.awaitReaders(ctx); err != nil {
			return err
		}
	}
	if err := m.deleteTargets(ctx, j); err != nil {
		return err
	}
	_, err = m.reroute(ctx, j, func(t *partition.Table) error {
		if len(t.Partitions) == 0 && !forGood {
			return errSame
		}
		t.Partitions = nil // their indices are gone, and no later one has their names
		if forGood {
			t.Job = ""
		}
		return nil
	})
	return err
}

// unblock takes the write blocks off the job's indices.
func (m *Manager) unblock(ctx context.Context, j *Job) error {
	for _, t := range j.Targets {
		definitions, err := m.Cluster.Definitions(ctx, t.Index)
		if err != nil {
			return err
		}
		if definition := definitions[t.Index]; definition.Setting("index.blocks.write") != "true" {
			continue
		}
		if err := m.Cluster.PutSettings(ctx, t.Index, map[string]any{"index.blocks.write": nil}); err != nil {
			return err
		}
	}
	return nil
}

// deleteTargets deletes the job's indices, and nothing that does not carry its
// name. The template stays: a late delete would make an index anew.
func (m *Manager) deleteTargets(ctx context.Context, j *Job) error {
	for _, t := range j.Targets {
		definitions, err := m.Cluster.Definitions(ctx, t.Index)
		if err != nil {
			return err
		}
		definition, there := definitions[t.Index]
		if !there {
			continue
		}
		if owner, err := ownerOf(definition); err != nil || owner != j.Name {
			return fmt.Errorf("%s does not carry the name of job %s in its _meta but %q: nothing was deleted; look at who made it", t.Index, j.Name, owner)
		}
		if err := m.Cluster.DeleteIndex(ctx, t.Index); err != nil {
			return err
		}
	}
	return nil
}
