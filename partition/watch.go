package partition

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// View is what a process knows of its stream's table at one moment. It never
// changes.
type View struct {
	// Router is that of the last good table; nil: none was read yet.
	Router *Router
	// Seen is when the question was asked that the store last answered with this
	// table. What was stored before is known.
	Seen time.Time
	// Trouble is what keeps the table from being followed; nil: nothing. Router
	// stays as it was, since nobody may guess.
	Trouble error
	// Since is when the trouble began.
	Since time.Time

	newer chan struct{} // closed when a view with another Router is there
}

// Alarm is one sentence for people about what is wrong; "": nothing is.
func (v *View) Alarm() string {
	switch {
	case v.Trouble == nil:
		return ""
	case v.Router == nil:
		return fmt.Sprintf("no routing table since %s, so nothing can be routed: %v", v.Since.UTC().Format(time.RFC3339), v.Trouble)
	}
	return fmt.Sprintf("the routing table stays at epoch %d since %s: %v", v.Router.Epoch(), v.Since.UTC().Format(time.RFC3339), v.Trouble)
}

// Watcher follows the routing table of one stream. What it hands out only gets
// newer: whatever happens to the stored table, the last good one stays.
type Watcher struct {
	store   *Store
	stream  string
	options WatcherOptions
	view    atomic.Pointer[View]
	reading chan struct{} // holds one token: reads come one after the other
	version Stored        // of view's table; guarded by the token
}

// WatcherOptions are what a Watcher needs beside its store. The zero value has
// the defaults.
type WatcherOptions struct {
	Interval time.Duration // between two reads; 0: 1 s
	// MaxStaleness is how long readers believe a table that is not confirmed; 0:
	// 5 minutes.
	MaxStaleness time.Duration
	Cache        CacheOptions
	// Report hears of each trouble when it begins and when it becomes another,
	// and of its end (nil). It is called from Run and Refresh, one call at a time.
	Report func(trouble error)
}

// NewWatcher returns a watcher that knows no table yet: see Run and Refresh.
func NewWatcher(s *Store, stream string, o WatcherOptions) *Watcher {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.MaxStaleness <= 0 {
		o.MaxStaleness = 5 * time.Minute
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	w := &Watcher{store: s, stream: stream, options: o, reading: make(chan struct{}, 1)}
	w.view.Store(&View{newer: make(chan struct{})})
	return w
}

// Run reads the table at once and then each Interval, until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	ticker := time.NewTicker(w.options.Interval)
	defer ticker.Stop()
	for {
		_, _ = w.Refresh(ctx) // the view holds the trouble
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Stream returns the name of the stream that is followed.
func (w *Watcher) Stream() string { return w.stream }

// View returns what is known now.
func (w *Watcher) View() *View { return w.view.Load() }

// Refresh reads the table now, in real time: an epoch that was stored before
// the call is in what it returns. In trouble it returns the error; the view
// still holds the table from before, if there is one.
func (w *Watcher) Refresh(ctx context.Context) (*Router, error) {
	select {
	case w.reading <- struct{}{}:
		defer func() { <-w.reading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	asked := time.Now()
	stored, err := w.store.load(ctx, w.stream, w.version)
	if err != nil && ctx.Err() != nil {
		return nil, err // says nothing about the table
	}
	old := w.view.Load()
	next := &View{Router: old.Router, Seen: old.Seen, newer: old.newer}
	if err == nil {
		err = w.check(stored)
	}
	switch {
	case err != nil:
		next.Trouble, next.Since = err, time.Now()
		if old.Trouble != nil {
			next.Since = old.Since
		}
	case old.Router == nil:
		next.Router, next.Seen = NewRouter(stored.Table, w.options.Cache), asked
	case stored.Epoch > old.Router.Epoch() || mutantBack && stored.Epoch < old.Router.Epoch():
		next.Router, next.Seen = old.Router.Next(stored.Table), asked
	default:
		next.Seen = asked
	}
	if err == nil {
		w.version = stored
	}
	if next.Router != old.Router {
		next.newer = make(chan struct{})
	}
	w.view.Store(next)
	if next.Router != old.Router {
		close(old.newer)
	}
	if text(old.Trouble) != text(next.Trouble) {
		w.options.Report(next.Trouble)
	}
	return next.Router, err
}

// check refuses a table that does not follow the last good one.
func (w *Watcher) check(now Stored) error {
	last := w.version.Table
	switch {
	case last == nil || last == now.Table:
		return nil
	case now.Epoch < last.Epoch && !mutantBack:
		return fmt.Errorf("stream %s: its routing table went back from epoch %d to %d: was the control index restored from a backup? Make a table with a higher epoch (sluice routes init)", w.stream, last.Epoch, now.Epoch)
	case now.Epoch == last.Epoch && !same(last, now.Table):
		return fmt.Errorf("stream %s: its routing table changed and kept epoch %d: it was not changed by Sluice; restore it", w.stream, now.Epoch)
	case now.Hash != last.Hash || now.Slots != last.Slots || now.Generation != last.Generation:
		return fmt.Errorf("stream %s: epoch %d has another hash, generation or number of slots (%d) than epoch %d (%d), which would move all customers: restore it", w.stream, now.Epoch, now.Slots, last.Epoch, last.Slots)
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Wait returns the router as soon as its epoch is at least epoch. It ends with
// ctx, whose cause it returns then. Somebody must be in Run.
func (w *Watcher) Wait(ctx context.Context, epoch int64) (*Router, error) {
	for {
		v := w.view.Load()
		if v.Router != nil && v.Router.Epoch() >= epoch {
			return v.Router, nil
		}
		select {
		case <-v.newer:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Lookup returns where a customer's documents are read from now: View.Lookup
// with the watcher's own times.
func (w *Watcher) Lookup(customer []byte) (Lookup, error) {
	return w.View().Lookup(customer, time.Now(), w.options.Interval, w.options.MaxStaleness)
}

// Valid returns for how much longer readers may believe the table that is
// known; 0: no longer, or there is none.
func (w *Watcher) Valid() time.Duration {
	v := w.View()
	if v.Router == nil {
		return 0
	}
	return max(0, w.options.MaxStaleness-time.Since(v.Seen))
}

// ErrStale is a table that may not be used for reading any more, of a stream
// whose legacy index would not be right either.
var ErrStale = errors.New("the routing table could not be confirmed for longer than max_staleness, and no legacy index is current")

// ErrNoTable is a process that has not read a table yet.
var ErrNoTable = errors.New("the routing table was not read yet")

// Lookup is what a reader is told about a customer.
type Lookup struct {
	Index string // index or alias to read from
	Epoch int64  // of the table that says so
	// TTL is how long the answer may be used before it is asked for again.
	TTL time.Duration
	// Valid is how long it may be used when nobody answers; after it only the
	// legacy index is right.
	Valid time.Duration
	// Stale says that the table is older than max_staleness, so that Index is
	// the legacy index, whatever the table says.
	Stale bool
}

// Lookup returns where a customer's documents are read from at a moment. A
// table that was not confirmed for maxStaleness is not believed any more: the
// legacy index answers, which is current until W3. Errors are ErrNoTable,
// ErrStale, and what CheckCustomer finds. interval is that of the watcher.
func (v *View) Lookup(customer []byte, now time.Time, interval, maxStaleness time.Duration) (Lookup, error) {
	if err := CheckCustomer(customer); err != nil {
		return Lookup{}, err
	}
	if v.Router == nil {
		return Lookup{}, ErrNoTable
	}
	l := Lookup{Epoch: v.Router.Epoch(), TTL: interval, Valid: maxStaleness - now.Sub(v.Seen)}
	if l.Valid <= 0 && !mutantBlind {
		if l.Index = v.Router.Legacy(); l.Index == "" {
			return Lookup{}, ErrStale
		}
		l.Index, l.Valid, l.Stale = v.Router.rules.readLegacy, 0, true
		return l, nil
	}
	l.Index, l.TTL = v.Router.Read(customer), min(l.TTL, l.Valid)
	return l, nil
}
