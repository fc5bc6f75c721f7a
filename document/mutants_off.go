//go:build !mutants

package document

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md).
const (
	// Deletes carry no version.
	mutantDelete = false
	// In W1 a delete on the new side is a delete, whose version is forgotten.
	mutantShadow = false
	// Dual write sends the record to the legacy side only.
	mutantOneSide = false
	// Of two headers of one name the first counts.
	mutantHeader = false
	// A record may choose the hashed id of another.
	mutantHash = false
)
