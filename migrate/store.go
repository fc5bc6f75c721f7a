package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/elastic"
)

// ErrNoJob is a job that does not exist.
var ErrNoJob = errors.New("no such job (sluice migrate status lists them)")

// store keeps a job's control documents. Only Change alters a job.
type store struct{ control *elastic.Control }

func jobID(name string) string              { return "job:" + name }
func itemPrefix(job string) string          { return "item:" + job + ":" }
func itemID(job string, n int) string       { return itemPrefix(job) + strconv.Itoa(n) }
func leaseID(job string) string             { return "lease:" + job }
func eventID(job string, seq int) string    { return "event:" + job + ":" + strconv.Itoa(seq) }
func dirtyPrefix(job string) string         { return "dirty:" + job + ":" }
func dirtyID(job, customer string) string   { return dirtyPrefix(job) + customer }
func failedPrefix(job string) string        { return "failed:" + job + ":" }
func failedID(job, index, id string) string { return failedPrefix(job) + digest(index, id) }
func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// load reads a job in real time.
func (s store) load(ctx context.Context, name string) (*Job, error) {
	job, _, _, err := s.read(ctx, name)
	return job, err
}

func (s store) read(ctx context.Context, name string) (job *Job, seqNo, term int64, err error) {
	job = new(Job)
	seqNo, term, err = s.control.Get(ctx, jobID(name), job)
	if errors.Is(err, elastic.ErrNotFound) {
		return nil, 0, 0, fmt.Errorf("job %s: %w", name, ErrNoJob)
	}
	if err == nil && job.Schema > schema {
		err = fmt.Errorf("job %s has format %d, this program knows %d: update Sluice", name, job.Schema, schema)
	}
	return job, seqNo, term, err
}

// schema is the version of the control documents' layout.
const schema = 1

// errSame is returned by an edit that finds nothing to change.
var errSame = errors.New("nothing to change")

// change edits a job by compare-and-set, anew whenever somebody else was
// faster, and returns it as it stands then. The edit must look at the job's
// state itself, and have no effect of its own.
func (s store) change(ctx context.Context, name string, edit func(*Job) error) (*Job, error) {
	for {
		job, seqNo, term, err := s.read(ctx, name)
		if err != nil {
			return nil, err
		}
		switch err := edit(job); {
		case errors.Is(err, errSame):
			return job, nil
		case err != nil:
			return job, err
		}
		job.Modified = time.Now().UTC().Truncate(time.Millisecond)
		err = s.control.Update(ctx, jobID(name), job, seqNo, term)
		if err == nil {
			return job, nil
		}
		if !errors.Is(err, elastic.ErrConflict) {
			return nil, err
		}
	}
}

// MovedError is a job that is in another state than a step needs.
type MovedError struct {
	Job  string
	Have State
	Want []State
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("job %s is %s by now, not %v: somebody else has moved it: look with sluice migrate status --job %s", e.Job, e.Have, e.Want, e.Job)
}

// move changes a job's state, from one of these.
func (s store) move(ctx context.Context, name string, to State, edit func(*Job), from ...State) (*Job, error) {
	return s.change(ctx, name, func(j *Job) error {
		if !slices.Contains(from, j.State) {
			return &MovedError{name, j.State, from}
		}
		j.State = to
		if edit != nil {
			edit(j)
		}
		return nil
	})
}

// jobs lists the names of all jobs.
func (s store) jobs(ctx context.Context) ([]string, error) {
	ids, err := s.control.List(ctx, jobID(""), false)
	for i, id := range ids {
		ids[i] = strings.TrimPrefix(id, jobID(""))
	}
	return ids, err
}

// items reads the items of a job that have been begun, by their number.
func (s store) items(ctx context.Context, j *Job) (map[int]*Item, error) {
	const page = 500
	items := map[int]*Item{}
	for from := j.Backfill.First; from < j.Backfill.First+j.Backfill.Count; from += page {
		var ids []string
		for n := from; n < min(from+page, j.Backfill.First+j.Backfill.Count); n++ {
			ids = append(ids, itemID(j.Name, n))
		}
		docs, err := s.control.GetMany(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, doc := range docs {
			if doc == nil {
				continue
			}
			item := new(Item)
			if err := json.Unmarshal(doc, item); err != nil {
				return nil, fmt.Errorf("an item of job %s is damaged: %w", j.Name, err)
			}
			items[item.Number] = item
		}
	}
	return items, nil
}

// failures reads the documents that could not be copied.
func (s store) failures(ctx context.Context, job string) (map[string]Failure, error) {
	ids, err := s.control.List(ctx, failedPrefix(job), true)
	if err != nil {
		return nil, err
	}
	failures := map[string]Failure{}
	for page := range slices.Chunk(ids, 500) {
		docs, err := s.control.GetMany(ctx, page)
		if err != nil {
			return nil, err
		}
		for i, doc := range docs {
			if doc == nil {
				continue
			}
			var f Failure
			if err := json.Unmarshal(doc, &f); err != nil {
				return nil, fmt.Errorf("%s is damaged: %w", page[i], err)
			}
			failures[page[i]] = f
		}
	}
	return failures, nil
}

// dirty lists the customers that one side has refused something of.
func (s store) dirty(ctx context.Context, job string) ([]string, error) {
	ids, err := s.control.List(ctx, dirtyPrefix(job), true)
	for i, id := range ids {
		ids[i] = strings.TrimPrefix(id, dirtyPrefix(job))
	}
	return ids, err
}

// forget deletes the documents of a job whose ids have these beginnings, and
// what leads to a verification. What another process
// deletes or changes meanwhile is left to it.
func (s store) forget(ctx context.Context, job string, prefixes ...func(job string) string) error {
	ids, err := s.control.List(ctx, "", true)
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		return id != verifyID(job) && id != verifyingID(job) && !slices.ContainsFunc(prefixes, func(of func(string) string) bool { return strings.HasPrefix(id, of(job)) })
	})
	for page := range slices.Chunk(ids, 100) {
		docs, err := s.control.GetVersions(ctx, page)
		if err != nil {
			return err
		}
		for i, doc := range docs {
			if !doc.Found {
				continue
			}
			err := s.control.Delete(ctx, page[i], doc.SeqNo, doc.PrimaryTerm)
			if err != nil && !errors.Is(err, elastic.ErrConflict) && !errors.Is(err, elastic.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}

// record appends to a job's audit log.
func (s store) record(ctx context.Context, job string, e Event) error {
	last, err := s.lastEvent(ctx, job)
	if err != nil {
		return err
	}
	for {
		last++
		e.Seq = last
		err := s.control.Create(ctx, eventID(job, last), e)
		if !errors.Is(err, elastic.ErrConflict) {
			return err
		}
	}
}

// lastEvent finds the number of the last event: they have no gaps.
func (s store) lastEvent(ctx context.Context, job string) (int, error) {
	exists := func(seq int) (bool, error) {
		var e Event
		_, _, err := s.control.Get(ctx, eventID(job, seq), &e)
		if errors.Is(err, elastic.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	low, high := 0, 1 // low exists (or is 0), high may not
	for {
		ok, err := exists(high)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		low, high = high, 2*high
	}
	for high-low > 1 {
		middle := (low + high) / 2
		ok, err := exists(middle)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// events reads a job's audit log from a number on (the first is 1).
func (s store) events(ctx context.Context, job string, from int) ([]Event, error) {
	const page = 100
	var events []Event
	for ; ; from += page {
		ids := make([]string, page)
		for i := range ids {
			ids[i] = eventID(job, from+i)
		}
		docs, err := s.control.GetMany(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i, doc := range docs {
			if doc == nil {
				return events, nil
			}
			var e Event
			if err := json.Unmarshal(doc, &e); err != nil {
				return nil, fmt.Errorf("%s is damaged: %w", ids[i], err)
			}
			events = append(events, e)
		}
	}
}
