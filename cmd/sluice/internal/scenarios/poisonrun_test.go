package scenarios

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/integration_test/poison"
)

// One record of each kind of poison among five thousand good ones: the dead
// letters are exactly those that must be, byte for byte, and everything else
// is indexed.
func TestPoison(t *testing.T) {
	const limit, dropped = 256 << 10, "dropped"
	eachValidate(t, func(t *testing.T, strict bool, validate change) {
		w := newWorld(t, worldOptions{partitions: 4, topics: map[string]int32{dropped: 1}})
		w.es.SetMaxContentLength(limit)
		w.must(http.MethodPut, "/"+index, poison.Index)
		w.must(http.MethodPut, "/_ingest/pipeline/drop", `{"processors":[{"drop":{}}]}`)
		holds := func(marker string) func(*embedded.Request) bool {
			return func(r *embedded.Request) bool { return strings.Contains(string(r.Body), marker) }
		}
		w.es.Inject(embedded.Rule{API: "bulk", Match: holds(poison.Spoils), Fault: embedded.Answer(http.StatusBadRequest,
			`{"error":{"type":"illegal_argument_exception","reason":"Malformed action/metadata line [1]"},"status":400}`)})
		w.es.Inject(embedded.Rule{API: "bulk", Match: holds(poison.Page), Fault: embedded.HTML(http.StatusOK)})
		w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.FailItems(embedded.ItemError{Status: 500, Type: "null_pointer_exception", Reason: "null"},
			func(a embedded.Action) bool { return strings.Contains(string(a.Source), poison.Fails) })})

		const good = 5000
		kinds := poison.Kinds(limit)
		if len(kinds) < 30 {
			t.Fatalf("%d kinds", len(kinds))
		}
		fates := map[*kgo.Record]fate{}
		all := records(good)
		var blocked *kgo.Record
		for i, k := range kinds {
			r := &kgo.Record{Key: k.Key, Value: k.Value, Headers: k.Headers}
			f := k.Server
			if strict {
				f = k.Strict
			}
			fates[r] = fate{outcome: f.Outcome, typ: f.Type, status: f.Status}
			if f.Type != "" {
				fates[r] = returned(f.Status, f.Type)
			}
			if k.Dropped {
				r.Topic = dropped
			}
			if k.Blocks {
				blocked = r
			}
			all = slices.Insert(all, (i+1)*good/(len(kinds)+1), r)
		}
		w.effect = func(r *kgo.Record) embedded.Effect {
			return embedded.Effect{Index: index, ID: string(r.Key), Version: sequence(r), Ignored: fates[r].outcome == "ignored"}
		}
		w.produce(all...)
		p := w.begin(`
kafka: {topics: [events, dropped]}
overrides: [{topics: [dropped], documents: {index: dropped, pipeline: drop}}]
indexer: {flush_documents: 1000, retry: {initial: 1ms, max: 5ms}}
`, validate)
		w.await("the record whose request is never answered to be alone", func() error {
			if n := p.App.Status().(app.Status).Indexer.BlockedOn; n != 1 {
				return fmt.Errorf("%d are", n)
			}
			return nil
		}, p)
		w.await("its skip", func() error {
			return p.App.Skip(t.Context(), blocked.Topic, blocked.Partition, blocked.Offset, false)
		}, p)
		w.awaitDone(p)
		w.await("the end of the topic of dropped ones", func() error {
			if n := w.lag(dropped); n != 0 {
				return fmt.Errorf("lag is %d", n)
			}
			return nil
		}, p)
		w.checkFates(p, fates)
		if n := w.es.Count(dropped); n != 0 {
			t.Errorf("%d documents were not dropped", n)
		}
	})
}
