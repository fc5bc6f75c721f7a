package memory

// Size is a number of bytes. In the configuration it is written with a unit
// (4MiB, 512KiB, 1GiB, 100MB); 0 stands for "auto" where a key allows it.
type Size int64

// Share is a part of a whole, 0 to 1. In the configuration it is written as
// a percentage (25%).
type Share float64

// Config is the `memory` section.
type Config struct {
	// Limit is the most bytes of records that the process holds, from fetch to
	// acknowledgement. Auto is half the memory limit of the cgroup, 512MiB
	// where there is none.
	Limit Size `yaml:"limit"`
	// HeldShare is the part of Limit that the records of held targets may fill
	// before fetching pauses for all.
	HeldShare Share `yaml:"held_share"`
	// MaxRecord rejects a record above this size. Auto is half of Limit.
	MaxRecord Size `yaml:"max_record"`
}
