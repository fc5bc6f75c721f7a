package partition

import (
	"testing"

	"pgregory.net/rapid"
)

// Place and Router agree about every customer, and the rule that Place names is
// the one that decides.
func TestPlaceIsWhereRecordsGo(t *testing.T) {
	if _, ok := New("events", "events").Place("a"); ok {
		t.Error("a stream without partitions has a place for a customer")
	}
	rapid.Check(t, func(t *rapid.T) {
		table := partitioned(4, 0, W3)
		keys := []string{"acme", "ac*", "*e", `a\*`, "a*e", "*"}
		for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom(keys), rapid.ID).Draw(t, "overrides") {
			table.Overrides[key] = rapid.SampledFrom([]string{"p000", "p001", "p002", "p003"}).Draw(t, key)
		}
		customer := rapid.SampledFrom([]string{"acme", "acne", "a*", "able", "b", "é"}).Draw(t, "customer")
		p, ok := table.Place(customer)
		if index := NewRouter(table, CacheOptions{}).Route([]byte(customer)).New; !ok || table.Partitions[p.Partition].Index != index {
			t.Fatalf("%+v, and records go to %s", p, index)
		}
		if by := table.SlotMap[p.Slot]; p.Override == "" && by != p.Partition {
			t.Fatalf("%+v, and slot %d is of %s", p, p.Slot, by)
		}
		if p.Override != "" {
			if table.Overrides[p.Override] != p.Partition {
				t.Fatalf("%+v, and the override leads to %s", p, table.Overrides[p.Override])
			}
			delete(table.Overrides, p.Override)
			if again, _ := table.Place(customer); again.Override == p.Override {
				t.Fatalf("%+v without its override", again)
			}
		}
	})
}
