package main

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// a run that keeps 16 requests of a second in flight from the fourth second on,
// and what the trouble makes of it.
func farDiary(limit, afterwards int) []exchange {
	start := time.Unix(1000, 0)
	var diary []exchange
	add := func(second, n int, took time.Duration) {
		for i := range n {
			diary = append(diary, exchange{Began: start.Add(time.Duration(second) * time.Second), Took: took, InFlight: i + 1})
		}
	}
	for second := range 170 {
		switch {
		case second < 4:
			add(second, 1<<second, time.Second)
		case second < 100:
			add(second, limit, time.Second)
		case second < 130:
			if second%5 == 0 {
				add(second, limit, 5*time.Second)
			}
		default:
			add(second, afterwards, time.Second)
		}
	}
	return diary
}

func TestTheFarRunIsJudged(t *testing.T) {
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.02 {
			t.Errorf("%s: %.3f, want %.3f", what, got, want)
		}
	}
	good := judgeFar(farDiary(16, 16))
	near("round trip", good.RoundTrip, 1)
	near("round trips to 16", good.To16, 4)
	near("of the best", good.OfBest, 1)
	near("swing", good.Swing, 0)
	near("after", good.After, 1)

	slow := judgeFar(farDiary(12, 6))
	near("never 16", slow.To16, 0)
	near("of the best", slow.OfBest, 0.75)
	near("after", slow.After, 0.5)

	var out strings.Builder
	results := limiterResults{
		Far:      slow,
		Bare:     []rateResult{{Limit: 4, DocsPerS: 1}, {Limit: 0, DocsPerS: 90, Round: 1}, {Limit: 4, DocsPerS: 100, Round: 1}, {Limit: 1, DocsPerS: 50, Round: 1}},
		Refusing: []rateResult{{Limit: 0, Refused: 1}, {Limit: 0, DocsPerS: 96, Refused: 0.03, Round: 1}, {Limit: 4, DocsPerS: 100, Round: 1}},
	}
	if err := results.table(&out); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "MISSED"); got != 5 {
		t.Errorf("%d bars are missed, want all but the swing and the rate of the refusing node:\n%s", got, &out)
	}
}

func TestTheSimulationIsRead(t *testing.T) {
	servers, err := readSimulation([]byte(`=== RUN   TestLimiterSimulation/16_at_a_time
=== NAME  TestLimiterSimulation/16_at_a_time
    limiter_sim_test.go:422: 
                                rate of best refused        limit  swing  to 16
        the best fixed limit    16.1                      16
        sluice                  15.8   98.4%   0.50%   13  16  24   7.0%    4.0
        fixed 32                16.1  100.0%   0.00%   32  32  32   3.5%    0.0
=== CONT  TestLimiterSimulation/thrashes
        AIMD                    15.9   87.0%   0.00%   17  34  43   6.4%   42.8
--- PASS: TestLimiterSimulation (1.00s)
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(servers) != 2 || servers[0].Server != "16 at a time" || servers[0].OfBest["sluice"] != 98.4 || servers[0].Refused["sluice"] != 0.5 ||
		servers[0].OfBest["fixed 32"] != 100 || servers[1].OfBest["AIMD"] != 87 {
		t.Errorf("%+v", servers)
	}
	if _, err := readSimulation([]byte("ok\n")); err == nil {
		t.Error("no table, and no error")
	}
}

// inVirtualTime is a proxy before a server that answers at once.
func inVirtualTime(t *testing.T, slots int, answer string) *proxy {
	t.Helper()
	p, err := newProxy("http://node:9200", slots)
	if err != nil {
		t.Fatal(err)
	}
	p.forward.Transport = answers(answer)
	return p
}

type answers string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Accept-Encoding") != "" {
		return &http.Response{StatusCode: http.StatusNotAcceptable, Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(a)))}, nil
}

// Two slots and a second each: five requests take three.
func TestTheProxyQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := inVirtualTime(t, 2, `{"errors":false}`)
		p.setDelay(time.Second)
		start := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/bench/_bulk", strings.NewReader("{}"))
				r.Header.Set("Accept-Encoding", "gzip")
				p.ServeHTTP(httptest.NewRecorder(), r)
			})
		}
		all.Wait()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("took %v, want 3s", took)
		}
		most := 0
		for _, e := range p.read() {
			most = max(most, e.InFlight)
			if e.Refused {
				t.Error("a request was noted as refused")
			}
		}
		if n := len(p.read()); n != 5 || most != 5 {
			t.Errorf("%d requests noted, %d at once, want 5 and 5", n, most)
		}
	})
}

// An item that was refused is seen wherever the answer is cut in two.
func TestTheProxySeesRefusals(t *testing.T) {
	const answer = `{"errors":true,"items":[{"index":{"status":429}}]}`
	for cut := range len(answer) {
		w := &watched{ResponseWriter: httptest.NewRecorder()}
		for _, part := range []string{answer[:cut], answer[cut:]} {
			if _, err := w.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
		}
		if !w.refused {
			t.Errorf("not seen when cut at %d", cut)
		}
	}
	w := &watched{ResponseWriter: httptest.NewRecorder()}
	if w.WriteHeader(http.StatusTooManyRequests); !w.refused {
		t.Error("a refused request was not seen")
	}
}

func TestPeriodsOfACgroup(t *testing.T) {
	got, err := readPeriods("nr_periods 120\nnr_throttled 30\nthrottled_time 5\n")
	if want := (periods{120, 30}); err != nil || got != want {
		t.Errorf("%v, error %v, want %v", got, err, want)
	}
	if _, err := readPeriods("nr_periods x\n"); err == nil {
		t.Error("no error for what is no number")
	}
}
