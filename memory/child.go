package memory

import (
	"sync"
	"time"
)

// childIdle is how often a child looks for what it has not used since it looked
// last.
const childIdle = time.Second / 2

// Child is a part of a budget for one that takes and gives often: it takes
// whole pieces of the budget ahead and hands them out by itself, so that most
// calls touch nothing that others touch. What it holds, used or not, counts as
// used of the budget; what it has not used it gives back within a second. All
// methods are safe for concurrent use.
type Child struct {
	b     *Budget
	piece int64

	mu    sync.Mutex
	used  int64
	held  int64 // of the budget; at least used
	spare int64 // the least of held-used since the timer last fired
	timer *time.Timer
	on    bool // the timer runs

	_ [64]byte // no two children share a cache line
}

// Child returns a child that takes piece bytes of the budget at a time; piece
// must be positive.
func (b *Budget) Child(piece int64) *Child { return &Child{b: b, piece: piece} }

// Used returns the bytes taken from the child and not yet given back.
func (c *Child) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// Held returns the bytes that the child has of the budget.
func (c *Child) Held() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// TryTake takes n bytes if the child has them, or can take them from the
// budget.
func (c *Child) TryTake(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if more := c.used + n - c.held; more > 0 {
		// Where a whole piece does not fit any more, what is asked for may.
		pieces := (more + c.piece - 1) / c.piece * c.piece
		switch {
		case pieces <= c.b.limit && c.b.TryTake(pieces):
			c.held += pieces
		case pieces > more && c.b.TryTake(more):
			c.held += more
		default:
			return false
		}
	}
	c.take(n)
	c.look()
	return true
}

// Force takes n bytes whether they fit or not, as Budget.Force does.
func (c *Child) Force(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if more := c.used + n - c.held; more > 0 {
		c.b.Force(more)
		c.held += more
	}
	c.take(n)
}

func (c *Child) take(n int64) {
	c.used += n
	c.spare = min(c.spare, c.held-c.used)
}

// Give returns n bytes that were taken. A piece stays for the next time, unless
// somebody waits for the budget; more goes at once.
func (c *Child) Give(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used -= n
	if c.used < 0 {
		panic("memory: more bytes given back to a child than were taken")
	}
	keep := c.piece
	if c.b.watched.Load() {
		keep = 0
	}
	c.shrink(keep)
	c.look()
}

// look has the timer run while there is something that is not used.
func (c *Child) look() {
	if c.on || c.held == c.used {
		return
	}
	c.on, c.spare = true, c.held-c.used
	if c.timer == nil {
		c.timer = time.AfterFunc(childIdle, c.idle)
	} else {
		c.timer.Reset(childIdle)
	}
}

// shrink gives back all but keep of what is not used.
func (c *Child) shrink(keep int64) {
	if more := c.held - c.used - keep; more > 0 {
		c.held -= more
		c.spare = min(c.spare, c.held-c.used)
		c.b.Give(more)
	}
}

// idle gives back what was not used since it was called last.
func (c *Child) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return
	}
	c.shrink(c.held - c.used - c.spare)
	if c.spare = c.held - c.used; c.spare > 0 {
		c.timer.Reset(childIdle)
		return
	}
	c.on = false
}

// Close gives back all that is not used. What is used is given back when it is
// given; a child need not be closed again for that.
func (c *Child) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.on = false
	c.shrink(0)
}
