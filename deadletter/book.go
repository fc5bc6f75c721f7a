package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/memory"
)

const maxReasons = 100 // values of the metric's label

// letter is one call of Write.
type letter struct {
	Letter
	done func(error)
	size int64

	// Of a topic's writer: parts that are not acknowledged, and the bytes of
	// value in a part (0: whole).
	left  int
	chunk int
	// Of an index's writer: it travels without others.
	alone bool
}

// book keeps what a writer has taken and not reported yet, in memory that it
// charges, and says aloud while nothing can be written. It is the part that all
// writers share.
type book struct {
	release string
	budget  *memory.Budget // nil: nothing is charged
	log     zerolog.Logger
	written *prometheus.CounterVec
	waiting prometheus.GaugeFunc

	mu sync.Mutex

	// All below: under mu, and so is what the writers add.

	closed bool
	// letters are all that were not reported yet; each leaves once. idle is
	// closed when the last one leaves, nil while nobody asks.
	letters map[*letter]struct{}
	bytes   int64
	idle    chan struct{}
	alarm   string
	since   time.Time
	reasons map[string]uint64 // letters by the metric's label
}

// Status is what a writer is doing.
type Status struct {
	Letters int   // not acknowledged
	Bytes   int64 // what they take in memory
	// Alarm is why letters cannot be written at present ("": they can), and
	// Since when.
	Alarm string
	Since time.Time
	// Reasons counts the acknowledged ones by error type.
	Reasons map[string]uint64
}

func (b *book) open(budget *memory.Budget, release string, log zerolog.Logger) {
	b.budget, b.release, b.log = budget, release, log
	b.written = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_dead_letters_total", Help: "Dead letters that were acknowledged, by error type.",
	}, []string{"reason"})
	b.waiting = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_dead_letters_waiting", Help: "Dead letters that were not acknowledged yet.",
	}, func() float64 { return float64(b.Status().Letters) })
	b.letters = map[*letter]struct{}{}
	b.reasons = map[string]uint64{}
}

// take enters a letter and has it queued, with mu held. A closed writer's is
// reported instead.
func (b *book) take(l Letter, done func(error), queue func(*letter)) {
	l.Release = b.release
	e := &letter{Letter: l, done: done, size: l.size(), left: 1}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		done(ErrClosed)
		return
	}
	// Before it is queued: it may be acknowledged, and its bytes given back, as
	// soon as the writer's goroutine sees it.
	if b.budget != nil {
		b.budget.Force(e.size)
	}
	b.letters[e] = struct{}{}
	b.bytes += e.size
	queue(e)
	b.mu.Unlock()
}

// report tells the caller how its letter ended, once.
func (b *book) report(l *letter, err error) {
	b.mu.Lock()
	if _, ok := b.letters[l]; !ok {
		b.mu.Unlock()
		return
	}
	delete(b.letters, l)
	b.bytes -= l.size
	reason := l.Type
	if err == nil {
		if _, ok := b.reasons[reason]; !ok && len(b.reasons) >= maxReasons {
			reason = "other"
		}
		b.reasons[reason]++
	}
	if len(b.letters) == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
	b.mu.Unlock()
	if b.budget != nil {
		b.budget.Give(l.size)
	}
	event := b.log.Info()
	if err != nil {
		event = b.log.Error().Err(err)
	} else {
		b.written.WithLabelValues(reason).Inc()
	}
	if !errors.Is(err, ErrClosed) {
		event.Str("topic", l.Topic).Int32("partition", l.Partition).Int64("offset", l.Offset).Str("type", l.Type).Int("status", l.Status).Msg("dead letter")
	}
	l.done(err)
}

// raise sets the alarm; the log hears of the first one only.
func (b *book) raise(why string) {
	b.mu.Lock()
	first := b.alarm == ""
	b.alarm = why
	if first {
		b.since = time.Now()
	}
	letters := len(b.letters)
	b.mu.Unlock()
	if first {
		b.log.Error().Str("reason", why).Int("letters", letters).Msg("dead letters cannot be written: their records wait")
	}
}

func (b *book) calm() {
	b.mu.Lock()
	over := b.alarm != ""
	since := b.since
	b.alarm, b.since = "", time.Time{}
	b.mu.Unlock()
	if over {
		b.log.Info().Dur("after_ms", time.Since(since)).Msg("dead letters can be written again")
	}
}

// Status says what the writer is doing.
func (b *book) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Status{Letters: len(b.letters), Bytes: b.bytes, Alarm: b.alarm, Since: b.since, Reasons: maps.Clone(b.reasons)}
}

// settle takes no more letters and waits until all were reported, or until ctx
// ends.
func (b *book) settle(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	idle := make(chan struct{})
	if len(b.letters) == 0 {
		close(idle)
	} else {
		b.idle = idle
	}
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("dead letters: %d were not acknowledged in time: %w", b.Status().Letters, context.Cause(ctx))
	}
}

// giveUp reports what is left as not written. Nothing may use the letters any
// more.
func (b *book) giveUp() {
	b.mu.Lock()
	left := make([]*letter, 0, len(b.letters))
	for l := range b.letters {
		left = append(left, l)
	}
	b.mu.Unlock()
	for _, l := range left {
		b.report(l, ErrClosed)
	}
}

// Describe sends the descriptions of the writer's metrics.
func (b *book) Describe(ch chan<- *prometheus.Desc) {
	b.written.Describe(ch)
	b.waiting.Describe(ch)
}

// Collect sends the writer's metrics.
func (b *book) Collect(ch chan<- prometheus.Metric) {
	b.written.Collect(ch)
	b.waiting.Collect(ch)
}
