// Package procs lets GOMAXPROCS follow the process's CPU quota while it runs,
// and tells when it has changed.
//
// Go's own rule never goes below 2 and rounds a quota up; automaxprocs rounds
// down, to 1 at least. It looks at the quota only when asked, so it is asked
// on a ticker: a quota that is raised for the start of a container and lowered
// afterwards would otherwise be kept for ever.
package procs

import (
	"context"
	"math"
	"runtime"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/automaxprocs/maxprocs"
)

// Current returns GOMAXPROCS.
func Current() int { return runtime.GOMAXPROCS(0) }

// Run follows the CPU quota until ctx ends, and puts GOMAXPROCS back then. At
// once and at every cfg.Interval it looks; onChange, called from this
// goroutine, gets the new value of GOMAXPROCS whenever it differs from the one
// before, whoever changed it. In mode "runtime" it changes nothing and only
// looks. A GOMAXPROCS variable in the environment is respected.
func Run(ctx context.Context, cfg Config, log zerolog.Logger, onChange func(n int)) {
	apply := func() error { return nil }
	if cfg.Mode == "automaxprocs" {
		q := &quota{set: func(round func(cpus float64) int) (func(), error) {
			return maxprocs.Set(
				maxprocs.Logger(func(format string, args ...any) { log.Debug().Msgf(format, args...) }),
				maxprocs.RoundQuotaFunc(round),
			)
		}}
		defer q.undo()
		apply = q.apply
	}
	follow(ctx, cfg.Interval, log, Current, apply, onChange)
}

// follow calls apply and then looks at current, at once and at every interval.
func follow(ctx context.Context, interval time.Duration, log zerolog.Logger, current func() int, apply func() error, onChange func(n int)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last, failed := current(), ""
	for ctx.Err() == nil {
		// A cgroup that cannot be read stays so for many ticks: one line for
		// each cause is enough.
		if err := apply(); err == nil {
			failed = ""
		} else if err.Error() != failed {
			failed = err.Error()
			log.Warn().Err(err).Int("gomaxprocs", last).Msg("cannot read the CPU quota; GOMAXPROCS stays as it is")
		}
		if n := current(); n != last {
			log.Info().Int("from", last).Int("gomaxprocs", n).Msg("GOMAXPROCS changed")
			last = n
			onChange(n)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// quota applies the CPU quota to GOMAXPROCS.
type quota struct {
	// set sets GOMAXPROCS to round of the quota, where there is one, and
	// returns what puts back the value before.
	set   func(round func(cpus float64) int) (undo func(), err error)
	first func() // undoes the first change; nil: nothing was changed
	found bool   // the last apply found a quota
}

func (q *quota) apply() error {
	found := false
	undo, err := q.set(func(cpus float64) int {
		found = true // set says it in no other way
		return int(math.Floor(cpus))
	})
	if err != nil {
		return err
	}
	if found && q.first == nil {
		q.first = undo
	}
	if q.found && !found {
		runtime.SetDefaultGOMAXPROCS() // the quota was lifted; set leaves its last value
	}
	q.found = found
	return nil
}

func (q *quota) undo() {
	if q.first != nil {
		q.first()
	}
}
