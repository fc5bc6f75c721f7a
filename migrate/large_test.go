package migrate

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
)

// Requests for more documents than the server gives in time, or than are read of
// an answer, ask for fewer: of one document at a time there is always room.
func TestDocumentsAreLarge(t *testing.T) {
	asked := func(q *embedded.Request) int {
		switch {
		case strings.HasSuffix(q.Path, "/_mget"):
			return bytes.Count(q.Body, []byte(`"_id"`))
		case strings.HasSuffix(q.Path, "/_search") && q.Query.Get("preference") != "":
			var search struct{ Size int }
			_ = json.Unmarshal(q.Body, &search)
			return search.Size
		}
		return 0
	}
	for name, begin := range map[string]func(w *world){
		"no answer in time": func(w *world) {
			w.es.Inject(embedded.Rule{Fault: embedded.Fault{Never: true}, Match: func(q *embedded.Request) bool { return asked(q) > 3 }})
		},
		"too long an answer": func(w *world) {
			client, err := elastic.New(elastic.Config{Addresses: []string{"http://es:9200"}}, elastic.WithRoundTripper(w.es.Transport()), elastic.WithMaxAnswer(6<<10))
			w.check(err)
			w.m.Cluster = client
		},
		"out of memory": func(w *world) {
			w.es.Inject(embedded.Rule{Fault: embedded.Fault{
				Status: http.StatusTooManyRequests, Body: []byte(`{"error":{"type":"circuit_breaking_exception","reason":"Data too large"},"status":429}`),
			}, Match: func(q *embedded.Request) bool { return asked(q) > 3 }})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				begin(w)
				w.synced(150)
				for _, customer := range []string{"field:/customer", `id:^(d)`} {
					p, err := w.m.Plan(w.Context(), Wish{Customer: customer, Source: source, TargetShard: 100_000, Replicas: -1})
					if err != nil || p.Docs != 150 {
						w.Errorf("the plan has %d documents: %v", p.Docs, err)
					}
				}
				if r := w.verify(Check{Level: L2}); !r.Clean() || r.Old != 150 || r.Sampled == 0 {
					w.Errorf("%+v", r)
				}
			})
		})
	}
}
