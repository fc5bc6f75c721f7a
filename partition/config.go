package partition

import "time"

// Config is the `routing` section.
type Config struct {
	// Stream names the routing table to follow; "": records are not routed by
	// customer.
	Stream string `yaml:"stream"`
	// ControlIndex holds routing tables, generations and the state of jobs.
	ControlIndex string `yaml:"control_index"` // default: .sluice-control
	// RefreshInterval is the time between two looks at the table: one small get
	// a replica. A cut-over takes that long to spread.
	RefreshInterval time.Duration `yaml:"refresh_interval"` // default: 1s
	// MaxStaleness is how long readers believe a table that cannot be confirmed.
	// Completing a migration waits that long.
	MaxStaleness time.Duration `yaml:"max_staleness"` // default: 5m
}
