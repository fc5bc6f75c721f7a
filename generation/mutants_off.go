//go:build !mutants

package generation

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md).
const (
	// The first record of a generation belongs to the one before.
	mutantStart = false
	// A raise lets older records overtake newer ones that are read already.
	mutantRewind = false
)
