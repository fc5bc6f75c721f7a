package procs

import "time"

// Config is the `procs` section.
type Config struct {
	// `automaxprocs`: GOMAXPROCS follows the CPU quota, rounded down, 1 at least.
	// `runtime`: Go decides, rounded up, 2 at least. It is faster where the quota
	// lies between 1 and 2 ([figures](performance.md#cpu-quotas-procsmode)). A
	// GOMAXPROCS variable in the environment wins over both. **Where containers
	// get more CPU for their start, the quota is looked at again and again**, so a
	// boost does not stay.
	//
	// Values: `automaxprocs`, `runtime`
	// Example: runtime
	Mode string `yaml:"mode"`
	// How often the quota is looked at.
	//
	// Example: 10s
	Interval time.Duration `yaml:"interval"`
}
