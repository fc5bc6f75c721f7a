//go:build !mutants

package partition

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md).
const (
	// The cache keeps what a change of the table touched.
	mutantStale = false
	// A table with a lower epoch is followed.
	mutantBack = false
	// A customer that has documents may move.
	mutantMoves = false
	// Readers believe a table of any age.
	mutantBlind = false
)
