package partition

import (
	"cmp"
	"maps"
	"slices"

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
// what was routed under an epoch was routed by all of that epoch, and it is
// safe for concurrent use.
type Router struct{ *rules }

// NewRouter returns the router of a valid table, which must not be changed any
// more.
func NewRouter(t *Table) *Router { return &Router{compile(t)} }

// Table returns the table, which must not be changed.
func (r *Router) Table() *Table { return r.table }

// Epoch returns the table's epoch.
func (r *Router) Epoch() int64 { return r.table.Epoch }

// Legacy returns the legacy index where the write mode still writes to it,
// else "".
func (r *Router) Legacy() string { return r.legacy.Legacy }

// Route returns where the records of a customer must go.
func (r *Router) Route(customer []byte) Route {
	if !r.writesNew {
		return r.legacy
	}
	return r.routes[r.place(customer)]
}

// Read returns the index or alias that a customer's documents are read from:
// complete and current while the table is the one in force.
func (r *Router) Read(customer []byte) string {
	if !r.readsNew(customer) {
		return r.readLegacy
	}
	return r.readNames[r.place(customer)]
}

// rules are a table made ready.
type rules struct {
	table     *Table
	writesNew bool

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

func compile(t *Table) *rules {
	r := &rules{table: t, writesNew: t.Write.New(), names: slices.Sorted(maps.Keys(t.Partitions))}
	if t.Legacy != nil {
		r.readLegacy = t.Legacy.ReadName()
		if t.Write.Legacy() {
			r.legacy.Legacy = t.Legacy.Index
		}
	}
	places := make(map[string]uint16, len(r.names))
	for i, name := range r.names {
		places[name] = uint16(i) //nolint:gosec // Validate bounds their number
		route := r.legacy
		if r.writesNew {
			route.New = t.Partitions[name].Index
			route.Shadow = t.Write == W1
		}
		r.routes = append(r.routes, route)
		r.readNames = append(r.readNames, t.Partitions[name].ReadName())
	}
	r.slots = make([]uint16, len(t.SlotMap))
	for slot, name := range t.SlotMap {
		r.slots[slot] = places[name]
	}
	r.exact = map[string]uint16{}
	for key, name := range t.Overrides {
		p, _ := parsePattern(key) // Validate has parsed it
		if p.exact() {
			r.exact[string(p.parts[0])] = places[name]
		} else {
			r.globs = append(r.globs, glob{p, places[name]})
		}
	}
	slices.SortFunc(r.globs, func(a, b glob) int { return a.compare(b.pattern) })
	r.allow, r.deny = newMatcher(t.Read.Allow), newMatcher(t.Read.Deny)
	r.percent, r.seed = uint64(t.Read.Percent), xxhash.Sum64String(t.Read.Salt) //nolint:gosec // 0 to 10000
	return r
}

// compare sorts patterns by precedence.
func (p pattern) compare(o pattern) int {
	return cmp.Or(cmp.Compare(o.literal, p.literal), cmp.Compare(p.text, o.text))
}

// place finds a customer's partition, by the table alone. There must be slots.
func (r *rules) place(customer []byte) uint16 {
	if len(r.exact) > 0 {
		if place, ok := r.exact[string(customer)]; ok {
			return place
		}
	}
	for i := range r.globs {
		if r.globs[i].matches(customer) {
			return r.globs[i].place
		}
	}
	return r.slots[Slot(customer, len(r.slots))]
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

// below says whether a customer is among the first of a percent.
func below(customer []byte, seed, percent uint64) bool {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(customer) // it never fails
	return d.Sum64()%Percent < percent
}

// matcher holds customers and patterns.
type matcher struct {
	exact map[string]struct{}
	globs []pattern
}

func newMatcher(keys []string) matcher {
	m := matcher{exact: map[string]struct{}{}}
	for _, key := range keys {
		if p, _ := parsePattern(key); p.exact() {
			m.exact[string(p.parts[0])] = struct{}{}
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
