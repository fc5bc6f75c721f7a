// Package flood keeps a log readable when one thing happens to every record or
// request: of each message a number of lines passes in a while, and how many were
// left out is said by the next line of it that passes, or by a line of its own.
// Nothing is left out uncounted.
package flood

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// burst is how many lines of one message pass in a window.
	burst = 100
	// window is how long a count lasts.
	window = 10 * time.Second
	// most is how many messages are told apart; the rest are counted together.
	// There are fewer than a hundred in the program, but those of a library have
	// texts of their own.
	most = 1000
	// others is where the rest are counted.
	others = "_other"
	// Field is the field with the number of lines that were left out before.
	Field = "suppressed"
	// summary is the message of the line that tells of those that none followed.
	summary = "lines of the log were left out: there were too many of one message"
)

// Limiter is a zerolog.Hook. Make it with New; it may be used by many goroutines.
type Limiter struct {
	mu       sync.Mutex
	messages map[string]*count
}

// count is what was said of one message since a moment.
type count struct {
	began      time.Time
	passed     int
	suppressed int
	level      zerolog.Level // of the last line
}

// New returns a limiter that has counted nothing.
func New() *Limiter { return &Limiter{messages: map[string]*count{}} }

// Run implements zerolog.Hook.
func (l *Limiter) Run(e *zerolog.Event, level zerolog.Level, message string) {
	if message == summary {
		return
	}
	passes, before := l.passes(level, message, time.Now())
	switch {
	case !passes:
		e.Discard()
	case before > 0:
		e.Int(Field, before)
	}
}

// passes counts a line. Where it passes, before is how many were left out since
// the last one that did.
func (l *Limiter) passes(level zerolog.Level, message string, now time.Time) (passes bool, before int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.messages[message]
	if c == nil {
		if len(l.messages) >= most {
			message = others
		}
		if c = l.messages[message]; c == nil {
			c = &count{began: now}
			l.messages[message] = c
		}
	}
	if now.Sub(c.began) >= window {
		c.began, c.passed = now, 0
	}
	if c.passed >= burst {
		c.suppressed++
		c.level = max(c.level, level)
		return false, 0
	}
	c.passed++
	before, c.suppressed = c.suppressed, 0
	return true, before
}

// Summarise tells log, once a window until ctx ends and then once more, of what
// was left out and not followed by a line that says so. log may be one that the
// limiter is a hook of.
func (l *Limiter) Summarise(ctx context.Context, log zerolog.Logger) {
	ticker := time.NewTicker(window)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ticker.C:
			l.tell(log, time.Now().Add(-window))
		case <-ctx.Done():
		}
	}
	l.tell(log, time.Now())
}

// tell says what was left out of the windows that began until a moment, and forgets
// messages that are not said any more.
func (l *Limiter) tell(log zerolog.Logger, until time.Time) {
	l.mu.Lock()
	type left struct {
		message string
		count
	}
	var all []left
	for message, c := range l.messages {
		if c.began.After(until) {
			continue
		}
		if c.suppressed > 0 {
			all = append(all, left{message, *c})
		}
		delete(l.messages, message)
	}
	l.mu.Unlock()
	for _, c := range all {
		log.WithLevel(c.level).Str("of", c.message).Int(Field, c.suppressed).Msg(summary)
	}
}
