// Package partition spreads one logical index over smaller ones by customer.
package partition

import "time"

// Config is the `routing` section.
type Config struct {
	Stream          string        `yaml:"stream"`
	ControlIndex    string        `yaml:"control_index"`
	RefreshInterval time.Duration `yaml:"refresh_interval"`
	MaxStaleness    time.Duration `yaml:"max_staleness"`
}
