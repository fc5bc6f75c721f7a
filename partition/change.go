package partition

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// RefusedError is a change that would make a table unsafe, and what to do
// instead.
type RefusedError struct {
	Path   string // what was to be changed, as in the JSON
	Reason string
	Remedy string
}

func (e *RefusedError) Error() string {
	return "refused: " + e.Path + ": " + e.Reason + "; " + e.Remedy
}

// Change is one change of a table.
type Change struct {
	By string    // who makes it, for Table.UpdatedBy
	At time.Time // when
	// Documents are the customers that have documents on any side: none of them
	// may move by a change of the table. Nil says that nobody knows, so that
	// nobody may move. It is not looked at where no place changes. A replica
	// that has not adopted the change may still write a first document to the
	// old place: whoever moves customers looks again after the fence.
	Documents iter.Seq[string]
	// Edit changes a copy of the table. It leaves Epoch alone.
	Edit func(*Table) error
}

// Change returns the table after t: a copy that Edit has changed, one epoch
// higher. It returns the errors of Edit, of Validate and of Next.
func (t *Table) Change(c Change) (*Table, error) {
	next := t.Clone()
	if err := c.Edit(next); err != nil {
		return nil, err
	}
	next.Epoch++
	next.UpdatedBy, next.UpdatedAt = c.By, c.At
	if err := Next(t, next, c.Documents); err != nil {
		return nil, err
	}
	return next, nil
}

// Detach takes the new side out of a table in W1 or W2: W0, every partition
// retired, no slots and no overrides. Job and read rules are left.
func (t *Table) Detach() {
	t.Write, t.SlotMap, t.Overrides = W0, nil, nil
	for name, p := range t.Partitions {
		p.State = Retired
		t.Partitions[name] = p
	}
}

// Next says whether table next may follow table old: nil, the errors of
// Validate, or a *RefusedError. Documents is as in Change. It is pure: that old
// is still the stored one is the Store's care, that fences were passed the
// migration's.
func Next(old, next *Table, documents iter.Seq[string]) error {
	if err := next.Validate(); err != nil {
		return err
	}
	for _, fixed := range []struct {
		path      string
		old, next any
		remedy    string
	}{
		{"name", old.Name, next.Name, "make a table for the other stream with sluice routes init"},
		{"epoch", old.Epoch + 1, next.Epoch, "an epoch is one above the one before"},
		{"generation", old.Generation, next.Generation, "it never changes in place: copy into a new stream"},
		{"hash", old.Hash, next.Hash, "it never changes in place: copy into a new stream"},
		{"slots", old.Slots, next.Slots, "it never changes in place: copy into a new stream"},
	} {
		if fixed.old != fixed.next {
			return &RefusedError{fixed.path, fmt.Sprintf("must be %v and would be %v", fixed.old, fixed.next), fixed.remedy}
		}
	}
	if err := nextMode(old, next); err != nil {
		return err
	}
	if err := nextPartitions(old, next); err != nil {
		return err
	}
	if old.Read.Salt != next.Read.Salt && old.Read.Percent > 0 && next.Read.Percent > 0 {
		return &RefusedError{"read.salt", "another one moves the percent to other customers, some of them back", "lower read.percent to 0 first (sluice migrate rollback)"}
	}
	return nextPlaces(old, next, documents)
}

func nextMode(old, next *Table) error {
	refuse := func(reason, remedy string) error { return &RefusedError{"write", reason, remedy} }
	switch {
	case old.Write == W3 && next.Write != W3:
		return refuse("the legacy index has missed records since W3", "start a reverse job: sources are the partitions, the target is one index")
	case !old.Write.CanBecome(next.Write):
		return refuse(fmt.Sprintf("%s cannot become %s", old.Write, next.Write), fmt.Sprintf("go on to %s, and fence each step", old.Write+1))
	case next.Write == W0 && old.Write != W0 && old.Read.AnyNew():
		// Not even in the same change: readers must have left the new side first.
		return refuse("customers are read from the new side", "roll them back first (sluice migrate rollback --all)")
	case old.Write == W2 && next.Write == W3 && (!old.Read.AllNew() || !next.Read.AllNew()):
		return refuse("not every customer is read from the new side", "cut all over first (sluice migrate cutover --all)")
	case old.Write.Legacy() && next.Write.Legacy() && *old.Legacy != *next.Legacy:
		return &RefusedError{"legacy", "another index would not hold what this one does", "leave it as it is until W3"}
	case old.Legacy == nil && next.Legacy != nil:
		return &RefusedError{"legacy", "the stream started partitioned", "leave it null"}
	}
	return nil
}

// nextPartitions refuses that a partition becomes another index, or that the
// index of a retired one comes back.
func nextPartitions(old, next *Table) error {
	retired := map[string]string{}
	for name, p := range old.Partitions {
		if p.State == Retired {
			retired[p.Index] = name
		}
	}
	if old.Write.New() && next.Write == W0 {
		for _, name := range slices.Sorted(maps.Keys(old.Partitions)) {
			if next.Partitions[name].State != Retired {
				return &RefusedError{member("partitions", name), "its index was written to, and nothing tells what late writes will leave in it", "retire it (Table.Detach)"}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(next.Partitions)) {
		p, path := next.Partitions[name], member("partitions", name)
		before, known := old.Partitions[name]
		switch {
		case p.State == Active && retired[p.Index] != "":
			return &RefusedError{path + ".index", fmt.Sprintf("%s was that of the retired partition %s, and a late write may have soiled it", p.Index, retired[p.Index]), "name a new index"}
		case known && before.State == Active && before.Index != p.Index:
			return &RefusedError{path + ".index", fmt.Sprintf("it is %s, which may hold documents", before.Index), "make a partition of another name"}
		}
	}
	return nil
}

// mostNamed is how many customers a refusal names.
const mostNamed = 5

// nextPlaces refuses that a customer with documents moves. While only the
// legacy index is written, the partitions hold nothing.
func nextPlaces(old, next *Table, documents iter.Seq[string]) error {
	if old.Write == W0 || next.Write == W0 || slices.Equal(old.SlotMap, next.SlotMap) && maps.Equal(old.Overrides, next.Overrides) {
		return nil
	}
	const remedy = "move customers that have documents by a migration"
	if documents == nil {
		return &RefusedError{"slot_map, overrides", "customers would move, and it is not known which of them have documents", remedy}
	}
	from, to := compile(old, nil), compile(next, nil)
	var moved []string
	more := 0
	for customer := range documents {
		c := []byte(customer)
		if mutantMoves || from.names[from.place(c)] == to.names[to.place(c)] {
			continue
		}
		if len(moved) < mostNamed {
			moved = append(moved, customer)
		} else {
			more++
		}
	}
	if moved == nil {
		return nil
	}
	names := strings.Join(moved, ", ")
	if more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return &RefusedError{"slot_map, overrides", names + " have documents and would move", remedy}
}
