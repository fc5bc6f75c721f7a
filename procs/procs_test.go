package procs

import (
	"bytes"
	"context"
	"errors"
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
