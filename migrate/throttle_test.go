package migrate

import (
	"strings"
	"testing"
	"time"
)

func TestThrottleNext(t *testing.T) {
	limits := DefaultLimits()
	limits.Search = 100 * time.Millisecond
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(concurrency, bulk int) Throttle {
		return Throttle{Concurrency: concurrency, BulkBytes: bulk, raised: noon.Add(-time.Hour)}
	}
	full := limits.BulkBytes
	for _, c := range []struct {
		name    string
		from    Throttle
		signals Signals
		limits  func(*Limits)
		want    int
		bulk    int
		reason  string
	}{
		{name: "begins with a quarter", from: Throttle{}, want: 4, bulk: full},
		{name: "one up while all is good", from: at(4, full), want: 5, bulk: full},
		{name: "not above the limit", from: at(16, full), want: 16, bulk: full},
		{name: "not twice within ten seconds", from: Throttle{Concurrency: 4, BulkBytes: full, raised: noon.Add(-9 * time.Second)}, want: 4, bulk: full},
		{name: "bulk size first", from: at(4, full/2), want: 4, bulk: full},
		{name: "half at a rejection", from: at(9, full), signals: Signals{Rejected: 1}, want: 4, bulk: full, reason: "1 rejected"},
		{name: "then the bulk size", from: at(1, full), signals: Signals{Rejected: 3}, want: 0, bulk: full, reason: "3 rejected"},
		{name: "live lag", from: at(8, full), signals: Signals{Lag: &Lag{Records: 9, Over: true}}, want: 4, bulk: full, reason: "live lag 9 records > 5s"},
		{name: "live lag in seconds", from: at(8, full), signals: Signals{Lag: &Lag{Records: 812, Seconds: 9.13, Over: true}}, want: 4, bulk: full, reason: "live lag 9.1s > 5s (812 records)"},
		{name: "live lag within the limit", from: at(8, full), signals: Signals{Lag: &Lag{Records: 812, Seconds: 4.9}}, want: 9, bulk: full},
		{name: "slow bulks", from: at(8, full), signals: Signals{Bulks: 5, Bulk: 250 * time.Millisecond, Usual: 100 * time.Millisecond}, want: 4, bulk: full, reason: "bulks take 250ms, usually 100ms"},
		{name: "bulks as usual", from: at(8, full), signals: Signals{Bulks: 5, Bulk: 190 * time.Millisecond, Usual: 100 * time.Millisecond}, want: 9, bulk: full},
		{name: "slow searches", from: at(8, full), signals: Signals{Search: 200 * time.Millisecond}, want: 4, bulk: full, reason: "searches take 200ms > 100ms"},
		{name: "write queue", from: at(8, full), signals: Signals{Queue: 201}, want: 4, bulk: full, reason: "write queue 201 > 200"},
		{name: "indexing pressure", from: at(8, full), signals: Signals{Pressure: 0.9}, want: 4, bulk: full, reason: "indexing pressure 90%"},
		{name: "probe", from: at(8, full), signals: Signals{Probe: "answered 503"}, want: 4, bulk: full, reason: "probe: answered 503"},
		{name: "what cannot be asked is bad", from: at(8, full), signals: Signals{Unknown: "no answer"}, want: 4, bulk: full, reason: "no answer"},
		{name: "disk", from: at(8, full), signals: Signals{Disk: 86}, want: 0, bulk: full, reason: "disk 86% > 85%"},
		{name: "flood stage", from: at(8, full), signals: Signals{Flood: true}, want: 0, bulk: full, reason: "a disk is over its flood stage"},
		{name: "red", from: at(8, full), signals: Signals{Red: true}, want: 0, bulk: full, reason: "an index is red"},
		{name: "paused", from: at(8, full), signals: Signals{Paused: "by anna"}, want: 0, bulk: full, reason: "paused: by anna"},
		{name: "outside the window", from: at(8, full), limits: func(l *Limits) { l.Window = "22:00-05:30" }, want: 0, bulk: full, reason: "outside the window 22:00-05:30"},
		{name: "inside the window", from: at(8, full), limits: func(l *Limits) { l.Window = "11:00-12:30" }, want: 9, bulk: full},
		{name: "wakes with one", from: at(0, full), want: 1, bulk: full},
		{name: "a lower limit at once", from: at(8, full), limits: func(l *Limits) { l.Concurrency = 3 }, want: 3, bulk: full},
		{name: "floor 0", from: at(8, full), limits: func(l *Limits) { l.Concurrency = 0 }, want: 0, bulk: full, reason: "concurrency 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := limits
			if c.limits != nil {
				c.limits(&l)
			}
			if c.name == "then the bulk size" { // at one request, smaller ones; then none
				halved := c.from.Next(noon, c.signals, l)
				if halved.Concurrency != 1 || halved.BulkBytes != full/2 {
					t.Fatalf("%+v", halved)
				}
				least := Throttle{Concurrency: 1, BulkBytes: leastBulk}.Next(noon, c.signals, l)
				if least.Concurrency != 0 {
					t.Fatalf("%+v", least)
				}
				return
			}
			got := c.from.Next(noon, c.signals, l)
			if got.Concurrency != c.want || got.BulkBytes != c.bulk || got.Reason != c.reason {
				t.Errorf("concurrency %d, bulk %d, %q; want %d, %d, %q", got.Concurrency, got.BulkBytes, got.Reason, c.want, c.bulk, c.reason)
			}
		})
	}
}

// In a closed loop the controller settles around what the cluster takes, and
// comes back after it has stood still.
func TestThrottleClosedLoop(t *testing.T) {
	limits := DefaultLimits()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var throttle Throttle
	run := func(seconds, takes int) (mean float64) {
		total := 0
		for range seconds {
			now = now.Add(time.Second)
			throttle = throttle.Next(now, Signals{Rejected: max(0, throttle.Concurrency-takes)}, limits)
			total += throttle.Concurrency
		}
		return float64(total) / float64(seconds)
	}
	run(300, 100)
	if throttle.Concurrency != limits.Concurrency {
		t.Errorf("concurrency %d without any sign of trouble", throttle.Concurrency)
	}
	run(60, 6)
	if mean := run(600, 6); mean < 3 || mean > 7 {
		t.Errorf("a mean of %.1f where 6 are taken", mean)
	}
	for range 100 {
		now = now.Add(time.Second)
		throttle = throttle.Next(now, Signals{Red: true}, limits)
	}
	if throttle.Concurrency != 0 {
		t.Error("it goes on while an index is red")
	}
	run(300, 100)
	if throttle.Concurrency != limits.Concurrency {
		t.Errorf("concurrency %d after the trouble", throttle.Concurrency)
	}
}

func TestLimitsSet(t *testing.T) {
	l := DefaultLimits()
	for name, value := range map[string]string{
		"concurrency": "4", "bulk": "1048576", "lag": "10s", "slower": "3", "search": "200ms", "queue": "50", "disk": "70", "probe": "http://x", "window": "22:00-06:00",
	} {
		if err := l.Set(name, value); err != nil {
			t.Error(err)
		}
	}
	want := Limits{Concurrency: 4, BulkBytes: 1 << 20, Lag: 10 * time.Second, BulkSlower: 3, Search: 200 * time.Millisecond, Queue: 50, Disk: 70, Probe: "http://x", Window: "22:00-06:00"}
	if l != want {
		t.Errorf("%+v", l)
	}
	for name, value := range map[string]string{
		"concurrency": "-1", "bulk": "1", "lag": "0s", "slower": "1", "search": "x", "queue": "0", "disk": "100", "window": "22:00", "speed": "9",
	} {
		if err := l.Set(name, value); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	if l != want {
		t.Errorf("a refused value has changed something: %+v", l)
	}
}
