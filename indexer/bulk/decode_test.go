package bulk

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	okIndex  = `{"index":{"result":"created","status":201}}`
	okUpdate = `{"index":{"result":"updated","status":200}}`
	okDelete = `{"delete":{"result":"deleted","status":200}}`
	gone     = `{"delete":{"result":"not_found","status":404}}`
	dropped  = `{"index":{"result":"noop","status":200}}`
	same     = `{"update":{"result":"noop","status":200}}`
	conflict = `{"index":{"status":409,"error":{"type":"version_conflict_engine_exception","reason":"[1]: version conflict, current version [10] is higher or equal to the one provided [10]"}}}`
	refused  = `{"index":{"status":400,"error":{"type":"document_parsing_exception","reason":"Preview of field's value: '\u00fc\n'","caused_by":{"reason":"For input string: \"x\""}}}}`
)

func answer(failed bool, items ...string) string {
	return fmt.Sprintf(`{"errors":%v,"items":[%s]}`, failed, strings.Join(items, ","))
}

func TestDecode(t *testing.T) {
	type visit struct {
		I                   int
		Op                  Op
		Status              int
		Result              Result
		Type, Reason, Cause string
	}
	dropVisit := visit{I: 1, Op: Index, Status: 200, Result: Noop}
	for _, c := range []struct {
		name   string
		answer string
		n      int
		want   Summary
		visits []visit
	}{
		{"all well", answer(false, okIndex, okIndex, okUpdate, okDelete, gone, okDelete, gone, okIndex, same), 9, Summary{5, 4, 0}, nil},
		{"none", answer(false), 0, Summary{}, nil},
		{"dropped", answer(false, okIndex, dropped), 2, Summary{1, 0, 1}, []visit{dropVisit}},
		{
			"errors", answer(true, okIndex, dropped, okIndex, conflict, refused), 5,
			Summary{2, 0, 3},
			[]visit{
				dropVisit,
				{I: 3, Op: Index, Status: 409, Type: "version_conflict_engine_exception", Reason: "[1]: version conflict, current version [10] is higher or equal to the one provided [10]"},
				{I: 4, Op: Index, Status: 400, Type: "document_parsing_exception", Reason: "Preview of field's value: 'ü\n'", Cause: `For input string: "x"`},
			},
		},
		{
			"unfiltered, as from 7.17", `{"took":30,"errors":false,"items":[{"index":{"_index":"e","_type":"_doc","_id":"1","_version":1,"result":"created","_shards":{"total":2,"successful":1,"failed":0},"_seq_no":0,"_primary_term":1,"status":201}}]}`,
			1,
			Summary{1, 0, 0},
			nil,
		},
		{
			"unfiltered, as from 8", `{"errors":false,"took":30,"ingest_took":0,"items":[{"create":{"_index":"e","_id":"1","_version":1,"result":"created","status":201}}]}`,
			1,
			Summary{1, 0, 0},
			nil,
		},
		{"items before errors", `{"items":[` + okIndex + `],"errors":false}`, 1, Summary{1, 0, 0}, nil},
		{"white space", " {\n \"errors\" : false ,\r\n\t\"items\" : [ " + strings.ReplaceAll(okIndex, ":", " : ") + " ,\n" + okIndex + " ] } \n", 2, Summary{2, 0, 0}, nil},
		{"errors false, an item with one: the item counts", answer(false, conflict), 1, Summary{0, 0, 1}, []visit{{I: 0, Op: Index, Status: 409, Type: "version_conflict_engine_exception", Reason: "[1]: version conflict, current version [10] is higher or equal to the one provided [10]"}}},
		{"unknown result, no result", answer(false, `{"index":{"result":"teleported","status":200}}`, `{"index":{"status":201}}`), 2, Summary{2, 0, 0}, nil},
		{"404 of a write without an error is no success", answer(false, `{"index":{"result":"not_found","status":404}}`), 1, Summary{0, 0, 1}, []visit{{Op: Index, Status: 404, Result: NotFound}}},
		{"202 is no success", answer(false, `{"index":{"status":202}}`), 1, Summary{0, 0, 1}, []visit{{Op: Index, Status: 202}}},
		{"error as text, null reason", answer(true, `{"index":{"status":500,"error":"boom"}}`, `{"index":{"status":500,"error":{"type":"null_pointer_exception","reason":null,"caused_by":{"reason":null}}}}`), 2, Summary{0, 0, 2}, []visit{{I: 0, Op: Index, Status: 500, Reason: "boom"}, {I: 1, Op: Index, Status: 500, Type: "null_pointer_exception"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var visits []visit
			sum, err := Decode([]byte(c.answer), c.n, func(i int, it Item) {
				visits = append(visits, visit{i, it.Op, it.Status, it.Result, it.Type.String(), it.Reason.String(), it.Cause.String()})
			})
			if err != nil {
				t.Fatal(err)
			}
			if sum != c.want || fmt.Sprint(visits) != fmt.Sprint(c.visits) {
				t.Errorf("got %+v %+v\nwant %+v %+v", sum, visits, c.want, c.visits)
			}
		})
	}
}

func TestDecodeUnusable(t *testing.T) {
	for name, a := range map[string]string{
		"empty":                    ``,
		"HTML":                     `<html><body>502 Bad Gateway</body></html>`,
		"text":                     `upstream connect error`,
		"null":                     `null`,
		"array":                    `[]`,
		"an error":                 `{"error":{"type":"x"},"status":200}`,
		"one item short":           answer(false, okIndex),
		"one item more":            answer(false, okIndex, okIndex, okIndex),
		"no items":                 `{"errors":false}`,
		"no errors":                `{"items":[` + okIndex + `,` + okIndex + `]}`,
		"errors is null":           `{"errors":null,"items":[` + okIndex + `,` + okIndex + `]}`,
		"errors true, none failed": answer(true, okIndex, okIndex),
		"items twice":              `{"errors":false,"items":[` + okIndex + `,` + okIndex + `],"items":[` + okIndex + `,` + okIndex + `]}`,
		"errors twice":             `{"errors":true,"errors":false,"items":[` + okIndex + `,` + okIndex + `]}`,
		"unknown action":           answer(false, okIndex, `{"replace":{"status":200}}`),
		"two actions in an item":   answer(false, okIndex, `{"index":{"status":200},"create":{"status":200}}`),
		"empty item":               answer(false, okIndex, `{}`),
		"item without status":      answer(false, okIndex, `{"index":{"result":"created"}}`),
		"status as text":           answer(false, okIndex, `{"index":{"status":"200"}}`),
		"status of two digits":     answer(false, okIndex, `{"index":{"status":20}}`),
		"status with a fraction":   answer(false, okIndex, `{"index":{"status":200.5}}`),
		"escaped name":             answer(false, okIndex, `{"index":{"status":200,"st\u0061tus":500}}`),
		"trailing text":            answer(false, okIndex, okIndex) + "x",
		"trailing comma":           `{"errors":false,"items":[` + okIndex + `,` + okIndex + `,]}`,
		"two answers":              answer(false, okIndex, okIndex) + answer(false, okIndex, okIndex),
		"too deep":                 `{"x":` + strings.Repeat("[", 1e6) + strings.Repeat("]", 1e6) + `,` + answer(false, okIndex, okIndex)[1:],
		"cut and glued":            answer(false, okIndex[:20]+okIndex[30:], okIndex),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(a), 2, func(int, Item) { t.Error("visited") })
			if !errors.Is(err, ErrUnusable) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A cut answer proves nothing, wherever it is cut (R4).
func TestDecodeTruncated(t *testing.T) {
	a := []byte(answer(true, okIndex, okIndex, dropped, gone, conflict, refused, okIndex))
	for n := range a {
		for _, items := range []int{0, 1, 2, 7} {
			if _, err := Decode(a[:n], items, func(int, Item) { t.Error("visited") }); !errors.Is(err, ErrUnusable) {
				t.Fatalf("cut after %d bytes, %d actions: %v", n, items, err)
			}
		}
	}
}

// oracle decodes with encoding/json.
func oracle(answer []byte) (items []map[string]map[string]json.RawMessage, ok bool) {
	var top map[string]json.RawMessage
	if json.Unmarshal(answer, &top) != nil || json.Unmarshal(top["items"], &items) != nil {
		return nil, false
	}
	var errs *bool
	return items, json.Unmarshal(top["errors"], &errs) == nil && errs != nil
}

// What Decode accepts, encoding/json reads alike.
func checkDecode(t fataler, a []byte, n int) bool {
	t.Helper()
	visited := map[int]Item{}
	last := -1
	sum, err := Decode(a, n, func(i int, it Item) {
		if i <= last {
			t.Fatalf("item %d visited after %d", i, last)
		}
		last = i
		visited[i] = it
	})
	if err != nil {
		if len(visited) > 0 {
			t.Fatalf("visited before %v", err)
		}
		return false
	}
	items, ok := oracle(a)
	if !ok || len(items) != n {
		t.Fatalf("accepted %q: %d items, encoding/json %d %v", a, n, len(items), ok)
	}
	var want Summary
	for i, raw := range items {
		for action, m := range raw {
			var status int
			var result string
			_ = json.Unmarshal(m["result"], &result)
			if json.Unmarshal(m["status"], &status) != nil || len(raw) != 1 {
				t.Fatalf("accepted item %d of %q", i, a)
			}
			_, failed := m["error"]
			plain := !failed && (status == 200 || status == 201) && (result != "noop" || action == "update" || action == "delete") ||
				!failed && action == "delete" && status == 404 && result == "not_found"
			it, seen := visited[i]
			switch {
			case plain == seen:
				t.Fatalf("item %d of %q: visited %v", i, a, seen)
			case plain && action == "delete":
				want.Deleted++
			case plain:
				want.Written++
			default:
				want.Visited++
				if it.Status != status || it.Failed != failed || opOf([]byte(action)) != it.Op || resultOf([]byte(result)) != it.Result {
					t.Fatalf("item %d of %q: %+v", i, a, it)
				}
				checkError(t, m["error"], it)
			}
		}
	}
	if sum != want {
		t.Fatalf("%q: %+v, want %+v", a, sum, want)
	}
	return true
}

func checkError(t fataler, raw json.RawMessage, it Item) {
	t.Helper()
	if len(raw) == 0 {
		return
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		if it.Reason.String() != text {
			t.Fatalf("%q: reason %q", raw, it.Reason)
		}
		return
	}
	var m, cause map[string]json.RawMessage
	var typ, reason, because *string
	str := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	if json.Unmarshal(raw, &m) != nil {
		t.Fatalf("accepted the error %q", raw)
	}
	_ = json.Unmarshal(m["type"], &typ)
	_ = json.Unmarshal(m["reason"], &reason)
	_ = json.Unmarshal(m["caused_by"], &cause)
	_ = json.Unmarshal(cause["reason"], &because)
	if it.Type.String() != str(typ) || it.Reason.String() != str(reason) || it.Cause.String() != str(because) {
		t.Fatalf("%q: %q %q %q", raw, it.Type, it.Reason, it.Cause)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(answer(false, okIndex, okIndex)), 2)
	f.Add([]byte(answer(true, okIndex, dropped, gone, conflict, refused, same)), 6)
	f.Add([]byte(`{"took":1e5,"errors":false,"items":[{"index":{"_shards":{"a":[1,-0.5,null,true,{"b":"\ud83d\ude00"}]},"status":201}}]}`), 1)
	f.Add([]byte(`{"items":[{"index":{"status":500,"error":{"reason":null,"type":"\ufffd\xff"}}}],"errors":true}`), 1)
	f.Add([]byte(`{"errors":false,"items":[]}`), 0)
	f.Fuzz(func(t *testing.T, a []byte, n int) {
		if !checkDecode(t, a, n) {
			return
		}
		whole := bytes.TrimRight(a, " \t\r\n")
		for cut := range whole {
			if _, err := Decode(whole[:cut], n, func(int, Item) {}); err == nil {
				t.Fatalf("accepted %q cut after %d bytes", whole, cut)
			}
		}
	})
}

func FuzzDecodeError(f *testing.F) {
	f.Add([]byte(`{"error":{"root_cause":[{"type":"a","reason":"b"}],"type":"a","reason":"b"},"status":400}`))
	f.Add([]byte(`{"error":"Incorrect HTTP method","status":405}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		typ, reason := DecodeError(body)
		if (typ != nil || reason != nil) && !json.Valid(body[:len(bytes.TrimRight(body, "\x00"))]) {
			// what follows the object is not looked at
			var v any
			if json.NewDecoder(bytes.NewReader(body)).Decode(&v) != nil {
				t.Fatalf("read %q", body)
			}
		}
		_, _ = typ.String(), reason.String()
	})
}

// Every valid answer is accepted.
func TestDecodeAcceptsEveryValidAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zA-Z ü"\\\n\[\]']{0,30}`)
		items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) map[string]any {
			op := rapid.SampledFrom([]string{"index", "create", "update", "delete"}).Draw(t, "op")
			m := map[string]any{"status": rapid.SampledFrom([]int{200, 201, 400, 403, 404, 409, 429, 500, 503}).Draw(t, "status")}
			if rapid.Bool().Draw(t, "result") {
				m["result"] = rapid.SampledFrom([]string{"created", "updated", "deleted", "not_found", "noop", "new"}).Draw(t, "result")
			}
			if rapid.IntRange(0, 3).Draw(t, "failed") == 0 {
				m["error"] = map[string]any{"type": "t_exception", "reason": text.Draw(t, "reason"), "caused_by": map[string]any{"type": "x", "reason": text.Draw(t, "cause")}}
			}
			return map[string]any{op: m}
		}), 0, 30).Draw(t, "items")
		failed := false
		for _, it := range items {
			for _, m := range it {
				_, f := m.(map[string]any)["error"]
				failed = failed || f
			}
		}
		a, err := json.Marshal(map[string]any{"errors": failed, "items": items, "took": 5})
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "indent") {
			var b bytes.Buffer
			_ = json.Indent(&b, a, "", " ")
			a = b.Bytes()
		}
		if !checkDecode(t, a, len(items)) {
			t.Fatalf("refused %s", a)
		}
	})
}

func TestDecodeError(t *testing.T) {
	for body, want := range map[string][2]string{
		`{"error":{"root_cause":[{"type":"a","reason":"b"}],"type":"c","reason":"d"},"status":400}`: {"c", "d"},
		`{"error":"Incorrect HTTP method for uri [/_bulk]","status":405}`:                           {"", "Incorrect HTTP method for uri [/_bulk]"},
		``: {}, `<html>`: {}, `{"error":{"type":"c"`: {}, `{}`: {}, `[]`: {}, `{"message":"no"}`: {},
	} {
		if typ, reason := DecodeError([]byte(body)); typ.String() != want[0] || reason.String() != want[1] {
			t.Errorf("%s: %q %q", body, typ, reason)
		}
	}
}

func TestConflictVersions(t *testing.T) {
	const top = "9223372036854775807"
	for reason, want := range map[string][2]int64{
		"[v]: version conflict, current version [10] is higher or equal to the one provided [10]":                                                                             {10, 10},
		"[v]: version conflict, current version [10] is higher than the one provided [9]":                                                                                     {10, 9},
		"[v]: version conflict, current version [" + top + "] is higher or equal to the one provided [0]":                                                                     {1<<63 - 1, 0},
		"[[1]: version conflict, current version [7] is higher or equal to the one provided [7]]: version conflict, current version [12] is higher than the one provided [3]": {12, 3},
	} {
		if stored, sent, ok := ConflictVersions(Text(reason)); !ok || stored != want[0] || sent != want[1] {
			t.Errorf("%s: %d %d %v", reason, stored, sent, ok)
		}
	}
	for _, reason := range []string{
		"", "[", "]",
		"[1]: version conflict, document already exists (current version [1])",
		"[1]: version conflict, required seqNo [5], primary term [1]. but no document was found",
		"[1]: version conflict, required seqNo [5], primary term [1]. current document has seqNo [6] and primary term [1]",
		"[v]: version conflict, current version [9223372036854775808] is higher or equal to the one provided [10]",
		"[v]: version conflict, current version [] is higher or equal to the one provided [10]",
		"[v]: version conflict, current version [-1] is higher or equal to the one provided [10]",
		"[v]: version conflict, current version [1] is higher or equal to the one provided [10] ",
		"1] is higher or equal to the one provided [10]",
		// an id that imitates the text before the text of another kind
		"[[1]: version conflict, current version [7] is higher or equal to the one provided [7]]: version conflict, document already exists (current version [1])",
	} {
		if stored, sent, ok := ConflictVersions(Text(reason)); ok {
			t.Errorf("%s: read as %d %d", reason, stored, sent)
		}
	}
}

func TestNeverFits(t *testing.T) {
	const before = "rejected execution of coordinating operation [coordinating_and_primary_bytes=0, replica_bytes=0, all_bytes=0, coordinating_operation_bytes="
	for rest, want := range map[string]bool{
		"307488, max_coordinating_bytes=204800]":             true,
		"307456, max_coordinating_and_primary_bytes=204800]": true,
		"204800, max_coordinating_bytes=204800]":             false,
		"100, max_coordinating_bytes=204800]":                false,
		"307488, max_primary_bytes=204800]":                  false,
		"":                                                   false,
	} {
		if got := NeverFits(Text(before + rest)); got != want {
			t.Errorf("%s: %v", rest, got)
		}
	}
}

func FuzzConflictVersions(f *testing.F) {
	f.Add("id", int64(5), int64(5))
	f.Fuzz(func(t *testing.T, id string, stored, sent int64) {
		_, _, _ = ConflictVersions(Text(id))
		if stored < 0 || sent < 0 {
			return
		}
		reason := fmt.Sprintf("[%s]: version conflict, current version [%d] is higher or equal to the one provided [%d]", id, stored, sent)
		if a, b, ok := ConflictVersions(Text(reason)); !ok || a != stored || b != sent {
			t.Fatalf("%s: %d %d %v", reason, a, b, ok)
		}
	})
}

func TestCompressor(t *testing.T) {
	for _, level := range []int{-2, 0, 10} {
		if _, err := NewCompressor(level); err == nil {
			t.Errorf("level %d accepted", level)
		}
	}
	for level := 1; level <= 9; level++ {
		c, err := NewCompressor(level)
		if err != nil {
			t.Fatal(err)
		}
		var body []byte
		for round := range 3 {
			chunks := [][]byte{[]byte(strings.Repeat("a", 1000*round)), nil, []byte("b\n")}
			body = c.Compress(body[:0], chunks)
			zr, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(zr)
			if want := bytes.Join(chunks, nil); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("level %d, round %d: %v, %d bytes", level, round, err, len(got))
			}
		}
		chunks := [][]byte{[]byte(strings.Repeat("ab", 5000))}
		if n := testing.AllocsPerRun(20, func() { body = c.Compress(body[:0], chunks) }); n > 0 {
			t.Errorf("level %d: %v allocations per body", level, n)
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	a := []byte(answer(true, okIndex, okIndex, gone, conflict, okUpdate, refused))
	visits := 0
	visit := func(int, Item) { visits++ }
	n := testing.AllocsPerRun(100, func() {
		if _, err := Decode(a, 6, visit); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 || visits == 0 {
		t.Errorf("%v allocations, %d visits", n, visits)
	}
}

func BenchmarkDecode(b *testing.B) {
	const n = 4000
	run := func(name string, failed bool, item func(i int) string) {
		items := make([]string, n)
		for i := range items {
			items[i] = item(i)
		}
		a := []byte(answer(failed, items...))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(a, n, func(int, Item) {}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/item")
			b.ReportMetric(float64(len(a))/n, "B/item")
		})
	}
	run("all-well", false, func(int) string { return okIndex })
	run("mixed-well", false, func(i int) string { return []string{okIndex, okUpdate, okDelete, okUpdate, gone}[i*7919%5] })
	run("few-errors", true, func(i int) string {
		if i%100 == 99 {
			return refused
		}
		return okIndex
	})
	run("all-conflicts", true, func(int) string { return conflict })
}

func BenchmarkCompress(b *testing.B) {
	var chunks [][]byte
	for i := range 64 {
		var chunk []byte
		for j := range 60 {
			chunk = Append(chunk, &Action{Op: Index, Target: "events", ID: fmt.Appendf(nil, "k-%d-%d", i, j), Body: fmt.Appendf(nil, `{"n":%d,"message":%q}`, i*j, strings.Repeat("lorem ipsum ", 80))})
		}
		chunks = append(chunks, chunk)
	}
	c, err := NewCompressor(1)
	if err != nil {
		b.Fatal(err)
	}
	var body []byte
	for b.Loop() {
		body = c.Compress(body[:0], chunks)
	}
}
