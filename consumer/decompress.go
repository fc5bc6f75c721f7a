package consumer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// decompressor unpacks batches into pooled buffers, none of which becomes
// larger than max bytes. It reads lz4 frames itself: the client's reader copies
// every block once more and computes checksums, although the client has checked
// the batch's own, which takes as long as unpacking. Other codecs are left to
// the client.
//
// The client unpacks all batches of a fetch before it hands out the first, and
// what they expand to shows only then. So buffers that are out are counted: a
// batch is refused with errUnpackedFull, and fetched again later, where all would
// have more than max bytes then: one that has as much passes when no other is out.
type decompressor struct {
	max  int
	pool *bytesPool
	// other unpacks up to max bytes, beside, while others are out, a quarter of it.
	other, beside kgo.Decompressor
	ratio         atomic.Int64 // by how much lz4 batches have grown lately, in sixteenths

	mu sync.Mutex
	// next is the checksum of a batch that found no room beside others: without
	// a turn of its own it would find none for as long as others come. They are
	// refused until it has passed, or until then.
	next  uint32
	until time.Time
}

// turnFor is how long others are refused for the sake of a batch that needs all
// the room: it is fetched again long before, if there is room at all.
const turnFor = 5 * time.Second

// errUnpackedFull says that what was fetched before has to be worked off first.
var errUnpackedFull = errors.New("memory is full of batches that were unpacked before: this one is fetched again")

func newDecompressor(max int, pool *bytesPool) (*decompressor, error) {
	d := &decompressor{max: max, pool: pool}
	d.ratio.Store(3 * 16)
	for _, c := range []struct {
		own *kgo.Decompressor
		max int
	}{{&d.other, max}, {&d.beside, max / 4}} {
		// The client's own has no bound but inside a client, which shows it.
		cl, err := kgo.NewClient(kgo.MaxDecompressBatchBytes(c.max), kgo.WithPools(pool))
		if err != nil {
			return nil, fmt.Errorf("consumer: decompressor: %w", err)
		}
		defer cl.Close()
		var ok bool
		if *c.own, ok = cl.OptValue(kgo.WithDecompressor).(kgo.Decompressor); !ok {
			return nil, errors.New("consumer: the Kafka client shows no decompressor")
		}
	}
	return d, nil
}

// Decompress implements kgo.Decompressor.
func (d *decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	if !d.mayPass(src) {
		return nil, errUnpackedFull
	}
	max := d.max
	if out := d.pool.lent(int64(max - max/4)); out > 0 {
		if max /= 4; out > int64(d.max-max) {
			return nil, errUnpackedFull
		}
	}
	var dst []byte
	err := kgo.ErrMaxDecompress
	if max == d.max || claimed(src, codec) <= max {
		dst, err = d.unpack(src, codec, max)
	}
	if errors.Is(err, kgo.ErrMaxDecompress) && max < d.max {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.until.IsZero() {
			d.next, d.until = crc32.ChecksumIEEE(src), time.Now().Add(turnFor)
		}
		return nil, errUnpackedFull
	}
	if max == d.max {
		d.mu.Lock()
		d.until = time.Time{}
		d.mu.Unlock()
	}
	if err == nil {
		d.pool.lend(dst)
	}
	return dst, err
}

// claimed is how many bytes a batch says that it has unpacked; 0: it does not say,
// or what cannot be. Only gzip's end is looked at: of the others the client knows,
// and gzip it would unpack into ever larger buffers.
func claimed(src []byte, codec kgo.CompressionCodecType) int {
	const header, trailer, mostExpansion = 10, 8, 1032
	if codec != kgo.CodecGzip || len(src) < header+trailer {
		return 0
	}
	n := int64(binary.LittleEndian.Uint32(src[len(src)-4:]))
	if n > mostExpansion*int64(len(src)) {
		return 0
	}
	return int(n)
}

// mayPass says whether a batch need not wait for the turn of another one.
func (d *decompressor) mayPass(src []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.until.IsZero() && time.Now().After(d.until) {
		d.until = time.Time{}
	}
	return d.until.IsZero() || crc32.ChecksumIEEE(src) == d.next
}

// unpack unpacks a batch to most bytes at most: d.max, or a quarter of it.
func (d *decompressor) unpack(src []byte, codec kgo.CompressionCodecType, most int) ([]byte, error) {
	switch {
	case codec == kgo.CodecLz4 && len(src) > 0:
	case most == d.max:
		return d.other.Decompress(src, codec)
	default:
		return d.beside.Decompress(src, codec)
	}
	ratio := d.ratio.Load()
	u := unpacking{max: most, pool: d.pool, dst: d.pool.get(int(min(int64(len(src))*ratio/16, int64(most))))}
	if err := u.frames(src); err != nil {
		d.pool.PutDecompressBytes(u.dst)
		return nil, err
	}
	// A little more, so that what comes next fits too; down by degrees.
	grew := int64(len(u.dst)) * 17 / int64(len(src))
	// What some batches expand to must not be guessed of all others.
	d.ratio.Store(min(max(grew, ratio-ratio/16), 16*16))
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
	max  int
	pool *bytesPool
	dst  []byte
	src  []byte
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
	if len(u.dst)+len(block) > u.max {
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
	most = min(most, u.max-len(u.dst))
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
		case at+most == u.max:
			return kgo.ErrMaxDecompress // or it is malformed: who knows
		default:
			return errLZ4
		}
	}
}

// grow makes room for n more bytes, and for twice what there is if that may
// come: each room that is too small is garbage.
func (u *unpacking) grow(n int) {
	if cap(u.dst)-len(u.dst) >= n {
		return
	}
	larger := append(u.pool.get(max(len(u.dst)+n, min(2*cap(u.dst), u.max))), u.dst...)
	u.pool.PutDecompressBytes(u.dst)
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
	most int // bytes of a batch; an eighth of it, or 16 MiB, is kept in free

	mu   sync.Mutex
	free [4 * 13][][]byte // of bufferSize(i) and more
	held int              // bytes in free
	// out are the buffers that batches are in, and how many bytes they have
	// together. Most come back; what the client drops does not, and is gone when
	// the collector finds it.
	out      map[weak.Pointer[byte]]int64
	outBytes int64
	collect  time.Time // when the collector was last told to look
}

// lend counts a buffer that holds a batch from now on.
func (p *bytesPool) lend(b []byte) {
	if cap(b) == 0 {
		return
	}
	key := weak.Make(unsafe.SliceData(b))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outBytes += int64(cap(b)) - p.out[key]
	p.out[key] = int64(cap(b))
}

// lent returns how many bytes the buffers have that are out, exactly if they
// are more than so many.
func (p *bytesPool) lent(more int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outBytes > more {
		if now := time.Now(); now.Sub(p.collect) > lostAfter {
			p.collect = now
			runtime.GC() // what was dropped would else be found whenever there is more garbage
		}
		for key, n := range p.out {
			if key.Value() == nil {
				delete(p.out, key)
				p.outBytes -= n
			}
		}
	}
	return p.outBytes
}

// lostAfter is how long buffers that were dropped may seem to be out.
const lostAfter = 10 * time.Second

const leastBuffer = 1 << 10

func newBytesPool(most int) *bytesPool {
	return &bytesPool{most: most, out: make(map[weak.Pointer[byte]]int64)}
}

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
func (p *bytesPool) GetDecompressBytes(src []byte, codec kgo.CompressionCodecType) []byte {
	if n := claimed(src, codec); 0 < n && n <= p.most {
		return p.get(n + bytes.MinRead) // which the client needs to see the end
	}
	return p.get(3 * len(src))
}

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (p *bytesPool) PutDecompressBytes(b []byte) {
	if cap(b) == 0 {
		return
	}
	i := bufferClass(cap(b))
	p.mu.Lock()
	defer p.mu.Unlock()
	if key := weak.Make(unsafe.SliceData(b)); p.out[key] > 0 {
		p.outBytes -= p.out[key]
		delete(p.out, key)
	}
	if cap(b) < leastBuffer || i >= len(p.free) {
		return
	}
	if p.held+cap(b) <= min(p.most/8, 16<<20) {
		p.free[i] = append(p.free[i], b)
		p.held += cap(b)
	}
}
