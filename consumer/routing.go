package consumer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Routing is the routing table of the stream (DESIGN 8) as this process follows
// it. Two tables are told apart: the newest that is known, and the one in force,
// by which Rules.Map routes. Epochs begin at 1 and never go down.
type Routing interface {
	// Refresh reads the table in real time and returns the epoch of the newest
	// one that is known then. An error says that it cannot be read, or that what
	// is stored is no table.
	Refresh(ctx context.Context) (epoch int64, err error)
	// Wait returns once a table with an epoch above after is known. It ends with
	// ctx, whose error it returns then.
	Wait(ctx context.Context, after int64) error
	// Adopt puts the newest known table into force and returns its epoch, 0
	// where none was read yet. It is called while nothing is being mapped.
	Adopt() (epoch int64)
}

// Dirty notes customers whose two sides differ, since one has rejected a record
// for good: a cut-over of them is refused until that is repaired.
type Dirty interface {
	// MarkDirty returns nil once the mark of a customer is stored durably. It is
	// called again after an error, and again for a customer that is marked: the
	// mark may have been taken away by a repair.
	MarkDirty(ctx context.Context, customer string) error
}

// adoptTimeout is how long requests on the wire are waited for where Options say
// nothing, before a table is adopted, or records are parked.
const adoptTimeout = 20 * time.Second

func (c *Consumer) adoptTimeout() time.Duration { return cmp.Or(c.o.AdoptTimeout, adoptTimeout) }

// catchUp reads the routing table in real time, puts it into force, and sees to
// it that it is not older than what the group has committed, in any partition:
// somebody has written by that one, and a fence may have passed.
func (c *Consumer) catchUp(ctx context.Context) error {
	if c.o.Routing == nil {
		return nil
	}
	epoch, err := c.o.Routing.Refresh(ctx)
	if err != nil {
		return fmt.Errorf("consumer: the routing table: %w", err)
	}
	highest, err := HighestEpoch(ctx, c.adm, c.cfg.GroupID)
	if err != nil {
		return err
	}
	if epoch < highest && !mutantStale || epoch == 0 {
		return &StaleRoutingError{Epoch: epoch, Committed: highest}
	}
	return c.adopt(ctx, epoch)
}

// StaleRoutingError says that the routing table is older than the group's
// commits: it was restored from a copy, or it is another one.
type StaleRoutingError struct {
	Epoch     int64 // of the table; 0: there is none
	Committed int64 // the highest that a commit of the group names
}

func (e *StaleRoutingError) Error() string {
	if e.Epoch == 0 {
		return "consumer: there is no routing table: run sluice routes init"
	}
	return fmt.Sprintf("consumer: the routing table has epoch %d, the group has committed under epoch %d: restore the newer table, or look whether routing.control_index and routing.stream are the right ones", e.Epoch, e.Committed)
}

// follow adopts each newer table. It ends with ctx.
func (c *Consumer) follow(ctx context.Context) {
	for {
		// The first table is adopted with the first partitions.
		if err := c.o.Routing.Wait(ctx, c.epoch.Load()); err != nil {
			return
		}
		if err := c.adopt(ctx, c.epoch.Load()+1); err != nil {
			return
		}
	}
}

// adopt puts the newest table into force, unless one of epoch at least is: for
// all partitions at once, as if all had been revoked and assigned. Nothing more
// is dispatched; what is on the wire comes back, or is given up with all else
// that is not settled; each partition goes back to the first record that is not
// handled; the table changes; all go on from there, which is committed under the
// new epoch. So nothing from there on was written by an older table alone, and
// nothing that is held or halted is waited for. Errors are ctx's.
func (c *Consumer) adopt(ctx context.Context, epoch int64) error {
	select {
	case c.adopting <- struct{}{}:
		defer func() { <-c.adopting }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.epoch.Load() >= epoch {
		return nil
	}
	began := c.now()
	c.dispatcher.hold(true)
	defer c.dispatcher.hold(false)
	if !mutantRush {
		// One that has not begun has nothing to drain, and goes on as it is.
		begun := slices.DeleteFunc(c.holdings(), func(a *assignment) bool { _, ok := a.restartPoint(); return !ok })
		c.drain(begun, c.adoptTimeout())
	}
	done := make(chan struct{})
	c.do(func() {
		defer close(done)
		c.switchTables(began)
	})
	select { // not ctx: nothing may be dispatched before it is done
	case <-done:
		return nil
	case <-c.stopping.Done(): // the poll loop does nothing more
		return context.Cause(c.stopping)
	}
}

// switchTables is the part of adopt that no commit, callback or poll may come
// between. It runs in the poll loop, with turn held.
func (c *Consumer) switchTables(began time.Time) {
	as := c.holdings()
	if mutantRush {
		epoch := c.o.Routing.Adopt()
		c.epoch.Store(epoch)
		for _, a := range as {
			a.adopts(epoch)
		}
		c.hurry.Store(true)
		return
	}
	// Also of those that have begun, or were let go on, since the drain.
	back := make(map[*assignment]kgo.EpochOffset)
	for _, a := range as {
		if _, ok := a.restartPoint(); ok {
			a.stop()
			back[a] = kgo.EpochOffset{}
		}
	}
	<-c.dispatcher.flush()
	for a := range back {
		a.parking.end() // lanes map records, too
	}
	epoch := c.o.Routing.Adopt()
	before := c.epoch.Swap(epoch)
	// Again: what was assigned meanwhile was begun under the epoch before.
	for _, a := range c.holdings() {
		if _, ok := back[a]; !ok {
			a.adopts(epoch)
			continue
		}
		if at, ok := a.restartPoint(); ok {
			back[a] = at
		} else {
			delete(back, a)
		}
	}
	c.replace(back)
	c.hurry.Store(true)
	c.log.Info().Int64("epoch", epoch).Int64("before", before).Int("partitions", len(as)).Dur("stood_ms", c.now().Sub(began)).Msg("routing table adopted")
}

// adopts has an assignment that has not begun map under another epoch.
func (a *assignment) adopts(epoch int64) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.epoch, a.said = epoch, false
}

// admit lets those partitions of a topic commit, and then run, that go back to
// one of origins: those for which the table in force is known to be new enough.
func (c *Consumer) admit(t *topic, origins map[*assignment]bool) {
	for _, a := range c.holdings() {
		if a.topic != t || !origins[a.origin] {
			continue
		}
		a.l.mu.Lock()
		a.admitted = true
		a.l.mu.Unlock()
	}
	if c.o.Routing != nil {
		c.hurry.Store(true)
	}
}

func (a *assignment) isAdmitted() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.admitted
}

func (a *assignment) hasSaid() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.said
}
