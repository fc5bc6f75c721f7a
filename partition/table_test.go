package partition

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// example is a table as an operator meets it in the control index.
const example = `{"schema":1,"name":"events","epoch":17,"generation":1,"hash":"xxh64","slots":8,` +
	`"slot_map":"0-3=p000 4=p001 5-7=p000","overrides":{"acme-*":"p001","cust-42":"w-cust-42"},` +
	`"partitions":{"p000":{"index":"events-p000-j7","alias":"events-p000","state":"active"},` +
	`"p001":{"index":"events-p001-j7","state":"active"},"w-cust-42":{"index":"events-w-cust-42-j7","state":"active"}},` +
	`"legacy":{"index":"events","state":"active"},"job":"j7","write":"dual",` +
	`"read":{"allow":["cust-1"],"deny":[],"percent":500,"salt":"j7"},` +
	`"updated_by":"ann","updated_at":"2026-11-30T12:00:00Z"}`

func mustParse(t *testing.T, document string) *Table {
	t.Helper()
	table, err := Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestParse(t *testing.T) {
	table := mustParse(t, example)
	if table.Epoch != 17 || table.Write != W2 || table.SlotMap[4] != "p001" || table.SlotMap[7] != "p000" || table.Legacy.Index != "events" ||
		table.Partitions["p000"].ReadName() != "events-p000" || table.Partitions["p001"].ReadName() != "events-p001-j7" ||
		table.Read.Percent != 500 || !table.UpdatedAt.Equal(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", table)
	}
	again, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != example {
		t.Errorf("written again:\n%s\nwant\n%s", again, example)
	}
}

// Each mistake is named by its place, with what would be right.
func TestParseRefuses(t *testing.T) {
	for _, test := range []struct{ old, new, want string }{
		{`"events",`, `7,`, "name: is 7; write a text"},
		{`"events",`, `"a b",`, `name: "a b" is no name of a stream`},
		{`"epoch":17`, `"epoch":0`, "epoch: 0 is not above 0"},
		{`"epoch":17`, `"epoch":1.5`, "epoch: is 1.5; write an integer"},
		{`"epoch":17`, `"epoch":99999999999999999999`, "epoch: is 99999999999999999999"},
		{`"epoch":17`, `"epoch":17,"epoch":18`, "epoch: is there twice"},
		{`"epoch"`, `"Epoch"`, "Epoch: is no key that this program knows; use epoch, generation"},
		{`"schema":1`, `"schema":0`, "schema: 0 does not exist"},
		{`"generation":1`, `"generation":0`, "generation: 0 is not above 0"},
		{`"xxh64"`, `"crc32"`, `hash: "crc32" is not known; write xxh64`},
		{`"slots":8`, `"slots":0`, "slots: 0 is not between 1 and 65536"},
		{`"slots":8`, `"slots":9`, "slot_map: it holds 8 slots of 9"},
		{`0-3=p000 4=`, `0-3=p000 5=`, "slot_map.5: begins with slot 5 and the next one is 4"},
		{`0-3=p000 4=`, `0-3=p000 3=`, "slot_map.3: begins with slot 3 and the next one is 4"},
		{`4=p001`, `4=p009`, `slot_map.4-4: there is no partition "p009"`},
		{`4=p001`, `4p001`, "slot_map.4p001: is no run of slots"},
		{`4=p001`, `4--4=p001`, "slot_map.4--4: is no run of slots"},
		{`4=p001`, `4-99999999=p001`, "slot_map.4-99999999: is no run of slots"},
		{`{"acme-*":"p001"`, `{"acme-*":"p009"`, `overrides.acme-*: there is no partition "p009"`},
		{`{"acme-*":"p001"`, `{"acme-*":"p001","acme-*":"p000"`, "overrides.acme-*: is there twice"},
		{`{"acme-*"`, `{"a\\b"`, `overrides["a\\b"]: has a backslash`},
		{`{"acme-*"`, `{""`, `overrides[""]: is empty`},
		{`{"acme-*":"p001"`, `{"acme-*":1`, "overrides.acme-*: is 1; write the name of a partition"},
		{`"events-p001-j7"`, `"events-p000-j7"`, `partitions.p001.index: "events-p000-j7" is partitions.p000.index too`},
		{`"events-p001-j7"`, `"events"`, `partitions.p001.index: "events" is legacy.index too`},
		{`"events-p001-j7"`, `"Events"`, "partitions.p001.index: has upper case"},
		{`"events-p001-j7"`, `""`, "partitions.p001.index: is empty"},
		{`"p001":{`, `"P 1":{`, `partitions["P 1"]: is no name of a partition`},
		{`-p001-j7","state":"active"`, `-p001-j7","state":"actve"`, `partitions.p001.state: "actve" is no state; use active or retired`},
		{`-p001-j7","state":"active"`, `-p001-j7","state":"retired"`, `slot_map.4-4: partition "p001" is retired`},
		{`-p001-j7","state"`, `-p001-j7","stat"`, "partitions.p001.stat: is no key that this program knows; use alias, index, state"},
		{`{"index":"events","state":"active"}`, `null`, "legacy: write mode W2 writes to it and there is none"},
		{`{"index":"events","state":"active"}`, `[]`, "legacy: is []; write an object"},
		{`{"index":"events","state":"active"}`, `{"index":"events","state":"retired"}`, "legacy.state: write mode W2 writes to it"},
		{`"job":"j7"`, `"job":""`, "job: both sides are written and no migration says why"},
		{`"dual"`, `"duel"`, `write: is "duel"; write legacy, dual_shadow, dual or new`},
		{`"dual"`, `2`, "write: is 2"},
		{`"dual"`, `"dual_shadow"`, "read: customers are read from the new side, which is not complete in write mode W1"},
		{`"allow":["cust-1"]`, `"allow":["cust-1",""]`, "read.allow[1]: is empty"},
		{`"allow":["cust-1"]`, `"allow":"cust-1"`, `read.allow: is "cust-1"; write a list of texts`},
		{`"deny":[]`, `"deny":["\\"]`, "read.deny[0]: has a backslash"},
		{`"percent":500`, `"percent":10001`, "read.percent: 10001 is not between 0 and 10000; write basis points"},
		{`"percent":500`, `"percent":-1`, "read.percent: -1 is not"},
		{`"percent":500`, `"percent":null`, "read.percent: is null; write an integer (basis points)"},
		{`"salt":"j7"`, `"salt":""`, "read.salt: is empty"},
		{`"2026-11-30T12:00:00Z"`, `"yesterday"`, `updated_at: is "yesterday"; write a time`},
		{`12:00:00Z"}`, `12:00:00Z"`, "the document: is no JSON from byte"},
		{`12:00:00Z"}`, `12:00:00Z"} {}`, "the document: something follows its end"},
		{`{"schema"`, `"schema"`, "write an object"},
	} {
		if strings.Count(example, test.old) == 0 {
			t.Fatalf("%s is not in the example", test.old)
		}
		_, err := Parse([]byte(strings.Replace(example, test.old, test.new, 1)))
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s instead of %s: %v\nwant %s", test.new, test.old, err, test.want)
		} else if invalid.Path == "" || invalid.Remedy == "" {
			t.Errorf("%s instead of %s: no place or no remedy: %+v", test.new, test.old, invalid)
		}
	}
}

// A layout of a later program is never guessed at, whatever else it holds.
func TestParseLaterSchema(t *testing.T) {
	for _, document := range []string{
		strings.Replace(example, `"schema":1`, `"schema":2`, 1),
		`{"schema":3,"moves":[{}],"slot_map":{"p0":[1]}}`,
	} {
		_, err := Parse([]byte(document))
		var later *SchemaError
		if !errors.As(err, &later) || later.Schema < 2 || !strings.Contains(err.Error(), "update Sluice") {
			t.Errorf("%s: %v, want a *SchemaError", document, err)
		}
	}
}

func TestValidateReportsEverything(t *testing.T) {
	table := mustParse(t, example)
	table.Epoch, table.Job, table.Hash = 0, "", ""
	for _, want := range []string{"epoch: ", "job: ", "hash: "} {
		if err := table.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

// FuzzParse: no bytes make Parse panic, and what it accepts it writes in a way
// that it accepts as the same table.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"schema":1,"name":"e","epoch":1,"generation":1,"hash":"xxh64","slots":1,"legacy":{"index":"e","state":"active"},"write":"legacy"}`))
	f.Add([]byte(`{"schema":1,"slots":65536,"slot_map":"0-65535=p"}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		table, err := Parse(document)
		if err != nil {
			return
		}
		text, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil || !same(table, again) {
			t.Fatalf("%s\nis written as\n%s\nwhich is not the same: %v", document, text, err)
		}
		r := NewRouter(table, CacheOptions{})
		for _, customer := range []string{"a", "acme-1", "cust-42"} {
			if route := r.Route([]byte(customer)); route.Legacy == "" && route.New == "" || r.Read([]byte(customer)) == "" {
				t.Fatalf("%s: customer %s goes to %+v", text, customer, route)
			}
		}
	})
}

// tables draws valid tables, small ones, so that changes often meet.
func tables(t *rapid.T) *Table {
	table := New("events", "events")
	table.Slots = rapid.IntRange(1, 8).Draw(t, "slots")
	table.Epoch = rapid.Int64Range(1, 1<<40).Draw(t, "epoch")
	table.Write = Mode(rapid.IntRange(0, 3).Draw(t, "mode"))
	table.Job, table.Read.Salt = "j1", "j1"
	names := []string{"p0", "p1", "p2"}
	table.Partitions, table.Overrides = map[string]Partition{}, map[string]string{}
	for _, name := range names {
		table.Partitions[name] = Partition{Index: "events-" + name, State: Active}
	}
	for range table.Slots {
		table.SlotMap = append(table.SlotMap, rapid.SampledFrom(names).Draw(t, "slot"))
	}
	keys := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "ab", "a*", "*b", "*", "a*b", `\*`, "a*a*", "**a"}), rapid.ID[string])
	for _, key := range keys.Draw(t, "overrides") {
		table.Overrides[key] = rapid.SampledFrom(names).Draw(t, "override")
	}
	if table.Write >= W2 {
		table.Read.Allow, table.Read.Deny = keys.Draw(t, "allow"), keys.Draw(t, "deny")
		table.Read.Percent = rapid.IntRange(0, Percent).Draw(t, "percent")
	}
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	return table
}

// smallCustomers collide with the patterns of tables.
var smallCustomers = rapid.StringMatching(`[ab*]{1,4}`)

func TestTableSurvivesItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := tables(t)
		text, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil || !same(table, again) || !slices.Equal(table.SlotMap, again.SlotMap) || !maps.Equal(table.Overrides, again.Overrides) {
			t.Fatalf("%s: %v", text, err)
		}
	})
}

func TestCloneSharesNothing(t *testing.T) {
	table := mustParse(t, example)
	c := table.Clone()
	c.SlotMap[0], c.Overrides["x"], c.Partitions["x"], c.Legacy.Index, c.Read.Allow[0] = "x", "x", Partition{}, "x", "x"
	if text, _ := json.Marshal(table); string(text) != example {
		t.Errorf("changing the copy changed the table: %s", text)
	}
}

func TestModes(t *testing.T) {
	allowed := map[[2]Mode]bool{
		{W0, W0}: true, {W0, W1}: true, {W1, W1}: true, {W1, W2}: true, {W1, W0}: true,
		{W2, W2}: true, {W2, W3}: true, {W2, W0}: true, {W3, W3}: true,
	}
	for m := range W3 + 1 {
		for next := range W3 + 2 {
			if m.CanBecome(next) != allowed[[2]Mode{m, next}] {
				t.Errorf("%s.CanBecome(%s) = %v", m, next, m.CanBecome(next))
			}
		}
		text, err := m.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		for _, spelling := range []string{string(text), m.String()} {
			if parsed, err := ParseMode(spelling); err != nil || parsed != m {
				t.Errorf("ParseMode(%s) = %s, %v", spelling, parsed, err)
			}
		}
	}
	if _, err := (W3 + 1).MarshalText(); err == nil {
		t.Error("a mode that does not exist has a text")
	}
}

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern  string
		yes, not []string
	}{
		{"acme", []string{"acme"}, []string{"acm", "acmee", "ACME", ""}},
		{"acme-*", []string{"acme-", "acme-1", "acme-*"}, []string{"acme", "xacme-1"}},
		{"*-eu", []string{"-eu", "a-eu"}, []string{"eu", "a-eu-"}},
		{"a*a", []string{"aa", "aba", "a*a"}, []string{"a", "ab"}},
		{"a*b*c", []string{"abc", "abbc", "axbxc", "abcbc"}, []string{"ac", "abcd", "acb"}},
		{"*b*b*", []string{"bb", "abab"}, []string{"b", "aba"}},
		{"**", []string{"", "a"}, nil},
		{`\*`, []string{"*"}, []string{"a", `\*`}},
		{`\\*`, []string{`\`, `\a`}, []string{"a"}},
	} {
		p, err := parsePattern(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, customer := range test.yes {
			if !p.matches([]byte(customer)) {
				t.Errorf("%s does not match %q", test.pattern, customer)
			}
		}
		for _, customer := range test.not {
			if p.matches([]byte(customer)) {
				t.Errorf("%s matches %q", test.pattern, customer)
			}
		}
	}
}

// A pattern matches exactly what some way of filling its stars makes.
func TestPatternsAgainstEveryFilling(t *testing.T) {
	var fits func(pattern, customer string) bool
	fits = func(pattern, customer string) bool {
		switch {
		case pattern == "":
			return customer == ""
		case pattern[0] == '*':
			return fits(pattern[1:], customer) || customer != "" && fits(pattern, customer[1:])
		default:
			return customer != "" && customer[0] == pattern[0] && fits(pattern[1:], customer[1:])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab*]{1,6}`).Draw(t, "pattern")
		customer := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "customer")
		p, err := parsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.matches([]byte(customer)), fits(text, customer); got != want {
			t.Fatalf("%s matches %q: %v", text, customer, got)
		}
	})
}

func TestLiteralIsOneCustomer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		customers := rapid.StringMatching(`[a*\\]{1,4}`)
		a, b := customers.Draw(t, "a"), customers.Draw(t, "b")
		p, err := parsePattern(Literal(a))
		if err != nil || p.stars || p.matches([]byte(b)) != (a == b) {
			t.Fatalf("Literal(%q) = %q: %v", a, Literal(a), err)
		}
	})
}
