// Package config turns YAML files, `--set` flags and environment variables
// into the one Config that cmd hands out to the rooms, section by section.
//
// It promises that a configuration it returns is complete and consistent as
// far as that can be known without a connection, and that an error says where,
// what and what to do, for everything that is wrong at once. It does not look
// at Kafka or Elasticsearch: `sluice validate` does.
//
// The way of a configuration: parse (YAML to a tree of texts with positions),
// merge (later files and flags over earlier ones), decode (variables, types,
// units, over the defaults), validate.
package config

import (
	"os"
	"time"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/memory"
	"github.com/sluicehq/sluice/partition"
	"github.com/sluicehq/sluice/procs"
)

// Config is a whole configuration.
//
// The comments of its fields, here and in the rooms, are the manual, written
// for users and in Markdown: docs/configuration.md is made of them. Behind the
// text may stand `Values:`, what is allowed where the type does not say it (what
// is in backticks there is a value as it stands), and `Example:`.
type Config struct {
	Kafka         consumer.Config `yaml:"kafka"`
	Elasticsearch elastic.Config  `yaml:"elasticsearch"`
	Documents     document.Config `yaml:"documents"`
	// Other rules for some topics: the first entry whose topics match a record's
	// topic wins.
	//
	// Values: list of sections
	// Example: [{topics: [audit], documents: {id: position}}]
	Overrides  []document.Override `yaml:"overrides"`
	Indexer    indexer.Config      `yaml:"indexer"`
	Memory     memory.Config       `yaml:"memory"`
	Procs      procs.Config        `yaml:"procs"`
	DeadLetter deadletter.Config   `yaml:"dead_letter"`
	Routing    partition.Config    `yaml:"routing"`
	Admin      admin.Config        `yaml:"admin"`
	// At SIGTERM, how long to wait for what is on the wire. Give the container
	// ten seconds more before it is killed: the last commit and the leave may take
	// four on top, whatever the brokers do.
	//
	// Example: 1m
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout"`
	Log             Log           `yaml:"log"`
}

// Log is the `log` section.
type Log struct {
	// The least level of lines that are written. `trace` and `debug` are for
	// short looks: they cost time.
	//
	// Values: `trace`, `debug`, `info`, `warn`, `error`
	// Example: debug
	Level string `yaml:"level"`
	// How lines are written. `auto`: text on a terminal, JSON elsewhere.
	//
	// Values: `auto`, `text`, `json`
	// Example: json
	Format string `yaml:"format"`
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		Kafka: consumer.Config{
			Brokers:          []string{"localhost:9092"},
			GroupID:          "sluice",
			Topics:           []string{"events"},
			Reset:            "earliest",
			OnDataLoss:       "halt",
			IsolationLevel:   "read_committed",
			ClientID:         "sluice",
			GroupProtocol:    "classic",
			SessionTimeout:   45 * time.Second,
			RebalanceTimeout: 60 * time.Second,
			DrainTimeout:     5 * time.Second,
			CommitInterval:   time.Second,
			Fetch:            consumer.Fetch{MinBytes: 1, MaxWait: 500 * time.Millisecond},
		},
		Elasticsearch: elastic.Config{
			Addresses:        []string{"http://localhost:9200"},
			CompressionLevel: 1,
			RequestTimeout:   20 * time.Second,
		},
		Documents: document.Config{
			Index:          "events",
			Format:         "json",
			RawField:       "message",
			ID:             "auto",
			LongIDs:        "reject",
			Op:             "auto",
			Version:        "auto",
			Deletes:        "hard",
			TombstoneTTL:   24 * time.Hour,
			OnNull:         "auto",
			OnRejected:     "auto",
			MetadataFields: "reject",
			OnNoCustomer:   "dead_letter",
			TimeWindow:     document.TimeWindow{Past: 365 * day, Future: day, NewIndicesPerHour: 50},
			Metadata:       document.Metadata{Include: []string{"topic", "partition", "offset", "timestamp", "key", "headers"}},
			Validate:       "server",
			MaxDepth:       200,
		},
		Indexer: indexer.Config{
			FlushBytes:     4 << 20,
			FlushDocuments: 10000,
			FlushInterval:  time.Second,
			Requests:       indexer.Requests{Min: 1, Max: 64},
			Scaling: indexer.Scaling{
				Enabled: true, Min: 1, ActiveRatio: 1,
				UpAfter: 60, UpCooldown: 60 * time.Second,
				DownAfter: 30, DownCooldown: 30 * time.Second, IdleInterval: 30 * time.Second,
			},
			Retry: indexer.Retry{Initial: 100 * time.Millisecond, Max: 5 * time.Second, ItemAttempts: 10},
			Held:  "wait",
		},
		Memory:          memory.Config{HeldShare: 0.25},
		Procs:           procs.Config{Mode: "automaxprocs", Interval: 30 * time.Second},
		DeadLetter:      deadletter.Config{MaxShare: 0.05, Oversize: "hold"},
		Routing:         partition.Config{ControlIndex: ".sluice-control", RefreshInterval: time.Second, MaxStaleness: 5 * time.Minute},
		Admin:           admin.Config{Address: "127.0.0.1:9600"},
		ShutdownTimeout: 30 * time.Second,
		Log:             Log{Level: "info", Format: "auto"},
	}
}

// Source is one YAML document and the name that its positions carry.
type Source struct {
	Name string
	Data []byte
}

// Load reads the files and does what Parse does. With nil, env is
// os.LookupEnv.
func Load(files, sets []string, env func(name string) (value string, ok bool)) (*Config, error) {
	if env == nil {
		env = os.LookupEnv
	}
	var sources []Source
	var errs Errors
	for i, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			errs = append(errs, &Error{
				Position: Position{Name: name, order: i},
				Problem:  "cannot be read: " + reason(err),
				Remedy:   "check the path given to --config and who may read it",
			})
		}
		sources = append(sources, Source{name, data})
	}
	return load(sources, sets, env, errs)
}

// Parse returns the configuration that the sources give, each over those
// before it, and the sets (KEY=VALUE, the value in YAML) over all of them.
// Mappings are merged key by key; lists and texts are replaced. Variables in
// texts are taken from env. An error is of type Errors.
func Parse(sources []Source, sets []string, env func(name string) (value string, ok bool)) (*Config, error) {
	return load(sources, sets, env, nil)
}

func load(sources []Source, sets []string, env func(string) (string, bool), errs Errors) (*Config, error) {
	root := &node{kind: mapping, place: Position{Name: "configuration"}}
	if len(sources) > 0 {
		root.place = Position{Name: sources[0].Name, Line: 1, Column: 1}
	}
	p := parser{errs: &errs, broken: len(errs) > 0}
	for i, s := range sources {
		root.merge(p.file(s, i))
	}
	for i, set := range sets {
		root.merge(p.set(set, len(sources)+i))
	}
	d := decoder{cfg: Default(), env: env, places: map[string]Position{"": root.place}, hidden: map[string]bool{}, errs: &errs}
	d.config(root)
	// A value that could not be decoded has its default now, so that the rest
	// can still be judged; without a whole source it cannot.
	if !p.broken {
		validate(&d)
	}
	if err := errs.asError(); err != nil {
		return nil, err
	}
	return d.cfg, nil
}
