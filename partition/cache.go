package partition

import (
	"sync"
	"sync/atomic"
	"time"
)

// Gauge is a number that several parts of a process raise and lower, such as a
// prometheus.Gauge.
type Gauge interface {
	Inc()
	Dec()
}

// CacheOptions bound what a router remembers. The zero value has the defaults.
type CacheOptions struct {
	// Entries is how many customers are remembered; 0: 65,536. It is rounded up
	// to a power of 2.
	Entries int
	// Bytes bounds the memory of entries, customers included; 0: 16 MiB.
	Bytes int64
	// Flood is how many entries the changes of one Window may invalidate; 0: a
	// quarter of Entries. One more drops the cache and bypasses it for Backoff.
	Flood   int
	Window  time.Duration // 0: 10 s
	Backoff time.Duration // 0: 30 s
	// InBackoff is one higher while this router's cache is bypassed; nil: nobody
	// wants to know. Metric: sluice_routing_cache_backoff.
	InBackoff Gauge
}

func (o CacheOptions) withDefaults() CacheOptions {
	if o.Entries <= 0 {
		o.Entries = 1 << 16
	}
	size := ways
	for size < o.Entries {
		size *= 2
	}
	o.Entries = size
	if o.Bytes <= 0 {
		o.Bytes = 16 << 20
	}
	if o.Flood <= 0 {
		o.Flood = o.Entries / 4
	}
	if o.Window <= 0 {
		o.Window = 10 * time.Second
	}
	if o.Backoff <= 0 {
		o.Backoff = 30 * time.Second
	}
	return o
}

// flood watches over invalidations, for all the routers that follow each other
// in one process.
type flood struct {
	options  CacheOptions
	bypassed atomic.Bool

	mu     sync.Mutex
	since  time.Time // when the window began
	purged int       // entries in it
}

// note counts purged entries and says whether they are too many: then the
// cache is to be dropped, and is bypassed until the back-off is over.
func (f *flood) note(purged int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.since) > f.options.Window {
		f.since, f.purged = now, 0
	}
	if f.purged += purged; f.purged <= f.options.Flood || f.bypassed.Load() {
		return f.bypassed.Load()
	}
	f.bypassed.Store(true)
	if f.options.InBackoff != nil {
		f.options.InBackoff.Inc()
	}
	time.AfterFunc(f.options.Backoff, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.purged = 0
		f.bypassed.Store(false)
		if f.options.InBackoff != nil {
			f.options.InBackoff.Dec()
		}
	})
	return true
}

// ways is how many entries share a set: one of them goes when another comes.
const ways = 4

// entryBytes is what an entry costs beside its customer.
const entryBytes = 48

// noPlace says that no glob matches a customer: its slot decides.
const noPlace = ^uint16(0)

// cache remembers what the globs of one table said of customers. It is a table
// of fixed size without locks: a reader finds an entry or it does not, and two
// writers at one place lose one entry.
//
// A cache belongs to one set of globs for ever. The next router gets a copy
// without the entries that a change touches, so that a lookup that is still
// under way by the old rules cannot leave its answer among the new ones.
type cache struct {
	entries []atomic.Pointer[entry]
	bytes   atomic.Int64
	limit   int64
	hand    atomic.Uint64 // where room is made next
}

type entry struct {
	hash     uint64
	customer string
	place    uint16
	used     atomic.Bool // since room was last looked for here
}

func (e *entry) size() int64 { return entryBytes + int64(len(e.customer)) }

func newCache(o CacheOptions) *cache {
	return &cache{entries: make([]atomic.Pointer[entry], o.Entries), limit: o.Bytes}
}

// set returns the entries among which a customer's is.
func (c *cache) set(hash uint64) []atomic.Pointer[entry] {
	// The low bits choose the slot. The high ones are free of it.
	first := int(hash>>32) & (len(c.entries)/ways - 1) * ways
	return c.entries[first : first+ways : first+ways]
}

// find returns the place that is remembered for a customer.
func (c *cache) find(hash uint64, customer []byte) (place uint16, ok bool) {
	set := c.set(hash)
	for i := range set {
		if e := set[i].Load(); e != nil && e.hash == hash && e.customer == string(customer) {
			if !e.used.Load() { // a store would take the line from other cores
				e.used.Store(true)
			}
			return e.place, true
		}
	}
	return 0, false
}

// add remembers a place. Under contention, or when no room is found within a
// few steps, it does not.
func (c *cache) add(hash uint64, customer []byte, place uint16) {
	e := &entry{hash: hash, customer: string(customer), place: place}
	set := c.set(hash)
	at := &set[hash>>16%ways]
	for i := range set { // a free place, else one that was not used lately, else any
		place := &set[(hash>>16+uint64(i))%ways] //nolint:gosec // 0 to 3
		if old := place.Load(); old == nil || !old.used.Swap(false) {
			at = place
			break
		}
	}
	old := at.Load()
	grown := e.size()
	if old != nil {
		grown -= old.size()
	}
	if c.bytes.Add(grown) > c.limit && !c.makeRoom() || !at.CompareAndSwap(old, e) {
		c.bytes.Add(-grown)
	}
}

// makeRoom drops entries that were not used lately until the rest fits. Each
// call looks at a few places only.
func (c *cache) makeRoom() bool {
	for range 64 {
		at := &c.entries[c.hand.Add(1)&uint64(len(c.entries)-1)]
		if e := at.Load(); e != nil && !e.used.Swap(false) && at.CompareAndSwap(e, nil) {
			if c.bytes.Add(-e.size()) <= c.limit {
				return true
			}
		}
	}
	return false
}

// without returns a copy that lacks the entries that drop names, and how many
// they are.
func (c *cache) without(o CacheOptions, drop func(*entry) bool) (kept *cache, dropped int) {
	kept = newCache(o)
	for i := range c.entries {
		switch e := c.entries[i].Load(); {
		case e == nil:
		case drop(e):
			dropped++
		default:
			kept.entries[i].Store(e)
			kept.bytes.Add(e.size())
		}
	}
	return kept, dropped
}
