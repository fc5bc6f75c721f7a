//go:build synctests

package simulation

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// latency is how long a request to a broker is on its way.
const latency = 3 * time.Millisecond

// link is all of one member's network. Frozen, it holds back what is sent in
// either direction, for ever if need be, and delivers it when it is thawed,
// even if the sender has given up and hung up meanwhile: what a zombie, or a
// commit that comes late, looks like to the servers. Cut, it is gone.
type link struct {
	dialBroker func(ctx context.Context, network, address string) (net.Conn, error)
	cluster    http.RoundTripper

	mu     sync.Mutex
	frozen chan struct{} // closed when it is thawed; nil: it is not frozen
	gone   bool
	zombie bool          // it was frozen once
	cut    chan struct{} // closed when it is cut
	conns  map[*conn]struct{}
}

func newLink(dial func(context.Context, string, string) (net.Conn, error), cluster http.RoundTripper) *link {
	return &link{dialBroker: dial, cluster: cluster, cut: make(chan struct{}), conns: map[*conn]struct{}{}}
}

var errCut = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}

// freeze holds everything back until the returned function is called.
func (l *link) freeze() (thaw func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen != nil {
		return func() {}
	}
	frozen := make(chan struct{})
	l.frozen, l.zombie = frozen, true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.frozen = nil
		close(frozen)
	}
}

// wasFrozen says whether it ever was: letters may then not be acknowledged by
// the time the member has to end.
func (l *link) wasFrozen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.zombie
}

// cutOff ends the network for good.
func (l *link) cutOff() {
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		return
	}
	l.gone = true
	close(l.cut)
	l.mu.Unlock()
	l.reset()
}

// reset breaks all connections to brokers.
func (l *link) reset() {
	l.mu.Lock()
	conns := l.conns
	l.conns = map[*conn]struct{}{}
	l.mu.Unlock()
	for c := range conns {
		c.sever()
	}
}

func (l *link) thawed() (frozen <-chan struct{}, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frozen, l.gone
}

// pass waits while the link is frozen. It reports errCut once it is cut, and
// the cause when stop ends the wait.
func (l *link) pass(stop <-chan struct{}, late <-chan time.Time) error {
	for {
		frozen, gone := l.thawed()
		switch {
		case gone:
			return errCut
		case frozen == nil:
			return nil
		}
		select {
		case <-frozen:
		case <-l.cut:
		case <-stop:
			return net.ErrClosed
		case <-late:
			return os.ErrDeadlineExceeded
		}
	}
}

// dial is a kgo dialer.
func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := l.pass(ctx.Done(), nil); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	inner, err := l.dialBroker(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, link: l, closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		inner.Close()
		return nil, errCut
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// conn is a connection to a broker.
type conn struct {
	net.Conn
	link   *link
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	pending  []byte // written while the link was frozen
	flushing bool   // somebody waits to send it
	deadline time.Time
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, err
	}
	if frozen, gone := c.link.thawed(); frozen == nil && !gone {
		return n, nil
	}
	c.mu.Lock()
	deadline := c.deadline
	c.mu.Unlock()
	var late <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		late = t.C
	}
	if err := c.link.pass(c.closed, late); err != nil {
		return 0, err // what was read is lost, with the connection
	}
	return n, nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) Write(p []byte) (int, error) {
	// Without a time on the way, a client that asks again at once would never
	// let the virtual clock go on.
	select {
	case <-time.After(latency):
	case <-c.closed:
		return 0, net.ErrClosed
	}
	frozen, gone := c.link.thawed()
	if gone {
		return 0, errCut
	}
	c.mu.Lock()
	if frozen == nil && !c.flushing {
		c.mu.Unlock()
		return c.Conn.Write(p)
	}
	defer c.mu.Unlock()
	c.pending = append(c.pending, p...)
	if !c.flushing {
		c.flushing = true
		go c.flush()
	}
	return len(p), nil
}

// flush delivers what was written while the link was frozen, and then closes
// the connection if its owner has.
func (c *conn) flush() {
	for c.link.pass(nil, nil) == nil {
		c.mu.Lock()
		now := c.pending
		c.pending = nil
		c.flushing = len(now) > 0
		c.mu.Unlock()
		if len(now) == 0 {
			break
		}
		if _, err := c.Conn.Write(now); err != nil {
			break
		}
	}
	c.mu.Lock()
	c.flushing = false
	c.mu.Unlock()
	select {
	case <-c.closed:
		c.Conn.Close()
	default:
	}
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flushing {
		return nil // flush closes it
	}
	return c.Conn.Close()
}

// sever breaks the connection as a reset does.
func (c *conn) sever() {
	c.once.Do(func() { close(c.closed) })
	c.Conn.Close()
}

// RoundTrip implements http.RoundTripper.
func (l *link) RoundTrip(req *http.Request) (*http.Response, error) {
	frozen, gone := l.thawed()
	if gone {
		closeBody(req)
		return nil, errCut
	}
	if frozen != nil {
		return l.delayed(req)
	}
	resp, err := l.cluster.RoundTrip(req)
	if passed := l.pass(req.Context().Done(), nil); passed != nil {
		if err == nil {
			resp.Body.Close()
		}
		if cause := context.Cause(req.Context()); cause != nil {
			passed = cause
		}
		return nil, passed
	}
	return resp, err
}

// delayed sends a request once the link is thawed, whether or not anybody
// still waits for the answer.
func (l *link) delayed(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		closeBody(req)
		if err != nil {
			return nil, err
		}
	}
	late := req.Clone(context.WithoutCancel(ctx))
	late.Body = io.NopCloser(bytes.NewReader(body))
	type outcome struct {
		resp *http.Response
		err  error
	}
	answered := make(chan outcome)
	go func() {
		err := l.pass(nil, nil)
		var resp *http.Response
		if err == nil {
			resp, err = l.cluster.RoundTrip(late)
		}
		select {
		case answered <- outcome{resp, err}:
		case <-ctx.Done():
			if err == nil {
				resp.Body.Close()
			}
		}
	}()
	select {
	case o := <-answered:
		return o.resp, o.err
	case <-ctx.Done():
		return nil, errors.Join(errors.New("gave up on a frozen network"), context.Cause(ctx))
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // read to its end, or of no use
	}
}
