package elastic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Hit is one document that a search found.
type Hit struct {
	Index   string          `json:"_index"`
	ID      string          `json:"_id"`
	Routing string          `json:"_routing"`
	Version int64           `json:"_version"` // where the search asked for it
	SeqNo   int64           `json:"_seq_no"`  // where the search asked for it
	Source  json.RawMessage `json:"_source"`
	Sort    json.RawMessage `json:"sort"` // the values that the hit was sorted by
}

// Page is the answer to a search.
type Page struct {
	Hits  []Hit
	Total int64 // of all that match, as far as the search had them counted
}

// Search carries out a search on a target, which may hold wildcards; body is
// the request as JSON. An answer that not all shards had a part in is an error.
func (c *Client) Search(ctx context.Context, target string, body any) (Page, error) {
	page, _, err := c.search(ctx, target, url.Values{}, body)
	return page, err
}

// SearchShard searches one shard of an index; copies says which of its copies
// may answer ("": any), such as _primary. The hits are those of that shard only.
func (c *Client) SearchShard(ctx context.Context, index string, shard int, copies string, body any) (Page, error) {
	preference := fmt.Sprintf("_shards:%d", shard)
	if copies != "" {
		preference += "|" + copies
	}
	page, shards, err := c.search(ctx, index, url.Values{"preference": {preference}}, body)
	if err == nil && shards != 1 {
		err = fmt.Errorf("elasticsearch: searching shard %d of %s: %d shards answered", shard, index, shards)
	}
	return page, err
}

// SearchPIT searches what a point in time shows, which body names.
func (c *Client) SearchPIT(ctx context.Context, body any) (Page, error) {
	page, _, err := c.search(ctx, "", url.Values{}, body)
	return page, err
}

// search returns the page and how many shards had a part in it: all.
func (c *Client) search(ctx context.Context, target string, query url.Values, body any) (Page, int, error) {
	path := "/_search"
	if target != "" {
		path = "/" + url.PathEscape(target) + path
	}
	query.Set("allow_partial_search_results", "false")
	var answer searchAnswer
	err := c.send(ctx, "searching "+target, request{method: http.MethodPost, path: path, query: query}, body, &answer)
	if err == nil && (answer.TimedOut || answer.Shards.Failed > 0) {
		err = fmt.Errorf("elasticsearch: searching %s: %d shards gave no answer", target, answer.Shards.Failed)
	}
	return Page{Hits: answer.Hits.Hits, Total: answer.Hits.Total.Value}, answer.Shards.Total, err
}

// Count counts what matches a query in real time of searches; nil is all.
func (c *Client) Count(ctx context.Context, target string, query any) (int64, error) {
	if query == nil {
		query = map[string]any{"match_all": map[string]any{}}
	}
	page, err := c.Search(ctx, target, map[string]any{"size": 0, "track_total_hits": true, "query": query})
	return page.Total, err
}

// Terms counts the documents by the value of a field, in pages of up to 1000
// values in their order: after is the last value of the page before ("": the
// first page), next that of this one ("": it was the last). Documents without
// the field are not counted.
func (c *Client) Terms(ctx context.Context, target, field, after string, query any) (counts map[string]int64, next string, err error) {
	const page = 1000
	composite := map[string]any{"size": page, "sources": []any{map[string]any{"value": map[string]any{"terms": map[string]any{"field": field}}}}}
	if after != "" {
		composite["after"] = map[string]any{"value": after}
	}
	body := map[string]any{"size": 0, "track_total_hits": false, "aggs": map[string]any{"by": map[string]any{"composite": composite}}}
	if query != nil {
		body["query"] = query
	}
	var answer struct {
		TimedOut bool `json:"timed_out"`
		Shards   struct {
			Failed int `json:"failed"`
		} `json:"_shards"`
		Aggregations struct {
			By struct {
				Buckets []struct {
					Key struct {
						Value any `json:"value"`
					} `json:"key"`
					Count int64 `json:"doc_count"`
				} `json:"buckets"`
			} `json:"by"`
		} `json:"aggregations"`
	}
	what := "counting " + target + " by " + field
	err = c.send(ctx, what, request{
		method: http.MethodPost, path: "/" + url.PathEscape(target) + "/_search", query: url.Values{"allow_partial_search_results": {"false"}},
	}, body, &answer)
	if err == nil && (answer.TimedOut || answer.Shards.Failed > 0) {
		err = fmt.Errorf("elasticsearch: %s: %d shards gave no answer", what, answer.Shards.Failed)
	}
	if err != nil {
		return nil, "", err
	}
	counts = map[string]int64{}
	for _, bucket := range answer.Aggregations.By.Buckets {
		value, ok := bucket.Key.Value.(string)
		if !ok {
			return nil, "", fmt.Errorf("elasticsearch: %s: its values are not texts: name a keyword field", what)
		}
		counts[value], next = bucket.Count, value
	}
	if len(counts) < page {
		next = ""
	}
	return counts, next, nil
}

// OpenPIT opens a point in time of an index and keeps it for a while; each
// search that names it with keep_alive prolongs that.
func (c *Client) OpenPIT(ctx context.Context, index, keepAlive string, flavour Flavour) (id string, err error) {
	path := "/" + url.PathEscape(index) + "/_pit"
	if flavour == OpenSearch {
		path = "/" + url.PathEscape(index) + "/_search/point_in_time"
	}
	var answer struct {
		ID    string `json:"id"`
		PitID string `json:"pit_id"`
	}
	err = c.send(ctx, "opening a point in time of "+index, request{method: http.MethodPost, path: path, query: url.Values{"keep_alive": {keepAlive}}}, nil, &answer)
	return cmp.Or(answer.ID, answer.PitID), err
}

// IsContextLost says whether a search failed because its point in time is gone.
func IsContextLost(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && (refused.Status == http.StatusNotFound || strings.Contains(refused.Reason, "search context") ||
		refused.Type == "search_context_missing_exception")
}

// DocID names a document of an index.
type DocID struct{ Index, ID, Routing string }

// Doc is a document as it is in real time.
type Doc struct {
	Found       bool            `json:"found"`
	Version     int64           `json:"_version"`
	SeqNo       int64           `json:"_seq_no"`
	PrimaryTerm int64           `json:"_primary_term"`
	Routing     string          `json:"_routing"`
	Source      json.RawMessage `json:"_source"`
}

// GetMany reads documents in real time, in the order of their ids. A document
// that could not be looked at is an error.
func (c *Client) GetMany(ctx context.Context, ids []DocID) ([]Doc, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	docs := make([]any, len(ids))
	for i, id := range ids {
		doc := map[string]any{"_index": id.Index, "_id": id.ID}
		if id.Routing != "" {
			doc["routing"] = id.Routing
		}
		docs[i] = doc
	}
	var answer struct {
		Docs []struct {
			Doc
			Error json.RawMessage `json:"error"`
		} `json:"docs"`
	}
	what := fmt.Sprintf("reading %d documents", len(ids))
	err := c.send(ctx, what, request{method: http.MethodPost, path: "/_mget", query: url.Values{"realtime": {"true"}}}, map[string]any{"docs": docs}, &answer)
	if err != nil {
		return nil, err
	}
	if len(answer.Docs) != len(ids) {
		return nil, fmt.Errorf("elasticsearch: %s: the answer holds %d", what, len(answer.Docs))
	}
	found := make([]Doc, len(ids))
	for i, doc := range answer.Docs {
		if len(doc.Error) > 0 {
			return nil, fmt.Errorf("elasticsearch: %s: %s cannot be read from", what, ids[i].Index)
		}
		found[i] = doc.Doc
	}
	return found, nil
}

// Bulk sends one bulk request, which the caller has encoded, and returns its
// answer undecoded. query are parameters of the request. A refusal of the whole
// request is an *Error.
func (c *Client) Bulk(ctx context.Context, body []byte, query url.Values) ([]byte, error) {
	var answer json.RawMessage
	err := c.call(ctx, "writing", request{method: http.MethodPost, path: "/_bulk", query: query, body: body}, &answer)
	return answer, err
}

// Refresh makes what was written to a target, which may hold wildcards, visible
// to searches. It needs the privilege maintenance.
func (c *Client) Refresh(ctx context.Context, target string) error {
	return c.call(ctx, "refreshing "+target+" (needs the privilege maintenance)",
		esapi.IndicesRefreshRequest{Index: []string{url.PathEscape(target)}}, nil)
}

// Mapping is the top of an index's mapping.
type Mapping struct {
	// Dynamic is what becomes of fields that are not mapped: true, false,
	// runtime or strict.
	Dynamic string
	// Fields are the types of the fields at the top; "object" for those with
	// fields of their own. A field that is not indexed has "unindexed" in front.
	Fields map[string]string
}

// Mappings returns the mappings of the indices behind a target, which may hold
// wildcards; none where it is missing. It needs the privilege
// view_index_metadata.
func (c *Client) Mappings(ctx context.Context, target string) (map[string]Mapping, error) {
	var answer map[string]struct {
		Mappings struct {
			Dynamic    any `json:"dynamic"` // a text or a boolean
			Properties map[string]struct {
				Type  string `json:"type"`
				Index *bool  `json:"index"`
			} `json:"properties"`
		} `json:"mappings"`
	}
	err := c.call(ctx, "looking at the mapping of "+target+" (needs the privilege view_index_metadata)",
		esapi.IndicesGetMappingRequest{Index: []string{url.PathEscape(target)}}, &answer)
	if isIndexMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	mappings := map[string]Mapping{}
	for index, facts := range answer {
		m := Mapping{Dynamic: "true", Fields: map[string]string{}}
		if facts.Mappings.Dynamic != nil {
			m.Dynamic = fmt.Sprint(facts.Mappings.Dynamic)
		}
		for name, field := range facts.Mappings.Properties {
			switch {
			case field.Type == "":
				m.Fields[name] = "object"
			case field.Index != nil && !*field.Index:
				m.Fields[name] = "unindexed " + field.Type
			default:
				m.Fields[name] = field.Type
			}
		}
		mappings[index] = m
	}
	return mappings, nil
}
