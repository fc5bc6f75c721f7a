//go:build !mutants

package migrate

// Planted bugs, all of them off: a build with the tag mutants switches one of
// them on, to see whether the tests find it (docs/testing.md). Each leaves out a
// rule of docs/migrations.md.
const (
	// A copy overwrites whatever is there.
	mutantOverwrite = false
	// A copy is created where nothing is, and has no version.
	mutantCreate = false
	// The copy begins before the fence of dual writing.
	mutantUnfenced = false
	// What the fence left behind may not be visible to the scan.
	mutantInvisible = false
	// The copy's end is inferred, not proven.
	mutantInferred = false
	// The aliases of earlier leases stay.
	mutantOldLease = false
	// The aliases stay after the drain.
	mutantOpenDrain = false
	// The drain does not wait for writes that are inside the index.
	mutantNoPulse = false
	// Tombstones are purged while consumers may write more.
	mutantEarlyPurge = false
	// Deletes are taken for real before every consumer makes them so.
	mutantUnfencedPurge = false
	// A purge stores the next version, as one by if_seq_no does.
	mutantPurgeBumps = false
	// The new indices are deleted while consumers may write to them.
	mutantUnfencedCancel = false
	// The legacy index is left behind while readers may look at it.
	mutantReaders = false
)
