package document

import "fmt"

// The layout of a sequence, from the highest bit: the sign (0), the
// generation, offset + 1, spare. It can never change: indices hold it.
const (
	generationBits = 10
	offsetBits     = 45
	spareBits      = 8

	// MaxGeneration is the highest generation that a sequence can hold.
	MaxGeneration = 1<<generationBits - 1
	// MaxOffset is the highest offset that a sequence can hold.
	MaxOffset = 1<<offsetBits - 2
)

// Sequence returns the version that a record carries under `version:
// sequence`: higher for a later generation, and within one generation for a
// higher offset. Spare bits are 0. generation is 1 to MaxGeneration, offset 0
// to MaxOffset; anything else is an error.
func Sequence(generation int, offset int64) (int64, error) {
	if generation < 1 || generation > MaxGeneration {
		return 0, fmt.Errorf("document: generation %d is outside 1 to %d", generation, MaxGeneration)
	}
	if offset < 0 || offset > MaxOffset {
		return 0, fmt.Errorf("document: offset %d is outside 0 to %d", offset, int64(MaxOffset))
	}
	return int64(generation)<<(offsetBits+spareBits) | (offset+1)<<spareBits, nil
}

// DecodeSequence takes a version apart. ok is false for a version that
// Sequence cannot have made: a bare offset, a timestamp, an internal version.
// spare is 0 in all that this release writes; it is returned for versions of a
// later one.
func DecodeSequence(v int64) (generation int, offset int64, spare int, ok bool) {
	generation = int(v >> (offsetBits + spareBits))
	offset = v>>spareBits&(1<<offsetBits-1) - 1
	spare = int(v & (1<<spareBits - 1))
	if v < 0 || generation < 1 || offset < 0 {
		return 0, 0, 0, false
	}
	return generation, offset, spare, true
}
