package partition

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Route is where the records of a customer go.
type Route struct {
	// Legacy and New are the indices that must have the record; "": that side is
	// not required. At least one is.
	Legacy, New string
	// Shadow says that a delete on the new side is a document that keeps its
	// version (write mode W1).
	Shadow bool
}

// Router is a table as records and readers see it. It never changes, so that
// what is routed by it is routed under one epoch, and it is safe for concurrent
// use.
//
// The table is looked up directly: a hash and two or three memory accesses. Only
// a table with many patterns among its overrides needs a cache, which is bounded
// and which routers hand on: see Next.
type Router struct {
	rules *rules
	flood *flood
	cache atomic.Pointer[cache] // nil: not needed, or bypassed
}

// NewRouter returns the router of a valid table, which must not be changed any
// more.
func NewRouter(t *Table, o CacheOptions) *Router {
	r := &Router{rules: compile(t, nil), flood: &flood{options: o.withDefaults()}}
	r.remember()
	return r
}

// Next returns the router of the table that comes after r's, not necessarily
// at once. It knows the customers that r remembers, but for those that a
// changed override matches; too many of these within a short time, and nothing
// is remembered for a while. r goes on to be right for its own table.
func (r *Router) Next(t *Table) *Router {
	next := &Router{rules: compile(t, r.rules), flood: r.flood}
	old := r.cache.Load()
	if old == nil || !next.rules.cached || !next.rules.follows {
		next.remember()
		return next
	}
	changed := changedGlobs(r.rules.globs, next.rules.globs)
	kept, purged := old.without(r.flood.options, func(e *entry) bool {
		for i := range changed {
			if changed[i].matches([]byte(e.customer)) && !mutantStale {
				return true
			}
		}
		return false
	})
	if !r.flood.note(purged) {
		next.cache.Store(kept)
	}
	return next
}

// remember returns the cache, which it begins where there is none; nil while
// it is bypassed, and where none is needed.
func (r *Router) remember() *cache {
	c := r.cache.Load()
	if c == nil && r.rules.cached && !r.flood.bypassed.Load() {
		r.cache.CompareAndSwap(nil, newCache(r.flood.options))
		c = r.cache.Load()
	}
	return c
}

// Table returns the table, which must not be changed.
func (r *Router) Table() *Table { return r.rules.table }

// Document returns the table's JSON, as Parse reads it. It must not be changed.
func (r *Router) Document() []byte { return r.rules.document() }

// Epoch returns the table's epoch.
func (r *Router) Epoch() int64 { return r.rules.table.Epoch }

// Legacy returns the legacy index where the write mode still writes to it,
// else "".
func (r *Router) Legacy() string { return r.rules.legacy.Legacy }

// Route returns where the records of a customer must go.
func (r *Router) Route(customer []byte) Route {
	if !r.rules.writesNew {
		return r.rules.legacy
	}
	return r.rules.routes[r.place(customer)]
}

// Read returns the index or alias that a customer's documents are read from:
// complete and current while the table is the one in force.
func (r *Router) Read(customer []byte) string {
	if !r.rules.readsNew(customer) {
		return r.rules.readLegacy
	}
	return r.rules.readNames[r.place(customer)]
}

// place finds a customer's partition. There must be slots.
func (r *Router) place(customer []byte) uint16 {
	if !r.rules.cached {
		return r.rules.place(customer)
	}
	if place, ok := r.rules.exact[string(customer)]; ok {
		return place
	}
	hash := xxhash.Sum64(customer)
	c := r.cache.Load()
	if c == nil {
		c = r.remember()
	}
	if c == nil {
		return r.rules.slotOr(r.rules.glob(customer), hash)
	}
	place, ok := c.find(hash, customer)
	if !ok {
		place = r.rules.glob(customer)
		c.add(hash, customer, place)
	}
	return r.rules.slotOr(place, hash)
}

// rules are a table made ready.
type rules struct {
	table     *Table
	document  func() []byte // the table's text, made once
	writesNew bool
	cached    bool // there are so many globs that a cache is faster
	follows   bool // places are those of the rules before

	names     []string // of partitions; places are indices into it
	routes    []Route  // by place
	readNames []string // by place
	slots     []uint16 // place by slot; empty: the stream has no partitions
	exact     map[string]uint16
	globs     []glob // the first that matches wins

	legacy      Route // in W0, and of records without a customer
	readLegacy  string
	allow, deny matcher
	percent     uint64
	seed        uint64
}

// glob is an override of several customers.
type glob struct {
	pattern
	place uint16
}

// compile makes a table ready. Where before are the rules that it follows,
// partitions keep their places, so that a place means the same to both.
func compile(t *Table, before *rules) *rules {
	r := &rules{table: t, writesNew: t.Write.New()}
	r.document = sync.OnceValue(func() []byte {
		text, _ := json.Marshal(t) // a valid table always has one
		return text
	})
	if t.Legacy != nil {
		r.readLegacy = t.Legacy.ReadName()
		if t.Write.Legacy() {
			r.legacy.Legacy = t.Legacy.Index
		}
	}
	places := make(map[string]uint16, len(t.Partitions))
	if before != nil && len(before.names)+len(t.Partitions) < int(noPlace) {
		r.follows = true
		r.names = slices.Clone(before.names)
		for i, name := range r.names {
			places[name] = uint16(i) //nolint:gosec // below noPlace
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Partitions)) {
		if _, known := places[name]; !known {
			places[name] = uint16(len(r.names)) //nolint:gosec // Validate bounds their number
			r.names = append(r.names, name)
		}
	}
	for _, name := range r.names {
		route, p := r.legacy, t.Partitions[name]
		if r.writesNew {
			route.New = p.Index
			route.Shadow = t.Write == W1
		}
		r.routes = append(r.routes, route)
		r.readNames = append(r.readNames, p.ReadName())
	}
	r.slots = make([]uint16, len(t.SlotMap))
	for slot, name := range t.SlotMap {
		r.slots[slot] = places[name]
	}
	r.exact = map[string]uint16{}
	for key, name := range t.Overrides {
		p, _ := parsePattern(key) // Validate has parsed it
		if !p.stars {
			r.exact[string(p.prefix)] = places[name]
		} else {
			r.globs = append(r.globs, glob{p, places[name]})
		}
	}
	slices.SortFunc(r.globs, func(a, b glob) int { return a.compare(&b.pattern) })
	r.cached = r.writesNew && len(r.globs) >= cachedGlobs
	r.allow, r.deny = newMatcher(t.Read.Allow), newMatcher(t.Read.Deny)
	r.percent, r.seed = uint64(t.Read.Percent), saltSeed(t.Read.Salt) //nolint:gosec // 0 to 10000
	return r
}

// cachedGlobs is how many globs must be tried before a look into the cache is
// cheaper: see BenchmarkRoute.
const cachedGlobs = 16

// compare sorts patterns by precedence.
func (p *pattern) compare(o *pattern) int {
	return cmp.Or(cmp.Compare(o.literal, p.literal), cmp.Compare(p.text, o.text))
}

// place finds a customer's partition, by the table alone. There must be slots.
func (r *rules) place(customer []byte) uint16 {
	if len(r.exact) > 0 {
		if place, ok := r.exact[string(customer)]; ok {
			return place
		}
	}
	if len(r.globs) == 0 {
		return r.slots[Slot(customer, len(r.slots))]
	}
	return r.slotOr(r.glob(customer), xxhash.Sum64(customer))
}

// glob returns the place that the globs give a customer, or noPlace.
func (r *rules) glob(customer []byte) uint16 {
	for i := range r.globs {
		if r.globs[i].matches(customer) {
			return r.globs[i].place
		}
	}
	return noPlace
}

// slotOr returns the place of the hash's slot where place is noPlace.
func (r *rules) slotOr(place uint16, hash uint64) uint16 {
	if place != noPlace {
		return place
	}
	return r.slots[hash%uint64(len(r.slots))]
}

// changedGlobs returns the globs that are in one of two lists only, or lead
// elsewhere. Both are sorted.
func changedGlobs(a, b []glob) []pattern {
	var changed []pattern
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].compare(&b[0].pattern) < 0:
			changed, a = append(changed, a[0].pattern), a[1:]
		case len(a) == 0 || a[0].compare(&b[0].pattern) > 0:
			changed, b = append(changed, b[0].pattern), b[1:]
		default:
			if a[0].place != b[0].place {
				changed = append(changed, a[0].pattern)
			}
			a, b = a[1:], b[1:]
		}
	}
	return changed
}

// readsNew says whether a customer is read from its partition.
func (r *rules) readsNew(customer []byte) bool {
	switch {
	case r.table.Write == W3:
		return true
	case r.table.Write < W2 || r.deny.matches(customer):
		return false
	case r.allow.matches(customer):
		return true
	default:
		return r.percent > 0 && below(customer, r.seed, r.percent)
	}
}

// saltSeed is the seed of the hash that percents are decided by.
func saltSeed(salt string) uint64 { return xxhash.Sum64String(salt) }

// below says whether a customer is among the first of a percent.
func below(customer []byte, seed, percent uint64) bool {
	return rank(customer, seed) < percent
}

func rank(customer []byte, seed uint64) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(customer) // it never fails
	return d.Sum64() % Percent
}

// Rank is a customer's place in the order in which a growing Read.Percent with a
// salt reaches all: it is among the first that are above it.
func Rank(customer, salt string) int { return int(rank([]byte(customer), saltSeed(salt))) } //nolint:gosec // below Percent

// matcher holds customers and patterns.
type matcher struct {
	exact map[string]struct{}
	globs []pattern
}

func newMatcher(keys []string) matcher {
	m := matcher{exact: map[string]struct{}{}}
	for _, key := range keys {
		if p, _ := parsePattern(key); !p.stars {
			m.exact[string(p.prefix)] = struct{}{}
		} else {
			m.globs = append(m.globs, p)
		}
	}
	return m
}

func (m *matcher) matches(customer []byte) bool {
	if len(m.exact) > 0 {
		if _, ok := m.exact[string(customer)]; ok {
			return true
		}
	}
	for i := range m.globs {
		if m.globs[i].matches(customer) {
			return true
		}
	}
	return false
}

// Why says in words why Read answers as it does.
func (r *Router) Why(customer []byte) string {
	share := fmt.Sprintf("%.2f %% are read from the new side", float64(r.rules.percent)/100)
	switch {
	case r.rules.table.Write < W2:
		return fmt.Sprintf("write mode %s: all are read from the legacy index", r.rules.table.Write)
	case r.rules.table.Write == W3:
		return "write mode W3: all are read from their partitions"
	case r.rules.deny.matches(customer):
		return "named by read.deny"
	case r.rules.allow.matches(customer):
		return "named by read.allow"
	case r.rules.readsNew(customer):
		return share + ", and it is among them"
	}
	return share + ", and it is not among them"
}
