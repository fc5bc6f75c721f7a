package procs

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestFollowTellsEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		// What the quota is at each look, 0: it cannot be read.
		quotas := []int{4, 4, 2, 0, 0, 2, 8}
		now, looks := 4, 0
		var changes []int
		apply := func() error {
			defer func() { looks++ }()
			if looks == len(quotas) {
				cancel()
				return nil
			}
			if quotas[looks] == 0 {
				return errors.New("no such cgroup")
			}
			now = quotas[looks]
			return nil
		}
		start := time.Now()
		follow(ctx, 30*time.Second, zerolog.New(&logged), func() int { return now }, apply, func(n int) { changes = append(changes, n) })

		if want := []int{2, 8}; !slices.Equal(changes, want) {
			t.Errorf("changes = %v, want %v", changes, want)
		}
		if got, want := time.Since(start), 7*30*time.Second; got != want {
			t.Errorf("looked for %v, want one look at once and then every 30 s: %v", got, want)
		}
		if n := strings.Count(logged.String(), "GOMAXPROCS changed"); n != 2 {
			t.Errorf("%d changes logged, want 2:\n%s", n, &logged)
		}
		if n := strings.Count(logged.String(), "no such cgroup"); n != 1 {
			t.Errorf("the failure was logged %d times, want once:\n%s", n, &logged)
		}
	})
}

func TestRunStopsAndPutsBack(t *testing.T) {
	before := Current()
	for _, mode := range []string{"automaxprocs", "runtime"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Run(ctx, Config{Mode: mode, Interval: time.Millisecond}, zerolog.Nop(), func(int) {})
		}()
		cancel()
		<-done
		if got := Current(); got != before {
			t.Errorf("mode %s: GOMAXPROCS is %d afterwards, want %d as before", mode, got, before)
		}
	}
}

func TestAnEndedContextStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	looked := false
	follow(ctx, time.Second, zerolog.Nop(), func() int { return 1 }, func() error { looked = true; return nil }, func(int) {})
	if looked {
		t.Error("looked at the quota after the end")
	}
}

// The quota comes, cannot be read, changes, and is lifted.
func TestQuotaIsAppliedAndLifted(t *testing.T) {
	before := Current()
	defer runtime.GOMAXPROCS(before)
	runtime.SetDefaultGOMAXPROCS()
	unlimited := Current()
	runtime.GOMAXPROCS(7)

	cpus := 0.0 // 0: there is none
	var fails error
	q := &quota{set: func(round func(float64) int) (func(), error) {
		previous := Current()
		if fails != nil || cpus == 0 {
			return func() {}, fails
		}
		runtime.GOMAXPROCS(max(1, round(cpus)))
		return func() { runtime.GOMAXPROCS(previous) }, nil
	}}
	step := func(what string, quota float64, err error, want int) {
		t.Helper()
		cpus, fails = quota, err
		if got := q.apply(); !errors.Is(got, err) {
			t.Errorf("%s: err = %v, want %v", what, got, err)
		}
		if got := Current(); got != want {
			t.Errorf("%s: GOMAXPROCS is %d, want %d", what, got, want)
		}
	}
	step("no quota changes nothing", 0, nil, 7)
	step("rounded down", 2.9, nil, 2)
	step("never to 0", 0.5, nil, 1)
	step("not readable: as it was", 4, errors.New("gone"), 1)
	step("raised", 4, nil, 4)
	step("lifted: Go decides", 0, nil, unlimited)
	q.undo()
	if got := Current(); got != 7 {
		t.Errorf("at the end GOMAXPROCS is %d, want 7 as before", got)
	}
}
