package elastic

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What decode reads is what encoding/json reads, whatever the documents are and
// however the answer is laid out.
func TestHitsAreReadAsJSONIs(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z"\\{}\[\],: ]*`))
	value := rapid.Custom(func(t *rapid.T) any {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return text.Draw(t, "text")
		case 1:
			return rapid.Int64().Draw(t, "number")
		case 2:
			return nil
		case 3:
			return []any{rapid.Bool().Draw(t, "flag"), text.Draw(t, "text"), map[string]any{}}
		case 4:
			return map[string]any{text.Draw(t, "key"): text.Draw(t, "text"), "n": 1.5, "empty": []any{}}
		}
		return ""
	})
	rapid.Check(t, func(t *rapid.T) {
		hits := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "hits") {
			hit := map[string]any{
				"_index": text.Draw(t, "index"), "_id": text.Draw(t, "id"), "_score": nil, "_version": rapid.Int64().Draw(t, "version"),
				"_seq_no": rapid.Int64().Draw(t, "seq_no"), "_primary_term": 1, "_source": map[string]any{"a": value.Draw(t, "a"), text.Draw(t, "b"): value.Draw(t, "c")},
				"sort": []any{value.Draw(t, "sort")},
			}
			if rapid.Bool().Draw(t, "routed") {
				hit["_routing"] = text.Draw(t, "routing")
			}
			hits = append(hits, hit)
		}
		answer := map[string]any{
			"took": 3, "timed_out": rapid.Bool().Draw(t, "timed_out"), "_shards": map[string]any{"total": 1, "failed": rapid.IntRange(0, 1).Draw(t, "failed"), "failures": []any{}},
			"hits": map[string]any{"total": map[string]any{"value": rapid.Int64().Draw(t, "total"), "relation": "eq"}, "max_score": nil, "hits": hits}, "pit_id": "x==",
		}
		body, err := json.Marshal(answer)
		if rapid.Bool().Draw(t, "spread out") {
			body, err = json.MarshalIndent(answer, " ", "\t")
		}
		if err != nil {
			t.Fatal(err)
		}
		var want, got searchAnswer
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		if !got.decode(body) {
			t.Fatalf("not read: %s", body)
		}
		if len(got.Hits.Hits) == 0 { // none, however it is told
			got.Hits.Hits, want.Hits.Hits = nil, nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\nis read as %+v\nand is     %+v", body, got, want)
		}
		// One that is cut is never taken for whole.
		cut := body[:rapid.IntRange(0, len(body)-1).Draw(t, "cut")]
		if got.decode(cut) {
			t.Fatalf("taken for whole: %s", cut)
		}
	})
}

// What has another shape is left to encoding/json, and nothing is kept of it.
func TestHitsOfAnotherShapeAreLeftAlone(t *testing.T) {
	for _, body := range []string{
		``, `[]`, `{}x`, `{"hits":[]}`, `{"hits":{"hits":{}}}`, `{"hits":{"hits":[1]}}`, `{"hits":{"hits":[{"_id":null}]}}`, `{"hits":{"hits":[{"_version":1.5}]}}`,
		`{"hits":{"hits":[{"_id":"a"}}]}`, `{"timed_out":"no"}`, `{"hits":{"hits":[{"_id":"a"},]}}`, `{"a":}`, `{"hits":{"hits":[{"_seq_no":9223372036854775808}]}}`,
	} {
		var got searchAnswer
		if got.decode([]byte(body)) || !reflect.DeepEqual(got, searchAnswer{}) {
			t.Errorf("%s is read as %+v", body, got)
		}
	}
}

func BenchmarkSearchAnswer(b *testing.B) {
	hit := `{"_index":"cities","_id":"US-1/123456","_version":1,"_seq_no":123456,"_primary_term":1,"_score":null,"_source":{"customer":"US-1","name":"Springfield","lat":"42.53176","lng":"1.56654","country":"US","admin1":"03","admin2":""},"sort":[123456]}`
	body := []byte(`{"took":3,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},"hits":{"max_score":null,"hits":[` + strings.Repeat(hit+",", 999) + hit + `]}}`)
	for name, read := range map[string]func(*searchAnswer) bool{
		"decode": func(a *searchAnswer) bool { return a.decode(body) },
		"json":   func(a *searchAnswer) bool { return json.Unmarshal(body, a) == nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				var a searchAnswer
				if !read(&a) || len(a.Hits.Hits) != 1000 {
					b.Fatal("not read")
				}
			}
		})
	}
}
