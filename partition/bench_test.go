package partition

import (
	"fmt"
	"math/rand"
	"testing"
)

// customers returns n different customers, as people name them.
func customers(n int) [][]byte {
	names := make([][]byte, n)
	for i := range names {
		names[i] = fmt.Appendf(nil, "customer-%07d", i)
	}
	return names
}

// partitioned returns a table in mode write with so many partitions and globs.
func partitioned(partitions, globs int, write Mode) *Table {
	t := New("events", "events")
	t.Write, t.Job = write, "j1"
	t.Partitions, t.Overrides = map[string]Partition{}, map[string]string{}
	names := make([]string, partitions)
	for i := range names {
		names[i] = fmt.Sprintf("p%03d", i)
		t.Partitions[names[i]] = Partition{Index: "events-" + names[i], State: Active}
	}
	for i := range Slots {
		t.SlotMap = append(t.SlotMap, names[i%partitions])
	}
	for i := range globs {
		t.Overrides[fmt.Sprintf("group-%d-*", i)] = fmt.Sprintf("p%03d", i%partitions)
	}
	return t
}

var sink Route

// BenchmarkRoute compares the direct way with the cache's, for customers that
// no glob matches: the dearest.
func BenchmarkRoute(b *testing.B) {
	names := customers(1000)
	for _, globs := range []int{0, 1, 2, 4, 8, 16, 32, 64, 256, 1024} {
		table := partitioned(12, globs, W3)
		for _, way := range []string{"direct", "cache"} {
			r := NewRouter(table, CacheOptions{})
			r.rules.cached = way == "cache"
			r.remember()
			b.Run(fmt.Sprintf("globs=%d/%s", globs, way), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					sink = r.Route(names[i%len(names)])
				}
			})
		}
	}
}

// BenchmarkRouteZipf routes records of a million customers, most of them of a
// few.
func BenchmarkRouteZipf(b *testing.B) {
	names := customers(1_000_000)
	random := rand.New(rand.NewSource(1))
	zipf := rand.NewZipf(random, 1.1, 1, uint64(len(names)-1))
	drawn := make([][]byte, 1<<20)
	for i := range drawn {
		drawn[i] = names[zipf.Uint64()]
	}
	for _, globs := range []int{0, 16, 256} {
		table := partitioned(12, globs, W3)
		for _, way := range []string{"direct", "cache"} {
			r := NewRouter(table, CacheOptions{})
			r.rules.cached = way == "cache"
			r.remember()
			b.Run(fmt.Sprintf("globs=%d/%s", globs, way), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					sink = r.Route(drawn[i%len(drawn)])
				}
			})
		}
	}
}

// BenchmarkLookup is what a reader pays before each search.
func BenchmarkLookup(b *testing.B) {
	m := newMemory()
	m.set("events", example)
	w := NewWatcher(NewStore(m), "events", WatcherOptions{})
	if _, err := w.Refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	names := customers(1000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := w.Lookup(names[i%len(names)]); err != nil {
			b.Fatal(err)
		}
	}
}
