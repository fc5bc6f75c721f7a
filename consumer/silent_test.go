package consumer

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// silentConn takes all that is written and, once silent is set, answers
// nothing more.
type silentConn struct {
	net.Conn
	silent *atomic.Bool
	wrote  chan<- struct{} // hears of what is written into the silence
}

func (c *silentConn) Write(p []byte) (int, error) {
	if !c.silent.Load() {
		return c.Conn.Write(p)
	}
	select {
	case c.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

// SIGTERM while the brokers are silent and a JoinGroup, which they may take
// their time to answer, is under way: the end does not wait for it.
func TestShutdownWhileBrokersAreSilent(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	var silent atomic.Bool
	wrote := make(chan struct{}, 1)
	m := w.start(atOnce, func(cfg *Config, o *Options) {
		cfg.RebalanceTimeout = time.Hour
		o.ShutdownTimeout = 100 * time.Millisecond
		o.Kafka = append(o.Kafka, kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &silentConn{conn, &silent, wrote}, err
		}))
	})
	w.waitAllCommitted()
	w.wait("the answer", func() bool { s, _ := m.partition(0); return s.Committed == 10 })
	silent.Store(true)
	m.cl.ForceRebalance()
	<-wrote
	if err := m.end(); err != nil {
		t.Error(err)
	}
}
