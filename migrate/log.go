package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// From is where a job's copy comes from.
type From string

// What can be copied from.
const (
	FromIndex From = "index" // the legacy index
	FromKafka From = "kafka" // the topics, read again from their beginning
)

// Log is the topics as a job reads them again in place of the legacy index.
type Log interface {
	// Parts says what there is to read below ends, the offsets from which on
	// records go to both sides; refusals are why that does not stand for the legacy
	// index. It asks the brokers anew each time.
	Parts(ctx context.Context, ends Offsets) ([]LogPart, []Refusal, error)
	// Open reads a part's records from an offset on, up to, not including, end,
	// by the routing table. The caller closes what it returns.
	Open(ctx context.Context, part LogPart, table *partition.Table, from, end int64) (LogReader, error)
}

// LogPart is a source partition as a copy reads it.
type LogPart struct {
	Topic     string `json:"topic"`
	TopicID   string `json:"topic_id"` // a topic that is made anew has another
	Partition int32  `json:"partition"`
	End       int64  `json:"end"` // not included
	// Deletes is how long a compacted topic keeps deletes (delete.retention.ms);
	// 0: it is not compacted.
	Deletes time.Duration `json:"deletes,omitempty"`
}

// LogReader reads a part of a log, in order.
type LogReader interface {
	// Next waits for what comes next. An error that no repetition helps against
	// is a *LostError; after any error the reader is to be closed, and another one
	// may begin where the last page ended.
	Next(ctx context.Context) (LogPage, error)
	Close()
}

// LogPage is what stands in a log from where the page before ended.
type LogPage struct {
	// Writes are the new side's, as the consumers make them from the records:
	// Target is the index partition, a deletion is a tombstone document, and the
	// version is the same. The memory is the caller's.
	Writes []LogWrite
	// Ignored counts records of which the consumers write nothing to the new side.
	Ignored int
	// Next is the offset behind the page.
	Next int64
}

// LogWrite is the write that a record becomes.
type LogWrite struct {
	bulk.Action
	Offset int64
}

// LostError says that records that are still needed are gone from a log.
type LostError struct {
	Topic     string
	Partition int32
	Why       string
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s/%d: %s: begin anew, from the index: sluice migrate detach, then sluice migrate run --source index", e.Topic, e.Partition, e.Why)
}

// Source says where the copy of a job comes from, before it has begun.
func (m *Manager) Source(ctx context.Context, r Request, from From) (Result, error) {
	return m.do(ctx, r, "source", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if j.from() == from {
			s.does("nothing: it copies from the %s already", from)
			s.act = func(context.Context) error { return nil }
			return s, nil
		}
		if j.State != Created && j.State != Dual {
			s.refuse("sluice migrate detach --job "+j.Name+" begins anew", "job %s is %s and copies from the %s", j.Name, j.State, j.from())
			return s, nil
		}
		if from == FromKafka {
			ends, err := m.Group.Ends(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := m.checkLog(ctx, s, j, ends); err != nil {
				return nil, err
			}
		}
		s.does("copy from the %s", from)
		s.act = func(ctx context.Context) error {
			_, err := m.store.change(ctx, j.Name, func(j *Job) error {
				if j.State != Created && j.State != Dual {
					return &MovedError{j.Name, j.State, []State{Created, Dual}}
				}
				j.From = from
				return nil
			})
			return err
		}
		return s, nil
	})
}

func (j *Job) from() From {
	if j.From == "" {
		return FromIndex
	}
	return j.From
}

// checkLog refuses a log that does not hold what the legacy index holds, and
// else returns its parts.
func (m *Manager) checkLog(ctx context.Context, s *step, j *Job, ends Offsets) ([]LogPart, error) {
	remedy := "copy from the index: sluice migrate run --source index --job " + j.Name
	if m.Records == nil || m.Versions.Ours == nil {
		s.refuse(remedy, "the versions of the documents do not say which record each was made from")
		return nil, nil
	}
	parts, refusals, err := m.Records.Parts(ctx, ends)
	if err != nil {
		return nil, err
	}
	for _, r := range refusals {
		if r.Remedy == "" {
			r.Remedy = remedy
		}
		s.refusals = append(s.refusals, r)
	}
	id, err := m.stranger(ctx, j)
	if err != nil {
		return nil, err
	}
	if id != "" {
		s.refuse(remedy, "%s holds documents that no record of the consumers has written, such as %q", j.Source, id)
	}
	return parts, nil
}

// stranger looks for a document of the legacy index that was not written by the
// consumers, among those that were written first: what was there before them is
// there, unless it was written again.
func (m *Manager) stranger(ctx context.Context, j *Job) (id string, err error) {
	info, err := m.Cluster.Info(ctx)
	if err != nil {
		return "", err
	}
	stats, err := m.Cluster.IndexStats(ctx, j.Source)
	if err != nil {
		return "", err
	}
	scan := newScanner(m.Cluster, info.Flavour, j.Source, false, alive())
	for shard, end := range stats.MaxSeqNo {
		for cursor, seen := int64(-1), 0; cursor < end && seen < 1000; {
			hits, next, err := scan.page(ctx, shard, cursor, end)
			if err != nil {
				return "", err
			}
			for _, hit := range hits {
				if !m.Versions.Ours(hit.Version) {
					return hit.ID, nil
				}
			}
			cursor, seen = next, seen+len(hits)
		}
	}
	return "", nil
}

// beginLog notes what there is to read of the log below the fence.
func (r *runner) beginLog(ctx context.Context, j *Job, fence Fence, b *Backfill) error {
	s := &step{}
	parts, err := r.m.checkLog(ctx, s, j, fence.Offsets)
	if err != nil {
		return err
	}
	if len(s.refusals) > 0 {
		return &RefusedError{Verb: "backfill", Refusals: s.refusals}
	}
	b.Log, b.Total, b.Began = parts, 0, time.Now().UTC().Truncate(time.Millisecond)
	for _, part := range parts {
		b.Total += part.End
	}
	return nil
}

// tail is an item's place in the log: it is opened where the cursor stands, and
// anew after each error.
type tail struct{ reader LogReader }

func (t *tail) drop() {
	if t.reader != nil {
		t.reader.Close()
		t.reader = nil
	}
}

// logPage copies one page of an item of the log and returns the item after it.
func (c *copyRun) logPage(ctx context.Context, item Item, t *tail) (_ Item, err error) {
	defer func() {
		if err != nil {
			t.drop()
		}
	}()
	part := c.job.Backfill.Log[item.Shard]
	if t.reader == nil {
		if t.reader, err = c.m.Records.Open(ctx, part, c.table, item.Cursor+1, item.To+1); err != nil {
			return item, err
		}
	}
	page, err := t.reader.Next(ctx)
	if err != nil {
		return item, err
	}
	actions := make([]bulk.Action, 0, len(page.Writes))
	var at []int
	ends := make([]outcome, len(page.Writes))
	for i := range page.Writes {
		a := page.Writes[i].Action
		if a.Target = c.aliases[a.Target]; a.Target == "" {
			ends[i] = outcome{ending: failed, kind: "no_partition"}
			continue
		}
		a.RequireAlias = true
		actions, at = append(actions, a), append(at, i)
	}
	results, err := c.send(ctx, actions)
	if err != nil {
		return item, err
	}
	for i, end := range results {
		ends[at[i]] = end
	}
	for i, end := range ends {
		if item.count(end) {
			continue
		}
		w := &page.Writes[i]
		// By its record: one of the same id may be refused too, and has another place.
		id := failedID(c.job.Name, fmt.Sprintf("%s/%d", part.Topic, part.Partition), fmt.Sprint(w.Offset))
		if err := c.fail(ctx, id, Failure{
			ID: string(w.ID), Routing: string(w.Routing), Target: w.Target, Version: w.Version, Status: end.status, Type: end.kind, Shard: item.Shard, SeqNo: w.Offset,
		}); err != nil {
			return item, err
		}
	}
	item.Ignored += int64(page.Ignored)
	item.Seen += int64(len(page.Writes) + page.Ignored)
	item.Cursor = page.Next - 1
	item.Done = item.Cursor >= item.To
	return item, nil
}

// readInTime refuses to call a compacted log read where deletes may have gone
// from it between the first record that was read and the last: what they deleted
// was copied, and nothing takes it away again.
func (b *Backfill) readInTime(now time.Time) error {
	for _, part := range b.Log {
		if took := now.Sub(b.Began); part.Deletes > 0 && took >= part.Deletes {
			return &LostError{part.Topic, part.Partition, fmt.Sprintf(
				"reading it has taken %s, and the topic keeps deletes for %s only (delete.retention.ms), so that some may have been missed", took.Round(time.Second), part.Deletes)}
		}
	}
	return nil
}

// solveRecord says whether a record that the new side has refused is missed
// there: what the legacy index holds of its document now is what counts.
func (c *copyRun) solveRecord(ctx context.Context, f *Failure) (bool, error) {
	if f.Target == "" || c.aliases[f.Target] == "" {
		return false, nil
	}
	docs, err := c.m.Cluster.GetMany(ctx, []elastic.DocID{
		{Index: c.job.Source, ID: f.ID, Routing: f.Routing}, {Index: f.Target, ID: f.ID, Routing: f.Routing},
	})
	if err != nil {
		return false, err
	}
	old, renewed := docs[0], docs[1]
	switch {
	case renewed.Found && (renewed.Version > f.Version || old.Found && renewed.Version >= old.Version):
		return true, nil // it was written again, or the legacy index has not taken the record either
	case !old.Found:
		return !renewed.Found || tombstoneSource(renewed.Source), nil
	}
	ends, err := c.copyHits(ctx, []elastic.Hit{{Index: c.job.Source, ID: f.ID, Routing: f.Routing, Version: old.Version, SeqNo: old.SeqNo, Source: old.Source}})
	if err != nil {
		return false, err
	}
	f.Status, f.Type = ends[0].status, ends[0].kind
	return ends[0].ending != failed, nil
}

// lost says whether an error is one of records that are gone.
func lost(err error) bool {
	var l *LostError
	return errors.As(err, &l)
}
