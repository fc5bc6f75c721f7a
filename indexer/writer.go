package indexer

import (
	"context"
	"errors"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// ErrClosed is Writer.Add's error where the indexer was closed.
var ErrClosed = errors.New("indexer: closed")

// Writer encodes actions and hands them to the indexers. It belongs to one
// goroutine at a time. Actions on one (target, id) must go through one writer
// for their order to be kept.
type Writer struct {
	x       *Indexer
	targets map[string]*openTarget
	last    *openTarget
	source  *source       // of the last action
	dirty   []*openTarget // those with open chunks
	swept   time.Time
}

// sweepEvery is how often a writer closes the targets that it did not use since
// the time before.
const sweepEvery = time.Minute

// openTarget holds the writer's open chunks of one target: one per lane, the
// last for unordered actions.
type openTarget struct {
	t     *target
	width int // lanes that open is for: nothing is open when it changes
	open  [laneCount + 1]*chunk
	size  [laneCount + 1]int // wire bytes of the lane's last chunk
	count int
	dirty bool // in Writer.dirty
	used  bool // since the last sweep

	// The encoded head of the last kind of action.
	kind     headKind
	lastHead *bulk.Head
}

type headKind struct {
	op           bulk.Op
	pipeline     string
	requireAlias bool
}

func (o *openTarget) head(a *bulk.Action) *bulk.Head {
	if kind := (headKind{a.Op, a.Pipeline, a.RequireAlias}); o.lastHead == nil || kind != o.kind {
		o.kind, o.lastHead = kind, bulk.NewHead(a.Op, o.t.name, a.Pipeline, a.RequireAlias)
	}
	return o.lastHead
}

// NewWriter returns a writer with nothing open.
func (x *Indexer) NewWriter() *Writer {
	return &Writer{x: x, targets: make(map[string]*openTarget), swept: time.Now()}
}

// Add takes an action: it is encoded into the indexer's own memory, nothing of
// a is kept. While the memory budget is full it publishes what is open and
// waits, until ctx ends. An error means that the action was not taken.
func (w *Writer) Add(ctx context.Context, a *Action) error {
	if w.source == nil || w.source.Source != a.Source {
		src, err := w.x.source(a.Source)
		if err != nil {
			return err
		}
		w.source = src
	}
	o := w.last
	if o == nil || o.t.name != a.Target {
		o = w.target(a.Target, a.NewPerHour)
	}
	var hash uint64
	slot := laneCount
	if a.Ordered {
		if o.count == 0 {
			o.width = int(o.t.wanted.Load())
		}
		hash = xxhash.Sum64(a.ID)
		slot = laneOf(hash, o.width)
	}
	need := bulk.Bound(&a.Action)
	c := o.open[slot]
	if c == nil || cap(c.wire)-len(c.wire) < need {
		if c != nil {
			w.publish(o, slot)
		}
		o.used = true // chunk may sweep
		var err error
		if c, err = w.chunk(ctx, max(need, min(2*o.size[slot], chunkSizes[len(chunkSizes)-1]))); err != nil {
			return err
		}
		c.target, c.born = o.t, time.Now()
		if a.Ordered {
			c.width = o.width
		}
		o.open[slot] = c
		o.count++
		if !o.dirty {
			o.dirty = true
			w.dirty = append(w.dirty, o)
		}
	}
	c.wire = o.head(&a.Action).Append(c.wire, &a.Action)
	c.meta = append(c.meta, a.Meta...)
	c.entries = append(c.entries, entry{
		src: w.source, seq: a.Seq, hash: hash, version: a.Version,
		end: uint32(len(c.wire)), metaEnd: uint32(len(c.meta)),
		op: a.Op, vtype: a.VersionType, ordered: a.Ordered, tomb: a.Tombstone,
	})
	c.updates = c.updates || c.entries[len(c.entries)-1].oncePerRequest()
	return nil
}

// Publish hands every open chunk to the indexers. Call it when the input has
// run dry, and every 100 ms or so while it has not: an action that is not
// published waits for its chunk to fill.
func (w *Writer) Publish() {
	for i, o := range w.dirty {
		for slot := 0; o.count > 0; slot++ {
			if o.open[slot] != nil {
				w.publish(o, slot)
			}
		}
		o.dirty = false
		w.dirty[i] = nil
	}
	w.dirty = w.dirty[:0]
	if now := time.Now(); now.Sub(w.swept) >= sweepEvery {
		w.swept = now
		w.sweep()
	}
}

// Close publishes what is open, and closes all targets: without, those that the
// writer has used are never forgotten. It is not used again.
func (w *Writer) Close() {
	w.Publish()
	var closed []*target
	for _, o := range w.targets {
		closed = append(closed, o.t)
	}
	clear(w.targets)
	w.last = nil
	w.x.sweep(closed)
}

// sweep closes the targets that were not used lately.
func (w *Writer) sweep() {
	var closed []*target
	for name, o := range w.targets {
		if !o.used {
			closed = append(closed, o.t)
			delete(w.targets, name)
			if w.last == o {
				w.last = nil
			}
		}
		o.used = false
	}
	w.x.sweep(closed)
}

func (w *Writer) publish(o *openTarget, slot int) {
	c := o.open[slot]
	o.open[slot] = nil
	o.size[slot] = len(c.wire)
	o.count--
	w.x.chunks.grown(c)
	w.x.publish(o.t, c)
}

func (w *Writer) target(name string, newPerHour int) *openTarget {
	o := w.targets[name]
	if o == nil {
		o = &openTarget{t: w.x.target(name, newPerHour)}
		o.width = int(o.t.wanted.Load())
		w.targets[o.t.name] = o
	}
	w.last = o
	return o
}

func (w *Writer) chunk(ctx context.Context, n int) (*chunk, error) {
	for full := w.x.noRoom(); full != nil; full = w.x.noRoom() {
		w.Publish()
		select {
		case <-full:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if c := w.x.chunks.try(n); c != nil {
		return c, nil
	}
	// What is open counts as held: published, it can leave.
	w.Publish()
	w.x.pressure(1)
	defer w.x.pressure(-1)
	return w.x.chunks.wait(ctx, n)
}
