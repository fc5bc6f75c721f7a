package indexer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/memory"
)

// source is a Source and how far it is from its end.
type source struct {
	Source
	state atomic.Int32 // live, draining or dropped; it only grows
}

const (
	live     int32 = iota
	draining       // nothing of it is tried again: abandoned instead
	dropped        // nothing of it is reported any more
)

// entry is one action of a chunk: where its bytes end, and whose it is.
type entry struct {
	src     *source
	seq     uint64
	hash    uint64 // of the id; no meaning where !ordered
	version int64
	end     uint32 // in chunk.wire; the bytes begin where the entry before ends
	metaEnd uint32 // likewise in chunk.meta
	op      bulk.Op
	vtype   bulk.VersionType
	ordered bool
	tomb    bool // Action.Tombstone
	done    bool // reported, or waits elsewhere; of an entry in a batch
}

const entryBytes = int64(unsafe.Sizeof(entry{}))

// written is how the entry ended if it was written.
func (e *entry) written() Outcome {
	if e.op == bulk.Delete || e.tomb {
		return Deleted
	}
	return Indexed
}

// oncePerRequest says that a request may hold one action of this kind per id:
// an update's outcome depends on what is stored.
func (e *entry) oncePerRequest() bool { return e.op == bulk.Update || e.op == bulk.Upsert }

// chunk is a run of encoded actions of one target, in the order in which they
// came. One goroutine owns it at a time: the writer's, then, through its lane,
// that of one batch.
type chunk struct {
	wire    []byte
	meta    []byte
	entries []entry
	target  *target
	born    time.Time  // when its first action came
	charged int64      // bytes taken from the budget
	width   int        // its entries are of one lane of so many; 0: they are not ordered
	updates bool       // some entry is oncePerRequest
	waits   []*waiting // of a retry chunk: entries[i] is the try of waits[i]
}

func (c *chunk) wireOf(i int) []byte {
	if i == 0 {
		return c.wire[:c.entries[0].end]
	}
	return c.wire[c.entries[i-1].end:c.entries[i].end]
}

func (c *chunk) metaOf(i int) []byte {
	if i == 0 {
		return c.meta[:c.entries[0].metaEnd]
	}
	return c.meta[c.entries[i-1].metaEnd:c.entries[i].metaEnd]
}

// remove takes the entries out for which gone says so, in place. gone may copy
// what it is shown.
func (c *chunk) remove(gone func(e *entry, wire, meta []byte) bool) {
	var at, metaAt, end, metaEnd uint32 // read from, written to
	kept := 0
	for i := range c.entries {
		e := c.entries[i]
		wire, meta := c.wire[at:e.end], c.meta[metaAt:e.metaEnd]
		at, metaAt = e.end, e.metaEnd
		if gone(&e, wire, meta) {
			continue
		}
		if kept < i {
			copy(c.wire[end:], wire)
			copy(c.meta[metaEnd:], meta)
		}
		end += uint32(len(wire))
		metaEnd += uint32(len(meta))
		e.end, e.metaEnd = end, metaEnd
		c.entries[kept] = e
		kept++
	}
	clear(c.entries[kept:])
	c.wire, c.meta, c.entries = c.wire[:end], c.meta[:metaEnd], c.entries[:kept]
}

// Chunks come in a few sizes so that a quiet lane holds little and a busy one
// publishes seldom. A larger action gets a chunk of its own size.
var chunkSizes = [...]int{4 << 10, 16 << 10, 64 << 10}

const (
	// metaShare and entryShare size a chunk's side arrays from its wire bytes.
	metaShare  = 8
	entryShare = 512
	// pooledBytes bounds what the pool keeps of chunks that nobody uses, as an
	// eighth of the budget does, and pooledFor how long it keeps what nobody has
	// used meanwhile.
	pooledBytes = 64 << 20
	pooledFor   = time.Second
	// pieceBytes is what is taken of the budget at a time.
	pieceBytes = 1 << 20
)

// chunkPool makes chunks, charges them to the budget while they are out, and
// keeps a few for the next time.
type chunkPool struct {
	budget *memory.Budget
	child  *memory.Child // of budget: what actions hold
	// share is the most bytes that actions take of the budget: the rest is for
	// records that are fetched and not yet actions.
	share int64
	// reserve is what actions may take whatever others hold: without it there
	// might be no progress at all.
	reserve int64

	mu   sync.Mutex
	free [len(chunkSizes)][]*chunk
	idle [len(chunkSizes)]int // the least length of free since the last trim
	kept int64
	trim *time.Timer  // nil: nothing is kept
	held atomic.Int64 // bytes charged to the budget for actions, in chunks or not
}

// size returns the wire capacity and the size class (-1: none) for n bytes,
// and what the whole chunk is charged.
func (p *chunkPool) size(n int) (capacity, class int, charge int64) {
	capacity, class = n, -1
	for i, size := range chunkSizes {
		if n <= size {
			capacity, class = size, i
			break
		}
	}
	return capacity, class, int64(capacity+capacity/metaShare) + int64(capacity/entryShare+1)*entryBytes
}

// try returns an empty chunk with room for n wire bytes, or nil where there is
// no room.
func (p *chunkPool) try(n int) *chunk {
	capacity, class, charge := p.size(n)
	held := p.held.Load()
	switch fits := held+charge <= p.share; {
	case fits && p.child.TryTake(charge):
	case held < p.reserve:
		p.child.Force(charge)
	default:
		return nil
	}
	return p.make(capacity, class, charge)
}

// wait is try that waits for room, until ctx ends.
func (p *chunkPool) wait(ctx context.Context, n int) (*chunk, error) {
	for {
		freed := p.budget.Freed()
		if c := p.try(n); c != nil {
			return c, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// force returns a chunk for bytes that are held already and only move.
func (p *chunkPool) force(n int) *chunk {
	capacity, class, charge := p.size(n)
	p.child.Force(charge)
	return p.make(capacity, class, charge)
}

// move makes bytes of a chunk that a waiting action copies count as the
// action's: the chunk is about to go.
func (p *chunkPool) move(c *chunk, w *waiting) {
	w.charged = int64(len(w.wire)+len(w.meta)) + waitingBytes
	moved := min(w.charged, c.charged)
	c.charged -= moved
	p.charge(w.charged - moved)
}

func (p *chunkPool) make(n, class int, charge int64) *chunk {
	p.held.Add(charge)
	if class >= 0 {
		p.mu.Lock()
		if free := p.free[class]; len(free) > 0 {
			c := free[len(free)-1]
			free[len(free)-1] = nil
			p.free[class] = free[:len(free)-1]
			p.idle[class] = min(p.idle[class], len(free)-1)
			p.kept -= int64(chunkSizes[class])
			p.mu.Unlock()
			c.charged = charge
			return c
		}
		p.mu.Unlock()
	}
	return &chunk{
		wire:    make([]byte, 0, n),
		meta:    make([]byte, 0, n/metaShare),
		entries: make([]entry, 0, n/entryShare+1),
		charged: charge,
	}
}

// grown charges what append has made of the side arrays.
func (p *chunkPool) grown(c *chunk) {
	now := int64(cap(c.wire)+cap(c.meta)) + int64(cap(c.entries))*entryBytes
	if more := now - c.charged; more > 0 {
		p.charge(more)
		c.charged = now
	}
}

// charge takes bytes from the budget for what exists already.
func (p *chunkPool) charge(n int64) {
	p.held.Add(n)
	p.child.Force(n)
}

func (p *chunkPool) give(n int64) {
	p.held.Add(-n)
	p.child.Give(n) // wakes those who wait for held to shrink, too
}

// put takes a chunk back. Nobody may read its bytes any more.
func (p *chunkPool) put(c *chunk) {
	p.give(c.charged)
	class := -1
	for i, size := range chunkSizes {
		// A chunk whose side arrays have grown far beyond their share is not
		// worth keeping.
		if cap(c.wire) == size && cap(c.meta) <= 2*size && cap(c.entries) <= size/16 {
			class = i
		}
	}
	if class < 0 {
		return
	}
	clear(c.entries)
	clear(c.waits)
	*c = chunk{wire: c.wire[:0], meta: c.meta[:0], entries: c.entries[:0], waits: c.waits[:0]}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept+int64(chunkSizes[class]) <= min(pooledBytes, p.budget.Limit()/8) {
		p.free[class] = append(p.free[class], c)
		p.kept += int64(chunkSizes[class])
		if p.trim == nil {
			p.idle = [len(chunkSizes)]int{}
			p.trim = time.AfterFunc(pooledFor, p.trimIdle)
		}
	}
}

// trimIdle lets those chunks go that were not used for a while, and comes again
// while any are left.
func (p *chunkPool) trimIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for class, n := range p.idle {
		free := p.free[class]
		copy(free, free[n:])
		clear(free[len(free)-n:])
		p.free[class] = free[:len(free)-n]
		p.kept -= int64(n * chunkSizes[class])
		p.idle[class] = len(p.free[class])
	}
	if p.kept == 0 {
		p.trim = nil
		return
	}
	p.trim.Reset(pooledFor)
}

// close lets all go that nobody uses.
func (p *chunkPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trim != nil {
		p.trim.Stop()
		p.trim = nil
	}
	p.child.Close()
	p.free, p.idle, p.kept = [len(chunkSizes)][]*chunk{}, [len(chunkSizes)]int{}, 0
}
