package partition_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// A customer's way through a table under dual writing: where a record must go,
// and where it is read from.
func ExampleRouter() {
	table, err := partition.Parse([]byte(`{"schema":1,"name":"events","epoch":17,"generation":1,"hash":"xxh64","slots":4096,
		"slot_map":"0-2047=p000 2048-4095=p001","overrides":{"acme":"w-acme","test-*":"p000"},
		"partitions":{
			"p000":{"index":"events-p000-j7","alias":"events-read-p000","state":"active"},
			"p001":{"index":"events-p001-j7","alias":"events-read-p001","state":"active"},
			"w-acme":{"index":"events-w-acme-j7","alias":"events-read-w-acme","state":"active"}},
		"legacy":{"index":"events","state":"active"},"job":"j7","write":"dual",
		"read":{"allow":["acme"],"deny":[],"percent":0,"salt":"j7"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := partition.NewRouter(table, partition.CacheOptions{})
	for _, customer := range []string{"acme", "test-1", "bolt"} {
		route := r.Route([]byte(customer))
		fmt.Println(customer, "is written to", route.Legacy, "and", route.New, "and read from", r.Read([]byte(customer)))
	}
	fmt.Println("acme:", r.Why([]byte("acme")))
	// Output:
	// acme is written to events and events-w-acme-j7 and read from events-read-w-acme
	// test-1 is written to events and events-p000-j7 and read from events
	// bolt is written to events and events-p000-j7 and read from events
	// acme: named by read.allow
}

// A program that searches follows the table in the control index, and asks the
// watcher before each search.
func ExampleWatcher() {
	es := embedded.NewElasticsearch(embedded.Config{}) // stands for a cluster
	defer es.Close()
	client, err := elastic.New(elastic.Config{Addresses: []string{"http://localhost:9200"}}, elastic.WithRoundTripper(es.Transport()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close(context.Background()) }()
	control := client.Control(".sluice-control")
	store := partition.NewStore(control)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := control.Open(ctx); err != nil { // an operator's work, with sluice routes init
		fmt.Println(err)
		return
	}
	plan, err := partition.MakePlan(partition.PlanInput{Prefix: "events", Partitions: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := plan.Table("events", "1")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := store.Create(ctx, table); err != nil {
		fmt.Println(err)
		return
	}

	w := partition.NewWatcher(store, "events", partition.WatcherOptions{})
	go w.Run(ctx)
	if _, err := w.Wait(ctx, 1); err != nil {
		fmt.Println(err)
		return
	}
	where, err := w.Lookup([]byte("acme"))
	fmt.Println(where.Index, where.Epoch, err)
	// Output:
	// events-p002-read 1 <nil>
}

func ExampleParse() {
	_, err := partition.Parse([]byte(`{"schema":1,"name":"events","epoch":1,"generation":1,"hash":"xxh64","slots":4,
		"slot_map":"0-3=p0","partitions":{"p0":{"index":"events-p0","state":"activ"}},"write":"new"}`))
	fmt.Println(err)
	// Output:
	// routing table: partitions.p0.state: "activ" is no state; use active or retired
}

func ExampleTable_Change() {
	table := partition.New("events", "events")
	table.Job = "j7"
	table.Partitions = map[string]partition.Partition{"p0": {Index: "events-p0-j7", State: partition.Active}}
	table.SlotMap = slices.Repeat([]string{"p0"}, table.Slots)

	_, err := table.Change(partition.Change{By: "ann", Edit: func(t *partition.Table) error {
		t.Write = partition.W2
		return nil
	}})
	fmt.Println(err)

	next, err := table.Change(partition.Change{By: "ann", Edit: func(t *partition.Table) error {
		t.Write = partition.W1
		return nil
	}})
	fmt.Println(next.Epoch, next.Write, err)
	// Output:
	// refused: write: W0 cannot become W2; go on to W1, and fence each step
	// 2 W1 <nil>
}

func ExampleMakePlan() {
	plan, err := partition.MakePlan(partition.PlanInput{
		Prefix: "events",
		Customers: []partition.CustomerSize{
			{Customer: "acme", Size: partition.Size{Documents: 90_000_000, Bytes: 40 << 30}},
			{Customer: "bolt", Size: partition.Size{Documents: 9_000_000, Bytes: 8 << 30}},
			{Customer: "cog", Size: partition.Size{Documents: 8_000_000, Bytes: 7 << 30}},
			{Customer: "dab", Size: partition.Size{Documents: 7_000_000, Bytes: 9 << 30}},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range plan.Partitions {
		fmt.Println(plan.Index(p, "j7"), p.Primaries, "shards,", p.Customers, "customers,", p.Bytes>>30, "GB")
	}
	// Output:
	// events-p000-j7 1 shards, 1 customers, 9 GB
	// events-p001-j7 1 shards, 2 customers, 15 GB
	// events-w-acme-j7 2 shards, 1 customers, 40 GB
}
