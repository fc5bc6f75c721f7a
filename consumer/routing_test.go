package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
)

// stored is the routing table as the control index holds it: an epoch.
type stored struct {
	mu    sync.Mutex
	epoch int64
	err   error
	newer chan struct{}
}

func newStored(epoch int64) *stored { return &stored{epoch: epoch, newer: make(chan struct{})} }

func (s *stored) set(epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = epoch
	close(s.newer)
	s.newer = make(chan struct{})
}

func (s *stored) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *stored) read() (epoch int64, newer <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.newer, s.err
}

// follower is one process's sight of it. While it is blind it sees no change but
// by Refresh.
type follower struct {
	of    *stored
	blind atomic.Bool
	reads atomic.Int64 // by Refresh

	mu      sync.Mutex
	known   int64
	inForce atomic.Int64
}

func (f *follower) learn(epoch int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = max(f.known, epoch)
	return f.known
}

func (f *follower) Refresh(context.Context) (int64, error) {
	f.reads.Add(1)
	epoch, _, err := f.of.read()
	if err != nil {
		return 0, err
	}
	return f.learn(epoch), nil
}

func (f *follower) Wait(ctx context.Context, after int64) error {
	for {
		epoch, newer, err := f.of.read()
		if !f.blind.Load() && err == nil {
			f.learn(epoch)
		}
		if f.learn(0) > after {
			return nil
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *follower) Adopt() int64 {
	epoch := f.learn(0)
	f.inForce.Store(epoch)
	return epoch
}

// routed are rules of a routed stream. Under the epoch dual and later ones
// records go to both sides, before it to the legacy side only; what a document
// was routed by stands in the target's name.
type routed struct {
	rules
	by   *follower
	dual int64
}

func (r routed) Map(rec *kgo.Record, gen int, out *document.Result) {
	out.Side, out.Twin, out.TwinTombstone, out.Customer = document.SideNone, bulk.Action{}, false, nil
	epoch := r.by.inForce.Load()
	if epoch == 0 {
		out.Verdict, out.Type = document.Halt, "no_routing_table"
		return
	}
	r.rules.Map(rec, gen, out)
	out.Customer = rec.Key
	out.Side, out.Action.Target = document.SideLegacy, fmt.Sprint("legacy@", epoch)
	if epoch >= r.dual && out.Verdict == document.Send {
		out.Twin = out.Action
		out.Twin.Target = fmt.Sprint("new@", epoch)
	}
}

// marks are the dirty marks.
type marks struct {
	mu     sync.Mutex
	err    error
	marked []string
}

func (m *marks) MarkDirty(_ context.Context, customer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.marked = append(m.marked, customer)
	return nil
}

func (m *marks) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.marked)
}

// replica is a member of a routed stream's group.
type replica struct {
	*member
	*follower
	marks *marks
}

// handledUnder notes by what epochs records were handled, of all replicas.
type handledUnder struct {
	mu          sync.Mutex
	legacy, new map[tp]map[int64]int64
}

func (h *handledUnder) note(target string, k tp, offset int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	side, epoch, _ := strings.Cut(target, "@")
	by := h.legacy
	if side == "new" {
		by = h.new
	}
	if by[k] == nil {
		by[k] = map[int64]int64{}
	}
	e, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		panic(err)
	}
	by[k][offset] = max(by[k][offset], e)
}

func newHandledUnder() *handledUnder {
	return &handledUnder{legacy: map[tp]map[int64]int64{}, new: map[tp]map[int64]int64{}}
}

// join starts a replica. Its records wait for both sides from epoch dual on.
func (w *world) join(s *stored, seen *handledUnder, dual int64, settler func(*sink, []*act), changes ...change) *replica {
	w.t.Helper()
	r := &replica{follower: &follower{of: s}, marks: &marks{}}
	with := func(_ *Config, o *Options) {
		o.Routing, o.Dirty, o.AdoptTimeout = r.follower, r.marks, 2*time.Second
		o.Rules = func(string) Rules {
			return routed{rules{policy: document.ToDeadLetter, version: document.VersionSequence}, r.follower, dual}
		}
	}
	w.mu.Lock()
	w.dual = dual
	w.mu.Unlock()
	note := func(_ *Config, o *Options) { o.Sink.(*sink).note = seen.note }
	r.member = w.start(settler, append([]change{with, note}, changes...)...)
	return r
}

// epochs are those of the commits as the broker has them.
func (w *world) epochs() map[tp]int64 {
	epochs := map[tp]int64{}
	for k, text := range w.metas {
		epochs[k] = -1
		if m, ok := parseCommitMeta(text); ok {
			epochs[k] = m.Epoch
		}
	}
	return epochs
}

// waitEpoch waits until all partitions are committed under an epoch.
func (w *world) waitEpoch(epoch int64, partitions int) {
	w.t.Helper()
	w.wait(fmt.Sprint("commits under epoch ", epoch), func() bool {
		n := 0
		for _, e := range w.epochs() {
			if e == epoch {
				n++
			}
		}
		return n == partitions
	})
}

func (w *world) fence(epoch int64) Fence {
	w.t.Helper()
	f, err := ReadFence(w.t.Context(), w.adm, Config{GroupID: testGroup, Topics: w.topics}, nil, epoch)
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// An epoch is adopted by all partitions at once, whatever they are doing: one
// works, with records that nobody answers; one has nothing to do, and never had;
// one is held; one is halted. Nothing of what any of them has not handled is
// left to the table before, and each commit names the new one.
func TestAdoptWithBusyIdleHeldAndHaltedPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	const busy, idle, empty, held, halted = 0, 1, 2, 3, 4
	s, seen := newStored(1), newHandledUnder()
	var later []*act
	r := w.join(s, seen, 2, func(s *sink, as []*act) {
		for _, a := range as {
			switch p := a.tp.partition; {
			case p == halted && a.offset == 5:
				a.reject("mapping")
			case a.offset < 10 || strings.HasSuffix(a.target, "@2"):
				s.index([]*act{a})
			case p == held: // it waits for another try, until it is drained
				later = append(later, a)
			default: // of busy: on the wire for good
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		later = slices.DeleteFunc(later, func(a *act) bool {
			if s.drained[a.src] {
				a.src.Settle(indexer.Abandoned, []uint64{a.seq})
			}
			return s.drained[a.src]
		})
	}, func(_ *Config, o *Options) {
		rules := o.Rules("").(routed)
		rules.policy = document.Stop
		o.Rules = func(string) Rules { return rules }
	})
	w.produce(busy, 100)
	w.produce(idle, 10)
	w.produce(held, 100)
	w.produce(halted, 100)
	w.wait("all to be as meant", func() bool {
		return w.commits[tp{testTopic, busy}] == 10 && w.commits[tp{testTopic, idle}] == 10 && w.commits[tp{testTopic, held}] == 10 &&
			w.commits[tp{testTopic, halted}] == 5 && r.state(halted) == StateHalted
	})
	w.waitEpoch(1, 5) // the empty one included
	if f := w.fence(1); !f.Passed() {
		t.Errorf("laggards %v", f.Laggards())
	}
	if f := w.fence(2); f.Passed() || len(f.Laggards()) != 5 || f.Laggards()[0].Member == "" {
		t.Errorf("under an epoch that nobody has: %+v", f)
	}
	w.mu.Lock()
	begin := map[tp]int64{}
	w.onCommit = func(k tp, offset int64, m commitMeta) {
		if _, ok := begin[k]; !ok && m.Epoch == 2 {
			begin[k] = offset
		}
	}
	w.mu.Unlock()
	s.set(2)
	w.waitEpoch(2, 5)
	if f := w.fence(2); !f.Passed() || f.Offsets()[testTopic][halted] != 5 {
		t.Errorf("fence %+v", f)
	}
	w.mu.Lock()
	if at := begin[tp{testTopic, busy}]; at != 10 {
		t.Errorf("epoch 2 begins at %d of the busy partition", at)
	}
	w.mu.Unlock()
	// Again, on the same record, which both sides reject now.
	w.wait("both sides of the record", func() bool { s, _ := r.partition(halted); return s.Blocked == 2 })
	if err := r.Skip(t.Context(), testTopic, halted, 5, false); err != nil {
		t.Fatal(err)
	}
	w.waitAllCommitted()
	seen.check(t, begin, 2)
	if got := r.marks.all(); !slices.Equal(got, []string{"k5"}) {
		t.Errorf("dirty: %v", got)
	}
}

// What is on the wire when an epoch is adopted, and does not come back in time,
// is given up: if it lands later, it counts for nothing.
func TestAdoptLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s, seen := newStored(1), newHandledUnder()
	r := w.join(s, seen, 2, nil, func(_ *Config, o *Options) { o.AdoptTimeout = 100 * time.Millisecond })
	w.produce(0, 20)
	w.wait("all to be on the wire", func() bool { return r.sink.held() == 20 })
	r.sink.index(r.sink.take(func(a *act) bool { return a.offset < 5 || a.offset == 7 }))
	late := r.sink.take(nil)
	begin := map[tp]int64{}
	w.mu.Lock()
	w.onCommit = func(k tp, offset int64, m commitMeta) {
		if _, ok := begin[k]; !ok && m.Epoch == 2 {
			begin[k] = offset
		}
	}
	w.mu.Unlock()
	s.set(2)
	w.waitEpoch(2, 1)
	r.sink.index(late)
	r.sink.setSettler(atOnce)
	w.waitAllCommitted()
	if at := begin[tp{testTopic, 0}]; at != 5 {
		t.Errorf("the epoch begins at %d", at)
	}
	seen.check(t, begin, 2)
}

// Nothing is written under an epoch before a commit has named it: whoever takes
// the partition over may still be below the epoch otherwise.
func TestAdoptedEpochIsCommittedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s, seen := newStored(1), newHandledUnder()
	r := w.join(s, seen, 2, atOnce)
	w.waitEpoch(1, 1)
	w.produce(0, 10)
	w.waitAllCommitted()
	r.sink.setSettler(nil)
	w.refuse.Store(true)
	s.set(2)
	w.wait("the epoch to be adopted", func() bool { return r.epoch.Load() == 2 })
	w.produce(0, 10)
	tried := w.refused.Load()
	w.wait("commits to be tried again and again", func() bool { return w.refused.Load() > tried+5 })
	if n := r.sink.held(); n != 0 {
		t.Errorf("%d actions were sent under an epoch that nobody knows of", n)
	}
	w.refuse.Store(false)
	r.sink.setSettler(atOnce)
	w.waitAllCommitted()
}

// check sees that everything from where an epoch begins was written under it, on
// the new side too.
func (h *handledUnder) check(t *testing.T, begin map[tp]int64, epoch int64) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, offsets := range h.legacy {
		for o := range offsets {
			if at, ok := begin[k]; ok && o >= at && h.new[k][o] < epoch {
				t.Errorf("%v: offset %d, from %d on under epoch %d, was written to the legacy side only", k, o, at, epoch)
			}
		}
	}
}

// A record with an action on either side is handled when both sides have it,
// whichever comes last, and is counted once.
func TestTwinsSettleOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := w.join(newStored(1), newHandledUnder(), 1, nil)
	w.produce(0, 10)
	w.wait("both actions of all", func() bool { return r.sink.held() == 20 })
	side := func(name string, offsets ...int64) []*act {
		return r.sink.take(func(a *act) bool {
			return strings.HasPrefix(a.target, name) && (len(offsets) == 0 || slices.Contains(offsets, a.offset))
		})
	}
	first, second := side("new", 0, 1, 2), side("legacy", 0, 3, 4, 5)
	r.sink.index(first)
	r.sink.index(second)
	w.wait("what both have", func() bool { return w.commits[tp{testTopic, 0}] == 1 })
	if n := r.total(outIndexed); n != 1 {
		t.Errorf("%d records count as indexed, one is on both sides", n)
	}
	// Rejected by one side: it counts as a dead letter, whatever the other says
	// and when.
	for _, a := range append(side("new", 3, 6), side("legacy", 1)...) {
		a.reject("mapping")
	}
	w.wait("the letters", func() bool { return len(r.letters.all()) == 3 })
	r.sink.index(side(""))
	w.waitAllCommitted()
	w.wait("the last one", func() bool { return r.total(outIndexed)+r.total(outDeadLettered) == 10 })
	if n := r.total(outDeadLettered); n != 3 {
		t.Errorf("%d records count as dead letters", n)
	}
	for _, l := range r.letters.all() {
		if want := map[int64]string{1: "legacy", 3: "new", 6: "new"}[l.Offset]; l.Side != want || string(l.Value) == "" || string(l.Key) == "" {
			t.Errorf("letter of %d: side %q, key %q, value %q", l.Offset, l.Side, l.Key, l.Value)
		}
	}
	if got := r.marks.all(); !slices.Contains(got, "k1") || !slices.Contains(got, "k3") {
		t.Errorf("dirty: %v", got)
	}
}

// A rejection by one side ends only when its customer is known to be dirty, be
// it by a letter, dropped, or skipped by an operator.
func TestDirtyMarkComesFirst(t *testing.T) {
	t.Parallel()
	for _, policy := range []document.Policy{document.ToDeadLetter, document.Drop, document.Stop} {
		t.Run(fmt.Sprint("policy ", policy), func(t *testing.T) {
			w := newWorld(t, 1)
			r := w.join(newStored(1), newHandledUnder(), 1, func(s *sink, as []*act) {
				for _, a := range as {
					if a.offset == 3 && strings.HasPrefix(a.target, "new") {
						a.reject("mapping")
						continue
					}
					s.index([]*act{a})
				}
			}, func(_ *Config, o *Options) {
				rules := o.Rules("").(routed)
				rules.policy = policy
				o.Rules = func(string) Rules { return rules }
				o.Dirty.(*marks).err = errors.New("the control index is away")
			})
			w.produce(0, 10)
			w.wait("the others", func() bool { return r.total(outIndexed) == 9 })
			if policy == document.Stop {
				r.waitState(0, StateHalted)
				if err := r.Skip(t.Context(), testTopic, 0, 3, false); err == nil || !strings.Contains(err.Error(), "dirty mark") {
					t.Errorf("skipped without a mark: %v", err)
				}
			}
			if n := len(r.letters.all()); n != 0 {
				t.Errorf("%d letters before the mark", n)
			}
			w.mu.Lock()
			if at := w.commits[tp{testTopic, 0}]; at > 3 {
				t.Errorf("committed %d before the mark", at)
			}
			w.mu.Unlock()
			r.marks.mu.Lock()
			r.marks.err = nil
			r.marks.mu.Unlock()
			w.markHandled(3)
			if policy == document.Stop {
				if err := r.Skip(t.Context(), testTopic, 0, 3, false); err != nil {
					t.Fatal(err)
				}
			}
			w.waitAllCommitted()
			if got := r.marks.all(); !slices.Equal(got, []string{"k3"}) {
				t.Errorf("dirty: %v", got)
			}
		})
	}
}

// S9: one replica adopts an epoch, the other does not for a while: the fence
// names what the other holds, with its member, until it does.
func TestS9_OneReplicaLags(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	s, seen := newStored(1), newHandledUnder()
	a := w.join(s, seen, 2, atOnce)
	b := w.join(s, seen, 2, atOnce)
	w.wait("a partition each", func() bool { return len(a.Status().Partitions) == 1 && len(b.Status().Partitions) == 1 })
	w.waitEpoch(1, 2)
	b.blind.Store(true)
	s.set(2)
	p := a.Status().Partitions[0].Partition
	w.wait("the first replica", func() bool { return w.epochs()[tp{testTopic, p}] == 2 })
	f := w.fence(2)
	lag := f.Laggards()
	if f.Passed() || len(lag) != 1 || lag[0].Partition != 1-p || lag[0].Epoch != 1 || lag[0].Member != b.Status().Member {
		t.Errorf("fence %+v", f)
	}
	w.produce(0, 20)
	w.produce(1, 20)
	w.waitAllCommitted()
	b.blind.Store(false)
	s.set(2) // it looks
	w.waitEpoch(2, 2)
	if f := w.fence(2); !f.Passed() {
		t.Errorf("fence %+v", f)
	}
}

// S10: partitions without records, one of them never had any, pass the fence.
func TestS10_IdlePartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(0, 10)
	s := newStored(1)
	w.join(s, newHandledUnder(), 2, atOnce)
	w.waitAllCommitted()
	w.waitEpoch(1, 2)
	for epoch := int64(2); epoch < 6; epoch++ {
		s.set(epoch)
		w.waitEpoch(epoch, 2)
	}
	if f := w.fence(5); !f.Passed() || f.Offsets()[testTopic][0] != 10 || f.Offsets()[testTopic][1] != 0 {
		t.Errorf("fence %+v", f)
	}
}

// S11: a replica whose table is old takes partitions over: it reads the table
// before it writes anything, and while it cannot, or while what it reads is older
// than what any partition of the group was committed under, it writes nothing of
// them.
func TestS11_StaleReplicaTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	s, seen := newStored(1), newHandledUnder()
	a := w.join(s, seen, 2, atOnce)
	w.waitEpoch(1, 4)
	b := w.join(s, seen, 2, atOnce)
	b.blind.Store(true)
	w.wait("two partitions each", func() bool {
		n := 0
		for _, p := range b.Status().Partitions {
			if p.State == StateRunning && p.Epoch == 1 {
				n++
			}
		}
		return n == 2 && len(a.Status().Partitions) == 2
	})
	s.set(2)
	w.wait("the first replica's epoch", func() bool {
		n := 0
		for _, e := range w.epochs() {
			if e == 2 {
				n++
			}
		}
		return n == 2
	})
	// The table is lost, and an old copy takes its place.
	s.fail(errors.New("no route to host"))
	s.set(1)
	reads := b.reads.Load()
	w.mu.Lock()
	lowest := map[tp]int64{}
	for k, e := range w.epochs() {
		lowest[k] = e
	}
	w.onCommit = func(k tp, offset int64, m commitMeta) {
		if m.Epoch < lowest[k] {
			t.Errorf("%v: committed under epoch %d after %d", k, m.Epoch, lowest[k])
		}
		lowest[k] = m.Epoch
	}
	w.mu.Unlock()
	if err := a.end(); err != nil {
		t.Fatal(err)
	}
	waiting := func(why string) func() bool {
		return func() bool {
			n := 0
			for _, p := range b.Status().Partitions {
				if p.State == StateWaiting && strings.Contains(p.Reason, why) {
					n++
				}
			}
			return n == 2
		}
	}
	w.wait("partitions that wait for the table", waiting("no route to host"))
	for p := range int32(4) {
		w.produce(p, 10)
	}
	w.wait("its own to go on", func() bool { return b.total(outIndexed) == 20 })
	s.fail(nil)
	w.wait("partitions that wait for a newer table", waiting("epoch 1, the group has committed under epoch 2"))
	if n := b.total(outIndexed); n != 20 {
		t.Errorf("%d records were written", n)
	}
	if b.reads.Load() == reads {
		t.Error("the table was not read in real time")
	}
	s.set(3)
	w.waitAllCommitted()
	w.waitEpoch(3, 4)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for k, e := range lowest {
		for o := range seen.legacy[k] {
			if e == 3 && seen.new[k][o] == 0 && seen.legacy[k][o] != 1 {
				t.Errorf("%v: offset %d under epoch %d, on the legacy side only", k, o, seen.legacy[k][o])
			}
		}
	}
}

// S12: a replica that lost its partition still has records of the old table on
// the wire: they count for nothing, and come again, to both sides.
func TestS12_ZombieWritesToTheOldSideOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s, seen := newStored(1), newHandledUnder()
	zombie := w.join(s, seen, 2, nil, func(c *Config, o *Options) {
		c.DrainTimeout, o.ShutdownTimeout = 100*time.Millisecond, 100*time.Millisecond
	})
	w.waitEpoch(1, 1)
	w.produce(0, 20)
	w.wait("all to be on the wire", func() bool { return zombie.sink.held() == 20 })
	late := zombie.sink.take(nil)
	zombie.blind.Store(true)
	s.set(2)
	if err := zombie.end(); err != nil {
		t.Fatal(err)
	}
	b := w.join(s, seen, 2, atOnce)
	zombie.sink.index(late) // too late
	w.waitAllCommitted()
	w.waitEpoch(2, 1)
	if n := b.total(outIndexed); n != 20 {
		t.Errorf("%d records came again", n)
	}
	seen.check(t, map[tp]int64{{testTopic, 0}: 0}, 2)
}

// S13: an end between the acknowledgements of the two sides: the record was not
// committed, and comes again to both.
func TestS13_EndBetweenTheSides(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s, seen := newStored(1), newHandledUnder()
	a := w.join(s, seen, 1, nil, func(_ *Config, o *Options) { o.ShutdownTimeout = 100 * time.Millisecond })
	w.produce(0, 10)
	w.wait("both actions of all", func() bool { return a.sink.held() == 20 })
	a.sink.index(a.sink.take(func(x *act) bool { return strings.HasPrefix(x.target, "legacy") }))
	if err := a.end(); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	if at := w.commits[tp{testTopic, 0}]; at != 0 {
		t.Errorf("committed %d, the new side has nothing", at)
	}
	w.mu.Unlock()
	b := w.join(s, seen, 1, func(s *sink, as []*act) {
		for _, x := range as {
			if strings.HasPrefix(x.target, "legacy") { // equal versions: handled
				x.src.Settle(indexer.Stale, []uint64{x.seq})
				continue
			}
			s.index([]*act{x})
		}
	})
	w.waitAllCommitted()
	if n := b.total(outIndexed) + b.total(outStale); n != 10 {
		t.Errorf("%d records handled", n)
	}
}

// A process that never read a table starts nothing.
func TestNoTableNoStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(0, 10)
	s := newStored(0)
	r := w.join(s, newHandledUnder(), 1, atOnce)
	p := r.waitState(0, StateWaiting)
	if !strings.Contains(p.Reason, "sluice routes init") {
		t.Errorf("it waits because: %s", p.Reason)
	}
	if n := r.sink.adds; n != 0 {
		t.Errorf("%d records were mapped", n)
	}
	w.mu.Lock()
	if len(w.commits) != 0 {
		t.Errorf("committed %v", w.commits)
	}
	w.mu.Unlock()
	s.set(1)
	w.waitAllCommitted()
}

// Commits without metadata count as unknown: they keep nobody from starting, and
// no fence passes on them.
func TestCommitsWithoutMetadataAreUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(0, 10)
	w.start(atOnce, withRules(rules{version: document.VersionOffset})).waitDone(w)
	plain := kadm.Offsets{}
	plain.AddOffset(testTopic, 0, 10, -1)
	if err := w.adm.CommitAllOffsets(t.Context(), testGroup, plain); err != nil {
		t.Fatal(err)
	}
	if f := w.fence(1); f.Passed() || f.Positions[0].Epoch != -1 || f.Positions[0].Offset != 10 {
		t.Errorf("fence %+v", f)
	}
	highest, err := HighestEpoch(t.Context(), w.adm, testGroup)
	if err != nil || highest != 0 {
		t.Errorf("highest %d, %v", highest, err)
	}
}
