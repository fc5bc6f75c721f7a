package indexer

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/memory"
)

// Transport sends one HTTP request whose URL has a path only, and chooses the
// node. It tries once: the indexer owns the retries.
type Transport interface {
	Perform(*http.Request) (*http.Response, error)
}

// Options is what an Indexer works with. All but the functions and HeldBytes are required.
type Options struct {
	Transport        Transport
	Budget           *memory.Budget
	RequestTimeout   time.Duration
	CompressionLevel int // gzip, 0 is off
	// MaxShare of a target's records within five minutes may be rejected
	// before the target is held. 0 switches that off.
	MaxShare memory.Share
	// HeldBytes is how much the actions of held targets may fill before Add
	// waits, whatever its target: the records behind it are of all targets.
	// 0: no bound of its own.
	HeldBytes int64
	// Park has the sources of held targets asked to take their actions back
	// when those fill half of HeldBytes: see Parker.
	Park bool
	// Gate says whether a request may start; it must not block. While it does
	// not, nothing is sent: an owner without heartbeats may have lost its
	// partitions to another.
	Gate func() bool
	// Unordered says that the server may answer items out of order where a
	// request had documents that an ingest pipeline drops and others that it
	// fails: OpenSearch does (seen with 2.19.6). Such an answer then proves
	// nothing, and the request is split.
	Unordered func() bool
	// Reload is called, without locks, after the server refused the credentials.
	Reload func()
	Log    zerolog.Logger
}

const (
	// probeEvery is how often a held target is tried with one action.
	probeEvery = time.Second
	// outagePing is how often the server is asked for a sign of life.
	outagePing = 2 * time.Second
	// gatePoll is how soon a closed gate is looked at again.
	gatePoll = 200 * time.Millisecond
	// leastBody is as far as answers 413 take down what a request may hold.
	leastBody = 64 << 10
)

// Indexer is the pool. Make it with New; Close ends it.
type Indexer struct {
	cfg     Config
	opt     Options
	log     zerolog.Logger
	chunks  *chunkPool
	metrics *metrics

	ctx    context.Context // ends the requests in flight
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	cond     sync.Cond // there is something to do, or to stop for
	closed   bool
	timer    *time.Timer
	timerAt  time.Time // zero: not armed
	sources  map[Source]*source
	targets  map[string]*target
	active   []*target // those with something ready or waiting
	cursor   int       // where the next scan of active begins
	answered []*batch
	delayed  []*batch // whole requests that are sent again when due
	inFlight int      // permits taken: batches claimed and not finished
	onWire   int      // of them, those that do not wait to be sent again
	limiter  *limiter
	workers  int // running
	scaler   scaler
	starved  int // writers that wait for memory
	draining int // sources that drain
	unseen   int64
	burst    bool      // the last flush was a full one
	dryAt    time.Time // when a burst has ended if nothing more is published
	free     []*batch
	packs    sync.Pool     // of *[]byte: batch.packed
	large    chan struct{} // of capacity 1: full while a batch has an answer that is not small
	parkWake chan struct{} // of capacity 1: held targets fill too much

	accepted   uint64 // actions that the server accepted
	bodyLimit  int64  // most wire bytes of one request; learnt from 413
	holdAll    string // why nothing is sent
	holdSince  time.Time
	probeAt    time.Time   // when the next request may go although all is held
	probing    bool        // one is out
	newIndices []time.Time // when new time-named indices were let through, within the last hour
	wholeOf    *target     // of which actions went through last, none turned away
	wholeAt    time.Time
	refusedOf  *target   // of the last lone action whose request was refused; nil once anything is accepted
	outage     bool      // the server does not answer
	lives      uint64    // signs of life of the server
	swept      time.Time // when targets that are quiet were last looked for
	silent     int       // batches that were not answered silentTries times or more
	traffic    traffic
	queued     int64         // wire bytes in lanes, or waiting for them
	holds      int           // targets held
	heldOver   bool          // held targets fill their share
	room       chan struct{} // closed and nil when Add need not wait; see checkRoom
	blockedOn  int           // actions whose request is never answered
}

// New returns a running indexer.
func New(cfg Config, opt Options) *Indexer {
	if opt.Gate == nil {
		opt.Gate = func() bool { return true }
	}
	if opt.Unordered == nil {
		opt.Unordered = func() bool { return false }
	}
	if opt.Reload == nil {
		opt.Reload = func() {}
	}
	share := opt.Budget.Limit() / 2
	if opt.CompressionLevel > 0 {
		share /= 2 // what does not shrink is held twice
	}
	x := &Indexer{
		cfg: cfg, opt: opt, log: opt.Log,
		chunks: &chunkPool{
			child:   opt.Budget.Child(min(pieceBytes, max(opt.Budget.Limit()/256, 1))),
			budget:  opt.Budget,
			share:   share,
			reserve: min(2*int64(cfg.FlushBytes), opt.Budget.Limit()/4),
		},
		metrics:   newMetrics(),
		sources:   make(map[Source]*source),
		targets:   make(map[string]*target),
		large:     make(chan struct{}, 1),
		limiter:   newLimiter(cfg.Requests.Min, cfg.Requests.Max),
		bodyLimit: int64(cfg.FlushBytes),
		parkWake:  make(chan struct{}, 1),
		traffic:   traffic{period: 1},
	}
	x.cond.L = &x.mu
	x.ctx, x.cancel = context.WithCancel(context.Background())
	x.timer = time.AfterFunc(time.Hour, x.tick)
	x.timer.Stop()
	x.scaler = newScaler(cfg.Scaling, runtime.GOMAXPROCS(0), time.Now())
	if opt.Park {
		x.wg.Go(x.ask)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resize()
	return x
}

// Close stops the indexers and ends the requests in flight; nothing more is
// reported to any source. It is safe to call twice. Sources that should be
// heard out are drained first.
func (x *Indexer) Close() {
	x.mu.Lock()
	x.closed = true
	x.timer.Stop()
	if x.room != nil {
		close(x.room)
		x.room = nil
	}
	x.cond.Broadcast()
	x.mu.Unlock()
	x.cancel()
	x.wg.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.giveBack()
	x.chunks.close()
}

// giveBack returns everything that a closed indexer still holds to the budget.
func (x *Indexer) giveBack() {
	for _, b := range slices.Concat(x.answered, x.delayed) {
		x.letGo(b)
	}
	x.answered, x.delayed = nil, nil
	for _, t := range x.targets {
		for c := range t.chunks {
			x.chunks.put(c)
		}
		t.lanes, t.unordered, t.later = [laneCount]*lane{}, nil, nil
		for _, q := range t.order {
			for _, w := range q.items {
				x.freeWaiting(w)
			}
		}
		for _, w := range t.solos {
			x.freeWaiting(w)
		}
		t.order, t.solos = nil, nil
	}
}

// tick is the timer's: some moment that a worker waits for has come.
func (x *Indexer) tick() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.timerAt = time.Time{}
	x.cond.Broadcast()
}

// wakeAt makes sure that the workers look again at time at, if it is set.
func (x *Indexer) wakeAt(at time.Time) {
	if at.IsZero() || x.closed || !x.timerAt.IsZero() && !at.Before(x.timerAt) {
		return
	}
	x.timerAt = at
	x.timer.Reset(time.Until(at))
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// source returns what is kept of a source, from its first action on.
func (x *Indexer) source(s Source) (*source, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, ErrClosed
	}
	src := x.sources[s]
	if src == nil {
		src = &source{Source: s}
		x.sources[s] = src
	}
	return src, nil
}

func (x *Indexer) target(name string, newPerHour int) *target {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.targets[name]
	if t == nil {
		// The caller's text may be a view of something larger.
		t = &target{name: strings.Clone(name), all: &x.queued}
		t.begin(len(x.targets))
		t.label = x.metrics.label(t.name)
		x.targets[t.name] = t
		if newPerHour > 0 && !x.closed {
			x.admit(t, newPerHour)
		}
	}
	t.writers++
	return t
}

// quietSweeps without anything of a target end it: its rejection breaker, which
// looks back for breakerWindow, has nothing left to remember either.
const quietSweeps = int(breakerWindow/sweepEvery) + 1

// sweep takes the targets that a writer has closed, and forgets those that have
// been quiet for long: of targets that are named by time or by customer there
// would else be ever more.
func (x *Indexer) sweep(closed []*target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, t := range closed {
		t.writers--
	}
	// Once a minute or so, however many writers sweep.
	if now := time.Now(); now.Sub(x.swept) >= sweepEvery/2 {
		x.swept = now
	} else {
		return
	}
	for name, t := range x.targets {
		if !t.idle() || t == x.wholeOf || t == x.refusedOf {
			t.quiet = 0
			continue
		}
		if t.quiet++; t.quiet < quietSweeps {
			continue
		}
		delete(x.targets, name)
		x.metrics.retire(t.label)
		if t.backing {
			x.metrics.backingOff.Dec()
		}
	}
	if x.wholeOf != nil && x.wholeOf.writers == 0 {
		x.wholeOf = nil
	}
}

// publish queues a chunk in its lane.
func (x *Indexer) publish(t *target, c *chunk) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		x.chunks.put(c)
		return
	}
	isDropped := func(e entry) bool { return e.src.state.Load() == dropped }
	if slices.ContainsFunc(c.entries, isDropped) {
		c.remove(func(e *entry, _, _ []byte) bool { return isDropped(*e) })
		if len(c.entries) == 0 {
			x.chunks.put(c)
			return
		}
	}
	t.updates = t.updates || c.updates
	x.measure(t, int64(len(c.wire)))
	t.put(c)
	x.activate(t)
	x.unseen += int64(len(c.wire))
	if x.unseen >= int64(x.cfg.FlushBytes)/4 || x.full(t.readyBytes, t.readyDocs) || x.starved > 0 || x.draining > 0 || t.turning() {
		x.unseen = 0
		x.cond.Signal()
	}
	x.dryAt = time.Now().Add(x.cfg.FlushInterval / dryShare)
	x.wakeAt(earlier(x.dryAt, c.born.Add(x.cfg.FlushInterval)))
	x.checkRoom()
}

// dryShare: a burst has ended when nothing has come for this part of the flush
// interval. What is left of it does not wait any longer.
const dryShare = 10

// backlog is how many full batches may wait in lanes beyond half as many again
// as there are permits: some of the lanes are busy, and batches that are cut
// short for want of idle ones mislead the limiter. More would not make the
// server faster, only the process larger.
const backlog = 4

// checkRoom looks whether Add has to wait: held targets fill their share, or
// the indexers have all that they can use for a while.
func (x *Indexer) checkRoom() {
	var held, heldQueued int64
	if x.holds > 0 {
		for _, t := range x.active {
			if t.hold != nil {
				held += t.queued + t.waitBytes
				heldQueued += t.queued
			}
		}
	}
	over := !x.closed && x.opt.HeldBytes > 0 && held > x.opt.HeldBytes
	if over && !x.heldOver {
		x.log.Warn().Int64("bytes", held).
			Msg("held targets fill their share of memory (memory.held_share): reading pauses until one is released")
	}
	x.heldOver = over
	if x.opt.Park && held > x.opt.HeldBytes/parkShare {
		select {
		case x.parkWake <- struct{}{}:
		default:
		}
	}
	enough := !x.closed && x.queued-heldQueued > int64(x.limiter.current()*3/2+backlog)*x.bodyLimit
	switch {
	case (over || enough) && x.room == nil:
		x.room = make(chan struct{})
	case !over && !enough && x.room != nil:
		close(x.room)
		x.room = nil
	}
}

// noRoom returns a channel that is closed when Add need not wait any more; nil:
// it need not.
func (x *Indexer) noRoom() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.room
}

func (x *Indexer) activate(t *target) {
	if !t.active && !t.empty() {
		t.active = true
		x.active = append(x.active, t)
	}
}

// pressure counts the writers that wait for memory: while there are any, every
// chunk is due.
func (x *Indexer) pressure(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.starved += n
	if n > 0 {
		x.cond.Broadcast()
	}
}

// Drain ends a source softly, without waiting: what is queued is sent now, and
// what waits for another try, then or later, is reported as abandoned. Publish
// before.
func (x *Indexer) Drain(s Source) {
	var r reports
	defer r.send()
	x.mu.Lock()
	defer x.mu.Unlock()
	src := x.sources[s]
	if src == nil || !src.state.CompareAndSwap(live, draining) {
		return
	}
	x.draining++
	x.forgetWaiting(src, &r)
	x.cond.Broadcast()
}

// Drop ends a source at once: nothing of it is sent any more but what is on
// the wire, and nothing is reported to it after Drop has returned but what is
// being reported right now. A source is dropped once and never used again.
func (x *Indexer) Drop(s Source) {
	x.mu.Lock()
	defer x.mu.Unlock()
	src := x.sources[s]
	if src == nil {
		return
	}
	delete(x.sources, s)
	if src.state.Swap(dropped) == draining {
		x.draining--
	}
	x.forgetWaiting(src, nil)
	mine := func(e *entry) bool { return e.src == src }
	for _, t := range x.targets {
		for _, l := range append(t.lanes[:], t.unordered) {
			if l != nil {
				x.filterLane(l, mine, nil)
			}
		}
		x.filterLater(t, mine, nil)
	}
	x.cond.Signal() // lanes may have changed
	x.checkRoom()
}

// forgetWaiting takes everything of src out that waits for another try,
// including what its held targets have queued, and adds it to r as abandoned.
func (x *Indexer) forgetWaiting(src *source, r *reports) {
	mine := func(e *entry) bool { return e.src == src }
	for _, t := range x.targets {
		x.takeOut(t, t.hold != nil, mine, func(e *entry, _, _ []byte, _ int) { r.add(e, Abandoned) })
	}
	x.checkRoom()
	for _, b := range x.delayed {
		for _, f := range b.refs {
			if e := f.entry(); !e.done && mine(e) {
				e.done = true
				r.add(e, Abandoned)
			}
		}
	}
}

// endSolo takes back what waitAlone and the blocked mark did.
func (x *Indexer) endSolo(w *waiting) {
	w.queue.solo = nil
	x.unblock(w)
}

// unblock takes back the blocked mark, which an action has until it is answered
// or goes.
func (x *Indexer) unblock(w *waiting) {
	if w.blocked {
		w.blocked = false
		x.blockedOn--
	}
}

// leaver is told of each action that is taken out, whose bytes are about to go,
// and how many requests carried it.
type leaver func(e *entry, wire, meta []byte, attempts int)

// takeOut takes those actions out of a target that wait for another try, and
// with lanes those in lanes that no request holds.
func (x *Indexer) takeOut(t *target, lanes bool, gone func(*entry) bool, leaves leaver) {
	t.order = slices.DeleteFunc(t.order, func(q *idQueue) bool {
		for _, w := range q.items {
			t.waitBytes -= int64(len(w.wire))
			t.waitDocs--
		}
		q.items = x.filterWaiting(q.items, gone, leaves)
		for _, w := range q.items {
			t.waitBytes += int64(len(w.wire))
			t.waitDocs++
		}
		if len(q.items) == 0 && q.ordered {
			delete(t.queues, q.hash)
		}
		return len(q.items) == 0
	})
	for _, q := range t.queues {
		if q.flights > 0 {
			q.items = x.filterWaiting(q.items, gone, leaves)
			q.again = x.filterWaiting(q.again, gone, leaves)
		}
	}
	solos := t.solos
	t.solos = x.filterWaiting(slices.Clone(solos), gone, leaves)
	for _, w := range solos {
		if gone(&w.entry) {
			x.endSolo(w)
			t.release(w.queue)
		}
	}
	if lanes {
		for _, l := range append(t.lanes[:], t.unordered) {
			if l != nil && (!l.ordered || !l.busy) {
				x.filterLane(l, gone, leaves)
			}
		}
		x.filterLater(t, gone, leaves)
	}
	x.activate(t)
}

func (x *Indexer) filterWaiting(items []*waiting, gone func(*entry) bool, leaves leaver) []*waiting {
	return slices.DeleteFunc(items, func(w *waiting) bool {
		if !gone(&w.entry) {
			return false
		}
		leaves(&w.entry, w.wire, w.meta, w.attempts)
		x.freeWaiting(w)
		return true
	})
}

func (x *Indexer) filterLane(l *lane, gone func(*entry) bool, leaves leaver) {
	l.chunks = x.filterChunks(l.chunks, gone, leaves, l.adjust)
	if l.ready && len(l.chunks) == 0 {
		l.ready = false
		l.target.ready = slices.DeleteFunc(l.target.ready, func(o *lane) bool { return o == l })
	}
}

// filterLater is filterLane for what waits for other lanes. It comes after the
// lanes: they may be empty by now.
func (x *Indexer) filterLater(t *target, gone func(*entry) bool, leaves leaver) {
	t.later = x.filterChunks(t.later, gone, leaves, func(bytes int64, _ int) { t.tally(bytes) })
	t.turn()
}

func (x *Indexer) filterChunks(chunks []*chunk, gone func(*entry) bool, leaves leaver, adjust func(bytes int64, docs int)) []*chunk {
	return slices.DeleteFunc(chunks, func(c *chunk) bool {
		bytes, docs := len(c.wire), len(c.entries)
		c.remove(func(e *entry, wire, meta []byte) bool {
			if !gone(e) {
				return false
			}
			if leaves != nil {
				leaves(e, wire, meta, 0)
			}
			return true
		})
		adjust(int64(len(c.wire)-bytes), len(c.entries)-docs)
		if len(c.entries) > 0 {
			return false
		}
		x.chunks.put(c)
		return true
	})
}

// Skip takes the actions of a record (under dual write there are two) that are
// held or wait for another try out of the way and reports each as rejected,
// with type "skipped". It says whether there was one.
func (x *Indexer) Skip(s Source, seq uint64) (skipped bool) {
	for {
		x.mu.Lock()
		w := x.takeWaiting(s, seq)
		x.mu.Unlock()
		if w == nil {
			return skipped
		}
		skipped = true
		r := &Rejection{
			Target: w.target.name, Type: "skipped", Reason: "skipped by an operator",
			Attempts: w.attempts, Version: w.version,
			Meta: slices.Clone(w.meta), Body: bodyOf(w.wire),
		}
		x.freeWaiting(w)
		x.metrics.ended(w.target, "rejected", 1)
		s.Reject(seq, r)
	}
}

func (x *Indexer) takeWaiting(s Source, seq uint64) *waiting {
	src := x.sources[s]
	if src == nil {
		return nil
	}
	is := func(w *waiting) bool { return w.src == src && w.seq == seq }
	for _, t := range x.targets {
		if i := slices.IndexFunc(t.solos, is); i >= 0 {
			w := t.solos[i]
			t.solos = slices.Delete(t.solos, i, i+1)
			x.endSolo(w)
			t.release(w.queue)
			x.activate(t)
			return w
		}
		for k, q := range t.order {
			i := slices.IndexFunc(q.items, is)
			if i < 0 {
				continue
			}
			w := q.items[i]
			q.items = slices.Delete(q.items, i, i+1)
			t.waitBytes -= int64(len(w.wire))
			t.waitDocs--
			if len(q.items) == 0 {
				t.order = slices.Delete(t.order, k, k+1)
				if q.ordered {
					delete(t.queues, q.hash)
				}
			}
			return w
		}
	}
	return nil
}

// Release lets a held target go, as an operator's word that its cause is gone;
// if it is not, the target is held again. It says whether it was held.
func (x *Indexer) Release(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.targets[name]
	if t == nil || t.hold == nil {
		return false
	}
	t.breaker = breaker{}
	x.unhold(t)
	x.cond.Broadcast()
	return true
}

// Status returns what the indexer is doing.
func (x *Indexer) Status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Status{
		HoldAll: x.holdAll, BlockedOn: x.blockedOn, InFlight: x.inFlight,
		RequestsLimit: x.limiter.current(), Indexers: x.workers, Bytes: x.chunks.held.Load(),
		Throttled: x.scaler.throttled(time.Now()),
	}
	if x.holdAll != "" {
		s.HoldAllSince = x.holdSince.UnixMilli()
	}
	for _, t := range x.targets {
		if t.hold != nil {
			held := HeldTarget{
				Target: t.name, Type: t.hold.kind, Since: t.hold.since.UnixMilli(),
				Bytes: t.waitBytes + t.readyBytes,
			}
			for _, c := range t.later {
				held.Bytes += int64(len(c.wire))
			}
			s.Held = append(s.Held, held)
		}
	}
	slices.SortFunc(s.Held, func(a, b HeldTarget) int { return strings.Compare(a.Target, b.Target) })
	return s
}
