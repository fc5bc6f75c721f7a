package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// table is a routing table: a write mode, W0 to W3, over the legacy index "old"
// and one index for each first letter of a customer.
type table int

func (w table) Route(customer []byte) partition.Route {
	to := partition.Route{Legacy: w.Legacy(), Shadow: w == 1}
	if w > 0 {
		to.New = newIndices[customer[0]&7]
	}
	return to
}

var newIndices = [8]string{"new-0", "new-1", "new-2", "new-3", "new-4", "new-5", "new-6", "new-7"}

func (w table) Legacy() string {
	if w == 3 {
		return ""
	}
	return "old"
}

// routed returns the rules of topic t in a stream that is routed by w.
func routed(tb testing.TB, cfg Config, w Router) (*Mapper, *Rules) {
	tb.Helper()
	cfg.Index = "old"
	m, err := New(cfg, nil, nil, true)
	if err != nil {
		tb.Fatal(err)
	}
	m.Use(w)
	return m, m.Rules("t")
}

// renderSides writes a result with its sides.
func renderSides(out *Result) string {
	s := render(out)
	if out.Side != SideNone {
		s = string(out.Side) + ": " + s
	}
	if out.Twin.Op != 0 {
		twin := Result{Verdict: Send, Action: out.Twin, Tombstone: out.TwinTombstone, Ordered: out.Ordered}
		s += " + new: " + render(&twin)
	}
	return s
}

// TestRoute is the golden table of DESIGN 8: which sides a write needs.
func TestRoute(t *testing.T) {
	customer := Config{ID: "key", Customer: "header:c"}
	with := func(change func(*Config)) Config {
		cfg := customer
		change(&cfg)
		return cfg
	}
	const (
		doc  = `id=k external=g1/7 customer=A ordered {}`
		del  = `id=k external=g1/7 customer=A ordered`
		tomb = `id=k external=g1/7 pipeline=_none customer=A ordered changed tombstone {"_sluice_deleted":true,"_sluice_deleted_at":1700000000123}`
	)
	other := func(s string) string { // of a twin, which has neither customer nor change of its own
		return strings.NewReplacer(" customer=A", "", " changed", "").Replace(s)
	}
	for _, c := range []struct {
		name string
		cfg  Config
		mode table
		rec  *kgo.Record
		want string
	}{
		{"W0", customer, 0, record("k", `{}`, "c", "A"), "legacy: index old " + doc},
		{"W1", customer, 1, record("k", `{}`, "c", "A"), "legacy: index old " + doc + " + new: index new-1 " + other(doc)},
		{"W2", customer, 2, record("k", `{}`, "c", "A"), "legacy: index old " + doc + " + new: index new-1 " + other(doc)},
		{"W3", customer, 3, record("k", `{}`, "c", "A"), "new: index new-1 " + doc},

		{"W0, delete", customer, 0, record("k", nil, "c", "A"), "legacy: delete old " + del},
		{"W1, delete", customer, 1, record("k", nil, "c", "A"), "legacy: delete old id=k external=g1/7 customer=A ordered changed + new: index new-1 " + other(tomb)},
		{"W2, delete", customer, 2, record("k", nil, "c", "A"), "legacy: delete old " + del + " + new: delete new-1 " + other(del)},
		{"W3, delete", customer, 3, record("k", nil, "c", "A"), "new: delete new-1 " + del},
		{"W1, tombstones", with(func(c *Config) { c.Deletes = "tombstone" }), 1, record("k", nil, "c", "A"), "legacy: index old " + tomb + " + new: index new-1 " + other(tomb)},
		{"W2, tombstones", with(func(c *Config) { c.Deletes = "tombstone" }), 2, record("k", nil, "c", "A"), "legacy: index old " + tomb + " + new: index new-1 " + other(tomb)},

		{
			"alias", with(func(c *Config) { c.RequireAlias = true; c.Pipeline = "p"; c.Routing = "key" }), 2, record("k", `{}`, "c", "A"),
			"legacy: index old id=k external=g1/7 routing=k pipeline=p customer=A alias ordered {} + new: index new-1 id=k external=g1/7 routing=k pipeline=p ordered {}",
		},
		{"W3, alias", with(func(c *Config) { c.RequireAlias = true }), 3, record("k", `{}`, "c", "A"), "new: index new-1 " + doc},

		{"no customer", customer, 1, record("k", `{}`), "dead_letter no_customer"},
		{"no customer, delete", customer, 1, record("k", nil), "dead_letter no_customer"},
		{"empty customer", customer, 1, record("k", `{}`, "c", ""), "dead_letter no_customer"},
		{"customer not UTF-8", customer, 1, record("k", `{}`, "c", "\xb8"), "dead_letter bad_customer"},
		{"customer too long", customer, 3, record("k", `{}`, "c", strings.Repeat("c", partition.MaxCustomer+1)), "dead_letter bad_customer"},
		{"no customer, dropped", with(func(c *Config) { c.OnRejected = "drop" }), 1, record("k", `{}`), "dead_letter no_customer"},
		{"legacy for those without", with(func(c *Config) { c.OnNoCustomer = "legacy" }), 1, record("k", `{}`), "legacy: index old id=k external=g1/7 ordered {}"},
		{"legacy, delete", with(func(c *Config) { c.OnNoCustomer = "legacy" }), 2, record("k", nil), "legacy: delete old id=k external=g1/7 ordered"},
		{"legacy, bad customer", with(func(c *Config) { c.OnNoCustomer = "legacy" }), 0, record("k", `{}`, "c", "\xb8"), "legacy: index old id=k external=g1/7 customer=\xb8 ordered {}"},
		{"no legacy in W3", with(func(c *Config) { c.OnNoCustomer = "legacy" }), 3, record("k", `{}`), "dead_letter no_customer"},

		{"key pattern", Config{ID: "key", Customer: `key:^([a-z]+)/`}, 3, record("acme/1", `{}`), "new: index new-1 id=acme/1 external=g1/7 customer=acme ordered {}"},
		{"key pattern, no match", Config{ID: "key", Customer: `key:^([a-z]+)/`}, 3, record("1", `{}`), "dead_letter no_customer"},
		{"field", Config{ID: "key", Customer: "field:/c/0", OnNull: "ignore"}, 3, record("k", `{"c":["\u0041"]}`), `new: index new-1 ` + strings.Replace(doc, "{}", `{"c":["\u0041"]}`, 1)},
		{"not JSON", Config{ID: "key", Customer: "field:/c", OnNull: "ignore"}, 3, record("k", `{"c" 1}`), `reject invalid_json`},
		{"ignored", with(func(c *Config) { c.OnNull = "ignore" }), 1, record("k", nil), "ignore null_value"},
	} {
		var out Result
		_, r := routed(t, c.cfg, c.mode)
		r.Map(c.rec, 1, &out)
		if got := renderSides(&out); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		// Nothing of it is left in the next.
		plain := mustRules(t, Config{Index: "e"})
		plain.Map(record("k", `{}`), 1, &out)
		if got := renderSides(&out); got != "index e id=k external=g1/7 ordered {}" || out.Twin.ID != nil || out.TwinTombstone {
			t.Errorf("%s, then another: %s", c.name, got)
		}
	}
}

// No record is written by a guess: a stream that is routed waits for its table.
func TestNoTableHalts(t *testing.T) {
	m, r := routed(t, Config{ID: "key", Customer: "key"}, nil)
	var out Result
	r.Map(record("k", `{}`), 1, &out)
	if got := renderSides(&out); got != "halt no_routing_table" {
		t.Errorf("%s", got)
	}
	m.Use(table(3))
	r.Map(record("k", `{}`), 1, &out)
	if out.Verdict != Send {
		t.Errorf("with a table: %s", renderSides(&out))
	}
}

// S28: a customer that changes is counted, and each customer's index has its
// own copy.
func TestCustomerOfAnIDChanges(t *testing.T) {
	m, r := routed(t, Config{ID: "key", Customer: "header:c"}, table(3))
	var out Result
	for i, step := range []struct {
		key, customer, index string
		changes              uint64
	}{
		{"a", "A", "new-1", 0},
		{"a", "A", "new-1", 0},
		{"b", "B", "new-2", 0},
		{"a", "B", "new-2", 1},
		{"a", "B", "new-2", 1},
		{"b", "B", "new-2", 1},
		{"a", "A", "new-1", 2},
	} {
		r.Map(record(step.key, `{}`, "c", step.customer), 1, &out)
		if out.Action.Target != step.index || m.CustomerChanges() != step.changes {
			t.Errorf("step %d: %s, %d changes, want %+v", i, out.Action.Target, m.CustomerChanges(), step)
		}
	}
}

// S27: a null value has no field to take its customer from.
func TestNullNeedsACustomerOfItsOwn(t *testing.T) {
	for _, cfg := range []Config{
		{ID: "key", Customer: "field:/c"},
		{Customer: "field:/c"},
		{ID: "header:id", Customer: "field:/c"},
	} {
		cfg.Index = "old"
		if _, err := New(cfg, nil, nil, true); strings.Join(configErrors(t, err), " ") != "documents.customer" {
			t.Errorf("%+v: %v", cfg, err)
		}
		for _, onNull := range []string{"ignore", "fail", "dead_letter"} {
			cfg.OnNull = onNull
			if _, err := New(cfg, nil, nil, true); err != nil {
				t.Errorf("on_null %s: %v", onNull, err)
			}
		}
	}
}

func TestCheckRouting(t *testing.T) {
	base := Config{Index: "old", ID: "key", Customer: "key"}
	override := func(change func(*Config)) []Override {
		cfg := base
		change(&cfg)
		return []Override{{Topics: []string{"t"}, Documents: cfg}}
	}
	for _, c := range []struct {
		cfg       Config
		overrides []Override
		want      string
	}{
		{base, nil, ""},
		{base, override(func(c *Config) { c.Customer = "header:c" }), ""},
		{Config{Index: "old"}, nil, "documents.customer"},
		{Config{Index: "old-${customer}", Customer: "key"}, nil, "documents.index"},
		{Config{Index: "old", Customer: "key", DataStream: true}, nil, "documents.data_stream"},
		{base, override(func(c *Config) { c.Index = "older" }), "overrides[0].documents.index"},
		{base, override(func(c *Config) { c.Customer = "" }), "overrides[0].documents.customer"},
	} {
		m, err := New(c.cfg, c.overrides, nil, true)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(configErrors(t, m.CheckRouting()), " "); got != c.want {
			t.Errorf("%+v %+v: %q, want %q", c.cfg, c.overrides, got, c.want)
		}
	}
}

// checkCustomer holds the customer of a document against what encoding/json
// reads at the pointer: a string's text, a number or truth value as written,
// nothing for all else.
func checkCustomer(t *testing.T, doc []byte, ptr string) {
	t.Helper()
	m, err := New(Config{Index: "old", ID: "header:id", Customer: "field:" + ptr, OnNull: "ignore"}, nil, nil, true)
	if err != nil {
		return // no pointer
	}
	m.Use(table(2))
	rec := record("k", string(doc), "id", "1")
	var out Result
	m.Rules("t").Map(rec, 1, &out)
	if !json.Valid(doc) || !utf8.Valid(doc) || halfSurrogate(doc) || doc[0] != '{' {
		return // only that it ends well is asked
	}
	want := customerOf(t, doc, ptr)
	switch {
	case want == "":
		if got := renderSides(&out); got != "dead_letter no_customer" {
			t.Fatalf("%q at %q: %s", doc, ptr, got)
		}
	case len(want) > partition.MaxCustomer:
		if got := renderSides(&out); got != "dead_letter bad_customer" {
			t.Fatalf("%q at %q: %s", doc, ptr, got)
		}
	case out.Verdict != Send || string(out.Customer) != want:
		t.Fatalf("%q at %q: %s, want %q", doc, ptr, renderSides(&out), want)
	case out.Twin.Target != newIndices[want[0]&7] || !bytes.Equal(out.Twin.Body, out.Action.Body):
		t.Fatalf("%q at %q: %s", doc, ptr, renderSides(&out))
	}
}

// customerOf reads with encoding/json what checkCustomer wants; "": nothing.
func customerOf(t *testing.T, doc []byte, ptr string) string {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	for token := range strings.SplitSeq(ptr[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch in := v.(type) {
		case map[string]any:
			v = in[token]
		case []any:
			i, err := strconv.ParseUint(token, 10, 31)
			if err != nil || strconv.FormatUint(i, 10) != token || int(i) >= len(in) {
				return ""
			}
			v = in[i]
		default:
			return ""
		}
	}
	switch v := v.(type) {
	case string:
		return v
	case json.Number, bool:
		return fmt.Sprint(v)
	}
	return ""
}

func FuzzCustomer(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), "/a")
		f.Add([]byte(s), "/a/b/0")
	}
	f.Add([]byte(`{"\u0061":{"b":[-1.50e+07]},"a":{"b":["x\ud83d\ude00\/"]}}`), "/a/b/0")
	f.Fuzz(checkCustomer)
}

func TestCustomerAgreesWithEncodingJSON(t *testing.T) {
	tokens := []string{"a", "b", "~0~1", "0", "1", `"`, `\`, "é😀", ""}
	rapid.Check(t, func(rt *rapid.T) {
		path := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(tokens), 1, 4).Draw(rt, "path"), "/")
		doc := document(rt)
		checkCustomer(t, doc, path)
		// The path to a customer of any kind, behind what the document has.
		leaf := rapid.OneOf(rapid.SampledFrom([]string{"0", "-0.0", "1E5", "12345678901234567890.10", "true", "null", "{}", "[]"}), rapid.Custom(func(rt *rapid.T) string {
			text, err := json.Marshal(rapid.String().Draw(rt, "text"))
			if err != nil {
				rt.Fatal(err)
			}
			return string(text)
		})).Draw(rt, "leaf")
		for token := range slices.Values(reversed(path)) {
			name, err := json.Marshal(strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~"))
			if err != nil {
				rt.Fatal(err)
			}
			if token != "" && rapid.Bool().Draw(rt, "escaped") {
				r, n := utf8.DecodeRuneInString(token)
				if r < 0x10000 && r != '~' {
					name = fmt.Appendf(nil, `"\u%04x%s`, r, bytes.TrimPrefix(name[1:], []byte(token[:n])))
				}
			}
			leaf = "{" + string(name) + ":" + leaf + "}"
		}
		if len(doc) > 2 && doc[0] == '{' {
			doc = slices.Concat(doc[:len(doc)-1], []byte(","), []byte(leaf[1:]))
			checkCustomer(t, doc, path)
		}
	})
}

func reversed(path string) []string {
	tokens := strings.Split(path[1:], "/")
	slices.Reverse(tokens)
	return tokens
}

// routedRules are the rules whose Map must not allocate, and cost at most a
// tenth more than plain ones: see BenchmarkRoute.
var routedRules = []struct {
	name string
	cfg  Config
	mode table
}{
	{"W0", Config{ID: "key", Customer: "header:c"}, 0},
	{"W1", Config{ID: "key", Customer: "header:c"}, 1},
	{"W3", Config{ID: "key", Customer: "header:c"}, 3},
	{"W3 by key", Config{ID: "key", Customer: "key"}, 3},
	{"W3 by field", Config{ID: "key", Customer: "field:/id", OnNull: "ignore"}, 3},
}

func TestRoutingDoesNotAllocate(t *testing.T) {
	rec := benchRecord()
	null := benchRecord()
	null.Value = nil
	for _, c := range routedRules {
		_, r := routed(t, c.cfg, c.mode)
		for _, rec := range []*kgo.Record{rec, null} {
			var out Result
			n := testing.AllocsPerRun(100, func() { r.Map(rec, 1, &out) })
			if out.Verdict != Send && c.cfg.OnNull == "" {
				t.Errorf("%s: %s", c.name, renderSides(&out))
			}
			if n != 0 {
				t.Errorf("%s: %v allocations a record", c.name, n)
			}
		}
	}
}

// BenchmarkRoute is what routing adds to a record on its way into a request:
// mapped and encoded.
func BenchmarkRoute(b *testing.B) {
	run := func(name string, r *Rules) {
		b.Run(name, func(b *testing.B) {
			rec := benchRecord()
			var out Result
			var wire []byte
			b.ReportAllocs()
			for b.Loop() {
				r.Map(rec, 1, &out)
				wire = bulk.Append(wire[:0], &out.Action)
				if out.Twin.Op != 0 {
					wire = bulk.Append(wire[:0], &out.Twin)
				}
			}
		})
	}
	run("not routed", mustRules(b, Config{Index: "old", ID: "key"}))
	run("not routed, id by field", mustRules(b, Config{Index: "old", ID: "field:/id"}))
	for _, c := range routedRules {
		t := partition.New("events", "old")
		t.Write, t.Job = partition.Mode(c.mode), "j1" //nolint:gosec // 0 to 3
		t.Partitions = map[string]partition.Partition{}
		for i := range t.Slots {
			name := fmt.Sprintf("p%03d", i%24)
			t.Partitions[name] = partition.Partition{Index: "events-" + name, State: partition.Active}
			t.SlotMap = append(t.SlotMap, name)
		}
		_, r := routed(b, c.cfg, partition.NewRouter(t, partition.CacheOptions{}))
		run(c.name, r)
	}
}
