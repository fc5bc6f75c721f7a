package migrate

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/partition"
)

func TestUnlike(t *testing.T) {
	const source = `{"_meta":{"a":1},"dynamic":"strict","properties":{"k":{"type":"keyword","fields":{"text":{"type":"text"}}},"o":{"properties":{"properties":{"type":"long"}}},"p":{"type":"object"}}}`
	for target, want := range map[string]string{
		source: "",
		`{"_meta":{"b":1},"dynamic":"strict","properties":{"mine":{"type":"boolean"},"k":{"type":"keyword","fields":{"text":{"type":"text"},"more":{"type":"text"}}},"o":{"properties":{"properties":{"type":"long"},"n":{"type":"long"}}},"p":{"type":"object"}}}`: "",
		`{"dynamic":"strict","properties":{"k":{"type":"keyword"},"o":{"type":"nested","properties":{"properties":{"type":"integer"}}},"p":{"type":"object"}}}`:                                                                                                     "k.text,o type,o.properties type",
		`{"date_detection":false,"properties":{"k":{"type":"keyword","ignore_above":10,"fields":{"text":{"type":"text","analyzer":"x"}}},"p":{"type":"object"}}}`:                                                                                                   "date_detection,dynamic,k ignore_above,k.text analyzer,o",
		"": "dynamic,k,o,p",
	} {
		paths, err := unlike(json.RawMessage(source), json.RawMessage(target))
		if got := strings.Join(paths, ","); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", target, got, err, want)
		}
	}
}

// A field that somebody gives a new index, before a document with it comes, would
// be indexed otherwise than the same field of the legacy index.
func TestMappingOfTheNewSideChanges(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(20)
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		w.call(http.MethodPut, "/"+w.job().indices()[1]+"/_mapping", `{"properties":{"later":{"type":"text"}}}`)
		w.verify(Check{Level: L1})
		_, err := w.m.Cutover(w.Context(), request(), Cut{Customers: []string{"c1"}})
		w.check(err) // nothing of the legacy index is otherwise there
		w.call(http.MethodPut, "/events/_mapping", `{"properties":{"later":{"type":"keyword"}}}`)
		// As if it had been changed with the other fields: the server refuses that.
		hash, err := mappingHash([]byte(w.mapping(source)))
		w.check(err)
		_, err = w.m.store.change(w.Context(), jobName, func(j *Job) error {
			j.Mapping = hash
			return nil
		})
		w.check(err)
		const say = "somebody has changed the mapping of new indices, which differs from that of events in later, 'later type'"
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.refused(err, say)
		allowed := func(paths ...string) {
			_, err := w.m.store.change(w.Context(), jobName, func(j *Job) error {
				j.Unlike = paths
				return nil
			})
			w.check(err)
		}
		allowed("later", "later type")
		_, err = w.m.Cutover(w.Context(), request(), Cut{All: true})
		w.check(err)
		allowed()
		w.verify(Check{Level: L1})
		_, err = w.m.Complete(w.Context(), request(), 0, 0)
		w.refused(err, say)
		stop()
	})
}

// mapping is what an index shows of its mapping.
func (w *world) mapping(index string) string {
	w.Helper()
	var answer map[string]struct{ Mappings json.RawMessage }
	w.check(json.Unmarshal(w.call(http.MethodGet, "/"+index+"/_mapping", ""), &answer))
	return string(answer[index].Mappings)
}

// Documents that cannot be written to two sides are none to plan a migration of.
func TestPlanNeedsVersionsForTwoSides(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(10, 2)
		w.check(w.tables.Create(w.Context(), partition.New(stream, source)))
		w.m.Versions.Problem = "no ids"
		const say = "no ids: change the configuration"
		if _, err := w.m.Plan(w.Context(), Wish{Customer: "field:/customer", Source: source, Replicas: -1}); err == nil || !strings.Contains(err.Error(), say) {
			w.Errorf("plan: %v", err)
		}
		if _, err := w.m.Create(w.Context(), request(), w.plan(2)); err == nil || !strings.Contains(err.Error(), say) {
			w.Errorf("create: %v", err)
		}
		if _, err := w.m.Status(w.Context(), jobName); !errors.Is(err, ErrNoJob) {
			w.Errorf("there is a job: %v", err)
		}
	})
}
