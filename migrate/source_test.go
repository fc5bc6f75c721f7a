package migrate

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/embedded"
)

// Plan and create refuse the same sources, each with what would help.
func TestSourcesThatCannotBeSplit(t *testing.T) {
	inBubble(t, func(w *world) {
		w.call(http.MethodPut, "/_index_template/logs", `{"index_patterns":["logs*"],"data_stream":{}}`)
		w.call(http.MethodPost, "/logs/_doc?op_type=create", `{"@timestamp":"2026-01-01T00:00:00Z","customer":"c"}`)
		backing := ""
		for _, index := range w.es.Indices() {
			if strings.HasPrefix(index, ".ds-logs") {
				backing = index
			}
		}
		w.call(http.MethodPut, "/excluding", `{"mappings":{"_source":{"excludes":["x"]}}}`)
		w.call(http.MethodPut, "/synthetic", `{"mappings":{"_source":{"mode":"synthetic"}}}`)
		w.call(http.MethodPost, "/_aliases", `{"actions":[{"add":{"index":"events","alias":"named"}}]}`)
		for name, want := range map[string]string{
			"none":      "none is no index: name an index that is there",
			"logs":      "logs is a data stream: let it roll over",
			backing:     backing + " backs the data stream logs: let it roll over",
			"named":     "named is no index but an alias of events: name the index itself, with plan --source events",
			"excluding": `excluding keeps a part of _source only (includes [] excludes ["x"]): it cannot be copied document by document: reindex it`,
			"synthetic": "synthetic has a synthetic _source",
		} {
			_, err := w.m.Plan(w.Context(), Wish{Customer: "field:/customer", Source: name, Replicas: -1})
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
				t.Errorf("plan of %s: want a refusal that says %q: %v", name, want, err)
			}
			p := w.plan(2)
			p.Source = name
			w.check(p.Seal())
			if _, err := w.m.Create(w.Context(), request(), p); !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
				t.Errorf("create of %s: want a refusal that says %q: %v", name, want, err)
			}
		}
	})
}

// Nobody reads from an index that still is as the copy needed it.
func TestCutoverLooksAtRestoredSettings(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(20)
		w.verify(Check{Level: L1})
		index := w.job().indices()[0]
		for _, c := range []struct{ set, back, say string }{
			{`{"index.refresh_interval":"30s"}`, `{"index.refresh_interval":null}`, `PUT /` + index + `/_settings {"index.refresh_interval": null}`},
			{`{"index.blocks.write":true}`, `{"index.blocks.write":null}`, `PUT /` + index + `/_settings {"index.blocks.write": null}`},
		} {
			w.call(http.MethodPut, "/"+index+"/_settings", c.set)
			_, err := w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c1"}})
			w.refused(err, c.say)
			w.call(http.MethodPut, "/"+index+"/_settings", c.back)
		}
		w.check(cutting(Cut{Customers: []string{"c1"}})(w.Context(), w.m))
	})
}

// The legacy index's mapping may have changed after the last cut-over too.
func TestCompleteLooksAtTheMapping(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(20)
		w.verify(Check{Level: L1})
		w.check(cutting(Cut{All: true})(w.Context(), w.m))
		sleepFor(w, time.Second)
		w.verify(Check{Level: L1})
		w.call(http.MethodPut, "/events/_mapping", `{"properties":{"later":{"type":"keyword"}}}`)
		_, err := w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, "the mapping of events has changed: sluice migrate resume --apply-mapping")
		w.check(resuming(true)(w.Context(), w.m))
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, "no clean verification")
		w.verify(Check{Level: L1})
		stop := w.consume()
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.check(err)
		stop()
		w.state(Completed)
	})
}

// A verification that is under way when its job is completed leaves nothing in
// the control index, however late its last write is.
func TestCompleteEndsAVerification(t *testing.T) {
	inBubble(t, func(w *world) {
		w.synced(300)
		w.verify(Check{Level: L1})
		w.check(cutting(Cut{All: true})(w.Context(), w.m))
		sleepFor(w, time.Second)
		w.verify(Check{Level: L1})
		for i := range 300 {
			w.log.put(fmt.Sprintf("late%d", i), "c1", i)
		}
		w.log.deliver()
		held := make(chan struct{})
		part := w.es.Inject(embedded.Rule{
			Next: 1, Fault: embedded.Fault{Hold: held},
			Match: func(q *embedded.Request) bool {
				return q.Method != http.MethodGet && strings.Contains(q.Path, "verify%3Aj7%3A") || q.Method != http.MethodGet && strings.Contains(q.Path, "verify:j7:")
			},
		})
		wait := w.verifyAside(Check{Level: L1})
		synctest.Wait()
		stop := w.consume()
		done := make(chan error, 1)
		go func() { _, err := w.m.Complete(w.Context(), request(), 0, 0); done <- err }()
		w.check(<-done)
		if part.Hits() == 0 {
			t.Fatal("no write of the verification was held")
		}
		close(held)
		var moved *MovedError
		if _, err := wait(); !errors.As(err, &moved) {
			t.Errorf("the verification: %v", err)
		}
		stop()
		w.state(Completed)
		w.kept("reports", "job", "plan", "event", "lease", "routing", "item")
	})
}
