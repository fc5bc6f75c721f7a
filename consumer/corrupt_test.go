package consumer

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
)

// corruptor flips a byte of each batch that begins at an offset, on its way
// from the broker: the batch's checksum no longer fits.
type corruptor struct {
	at     int64
	mended atomic.Bool
}

func (c *corruptor) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &corruptConn{Conn: conn, by: c}, err
}

// mend ends it.
func (c *corruptor) mend() { c.mended.Store(true) }

type corruptConn struct {
	net.Conn
	by  *corruptor
	buf []byte // of the frame that is being read
}

// Read hands out whole frames only, so that a batch is seen in one piece.
func (c *corruptConn) Read(p []byte) (int, error) {
	if len(c.buf) == 0 {
		var size [4]byte
		if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
			return 0, err
		}
		c.buf = make([]byte, 4+binary.BigEndian.Uint32(size[:]))
		copy(c.buf, size[:])
		if _, err := io.ReadFull(c.Conn, c.buf[4:]); err != nil {
			return 0, err
		}
		c.corrupt()
	}
	n := copy(p, c.buf)
	c.buf = c.buf[n:]
	return n, nil
}

func (c *corruptConn) corrupt() {
	if c.by.mended.Load() {
		return
	}
	var offset [8]byte
	binary.BigEndian.PutUint64(offset[:], uint64(c.by.at))
	for i := 0; i+61 < len(c.buf); i++ {
		// A record batch: first offset, length, leader epoch, magic 2.
		if c.buf[i+16] != 2 || !bytes.Equal(c.buf[i:i+8], offset[:]) {
			continue
		}
		if n := int(binary.BigEndian.Uint32(c.buf[i+8:])); n > 49 && i+12+n <= len(c.buf) {
			c.buf[i+12+n-1] ^= 0xff
		}
	}
}
