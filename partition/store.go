package partition

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Documents keeps control documents: JSON objects by id, read in real time and
// changed by compare-and-set only. The control index of package elastic is one.
//
// An error that says that the document is absent has a method NotFound() bool,
// one that says that it exists already or has changed since it was read has
// Conflict() bool; both may be wrapped.
type Documents interface {
	// Get decodes the document into doc, a pointer, and returns its version.
	Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error)
	// Create stores a document that must not exist yet.
	Create(ctx context.Context, id string, doc any) error
	// Update replaces the document if its version is still this one.
	Update(ctx context.Context, id string, doc any, seqNo, primaryTerm int64) error
}

// ID returns the id of a stream's table among the control documents.
func ID(stream string) string { return "routing:" + stream }

// Store keeps the routing tables of streams. A table is only ever replaced by
// the one that follows it: nobody's change is lost, none is merged.
type Store struct{ documents Documents }

// NewStore returns the store on control documents.
func NewStore(d Documents) *Store { return &Store{d} }

// Stored is a table as it was read, and the place in time that its successor
// must come from.
type Stored struct {
	*Table
	raw                json.RawMessage
	seqNo, primaryTerm int64
}

// ErrNotFound is a stream without a routing table.
var ErrNotFound = errors.New("no routing table")

// ConflictError is a change to a table that was changed by somebody else since
// it was read. Nothing was written.
type ConflictError struct {
	Stream string
	Read   int64 // the epoch that the change was made from; 0: there was no table
	Stored int64 // the epoch that stands there now; 0: none, or it could not be read
}

func (e *ConflictError) Error() string {
	if e.Stored == 0 {
		return fmt.Sprintf("routing table of stream %s: it was changed since epoch %d was read, and cannot be read now: look at it (sluice routes show), then decide anew", e.Stream, e.Read)
	}
	return fmt.Sprintf("routing table of stream %s: epoch %d was read and epoch %d is stored: look at what changed (sluice routes show), then decide anew", e.Stream, e.Read, e.Stored)
}

// Conflict returns true: for rooms that know this error by its behaviour.
func (e *ConflictError) Conflict() bool { return true }

// Load reads a stream's table in real time. Errors wrap ErrNotFound,
// *SchemaError or *InvalidError where the table is absent, of a later program,
// or damaged; others are the server's.
func (s *Store) Load(ctx context.Context, stream string) (Stored, error) {
	return s.load(ctx, stream, Stored{})
}

// load is Load for who knows the table already: it returns the same
// *Table where the document is still the same.
func (s *Store) load(ctx context.Context, stream string, known Stored) (Stored, error) {
	var raw json.RawMessage
	seqNo, primaryTerm, err := s.documents.Get(ctx, ID(stream), &raw)
	switch {
	case isNotFound(err):
		return Stored{}, fmt.Errorf("stream %s: %w: make one with sluice routes init", stream, ErrNotFound)
	case err != nil:
		return Stored{}, fmt.Errorf("stream %s: reading its routing table: %w", stream, err)
	case known.Table != nil && bytes.Equal(raw, known.raw):
		return Stored{known.Table, raw, seqNo, primaryTerm}, nil
	}
	t, err := Parse(raw)
	if err == nil && t.Name != stream {
		err = &InvalidError{"name", fmt.Sprintf("is %q", t.Name), "restore the document: it is that of another stream"}
	}
	if err != nil {
		return Stored{}, fmt.Errorf("stream %s: control document %s: %w", stream, ID(stream), err)
	}
	return Stored{t, raw, seqNo, primaryTerm}, nil
}

// Create stores the first table of a stream. It returns *ConflictError where
// there is one already.
func (s *Store) Create(ctx context.Context, t *Table) error {
	if err := t.Validate(); err != nil {
		return err
	}
	return s.settle(ctx, t, 0, s.documents.Create(ctx, ID(t.Name), t))
}

// Update replaces the table that was read by one that Change or Next has
// approved of. It returns *ConflictError where another one is stored by now.
func (s *Store) Update(ctx context.Context, read Stored, t *Table) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if t.Name != read.Name || t.Epoch != read.Epoch+1 {
		return &RefusedError{"epoch", fmt.Sprintf("epoch %d of stream %s does not follow epoch %d of stream %s", t.Epoch, t.Name, read.Epoch, read.Name), "make the table with Change"}
	}
	return s.settle(ctx, t, read.Epoch, s.documents.Update(ctx, ID(t.Name), t, read.seqNo, read.primaryTerm))
}

// settle says how a write went whose answer was err. An answer that was lost
// says nothing: the table that stands there does.
func (s *Store) settle(ctx context.Context, t *Table, read int64, err error) error {
	if err == nil {
		return nil
	}
	now, loadErr := s.Load(ctx, t.Name)
	if loadErr == nil && same(now.Table, t) {
		return nil
	}
	if !isConflict(err) {
		return fmt.Errorf("stream %s: storing epoch %d of its routing table: %w", t.Name, t.Epoch, err)
	}
	conflict := &ConflictError{Stream: t.Name, Read: read}
	if loadErr == nil {
		conflict.Stored = now.Epoch
	}
	return conflict
}

// same says whether two tables are one and the same document.
func same(a, b *Table) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func isNotFound(err error) bool {
	var e interface{ NotFound() bool }
	return errors.As(err, &e) && e.NotFound()
}

func isConflict(err error) bool {
	var e interface{ Conflict() bool }
	return errors.As(err, &e) && e.Conflict()
}
