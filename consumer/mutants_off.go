//go:build !mutants

package consumer

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md).
const (
	// A partition that is revoked goes on: late outcomes of it are committed.
	mutantLate = false
	// A dead letter counts before the brokers have acknowledged it.
	mutantLetter = false
	// A partition that was paused when it was revoked stays paused.
	mutantPause = false
	// The end does not wait for what is under way.
	mutantStop = false
	// What was handed to the indexer is committed, whatever becomes of it.
	mutantEarly = false
	// Records are read before the state of what is parked is known.
	mutantUnstated = false
	// A header without a value comes back with an empty one.
	mutantNull = false
	// A routing table is adopted with records on the wire, which stay there.
	mutantRush = false
	// Partitions start under a table that is older than the group's commits.
	mutantStale = false
	// A record that one side rejects ends before its customer is marked dirty.
	mutantUnmarked = false
	// The first record at a generation's start is taken for one of the generation
	// before.
	mutantBorder = false
	// A letter that the end of the process cuts off counts as written.
	mutantGivenUp = false
	// A lane closes while records of it are on their way to the parked topic.
	mutantDrained = false
)
