package consumer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// decompressor unpacks batches into pooled buffers, none of which becomes
// larger than max bytes. It reads lz4 frames itself: the client's reader copies
// every block once more and computes checksums, although the client has checked
// the batch's own, which takes as long as unpacking. Other codecs are left to
// the client.
type decompressor struct {
	max   int
	pool  *bytesPool
	other kgo.Decompressor
	ratio atomic.Int64 // by how much lz4 batches have grown lately, in sixteenths
}

func newDecompressor(max int, pool *bytesPool) (*decompressor, error) {
	// The client's own has no bound but inside a client, which shows it.
	cl, err := kgo.NewClient(kgo.MaxDecompressBatchBytes(max), kgo.WithPools(pool))
	if err != nil {
		return nil, fmt.Errorf("consumer: decompressor: %w", err)
	}
	defer cl.Close()
	other, ok := cl.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
	if !ok {
		return nil, errors.New("consumer: the Kafka client shows no decompressor")
	}
	d := &decompressor{max: max, pool: pool, other: other}
	d.ratio.Store(3 * 16)
	return d, nil
}

// Decompress implements kgo.Decompressor.
func (d *decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec != kgo.CodecLz4 || len(src) == 0 {
		return d.other.Decompress(src, codec)
	}
	ratio := d.ratio.Load()
	u := unpacking{d: d, dst: d.pool.get(int(min(int64(len(src))*ratio/16, int64(d.max))))}
	if err := u.frames(src); err != nil {
		d.pool.PutDecompressBytes(u.dst)
		return nil, err
	}
	// A little more, so that what comes next fits too; down by degrees.
	grew := int64(len(u.dst)) * 17 / int64(len(src))
	d.ratio.Store(max(grew, ratio-ratio/16))
	return u.dst, nil
}

// The lz4 frame format, version 1.6.4. Kafka's clients write one frame a
// batch; frames that follow each other, and those to be skipped, are part of
// the format.
const (
	lz4Magic     = 0x184D2204
	lz4SkipMagic = 0x184D2A50 // to ...5F

	lz4Version     = 0b11 << 6 // must be 01
	lz4Independent = 1 << 5    // blocks do not refer to earlier ones
	lz4BlockSums   = 1 << 4
	lz4Size        = 1 << 3
	lz4Sum         = 1 << 2
	lz4Dictionary  = 1 << 0

	lz4Raw    = 1 << 31  // in a block's size: it is not compressed
	lz4Window = 64 << 10 // as far as a block refers back
)

var errLZ4 = errors.New("lz4: cut or malformed frame")

// unpacking is one batch on its way from lz4 frames to dst.
type unpacking struct {
	d   *decompressor
	dst []byte
	src []byte
}

func (u *unpacking) frames(src []byte) error {
	u.src = src
	for len(u.src) > 0 {
		magic, ok := u.word()
		switch {
		case !ok:
			return errLZ4
		case magic&^0xf == lz4SkipMagic:
			size, ok := u.word()
			if _, taken := u.take(int64(size)); !ok || !taken {
				return errLZ4
			}
		case magic != lz4Magic:
			return fmt.Errorf("lz4: no frame begins with %08x", magic)
		default:
			if err := u.frame(); err != nil {
				return err
			}
		}
	}
	return nil
}

// frame unpacks one frame, behind its magic number. Its checksums are not
// looked at: what is wrong in spite of the batch's own CRC was wrong when it
// was written.
func (u *unpacking) frame() error {
	descriptor, ok := u.take(2)
	if !ok {
		return errLZ4
	}
	flags, largest := descriptor[0], descriptor[1]>>4&7
	if flags&lz4Version != 1<<6 || flags&lz4Dictionary != 0 || largest < 4 {
		return fmt.Errorf("lz4: frame descriptor %x is unknown", descriptor)
	}
	header := int64(1) // its checksum
	if flags&lz4Size != 0 {
		header += 8
	}
	if _, ok := u.take(header); !ok {
		return errLZ4
	}
	most, start := 1<<(8+2*int(largest)), len(u.dst)
	for {
		size, ok := u.word()
		if !ok {
			return errLZ4
		}
		if size == 0 {
			break
		}
		block, ok := u.take(int64(size &^ lz4Raw))
		if !ok || len(block) > most {
			return errLZ4
		}
		var err error
		switch {
		case size&lz4Raw != 0:
			err = u.raw(block)
		case flags&lz4Independent != 0:
			err = u.block(block, most, len(u.dst))
		default:
			err = u.block(block, most, max(start, len(u.dst)-lz4Window))
		}
		if err != nil {
			return err
		}
		if flags&lz4BlockSums != 0 {
			if _, ok := u.take(4); !ok {
				return errLZ4
			}
		}
	}
	if flags&lz4Sum != 0 {
		if _, ok := u.take(4); !ok {
			return errLZ4
		}
	}
	return nil
}

func (u *unpacking) raw(block []byte) error {
	if len(u.dst)+len(block) > u.d.max {
		return kgo.ErrMaxDecompress
	}
	u.grow(len(block))
	u.dst = append(u.dst, block...)
	return nil
}

// block unpacks a block of at most so many bytes that may refer to dst[window:].
// How large it is shows when it is unpacked: where it does not fit into what
// there is, it is tried again with more.
func (u *unpacking) block(block []byte, most, window int) error {
	most = min(most, u.d.max-len(u.dst))
	for {
		at := len(u.dst)
		room := u.dst[at:min(cap(u.dst), at+most)]
		n, err := lz4.UncompressBlockWithDict(block, room, u.dst[window:at])
		switch {
		case err == nil:
			u.dst = u.dst[:at+n]
			return nil
		case len(room) < most:
			u.grow(min(most, max(4*len(room), 4*len(block))))
		case at+most == u.d.max:
			return kgo.ErrMaxDecompress // or it is malformed: who knows
		default:
			return errLZ4
		}
	}
}

// grow makes room for n more bytes.
func (u *unpacking) grow(n int) {
	if cap(u.dst)-len(u.dst) >= n {
		return
	}
	larger := append(u.d.pool.get(len(u.dst)+n), u.dst...)
	u.d.pool.PutDecompressBytes(u.dst)
	u.dst = larger
}

func (u *unpacking) word() (uint32, bool) {
	b, ok := u.take(4)
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b), true
}

func (u *unpacking) take(n int64) ([]byte, bool) {
	if int64(len(u.src)) < n {
		return nil, false
	}
	b := u.src[:n:n]
	u.src = u.src[n:]
	return b, true
}

// The pools are safe because the dispatcher is done with a record, and with all
// it points to, before it recycles it. What they hand out is little larger than
// what is asked for: a batch may be a single small record.

// recordPool keeps slices of records for the client.
type recordPool struct {
	pools [8]sync.Pool // of leastRecords << i
}

const leastRecords = 64

func newRecordPool() *recordPool { return new(recordPool) }

// recordClass is the least class whose slices have n records.
func recordClass(n int) int { return bits.Len(uint(max(n, leastRecords)-1) / leastRecords) }

// GetRecords implements kgo.PoolRecords.
func (p *recordPool) GetRecords(n int) []kgo.Record {
	i := recordClass(n)
	if n <= leastRecords/2 || i >= len(p.pools) {
		return make([]kgo.Record, n)
	}
	if s, ok := p.pools[i].Get().(*[]kgo.Record); ok {
		return (*s)[:n]
	}
	return make([]kgo.Record, n, leastRecords<<i)
}

// PutRecords implements kgo.PoolRecords.
func (p *recordPool) PutRecords(s []kgo.Record) {
	if i := recordClass(cap(s)); i < len(p.pools) && cap(s) == leastRecords<<i {
		p.pools[i].Put(&s)
	}
}

// bytesPool keeps the buffers that batches are decompressed into: free lists,
// since a sync.Pool loses them to the collector just when fetches are large.
type bytesPool struct {
	mu   sync.Mutex
	free [4 * 13][][]byte // of bufferSize(i) and more
	held int              // bytes in free
}

const (
	leastBuffer   = 1 << 10
	bytesPoolHeld = 16 << 20
)

func newBytesPool() *bytesPool { return new(bytesPool) }

// bufferSize is the size of the buffers of class i: four classes double it.
func bufferSize(i int) int { return leastBuffer / 4 * (4 + i%4) << (i / 4) }

// bufferClass is the greatest class whose buffers have at most n bytes.
func bufferClass(n int) int {
	n = max(n, leastBuffer) / (leastBuffer / 4)
	double := bits.Len(uint(n)) - 3
	return 4*double + n>>double - 4
}

// get returns an empty buffer with room for n bytes and little more.
func (p *bytesPool) get(n int) []byte {
	i := bufferClass(n)
	if bufferSize(i) < n {
		i++
	}
	if i >= len(p.free) {
		return make([]byte, 0, n)
	}
	p.mu.Lock()
	for k := i; k < min(i+3, len(p.free)); k++ {
		if last := len(p.free[k]) - 1; last >= 0 {
			b := p.free[k][last]
			p.free[k][last] = nil
			p.free[k] = p.free[k][:last]
			p.held -= cap(b)
			p.mu.Unlock()
			return b[:0]
		}
	}
	p.mu.Unlock()
	return make([]byte, 0, bufferSize(i))
}

// GetDecompressBytes implements kgo.PoolDecompressBytes.
func (p *bytesPool) GetDecompressBytes(src []byte, _ kgo.CompressionCodecType) []byte {
	return p.get(3 * len(src))
}

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (p *bytesPool) PutDecompressBytes(b []byte) {
	i := bufferClass(cap(b))
	if cap(b) < leastBuffer || i >= len(p.free) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held+cap(b) <= bytesPoolHeld {
		p.free[i] = append(p.free[i], b)
		p.held += cap(b)
	}
}
