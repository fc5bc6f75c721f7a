package document

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// configErrors returns the keys that New finds wrong.
func configErrors(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v is not joined", err)
	}
	var keys []string
	for _, err := range joined.Unwrap() {
		var e *ConfigError
		if !errors.As(err, &e) {
			t.Fatalf("%v is no ConfigError", err)
		}
		if e.Problem == "" || e.Remedy == "" || !strings.HasPrefix(e.Error(), e.Key+": ") {
			t.Errorf("%+v", e)
		}
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// TestCombinations is the table of what goes with what. want names the keys at
// fault; none: the configuration is good.
func TestCombinations(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		// Words.
		{Config{Op: "x", OnNull: "x", OnRejected: "x", LongIDs: "x", Deletes: "x", Validate: "x", MetadataFields: "x", OnNoCustomer: "x", Format: "x"}, "deletes format long_ids metadata_fields on_no_customer on_null on_rejected op validate"},
		{Config{Format: "avro"}, "format"},
		{Config{Format: "protobuf"}, "format"},
		{Config{Format: "json_schema"}, "format"},
		{Config{Format: "text", RawField: "a..b"}, "raw_field"},
		{Config{Format: "text", RawField: "_id"}, "raw_field"},
		{Config{MaxDepth: -1}, "max_depth"},
		{Config{MaxDepth: 100_001}, "max_depth"},
		{Config{MetadataFields: "strip"}, "metadata_fields"},
		{Config{MetadataFields: "strip", Validate: "strict"}, ""},
		{Config{TimeWindow: TimeWindow{Past: -time.Second}}, "time_window"},
		// Ids.
		{Config{ID: "x"}, "id"},
		{Config{ID: "${topic}"}, "id"},
		{Config{ID: "${topic"}, "id"},
		{Config{ID: "${x}"}, "id"},
		{Config{ID: "${env:HOME}"}, "id"},
		{Config{ID: "${timestamp:}-${key}"}, "id"},
		{Config{ID: "field:a"}, "id"},
		{Config{ID: "${field:a}"}, "id"},
		{Config{ID: "header:"}, "id"},
		{Config{ID: "${customer}"}, "id"},
		{Config{ID: "${customer}", Customer: "key"}, ""},
		{Config{ID: "field:/a", Format: "text"}, "id"},
		{Config{ID: "${field:/a}", Format: "raw"}, "id"},
		// Index names.
		{Config{Index: "-"}, "index"},
		{Config{Index: "Events"}, "index"},
		{Config{Index: "a b"}, "index"},
		{Config{Index: "a*"}, "index"},
		{Config{Index: "a,b"}, "index"},
		{Config{Index: "a#"}, "index"},
		{Config{Index: "a:b"}, "index"},
		{Config{Index: "<a-{now/d}>"}, "index"},
		{Config{Index: "_a"}, "index"},
		{Config{Index: "+a"}, "index"},
		{Config{Index: "."}, "index"},
		{Config{Index: ".."}, "index"},
		{Config{Index: ".a"}, ""},
		{Config{Index: strings.Repeat("a", 255)}, ""},
		{Config{Index: strings.Repeat("a", 256)}, "index"},
		{Config{Index: "${customer}", Customer: "key"}, "index"},
		{Config{Index: "${header:x}"}, "index"},
		{Config{Index: "${timestamp:2006}"}, "index"},
		{Config{Index: ".${header:x}"}, "index"},
		{Config{Index: "e-${customer}"}, "index"},
		{Config{Index: "e-${customer}", Customer: "key"}, ""},
		{Config{Index: "e-${key}"}, "index"},
		{Config{Index: "e-${offset}"}, "index"},
		{Config{Index: "e-${header:a}${header:b}"}, "index"},
		{Config{Index: "e-${header:a}x${header:b}"}, "index"},
		{Config{Index: "e-${header:a}-${header:b}"}, ""},
		{Config{Index: "${topic}", ID: "position"}, ""},
		{Config{Index: "e-${timestamp:2006-01-02}"}, ""},
		{Config{Index: "e-${timestamp:2006-01-02t15}"}, ""},
		{Config{Index: "e-${timestamp:2006-1-2}"}, "index"},
		{Config{Index: "e-${timestamp:Jan}"}, "index"},
		{Config{Index: "e-${timestamp:15:04}"}, "index"},
		{Config{Index: "e-${timestamp:2006-01-02T15}"}, "index"},
		{Config{Index: "e-${field:/a}", Format: "text"}, "index"},
		// Operations and versions.
		{Config{Op: "create", Version: "sequence"}, "version"},
		{Config{Op: "update", Version: "offset"}, "version"},
		{Config{Op: "upsert", Version: "none"}, ""},
		{Config{Op: "update", ID: "position"}, "op"},
		{Config{Op: "upsert", ID: "none"}, "op"},
		{Config{Op: "update", Pipeline: "p"}, "pipeline"},
		{Config{ID: "none", Version: "offset"}, "version"},
		{Config{ID: "position", Version: "sequence"}, "version"},
		{Config{ID: "position", Version: "sequence", Op: "index"}, ""},
		{Config{Version: "sequence"}, ""},
		{Config{Version: "key"}, "version"},
		{Config{Version: "field:v"}, "version"},
		{Config{Version: "x"}, "version"},
		{Config{Version: "field:/v", Format: "raw"}, "version"},
		{Config{DataStream: true}, ""},
		{Config{DataStream: true, Op: "index"}, "op"},
		{Config{DataStream: true, Version: "offset"}, "version"},
		{Config{DataStream: true, RequireAlias: true}, "require_alias"},
		// Null values.
		{Config{OnNull: "delete"}, ""},
		{Config{OnNull: "delete", ID: "position"}, "on_null"},
		{Config{OnNull: "delete", ID: "none"}, "on_null"},
		{Config{OnNull: "delete", ID: "field:/a"}, "on_null"},
		{Config{OnNull: "delete", ID: "${key}-${offset}"}, "on_null"},
		{Config{OnNull: "delete", ID: "${key}-${timestamp:2006}"}, ""},
		{Config{OnNull: "delete", Op: "create"}, "on_null"},
		{Config{OnNull: "delete", DataStream: true}, "on_null"},
		{Config{ID: "field:/a"}, ""},
		{Config{Index: "e-${field:/a}"}, "index"},
		{Config{Index: "e-${field:/a}", OnNull: "ignore"}, ""},
		{Config{Index: "e-${field:/a}", ID: "position"}, ""},
		{Config{Routing: "field:/a"}, "routing"},
		{Config{Routing: "field:/a", OnNull: "fail"}, ""},
		{Config{Customer: "field:/a"}, "customer"},
		{Config{Customer: "field:/a", Op: "create"}, ""},
		{Config{Customer: "field:/a", ID: "${customer}"}, ""},
		{Config{Version: "field:/v"}, ""},
		{Config{Version: "field:/v", OnNull: "delete"}, "version"},
		{Config{Deletes: "tombstone"}, ""},
		{Config{Deletes: "tombstone", Version: "none"}, "deletes"},
		{Config{Deletes: "tombstone", Op: "upsert"}, "deletes"},
		{Config{Deletes: "tombstone", ID: "position"}, ""},
		{Config{OnNull: "dead_letter"}, "on_null"},
		{Config{OnRejected: "dead_letter"}, "on_rejected"},
		{Config{OnRejected: "drop"}, ""},
		// The rest.
		{Config{Customer: "key:("}, "customer"},
		{Config{Customer: "key:x"}, "customer"},
		{Config{Customer: "key:(a)(b)"}, "customer"},
		{Config{Customer: "key:(a)(?:b)"}, ""},
		{Config{Customer: "x"}, "customer"},
		{Config{Routing: "x"}, "routing"},
		{Config{Metadata: Metadata{Field: "a.b"}}, "metadata.field"},
		{Config{Metadata: Metadata{Field: "_id"}}, "metadata.field"},
		{Config{Metadata: Metadata{Field: "k", Include: []string{"x"}}}, "metadata.include"},
		{Config{Metadata: Metadata{Field: "k", Include: []string{"key", "key"}}}, "metadata.include"},
		{Config{Timestamp: "key"}, "timestamp"},
		{Config{Timestamp: "field:a"}, "timestamp"},
		{Config{Timestamp: "field:/a,"}, "timestamp"},
		{Config{Timestamp: "field:/a", Format: "text"}, "timestamp"},
		{Config{Timestamp: "record", Format: "text"}, ""},
	} {
		if c.cfg.Index == "" {
			c.cfg.Index = "e"
		}
		_, err := New(c.cfg, nil, []string{"t"}, false)
		got := strings.ReplaceAll(strings.Join(configErrors(t, err), " "), "documents.", "")
		if got != c.want {
			t.Errorf("%+v:\n got %q (%v)\nwant %q", c.cfg, got, err, c.want)
		}
	}
	if _, err := New(Config{}, nil, nil, false); strings.Join(configErrors(t, err), " ") != "documents.index" {
		t.Errorf("no index: %v", err)
	}
}

func TestDescribe(t *testing.T) {
	base := Config{Index: "e"}
	override := func(change func(*Config)) Override {
		c := base
		change(&c)
		return Override{Topics: []string{"t"}, Documents: c}
	}
	m, err := New(base, []Override{
		override(func(c *Config) { c.ID = "position" }),
		override(func(c *Config) { c.ID = "none" }),
		override(func(c *Config) { c.DataStream = true }),
		override(func(c *Config) { c.Op = "index" }),
		override(func(c *Config) { c.Op = "upsert" }),
		override(func(c *Config) { c.ID = "field:/a"; c.Version = "timestamp" }),
		override(func(c *Config) { c.Version = "field:/v" }),
		override(func(c *Config) { c.Index = "e-${timestamp:2006}"; c.OnRejected = "drop"; c.Version = "offset" }),
	}, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"documents: e | key (position where a record has none) | index (create where a record has no key) | sequence (none where a record has no key) | delete | dead_letter | true | 0",
		"overrides[0].documents: e | position | create | none | ignore | dead_letter | true | 0",
		"overrides[1].documents: e | none | index | none | ignore | dead_letter | false | 0",
		"overrides[2].documents: e | key (position where a record has none) | create | none | ignore | dead_letter | true | 1",
		"overrides[3].documents: e | key (position where a record has none) | index | sequence | delete | dead_letter | true | 0",
		"overrides[4].documents: e | key (position where a record has none) | upsert | none | delete | dead_letter | true | 0",
		"overrides[5].documents: e | field:/a | index | timestamp | ignore | dead_letter | false | 0",
		"overrides[6].documents: e | key (position where a record has none) | index (create where a record has no key) | field:/v (none where a record has no key) | reject (a null value has no field to take the version from) | dead_letter | true | 0",
		"overrides[7].documents: e-${timestamp:2006} | key (position where a record has none) | index (create where a record has no key) | offset (none where a record has no key) | delete | drop | true | 1",
	}
	for i, d := range m.Describe() {
		got := fmt.Sprintf("%s: %s | %s | %s | %s | %s | %s | %v | %d", d.Key, d.Index, d.ID, d.Op, d.Version, d.OnNull, d.OnRejected, d.NeedControl, len(d.Notes))
		if got != want[i] {
			t.Errorf("\n got %s\nwant %s", got, want[i])
		}
	}
	m, err = New(base, nil, nil, false)
	if err != nil || m.base.OnRejected() != Stop || m.Describe()[0].OnRejected != "stop" {
		t.Errorf("without dead letters: %v, %v", m.base.OnRejected(), err)
	}
}

func TestOverrides(t *testing.T) {
	over := func(index string, topics ...string) Override {
		return Override{topics, Config{Index: index, ID: "position"}}
	}
	m, err := New(Config{Index: "base"}, []Override{over("a", "audit"), over("${topic}", "^logs-.*", "audit"), over("c", "^logs-x$")}, []string{"audit", "^logs-.*", "events"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{"audit": "a", "logs-x": "logs-x", "logs-y": "logs-y", "events": "base", "xlogs-": "base", "audit2": "base"} {
		var out Result
		rec := record("k", "{}")
		rec.Topic = topic
		m.Rules(topic).Map(rec, 1, &out)
		if out.Action.Target != want {
			t.Errorf("%s: %s, want %s", topic, out.Action.Target, want)
		}
		if first, again := m.Rules(topic), m.Rules(topic); first != again {
			t.Errorf("%s: not remembered", topic)
		}
	}
}

// A fault of the base stands once, where it is; an override's own at the
// override.
func TestErrorsStandWhereTheyAre(t *testing.T) {
	_, err := New(Config{Index: "E", Op: "x"}, []Override{
		{[]string{"a"}, Config{Index: "E", Op: "x"}},
		{[]string{"("}, Config{Index: "E", Op: "y"}},
		{[]string{"^("}, Config{Index: "e"}},
		{nil, Config{Index: "e"}},
	}, nil, false)
	want := []string{"documents.index", "documents.op", "overrides[1].documents.op", "overrides[2].topics", "overrides[3].topics"}
	if got := configErrors(t, err); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSeveralTopicsInOneIndex(t *testing.T) {
	key, position, own := Config{Index: "e", ID: "key"}, Config{Index: "e", ID: "position"}, Config{Index: "e-${topic}"}
	disjoint, topicID, other := key, key, key
	disjoint.DisjointKeys = true
	topicID.ID = "${topic}/${key}"
	other.Index = "o"
	over := func(c Config, topics ...string) Override { return Override{topics, c} }
	for _, c := range []struct {
		name      string
		base      Config
		overrides []Override
		topics    string
		want      string
	}{
		{"one", key, nil, "a", ""},
		{"one, twice", key, nil, "a a", ""},
		{"two", key, nil, "a b", "documents.id"},
		{"auto", Config{Index: "e"}, nil, "a b", "documents.id"},
		{"two, field ids", Config{Index: "e", ID: "field:/a"}, nil, "a b", "documents.id"},
		{"two, positions", position, nil, "a b", ""},
		{"two, the server's ids", Config{Index: "e", ID: "none"}, nil, "a b", ""},
		{"two, topic in the index", own, nil, "a b", ""},
		{"two, topic in the id", topicID, nil, "a b", ""},
		{"two, disjoint", disjoint, nil, "a b", ""},
		{"expression", key, nil, "^a", "documents.id"},
		{"expression, topic in the index", own, nil, "^a", ""},
		{"override elsewhere", key, []Override{over(other, "b")}, "a b", ""},
		{"override at the same place", key, []Override{over(key, "b")}, "a b", "overrides[0].documents.id"},
		{"override with positions", key, []Override{over(position, "b")}, "a b", ""},
		{"the whole expression is overridden", key, []Override{over(position, "^b")}, "a ^b", ""},
		{"a part of the expression is overridden", position, []Override{over(key, "b1")}, "^b", ""},
		{"parts of the expression are overridden", position, []Override{over(key, "b1", "b2")}, "^b", "overrides[0].documents.id"},
		{"an overridden topic is also named", position, []Override{over(key, "b1")}, "^b b1", ""},
		{"an expression overrides", position, []Override{over(key, "^b1")}, "^b", "overrides[0].documents.id"},
		{"bad expression", key, nil, "^(", "kafka.topics"},
	} {
		_, err := New(c.base, c.overrides, strings.Fields(c.topics), false)
		if got := strings.Join(configErrors(t, err), " "); got != c.want {
			t.Errorf("%s: %q (%v), want %q", c.name, got, err, c.want)
		}
	}
}

func TestSharedIndex(t *testing.T) {
	disjoint, position := Config{Index: "e", ID: "key", DisjointKeys: true}, Config{Index: "e", ID: "position"}
	m, err := New(Config{Index: "s-${header:h}"}, []Override{
		{[]string{"a"}, disjoint}, {[]string{"b"}, position}, {[]string{"c"}, Config{Index: "c-${topic}"}},
	}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{"a": "", "b": "", "c": "", "d": "s-${header:h}"} {
		got, shared := m.SharedIndex(topic)
		if shared != (want != "") || shared && got != want {
			t.Errorf("%s: %q, %v, want %q", topic, got, shared, want)
		}
	}
}

func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		cfg               Config
		generation, raise bool
	}{
		{Config{}, true, true},
		{Config{ID: "key"}, true, true},
		{Config{ID: "key", Version: "offset"}, false, false},
		{Config{Version: "offset"}, true, false}, // positions of keyless records
		{Config{ID: "key", Version: "timestamp"}, false, false},
		{Config{ID: "position"}, true, false},
		{Config{ID: "position", Op: "index"}, true, false},
		{Config{ID: "none"}, false, false},
		{Config{ID: "key", Op: "create"}, false, false},
	} {
		c.cfg.Index = "e"
		r := mustRules(t, c.cfg)
		if r.NeedsGeneration() != c.generation || r.NeedsRaise() != c.raise {
			t.Errorf("%+v: generation %v, raise %v", c.cfg, r.NeedsGeneration(), r.NeedsRaise())
		}
	}
}

func TestCheckDualWrite(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		// S29: what stores versions of its own, or ids that no other reader finds.
		{Config{Customer: "key", ID: "key"}, ""},
		{Config{Customer: "key", ID: "header:h", Version: "timestamp"}, ""},
		{Config{Customer: "key", ID: "field:/id", OnNull: "ignore"}, ""},
		{Config{ID: "key"}, "documents.customer"},
		{Config{Customer: "key"}, "documents.id"},
		{Config{Customer: "key", ID: "position"}, "documents.id documents.version"},
		{Config{Customer: "key", ID: "none"}, "documents.id documents.version"},
		{Config{Customer: "key", ID: "key", Op: "create"}, "documents.version"},
		{Config{Customer: "key", ID: "key", Op: "update"}, "documents.version"},
		{Config{Customer: "key", ID: "key", Op: "upsert"}, "documents.version"},
		{Config{Customer: "key", ID: "key", Version: "none"}, "documents.version"},
	} {
		c.cfg.Index = "e"
		m, err := New(c.cfg, nil, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(configErrors(t, m.CheckDualWrite()), " "); got != c.want {
			t.Errorf("%+v: %q, want %q", c.cfg, got, c.want)
		}
	}
}

// Types and reasons are read by machines and shown to people.
func TestProblemsAreStable(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)*$`)
	for _, p := range []*problem{
		problemNullValue, problemKeylessNull, problemEmptyValue, problemNotObject, problemNotClosed, problemNotJSON, problemNotUTF8, problemTooDeep, problemFieldName, problemMetadata,
		problemNoID, problemIDNotUTF8, problemIDTooLong, problemNoIndex, problemNameTooLong, problemTimeWindow, problemNoRouting, problemNoCustomer, problemBadCustomer, problemNoTable, problemBadVersion, problemSequenceRange, invalidAt(3),
	} {
		if !snake.MatchString(p.typ) || p.reason == "" {
			t.Errorf("%+v", p)
		}
	}
}
