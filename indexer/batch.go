package indexer

import (
	"slices"
	"time"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// ref is one action of a batch.
type ref struct {
	c *chunk
	i int
}

func (r ref) entry() *entry { return &r.c.entries[r.i] }
func (r ref) wire() []byte  { return r.c.wireOf(r.i) }

// waiting returns the action's record of earlier tries, nil on its first.
func (r ref) waiting() *waiting {
	if len(r.c.waits) == 0 {
		return nil
	}
	return r.c.waits[r.i]
}

// part is a range of a batch's refs.
type part struct{ from, to int }

// batch is what one permit carries: the actions of a bulk request and, where
// that request is refused or never answered, of the parts it is split into,
// one after the other. It holds its lanes and queues until the last of its
// actions has a verdict or waits by itself.
type batch struct {
	chunks []*chunk
	lanes  []*lane    // ordered lanes that it keeps busy
	queues []*idQueue // queues in flight with it
	refs   []ref
	count  int    // of actions in chunks
	parts  []part // a stack; the last is the one at hand
	reason string // of the flush
	probe  *hold  // it probes a held target
	solo   *waiting
	ids    map[uint64]struct{} // ids in it, where each may occur once

	// The request.
	sent    []ref // what it carries, in order
	bytes   int64 // of sent, uncompressed
	pieces  [][]byte
	packed  []byte // the same, compressed; charged to the budget
	answer  []byte
	large   bool  // answer fills Indexer.large
	charged int64 // to the budget, for answer
	result  result
	resend  bool // it was sent before: something of refs may be done, closed or gone

	// Between tries.
	attempts   int // requests that carried the batch whole or in parts
	due        time.Time
	pause      time.Duration
	unanswered int                // tries of the part at hand without an answer, in a row
	answeredBy uint64             // answers to others when the first of them began
	lives      uint64             // Indexer.lives then
	isolating  bool               // the part at hand is of one that was split for want of an answer: once more without is enough
	marks      map[*target]uint64 // target.accepted when the whole was refused first
	probesAll  bool               // it is out although all is held
	inHand     bool               // an answer is there to be read
	onWire     bool               // counted in Indexer.onWire
}

// result is what came of a request.
type result struct {
	err        error // of the transport; nil: there is an answer
	status     int
	retryAfter time.Duration
	began      time.Time
	took       time.Duration
}

func (x *Indexer) newBatch(reason string) *batch {
	var b *batch
	if n := len(x.free); n > 0 {
		b, x.free = x.free[n-1], x.free[:n-1]
	} else {
		b = new(batch)
	}
	b.reason = reason
	return b
}

// seal lays the batch's actions out; no chunk is added after it.
func (b *batch) seal() {
	for _, c := range b.chunks {
		c.target.out++
		for i := range c.entries {
			b.refs = append(b.refs, ref{c, i})
		}
	}
	b.parts = append(b.parts, part{0, len(b.refs)})
}

// freeBatches is how many batches are kept for the next time.
const freeBatches = 16

// pack compresses what a batch sends.
func (w *worker) pack(b *batch) {
	if b.packed == nil {
		if kept, ok := w.x.packs.Get().(*[]byte); ok {
			b.packed = *kept
		}
		w.x.chunks.charge(int64(cap(b.packed)))
	}
	before := cap(b.packed)
	b.packed = w.zip.Compress(b.packed[:0], b.pieces)
	w.x.chunks.charge(int64(cap(b.packed) - before))
}

// recycle gives a batch's chunks back. No request may read them any more.
func (x *Indexer) recycle(b *batch) {
	x.forget(b)
	if packed := b.packed; packed != nil {
		x.chunks.give(int64(cap(packed)))
		x.packs.Put(&packed)
	}
	for _, c := range b.chunks {
		c.target.out--
		x.chunks.put(c)
	}
	clear(b.chunks)
	clear(b.lanes)
	clear(b.queues)
	clear(b.refs)
	clear(b.pieces)
	*b = batch{
		chunks: b.chunks[:0], lanes: b.lanes[:0], queues: b.queues[:0], refs: b.refs[:0],
		parts: b.parts[:0], pieces: b.pieces[:0],
		answer: b.answer[:0],
	}
	if len(x.free) < freeBatches && cap(b.answer) <= 1<<20 {
		x.free = append(x.free, b)
	}
}

// claim makes the next batch if one is due, else says when to look again.
func (x *Indexer) claim(now time.Time) (*batch, time.Time) {
	var (
		wake, oldest, again time.Time
		bytes               int64
		docs, ready         int
		turning             bool
	)
	for k := 0; k < len(x.active); {
		i := (x.cursor + k) % len(x.active)
		t := x.active[i]
		if t.empty() {
			t.active = false
			if t.hold != nil && !t.hold.probing && !t.hold.gate {
				x.unhold(t)
			}
			last := len(x.active) - 1
			x.active[i], x.active[last] = x.active[last], nil
			x.active = x.active[:last]
			continue
		}
		k++
		if t.taking > 0 {
			continue
		}
		if h := t.hold; h != nil {
			if h.gate {
				continue
			}
			if !h.probing && !now.Before(h.probeAt) {
				if b := x.claimProbe(t); b != nil {
					return b, wake
				}
				continue // what is under way will tell
			}
			if !h.probing {
				wake = earlier(wake, h.probeAt)
			}
			continue
		}
		for s, w := range t.solos {
			if !now.Before(w.due) {
				t.solos = slices.Delete(t.solos, s, s+1)
				return x.claimSolo(t, w), wake
			}
			wake = earlier(wake, w.due)
		}
		if now.Before(t.until) {
			wake = earlier(wake, t.until)
			continue
		}
		bytes += t.readyBytes + t.waitBytes
		docs += t.readyDocs + t.waitDocs
		ready += t.readyDocs
		turning = turning || t.turning()
		if x.full(bytes, docs) {
			break
		}
		oldest = earlier(oldest, t.oldest())
		again = earlier(again, t.again())
	}
	var reason string
	switch {
	case bytes == 0:
		return nil, wake
	case bytes >= x.bodyLimit:
		reason = "bytes"
	case docs >= x.cfg.FlushDocuments:
		reason = "documents"
	case x.draining > 0 || turning:
		reason = "drain"
	case x.starved > 0:
		reason = "memory"
	case ready > 0 && !now.Before(oldest.Add(x.cfg.FlushInterval)):
		reason = "interval"
	case x.burst && ready > 0 && !now.Before(x.dryAt):
		reason = "dry"
	case !again.IsZero() && !now.Before(again):
		reason = "again"
	default:
		wake = earlier(wake, again)
		if ready > 0 {
			wake = earlier(wake, oldest.Add(x.cfg.FlushInterval))
		}
		if x.burst && ready > 0 {
			wake = earlier(wake, x.dryAt)
		}
		return nil, wake
	}
	if reason != "again" {
		x.burst = reason == "bytes" || reason == "documents"
	}
	b := x.newBatch(reason)
	first := x.cursor
	for k := range x.active {
		i := (first + k) % len(x.active)
		if t := x.active[i]; t.hold == nil && t.taking == 0 && !now.Before(t.until) {
			x.take(t, b)
			x.cursor = (i + 1) % len(x.active)
		}
		if x.full(b.bytes, b.count) {
			break
		}
	}
	return b, wake
}

func (x *Indexer) full(bytes int64, docs int) bool {
	return bytes >= x.bodyLimit || docs >= x.cfg.FlushDocuments
}

// oldest returns when the oldest of the actions in the target's idle lanes came.
func (t *target) oldest() (at time.Time) {
	for _, l := range t.ready {
		at = earlier(at, l.chunks[0].born)
	}
	return at
}

// again returns when the first of what waits is due.
func (t *target) again() (at time.Time) {
	for _, q := range t.order {
		at = earlier(at, q.items[0].due)
	}
	return at
}

// take moves what is ready of a target into the batch, until it is full: first
// what needs another try, then idle lanes. A batch of tries takes no lanes: what
// is new in it could fail too, and a slow topic with bad records would go in
// requests of its few latest actions.
func (x *Indexer) take(t *target, b *batch) {
	x.takeWaits(t, b)
	for b.reason != "again" && len(t.ready) > 0 && !x.full(b.bytes, b.count) {
		l := t.unready()
		if l.ordered {
			l.busy = true
			b.lanes = append(b.lanes, l)
		}
		for len(l.chunks) > 0 && !x.full(b.bytes, b.count) {
			c := l.pop()
			x.divert(b, c)
			if len(c.entries) == 0 {
				x.chunks.put(c)
				continue
			}
			b.chunks = append(b.chunks, c)
			b.bytes += int64(len(c.wire))
			b.count += len(c.entries)
		}
		if !l.ordered {
			t.offer(l) // what is left of it may go with others
		}
	}
}

// takeWaits makes a retry chunk of what waits, until the batch is full.
func (x *Indexer) takeWaits(t *target, b *batch) {
	if len(t.order) == 0 || x.full(b.bytes, b.count) {
		return
	}
	size := 0
	var taken []*waiting
	for len(t.order) > 0 && !x.full(b.bytes, b.count) {
		q, items := t.takeQueue(x.bodyLimit-b.bytes, x.cfg.FlushDocuments-b.count)
		b.queues = append(b.queues, q)
		for _, w := range items {
			size += len(w.wire)
			b.bytes += int64(len(w.wire))
			b.count++
		}
		taken = append(taken, items...)
	}
	b.chunks = append(b.chunks, x.retryChunk(t, taken, size))
}

// retryChunk moves the bytes of actions that are tried again into a chunk.
func (x *Indexer) retryChunk(t *target, items []*waiting, size int) *chunk {
	c := x.chunks.force(size)
	c.target = t
	for _, w := range items {
		w.inBatch = true
		c.wire = append(c.wire, w.wire...)
		c.meta = append(c.meta, w.meta...)
		e := w.entry // done is false
		e.end, e.metaEnd = uint32(len(c.wire)), uint32(len(c.meta))
		c.entries = append(c.entries, e)
		c.waits = append(c.waits, w)
		x.freeWaiting(w)
	}
	x.chunks.grown(c)
	return c
}

// divert takes the actions out of a claimed chunk that may not go with this
// batch: those on closed ids, and where there are updates second ones of one id.
func (x *Indexer) divert(b *batch, c *chunk) {
	t := c.target
	if len(t.queues) == 0 && !t.updates {
		return
	}
	c.remove(func(e *entry, wire, meta []byte) bool {
		closed := t.closed(e) != nil
		if !closed && t.updates && e.ordered {
			if b.ids == nil {
				b.ids = make(map[uint64]struct{})
			}
			if _, closed = b.ids[e.hash]; closed {
				// What follows waits until this batch has ended.
				q := t.queue(e)
				q.flights++
				q.behind = b
				b.queues = append(b.queues, q)
			}
			b.ids[e.hash] = struct{}{}
		}
		if closed {
			t.wait(x.copyOut(c, *e, wire, meta))
		}
		return closed
	})
}

// copyOut makes an action of a chunk stand by itself.
func (x *Indexer) copyOut(c *chunk, e entry, wire, meta []byte) *waiting {
	e.done = false
	w := &waiting{
		entry: e, target: c.target, due: c.born.Add(x.cfg.FlushInterval),
		wire: slices.Clone(wire), meta: slices.Clone(meta),
	}
	if mutantBuffer {
		w.wire = wire
	}
	x.chunks.move(c, w)
	return w
}

// standAlone makes an action of a batch stand by itself, with what is known of
// its earlier tries.
func (x *Indexer) standAlone(f ref) *waiting {
	w := f.waiting()
	if w == nil {
		return x.copyOut(f.c, *f.entry(), f.wire(), f.c.metaOf(f.i))
	}
	w.wire, w.meta = slices.Clone(f.wire()), slices.Clone(f.c.metaOf(f.i))
	w.inBatch = false
	x.chunks.move(f.c, w)
	return w
}

func (x *Indexer) freeWaiting(w *waiting) {
	x.chunks.give(w.charged)
	w.charged, w.wire, w.meta = 0, nil, nil
}

// claimProbe makes a batch of one action of a held target, or of some where a
// run of probes was accepted; nil where all that is left waits for something
// that is under way.
func (x *Indexer) claimProbe(t *target) *batch {
	h := t.hold
	n := 1
	if h.breaker && h.accepted >= breakerBulk {
		n = breakerProbes - h.accepted
	}
	// Whatever waits is probed in turn: the first may be bad for a reason of its
	// own, and then never gets through.
	for more := true; more && len(t.ready) > 0; more = len(t.order) < n {
		l := t.ready[0]
		c := l.pop()
		if len(l.chunks) == 0 {
			t.unready()
		}
		for i := range c.entries {
			t.wait(x.copyOut(c, c.entries[i], c.wireOf(i), c.metaOf(i)))
		}
		x.chunks.put(c)
		t.turn()
	}
	if len(t.order) == 0 && len(t.solos) == 0 {
		return nil
	}
	h.probing = true
	b := x.newBatch("probe")
	b.probe = h
	if len(t.order) == 0 {
		w := t.solos[0]
		t.solos = slices.Delete(t.solos, 0, 1)
		return x.fillSolo(b, t, w)
	}
	var taken []*waiting
	size := 0
	for len(t.order) > 0 && len(taken) < n {
		q, items := t.takeQueue(x.bodyLimit, n-len(taken))
		b.queues = append(b.queues, q)
		for _, w := range items {
			size += len(w.wire)
		}
		taken = append(taken, items...)
	}
	b.chunks = append(b.chunks, x.retryChunk(t, taken, size))
	return b
}

// claimSolo makes a batch of an action that is sent alone.
func (x *Indexer) claimSolo(t *target, w *waiting) *batch {
	return x.fillSolo(x.newBatch("alone"), t, w)
}

func (x *Indexer) fillSolo(b *batch, t *target, w *waiting) *batch {
	q := w.queue
	q.solo = nil
	b.solo = w
	b.queues = append(b.queues, q)
	b.chunks = append(b.chunks, x.retryChunk(t, []*waiting{w}, len(w.wire)))
	return b
}

// reports collects outcomes under the lock and sends them without it.
type reports struct {
	of   map[reportKey][]uint64
	last reportKey
	seqs []uint64
}

type reportKey struct {
	src     *source
	outcome Outcome
}

// add notes an outcome. A nil r, like a dropped source, hears nothing.
func (r *reports) add(e *entry, o Outcome) {
	if r == nil {
		return
	}
	k := reportKey{e.src, o}
	if k != r.last {
		r.swap(k)
	}
	r.seqs = append(r.seqs, e.seq)
}

func (r *reports) swap(k reportKey) {
	if r.of == nil {
		r.of = make(map[reportKey][]uint64)
	}
	if r.last.src != nil {
		r.of[r.last] = r.seqs
	}
	r.last, r.seqs = k, r.of[k]
}

// send reports everything and empties r, whose memory stays for the next time.
func (r *reports) send() {
	if r.last.src == nil {
		return
	}
	r.swap(reportKey{})
	for k, seqs := range r.of {
		if len(seqs) > 0 && k.src.state.Load() != dropped {
			k.src.Settle(k.outcome, seqs)
		}
		if k.src.state.Load() == live && cap(seqs) < 1<<16 {
			r.of[k] = seqs[:0]
		} else {
			delete(r.of, k)
		}
	}
}

// bodyOf returns a copy of an encoded action's document, nil for a delete.
func bodyOf(wire []byte) []byte { return slices.Clone(bulk.Open(wire).Body) }
