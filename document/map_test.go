package document

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// render writes a result as one line, for the golden tables.
func render(out *Result) string {
	verdict := map[Verdict]string{Send: "send", Ignore: "ignore", Reject: "reject", DeadLetter: "dead_letter", Halt: "halt"}[out.Verdict]
	if out.Verdict != Send {
		if out.Action.Op != 0 || out.Reason == "" {
			return fmt.Sprintf("inconsistent: %+v", out)
		}
		return verdict + " " + out.Type
	}
	a := &out.Action
	s := map[bulk.Op]string{bulk.Index: "index", bulk.Create: "create", bulk.Update: "update", bulk.Upsert: "upsert", bulk.Delete: "delete"}[a.Op] + " " + a.Target
	if a.ID != nil {
		s += " id=" + string(a.ID)
	}
	if a.VersionType != bulk.Internal || a.Version != 0 {
		version := fmt.Sprint(a.Version)
		if g, o, _, ok := DecodeSequence(a.Version); ok {
			version = fmt.Sprintf("g%d/%d", g, o)
		}
		s += map[bulk.VersionType]string{bulk.Internal: " internal=", bulk.External: " external=", bulk.ExternalGTE: " gte="}[a.VersionType] + version
	}
	if a.Routing != nil {
		s += " routing=" + string(a.Routing)
	}
	if a.Pipeline != "" {
		s += " pipeline=" + a.Pipeline
	}
	if out.Customer != nil {
		s += " customer=" + string(out.Customer)
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{{a.RequireAlias, "alias"}, {out.Ordered, "ordered"}, {out.Changed, "changed"}, {out.Tombstone, "tombstone"}} {
		if flag.set {
			s += " " + flag.name
		}
	}
	if a.Body != nil {
		s += " " + string(a.Body)
	}
	return s
}

// record is the record of the golden tables: topic t, partition 3, offset 7.
func record(key, value any, headers ...string) *kgo.Record {
	rec := &kgo.Record{Topic: "t", Partition: 3, Offset: 7, Timestamp: time.UnixMilli(1_700_000_000_123)}
	if k, ok := key.(string); ok {
		rec.Key = []byte(k)
	}
	if v, ok := value.(string); ok {
		rec.Value = []byte(v)
	}
	for i := 0; i < len(headers); i += 2 {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return rec
}

// TestMap is the golden table of DESIGN 5.1.
func TestMap(t *testing.T) {
	long := strings.Repeat("k", 513)
	for _, c := range []struct {
		name       string
		cfg        Config // Index is "e" where it is empty
		rec        *kgo.Record
		generation int // 1 where it is 0
		want       string
	}{
		// Ids.
		{"auto", Config{}, record("k", `{"a":1}`), 0, `index e id=k external=g1/7 ordered {"a":1}`},
		{"auto, later generation", Config{}, record("k", `{}`), 5, `index e id=k external=g5/7 ordered {}`},
		{"auto without key", Config{}, record(nil, `{}`), 1, `create e id=t+3+7 {}`},
		{"auto without key, later generation", Config{}, record(nil, `{}`), 2, `create e id=t+g2+3+7 {}`},
		{"auto without key, op index", Config{Op: "index"}, record(nil, `{}`), 2, `index e id=t+g2+3+7 external=g2/7 {}`},
		{"key", Config{ID: "key"}, record("k", `{}`), 0, `index e id=k external=g1/7 ordered {}`},
		{"key, absent", Config{ID: "key"}, record(nil, `{}`), 0, `reject no_id`},
		{"key, empty", Config{ID: "key"}, record("", `{}`), 0, `reject no_id`},
		{"key, not UTF-8", Config{}, record("\xb8", `{}`), 0, `reject id_not_utf8`},
		{"key, half a surrogate pair", Config{}, record("\xed\xa0\x80", `{}`), 0, `reject id_not_utf8`},
		{"key, control characters", Config{}, record("a\n\"b", `{}`), 0, "index e id=a\n\"b external=g1/7 ordered {}"},
		{"position", Config{ID: "position"}, record("k", `{}`), 1, `create e id=t+3+7 {}`},
		{"field", Config{ID: "field:/a/b", OnNull: "ignore"}, record("k", `{"a":{"b":"x\u0020y"}}`), 0, `index e id=x y external=g1/7 ordered {"a":{"b":"x\u0020y"}}`},
		{"field, number", Config{ID: "field:/a"}, record("k", `{"a":1.50}`), 0, `index e id=1.50 external=g1/7 ordered {"a":1.50}`},
		{"field, in a list", Config{ID: "field:/a/1"}, record("k", `{"a":[1,true]}`), 0, `index e id=true external=g1/7 ordered {"a":[1,true]}`},
		{"field, twice", Config{ID: "field:/a"}, record("k", `{"a":1,"a":2}`), 0, `index e id=2 external=g1/7 ordered {"a":1,"a":2}`},
		{"field, behind a mark", Config{ID: "field:/a"}, record("k", "\xef\xbb\xbf{\"a\":1}"), 0, "index e id=1 external=g1/7 ordered \xef\xbb\xbf{\"a\":1}"},
		{"field, absent", Config{ID: "field:/a"}, record("k", `{}`), 0, `reject no_id`},
		{"field, null", Config{ID: "field:/a"}, record("k", `{"a":null}`), 0, `reject no_id`},
		{"field, empty", Config{ID: "field:/a"}, record("k", `{"a":""}`), 0, `reject no_id`},
		{"field, object", Config{ID: "field:/a"}, record("k", `{"a":{}}`), 0, `reject no_id`},
		{"field, half a surrogate pair", Config{ID: "field:/a"}, record("k", `{"a":"\ud800"}`), 0, `reject id_not_utf8`},
		{"field, not UTF-8", Config{ID: "field:/a"}, record("k", "{\"a\":\"\xb8\"}"), 0, `reject id_not_utf8`},
		{"field, not JSON", Config{ID: "field:/a"}, record("k", `{"a" 1}`), 0, `reject invalid_json`},
		{"header", Config{ID: "header:h"}, record("k", `{}`, "h", "1", "h", "2", "i", "3"), 0, `index e id=2 external=g1/7 ordered {}`},
		{"header, absent", Config{ID: "header:h"}, record("k", `{}`), 0, `reject no_id`},
		{"none", Config{ID: "none"}, record("k", `{}`), 0, `index e {}`},
		{"none, create", Config{ID: "none", Op: "create"}, record("k", `{}`), 0, `create e {}`},
		{"template", Config{ID: "${topic}/${partition}/${offset}/${key}/$x"}, record("k", `{}`), 0, `index e id=t/3/7/k/$x external=g1/7 ordered {}`},
		{"template, the rest", Config{ID: "${customer}:${timestamp:2006-01-02}:${header:h}:${field:/a}", Customer: "header:c"}, record("k", `{"a":"f\n"}`, "h", "H", "c", "C"), 0, "index e id=C:2023-11-14:H:f\n external=g1/7 customer=C ordered {\"a\":\"f\\n\"}"},
		{"template, part absent", Config{ID: "${topic}/${key}"}, record(nil, `{}`), 0, `reject no_id`},
		{"long, rejected", Config{}, record(long, `{}`), 0, `reject id_too_long`},
		{"long, hashed", Config{LongIDs: "hash"}, record(long, `{}`), 0, `index e id=sha256:RafH75XDQX6AA2L1Zyq6FtqAcmH-cSHzqBsKD7a5oFw external=g1/7 ordered {}`},
		{"long, deleted", Config{LongIDs: "hash"}, record(long, nil), 0, `delete e id=sha256:RafH75XDQX6AA2L1Zyq6FtqAcmH-cSHzqBsKD7a5oFw external=g1/7 ordered`},
		// Operations and versions.
		{"create", Config{Op: "create"}, record("k", `{}`), 0, `create e id=k ordered {}`},
		{"update", Config{Op: "update"}, record("k", `{}`), 0, `update e id=k ordered {}`},
		{"upsert", Config{Op: "upsert"}, record("k", `{}`), 0, `upsert e id=k ordered {}`},
		{"upsert, delete", Config{Op: "upsert"}, record("k", nil), 0, `delete e id=k ordered`},
		{"data stream", Config{DataStream: true}, record("k", `{}`), 0, `create e id=k ordered {}`},
		{"data stream, null", Config{DataStream: true}, record("k", nil), 0, `ignore null_value`},
		{"offset", Config{Version: "offset"}, record("k", `{}`), 9, `index e id=k external=7 ordered {}`},
		{"timestamp", Config{Version: "timestamp"}, record("k", `{}`), 0, `index e id=k gte=1700000000123 ordered {}`},
		{"field version", Config{Version: "field:/v"}, record("k", `{"v":9223372036854775807}`), 0, `index e id=k gte=g1023/35184372088830 ordered {"v":9223372036854775807}`},
		{"field version, text", Config{Version: "field:/v"}, record("k", `{"v":"12"}`), 0, `index e id=k gte=12 ordered {"v":"12"}`},
		{"field version, zero", Config{Version: "field:/v"}, record("k", `{"v":0}`), 0, `index e id=k gte=0 ordered {"v":0}`},
		{"field version, too large", Config{Version: "field:/v"}, record("k", `{"v":9223372036854775808}`), 0, `reject bad_version`},
		{"field version, far too large", Config{Version: "field:/v"}, record("k", `{"v":18446744073709551617}`), 0, `reject bad_version`},
		{"field version, negative", Config{Version: "field:/v"}, record("k", `{"v":-1}`), 0, `reject bad_version`},
		{"field version, fraction", Config{Version: "field:/v"}, record("k", `{"v":1.5}`), 0, `reject bad_version`},
		{"field version, absent", Config{Version: "field:/v"}, record("k", `{}`), 0, `reject bad_version`},
		{"field version, null value", Config{Version: "field:/v"}, record("k", nil), 0, `reject bad_version`},
		{"field version, neither", Config{Version: "field:/v"}, record(nil, nil), 0, `ignore keyless_null`},
		{"header version", Config{Version: "header:v"}, record("k", nil, "v", "4"), 0, `delete e id=k gte=4 ordered`},
		{"no version", Config{Version: "none"}, record("k", `{}`), 0, `index e id=k ordered {}`},
		{"no generation", Config{}, record("k", `{}`), -1, `halt sequence_range`},
		// Null values.
		{"delete", Config{}, record("k", nil), 0, `delete e id=k external=g1/7 ordered`},
		{"delete everything", Config{Index: "e-${topic}-${header:h}", Routing: "header:r", Customer: "key:^(.)", Pipeline: "p", RequireAlias: true}, record("key", nil, "h", "H", "r", "R"), 0, `delete e-t-=48 id=key external=g1/7 routing=R customer=k alias ordered`},
		{"tombstone", Config{Deletes: "tombstone", Pipeline: "p"}, record("k", nil), 0, `index e id=k external=g1/7 pipeline=_none ordered changed tombstone {"_sluice_deleted":true,"_sluice_deleted_at":1700000000123}`},
		{"ignore", Config{OnNull: "ignore"}, record("k", nil), 0, `ignore null_value`},
		{"fail", Config{OnNull: "fail"}, record("k", nil), 0, `halt null_value`},
		{"dead letter", Config{OnNull: "dead_letter"}, record("k", nil), 0, `dead_letter null_value`},
		{"field id, null", Config{ID: "field:/a"}, record("k", nil), 0, `ignore null_value`},
		{"template id, null", Config{ID: "${topic}/${key}"}, record("k", nil), 0, `delete e id=t/k external=g1/7 ordered`},
		{"header id, neither", Config{ID: "header:h"}, record("k", nil), 0, `ignore keyless_null`},
		// Where to.
		{"everything", Config{Index: "e-${field:/a}", Routing: "field:/a", Customer: "field:/a", Pipeline: "p", RequireAlias: true, OnNull: "ignore"}, record("k", `{"a":"x"}`), 0, `index e-x id=k external=g1/7 routing=x pipeline=p customer=x alias ordered {"a":"x"}`},
		{"routing by key", Config{Routing: "key"}, record("k", `{}`), 0, `index e id=k external=g1/7 routing=k ordered {}`},
		{"routing, absent", Config{Routing: "header:r"}, record("k", `{}`), 0, `reject no_routing`},
		{"routing, not UTF-8", Config{Routing: "header:r"}, record("k", `{}`, "r", "\xff"), 0, `reject no_routing`},
		{"index, part absent", Config{Index: "e-${header:h}"}, record("k", `{}`), 0, `reject no_index`},
		{"customer by pattern", Config{Customer: "key:^([^:]+):(?:.*)$"}, record("acme:1", `{}`), 0, `index e id=acme:1 external=g1/7 customer=acme ordered {}`},
		{"customer by pattern, absent", Config{Customer: "key:^([^:]+):"}, record("acme", `{}`), 0, `index e id=acme external=g1/7 ordered {}`},
		{"customer by pattern, empty", Config{Customer: "key:^([^:]*):", Index: "e-${customer}"}, record(":acme", `{}`), 0, `reject no_customer`},
		{"customer, absent", Config{Customer: "header:c", Index: "e-${customer}"}, record("k", `{}`), 0, `reject no_customer`},
		// Values.
		{"text", Config{Format: "text"}, record("k", "a \"b\"\n\x01é"), 0, `index e id=k external=g1/7 ordered changed {"message":"a \"b\"\n\u0001é"}`},
		{"text, empty", Config{Format: "text", RawField: "m"}, record("k", ""), 0, `index e id=k external=g1/7 ordered changed {"m":""}`},
		{"text, null", Config{Format: "text"}, record("k", nil), 0, `delete e id=k external=g1/7 ordered`},
		{"text, not UTF-8", Config{Format: "text"}, record("k", "\xb8"), 0, `reject not_utf8`},
		{"raw", Config{Format: "raw", RawField: "m"}, record("k", "\xb8\x00"), 0, `index e id=k external=g1/7 ordered changed {"m":"uAA="}`},
		// Additions.
		{"metadata, not UTF-8", Config{ID: "none", Metadata: Metadata{Field: "k", Include: []string{"key", "headers"}}}, record("k\xff", `{ "a":1}`, "h", "\xb8"), 0, "index e changed {\"k\":{\"key\":\"k\uFFFD\",\"headers\":[{\"key\":\"h\",\"value\":\"\uFFFD\"}]}, \"a\":1}"},
		{"metadata, some", Config{ID: "none", Metadata: Metadata{Field: "k", Include: []string{"offset", "key"}}}, record(nil, `{ }`), 0, `index e changed {"k":{"offset":7,"key":null} }`},
		{"metadata, all", Config{ID: "none", Metadata: Metadata{Field: "kafka"}}, record("k", `{"a":1}`, "h", "1", "h", `"`), 0, `index e changed {"kafka":{"topic":"t","partition":3,"offset":7,"timestamp":"2023-11-14T22:13:20.123Z","key":"k","headers":[{"key":"h","value":"1"},{"key":"h","value":"\""}]},"a":1}`},
		{"metadata and time", Config{ID: "none", Metadata: Metadata{Field: "k", Include: []string{"offset"}}, Timestamp: "record"}, record(nil, `{"a":1}`), 0, `index e changed {"k":{"offset":7},"@timestamp":"2023-11-14T22:13:20.123Z","a":1}`},
		{"metadata behind a mark", Config{ID: "none", Metadata: Metadata{Field: "k", Include: []string{"offset"}}}, record(nil, "\xef\xbb\xbf{\"a\":1}"), 0, "index e changed \xef\xbb\xbf{\"k\":{\"offset\":7},\"a\":1}"},
		{"metadata of text", Config{ID: "none", Format: "text", Metadata: Metadata{Field: "k", Include: []string{"offset"}}}, record(nil, "x"), 0, `index e changed {"k":{"offset":7},"message":"x"}`},
		{"time, there", Config{ID: "none", Timestamp: "record"}, record(nil, `{"a":1,"@timestamp":null}`), 0, `index e {"a":1,"@timestamp":null}`},
		{"time, from fields", Config{ID: "none", Timestamp: "field:/x,field:/a/t,record"}, record(nil, `{"x":null,"a":{"t":1.5e3}}`), 0, `index e changed {"@timestamp":1.5e3,"x":null,"a":{"t":1.5e3}}`},
		{"time, from the record at last", Config{ID: "none", Timestamp: "field:/x,record"}, record(nil, `{}`), 0, `index e changed {"@timestamp":"2023-11-14T22:13:20.123Z"}`},
		{"time, nowhere", Config{ID: "none", Timestamp: "field:/x"}, record(nil, `{"x":[]}`), 0, `index e {"x":[]}`},
		{"time, not JSON", Config{ID: "none", Timestamp: "field:/x"}, record(nil, `{"x"}`), 0, `reject invalid_json`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.cfg.Index == "" {
				c.cfg.Index = "e"
			}
			if c.generation == 0 {
				c.generation = 1
			}
			m, err := New(c.cfg, nil, []string{"t"}, true)
			if err != nil {
				t.Fatal(err)
			}
			var out Result
			for range 2 { // a Result that was used before gives the same
				m.Rules("t").Map(c.rec, c.generation, &out)
				if got := render(&out); got != c.want {
					t.Errorf("\n got %s\nwant %s", got, c.want)
				}
			}
		})
	}
}

// V33: a rule for each pair of key and value, and none that stops a partition.
func TestKeysAndValues(t *testing.T) {
	keys := map[string]any{"null": nil, "empty": "", "byte": "k"}
	values := map[string]any{"null": nil, "empty": "", "spaces": "  \n", "object": "{}"}
	want := map[string]string{
		"auto null null":     "ignore keyless_null",
		"auto null empty":    "reject empty_value",
		"auto null spaces":   "reject empty_value",
		"auto null object":   "create e id=t+3+7 {}",
		"auto empty null":    "ignore keyless_null",
		"auto empty empty":   "reject empty_value",
		"auto empty spaces":  "reject empty_value",
		"auto empty object":  "create e id=t+3+7 {}",
		"auto byte null":     "delete e id=k external=g1/7 ordered",
		"auto byte empty":    "reject empty_value",
		"auto byte spaces":   "reject empty_value",
		"auto byte object":   "index e id=k external=g1/7 ordered {}",
		"key null null":      "ignore keyless_null",
		"key null empty":     "reject empty_value",
		"key null spaces":    "reject empty_value",
		"key null object":    "reject no_id",
		"key empty null":     "ignore keyless_null",
		"key empty empty":    "reject empty_value",
		"key empty spaces":   "reject empty_value",
		"key empty object":   "reject no_id",
		"key byte null":      "delete e id=k external=g1/7 ordered",
		"key byte empty":     "reject empty_value",
		"key byte spaces":    "reject empty_value",
		"key byte object":    "index e id=k external=g1/7 ordered {}",
		"position byte null": "ignore null_value",
		"none byte null":     "ignore null_value",
	}
	for id, r := range map[string]*Rules{
		"auto": mustRules(t, Config{Index: "e"}), "key": mustRules(t, Config{Index: "e", ID: "key"}),
		"position": mustRules(t, Config{Index: "e", ID: "position"}), "none": mustRules(t, Config{Index: "e", ID: "none"}),
	} {
		for k, key := range keys {
			for v, value := range values {
				var out Result
				r.Map(record(key, value), 1, &out)
				if w, ok := want[id+" "+k+" "+v]; ok && render(&out) != w {
					t.Errorf("id %s, key %s, value %s: %s, want %s", id, k, v, render(&out), w)
				}
				if out.Verdict == Halt || out.Verdict == 0 {
					t.Errorf("id %s, key %s, value %s stops the partition", id, k, v)
				}
			}
		}
	}
}

// V34: 512 bytes pass, in any alphabet.
func TestLongIDs(t *testing.T) {
	reject, hash := mustRules(t, Config{Index: "e"}), mustRules(t, Config{Index: "e", LongIDs: "hash"})
	ids := map[string]string{}
	for _, char := range []string{"a", "é", "€", "😀"} {
		for n := 509; n <= 520; n++ {
			key := strings.Repeat(char, n/len(char)) + strings.Repeat("x", n%len(char))
			var out Result
			reject.Map(record(key, "{}"), 1, &out)
			if fits := n <= 512; fits != (out.Verdict == Send) || !fits && out.Type != TypeIDTooLong {
				t.Errorf("%d bytes of %s: %s", n, char, render(&out))
			}
			hash.Map(record(key, "{}"), 1, &out)
			if out.Verdict != Send || len(out.Action.ID) > 512 || n <= 512 && string(out.Action.ID) != key {
				t.Errorf("%d bytes of %s, hashed: %s", n, char, render(&out))
			}
			if other, ok := ids[string(out.Action.ID)]; ok {
				t.Errorf("%q and %q share an id", other, key)
			}
			ids[string(out.Action.ID)] = key
		}
	}
	// A key that looks like the hash of another is hashed itself.
	var out Result
	for id := range ids {
		if !strings.HasPrefix(id, hashedID) {
			continue
		}
		hash.Map(record(id, "{}"), 1, &out)
		if string(out.Action.ID) == id {
			t.Errorf("the key %s takes the id of another", id)
		}
	}
}

// V35, V36, V37, V40, V41, V42, V44: what becomes of a bad value before
// sending, with validate: server and strict. "pass" goes to the server as it
// is, which answers a 400 item to each of those that strict rejects.
func TestBadValues(t *testing.T) {
	server := mustRules(t, Config{Index: "e"})
	strict := mustRules(t, Config{Index: "e", Validate: "strict"})
	strip := mustRules(t, Config{Index: "e", Validate: "strict", MetadataFields: "strip"})
	nested := func(n int) string { return strings.Repeat(`{"a":`, n) + `1` + strings.Repeat(`}`, n) }
	for _, c := range []struct{ value, server, strict string }{
		{`{"a":1}`, "pass", "pass"},
		{`{"a":1e400}`, "pass", "pass"},
		{`{"a":"NaN"}`, "pass", "pass"},
		{`{"a":NaN}`, "pass", "invalid_json"},
		{`{"a":-Infinity}`, "pass", "invalid_json"},
		{`{"a":1}{"b":2}`, "pass", "invalid_json"},
		{`{"a":1}x}`, "pass", "invalid_json"},
		{`{"a":1} x`, "invalid_json", "invalid_json"},
		{`{"a":1`, "invalid_json", "invalid_json"},
		{`{`, "invalid_json", "invalid_json"},
		{`{a:1}`, "pass", "invalid_json"},
		{`{"a":1/*b*/}`, "pass", "invalid_json"},
		{"{\"a\":\"\xb8\"}", "pass", "not_utf8"},
		{"{\"a\":\"\xed\xa0\x80\"}", "pass", "not_utf8"},
		{"{\"a\":\"\xc0\xaf\"}", "pass", "not_utf8"},
		{`{"a":"\ud800"}`, "pass", "invalid_json"},
		{"\xef\xbb\xbf{\"a\":1}", "pass", "not_an_object"},
		{"{\"a\":\"\x01\"}", "pass", "invalid_json"},
		{`1`, "not_an_object", "not_an_object"},
		{`"x"`, "not_an_object", "not_an_object"},
		{`null`, "not_an_object", "not_an_object"},
		{`[]`, "not_an_object", "not_an_object"},
		{`[{}]`, "not_an_object", "not_an_object"},
		{"\xef\xbb\xbf", "empty_value", "empty_value"},
		{`{"_id":1}`, "pass", "metadata_field"},
		{`{"\u005fid":1}`, "pass", "metadata_field"},
		{`{"a":{"_id":1}}`, "pass", "pass"},
		{`{"_own":1}`, "pass", "pass"},
		{`{"":1}`, "pass", "bad_field_name"},
		{`{" ":1}`, "pass", "bad_field_name"},
		{`{".a":1}`, "pass", "bad_field_name"},
		{`{"a.":1}`, "pass", "pass"}, // the server takes it
		{`{"..":1}`, "pass", "bad_field_name"},
		{`{"a. .b":1}`, "pass", "bad_field_name"},
		{`{"x":{"":1}}`, "pass", "pass"}, // x may be disabled or flattened
		{`{"_type":1}`, "pass", "pass"},
		{`{"a..b":1}`, "pass", "bad_field_name"},
		{`{"a.b":1,"a":{"c":1}}`, "pass", "pass"},
		{`{"a":1,"a":2}`, "pass", "pass"},
		{nested(21), "pass", "pass"},
		{nested(200), "pass", "pass"},
		{nested(201), "pass", "too_deep"},
		{nested(100_000), "pass", "too_deep"},
		// Line breaks: compacted where it is JSON, else rejected.
		{"{\"a\":1}\n", `{"a":1}`, `{"a":1}`},
		{" \t{\"a\": 1}\r\n", `{"a": 1}`, `{"a": 1}`},
		{"{\r\n  \"a\": [1,\n 2],\n\t\"b\": \"x  y\\n\"\n}\n", `{"a":[1,2],"b":"x  y\n"}`, `{"a":[1,2],"b":"x  y\n"}`},
		{"{\"a\":\r1}", `{"a":1}`, `{"a":1}`},
		{"{\"a\":\"x\ny\"}", "invalid_json", "invalid_json"},
		{"{\"a\":1}\n{\"b\":2}", "invalid_json", "invalid_json"},
		{"{\"a\":1, // b\n\"c\":2}", "invalid_json", "invalid_json"},
		{"{\"a\":\n\"\xb8\"}", "not_utf8", "not_utf8"},
		{"{\n\"_id\":1}", `{"_id":1}`, "metadata_field"},
		{"{\n\"a..b\":1}", `{"a..b":1}`, "bad_field_name"},
		{"{\n\"b\":" + nested(999) + "}", `{"b":` + nested(999) + `}`, "too_deep"},
		{"{\n\"b\":" + nested(1000) + "}", "too_deep", "too_deep"},
	} {
		check := func(name string, r *Rules, want string) {
			rec := record("k", c.value)
			var out Result
			r.Map(rec, 1, &out)
			got := out.Type
			if out.Verdict == Send {
				got = string(out.Action.Body)
				if bytes.ContainsAny(out.Action.Body, "\n\r") {
					t.Errorf("%.60q, %s: more than one line: %.60q", c.value, name, got)
				}
				if out.Changed != (got != c.value) {
					t.Errorf("%.60q, %s: Changed is %v", c.value, name, out.Changed)
				}
				if !out.Changed && &out.Action.Body[0] != &rec.Value[0] {
					t.Errorf("%.60q, %s: copied", c.value, name)
				}
				if got == c.value {
					got = "pass"
				}
			}
			if got != want {
				t.Errorf("%.60q, %s: %.60s, want %.60s", c.value, name, got, want)
			}
			if string(rec.Value) != c.value {
				t.Errorf("%.60q, %s: the record's bytes were changed", c.value, name)
			}
			if out.Verdict != Send && len(c.value) > 4 && strings.Contains(out.Reason, c.value) {
				t.Errorf("%.60q: the reason quotes the value", c.value)
			}
		}
		check("server", server, c.server)
		check("strict", strict, c.strict)
		if c.strict != "metadata_field" {
			check("strip", strip, c.strict)
		} else {
			check("strip", strip, "{}")
		}
	}
}

// A value that is one object on one line is never copied, whatever its bytes.
func TestValuesPassByteForByte(t *testing.T) {
	r := mustRules(t, Config{Index: "e"})
	rapid.Check(t, func(t *rapid.T) {
		inside := rapid.SliceOf(rapid.Byte().Filter(func(b byte) bool { return b != '\n' && b != '\r' })).Draw(t, "inside")
		value := append(append([]byte{'{'}, inside...), '}')
		var out Result
		r.Map(&kgo.Record{Topic: "t", Key: []byte("k"), Value: value}, 1, &out)
		if out.Verdict != Send || out.Changed || &out.Action.Body[0] != &value[0] || len(out.Action.Body) != len(value) {
			t.Fatalf("%q: %s", value, render(&out))
		}
	})
}

// No value, however bad, makes a second line or a panic, under any rules.
func FuzzMap(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte("k"), []byte(s))
	}
	var rules []*Rules
	for _, cfg := range []Config{
		{},
		{Validate: "strict"},
		{Validate: "strict", MetadataFields: "strip", Metadata: Metadata{Field: "m"}},
		{ID: "field:/a/b", Timestamp: "field:/a,record", LongIDs: "hash", Index: "e-${field:/a}"},
		{ID: "${key}/${field:/a}", Routing: "field:/a", Customer: "key:^(.)", Version: "field:/a"},
		{Format: "text", Timestamp: "record"},
		{Format: "raw", Metadata: Metadata{Field: "m"}},
	} {
		if cfg.Index == "" {
			cfg.Index = "e"
		}
		cfg.OnNull = "ignore"
		rules = append(rules, mustRules(f, cfg))
	}
	var out Result
	f.Fuzz(func(t *testing.T, key, value []byte) {
		keyBefore, valueBefore := bytes.Clone(key), bytes.Clone(value)
		for _, r := range rules {
			r.Map(&kgo.Record{Topic: "t", Key: key, Value: value, Timestamp: time.UnixMilli(int64(len(value)))}, 1, &out)
			if out.Verdict == 0 || (out.Verdict != Send) != (out.Type != "") {
				t.Fatalf("%+v", out)
			}
			if out.Verdict == Send && (bytes.ContainsAny(out.Action.Body, "\n\r") || !serverTakes(out.Action.Target) || len(out.Action.ID) > maxID) {
				t.Fatalf("%s", render(&out))
			}
		}
		if !bytes.Equal(key, keyBefore) || !bytes.Equal(value, valueBefore) {
			t.Fatal("the record was written to")
		}
	})
}

// V46: a time-named index takes records of its window only.
func TestTimeWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		day := 24 * time.Hour
		r := mustRules(t, Config{Index: "e-${timestamp:2006.01.02}", TimeWindow: TimeWindow{Past: 30 * day, Future: day, NewIndicesPerHour: 7}})
		if n, ok := r.TimeNamed(); !ok || n != 7 {
			t.Errorf("TimeNamed: %d, %v", n, ok)
		}
		for _, c := range []struct {
			at   time.Time
			want string
		}{
			{now, "e-" + now.UTC().Format("2006.01.02")},
			{now.Add(-30 * day), "e-" + now.Add(-30*day).UTC().Format("2006.01.02")},
			{now.Add(-30*day - 1), TypeTimeWindow},
			{now.Add(day), "e-" + now.Add(day).UTC().Format("2006.01.02")},
			{now.Add(day + 1), TypeTimeWindow},
			{time.UnixMilli(-1), TypeTimeWindow},
			{time.UnixMilli(0), TypeTimeWindow},
			{now.AddDate(10, 0, 0), TypeTimeWindow},
			{time.UnixMilli(1 << 62), TypeTimeWindow},
			{time.UnixMilli(-1 << 62), TypeTimeWindow},
		} {
			rec := record("k", "{}")
			rec.Timestamp = c.at
			var out Result
			r.Map(rec, 1, &out)
			if got := out.Action.Target + out.Type; got != c.want {
				t.Errorf("%v: %s, want %s", c.at, got, c.want)
			}
		}
		// Other names take any time; what cannot be said as a date is left out.
		for _, ms := range []int64{-1, -1 << 62, 1 << 62} {
			rec := record("k", "{}")
			rec.Timestamp = time.UnixMilli(ms)
			var out Result
			mustRules(t, Config{Index: "e", Timestamp: "record", Metadata: Metadata{Field: "k", Include: []string{"timestamp"}}}).Map(rec, 1, &out)
			if got := string(out.Action.Body); got != `{"k":{"timestamp":null}}` {
				t.Errorf("%d: %s", ms, got)
			}
		}
	})
}

// Versions depend on generation and offset alone, ids and names on the record
// and the generation: a replay writes the same.
func TestReplaysAreTheSame(t *testing.T) {
	r := mustRules(t, Config{Index: "e-${header:h}", Metadata: Metadata{Field: "m"}})
	rapid.Check(t, func(t *rapid.T) {
		key, value := rapid.SliceOf(rapid.Byte()).Draw(t, "key"), document(t)
		rec := &kgo.Record{Topic: "t", Partition: rapid.Int32Min(0).Draw(t, "p"), Offset: rapid.Int64Range(0, MaxOffset).Draw(t, "o"), Key: key, Value: value, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(rapid.String().Draw(t, "h"))}}}
		g := rapid.IntRange(1, MaxGeneration).Draw(t, "g")
		var used, fresh Result
		r.Map(record("other", `{"other":1}`, "h", "other"), 1, &used)
		r.Map(rec, g, &used)
		r.Map(rec, g, &fresh)
		if render(&used) != render(&fresh) {
			t.Fatalf("%s\n%s", render(&used), render(&fresh))
		}
	})
}

// Nothing of one record is left in the result of the next.
func TestResultsAreForgotten(t *testing.T) {
	all := mustRules(t, Config{Index: "e", Deletes: "tombstone", Customer: "key", Routing: "key"})
	for name, rec := range map[string]*kgo.Record{"rejected": record("k", "x"), "ignored": record("k", nil), "sent": record(nil, "{}")} {
		r := mustRules(t, Config{Index: "e", OnNull: "ignore"})
		var used, fresh Result
		all.Map(record("k", nil), 1, &used)
		if !used.Changed || !used.Ordered || !used.Tombstone || used.Customer == nil || used.Action.Routing == nil {
			t.Fatalf("%+v", used)
		}
		r.Map(rec, 1, &used)
		r.Map(rec, 1, &fresh)
		used.scratch, used.name, used.names, used.check = fresh.scratch, fresh.name, fresh.names, fresh.check
		if !reflect.DeepEqual(used, fresh) {
			t.Errorf("%s: %+v, want %+v", name, used, fresh)
		}
	}
}

func TestScratchIsGivenBack(t *testing.T) {
	r := mustRules(t, Config{Index: "e"})
	var out Result
	r.Map(record("k", "{\n\"a\":\""+strings.Repeat("x", 2*maxScratch)+"\"}"), 1, &out)
	if out.Verdict != Send {
		t.Fatal(out.Type)
	}
	r.Map(record("k", "{}"), 1, &out)
	if cap(out.scratch) > maxScratch {
		t.Errorf("%d bytes kept", cap(out.scratch))
	}
}

// benchmarks are the rules whose Map must not allocate.
var benchmarks = []struct {
	name string
	cfg  Config
}{
	{"key", Config{Index: "events"}},
	{"position", Config{Index: "events", ID: "position"}},
	{"strict", Config{Index: "events", Validate: "strict"}},
	{"field", Config{Index: "events", ID: "field:/id"}},
	{"customer", Config{Index: "events-${customer}", Customer: "header:c", Routing: "header:c"}},
	{"day", Config{Index: "${topic}-${timestamp:2006.01.02}"}},
	{"template", Config{Index: "events", ID: "${topic}/${key}/${field:/id}", LongIDs: "hash"}},
	{"metadata", Config{Index: "events", Metadata: Metadata{Field: "kafka"}, Timestamp: "record"}},
	{"text", Config{Index: "events", Format: "text"}},
}

func benchRecord() *kgo.Record {
	rec := record("customer-000123", `{"@version":"1","host.name":"h","message":"`+strings.Repeat(`hello \"world\" `, 50)+`","n":[1,2.5,{"a":true}],"tags":["a","b"],"id":"x-1","url":"`+strings.Repeat("abcdefgh", 15)+`"}`, "c", "Acme")
	rec.Timestamp = time.Now()
	return rec
}

func TestNoAllocations(t *testing.T) {
	rec, indented := benchRecord(), benchRecord()
	indented.Value = append([]byte("{\n"), indented.Value[1:]...)
	for _, b := range benchmarks {
		r := mustRules(t, b.cfg).forTopic("t")
		for _, rec := range []*kgo.Record{rec, indented} {
			var out Result
			n := testing.AllocsPerRun(100, func() { r.Map(rec, 1, &out) })
			if out.Verdict != Send {
				t.Errorf("%s: %s", b.name, render(&out))
			}
			if n != 0 {
				t.Errorf("%s: %v allocations a record", b.name, n)
			}
		}
	}
}

func BenchmarkMap(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.name, func(b *testing.B) {
			r, rec := mustRules(b, c.cfg).forTopic("t"), benchRecord()
			var out Result
			b.SetBytes(int64(len(rec.Value)))
			b.ReportAllocs()
			for b.Loop() {
				r.Map(rec, 1, &out)
			}
		})
	}
}

func BenchmarkCompact(b *testing.B) {
	r, rec := mustRules(b, Config{Index: "events"}), benchRecord()
	rec.Value = bytes.ReplaceAll(rec.Value, []byte(`,"`), []byte(",\n  \""))
	var out Result
	b.SetBytes(int64(len(rec.Value)))
	for b.Loop() {
		r.Map(rec, 1, &out)
	}
}
