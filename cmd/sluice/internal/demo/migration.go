package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// customerOfKey takes the customer from a key, and from a stored id.
const customerOfKey = "^([^/]+)/"

// documentsOf is how many documents a customer has; 0: one, whose key is the
// customer's name.
func documentsOf(o Options) int {
	if o.Migrate {
		return 5
	}
	return 0
}

const (
	demoJob = "demo"
	// indices is how many the demo's index is split into.
	indices = 6
)

// migration splits the stage's index by customer while events go on.
type migration struct {
	manager *migrate.Manager
	tables  *partition.Store
	stream  string
	source  string
	pace    time.Duration // between two steps that an operator would let rest
	// patience is how long a step may be refused for reasons that pass.
	patience time.Duration
}

// newMigration makes the stream's routing table: all of it goes to one index.
func newMigration(ctx context.Context, s *stage, o Options) (*migration, error) {
	mapper, err := app.Mapper(s.cfg)
	if err != nil {
		return nil, err
	}
	control := s.es.Control(s.cfg.Routing.ControlIndex)
	if err := control.Open(ctx); err != nil {
		return nil, err
	}
	m := &migration{tables: partition.NewStore(control), stream: s.cfg.Routing.Stream, source: s.index, pace: o.Duration / 12, patience: walkPatience}
	m.manager = app.NewMigrations(s.cfg, mapper, s.es, app.Group{Config: s.cfg, Kafka: s.admin, Control: control}, "the demo", o.Log)
	m.manager.Poll = 200 * time.Millisecond
	return m, m.tables.Create(ctx, partition.New(m.stream, m.source))
}

// walk takes the job from its plan to the end of the old index, and tells each
// step. Readers have a quarter of the time, and one roll-back.
func (m *migration) walk(ctx context.Context, w *watcher) error {
	step := 0
	tell := func(format string, args ...any) {
		step++
		fmt.Fprintf(w.stage.view, "%4.0fs  step %2d  %s\n", time.Since(w.start).Seconds(), step, fmt.Sprintf(format, args...))
	}
	request := migrate.Request{Job: demoJob, Actor: "the demo", Yes: true}
	percent := func(p float64) migrate.Cut { return migrate.Cut{Percent: &p} }
	cutover := func(cut migrate.Cut) error {
		return m.again(ctx, w, func() error { _, err := m.manager.Cutover(ctx, request, cut); return err })
	}
	verify := func() (report *migrate.Report, err error) {
		err = m.again(ctx, w, func() error {
			report, _, err = m.manager.Verify(ctx, request, migrate.Check{Level: migrate.L2}, nil)
			switch {
			case err != nil || report.Clean():
				return err
			case len(report.Classes) == 0 && report.Foreign == 0: // documents that changed each time they were looked at
				return &migrate.RefusedError{Verb: "verify", Later: true, Refusals: []migrate.Refusal{{Why: fmt.Sprintf("%d documents were in flux", report.Unsettled)}}}
			}
			return fmt.Errorf("%w: the sides differ: %v, such as %v", ErrBroken, report.Classes, report.Samples)
		})
		return report, err
	}

	tell("events of many customers go into one index, %s", m.source)
	if err := sleep(ctx, 3*m.pace); err != nil {
		return err
	}
	var plan migrate.Plan
	if err := m.again(ctx, w, func() (err error) {
		if plan, err = m.manager.Plan(ctx, migrate.Wish{Source: m.source, Customer: "id:" + customerOfKey, Partitions: indices, Replicas: -1}); err != nil {
			return err
		}
		_, err = m.manager.Create(ctx, request, plan)
		var refused *migrate.RefusedError
		if errors.As(err, &refused) {
			refused.Later = true // an index that is this young outgrows its plan
		}
		return err
	}); err != nil {
		return err
	}
	tell("plan: %s documents of %s customers are to live in %d indices", grouped(plan.Docs), grouped(int64(plan.Layout.Customers)), len(plan.Layout.Partitions))
	tell("create: the new indices stand, empty; events still go to the old one only")
	if _, err := m.manager.DualWrite(ctx, request); err != nil {
		return err
	}
	tell("dual-write: every event is to go to both sides; a delete leaves a tombstone on the new one. What was under way must be over first")
	if err := m.manager.Work(ctx, demoJob, nil); err != nil {
		return err
	}
	status, err := m.manager.Status(ctx, demoJob)
	if err != nil {
		return err
	}
	tell("copy: %s documents from before were copied; of %s more the new side had something newer. Late copies are shut out, the tombstones are purged",
		grouped(status.Written), grouped(status.Newer))
	report, err := verify()
	if err != nil {
		return err
	}
	tell("verify: %s documents on the new side, %s contents compared: both sides are equal, while events go on", grouped(report.New), grouped(report.Sampled))
	if err := cutover(percent(5)); err != nil {
		return err
	}
	tell("cutover: searches of 5 %% of the customers go to the new indices; both sides are still written")
	if err := sleep(ctx, m.pace); err != nil {
		return err
	}
	if _, err := m.manager.Rollback(ctx, request, nil); err != nil {
		return err
	}
	tell("rollback: a change of mind costs one flag; all searches are back on the old index, which has missed nothing")
	if err := sleep(ctx, m.pace); err != nil {
		return err
	}
	for _, p := range []float64{25, 100} {
		if err := cutover(percent(p)); err != nil {
			return err
		}
		tell("cutover: %g %% of the customers", p)
		if err := sleep(ctx, m.pace); err != nil {
			return err
		}
	}
	if _, err := verify(); err != nil {
		return err
	}
	tell("verify: both sides are equal, now that everybody reads the new one")
	if _, err := m.manager.Complete(ctx, request, 0, 0); err != nil {
		return err
	}
	tell("complete: events go to the new indices only; nothing can be written to the old one any more")
	if _, err := m.manager.Drop(ctx, request, m.source, true); err != nil {
		return err
	}
	tell("drop: %s is deleted", m.source)
	return sleep(ctx, m.pace)
}

// walkPatience is how long a step of a walk may wait on a slow machine.
const walkPatience = 10 * time.Minute

// again repeats a verb that is refused for a reason that passes by itself, such
// as consumers that are a moment behind. It says what it waits for, and slows the
// events down meanwhile: a machine may be slower than they come.
func (m *migration) again(ctx context.Context, w *watcher, verb func() error) error {
	began := time.Now()
	told := began
	for {
		err := verb()
		var refused *migrate.RefusedError
		if !errors.As(err, &refused) || !refused.Later {
			return err
		}
		now := time.Now()
		if now.Sub(began) > m.patience {
			return fmt.Errorf("this did not pass within %s, though only %d events come a second: %w: try a lower --rate, or fewer --customers", m.patience, w.generator.rate.Load(), err)
		}
		if now.Sub(told) >= m.patience/60 {
			told = now
			rate := w.generator.slower(now.Sub(w.start))
			fmt.Fprintf(w.stage.view, "%4.0fs  waits    %s; %d events a second from now on\n", now.Sub(w.start).Seconds(), refused.Refusals[0].Why, rate)
		}
		if sleep(ctx, time.Second) != nil {
			return err
		}
	}
}

// places says which indices hold the stream's documents now, and where a key's
// must be.
func (m *migration) places(ctx context.Context) (index string, place func(key string) string, err error) {
	stored, err := m.tables.Load(ctx, m.stream)
	if err != nil {
		return "", nil, err
	}
	var names []string
	for _, p := range stored.Partitions {
		names = append(names, p.Index)
	}
	router := partition.NewRouter(stored.Table, partition.CacheOptions{})
	return strings.Join(names, ","), func(key string) string {
		customer, _, _ := strings.Cut(key, "/")
		return router.Route([]byte(customer)).New
	}, nil
}
