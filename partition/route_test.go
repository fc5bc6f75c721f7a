package partition

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

func TestRoute(t *testing.T) {
	table := mustParse(t, example)
	for _, test := range []struct {
		write Mode
		want  Route
	}{
		{W0, Route{Legacy: "events"}},
		{W1, Route{Legacy: "events", New: "events-w-cust-42-j7", Shadow: true}},
		{W2, Route{Legacy: "events", New: "events-w-cust-42-j7"}},
		{W3, Route{New: "events-w-cust-42-j7"}},
	} {
		table.Write = test.write
		r := NewRouter(table, CacheOptions{})
		if got := r.Route([]byte("cust-42")); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.write, got, test.want)
		}
		if got := r.Legacy(); got != test.want.Legacy {
			t.Errorf("%s: Legacy() = %q, want %q", test.write, got, test.want.Legacy)
		}
	}
}

// The customer itself comes before any pattern, the longer pattern before the
// shorter one, and the slot last.
func TestOverridesByPrecedence(t *testing.T) {
	table := partitioned(4, 0, W3)
	for i := range table.SlotMap {
		table.SlotMap[i] = "p000"
	}
	table.Overrides = map[string]string{"acme-1": "p001", "acme-*": "p002", "*1": "p003", `a\*`: "p003"}
	r := NewRouter(table, CacheOptions{})
	for customer, want := range map[string]string{
		"acme-1": "p001", "acme-11": "p002", "b1": "p003", "acme": "p000", "a*": "p003", "ab": "p000",
	} {
		if got := r.Route([]byte(customer)).New; got != "events-"+want {
			t.Errorf("%s goes to %s, want %s", customer, got, want)
		}
	}
}

// Other programs follow the table by these two hashes: they never change.
// (XXH64 of nothing is ef46db3751d8e999, whose last 12 bits are 2457.)
func TestHashesAreForEver(t *testing.T) {
	for customer, want := range map[string]struct {
		slot  int
		below uint64
	}{"": {2457, 9374}, "acme": {3084, 5280}, "customer-0000001": {2526, 4843}, strings.Repeat("x", 100): {148, 3048}} {
		slot := Slot([]byte(customer), Slots)
		var first uint64
		for !below([]byte(customer), saltSeed("j7"), first+1) {
			first++
		}
		if slot != want.slot || first != want.below {
			t.Errorf("%q: slot %d and percent %d, want %d and %d", customer, slot, first, want.slot, want.below)
		}
	}
}

func TestRead(t *testing.T) {
	table := partitioned(1, 0, W2)
	table.Read = Read{Allow: []string{"yes", "both", "in-*"}, Deny: []string{"both", "in-2", "not-*"}}
	r := NewRouter(table, CacheOptions{})
	for customer, want := range map[string]string{
		"yes": "events-p000", "both": "events", "in-1": "events-p000", "in-2": "events", "not-1": "events", "other": "events",
	} {
		if got := r.Read([]byte(customer)); got != want {
			t.Errorf("%s is read from %s, want %s", customer, got, want)
		}
	}
	table = partitioned(1, 0, W3)
	table.Read.Deny = []string{"*"}
	if got := NewRouter(table, CacheOptions{}).Read([]byte("a")); got != "events-p000" {
		t.Errorf("in W3 the legacy index is not current, and a is read from %s", got)
	}
}

// Percent raised: customers are only added. Lowered: exactly those go.
func TestS32_PercentOnlyAddsCustomers(t *testing.T) {
	names := customers(5_000)
	read := func(percent int) map[string]bool {
		table := partitioned(3, 0, W2)
		table.Read = Read{Percent: percent, Salt: "j7"}
		r, isNew := NewRouter(table, CacheOptions{}), map[string]bool{}
		for _, c := range names {
			if r.Read(c) != "events" {
				isNew[string(c)] = true
			}
		}
		return isNew
	}
	last := map[string]bool{}
	for _, percent := range []int{0, 1, 100, 1000, 2500, 9999, Percent} {
		now := read(percent)
		for c := range last {
			if !now[c] {
				t.Fatalf("raised to %d basis points, and %s went back", percent, c)
			}
		}
		if got, want := len(now), len(names)*percent/Percent; got < want*9/10-20 || got > want*11/10+20 {
			t.Errorf("%d basis points are %d customers of %d", percent, got, len(names))
		}
		last = now
	}
	if !maps.Equal(read(1000), read(1000)) {
		t.Error("who is among the percent is not stable")
	}
}

// A customer that is cut over while reads go on is right for readers of both
// tables: what either reads, writers of both write. This holds for every legal
// step, not only for read flags.
func TestS30_NeighbouringTablesReadWhatBothWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := tables(t)
		held := rapid.SliceOfDistinct(smallCustomers, rapid.ID[string]).Draw(t, "customers with documents")
		next, err := old.Change(Change{Documents: slices.Values(held), Edit: func(table *Table) error {
			edit(t, table)
			return nil
		}})
		if err != nil {
			return // refused
		}
		a, b := NewRouter(old, CacheOptions{}), NewRouter(next, CacheOptions{})
		for _, customer := range held {
			c := []byte(customer)
			for _, read := range []string{a.Read(c), b.Read(c)} {
				for _, route := range []Route{a.Route(c), b.Route(c)} {
					if read != route.Legacy && read != route.New {
						t.Fatalf("%s is read from %s and written to %+v", customer, read, route)
					}
				}
			}
		}
	})
}

// edit changes something of a table, not always to good.
func edit(t *rapid.T, table *Table) {
	other := tables(t)
	switch rapid.IntRange(0, 6).Draw(t, "edit") {
	case 0:
		table.Write = other.Write
	case 1:
		table.Read = other.Read
	case 2:
		table.Overrides = other.Overrides
	case 3:
		table.SlotMap = nil
		for range table.Slots {
			table.SlotMap = append(table.SlotMap, other.SlotMap[0])
		}
	case 4:
		table.Detach()
	case 5:
		table.Legacy.Index = "events-2"
	case 6:
		table.Partitions["p0"] = Partition{Index: "events-p0b", State: Active}
	}
}

// fillers are globs that match nobody, so many that there is a cache.
func fillers(table *Table) *Table {
	for i := range cachedGlobs {
		table.Overrides[fmt.Sprintf("filler-%d-*", i)] = "p0"
	}
	return table
}

// Whatever tables follow each other, the cache says what the table says.
func TestCacheNeverChangesAnAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r *Router
		for range rapid.IntRange(1, 6).Draw(t, "tables") {
			table := tables(t)
			table.Write = W3
			fillers(table)
			if r == nil {
				r = NewRouter(table, CacheOptions{Entries: 8})
			} else {
				r = r.Next(table)
			}
			for _, customer := range rapid.SliceOf(smallCustomers).Draw(t, "customers") {
				want := compile(table, nil)
				place := want.place([]byte(customer))
				if got := r.Route([]byte(customer)); got != want.routes[place] {
					t.Fatalf("%s goes to %+v, and by the table to %+v", customer, got, want.routes[place])
				}
			}
		}
	})
}

func hashOf(customer string) uint64 { return xxhash.Sum64String(customer) }

// remembers says whether a router answers for a customer from memory.
func remembers(r *Router, customer string) bool {
	c := r.cache.Load()
	if c == nil {
		return false
	}
	_, ok := c.find(hashOf(customer), []byte(customer))
	return ok
}

// A change purges the customers that it touches and no others: slots that move
// need no purge at all, since a glob's answer does not hang on them.
func TestPurgeOnlyWhatAChangeTouches(t *testing.T) {
	table := fillers(partitioned(2, 0, W3))
	table.Partitions["p0"] = Partition{Index: "events-p0", State: Active}
	table.Overrides["acme-*"] = "p001"
	r := NewRouter(table, CacheOptions{})
	for _, c := range []string{"acme-1", "other", "wide-1"} {
		r.Route([]byte(c))
	}
	steps := []struct {
		edit func(*Table)
		keep []string
		drop []string
	}{
		{func(t *Table) { t.Overrides["acme-*"] = "p000" }, []string{"other", "wide-1"}, []string{"acme-1"}},
		{func(t *Table) { t.Overrides["wide-*"] = "p000" }, []string{"acme-1", "other"}, []string{"wide-1"}},
		{func(t *Table) { delete(t.Overrides, "wide-*") }, []string{"acme-1", "other"}, []string{"wide-1"}},
		{func(t *Table) {
			for i := range t.SlotMap {
				t.SlotMap[i] = "p000"
			}
		}, []string{"acme-1", "other", "wide-1"}, nil},
		{func(t *Table) { t.Overrides["other"] = "p001" }, []string{"acme-1", "other", "wide-1"}, nil},
	}
	for i, step := range steps {
		table = table.Clone()
		step.edit(table)
		r = r.Next(table)
		for _, c := range step.keep {
			if !remembers(r, c) {
				t.Errorf("step %d forgot %s", i, c)
			}
		}
		for _, c := range step.drop {
			if remembers(r, c) {
				t.Errorf("step %d still remembers %s", i, c)
			}
		}
		for _, c := range []string{"acme-1", "other", "wide-1"} {
			want := compile(table, nil)
			if got := r.Route([]byte(c)); got != want.routes[want.place([]byte(c))] {
				t.Errorf("step %d: %s goes to %+v", i, c, got)
			}
		}
	}
}

// gauge is a Gauge that can be read.
type gauge struct{ n atomic.Int64 }

func (g *gauge) Inc() { g.n.Add(1) }
func (g *gauge) Dec() { g.n.Add(-1) }

// A flood of invalidations drops the cache and bypasses it until the back-off
// is over; each instance counts for itself in one gauge.
func TestFloodOfInvalidationsBypassesTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		options := CacheOptions{Entries: 64, Flood: 10, Window: time.Minute, Backoff: time.Hour, InBackoff: &g}
		table := fillers(partitioned(2, 0, W3))
		table.Partitions["p0"] = Partition{Index: "events-p0", State: Active}
		start := func() *Router { return NewRouter(table, options) }
		calm, hit := start(), start()
		change := func(r *Router, customers int) *Router {
			for i := range customers {
				r.Route(fmt.Appendf(nil, "acme-%d", i))
			}
			next := r.Table().Clone()
			next.Overrides["acme-*"] = map[string]string{"p000": "p001", "p001": "p000", "": "p000"}[next.Overrides["acme-*"]]
			return r.Next(next)
		}
		calm = change(calm, 10)
		hit = change(hit, 10)
		if g.n.Load() != 0 || calm.cache.Load() == nil {
			t.Fatalf("ten invalidations are a flood already")
		}
		hit = change(hit, 1)
		if g.n.Load() != 1 || hit.cache.Load() != nil {
			t.Fatalf("eleven invalidations within a window: gauge %d, cache %v", g.n.Load(), hit.cache.Load())
		}
		hit = change(hit, 20) // in back-off nothing is counted twice
		hit.Route([]byte("acme-1"))
		if g.n.Load() != 1 || hit.cache.Load() != nil {
			t.Fatalf("in back-off: gauge %d, cache %v", g.n.Load(), hit.cache.Load())
		}
		second := change(change(start(), 10), 10)
		if g.n.Load() != 2 || second.cache.Load() != nil {
			t.Fatalf("a second instance: gauge %d", g.n.Load())
		}
		wait(time.Hour + time.Second)
		hit.Route([]byte("acme-1"))
		if g.n.Load() != 0 || !remembers(hit, "acme-1") {
			t.Fatalf("after the back-off: gauge %d, remembers %v", g.n.Load(), remembers(hit, "acme-1"))
		}
		// Slow changes are no flood.
		for range 5 {
			wait(time.Minute + time.Second)
			if calm = change(calm, 10); calm.cache.Load() == nil {
				t.Fatal("ten invalidations a minute are a flood")
			}
		}
	})
}

// wait lets virtual time pass.
func wait(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a synctest bubble: the clock is virtual
	synctest.Wait()
}

// Entries and bytes are bounded, and the bytes are counted exactly.
func TestCacheIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := CacheOptions{Entries: rapid.IntRange(1, 64).Draw(t, "entries"), Bytes: rapid.Int64Range(1, 4096).Draw(t, "bytes")}.withDefaults()
		c := newCache(o)
		for _, customer := range rapid.SliceOf(rapid.StringN(1, 64, 256)).Draw(t, "customers") {
			hash := hashOf(customer)
			if _, ok := c.find(hash, []byte(customer)); !ok {
				c.add(hash, []byte(customer), 7)
			}
			var sum int64
			for i := range c.entries {
				if e := c.entries[i].Load(); e != nil {
					sum += e.size()
				}
			}
			if sum != c.bytes.Load() || sum > o.Bytes {
				t.Fatalf("%d bytes are held, %d counted, %d allowed", sum, c.bytes.Load(), o.Bytes)
			}
		}
	})
}

// A full cache goes on to take customers in.
func TestFullCacheMakesRoom(t *testing.T) {
	c := newCache(CacheOptions{Entries: 1024, Bytes: 100 * (entryBytes + 16)}.withDefaults())
	for _, customer := range customers(2000) {
		c.add(hashOf(string(customer)), customer, 1)
	}
	last := 0
	for _, customer := range customers(2000)[1900:] {
		if _, ok := c.find(hashOf(string(customer)), customer); ok {
			last++
		}
	}
	if last < 50 {
		t.Errorf("of the last 100 customers %d are remembered", last)
	}
}

// Lookups by old and new routers at the same time stay right for their own
// tables: an answer by the old rules never gets among the new ones.
func TestLookupsDuringChanges(t *testing.T) {
	table := fillers(partitioned(2, 0, W3))
	table.Partitions["p0"] = Partition{Index: "events-p0", State: Active}
	table.Overrides["acme-*"] = "p000"
	var current atomic.Pointer[Router]
	current.Store(NewRouter(table, CacheOptions{Entries: 16, Flood: 1 << 30}))
	var done atomic.Bool
	var lookups sync.WaitGroup
	names := make([][]byte, 32)
	for i := range names {
		names[i] = fmt.Appendf(nil, "acme-%d", i)
	}
	for range 2 {
		lookups.Go(func() {
			for i := 0; !done.Load(); i++ {
				r := current.Load()
				want := "events-" + r.Table().Overrides["acme-*"]
				if got := r.Route(names[i%len(names)]).New; got != want {
					t.Errorf("epoch %d: %s, want %s", r.Epoch(), got, want)
					return
				}
			}
		})
	}
	for i := range 100 {
		table = table.Clone()
		table.Epoch++
		table.Overrides["acme-*"] = fmt.Sprintf("p00%d", i%2)
		current.Store(current.Load().Next(table))
	}
	done.Store(true)
	lookups.Wait()
}

// The hot path makes no garbage.
func TestRoutingAllocatesNothing(t *testing.T) {
	for _, globs := range []int{0, 1, 100} {
		table := partitioned(12, globs, W2)
		table.Overrides["exact"] = "p001"
		table.Read = Read{Allow: []string{"exact", "a-*"}, Deny: []string{"b-*"}, Percent: 5000, Salt: "j1"}
		r := NewRouter(table, CacheOptions{})
		names := append(customers(50), []byte("exact"))
		for _, c := range names {
			r.Route(c)
		}
		i := 0
		if n := testing.AllocsPerRun(200, func() {
			r.Route(names[i%len(names)])
			r.Read(names[i%len(names)])
			i++
		}); n != 0 {
			t.Errorf("with %d globs: %v allocations", globs, n)
		}
	}
}

// Every customer belongs to one partition, whatever its bytes.
func FuzzRoute(f *testing.F) {
	f.Add([]byte("acme"))
	f.Add([]byte("\xff\x00*"))
	table := partitioned(3, 20, W3)
	table.Overrides["*"+"a"] = "p000"
	r := NewRouter(table, CacheOptions{Entries: 4})
	f.Fuzz(func(t *testing.T, customer []byte) {
		first, again := r.Route(customer), r.Route(customer)
		direct := r.rules.routes[r.rules.place(customer)]
		if first != again || first != direct || first.New == "" || r.Read(customer) != first.New {
			t.Fatalf("%q: %+v, then %+v, directly %+v", customer, first, again, direct)
		}
	})
}

func TestWhy(t *testing.T) {
	table := partitioned(2, 0, W2)
	table.Read = Read{Allow: []string{"a", "ac"}, Deny: []string{"a*"}, Percent: 5000, Salt: "j7"}
	r := NewRouter(table, CacheOptions{})
	for customer, want := range map[string]string{
		"a": "named by read.deny",
		"d": "50.00 % are read from the new side, and it is among them",
		"f": "50.00 % are read from the new side, and it is not among them",
	} {
		if got := r.Why([]byte(customer)); got != want {
			t.Errorf("%s: %s, want %s", customer, got, want)
		}
	}
	table.Read.Deny = nil
	if got := NewRouter(table, CacheOptions{}).Why([]byte("a")); got != "named by read.allow" {
		t.Error(got)
	}
	for mode, want := range map[Mode]string{W0: "all are read from the legacy index", W1: "all are read from the legacy index", W3: "all are read from their partitions"} {
		if got := NewRouter(partitioned(2, 0, mode), CacheOptions{}).Why([]byte("a")); !strings.Contains(got, want) {
			t.Errorf("%s: %s", mode, got)
		}
	}
}
