package indexer

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unsafe"
)

// lane carries the ordered actions of one hash range of a target's ids, or all
// its unordered ones. An ordered lane is in at most one request at a time.
type lane struct {
	target  *target
	ordered bool
	busy    bool // in a batch
	ready   bool // in target.ready
	chunks  []*chunk
	bytes   int64
	docs    int
}

// waiting is an action that needs another try, with bytes of its own.
type waiting struct {
	entry
	target   *target
	wire     []byte
	meta     []byte
	due      time.Time     // when it goes even if nothing goes with it
	pause    time.Duration // before that, where the back-off is its own
	charged  int64
	attempts int    // requests that carried it so far
	refused  int    // verdicts itemSecondTry so far
	failed   int    // verdicts itemFailed so far
	accepted uint64 // target.accepted when it failed first
	queue    *idQueue
	inBatch  bool // its bytes are in the batch's chunk

	// An action that is suspected of spoiling its request is sent alone, from
	// due on.
	alone   bool
	blocked bool   // its request is never answered
	lone    bool   // its request was refused although it was alone
	mark    uint64 // target.accepted when that happened first
	others  uint64 // Indexer.accepted then
}

const waitingBytes = int64(unsafe.Sizeof(waiting{}))

// idQueue holds the actions on one id that wait, in order. While it exists the
// id is closed: later actions on it queue here. (It is keyed by the id's hash:
// two ids of one hash wait for each other needlessly, and rarely.)
type idQueue struct {
	target  *target
	hash    uint64
	ordered bool     // false: a lone action without order, in no map
	flights int      // batches that carry some of it; one more while solo waits
	solo    *waiting // the first of them, in target.solos
	items   []*waiting
	again   []*waiting // what batches brought back to be tried again
	behind  *batch     // carries, from its lane, an action of the id that comes before all of these
}

// hold says why a target is held.
type hold struct {
	kind    string // error type
	since   time.Time
	probeAt time.Time
	probing bool
	gate    bool // not probed: see admit
	// A hold of the rejection breaker ends after a run of accepted probes.
	breaker  bool
	accepted int
}

// target is an index, alias or data stream with all that is on its way there.
// Indexer.mu guards it.
type target struct {
	name      string
	all       *int64 // Indexer.queued
	queued    int64  // wire bytes in its lanes, ready or not, and in later
	width     int    // how many lanes there are; a power of two
	lanes     [laneCount]*lane
	unordered *lane
	later     []*chunk // wait for lanes of another width, in order; see turn

	// How many lanes it is worth; writers read it without the mutex. recent is
	// its part of Indexer.traffic, as of that period.
	wanted   atomic.Int32
	recent   int64
	recentAt uint64

	updates    bool    // some action was oncePerRequest
	ready      []*lane // idle lanes with chunks, oldest first
	readyBytes int64
	readyDocs  int

	queues    map[uint64]*idQueue // closed ids
	order     []*idQueue          // queues without flights, in order
	waitBytes int64               // of items of order
	waitDocs  int
	solos     []*waiting

	active bool // in Indexer.active

	label   string // of metrics
	writers int    // that have it open
	out     int    // chunks in batches
	quiet   int    // sweeps in a row that found nothing of it

	until   time.Time     // backs off until then
	pause   time.Duration // the last back-off
	backing bool          // counted as backing off
	hold    *hold

	accepted uint64 // actions that the server accepted
	answered uint64 // requests with an answer that was read whole

	breaker breaker

	asked  time.Time     // when its sources were asked last to park
	taking int           // calls of TakeBack that wait: nothing is sent
	onWire int           // batches under way that hold something of it
	landed chan struct{} // closed and nil when onWire falls to 0
}

func (t *target) lane(hash uint64, ordered bool) *lane {
	p := &t.unordered
	if ordered {
		p = &t.lanes[laneOf(hash, t.width)]
	}
	if *p == nil {
		*p = &lane{target: t, ordered: ordered}
	}
	return *p
}

// offer makes a lane ready if it has chunks and may be claimed.
func (t *target) offer(l *lane) {
	if l.ready || l.ordered && l.busy || len(l.chunks) == 0 {
		return
	}
	l.ready = true
	t.ready = append(t.ready, l)
	t.readyBytes += l.bytes
	t.readyDocs += l.docs
}

func (l *lane) push(c *chunk) {
	l.chunks = append(l.chunks, c)
	l.adjust(int64(len(c.wire)), len(c.entries))
	l.target.offer(l)
}

// pop takes the first chunk of a ready lane.
func (l *lane) pop() *chunk {
	c := l.chunks[0]
	l.chunks[0] = nil
	l.chunks = l.chunks[1:]
	if len(l.chunks) == 0 {
		l.chunks = nil
	}
	l.adjust(-int64(len(c.wire)), -len(c.entries))
	return c
}

// adjust keeps the sums that chunks of a lane count in.
func (l *lane) adjust(bytes int64, docs int) {
	l.target.tally(bytes)
	l.bytes += bytes
	l.docs += docs
	if l.ready {
		l.target.readyBytes += bytes
		l.target.readyDocs += docs
	}
}

// unready takes the first ready lane off the list.
func (t *target) unready() *lane {
	l := t.ready[0]
	t.ready[0] = nil
	t.ready = t.ready[1:]
	l.ready = false
	t.readyBytes -= l.bytes
	t.readyDocs -= l.docs
	return l
}

func (t *target) empty() bool {
	return len(t.ready) == 0 && len(t.later) == 0 && len(t.order) == 0 && len(t.solos) == 0
}

// idle says that nothing of the target is anywhere, and nobody has it open.
func (t *target) idle() bool {
	return t.writers == 0 && t.out == 0 && t.queued == 0 && t.empty() && len(t.queues) == 0 &&
		t.hold == nil && t.taking == 0
}

// closed returns the queue of an entry's id if the id is closed.
func (t *target) closed(e *entry) *idQueue {
	if !e.ordered || len(t.queues) == 0 || mutantOrder {
		return nil
	}
	return t.queues[e.hash]
}

// queue returns the queue of an entry's id, closing the id.
func (t *target) queue(e *entry) *idQueue {
	if q := t.closed(e); q != nil {
		return q
	}
	q := &idQueue{target: t, hash: e.hash, ordered: e.ordered}
	if e.ordered {
		if t.queues == nil {
			t.queues = make(map[uint64]*idQueue)
		}
		t.queues[e.hash] = q
	}
	return q
}

// wait queues w behind what waits on its id already.
func (t *target) wait(w *waiting) {
	q := t.queue(&w.entry)
	if len(q.items) == 0 && q.flights == 0 {
		t.order = append(t.order, q)
	}
	w.queue = q
	q.items = append(q.items, w)
	if q.flights == 0 {
		t.waitBytes += int64(len(w.wire))
		t.waitDocs++
	}
}

// waitAlone lets w be sent by itself from due on; nothing else of its id moves
// before it has ended. w is the first of its id, and its queue, if there is
// one, is in flight.
func (t *target) waitAlone(w *waiting, due time.Time) {
	w.queue = t.queue(&w.entry)
	w.queue.flights++
	w.queue.solo = w
	w.alone, w.due = true, due
	t.solos = append(t.solos, w)
}

// release ends one flight of a queue, and, if it was the last: what needs another try stands before what
// came meanwhile. A queue without actions opens its id.
func (t *target) release(q *idQueue) {
	if q.flights--; q.flights > 0 {
		return
	}
	q.items = append(q.again, q.items...)
	q.again, q.behind = nil, nil
	if len(q.items) == 0 {
		if q.ordered {
			delete(t.queues, q.hash)
		}
		return
	}
	t.order = append(t.order, q)
	for _, w := range q.items {
		t.waitBytes += int64(len(w.wire))
		t.waitDocs++
	}
}

// takeQueue takes the first waiting queue into flight and returns the actions
// that one request may hold of it: the first, and others up to so many bytes and
// docs.
func (t *target) takeQueue(bytes int64, docs int) (*idQueue, []*waiting) {
	q := t.order[0]
	t.order[0] = nil
	t.order = t.order[1:]
	for _, w := range q.items {
		t.waitBytes -= int64(len(w.wire))
		t.waitDocs--
	}
	q.flights++
	n := 1
	bytes -= int64(len(q.items[0].wire))
	for n < min(docs, len(q.items)) && !q.items[n-1].oncePerRequest() && !q.items[n].oncePerRequest() {
		if bytes -= int64(len(q.items[n].wire)); bytes < 0 {
			break
		}
		n++
	}
	taken := q.items[:n:n]
	q.items = q.items[n:]
	return q, taken
}

// backOff lets the target wait: at least as long as the server asked for, else
// decorrelated jitter ("Exponential Backoff And Jitter", AWS Architecture
// Blog, 2015). Several answers of one period count once.
func (t *target) backOff(now time.Time, asked, initial, most time.Duration) (entered bool) {
	if now.Before(t.until) && asked == 0 {
		return false
	}
	t.pause = jitter(t.pause, initial, most)
	t.until = now.Add(max(t.pause, asked))
	entered = !t.backing
	t.backing = true
	return entered
}

func jitter(last, initial, most time.Duration) time.Duration {
	upper := max(3*last, initial+1)
	return min(most, initial+rand.N(upper-initial+1))
}
