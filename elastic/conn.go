package elastic

import (
	"context"
	"io"
	"net"
)

// conn lets a request's body write itself. net/http hands a body to a
// connection's ReadFrom once its own buffer has been passed; the standard one
// would copy it through 32 KiB at a time. A body that implements io.WriterTo
// writes its chunks with one vectored call instead. There is nothing to gain
// under TLS.
type conn struct{ *net.TCPConn }

// ReadFrom implements io.ReaderFrom.
func (c conn) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		// net/http limits a body to the content length, which the body's own
		// length must be; what is left is checked by the caller.
		if body, ok := l.R.(io.WriterTo); ok {
			n, err := body.WriteTo(c.TCPConn)
			l.N -= n
			return n, err
		}
	}
	return c.TCPConn.ReadFrom(r)
}

// vectored is dial with connections that are conn where they are plain TCP.
func vectored(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			return conn{tcp}, nil
		}
		return c, err
	}
}
