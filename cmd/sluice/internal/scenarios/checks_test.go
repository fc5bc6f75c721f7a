package scenarios

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/embedded"
)

// must sends a request to Elasticsearch, past the program, and fails the test
// unless the answer is 2xx.
func (w *world) must(method, path, body string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://elasticsearch"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.es.Transport().RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode/100 != 2 {
		w.t.Fatalf("%s %s: %s: %.300s", method, path, resp.Status, answer)
	}
}

// mapping makes the index events with a mapping.
func (w *world) mapping(mappings string) {
	w.t.Helper()
	w.must(http.MethodPut, "/"+index, `{"mappings":`+mappings+`}`)
}

// fate is what must become of a record. The zero value: indexed, byte for byte.
type fate struct {
	stored  string // indexed as this
	outcome string // "": indexed, else as in sluice_records_total

	// Of a dead letter:
	typ    string
	status int    // of the server's answer; 0: rejected before it was sent
	reason string // part of it
}

var (
	asIs    = fate{}
	ignored = fate{outcome: "ignored"}
	deleted = fate{outcome: "deleted"}
)

// storedAs is a record that is indexed with other bytes than its value.
func storedAs(body string) fate { return fate{stored: body} }

// refused is a record that must become a dead letter by itself.
func refused(typ string) fate { return fate{outcome: "dead_lettered", typ: typ} }

// returned is a record that Elasticsearch must have refused.
func returned(status int, typ string) fate {
	return fate{outcome: "dead_lettered", typ: typ, status: status}
}

// because says what the reason of a dead letter must hold.
func (f fate) because(reason string) fate {
	f.reason = reason
	return f
}

// checkLetters fails the test unless the dead letters are those of want, once
// each, with key, value and headers byte for byte, and say of them what they
// must.
func (w *world) checkLetters(want map[*kgo.Record]fate) {
	w.t.Helper()
	missing := map[string]*kgo.Record{}
	for r, f := range want {
		if f.outcome == "dead_lettered" {
			missing[position(r)] = r
		}
	}
	for _, l := range w.letters() {
		own, facts := splitLetter(l)
		where := facts["topic"] + "/" + facts["partition"] + "/" + facts["offset"]
		r := missing[where]
		if r == nil {
			w.t.Errorf("a dead letter of %s that should not be there, or not twice: %s (%s) %s", where, facts["type"], facts["status"], facts["reason"])
			continue
		}
		delete(missing, where)
		if err := sameBytes(r, &kgo.Record{Key: l.Key, Value: l.Value, Headers: own}); err != nil {
			w.t.Errorf("dead letter of %s: %v", where, err)
		}
		f := want[r]
		if strings.Contains(facts["reason"], secret) {
			w.t.Errorf("dead letter of %s: the reason quotes the document: %s", where, facts["reason"])
		}
		if facts["type"] != f.typ || facts["status"] != strconv.Itoa(f.status) || !strings.Contains(facts["reason"], f.reason) {
			w.t.Errorf("dead letter of %s (key %.40q): %s (%s) %q, want %s (%d) %q", where, r.Key, facts["type"], facts["status"], facts["reason"], f.typ, f.status, f.reason)
		}
		if got, want := facts["timestamp"], strconv.FormatInt(r.Timestamp.UnixMilli(), 10); got != want {
			w.t.Errorf("dead letter of %s: timestamp %s, want %s", where, got, want)
		}
	}
	for where, r := range missing {
		w.t.Errorf("no dead letter of %s (key %.40q, value %.80q), want %s", where, r.Key, r.Value, want[r].typ)
	}
}

// secret stands in values, keys and headers whose content must be seen in dead
// letters alone.
const secret = "s3cret"

func position(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// splitLetter tells the record's own headers from those that Sluice added,
// which it gives by name without their prefix.
func splitLetter(l *kgo.Record) (own []kgo.RecordHeader, facts map[string]string) {
	first := len(l.Headers)
	for i, h := range l.Headers {
		if h.Key == "sluice.topic" {
			first = i
		}
	}
	facts = map[string]string{}
	for _, h := range l.Headers[first:] {
		facts[strings.TrimPrefix(h.Key, "sluice.")] = string(h.Value)
	}
	return l.Headers[:first], facts
}

// sameBytes says where two records differ; null is not empty.
func sameBytes(want, got *kgo.Record) error {
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	switch {
	case !same(got.Key, want.Key):
		return fmt.Errorf("key %.80q, want %.80q", got.Key, want.Key)
	case !same(got.Value, want.Value):
		return fmt.Errorf("value %.80q (%d bytes), want %.80q (%d bytes)", got.Value, len(got.Value), want.Value, len(want.Value))
	case !slices.EqualFunc(got.Headers, want.Headers, func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && same(a.Value, b.Value) }):
		return fmt.Errorf("headers %q, want %q", got.Headers, want.Headers)
	}
	return nil
}

// versioned is a document with the version that it is stored with.
type versioned struct {
	source  string
	version int64
}

// sequence is the version of a record of the first generation (DESIGN 5.2),
// worked out apart from the program.
func sequence(r *kgo.Record) int64 { return 1<<53 | (r.Offset+1)<<8 }

// keyless is the version of documents with position ids, which carry none.
const keyless = 1

// checkFates fails the test unless all that was produced has become what fates
// says, and what fates does not name was indexed byte for byte: exactly these
// documents with exactly these versions, exactly these dead letters, and
// exactly these counts.
func (w *world) checkFates(p *program, fates map[*kgo.Record]fate) {
	w.t.Helper()
	want := map[string]versioned{}
	counts := map[string]int{"indexed": 0, "deleted": 0, "ignored": 0, "dead_lettered": 0, "stale": 0, "abandoned": 0, "parked": 0}
	for _, r := range w.log {
		f := fates[r]
		switch f.outcome {
		case "":
			doc := versioned{string(r.Value), sequence(r)}
			if f.stored != "" {
				doc.source = f.stored
			}
			id := string(r.Key)
			if len(r.Key) == 0 {
				id, doc.version = fmt.Sprintf("%s+%d+%d", r.Topic, r.Partition, r.Offset), keyless
			}
			want[id] = doc
			counts["indexed"]++
			continue
		case "deleted":
			delete(want, string(r.Key))
		}
		counts[f.outcome]++
	}
	w.checkVersioned(index, want)
	w.checkLetters(fates)
	for outcome, n := range counts {
		if got := p.outcomes(outcome); got != n {
			w.t.Errorf("%d records counted as %s, want %d", got, outcome, n)
		}
	}
}

func (w *world) checkVersioned(name string, want map[string]versioned) {
	w.t.Helper()
	got := map[string]versioned{}
	for d := range w.es.Docs(name) {
		got[d.ID] = versioned{string(d.Source), d.Version}
	}
	if maps.Equal(got, want) {
		return
	}
	shown := 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if got[id] != want[id] && shown < 5 {
			w.t.Errorf("%s/%.40s is %.80q (version %d), want %.80q (version %d)", name, id, got[id].source, got[id].version, want[id].source, want[id].version)
			shown++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[id]; !ok && shown < 10 {
			w.t.Errorf("%s/%.40s should not be there: %.80q", name, id, got[id].source)
			shown++
		}
	}
	w.t.Errorf("%s holds %d documents, want %d", name, len(got), len(want))
}

// change is what a test changes of a configuration.
type change = func(*config.Config, *app.Options)

// begin is start with a request timeout that a busy machine does not reach: a
// repeat would be counted where a test says that there is none.
func (w *world) begin(yaml string, changes ...change) *program {
	w.t.Helper()
	return w.start(yaml, append(changes, func(cfg *config.Config, _ *app.Options) { cfg.Elasticsearch.RequestTimeout = 20 * time.Second })...)
}

// eachValidate runs a test where Elasticsearch finds out what is bad, and where
// Sluice does.
func eachValidate(t *testing.T, test func(t *testing.T, strict bool, validate change)) {
	for _, mode := range []string{"server", "strict"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			test(t, mode == "strict", func(cfg *config.Config, _ *app.Options) { cfg.Documents.Validate = mode })
		})
	}
}

// documentCase is a record that is something special, and what must become of
// it under either value of documents.validate.
type documentCase struct {
	name           string
	record         *kgo.Record // its key is the case's name where it has none
	server, strict fate
}

// value is a record with this value.
func value(v string) *kgo.Record { return &kgo.Record{Value: []byte(v)} }

// tryDocuments runs the cases, each between two records that nothing is wrong
// with, under both values of documents.validate. The index is made with
// mappings; yaml is further configuration.
func tryDocuments(t *testing.T, mappings, yaml string, cases []documentCase) {
	eachValidate(t, func(t *testing.T, strict bool, validate change) {
		w := newWorld(t, worldOptions{})
		w.mapping(mappings)
		fates := map[*kgo.Record]fate{}
		var all []*kgo.Record
		for i, c := range cases {
			r := *c.record
			if r.Key == nil {
				r.Key = []byte(c.name)
			}
			fates[&r] = c.server
			if strict {
				fates[&r] = c.strict
			}
			all = append(all, &r, record(fmt.Sprintf("neighbour-%d", i), i))
		}
		w.runFates(w.begin(yaml, validate), fates, all...)
	})
}

// runFates produces records and checks that they become what fates says.
func (w *world) runFates(p *program, fates map[*kgo.Record]fate, all ...*kgo.Record) {
	w.t.Helper()
	w.effect = func(r *kgo.Record) embedded.Effect {
		e := embedded.Effect{Index: index, ID: string(r.Key), Version: sequence(r), Ignored: fates[r].outcome == "ignored"}
		if len(r.Key) == 0 {
			e.ID, e.Version = fmt.Sprintf("%s+%d+%d", r.Topic, r.Partition, r.Offset), keyless
		}
		return e
	}
	w.produce(all...)
	w.awaitDone(p)
	w.checkFates(p, fates)
	if strings.Contains(p.log.String(), secret) {
		w.t.Error("content of a record stands in the log")
	}
}
