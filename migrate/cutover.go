package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/partition"
)

// VerifyAge is how long a verification holds.
const VerifyAge = 24 * time.Hour

// many is how many customers may be cut over by name without Request.Yes.
const many = 20

// Cut says which customers are read from the new side. Exactly one field is
// set.
type Cut struct {
	Customers []string
	// Percent of all customers, 0 to 100, in steps of 0.01. They are the same for
	// a job whenever it is asked, and a higher percent only adds some.
	Percent *float64
	All     bool
	// Next is the next step of 1, 5, 25, 100 percent, once the step before has
	// baked.
	Next bool
	Bake time.Duration // of Next
}

var schedule = []int{100, 500, 2500, partition.Percent}

// Cutover sends readers of customers to the new side.
func (m *Manager) Cutover(ctx context.Context, r Request, cut Cut) (Result, error) {
	return m.do(ctx, r, "cutover", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Synced, Cutover) {
			return s, nil
		}
		table, err := m.table(ctx, j)
		if err != nil {
			return nil, err
		}
		percent := table.Read.Percent
		switch {
		case cut.Next:
			i := slices.IndexFunc(schedule, func(p int) bool { return p > percent })
			if i < 0 {
				s.refuse("sluice migrate complete --job "+j.Name, "all customers are cut over")
				return s, nil
			}
			percent = schedule[i]
			if j.CutAt != nil && time.Since(*j.CutAt) < cut.Bake {
				s.wait("wait, or name a shorter --bake", "the last step was %s ago and is to bake for %s", time.Since(*j.CutAt).Round(time.Second), cut.Bake)
			}
		case cut.All:
			percent = partition.Percent
		case cut.Percent != nil:
			percent = int(*cut.Percent*100 + 0.5)
			if *cut.Percent < 0 || percent > partition.Percent {
				return nil, fmt.Errorf("--percent %v is not between 0 and 100", *cut.Percent)
			}
		}
		everybody := percent != table.Read.Percent
		if !r.Yes && (everybody && percent > table.Read.Percent && !cut.Next || len(cut.Customers) > many) {
			s.refuse("repeat with --yes", "that is many customers at once")
		}
		if cut.All && len(table.Read.Deny) > 0 {
			s.refuse("cut them over by name, with cutover --customers", "customers are held back by a roll-back: %s", shorten(table.Read.Deny))
		}
		if everybody && percent > table.Read.Percent || len(cut.Customers) > 0 {
			if err := m.checkCut(ctx, s, j, cut.Customers); err != nil {
				return nil, err
			}
		}
		if len(cut.Customers) > 0 {
			s.does("read %s from their index partitions", shorten(cut.Customers))
		} else {
			s.does("read %.2f %% of the customers from their index partitions", float64(percent)/100)
		}
		s.act = func(ctx context.Context) error {
			return m.readFlags(ctx, j, func(read *partition.Read) {
				read.Salt, read.Percent = j.Name, percent
				for _, customer := range cut.Customers {
					key := literal(customer)
					read.Deny = slices.DeleteFunc(read.Deny, func(k string) bool { return k == key })
					if !slices.Contains(read.Allow, key) {
						read.Allow = append(read.Allow, key)
					}
				}
			})
		}
		return s, nil
	})
}

// checkCut refuses what readers should not see yet.
func (m *Manager) checkCut(ctx context.Context, s *step, j *Job, customers []string) error {
	verify := "sluice migrate verify --job " + j.Name
	switch v := j.Verified; {
	case v == nil:
		s.refuse(verify, "nothing has verified the new side yet")
	case v.Stale != "":
		s.refuse(verify, "the last verification (%s) is stale: %s", v.ID, v.Stale)
	case time.Since(v.At) > VerifyAge:
		s.refuse(verify, "the last verification (%s) is from %s, over %s ago", v.ID, v.At.Format(time.RFC3339), VerifyAge)
	default:
		if v.Foreign > 0 {
			s.refuseForeign(j)
		}
		bad := v.Bad
		if len(customers) > 0 && !v.BadMore {
			bad = slices.DeleteFunc(slices.Clone(bad), func(c string) bool { return !slices.Contains(customers, c) })
		}
		if len(bad) > 0 {
			s.refuse(v.repairs(j.Name), "the last verification (%s) found differences: %s", v.ID, shorten(bad))
		}
	}
	if err := m.checkMapping(ctx, s, j); err != nil {
		return err
	}
	if err := m.checkRestored(ctx, s, j); err != nil {
		return err
	}
	dirty, err := m.store.dirty(ctx, j.Name)
	if err != nil {
		return err
	}
	if len(customers) > 0 {
		dirty = slices.DeleteFunc(dirty, func(c string) bool { return !slices.Contains(customers, c) })
	}
	if len(dirty) > 0 {
		s.refuseDirty(j, dirty)
	}
	lag, err := m.Group.Behind(ctx, j.Throttle.Lag)
	if err != nil {
		return err
	}
	if lag.Over {
		s.wait("wait until the consumers have caught up", "the live lag is %s", lag.over(j.Throttle.Lag))
	}
	// It has passed long since: what is left are records that are parked, which
	// count as handled and are not there yet, replays, and new partitions.
	fence, err := m.Group.Fence(ctx, j.Fence.Epoch)
	if err != nil {
		return err
	}
	if !fence.Passed {
		s.wait("wait until they are written (sluice parked list)", "records are not written yet: %s", laggards(fence))
	}
	for _, t := range j.Targets {
		health, err := m.Cluster.Health(ctx, t.Index)
		if err != nil {
			return err
		}
		if health.Status != "green" {
			s.refuse("wait for its copies, or lower its number_of_replicas", "%s is %s", t.Index, health.Status)
			break
		}
	}
	return nil
}

// refuseDirty refuses where one side has refused records.
func (s *step) refuseDirty(j *Job, customers []string) {
	s.refuse(repairOf(customers[0], j.Name), "one side has refused records of %s", shorten(customers))
}

func repairOf(customer, job string) string {
	return "sluice migrate verify --repair --customer " + word(customer) + " --job " + job
}

// refuseForeign refuses where somebody else writes to the legacy index.
func (s *step) refuseForeign(j *Job) {
	s.refuse("stop the other writer of "+j.Source+", then sluice migrate verify --repair --accept foreign --reason TEXT --job "+j.Name,
		"%d documents were written by somebody else since the fence", j.Verified.Foreign)
}

// checkMapping refuses where the legacy index's mapping is not the one that the
// new indices have: they would index its documents otherwise. What was otherwise
// when they were given it, a template's doing, may stay so.
func (m *Manager) checkMapping(ctx context.Context, s *step, j *Job) error {
	definitions, err := m.Cluster.Definitions(ctx, j.Source)
	if err != nil {
		return err
	}
	hash, err := mappingHash(definitions[j.Source].Mappings)
	if err != nil {
		return err
	}
	if hash != j.Mapping {
		s.refuse("sluice migrate resume --apply-mapping --job "+j.Name+", then sluice migrate verify --job "+j.Name, "the mapping of %s has changed", j.Source)
		return nil
	}
	paths, err := m.unlikeTargets(ctx, j, definitions[j.Source].Mappings)
	if err != nil {
		return err
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return slices.Contains(j.Unlike, path) })
	if len(paths) > 0 {
		s.refuse("change it back (PUT /INDEX/_mapping), or make new indices with sluice migrate detach --job "+j.Name,
			"somebody has changed the mapping of new indices, which differs from that of %s in %s", j.Source, shorten(paths))
	}
	return nil
}

// checkRestored refuses readers for an index that still has a setting which only
// the copy needed.
func (m *Manager) checkRestored(ctx context.Context, s *step, j *Job) error {
	wanted := maps.Clone(j.Restore)
	if wanted == nil {
		wanted = map[string]string{}
	}
	wanted["index.blocks.write"] = "" // of the drain
	for _, t := range j.Targets {
		definitions, err := m.Cluster.Definitions(ctx, t.Index)
		if err != nil {
			return err
		}
		made := definitions[t.Index]
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			want, have := wanted[name], made.Setting(name)
			if have == want || name == "index.blocks.write" && have == "false" {
				continue
			}
			value, shown := "null", "unset"
			if want != "" {
				value, shown = strconv.Quote(want), want
			}
			s.refuse(fmt.Sprintf("PUT /%s/_settings {%q: %s}", t.Index, name, value), "%s of %s is %q since the copy, and is to be %s", name, t.Index, have, shown)
		}
	}
	return nil
}

// Rollback sends readers back to the legacy index, which is current until
// complete. It is never refused before. No customers means all.
func (m *Manager) Rollback(ctx context.Context, r Request, customers []string) (Result, error) {
	return m.do(ctx, r, "rollback", func(_ context.Context, j *Job) (*step, error) {
		s := &step{}
		if j.State == Completed || j.State == Dropped {
			s.refuse("move back by a job of its own: sluice migrate plan with the new indices as sources", "job %s is %s: %s has missed records since", j.Name, j.State, j.Source)
			return s, nil
		}
		if !s.needs(j, Cutover, Synced) {
			return s, nil
		}
		if len(customers) == 0 {
			s.does("read every customer from %s", j.Source)
		} else {
			s.does("read %s from %s", shorten(customers), j.Source)
		}
		s.act = func(ctx context.Context) error {
			return m.readFlags(ctx, j, func(read *partition.Read) {
				if len(customers) == 0 {
					*read = partition.Read{Salt: read.Salt}
				}
				for _, customer := range customers {
					key := literal(customer)
					read.Allow = slices.DeleteFunc(read.Allow, func(k string) bool { return k == key })
					if !slices.Contains(read.Deny, key) {
						read.Deny = append(read.Deny, key)
					}
				}
			})
		}
		return s, nil
	})
}

// readFlags changes the read rules, and the job's state with them. A job that
// was ever cut over is noted before any reader can see the change.
func (m *Manager) readFlags(ctx context.Context, j *Job, edit func(*partition.Read)) error {
	if _, err := m.store.move(ctx, j.Name, Cutover, func(j *Job) { j.EverCut = true }, Synced, Cutover); err != nil {
		return err
	}
	table, err := m.reroute(ctx, j, func(t *partition.Table) error {
		edit(&t.Read)
		if !t.Read.AnyNew() {
			t.Read = partition.Read{Salt: t.Read.Salt} // nobody is there to be held back
		}
		return nil
	})
	if err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	_, err = m.store.change(ctx, j.Name, func(j *Job) error {
		if j.State != Cutover {
			return errSame
		}
		if !table.Read.AnyNew() {
			j.State = Synced
		}
		j.CutAt = &now
		switch {
		case !table.Read.AllNew():
			j.FullAt = nil
		case j.FullAt == nil:
			j.FullAt = &now
		}
		return nil
	})
	return err
}

func shorten(names []string) string {
	const most = 5
	words := make([]string, 0, most)
	for _, name := range names[:min(len(names), most)] {
		words = append(words, word(name))
	}
	text := strings.Join(words, ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

// literal is the pattern that matches one customer only.
func literal(customer string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`).Replace(customer)
}
