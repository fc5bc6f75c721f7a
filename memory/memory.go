// Package memory keeps the bytes that the process holds below one limit, from
// the fetch of a record to the acknowledgement of its last action.
//
// It counts; it does not allocate. Whoever holds bytes takes them first and
// gives exactly as many back, once.
package memory

import (
	"context"
	"sync"
	"sync/atomic"
)

// Budget is one limit in bytes, shared by everything that holds records. All
// methods are safe for concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
	// watched says that somebody may wait for freed. It is set before they look
	// for room once more, and read after room was made: so one of the two sees
	// the other.
	watched atomic.Bool

	mu    sync.Mutex
	freed chan struct{} // closed and replaced by Give, if watched
}

// New returns a budget of limit bytes; limit must be positive.
func New(limit int64) *Budget {
	return &Budget{limit: limit, freed: make(chan struct{})}
}

// Limit returns the budget's limit in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes taken and not yet given back.
func (b *Budget) Used() int64 { return b.used.Load() }

// TryTake takes n bytes if they fit below the limit. A request larger than
// the whole limit fits only into an empty budget, so that it cannot wait for
// ever.
func (b *Budget) TryTake(n int64) bool {
	for {
		used := b.used.Load()
		if used+n > b.limit && used > 0 {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Force takes n bytes whether they fit or not: for bytes that exist already
// and only change hands.
func (b *Budget) Force(n int64) { b.used.Add(n) }

// Take waits until n bytes fit, or until ctx ends, and returns its cause then.
func (b *Budget) Take(ctx context.Context, n int64) error {
	for !b.TryTake(n) {
		freed := b.Freed()
		if b.TryTake(n) {
			break
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Freed returns a channel that is closed when bytes are given back after the
// call. To wait for room: get it, look once more, then wait for it.
func (b *Budget) Freed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watched.Store(true)
	return b.freed
}

// Give returns n bytes that were taken.
func (b *Budget) Give(n int64) {
	if n == 0 {
		return
	}
	if b.used.Add(-n) < 0 {
		panic("memory: more bytes given back than were taken")
	}
	if !b.watched.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watched.Swap(false) {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}
