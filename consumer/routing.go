package consumer

import "context"

// Routing is the routing table of the stream (DESIGN 8) as this process follows
// it. Two tables are told apart: the newest that is known, and the one in force,
// by which Rules.Map routes. Epochs begin at 1 and never go down.
type Routing interface {
	// Refresh reads the table in real time and returns the epoch of the newest
	// one that is known then. An error says that it cannot be read, or that what
	// is stored is no table.
	Refresh(ctx context.Context) (epoch int64, err error)
	// Wait returns once a table with an epoch above after is known. It ends with
	// ctx, whose error it returns then.
	Wait(ctx context.Context, after int64) error
	// Adopt puts the newest known table into force and returns its epoch, 0
	// where none was read yet. It is called while nothing is being mapped.
	Adopt() (epoch int64)
}

// Dirty notes customers whose two sides differ, since one has rejected a record
// for good: a cut-over of them is refused until that is repaired.
type Dirty interface {
	// MarkDirty returns nil once the mark of a customer is stored durably. It is
	// called again after an error, and again for a customer that is marked: the
	// mark may have been taken away by a repair.
	MarkDirty(ctx context.Context, customer string) error
}
