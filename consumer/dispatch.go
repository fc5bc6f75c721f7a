package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
)

// publishEvery is the longest that an action stays with the writer while the
// input does not run dry.
const publishEvery = 100 * time.Millisecond

// Writer takes actions; *indexer.Writer is one. One goroutine uses it.
type Writer interface {
	// Add takes an action and keeps nothing of it. It waits while memory is
	// full, until ctx ends; an error means that the action was not taken.
	Add(ctx context.Context, a *indexer.Action) error
	// Publish hands on what was taken.
	Publish()
}

// dispatcher takes batches from the queues of the partitions in turn, maps
// their records and hands the actions to the writer. It is the one goroutine
// that may wait for memory.
type dispatcher struct {
	c *Consumer
	w Writer

	wake chan struct{} // there is something to do

	mu sync.Mutex
	// held says that nothing is to be taken: see hold.
	held bool
	// ring holds the assignments whose queue is not empty, each once.
	ring []*assignment
	// flushes are closed after a publish, once no stopped assignment is in
	// hand.
	flushes []chan struct{}
	// pace ends when it is time to publish, or when somebody must not wait for
	// a full memory: see interrupt.
	pace   context.Context
	cancel context.CancelFunc

	// The goroutine's own.

	dirty  bool // something was added since the last publish
	result document.Result
	action indexer.Action
	meta   []byte
	done   []uint64 // records of the batch in hand that are ignored
}

func newDispatcher(c *Consumer, w Writer) *dispatcher {
	d := &dispatcher{c: c, w: w, wake: make(chan struct{}, 1)}
	d.newPace()
	return d
}

// run ends with ctx; what is queued then stays queued.
func (d *dispatcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		a, dry := d.next()
		if a == nil {
			d.publish()
			if dry {
				select {
				case <-d.wake:
				case <-ctx.Done():
				}
			}
			continue
		}
		d.batch(ctx, a)
		if d.pace.Err() != nil {
			d.publish()
		}
	}
	d.publish()
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
}

// ready puts an assignment whose queue is not empty into the ring.
func (d *dispatcher) ready(as ...*assignment) {
	d.mu.Lock()
	for _, a := range as {
		if !a.listed {
			a.listed = true
			d.ring = append(d.ring, a)
		}
	}
	d.mu.Unlock()
	d.signal()
}

func (d *dispatcher) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// next is whose turn it is; nil where somebody waits for a publish, or where
// the input is dry.
func (d *dispatcher) next() (a *assignment, dry bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.flushes) > 0 {
		return nil, false
	}
	if len(d.ring) == 0 || d.held {
		return nil, true
	}
	a = d.ring[0]
	copy(d.ring, d.ring[1:])
	d.ring[len(d.ring)-1] = nil
	d.ring = d.ring[:len(d.ring)-1]
	a.listed = false
	return a, false
}

// flush returns a channel that is closed when everything that was dispatched
// is published and the dispatcher holds nothing of an assignment that was
// stopped before the call.
func (d *dispatcher) flush() <-chan struct{} {
	done := make(chan struct{})
	d.mu.Lock()
	d.flushes = append(d.flushes, done)
	d.cancel()
	d.mu.Unlock()
	d.signal()
	return done
}

// hold has nothing taken from any queue until it is called with false. What is in
// hand goes on: see flush.
func (d *dispatcher) hold(on bool) {
	d.mu.Lock()
	d.held = on
	d.mu.Unlock()
	d.signal()
}

// newPace starts the time to the next publish.
func (d *dispatcher) newPace() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
	d.pace, d.cancel = context.WithTimeout(context.Background(), publishEvery)
}

// publish hands on what was added and answers those who wait for that. No
// batch may be in hand but one whose assignment is not stopped.
func (d *dispatcher) publish() {
	d.mu.Lock()
	flushes := d.flushes
	d.flushes = nil
	d.mu.Unlock()
	d.handOn(flushes)
}

// publishHolding is publish in the middle of a batch of a. It reports false,
// and answers nobody, where a was stopped.
func (d *dispatcher) publishHolding(a *assignment) bool {
	d.mu.Lock()
	flushes := d.flushes
	// Whoever waits for a's release stopped it before it asked for the flush,
	// so a stop that matters is visible now.
	if a.stopped.Load() {
		d.mu.Unlock()
		return false
	}
	d.flushes = nil
	d.mu.Unlock()
	d.handOn(flushes)
	return true
}

func (d *dispatcher) handOn(flushes []chan struct{}) {
	if d.dirty || len(flushes) > 0 {
		d.w.Publish()
		d.dirty = false
	}
	for _, f := range flushes {
		close(f)
	}
	if d.pace.Err() != nil {
		d.newPace()
	}
}

// batch dispatches the first batch of a's queue.
func (d *dispatcher) batch(ctx context.Context, a *assignment) {
	b, seq, more, low, ok := a.take()
	if !ok {
		return
	}
	if more {
		d.ready(a)
	}
	if low {
		d.c.pauses.clear(pauseFull, a)
	}
	d.records(ctx, a, b.recs, seq)
	if len(d.done) > 0 {
		a.settle(outIgnored, d.done...)
		d.done = d.done[:0]
	}
	for _, r := range b.recs {
		r.Recycle()
	}
	d.c.charge(-b.bytes)
	d.c.checkMemory()
}

// records maps and sends recs; seq is the sequence number of the first that is
// not a control record. Where the assignment is stopped it takes back the rest.
func (d *dispatcher) records(ctx context.Context, a *assignment, recs []*kgo.Record, seq uint64) {
	needs := a.topic.rules.NeedsGeneration()
	for _, r := range recs {
		if r.Attrs.IsControl() {
			continue
		}
		if a.stopped.Load() {
			a.undeliver(seq)
			return
		}
		if needs && r.Offset >= a.genUntil {
			a.gen, a.genUntil = a.topic.generationOf(a.id, r.Offset)
			if mutantBorder && a.genUntil < math.MaxInt64 {
				a.genUntil++
			}
		}
		if !d.record(ctx, a, r, seq) {
			a.undeliver(seq)
			return
		}
		seq++
	}
}

// record maps one record; false: it went nowhere, and its assignment is
// stopped.
func (d *dispatcher) record(ctx context.Context, a *assignment, r *kgo.Record, seq uint64) bool {
	res := &d.result
	if n := int64(len(r.Key) + len(r.Value)); d.c.o.MaxRecord > 0 && n > d.c.o.MaxRecord {
		res.Verdict, res.Type, res.Action = document.Reject, "record_too_large", bulk.Action{}
		res.Reason = fmt.Sprintf("the record has %d bytes, memory.max_record allows %d", n, d.c.o.MaxRecord)
	} else {
		a.topic.rules.Map(r, a.gen, res)
	}
	switch res.Verdict {
	case document.Send:
		return d.send(ctx, a, r, seq)
	case document.Ignore:
		d.done = append(d.done, seq)
	case document.DeadLetter:
		a.writeLetter(seq, letterOf(r, res, a.gen))
	case document.Halt:
		a.block(seq, letterOf(r, res, a.gen), HaltRejected)
	default:
		a.reject(seq, letterOf(r, res, a.gen))
	}
	return true
}

func (d *dispatcher) send(ctx context.Context, a *assignment, r *kgo.Record, seq uint64) bool {
	res := &d.result
	flags := sideFlags(res.Side)
	if res.Twin.Op == 0 {
		return d.sendTo(ctx, a, r, seq, &res.Action, res.Tombstone, res.Changed, flags)
	}
	a.require(seq, 2)
	if !d.sendTo(ctx, a, r, seq, &res.Action, res.Tombstone, res.Changed, flags|metaTwin) {
		return false
	}
	// Where the document is a tombstone on one side only, neither body is the
	// record's value.
	changed := res.Changed || res.TwinTombstone != res.Tombstone
	if !d.sendTo(ctx, a, r, seq, &res.Twin, res.TwinTombstone, changed, sideFlags(document.SideNew)|metaTwin) {
		// One side has it. The assignment is stopped, and the record comes again.
		a.settle(outAbandoned, seq)
	}
	return true
}

// sendTo sends one of a record's actions; false as in record.
func (d *dispatcher) sendTo(ctx context.Context, a *assignment, r *kgo.Record, seq uint64, action *bulk.Action, tombstone, changed bool, flags byte) bool {
	d.meta = d.meta[:0]
	if a.topic.rules.OnRejected() != document.Drop || a.parking != nil || flags&metaTwin != 0 {
		d.meta = appendSideMeta(d.meta, r, changed, flags, d.result.Customer)
	}
	d.action = indexer.Action{Action: *action, Ordered: d.result.Ordered, Tombstone: tombstone, Source: a, Seq: seq, Meta: d.meta}
	if perHour, ok := a.topic.rules.TimeNamed(); ok {
		d.action.NewPerHour = perHour
	}
	for {
		var err error
		if l := a.lane(d.action.Target); l != nil {
			switch err = d.park(a, l, r, seq, sideOf(flags)); {
			case err == nil:
				return true
			case errors.Is(err, errLaneClosed):
				continue // it passes by
			}
		} else if err = d.w.Add(d.pace, &d.action); err == nil {
			d.dirty = true
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			d.c.fail(fmt.Errorf("consumer: the indexer takes no more actions: %w", err))
			a.stopped.Store(true)
			return false
		}
		// Memory is full. What is open is published, so that it can leave;
		// whoever releases a partition gets it.
		if !d.publishHolding(a) {
			return false
		}
	}
}

// errLaneClosed says that a lane takes no more records.
var errLaneClosed = errors.New("consumer: the lane is closed")

// park hands a record to a lane. While too much waits to be parked it waits,
// until it is time to publish.
func (d *dispatcher) park(a *assignment, l *lane, r *kgo.Record, seq uint64, side document.Side) error {
	for {
		freed := d.c.o.Budget.Freed()
		switch l.push(r, a.gen, seq, side, d.result.Twin.Op != 0) {
		case taken:
			return nil
		case laneGone:
			return errLaneClosed
		}
		select {
		case <-freed:
		case <-d.pace.Done():
			return context.Cause(d.pace)
		}
	}
}

// letterOf is the dead letter of a record that was never sent. It copies: the
// record's memory is used again.
func letterOf(r *kgo.Record, res *document.Result, gen int) *deadletter.Letter {
	l := &deadletter.Letter{
		Topic:      r.Topic,
		Partition:  r.Partition,
		Offset:     r.Offset,
		Timestamp:  r.Timestamp,
		Key:        cloneBytes(r.Key),
		Value:      cloneBytes(r.Value),
		Reason:     res.Reason,
		Type:       res.Type,
		Target:     strings.Clone(res.Action.Target),
		Generation: gen,
	}
	for _, h := range r.Headers {
		l.Headers = append(l.Headers, kgo.RecordHeader{Key: h.Key, Value: cloneBytes(h.Value)})
	}
	return l
}

// cloneBytes keeps nil, which is a null, apart from empty.
func cloneBytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}
