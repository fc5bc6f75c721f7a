package elastic

import (
	"net/http"
	"reflect"
	"testing"
)

func TestTemplateFor(t *testing.T) {
	for body, want := range map[string][2]map[string]any{
		`{"template":{"settings":{"index":{"number_of_shards":"2","routing":{"allocation":{"include":{"_tier_preference":"data_content"}}}}},"mappings":{"dynamic":"strict"},"aliases":{}},"overlapping":[]}`: {
			{"index.number_of_shards": "2", "index.routing.allocation.include._tier_preference": "data_content"}, {"dynamic": "strict"},
		},
		// No template matches: what servers of several versions say then.
		`{}`:                {{}, {}},
		`{"template":null}`: {{}, {}},
	} {
		c := newClient(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodPost || r.URL.EscapedPath() != "/_index_template/_simulate_index/e-p000" || r.URL.RawQuery != "" {
				t.Errorf("asked %s %s", r.Method, r.URL)
			}
			return answer(200, body), nil
		}))
		settings, mappings, err := c.TemplateFor(t.Context(), "e-p000")
		if err != nil || !reflect.DeepEqual([2]map[string]any{settings, mappings}, want) {
			t.Errorf("%s: %v %v %v", body, settings, mappings, err)
		}
	}
}
