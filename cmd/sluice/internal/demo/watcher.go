package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lagEvery is how often the brokers are asked for the lag.
const lagEvery = 500 * time.Millisecond

// watcher looks at a demo that runs: at the generator, at Sluice's own metrics
// and, for the lag, at what its group has committed.
type watcher struct {
	stage     *stage
	generator *generator
	metrics   prometheus.Gatherer
	start     time.Time

	mu   sync.Mutex
	lag  int64 // -1: not known
	note string
	seen stats
}

// say notes what is being done to the servers; "" ends it.
func (w *watcher) say(note string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note = note
}

func (w *watcher) last() stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// show draws progress until ctx ends, and once more then.
func (w *watcher) show(ctx context.Context, view *View) {
	ticker := time.NewTicker(view.interval())
	defer ticker.Stop()
	for {
		w.look()
		view.draw(w.last().String())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			w.look()
			view.draw(w.last().String())
			return
		}
	}
}

// look reads the counters.
func (w *watcher) look() {
	outcomes, retries := counters(w.metrics)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := stats{
		elapsed: time.Since(w.start), produced: w.generator.produced.Load(),
		lag: w.lag, outcomes: outcomes, retries: retries, note: w.note,
	}
	if passed := now.elapsed - w.seen.elapsed; passed > 0 {
		now.rate = max(0, now.handled()-w.seen.handled()) / passed.Seconds()
	}
	w.seen = now
}

// follow keeps the lag up to date until ctx ends. Brokers that are being
// disturbed are asked again.
func (w *watcher) follow(ctx context.Context) {
	ticker := time.NewTicker(lagEvery)
	defer ticker.Stop()
	for {
		lag, err := w.askLag(ctx)
		if err != nil {
			lag = -1
		}
		w.setLag(lag)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// askLag returns how many records lie between the group's commits and the ends
// of the log.
func (w *watcher) askLag(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// Commits first: ends that are read later can only make the lag larger.
	committed, err := w.stage.admin.FetchOffsets(ctx, w.stage.group)
	if err != nil {
		return 0, err
	}
	starts, err := w.stage.admin.ListStartOffsets(ctx, w.stage.topic)
	if err != nil {
		return 0, err
	}
	ends, err := w.stage.admin.ListEndOffsets(ctx, w.stage.topic)
	if err != nil {
		return 0, err
	}
	var lag int64
	for p, end := range ends[w.stage.topic] {
		if end.Err != nil {
			return 0, end.Err
		}
		from := starts[w.stage.topic][p].Offset
		if commit, ok := committed.Lookup(w.stage.topic, p); ok {
			if commit.Err != nil {
				return 0, commit.Err
			}
			from = max(from, commit.At)
		}
		lag += max(0, end.Offset-from)
	}
	return lag, nil
}

// drained waits until the lag is 0.
func (w *watcher) drained(ctx context.Context, running *task, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(lagEvery)
	defer ticker.Stop()
	for {
		lag, err := w.askLag(ctx)
		if err == nil {
			w.setLag(lag)
			if lag == 0 {
				return nil
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d records were still not committed after %s", ErrBroken, lag, patience)
		case <-running.done:
			return errors.Join(errors.New("sluice ended by itself"), running.stop())
		}
	}
}

func (w *watcher) setLag(lag int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lag = lag
}

// counters reads Sluice's own metrics: records by outcome, and how often a
// document was sent again.
func counters(metrics prometheus.Gatherer) (outcomes map[string]float64, retries float64) {
	outcomes = map[string]float64{}
	families, err := metrics.Gather()
	if err != nil {
		return outcomes, 0 // a partial gathering is shown as far as it goes
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			outcome := ""
			for _, label := range metric.GetLabel() {
				if label.GetName() == "outcome" {
					outcome = label.GetValue()
				}
			}
			switch family.GetName() {
			case "sluice_records_total":
				outcomes[outcome] += metric.GetCounter().GetValue()
			case "sluice_retries_total":
				retries += metric.GetCounter().GetValue()
			}
		}
	}
	return outcomes, retries
}
