package main

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"

	"github.com/twmb/franz-go/pkg/kfake"
)

// A broker is what kfakesrv and load say once their topic is full.
type broker struct {
	Brokers    []string `json:"brokers"`
	Docs       int64    `json:"docs"`
	ValueBytes int64    `json:"value_bytes"`
	// Sum is the sum of the documents' xxh64, by which a sink knows that it got
	// each of them, whole.
	Sum uint64 `json:"sum,string"`
}

// kfakesrv serves a preloaded topic from franz-go's in-process Kafka until it
// is told to stop.
func kfakesrv(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("kfakesrv", flag.ContinueOnError)
	brokers := fs.Int("brokers", 3, "number of brokers, on free ports of loopback")
	var t topic
	t.flags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(*brokers),
		kfake.SeedTopics(int32(t.Partitions), topicName),
	)
	if err != nil {
		return fmt.Errorf("starting the brokers: %w", err)
	}
	defer cluster.Close()
	filled, err := t.fill(ctx, cluster.ListenAddrs())
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	if err := say(filled); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
