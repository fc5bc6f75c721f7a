package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/memory"
)

// ErrFenced ends Run when another process joined the group with the same
// kafka.instance_id.
var ErrFenced = errors.New("consumer: another process has taken over this kafka.instance_id: give each replica its own")

// Sink is the side of the indexer that ends sources; *indexer.Indexer is one.
type Sink interface {
	// Drain sends what is queued of a source now and reports as abandoned what
	// waits for another try. It does not wait.
	Drain(indexer.Source)
	// Drop forgets a source: nothing more is reported to it.
	Drop(indexer.Source)
	// Skip has an action that is held, or waits for another try, rejected;
	// false: there is none.
	Skip(s indexer.Source, seq uint64) bool
}

// DeadLetters stores what can never be indexed; *deadletter.Writer is one.
type DeadLetters interface {
	// Write stores a letter, whose bytes do not change until done, and calls
	// done once: with nil after the acknowledgement, with an error that wraps
	// deadletter.ErrRefused, or with another when it was closed. It never
	// blocks.
	Write(l deadletter.Letter, done func(error))
}

// Options are what a Consumer works with. All are required but where it says
// otherwise.
type Options struct {
	Rules  func(topic string) Rules
	Writer Writer
	Sink   Sink
	Budget *memory.Budget
	// DeadLetters may be nil: nothing goes to the dead letters then.
	DeadLetters DeadLetters
	// Generations may be nil: topics whose rules need them halt then.
	Generations Generations
	// Routing is that of a stream that is routed by customer: nothing is mapped
	// before a table is in force. nil: it is not routed.
	Routing Routing
	// Dirty is required with Routing.
	Dirty Dirty
	// AdoptTimeout is how long requests on the wire are waited for when a table
	// is adopted, or a target's records are parked: the longest that one may
	// take. 0: 20 s.
	AdoptTimeout time.Duration
	// Parking may be nil: the records of held targets wait in memory, and what
	// was parked before stays where it is.
	Parking *Parking
	// MaxRecord rejects records whose key and value are larger, in bytes; 0:
	// none.
	MaxRecord int64
	// Exclude names topics that are never consumed: those of the dead letters
	// and of the parked records.
	Exclude []string
	// ShutdownTimeout bounds the drain when Run's context ends.
	ShutdownTimeout time.Duration
	Log             zerolog.Logger
	// Kafka is appended to the client's options: a dialer, in tests.
	Kafka []kgo.Opt
}

// Consumer consumes as one member of a group. Make it with New.
type Consumer struct {
	cfg  Config
	o    Options
	log  zerolog.Logger
	opts []kgo.Opt
	// unpack is the client's decompressor, for batches that are read past it.
	unpack kgo.Decompressor

	highMark, lowMark int64 // of one partition's queue, bytes
	enough            int64 // bytes in all queues from which on reading pauses
	resumes           bool  // on_data_loss: resume
	brokers           atomic.Int64

	// The poll loop's own.
	expansion float64 // of batches, when they are decompressed
	fetching  int32   // the fetch size in force

	hooks    clientHooks
	started  atomic.Bool
	stop     context.CancelCauseFunc // ends the poll loop
	stopping context.Context
	ended    chan struct{} // closed when Run has returned
	// ending is done when a shutdown must not wait any longer.
	ending context.Context
	end    context.CancelFunc

	// Made by Run, before running is set.
	running    atomic.Bool
	cl         *kgo.Client
	adm        *kadm.Client
	dispatcher *dispatcher
	pauses     *pauses
	resolveNow chan struct{}
	conflicts  conflictQueue
	stains     stainQueue

	tasks         sync.WaitGroup // commits on their way, and what is parked
	queued        atomic.Int64   // bytes in all queues
	parkedPending atomic.Int64   // bytes of records that wait to be parked
	tokens        tokenQueue
	results       results
	lanes         atomic.Int64 // that run
	// parkedTroubles counts who waits for what keeps parked records: one line in
	// the log stands for all.
	parkedTroubles atomic.Int64
	lastPoll       atomic.Int64 // Unix nanoseconds of the poll loop's last turn
	callback       atomic.Int64 // when the running rebalance callback began; 0: none
	counters       counters

	// turn is taken by whoever commits, releases partitions or seeks: one at a
	// time. It is a channel because it is held across waits.
	turn    chan struct{}
	commits commitState
	hurry   atomic.Bool // a commit is due before its time
	trouble trouble

	// epoch is that of the routing table in force; 0: none is.
	epoch    atomic.Int64
	adopting chan struct{} // taken by whoever adopts an epoch

	mu      sync.Mutex
	held    map[tp]*assignment
	topics  map[string]*topic
	ledgers map[tp]*ledger

	opsMu      sync.Mutex
	ops        []func() // for the poll loop to do, with turn held
	pollCancel context.CancelFunc
}

// tp names a source partition.
type tp struct {
	topic     string
	partition int32
}

const (
	highMark = 4 << 20 // of a queue, where the memory limit allows it
	// enough is in all queues that the dispatcher does not wait for the next
	// fetch. More would only be out of the processor's cache by its turn.
	enough = 8 << 20
	// maxTurn is the longest that the poll loop waits for records.
	maxTurn = 500 * time.Millisecond
	// fetchTries is after how many failing fetches of one partition it halts.
	fetchTries = 5
	// fullRetry is how long a partition is left alone of which there was no room
	// for a batch.
	fullRetry = 100 * time.Millisecond
	// fetchRetry is how long a partition whose fetch failed is left alone.
	fetchRetry = time.Second
	// undecodableRetry is how often a batch that cannot be decoded is tried
	// again all the same: it may have been the network.
	undecodableRetry = 30 * time.Second
	// lastWords is how long the last commit, and then the leave, may take where
	// the drain has used up the shutdown timeout.
	lastWords = 2 * time.Second
	// outOfRangeTimeout bounds the question where a log begins and ends.
	outOfRangeTimeout = 10 * time.Second
)

// New checks cfg and o and returns a consumer that has not started. The error
// joins *ConfigError for each key that cannot work.
func New(cfg Config, o Options) (*Consumer, error) {
	c := &Consumer{
		cfg:     cfg,
		o:       o,
		log:     o.Log.With().Str("room", "consumer").Logger(),
		resumes: cfg.OnDataLoss == "resume",
		ended:   make(chan struct{}),
		turn:    make(chan struct{}, 1),

		adopting: make(chan struct{}, 1),
		held:     make(map[tp]*assignment),
		topics:   make(map[string]*topic),
		ledgers:  make(map[tp]*ledger),

		resolveNow: make(chan struct{}, 1),
		results:    newResults(),
	}
	if o.Routing != nil && o.Dirty == nil {
		return nil, errors.New("consumer: a routed stream needs somewhere to mark customers dirty")
	}
	c.highMark = min(highMark, max(o.Budget.Limit()/8, 1))
	c.lowMark = c.highMark / 2
	c.enough = min(enough, max(o.Budget.Limit()/4, 1))
	c.brokers.Store(firstBrokers)
	c.expansion = firstExpansion
	c.fetching = c.fetchBytes()
	c.stopping, c.stop = context.WithCancelCause(context.Background())
	c.ending, c.end = context.WithCancel(context.Background())
	c.hooks.fenced = func(error) { c.fail(ErrFenced) }
	c.hooks.commitBroke = func() {
		c.commits.mu.Lock()
		defer c.commits.mu.Unlock()
		c.commits.uncertain = c.now().Add(commitUncertain)
	}
	c.hooks.decoding.suspect = c.suspect
	c.conflicts.wake = make(chan struct{}, 1)
	c.stains.wake = make(chan struct{}, 1)
	c.tokens.wake = make(chan struct{}, 1)

	client, errClient := ClientOptions(cfg, c.log)
	group, errGroup := c.groupOptions()
	if err := errors.Join(errClient, errGroup); err != nil {
		return nil, err
	}
	c.opts = append(append(client, group...), o.Kafka...)
	if err := kgo.ValidateOpts(c.opts...); err != nil {
		return nil, fmt.Errorf("consumer: kafka: %w", err)
	}
	if cfg.Reset == "latest" {
		c.log.Warn().Msg("kafka.reset is latest: records that are written before a partition is first seen are never read")
	}
	return c, nil
}

// Run consumes until ctx ends or Close is called; then it drains for at most
// the shutdown timeout, commits and leaves the group (a static member stays).
// It returns nil after that, ErrFenced where another process took over, and
// the cause where it cannot go on. It runs once.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.started.CompareAndSwap(false, true) {
		return errors.New("consumer: Run was called before, or after Close")
	}
	defer close(c.ended)
	// Callbacks may run before NewClient returns: what they use is made by a
	// hook that comes first.
	c.hooks.made = func(cl *kgo.Client) {
		c.cl, c.adm = cl, kadm.NewClient(cl)
		c.pauses = newPauses(cl)
		c.dispatcher = newDispatcher(c, c.o.Writer)
		c.running.Store(true)
	}
	clientContext, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	if _, err := kgo.NewClient(append(slices.Clip(c.opts), kgo.WithContext(clientContext))...); err != nil {
		return fmt.Errorf("consumer: kafka client: %w", err)
	}
	unlink := context.AfterFunc(ctx, func() { c.stop(nil) })
	defer unlink()

	// The rooms of the house outlive the poll loop: a drain needs them.
	inner, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.dispatcher.run(inner) })
	wg.Go(func() { c.resolve(inner) })
	wg.Go(func() { c.watch(inner) })
	wg.Go(func() { c.knock(inner) })
	if c.o.Routing != nil {
		wg.Go(func() { c.follow(inner) })
		wg.Go(func() { c.mark(inner) })
	}
	if c.o.Parking != nil {
		wg.Go(func() { c.takeTokens(inner) })
	}
	if c.cfg.GroupProtocol == "consumer" {
		wg.Go(func() { c.checkBrokers(inner) })
	}

	c.poll()
	err := context.Cause(c.stopping)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	c.shutdown(err, hangUp)
	c.tasks.Wait()
	cancel()
	wg.Wait()
	return err
}

// Close ends Run and waits for it. It may be called at any time, and again.
func (c *Consumer) Close() {
	c.stop(nil)
	if c.started.CompareAndSwap(false, true) {
		close(c.ended) // never started, and never will be
	}
	<-c.ended
}

// fail ends Run with err.
func (c *Consumer) fail(err error) { c.stop(err) }

// poll is the poll loop.
func (c *Consumer) poll() {
	next := c.now().Add(c.cfg.CommitInterval)
	for c.stopping.Err() == nil {
		wait := min(max(next.Sub(c.now()), time.Millisecond), maxTurn)
		ctx, cancel := context.WithTimeout(c.stopping, wait)
		c.opsMu.Lock()
		c.pollCancel = cancel
		if len(c.ops) > 0 && len(c.turn) == 0 { // else endTurn does
			cancel()
		}
		c.opsMu.Unlock()
		fetches := c.fetch(ctx)
		cancel()
		c.lastPoll.Store(c.now().UnixNano())
		c.take(fetches)
		c.runOps()
		c.retryFetches()
		// Polled records keep rebalances back until here; what they belong to
		// is known now. A poll without records keeps nothing back: what a
		// callback may not interrupt takes turn.
		c.cl.AllowRebalance()
		if now := c.now(); c.hurry.Swap(false) || !now.Before(next) {
			next = now.Add(c.cfg.CommitInterval)
			c.startCommit()
		}
	}
}

// fetch waits for records and takes as many as there is room for; the client
// keeps the others. While everything is paused it only waits.
func (c *Consumer) fetch(ctx context.Context) kgo.Fetches {
	if c.pauses.everything() {
		select {
		case <-c.pauses.resumed:
		case <-ctx.Done():
		}
		return nil
	}
	if n := c.room(); n > 0 {
		return c.cl.PollRecords(ctx, n)
	}
	// Nothing is there yet. How large records are is known when the first has
	// come.
	fetches := c.cl.PollRecords(ctx, 1)
	if n := c.room(); n > 0 {
		fetches = append(fetches, c.cl.PollRecords(nil, n)...) //nolint:staticcheck // SA1012: nil is how not to wait
	}
	return fetches
}

// room is how many of the records that the client holds fit into what queues
// may take, at least one; 0: it holds none. However far batches expand when
// they are decompressed, they are not taken before there is memory for them.
func (c *Consumer) room() int {
	n := c.cl.BufferedFetchRecords()
	if n <= 0 {
		return 0
	}
	each := c.cl.BufferedFetchBytes()/n + recordOverhead
	return int(max((2*c.enough-c.queued.Load())/each, 1))
}

// do has the poll loop call f soon, when no commit and no callback runs.
func (c *Consumer) do(f func()) {
	c.opsMu.Lock()
	defer c.opsMu.Unlock()
	c.ops = append(c.ops, f)
	if c.pollCancel != nil {
		c.pollCancel()
	}
}

func (c *Consumer) runOps() {
	c.opsMu.Lock()
	n := len(c.ops)
	c.opsMu.Unlock()
	if n == 0 || !c.tryTurn() {
		return
	}
	defer c.endTurn()
	c.opsMu.Lock()
	ops := c.ops
	c.ops = nil
	c.opsMu.Unlock()
	for _, f := range ops {
		f()
	}
}

func (c *Consumer) tryTurn() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (c *Consumer) takeTurn() { c.turn <- struct{}{} }

func (c *Consumer) endTurn() {
	<-c.turn
	c.opsMu.Lock()
	defer c.opsMu.Unlock()
	if len(c.ops) > 0 && c.pollCancel != nil {
		c.pollCancel()
	}
}

// take queues what a poll brought.
func (c *Consumer) take(fetches kgo.Fetches) {
	// Errors first: what follows a loss must not be queued as if nothing had
	// happened.
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if p.Err != nil {
			c.fetchError(p)
		}
	})
	var ready, full []*assignment
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) == 0 {
			return
		}
		a := c.holding(tp{p.Topic, p.Partition})
		if a == nil {
			return
		}
		if lost, from := a.saw(p.FetchPartition, c.committedOnly()); lost > 0 {
			// With `halt` the broker's error came first.
			c.counters.dataLoss.Add(1)
			c.log.Error().Str("topic", p.Topic).Int32("partition", p.Partition).Int64("from", from).Int64("to", from+lost).
				Msg("data loss: Kafka deleted records before they were read; going on at the log's start (on_data_loss: resume)")
		}
		over, err := a.enqueue(p.Records)
		if err != nil {
			c.dataLoss(a, err)
			return
		}
		ready = append(ready, a)
		if over {
			full = append(full, a)
		}
	})
	if len(ready) > 0 {
		c.pauses.set(pauseFull, full...)
		for _, a := range full {
			// The dispatcher may have emptied the queue before the pause, or it
			// was dropped: then nobody else would end it.
			if a.low() {
				c.pauses.clear(pauseFull, a)
			}
		}
		c.checkMemory()
		c.dispatcher.ready(ready...)
		c.fitFetch()
	}
}

func (c *Consumer) committedOnly() bool { return c.cfg.IsolationLevel != "read_uncommitted" }

func (c *Consumer) holding(k tp) *assignment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[k]
}

func (c *Consumer) holdings() []*assignment {
	c.mu.Lock()
	defer c.mu.Unlock()
	as := make([]*assignment, 0, len(c.held))
	for _, a := range c.held {
		as = append(as, a)
	}
	return as
}

// charge takes bytes of queued records from the budget, or gives them back.
func (c *Consumer) charge(n int64) {
	c.queued.Add(n)
	if n > 0 {
		c.o.Budget.Force(n) // they exist already
	} else {
		c.o.Budget.Give(-n)
	}
}

const allMemory = "memory"

// checkMemory pauses everything while the queues hold more than enough, which
// one more poll at most doubles. It is a quarter of the budget or less: the
// other half is the indexer's. However full the queues are, it can take actions,
// send them and free both.
func (c *Consumer) checkMemory() {
	c.pauses.setAllBy(allMemory, func(on bool) bool {
		n := c.queued.Load()
		return n > c.enough || on && n > c.enough/2
	})
}

// onAssigned begins the assignments of added; kgo fetches nothing of them
// before it returns. It is called at every rebalance.
func (c *Consumer) onAssigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	c.counters.rebalances.Add(1)
	var as []*assignment
	c.mu.Lock()
	for name, partitions := range added {
		t := c.topics[name]
		if t == nil {
			t = &topic{name: name, rules: c.o.Rules(name), resolved: make(chan struct{})}
			c.topics[name] = t
		}
		for _, p := range partitions {
			if c.held[tp{name, p}] == nil {
				as = append(as, c.begin(t, p))
			}
		}
	}
	c.mu.Unlock()
	c.pauses.add(pauseStarting|c.pauseParking(), as...)
	if len(as) > 0 {
		c.log.Info().Str("partitions", describeAssigned(as)).Msg("partitions assigned")
	}
	c.recheckTopics()
}

// begin makes the assignment of a partition; c.mu must be held.
func (c *Consumer) begin(t *topic, partition int32) *assignment {
	k := tp{t.name, partition}
	l := c.ledgers[k]
	if l == nil {
		l = &ledger{topic: t.name, partition: partition}
		c.ledgers[k] = l
	}
	a := &assignment{c: c, l: l, topic: t, id: partition, fetched: -1, committed: -1, start: -1, end: -1}
	a.origin = a
	a.epoch, a.admitted, a.said = c.epoch.Load(), c.o.Routing == nil, c.o.Routing == nil
	if c.o.Parking != nil {
		a.parking = c.newParking(a)
	}
	l.mu.Lock()
	l.cur = a
	l.mu.Unlock()
	c.held[k] = a
	return a
}

// pauseParking is what a new assignment waits for where records are parked.
func (c *Consumer) pauseParking() pause {
	if c.o.Parking == nil {
		return 0
	}
	return pauseParking
}

// onRevoked drains, commits and forgets the partitions of lost. It is called
// with an empty map too, at least once a rebalance.
func (c *Consumer) onRevoked(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	as := c.those(lost)
	if len(as) == 0 {
		return
	}
	c.callback.Store(c.now().UnixNano())
	defer c.callback.Store(0)
	c.takeTurn()
	defer c.endTurn()
	c.release(as, c.cfg.DrainTimeout, true)
}

// onLost forgets the partitions of lost: they may be another member's already.
func (c *Consumer) onLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	c.hooks.heartbeat.Store(0)
	as := c.those(lost)
	if len(as) == 0 {
		return
	}
	c.callback.Store(c.now().UnixNano())
	defer c.callback.Store(0)
	c.takeTurn()
	defer c.endTurn()
	c.log.Warn().Str("partitions", describeAssigned(as)).Msg("partitions lost: this member was thrown out of the group; what is in flight will be delivered again")
	c.release(as, 0, false)
}

func (c *Consumer) those(lost map[string][]int32) (as []*assignment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, partitions := range lost {
		for _, p := range partitions {
			if a := c.held[tp{topic, p}]; a != nil {
				as = append(as, a)
			}
		}
	}
	return as
}

// drain stops taking from assignments, sends what is open of them, and lets what
// is on the wire come back for at most timeout; 0: it does not send, nor wait.
func (c *Consumer) drain(as []*assignment, timeout time.Duration) {
	if len(as) == 0 {
		return
	}
	settled := make([]<-chan struct{}, len(as))
	for i, a := range as {
		settled[i] = a.stop()
	}
	c.checkMemory()
	// After this the dispatcher holds nothing of them, and all that it took is
	// with the indexer.
	<-c.dispatcher.flush()
	for _, a := range as {
		a.parking.stop()
	}
	if timeout <= 0 {
		return
	}
	for _, a := range as {
		c.o.Sink.Drain(a)
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	for _, s := range settled {
		select {
		case <-s:
		case <-t.C:
			return
		case <-c.ending.Done():
			return
		}
	}
}

// release ends assignments: it stops taking, lets what is on the wire come
// back for at most timeout, commits what is handled, and forgets the rest.
// With a timeout of 0 and no commit it only forgets. turn must be held.
func (c *Consumer) release(as []*assignment, timeout time.Duration, commit bool) {
	c.drain(as, timeout)
	if commit {
		c.commit(as, true)
	}
	if mutantLate && commit {
		return
	}
	left := 0
	for _, a := range as {
		if a.haltedBy(HaltForeign) {
			c.unblocked(a, HaltForeign) // of those that halted with it, later
		}
		left += a.forget()
		a.parking.end()
	}
	c.mu.Lock()
	for _, a := range as {
		if k := (tp{a.l.topic, a.id}); c.held[k] == a {
			delete(c.held, k)
		}
	}
	for name, t := range c.topics {
		if !c.holds(t) {
			delete(c.topics, name)
		}
	}
	c.mu.Unlock()
	c.pauses.remove(as...)
	for _, a := range as {
		c.o.Sink.Drop(a)
	}
	c.log.Info().Str("partitions", describeAssigned(as)).Int("abandoned", left).Msg("partitions released")
}

// holds says whether a partition of t is held; c.mu must be held.
func (c *Consumer) holds(t *topic) bool {
	for _, a := range c.held {
		if a.topic == t {
			return true
		}
	}
	return false
}

// shutdown drains everything and leaves the group; cause is why Run ends, nil
// for an orderly end. hangUp fails all requests of the client. It takes the
// shutdown timeout and twice lastWords at most, whatever brokers and bulk
// requests do.
func (c *Consumer) shutdown(cause error, hangUp func()) {
	c.cl.AllowRebalance()
	deadline := c.now().Add(c.o.ShutdownTimeout)
	last := time.AfterFunc(c.o.ShutdownTimeout+lastWords, c.end)
	defer last.Stop()
	ours := !errors.Is(cause, ErrFenced)
	timeout := func() time.Duration {
		if !ours || mutantStop {
			return 0
		}
		return deadline.Sub(c.now())
	}
	// A commit that waits for a rebalance has the turn for so long. The drain
	// needs none: nothing begins or seeks any more, and a callback that releases
	// some of these meanwhile waits for the same.
	c.drain(c.holdings(), timeout())
	c.takeTurn()
	// Still a member: heartbeats go on while the drain lasts.
	if as := c.holdings(); len(as) > 0 {
		c.release(as, timeout(), ours)
	}
	c.endTurn()
	// The client asks for the revocation of what it holds, of which nothing is
	// left, and tells the coordinator.
	ctx, cancel := context.WithTimeout(context.Background(), max(deadline.Sub(c.now()), lastWords))
	defer cancel()
	if err := c.cl.LeaveGroupContext(ctx); err != nil {
		if cause == nil {
			c.log.Warn().Err(err).Msg("the group could not be told that this member leaves: its partitions are taken over after the session timeout")
		}
		// Close waits for a JoinGroup that is under way, which brokers that have
		// gone silent may never answer.
		hangUp()
	}
	c.cl.CloseAllowingRebalance()
	// Close asks to leave once more, on a goroutine that it does not wait for
	// since the group is left already, and then polls, which may keep that
	// goroutine waiting for ever.
	c.cl.AllowRebalance()
}

// restart delivers a partition again from its committable offset: as if it had
// been revoked and assigned.
func (c *Consumer) restart(a *assignment, why string) {
	c.do(func() {
		at, ok := a.restartPoint()
		if c.holding(tp{a.l.topic, a.id}) != a || !ok {
			return
		}
		c.log.Warn().Str("topic", a.l.topic).Int32("partition", a.id).Int64("offset", at.Offset).Msg("partition starts over: " + why)
		c.restartAt(a, at)
	})
}

// restartAt ends an assignment and begins another one of the same partition at
// an offset. It runs in the poll loop, with turn held.
func (c *Consumer) restartAt(a *assignment, at kgo.EpochOffset) {
	a.stop()
	<-c.dispatcher.flush()
	c.replace(map[*assignment]kgo.EpochOffset{a: at})
}

// replace ends assignments, of which the dispatcher holds nothing, and begins
// others of the same partitions, each at its offset. What halted one for good,
// and no delivery would find again, halts its successor. It runs in the poll
// loop, with turn held.
func (c *Consumer) replace(old map[*assignment]kgo.EpochOffset) {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	for a, at := range old {
		committed := a.committedNow()
		a.forget()
		a.parking.end()
		c.o.Sink.Drop(a)
		c.mu.Lock() // the resolver, which lets partitions start, sees the one or the other
		b := c.begin(a.topic, a.id)
		b.origin = a.origin
		b.parking.inherit(a.parking)
		b.l.mu.Lock()
		said := a.said && a.epoch == b.epoch
		b.l.mu.Unlock()
		own, _ := c.pauses.of(a)
		if !said {
			own |= pauseStarting // until a commit has named the epoch
		}
		c.pauses.remove(a)
		c.pauses.add(own&pauseStarting|c.pauseParking(), b)
		c.mu.Unlock()
		b.l.mu.Lock()
		b.tracker.Advance(at.Offset)
		b.marks = append(b.marks, mark{offset: at.Offset - 1, epoch: at.Epoch})
		b.fetched = at.Offset
		b.committed = min(committed, at.Offset)
		b.start, b.end = a.start, a.end
		b.admitted = b.admitted || a.admitted // the resolver may know b already
		if h := a.halt; h != nil && (h.Kind == HaltGeneration || h.Kind == HaltDataLoss || h.Kind == HaltNoCommit) {
			b.halt = h
			b.stopped.Store(true)
			c.pauses.set(pauseHalted, b)
		}
		b.l.mu.Unlock()
		if offsets[a.l.topic] == nil {
			offsets[a.l.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[a.l.topic][a.id] = at
		if said {
			b.parking.begin() // not before the pause is there that this takes away
		}
	}
	c.cl.SetOffsets(offsets)
}

func (a *assignment) committedNow() int64 {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.committed
}

// now is the one clock of this package.
func (c *Consumer) now() time.Time { return time.Now() }

// Healthy says whether the group's coordinator has answered within half the
// session timeout: only then is it certain that no other member works on our
// partitions. No bulk request may start while it is false.
func (c *Consumer) Healthy() bool {
	return c.now().Sub(c.LastHeartbeat()) < c.cfg.SessionTimeout/2
}

// LastHeartbeat is when the group's coordinator last answered this member; the
// zero time while it is none.
func (c *Consumer) LastHeartbeat() time.Time {
	ns := c.hooks.heartbeat.Load()
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// Alive says whether the poll loop turns. A rebalance callback holds it up;
// one that has not exceeded its deadlines counts as alive.
func (c *Consumer) Alive() bool {
	now := c.now()
	if began := c.callback.Load(); began != 0 {
		return now.Sub(time.Unix(0, began)) < c.cfg.DrainTimeout+commitTimeout+time.Minute
	}
	last := c.lastPoll.Load()
	return last == 0 || now.Sub(time.Unix(0, last)) < time.Minute
}

// bug reports what must not happen.
func (c *Consumer) bug(a *assignment, err error) {
	c.counters.bugs.Add(1)
	c.log.Error().Str("topic", a.l.topic).Int32("partition", a.id).Err(err).Msg("internal error: please report it")
}
