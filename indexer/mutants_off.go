//go:build !mutants

package indexer

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md).
const (
	// All items of an answer count as written.
	mutantItems = false
	// An item that was turned away counts as written.
	mutantThrottled = false
	// A batch whose request was not answered is forgotten.
	mutantFlush = false
	// An answer that was cut counts as that of a success.
	mutantCut = false
	// Of a batch that is split, one half is sent.
	mutantHalf = false
	// What is refused is rejected at once.
	mutantSecond = false
	// What waits for another try keeps bytes that are used again.
	mutantBuffer = false
	// An action overtakes an earlier one of its id that waits.
	mutantOrder = false
	// Lanes change while there is something in the old ones.
	mutantLanes = false
	// Requests start although another member may own the partitions.
	mutantGate = false
	// Of two actions on one id the one that came later is taken for the newer.
	mutantNewer = false
	// A server that says when to come back is not listened to.
	mutantHurry = false
	// A probe that is refused ends the hold.
	mutantProbe = false
	// An action that a pipeline dropped makes an earlier one on its id stale.
	mutantDropped = false
)
