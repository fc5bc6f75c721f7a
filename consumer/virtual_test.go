//go:build synctests

package consumer

import (
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
