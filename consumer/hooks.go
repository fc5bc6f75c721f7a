package consumer

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// clientHooks watches the Kafka client from inside.
type clientHooks struct {
	made   func(*kgo.Client) // called before the client does anything
	fenced func(error)       // another member has our instance id
	// commitBroke is called when the connection of a commit broke. The client
	// repeats it on another one, and the broker may carry the first copy out
	// after the second, and after later commits.
	commitBroke func()
	// decoding sees to it that batches are read to their end.
	decoding decoding

	// heartbeat is when the group coordinator last answered us as a member, in
	// Unix nanoseconds; 0: we are none.
	heartbeat atomic.Int64
	// Bytes of batches as they came and as they are in memory, since fitFetch
	// last looked.
	compressed, uncompressed atomic.Int64
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
	case kmsg.OffsetCommit:
		if e2e.Err() != nil {
			h.commitBroke()
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
func (h *clientHooks) OnFetchBatchRead(_ kgo.BrokerMetadata, topic string, partition int32, m kgo.FetchBatchMetrics) {
	h.decoding.end(topic, partition, m.NumRecords)
	h.compressed.Add(int64(m.CompressedBytes))
	h.uncompressed.Add(int64(m.UncompressedBytes))
}

var (
	_ kgo.HookNewClient        = (*clientHooks)(nil)
	_ kgo.HookBrokerE2E        = (*clientHooks)(nil)
	_ kgo.HookGroupManageError = (*clientHooks)(nil)
	_ kgo.HookFetchBatchRead   = (*clientHooks)(nil)
)
