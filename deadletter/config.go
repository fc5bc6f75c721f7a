package deadletter

import "github.com/sluicehq/sluice/memory"

// Config is the `dead_letter` section.
type Config struct {
	// Topic and Index are where letters go: one of them, or none.
	Topic string `yaml:"topic"`
	Index string `yaml:"index"`
	// MaxShare of a target's records within five minutes may be rejected
	// before the target is held.
	MaxShare memory.Share `yaml:"max_share"`
	// Oversize is what happens to a letter too large for the topic: "hold" or
	// "chunk".
	Oversize string `yaml:"oversize"`
}

// Enabled says whether there is a place for letters.
func (c Config) Enabled() bool { return c.Topic != "" || c.Index != "" }
