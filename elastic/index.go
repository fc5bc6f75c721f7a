package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Kind is what a name stands for.
type Kind string

// The kinds.
const (
	Missing    Kind = "missing"
	Index      Kind = "index"
	Alias      Kind = "alias"
	DataStream Kind = "data stream"
)

// IndexInfo is what there is to know about a target before it is written to.
type IndexInfo struct {
	Name string
	Kind Kind
	// Indices are the concrete indices behind the name, sorted.
	Indices []string
	// WriteIndex is the one that writes go to; "" for an alias of several
	// indices none of which is its write index.
	WriteIndex string
	// GCDeletes is how long the write index remembers the version of a deleted
	// document (index.gc_deletes); of several indices without a write index, the
	// shortest. 0 for a missing target; below 0: never forgotten.
	GCDeletes time.Duration
}

const defaultGCDeletes = 60 * time.Second

// IndexInfo looks a target up: an index, alias or data stream, by its exact
// name. That it is missing is no error. It needs the privilege
// view_index_metadata.
func (c *Client) IndexInfo(ctx context.Context, name string) (IndexInfo, error) {
	info := IndexInfo{Name: name, Kind: Missing}
	var indices map[string]struct {
		Aliases map[string]struct {
			IsWriteIndex *bool `json:"is_write_index"`
		} `json:"aliases"`
		Settings   map[string]any `json:"settings"`
		DataStream string         `json:"data_stream"`
	}
	flat := true
	err := c.call(ctx, "looking at "+name+" (needs the privilege view_index_metadata)",
		esapi.IndicesGetRequest{Index: []string{url.PathEscape(name)}, FlatSettings: &flat}, &indices)
	switch {
	case isIndexMissing(err):
		return info, nil
	case err != nil:
		return info, err
	}
	for index, facts := range indices {
		info.Indices = append(info.Indices, index)
		switch {
		case index == name:
			info.Kind, info.WriteIndex = Index, index
		case facts.DataStream == name:
			info.Kind = DataStream
			if info.WriteIndex == "" || backingNumber(index) > backingNumber(info.WriteIndex) {
				info.WriteIndex = index
			}
		default:
			info.Kind = Alias
			write := facts.Aliases[name].IsWriteIndex
			// An alias of one index writes to it unless it says no.
			if write != nil && *write || write == nil && len(indices) == 1 {
				info.WriteIndex = index
			}
		}
	}
	slices.Sort(info.Indices)
	for i, index := range info.Indices {
		if info.WriteIndex != "" && index != info.WriteIndex {
			continue
		}
		gc := defaultGCDeletes
		if text, ok := indices[index].Settings["index.gc_deletes"].(string); ok {
			if gc, err = duration(text); err != nil {
				return info, fmt.Errorf("elasticsearch: index.gc_deletes of %s: %w", index, err)
			}
		}
		if i == 0 || info.WriteIndex != "" || gc < info.GCDeletes && gc >= 0 || info.GCDeletes < 0 {
			info.GCDeletes = gc
		}
	}
	return info, nil
}

// backingNumber is the generation at the end of a backing index's name.
func backingNumber(index string) int {
	n, _ := strconv.Atoi(index[strings.LastIndexByte(index, '-')+1:])
	return n
}

// duration reads a time value as the server writes it: a number and one of the
// units below; -1 is never.
func duration(text string) (time.Duration, error) {
	if text == "-1" {
		return -1, nil
	}
	if text == "0" {
		return 0, nil
	}
	for _, u := range []struct {
		suffix string
		unit   time.Duration
	}{
		{"nanos", time.Nanosecond},
		{"micros", time.Microsecond},
		{"ms", time.Millisecond},
		{"s", time.Second},
		{"m", time.Minute},
		{"h", time.Hour},
		{"d", 24 * time.Hour},
	} {
		if number, ok := strings.CutSuffix(strings.ToLower(text), u.suffix); ok {
			if n, err := strconv.ParseFloat(number, 64); err == nil {
				return time.Duration(n * float64(u.unit)), nil
			}
		}
	}
	return 0, fmt.Errorf("%q is no time value", text)
}

// ErrNoSecurity says that the cluster does not check rights, or checks them in
// a way that cannot be asked about (OpenSearch's plugin).
var ErrNoSecurity = errors.New("the cluster's security cannot be asked about rights")

// MissingPrivileges returns which of the index privileges the credentials do
// not have on a target. It is ErrNoSecurity where that cannot be asked.
func (c *Client) MissingPrivileges(ctx context.Context, target string, privileges ...string) ([]string, error) {
	type names struct {
		Names                  []string `json:"names"`
		Privileges             []string `json:"privileges"`
		AllowRestrictedIndices bool     `json:"allow_restricted_indices"`
	}
	body, err := json.Marshal(map[string][]names{"index": {{Names: []string{target}, Privileges: privileges}}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Index map[string]map[string]bool `json:"index"`
	}
	err = c.call(ctx, "asking for the rights on "+target, esapi.SecurityHasPrivilegesRequest{Body: bytes.NewReader(body)}, &answer)
	var refused *Error
	if errors.As(err, &refused) && refused.Status != http.StatusUnauthorized && refused.Status != http.StatusForbidden && refused.Status != http.StatusTooManyRequests && refused.Status != http.StatusServiceUnavailable {
		return nil, fmt.Errorf("%w (%w)", ErrNoSecurity, refused) // no such call: its status differs between versions
	}
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, privilege := range privileges {
		if !answer.Index[target][privilege] {
			missing = append(missing, privilege)
		}
	}
	return missing, nil
}

// Health is the cluster's state.
type Health struct {
	Status           string `json:"status"` // green, yellow or red
	Nodes            int    `json:"number_of_nodes"`
	DataNodes        int    `json:"number_of_data_nodes"`
	ActiveShards     int    `json:"active_shards"`
	UnassignedShards int    `json:"unassigned_shards"`
}

// Health asks for the cluster's state, or that of the named indices: the worst of
// theirs, and the sums of their shards. It needs the cluster privilege monitor.
func (c *Client) Health(ctx context.Context, indices ...string) (Health, error) {
	lines := inLines(indices)
	if len(lines) == 0 {
		lines = [][]string{nil}
	}
	var all Health
	for _, line := range lines {
		var h Health
		if err := c.call(ctx, "asking for the cluster's health", esapi.ClusterHealthRequest{Index: line}, &h); err != nil {
			return Health{}, err
		}
		h.ActiveShards, h.UnassignedShards = h.ActiveShards+all.ActiveShards, h.UnassignedShards+all.UnassignedShards
		if all.Status == "red" || all.Status == "yellow" && h.Status == "green" {
			h.Status = all.Status
		}
		all = h
	}
	return all, nil
}
