package demo

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/migrate"
)

// A step that a slow machine does not come to is waited for, with fewer events,
// and in sight.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later := &migrate.RefusedError{Verb: "cutover", Later: true, Refusals: []migrate.Refusal{{Why: "the live lag is 9s"}}}
		out := &output{}
		begin := func(rate int) (*migration, *watcher) {
			*out = output{}
			return &migration{patience: walkPatience}, &watcher{
				stage: &stage{view: NewView(out, nil)}, generator: newGenerator(nil, "t", rate, 10, 0, 1), start: time.Now(),
			}
		}

		m, w := begin(2000)
		began := time.Now()
		if err := m.again(t.Context(), w, func() error {
			if time.Since(began) < 5*time.Minute {
				return later
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if said := out.String(); strings.Count(said, "\n") < 25 || !strings.Contains(said, "waits    the live lag is 9s; 1000 events a second from now on") || !strings.Contains(said, "; 50 events a second") {
			t.Errorf("it says\n%s", said)
		}

		m, w = begin(2000)
		if err := m.again(t.Context(), w, func() error { return later }); !errors.Is(err, later) || !strings.Contains(err.Error(), "within 10m0s") || !strings.Contains(err.Error(), "--rate") {
			t.Errorf("%v", err)
		}

		m, w = begin(0)
		w.generator.produced.Store(90_000)
		if err := sleep(t.Context(), 90*time.Second); err != nil {
			t.Fatal(err)
		}
		if rate := w.generator.slower(time.Since(w.start)); rate != 500 {
			t.Errorf("the half of 1,000 a second is %d", rate)
		}
		for name, end := range map[string]error{"that does not pass": &migrate.RefusedError{Verb: "cutover"}, "another": errors.New("no")} {
			if err := m.again(t.Context(), w, func() error { return end }); !errors.Is(err, end) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
