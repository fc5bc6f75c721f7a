package partition

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestChange(t *testing.T) {
	table := mustParse(t, example)
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	next, err := table.Change(Change{By: "bob", At: at, Edit: func(table *Table) error {
		table.Read.Percent = 1000
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if next.Epoch != 18 || next.UpdatedBy != "bob" || !next.UpdatedAt.Equal(at) || next.Read.Percent != 1000 || table.Read.Percent != 500 || table.Epoch != 17 {
		t.Errorf("%+v after %+v", next, table)
	}
	oops := errors.New("oops")
	if _, err := table.Change(Change{Edit: func(*Table) error { return oops }}); !errors.Is(err, oops) {
		t.Errorf("the error of Edit became %v", err)
	}
}

// Each refusal says what, why, and which command or step would help.
func TestChangeRefuses(t *testing.T) {
	allNew := Read{Percent: Percent, Salt: "j7"}
	all := func(customers ...string) iter.Seq[string] { return slices.Values(customers) }
	for _, test := range []struct {
		name      string
		old       func(*Table)
		edit      func(*Table)
		documents iter.Seq[string]
		want      string
	}{
		{"hash", nil, func(t *Table) { t.Hash = "md5" }, nil, `hash: "md5" is not known`},
		{"slots", nil, func(t *Table) { t.Slots, t.SlotMap = 4, t.SlotMap[:4] }, nil, "slots: must be 8 and would be 4; it never changes in place"},
		{"generation", nil, func(t *Table) { t.Generation++ }, nil, "generation: must be 1 and would be 2"},
		{"name", nil, func(t *Table) { t.Name = "other" }, nil, "name: must be events and would be other"},
		{"epoch up", nil, func(t *Table) { t.Epoch++ }, nil, "epoch: must be 18 and would be 19"},
		{"epoch down", nil, func(t *Table) { t.Epoch-- }, nil, "epoch: must be 18 and would be 17"},
		{"W0 to W2", func(t *Table) { t.Write, t.Read = W0, Read{} }, func(t *Table) { t.Write = W2 }, nil, "write: W0 cannot become W2; go on to W1"},
		{"W1 to W3", func(t *Table) { t.Write, t.Read = W1, Read{} }, func(t *Table) { t.Write = W3 }, nil, "write: W1 cannot become W3; go on to W2"},
		{"W2 to W1", func(t *Table) { t.Read = Read{} }, func(t *Table) { t.Write = W1 }, nil, "write: W2 cannot become W1; go on to W3"},
		{"W2 to W3 too early", nil, func(t *Table) { t.Write = W3 }, nil, "write: not every customer is read from the new side; cut all over first (sluice migrate cutover --all)"},
		{"W2 to W3 in one step", nil, func(t *Table) { t.Write, t.Read = W3, allNew }, nil, "write: not every customer is read from the new side"},
		{"W2 to W3 with deny", func(t *Table) { t.Read = allNew; t.Read.Deny = []string{"a"} }, func(t *Table) { t.Write = W3 }, nil, "write: not every customer"},
		{"W2 to W0 with a reader", nil, func(t *Table) { t.Detach(); t.Read = Read{} }, nil, "write: customers are read from the new side; roll them back first (sluice migrate rollback --all)"},
		{"W3 to W0", func(t *Table) { t.Write = W3 }, func(t *Table) { t.Detach(); t.Read = Read{} }, nil, "write: the legacy index has missed records since W3; start a reverse job"},
		{"W2 to W0, partitions kept", func(t *Table) { t.Read = Read{} }, func(t *Table) { t.Write = W0 }, nil, "partitions.p000: its index was written to"},
		{"W2 to W0, partitions forgotten", func(t *Table) { t.Read = Read{} }, func(t *Table) { t.Detach(); t.Partitions = nil }, nil, "partitions.p000: its index was written to"},
		{
			"retired one comes back", func(t *Table) { t.Read = Read{}; t.Detach() },
			func(t *Table) { t.Partitions["p000"] = Partition{Index: "events-p000-j7", State: Active} }, nil, "partitions.p000.index: events-p000-j7 was that of the retired partition p000",
		},
		{
			"retired index comes back", func(t *Table) { t.Read = Read{}; t.Detach() },
			func(t *Table) {
				delete(t.Partitions, "p000")
				t.Partitions["n"] = Partition{Index: "events-p000-j7", State: Active}
			}, nil, "partitions.n.index: events-p000-j7 was that of the retired partition p000",
		},
		{"another index", nil, func(t *Table) { t.Partitions["p000"] = Partition{Index: "else", State: Active} }, nil, "partitions.p000.index: it is events-p000-j7, which may hold documents"},
		{"another legacy index", nil, func(t *Table) { t.Legacy.Index = "else" }, nil, "legacy: another index would not hold what this one does"},
		{"another salt", nil, func(t *Table) { t.Read.Salt = "j8" }, nil, "read.salt: another one moves the percent"},
		{"move, nobody knows", nil, func(t *Table) { t.SlotMap[0] = "p001" }, nil, "slot_map, overrides: customers would move, and it is not known which of them have documents"},
		{
			"move by slot", nil, func(t *Table) {
				for i := range t.SlotMap {
					t.SlotMap[i] = "p001"
				}
			}, all("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "cust-42", "acme-1"), "have documents and would move; move customers that have documents by a migration",
		},
		{"move by override", nil, func(t *Table) { t.Overrides["acme-1"] = "p000" }, all("acme-1", "acme-2"), "slot_map, overrides: acme-1 have documents and would move"},
		{"move by glob", nil, func(t *Table) { delete(t.Overrides, "acme-*") }, all("acme-1", "acme-2", "acme-3", "acme-4", "acme-5", "acme-6", "acme-7", "acme-8"), "have documents and would move"},
	} {
		old := mustParse(t, example)
		if test.old != nil {
			test.old(old)
		}
		if err := old.Validate(); err != nil {
			t.Fatalf("%s: the table before is not valid: %v", test.name, err)
		}
		_, err := old.Change(Change{Documents: test.documents, Edit: func(t *Table) error { test.edit(t); return nil }})
		var refused *RefusedError
		var invalid *InvalidError
		if !errors.As(err, &refused) && !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v\nwant %s", test.name, err, test.want)
		}
	}
}

// The way of a migration, and the ways out of it.
func TestChangesOfAMigration(t *testing.T) {
	table := New("events", "events")
	step := func(what string, edit func(*Table)) {
		t.Helper()
		next, err := table.Change(Change{Edit: func(t *Table) error { edit(t); return nil }})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		table = next
	}
	partitions := func(job string) func(*Table) {
		return func(t *Table) {
			t.Job, t.Read.Salt = job, job
			if t.Partitions == nil {
				t.Partitions = map[string]Partition{}
			}
			name := "p0-" + job
			t.Partitions[name] = Partition{Index: "events-" + name, State: Active}
			t.SlotMap = slices.Repeat([]string{name}, t.Slots)
		}
	}
	step("create", partitions("j1"))
	step("create again, elsewhere", func(t *Table) {
		t.Partitions["w"] = Partition{Index: "events-w-j1", State: Active}
		t.SlotMap[0] = "w"
	})
	step("dual-write", func(t *Table) { t.Write = W1 })
	step("detach", (*Table).Detach)
	step("create under new names", partitions("j2"))
	step("forget a retired one", func(t *Table) { delete(t.Partitions, "w") })
	step("use its name for another index", func(t *Table) { t.Partitions["p0-j1"] = Partition{Index: "events-p0-j1b", State: Active} })
	step("dual-write", func(t *Table) { t.Write = W1 })
	step("sweep", func(t *Table) { t.Write = W2 })
	step("cutover --customers", func(t *Table) { t.Read.Allow = []string{"a"} })
	step("rollback --all", func(t *Table) { t.Read.Allow = nil })
	step("detach", (*Table).Detach)
	step("create", partitions("j3"))
	step("dual-write", func(t *Table) { t.Write = W1 })
	step("sweep", func(t *Table) { t.Write = W2 })
	step("cutover --all", func(t *Table) { t.Read.Percent = Percent })
	step("complete", func(t *Table) { t.Write = W3; t.Job = "" })
	step("drop", func(t *Table) { t.Legacy = nil })
	step("a new customer of its own", func(t *Table) {
		t.Partitions["own"] = Partition{Index: "events-own", State: Active}
	})
	if table.Epoch != 20 {
		t.Errorf("epoch %d", table.Epoch)
	}
}

// A customer without documents may be given a place; nobody with documents
// moves, by whatever edit.
func TestNobodyWithDocumentsMoves(t *testing.T) {
	moved := 0
	rapid.Check(t, func(t *rapid.T) {
		old := tables(t)
		held := rapid.SliceOfDistinct(smallCustomers, rapid.ID[string]).Draw(t, "customers with documents")
		next, err := old.Change(Change{Documents: slices.Values(held), Edit: func(table *Table) error {
			edit(t, table)
			return nil
		}})
		if err != nil {
			return
		}
		a, b := NewRouter(old, CacheOptions{}), NewRouter(next, CacheOptions{})
		if old.Write.New() && next.Write.New() {
			for _, c := range held {
				if a.Route([]byte(c)).New != b.Route([]byte(c)).New {
					t.Fatalf("%s has documents in %s and goes to %s", c, a.Route([]byte(c)).New, b.Route([]byte(c)).New)
				}
			}
			if !slices.Equal(old.SlotMap, next.SlotMap) {
				moved++
			}
		}
	})
	if moved == 0 {
		t.Error("no change moved a slot: the test tells nothing")
	}
}
