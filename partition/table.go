package partition

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

const (
	// Schema is the version of the table's layout that this program knows. A
	// later one is refused (*SchemaError): it may hold rules that change where a
	// customer belongs.
	Schema = 1
	// Hash is the only hash of Schema 1: XXH64 with seed 0 of the customer's
	// bytes, modulo the number of slots.
	Hash = "xxh64"
	// Slots is how many slots a new table has.
	Slots = 4096
	// MaxSlots is how many a table may have.
	MaxSlots = 1 << 16
	// MaxCustomer is the longest customer that can be routed, in bytes: it is
	// part of the ids of control documents, which have 512.
	MaxCustomer = 256
	// Percent is all customers, in the basis points of Read.Percent.
	Percent = 10_000
)

// Table is the routing table of one stream: the control document
// `routing:<stream>`. A table that is in use never changes; Change makes the
// next one.
type Table struct {
	Schema int    `json:"schema"`
	Name   string `json:"name"` // the stream
	// Epoch is the table's version: 1 or more, one up with each change.
	Epoch int64 `json:"epoch"`
	// Generation counts layouts. Hash and number of slots never change within
	// one, and no change leads to another.
	Generation int     `json:"generation"`
	Hash       string  `json:"hash"`
	Slots      int     `json:"slots"`
	SlotMap    SlotMap `json:"slot_map"`
	// Overrides send customers to partitions whatever their slot. A key is a
	// customer, or a pattern in which * stands for any bytes, none included
	// (acme-*, *-eu); \* and \\ are a star and a backslash. The customer itself
	// comes before any pattern, then the pattern with the most bytes beside its
	// stars, then the first in byte order.
	Overrides  map[string]string    `json:"overrides"`
	Partitions map[string]Partition `json:"partitions"`
	// Legacy is the index that the stream had before; nil for a stream that
	// started partitioned.
	Legacy *Partition `json:"legacy"`
	// Job is the migration under way; "" for none.
	Job       string    `json:"job"`
	Write     Mode      `json:"write"`
	Read      Read      `json:"read"`
	UpdatedBy string    `json:"updated_by"`
	UpdatedAt time.Time `json:"updated_at"`
}

// SlotMap holds the partition of each slot. It is empty while the stream has no
// partitions. In a table it is run-length text: "0-2047=p000 2048-4095=p001".
type SlotMap []string

// Partition is one index of the stream.
type Partition struct {
	Index string `json:"index"` // writes go to it by this name
	// Alias is what reads go to: an alias that hides tombstones. "": Index.
	Alias string `json:"alias,omitempty"`
	State State  `json:"state"`
}

// ReadName is what a search for the partition's customers is sent to.
func (p Partition) ReadName() string { return cmp.Or(p.Alias, p.Index) }

// State is what a partition is there for.
type State string

// The states.
const (
	Active State = "active"
	// Retired: nothing points at it any more, and nothing ever will again. Its
	// index is not used anew, since a late write may soil it.
	Retired State = "retired"
)

// Read says which customers are read from their index partitions while both
// sides are written: not those of Deny; else those of Allow; else those whose
// hash is below Percent; else none, and the legacy index answers. In W3 all
// are.
type Read struct {
	Allow []string `json:"allow"` // customers and patterns, as in Overrides
	Deny  []string `json:"deny"`
	// Percent is in basis points, 0 to 10000: XXH64 of the customer, seeded with
	// the XXH64 of Salt, modulo 10000, is below it. A higher one only adds
	// customers.
	Percent int    `json:"percent"`
	Salt    string `json:"salt"` // the job; not empty with a Percent
}

// AnyNew says whether some customer may be read from the new side.
func (r Read) AnyNew() bool { return len(r.Allow) > 0 || r.Percent > 0 }

// AllNew says whether every customer is.
func (r Read) AllNew() bool { return r.Percent == Percent && len(r.Deny) == 0 }

// New returns the first table of a stream that has a legacy index: W0, epoch
// 1, no partitions. For a stream that starts partitioned set Write to W3,
// Legacy to nil, and Partitions and SlotMap.
func New(stream, legacy string) *Table {
	return &Table{
		Schema: Schema, Name: stream, Epoch: 1, Generation: 1, Hash: Hash, Slots: Slots,
		Legacy: &Partition{Index: legacy, State: Active},
	}
}

// Slot returns the slot of a customer among so many (1 or more).
func Slot(customer []byte, slots int) int {
	return int(xxhash.Sum64(customer) % uint64(slots)) //nolint:gosec // below slots
}

// Clone returns a copy that shares nothing with t.
func (t *Table) Clone() *Table {
	c := *t
	c.SlotMap, c.Overrides, c.Partitions = slices.Clone(t.SlotMap), maps.Clone(t.Overrides), maps.Clone(t.Partitions)
	c.Read.Allow, c.Read.Deny = slices.Clone(t.Read.Allow), slices.Clone(t.Read.Deny)
	if t.Legacy != nil {
		legacy := *t.Legacy
		c.Legacy = &legacy
	}
	return &c
}

// InvalidError is what is wrong with one place of a table, and what would be
// right. Several are joined.
type InvalidError struct {
	Path    string // of the JSON: partitions.p000.index
	Problem string
	Remedy  string
}

func (e *InvalidError) Error() string {
	return "routing table: " + e.Path + ": " + e.Problem + "; " + e.Remedy
}

// SchemaError is a table of a layout that this program does not know.
type SchemaError struct{ Schema int }

func (e *SchemaError) Error() string {
	return fmt.Sprintf("routing table: schema is %d and this program knows %d: update Sluice", e.Schema, Schema)
}

// Validate reports everything that no table may hold: *SchemaError, or
// *InvalidErrors joined.
func (t *Table) Validate() error {
	if t.Schema > Schema {
		return &SchemaError{t.Schema}
	}
	var errs []error
	fail := func(path, problem, remedy string) { errs = append(errs, &InvalidError{path, problem, remedy}) }
	if t.Schema != Schema {
		fail("schema", fmt.Sprintf("%d does not exist", t.Schema), fmt.Sprintf("write %d", Schema))
	}
	if problem := checkStream(t.Name); problem != "" {
		fail("name", problem, "use 1 to 200 letters, digits and . _ -")
	}
	if t.Epoch < 1 {
		fail("epoch", fmt.Sprintf("%d is not above 0", t.Epoch), "begin with 1")
	}
	if t.Generation < 1 {
		fail("generation", fmt.Sprintf("%d is not above 0", t.Generation), "write 1")
	}
	if t.Hash != Hash {
		fail("hash", fmt.Sprintf("%q is not known", t.Hash), "write "+Hash)
	}
	if t.Slots < 1 || t.Slots > MaxSlots {
		fail("slots", fmt.Sprintf("%d is not between 1 and %d", t.Slots, MaxSlots), fmt.Sprintf("write %d", Slots))
	}
	if t.Write > W3 {
		fail("write", fmt.Sprintf("%d is no write mode", uint8(t.Write)), "use legacy, dual_shadow, dual or new")
	}
	t.validateIndices(fail)
	t.validatePlaces(fail)
	t.validateRead(fail)
	if t.Job == "" && (t.Write == W1 || t.Write == W2) {
		fail("job", "both sides are written and no migration says why", "name it")
	}
	return errors.Join(errs...)
}

// validateIndices checks the partitions and the legacy index.
func (t *Table) validateIndices(fail func(path, problem, remedy string)) {
	owner := map[string]string{} // path by index or alias
	check := func(path string, p Partition) {
		for _, name := range []struct{ key, value string }{{"index", p.Index}, {"alias", p.Alias}} {
			at := path + "." + name.key
			if name.key == "alias" && name.value == "" {
				continue
			}
			if problem := CheckIndex(name.value); problem != "" {
				fail(at, problem, "name an index as the server would take it")
			} else if other, taken := owner[name.value]; taken {
				fail(at, fmt.Sprintf("%q is %s too", name.value, other), "give each partition an index of its own")
			} else {
				owner[name.value] = at
			}
		}
		if p.State != Active && p.State != Retired {
			fail(path+".state", fmt.Sprintf("%q is no state", p.State), "use active or retired")
		}
	}
	if t.Legacy != nil {
		check("legacy", *t.Legacy)
	}
	switch {
	case !t.Write.Legacy():
	case t.Legacy == nil:
		fail("legacy", fmt.Sprintf("write mode %s writes to it and there is none", t.Write), "name the index, or use write mode new (W3)")
	case t.Legacy.State == Retired:
		fail("legacy.state", fmt.Sprintf("write mode %s writes to it", t.Write), "use active")
	}
	if len(t.Partitions) > MaxSlots {
		fail("partitions", fmt.Sprintf("there are %d", len(t.Partitions)), fmt.Sprintf("use %d at most", MaxSlots))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Partitions)) {
		path := member("partitions", name)
		if !isPartitionName(name) {
			fail(path, "is no name of a partition", "use 1 to 255 lower-case letters, digits and . _ - =")
		}
		check(path, t.Partitions[name])
	}
}

// validatePlaces checks that every slot and override leads to a partition.
func (t *Table) validatePlaces(fail func(path, problem, remedy string)) {
	place := func(path, name string) {
		switch p, ok := t.Partitions[name]; {
		case !ok:
			fail(path, fmt.Sprintf("there is no partition %q", name), "name one of partitions")
		case p.State == Retired:
			fail(path, fmt.Sprintf("partition %q is retired", name), "name an active one")
		}
	}
	switch {
	case len(t.SlotMap) == 0 && len(t.Overrides) == 0 && !t.Write.New():
	case len(t.SlotMap) != t.Slots:
		fail("slot_map", fmt.Sprintf("it holds %d slots of %d", len(t.SlotMap), t.Slots), "give each slot a partition")
	default:
		for first, run := range t.SlotMap.runs() {
			place(fmt.Sprintf("slot_map.%d-%d", first, run.last), run.partition)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.Overrides)) {
		path := member("overrides", key)
		if _, err := parsePattern(key); err != nil {
			fail(path, err.Error(), patternRemedy)
		}
		place(path, t.Overrides[key])
	}
}

func (t *Table) validateRead(fail func(path, problem, remedy string)) {
	for _, list := range []struct {
		path     string
		patterns []string
	}{{"read.allow", t.Read.Allow}, {"read.deny", t.Read.Deny}} {
		for i, pattern := range list.patterns {
			if _, err := parsePattern(pattern); err != nil {
				fail(fmt.Sprintf("%s[%d]", list.path, i), err.Error(), patternRemedy)
			}
		}
	}
	if t.Read.Percent < 0 || t.Read.Percent > Percent {
		fail("read.percent", fmt.Sprintf("%d is not between 0 and %d", t.Read.Percent, Percent), "write basis points: 500 is 5 %")
	}
	if t.Read.Percent > 0 && t.Read.Salt == "" {
		fail("read.salt", "is empty, and decides who is among the percent", "write the job's name")
	}
	if t.Read.AnyNew() && t.Write < W2 {
		fail("read", fmt.Sprintf("customers are read from the new side, which is not complete in write mode %s", t.Write), "leave allow empty and percent 0 before W2")
	}
}

// run is a number of slots of one partition, one after the other.
type run struct {
	last      int
	partition string
}

// runs yields the map's runs by their first slot.
func (m SlotMap) runs() func(yield func(first int, r run) bool) {
	return func(yield func(int, run) bool) {
		for first := 0; first < len(m); {
			last := first
			for last+1 < len(m) && m[last+1] == m[first] {
				last++
			}
			if !yield(first, run{last, m[first]}) {
				return
			}
			first = last + 1
		}
	}
}

// checkStream returns what is wrong with a stream's name; "": nothing.
func checkStream(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > 200:
		return "is longer than 200 bytes"
	case strings.ContainsFunc(name, func(r rune) bool {
		return r >= utf8.RuneSelf || !isLetterOrDigit(byte(r)) && r != '.' && r != '_' && r != '-'
	}):
		return fmt.Sprintf("%q is no name of a stream", name)
	}
	return ""
}

func isLetterOrDigit(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func isPartitionName(name string) bool {
	return name != "" && len(name) <= maxName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-=") == ""
}
