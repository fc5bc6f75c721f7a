//go:build !mutants

package offsets

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md).
const (
	// The highest record that is handled is committed, not the first that is not.
	mutantHighest = false
	// Offsets that hold no record keep the position back.
	mutantHole = false
	// A ring that grows forgets which records were given up.
	mutantGrow = false
	// A record is handled when the first of its targets is done with it.
	mutantFirst = false
	// Of a record that is taken back one target alone is waited for no longer.
	mutantBack = false
)
