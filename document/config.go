package document

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
)

// Config is the `documents` section: how a record becomes an action. "auto"
// values are resolved by New; DESIGN 5.1 says to what.
type Config struct {
	Index          string         `yaml:"index"`
	Format         string         `yaml:"format"`
	RawField       string         `yaml:"raw_field"`
	ID             string         `yaml:"id"`
	LongIDs        string         `yaml:"long_ids"`
	Op             string         `yaml:"op"`
	Version        string         `yaml:"version"`
	Deletes        string         `yaml:"deletes"`
	TombstoneTTL   time.Duration  `yaml:"tombstone_ttl"`
	OnNull         string         `yaml:"on_null"`
	OnRejected     string         `yaml:"on_rejected"`
	MetadataFields string         `yaml:"metadata_fields"`
	DisjointKeys   bool           `yaml:"disjoint_keys"`
	Routing        string         `yaml:"routing"`
	Pipeline       string         `yaml:"pipeline"`
	RequireAlias   bool           `yaml:"require_alias"`
	DataStream     bool           `yaml:"data_stream"`
	Customer       string         `yaml:"customer"`
	OnNoCustomer   string         `yaml:"on_no_customer"`
	Timestamp      string         `yaml:"timestamp"`
	TimeWindow     TimeWindow     `yaml:"time_window"`
	Metadata       Metadata       `yaml:"metadata"`
	Validate       string         `yaml:"validate"`
	MaxDepth       int            `yaml:"max_depth"`
	SchemaRegistry SchemaRegistry `yaml:"schema_registry"`
}

// TimeWindow is the `documents.time_window` section, for time-named indices.
type TimeWindow struct {
	Past              time.Duration `yaml:"past"`
	Future            time.Duration `yaml:"future"`
	NewIndicesPerHour int           `yaml:"new_indices_per_hour"`
}

// Metadata is the `documents.metadata` section.
type Metadata struct {
	Field   string   `yaml:"field"` // "" is off
	Include []string `yaml:"include"`
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
