package migrate

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/embedded"
)

// reads counts the searches for documents from now on.
func (w *world) reads() *embedded.Injection {
	return w.es.Inject(embedded.Rule{API: "search", Match: func(q *embedded.Request) bool { return q.Query.Get("preference") != "" }})
}

// verifyAside verifies in the background; the returned function waits for it.
func (w *world) verifyAside(c Check) (wait func() (*Report, error)) {
	type end struct {
		report *Report
		err    error
	}
	done := make(chan end, 1)
	go func() {
		r, _, err := w.m.Verify(w.Context(), request(), c, nil)
		done <- end{r, err}
	}()
	return func() (*Report, error) {
		e := <-done
		return e.report, e.err
	}
}

// A verification reads nothing while a signal stops its job, says why, and goes
// on by itself.
func TestVerifyIsThrottled(t *testing.T) {
	for name, c := range map[string]struct {
		begin, end func(w *world)
		say        string
	}{
		"paused": {func(w *world) { w.check(pausing(w.Context(), w.m)) }, func(w *world) { w.check(resuming(false)(w.Context(), w.m)) }, "throttled: paused: by test"},
		"concurrency 0": {
			func(w *world) { w.check(limiting("0")(w.Context(), w.m)) }, func(w *world) { w.check(limiting("4")(w.Context(), w.m)) }, "conc 0/0 throttled: concurrency 0",
		},
		"outside the window": {func(w *world) { w.window("12:00-13:00") }, func(w *world) { w.window("") }, "throttled: outside the window 12:00-13:00"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.synced(300)
				c.begin(w)
				held := w.reads()
				wait := w.verifyAside(Check{Level: L2})
				sleepFor(w, time.Minute)
				status, err := w.m.Status(w.Context(), jobName)
				w.check(err)
				if line := status.Line(); held.Hits() > 0 || !strings.Contains(line, "verifying ") || !strings.Contains(line, c.say) {
					w.Errorf("%d searches, and the status is %q", held.Hits(), line)
				}
				c.end(w)
				if r, err := wait(); err != nil || !r.Clean() {
					w.Errorf("%+v, %v", r, err)
				}
				status, err = w.m.Status(w.Context(), jobName)
				w.check(err)
				if status.Verifying != nil {
					w.Errorf("after its end: %q", status.Line())
				}
			})
		})
	}
}

// window sets the time of day at which the job may work.
func (w *world) window(text string) {
	w.Helper()
	_, err := w.m.SetLimits(w.Context(), request(), map[string]string{"window": text})
	w.check(err)
}

// Searches that the server has no room for are made again, slower, and counted
// once.
func TestVerifyIsRejected(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		full := w.es.Inject(embedded.Rule{API: "search", Share: 0.4, Fault: embedded.Fault{
			Status: http.StatusTooManyRequests, Body: []byte(`{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`),
		}})
		if r := w.verify(Check{Level: L2, Full: true}); !r.Clean() || r.Old != 300 || r.New != 300 {
			w.Errorf("%+v", r)
		}
		if full.Hits() == 0 {
			w.Error("no search was refused")
		}
	})
}

// A job that is cancelled under a verification ends it, and nothing of it is
// kept.
func TestCancelEndsAVerification(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		w.verify(Check{Level: L1})
		w.check(pausing(w.Context(), w.m))
		wait := w.verifyAside(Check{Level: L2})
		sleepFor(w, time.Minute)
		stop := w.consume()
		w.check(cancelling(w.Context(), w.m))
		var moved *MovedError
		if _, err := wait(); !errors.As(err, &moved) {
			w.Errorf("the verification: %v", err)
		}
		stop()
		w.nothingLeft()
	})
}
