package procs

import "time"

// Config is the `procs` section.
type Config struct {
	// Mode is "automaxprocs" (GOMAXPROCS follows the CPU quota) or "runtime"
	// (Go decides). The former is the default: it does the same work with less
	// CPU; docs/performance.md has the figures.
	Mode string `yaml:"mode"`
	// Interval is how often the quota is looked at.
	Interval time.Duration `yaml:"interval"`
}
