package partition

import "time"

// Config is the `routing` section.
type Config struct {
	// The name of a stream that is [routed by customer](routing.md): the routing
	// table `routing:NAME` in `control_index` says where records go, and
	// `documents.index` is the legacy index. Empty: not routed.
	//
	// Example: orders
	Stream string `yaml:"stream"`
	// Where Sluice keeps what it must not forget, the generations of topics among
	// it. **All groups that consume a topic into the same index must share it.
	// Never delete it.**
	//
	// Values: index name
	// Example: .sluice-search
	ControlIndex string `yaml:"control_index"`
	// How often a routing table is looked at: one small get for each replica. A
	// cut-over takes that long to spread.
	//
	// Example: 500ms
	RefreshInterval time.Duration `yaml:"refresh_interval"`
	// How long readers trust a table that cannot be read anew; at least
	// `refresh_interval`. Completing a migration waits that long.
	//
	// Example: 10m
	MaxStaleness time.Duration `yaml:"max_staleness"`
}
