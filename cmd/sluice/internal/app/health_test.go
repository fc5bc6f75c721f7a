package app

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/indexer"
)

func TestJudge(t *testing.T) {
	long, short := time.UnixMilli(1000), time.UnixMilli(2000)
	halted := []admin.HaltedPartition{
		{Topic: "events", Partition: 1, Offset: 7, Reason: "late", Since: short},
		{Topic: "events", Partition: 2, Offset: 9, Reason: "first", Since: long},
	}
	for name, test := range map[string]struct {
		view   view
		state  admin.State
		reason string // part of it
		since  time.Time
	}{
		"idle":            {view{joined: true}, admin.Running, "", time.Time{}},
		"not joined":      {view{}, admin.Starting, "Kafka", time.Time{}},
		"stopping":        {view{stopping: true, indexer: indexer.Status{HoldAll: "401"}}, admin.Stopping, "", time.Time{}},
		"refused":         {view{joined: true, indexer: indexer.Status{HoldAll: "401", HoldAllSince: 1000}}, admin.Waiting, "401", long},
		"silent":          {view{joined: true, silent: long, silentReason: "unreachable"}, admin.Waiting, "unreachable", long},
		"silent at start": {view{silent: long, silentReason: "unreachable"}, admin.Waiting, "unreachable", long},
		"halted":          {view{joined: true, halted: halted}, admin.Blocked, "events/2 at offset 9 first: first", long},
		"unanswered":      {view{joined: true, indexer: indexer.Status{BlockedOn: 1}}, admin.Blocked, "1 records", time.Time{}},
		"halted, and out": {view{joined: true, halted: halted, silent: short}, admin.Waiting, "", short},
		"letters":         {view{joined: true, letters: deadletter.Status{Alarm: "no topic", Since: long}}, admin.Throttled, "no topic", long},
		"parked":          {view{joined: true, parked: "no topic", parkedSince: long}, admin.Throttled, "no topic", long},
		"near the start":  {view{joined: true, nearStart: "events/3"}, admin.Throttled, "events/3", time.Time{}},
		"429":             {view{joined: true, indexer: indexer.Status{Throttled: true}}, admin.Throttled, "turns", time.Time{}},
		"full":            {view{joined: true, full: true}, admin.Throttled, "memory", time.Time{}},
		"one target held": {view{joined: true, indexer: indexer.Status{Held: []indexer.HeldTarget{{Target: "a"}}}}, admin.Running, "", time.Time{}},
	} {
		state, reason, since := judge(test.view)
		if state != test.state || !strings.Contains(reason, test.reason) || !since.Equal(test.since) {
			t.Errorf("%s: %s, %q, %v", name, state, reason, since)
		}
	}
}

func TestHealthRemembersSinceWhen(t *testing.T) {
	var h history
	running := view{joined: true}
	began := time.UnixMilli(1000)
	h.health(running, began)
	if got := h.health(running, began.Add(time.Minute)); !got.Since.Equal(began) || !got.OK() {
		t.Errorf("running: %+v, want since %v", got, began)
	}
	held := running
	held.indexer.Held = []indexer.HeldTarget{{Target: "a", Type: "cluster_block_exception", Since: 5, Bytes: 7}}
	if got := h.health(held, began.Add(time.Minute)); got.OK() || got.State != admin.Running || got.Held[0] != (admin.HeldTarget{Target: "a", Reason: "cluster_block_exception", Since: time.UnixMilli(5), Bytes: 7}) {
		t.Errorf("held: %+v", got)
	}
	silent := running
	silent.silent, silent.silentReason = began.Add(2*time.Minute), "gone"
	if got := h.health(silent, began.Add(3*time.Minute)); got.Elasticsearch.Available || got.Elasticsearch.Reason != "gone" || !got.Since.Equal(silent.silent) {
		t.Errorf("silent: %+v", got)
	}
	back := began.Add(4 * time.Minute)
	if got := h.health(running, back); !got.Since.Equal(back) || !got.Elasticsearch.Available {
		t.Errorf("back: %+v, want since %v", got, back)
	}
}

// performer is a transport that answers with a status, or with an error for 0.
type performer int

func (p performer) Perform(*http.Request) (*http.Response, error) {
	if p == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: int(p), Status: http.StatusText(int(p))}, nil
}

func TestLink(t *testing.T) {
	l := newLink(nil)
	if since, _ := l.state(); since.IsZero() {
		t.Error("a cluster that was never reached counts as there")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, step := range []struct {
		ctx    context.Context
		status int
		silent bool
	}{
		{t.Context(), 200, false},
		{t.Context(), 0, true},
		{t.Context(), 503, true},
		{gone, 0, true},
		{t.Context(), 429, false}, // it is there, and says so
		{t.Context(), 401, false},
		{gone, 0, false}, // given up from this side
		{t.Context(), 502, true},
	} {
		before, _ := l.state()
		l.next = performer(step.status)
		req, err := http.NewRequestWithContext(step.ctx, http.MethodPost, "/_bulk", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := l.Perform(req)
		if err == nil && resp.Body != nil {
			resp.Body.Close()
		}
		since, _ := l.state()
		if since.IsZero() == step.silent {
			t.Errorf("%d: silent since %v, want silent %v", step.status, since, step.silent)
		}
		if !before.IsZero() && step.silent && !since.Equal(before) {
			t.Errorf("%d: silence began anew", step.status)
		}
	}
}

// hanging is a transport that answers nothing but what it is let to.
type hanging chan struct{}

func (h hanging) Perform(req *http.Request) (*http.Response, error) {
	select {
	case <-h:
		return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: http.NoBody}, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// A server that takes requests and never answers, as one whose process is frozen,
// ends no request: what is under way tells of it, then the sign of life that the
// indexer asks for.
func TestLinkToAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(hanging)
		l := newLink(answer)
		l.answers()
		pass := func(d time.Duration) {
			time.Sleep(d) //nolint:forbidigo // the bubble's clock
			synctest.Wait()
		}
		send := func(method, path string, patience time.Duration) {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, method, path, http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				if resp, err := l.Perform(req); err == nil {
					resp.Body.Close()
				}
			}()
			synctest.Wait()
		}
		look := func(when string, pace, silent time.Duration) {
			t.Helper()
			synctest.Wait()
			if got := l.pace(); got != pace {
				t.Errorf("%s: a bulk request takes %s, want %s", when, got, pace)
			}
			since, reason := l.state()
			switch {
			case since.IsZero() != (silent == 0):
				t.Errorf("%s: silent since %v (%s), want for %s", when, since, reason, silent)
			case silent > 0 && time.Since(since) != silent:
				t.Errorf("%s: silent for %s, want %s", when, time.Since(since), silent)
			}
		}

		send(http.MethodPost, "/_bulk", 20*time.Second)
		pass(7 * time.Second)
		look("under way", 7*time.Second, 0)
		l.answers() // to something else
		look("something was answered", 0, 0)
		pass(time.Second)
		look("and nothing since", time.Second, 0)
		close(answer)
		look("answered", 8*time.Second, 0)
		answer = make(hanging)
		l.next = answer
		send(http.MethodPost, "/_bulk", 20*time.Second)
		pass(21 * time.Second)
		look("given up, which may be the record's fault", 21*time.Second, 0)
		send(http.MethodGet, "/", 2*time.Second)
		pass(3 * time.Second)
		look("no sign of life", 24*time.Second, 3*time.Second)
		pass(tookValid)
		send(http.MethodGet, "/", 2*time.Second)
		answer <- struct{}{}
		look("back", 0, 0)

		send(http.MethodGet, "/", 5*time.Second)
		pass(time.Second)
		l.answers() // to something else
		pass(10 * time.Second)
		look("answered meanwhile", 0, 0)
	})
}

// The metric tells the state of the last look, and starting before the first.
func TestStateOfTheMetric(t *testing.T) {
	var h history
	if s := h.current(); s != admin.Starting {
		t.Errorf("before the first look: %q", s)
	}
	h.health(view{joined: true, stopping: true}, time.Now())
	if s := h.current(); s != admin.Stopping {
		t.Errorf("after a look: %q", s)
	}
}
