package migrate

import (
	"fmt"
	"strings"
	"time"
)

// meanings say what is true in a state, for people.
var meanings = map[State]string{
	Planned:     "its indices are being made",
	Created:     "the new indices stand; records go to the old one only",
	Dual:        "records go to both sides once the fence has passed, and then the copy begins",
	Backfilling: "what is older than the fence is being copied; records go to both sides",
	Draining:    "the copy is done; late copies are being shut out",
	Sweeping:    "deletes become real again; tombstones are being removed",
	Synced:      "both sides are written; all readers are on the old one",
	Cutover:     "both sides are written; some readers are on the new one",
	Completed:   "only the new side is written; the old index is blocked and kept",
	Dropped:     "the old index is gone",
	Cancelling:  "it is on the way back: repeat the verb",
	Detaching:   "the new side is being made anew: repeat the verb",
	Cancelled:   "it was given up",
}

// Details are the status in several lines: what the job does, what holds it back,
// whose readers are where, and what to type next.
func (s *Status) Details() []string {
	var lines []string
	add := func(name, format string, args ...any) {
		lines = append(lines, fmt.Sprintf("  %-9s %s", name+":", fmt.Sprintf(format, args...)))
	}
	add("now", "%s", meanings[s.State])
	if s.Backfill.Count > 0 {
		add("copy", "%d of %d items, %d documents seen: %d written, %d older than what was there, %d failed", s.Items, s.Backfill.Count, s.Seen, s.Written, s.Newer, s.Failed)
	}
	if s.Owner != "" && working(s.State) {
		add("worker", "%s", s.Owner)
	}
	if v := s.Verifying; v != nil {
		doing := "reads both sides"
		if v.Doing != "" {
			doing = v.Doing
		}
		add("verifying", "%s, as of %s: %s", v.Owner, v.At.Format(time.TimeOnly), doing)
	}
	if reason := s.Progress.Reason; reason != "" && s.Paused == "" {
		add("slow", "%s", reason)
	}
	if l := s.Throttle; working(s.State) || s.Verifying != nil {
		add("limits", "concurrency=%d bulk=%d lag=%s slower=%g search=%s queue=%d disk=%d probe=%s window=%s", l.Concurrency, l.BulkBytes, l.Lag, l.BulkSlower, l.Search, l.Queue, l.Disk, l.Probe, l.Window)
	}
	if s.Fence.Epoch > 0 && !s.Fence.Passed {
		add("fence", "epoch %d waits for %s", s.Fence.Epoch, laggards(s.Fence))
	}
	if r := s.Verified; r != nil {
		add("verified", "%s", r.Summary())
	}
	if s.Read.AnyNew() {
		text := fmt.Sprintf("%.4g %% of the customers are on the new side", float64(s.Read.Percent)/100)
		if len(s.Read.Allow) > 0 {
			text += ", and by name " + shorten(s.Read.Allow)
		}
		if len(s.Read.Deny) > 0 {
			text += "; held back are " + shorten(s.Read.Deny)
		}
		add("readers", "%s", text)
	}
	if s.Dirty > 0 {
		add("dirty", "one side has refused records of %s", shorten(s.DirtyCustomers))
	}
	add("next", "%s", s.Advice)
	return lines
}

// Summary is a report in one line.
func (r *Report) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s at %s", r.ID, r.Level, r.At.Format(time.RFC3339))
	if r.Only != "" {
		fmt.Fprintf(&b, " of %s", word(r.Only))
	}
	fmt.Fprintf(&b, ", %d documents on the old side, %d on the new: ", r.Old, r.New)
	if r.Clean() {
		b.WriteString("clean")
	} else {
		var parts []string
		for _, class := range append(classes(), "unsettled", foreignWrites) {
			if n := r.Differences()[class]; n > 0 {
				parts = append(parts, fmt.Sprintf("%s %d", class, n))
			}
		}
		b.WriteString(strings.Join(parts, ", "))
	}
	b.WriteString(r.accepted("; "))
	if r.Stale != "" {
		fmt.Fprintf(&b, "; stale: %s", r.Stale)
	}
	return b.String()
}

// accepted says what was accepted, by whom and why, after between; "": nothing.
func (r *Report) accepted(between string) string {
	var parts []string
	for _, class := range Acceptable() {
		if n := r.Accepted[class]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", class, n))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("%saccepted by %s: %s (%s)", between, r.AcceptedBy, strings.Join(parts, ", "), r.Why)
}

// repairs is the command that mends what a report has found, or accepts what the
// legacy index refuses whenever it is tried.
func (r *Report) repairs(job string) string {
	command := "sluice migrate verify --repair"
	for _, class := range Acceptable() {
		if r.Differences()[class] > 0 && r.Tried {
			command += " --accept " + class
		}
	}
	if strings.Contains(command, "--accept") {
		command += " --reason TEXT"
	}
	return command + " --job " + job
}

// command is what leads on.
func (s *Status) command() string {
	job := " --job " + s.Name
	switch v := s.Verified; {
	case s.Over(), s.State == Cancelling, s.State == Detaching, s.State == Planned, s.State == Created:
		return s.next()
	case strings.Contains(s.Paused, "--apply-mapping"):
		return "sluice migrate resume --apply-mapping" + job
	case s.Paused != "":
		return "sluice migrate resume" + job
	case working(s.State) && s.Owner == "":
		return "sluice migrate run" + job
	case working(s.State):
		return s.next()
	case s.Dirty > 0:
		return repairOf(s.DirtyCustomers[0], s.Name)
	case v == nil, v.Stale != "", time.Since(v.At) > VerifyAge:
		return "sluice migrate verify" + job
	case len(v.Classes) > 0 || len(v.Bad) > 0 && v.Unsettled == 0:
		return v.repairs(s.Name)
	case !v.Clean():
		return "sluice migrate verify" + job
	}
	return s.next()
}

// advice is what to type next, for people.
func (s *Status) advice() string {
	switch {
	case s.Paused != "" || s.Verifying == nil && (!working(s.State) || s.Owner == ""):
		return s.Next
	case s.State == Dual && len(s.Fence.Laggards) > 0:
		return "nothing, if the consumers that the fence waits for are up and well"
	case s.Failed > 0:
		return "nothing now; sluice migrate status --failed --job " + s.Name + " shows what could not be copied"
	case s.Progress.Class == "lag":
		return "nothing: it goes on once the consumers have caught up; or sluice migrate throttle --job " + s.Name + " --set lag=30s"
	case s.Progress.Reason != "" && s.Progress.Class != "trouble":
		return "nothing: it goes on by itself; sluice migrate throttle --job " + s.Name + " changes the limit"
	}
	return "nothing: it goes on by itself"
}
