package demo

import (
	"fmt"
	"io"

	"github.com/sluicehq/sluice/cmd/sluice/internal/proof"
)

// summary prints what the demo came to and returns ErrBroken, wrapped, where
// that is not what was promised.
func summary(out io.Writer, g *generator, last stats, r *proof.Report) error {
	fmt.Fprintf(out, "\n%s records in %.0f s: %s inserts, %s updates, %s deletes, %s bad documents\n",
		grouped(r.Records), last.elapsed.Seconds(),
		grouped(g.inserts.Load()), grouped(g.updates.Load()), grouped(g.deletes.Load()), grouped(g.bad.Load()))
	fmt.Fprintf(out, "%s keys: %s live, %s deleted; %s dead letters; %s documents were sent again\n\n",
		grouped(int64(r.Keys)), grouped(int64(r.Live)), grouped(int64(r.Deleted)), grouped(int64(r.DeadLettered)), grouped(int64(last.retries)))
	for _, line := range []struct {
		name, meaning string
		count         int
	}{
		{"lost", "newest record of its key, and not in the index", r.Lost},
		{"stale", "an older record's document", r.Stale},
		{"resurrected", "deleted, and in the index", r.Resurrected},
		{"phantom", "in the index, and nobody's record", r.Phantom},
		{"altered", "other bytes than the record's", r.Altered},
		{"wrongly rejected", "a good record, or other bytes, among the dead letters", r.Unjust},
		{"not rejected", "a bad record without a dead letter", r.Missing},
	} {
		fmt.Fprintf(out, "  %-17s %6d   %s\n", line.name, line.count, line.meaning)
	}
	fmt.Fprintln(out)
	for _, sample := range r.Samples {
		fmt.Fprintln(out, "  ", sample)
	}
	switch written := g.produced.Load(); {
	case r.Records != written:
		return fmt.Errorf("%w: the topic holds %d records, %d were acknowledged", ErrBroken, r.Records, written)
	case r.Faults() > 0:
		return fmt.Errorf("%w: %d faults", ErrBroken, r.Faults())
	}
	fmt.Fprintln(out, "Every document is what the log says, byte for byte.")
	return nil
}
