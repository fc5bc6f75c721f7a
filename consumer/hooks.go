package consumer

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// clientHooks watches the Kafka client from inside.
type clientHooks struct {
	log    zerolog.Logger
	made   func(*kgo.Client) // called before the client does anything
	fenced func(error)       // another member has our instance id

	// heartbeat is when the group coordinator last answered us as a member, in
	// Unix nanoseconds; 0: we are none.
	heartbeat atomic.Int64
	// Bytes of batches as they came and as they are in memory.
	compressed, uncompressed atomic.Int64

	mu   sync.Mutex
	open int    // connections
	down string // why no broker is reached; "": one is
}

// OnNewClient implements kgo.HookNewClient.
func (h *clientHooks) OnNewClient(cl *kgo.Client) { h.made(cl) }

// OnBrokerE2E implements kgo.HookBrokerE2E. The error code of a heartbeat's
// answer is not shown here: a bad one makes the client call OnPartitionsLost,
// or rejoin.
func (h *clientHooks) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	switch kmsg.Key(key) {
	case kmsg.Heartbeat, kmsg.SyncGroup, kmsg.ConsumerGroupHeartbeat:
		if e2e.Err() == nil {
			h.heartbeat.Store(time.Now().UnixNano())
		}
	}
}

// OnGroupManageError implements kgo.HookGroupManageError.
func (h *clientHooks) OnGroupManageError(err error) {
	h.heartbeat.Store(0)
	if errors.Is(err, kerr.FencedInstanceID) {
		h.fenced(err)
	}
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (h *clientHooks) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	h.compressed.Add(int64(m.CompressedBytes))
	h.uncompressed.Add(int64(m.UncompressedBytes))
}

// OnBrokerConnect implements kgo.HookBrokerConnect. It says once that no broker
// is reached, and once that one is again.
func (h *clientHooks) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.open++
		if h.down != "" {
			h.down = ""
			h.log.Info().Str("broker", meta.Host).Msg("Kafka is reached")
		}
		return
	}
	if h.open == 0 && h.down == "" {
		h.down = err.Error()
		h.log.Warn().Str("broker", meta.Host).Int32("port", meta.Port).Err(err).Msg("no Kafka broker is reached; waiting")
	}
}

// OnBrokerDisconnect implements kgo.HookBrokerDisconnect.
func (h *clientHooks) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// unreachable is why no broker is reached; "" while one is.
func (h *clientHooks) unreachable() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.down
}

// expansion is by how much batches grow when they are decompressed, lately.
func (h *clientHooks) expansion() float64 {
	compressed, uncompressed := h.compressed.Swap(0), h.uncompressed.Swap(0)
	if compressed == 0 {
		return 0
	}
	return float64(uncompressed) / float64(compressed)
}

var (
	_ kgo.HookNewClient        = (*clientHooks)(nil)
	_ kgo.HookBrokerE2E        = (*clientHooks)(nil)
	_ kgo.HookGroupManageError = (*clientHooks)(nil)
	_ kgo.HookFetchBatchRead   = (*clientHooks)(nil)
	_ kgo.HookBrokerConnect    = (*clientHooks)(nil)
	_ kgo.HookBrokerDisconnect = (*clientHooks)(nil)
)
