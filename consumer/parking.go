package consumer

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/indexer"
)

// Parking is what it takes to park the records of held targets; see
// deadletter.ParkedState for the protocol. All are required but where it says
// otherwise.
type Parking struct {
	// Open says that new lanes may be opened. Without, only what was parked
	// before is brought back.
	Open  bool
	Store deadletter.ParkedStates
	// Ever says whether anything can have been parked, where that can be told
	// without reading states; nil: they are read. It is asked without Open only.
	Ever func(ctx context.Context) (bool, error)
	// Log may be nil without Open: partitions with parked records wait then, and
	// say that it is missing.
	Log ParkedLog
	// TakeBack is that of the indexer.
	TakeBack func(ctx context.Context, s indexer.Source, target string) ([]indexer.TakenBack, error)
	// Writer returns a new writer of the indexer, which is closed after use.
	Writer func() LaneWriter
	// Rules is a fingerprint of what decides where a topic's records go, the
	// routing table in force included: while it stays the same, a record is given
	// the same target again.
	Rules func(topic string) string
	// Pending is how many bytes of records may wait to be parked before no more
	// are taken; 0: an eighth of the budget.
	Pending int64
}

// LaneWriter is a Writer that one lane uses; *indexer.Writer is one.
type LaneWriter interface {
	Writer
	// Close publishes what was taken, and ends the writer.
	Close()
}

// ParkedLog keeps parked records; *deadletter.ParkedLog is one.
type ParkedLog interface {
	// Place returns the partition for a lane, where it ends, and its topic's id.
	Place(ctx context.Context, target, topic string, partition int32) (place int32, end int64, id string, err error)
	End(ctx context.Context, place int32) (int64, error)
	// Append returns after the acknowledgement, with the offset after the last
	// record. It tries until ctx ends.
	Append(ctx context.Context, place int32, records []deadletter.Parked) (end int64, err error)
	// Read returns records that are not the caller's to change.
	Read(ctx context.Context, place int32, from int64) (records []deadletter.Parked, next int64, err error)
}

// ParkedTarget is a target for which a source partition parks.
type ParkedTarget struct {
	Target string    `json:"target"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"` // error type that held the target
	// Waiting are the records that are not acknowledged yet as parked.
	Waiting int `json:"waiting"`
	// Head is the source offset of the record that is to be written next; -1:
	// it is not known.
	Head int64 `json:"head"`
	// Trouble is why nothing is replayed but for the target itself; "": nothing
	// is wrong.
	Trouble string `json:"trouble,omitempty"`
}

const (
	parkedRetryMin = 200 * time.Millisecond
	parkedRetryMax = 10 * time.Second
)

// parking is what an assignment parks. Its goroutine takes the token and opens
// lanes; each lane has two of its own. They end when the assignment does.
type parking struct {
	a      *assignment
	c      *Consumer
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when all goroutines have ended

	began    sync.Once
	begun    chan struct{} // closed by begin
	lanes    atomic.Pointer[map[string]*lane]
	start    atomic.Int64                           // where the assignment began; -1: not known yet
	state    atomic.Pointer[deadletter.ParkedState] // as it was when the token was taken
	waiting  atomic.Pointer[string]
	changing chan struct{} // of capacity 1: full while the state is changed, which takes as long as the control index
	keeper   *deadletter.ParkedKeeper

	mu      sync.Mutex
	all     map[string]*lane  // open ones and those that open
	wanted  map[string]string // to be opened: the reason by target
	wake    chan struct{}     // of capacity 1: wanted, or all, has changed
	stopped bool              // nothing is to be parked any more
	again   map[string]int64  // up to where the source comes again, by target: see startOver
}

// newParking is called with Consumer.mu held.
func (c *Consumer) newParking(a *assignment) *parking {
	p := &parking{
		a: a, c: c, ended: make(chan struct{}), begun: make(chan struct{}), wake: make(chan struct{}, 1), changing: make(chan struct{}, 1),
		all: map[string]*lane{}, wanted: map[string]string{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.start.Store(-1)
	c.tasks.Go(p.run)
	return p
}

// begin tells that the assignment's start is known, or that the group has no
// commit; of a routed stream, that a commit has named the epoch: lanes write by
// its table.
func (p *parking) begin() {
	if p != nil {
		p.began.Do(func() { close(p.begun) })
	}
}

// lane returns the lane that records for a target go to; nil: none.
func (a *assignment) lane(target string) *lane {
	if a.parking == nil {
		return nil
	}
	if lanes := a.parking.lanes.Load(); lanes != nil {
		return (*lanes)[target]
	}
	return nil
}

// publish makes the dispatcher see the lanes as change leaves them.
func (p *parking) publish(change func(map[string]*lane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lanes := map[string]*lane{}
	if old := p.lanes.Load(); old != nil {
		lanes = maps.Clone(*old)
	}
	change(lanes)
	if len(lanes) == 0 {
		p.lanes.Store(nil)
	} else {
		p.lanes.Store(&lanes)
	}
}

// Park implements indexer.Parker.
func (a *assignment) Park(target, reason string) {
	p := a.parking
	if p == nil || !p.c.o.Parking.Open {
		return
	}
	p.mu.Lock()
	if p.all[target] == nil && !p.stopped {
		p.wanted[target] = reason
	}
	p.mu.Unlock()
	p.poke()
}

func (p *parking) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *parking) run() {
	var lanes sync.WaitGroup
	defer close(p.ended)
	defer lanes.Wait()
	select {
	case <-p.begun:
	case <-p.ctx.Done():
		return
	}
	if mutantUnstated {
		p.c.pauses.clear(pauseParking, p.a)
	}
	state, ok := p.take()
	if !ok {
		return
	}
	// Not before: the routing table in force is part of them.
	rules := p.c.o.Parking.Rules(p.a.l.topic)
	for target, at := range state.Lanes {
		l := newLane(p, target, at)
		p.mu.Lock()
		p.all[target] = l
		p.mu.Unlock()
		p.publish(func(lanes map[string]*lane) { lanes[target] = l })
		lanes.Go(func() { l.run(p.ctx, false) })
	}
	if len(state.Lanes) > 0 {
		p.c.log.Info().Str("topic", p.a.l.topic).Int32("partition", p.a.id).Strs("targets", state.Targets()).Msg("records are parked: they are replayed first")
	}
	drain := len(state.Lanes) > 0 && state.Rules != rules
	if drain {
		why := "its parked records were given their targets by other rules: they are replayed before anything else is read"
		p.waiting.Store(&why)
		p.c.log.Warn().Str("topic", p.a.l.topic).Int32("partition", p.a.id).Msg("partition waits: " + why)
	} else {
		p.ready()
	}
	for {
		select {
		case <-p.wake:
		case <-p.ctx.Done():
			return
		}
		p.mu.Lock()
		if drain && len(p.all) == 0 {
			drain = false
			p.ready()
		}
		for target, reason := range p.wanted {
			delete(p.wanted, target)
			if p.all[target] != nil || p.stopped || p.keeper == nil {
				continue
			}
			l := newLane(p, target, deadletter.ParkedLane{Reason: reason, Since: p.c.now()})
			p.all[target] = l
			lanes.Go(func() { l.run(p.ctx, true) })
		}
		p.mu.Unlock()
	}
}

// ready lets the partition be read.
func (p *parking) ready() {
	p.waiting.Store(nil)
	p.c.pauses.clear(pauseParking, p.a)
}

// take takes the token; false: the assignment has ended.
func (p *parking) take() (state deadletter.ParkedState, ok bool) {
	retry := parkedRetryMin
	failing := false
	for {
		state, err := p.ask()
		if err == nil {
			return state, true
		}
		if p.ctx.Err() != nil {
			return state, false
		}
		why := "the state of its parked records: " + err.Error()
		p.waiting.Store(&why)
		if !failing {
			failing = true
			defer p.c.parkedTroubles.Add(-1)
			if p.c.parkedTroubles.Add(1) == 1 { // one line for all partitions
				p.c.log.Warn().Str("topic", p.a.l.topic).Int32("partition", p.a.id).Err(err).Msg("partitions wait: the state of their parked records cannot be taken over; trying again")
			}
		}
		if !linger(p.ctx, retry) {
			return state, false
		}
		retry = min(2*retry, parkedRetryMax)
	}
}

// change changes the state, and tries until it is known that this was done; an
// error says that the assignment has ended, or must.
func (p *parking) change(change func(*deadletter.ParkedState)) error {
	return p.changeOr(change, false)
}

// changeOr is change; yields says that it gives up, with an error that wraps
// deadletter.ErrParkedRefused, where it is certain that nothing was changed.
func (p *parking) changeOr(change func(*deadletter.ParkedState), yields bool) error {
	select {
	case p.changing <- struct{}{}:
		defer func() { <-p.changing }()
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
	retry := parkedRetryMin
	failing := false
	for {
		err := p.keeper.Change(p.ctx, change)
		switch {
		case err == nil:
			return nil
		case p.ctx.Err() != nil:
			return context.Cause(p.ctx)
		case errors.Is(err, deadletter.ErrParkedOwner):
			p.lost()
			return err
		case yields && errors.Is(err, deadletter.ErrParkedRefused):
			return err
		}
		yields = false // this attempt may have been carried out
		if !failing {
			failing = true
			defer p.c.parkedTroubles.Add(-1)
			if p.c.parkedTroubles.Add(1) == 1 { // one line for all partitions
				p.c.log.Warn().Str("topic", p.a.l.topic).Int32("partition", p.a.id).Err(err).Msg("the state of parked records cannot be changed; trying again")
			}
		}
		if !linger(p.ctx, retry) {
			return context.Cause(p.ctx)
		}
		retry = min(2*retry, parkedRetryMax)
	}
}

// lost has the partition start over where the group has committed it: somebody
// else took its token, so nothing that was parked since is known to count.
func (p *parking) lost() {
	p.a.l.mu.Lock()
	p.a.doubtful = true
	p.a.l.mu.Unlock()
	p.c.do(func() {
		a := p.a
		if p.c.holding(tp{a.l.topic, a.id}) != a {
			return
		}
		at := kgo.EpochOffset{Epoch: -1, Offset: max(a.committedNow(), p.start.Load())}
		p.c.log.Warn().Str("topic", a.l.topic).Int32("partition", a.id).Int64("offset", at.Offset).Msg("partition starts over: another member has taken over its parked records")
		p.c.restartAt(a, at)
	})
}

// startOver has the partition start over since the indexer cannot give back what
// it holds for a target. Its lane stays open until all that was delivered before
// has come again.
func (p *parking) startOver(target string) {
	p.a.l.mu.Lock()
	position, _ := p.a.tracker.Position()
	p.a.l.mu.Unlock()
	p.mu.Lock()
	if p.again == nil {
		p.again = map[string]int64{}
	}
	p.again[target] = position
	p.mu.Unlock()
	p.c.restart(p.a, errOnWire.Error())
}

// inherit takes over what startOver has noted of the assignment before.
func (p *parking) inherit(old *parking) {
	if p == nil || old == nil {
		return
	}
	old.mu.Lock()
	again := maps.Clone(old.again)
	old.mu.Unlock()
	p.mu.Lock()
	p.again = again
	p.mu.Unlock()
}

// comesAgain says whether records of before startOver are still to come.
func (p *parking) comesAgain(target string) bool {
	p.mu.Lock()
	until, ok := p.again[target]
	p.mu.Unlock()
	if !ok {
		return false
	}
	p.a.l.mu.Lock()
	position, _ := p.a.tracker.Position()
	p.a.l.mu.Unlock()
	return position < until
}

// doubt has assignments that may have been another member's meanwhile start over
// before anything more is committed for them.
func (c *Consumer) doubt(as []*assignment) (any bool) {
	for _, a := range as {
		if a.parking != nil && a.parking.start.Load() >= 0 {
			a.parking.lost()
			any = true
		}
	}
	return any
}

// stop has nothing more parked: what waits for it is abandoned. What is on its
// way to the brokers may still be acknowledged.
func (p *parking) stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.stopped = true
	clear(p.wanted)
	all := make([]*lane, 0, len(p.all))
	for _, l := range p.all {
		all = append(all, l)
	}
	p.mu.Unlock()
	for _, l := range all {
		l.stop()
	}
}

// end ends all that runs, and waits for it.
func (p *parking) end() {
	if p != nil {
		p.cancel()
		<-p.ended
	}
}

// status is what is parked, for Status; l.mu may be held.
func (p *parking) status() (all []ParkedTarget, waiting string) {
	if p == nil {
		return nil, ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.all {
		all = append(all, l.status())
	}
	if why := p.waiting.Load(); why != nil {
		waiting = *why
	}
	return all, waiting
}

// count is how many targets are parked.
func (p *parking) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// linger waits; false: ctx has ended.
func linger(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
