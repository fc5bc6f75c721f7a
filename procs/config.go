package procs

import "time"

// Config is the `procs` section.
type Config struct {
	// Mode is "automaxprocs" (GOMAXPROCS follows the CPU quota) or "runtime"
	// (Go decides).
	Mode string `yaml:"mode"`
	// Interval is how often the quota is looked at.
	Interval time.Duration `yaml:"interval"`
}
