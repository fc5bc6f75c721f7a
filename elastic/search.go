package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Hit is one document that a search found.
type Hit struct {
	Index   string          `json:"_index"`
	ID      string          `json:"_id"`
	Routing string          `json:"_routing"`
	Version int64           `json:"_version"` // where the search asked for it
	Source  json.RawMessage `json:"_source"`
}

// Page is the answer to a search.
type Page struct {
	Hits  []Hit
	Total int64 // of all that match, as far as the search had them counted
}

// Search carries out a search on a target, which may hold wildcards; body is
// the request as JSON. An answer that not all shards had a part in is an error.
func (c *Client) Search(ctx context.Context, target string, body any) (Page, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return Page{}, err
	}
	var answer struct {
		TimedOut bool `json:"timed_out"`
		Shards   struct {
			Failed int `json:"failed"`
		} `json:"_shards"`
		Hits struct {
			Total struct {
				Value int64 `json:"value"`
			} `json:"total"`
			Hits []Hit `json:"hits"`
		} `json:"hits"`
	}
	partial := false
	err = c.call(ctx, "searching "+target, esapi.SearchRequest{
		Index: []string{url.PathEscape(target)}, Body: bytes.NewReader(text), AllowPartialSearchResults: &partial,
	}, &answer)
	if err == nil && (answer.TimedOut || answer.Shards.Failed > 0) {
		err = fmt.Errorf("elasticsearch: searching %s: %d shards gave no answer", target, answer.Shards.Failed)
	}
	return Page{Hits: answer.Hits.Hits, Total: answer.Hits.Total.Value}, err
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
