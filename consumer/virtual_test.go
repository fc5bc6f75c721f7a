//go:build synctests

package consumer

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
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
// bulk request takes; also while one partition's index takes nothing and another
// partition is halted.
func TestAdoptionStall(t *testing.T) {
	const bulk = 200 * time.Millisecond
	const held, halted = 2, 3 // where there are so many partitions
	for name, partitions := range map[string]int32{"busy": 2, "beside a held target and a halted partition": 4} {
		t.Run(name, func(t *testing.T) {
			virtually(t, partitions, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var ends []time.Time // when requests ended
				inFlight := sync.WaitGroup{}
				s := newStored(1)
				var waiting []*act
				r := w.join(s, newHandledUnder(), 2, func(s *sink, as []*act) {
					as = slices.DeleteFunc(slices.Clone(as), func(a *act) bool {
						switch {
						case a.tp.partition == halted && a.offset == 5:
							a.reject("mapping")
						case a.tp.partition == held && !strings.HasSuffix(a.target, "@2"): // until it is drained
							waiting = append(waiting, a)
						default:
							return false
						}
						return true
					})
					s.mu.Lock()
					waiting = slices.DeleteFunc(waiting, func(a *act) bool {
						if s.drained[a.src] {
							a.src.Settle(indexer.Abandoned, []uint64{a.seq})
						}
						return s.drained[a.src]
					})
					s.mu.Unlock()
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
				}, func(_ *Config, o *Options) {
					o.AdoptTimeout = 20 * time.Second
					rules := o.Rules("").(routed)
					rules.policy = document.Stop
					o.Rules = func(string) Rules { return rules }
				})
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
						for p := range partitions {
							w.produce(p, 5)
						}
						pass(bulk / 10)
					}
				}
				load(4 * bulk) // the first requests come back after one
				if partitions > halted && r.state(halted) != StateHalted {
					t.Fatalf("the partition to be halted is %s", r.state(halted))
				}
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
				w.waitEpoch(2, int(partitions))
				if partitions > halted {
					// The table of epoch 2 has the record rejected again.
					w.wait("the record's other side", func() bool { return r.state(halted) == StateHalted })
					if err := r.Skip(t.Context(), testTopic, halted, 5, false); err != nil {
						t.Fatal(err)
					}
				}
				w.waitAllCommitted()
				if err := r.end(); err != nil {
					t.Error(err)
				}
				inFlight.Wait()
			})
		})
	}
}
