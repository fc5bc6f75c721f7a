package document

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
)

// Config is the `documents` section: how a record becomes an action. "auto"
// values are resolved by New; DESIGN 5.1 says to what.
type Config struct {
	// Index is the target's name: literal, or with ${topic}, ${customer},
	// ${timestamp:LAYOUT}, ${header:NAME} and ${field:/POINTER}. It begins with
	// text of its own or with ${topic}. What a variable holds that a name
	// cannot is written as =xx, upper case too, so that no two share a name.
	Index string `yaml:"index"`
	// Format is json, text (put into RawField as it is; UTF-8) or raw (put into
	// RawField as base64; any bytes). avro, protobuf and json_schema are
	// refused by this release.
	Format   string `yaml:"format"`
	RawField string `yaml:"raw_field"` // default: message
	// ID is auto, key, position, field:/POINTER, header:NAME, none or a template
	// of ${topic}, ${partition}, ${offset}, ${key}, ${customer},
	// ${timestamp:LAYOUT}, ${header:NAME}, ${field:/POINTER}. It must be UTF-8.
	// An empty text counts as absent.
	ID string `yaml:"id"`
	// LongIDs is reject, or hash: an id over 512 bytes, and one that begins with
	// "sha256:", becomes "sha256:" and its SHA-256 in base64url.
	LongIDs string `yaml:"long_ids"`
	Op      string `yaml:"op"` // auto, index, create, update, upsert
	// Version is auto, sequence, offset, timestamp, field:/POINTER, header:NAME
	// or none. Timestamp is the record's, in Unix milliseconds; field and header
	// hold an integer from 0 to 2^63-1.
	Version string `yaml:"version"`
	// Deletes is hard, or tombstone: a delete is a document with
	// "_sluice_deleted": true that keeps the version for good.
	Deletes      string        `yaml:"deletes"`
	TombstoneTTL time.Duration `yaml:"tombstone_ttl"` // for `sluice purge`
	OnNull       string        `yaml:"on_null"`       // auto, delete, ignore, fail, dead_letter
	OnRejected   string        `yaml:"on_rejected"`   // auto, dead_letter, stop, drop
	// MetadataFields is reject or strip: what becomes of _id and the like at the
	// top of a document. Strip needs validate: strict.
	MetadataFields string `yaml:"metadata_fields"`
	// DisjointKeys says that the topics that share an index share no key.
	DisjointKeys bool   `yaml:"disjoint_keys"`
	Routing      string `yaml:"routing"` // key, field:/POINTER, header:NAME; "": none. A record without it is rejected
	Pipeline     string `yaml:"pipeline"`
	RequireAlias bool   `yaml:"require_alias"`
	DataStream   bool   `yaml:"data_stream"`
	// Customer is header:NAME, key, key:REGEXP with one group, or
	// field:/POINTER; "": none. An empty one counts as absent.
	Customer     string `yaml:"customer"`
	OnNoCustomer string `yaml:"on_no_customer"` // dead_letter, legacy
	// Timestamp is record, or field:/POINTER, or several with commas: the first
	// that holds a text or a number fills @timestamp where the document has none.
	Timestamp  string     `yaml:"timestamp"`
	TimeWindow TimeWindow `yaml:"time_window"`
	Metadata   Metadata   `yaml:"metadata"`
	// Validate is server (framing only; a value with line breaks is checked,
	// since it is written anew) or strict (all of the JSON; costs about a
	// microsecond a kilobyte).
	Validate       string         `yaml:"validate"`
	MaxDepth       int            `yaml:"max_depth"` // with strict; default 200
	SchemaRegistry SchemaRegistry `yaml:"schema_registry"`
}

// TimeWindow is the `documents.time_window` section, for time-named indices: a
// record whose time is further from now is rejected.
type TimeWindow struct {
	Past              time.Duration `yaml:"past"`                 // default: 365 days
	Future            time.Duration `yaml:"future"`               // default: 1 day
	NewIndicesPerHour int           `yaml:"new_indices_per_hour"` // default: 50; kept by the sender
}

// Metadata is the `documents.metadata` section: an object with facts about the
// record, put in front of the document's own fields. Headers are a list of
// {"key", "value"}; bytes that are not UTF-8 become U+FFFD.
type Metadata struct {
	Field   string   `yaml:"field"`   // "" is off
	Include []string `yaml:"include"` // topic, partition, offset, timestamp, key, headers; default: all
}

// SchemaRegistry is the `documents.schema_registry` section.
type SchemaRegistry struct {
	URL          string          `yaml:"url"`
	Username     string          `yaml:"username"`
	PasswordFile string          `yaml:"password_file"`
	TLS          credentials.TLS `yaml:"tls"`
}

// Override is one entry of `overrides`: the first whose topics match a
// record's topic wins. Documents is the whole section with the override's own
// keys laid over the base's, as the configuration loader made it.
type Override struct {
	Topics    []string `yaml:"topics"`
	Documents Config   `yaml:"documents"`
}
