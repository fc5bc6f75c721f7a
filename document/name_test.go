package document

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/partition"
)

// serverTakes are the server's rules for index names.
func serverTakes(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && strings.ToLower(name) == name &&
		!strings.ContainsAny(name, "\\/*?\"<>| ,#:") && !strings.ContainsAny(name[:1], "-_+")
}

// unescapeName is the inverse of partition.AppendName: that it exists makes it
// one-to-one.
func unescapeName(s string) string {
	const hex = "0123456789abcdef"
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] == '=' {
			b = append(b, byte(strings.IndexByte(hex, s[i+1])<<4|strings.IndexByte(hex, s[i+2])))
			i += 2
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

func checkName(t interface{ Fatalf(string, ...any) }, s string) {
	for _, separator := range []byte{0, '-', '_', '.'} {
		for _, leads := range []bool{false, true} {
			name := string(partition.AppendName(nil, s, separator, leads))
			if unescapeName(name) != s {
				t.Fatalf("%q becomes %q, which reads back as %q", s, name, unescapeName(name))
			}
			if separator != 0 && strings.IndexByte(name, separator) >= 0 {
				t.Fatalf("%q becomes %q, with the separator %q in it", s, name, separator)
			}
			if len(name) < 250 && s != "" && !serverTakes("a"+name) || leads && s != "" && len(name) <= 255 && !serverTakes(name) {
				t.Fatalf("%q becomes %q, which is no name", s, name)
			}
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"acme", "ACME", "Acme", "a=41cme", "é", "e\u0301", "ß", "SS", "İ", " ", "..", "_a", "a-b", "\x00", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { checkName(t, s) })
}

func TestNameProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkName(t, text(t, "s")) })
}

// text draws strings that are likely to meet.
func text(t *rapid.T, label string) string {
	return rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("aA-_.=2d")), 0, 6, -1),
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	).Draw(t, label)
}

// Two records share an index name only if all variables are equal.
func TestNamesAreOneToOne(t *testing.T) {
	templates := []string{
		"x-${customer}", "${topic}", "x-${topic}-${customer}", "${topic}-${customer}", "${topic}_${header:h}-${customer}", "x.${header:h}.y-${customer}-z",
		"x-${customer}-${timestamp:2006.01.02}", "x-${timestamp:2006-01}-${header:h}-${customer}", "${topic}-${timestamp:2006}.${customer}-${timestamp:01}", "x-${customer}${timestamp:2006}", "x-a-${header:h}--${customer}",
	}
	rules := make([]*Rules, len(templates))
	for i, index := range templates {
		rules[i] = mustRules(t, Config{Index: index, ID: "none", Customer: "header:c", TimeWindow: TimeWindow{Past: 1e6 * time.Hour, Future: 1e6 * time.Hour}})
	}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(rules)-1).Draw(t, "template")
		draw := func() (*kgo.Record, string) {
			topic := rapid.StringMatching(`[aA._-]{1,4}`).Draw(t, "topic")
			h, c := text(t, "header"), text(t, "customer")
			at := time.Date(2024, time.Month(rapid.IntRange(1, 2).Draw(t, "month")), 1, 0, 0, 0, 0, time.UTC)
			inputs := ""
			if strings.Contains(templates[i], "${topic}") {
				inputs += topic
			}
			inputs += "\x00"
			if strings.Contains(templates[i], "${header") {
				inputs += h
			}
			inputs += "\x00"
			if strings.Contains(templates[i], "${customer") {
				inputs += c
			}
			for _, layout := range []string{"2006.01.02", "2006-01", "2006", "01"} {
				if strings.Contains(templates[i], layout+"}") {
					inputs += "\x00" + at.Format(layout)
				}
			}
			return &kgo.Record{Topic: topic, Value: []byte("{}"), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(h)}, {Key: "c", Value: []byte(c)}}}, inputs
		}
		a, aInputs := draw()
		b, bInputs := draw()
		var outA, outB Result
		rules[i].Map(a, 1, &outA)
		rules[i].forTopic(b.Topic).Map(b, 1, &outB) // the folded rules must give the same names
		if outA.Verdict != Send || outB.Verdict != Send {
			return
		}
		if !serverTakes(outA.Action.Target) {
			t.Fatalf("%q is no name", outA.Action.Target)
		}
		if (outA.Action.Target == outB.Action.Target) != (aInputs == bInputs) {
			t.Fatalf("%s: %q gives %q, %q gives %q", templates[i], aInputs, outA.Action.Target, bInputs, outB.Action.Target)
		}
	})
}

// V45: what cannot be a name is refused or encoded before sending.
func TestIndexNames(t *testing.T) {
	r := mustRules(t, Config{Index: "ev-${customer}", Customer: "header:c", ID: "none"})
	for customer, want := range map[string]string{
		"acme":                   "ev-acme",
		"Acme":                   "ev-=41cme",
		"a b":                    "ev-a=20b",
		"*":                      "ev-=2a",
		"a,b":                    "ev-a=2cb",
		"#":                      "ev-=23",
		"_x":                     "ev-_x",
		"-x":                     "ev--x",
		"+x":                     "ev-=2bx",
		".":                      "ev-.",
		"..":                     "ev-..",
		"a=41cme":                "ev-a=3d41cme",
		"é":                      "ev-=c3=a9",
		"e\u0301":                "ev-e=cc=81",
		"":                       "reject no_customer",
		strings.Repeat("a", 252): "ev-" + strings.Repeat("a", 252),
		strings.Repeat("a", 253): "reject index_name_too_long",
		strings.Repeat("A", 85):  "reject index_name_too_long",
		strings.Repeat("a", 999): "reject index_name_too_long",
	} {
		var out Result
		r.Map(&kgo.Record{Topic: "t", Value: []byte("{}"), Headers: []kgo.RecordHeader{{Key: "c", Value: []byte(customer)}}}, 1, &out)
		got := out.Action.Target
		if out.Verdict == Reject {
			got = "reject " + out.Type
		}
		if got != want {
			t.Errorf("customer %.20q: %q, want %q", customer, got, want)
		}
	}
}

func TestTopicInIndexName(t *testing.T) {
	for topic, want := range map[string]string{
		"app-logs": "app-logs", "Orders": "=4frders", "_x": "=5fx", "-x": "=2dx", ".x": "=2ex", "a.b_c": "a.b_c",
	} {
		var out Result
		mustRules(t, Config{Index: "${topic}", ID: "position"}).forTopic(topic).Map(&kgo.Record{Topic: topic, Value: []byte("{}")}, 1, &out)
		if out.Action.Target != want || !serverTakes(out.Action.Target) {
			t.Errorf("%s: %q, want %q", topic, out.Action.Target, want)
		}
	}
	long := strings.Repeat("X", 249)
	var out Result
	mustRules(t, Config{Index: "${topic}", ID: "position"}).forTopic(long).Map(&kgo.Record{Topic: long, Value: []byte("{}")}, 1, &out)
	if out.Type != TypeIndexTooLong {
		t.Errorf("a long topic: %+v", out)
	}
}

func TestNamesAreRememberedWithinBounds(t *testing.T) {
	r := mustRules(t, Config{Index: "ev-${customer}", Customer: "key"})
	var out Result
	for i := range 3 * maxNames {
		r.Map(&kgo.Record{Topic: "t", Key: []byte{byte(i), byte(i >> 8)}, Value: []byte("{}")}, 1, &out)
		if len(out.names) > maxNames {
			t.Fatalf("%d names", len(out.names))
		}
	}
}

func mustRules(t testing.TB, cfg Config) *Rules {
	t.Helper()
	m, err := New(cfg, nil, []string{"t"}, false)
	if err != nil {
		t.Fatal(err)
	}
	return m.base
}

func TestCheckLayout(t *testing.T) {
	for layout, ok := range map[string]bool{
		"2006-01-02": true, "2006.01": true, "2006": true, "15": true,
		"yyyy.mm.dd": false, "": false, "2006-1": false, "Jan": false, "2006/01": false,
	} {
		if err := checkLayout(layout); (err == nil) != ok {
			t.Errorf("%q: %v", layout, err)
		}
	}
}
