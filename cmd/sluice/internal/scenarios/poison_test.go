package scenarios

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/embedded"
)

const parsing = "document_parsing_exception"

// V33: for every pair of no key, an empty key and a key, with no value, an
// empty one, spaces and a document there is a rule, and none stops the
// partition. A delete of an id that nobody knows is handled.
func TestV33_NullsAndEmptiness(t *testing.T) {
	eachValidate(t, func(t *testing.T, _ bool, validate change) {
		w := newWorld(t, worldOptions{})
		w.mapping(`{}`)
		fates := map[*kgo.Record]fate{}
		var all []*kgo.Record
		for i, key := range [][]byte{nil, {}, []byte("k")} {
			for _, c := range []struct {
				value []byte
				fate  fate
			}{
				{nil, deleted},
				{[]byte{}, refused("empty_value")},
				{[]byte(" \t "), refused("empty_value")},
				{[]byte(`{}`), asIs},
				{[]byte(` { } `), storedAs(`{ }`)},
			} {
				r := &kgo.Record{Key: key, Value: c.value}
				if len(key) == 0 && c.value == nil {
					c.fate = ignored // it deletes nothing
				}
				fates[r] = c.fate
				all = append(all, r, record(fmt.Sprint("neighbour-", i), 1))
			}
		}
		w.runFates(w.begin("", validate), fates, all...)
	})
}

// V34: an id of 512 bytes is taken, a longer one is dead-lettered, or hashed
// where that is configured; what shares its request is not touched. Bytes
// count, not characters.
func TestV34_LongIDs(t *testing.T) {
	var ids []string
	for _, character := range []string{"a", "é", "€", "😀"} {
		for _, length := range []int{511, 512, 513, 1000} {
			whole := strings.Repeat(character, length/len(character))
			ids = append(ids, whole+strings.Repeat("x", length-len(whole)))
		}
	}
	t.Run("reject", func(t *testing.T) {
		var cases []documentCase
		for i, id := range ids {
			f := asIs
			if len(id) > 512 {
				f = refused("id_too_long")
			}
			cases = append(cases, documentCase{"", record(id, i), f, f})
		}
		tryDocuments(t, `{}`, "", cases)
	})
	t.Run("hash", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		id := func(r *kgo.Record) string {
			if len(r.Key) <= 512 {
				return string(r.Key)
			}
			sum := sha256.Sum256(r.Key)
			return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:])
		}
		w.effect = func(r *kgo.Record) embedded.Effect {
			return embedded.Effect{Index: index, ID: id(r), Version: sequence(r)}
		}
		var all []*kgo.Record
		for i, key := range ids {
			all = append(all, record(key, i))
		}
		w.produce(all...)
		p := w.begin("documents: {long_ids: hash}")
		w.awaitDone(p)
		want := map[string]versioned{}
		for _, r := range w.log {
			want[id(r)] = versioned{string(r.Value), sequence(r)}
		}
		if len(want) != len(ids) {
			t.Fatalf("%d ids for %d keys", len(want), len(ids))
		}
		w.checkVersioned(index, want)
		w.checkLetters(nil)
	})
}

// V35: text that is not UTF-8 is dead-lettered with its bytes as they were.
// What Elasticsearch takes all the same (a byte-order mark, overlong forms,
// half a surrogate pair) it gets, unless validate: strict refuses it first.
func TestV35_NotUTF8(t *testing.T) {
	tryDocuments(t, `{"dynamic":false}`, "", []documentCase{
		{"latin 1", value("{\"a\":\"Dvo\xB8\"}"), returned(400, parsing), refused("not_utf8")},
		{"overlong", value("{\"a\":\"\xC0\xAF\"}"), asIs, refused("not_utf8")},
		{"encoded surrogate", value("{\"a\":\"\xED\xA0\x80\"}"), asIs, refused("not_utf8")},
		{"cut sequence", value("{\"a\":\"\xE2\x82\"}"), returned(400, parsing), refused("not_utf8")},
		{"in a name", value("{\"\xFF\":1}"), returned(400, parsing), refused("not_utf8")},
		{"lone surrogate", value(`{"a":"\ud83d"}`), asIs, refused("invalid_json")},
		{"byte-order mark", value("\xEF\xBB\xBF{\"a\":1}"), asIs, refused("not_an_object")},
		{"pair of surrogates", value(`{"a":"\ud83d\ude00"}`), asIs, asIs},
		{"all planes", value(`{"aé€😀":"aé€😀"}`), asIs, asIs},
	})
}

// V36: NaN and Infinity are no JSON and dead-lettered; what is JSON is passed
// on as it is, and refused only if the mapping cannot take it.
func TestV36_NumbersThatAreNone(t *testing.T) {
	tryDocuments(t, `{"dynamic":false,"properties":{"mapped":{"type":"double"}}}`, "", []documentCase{
		{"NaN", value(`{"a":NaN}`), returned(400, parsing), refused("invalid_json")},
		{"-Infinity", value(`{"a":-Infinity}`), returned(400, parsing), refused("invalid_json")},
		{"NaN mapped", value(`{"mapped":NaN}`), returned(400, parsing), refused("invalid_json")},
		{"NaN as text", value(`{"a":"NaN"}`), asIs, asIs},
		{"1e400", value(`{"a":1e400}`), asIs, asIs},
		{"huge integer", value(`{"a":` + strings.Repeat("9", 400) + `}`), asIs, asIs},
		{"1e400 mapped", value(`{"mapped":1e400}`), returned(400, parsing), returned(400, parsing)},
		{"NaN as text, mapped", value(`{"mapped":"NaN"}`), returned(400, parsing), returned(400, parsing)},
		{"leading zero", value(`{"a":01}`), returned(400, parsing), refused("invalid_json")},
	})
}

// V37: a value with line breaks becomes one line, whatever it holds; two
// objects are dead-lettered.
func TestV37_LineBreaks(t *testing.T) {
	tryDocuments(t, `{"dynamic":false}`, "", []documentCase{
		{"pretty", value("{\n  \"a\": [1,\n 2],\n\t\"b\": \"x  y\"\n}"), storedAs(`{"a":[1,2],"b":"x  y"}`), storedAs(`{"a":[1,2],"b":"x  y"}`)},
		{"CRLF", value("{\r\n\"a\": 1\r\n}"), storedAs(`{"a":1}`), storedAs(`{"a":1}`)},
		{"CR", value("{\r\"a\":1}"), storedAs(`{"a":1}`), storedAs(`{"a":1}`)},
		{"newline at the end", value("{\"a\": 1}\n"), storedAs(`{"a": 1}`), storedAs(`{"a": 1}`)},
		{
			"an action", value("{\"a\":1,\n\"delete\":{\"_index\":\"events\",\"_id\":\"neighbour-0\"}}"),
			storedAs(`{"a":1,"delete":{"_index":"events","_id":"neighbour-0"}}`), storedAs(`{"a":1,"delete":{"_index":"events","_id":"neighbour-0"}}`),
		},
		{"line separators", value("{\"a\":\"x\u2028y\u0085z\"}"), asIs, asIs},
		{"escaped", value(`{"a":"x\ny"}`), asIs, asIs},
		{"two objects", value(`{"a":1}{"b":2}`), returned(400, "illegal_argument_exception"), refused("invalid_json")},
		{"two lines", value("{\"a\":1}\n{\"b\":2}"), refused("invalid_json"), refused("invalid_json")},
		{"a document and an action", value("{\"a\":1}\n{\"delete\":{\"_index\":\"events\",\"_id\":\"neighbour-0\"}}"), refused("invalid_json"), refused("invalid_json")},
		{"break in a string", value("{\"a\":\"x\ny\"}"), refused("invalid_json"), refused("invalid_json")},
	})
}

// V37: documents do not mix where buffers are used again.
func TestV37_BuffersAreNotMixed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 4})
	c := newTally(some(0.1, -1))
	w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Fault{Items: c.item}})
	fates := map[*kgo.Record]fate{}
	var all []*kgo.Record
	for i := range 3000 {
		r := record(fmt.Sprint("k", i), i)
		if text := strings.Repeat(string(rune('a'+i%26)), i%300); i%3 > 0 {
			r.Value = fmt.Appendf(nil, "{\n  \"n\": %d,\r\n  \"text\": %q\n}\n", i, text)
			fates[r] = storedAs(fmt.Sprintf(`{"n":%d,"text":%q}`, i, text))
		}
		all = append(all, r)
	}
	w.runFates(w.begin("indexer: {flush_documents: 100, requests: {min: 4, max: 8}}"), fates, all...)
}

// V38: an item that fails with 500 again and again while its neighbours pass is
// dead-lettered after as many tries as are configured.
func TestV38_BadDataReportedAs500(t *testing.T) {
	eachValidate(t, func(t *testing.T, _ bool, validate change) {
		w := newWorld(t, worldOptions{})
		tries := 0
		w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.FailItems(embedded.ItemError{Status: 500, Type: "null_pointer_exception", Reason: "null"},
			func(a embedded.Action) bool {
				if string(a.ID) != "bad" {
					return false
				}
				tries++ // the id is in one request at a time
				return true
			})})
		bad := record("bad", 1)
		all := append(records(50), bad)
		all = append(all, records(100)[50:]...)
		p := w.begin("indexer: {flush_documents: 20, retry: {item_attempts: 4, initial: 5ms, max: 10ms}}", validate)
		w.runFates(p, map[*kgo.Record]fate{bad: returned(500, "null_pointer_exception")}, all...)
		if _, facts := splitLetter(w.letters()[0]); tries != 4 || facts["attempts"] != "4" {
			t.Errorf("%d tries, and the dead letter says %s, want 4", tries, facts["attempts"])
		}
	})
}

// V39: documents that add fields beyond the index's limit are dead-lettered, the
// others are not. Where that is more than a share of them, the target is held
// instead, with one alarm, until an operator has mended it.
func TestV39_FieldLimit(t *testing.T) {
	limit := func(w *world, fields int) {
		w.must(http.MethodPut, "/"+index, fmt.Sprintf(`{"settings":{"index.mapping.total_fields.limit":%d},"mappings":{"properties":{"n":{"type":"long"}}}}`, fields))
	}
	newField := func(i int) *kgo.Record {
		return &kgo.Record{Key: fmt.Appendf(nil, "new-%d", i), Value: fmt.Appendf(nil, `{"field%d":1}`, i)}
	}
	t.Run("few", func(t *testing.T) {
		eachValidate(t, func(t *testing.T, _ bool, validate change) {
			w := newWorld(t, worldOptions{partitions: 2})
			limit(w, 1+10)
			w.effect = nil // which of them come first is not known
			const n, more = 1500, 30
			all := records(n)
			for i := range more {
				all = append(all, newField(i))
			}
			w.produce(all...)
			p := w.begin("indexer: {flush_documents: 300}", validate)
			w.awaitDone(p)
			if indexed, letters := p.outcomes("indexed"), p.outcomes("dead_lettered"); indexed != n+10 || letters != more-10 {
				t.Errorf("%d indexed and %d dead-lettered, want %d and %d", indexed, letters, n+10, more-10)
			}
			for _, l := range w.letters() {
				if _, facts := splitLetter(l); facts["type"] != parsing || !strings.Contains(facts["reason"], "Limit of total fields [11]") {
					t.Errorf("%s: %s", facts["type"], facts["reason"])
				}
				if _, _, found := w.es.Get(index, string(l.Key)); found {
					t.Errorf("%s is both dead-lettered and indexed", l.Key)
				}
			}
			if docs := w.es.Count(index); docs != n+10 {
				t.Errorf("%d documents, want %d", docs, n+10)
			}
			if h := p.App.Health(); !h.OK() {
				t.Errorf("%+v", h)
			}
		})
	})
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{partitions: 2})
		limit(w, 1+10)
		w.effect = nil
		const n = 2500
		var all []*kgo.Record
		for i := range n {
			all = append(all, newField(i))
		}
		w.produce(all...)
		p := w.begin("indexer: {flush_documents: 300}")
		if reason := p.awaitHold(index); reason != "too_many_rejections" {
			t.Errorf("held for %s", reason)
		}
		if p.App.Health().OK() {
			t.Error("health is good while a target is held")
		}
		w.await("what was on the wire", func() error {
			if s := p.App.Status().(app.Status); s.Indexer.InFlight != 0 || s.DeadLetters.Waiting != 0 {
				return fmt.Errorf("%d requests, %d letters", s.Indexer.InFlight, s.DeadLetters.Waiting)
			}
			return nil
		}, p)
		// It takes a thousand answers to know.
		held := p.outcomes("dead_lettered")
		if held > 1000 || w.lag(topic) < n-1000-10 {
			t.Errorf("%d dead letters, lag %d: the topic is emptied into the dead letters", held, w.lag(topic))
		}
		w.must(http.MethodPut, "/"+index+"/_settings", `{"index.mapping.total_fields.limit":100000}`)
		if !p.App.Release(index) {
			t.Error("there is nothing to release")
		}
		w.awaitDone(p)
		indexed, letters := p.outcomes("indexed"), p.outcomes("dead_lettered")
		if indexed+letters != n || letters != len(w.letters()) || indexed != w.es.Count(index) || letters != held {
			t.Errorf("%d indexed, %d dead-lettered; %d documents, %d letters", indexed, letters, w.es.Count(index), len(w.letters()))
		}
		if alarms := strings.Count(p.log.String(), "target held"); alarms != 1 {
			t.Errorf("%d alarms, want 1", alarms)
		}
	})
}

// deep is a document of so many levels.
func deep(levels int) *kgo.Record {
	return value(strings.Repeat(`{"a":`, levels-1) + "{}" + strings.Repeat("}", levels-1))
}

// V40: what is nested deeper than Elasticsearch takes is dead-lettered by its
// answer, or earlier by max_depth; a hundred thousand levels hurt nobody.
func TestV40_Depth(t *testing.T) {
	tryDocuments(t, `{}`, "", []documentCase{
		{"20 levels", deep(20), asIs, asIs},
		{"21 levels", deep(21), returned(400, parsing), returned(400, parsing)},
		{"200 levels", deep(200), returned(400, parsing), returned(400, parsing)},
		{"201 levels", deep(201), returned(400, parsing), refused("too_deep")},
		{"1,000 levels", deep(1000), returned(400, parsing), refused("too_deep")},
		{"100,000 levels", deep(100_000), returned(400, parsing), refused("too_deep")},
		{"100,000 arrays", value(`{"b":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`), returned(400, parsing), refused("too_deep")},
		{"100,000 lines", value(strings.Repeat("{\"a\":\n", 100_000) + "{}" + strings.Repeat("}", 100_000)), refused("too_deep"), refused("too_deep")},
	})
}

// V41: field names that nobody expects: each record ends indexed or
// dead-lettered.
func TestV41_FieldNames(t *testing.T) {
	tryDocuments(t, `{}`, "", []documentCase{
		{"empty", value(`{"":1}`), returned(400, parsing), refused("bad_field_name")},
		{"blank", value(`{" ":1}`), returned(400, parsing), refused("bad_field_name")},
		{"dot first", value(`{".a":1}`), returned(400, parsing), refused("bad_field_name")},
		{"dots only", value(`{"..":1}`), returned(400, parsing), refused("bad_field_name")},
		{"two dots", value(`{"a..b":1}`), returned(400, parsing), refused("bad_field_name")},
		{"blank level", value(`{"a. .b":1}`), returned(400, parsing), refused("bad_field_name")},
		{"escaped dot", value(`{"a\u002e\u002eb":1}`), returned(400, parsing), refused("bad_field_name")},
		{"dot last", value(`{"a.":1}`), asIs, asIs},
		{"empty, further down", value(`{"c":{"":1}}`), returned(400, parsing), returned(400, parsing)},
		{"object beside a value", value(`{"d":1,"d.e":2}`), returned(400, "illegal_argument_exception"), returned(400, "illegal_argument_exception")},
		{"twice", value(`{"f":1,"f":2}`), returned(400, parsing), returned(400, parsing)},
		{"with dots", value(`{"g.h":1,"g":{"i":2}}`), asIs, asIs},
	})
}

// V42: a metadata name inside the document is dead-lettered, or taken out where
// that is configured; the other bytes stay.
func TestV42_MetadataNames(t *testing.T) {
	t.Run("reject", func(t *testing.T) {
		tryDocuments(t, `{"dynamic":false}`, "", []documentCase{
			{"_id", value(`{"a":1,"_id":"x"}`), returned(400, parsing), refused("metadata_field")},
			{"_index", value(`{"_index":"other","a":1}`), returned(400, parsing), refused("metadata_field")},
			{"_source", value(`{"_source":{"a":1}}`), returned(400, parsing), refused("metadata_field")},
			{"_routing", value(`{"_routing":"r"}`), returned(400, parsing), refused("metadata_field")},
			{"escaped", value(`{"\u005fid":"x"}`), returned(400, parsing), refused("metadata_field")},
			{"further down", value(`{"a":{"_id":"x"}}`), asIs, asIs},
			{"_type", value(`{"_type":"x"}`), asIs, asIs},
		})
	})
	t.Run("strip", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		w.mapping(`{"dynamic":false}`)
		fates := map[*kgo.Record]fate{}
		var all []*kgo.Record
		for i, c := range []struct{ value, stored string }{
			{`{"a": 1, "_id":"x"}`, `{"a": 1}`},
			{`{"_id":"x","_index":"other"}`, `{}`},
			{`{"_source":{"a":[1,{"b":2}]}, "c": "_id"}`, `{"c": "_id"}`},
			{`{"a":{"_id":"x"}}`, `{"a":{"_id":"x"}}`},
		} {
			r := value(c.value)
			r.Key = fmt.Appendf(nil, "k%d", i)
			fates[r] = storedAs(c.stored)
			all = append(all, r)
		}
		w.runFates(w.begin("documents: {validate: strict, metadata_fields: strip}"), fates, all...)
	})
}

// V43: a document that does not fit the mapping becomes a dead letter with all
// that the record had, and says which field to mend without quoting its value.
func TestV43_MappingConflict(t *testing.T) {
	headers := []kgo.RecordHeader{{Key: "trace", Value: []byte{0, 255}}, {Key: "trace", Value: nil}, {Key: "sluice.topic", Value: []byte("mine")}, {Key: "", Value: []byte{}}}
	with := func(v string) *kgo.Record { return &kgo.Record{Value: []byte(v), Headers: headers} }
	conflict := func(reason string) fate { return returned(400, parsing).because(reason) }
	number, date, object := conflict("failed to parse field [n] of type [long]"), conflict("failed to parse field [d] of type [date]"), conflict("object mapping for [o] tried to parse field [o] as object")
	strict := returned(400, "strict_dynamic_mapping_exception").because("dynamic introduction of [more] within [closed] is not allowed")
	tryDocuments(t, `{"properties":{"n":{"type":"long"},"d":{"type":"date"},"o":{"properties":{"x":{"type":"keyword"}}},"closed":{"dynamic":"strict","properties":{}}}}`, "", []documentCase{
		{"text for a number", with(`{"n":"` + secret + `"}`), number, number},
		{"object for a number", with(`{"n":{"` + secret + `":1}}`), number, number},
		{"no date", with(`{"d":"` + secret + `"}`), date, date},
		{"text for an object", with(`{"o":"` + secret + `"}`), object, object},
		{"strict mapping", with(`{"closed":{"more":"` + secret + `"}}`), strict, strict},
		{"pretty", with("{\n\"n\":\n\"" + secret + "\"}"), number, number},
		{"what fits", with(`{"n":"7","d":"2026-01-02","o":{"x":"` + secret + `"}}`), asIs, asIs},
	})
}

// V44: JSON that is no object is dead-lettered, and the partition moves on.
func TestV44_NoObject(t *testing.T) {
	var cases []documentCase
	for _, v := range []string{`1`, `"x"`, `null`, `true`, `[]`, `[{}]`, `text`, `//`} {
		cases = append(cases, documentCase{v, value(v), refused("not_an_object"), refused("not_an_object")})
	}
	for _, v := range []string{`{`, `{"a":1`, `{"a":`, `{"a":1}]`, "{\n"} {
		cases = append(cases, documentCase{v, value(v), refused("invalid_json"), refused("invalid_json")})
	}
	cases = append(cases, documentCase{"cut inside", value(`{"a":{"b":1}`), returned(400, parsing), refused("invalid_json")})
	tryDocuments(t, `{"dynamic":false}`, "", cases)
}

// V45: whatever a customer is called, its documents go to an index of its own
// that the server takes; a name that cannot be made is dead-lettered.
func TestV45_IndexNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	customers := []string{
		"acme", "ACME", "Acme", "a c", "a,c", "a#c", "*", "a*", "_a", "-a", "+a", ".", "..", "a.", "é", "e\u0301", "É", "\xff", "a/b", `a\b`, "a=b",
		"a=2fb", "a:b", "\"", "<a>", "a|b", "?", "%2f", "\x00", "\n", strings.Repeat("a", 248), strings.Repeat("é", 41),
	}
	fates := map[*kgo.Record]fate{}
	var all []*kgo.Record
	add := func(f fate, headers ...kgo.RecordHeader) {
		r := record(fmt.Sprintf("k%d", len(all)), len(all))
		r.Headers = headers
		all = append(all, r)
		fates[r] = f
	}
	customer := func(name string) kgo.RecordHeader { return kgo.RecordHeader{Key: "customer", Value: []byte(name)} }
	for _, c := range customers {
		add(asIs, customer(c))
	}
	add(refused("index_name_too_long"), customer(strings.Repeat("a", 249)))
	add(refused("index_name_too_long"), customer(strings.Repeat("A", 83)))
	add(refused("no_customer"), customer(""))
	add(refused("no_customer"))
	w.effect = nil // the names are the program's own affair
	w.produce(all...)
	p := w.begin(byCustomer)
	w.awaitDone(p)
	w.checkLetters(fates)
	byDocument := map[string]string{}
	for _, name := range w.es.Indices() {
		if name == control {
			continue
		}
		if docs := w.documents(name); len(docs) != 1 || !strings.HasPrefix(name, "events-") {
			t.Errorf("%s holds %d documents, want one customer's one", name, len(docs))
		}
		for id := range w.documents(name) {
			byDocument[id] = name
		}
	}
	if len(byDocument) != len(customers) {
		t.Errorf("%d customers have an index, want %d", len(byDocument), len(customers))
	}
	if byDocument["k0"] != "events-acme" || byDocument["k30"] != "events-"+customers[30] {
		t.Errorf("names without need for it are changed: %s", byDocument["k0"])
	}
	for _, name := range []string{"Events", "a b", "a*", "a,b", "a#b", "_a", "-a", "+a", ".", "..", strings.Repeat("a", 256), "${customer}", "${customer}-events"} {
		source := config.Source{Name: "test", Data: fmt.Appendf(nil, `documents: {index: %q, customer: "header:c"}`, name)}
		cfg, err := config.Parse([]config.Source{source}, nil, nil)
		if err == nil {
			t.Errorf("%.20q is taken for an index name: %q", name, cfg.Documents.Index)
		}
	}
}

// V46: a record whose time is far from now makes no index named by it.
func TestV46_WildTimestamps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	now := time.Now()
	at := func(key string, when time.Time) *kgo.Record {
		r := record(key, 1)
		r.Timestamp = when
		return r
	}
	outside := refused("outside_time_window")
	fates := map[*kgo.Record]fate{
		at("none", time.UnixMilli(-1)):                          outside,
		at("1970", time.UnixMilli(0)):                           outside,
		at("seconds", time.UnixMilli(now.Unix())):               outside, // a time in seconds, taken for milliseconds
		at("too old", now.Add(-366*24*time.Hour)):               outside,
		at("too new", now.Add(25*time.Hour)):                    outside,
		at("in ten years", now.AddDate(10, 0, 0)):               outside,
		at("2200", time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)): outside,
		at("now", now):                           asIs,
		at("yesterday", now.AddDate(0, 0, -1)):   asIs,
		at("last month", now.AddDate(0, 0, -30)): asIs,
		at("tomorrow", now.Add(23*time.Hour)):    asIs,
	}
	day := func(r *kgo.Record) string { return "events-" + r.Timestamp.UTC().Format("2006-01-02") }
	w.effect = func(r *kgo.Record) embedded.Effect {
		return embedded.Effect{Index: day(r), ID: string(r.Key), Version: sequence(r)}
	}
	w.produce(slices.Collect(maps.Keys(fates))...)
	p := w.begin(`documents: {index: "events-${timestamp:2006-01-02}"}`)
	w.awaitDone(p)
	w.checkLetters(fates)
	want := map[string]bool{control: true}
	for r, f := range fates {
		if f != asIs {
			continue
		}
		want[day(r)] = true
		if source, version, _ := w.es.Get(day(r), string(r.Key)); string(source) != string(r.Value) || version != sequence(r) {
			t.Errorf("%s is %q, version %d", r.Key, source, version)
		}
	}
	if got := w.es.Indices(); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Errorf("indices %v, want %v", got, slices.Sorted(maps.Keys(want)))
	}
}

// V46: more new time-named indices than the hour has room for wait, with an
// alarm, while those that exist go on; nothing is lost.
func TestV46_NewIndicesPerHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2})
	name := func(when time.Time) string { return "events-" + when.UTC().Format("2006-01-02") }
	w.effect = func(r *kgo.Record) embedded.Effect {
		return embedded.Effect{Index: name(r.Timestamp), ID: string(r.Key), Version: sequence(r)}
	}
	const days, allowed, each = 5, 2, 20
	now := time.Now()
	w.must(http.MethodPut, "/"+name(now), "") // exists
	var all []*kgo.Record
	for i := range days * each {
		r := record(fmt.Sprint("k", i), i)
		r.Timestamp = now.AddDate(0, 0, -(i % days))
		all = append(all, r)
	}
	w.produce(all...)
	p := w.begin(fmt.Sprintf(`documents: {index: "events-${timestamp:2006-01-02}", time_window: {new_indices_per_hour: %d}}`, allowed))
	docs := func() (n int) {
		for day := range days {
			n += w.es.Count(name(now.AddDate(0, 0, -day)))
		}
		return n
	}
	w.await("what there is room for", func() error {
		held := p.App.Health().Held
		if n := docs(); n != (1+allowed)*each || len(held) != days-1-allowed {
			return fmt.Errorf("%d documents, held are %+v", n, held)
		}
		return nil
	}, p)
	for _, h := range p.App.Health().Held {
		if h.Reason != "new_indices_per_hour" {
			t.Errorf("%s is held for %s", h.Target, h.Reason)
		}
		if slices.Contains(w.es.Indices(), h.Target) {
			t.Errorf("%s was made all the same", h.Target)
		}
		p.App.Release(h.Target)
	}
	w.awaitDone(p)
	for day := range days {
		want := map[string]versioned{}
		for _, r := range w.log {
			if when := now.AddDate(0, 0, -day); name(r.Timestamp) == name(when) {
				want[string(r.Key)] = versioned{string(r.Value), sequence(r)}
			}
		}
		w.checkVersioned(name(now.AddDate(0, 0, -day)), want)
	}
	w.checkLetters(nil)
}
