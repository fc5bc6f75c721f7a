package scenarios

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// dual returns a world whose stream is written to both sides: the legacy index
// and one index, new.
func dual(t *testing.T, partitions int32) *routedWorld {
	t.Helper()
	w := newRoutedWorld(t, partitions)
	table := partition.New("events", "legacy")
	table.Job, table.Write = "j1", partition.W1
	table.Partitions = map[string]partition.Partition{"p000": {Index: "new", State: partition.Active}}
	for range table.Slots {
		table.SlotMap = append(table.SlotMap, "p000")
	}
	w.makeIndex("legacy")
	w.makeIndex("new")
	w.begin(table)
	return w
}

// recordsOf gives n records of a customer, numbered from first on.
func recordsOf(customer string, first, n int) []*kgo.Record {
	var all []*kgo.Record
	for i := range n {
		all = append(all, record(fmt.Sprintf("%s/%d", customer, first+i), first+i))
	}
	return all
}

// bothHold fails the test unless both sides hold the fold of what was produced.
func (w *routedWorld) bothHold() {
	w.t.Helper()
	w.checkIndex("legacy", w.fold())
	w.checkIndex("new", w.fold())
}

// turnAway lets no action on an index through.
func (w *routedWorld) turnAway(index string, e embedded.ItemError) *embedded.Injection {
	return w.es.Inject(embedded.Rule{API: "bulk", Index: index, Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
		if a.Index != index {
			return nil
		}
		return &e
	}}})
}

// S13: a process is killed between the acknowledgements of the two sides.
// Nothing is committed; the next one writes both, of which one has it already.
func TestRouting_S13_KilledBetweenTheSides(t *testing.T) {
	t.Parallel()
	for _, sides := range [][2]string{{"legacy", "new"}, {"new", "legacy"}} {
		t.Run(sides[1]+" is late", func(t *testing.T) {
			t.Parallel()
			w := dual(t, 1)
			late := w.turnAway(sides[1], embedded.ItemError{Status: 429, Type: "es_rejected_execution_exception", Reason: "full"})
			w.send(recordsOf("acme", 0, 50)...)
			first := w.start(routedSettings)
			w.await("one side", func() error {
				if n := w.es.Count(sides[0]); n != 50 {
					return fmt.Errorf("%s holds %d", sides[0], n)
				}
				return nil
			}, first)
			if at := w.committed(topic, 0); at > 0 {
				t.Errorf("committed %d while %s has nothing", at, sides[1])
			}
			first.kill()
			late.Remove()
			second := w.start(routedSettings)
			w.awaitDone(second)
			w.bothHold()
			if n := second.outcomes("indexed") + second.outcomes("stale"); n != 50 {
				t.Errorf("%d records are counted, each must be once", n)
			}
		})
	}
}

// S14: one side can never take a record. First the customer is marked dirty,
// then comes the dead letter, which names the side, then the record is passed;
// others go on meanwhile.
func TestRouting_S14_OneSideRejects(t *testing.T) {
	t.Parallel()
	for side, index := range map[string]string{"new": "new", "legacy": "legacy"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			w := dual(t, 2)
			w.must(http.MethodPut, "/"+index+"/_mapping", `{"properties":{"n":{"type":"long"}}}`)
			w.excuse("acme/bad")
			release := make(chan struct{})
			marking := w.es.Inject(embedded.Rule{Index: control, Fault: embedded.Fault{Hold: release}, Match: func(r *embedded.Request) bool {
				return r.Method == http.MethodPut && strings.Contains(r.Path, "dirty")
			}})
			bad := &kgo.Record{Partition: 0, Key: []byte("acme/bad"), Value: []byte(`{"n":"no number"}`)}
			w.sendTo(bad)
			// Without n, of which the other index has no mapping: it would take that of
			// whichever record came first.
			w.sendTo(&kgo.Record{Partition: 1, Key: []byte("other/1"), Value: []byte(`{"m":1}`)})
			p := w.start(routedSettings)
			w.await("the mark to be under way, and the other partition to be done", func() error {
				if marking.Hits() == 0 || w.committed(topic, 1) != 1 {
					return fmt.Errorf("%d marks, %d committed", marking.Hits(), w.committed(topic, 1))
				}
				return nil
			}, p)
			if n := len(w.letters()); n != 0 || w.committed(topic, 0) > 0 {
				t.Errorf("%d letters, %d committed before the customer is marked", n, w.committed(topic, 0))
			}
			close(release)
			w.awaitDone(p)
			all := w.letters()
			if len(all) != 1 || string(all[0].Key) != "acme/bad" || headerOf(all[0], "sluice.side") != side || headerOf(all[0], "sluice.target") != index {
				t.Fatalf("letters %v", all)
			}
			var mark struct {
				Job      string `json:"job"`
				Customer string `json:"customer"`
			}
			source, _, found := w.es.Get(control, "dirty:j1:acme")
			if err := json.Unmarshal(source, &mark); !found || err != nil || mark.Customer != "acme" || mark.Job != "j1" {
				t.Errorf("the mark is %s", source)
			}
			if _, _, found := w.es.Get(control, "dirty:j1:other"); found {
				t.Error("a customer whose sides are equal is marked")
			}
			other := map[string]string{"new": "legacy", "legacy": "new"}[index]
			if w.es.Count(other) != 2 || w.es.Count(index) != 1 {
				t.Errorf("%s holds %d, %s holds %d", other, w.es.Count(other), index, w.es.Count(index))
			}
			if n := p.outcomes("dead_lettered"); n != 1 {
				t.Errorf("%d records counted as dead-lettered", n)
			}
		})
	}
}

func headerOf(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// S15: one side is blocked for long. Its target is held and said to be; what
// waits for it is not committed, on neither side's word alone; afterwards both
// are equal.
func TestRouting_S15_OneSideIsBlocked(t *testing.T) {
	t.Parallel()
	w := dual(t, 1)
	w.must(http.MethodPut, "/new/_settings", `{"index.blocks.write":true}`)
	w.send(recordsOf("acme", 0, 100)...)
	p := w.start(routedSettings)
	w.await("the other side", func() error {
		if n := w.es.Count("legacy"); n != 100 {
			return fmt.Errorf("it holds %d", n)
		}
		return nil
	}, p)
	if reason := p.awaitHold("new"); reason != "cluster_block_exception" {
		t.Errorf("held for %s", reason)
	}
	w.send(recordsOf("acme", 50, 100)...)
	w.await("later records on the other side", func() error {
		if n := w.es.Count("legacy"); n != 150 {
			return fmt.Errorf("it holds %d", n)
		}
		return nil
	}, p)
	if at := w.committed(topic, 0); at > 0 || w.es.Count("new") != 0 {
		t.Errorf("committed %d, the blocked side holds %d", at, w.es.Count("new"))
	}
	if h := p.App.Health(); h.OK() || h.Routing == nil || h.Routing.Epoch != 1 {
		t.Errorf("health %+v", h)
	}
	if epoch, trouble := p.sum("sluice_routing_epoch", "stream", "events"), p.sum("sluice_routing_trouble"); epoch != 1 || trouble != 0 {
		t.Errorf("metrics: epoch %v, trouble %v", epoch, trouble)
	}
	w.must(http.MethodPut, "/new/_settings", `{"index.blocks.write":null}`)
	w.awaitDone(p)
	w.bothHold()
	if n := len(w.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// S38: the table cannot be read. A process that never read one writes nothing;
// one that did goes on with what it has, and says so.
func TestRouting_S38_TableOutOfReach(t *testing.T) {
	t.Parallel()
	w := dual(t, 1)
	broken := w.es.Inject(embedded.Rule{API: "get", Index: control, Fault: embedded.Fault{Status: http.StatusServiceUnavailable}, Match: func(r *embedded.Request) bool {
		return strings.Contains(r.Path, "routing")
	}})
	w.send(recordsOf("acme", 0, 20)...)
	p := w.start(routedSettings)
	w.await("the process to say what it waits for", func() error {
		if h := p.App.Health(); h.OK() || h.Routing == nil || h.Routing.Trouble == "" {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	}, p)
	if n := w.es.Count("legacy") + w.es.Count("new"); n != 0 {
		t.Errorf("%d documents were written by no table", n)
	}
	broken.Remove()
	w.awaitDone(p)
	w.bothHold()

	broken = w.es.Inject(embedded.Rule{API: "get", Index: control, Fault: embedded.Fault{Status: http.StatusServiceUnavailable}, Match: func(r *embedded.Request) bool {
		return strings.Contains(r.Path, "routing")
	}})
	w.await("the process to say that the table is out of reach", func() error {
		if h := p.App.Health(); h.OK() || h.Routing.Trouble == "" || h.Routing.Epoch != 1 {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	}, p)
	w.send(recordsOf("acme", 20, 20)...)
	w.awaitDone(p)
	w.bothHold()
	broken.Remove()

	// What somebody has spoilt is not followed either.
	source, _, _ := w.es.Get(control, partition.ID("events"))
	w.must(http.MethodPut, "/"+control+"/_doc/routing:events", `{"schema":1,"name":"events","epoch":2}`)
	w.await("the process to say that the table is damaged", func() error {
		if h := p.App.Health(); h.OK() || !strings.Contains(h.Routing.Trouble, "routing table") {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	}, p)
	w.send(recordsOf("acme", 40, 20)...)
	w.awaitDone(p)
	w.bothHold()
	w.must(http.MethodPut, "/"+control+"/_doc/routing:events", string(source))
	w.await("all to be well again", func() error {
		if h := p.App.Health(); !h.OK() {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	}, p)
}

// A table that the configuration cannot follow is not put into force: here one
// that wants two sides of records whose ids are positions.
func TestRouting_ConfigurationCannotFollow(t *testing.T) {
	t.Parallel()
	w := newRoutedWorld(t, 1)
	w.makeIndex("legacy")
	w.begin(partition.New("events", "legacy"))
	for _, r := range recordsOf("acme", 0, 10) {
		w.excuse(string(r.Key)) // the oracle looks for ids from keys
	}
	p := w.start(strings.Replace(routedSettings, "id: key", "id: position", 1))
	w.send(recordsOf("acme", 0, 5)...)
	w.awaitDone(p)
	w.change(func(t *partition.Table) error { t.Job = "j1"; partitioned(t, "p", 2); return nil })
	w.fence(2, p)
	w.change(func(t *partition.Table) error { t.Write = partition.W1; return nil })
	w.await("the process to say that it cannot", func() error {
		if h := p.App.Health(); h.OK() || !strings.Contains(h.Routing.Trouble, "documents.id") || h.Routing.Epoch != 2 {
			return fmt.Errorf("health %+v", h.Routing)
		}
		return nil
	}, p)
	w.send(recordsOf("acme", 5, 5)...)
	w.awaitDone(p)
	if n := w.es.Count("legacy"); n != 10 || w.es.Count("events-p*") != 0 {
		t.Errorf("%d documents in the legacy index, %d beside it", n, w.es.Count("events-p*"))
	}
	w.change(func(t *partition.Table) error { t.Detach(); return nil })
	w.fence(4, p)
}
