package main

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/bench/internal/corpus"
)

// topicName is the topic of all measurements.
const topicName = "bench"

// targetHeader names, in each record of a topic with several targets, the one
// that it goes to: a name from targetOf.
const targetHeader = "target"

func targetOf(seq int64, targets int) string { return fmt.Sprintf("t%04d", seq%int64(targets)) }

// customerHeader names the customer of each record of a topic with customers.
const customerHeader = "customer"

// The keys of a topic's records.
const (
	keysUnique   = "unique"   // one a document, partitions are filled evenly
	keysUpdates  = "updates"  // the same, but every fifth record is an update of one of 1,000 hot keys
	keysCustomer = "customer" // the customer: Zipf-distributed, so that partitions are filled unevenly
	keysNone     = "none"     // no keys
)

// hotKeys is how many keys keysUpdates updates.
const hotKeys = 1000

// A topic says what stands in it.
type topic struct {
	Docs        int64  `json:"docs"`
	DocBytes    int    `json:"doc_bytes"`
	Partitions  int    `json:"partitions"`
	Keys        string `json:"keys"`
	Targets     int    `json:"targets"`
	Customers   bool   `json:"customers,omitempty"` // in a header
	Compression string `json:"topic_compression"`
}

// flags adds the flags that describe a topic; args gives them back.
func (t *topic) flags(fs *flag.FlagSet) {
	fs.Int64Var(&t.Docs, "docs", 1_000_000, "documents in the topic")
	fs.IntVar(&t.DocBytes, "doc-bytes", 1000, "about the size of a document, from 100 on")
	fs.IntVar(&t.Partitions, "partitions", 12, "partitions of the topic")
	fs.StringVar(&t.Keys, "keys", keysUnique, "record keys: unique, updates (a fifth are updates of hot keys), customer (Zipf) or none")
	fs.IntVar(&t.Targets, "targets", 1, "target indices that the records name in a header, 1 for no header")
	fs.BoolVar(&t.Customers, "customers", false, "records name their customer in a header")
	fs.StringVar(&t.Compression, "topic-compression", "lz4", "of the topic's batches: none, gzip, snappy, lz4 or zstd")
}

func (t topic) args() []string {
	return []string{
		"-docs", strconv.FormatInt(t.Docs, 10), "-doc-bytes", strconv.Itoa(t.DocBytes), "-partitions", strconv.Itoa(t.Partitions),
		"-keys", t.Keys, "-targets", strconv.Itoa(t.Targets), fmt.Sprintf("-customers=%t", t.Customers), "-topic-compression", t.Compression,
	}
}

// load creates a topic on any Kafka and fills it with the documents that
// kfakesrv serves.
func load(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	brokers := fs.String("brokers", "127.0.0.1:9092", "seed brokers, commas between")
	var t topic
	t.flags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	addresses := strings.Split(*brokers, ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, int32(t.Partitions), 1, nil, topicName); err != nil {
		return fmt.Errorf("creating the topic %s: %w", topicName, err)
	}
	filled, err := t.fill(ctx, addresses)
	if err != nil {
		return err
	}
	return say(filled)
}

func (t topic) compression() (kgo.CompressionCodec, error) {
	codec, ok := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[t.Compression]
	if !ok {
		return codec, fmt.Errorf("unknown compression %q of a topic", t.Compression)
	}
	return codec, nil
}

// fill produces the documents.
func (t topic) fill(ctx context.Context, brokers []string) (broker, error) {
	filled := broker{Brokers: brokers, Docs: t.Docs}
	compression, err := t.compression()
	if err != nil {
		return filled, err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.DefaultProduceTopic(topicName),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytes(int32(max(256<<10, 2*t.DocBytes))),
		kgo.MaxBufferedRecords(200_000),
		kgo.MaxBufferedBytes(256<<20),
		kgo.ProducerLinger(20*time.Millisecond), // so that batches fill up
	)
	if err != nil {
		return filled, err
	}
	defer client.Close()
	var (
		documents = corpus.New(corpus.Config{Seed: 1, Customers: 1000, Bytes: t.DocBytes})
		failure   error
		once      sync.Once
	)
	for seq := range t.Docs {
		doc, customer := documents.Append(make([]byte, 0, t.DocBytes+t.DocBytes/4), make([]byte, 0, 20), seq)
		r := &kgo.Record{Value: doc, Partition: int32(seq % int64(t.Partitions))}
		if r.Key, err = t.key(customer, seq); err != nil {
			return filled, err
		}
		if t.Keys == keysCustomer || t.Keys == keysUpdates { // a key stays in its partition
			h := fnv.New32a()
			_, _ = h.Write(r.Key) // a hash never fails
			r.Partition = int32(h.Sum32() % uint32(t.Partitions))
		}
		if t.Targets > 1 {
			r.Headers = []kgo.RecordHeader{{Key: targetHeader, Value: []byte(targetOf(seq, t.Targets))}}
		}
		if t.Customers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: customerHeader, Value: slices.Clone(customer)})
		}
		filled.ValueBytes += int64(len(doc))
		filled.Sum += xxhash.Sum64(doc)
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failure = err })
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return filled, fmt.Errorf("filling the topic: %w", err)
	}
	if failure != nil {
		return filled, fmt.Errorf("filling the topic: %w", failure)
	}
	return filled, nil
}

// key returns the key of the record of a document, which may keep customer.
func (t topic) key(customer []byte, seq int64) ([]byte, error) {
	switch t.Keys {
	case keysCustomer:
		return customer, nil
	case keysUpdates:
		if seq%5 == 0 {
			return fmt.Appendf(nil, "hot-%d", seq/5*7919%hotKeys), nil
		}
	case keysUnique:
	case keysNone:
		return nil, nil
	default:
		return nil, fmt.Errorf("unknown keys %q", t.Keys)
	}
	return strconv.AppendInt(append(customer, '-'), seq, 10), nil
}
