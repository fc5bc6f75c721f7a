package deadletter

import "github.com/sluicehq/sluice/memory"

// Config is the `dead_letter` section.
type Config struct {
	// Where records go that can never be written, with the reason in their
	// headers. Empty: such a record stops its partition. At most 242 letters:
	// parked records go to its name with `.parked`.
	//
	// Values: topic name
	// Example: orders.dead-letters
	Topic string `yaml:"topic"`
	// An index for them instead of a topic, in the same cluster; not both. It is
	// made where it is missing, with a mapping that leaves content alone. **While
	// Elasticsearch refuses all writes, dead letters wait, too.**
	//
	// Values: index name
	// Example: orders-dead-letters
	Index string `yaml:"index"`
	// When more of a target's records are rejected within five minutes (of at
	// least 1,000), the target is held instead: a bad mapping shall not empty a
	// topic into the dead letters.
	//
	// Example: 1%
	MaxShare memory.Share `yaml:"max_share"`
	// A letter that is too large for the topic: `hold` (its partition is blocked
	// on that record), or `chunk` (its value is cut into several records, which
	// `sluice deadletter` puts together again).
	//
	// Values: `hold`, `chunk`
	// Example: chunk
	Oversize string `yaml:"oversize"`
}

// Enabled says whether there is a place for letters.
func (c Config) Enabled() bool { return c.Topic != "" || c.Index != "" }
