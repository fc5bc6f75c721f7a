//go:build !mutants

package deadletter

// Planted bugs, all of them off: see mutants_on.go.
const (
	// A void parked record is replayed.
	mutantVoid = false
	// A letter counts when the first of its parts is acknowledged.
	mutantPart = false
	// In an index, a letter of a topic that was made anew is taken for the one
	// that stands at its place.
	mutantPlace = false
)
