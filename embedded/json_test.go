package embedded

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzDocument compares the judgement of documents with encoding/json's. Where
// the server's parser differs on purpose (comments, a byte order mark, doubled,
// empty and odd names, lax UTF-8, nesting) the seeds' neighbours are left out.
func FuzzDocument(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, `{"a":[1,2,{"b":"\u00e9\n"}],"c":null}`, `{"a":-0.5e+10}`, `{"a":01}`, `{"a":"`, `{"a":tru}`, `{"a" 1}`, `{"a":[1 2]}`,
		`{"abcdefghijklmnop":"0123456789abcdef\"x"}`, `{"a":1}}`, `{"a":"é😀"}`, "{\"a\":\"\x1f\"}", `[1]`, `1`, `{"a":{"b":{"c":[[[]]]}}}`,
	} {
		f.Add([]byte(s))
	}
	m := newMapping()
	m.root.dynamic = dynamicFalse
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.Valid(b) || bytes.ContainsAny(b, "/") || bytes.HasPrefix(b, []byte("\xef\xbb\xbf")) || len(b) > 900 {
			t.Skip()
		}
		var p docParser
		p.reset(m, []byte("1"), b)
		err := p.parse()
		var v map[string]any
		valid := json.Valid(b) && json.Unmarshal(b, &v) == nil && v != nil
		if err != nil && valid {
			for _, odd := range []string{"Duplicate field", "field name", "Field name", "Field [_"} {
				if strings.Contains(err.reason, odd) || err.cause != nil && strings.Contains(err.cause.reason, odd) {
					return
				}
			}
			t.Errorf("%q is refused: %v", b, err.reason)
		}
		if err == nil && !valid {
			t.Errorf("%q is accepted", b)
		}
	})
}

// FuzzBulkFilter compares the worked-out filter of bulk answers with the general
// one on the whole answer.
func FuzzBulkFilter(f *testing.F) {
	for _, s := range []string{
		"errors,items.*.status", "items.*.error", "-items.index", "**.type", "items.*.error.t*,-took", "*", "errors,items.index._shards.total",
		"items.*.error.caused_by.type", "-items.*.error.caused_by", "it*.create", "-**.reason,-**._shards", "items.**", "a.b",
	} {
		f.Add(s)
	}
	const body = `{"index":{"_index":"i","_id":"1"}}` + "\n" + `{"n":1}` + "\n" + `{"create":{"_index":"i","_id":"1"}}` + "\n{}\n" +
		`{"index":{"_index":"i","_id":"2"}}` + "\n" + `{"n":"x"}` + "\n" + `{"delete":{"_index":"i","_id":"3"}}` + "\n" + `{"update":{"_index":"i","_id":"4"}}` + "\n" + `{"doc":{}}` + "\n"
	answer := func(t *testing.T, paths string) []byte {
		es := NewElasticsearch(Config{})
		defer es.Close()
		must(t, es, http.MethodPut, "/i", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
		b := bulkRequest{}
		if err := b.parse([]byte(body), "", maxIDLength); err != nil {
			t.Fatal(err)
		}
		out, err := es.runBulk(t.Context(), &b, &bulkDefaults{}, &noFault, "", newBulkFilter(paths))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	f.Fuzz(func(t *testing.T, paths string) {
		if !utf8.ValidString(paths) || strings.ContainsAny(paths, `[]\?^`) {
			t.Skip()
		}
		whole := answer(t, "")
		if !json.Valid(whole) {
			t.Fatalf("not JSON: %s", whole)
		}
		got := answer(t, paths)
		want := whole
		if paths != "" {
			want = newFilter(paths).apply(whole)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%q\n got %s\nwant %s", paths, got, want)
		}
	})
}
