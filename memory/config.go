package memory

// Size is a number of bytes. In the configuration it is written with a unit
// (4MiB, 512KiB, 1GiB, 100MB); 0 stands for "auto" where a key allows it.
type Size int64

// Share is a part of a whole, 0 to 1. In the configuration it is written as
// a percentage (25%).
type Share float64

// Config is the `memory` section.
type Config struct {
	// The most bytes of records that are held at once, from fetch to acknowledgement. `auto`: half
	// the memory limit of the container (cgroup v1 or v2), 512MiB where there is
	// none. The process needs more than this: at most a fifth of it and 64 MiB.
	// Unless the environment sets them, GOGC is 50, and GOMEMLIMIT a tenth (at
	// least 32 MiB) more than a limit that is named here (or than 512MiB), and
	// never above 90 % of the container's limit.
	//
	// Example: 1GiB
	Limit Size `yaml:"limit"`
	// The records of held targets may fill so much before fetching pauses for all.
	//
	// Example: 40%
	HeldShare Share `yaml:"held_share"`
	// A larger record is rejected. `auto`: half of `limit`; it cannot be above it.
	//
	// Example: 16MiB
	MaxRecord Size `yaml:"max_record"`
}
