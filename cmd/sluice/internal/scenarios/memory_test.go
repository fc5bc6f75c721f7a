package scenarios

import (
	"fmt"
	"math"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/embedded"
)

// Whatever a topic holds and however small the memory is: while Elasticsearch
// stalls no more bytes are held than memory.limit, and the process stays within
// it, a fifth and 64 MiB, also when all goes on.
func TestMemoryOfTheProcess(t *testing.T) {
	type shape struct {
		partitions int32
		batch      kfake.SyntheticBatch
	}
	// (That broker sends a batch of each partition, however large the answer gets
	// by that: of many, they must be small.)
	//
	// 50:1: a hundredth of a record is random.
	packed := func(codec kgo.CompressionCodec) shape {
		return shape{12, kfake.SyntheticBatch{Records: 1000, RecordBytes: 1000, RandomFrac: 0.01, Compression: codec}}
	}
	// As much as a batch may unpack to, of next to nothing.
	bomb := func(codec kgo.CompressionCodec) shape {
		return shape{12, kfake.SyntheticBatch{Records: 15, RecordBytes: 2 << 20, Compression: codec}}
	}
	for name, c := range map[string]struct {
		shape
		limit int // MiB
	}{
		"1000 partitions":           {shape{1000, kfake.SyntheticBatch{Records: 100, RecordBytes: 1000, RandomFrac: 0.2, Compression: kgo.Lz4Compression()}}, 256},
		"1000 partitions, small":    {shape{1000, kfake.SyntheticBatch{Records: 100, RecordBytes: 1000, RandomFrac: 0.2, Compression: kgo.Lz4Compression()}}, 64},
		"1000 partitions, unpacked": {shape{1000, kfake.SyntheticBatch{Records: 4, RecordBytes: 1000, RandomFrac: 1}}, 64},
		"packed with gzip":          {packed(kgo.GzipCompression()), 256},
		"packed with zstd":          {packed(kgo.ZstdCompression()), 256},
		"packed with gzip, small":   {packed(kgo.GzipCompression()), 64},
		"packed with zstd, small":   {packed(kgo.ZstdCompression()), 64},
		"packed with lz4, small":    {packed(kgo.Lz4Compression()), 64},
		"packed with snappy, small": {packed(kgo.SnappyCompression()), 64},
		"bombs of gzip, small":      {bomb(kgo.GzipCompression()), 64},
		"bombs of zstd, small":      {bomb(kgo.ZstdCompression()), 64},
		"bombs of lz4, small":       {bomb(kgo.Lz4Compression()), 64},
		"bombs of snappy, small":    {bomb(kgo.SnappyCompression()), 64},
	} {
		t.Run(name, func(t *testing.T) {
			limit := c.limit << 20
			w := newWorld(t, worldOptions{partitions: c.partitions, kafka: []kfake.Opt{kfake.SyntheticFetch(c.batch)}})
			w.effect = nil
			// To its epochs that topic is empty: a member that was thrown out and
			// comes back would find it cut.
			w.epochsEnd(math.MaxInt64, func(*kmsg.OffsetForLeaderEpochRequest) bool { return true })
			release := make(chan struct{})
			stalled := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Held(release)})
			p := w.launch(fmt.Sprintf("documents: {id: position, format: raw}\nmemory: {limit: %dMiB}\nelasticsearch: {request_timeout: 20s}", c.limit))
			held, same := 0.0, 0
			w.await("memory to be full", func() error {
				before := held
				held = p.metric("sluice_memory_used_bytes")
				if held > float64(limit) {
					t.Fatalf("%.1f MiB are held, the limit is %d", held/(1<<20), c.limit)
				}
				if same++; held != before || held == 0 || math.IsNaN(held) {
					same = 0
				}
				if same < 20 || p.metric("sluice_partitions_paused") == 0 {
					return fmt.Errorf("%v bytes are held", held)
				}
				return nil
			})
			stalled.Remove()
			close(release)
			read := p.metric("sluice_records_consumed_total")
			w.await("it to go on", func() error {
				if n := p.metric("sluice_records_consumed_total"); !(n > read+100) {
					return fmt.Errorf("%v records are read", n)
				}
				return nil
			})
			peak := p.highWater()
			t.Logf("%.1f MiB were held, resident were at most %d MiB", held/(1<<20), peak>>20)
			if peak > limit+limit/5+64<<20 {
				t.Errorf("%d MiB were resident, the limit is %d", peak>>20, c.limit)
			}
			if code := p.end(syscall.SIGKILL); code != -1 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
