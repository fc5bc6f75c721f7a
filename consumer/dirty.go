package consumer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluicehq/sluice/indexer"
)

// markRetry is the pause after a mark that was not acknowledged.
const markRetry = time.Second

// markTimeout bounds one try of a mark.
const markTimeout = 30 * time.Second

// stained is a record that one of its sides has rejected: it ends when its
// customer is marked dirty, so that nobody is cut over to a side that misses
// something.
type stained struct {
	of       subject
	seq      uint64
	customer string
	end      func()
}

// stainQueue holds stained records for the marker.
type stainQueue struct {
	wake chan struct{}

	mu    sync.Mutex
	items []stained
}

func (q *stainQueue) add(items ...stained) {
	q.mu.Lock()
	q.items = append(q.items, items...)
	q.mu.Unlock()
	signal(q.wake)
}

func (q *stainQueue) takeAll() []stained {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}

// stain notes the customer of a record that one side has rejected, if the record
// has another side.
func (a *assignment) stain(seq uint64, r *indexer.Rejection) {
	if len(r.Meta) == 0 || r.Meta[0]&metaTwin == 0 {
		return
	}
	m, err := decodeMeta(r.Meta)
	if err != nil {
		a.c.bug(a, err)
	}
	a.stainWith(seq, string(m.customer))
}

// stainWith is stain for a customer that is known.
func (a *assignment) stainWith(seq uint64, customer string) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over {
		return
	}
	if a.stains == nil {
		a.stains = make(map[uint64]string)
	}
	a.stains[seq] = customer
}

// takeStain returns the customer that is to be marked before the record seq
// ends; false: none.
func (a *assignment) takeStain(seq uint64) (customer string, ok bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	customer, ok = a.stains[seq]
	delete(a.stains, seq)
	return customer, ok
}

// ignore settles a rejected record that goes nowhere.
func (a *assignment) ignore(seq uint64) {
	if customer, ok := a.takeStain(seq); ok {
		a.c.markFirst(a, seq, customer, func() { a.settle(outIgnored, seq) })
		return
	}
	a.settle(outIgnored, seq)
}

// markFirst has end called once the customer is marked, unless whose the record
// is ends before.
func (c *Consumer) markFirst(of subject, seq uint64, customer string, end func()) {
	if mutantUnmarked {
		end()
		return
	}
	c.stains.add(stained{of, seq, customer, end})
}

// mark is the marker: it marks customers dirty, each once for all records that
// wait for it. It ends with ctx.
func (c *Consumer) mark(ctx context.Context) {
	said := false
	for {
		select {
		case <-c.stains.wake:
		case <-ctx.Done():
			return
		}
		left, err := c.markAll(ctx, c.stains.takeAll())
		if err == nil {
			said = false
			continue
		}
		if !said && ctx.Err() == nil {
			said = true
			c.log.Error().Int("records", len(left)).Err(err).Msg("a customer whose sides differ cannot be marked: the records wait; trying again")
		}
		if !linger(ctx, markRetry) {
			return
		}
		c.stains.add(left...)
	}
}

// markAll returns the records that are left after the first mark that failed.
func (c *Consumer) markAll(ctx context.Context, all []stained) (left []stained, err error) {
	slices.SortStableFunc(all, func(x, y stained) int {
		switch {
		case x.customer < y.customer:
			return -1
		case x.customer > y.customer:
			return 1
		}
		return 0
	})
	marked := false
	for i, x := range all {
		if i > 0 && all[i-1].customer != x.customer {
			marked = false
		}
		if !x.of.waits(x.seq) {
			continue // its partition was lost: it is delivered again, or replayed
		}
		// One that was made for an earlier one of these was made after all were
		// rejected.
		if !marked {
			trying, cancel := context.WithTimeout(ctx, markTimeout)
			err = c.o.Dirty.MarkDirty(trying, x.customer)
			cancel()
			if err != nil {
				return all[i:], err
			}
			marked = true
		}
		x.end()
	}
	return nil, nil
}
