// Package poison holds records that something is wrong with, one of each kind,
// and what must become of each: most are dead-lettered, some are what servers
// take all the same. Tests scatter them among good ones, with the embedded
// servers and with real ones.
package poison

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Fate is what must become of a record. The zero value: it is indexed, byte for
// byte.
type Fate struct {
	// Type and Status are those of its dead letter; "": it has none. Status is
	// 0 where Sluice refused it before it was sent.
	Type   string
	Status int
	// Outcome is ignored or deleted where it leaves no document and no dead
	// letter.
	Outcome string
}

// Kind is one kind of record.
type Kind struct {
	Name string
	// Key is nil where any will do.
	Key, Value []byte
	Headers    []kgo.RecordHeader
	// Dropped records belong to a topic whose pipeline drops everything.
	Dropped bool
	// Server and Strict are their fates under the two values of
	// documents.validate.
	Server, Strict Fate
	// Front says that it takes a proxy in front of the server, or a fault in
	// an embedded one, to see it fail: see the markers.
	Front bool
	// Blocks says that nothing but an operator's skip settles it.
	Blocks bool
}

// What stands in front of the server does, for a request that holds a marker:
const (
	Spoils = "spoils-its-request" // answer 400 for all of it
	Page   = "gets-a-page"        // answer 200 with a page of HTML
	Fails  = "fails-always"       // answer 500 for the item, and no other
)

// Index is the body of the request that makes the index: a mapping with a
// field of each type that matters, room for few fields, and no refreshes.
const Index = `{
  "settings": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1", "index.mapping.total_fields.limit": 60},
  "mappings": {"dynamic": false, "properties": {
    "n": {"type": "long"}, "f": {"type": "double"}, "d": {"type": "date"}, "b": {"type": "boolean"},
    "o": {"properties": {"k": {"type": "keyword"}}},
    "closed": {"dynamic": "strict", "properties": {"k": {"type": "keyword"}}},
    "open": {"dynamic": true, "properties": {"k": {"type": "keyword"}}}
  }}
}`

const parsing = "document_parsing_exception"

func returned(errorType string) Fate { return Fate{Type: errorType, Status: 400} }
func refused(problem string) Fate    { return Fate{Type: problem} }

// Kinds returns one record of each kind. tooLarge is a size in bytes that the
// server refuses for a request.
func Kinds(tooLarge int) []Kind {
	kinds := []Kind{
		// No JSON, or not only.
		{Name: "NaN", Value: []byte(`{"f":NaN}`), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "-Infinity", Value: []byte(`{"x":-Infinity}`), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "two objects", Value: []byte(`{"n":1}{"n":2}`), Server: returned("illegal_argument_exception"), Strict: refused("invalid_json")},
		{Name: "trailing text", Value: []byte(`{"n":1} trailing }`), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "not UTF-8", Value: []byte("{\"x\":\"\xB8\"}"), Server: returned(parsing), Strict: refused("not_utf8")},
		{Name: "array", Value: []byte(`[{"n":1}]`), Server: refused("not_an_object"), Strict: refused("not_an_object")},
		{Name: "number", Value: []byte(`1`), Server: refused("not_an_object"), Strict: refused("not_an_object")},
		{Name: "string", Value: []byte(`"{}"`), Server: refused("not_an_object"), Strict: refused("not_an_object")},
		{Name: "null", Value: []byte(`null`), Server: refused("not_an_object"), Strict: refused("not_an_object")},
		{Name: "empty", Value: []byte{}, Server: refused("empty_value"), Strict: refused("empty_value")},
		{Name: "spaces", Value: []byte("  \t "), Server: refused("empty_value"), Strict: refused("empty_value")},
		{Name: "cut", Value: []byte(`{"n":1,"o":{"k`), Server: refused("invalid_json"), Strict: refused("invalid_json")},
		{Name: "cut behind a brace", Value: []byte(`{"n":1,"o":{"k":"x"}`), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "control character", Value: []byte("{\"x\":\"\x01\"}"), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "line break in a string", Value: []byte("{\"x\":\"a\nb\"}"), Server: refused("invalid_json"), Strict: refused("invalid_json")},
		{Name: "two lines", Value: []byte("{\"n\":1}\n{\"n\":2}"), Server: refused("invalid_json"), Strict: refused("invalid_json")},
		{Name: "unquoted name", Value: []byte(`{n:1}`), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "single quotes", Value: []byte(`{'n':1}`), Server: returned(parsing), Strict: refused("invalid_json")},
		{Name: "leading zero", Value: []byte(`{"n":01}`), Server: returned(parsing), Strict: refused("invalid_json")},
		// Servers take these.
		{Name: "byte-order mark", Value: []byte("\xEF\xBB\xBF{\"n\":1}"), Strict: refused("not_an_object")},
		{Name: "comment", Value: []byte(`{/* c */"n":1}`), Strict: refused("invalid_json")},
		{Name: "lone surrogate", Value: []byte(`{"x":"\ud83d"}`), Strict: refused("invalid_json")},
		{Name: "1e400", Value: []byte(`{"x":1e400}`)},
		{Name: "empty object", Value: []byte(`{}`)},
		// JSON that is no document.
		{Name: "too deep", Value: nested(20_000), Server: returned(parsing), Strict: refused("too_deep")},
		{Name: "_id inside", Value: []byte(`{"n":1,"_id":"other"}`), Server: returned(parsing), Strict: refused("metadata_field")},
		{Name: "empty name", Value: []byte(`{"":1}`), Server: returned(parsing), Strict: refused("bad_field_name")},
		{Name: "a..b", Value: []byte(`{"a..b":1}`), Server: returned(parsing), Strict: refused("bad_field_name")},
		{Name: "name twice", Value: []byte(`{"x":1,"x":2}`), Server: returned(parsing), Strict: returned(parsing)},
		// Against the mapping.
		{Name: "text for a number", Value: []byte(`{"n":"text"}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "object for a number", Value: []byte(`{"n":{"k":1}}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "out of range", Value: []byte(`{"n":1e30}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "1e400 mapped", Value: []byte(`{"f":1e400}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "NaN as text", Value: []byte(`{"f":"NaN"}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "no date", Value: []byte(`{"d":"the day before"}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "no boolean", Value: []byte(`{"b":"perhaps"}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "text for an object", Value: []byte(`{"o":"text"}`), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "strict mapping", Value: []byte(`{"closed":{"new":1}}`), Server: returned("strict_dynamic_mapping_exception"), Strict: returned("strict_dynamic_mapping_exception")},
		{Name: "too many fields", Value: fields(100), Server: returned(parsing), Strict: returned(parsing)},
		{Name: "too deep for a mapping", Value: []byte(`{"open":` + string(nested(25)) + `}`), Server: returned(parsing), Strict: returned(parsing)},
		// Keys and sizes.
		{Name: "long id", Key: []byte(strings.Repeat("k", 513)), Value: []byte(`{"n":1}`), Server: refused("id_too_long"), Strict: refused("id_too_long")},
		{Name: "key not UTF-8", Key: []byte("\xff\xfe"), Value: []byte(`{"n":1}`), Server: refused("id_not_utf8"), Strict: refused("id_not_utf8")},
		{
			Name: "too large", Value: fmt.Appendf(nil, `{"x":%q}`, strings.Repeat("x", tooLarge)),
			Server: Fate{Type: "http_413", Status: 413}, Strict: Fate{Type: "http_413", Status: 413},
		},
		{Name: "delete of nothing", Server: Fate{Outcome: "deleted"}, Strict: Fate{Outcome: "deleted"}},
		{Name: "null without a key", Key: []byte{}, Server: Fate{Outcome: "ignored"}, Strict: Fate{Outcome: "ignored"}},
		{Name: "dropped by a pipeline", Dropped: true, Value: []byte(`{"n":1}`), Server: Fate{Outcome: "ignored"}, Strict: Fate{Outcome: "ignored"}},
		// What only something in front of the server can do.
		{Name: "spoils its request", Front: true, Value: []byte(`{"x":"` + Spoils + `"}`), Server: returned("illegal_argument_exception"), Strict: returned("illegal_argument_exception")},
		{Name: "fails always", Front: true, Value: []byte(`{"x":"` + Fails + `"}`), Server: Fate{Type: "null_pointer_exception", Status: 500}, Strict: Fate{Type: "null_pointer_exception", Status: 500}},
		{Name: "gets a page", Front: true, Blocks: true, Value: []byte(`{"x":"` + Page + `"}`), Server: refused("skipped"), Strict: refused("skipped")},
	}
	for i := range kinds {
		k := &kinds[i]
		if k.Key == nil {
			k.Key = []byte("poison: " + k.Name)
		}
		k.Headers = []kgo.RecordHeader{{Key: "kind", Value: []byte(k.Name)}, {Key: "bytes", Value: []byte{0, 0xff, byte(i)}}, {Key: "null"}}
	}
	return kinds
}

// nested is a document of so many levels.
func nested(levels int) []byte {
	return []byte(strings.Repeat(`{"a":`, levels-1) + "{}" + strings.Repeat("}", levels-1))
}

// fields is a document that brings n fields which the mapping does not have.
func fields(n int) []byte {
	b := []byte(`{"open":{`)
	for i := range n {
		b = fmt.Appendf(b, `"field%d":1,`, i)
	}
	return append(b, `"k":"x"}}`...)
}
