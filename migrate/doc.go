// Package migrate moves a live index into index partitions by customer: plan,
// dual write, backfill, verify, cut over, roll back, complete.
//
// It promises that at SYNCED both sides hold the same documents, whatever was
// killed, repeated or late on the way, and that until COMPLETED a roll-back is
// one change of the routing table. It does not write live records: the
// consumers do, as the routing table says; and it never removes anything that
// does not carry the job's name, nor the legacy index before an operator types
// its name.
//
// What a job is lies in control documents that change by compare-and-set only:
// the job, its items, its lease, its failed documents and its audit log. Each
// step asks what is true now and not what was done before, so a step that was
// interrupted anywhere is repaired by repeating it. Why the rules are right is
// what the models in model_test.go show.
package migrate
