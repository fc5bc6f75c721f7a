// Package proof checks, from outside, that an index is the fold of a log:
// per key the newest record that is not dead-lettered is what the index
// holds, byte for byte, and keys whose newest record is a null are absent.
//
// It reads the topic, the dead letters and the index with clients of its own
// and shares no code with the program that moved the records, so that it
// cannot repeat that program's mistakes. It assumes that nothing writes to
// either side while it looks, that ids are the record keys, that a key stays
// in one partition, and that the topic still holds its first record.
package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Where names both sides.
type Where struct {
	Kafka       []kgo.Opt // how to reach the brokers
	Topic       string
	DeadLetters string // topic; "" where there is none

	Elasticsearch string // base URL; may carry user:password@
	HTTP          *http.Client
	Index         string // or several, with commas; see Place
	// Place says in which of several indices a key's document must be; nil: there
	// is one.
	Place func(key string) string

	// Bad says whether a value must have been refused; nil trusts the dead
	// letters. With it, every bad record must be among the dead letters, and
	// nothing else may.
	Bad func(value []byte) bool
}

// Report counts what was looked at and what was wrong. All counts of faults
// must be 0.
type Report struct {
	Records      int64 // in the topic
	Keys         int   // distinct keys
	Live         int   // keys that the index must hold
	Deleted      int   // keys that it must not hold any more
	DeadLettered int   // records among the dead letters

	Lost        int // live keys that the index does not hold
	Stale       int // keys whose document is an older record's
	Resurrected int // deleted keys that the index holds
	Phantom     int // documents that no record accounts for
	Altered     int // documents that are no record's bytes
	Unjust      int // good records among the dead letters, or letters that differ from their record
	Missing     int // bad records without a dead letter

	Samples []string // at most 10 faults, for a person to start from: no document content
}

// Faults is the sum of all faults.
func (r *Report) Faults() int {
	return r.Lost + r.Stale + r.Resurrected + r.Phantom + r.Altered + r.Unjust + r.Missing
}

func (r *Report) fault(count *int, format string, args ...any) {
	*count++
	if len(r.Samples) < 10 {
		r.Samples = append(r.Samples, fmt.Sprintf(format, args...))
	}
}

// position names a record of the topic.
type position struct {
	partition int32
	offset    int64
}

// letter is what a dead letter says the record was.
type letter struct {
	key, value []byte
	why        string // status and error type, as the letter gives them
	seen       bool   // its record was found
}

// entry is what the log says about one key.
type entry struct {
	at      position
	value   []byte // of the newest record that counts; nil: deleted
	counts  bool   // some record of the key was not rejected
	earlier []uint64
}

// Check reads both sides and compares them. An error says that they could not
// be read; faults are in the report.
func Check(ctx context.Context, w Where) (*Report, error) {
	report := &Report{}
	letters, err := readLetters(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	report.DeadLettered = len(letters)

	seed := maphash.MakeSeed()
	keys := map[string]*entry{}
	err = read(ctx, w.Kafka, w.Topic, func(r *kgo.Record) {
		report.Records++
		key := string(r.Key)
		e := keys[key]
		if e == nil {
			e = &entry{}
			keys[key] = e
		}
		at := position{r.Partition, r.Offset}
		bad := w.Bad != nil && r.Value != nil && w.Bad(r.Value)
		if l := letters[at]; l != nil {
			l.seen = true
			switch {
			case !bytes.Equal(l.key, r.Key) || !bytes.Equal(l.value, r.Value) || (l.value == nil) != (r.Value == nil):
				report.fault(&report.Unjust, "dead letter of %s/%d/%d differs from its record", w.Topic, at.partition, at.offset)
			case w.Bad != nil && !bad:
				report.fault(&report.Unjust, "%s/%d/%d is a good record, and among the dead letters (%s)", w.Topic, at.partition, at.offset, l.why)
			}
			return
		}
		if bad {
			report.fault(&report.Missing, "%s/%d/%d is a bad record without a dead letter", w.Topic, at.partition, at.offset)
			return
		}
		if e.counts && e.value != nil {
			e.earlier = append(e.earlier, maphash.Bytes(seed, e.value))
		}
		// A clone, since a record's value holds its whole batch in memory.
		e.at, e.value, e.counts = at, bytes.Clone(r.Value), true
	})
	if err != nil {
		return nil, fmt.Errorf("topic: %w", err)
	}
	for at, l := range letters {
		if !l.seen {
			report.fault(&report.Unjust, "a dead letter names %s/%d/%d, where there is no record", w.Topic, at.partition, at.offset)
		}
	}
	report.Keys = len(keys)
	return report, compare(ctx, w, report, keys, seed)
}

// compare looks every key up in the index, and then for documents that no key
// accounts for.
func compare(ctx context.Context, w Where, report *Report, keys map[string]*entry, seed maphash.Seed) error {
	found := 0
	look := func(ids []string) error {
		documents, err := w.mget(ctx, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			e, source := keys[id], documents[i]
			if source != nil {
				found++
			}
			switch at := e.at; {
			case source == nil && e.value != nil:
				report.fault(&report.Lost, "lost: %q, written by %s/%d/%d", id, w.Topic, at.partition, at.offset)
			case source == nil:
			case !e.counts:
				report.fault(&report.Phantom, "phantom: %q, all of whose records were rejected", id)
			case e.value == nil:
				report.fault(&report.Resurrected, "resurrected: %q, deleted by %s/%d/%d", id, w.Topic, at.partition, at.offset)
			case bytes.Equal(source, e.value):
			case contains(e.earlier, maphash.Bytes(seed, source)):
				report.fault(&report.Stale, "stale: %q is older than %s/%d/%d", id, w.Topic, at.partition, at.offset)
			default:
				report.fault(&report.Altered, "altered: %q differs from %s/%d/%d", id, w.Topic, at.partition, at.offset)
			}
		}
		return nil
	}
	batch := make([]string, 0, mgetSize)
	for id, e := range keys {
		switch {
		case e.value != nil:
			report.Live++
		case e.counts:
			report.Deleted++
		}
		if batch = append(batch, id); len(batch) == cap(batch) {
			if err := look(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	if err := look(batch); err != nil {
		return err
	}
	count, err := w.count(ctx)
	if err != nil {
		return err
	}
	// Gets are real-time, counts see what is searchable: after a refresh they
	// must agree.
	for range count - found {
		report.fault(&report.Phantom, "phantom: a document whose id is no record's key")
	}
	for range found - count {
		report.fault(&report.Lost, "lost: a document that can be read by its id, but not be found")
	}
	return nil
}

func contains(hashes []uint64, hash uint64) bool {
	for _, h := range hashes {
		if h == hash {
			return true
		}
	}
	return false
}

// readLetters reads the dead letters by the position they name. A letter that
// was written twice, as a redelivery may do, counts once.
func readLetters(ctx context.Context, w Where) (map[position]*letter, error) {
	letters := map[position]*letter{}
	if w.DeadLetters == "" {
		return letters, nil
	}
	var bad error
	err := read(ctx, w.Kafka, w.DeadLetters, func(r *kgo.Record) {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		partition, err1 := strconv.ParseInt(headers["sluice.partition"], 10, 32)
		offset, err2 := strconv.ParseInt(headers["sluice.offset"], 10, 64)
		if err := errors.Join(err1, err2); err != nil || headers["sluice.topic"] != w.Topic {
			bad = errors.Join(bad, fmt.Errorf("%s/%d/%d does not name a record of %s: %w", r.Topic, r.Partition, r.Offset, w.Topic, errors.Join(err1, err2)))
			return
		}
		letters[position{int32(partition), offset}] = &letter{
			key: bytes.Clone(r.Key), value: bytes.Clone(r.Value),
			why: headers["sluice.status"] + " " + headers["sluice.type"] + ", attempt " + headers["sluice.attempts"],
		}
	})
	return letters, errors.Join(err, bad)
}

// read hands each record of topic to visit, from the first to those that were
// last when it began, each partition in its order.
func read(ctx context.Context, opts []kgo.Opt, topic string, visit func(*kgo.Record)) error {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("first offsets of %s: %w", topic, err)
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("last offsets of %s: %w", topic, err)
	}
	open := map[int32]int64{} // where each partition that is not read to its end, ends
	from := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, end.Partition)
		if start.Offset < end.Offset {
			open[end.Partition] = end.Offset
			from[end.Partition] = kgo.NewOffset().At(start.Offset)
		}
	})
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	for len(open) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("reading %s, with %d partitions unfinished: %w", topic, len(open), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, ok := open[r.Partition]
			if !ok {
				return
			}
			visit(r)
			if r.Offset+1 >= end {
				delete(open, r.Partition)
			}
		})
	}
	return nil
}

// mgetSize is how many documents are asked for at once.
const mgetSize = 500

// mget returns the sources of ids in their order, nil for those that are
// absent. It reads in real time: a refresh is not needed.
func (w Where) mget(ctx context.Context, ids []string) ([]json.RawMessage, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var answer struct {
		Docs []struct {
			ID     string          `json:"_id"`
			Found  bool            `json:"found"`
			Error  json.RawMessage `json:"error"`
			Source json.RawMessage `json:"_source"`
		} `json:"docs"`
	}
	wanted := map[string]any{"ids": ids}
	if w.Place != nil {
		docs := make([]map[string]string, len(ids))
		for i, id := range ids {
			docs[i] = map[string]string{"_index": w.Place(id), "_id": id}
		}
		wanted = map[string]any{"docs": docs}
	}
	if err := w.call(ctx, http.MethodPost, "/_mget", wanted, &answer); err != nil {
		return nil, err
	}
	if len(answer.Docs) != len(ids) {
		return nil, fmt.Errorf("_mget of %d ids answered with %d documents", len(ids), len(answer.Docs))
	}
	sources := make([]json.RawMessage, len(ids))
	for i, doc := range answer.Docs {
		switch {
		case doc.ID != ids[i] || doc.Error != nil:
			return nil, fmt.Errorf("_mget of %q answered for %q, error %.200s", ids[i], doc.ID, doc.Error)
		case doc.Found && doc.Source == nil:
			return nil, fmt.Errorf("_mget of %q answered without a source", ids[i])
		case doc.Found:
			sources[i] = doc.Source
		}
	}
	return sources, nil
}

// count makes all documents searchable and counts them.
func (w Where) count(ctx context.Context) (int, error) {
	if err := w.call(ctx, http.MethodPost, "/_refresh", nil, &struct{}{}); err != nil {
		return 0, err
	}
	var answer struct {
		Count  *int `json:"count"`
		Shards struct {
			Failed int `json:"failed"`
		} `json:"_shards"`
	}
	if err := w.call(ctx, http.MethodGet, "/_count", nil, &answer); err != nil {
		return 0, err
	}
	if answer.Count == nil || answer.Shards.Failed > 0 {
		return 0, errors.New("_count answered without all of its shards")
	}
	return *answer.Count, nil
}

// attempts is how often a call is tried that draws no proper answer: the
// cluster may still be busy with what it was just sent.
const attempts = 5

func (w Where) call(ctx context.Context, method, path string, body, answer any) error {
	var encoded []byte
	if body != nil {
		var err error
		if encoded, err = json.Marshal(body); err != nil {
			return err
		}
	}
	var err error
	for try := range attempts {
		if try > 0 {
			select {
			case <-time.After(time.Duration(try) * 200 * time.Millisecond):
			case <-ctx.Done():
				return errors.Join(err, context.Cause(ctx))
			}
		}
		if err = w.once(ctx, method, path, encoded, answer); err == nil {
			return nil
		}
	}
	return err
}

func (w Where) once(ctx context.Context, method, path string, body []byte, answer any) error {
	where := w.Elasticsearch + "/" + url.PathEscape(w.Index) + path
	req, err := http.NewRequestWithContext(ctx, method, where, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", method, path, err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s: status %d", method, path, resp.StatusCode)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
