package indexer

import (
	"time"

	"github.com/sluicehq/sluice/memory"
)

// Config is the `indexer` section.
type Config struct {
	// A bulk request ends at this size, before compression.
	//
	// Example: 8MiB
	FlushBytes memory.Size `yaml:"flush_bytes"`
	// Or at this many actions.
	//
	// Example: 5000
	FlushDocuments int `yaml:"flush_documents"`
	// Or when its oldest action is this old: the longest that a quiet topic waits.
	// What full requests leave over waits a tenth of it after the last action.
	//
	// Example: 250ms
	FlushInterval time.Duration `yaml:"flush_interval"`
	Requests      Requests      `yaml:"requests"`
	Scaling       Scaling       `yaml:"scaling"`
	Retry         Retry         `yaml:"retry"`
	// What the records of a held target (a blocked index, say) do: `wait` in
	// memory, up to `memory.held_share`, and then all reading pauses; or `park`:
	// once held targets fill half of that share, theirs go to the topic
	// `<dead_letter.topic>.parked`, commits and all other targets go on, and they
	// are written, in order, when the target takes them again. `park` needs
	// `dead_letter.topic` and the control index; see [parked
	// records](operations.md#parked-records).
	//
	// Values: `wait`, `park`
	// Example: park
	Held string `yaml:"held"`
}

// Requests bounds the bulk requests in flight.
type Requests struct {
	// Bulk requests in flight, at least.
	//
	// Example: 2
	Min int `yaml:"min"`
	// And at most. What is best in between is found by experiment
	// ([how](performance.md#requests-in-flight-indexerrequests)).
	//
	// Example: 16
	Max int `yaml:"max"`
}

// Scaling is the `indexer.scaling` section.
type Scaling struct {
	// The number of indexers (who fill and compress requests and read answers)
	// follows the load ([how](performance.md#two-controllers)). `false`: always
	// `max` of them.
	Enabled bool `yaml:"enabled"`
	// Indexers, at least, and at the start.
	//
	// Example: 2
	Min int `yaml:"min"`
	// And at most; 0: GOMAXPROCS x `active_ratio`, rounded up, but at least `min`.
	// With 0 a lower GOMAXPROCS is followed at once.
	//
	// Example: 4
	Max int `yaml:"max"`
	// Indexers for each CPU where `max` is 0.
	//
	// Example: 0.5
	ActiveRatio float64 `yaml:"active_ratio"`
	// One more after so many full requests in a row, unless 1 % or more of the
	// last minute's actions were turned away with 429: then one less.
	//
	// Example: 30
	UpAfter int `yaml:"up_after"`
	// None more within this time of the last change.
	//
	// Example: 30s
	UpCooldown time.Duration `yaml:"up_cooldown"`
	// One less after so many requests in a row that ended by time.
	//
	// Example: 60
	DownAfter int `yaml:"down_after"`
	// None less within this time of the last change.
	//
	// Example: 1m
	DownCooldown time.Duration `yaml:"down_cooldown"`
	// One less after this time without a request (one of a single action, such as
	// a probe of a held target, is none).
	//
	// Example: 2m
	IdleInterval time.Duration `yaml:"idle_interval"`
}

// Retry is the `indexer.retry` section.
type Retry struct {
	// The first wait of a target that was refused; each target waits for itself.
	//
	// Example: 250ms
	Initial time.Duration `yaml:"initial"`
	// The longest wait. Tries never end by their number while the cause lies
	// outside the record.
	//
	// Example: 30s
	Max time.Duration `yaml:"max"`
	// A document that fails with status 500 while its neighbours pass is rejected
	// after so many tries.
	//
	// Example: 20
	ItemAttempts int `yaml:"item_attempts"`
}
