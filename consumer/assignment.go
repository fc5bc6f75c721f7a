package consumer

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/offsets"
)

// batchRecords is the most records that the dispatcher takes from a queue at
// once: what one hold of the partition's lock pays for.
const batchRecords = 256

// batch is a part of one fetch.
type batch struct {
	recs  []*kgo.Record
	bytes int64 // of the budget
	data  int   // recs without the control records
	// passed, where it is set, is the end of a batch that an operator has
	// discarded; there are no recs then.
	passed int64
}

// assignment is one source partition for as long as it is held: from the
// assignment, or from a seek, to the revocation. It is the indexer.Source of
// its records; what settles after its end goes nowhere.
type assignment struct {
	c     *Consumer
	l     *ledger
	topic *topic
	id    int32

	// stopped tells the dispatcher to leave the partition alone: it halts or
	// is being released. It is set under l.mu and read without.
	stopped atomic.Bool
	// suspect has what is fetched thrown away until the log has been looked at:
	// a batch may have been cut short.
	suspect atomic.Bool

	// origin is the assignment that this one goes back to, through those that
	// started over; itself where it is the first.
	origin *assignment

	// The dispatcher's own: the generation of the records below genUntil.
	gen      int
	genUntil int64
	// Under dispatcher.mu: the dispatcher has been told of the queue.
	listed bool

	parking *parking // nil: nothing is parked

	// All below: under l.mu.

	// doubtful says that the partition may have been another member's meanwhile:
	// nothing is committed, it starts over.
	doubtful bool

	// epoch is that of the routing table under which records are mapped; 0: the
	// stream is not routed, or no table was read yet.
	epoch int64
	// admitted says that the table is not older than what the group has
	// committed: nothing is mapped or committed before. said says that a commit
	// names epoch. Both are true where the stream is not routed.
	admitted, said bool

	over    bool // it ended: outcomes are of no consequence any more
	tracker offsets.Tracker
	queue   []batch
	queued  int   // records in the queue
	bytes   int64 // their bytes
	fetched int64 // the next offset that a fetch may bring; -1: any
	marks   []mark

	// settled is closed when nothing is left to wait for; nil while nobody
	// waits.
	settled chan struct{}

	halt     *Halt // nil while it runs
	blockers []*blocker
	// skipped are records that an operator is skipping, or of which one side was
	// skipped; true: without a dead letter.
	skipped map[uint64]bool
	// stains are the customers of records that one side has rejected and that are
	// not known to be marked dirty.
	stains map[uint64]string
	// halves are the outcomes of records whose other target is not done yet, where
	// they decide what the record counts as.
	halves map[uint64]outcome

	committed int64 // what the broker has agreed to; -1: nothing
	start     int64 // log start
	nearStart bool  // what is not committed is among the oldest hour of the log
	end       int64 // log end: the last stable offset with read_committed

	fetchErrors int    // consecutive fetches that gave an error and no record
	denied      string // which right its fetches want, as of deniedAt; "": none
	deniedAt    time.Time
	retryFetch  time.Time
}

// mark says what is known of the records from offset on: the leader's epoch, -1
// where it is not known, and a timestamp, zero where there is none.
type mark struct {
	offset int64
	epoch  int32
	time   time.Time
}

// blocker is a record that its partition cannot pass without an operator.
type blocker struct {
	seq      uint64
	offset   int64
	kind     string
	letter   *deadletter.Letter
	bytes    int64 // of the budget
	skipping bool
}

// enqueue takes the records of one fetch. It reports whether the queue is now
// above the high mark, and a *logReset where the fetch begins below what was
// fetched already; the records are not taken then.
func (a *assignment) enqueue(recs []*kgo.Record) (full bool, err error) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.suspect.Load() {
		return false, nil // they are fetched again
	}
	if a.halt != nil && a.halt.Kind == HaltUndecodable && recs[len(recs)-1].Offset >= a.halt.Offset {
		// It was the network: what could not be read can.
		a.halt = nil
	}
	if a.over || a.stopped.Load() {
		// They were on their way before the pause; they are fetched again.
		return false, nil
	}
	if _, ok := a.tracker.Position(); !ok {
		a.tracker.Advance(recs[0].Offset)
	}
	next := a.fetched
	for _, r := range recs {
		if r.Offset < next {
			return false, &logReset{expected: next, got: r.Offset}
		}
		next = r.Offset + 1
	}
	a.fetched = next
	a.fetchErrors, a.denied = 0, ""
	for part := range slices.Chunk(recs, batchRecords) {
		b := batch{recs: part}
		for _, r := range part {
			if len(a.marks) == 0 || a.marks[len(a.marks)-1].epoch != r.LeaderEpoch {
				a.marks = append(a.marks, mark{r.Offset, r.LeaderEpoch, r.Timestamp})
			}
			if r.Attrs.IsControl() {
				continue
			}
			b.data++
			b.bytes += recordBytes(r)
		}
		if last := &a.marks[len(a.marks)-1]; last.offset < part[0].Offset {
			a.marks = append(a.marks, mark{part[0].Offset, last.epoch, part[0].Timestamp})
		}
		a.queue = append(a.queue, b)
		a.queued += b.data
		a.bytes += b.bytes
		a.l.consumed += uint64(b.data)
		a.c.charge(b.bytes)
	}
	return a.bytes > a.c.highMark, nil
}

// saw notes the ends of the log that a fetch brought. lost is how many offsets,
// from the next to fetch on, the log no longer has.
func (a *assignment) saw(p kgo.FetchPartition, committedOnly bool) (lost, from int64) {
	a.topic.sawEnd(p.HighWatermark)
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if committedOnly {
		a.end = p.LastStableOffset
	} else {
		a.end = p.HighWatermark
	}
	a.start = p.LogStartOffset
	if a.fetched >= 0 && a.start > a.fetched && !a.stopped.Load() {
		return a.start - a.fetched, a.fetched
	}
	return 0, 0
}

// recordOverhead is what a record takes beside its content: its struct and its
// slice entry.
const recordOverhead = 176

// recordBytes is what a record counts for in memory.
func recordBytes(r *kgo.Record) int64 {
	n := len(r.Key) + len(r.Value) + recordOverhead
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value) + 40
	}
	return int64(n)
}

// take moves the first batch of the queue to the tracker. first is the
// sequence number of its first record that is not a control record; more says
// that the queue is not empty yet, low that it has fallen to the low mark.
func (a *assignment) take() (b batch, first uint64, more, low, ok bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if len(a.queue) == 0 || a.stopped.Load() {
		return batch{}, 0, false, false, false
	}
	b = a.queue[0]
	a.queue[0] = batch{}
	a.queue = a.queue[1:]
	if len(a.queue) == 0 {
		a.queue = nil
	}
	a.queued -= b.data
	a.bytes -= b.bytes
	first = a.tracker.Next()
	if b.passed > 0 {
		a.tracker.Advance(b.passed)
	}
	for _, r := range b.recs {
		if r.Attrs.IsControl() {
			a.tracker.Advance(r.Offset + 1)
		} else {
			a.tracker.Deliver(r.Offset)
		}
	}
	return b, first, len(a.queue) > 0, a.bytes <= a.c.lowMark, true
}

// low says that the queue is at or below the low mark.
func (a *assignment) low() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.bytes <= a.c.lowMark
}

// undeliver takes back the records from seq on, which went nowhere.
func (a *assignment) undeliver(seq uint64) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over {
		return
	}
	a.l.counts[outAbandoned] += uint64(a.tracker.Undeliver(seq))
	a.forgetFetched()
	a.wakeIfSettled()
}

// dropQueue abandons what was fetched and not delivered; l.mu must be held.
func (a *assignment) dropQueue() {
	a.l.counts[outAbandoned] += uint64(a.queued)
	a.c.charge(-a.bytes)
	a.queue, a.queued, a.bytes = nil, 0, 0
	a.forgetFetched()
}

// forgetFetched moves the fetch position back to the tracker's; l.mu must be
// held.
func (a *assignment) forgetFetched() {
	if len(a.queue) > 0 {
		return
	}
	if position, ok := a.tracker.Position(); ok {
		a.fetched = position
		for n := len(a.marks); n > 0 && a.marks[n-1].offset >= position; n-- {
			a.marks = a.marks[:n-1]
		}
	}
}

// Settle implements indexer.Source.
func (a *assignment) Settle(o indexer.Outcome, seqs []uint64) { a.settle(outcomeOf(o), seqs...) }

// settle counts the records of seqs, one of whose targets is done with each.
func (a *assignment) settle(o outcome, seqs ...uint64) {
	a.l.mu.Lock()
	if a.over {
		a.l.mu.Unlock()
		return
	}
	handled, abandoned, err := a.tracker.Settle(seqs, o != outAbandoned)
	a.l.counts[o] += uint64(handled)
	a.l.counts[outAbandoned] += uint64(abandoned)
	a.countHalves(o, seqs)
	restart := abandoned > 0 && a.settled == nil
	a.wakeIfSettled()
	a.l.mu.Unlock()
	if err != nil {
		a.c.bug(a, err)
	}
	if restart {
		// Given up without our asking: only another delivery can handle it.
		a.c.restart(a, "records were given up by the indexer")
	}
}

// require has the record seq wait for targets settlements.
func (a *assignment) require(seq uint64, targets int) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.tracker.Require(seq, targets)
}

// countHalves sees to what a record with several targets counts as, of which one
// was settled with o: as dead-lettered, parked or ignored if one of them was,
// whichever came last; abandoned beats all. l.mu must be held.
func (a *assignment) countHalves(o outcome, seqs []uint64) {
	decides := o == outDeadLettered || o == outParked || o == outIgnored
	if !decides && len(a.halves) == 0 {
		return
	}
	for _, seq := range seqs {
		if a.tracker.Waits(seq) {
			if decides {
				if a.halves == nil {
					a.halves = make(map[uint64]outcome)
				}
				a.halves[seq] = o
			}
			continue
		}
		half, ok := a.halves[seq]
		if !ok {
			continue
		}
		delete(a.halves, seq)
		if o != outAbandoned {
			a.l.counts[o]--
			a.l.counts[half]++
		}
	}
}

// wakeIfSettled ends the wait of release once nothing but blockers is left;
// l.mu must be held.
func (a *assignment) wakeIfSettled() {
	if a.settled != nil && a.tracker.Waiting() <= len(a.blockers) {
		select {
		case <-a.settled:
		default:
			close(a.settled)
		}
	}
}

// Reject implements indexer.Source.
func (a *assignment) Reject(seq uint64, r *indexer.Rejection) {
	discard, skipped := a.skippedNow(seq)
	a.stain(seq, r)
	if discard || a.topic.rules.OnRejected() == document.Drop {
		a.ignore(seq)
		return
	}
	letter, ok := a.letter(seq, r)
	if !ok {
		return
	}
	if skipped {
		a.writeLetter(seq, letter)
		return
	}
	a.reject(seq, letter)
}

// skippedNow says whether an operator is skipping this record right now.
func (a *assignment) skippedNow(seq uint64) (discard, skipped bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	discard, skipped = a.skipped[seq]
	return discard, skipped
}

// Conflict implements indexer.Source.
func (a *assignment) Conflict(seq uint64, stored int64, r *indexer.Rejection) {
	if !a.topic.foreign(stored, r.Version) {
		a.settle(outStale, seq)
		return
	}
	// It may be that we know too little: see Consumer.settleConflicts.
	x := &conflict{of: a, topic: a.topic, seq: seq, stored: stored, r: r}
	a.c.o.Budget.Force(x.bytes())
	a.c.conflicts.add(x)
}

// reject sends a record that can never be indexed where `on_rejected` says.
func (a *assignment) reject(seq uint64, letter *deadletter.Letter) {
	switch a.topic.rules.OnRejected() {
	case document.Drop:
		a.ignore(seq)
	case document.ToDeadLetter:
		a.writeLetter(seq, letter)
	default:
		a.block(seq, letter, HaltRejected)
	}
}

// writeLetter settles the record once its letter is acknowledged.
func (a *assignment) writeLetter(seq uint64, letter *deadletter.Letter) {
	if a.c.o.DeadLetters == nil {
		a.block(seq, letter, HaltRejected)
		return
	}
	if customer, ok := a.takeStain(seq); ok {
		a.c.markFirst(a, seq, customer, func() { a.writeLetter(seq, letter) })
		return
	}
	if mutantLetter {
		a.settle(outDeadLettered, seq)
	}
	a.c.o.DeadLetters.Write(*letter, func(err error) {
		if mutantLetter {
			return
		}
		switch {
		case err == nil || mutantGivenUp && errors.Is(err, deadletter.ErrClosed):
			a.settle(outDeadLettered, seq)
		case errors.Is(err, deadletter.ErrOversize):
			letter.Type = "dead_letter_oversize"
			a.block(seq, letter, HaltRejected)
		case errors.Is(err, deadletter.ErrRefused):
			letter.Type = "dead_letter_refused"
			a.block(seq, letter, HaltRejected)
		default: // the writer was closed: the next owner delivers it again
			a.settle(outAbandoned, seq)
		}
	})
}

// letter builds the dead letter of a rejected action; false where the
// assignment is over.
func (a *assignment) letter(seq uint64, r *indexer.Rejection) (*deadletter.Letter, bool) {
	offset, ok := a.offset(seq)
	if !ok {
		return nil, false
	}
	return a.letterAt(offset, a.topic.newest(a.id, offset), r), true
}

// letterAt is the dead letter of a rejected action of the record at offset.
func (a *assignment) letterAt(offset int64, generation int, r *indexer.Rejection) *deadletter.Letter {
	m, err := decodeMeta(r.Meta)
	if err != nil { // the indexer hands back what it was given
		a.c.bug(a, err)
	}
	l := &deadletter.Letter{
		Topic:      a.l.topic,
		Partition:  a.id,
		Offset:     offset,
		Timestamp:  m.timestamp,
		Key:        m.key,
		Value:      r.Body,
		Headers:    m.headers,
		Reason:     r.Reason,
		Type:       r.Type,
		Status:     r.Status,
		Target:     r.Target,
		Side:       string(m.side),
		Attempts:   r.Attempts,
		Sequence:   r.Version,
		Generation: generation,
	}
	if m.ownValue {
		l.Value = m.value
	}
	return l
}

func (a *assignment) offset(seq uint64) (int64, bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over {
		return 0, false
	}
	return a.tracker.Offset(seq)
}

func letterBytes(l *deadletter.Letter) int64 {
	n := len(l.Key) + len(l.Value) + len(l.Reason) + 512
	for i := range l.Headers {
		n += len(l.Headers[i].Key) + len(l.Headers[i].Value) + 40
	}
	return int64(n)
}

// block halts the partition on a record: it stays unsettled until an operator
// skips it.
func (a *assignment) block(seq uint64, letter *deadletter.Letter, kind string) {
	b := &blocker{seq: seq, offset: letter.Offset, kind: kind, letter: letter, bytes: letterBytes(letter)}
	a.l.mu.Lock()
	if a.over {
		a.l.mu.Unlock()
		return
	}
	a.c.o.Budget.Force(b.bytes)
	i, _ := slices.BinarySearchFunc(a.blockers, b, func(x, y *blocker) int { return int(x.offset - y.offset) })
	a.blockers = slices.Insert(a.blockers, i, b)
	a.wakeIfSettled()
	a.l.mu.Unlock()
	a.c.halt(a, &Halt{Kind: kind, Offset: b.offset, Type: letter.Type, Target: letter.Target, Since: a.c.now()})
}

// blockedOn says whether a record of a target blocks the partition for a reason.
func (a *assignment) blockedOn(reason, target string) bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return slices.ContainsFunc(a.blockers, func(b *blocker) bool { return b.letter.Type == reason && b.letter.Target == target })
}

// stop makes the partition take no more; what is queued is abandoned. settled
// closes once nothing but blockers is left of what was delivered. The
// dispatcher may still hold a batch: see dispatcher.flush.
func (a *assignment) stop() (settled <-chan struct{}) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.stopped.Store(true)
	a.dropQueue()
	if a.settled == nil {
		a.settled = make(chan struct{})
	}
	a.wakeIfSettled()
	return a.settled
}

// forget ends the assignment: what is left is abandoned. It returns how many
// records that is.
func (a *assignment) forget() int {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over {
		return 0
	}
	a.stopped.Store(true)
	a.dropQueue()
	n := a.tracker.Outstanding()
	a.l.counts[outAbandoned] += uint64(n)
	a.over = true
	if a.l.cur == a {
		a.l.cur = nil
	}
	for _, b := range a.blockers {
		a.c.o.Budget.Give(b.bytes)
	}
	a.blockers = nil
	if a.settled != nil {
		select {
		case <-a.settled:
		default:
			close(a.settled)
		}
	}
	return n
}

// committable is what may be committed now, if that is more than what is; all
// says to return it even so.
func (a *assignment) committable(all bool) (at kgo.EpochOffset, ok bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over || a.doubtful || !a.admitted {
		return at, false
	}
	offset, ok := a.tracker.Committable()
	if mutantEarly {
		offset, ok = a.tracker.Position()
	}
	if !ok || offset < a.committed || offset == a.committed && !all && a.said {
		return at, false
	}
	at = kgo.EpochOffset{Epoch: a.epochOf(offset), Offset: offset}
	// Marks below the last one below offset have done their work.
	keep := 0
	for i := range a.marks {
		if a.marks[i].offset >= offset {
			break
		}
		keep = i
	}
	if keep > 0 {
		a.marks = slices.Delete(a.marks, 0, keep)
	}
	return at, true
}

// epochOf is the leader epoch to commit with offset, the committable one; -1:
// unknown. Brokers compare it with where that epoch ended, and call the log
// truncated if that is below offset. So it is the epoch of the record at offset,
// where there is one: of the record below it the log may hold no neighbour, but
// records of a later epoch that compaction took away. With nothing delivered at
// offset or above, the position follows the last record without a hole. l.mu
// must be held.
func (a *assignment) epochOf(offset int64) int32 {
	if position, ok := a.tracker.Position(); !ok || offset >= position {
		offset--
	}
	epoch := int32(-1)
	for i := range a.marks {
		if a.marks[i].offset > offset {
			break
		}
		epoch = a.marks[i].epoch
	}
	return epoch
}

// restartPoint is where a partition starts over: at the first record that is
// not handled, but not below what the group has committed. That can be more
// than this assignment handled, where another member had the partition
// meanwhile; what lies below is its affair.
func (a *assignment) restartPoint() (at kgo.EpochOffset, ok bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	offset, ok := a.tracker.Committable()
	if a.over || !ok {
		return at, false
	}
	if a.committed > offset {
		// What another member had before that is not ours to tell.
		return kgo.EpochOffset{Epoch: -1, Offset: a.committed}, true
	}
	return kgo.EpochOffset{Epoch: a.epochOf(offset), Offset: offset}, true
}

// commitAgreed notes what the broker says is committed; late says that the
// assignment, which waits for a commit of its own to begin, has none to make.
func (a *assignment) commitAgreed(offset int64) (late bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.committed = max(a.committed, offset)
	at, ok := a.tracker.Committable()
	return ok && !a.said && at < a.committed
}

// commitDone notes a commit of this assignment that the broker has acknowledged;
// first says that none before named the epoch.
func (a *assignment) commitDone(offset int64) (first bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.committed = max(a.committed, offset)
	first, a.said = !a.said, true
	return first
}
