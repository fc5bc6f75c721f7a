package consumer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func testDecompressor(t testing.TB, most int) *decompressor {
	t.Helper()
	d, err := newDecompressor(most, newBytesPool(128<<20))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// text makes n bytes that compress about 3:1.
func text(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := [...]string{"customer", "event", "0123", "true", "\":\"", "{\"a\":", "},"}
	b := make([]byte, 0, n+8)
	for len(b) < n {
		if r.IntN(3) == 0 {
			b = append(b, byte(r.Uint32()))
		} else {
			b = append(b, words[r.IntN(len(words))]...)
		}
	}
	return b[:n]
}

func frame(t testing.TB, plain []byte, options ...lz4.Option) []byte {
	t.Helper()
	var out bytes.Buffer
	w := lz4.NewWriter(&out)
	if err := w.Apply(options...); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// blocks is a frame, without checksums, of blocks that are compressed already.
func blocks(flags byte, blocks ...[]byte) []byte {
	f := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	f = append(f, 1<<6|flags, 4<<4, 0)
	for _, b := range blocks {
		f = binary.LittleEndian.AppendUint32(f, uint32(len(b)))
		f = append(f, b...)
	}
	return binary.LittleEndian.AppendUint32(f, 0)
}

func TestLZ4ReadsWhatWritersWrite(t *testing.T) {
	d := testDecompressor(t, 64<<20)
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(0, 4<<10), rapid.IntRange(60<<10, 70<<10), rapid.IntRange(0, 300<<10)).Draw(rt, "bytes")
		plain := text(n, rapid.Uint64().Draw(rt, "seed"))
		if rapid.Bool().Draw(rt, "repetitive") {
			plain = bytes.Repeat([]byte("abcdefgh"), n/8)
		}
		options := []lz4.Option{
			lz4.BlockSizeOption(rapid.SampledFrom([]lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb, lz4.Block1Mb, lz4.Block4Mb}).Draw(rt, "block")),
			lz4.BlockChecksumOption(rapid.Bool().Draw(rt, "block sums")),
			lz4.ChecksumOption(rapid.Bool().Draw(rt, "sum")),
		}
		if rapid.Bool().Draw(rt, "size") {
			options = append(options, lz4.SizeOption(uint64(len(plain))))
		}
		src := frame(t, plain, options...)
		whole := plain
		followed := rapid.Bool().Draw(rt, "followed") // by one to be skipped, and another
		if followed {
			src = binary.LittleEndian.AppendUint32(src, lz4SkipMagic+3)
			src = append(binary.LittleEndian.AppendUint32(src, 5), "skip!"...)
			src = append(src, frame(t, plain, options...)...)
			whole = append(bytes.Clone(plain), plain...)
		}
		got, err := d.Decompress(src, kgo.CodecLz4)
		if err != nil || !bytes.Equal(got, whole) {
			rt.Fatalf("%d bytes of %d, error %v", len(got), len(whole), err)
		}
		d.pool.PutDecompressBytes(got)
		if len(src) > 8 {
			// Between the frames a cut leaves a whole one.
			if _, err := d.Decompress(src[:rapid.IntRange(1, len(src)-1).Draw(rt, "cut")], kgo.CodecLz4); err == nil && !followed {
				rt.Fatal("a frame that is cut was read")
			}
		}
	})
}

// librdkafka and the lz4 tool can write blocks that refer to earlier ones.
func TestLZ4LinkedBlocks(t *testing.T) {
	d := testDecompressor(t, 1<<20)
	first := []byte{8 << 4, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'} // eight literals
	// Four bytes from eight back, then five literals.
	second := []byte{0, 8, 0, 5 << 4, 'v', 'w', 'x', 'y', 'z'}
	got, err := d.Decompress(blocks(0, first, second), kgo.CodecLz4)
	if err != nil || string(got) != "abcdefghabcdvwxyz" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := d.Decompress(blocks(lz4Independent, first, second), kgo.CodecLz4); err == nil {
		t.Errorf("a block that says that it stands alone reached another: %q", got)
	}
	// Nor does one reach into another frame.
	if got, err := d.Decompress(append(blocks(0, first), blocks(0, second)...), kgo.CodecLz4); err == nil {
		t.Errorf("a block reached into another frame: %q", got)
	}
}

// No batch becomes larger than the bound, whatever the codec, and none takes
// much more memory than that to find out.
func TestDecompressIsBounded(t *testing.T) {
	const most = 1 << 20
	bomb := make([]byte, 16<<20)
	for codec, name := range map[kgo.CompressionCodecType]string{
		kgo.CodecGzip: "gzip", kgo.CodecSnappy: "snappy", kgo.CodecLz4: "lz4", kgo.CodecZstd: "zstd",
	} {
		t.Run(name, func(t *testing.T) {
			compress := func(plain []byte) []byte {
				c, err := kgo.DefaultCompressor(map[string]kgo.CompressionCodec{
					"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
				}[name])
				if err != nil {
					t.Fatal(err)
				}
				out, _ := c.Compress(new(bytes.Buffer), plain)
				return bytes.Clone(out)
			}
			d := testDecompressor(t, most)
			fits := text(most, 1)
			got, err := d.Decompress(compress(fits), codec)
			if err != nil || !bytes.Equal(got, fits) {
				t.Fatalf("exactly the bound: %d bytes, %v", len(got), err)
			}
			packed := compress(bomb)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := d.Decompress(packed, codec); !errors.Is(err, kgo.ErrMaxDecompress) {
				t.Errorf("16 times the bound: %v", err)
			}
			if _, err := d.Decompress(compress(bomb[:most+1]), codec); !errors.Is(err, kgo.ErrMaxDecompress) {
				t.Errorf("one byte beyond the bound: %v", err)
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; codec == kgo.CodecLz4 && n > 32*most {
				t.Errorf("%d bytes allocated", n)
			}
		})
	}
}

// Batches of one small record each take memory for one small record.
func TestSmallBatchesTakeSmallBuffers(t *testing.T) {
	d, records := testDecompressor(t, 64<<20), newRecordPool()
	large, err := d.Decompress(frame(t, text(2<<20, 1)), kgo.CodecLz4)
	if err != nil {
		t.Fatal(err)
	}
	d.pool.PutDecompressBytes(large)
	for _, n := range []int{1, 100, 1000, 1 << 10, 5000, 1 << 16, 1<<20 + 1} {
		b, err := d.Decompress(frame(t, text(n, 2)), kgo.CodecLz4)
		if err != nil {
			t.Fatal(err)
		}
		if most := max(4*n, 4<<10); cap(b) > most {
			t.Errorf("%d bytes lie in a buffer of %d", n, cap(b))
		}
	}
	for n := 1; n < 20_000; n += 1 + n/3 {
		s := records.GetRecords(n)
		if len(s) != n || cap(s) > max(2*n, leastRecords) {
			t.Errorf("%d records lie in a slice of %d", n, cap(s))
		}
		records.PutRecords(s[:cap(s)])
	}
}

func TestBufferClasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(leastBuffer, 1<<20).Draw(t, "bytes")
		if i := bufferClass(n); bufferSize(i) > n || bufferSize(i+1) <= n {
			t.Fatalf("%d bytes are of class %d, from %d to %d", n, i, bufferSize(i), bufferSize(i+1))
		}
		p := newBytesPool(16 << 20)
		b := p.get(n)
		if cap(b) < n || cap(b) > n+n/4 {
			t.Fatalf("asked for %d bytes, got room for %d", n, cap(b))
		}
		p.PutDecompressBytes(b[:cap(b)])
		if n <= bufferSize(len(p.free)-1) && p.held != cap(b) {
			t.Fatalf("a buffer of %d bytes was not kept", cap(b))
		}
		if again := p.get(n); len(again) != 0 || cap(again) < n || p.held != 0 {
			t.Fatalf("asked for %d again, got %d of %d", n, len(again), cap(again))
		}
	})
}

// What the library's reader takes is read the same; what it refuses is read
// only where it refuses a checksum.
func FuzzLZ4(f *testing.F) {
	f.Add(frame(f, text(1000, 1)), 0)
	f.Add(frame(f, text(3000, 2), lz4.BlockSizeOption(lz4.Block64Kb), lz4.BlockChecksumOption(true)), 40_000)
	f.Add(frame(f, bytes.Repeat([]byte("ab"), 40_000), lz4.SizeOption(80_000)), 1)
	f.Add(blocks(0, []byte{8 << 4, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}, []byte{0, 8, 0, 5 << 4, 'v', 'w', 'x', 'y', 'z'}), 3)
	const most = 1 << 20
	d, err := newDecompressor(most, newBytesPool(128<<20))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, src []byte, ratio int) {
		if len(src) < 4 || binary.LittleEndian.Uint32(src) != lz4Magic {
			return // other formats: not what Kafka's clients write
		}
		d.ratio.Store(int64(uint16(ratio)))
		got, err := d.Decompress(src, kgo.CodecLz4)
		want, wantErr := io.ReadAll(io.LimitReader(lz4.NewReader(bytes.NewReader(src)), most+1))
		switch {
		case len(got) > most:
			t.Fatalf("%d bytes, %d are allowed", len(got), most)
		case wantErr == nil && len(want) <= most && err == nil && !bytes.Equal(got, want):
			t.Fatal("read differently")
		case err == nil && !bytes.HasPrefix(got, want) && len(want) <= most:
			t.Fatal("does not begin as the library reads it")
		}
		if err == nil {
			d.pool.PutDecompressBytes(got)
		}
	})
}

func BenchmarkDecompress(b *testing.B) {
	plain := text(256<<10, 1)
	src := frame(b, plain)
	own := testDecompressor(b, 64<<20)
	for name, d := range map[string]kgo.Decompressor{"own": own, "client": own.other} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				out, err := d.Decompress(src, kgo.CodecLz4)
				if err != nil {
					b.Fatal(err)
				}
				own.pool.PutDecompressBytes(out)
			}
		})
	}
}

// What all batches that are unpacked and not worked off have together never is
// more than one may have, whatever they expand to and whatever the codec; what
// does not fit is refused for now only, and what the client drops is found.
func TestUnpackedIsBounded(t *testing.T) {
	const most = 8 << 20
	for name, codec := range map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "zstd": kgo.ZstdCompression(), "lz4": kgo.Lz4Compression(), "snappy": kgo.SnappyCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			z, err := kgo.DefaultCompressor(codec)
			if err != nil {
				t.Fatal(err)
			}
			pack := func(n int) (packed []byte, as kgo.CompressionCodecType) {
				packed, as = z.Compress(bytes.NewBuffer(nil), make([]byte, n))
				return slices.Clone(packed), as
			}
			d, err := newDecompressor(most, newBytesPool(most))
			if err != nil {
				t.Fatal(err)
			}
			large, as := pack(most)
			small, _ := pack(most / 8)
			tooLarge, _ := pack(most + 1)
			whole, err := d.Decompress(large, as)
			if err != nil || len(whole) != most {
				t.Fatalf("%d bytes, %v", len(whole), err)
			}
			if _, err := d.Decompress(small, as); !errors.Is(err, errUnpackedFull) {
				t.Errorf("beside a large one: %v", err)
			}
			d.pool.PutDecompressBytes(whole)
			if _, err := d.Decompress(tooLarge, as); !errors.Is(err, kgo.ErrMaxDecompress) {
				t.Errorf("one that never fits: %v", err)
			}
			var out [][]byte
			held := 0
			for range 100 {
				b, err := d.Decompress(small, as)
				if err != nil {
					if !errors.Is(err, errUnpackedFull) {
						t.Fatal(err)
					}
					break
				}
				out, held = append(out, b), held+cap(b)
			}
			if held > most+most/4 || held < most/2 {
				t.Errorf("%d batches hold %d bytes", len(out), held)
			}
			d.pool.PutDecompressBytes(out[0])
			out = out[1:]
			if _, err := d.Decompress(large, as); !errors.Is(err, errUnpackedFull) {
				t.Errorf("a large one beside others: %v", err)
			}
			clear(out) // the client drops them
			d.pool.collect = time.Time{}
			for runtime.GC(); d.pool.lent(0) > 0; runtime.GC() {
				d.pool.collect = time.Time{}
			}
			// It is the large one's turn, however many small ones come.
			if _, err := d.Decompress(small, as); !errors.Is(err, errUnpackedFull) {
				t.Errorf("out of turn: %v", err)
			}
			if whole, err = d.Decompress(large, as); err != nil || len(whole) != most {
				t.Fatalf("after they were dropped: %d bytes, %v", len(whole), err)
			}
			d.pool.PutDecompressBytes(whole)
			if _, err := d.Decompress(small, as); err != nil {
				t.Errorf("after its turn: %v", err)
			}
		})
	}
}

// A gzip batch says how large it is, or lies: it is unpacked all the same, and a
// lie makes no room that the batch could not have.
func TestClaimed(t *testing.T) {
	z, err := kgo.DefaultCompressor(kgo.GzipCompression())
	if err != nil {
		t.Fatal(err)
	}
	const most, n = 1 << 20, 100_000
	text := bytes.Repeat([]byte("0123456789"), n/10)
	packed, codec := z.Compress(bytes.NewBuffer(nil), text)
	packed = slices.Clone(packed)
	if got := claimed(packed, codec); got != n {
		t.Errorf("it claims %d bytes", got)
	}
	d, err := newDecompressor(most, newBytesPool(most))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Decompress(packed, codec); err != nil || !bytes.Equal(got, text) || cap(got) > n*3/2 {
		t.Errorf("%d bytes in %d, %v", len(got), cap(got), err)
	}
	for _, lie := range []uint32{0, 1, 2 * n, most, most + 1, 1 << 31, math.MaxUint32} {
		binary.LittleEndian.PutUint32(packed[len(packed)-4:], lie)
		if room := cap(d.pool.GetDecompressBytes(packed, codec)); room > most*5/4 {
			t.Errorf("%d: %d bytes of room are made", lie, room)
		}
		if _, err := d.Decompress(packed, codec); err == nil {
			t.Errorf("%d: it is believed", lie)
		}
	}
}
