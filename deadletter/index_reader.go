package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// indexPage is how many letters are read at once: any of them may be large.
const indexPage = 100

// IndexReader reads letters back from an index.
type IndexReader struct {
	index     string
	transport Transport
}

// NewIndexReader returns a reader of an index of dead letters.
func NewIndexReader(index string, t Transport) *IndexReader { return &IndexReader{index, t} }

// List gives the letters that were acknowledged before the call, by topic,
// partition and offset. Stored holds the time of writing only. An error ends
// the list.
func (r *IndexReader) List(ctx context.Context, f Filter) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		if err := r.list(ctx, f, yield); err != nil {
			yield(Letter{}, fmt.Errorf("reading the dead letters in the index %s: %w", r.index, err))
		}
	}
}

func (r *IndexReader) list(ctx context.Context, f Filter, yield func(Letter, error) bool) error {
	path := "/" + url.PathEscape(r.index)
	if _, err := call(ctx, r.transport, http.MethodPost, path+"/_refresh", "", nil, nil); err != nil {
		return err
	}
	search := map[string]any{
		"size":  indexPage,
		"query": f.query(),
		"sort":  []string{"sluice.topic", "sluice.partition", "sluice.offset", "sluice.generation"},
	}
	for {
		body, err := json.Marshal(search)
		if err != nil {
			return err
		}
		var page struct {
			TimedOut bool `json:"timed_out"`
			Shards   struct {
				Failed int `json:"failed"`
			} `json:"_shards"`
			Hits struct {
				Hits []struct {
					Source Document        `json:"_source"`
					Sort   json.RawMessage `json:"sort"`
				} `json:"hits"`
			} `json:"hits"`
		}
		if _, err := call(ctx, r.transport, http.MethodPost, path+"/_search", "application/json", body, &page); err != nil {
			return err
		}
		if page.TimedOut || page.Shards.Failed > 0 {
			return fmt.Errorf("%d shards gave no answer", page.Shards.Failed)
		}
		for _, hit := range page.Hits.Hits {
			if !yield(hit.Source.letter(), nil) {
				return nil
			}
		}
		if len(page.Hits.Hits) < indexPage {
			return nil
		}
		search["search_after"] = page.Hits.Hits[indexPage-1].Sort
	}
}

// query is the filter as the search API understands it.
func (f Filter) query() map[string]any {
	filter := []any{}
	term := func(field, value string) {
		if value != "" {
			filter = append(filter, map[string]any{"term": map[string]any{field: value}})
		}
	}
	term("sluice.type", f.Type)
	term("sluice.topic", f.Topic)
	written := map[string]string{}
	if !f.Since.IsZero() {
		written["gte"] = f.Since.UTC().Format(time.RFC3339Nano)
	}
	if !f.Until.IsZero() {
		written["lt"] = f.Until.UTC().Format(time.RFC3339Nano)
	}
	if len(written) > 0 {
		filter = append(filter, map[string]any{"range": map[string]any{"written": written}})
	}
	return map[string]any{"bool": map[string]any{"filter": filter}}
}
