package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Definition is what an index was made with.
type Definition struct {
	Name     string
	Settings map[string]any // texts or lists of them, by flat names: index.number_of_shards
	Mappings json.RawMessage
	Aliases  map[string]json.RawMessage
	// DataStream is the data stream that the index backs; "" for none.
	DataStream string
}

// Shards returns the number of primary shards, and of copies beside each.
func (d Definition) Shards() (primaries, replicas int) {
	primaries, _ = strconv.Atoi(d.Setting("index.number_of_shards")) // the server wrote it
	replicas, _ = strconv.Atoi(d.Setting("index.number_of_replicas"))
	return primaries, replicas
}

// Setting returns a setting as text; "" where it is not set.
func (d Definition) Setting(name string) string {
	if value := d.Settings[name]; value != nil {
		return fmt.Sprint(value)
	}
	return ""
}

// Definitions returns the indices behind a target by their names; none where it
// is missing. It needs the privilege view_index_metadata.
func (c *Client) Definitions(ctx context.Context, target string) (map[string]Definition, error) {
	var answer map[string]struct {
		Aliases    map[string]json.RawMessage `json:"aliases"`
		Mappings   json.RawMessage            `json:"mappings"`
		Settings   map[string]any             `json:"settings"`
		DataStream string                     `json:"data_stream"`
	}
	err := c.send(ctx, "looking at "+target+" (needs the privilege view_index_metadata)",
		request{method: http.MethodGet, path: "/" + url.PathEscape(target), query: url.Values{"flat_settings": {"true"}}}, nil, &answer)
	if isIndexMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	definitions := map[string]Definition{}
	for name, facts := range answer {
		definitions[name] = Definition{Name: name, Settings: facts.Settings, Mappings: facts.Mappings, Aliases: facts.Aliases, DataStream: facts.DataStream}
	}
	return definitions, nil
}

// ErrExists is an index that exists already.
var ErrExists = errors.New("the index exists already")

// CreateIndex makes an index; body is the request as JSON. An error that wraps
// ErrExists says that it was there.
func (c *Client) CreateIndex(ctx context.Context, index string, body any) error {
	err := c.change(ctx, "creating the index "+index+" (needs the privilege create_index)",
		request{method: http.MethodPut, path: "/" + url.PathEscape(index)}, body)
	var refused *Error
	if errors.As(err, &refused) && refused.Type == "resource_already_exists_exception" {
		return fmt.Errorf("%s: %w", index, ErrExists)
	}
	return err
}

// DeleteIndex removes an index and its documents. That it is missing is no
// error. It needs the privilege delete_index.
func (c *Client) DeleteIndex(ctx context.Context, index string) error {
	err := c.change(ctx, "deleting the index "+index+" (needs the privilege delete_index)",
		request{method: http.MethodDelete, path: "/" + url.PathEscape(index)}, nil)
	if isIndexMissing(err) {
		return nil
	}
	return err
}

// PutSettings changes settings of an index. A nil value resets one.
func (c *Client) PutSettings(ctx context.Context, index string, settings map[string]any) error {
	return c.change(ctx, "changing the settings of "+index+" (needs the privilege manage)",
		request{method: http.MethodPut, path: "/" + url.PathEscape(index) + "/_settings"}, settings)
}

// IndexSettings returns one setting of indices, by their names: as it is set, or
// the default of that very index; "" where the server knows none. An index that
// is missing is left out. It needs the privilege view_index_metadata or monitor.
func (c *Client) IndexSettings(ctx context.Context, name string, indices ...string) (map[string]string, error) {
	values := map[string]string{}
	for _, page := range inLines(indices) {
		var answer map[string]struct {
			Settings map[string]any `json:"settings"`
			Defaults map[string]any `json:"defaults"`
		}
		err := c.send(ctx, "looking at the setting "+name+" (needs the privilege view_index_metadata)", request{
			method: http.MethodGet, path: "/" + strings.Join(page, ",") + "/_settings/" + url.PathEscape(name),
			query: url.Values{"flat_settings": {"true"}, "include_defaults": {"true"}, "ignore_unavailable": {"true"}},
		}, nil, &answer)
		if err != nil {
			return nil, err
		}
		for index, facts := range answer {
			value, ok := facts.Settings[name]
			if !ok {
				value = facts.Defaults[name]
			}
			if values[index] = ""; value != nil {
				values[index] = fmt.Sprint(value)
			}
		}
	}
	return values, nil
}

// inLines escapes names and shares them out so that each share fits into the first
// line of a request, which has 4096 bytes by default.
func inLines(indices []string) (lines [][]string) {
	const most = 3500
	room := 0
	for _, index := range indices {
		name := url.PathEscape(index)
		if room -= len(name) + 1; room < 0 {
			lines = append(lines, nil)
			room = most - len(name) - 1
		}
		lines[len(lines)-1] = append(lines[len(lines)-1], name)
	}
	return lines
}

// PutMapping adds to the mapping of an index.
func (c *Client) PutMapping(ctx context.Context, index string, mapping any) error {
	return c.change(ctx, "changing the mapping of "+index+" (needs the privilege manage)",
		request{method: http.MethodPut, path: "/" + url.PathEscape(index) + "/_mapping"}, mapping)
}

// BlockWrites puts a write block on an index and returns once the writes that
// were under way have ended. PutSettings of index.blocks.write takes it away.
func (c *Client) BlockWrites(ctx context.Context, index string) error {
	var answer struct {
		Acknowledged bool `json:"acknowledged"`
		Shards       bool `json:"shards_acknowledged"`
	}
	what := "blocking writes to " + index + " (needs the privilege manage)"
	err := c.send(ctx, what, request{method: http.MethodPut, path: "/" + url.PathEscape(index) + "/_block/write"}, nil, &answer)
	if err == nil && (!answer.Acknowledged || !answer.Shards) {
		err = fmt.Errorf("elasticsearch: %s: not all shards have taken the block yet", what)
	}
	return err
}

// An AliasAction adds an alias to an index, or removes it.
type AliasAction struct {
	Index, Alias string
	Remove       bool           // where it may be missing
	Filter       map[string]any // nil: none
}

// UpdateAliases carries out all actions, or none. It needs the privilege manage
// on the indices and the aliases.
func (c *Client) UpdateAliases(ctx context.Context, actions []AliasAction) error {
	if len(actions) == 0 {
		return nil
	}
	list := make([]any, len(actions))
	for i, a := range actions {
		body := map[string]any{"index": a.Index, "alias": a.Alias}
		verb := "add"
		if a.Remove {
			verb = "remove"
			body["must_exist"] = false
		} else if a.Filter != nil {
			body["filter"] = a.Filter
		}
		list[i] = map[string]any{verb: body}
	}
	return c.change(ctx, "changing aliases (needs the privilege manage)", request{method: http.MethodPost, path: "/_aliases"}, map[string]any{"actions": list})
}

// PutTemplate makes or replaces a composable index template. It needs the
// cluster privilege manage_index_templates.
func (c *Client) PutTemplate(ctx context.Context, name string, body any) error {
	return c.change(ctx, "writing the index template "+name+" (needs the cluster privilege manage_index_templates)",
		request{method: http.MethodPut, path: "/_index_template/" + url.PathEscape(name)}, body)
}

// DeleteTemplate removes a composable index template. That it is missing is no
// error.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	err := c.change(ctx, "deleting the index template "+name+" (needs the cluster privilege manage_index_templates)",
		request{method: http.MethodDelete, path: "/_index_template/" + url.PathEscape(name)}, nil)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// ClusterSettings returns settings of the cluster, in the order of their names:
// each as it is set, or the default; "" where the server knows none. It needs the
// cluster privilege monitor.
func (c *Client) ClusterSettings(ctx context.Context, names ...string) ([]string, error) {
	var answer map[string]map[string]any
	err := c.send(ctx, "looking at the cluster's settings (needs the cluster privilege monitor)", request{
		method: http.MethodGet, path: "/_cluster/settings",
		query: url.Values{"flat_settings": {"true"}, "include_defaults": {"true"}},
	}, nil, &answer)
	if err != nil {
		return nil, err
	}
	values := make([]string, len(names))
	for i, name := range names {
		for _, scope := range []string{"transient", "persistent", "defaults"} {
			if value, ok := answer[scope][name]; ok {
				values[i] = fmt.Sprint(value)
				break
			}
		}
	}
	return values, nil
}

// NodeStats is what a data node says of its load.
type NodeStats struct {
	Name                  string
	DiskTotal, DiskFree   int64 // bytes
	HeapMax               int64 // bytes
	WriteQueue            int   // bulk requests that wait
	WriteRejected         int64 // since the node started
	PressureUsed, Pressed int64 // indexing pressure: bytes held, and the limit; 0: not told
}

// Nodes returns the load of each node that holds data; those of a frozen tier hold
// copies of snapshots only, and no index is made there. It needs the cluster
// privilege monitor.
func (c *Client) Nodes(ctx context.Context) ([]NodeStats, error) {
	var answer struct {
		Nodes map[string]struct {
			Name  string   `json:"name"`
			Roles []string `json:"roles"`
			FS    struct {
				Total struct {
					Total     int64 `json:"total_in_bytes"`
					Available int64 `json:"available_in_bytes"`
				} `json:"total"`
			} `json:"fs"`
			JVM struct {
				Mem struct {
					HeapMax int64 `json:"heap_max_in_bytes"`
				} `json:"mem"`
			} `json:"jvm"`
			Pool struct {
				Write struct {
					Queue    int   `json:"queue"`
					Rejected int64 `json:"rejected"`
				} `json:"write"`
			} `json:"thread_pool"`
			Pressure struct {
				Memory struct {
					Current struct {
						All int64 `json:"all_in_bytes"`
					} `json:"current"`
					Limit int64 `json:"limit_in_bytes"`
				} `json:"memory"`
			} `json:"indexing_pressure"`
		} `json:"nodes"`
	}
	err := c.send(ctx, "asking the nodes for their load (needs the cluster privilege monitor)",
		request{method: http.MethodGet, path: "/_nodes/stats/fs,jvm,thread_pool,indexing_pressure"}, nil, &answer)
	if err != nil {
		return nil, err
	}
	var nodes []NodeStats
	for _, n := range answer.Nodes {
		if n.Roles != nil && !slices.ContainsFunc(n.Roles, func(role string) bool { return strings.HasPrefix(role, "data") && role != "data_frozen" }) {
			continue
		}
		nodes = append(nodes, NodeStats{
			Name: n.Name, DiskTotal: n.FS.Total.Total, DiskFree: n.FS.Total.Available, HeapMax: n.JVM.Mem.HeapMax,
			WriteQueue: n.Pool.Write.Queue, WriteRejected: n.Pool.Write.Rejected,
			PressureUsed: n.Pressure.Memory.Current.All, Pressed: n.Pressure.Memory.Limit,
		})
	}
	slices.SortFunc(nodes, func(a, b NodeStats) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// IndexStats is what an index holds.
type IndexStats struct {
	Docs, Deleted int64
	Bytes         int64 // of the primaries
	Searches      int64 // queries since its shards were opened
	// MaxSeqNo is the highest sequence number of each primary shard, by its
	// number; -1 for a shard that was never written to. It is nil where the
	// server does not tell (shards that cannot be addressed).
	MaxSeqNo []int64
	// Settled is the global checkpoint of each shard: up to it no operation is
	// under way any more, and none will be undone. Nil with MaxSeqNo.
	Settled []int64
}

// IndexStats asks for what one index holds. It needs the privilege monitor.
func (c *Client) IndexStats(ctx context.Context, index string) (IndexStats, error) {
	var answer struct {
		Indices map[string]struct {
			Primaries struct {
				Docs struct {
					Count   int64 `json:"count"`
					Deleted int64 `json:"deleted"`
				} `json:"docs"`
				Store struct {
					Size int64 `json:"size_in_bytes"`
				} `json:"store"`
			} `json:"primaries"`
			Total struct {
				Search struct {
					Query int64 `json:"query_total"`
				} `json:"search"`
			} `json:"total"`
			Shards map[string][]struct {
				Routing struct {
					Primary bool `json:"primary"`
				} `json:"routing"`
				SeqNo *struct {
					Max     int64 `json:"max_seq_no"`
					Settled int64 `json:"global_checkpoint"`
				} `json:"seq_no"`
			} `json:"shards"`
		} `json:"indices"`
	}
	what := "asking for the statistics of " + index + " (needs the privilege monitor)"
	err := c.send(ctx, what, request{
		method: http.MethodGet, path: "/" + url.PathEscape(index) + "/_stats/docs,store,search", query: url.Values{"level": {"shards"}},
	}, nil, &answer)
	var refused *Error
	if errors.As(err, &refused) && refused.Type == "api_not_available_exception" { // serverless: it has no shards to speak of
		docs, err := c.Count(ctx, index, nil)
		return IndexStats{Docs: docs}, err
	}
	if err != nil {
		return IndexStats{}, err
	}
	facts, ok := answer.Indices[index]
	if !ok {
		return IndexStats{}, fmt.Errorf("elasticsearch: %s: the answer does not hold it: name the index itself, not an alias", what)
	}
	s := IndexStats{
		Docs: facts.Primaries.Docs.Count, Deleted: facts.Primaries.Docs.Deleted, Bytes: facts.Primaries.Store.Size,
		Searches: facts.Total.Search.Query,
	}
	numbers, settled := make([]int64, len(facts.Shards)), make([]int64, len(facts.Shards))
	for shard, copies := range facts.Shards {
		n, err := strconv.Atoi(shard)
		if err != nil || n < 0 || n >= len(numbers) {
			return IndexStats{}, fmt.Errorf("elasticsearch: %s: a shard is missing in the answer", what)
		}
		primary := false
		for _, copied := range copies {
			if copied.Routing.Primary && copied.SeqNo != nil {
				numbers[n], settled[n], primary = copied.SeqNo.Max, copied.SeqNo.Settled, true
			}
		}
		if !primary {
			return IndexStats{}, fmt.Errorf("elasticsearch: %s: shard %d has no primary: wait until the index is not red", what, n)
		}
	}
	if len(numbers) > 0 {
		s.MaxSeqNo, s.Settled = numbers, settled
	}
	return s, nil
}
