// Package demo shows Sluice at work and proves what it promises: a generator
// writes the lives of customers to a topic, Sluice, as it is deployed, moves
// them into an index while brokers and Elasticsearch misbehave, and a checker
// that shares no code with it compares the two in the end.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/cmd/sluice/internal/proof"
)

// Options are the flags of `sluice demo`.
type Options struct {
	Duration   time.Duration // of the generator
	Rate       int           // records a second, 0: as fast as it goes
	Customers  int
	Partitions int
	Seed       uint64
	Faults     bool // injected into the embedded servers
	// Migrate plays a whole migration in place of faults, on the embedded servers.
	Migrate bool

	// Kafka and Elasticsearch name real servers; both or neither.
	Kafka         []string
	Elasticsearch string
	Keep          bool // leave topics and indices of real servers there

	Sets    []string // configuration keys, as in --set
	Version string
	View    *View // where all output goes
	Log     zerolog.Logger

	// beforeCheck is where tests do their mischief.
	beforeCheck func(*stage)
}

// Check says what of the options cannot be.
func (o *Options) Check() error {
	var errs []error
	if o.Duration <= 0 {
		errs = append(errs, errors.New("--duration: want more than 0"))
	}
	if o.Rate < 0 {
		errs = append(errs, errors.New("--rate: want 0 (as fast as it goes) or more"))
	}
	if o.Customers < 2 {
		errs = append(errs, errors.New("--customers: want 2 or more"))
	}
	if o.Partitions < 1 {
		errs = append(errs, errors.New("--partitions: want 1 or more"))
	}
	if (len(o.Kafka) == 0) != (o.Elasticsearch == "") {
		errs = append(errs, errors.New("--kafka and --elasticsearch go together: without them both are embedded"))
	}
	if o.Migrate && len(o.Kafka) > 0 {
		errs = append(errs, errors.New("--migrate plays on the embedded servers: leave out --kafka and --elasticsearch, and see docs/migrations.md for a real index"))
	}
	return errors.Join(errs...)
}

// patience is how long the end may take: for what was begun to be
// acknowledged, and for the lag to reach 0.
const patience = 2 * time.Minute

// ErrBroken says that the outcome is not what was promised.
var ErrBroken = errors.New("the promise did not hold")

// Run runs the demo until its time is over or ctx ends, and then checks the
// outcome and prints it. It returns ErrBroken, wrapped, where the outcome is
// not what was promised.
func Run(ctx context.Context, o Options) (err error) {
	// What follows the generator must be done after Ctrl-C, too.
	whole := context.WithoutCancel(ctx)
	s, err := setUp(whole, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(whole)) }()

	var m *migration
	if o.Migrate {
		if m, err = newMigration(whole, s, o); err != nil {
			return err
		}
	}
	metrics := prometheus.NewRegistry()
	sluice, err := app.New(s.cfg, app.Options{Log: o.Log, Version: o.Version, Metrics: metrics})
	if err != nil {
		return err
	}
	running := start(whole, sluice.Run)
	defer func() { err = errors.Join(err, running.stop()) }()
	fmt.Fprintf(o.View, "kafka %s, elasticsearch %s, topic and index %s\nlive page, metrics and profiles: %s\n",
		strings.Join(s.cfg.Kafka.Brokers, ","), redacted(s.cfg.Elasticsearch.Addresses[0]), s.topic, sluice.AdminURL())

	g, w, err := play(ctx, whole, s, o, metrics, running, m)
	if err != nil {
		return err
	}
	if err := running.stop(); err != nil {
		return err
	}
	if o.beforeCheck != nil {
		o.beforeCheck(s)
	}
	where := proof.Where{
		Kafka: s.kafka, Topic: s.topic, DeadLetters: s.deadLetters,
		Elasticsearch: anyHost, HTTP: s.http, Index: s.index,
		Bad: func(value []byte) bool { return !json.Valid(value) },
	}
	if m != nil {
		if where.Index, where.Place, err = m.places(whole); err != nil {
			return err
		}
	}
	report, err := proof.Check(whole, where)
	if err != nil {
		return fmt.Errorf("the outcome cannot be checked: %w", err)
	}
	return summary(o.View, g, w.last(), report)
}

// play generates, shows and disturbs until the time or the migration is over,
// and waits for the lag to reach 0, within bounds.
func play(ctx, whole context.Context, s *stage, o Options, metrics prometheus.Gatherer, running *task, m *migration) (*generator, *watcher, error) {
	producer, err := kgo.NewClient(append(s.kafka, kgo.MaxBufferedRecords(20_000), kgo.ProducerLinger(5*time.Millisecond))...)
	if err != nil {
		return nil, nil, err
	}
	defer producer.Close()
	g := newGenerator(producer, s.topic, o.Rate, o.Customers, documentsOf(o), o.Seed)
	if len(o.Kafka) == 0 {
		g.most = embeddedBytes
	}
	w := &watcher{stage: s, generator: g, metrics: metrics, start: time.Now(), lag: -1}

	var watching sync.WaitGroup
	watch, endWatch := context.WithCancel(whole)
	watching.Go(func() { w.show(watch, o.View) })
	watching.Go(func() { w.follow(watch) })
	defer func() {
		endWatch()
		watching.Wait()
		o.View.done()
	}()

	generating, endGenerating := context.WithTimeout(ctx, o.Duration)
	if m != nil {
		generating, endGenerating = context.WithCancel(ctx)
	}
	defer endGenerating()
	var disturbing sync.WaitGroup
	var errMigration error
	if m != nil {
		disturbing.Go(func() {
			defer endGenerating()
			errMigration = m.walk(generating, w)
		})
	}
	if s.disturb != nil {
		disturbing.Go(func() { s.disturb(generating, o.Seed, o.Duration, w.say) })
	}
	go func() { // a consumer that is gone needs no more records
		select {
		case <-running.done:
			endGenerating()
		case <-generating.Done():
		}
	}()
	err = g.run(generating, patience)
	if m == nil || err != nil {
		endGenerating()
	}
	disturbing.Wait()
	if err = errors.Join(err, errMigration); err == nil {
		w.say("no more events: the lag goes to 0")
		err = w.drained(whole, running, patience)
	}
	return g, w, err
}

// task is a function that runs until it is stopped.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

func start(ctx context.Context, run func(context.Context) error) *task {
	ctx, cancel := context.WithCancel(ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() { // ends with run
		defer close(t.done)
		t.err = run(ctx)
	}()
	return t
}

// stop ends the task and waits for it. Only the first call returns its error.
func (t *task) stop() error {
	t.cancel()
	<-t.done
	err := t.err
	t.err = nil
	return err
}

// redacted shows an address without user information.
func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "?"
	}
	return u.Redacted()
}
