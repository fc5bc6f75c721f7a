package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
)

const (
	// A lane replays one record until it is written; then, as long as all goes
	// well, laneFirst bytes at once, and from there up to laneMost.
	laneFirst  = 64 << 10
	laneMost   = 8 << 20
	laneGrowth = 8
	// laneSave is how often it is noted how far a lane was replayed.
	laneSave = 10 * time.Second
	// laneRetry is the pause after a read that failed.
	laneRetry = time.Second
)

// lane is a target of one source partition whose records are parked: a queue
// whose tail is the parked topic and whose head is in the indexer.
//
// Two goroutines serve it. The first opens it and appends what is pending. The
// second replays, and closes it when it is drained.
type lane struct {
	p      *parking
	target string
	more   chan struct{} // of capacity 1: there is something to append
	turn   chan struct{} // of capacity 1: something may be replayed, or the lane closed

	mu      sync.Mutex
	at      deadletter.ParkedLane
	pending []pending // to be appended, in order
	wire    int       // records that are being appended
	tail    int64     // what was parked ends here
	opened  bool      // the state says so and the indexer has given back what it had
	closing bool      // the state is about to say, or says, that it is closed
	closed  bool      // records pass by again
	gone    bool      // what was parked is not there any more: see resume
	stopped bool
	hurry   context.CancelCauseFunc // ends the wait for what is on the wire; nil: nobody waits
	batch   *replay                 // in hand
	trouble string

	// Of the goroutine that asks Kafka at the time: it failed when it last did.
	failing bool
}

// pending is a record to be parked.
type pending struct {
	deadletter.Parked
	seq  uint64
	size int64
}

func newLane(p *parking, target string, at deadletter.ParkedLane) *lane {
	return &lane{p: p, target: target, at: at, more: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// pushed is what became of a record that was offered to a lane.
type pushed uint8

const (
	taken    pushed = iota
	laneGone        // the lane is closed: the record passes by
	laneFull        // too much waits to be parked
)

// push takes a record, of which it keeps a copy.
func (l *lane) push(r *kgo.Record, generation int, seq uint64, side document.Side, twin bool) pushed {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return laneGone
	case l.stopped:
		return taken // and abandoned with all else: the assignment is about to end
	case l.p.c.parkedPending.Load() > l.p.c.parkedMost():
		return laneFull
	}
	x := pending{seq: seq, Parked: deadletter.Parked{
		Offset: r.Offset, Timestamp: r.Timestamp, Generation: generation, Key: cloneBytes(r.Key), Value: cloneBytes(r.Value), Side: string(side), Twin: twin,
	}}
	for _, h := range r.Headers {
		x.Headers = append(x.Headers, kgo.RecordHeader{Key: h.Key, Value: cloneBytes(h.Value)})
	}
	l.pending = append(l.pending, l.own(x))
	signal(l.more)
	if l.hurry != nil && l.p.c.parkedPending.Load() > l.p.c.parkedMost()/2 {
		l.hurry(errOnWire)
	}
	return taken
}

// own fills in what all records of the lane have in common, and charges one.
func (l *lane) own(x pending) pending {
	a := l.p.a
	x.Group, x.Topic, x.Partition, x.Target = l.p.c.cfg.GroupID, a.l.topic, a.id, l.target
	x.TopicID = a.topic.known.Load().id
	x.size = x.Size()
	l.p.c.o.Budget.Force(x.size)
	l.p.c.parkedPending.Add(x.size)
	return x
}

// disown gives back what own charged.
func (l *lane) disown(all []pending) {
	var n int64
	for i := range all {
		n += all[i].size
	}
	l.p.c.parkedPending.Add(-n)
	l.p.c.o.Budget.Give(n)
}

func (c *Consumer) parkedMost() int64 {
	if n := c.o.Parking.Pending; n > 0 {
		return n
	}
	return c.o.Budget.Limit() / 8
}

func seqsOf(all []pending) []uint64 {
	seqs := make([]uint64, len(all))
	for i := range all {
		seqs[i] = all[i].seq
	}
	return seqs
}

// stop abandons what is pending.
func (l *lane) stop() {
	l.mu.Lock()
	l.stopped = true
	left := l.pending
	l.pending = nil
	l.mu.Unlock()
	if len(left) > 0 {
		l.disown(left)
		l.p.a.settle(outAbandoned, seqsOf(left)...)
	}
}

func (l *lane) status() ParkedTarget {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := ParkedTarget{Target: l.target, Since: l.at.Since, Reason: l.at.Reason, Waiting: len(l.pending) + l.wire, Head: -1, Trouble: l.trouble}
	if l.batch != nil {
		s.Head = l.batch.head()
	}
	return s
}

func (l *lane) say(trouble string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = trouble
}

// run serves the lane until it is closed or the assignment ends.
func (l *lane) run(ctx context.Context, fresh bool) {
	var replaying sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	l.p.c.lanes.Add(1)
	defer l.p.c.lanes.Add(-1)
	defer l.forget()
	defer replaying.Wait()
	defer cancel()
	if fresh && !l.open(ctx) || !fresh && !l.resume(ctx) {
		return
	}
	replaying.Go(func() {
		l.replay(ctx)
		cancel()
	})
	l.append(ctx)
}

// forget gives back what the lane still holds.
func (l *lane) forget() {
	l.stop()
	l.works()
	l.p.publish(func(lanes map[string]*lane) {
		if lanes[l.target] == l && l.isClosed() {
			delete(lanes, l.target)
		}
	})
	if l.isClosed() {
		l.p.mu.Lock()
		delete(l.p.all, l.target)
		l.p.mu.Unlock()
	}
	l.p.poke()
}

func (l *lane) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// resume goes on with a lane that an earlier owner has opened: what it has
// parked ends where the log ends now, after the token was taken. A topic that was
// made anew, or cut, does not hold it.
func (l *lane) resume(ctx context.Context) bool {
	for {
		log, end := l.p.c.o.Parking.Log, int64(0)
		_, _, id, err := log.Place(ctx, l.target, l.p.a.l.topic, l.p.a.id)
		if err == nil {
			end, err = log.End(ctx, l.at.Partition)
		}
		if err == nil {
			l.works()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.tail, l.opened = end, true
			switch {
			case id != l.at.TopicID:
				l.gone, l.at.TopicID, l.at.From = true, id, 0
			case end < l.at.From:
				l.gone, l.at.From = true, end
			}
			return true
		}
		if !l.retry(ctx, "where the parked topic ends", err) {
			return false
		}
	}
}

// retry says what failed, and waits; false: ctx has ended. One line in the log
// stands for all lanes.
func (l *lane) retry(ctx context.Context, what string, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	l.fails(what+" is not known", err)
	return linger(ctx, laneRetry)
}

// fails says what goes wrong, until works is called.
func (l *lane) fails(what string, err error) {
	l.say(err.Error())
	if l.failing {
		return
	}
	l.failing = true
	if l.p.c.parkedTroubles.Add(1) == 1 {
		l.p.c.log.Warn().Str("target", l.target).Str("topic", l.p.a.l.topic).Int32("partition", l.p.a.id).Err(err).Msg("parked records: " + what + "; trying again, others may, too")
	}
}

// works ends what retry began.
func (l *lane) works() {
	if l.failing {
		l.failing = false
		l.p.c.parkedTroubles.Add(-1)
	}
}

// open makes the state say that the lane is open, has later records come here,
// and takes back what the indexer holds.
func (l *lane) open(ctx context.Context) bool {
	a, o := l.p.a, l.p.c.o.Parking
	for {
		place, end, id, err := o.Log.Place(ctx, l.target, a.l.topic, a.id)
		if err == nil {
			l.mu.Lock()
			l.at.Partition, l.at.From, l.at.TopicID, l.tail = place, end, id, end
			l.mu.Unlock()
			break
		}
		if !l.retry(ctx, "the place for them", err) {
			return false
		}
	}
	rules := o.Rules(a.l.topic)
	err := l.p.change(func(s *deadletter.ParkedState) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.at.Token = s.Token
		s.Rules = rules
		s.Lanes[l.target] = l.at
	})
	if err != nil {
		return false
	}
	l.works()
	l.say("")
	l.p.publish(func(lanes map[string]*lane) { lanes[l.target] = l })
	select {
	case <-l.p.c.dispatcher.flush():
	case <-ctx.Done():
		return false
	}
	back, err := l.takeBack(ctx)
	if errors.Is(err, errOnWire) {
		l.p.startOver(l.target)
		<-ctx.Done()
	}
	if err != nil {
		return false
	}
	first := make([]pending, 0, len(back))
	for _, t := range back {
		letter, ok := a.letter(t.Seq, &indexer.Rejection{Target: l.target, Meta: t.Meta, Body: t.Body})
		if !ok { // the assignment is over
			continue
		}
		first = append(first, l.own(pending{seq: t.Seq, Parked: deadletter.Parked{
			Offset: letter.Offset, Timestamp: letter.Timestamp, Generation: letter.Generation,
			Key: letter.Key, Value: letter.Value, Headers: letter.Headers, Side: letter.Side, Twin: len(t.Meta) > 0 && t.Meta[0]&metaTwin != 0,
		}}))
	}
	l.p.c.log.Warn().Str("target", l.target).Str("type", l.at.Reason).Str("topic", a.l.topic).Int32("partition", a.id).Int("records", len(first)).
		Msg("records are parked: their target is held, and what waited for it filled its share of memory")
	l.mu.Lock()
	l.pending = append(first, l.pending...)
	l.opened = true
	stopped := l.stopped
	l.mu.Unlock()
	if stopped {
		l.stop()
	}
	return true
}

// errOnWire says that what the indexer holds cannot be taken back soon.
var errOnWire = errors.New("a request to a held target is not answered: what it carries is parked by another delivery")

// takeBack takes back what the indexer holds. That waits for what is on the wire,
// which may never be answered, while later records wait here, in memory that they
// must not fill: the dispatcher would wait, and with it all other targets. So
// there is an end to it, errOnWire. The partition starts over then: what is on
// the wire counts for nothing, and all of it meets a lane that is open: see
// parking.startOver.
func (l *lane) takeBack(ctx context.Context) ([]indexer.TakenBack, error) {
	ctx, hurry := context.WithCancelCause(ctx)
	late := time.AfterFunc(l.p.c.adoptTimeout(), func() { hurry(errOnWire) })
	defer late.Stop()
	defer hurry(nil)
	setHurry := func(f context.CancelCauseFunc) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hurry = f
	}
	setHurry(hurry)
	defer setHurry(nil)
	return l.p.c.o.Parking.TakeBack(ctx, l.p.a, l.target)
}

// append parks what is pending until ctx ends.
func (l *lane) append(ctx context.Context) {
	token := l.p.state.Load().Token
	for {
		batch := l.next()
		if len(batch) == 0 {
			select {
			case <-l.more:
			case <-ctx.Done():
				return
			}
			continue
		}
		records := make([]deadletter.Parked, len(batch))
		for i := range batch {
			batch[i].Token = token
			records[i] = batch[i].Parked
		}
		end, err := l.p.c.o.Parking.Log.Append(ctx, l.at.Partition, records)
		var large *deadletter.ParkedOversizeError
		l.mu.Lock()
		l.wire = 0
		if errors.As(err, &large) {
			left := batch[large.Index+1:]
			l.pending = append(slices.Clone(left), l.pending...)
			batch, err = batch[:large.Index+1], nil
		}
		back := err == nil && end > 0 && end <= l.tail
		if err == nil && end > 0 {
			l.tail = end
		}
		l.mu.Unlock()
		l.disown(batch)
		if err != nil {
			return // what became of them is not known: they are delivered again
		}
		if back { // not the log that the lane was opened in: the next owner sees it
			l.p.lost()
			return
		}
		if large != nil {
			l.tooLarge(&batch[large.Index], large)
			batch = batch[:large.Index]
		}
		l.p.a.settle(outParked, seqsOf(batch)...)
		signal(l.turn)
	}
}

// parkedOversize is the type of a record that is too large for the parked topic.
const parkedOversize = "parked_oversize"

// tooLarge halts the partition on a record that cannot be parked, until it is
// skipped, or the lane has closed: then it is delivered again, and written.
func (l *lane) tooLarge(x *pending, err error) {
	a := l.p.a
	letter := &deadletter.Letter{
		Topic: x.Topic, Partition: x.Partition, Offset: x.Offset, Timestamp: x.Timestamp, Key: x.Key, Value: x.Value, Headers: x.Headers,
		Type: parkedOversize, Reason: err.Error(), Target: l.target, Generation: x.Generation,
	}
	if x.Twin { // the other side may have it: see assignment.stain
		res := a.c.results.get(l.p.ctx)
		if res == nil {
			return // the assignment has ended
		}
		a.topic.rules.Map(recordOf(&x.Parked), x.Generation, res)
		customer := string(res.Customer)
		a.c.results.put(res)
		a.stainWith(x.seq, customer)
	}
	l.p.c.log.Error().Str("target", l.target).Str("topic", x.Topic).Int32("partition", x.Partition).Int64("offset", x.Offset).Err(err).Msg("a record cannot be parked: its partition waits for its target, or for an operator")
	a.block(x.seq, letter, HaltRejected)
}

// next takes records to be appended at once.
func (l *lane) next() (batch []pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || !l.opened {
		return nil
	}
	n, size := 0, int64(0)
	for n < len(l.pending) && (n == 0 || size+l.pending[n].size <= deadletter.ParkedWindow) {
		size += l.pending[n].size
		n++
	}
	batch = l.pending[:n:n]
	if l.pending = l.pending[n:]; len(l.pending) == 0 {
		l.pending = nil
	}
	l.wire = n
	return batch
}

// replay brings the lane's records back, in order, until it is drained and
// closed, or ctx ends.
func (l *lane) replay(ctx context.Context) {
	w := l.p.c.o.Parking.Writer()
	defer w.Close()
	cursor := l.at.From
	window := int64(0) // one record
	saved, savedAt := cursor, l.p.c.now()
	if l.gone {
		l.p.c.counters.dataLoss.Add(1)
		l.p.c.log.Error().Str("target", l.target).Str("topic", l.p.a.l.topic).Int32("partition", l.p.a.id).Msg("data loss: " + parkedGone)
		if !l.p.c.resumes {
			l.say(parkedGone)
			<-ctx.Done()
			return
		}
		if l.save(cursor) != nil {
			return
		}
	}
	for ctx.Err() == nil {
		if l.close(ctx, cursor, w) {
			return
		}
		if !l.behind(cursor) {
			select {
			case <-l.turn:
			case <-ctx.Done():
			}
			continue
		}
		records, next, err := l.collect(ctx, cursor, window)
		var lost *deadletter.ParkedLostError
		switch {
		case errors.As(err, &lost):
			l.p.c.counters.dataLoss.Add(1)
			l.p.c.log.Error().Str("target", l.target).Str("topic", l.p.a.l.topic).Int32("partition", l.p.a.id).Err(lost).Msg("data loss: parked records are gone")
			if l.p.c.resumes {
				cursor = lost.Start
				continue
			}
			l.say(lost.Error())
			<-ctx.Done()
			return
		case errors.Is(err, deadletter.ErrParkedOwner):
			l.p.lost()
			return
		case err != nil:
			if !l.retry(ctx, "what they are", err) {
				return
			}
			continue
		}
		l.works()
		if len(records) > 0 && !l.write(ctx, w, records) {
			window = 0 // the target is held again
			continue
		}
		cursor = next
		window = min(max(window*laneGrowth, laneFirst), laneMost, l.p.c.laneShare())
		if now := l.p.c.now(); now.Sub(savedAt) >= laneSave && cursor > saved {
			if l.save(cursor) != nil {
				return
			}
			saved, savedAt = cursor, now
		}
	}
}

// parkedGone is what a lane waits for whose records are not there any more.
const parkedGone = "this is not the parked topic of before: dead_letter.topic has changed (set it as it was until nothing is parked), or the topic was deleted and made anew, or cut, and what was parked for this target is lost (kafka.on_data_loss: resume goes on without it)"

// laneShare is how many bytes a lane may bring back at once: all together an
// eighth of the budget.
func (c *Consumer) laneShare() int64 {
	limit := c.o.Budget.Limit()
	return max(min(limit/16, limit/8/max(c.lanes.Load(), 1)), 1)
}

// save notes in the state how far the lane was replayed.
func (l *lane) save(cursor int64) error {
	return l.p.change(func(s *deadletter.ParkedState) {
		if at, open := s.Lanes[l.target]; open {
			at.From, at.TopicID = cursor, l.at.TopicID
			s.Lanes[l.target] = at
		}
	})
}

func (l *lane) behind(cursor int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cursor < l.tail
}

// collect reads the lane's records from cursor on, up to window bytes and one at
// least where there is any, and where to go on.
func (l *lane) collect(ctx context.Context, cursor, window int64) (records []deadletter.Parked, next int64, err error) {
	state := l.p.state.Load()
	var size int64
	for l.behind(cursor) && ctx.Err() == nil {
		read, next, err := l.p.c.o.Parking.Log.Read(ctx, l.at.Partition, cursor)
		if err != nil {
			return nil, 0, err
		}
		if next <= cursor { // nothing more is there yet
			return records, cursor, nil
		}
		for i := range read {
			p := read[i] // a copy: others may be given it too
			if p.Group != l.p.c.cfg.GroupID || p.Topic != l.p.a.l.topic || p.Partition != l.p.a.id || p.Target != l.target {
				continue
			}
			if p.Token > state.Token {
				return nil, 0, deadletter.ErrParkedOwner
			}
			if state.Void(l.at, p.Token, p.TopicID, p.Offset) {
				continue
			}
			n := p.Size()
			if len(records) > 0 && size+n > window {
				return records, p.At, nil
			}
			size += n
			// What was fetched goes: other lanes' records are most of it.
			p.Key, p.Value, p.Headers = cloneBytes(p.Key), cloneBytes(p.Value), slices.Clone(p.Headers)
			for k := range p.Headers {
				p.Headers[k].Value = cloneBytes(p.Headers[k].Value)
			}
			records = append(records, p)
		}
		cursor = next
	}
	return records, cursor, ctx.Err()
}

// close closes the lane if it is drained: cursor is where replaying has come to.
// Records that come until the state says so pass by then, before any later one.
// While the state may not be changed they are parked, as before: a control index
// that is blocked must not hold them all up.
func (l *lane) close(ctx context.Context, cursor int64, w Writer) bool {
	l.mu.Lock()
	if cursor < l.tail || len(l.pending) > 0 || l.wire > 0 && !mutantDrained || l.stopped {
		l.mu.Unlock()
		return false
	}
	if l.p.comesAgain(l.target) {
		l.mu.Unlock()
		linger(ctx, laneRetry)
		signal(l.turn)
		return false
	}
	l.closing = true
	l.mu.Unlock()
	err := l.p.changeOr(func(s *deadletter.ParkedState) { delete(s.Lanes, l.target) }, true)
	if errors.Is(err, deadletter.ErrParkedRefused) {
		l.mu.Lock()
		l.closing = false
		l.mu.Unlock()
		signal(l.more)
		l.fails("that all was written cannot be noted", err)
		linger(ctx, laneRetry)
		signal(l.turn)
		return false
	}
	if err != nil {
		return true
	}
	l.works()
	l.say("")
	for {
		l.mu.Lock()
		late := l.pending
		l.pending = nil
		if len(late) == 0 {
			l.closed = true
			l.mu.Unlock()
			break
		}
		l.mu.Unlock()
		for i := range late {
			if l.p.ctx.Err() != nil {
				break
			}
			l.pass(&late[i], w)
		}
		w.Publish()
		l.disown(late)
	}
	l.p.publish(func(lanes map[string]*lane) { delete(lanes, l.target) })
	l.p.c.log.Info().Str("target", l.target).Str("topic", l.p.a.l.topic).Int32("partition", l.p.a.id).Dur("after_ms", time.Since(l.at.Since)).
		Msg("all that was parked is written: records pass by again")
	if l.p.a.blockedOn(parkedOversize, l.target) {
		l.p.c.restart(l.p.a, "a record that was too large to be parked can be written")
	}
	return true
}

// pass sends a record of the partition that came while the lane closed.
func (l *lane) pass(x *pending, w Writer) {
	a := l.p.a
	res := a.c.results.get(l.p.ctx)
	if res == nil {
		return // the assignment has ended
	}
	defer a.c.results.put(res)
	r := recordOf(&x.Parked)
	a.topic.rules.Map(r, x.Generation, res)
	switch res.Verdict {
	case document.Send:
		action, ok := l.action(r, res, &x.Parked)
		if !ok { // it was mapped just now, by the same table
			a.settle(outAbandoned, x.seq)
			return
		}
		action.Source, action.Seq = a, x.seq
		if w.Add(l.p.ctx, &action) != nil {
			return // the assignment has ended
		}
	case document.Ignore:
		a.settle(outIgnored, x.seq)
	case document.DeadLetter:
		a.writeLetter(x.seq, letterOf(r, res, x.Generation))
	case document.Halt:
		a.block(x.seq, letterOf(r, res, x.Generation), HaltRejected)
	default:
		a.reject(x.seq, letterOf(r, res, x.Generation))
	}
}
