package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/sluicehq/sluice/elastic"
)

const (
	pageBytes = 8 << 20 // what a page should hold
	mostHits  = 5000    // of a page; the server takes 10,000
	mostSpace = 1 << 40 // of a page in sequence numbers
	halvings  = 13      // from mostHits to 1
)

// scanner reads an index in pages that are bounded on both sides, so that each
// is cheap whatever lies between, and may be repeated at any time. It has no
// context on the server that could be lost.
type scanner struct {
	client *elastic.Client
	index  string
	copies string // which copies of a shard may answer
	source any    // of the documents: true, false, or a filter
	query  any    // a further condition; nil: none

	mu struct {
		sync.Mutex
		hits   int   // asked for
		window int64 // of sequence numbers
	}
}

func newScanner(client *elastic.Client, flavour elastic.Flavour, index string, source, query any) *scanner {
	s := &scanner{client: client, index: index, source: source, query: query}
	if flavour == elastic.OpenSearch {
		s.copies = "_primary" // its replicas may lag behind where segments are replicated
	}
	s.mu.hits, s.mu.window = 500, 2000
	return s
}

// page reads the next documents of a shard with sequence numbers above cursor
// up to end, and returns where the page after it begins. No documents may lie
// between.
func (s *scanner) page(ctx context.Context, shard int, cursor, end int64) ([]elastic.Hit, int64, error) {
	s.mu.Lock()
	size, window := s.mu.hits, s.mu.window
	s.mu.Unlock()
	to := end
	if end-cursor > window {
		to = cursor + window
	}
	var condition any = map[string]any{"range": map[string]any{"_seq_no": map[string]any{"gt": cursor, "lte": to}}}
	if s.query != nil {
		condition = map[string]any{"bool": map[string]any{"filter": []any{condition, s.query}}}
	}
	found, err := s.client.SearchShard(ctx, s.index, shard, s.copies, map[string]any{
		"size": size, "sort": []any{map[string]any{"_seq_no": "asc"}}, "version": true, "seq_no_primary_term": true,
		"track_total_hits": false, "_source": s.source, "query": condition,
	})
	if err != nil {
		s.failed(size)
		return nil, 0, err
	}
	next := to
	for _, hit := range found.Hits {
		if hit.SeqNo <= cursor || hit.SeqNo > to {
			return nil, 0, fmt.Errorf("shard %d of %s: a document with sequence number %d in a page from %d to %d", shard, s.index, hit.SeqNo, cursor, to)
		}
	}
	if len(found.Hits) == size {
		next = found.Hits[size-1].SeqNo
	}
	s.adapt(size, window, next-cursor, found.Hits)
	return found.Hits, next, nil
}

// adapt makes pages nearly full in both measures: sequence numbers are sparse
// where documents are updated often, and documents have all sizes.
func (s *scanner) adapt(size int, window, covered int64, hits []elastic.Hit) {
	total := 0
	for _, hit := range hits {
		total += len(hit.Source) + len(hit.ID) + 64
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(hits) == size: // the window was wider than needed
		s.mu.window = max(int64(size), covered+covered/4)
	case len(hits) < size/2:
		s.mu.window = min(mostSpace, 2*window)
	}
	if len(hits) > 0 {
		s.mu.hits = fitting(size, mostHits, len(hits), total)
	}
}

// failed makes the next page smaller than one of size documents that got no
// answer.
func (s *scanner) failed(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.hits = min(s.mu.hits, fewer(size))
}

// fitting is how many documents the next request may ask for, at most most,
// after one for size of them brought docs with so many bytes.
func fitting(size, most, docs, bytes int) int {
	return min(most, max(1, min(2*size, pageBytes*docs/bytes)))
}

// fewer is how many documents a request asks for after one for size of them that
// got no answer: whether they were too many for the time or the memory of either
// side is not always said, and asking for too few costs a moment only.
func fewer(size int) int { return max(1, size/2) }

// slice reads the next documents of a slice of a point in time: the way where
// shards cannot be addressed. after are the sort values of the last document
// ("": the first page). It returns those of its own last one; "" at the end.
func (s *scanner) slice(ctx context.Context, pit string, n, of int, after string) ([]elastic.Hit, string, error) {
	s.mu.Lock()
	size := s.mu.hits
	s.mu.Unlock()
	body := map[string]any{
		"size": size, "sort": []any{map[string]any{"_shard_doc": "asc"}}, "version": true, "seq_no_primary_term": true,
		"track_total_hits": false, "_source": s.source, "pit": map[string]any{"id": pit, "keep_alive": pitKeepAlive},
	}
	if of > 1 {
		body["slice"] = map[string]any{"id": n, "max": of}
	}
	if s.query != nil {
		body["query"] = s.query
	}
	if after != "" {
		body["search_after"] = json.RawMessage(after)
	}
	found, err := s.client.SearchPIT(ctx, body)
	if err != nil {
		s.failed(size)
		return nil, "", err
	}
	if len(found.Hits) == 0 {
		return nil, "", nil
	}
	s.adapt(size, 0, 0, found.Hits)
	return found.Hits, string(found.Hits[len(found.Hits)-1].Sort), nil
}

const pitKeepAlive = "10m"

// oneLine returns a document as one line, as bulk requests need it.
func oneLine(doc json.RawMessage) (json.RawMessage, error) {
	if bytes.IndexByte(doc, '\n') < 0 && bytes.IndexByte(doc, '\r') < 0 {
		return doc, nil
	}
	var line bytes.Buffer
	if err := json.Compact(&line, doc); err != nil {
		return nil, err
	}
	return line.Bytes(), nil
}
