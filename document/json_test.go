package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// seeds are texts at the borders of JSON.
var seeds = []string{
	`{}`, `{ }`, `{"a":1}`, ` {"a" : [ 1 , 2.5e-3, -0, 0.0E+1 ] } `, `{"a":{"b":{"c":[[],[{}]]}}}`,
	`{"a":"\u00e9\ud83d\ude00\n\"\\\/"}`, `{"\u0061":1,"a":2}`, `{"a":1,"a":{"b":2},"a":{"c":3}}`,
	`{"a":tru}`, `{"a":nul}`, `{"a":falsy}`, `{"a":NaN}`, `{"a":-Infinity}`, `{"a":1e400}`, `{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":-}`, `{"a":1e}`, `{"a":+1}`,
	`{"a":1}{"b":2}`, `{"a":1} x`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{"a":1 "b":2}`, `{"a":[1,]}`, `{"a":[,1]}`, `{"a":[1 2]}`, `{"a":[1}}`, `{"a":{]}`, `{"a":1`, `{`, `{"`, `{"a`, `{"a"`, `{"a":`, `{"a":"`,
	"{\"a\":\"\t\"}", "{\"a\":\"\x00\"}", "{\"a\":\"\n\"}", "{\r\n\t\"a\":\n1}\n", `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":"\ud800"}`, `{"a":"\ude00\ud83d"}`, `{"a":"\ud83d\u0041"}`, `{"a":"\`,
	"{\"a\":\"\xb8\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\xc0\x80\"}", "\xef\xbb\xbf{\"a\":1}", "{\xef\xbb\xbf\"a\":1}",
	`1`, `"x"`, `null`, `[]`, `[{}]`, ``, ` `, `{a:1}`, `{'a':1}`, `{"a":1/*c*/}`, `{"a":{/*"*/},"id":1}`,
	`{"":1}`, `{" ":1}`, `{".a":1}`, `{"a.":1}`, `{"..":1}`, `{"a..b":1}`, `{"a. .b":1}`, `{"a.b":1}`, `{"b":{"":1}}`, `{"\u002e":1}`, `{"_id":1}`, `{"\u005fid":1}`, `{"a":{"_id":1}}`, `{"_x":1}`,
	strings.Repeat(`{"a":`, 20) + `1` + strings.Repeat(`}`, 20), strings.Repeat(`{"a":`, 21) + `1` + strings.Repeat(`}`, 21), `{"a":` + strings.Repeat(`[`, 63) + strings.Repeat(`]`, 63) + `}`,
}

// judge is what the strict check must answer, found by encoding/json.
func judge(b []byte, maxDepth int) (ok, metadata bool) {
	if !json.Valid(b) || !utf8.Valid(b) || bytes.TrimLeft(b, " \t\r\n")[0] != '{' || halfSurrogate(b) {
		return false, false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	type level struct{ object, atName bool }
	var levels []level
	for {
		token, err := d.Token()
		if err != nil {
			return true, metadata
		}
		top := len(levels) - 1
		if name, isString := token.(string); isString && top >= 0 && levels[top].object && levels[top].atName {
			for part := range strings.SplitSeq(strings.TrimRight(name, "."), ".") {
				if top == 0 && strings.Trim(part, " \t\r\n") == "" {
					return false, false
				}
			}
			metadata = metadata || top == 0 && isMetadata([]byte(name))
			levels[top].atName = false
			continue
		}
		if delim, isDelim := token.(json.Delim); isDelim && (delim == '}' || delim == ']') {
			levels = levels[:top]
			continue
		}
		if top >= 0 {
			levels[top].atName = true
		}
		if delim, isDelim := token.(json.Delim); isDelim {
			levels = append(levels, level{object: delim == '{', atName: true})
			if len(levels) > maxDepth {
				return false, false
			}
		}
	}
}

// halfSurrogate looks for one in the escapes of valid JSON.
func halfSurrogate(b []byte) bool {
	unit := func(i int) rune {
		if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
			return 0
		}
		v, _ := strconv.ParseUint(string(b[i+2:i+6]), 16, 16)
		return rune(v)
	}
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if u := unit(i); utf16.IsSurrogate(u) {
			if utf16.DecodeRune(u, unit(i+6)) == utf8.RuneError {
				return true
			}
			i += 10
		}
		i++
	}
	return false
}

func checkStrict(t *testing.T, c *checker, b []byte) {
	t.Helper()
	const depth = 20
	want, wantMetadata := judge(b, depth)
	c.maxDepth, c.names = depth, true
	p := c.object(b)
	if (p == nil) != want {
		t.Fatalf("%q: the check says %v, encoding/json %v", b, p, want)
	}
	if p == nil && c.metadata != wantMetadata {
		t.Fatalf("%q: metadata names %v, want %v", b, c.metadata, wantMetadata)
	}
}

func FuzzStrict(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	var c checker
	f.Fuzz(func(t *testing.T, b []byte) { checkStrict(t, &c, b) })
}

// Random texts of a small alphabet reach deeper than random bytes.
func TestStrictAgreesWithEncodingJSON(t *testing.T) {
	var c checker
	r := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{`{`, `}`, `[`, `]`, `,`, `:`, `"a"`, `"`, `\`, `u`, `\ud83d`, `\ude00`, `1`, `-`, `.`, `e`, `0`, `true`, `null`, ` `, "\n", `"_id"`, `"a.b"`, `"a":`, `"b":{`, "\xc3", "\xa9", `""`}
	for range 200_000 {
		b := []byte(`{`)
		for range r.IntN(12) {
			b = append(b, alphabet[r.IntN(len(alphabet))]...)
		}
		checkStrict(t, &c, append(b, '}'))
	}
	rapid.Check(t, func(rt *rapid.T) {
		b := document(rt)
		checkStrict(t, &c, b)
		// One changed byte most often breaks it.
		i := rapid.IntRange(0, len(b)-1).Draw(rt, "at")
		b[i] = rapid.SampledFrom([]byte(`{}[],:"\u0e-. x`+"\n\x00\xff")).Draw(rt, "byte")
		checkStrict(t, &c, b)
	})
}

// document draws a valid object with white space.
func document(t *rapid.T) []byte {
	b, err := json.Marshal(object(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	if rapid.Bool().Draw(t, "indent") {
		var buf bytes.Buffer
		if err := json.Indent(&buf, b, "", rapid.SampledFrom([]string{"", " ", "\t"}).Draw(t, "by")); err != nil {
			t.Fatal(err)
		}
		b = buf.Bytes()
	}
	return b
}

func object(t *rapid.T, depth int) map[string]any {
	o := map[string]any{}
	for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "~/", "0", `"`, `\`, "é😀", "a.b", "_id"}), 0, 4).Draw(t, "names") {
		o[name] = value(t, depth-1)
	}
	return o
}

func value(t *rapid.T, depth int) any {
	kinds := 5
	if depth <= 0 {
		kinds = 3
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.String().Draw(t, "string")
	case 1:
		return rapid.Float64Range(-1e9, 1e9).Draw(t, "number")
	case 2:
		return rapid.SampledFrom([]any{nil, true, false, "", "\n\\\"/\u2028"}).Draw(t, "constant")
	case 3:
		return object(t, depth)
	default:
		a := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			a = append(a, value(t, depth-1))
		}
		return a
	}
}

func TestCompactAgreesWithEncodingJSON(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, b []byte) {
		var want bytes.Buffer
		if json.Compact(&want, b) != nil {
			return
		}
		if got := appendCompact([]byte("x"), b); string(got) != "x"+want.String() {
			t.Fatalf("%q becomes %q, want %q", b, got[1:], want.Bytes())
		}
	}
	for _, s := range seeds {
		check(t, []byte(s))
	}
	rapid.Check(t, func(t *rapid.T) { check(t, document(t)) })
}

func TestAppendStringAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.String(),
		).Draw(t, "s")
		got := appendString(nil, s)
		if other := appendString(nil, []byte(s)); !bytes.Equal(got, other) {
			t.Fatalf("of a string %q, of bytes %q", got, other)
		}
		var back string
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatalf("%q: %v", got, err)
		}
		if want := strings.ToValidUTF8(s, "\x00"); len([]rune(back)) < len([]rune(want)) || utf8.ValidString(s) && back != s {
			t.Fatalf("%q becomes %q", s, back)
		}
	})
}

func TestStrip(t *testing.T) {
	var c checker
	for in, want := range map[string]string{
		`{"_id":1}`:                          `{}`,
		`{ "_id" : 1 , "a" : 2 }`:            `{"a" : 2}`,
		`{"a":2,"_index":{"x":[1,2]},"b":3}`: `{"a":2,"b":3}`,
		`{"a":{"_id":1},"\u005fid":"}"}`:     `{"a":{"_id":1}}`,
		`{"_own":1,"_routing":"r"}`:          `{"_own":1}`,
	} {
		if got := c.appendStripped(nil, []byte(in)); string(got) != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
}

// Depth costs neither stack nor memory beyond a bit a level up to the limit.
func TestDepth(t *testing.T) {
	c := checker{maxDepth: 200, names: true}
	nested := func(n int) []byte {
		return []byte(strings.Repeat(`{"a":`, n) + `1` + strings.Repeat(`}`, n))
	}
	for n, want := range map[int]*problem{20: nil, 21: nil, 200: nil, 201: problemTooDeep, 1000: problemTooDeep, 100_000: problemTooDeep} {
		if p := c.object(nested(n)); p != want {
			t.Errorf("%d levels: %v", n, p)
		}
	}
	deep := nested(100_000)
	if n := testing.AllocsPerRun(10, func() { c.object(deep) }); n != 0 {
		t.Errorf("%v allocations for 100,000 levels", n)
	}
	if len(c.objects) > 4 {
		t.Errorf("%d words of stack for 200 levels", len(c.objects))
	}
}

// find and encoding/json must agree on every valid document: the last of equal
// names counts, escapes in names are read.
func checkFind(t *testing.T, doc []byte, ptr string) {
	t.Helper()
	p, err := parsePointer(ptr)
	if err != nil {
		return
	}
	var scratch []byte
	raw, ok := p.find(doc, &scratch)
	if !json.Valid(doc) || !utf8.Valid(doc) || halfSurrogate(doc) {
		return // only that it ends well is asked
	}
	if !ok {
		t.Fatalf("%q: not followed", doc)
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var want any
	if err := d.Decode(&want); err != nil {
		t.Fatal(err)
	}
	found := true
	for token := range strings.SplitSeq(ptr[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v := want.(type) {
		case map[string]any:
			want, found = v[token]
		case []any:
			i, err := strconv.ParseUint(token, 10, 31)
			found = err == nil && strconv.FormatUint(i, 10) == token && int(i) < len(v)
			if found {
				want = v[i]
			}
		default:
			found = false
		}
		if !found {
			break
		}
	}
	if found != (raw != nil) {
		t.Fatalf("%q at %q: found %q, want %v", doc, ptr, raw, found)
	}
	if !found {
		return
	}
	d = json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var got any
	if err := d.Decode(&got); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%q at %q: %q, want %v", doc, ptr, raw, want)
	}
}

func FuzzFind(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), "/a")
		f.Add([]byte(s), "/a/b")
		f.Add([]byte(s), "/a/0")
	}
	f.Fuzz(checkFind)
}

func TestFindAgreesWithEncodingJSON(t *testing.T) {
	tokens := []string{"a", "b", "~0~1", "0", "1", "01", "-", `"`, `\`, "é😀", "a.b", ""}
	for _, s := range seeds {
		for _, first := range tokens {
			checkFind(t, []byte(s), "/"+first)
			for _, second := range tokens {
				checkFind(t, []byte(s), "/"+first+"/"+second)
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		path := rapid.SliceOfN(rapid.SampledFrom(tokens), 1, 3).Draw(rt, "path")
		doc := document(rt)
		checkFind(t, doc, "/"+strings.Join(path, "/"))
		// The same name twice.
		if len(doc) > 2 && rapid.Bool().Draw(rt, "twice") {
			doc = slices.Concat([]byte(`{"a":{"b":1},`), doc[1:])
			checkFind(t, doc, "/"+strings.Join(path, "/"))
		}
	})
}

// A comment, which some servers pass over, is never read as content.
func TestFindRefusesComments(t *testing.T) {
	var scratch []byte
	for _, doc := range []string{`{"x":{/* " */},"id":"1"}`, `{"x":1/*,"id":"2"*/,"id":"1"}`, `{/*"id":"2",*/"id":"1"}`, `{"x":1//,"id":"2"`, `{"x":/**/1,"id":"1"}`, `{"id":"1"/**/}`, `{"x":[/*],"id":"2"}*/1],"id":"1"}`} {
		if raw, ok := (pointer{{"id", -1}}).find([]byte(doc), &scratch); ok {
			t.Errorf("%s: followed, to %s", doc, raw)
		}
	}
}

func TestParsePointer(t *testing.T) {
	for _, s := range []string{"", "a", "a/b", "/~", "/~2", "/a~"} {
		if p, err := parsePointer(s); err == nil {
			t.Errorf("%q: %v, no error", s, p)
		}
	}
	p, err := parsePointer("/a~1b/~01/0/")
	if err != nil || !slices.Equal(p, pointer{{"a/b", -1}, {"~1", -1}, {"0", 0}, {"", -1}}) {
		t.Errorf("%v, %v", p, err)
	}
}
