// Package deadletter parks records that can never be written, durably, in a
// Kafka topic or in an index, and reads them back.
//
// Its promise: a letter is reported as written only after the brokers, or the
// index, have acknowledged it, with everything the record had, byte for byte. What can be
// cured from outside, a topic that is missing, rights, brokers that are away,
// is waited for without end and said aloud; the record stays unhandled
// meanwhile. A topic may hold a letter twice, an index does not.
//
// Only the letter itself holds content: neither its reason nor any log line or
// metric does.
package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Letter is a record that could not be written, and why.
type Letter struct {
	// Topic, Partition and Offset are where the record came from, Timestamp is
	// its own.
	Topic     string
	Partition int32
	Offset    int64
	Timestamp time.Time // in milliseconds
	// Key, Value and Headers are the record's, as they were.
	Key, Value []byte
	Headers    []kgo.RecordHeader

	Reason   string // shortened on writing, see Shorten
	Type     string // error type, such as document_parsing_exception
	Status   int    // HTTP status; 0: rejected before it was sent
	Target   string // index, alias or data stream; "" where none was known
	Side     string // legacy or new under dual write; else ""
	Attempts int
	Sequence int64 // the version it carried; 0: none
	// Generation is the recorded one that the record belongs to, which tells it
	// from one at the same place of a topic that was re-created; 0: its rules
	// need none.
	Generation int
	Release    string // of the Sluice that wrote it; Writer fills it in

	// Stored is where the letter itself stands: filled in by List.
	Stored Stored
}

// Stored is the place of a letter in the dead-letter topic.
type Stored struct {
	Partition int32
	Offset    int64 // of its last part
	Time      time.Time
}

// The headers that a letter has after the record's own, in this order.
const (
	headerTopic      = "sluice.topic" // first: what stands before its last occurrence is the record's own
	headerPartition  = "sluice.partition"
	headerOffset     = "sluice.offset"
	headerTimestamp  = "sluice.timestamp" // Unix milliseconds
	headerReason     = "sluice.reason"
	headerType       = "sluice.type"
	headerStatus     = "sluice.status"
	headerTarget     = "sluice.target"
	headerSide       = "sluice.side"
	headerAttempts   = "sluice.attempts"
	headerSequence   = "sluice.sequence"
	headerGeneration = "sluice.generation"
	headerRelease    = "sluice.release"
	// headerChunk, i/n from 1, is there if the value was cut into n parts.
	headerChunk = "sluice.chunk"
)

func (l *Letter) headers() []kgo.RecordHeader {
	number := func(n int64) []byte { return strconv.AppendInt(nil, n, 10) }
	return append(slices.Clip(l.Headers),
		kgo.RecordHeader{Key: headerTopic, Value: []byte(l.Topic)},
		kgo.RecordHeader{Key: headerPartition, Value: number(int64(l.Partition))},
		kgo.RecordHeader{Key: headerOffset, Value: number(l.Offset)},
		kgo.RecordHeader{Key: headerTimestamp, Value: number(l.Timestamp.UnixMilli())},
		kgo.RecordHeader{Key: headerReason, Value: []byte(Shorten(l.Reason))},
		kgo.RecordHeader{Key: headerType, Value: []byte(l.Type)},
		kgo.RecordHeader{Key: headerStatus, Value: number(int64(l.Status))},
		kgo.RecordHeader{Key: headerTarget, Value: []byte(l.Target)},
		kgo.RecordHeader{Key: headerSide, Value: []byte(l.Side)},
		kgo.RecordHeader{Key: headerAttempts, Value: number(int64(l.Attempts))},
		kgo.RecordHeader{Key: headerSequence, Value: number(l.Sequence)},
		kgo.RecordHeader{Key: headerGeneration, Value: number(int64(l.Generation))},
		kgo.RecordHeader{Key: headerRelease, Value: []byte(l.Release)},
	)
}

// size is what a letter takes in memory until it is acknowledged, roughly.
func (l *Letter) size() int64 {
	const overhead = 1024 // its own headers, this struct, the client's record
	n := overhead + len(l.Key) + len(l.Value) + len(l.Topic) + len(l.Reason) + len(l.Target)
	for _, h := range l.Headers {
		n += len(h.Key) + len(h.Value) + 32
	}
	return int64(n)
}

// ErrNotLetter is a record in the dead-letter topic that Sluice did not write,
// or did not write like this.
var ErrNotLetter = errors.New("not a dead letter of Sluice")

// parse is the reverse of headers. part is 1 and parts is 1 for a letter that
// is whole.
func parse(r *kgo.Record) (l Letter, part, parts int, err error) {
	first := -1
	for i, h := range r.Headers {
		if h.Key == headerTopic {
			first = i
		}
	}
	if first < 0 {
		return l, 0, 0, fmt.Errorf("%w: it has no header %s", ErrNotLetter, headerTopic)
	}
	l = Letter{
		Key: r.Key, Value: r.Value, Headers: r.Headers[:first:first],
		Stored: Stored{Partition: r.Partition, Offset: r.Offset, Time: r.Timestamp},
	}
	part, parts = 1, 1
	number := func(h kgo.RecordHeader, bits int) int64 {
		n, e := strconv.ParseInt(string(h.Value), 10, bits)
		if e != nil && err == nil {
			err = fmt.Errorf("%w: its header %s is no number", ErrNotLetter, h.Key)
		}
		return n
	}
	for _, h := range r.Headers[first:] {
		switch h.Key {
		case headerTopic:
			l.Topic = string(h.Value)
		case headerPartition:
			l.Partition = int32(number(h, 32))
		case headerOffset:
			l.Offset = number(h, 64)
		case headerTimestamp:
			l.Timestamp = time.UnixMilli(number(h, 64))
		case headerReason:
			l.Reason = string(h.Value)
		case headerType:
			l.Type = string(h.Value)
		case headerStatus:
			l.Status = int(number(h, 32))
		case headerTarget:
			l.Target = string(h.Value)
		case headerSide:
			l.Side = string(h.Value)
		case headerAttempts:
			l.Attempts = int(number(h, 32))
		case headerSequence:
			l.Sequence = number(h, 64)
		case headerGeneration:
			l.Generation = int(number(h, 32))
		case headerRelease:
			l.Release = string(h.Value)
		case headerChunk:
			i, n, _ := strings.Cut(string(h.Value), "/")
			part = int(number(kgo.RecordHeader{Key: h.Key, Value: []byte(i)}, 32))
			parts = int(number(kgo.RecordHeader{Key: h.Key, Value: []byte(n)}, 32))
		}
	}
	if err == nil && (part < 1 || part > parts || parts > maxBatch/minChunk) {
		err = fmt.Errorf("%w: it is part %d of %d", ErrNotLetter, part, parts)
	}
	return l, part, parts, err
}
