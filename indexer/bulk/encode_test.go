package bulk

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestAppendGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		a    Action
		want string
	}{
		{
			"index with a sequence",
			Action{Op: Index, Target: "events", ID: []byte("k-1"), VersionType: External, Version: 9007199254741248, Body: []byte(`{"a":1}`)},
			`{"index":{"_id":"k-1","version":9007199254741248,"version_type":"external","_index":"events"}}` + "\n" + `{"a":1}` + "\n",
		},
		{
			"highest version, external_gte",
			Action{Op: Index, Target: "e", ID: []byte("k"), VersionType: ExternalGTE, Version: math.MaxInt64, Body: []byte(`{}`)},
			`{"index":{"_id":"k","version":9223372036854775807,"version_type":"external_gte","_index":"e"}}` + "\n{}\n",
		},
		{
			"create with an id, routing, pipeline, alias",
			Action{Op: Create, Target: "logs", ID: []byte("events+0+17"), Routing: []byte("acme"), Pipeline: "geo", RequireAlias: true, Body: []byte(`{}`)},
			`{"create":{"_id":"events+0+17","routing":"acme","_index":"logs","pipeline":"geo","require_alias":true}}` + "\n{}\n",
		},
		{
			"the server's own id",
			Action{Op: Index, Target: "logs", Body: []byte(`{}`)},
			`{"index":{"_index":"logs"}}` + "\n{}\n",
		},
		{
			"update",
			Action{Op: Update, Target: "e", ID: []byte("k"), Body: []byte(`{"a":1}`)},
			`{"update":{"_id":"k","_index":"e"}}` + "\n" + `{"doc":{"a":1}}` + "\n",
		},
		{
			"upsert",
			Action{Op: Upsert, Target: "e", ID: []byte("k"), Body: []byte(`{"a":1}`)},
			`{"update":{"_id":"k","_index":"e"}}` + "\n" + `{"doc_as_upsert":true,"doc":{"a":1}}` + "\n",
		},
		{
			"delete takes no pipeline and no require_alias",
			Action{Op: Delete, Target: "e", ID: []byte("k"), VersionType: External, Version: 5, Pipeline: "geo", RequireAlias: true},
			`{"delete":{"_id":"k","version":5,"version_type":"external","_index":"e"}}` + "\n",
		},
		{
			"escapes",
			Action{Op: Index, Target: `a"b`, ID: []byte("a\"b\\c\x01\n\u2028é"), Routing: []byte("\t"), Pipeline: `\`, Body: []byte(`{}`)},
			`{"index":{"_id":"a\"b\\c\u0001\u000a` + "\u2028é" + `","routing":"\u0009","_index":"a\"b","pipeline":"\\"}}` + "\n{}\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(Append(nil, &c.a)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func genAction(t *rapid.T) Action {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z"\\\x00-\x1f,:{}]{0,20}`), rapid.StringMatching(`[a-z0-9-]{1,40}`))
	a := Action{
		Op:           Op(rapid.IntRange(int(Index), int(Delete)).Draw(t, "op")),
		VersionType:  VersionType(rapid.IntRange(int(Internal), int(ExternalGTE)).Draw(t, "version type")),
		RequireAlias: rapid.Bool().Draw(t, "alias"),
		Target:       text.Draw(t, "target"),
		ID:           []byte(text.Draw(t, "id")),
		Routing:      []byte(text.Draw(t, "routing")),
		Pipeline:     text.Draw(t, "pipeline"),
	}
	if a.VersionType != Internal {
		a.Version = rapid.Int64Range(0, math.MaxInt64).Draw(t, "version")
	}
	if a.Op != Delete {
		a.Body = []byte(rapid.SampledFrom([]string{`{}`, `{"a":1}`, `{"doc_as_upsert":true}`, `{"a":"}\n"}`, `{1,"doc":{}}`}).Draw(t, "body"))
	}
	return a
}

// Whatever the texts hold, the two lines are two lines, and JSON says back
// what went in.
func TestAppendRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := genAction(t)
		checkEncoded(t, &a)
	})
}

func FuzzAppend(f *testing.F) {
	f.Add(uint8(1), "events", "k-1", "", "", int64(1), false)
	f.Add(uint8(4), "a\"", "\\\"", "r\n", "p\x00", int64(math.MaxInt64), true)
	f.Fuzz(func(t *testing.T, op uint8, target, id, routing, pipeline string, version int64, alias bool) {
		for _, s := range []string{target, id, routing, pipeline} {
			if !utf8.ValidString(s) {
				t.Skip()
			}
		}
		a := Action{
			Op: Op(op%5) + Index, Target: target, ID: []byte(id), Routing: []byte(routing), Pipeline: pipeline,
			Version: version, VersionType: External, RequireAlias: alias, Body: []byte(`{}`),
		}
		if a.Op == Delete {
			a.Body = nil
		}
		checkEncoded(t, &a)
	})
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func checkEncoded(t fataler, a *Action) {
	t.Helper()
	enc := Append([]byte("before"), a)[len("before"):]
	if h := NewHead(a.Op, a.Target, a.Pipeline, a.RequireAlias); !bytes.Equal(h.Append(nil, a), enc) {
		t.Fatalf("head: %q, without: %q", h.Append(nil, a), enc)
	}
	if len(enc) > Bound(a) {
		t.Fatalf("%d bytes, bound %d", len(enc), Bound(a))
	}
	lines := strings.Split(string(enc), "\n")
	if want := map[bool]int{true: 2, false: 3}[a.Op == Delete]; len(lines) != want || lines[len(lines)-1] != "" {
		t.Fatalf("%d lines: %q", len(lines), enc)
	}
	var line map[string]struct {
		ID           *string `json:"_id"`
		Index        string  `json:"_index"`
		Routing      string
		Pipeline     string
		RequireAlias bool   `json:"require_alias"`
		Version      *int64 `json:"version"`
		VersionType  string `json:"version_type"`
	}
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || len(line) != 1 {
		t.Fatalf("%v: %q", err, lines[0])
	}
	name := map[Op]string{Index: "index", Create: "create", Update: "update", Upsert: "update", Delete: "delete"}[a.Op]
	m, ok := line[name]
	pipeline, alias := a.Pipeline, a.RequireAlias
	if a.Op == Delete {
		pipeline, alias = "", false
	}
	if !ok || m.Index != a.Target || m.Routing != string(a.Routing) || m.Pipeline != pipeline || m.RequireAlias != alias ||
		(m.ID != nil) != (len(a.ID) > 0) || m.ID != nil && *m.ID != string(a.ID) ||
		m.VersionType != [...]string{"", "external", "external_gte"}[a.VersionType] ||
		(m.Version != nil) != (a.VersionType != Internal) || m.Version != nil && *m.Version != a.Version {
		t.Fatalf("%+v became %s", a, lines[0])
	}

	s := Open(enc)
	if s.Op != a.Op || s.VersionType != a.VersionType || a.VersionType != Internal && s.Version != a.Version || !bytes.Equal(s.Body, a.Body) ||
		!bytes.Equal(s.ID, IDOf(enc)) || (s.Body == nil) != (a.Op == Delete) {
		t.Fatalf("%+v read back as %+v", a, s)
	}
	var id string
	if s.ID != nil {
		if err := json.Unmarshal([]byte(`"`+string(s.ID)+`"`), &id); err != nil {
			t.Fatalf("id %q: %v", s.ID, err)
		}
	}
	if id != string(a.ID) {
		t.Fatalf("id %q read back as %q", a.ID, id)
	}
}

// safe against the definition, at every length and place.
func TestSafe(t *testing.T) {
	for n := range 20 {
		for at := range n {
			for c := range 256 {
				b := bytes.Repeat([]byte{'~'}, n)
				b[at] = byte(c)
				want := c >= ' ' && c != '"' && c != '\\'
				if safe(b) != want {
					t.Fatalf("safe(%q) = %v", b, !want)
				}
			}
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	dst := make([]byte, 0, 1<<16)
	a := Action{Op: Upsert, Target: "events", ID: []byte(`customer-"17"`), Routing: []byte("r"), Pipeline: "p", VersionType: External, Version: math.MaxInt64, Body: []byte(`{}`)}
	h := NewHead(a.Op, a.Target, a.Pipeline, a.RequireAlias)
	if n := testing.AllocsPerRun(100, func() { Append(dst, &a); IDOf(h.Append(dst, &a)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	a := Action{Op: Index, Target: "events", ID: []byte("customer-0017-4711-0815"), VersionType: External, Version: 9007199254741248}
	a.Body = []byte(`{"message":"` + strings.Repeat("x", 1024) + `"}`)
	dst := make([]byte, 0, 1<<12)
	line := Append(nil, &a)
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
	h := NewHead(a.Op, a.Target, "", false)
	run("memcpy", func() { dst = append(dst[:0], line...) })
	run("head", func() { dst = h.Append(dst[:0], &a) })
	run("no-head", func() { dst = Append(dst[:0], &a) })
	run("idof", func() { _ = IDOf(line) })
	c := Action{Op: Create, Target: "events", ID: []byte("events+3+123456789"), Body: a.Body}
	hc := NewHead(Create, "events", "", false)
	run("head-position", func() { dst = hc.Append(dst[:0], &c) })
}
