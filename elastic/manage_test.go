package elastic

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// asking answers each request with the next of the answers, and notes what was
// asked.
func asking(asked *[]string, answers ...string) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		var body []byte
		if r.Body != nil {
			body, _ = io.ReadAll(r.Body)
		}
		*asked = append(*asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
		if len(answers) == 0 {
			return answer(200, `{"acknowledged":true,"shards_acknowledged":true}`), nil
		}
		text := answers[0]
		answers = answers[1:]
		if strings.Contains(text, `"error"`) {
			return answer(400, text), nil
		}
		return answer(200, text), nil
	}
}

func TestManage(t *testing.T) {
	var asked []string
	c := newClient(t, asking(&asked))
	ctx := t.Context()
	for _, err := range []error{
		c.CreateIndex(ctx, "a", map[string]any{"settings": map[string]any{}}),
		c.DeleteIndex(ctx, "a"),
		c.PutSettings(ctx, "a", map[string]any{"index.blocks.write": nil}),
		c.PutMapping(ctx, "a", map[string]any{"properties": map[string]any{}}),
		c.BlockWrites(ctx, "a"),
		c.UpdateAliases(ctx, nil),
		c.UpdateAliases(ctx, []AliasAction{{Index: "a", Alias: "x", Remove: true}, {Index: "a", Alias: "y", Filter: map[string]any{"f": 1}}}),
		c.PutTemplate(ctx, "t", map[string]any{"priority": 1}),
		c.DeleteTemplate(ctx, "t"),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := []string{
		`PUT /a {"settings":{}}`, `DELETE /a`, `PUT /a/_settings {"index.blocks.write":null}`, `PUT /a/_mapping {"properties":{}}`, `PUT /a/_block/write`,
		`POST /_aliases {"actions":[{"remove":{"alias":"x","index":"a","must_exist":false}},{"add":{"alias":"y","filter":{"f":1},"index":"a"}}]}`,
		`PUT /_index_template/t {"priority":1}`, `DELETE /_index_template/t`,
	}
	if !reflect.DeepEqual(asked, want) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}

// A change that not all nodes go by yet has not been made.
func TestChangesThatAreNotAcknowledged(t *testing.T) {
	c, ctx := newClient(t, answering(200, `{"acknowledged":false}`)), t.Context()
	for name, err := range map[string]error{
		"CreateIndex":    c.CreateIndex(ctx, "a", nil),
		"DeleteIndex":    c.DeleteIndex(ctx, "a"),
		"PutSettings":    c.PutSettings(ctx, "a", map[string]any{}),
		"PutMapping":     c.PutMapping(ctx, "a", map[string]any{}),
		"BlockWrites":    c.BlockWrites(ctx, "a"),
		"UpdateAliases":  c.UpdateAliases(ctx, []AliasAction{{Index: "a", Alias: "x", Remove: true}}),
		"PutTemplate":    c.PutTemplate(ctx, "t", map[string]any{}),
		"DeleteTemplate": c.DeleteTemplate(ctx, "t"),
	} {
		if err == nil || !strings.Contains(err.Error(), "try again") && name != "BlockWrites" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A block that not all shards have taken blocks nothing yet.
func TestBlockOfSomeShards(t *testing.T) {
	if err := newClient(t, answering(200, `{"acknowledged":true,"shards_acknowledged":false}`)).BlockWrites(t.Context(), "a"); err == nil {
		t.Error("a block of some shards is taken for a block")
	}
}

func TestCreateIndexThatIsThere(t *testing.T) {
	err := newClient(t, answering(400, `{"error":{"type":"resource_already_exists_exception"}}`)).CreateIndex(t.Context(), "a", nil)
	if !errors.Is(err, ErrExists) {
		t.Errorf("got %v", err)
	}
}

func TestIndexStats(t *testing.T) {
	var asked []string
	const whole = `{"indices":{"a":{"primaries":{"docs":{"count":7,"deleted":2},"store":{"size_in_bytes":99}},"total":{"search":{"query_total":5}},"shards":{
		"1":[{"routing":{"primary":false},"seq_no":{"max_seq_no":3}},{"routing":{"primary":true},"seq_no":{"max_seq_no":4,"global_checkpoint":2}}],"0":[{"routing":{"primary":true},"seq_no":{"max_seq_no":-1,"global_checkpoint":-1}}]}}}}`
	c := newClient(t, asking(&asked, whole,
		strings.ReplaceAll(whole, `"primary":true`, `"primary":false`), strings.ReplaceAll(whole, `"1":[`, `"2":[`), `{"indices":{"b":{}}}`,
		`{"error":{"type":"api_not_available_exception"}}`, `{"_shards":{"total":1},"hits":{"total":{"value":12}}}`))
	got, err := c.IndexStats(t.Context(), "a")
	if want := (IndexStats{Docs: 7, Deleted: 2, Bytes: 99, Searches: 5, MaxSeqNo: []int64{-1, 4}, Settled: []int64{-1, 2}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for range 3 { // no primary, a shard that is missing, an alias
		if got, err := c.IndexStats(t.Context(), "a"); err == nil {
			t.Errorf("%+v", got)
		}
	}
	if got, err := c.IndexStats(t.Context(), "a"); err != nil || got.Docs != 12 || got.MaxSeqNo != nil {
		t.Errorf("without shards: %+v, %v", got, err)
	}
}

func TestSearchShard(t *testing.T) {
	var asked []string
	c := newClient(t, asking(&asked, `{"_shards":{"total":1},"hits":{"hits":[]}}`, `{"_shards":{"total":0},"hits":{"hits":[]}}`, `{"_shards":{"total":1},"timed_out":true,"hits":{"hits":[]}}`))
	if _, err := c.SearchShard(t.Context(), "a", 3, "_primary", map[string]any{}); err != nil {
		t.Error(err)
	}
	if want := "POST /a/_search?allow_partial_search_results=false&preference=_shards%3A3%7C_primary {}"; asked[0] != want {
		t.Errorf("asked %s, want %s", asked[0], want)
	}
	for range 2 { // no shard answered; not in time
		if _, err := c.SearchShard(t.Context(), "a", 3, "", nil); err == nil {
			t.Error("a page without its shard is taken for an empty one")
		}
	}
}

func TestGetMany(t *testing.T) {
	var asked []string
	c := newClient(t, asking(&asked, `{"docs":[{"found":true,"_version":9007199254740993,"_seq_no":4,"_source":{"a":1}},{"found":false}]}`,
		`{"docs":[{"found":true}]}`, `{"docs":[{"found":true},{"_index":"a"}],"none":0}`))
	ids := []DocID{{Index: "a", ID: "1"}, {Index: "b", ID: "2", Routing: "r"}}
	docs, err := c.GetMany(t.Context(), ids)
	if err != nil || len(docs) != 2 || docs[0].Version != 9007199254740993 || docs[1].Found {
		t.Errorf("%+v, %v", docs, err)
	}
	if want := `POST /_mget?realtime=true {"docs":[{"_id":"1","_index":"a"},{"_id":"2","_index":"b","routing":"r"}]}`; asked[0] != want {
		t.Errorf("asked %s, want %s", asked[0], want)
	}
	if _, err := c.GetMany(t.Context(), ids); err == nil {
		t.Error("an answer for one of two is no error")
	}
	if docs, err := c.GetMany(t.Context(), nil); err != nil || docs != nil {
		t.Errorf("nothing to get: %v, %v", docs, err)
	}
}

func TestTerms(t *testing.T) {
	c := newClient(t, answering(200, `{"_shards":{},"aggregations":{"by":{"buckets":[{"key":{"value":"x"},"doc_count":3},{"key":{"value":"y"},"doc_count":1}]}}}`))
	counts, next, err := c.Terms(t.Context(), "a", "f", "", nil)
	if err != nil || next != "" || !reflect.DeepEqual(counts, map[string]int64{"x": 3, "y": 1}) {
		t.Errorf("%v, %q, %v", counts, next, err)
	}
	c = newClient(t, answering(200, `{"_shards":{},"aggregations":{"by":{"buckets":[{"key":{"value":7},"doc_count":3}]}}}`))
	if _, _, err := c.Terms(t.Context(), "a", "f", "", nil); err == nil {
		t.Error("numbers are taken for texts")
	}
}

// Nodes that hold no index, and those that hold snapshots only, are none to put
// indices on.
func TestLoadOfNodesWithData(t *testing.T) {
	c := newClient(t, roundTripper(func(*http.Request) (*http.Response, error) {
		return answer(200, `{"nodes":{
			"a":{"name":"hot","roles":["data_hot","ingest"]},"b":{"name":"frozen","roles":["data_frozen"]},"c":{"name":"master","roles":["master"]},
			"d":{"name":"both","roles":["data_frozen","data_cold"]},"e":{"name":"old"},"f":{"name":"all","roles":["data","master"]}}}`), nil
	}))
	nodes, err := c.Nodes(t.Context())
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	if err != nil || strings.Join(names, " ") != "all both hot old" {
		t.Errorf("%v, %v", names, err)
	}
}
