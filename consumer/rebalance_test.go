package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// V06, V07: members come and go twenty times under load; nothing is committed
// too early (the world checks each commit), and all is handled in the end.
func TestJoinLeaveTwentyTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	loading, stop := context.WithCancel(t.Context())
	producing := make(chan struct{})
	go func() {
		defer close(producing)
		for i := 0; ; i++ {
			select {
			case <-loading.Done():
				return
			case <-time.After(2 * time.Millisecond): // the load's pace
				w.produce(int32(i%6), 20)
			}
		}
	}()
	defer func() { stop(); <-producing }()
	first := w.start(shuffled(1))
	w.wait("the first commit", func() bool { return w.commitN > 0 })
	for i := range 10 {
		m := w.start(shuffled(uint64(i)))
		w.wait("the second member's share", func() bool { return len(m.Status().Partitions) == 3 })
		n := func() uint64 { return m.total(outIndexed) }
		before := n()
		w.wait("the second member's work", func() bool { return n() > before })
		if err := m.end(); err != nil {
			t.Fatal(err)
		}
		w.wait("all to be with the first again", func() bool { return len(first.Status().Partitions) == 6 })
	}
	stop()
	<-producing
	w.waitAllCommitted()
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	// Each release drained and committed: only what was still queued was
	// delivered again, so nothing was written twice.
	for k, handled := range w.handled {
		for o, n := range handled {
			if n != 1 {
				t.Fatalf("%v: offset %d was handled %d times", k, o, n)
			}
		}
	}
}

// V03: a revoke with work that is never answered: it ends in time, what is
// handled is committed, the rest is delivered to the next owner, and a late
// outcome changes nothing.
func TestRevokeWithUnfinishedWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(0, 100)
	w.produce(1, 100)
	short := func(c *Config, _ *Options) { c.DrainTimeout = 200 * time.Millisecond }
	a := w.start(nil, short)
	w.wait("everything to be with the sink", func() bool { return a.sink.held() == 200 })
	// The first ten of each, in any order, but not offset 5.
	a.sink.index(a.sink.take(func(x *act) bool { return x.offset < 10 && x.offset != 5 }))
	stuck := a.sink.take(func(x *act) bool { return x.offset == 50 })

	b := w.start(atOnce, short)
	w.wait("the second member's share", func() bool { return len(b.Status().Partitions) == 1 })
	p := b.Status().Partitions[0].Partition
	w.wait("its commit", func() bool { return w.commits[tp{testTopic, p}] == 100 })
	w.mu.Lock()
	if n := w.handled[tp{testTopic, p}][0]; n != 1 {
		t.Errorf("offset 0 was handled %d times: the commit at the revoke was lost", n)
	}
	if n := w.handled[tp{testTopic, p}][7]; n != 2 {
		t.Errorf("offset 7, beyond the first that was not handled, was handled %d times", n)
	}
	w.mu.Unlock()
	for _, x := range stuck {
		if x.tp.partition == p {
			a.sink.index([]*act{x}) // too late: goes nowhere
		}
	}
	a.sink.setSettler(atOnce)
	w.wait("the first member's commit", func() bool { return w.commits[tp{testTopic, 1 - p}] >= 50 })
	if n := a.total(outAbandoned); n != 91 {
		t.Errorf("%d records abandoned, want the 91 that had no outcome", n)
	}
}

// A revoke must not wait for a dispatcher that waits for memory: neither where
// it holds records of the partition that is revoked, nor where of another's.
func TestRevokeWhileMemoryIsFull(t *testing.T) {
	t.Parallel()
	for p := range int32(2) {
		t.Run(fmt.Sprint("records of partition ", p), func(t *testing.T) {
			w := newWorld(t, 2)
			w.produce(p, 600)
			// Nobody waits so long in vain.
			long := func(c *Config, _ *Options) { c.DrainTimeout, c.RebalanceTimeout = time.Minute, 2*time.Minute }
			a := w.start(atOnce, long)
			a.sink.setFull(true)
			w.wait("the dispatcher to have a batch", func() bool { s, _ := a.partition(p); return s.Position > 0 })
			b := w.start(atOnce)
			w.wait("the second member's share", func() bool { return len(b.Status().Partitions) == 1 })
			a.sink.setFull(false)
			w.waitAllCommitted()
		})
	}
}

// A commit that was made up before the member was thrown out is not sent by the
// member that it has become.
func TestCommitOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(nil)
	w.wait("everything to be with the sink", func() bool { return m.sink.held() == 10 })
	joining, release := make(chan struct{}), make(chan struct{})
	joins := 0
	w.kafka.ControlKey(int16(kmsg.JoinGroup), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		if joins++; joins > 1 {
			return nil, nil, false
		}
		close(joining)
		w.kafka.SleepControl(func() { <-release })
		resp := kreq.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return resp, nil, true
	})
	m.cl.ForceRebalance()
	<-joining // a commit before it would be a good one
	// A turn that is taken from now on is that of a commit of all: no other, which
	// finds nothing to commit, must be taken for it.
	m.takeTurn()
	m.sink.setSettler(atOnce)
	w.wait("all to be handled", func() bool { return m.total(outIndexed) == 10 })
	m.endTurn()
	w.wait("a commit that waits for the rebalance", func() bool { return len(m.turn) == 1 })
	close(release)
	w.waitAllCommitted()
	m.commits.mu.Lock()
	defer m.commits.mu.Unlock()
	if m.commits.failures[commitRetry] == 0 {
		t.Error("the commit was sent under another generation")
	}
}

// A member that has a new id does not put the group back, if another one has
// committed more meanwhile.
func TestNewMemberReadsTheCommits(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 50)
	m := w.start(nil)
	w.wait("everything to be with the sink", func() bool { return m.sink.held() == 50 })
	m.sink.index(m.sink.take(func(a *act) bool { return a.offset < 5 }))
	w.wait("a first commit", func() bool { return w.commits[tp{testTopic, 0}] == 5 })
	m.takeTurn()
	// Somebody else has handled and committed up to 40.
	for o := range int64(40) {
		w.markHandled(o)
	}
	member, generation := m.cl.GroupMetadata()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation = testGroup, member, generation
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = testTopic, w.kafka.TopicInfo(testTopic).TopicID
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Offset = 40
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	if _, err := req.RequestWith(t.Context(), m.cl); err != nil {
		t.Fatal(err)
	}
	m.commits.member = "another"
	m.endTurn()
	m.sink.index(m.sink.take(func(a *act) bool { return a.offset < 10 }))
	w.wait("the group's commit to be known", func() bool { s, _ := m.partition(0); return s.Committed == 40 })
	m.sink.setSettler(atOnce)
	w.waitAllCommitted()
}

// V10: SIGTERM with actions that nobody has flushed: they are published, and
// committed when they are answered.
func TestShutdownCommitsWhatItHolds(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 100)
	m := w.start(nil)
	w.wait("everything to be with the sink", func() bool { return m.sink.held() == 100 })
	m.sink.setSettler(func(s *sink, as []*act) {
		s.mu.Lock()
		draining := len(s.drained) > 0
		s.mu.Unlock()
		if !draining {
			s.mu.Lock()
			s.published = append(s.published, as...)
			s.mu.Unlock()
			return
		}
		s.index(as)
	})
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.commits[tp{testTopic, 0}]; at != 100 {
		t.Errorf("committed %d of 100 at the end", at)
	}
	if g := w.kafka.GroupInfo(testGroup); g != nil && len(g.Members) != 0 {
		t.Errorf("%d members left in the group", len(g.Members))
	}
}

// A static member keeps its place.
func TestStaticMemberStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(0, 10)
	static := func(c *Config, _ *Options) { c.InstanceID = "one" }
	m := w.start(atOnce, static)
	w.waitAllCommitted()
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	if g := w.kafka.GroupInfo(testGroup); g == nil || len(g.Members) != 1 {
		t.Errorf("the static member left: %+v", g)
	}
	w.produce(0, 10)
	w.start(atOnce, static)
	w.waitAllCommitted()
}

// V16: the elder of two processes with one instance id ends, with a reason.
func TestFenced(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	static := func(c *Config, _ *Options) { c.InstanceID = "one" }
	elder := w.start(atOnce, static)
	w.waitAllCommitted()
	younger := w.start(atOnce, static)
	select {
	case elder.result = <-elder.err:
		elder.once.Do(func() {})
	case <-time.After(2 * time.Minute):
		t.Fatal("the fenced member goes on")
	}
	if !errors.Is(elder.result, ErrFenced) {
		t.Errorf("it ended with %v", elder.result)
	}
	w.produce(0, 10)
	w.waitAllCommitted()
	if younger.state(0) != StateRunning {
		t.Error("the younger one does not run")
	}
}

// V06: commits that fail for a while resume by themselves.
func TestCommitFailures(t *testing.T) {
	t.Parallel()
	for _, e := range []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.RebalanceInProgress, kerr.UnknownServerError, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.GroupAuthorizationFailed} {
		t.Run(e.Message, func(t *testing.T) {
			w := newWorld(t, 1)
			w.produce(0, 10)
			m := w.start(atOnce)
			w.waitAllCommitted()
			f := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: e, Count: 3})
			w.produce(0, 10)
			w.wait("the failures", func() bool { return f.Hits() == 3 })
			w.wait("the commit after them", func() bool { s, _ := m.partition(0); return s.Committed == 20 })
			if s := m.Status(); s.CommitError != "" {
				t.Errorf("the failure stays in the status: %s", s.CommitError)
			}
		})
	}
}

// V05: a commit that the broker carries out late must not have the last word.
func TestLateCommitIsOvertaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(atOnce)
	w.waitAllCommitted()
	w.wait("the first answer", func() bool { s, _ := m.partition(0); return s.Committed == 10 })
	f := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.RequestTimedOut, Count: 1}) // applied, and said not to be
	w.produce(0, 10)
	w.wait("the fault", func() bool { return f.Hits() == 1 })
	w.wait("the commit", func() bool { s, _ := m.partition(0); return s.Committed == 20 })
	w.mu.Lock()
	n := w.commitN
	w.mu.Unlock()
	// Nothing new is handled, yet the position is said again.
	w.wait("the position to be committed again", func() bool { return w.commitN >= n+3 })
}

func TestClassifyCommit(t *testing.T) {
	for err, want := range map[error]commitClass{
		errOtherGeneration:             commitRetry,
		kerr.CoordinatorNotAvailable:   commitRetry,
		kerr.RebalanceInProgress:       commitRetry,
		errors.New("connection reset"): commitRetry,
		kerr.UnknownMemberID:           commitRejoin,
		kerr.IllegalGeneration:         commitRejoin,
		kerr.GroupAuthorizationFailed:  commitRights,
		kerr.TopicAuthorizationFailed:  commitRights,
		kerr.FencedInstanceID:          commitFenced,
		kerr.OffsetMetadataTooLarge:    commitOther,
	} {
		if got := classifyCommit(fmt.Errorf("commit: %w", err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A member that is thrown out forgets without a commit, rejoins, and delivers
// again.
func TestLostAndRejoined(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 50)
	m := w.start(nil)
	w.wait("everything to be with the sink", func() bool { return m.sink.held() == 50 })
	w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.UnknownMemberID, Count: 1})
	w.wait("the loss", func() bool { return m.total(outAbandoned) == 50 })
	m.sink.setSettler(atOnce)
	w.waitAllCommitted()
}

// V11: more partitions, with ids from keys: the topic halts on every member,
// since keys have moved, until its generation is raised.
func TestPartitionsAdded(t *testing.T) {
	w := newWorld(t, 2)
	w.produce(0, 10)
	m := w.start(atOnce, func(_ *Config, o *Options) {
		o.Kafka = append(o.Kafka, kgo.MetadataMaxAge(200*time.Millisecond), kgo.MetadataMinAge(50*time.Millisecond))
	})
	w.waitAllCommitted()
	if _, err := w.adm.UpdatePartitions(t.Context(), 4, testTopic); err != nil {
		t.Fatal(err)
	}
	s := m.waitState(0, StateHalted)
	if s.Halt.Kind != HaltGeneration {
		t.Errorf("halted for %+v", s.Halt)
	}
	m.waitState(3, StateHalted)
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	w.control.set(func(g *control) {
		last := g.list[0]
		last.Generation, last.Partitions, last.Start = 2, 4, map[int32]int64{0: 10, 1: 0}
		g.list = append(g.list, last)
	})
	w.connect()
	w.produce(3, 10)
	w.produce(0, 10)
	w.start(atOnce)
	w.waitAllCommitted()
	if m, _ := parseCommitMeta(w.metas[tp{testTopic, 0}]); m.Generation != 2 || m.Partitions != 4 {
		t.Errorf("the commit says %+v", m)
	}
}

// The control index cannot be reached at the assignment: the partitions wait,
// say why, and start by themselves.
func TestControlIndexAway(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	w.control.err = errors.New("no route to host")
	m := w.start(atOnce)
	s := m.waitState(0, StateWaiting)
	if s.Reason == "" || s.Since.IsZero() {
		t.Errorf("it waits without a reason: %+v", s)
	}
	if n := m.sink.adds; n != 0 {
		t.Errorf("%d records were mapped without a generation", n)
	}
	w.control.set(func(g *control) { g.err = nil })
	w.waitAllCommitted()
}

// A commit that names a generation which is not recorded: the control index was
// lost.
func TestControlIndexLost(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	w.start(atOnce).waitDone(w)
	w.control.set(func(g *control) { g.list = nil })
	w.produce(0, 10)
	m := w.start(atOnce)
	if s := m.waitState(0, StateHalted); s.Halt.Kind != HaltGeneration {
		t.Errorf("halted for %+v", s.Halt)
	}
}

func (m *member) waitDone(w *world) {
	w.t.Helper()
	w.waitAllCommitted()
	if err := m.end(); err != nil {
		w.t.Fatal(err)
	}
}
