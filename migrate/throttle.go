package migrate

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits are the thresholds that a job keeps to, changeable while it runs. Each
// throttles by itself; none can be switched off but by its value.
type Limits struct {
	// Concurrency is the most pages on their way at once. 0: pause without end.
	Concurrency int `json:"concurrency"`
	// BulkBytes is the largest bulk request.
	BulkBytes int `json:"bulk_bytes"`
	// Lag is the most that the live consumers may be behind.
	Lag time.Duration `json:"lag"`
	// BulkSlower is how many times the usual time a bulk may take.
	BulkSlower float64 `json:"bulk_slower"`
	// Search is the slowest search on the source at the 95th percentile; 0: any.
	Search time.Duration `json:"search"`
	// Queue is how many writes may wait on a data node.
	Queue int `json:"queue"`
	// Disk is the most of a data node's disk that may be used, in percent.
	Disk int `json:"disk"`
	// Probe is a URL that must answer 2xx; "": none.
	Probe string `json:"probe,omitempty"`
	// Window is the time of day, in UTC, in which the job may work, such as
	// 22:00-05:30; "": always.
	Window string `json:"window,omitempty"`
}

// DefaultLimits are those of a new job.
func DefaultLimits() Limits {
	return Limits{Concurrency: 16, BulkBytes: 5 << 20, Lag: 5 * time.Second, BulkSlower: 2, Queue: 200, Disk: 85}
}

// Set changes one limit by its name, as throttle --set does.
func (l *Limits) Set(name, value string) error {
	var err error
	switch name {
	case "concurrency":
		err = number(value, 0, 256, &l.Concurrency)
	case "bulk":
		err = number(value, 64<<10, 64<<20, &l.BulkBytes)
	case "lag":
		err = positive(value, &l.Lag)
	case "slower":
		var factor float64
		if factor, err = strconv.ParseFloat(value, 64); err == nil && factor < 1.1 {
			err = fmt.Errorf("%s is not 1.1 or more", value)
		}
		if err == nil {
			l.BulkSlower = factor
		}
	case "search":
		if value == "0" {
			l.Search = 0
		} else {
			err = positive(value, &l.Search)
		}
	case "queue":
		err = number(value, 1, 1_000_000, &l.Queue)
	case "disk":
		err = number(value, 1, 99, &l.Disk)
	case "probe":
		l.Probe = value
	case "window":
		if value != "" {
			_, _, err = parseWindow(value)
		}
		if err == nil {
			l.Window = value
		}
	default:
		return fmt.Errorf("%q is no limit: use concurrency, bulk (bytes), lag, slower, search, queue, disk (percent), probe (URL) or window (HH:MM-HH:MM)", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func number(text string, least, most int, into *int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is no number from %d to %d", text, least, most)
	}
	*into = n
	return nil
}

func positive(text string, into *time.Duration) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is no duration such as 5s", text)
	}
	*into = d
	return nil
}

// parseWindow returns the minutes of the day at which a window begins and ends.
func parseWindow(text string) (begin, end int, err error) {
	first, last, ok := strings.Cut(text, "-")
	from, err1 := time.Parse("15:04", first)
	to, err2 := time.Parse("15:04", last)
	if !ok || err1 != nil || err2 != nil || from.Equal(to) {
		return 0, 0, fmt.Errorf("%q is no window such as 22:00-05:30", text)
	}
	return from.Hour()*60 + from.Minute(), to.Hour()*60 + to.Minute(), nil
}

// open says whether a moment lies in the window.
func (l *Limits) open(now time.Time) bool {
	begin, end, err := parseWindow(l.Window)
	if l.Window == "" || err != nil {
		return true
	}
	minute := now.UTC().Hour()*60 + now.UTC().Minute()
	if begin < end {
		return minute >= begin && minute < end
	}
	return minute >= begin || minute < end
}

// Signals are what was seen since the last look. What is not known is zero.
type Signals struct {
	Bulks    int           // answered
	Rejected int           // requests and items that the server had no room for
	Bulk     time.Duration // their time at the 95th percentile
	Usual    time.Duration // the moving baseline of it
	Lag      *Lag          // of the live consumers, beside Limits.Lag; nil: not known
	Search   time.Duration // at the 95th percentile
	Queue    int           // the longest write queue of a node
	Pressure float64       // the highest indexing pressure of a node, of its limit
	Disk     float64       // the fullest disk of a data node, in percent
	Flood    bool          // a disk is over the flood stage, or an index is blocked by it
	Red      bool          // source or targets are red
	Unknown  string        // what could not be asked, and why: treated as bad
	Probe    string        // why the probe is bad; "": it is not
	Paused   string        // why an operator or the job itself has paused it
}

// Throttle is the controller's state: additive increase, multiplicative
// decrease, of the concurrency and then of the bulk size.
type Throttle struct {
	Concurrency int
	BulkBytes   int
	// Reason says what held it back at the last look, and Class is its kind, one
	// of a few words; "": nothing.
	Reason, Class string
	raised        time.Time
}

const (
	// raiseEvery is how long all signals must be good for one step up.
	raiseEvery = 10 * time.Second
	leastBulk  = 256 << 10
)

// Next returns the state after a look at the signals. It is pure.
func (t Throttle) Next(now time.Time, s Signals, l Limits) Throttle {
	if t.BulkBytes == 0 { // the first look: begin with a quarter
		t.Concurrency, t.BulkBytes, t.raised = (l.Concurrency+3)/4, l.BulkBytes, now
	}
	class, why, stop := s.verdict(now, l)
	t.Class = class
	switch {
	case stop:
		// Hibernate, and look again: nothing is given up by one spike.
		t.Concurrency, t.Reason, t.raised = 0, why, now
	case why != "":
		if t.Concurrency > 1 || t.BulkBytes <= leastBulk {
			t.Concurrency /= 2
		} else {
			t.BulkBytes = max(leastBulk, t.BulkBytes/2)
		}
		t.Reason, t.raised = why, now
	default:
		t.Reason = ""
		if t.Concurrency == 0 {
			t.Concurrency, t.raised = 1, now
		} else if now.Sub(t.raised) >= raiseEvery {
			if t.BulkBytes < l.BulkBytes {
				t.BulkBytes = min(l.BulkBytes, 2*t.BulkBytes)
			} else {
				t.Concurrency++
			}
			t.raised = now
		}
	}
	t.Concurrency = min(t.Concurrency, l.Concurrency)
	t.BulkBytes = min(t.BulkBytes, l.BulkBytes)
	if l.Concurrency == 0 && t.Reason == "" {
		t.Reason, t.Class = "concurrency 0", "concurrency"
	}
	return t
}

// verdict says why work must go slower, or stop; class is the reason's kind.
func (s *Signals) verdict(now time.Time, l Limits) (class, why string, stop bool) {
	switch {
	case s.Paused != "":
		return "paused", "paused: " + s.Paused, true
	case !l.open(now):
		return "window", "outside the window " + l.Window, true
	case s.Red:
		return "red", "an index is red", true
	case s.Flood:
		return "disk", "a disk is over its flood stage", true
	case s.Disk > float64(l.Disk):
		return "disk", fmt.Sprintf("disk %.0f%% > %d%%", s.Disk, l.Disk), true
	case s.Unknown != "":
		return "unknown", s.Unknown, false
	case s.Lag != nil && s.Lag.Over:
		return "lag", "live lag " + s.Lag.over(l.Lag), false
	case s.Rejected > 0:
		return "rejected", fmt.Sprintf("%d rejected", s.Rejected), false
	case s.Bulks > 0 && s.Usual > 0 && float64(s.Bulk) > l.BulkSlower*float64(s.Usual):
		return "bulk", fmt.Sprintf("bulks take %s, usually %s", s.Bulk.Round(time.Millisecond), s.Usual.Round(time.Millisecond)), false
	case l.Search > 0 && s.Search > l.Search:
		return "search", fmt.Sprintf("searches take %s > %s", s.Search.Round(time.Millisecond), l.Search), false
	case s.Queue > l.Queue:
		return "queue", fmt.Sprintf("write queue %d > %d", s.Queue, l.Queue), false
	case s.Pressure > 0.8:
		return "pressure", fmt.Sprintf("indexing pressure %.0f%%", 100*s.Pressure), false
	case s.Probe != "":
		return "probe", "probe: " + s.Probe, false
	}
	return "", "", false
}
