package elastic

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func TestSearch(t *testing.T) {
	var asked []string
	c := newClient(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		var body []byte
		if r.Body != nil {
			body, _ = io.ReadAll(r.Body)
		}
		asked = append(asked, r.Method+" "+r.URL.EscapedPath()+"?"+r.URL.RawQuery+" "+string(body))
		return answer(200, `{"timed_out":false,"_shards":{"total":2,"successful":2,"failed":0},"hits":{"total":{"value":7},"hits":[
			{"_index":"e-1","_id":"a","_version":9,"_routing":"r","_source":{"x":1}},{"_index":"e-2","_id":"b","_version":8}]}}`), nil
	}))
	page, err := c.Search(t.Context(), "e-*", map[string]any{"size": 2})
	if err != nil {
		t.Fatal(err)
	}
	want := []Hit{{Index: "e-1", ID: "a", Routing: "r", Version: 9, Source: []byte(`{"x":1}`)}, {Index: "e-2", ID: "b", Version: 8}}
	if page.Total != 7 || !reflect.DeepEqual(page.Hits, want) {
		t.Errorf("got %+v", page)
	}
	if err := c.Refresh(t.Context(), "e-*"); err != nil {
		t.Error(err)
	}
	if len(asked) != 2 || asked[0] != `POST /e-%2A/_search?allow_partial_search_results=false {"size":2}` || !strings.HasPrefix(asked[1], "POST /e-%2A/_refresh") {
		t.Errorf("asked %q", asked)
	}
}

// Hits that are missing must not look like hits that are not there.
func TestSearchOfPartOfTheShards(t *testing.T) {
	for _, body := range []string{
		`{"timed_out":true,"_shards":{"failed":0},"hits":{"total":{"value":0},"hits":[]}}`,
		`{"timed_out":false,"_shards":{"failed":1},"hits":{"total":{"value":0},"hits":[]}}`,
	} {
		if _, err := newClient(t, answering(200, body)).Search(t.Context(), "e", nil); err == nil {
			t.Errorf("%s is no error", body)
		}
	}
}

func TestMappings(t *testing.T) {
	c := newClient(t, answering(200, `{
		"a":{"mappings":{"dynamic":"false","properties":{"n":{"type":"long"},"o":{"properties":{"x":{"type":"long"}}},"u":{"type":"date","index":false}}}},
		"b":{"mappings":{}}, "c":{"mappings":{"dynamic":false}}}`))
	got, err := c.Mappings(t.Context(), "*")
	want := map[string]Mapping{
		"a": {"false", map[string]string{"n": "long", "o": "object", "u": "unindexed date"}},
		"b": {"true", map[string]string{}},
		"c": {"false", map[string]string{}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	missing := newClient(t, roundTripper(func(*http.Request) (*http.Response, error) {
		return refusal(404, "index_not_found_exception", "no such index [a]"), nil
	}))
	if got, err := missing.Mappings(t.Context(), "a"); len(got) != 0 || err != nil {
		t.Errorf("a missing index: %v, %v", got, err)
	}
}
