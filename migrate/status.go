package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// Status is a job as people want to see it.
type Status struct {
	*Job
	Owner    string         `json:"owner,omitempty"` // who works on it
	Progress Progress       `json:"progress"`
	Seen     int64          `json:"seen"`
	Written  int64          `json:"written"`
	Newer    int64          `json:"superseded"`
	Failed   int64          `json:"failed"`
	Reached  int64          `json:"reached"` // of Backfill.Total
	Items    int            `json:"items_done"`
	Epoch    int64          `json:"epoch"`
	Mode     partition.Mode `json:"write"`
	Read     partition.Read `json:"read"`
	Dirty    int            `json:"dirty"`
	// DirtyCustomers are the first of them.
	DirtyCustomers []string `json:"dirty_customers,omitempty"`
	// Verifying is a verification that is under way; nil: none is known. Progress
	// is then its.
	Verifying *Verifying `json:"verifying,omitempty"`
	// ETA is how long the copy or the verification needs at its pace of now; 0: not
	// known.
	ETA  float64 `json:"eta_seconds,omitempty"`
	Next string  `json:"next"` // the command that leads on
	// Advice says what to do, also where that is nothing.
	Advice string `json:"advice"`
}

// Jobs lists the names of all jobs that are recorded.
func (m *Manager) Jobs(ctx context.Context) ([]string, error) { return m.store.jobs(ctx) }

// Status reads a job.
func (m *Manager) Status(ctx context.Context, name string) (*Status, error) {
	j, err := m.store.load(ctx, name)
	if err != nil {
		return nil, err
	}
	s := &Status{Job: j}
	var l leaseDoc
	switch _, _, err := m.Control.Get(ctx, leaseID(name), &l); {
	case err == nil:
		if s.Owner = l.Owner; s.Owner != "" {
			s.Progress = l.Progress
		}
	case !errors.Is(err, elastic.ErrNotFound):
		return nil, err
	}
	if j.State == Synced || j.State == Cutover {
		v := new(Verifying)
		switch _, _, err := m.Control.Get(ctx, verifyingID(name), v); {
		case err == nil && time.Since(v.At) < verifyingFor:
			s.Verifying, s.Progress = v, v.Progress
		case err != nil && !errors.Is(err, elastic.ErrNotFound):
			return nil, err
		}
	}
	items, err := m.store.items(ctx, j)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		s.Seen, s.Written, s.Newer, s.Failed = s.Seen+item.Seen, s.Written+item.Written, s.Newer+item.Superseded, s.Failed+item.Failed
		s.Reached += j.Backfill.reached(item)
		if item.Done {
			s.Items++
		}
	}
	switch table, err := m.Tables.Load(ctx, m.Stream); {
	case err == nil:
		s.Epoch, s.Mode, s.Read = table.Epoch, table.Write, table.Read
	case !errors.Is(err, partition.ErrNotFound):
		return nil, err
	}
	if m.Group != nil && (j.State == Dual && !j.Fence.Passed || j.State == Sweeping) {
		if s.Fence, err = m.Group.Fence(ctx, max(j.Fence.Epoch, s.Epoch)); err != nil {
			return nil, err
		}
	}
	if !j.Over() {
		dirty, err := m.Control.List(ctx, dirtyPrefix(name), false)
		if err != nil {
			return nil, err
		}
		slices.Sort(dirty)
		s.Dirty = len(dirty)
		for _, id := range dirty[:min(len(dirty), mostBad)] {
			s.DirtyCustomers = append(s.DirtyCustomers, strings.TrimPrefix(id, dirtyPrefix(name)))
		}
	}
	s.ETA, s.Next = s.left().Seconds(), s.command()
	s.Advice = s.advice()
	return s, nil
}

// Failures reads the documents that could not be copied.
func (m *Manager) Failures(ctx context.Context, name string) ([]Failure, error) {
	all, err := m.store.failures(ctx, name)
	failures := make([]Failure, 0, len(all))
	for _, f := range all {
		failures = append(failures, f)
	}
	return failures, err
}

// Events reads a job's audit log from a number on; the first is 1.
func (m *Manager) Events(ctx context.Context, name string, from int) ([]Event, error) {
	return m.store.events(ctx, name, from)
}

// Share is how much of the backfill is done, 0 to 1; it is 1 once nothing is left
// to copy, not before.
func (s *Status) Share() float64 {
	switch {
	case s.Backfill.Count == 0:
		return 0
	case s.State == Backfilling && s.Backfill.Total > 0:
		return min(0.999, float64(s.Reached)/float64(s.Backfill.Total))
	}
	return 1
}

// Line is the status in one line.
func (s *Status) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Name, s.State)
	if s.Backfill.Count > 0 {
		unit := "docs"
		if s.Backfill.Log != nil {
			unit = "offsets"
		}
		fmt.Fprintf(&b, " %.1f%% %s/%s %s", 100*s.Share(), amount(float64(s.Reached)), amount(float64(s.Backfill.Total)), unit)
	}
	if s.Failed > 0 {
		fmt.Fprintf(&b, " %d failed", s.Failed)
	}
	if s.State == Backfilling {
		s.pace(&b, s.Throttle.Concurrency)
	}
	switch {
	case s.Paused != "":
		fmt.Fprintf(&b, " paused: %s", s.Paused)
	case working(s.State) && s.Owner == "":
		fmt.Fprintf(&b, " nobody works on it (sluice migrate run --job %s)", s.Name)
	case s.Progress.Reason != "" && s.State == Backfilling:
		fmt.Fprintf(&b, " throttled: %s", s.Progress.Reason)
	}
	fmt.Fprintf(&b, " epoch %d", s.Epoch)
	switch {
	case s.Fence.Epoch == 0:
		b.WriteString(" fence -")
	case s.Fence.Passed:
		b.WriteString(" fence ok")
	case len(s.Fence.Laggards) == 0:
		b.WriteString(" fence not passed")
	default:
		fmt.Fprintf(&b, " fence waits for %s", laggards(s.Fence))
	}
	switch {
	case s.Verified == nil:
		b.WriteString(" verify -")
	case s.Verified.Stale != "":
		b.WriteString(" verify stale")
	case s.Verified.Clean():
		b.WriteString(" verify clean")
	default:
		b.WriteString(" verify differs")
	}
	if v := s.Verifying; v != nil {
		fmt.Fprintf(&b, " verifying %.1f%%", 100*v.share())
		if v.Doing != "" {
			fmt.Fprintf(&b, " (%s)", v.Doing)
		}
		s.pace(&b, s.Progress.Max)
		if s.Progress.Reason != "" {
			fmt.Fprintf(&b, " throttled: %s", s.Progress.Reason)
		}
	}
	if s.Read.AnyNew() {
		fmt.Fprintf(&b, " cut %.4g%%", float64(s.Read.Percent)/100)
		if len(s.Read.Allow) > 0 {
			fmt.Fprintf(&b, "+%d", len(s.Read.Allow))
		}
		if len(s.Read.Deny) > 0 {
			fmt.Fprintf(&b, "-%d", len(s.Read.Deny))
		}
	}
	if s.Dirty > 0 {
		fmt.Fprintf(&b, " %d customers dirty", s.Dirty)
	}
	return b.String()
}

// pace adds how fast the work is, how long it needs, and how far it may go and
// goes; dashes where it has not told yet.
func (s *Status) pace(b *strings.Builder, most int) {
	if s.Progress == (Progress{}) {
		fmt.Fprintf(b, " -/s conc -/%d", most)
		return
	}
	fmt.Fprintf(b, " %s/s", amount(s.Progress.Rate))
	if left := s.left(); left > 0 {
		fmt.Fprintf(b, " eta %s", eta(left))
	}
	if lag := s.Progress.Lag; lag != nil && s.Progress.Class != "lag" {
		fmt.Fprintf(b, " lag %s", lag)
	}
	fmt.Fprintf(b, " conc %d/%d", s.Progress.Concurrency, most)
}

// left is how long the work needs at its pace of now; 0: not known.
func (s *Status) left() time.Duration {
	switch left := s.Backfill.Total - s.Reached; {
	case s.Verifying != nil:
		return time.Duration(s.Verifying.ETA * float64(time.Second))
	case s.State == Backfilling && left > 0 && s.Progress.Rate > 0:
		return time.Duration(float64(left) / s.Progress.Rate * float64(time.Second))
	}
	return 0
}

// amount writes a number with three digits.
func amount(n float64) string {
	for _, unit := range []struct {
		size   float64
		suffix string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.3g%s", n/unit.size, unit.suffix)
		}
	}
	return fmt.Sprintf("%.0f", n)
}

func eta(d time.Duration) string {
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}
