package indexer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// With Options.Park the records of a held target need not wait here: their
// sources are asked to take them back, and put them aside themselves.

// Parker is a Source that can put a held target's records aside.
type Parker interface {
	Source
	// Park says that target is held, for that reason (an error type), and that
	// held targets fill so much memory that the source should take its records
	// for it back (Indexer.TakeBack) and keep later ones. It must not block.
	// It is asked again while that lasts.
	Park(target, reason string)
}

// TakenBack is an action that was not written. The callee owns all of it.
type TakenBack struct {
	Seq  uint64
	Meta []byte // Action.Meta
	Body []byte // the document; nil for a delete
}

// parkAgain is how often a source is asked about one target.
const parkAgain = time.Second

// parkShare of Options.HeldBytes is what held targets may fill before their
// sources are asked: the rest is for what comes until they have taken it.
const parkShare = 2

// ask asks the sources of held targets to park, whenever those fill too much,
// largest target first. It ends with the indexer.
func (x *Indexer) ask() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-x.parkWake:
		case <-timer.C:
		case <-x.ctx.Done():
			return
		}
		if timer.Stop(); x.askOnce() {
			timer.Reset(parkAgain)
		}
	}
}

// parkRequest is a source to be asked.
type parkRequest struct {
	parker         Parker
	target, reason string
}

// askOnce asks, and says whether to look again soon.
func (x *Indexer) askOnce() (again bool) {
	x.mu.Lock()
	requests, again := x.toPark(time.Now())
	x.mu.Unlock()
	for _, r := range requests {
		r.parker.Park(r.target, r.reason)
	}
	return again
}

func (x *Indexer) toPark(now time.Time) (requests []parkRequest, again bool) {
	var held []*target
	var total int64
	for _, t := range x.active {
		if t.hold != nil && t.hold.kind != kindLooking {
			held = append(held, t)
			total += t.queued + t.waitBytes
		}
	}
	if total <= x.opt.HeldBytes/parkShare {
		return nil, false
	}
	slices.SortFunc(held, func(a, b *target) int { return cmp.Compare(b.queued+b.waitBytes, a.queued+a.waitBytes) })
	for _, t := range held {
		if total <= x.opt.HeldBytes/(2*parkShare) {
			break
		}
		total -= t.queued + t.waitBytes
		if now.Sub(t.asked) < parkAgain {
			continue
		}
		t.asked = now
		for _, src := range t.sources() {
			if p, ok := src.Source.(Parker); ok && src.state.Load() == live {
				requests = append(requests, parkRequest{p, t.name, t.hold.kind})
			}
		}
	}
	return requests, true
}

// sources returns whose actions wait for a target.
func (t *target) sources() (all []*source) {
	seen := map[*source]bool{}
	add := func(src *source) {
		if !seen[src] {
			seen[src] = true
			all = append(all, src)
		}
	}
	for c := range t.chunks {
		for i := range c.entries {
			add(c.entries[i].src)
		}
	}
	for _, q := range t.order {
		for _, w := range q.items {
			add(w.src)
		}
	}
	for _, w := range t.solos {
		add(w.src)
	}
	return all
}

// TakeBack takes all that waits of a source for a target out, and returns it by
// Seq; nothing of it is reported any more. It waits until nothing of that target
// is on the wire, so that nothing earlier can come back afterwards, and lets
// nothing of it be sent meanwhile. What the source's writer has not published
// stays with it. An error is ctx's, or ErrClosed; nothing was taken then.
func (x *Indexer) TakeBack(ctx context.Context, s Source, name string) ([]TakenBack, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	src, t := x.sources[s], x.targets[name]
	if src == nil || t == nil {
		return nil, nil
	}
	t.taking++
	defer func() {
		t.taking--
		x.activate(t)
		x.cond.Broadcast()
	}()
	for t.onWire > 0 {
		if t.landed == nil {
			t.landed = make(chan struct{})
		}
		landed := t.landed
		x.mu.Unlock()
		select {
		case <-landed:
		case <-ctx.Done():
		case <-x.ctx.Done():
		}
		x.mu.Lock()
		switch {
		case x.closed:
			return nil, ErrClosed
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
	var taken []TakenBack
	x.takeOut(t, true, func(e *entry) bool { return e.src == src }, func(e *entry, wire, meta []byte, _ int) {
		taken = append(taken, TakenBack{Seq: e.seq, Meta: slices.Clone(meta), Body: slices.Clone(bulk.Open(wire).Body)})
	})
	x.checkRoom()
	slices.SortFunc(taken, func(a, b TakenBack) int { return cmp.Compare(a.Seq, b.Seq) })
	return taken, nil
}

// board counts a batch's targets as on the wire; x.mu must be held.
func (x *Indexer) board(b *batch) {
	eachTarget(b, func(t *target) { t.onWire++ })
}

// land ends what board began.
func (x *Indexer) land(b *batch) {
	eachTarget(b, func(t *target) {
		if t.onWire--; t.onWire == 0 && t.landed != nil {
			close(t.landed)
			t.landed = nil
		}
	})
}

// eachTarget calls f for every run of chunks of one target: the same ones for as
// long as the batch lives.
func eachTarget(b *batch, f func(*target)) {
	var last *target
	for _, c := range b.chunks {
		if c.target != last {
			last = c.target
			f(last)
		}
	}
}
