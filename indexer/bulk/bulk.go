// Package bulk is the wire of the _bulk API: it encodes actions and decodes
// answers. It knows no Kafka, no retries and no client; it imports the
// standard library and a compressor only.
package bulk

// Op is the operation of an action.
type Op uint8

// The operations. Upsert is an update with doc_as_upsert.
const (
	Index Op = iota + 1
	Create
	Update
	Upsert
	Delete
)

// VersionType says how the server compares an action's version.
type VersionType uint8

// The version types. External refuses versions at or below the stored one,
// ExternalGTE versions below it.
const (
	Internal VersionType = iota // no version is sent
	External
	ExternalGTE
)

// Action is one operation of a bulk request. The byte slices are read, never
// kept or written.
type Action struct {
	Op          Op
	VersionType VersionType
	// RequireAlias makes the server refuse the action where Target is not an
	// alias. The server ignores it for deletes.
	RequireAlias bool
	Target       string // index, alias or data stream
	ID           []byte // raw; empty: the server makes one
	Routing      []byte // raw; empty: none
	Pipeline     string // empty: none
	Version      int64
	// Body is the document: one line of JSON without its end. Nil for Delete.
	// For Update and Upsert it is the partial document, not its wrapper.
	Body []byte
}
