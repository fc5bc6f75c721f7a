// Package app builds the rooms of a running Sluice, ties their knots, and
// closes them from the street inwards: first what takes records in, last what
// shows how it goes.
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/heavy"
	"github.com/sluicehq/sluice/cmd/sluice/internal/telemetry"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/memory"
	"github.com/sluicehq/sluice/procs"
)

// Options is what an App needs beside its configuration.
type Options struct {
	Log     zerolog.Logger
	Version string
	// Metrics is where the rooms register; nil: a registry of its own.
	Metrics *prometheus.Registry
	// Kafka are added to the options of all Kafka clients, Elastic to those of
	// the Elasticsearch client: for servers that are not on a network.
	Kafka   []kgo.Opt
	Elastic []elastic.Option
}

// App is a Sluice that is built and can be run once.
type App struct {
	cfg     *config.Config
	log     zerolog.Logger
	metrics *prometheus.Registry

	budget    *memory.Budget
	goLimit   int64
	elastic   *elastic.Client
	link      *link
	control   *elastic.Control
	mapper    *document.Mapper
	routing   *Routing         // nil: the stream is not routed by customer
	jobs      *jobMetrics      // nil with routing
	customers *heavy.Customers // nil: no rule names a customer
	indexer   *indexer.Indexer
	letters   Letters               // nil: no place for dead letters is configured
	parked    *deadletter.ParkedLog // nil: nothing is parked
	consumer  atomic.Pointer[consumer.Consumer]
	telemetry *telemetry.Exporter // nil: the environment asks for none
	admin     *admin.Server       // nil: admin.address is empty

	version  string
	started  time.Time
	stopping atomic.Bool
	ordered  atomic.Bool // the cluster is known to answer items in order
	history  history
}

// KafkaOptions returns the options of every Kafka client of a configuration.
func KafkaOptions(cfg *config.Config) ([]kgo.Opt, error) {
	return consumer.ClientOptions(cfg.Kafka, zerolog.Nop())
}

// KafkaClient returns a Kafka client that is in no group.
func KafkaClient(cfg *config.Config) (*kgo.Client, error) {
	opts, err := KafkaOptions(cfg)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(opts...)
}

// Mapper returns the rules of a configuration's topics.
func Mapper(cfg *config.Config) (*document.Mapper, error) {
	return document.New(cfg.Documents, cfg.Overrides, cfg.Kafka.Topics, cfg.DeadLetter.Enabled())
}

// ParkedTopic is where the parked records of a dead-letter topic are.
func ParkedTopic(deadLetters string) string { return deadLetters + ".parked" }

// CheckAdmin says what is wrong with the admin section, nil for nothing.
func CheckAdmin(cfg *config.Config) error {
	if cfg.Admin.Address == "" {
		return nil
	}
	return cfg.Admin.Check()
}

// CheckMemory says what is wrong with the memory section on this machine, whose
// limit decides what `auto` is; nil for nothing.
func CheckMemory(cfg *config.Config) error {
	limit, maxRecord, _ := memory.Auto(cfg.Memory)
	if maxRecord <= limit {
		return nil
	}
	return fmt.Errorf("memory.max_record: %d bytes are above memory.limit, which is %d on this machine (auto: half of the memory that the cgroup allows, else 512MiB); lower it, or set memory.limit", maxRecord, limit)
}

// New builds the rooms. It sends nothing to Kafka or Elasticsearch; errors are
// those of the configuration, or of the admin address. What it returns must be
// run.
func New(cfg *config.Config, o Options) (_ *App, err error) {
	if err := CheckMemory(cfg); err != nil {
		return nil, err
	}
	limit, maxRecord, goLimit := memory.Auto(cfg.Memory)
	a := &App{
		cfg: cfg, log: o.Log, metrics: o.Metrics,
		budget: memory.New(limit), goLimit: goLimit, version: o.Version, started: time.Now(),
	}
	if a.metrics == nil {
		a.metrics = prometheus.NewRegistry()
	}
	if a.mapper, err = Mapper(cfg); err != nil {
		return nil, err
	}
	a.customers = newCustomers(a.mapper)
	kafka, err := consumer.ClientOptions(cfg.Kafka, o.Log)
	if err != nil {
		return nil, err
	}
	kafka = append(kafka, o.Kafka...)
	a.elastic, err = elastic.New(cfg.Elasticsearch, append([]elastic.Option{
		elastic.WithVersion(o.Version), elastic.WithLog(o.Log), elastic.WithMaxRequests(cfg.Indexer.Requests.Max),
		// A page of a copy has 8 MiB, or a few documents that are larger.
		elastic.WithMaxAnswer(int(min(max(limit/8, 32<<20), 256<<20))),
	}, o.Elastic...)...)
	if err != nil {
		return nil, err
	}
	a.control, a.link = a.elastic.Control(cfg.Routing.ControlIndex), newLink(a.elastic)
	a.routing = NewRouting(cfg, a.mapper, a.control, o.Log)

	// From here on things run that must be closed again.
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close(context.Background()))
		}
	}()
	a.telemetry = telemetry.Start(telemetry.Options{Metrics: a.metrics, Version: o.Version, Instance: instance(cfg), Log: o.Log})
	a.indexer = indexer.New(cfg.Indexer, indexer.Options{
		Transport: a.telemetry.Transport(a.link), Budget: a.budget,
		RequestTimeout: cfg.Elasticsearch.RequestTimeout, CompressionLevel: cfg.Elasticsearch.CompressionLevel,
		MaxShare:  cfg.DeadLetter.MaxShare,
		HeldBytes: int64(float64(cfg.Memory.HeldShare) * float64(limit)),
		Park:      Parks(cfg),
		Gate:      a.mayWrite, Reload: a.reloadElastic, Log: o.Log,
		// Until it is known who answers, the more careful way.
		Unordered: func() bool { return !a.ordered.Load() },
	})
	options := consumer.Options{
		Rules:  a.rules,
		Writer: a.indexer.NewWriter(), Sink: a.indexer, Budget: a.budget,
		Generations: &generations{control: a.control, mapper: a.mapper}, AdoptTimeout: cfg.Elasticsearch.RequestTimeout,
		MaxRecord: maxRecord, ShutdownTimeout: cfg.ShutdownTimeout, Log: o.Log, Kafka: o.Kafka,
	}
	if a.routing != nil {
		options.Routing, options.Dirty = a.routing, a.routing
		a.jobs = &jobMetrics{jobs: a.newJobs()}
	}
	a.letters, err = NewLetters(cfg, Rooms{Kafka: kafka, Elastic: a.elastic, Budget: a.budget, Version: o.Version, Log: o.Log})
	if err != nil {
		return nil, err
	}
	if a.letters != nil {
		options.DeadLetters = a.letters
	}
	if topic := cfg.DeadLetter.Topic; topic != "" {
		options.Exclude = []string{topic, ParkedTopic(topic)}
	}
	if options.Parking, err = a.parking(kafka); err != nil {
		return nil, err
	}
	c, err := consumer.New(cfg.Kafka, options)
	if err != nil {
		return nil, err
	}
	a.consumer.Store(c)
	if err := a.register(c, o.Version); err != nil {
		return nil, err
	}
	if cfg.Admin.Address != "" {
		a.admin, err = admin.Listen(cfg.Admin, admin.Options{Process: a, Streams: a.routing.streams(), Jobs: a.adminJobs(), Metrics: a.metrics, Log: o.Log})
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// instance tells this process from its fellows: by its static membership, else by
// where it runs.
func instance(cfg *config.Config) string {
	if id := cfg.Kafka.InstanceID; id != "" {
		return id
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
}

// gcPercent is GOGC where the environment does not say.
const gcPercent = 50

// Run runs until ctx ends, or until the group is gone for good. Then it drains
// within shutdown_timeout and closes everything. An orderly end is nil.
func (a *App) Run(ctx context.Context) error {
	if os.Getenv("GOMEMLIMIT") == "" && a.goLimit > 0 {
		debug.SetMemoryLimit(a.goLimit)
	}
	if os.Getenv("GOGC") == "" {
		// Most of the heap are buffers that hold no pointers: it is collected
		// at next to no cost, and half of its garbage is half of its memory.
		debug.SetGCPercent(gcPercent)
	}
	if a.admin != nil {
		a.log.Info().Str("address", a.admin.Addr()).Str("url", a.AdminURL()).Msg("admin server listens")
	}
	a.log.Info().Str("group_id", a.cfg.Kafka.GroupID).Strs("topics", a.cfg.Kafka.Topics).
		Int64("memory_limit_bytes", a.budget.Limit()).Int("gomaxprocs", procs.Current()).Msg("starting")

	// What runs beside the consumer ends with it.
	beside, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() {
		procs.Run(beside, a.cfg.Procs, a.log, a.indexer.SetProcs)
	})
	wg.Go(func() { a.watchState(beside) })
	if a.routing != nil {
		wg.Go(func() { a.routing.Run(beside) })
		wg.Go(func() { a.jobs.run(beside) })
	}
	running, fail := context.WithCancelCause(ctx)
	wg.Go(func() {
		// Nothing waits for this: records are fetched and kept until requests
		// get through. A server that Sluice cannot work with ends the program.
		switch info, err := a.elastic.WaitReady(beside, a.link.waits); {
		case err == nil:
			a.ordered.Store(info.Flavour == elastic.Elasticsearch)
			a.link.answers()
		case beside.Err() == nil:
			fail(err)
		}
	})
	unlink := context.AfterFunc(running, func() { a.stopping.Store(true) })
	err := a.consumer.Load().Run(running)
	unlink()
	a.stopping.Store(true)
	if cause := context.Cause(running); err == nil && ctx.Err() == nil && cause != nil {
		err = cause // ended from within
	}
	fail(nil)
	end(nil)
	wg.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.ShutdownTimeout)
	defer cancel()
	return errors.Join(err, a.close(closing))
}

// close closes from the street inwards. Rooms that were not built are left out.
func (a *App) close(ctx context.Context) error {
	var errs []error
	if c := a.consumer.Load(); c != nil {
		c.Close()
	}
	if a.indexer != nil {
		a.indexer.Close()
	}
	if a.letters != nil {
		errs = append(errs, a.letters.Close(ctx))
	}
	if a.parked != nil {
		a.parked.Close()
	}
	errs = append(errs, a.elastic.Close(ctx))
	a.telemetry.Close(ctx) // with what the rooms have counted to their end
	if a.admin != nil {
		errs = append(errs, a.admin.Close(ctx))
	}
	return errors.Join(errs...)
}

// Reload reads credentials and certificates anew, and logs what cannot be read.
// What uses them follows its files by itself, and says nothing of one that is
// damaged: the last good content stays in use.
func (a *App) Reload() {
	a.log.Info().Msg("reading credentials and certificates anew")
	a.reloadElastic()
	if _, err := KafkaOptions(a.cfg); err != nil { // made for their errors: they open all files
		a.log.Error().Err(err).Msg("credentials for Kafka cannot be read: the last good ones stay in use")
	}
	if err := CheckAdmin(a.cfg); err != nil {
		a.log.Error().Err(err).Msg("the admin server's token or certificates cannot be read: calls that need them are refused")
	}
}

func (a *App) reloadElastic() {
	if err := a.elastic.ReloadCredentials(); err != nil {
		a.log.Error().Err(err).Msg("credentials for Elasticsearch cannot be read: the last good ones stay in use")
	}
}

// AdminURL is where the admin server is reached from this machine, "" without
// one.
func (a *App) AdminURL() string {
	if a.admin == nil {
		return ""
	}
	return a.admin.URL()
}

// mayWrite says whether it is certain that no other member owns our partitions.
func (a *App) mayWrite() bool {
	c := a.consumer.Load()
	return c != nil && c.Healthy()
}

// register hands the rooms' metrics to the registry.
func (a *App) register(c *consumer.Consumer, version string) error {
	all := []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		a.indexer, c,
		heldMetrics{a.indexer},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_memory_used_bytes", Help: "Bytes of records that are held, from fetch to acknowledgement.",
		}, func() float64 { return float64(a.budget.Used()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_memory_limit_bytes", Help: "The most bytes of records that are held.",
		}, func() float64 { return float64(a.budget.Limit()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_gomaxprocs", Help: "GOMAXPROCS, which follows the CPU quota.",
		}, func() float64 { return float64(procs.Current()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_build_info", Help: "Always 1; what runs is in the labels.",
			ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
		}, func() float64 { return 1 }),
	}
	for _, state := range admin.States {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_state", Help: "1 for what the process is doing, 0 for what it is not.",
			ConstLabels: prometheus.Labels{"state": string(state)},
		}, func() float64 {
			return oneIf(a.history.current() == state)
		}))
	}
	for _, c := range causes {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_trouble", Help: "1 for each reason not to be simply running, else 0; several may hold at once.",
			ConstLabels: prometheus.Labels{"cause": string(c)},
		}, func() float64 { return oneIf(a.history.suffers(c)) }))
	}
	if a.customers != nil {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_largest_customer_share_ratio", Help: "The share of all bytes that the customer with the most of them sent in the last minutes, 0 to 1; /v1/status says who.",
		}, a.largestShare))
	}
	if a.letters != nil {
		all = append(all, a.letters)
	}
	if a.parked != nil {
		all = append(all, a.parked)
	}
	if a.routing != nil {
		all = append(append(all, a.routing.collectors()...), a.jobs)
	}
	for _, collector := range all {
		if err := a.metrics.Register(collector); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

// generations keeps the recorded generations in the control index, which is
// made when the first topic needs it.
type generations struct {
	control *elastic.Control
	mapper  *document.Mapper
	opened  atomic.Bool
}

// Ensure implements consumer.Generations.
func (g *generations) Ensure(ctx context.Context, t generation.Topic) (generation.List, error) {
	if !g.opened.Load() {
		if err := g.control.Open(ctx); err != nil {
			return nil, err
		}
		g.opened.Store(true)
	}
	var others []string
	if index, shared := g.mapper.SharedIndex(t.Name); shared {
		var err error
		if others, err = generation.Join(ctx, g.control, index, t.Name); err != nil {
			return nil, err
		}
	}
	return generation.Ensure(ctx, g.control, t, others...)
}
