package indexer

import (
	"testing"
	"testing/synctest"
)

// A deletion that is written as a document counts as one.
func TestTombstoneCountsAsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rec := newServer(t), newRecorder(t)
		x := New(testConfig(), testOptions(s))
		defer closeAll(t, x)
		w := x.NewWriter()
		tombstone := index(rec, 1, "t", "a", `{"_sluice_deleted":true}`)
		tombstone.Tombstone = true
		add(t, w, tombstone)
		add(t, w, index(rec, 2, "t", "b", `{}`))
		w.Publish()
		waitFor(t, x, rec, 2)
		if rec.got[1] != Deleted || rec.got[2] != Indexed {
			t.Errorf("outcomes %v, want %d for the tombstone and %d for the document", rec.got, Deleted, Indexed)
		}
	})
}
