package consumer

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/memory"
)

// A partition that halts while its queue is over the high mark goes on after a
// skip: its queue is dropped, so that nothing but the halt may keep it paused.
func TestSkipOfAFullQueue(t *testing.T) {
	w := newWorld(t, 1)
	w.special(0, 5000, 300, "reject")
	m := w.start(nil, withRules(rules{policy: document.Stop, version: document.VersionSequence}), func(_ *Config, o *Options) {
		o.Budget = memory.New(4 << 20) // the high mark is 256 KiB
	})
	m.sink.setFull(true)
	w.wait("the queue to be full", func() bool { return m.paused() == 1 })
	m.sink.setFull(false)
	m.sink.setSettler(atOnce)
	m.waitState(0, StateHalted)
	if err := m.Skip(t.Context(), testTopic, 0, 300, false); err != nil {
		t.Fatal(err)
	}
	w.waitAllCommitted()
}

// What was fetched before a batch that cannot be decoded is not lost with it:
// neither when an operator discards the batch, nor when it can be read later.
func TestQueueBeforeUndecodable(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{true, false} {
		t.Run("discard "+strconv.FormatBool(discard), func(t *testing.T) {
			w := newWorld(t, 1)
			w.produce(0, 5)
			w.produce(0, 5) // the bad batch: offsets 5 to 9
			w.produce(0, 5)
			corrupt := &corruptor{at: 5}
			m := w.start(nil, func(_ *Config, o *Options) {
				o.Kafka = append(o.Kafka, kgo.Dialer(corrupt.dial))
			})
			m.sink.setFull(true)
			w.wait("the halt", func() bool {
				s, _ := m.partition(0)
				return s.Halt != nil && s.Halt.Kind == HaltUndecodable
			})
			if discard {
				w.markHandled(5, 6, 7, 8, 9)
				if err := m.Skip(t.Context(), testTopic, 0, 5, true); err != nil {
					t.Fatal(err)
				}
			} else {
				corrupt.mend()
				a := m.holdings()[0]
				a.l.mu.Lock()
				a.retryFetch = m.now() // it need not be waited for
				a.l.mu.Unlock()
			}
			m.sink.setFull(false)
			m.sink.setSettler(atOnce)
			w.waitAllCommitted()
			if n := m.total(outIndexed); n != map[bool]uint64{true: 10, false: 15}[discard] {
				t.Errorf("%d records indexed", n)
			}
		})
	}
}

// What the poll loop is asked to do while a commit or a callback has its turn
// waits without turning the loop.
func TestWaitingForATurnIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{
			Brokers: []string{"nobody:9092"}, GroupID: testGroup, Topics: []string{testTopic}, ClientID: "test",
			SessionTimeout: 3 * time.Second, RebalanceTimeout: 10 * time.Second, DrainTimeout: 2 * time.Second, CommitInterval: time.Hour,
		}, Options{
			Rules:  func(string) Rules { return rules{} },
			Budget: memory.New(1 << 20), Log: zerolog.Nop(),
			Kafka: []kgo.Opt{kgo.Dialer(func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrClosedPipe })},
		})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- c.Run(t.Context()) }()
		pass(time.Second)
		c.takeTurn()
		at := time.Now()
		var done time.Time
		c.do(func() { done = time.Now() })
		pass(time.Minute) // a bubble's clock stands still while something turns
		c.endTurn()
		synctest.Wait()
		if done.Sub(at) != time.Minute {
			t.Errorf("done after %s, want it at the end of the turn", done.Sub(at))
		}
		c.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A partition that halted because another of its topic met a foreign version
// goes on when that other one is no longer this member's affair: nobody could
// skip anything here.
func TestForeignLeavesWithItsPartition(t *testing.T) {
	w := newWorld(t, 2)
	w.produce(0, 10)
	m := w.start(conflicts(4, 50), withRules(rules{policy: document.ToDeadLetter, version: document.VersionOffset}))
	m.waitState(0, StateHalted)
	m.waitState(1, StateHalted)
	m.onRevoked(t.Context(), nil, map[string][]int32{testTopic: {0}})
	m.waitState(1, StateRunning)
	w.produce(1, 3)
	w.wait("its records", func() bool { return w.commits[tp{testTopic, 1}] == 3 })
}

// Version conflicts that wait to be classified count as held.
func TestConflictsAreCharged(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	sequence, err := document.Sequence(1, 50)
	if err != nil {
		t.Fatal(err)
	}
	m := w.start(nil)
	w.wait("all to be with the sink", func() bool { return m.sink.held() == 10 })
	w.control.set(func(g *control) { g.err = errors.New("the control index is away") })
	before := m.budget.Used()
	m.sink.setSettler(conflicts(4, sequence))
	w.wait("the conflict to be charged", func() bool { return m.budget.Used() > before })
	w.control.set(func(g *control) { g.err = nil })
	m.waitState(0, StateHalted)
}

// pass lets virtual time go by.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock is a bubble's
}

// noClient is a client that pauses nothing.
type noClient struct{}

func (noClient) PauseFetchPartitions(map[string][]int32) map[string][]int32 { return nil }
func (noClient) ResumeFetchPartitions(map[string][]int32)                   {}

// A reason that comes when an assignment is forgotten does not bring it back:
// the pause would be the next assignment's of that partition.
func TestForgottenIsNotPaused(t *testing.T) {
	p := newPauses(noClient{})
	a := &assignment{l: &ledger{topic: testTopic}}
	for range 50_000 {
		p.add(pauseStarting, a)
		var wg sync.WaitGroup
		wg.Go(func() { p.set(pauseHalted, a) })
		wg.Go(func() { p.remove(a) })
		wg.Wait()
		if len(p.reasons) > 0 {
			t.Fatal("it is paused again")
		}
	}
}
