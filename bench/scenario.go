package main

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A scenario is one situation that programs are compared in.
type scenario struct {
	Name string `json:"name"`
	What string `json:"what"`
	topic
	Gzip      int           `json:"gzip"`      // level of bulk requests, 0 for none
	Latency   time.Duration `json:"latency"`   // that the sink adds to each bulk request
	Strict    bool          `json:"strict"`    // documents.validate: strict
	Processes int           `json:"processes"` // of one consumer group
	// Routed is how many index partitions Sluice spreads the customers over, 0
	// for no routing; Customer is where it finds a record's customer.
	Routed   int    `json:"routed,omitempty"`
	Customer string `json:"customer,omitempty"`
	// Goals of the design: ratios to the floor, 0 where there is none.
	MostCPU    float64 `json:"most_cpu,omitempty"`
	LeastSpeed float64 `json:"least_speed,omitempty"`
}

// floorWorkers is how many requests the floor has under way: two keep a sink
// busy that answers at once, eight one that takes its time.
func (s scenario) floorWorkers() int {
	if s.Latency > 0 {
		return 8
	}
	return 2
}

const (
	mostVolume = 1500 << 20 // bytes of a topic: the broker keeps it in memory
	mostDocs   = 5_000_000
)

// defaults fills in what a scenario leaves open.
func (s scenario) defaults() scenario {
	s.DocBytes = cmp.Or(s.DocBytes, 1000)
	s.Docs = cmp.Or(s.Docs, min(mostDocs, mostVolume/int64(s.DocBytes+s.DocBytes/10)))
	s.Partitions = cmp.Or(s.Partitions, 12)
	s.Keys = cmp.Or(s.Keys, keysUnique)
	s.Targets = cmp.Or(s.Targets, 1)
	s.Compression = cmp.Or(s.Compression, "lz4")
	s.Processes = cmp.Or(s.Processes, 1)
	return s
}

// core are the scenarios of the design's speed budget: 1 KB documents, a key
// each, 12 partitions, lz4, no compression of requests, where they do not say
// otherwise. sweep leaves that place in one direction at a time.
var (
	core = []scenario{
		{Name: "plain", What: "no compression", MostCPU: 1, LeastSpeed: 1},
		{Name: "gzip", What: "gzip 1", Gzip: 1, MostCPU: 1.05},
		{Name: "raw-topic", What: "no compression, from an uncompressed topic", topic: topic{Compression: "none"}, MostCPU: 1.1},
		{Name: "slow", What: "50 ms a request", Latency: 50 * time.Millisecond, LeastSpeed: 0.95},
		{Name: "slow-zipf", What: "50 ms a request, keys are customers (Zipf)", Latency: 50 * time.Millisecond, topic: topic{Keys: keysCustomer}, LeastSpeed: 0.85},
		{Name: "strict", What: "`validate: strict`", Strict: true, MostCPU: 1.4, LeastSpeed: 0.8},
		{Name: "customers", What: "1,000 customers in a header, not routed", topic: topic{Customers: true}},
		{Name: "routed", What: "the same, routed to 1 index partition", topic: topic{Customers: true}, Routed: 1, Customer: "header:" + customerHeader},
	}
	sweep = []scenario{
		{Name: "partitions-1", What: "1 partition", topic: topic{Partitions: 1}},
		{Name: "partitions-100", What: "100 partitions", topic: topic{Partitions: 100}},
		{Name: "partitions-1000", What: "1,000 partitions", topic: topic{Partitions: 1000}},
		{Name: "100B", What: "documents of 100 B", topic: topic{DocBytes: 100}},
		{Name: "10KB", What: "documents of 10 KB", topic: topic{DocBytes: 10_000}},
		{Name: "1MB", What: "documents of 1 MB", topic: topic{DocBytes: 1_000_000}},
		{Name: "positional", What: "no keys: position ids", topic: topic{Keys: keysNone}},
		{Name: "updates", What: "a fifth are updates of 1,000 hot keys", topic: topic{Keys: keysUpdates}},
		{Name: "targets-10", What: "10 target indices", topic: topic{Targets: 10}},
		{Name: "targets-1000", What: "1,000 target indices", topic: topic{Targets: 1000}},
		{Name: "routed-field", What: "1,000 customers in a field, routed to 1 index partition", topic: topic{Customers: true}, Routed: 1, Customer: "field:/customer_id"},
		{Name: "routed-10", What: "1,000 customers in a header, routed to 10 index partitions", topic: topic{Customers: true}, Routed: 10, Customer: "header:" + customerHeader},
		{Name: "processes-2", What: "2 processes", Processes: 2},
		{Name: "processes-4", What: "4 processes", Processes: 4},
	}
	// between are the scenarios between real servers.
	between = []scenario{
		{Name: "real", What: "no compression", topic: topic{Docs: 1_000_000}, LeastSpeed: 0.95},
		{Name: "real-gzip", What: "gzip 1, the default", topic: topic{Docs: 1_000_000}, Gzip: 1, LeastSpeed: 0.95},
	}
)

// scenarioFlags adds flags that choose scenarios, or describe one.
func scenarioFlags(fs *flag.FlagSet, usual string) func() ([]scenario, error) {
	names := fs.String("scenarios", usual, "core, sweep, all, or names with commas between; a flag below changes each of them")
	var own scenario
	own.topic.flags(fs)
	fs.IntVar(&own.Gzip, "gzip", 0, "gzip level of bulk requests, 0 for none")
	fs.DurationVar(&own.Latency, "latency", 0, "that the sink adds to each bulk request")
	fs.BoolVar(&own.Strict, "strict", false, "validate: strict")
	fs.IntVar(&own.Processes, "processes", 1, "processes of one consumer group")
	return func() ([]scenario, error) {
		chosen, err := named(*names)
		if err != nil {
			return nil, err
		}
		for i := range chosen {
			fs.Visit(func(f *flag.Flag) { own.apply(f.Name, &chosen[i]) })
			chosen[i] = chosen[i].defaults()
		}
		return chosen, nil
	}
}

// apply copies what a flag has set to another scenario, which then is not the
// one that has a goal.
func (s scenario) apply(flag string, to *scenario) {
	before := *to
	switch flag {
	case "docs":
		to.Docs = s.Docs
		return // as many as it takes
	case "doc-bytes":
		to.DocBytes = s.DocBytes
	case "partitions":
		to.Partitions = s.Partitions
	case "keys":
		to.Keys = s.Keys
	case "targets":
		to.Targets = s.Targets
	case "customers":
		to.Customers = s.Customers
	case "topic-compression":
		to.Compression = s.Compression
	case "gzip":
		to.Gzip = s.Gzip
	case "latency":
		to.Latency = s.Latency
	case "strict":
		to.Strict = s.Strict
	case "processes":
		to.Processes = s.Processes
	}
	if *to != before {
		to.Name += "+" + flag
		to.What = "own: " + to.Name
		to.MostCPU, to.LeastSpeed = 0, 0
	}
}

func named(names string) ([]scenario, error) {
	all := slices.Concat(core, sweep, between)
	switch names {
	case "core":
		return slices.Clone(core), nil
	case "sweep":
		return slices.Clone(sweep), nil
	case "all":
		return slices.Concat(core, sweep), nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
