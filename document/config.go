package document

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
)

// Config is the `documents` section: how a record becomes an action. "auto"
// values are resolved by New; DESIGN 5.1 says to what.
type Config struct {
	// The index, alias or data stream. Variables: `${topic}`, `${customer}`,
	// `${timestamp:2006-01-02}` (the record's time in UTC, in Go's layout: **write
	// `2006-01-02`; `yyyy-mm-dd` is plain text there and would stand in the name
	// as it is**), `${header:NAME}`, `${field:/POINTER}`. It begins with text of
	// its own or `${topic}`, so that no record chooses any index. Different values
	// never share a name: what cannot stand in one is escaped.
	//
	// Values: template
	// Example: events-${timestamp:2006-01-02}
	Index string `yaml:"index"`
	// `json`: values are JSON objects and pass byte for byte; `text`, `raw`: the
	// value is put into `raw_field` as text, or in base64. `avro`, `protobuf`,
	// `json_schema` are not available yet.
	//
	// Values: `json`, `text`, `raw`
	// Example: text
	Format string `yaml:"format"`
	// The field for `raw` and `text`.
	//
	// Values: field name
	// Example: line
	RawField string `yaml:"raw_field"`
	// `auto`: the key, else the position. `key`, `position` (topic, partition and
	// offset), `field:/p`, `header:h`, `none` (the server makes one; **a repeat is
	// a second document**), or a template with the variables of `documents.index`
	// and `${partition}`, `${offset}`, `${key}`. It must be UTF-8; an empty one
	// counts as absent.
	//
	// Values: `auto`, `key`, `position`, `none`, field:/POINTER, header:NAME, or a template
	// Example: ${topic}-${key}
	ID string `yaml:"id"`
	// What becomes of an id above the server's 512 bytes: `reject` the record or
	// `hash` the id, which then is `sha256:` and the SHA-256 in base64url (so is
	// one that begins with `sha256:` itself).
	//
	// Values: `reject`, `hash`
	// Example: hash
	LongIDs string `yaml:"long_ids"`
	// `auto`: `create` for positions and data streams, else `index`. `create`
	// keeps the first record of an id. `update`, `upsert`: the value is a partial
	// document; **they carry no version**, so a request that outlives its owner
	// may win over a newer one.
	//
	// Values: `auto`, `index`, `create`, `update`, `upsert`
	// Example: create
	Op string `yaml:"op"`
	// What decides which of two writes of an id is newer. `sequence` (Sluice's
	// own, what `auto` takes where it can), `offset` (as other sinks do),
	// `timestamp` (the record's, in Unix milliseconds), `field:/p`, `header:h`
	// (integers from 0 to 2^63-1), or `none` (**the last to arrive wins**).
	//
	// Values: `auto`, `sequence`, `offset`, `timestamp`, `none`, field:/POINTER or header:NAME
	// Example: field:/updated_at
	Version string `yaml:"version"`
	// `hard`: a delete deletes. Elasticsearch then remembers the version for
	// `index.gc_deletes` only, and an older write that arrives later brings the
	// document back. `tombstone`: a delete replaces the document by
	// `{"_sluice_deleted":true,"_sluice_deleted_at":MILLISECONDS}`, which keeps
	// its version until `sluice purge` removes it. **Readers see it unless they
	// read through a filtered alias** ([how](operations.md#tombstones)). Needs
	// a version.
	//
	// Values: `hard`, `tombstone`
	// Example: tombstone
	Deletes string `yaml:"deletes"`
	// `sluice purge` removes tombstones whose record is older than this. Make it
	// longer than the longest time that a write can be held up.
	//
	// Example: 48h
	TombstoneTTL time.Duration `yaml:"tombstone_ttl"`
	// A record without a value: `delete` the document, `ignore` it, `fail` (its
	// partition stops), `dead_letter`. `auto`: `delete` where the id comes from
	// key or header and `op` is not `create`, else `ignore`.
	//
	// Values: `auto`, `delete`, `ignore`, `fail`, `dead_letter`
	// Example: ignore
	OnNull string `yaml:"on_null"`
	// A record that Elasticsearch can never take: `dead_letter`, `stop` (its
	// partition halts until `sluice skip`), `drop` (**the record is lost**, and
	// counted as ignored). `auto`: `dead_letter` where `dead_letter.topic` or
	// `index` is set, else `stop`.
	//
	// Values: `auto`, `dead_letter`, `stop`, `drop`
	// Example: stop
	OnRejected string `yaml:"on_rejected"`
	// `_id`, `_index` and the like inside a document: `reject`, or `strip` (needs
	// `validate: strict`).
	//
	// Values: `reject`, `strip`
	// Example: strip
	MetadataFields string `yaml:"metadata_fields"`
	// Several topics may write to one index with ids from keys. **Says that no two
	// of them share a key**; where they do, they overwrite each other.
	DisjointKeys bool `yaml:"disjoint_keys"`
	// What `_routing` is. A record without it is rejected.
	//
	// Values: `key`, field:/POINTER, header:NAME, or empty
	// Example: header:account
	Routing string `yaml:"routing"`
	// An ingest pipeline. It runs again for a record that is delivered again.
	//
	// Example: geo
	Pipeline string `yaml:"pipeline"`
	// The server refuses to write to what is not an alias, instead of making an
	// index of that name.
	RequireAlias bool `yaml:"require_alias"`
	// The target is a data stream: `op` is `create`, without versions.
	DataStream bool `yaml:"data_stream"`
	// Whom a record belongs to, for `${customer}` and for a [routed
	// stream](routing.md#customers). `key:REGEXP` takes the one group of the
	// regular expression. An empty one counts as absent.
	//
	// Values: `key`, key:REGEXP, field:/POINTER, header:NAME, or empty
	// Example: header:tenant
	Customer string `yaml:"customer"`
	// A record of a routed stream without a customer, or with one that cannot be
	// routed: `dead_letter`, whatever `on_rejected` says, or `legacy`: it goes to
	// the legacy index alone while that is written to, and in W3 to the dead
	// letters.
	//
	// Values: `dead_letter`, `legacy`
	// Example: legacy
	OnNoCustomer string `yaml:"on_no_customer"`
	// Fills `@timestamp` where the document has none: `field:/p`, several of them
	// with commas (the first that holds a text or a number), `record` (the record's own time).
	// Data streams need the field.
	//
	// Values: `record`, field:/POINTER, several of them with commas, or empty
	// Example: field:/created,record
	Timestamp  string     `yaml:"timestamp"`
	TimeWindow TimeWindow `yaml:"time_window"`
	Metadata   Metadata   `yaml:"metadata"`
	// `server`: only what would break a bulk request is checked, Elasticsearch
	// judges the rest, document by document. `strict`: all of the JSON is checked
	// before; costs about a microsecond of CPU a kilobyte.
	//
	// Values: `server`, `strict`
	// Example: strict
	Validate string `yaml:"validate"`
	// With `strict`: documents that are nested deeper are rejected. Servers read no
	// deeper than 1000.
	//
	// Values: 1 to 100000
	// Example: 50
	MaxDepth       int            `yaml:"max_depth"`
	SchemaRegistry SchemaRegistry `yaml:"schema_registry"`
}

// TimeWindow is the `documents.time_window` section, for time-named indices: a
// record whose time is further from now is rejected.
type TimeWindow struct {
	// With a timestamp in the index name: older records are rejected.
	//
	// Example: 90d
	Past time.Duration `yaml:"past"`
	// With a timestamp in the index name: records further ahead are rejected.
	//
	// Example: 1h
	Future time.Duration `yaml:"future"`
	// With a timestamp in the index name: records that need yet another new name
	// wait until the hour has room.
	//
	// Example: 10
	NewIndicesPerHour int `yaml:"new_indices_per_hour"`
}

// Metadata is the `documents.metadata` section: an object with facts about the
// record, put in front of the document's own fields. Headers are a list of
// {"key", "value"}; bytes that are not UTF-8 become U+FFFD.
type Metadata struct {
	// Put where a record came from into this field of its document. Empty: off.
	//
	// Example: _kafka
	Field string `yaml:"field"`
	// What of it. Headers are a list of `{"key", "value"}`; bytes that are not
	// UTF-8 become U+FFFD.
	//
	// Values: list of `topic`, `partition`, `offset`, `timestamp`, `key`, `headers`
	// Example: [topic, partition, offset]
	Include []string `yaml:"include"`
}

// SchemaRegistry is the `documents.schema_registry` section.
type SchemaRegistry struct {
	// The registry of `avro`, `protobuf` and `json_schema`. Not available yet.
	//
	// Values: URL
	URL string `yaml:"url"`
	// Who asks the registry. Not available yet.
	Username string `yaml:"username"`
	// A file with its password. Not available yet.
	PasswordFile string          `yaml:"password_file"`
	TLS          credentials.TLS `yaml:"tls"`
}

// Override is one entry of `overrides`: the first whose topics match a
// record's topic wins. Documents is the whole section with the override's own
// keys laid over the base's, as the configuration loader made it.
type Override struct {
	// Names, and regular expressions that begin with `^`, as in `kafka.topics`.
	// They choose among what is consumed; they add no topic.
	//
	// Values: list of texts
	// Example: ["audit", "^logs-.*"]
	Topics []string `yaml:"topics"`
	// The keys of `documents` that differ; all others come from there.
	//
	// Values: section
	// Example: {id: position, index: audit}
	Documents Config `yaml:"documents"`
}
