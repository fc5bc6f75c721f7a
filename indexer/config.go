package indexer

import (
	"time"

	"github.com/sluicehq/sluice/memory"
)

// Config is the `indexer` section.
type Config struct {
	// FlushBytes, FlushDocuments and FlushInterval end a bulk request: its
	// uncompressed bytes, its actions, and the age of its oldest action.
	FlushBytes     memory.Size   `yaml:"flush_bytes"`
	FlushDocuments int           `yaml:"flush_documents"`
	FlushInterval  time.Duration `yaml:"flush_interval"`
	Requests       Requests      `yaml:"requests"`
	Scaling        Scaling       `yaml:"scaling"`
	Retry          Retry         `yaml:"retry"`
	// Held is what the records of a held target do: "wait" in memory or be
	// put aside ("park").
	Held string `yaml:"held"`
}

// Requests bounds the bulk requests in flight.
type Requests struct {
	Min int `yaml:"min"`
	Max int `yaml:"max"`
}

// Scaling is the `indexer.scaling` section.
type Scaling struct {
	Enabled      bool          `yaml:"enabled"`
	Min          int           `yaml:"min"`
	Max          int           `yaml:"max"` // 0: ceil(GOMAXPROCS x ActiveRatio)
	ActiveRatio  float64       `yaml:"active_ratio"`
	UpAfter      int           `yaml:"up_after"`
	UpCooldown   time.Duration `yaml:"up_cooldown"`
	DownAfter    int           `yaml:"down_after"`
	DownCooldown time.Duration `yaml:"down_cooldown"`
	IdleInterval time.Duration `yaml:"idle_interval"`
}

// Retry is the `indexer.retry` section.
type Retry struct {
	Initial time.Duration `yaml:"initial"`
	Max     time.Duration `yaml:"max"`
	// ItemAttempts is after how many tries an item that keeps failing with
	// 500, while its neighbours pass, is rejected.
	ItemAttempts int `yaml:"item_attempts"`
}
