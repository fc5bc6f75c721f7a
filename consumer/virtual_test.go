//go:build synctests

package consumer

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What takes long, by a clock that goes on whenever nothing else does. The build
// tag makes the Kafka client's mutexes such that it can.

// virtually runs f in such a bubble, with a world of its own.
func virtually(t *testing.T, partitions int32, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, newWorldOver(t, new(kfake.VirtualNetwork), partitions))
	})
}

// blockJoins has the next JoinGroup requests answered after release is closed
// only. joining is closed when the first comes.
func (w *world) blockJoins() (joining, release chan struct{}) {
	joining, release = make(chan struct{}), make(chan struct{})
	first := true
	w.kafka.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		if first {
			first = false
			close(joining)
		}
		w.kafka.SleepControl(func() { <-release })
		return nil, nil, false
	})
	return joining, release
}

// SIGTERM while a rebalance does not end, which keeps commits and the leave
// waiting: the end comes within the shutdown timeout and little more, whether
// everything is committed, waits for its commit, or is still on the wire.
func TestShutdownWhileAJoinIsBlocked(t *testing.T) {
	for name, settler := range map[string]func(*sink, []*act){"handled": atOnce, "on the wire": nil} {
		t.Run(name, func(t *testing.T) {
			virtually(t, 1, func(t *testing.T, w *world) {
				const timeout = 10 * time.Second
				m := w.start(settler, func(c *Config, o *Options) {
					c.RebalanceTimeout, o.ShutdownTimeout = time.Hour, timeout
				})
				w.wait("the partition", func() bool { return m.state(0) == StateRunning })
				joining, release := w.blockJoins()
				m.cl.ForceRebalance()
				<-joining
				w.produce(0, 10)
				w.wait("the records", func() bool { return m.total(outIndexed) == 10 || m.sink.held() == 10 })
				pass(time.Second) // a commit waits for the rebalance, if there is one to make
				began := time.Now()
				if err := m.end(); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > timeout+2*lastWords {
					t.Errorf("the end took %s, with a timeout of %s", took, timeout)
				}
				close(release)
			})
		})
	}
}

// How long records stand when an epoch is adopted under load, in units of what a
// bulk request takes.
func TestAdoptionStall(t *testing.T) {
	const bulk = 200 * time.Millisecond
	virtually(t, 2, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var ends []time.Time // when requests ended
		inFlight := sync.WaitGroup{}
		s := newStored(1)
		r := w.join(s, newHandledUnder(), 2, func(s *sink, as []*act) {
			if len(as) == 0 {
				return
			}
			inFlight.Go(func() {
				pass(bulk)
				mu.Lock()
				ends = append(ends, time.Now())
				mu.Unlock()
				s.index(as)
			})
		}, func(_ *Config, o *Options) { o.AdoptTimeout = 20 * time.Second })
		longest := func(from time.Time) (gap time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			for i := 1; i < len(ends); i++ {
				if ends[i].After(from) {
					gap = max(gap, ends[i].Sub(ends[i-1]))
				}
			}
			return gap
		}
		load := func(d time.Duration) {
			for range int(d / (bulk / 10)) {
				for p := range int32(2) {
					w.produce(p, 5)
				}
				pass(bulk / 10)
			}
		}
		load(2 * bulk) // the first requests come back after one
		began := time.Now()
		load(2 * bulk)
		calm := longest(began)
		s.set(2)
		load(4 * bulk)
		stall := longest(began)
		t.Logf("bulk requests of %s end every %s; across an adoption nothing ends for %s: %.2f bulk latencies", bulk, calm, stall, stall.Seconds()/bulk.Seconds())
		if stall > 3*bulk {
			t.Errorf("an adoption stops everything for %s", stall)
		}
		w.waitAllCommitted()
		w.waitEpoch(2, 2)
		if err := r.end(); err != nil {
			t.Error(err)
		}
		inFlight.Wait()
	})
}
