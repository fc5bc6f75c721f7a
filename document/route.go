package document

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// Side is a side of a routed stream. Its text is that of a dead letter's
// sluice.side.
type Side string

// The sides.
const (
	SideNone   Side = "" // the stream is not routed
	SideLegacy Side = "legacy"
	SideNew    Side = "new"
)

// Router is a routing table as records see it. It never changes, and is safe
// for concurrent use.
type Router interface {
	// Route returns where the records of a customer go.
	Route(customer []byte) partition.Route
	// Legacy is the legacy index where the write mode still writes to it, else
	// "": where records without a customer go by `on_no_customer: legacy`.
	Legacy() string
}

// stream is what the rules of all topics share.
type stream struct {
	routing atomic.Pointer[routing] // nil: not routed by customer
	moved   atomic.Uint64           // see Mapper.CustomerChanges
}

// routing holds the table in force; a nil router: none was read yet.
type routing struct{ router Router }

// Use makes the mapper that of a stream that is routed by customer, by the
// table r from the next Map on. Until the first table is there r is nil, and
// every record halts its partition: nothing may be written by a guess. An epoch
// is adopted while nothing is mapped, which is the caller's care.
func (m *Mapper) Use(r Router) { m.stream.routing.Store(&routing{r}) }

// CustomerChanges counts records whose id was seen with another customer not
// long before: a routed stream takes a customer for immutable per id. The old
// customer's copy stays in the old customer's index partition. What lies
// further back than some 8,000 other ids is not seen, and a redelivery counts
// again: the count tells whether it happens, not how often.
func (m *Mapper) CustomerChanges() uint64 { return m.stream.moved.Load() }

// route sets the action's target by the routing table, and returns where the
// record goes.
func (r *Rules) route(table Router, out *Result) (to partition.Route, p *problem) {
	if table == nil {
		out.end(Halt, problemNoTable)
		return to, problemNoTable
	}
	switch {
	case len(out.Customer) == 0:
		p = problemNoCustomer
	case len(out.Customer) > partition.MaxCustomer || !utf8.Valid(out.Customer):
		p = problemBadCustomer
	default:
		to = table.Route(out.Customer)
		out.noteCustomer(&r.stream.moved)
	}
	if p != nil {
		if to.Legacy = table.Legacy(); !r.legacy || to.Legacy == "" {
			out.end(DeadLetter, p)
			return to, p
		}
	}
	out.Side, out.Action.Target = SideLegacy, to.Legacy
	if to.Legacy == "" {
		out.Side, out.Action.Target = SideNew, to.New
	}
	return to, nil
}

// twin makes the new side's action from the legacy side's, or turns the only
// action into the new side's own form.
func (r *Rules) twin(to partition.Route, rec *kgo.Record, out *Result) {
	a, tombstone := &out.Action, &out.Tombstone
	if out.Side == SideLegacy {
		if to.New == "" || mutantOneSide {
			return
		}
		a, tombstone = &out.Twin, &out.TwinTombstone
		*a, *tombstone = out.Action, out.Tombstone
		a.Target = to.New
	}
	// Index partitions are written by their own names.
	a.RequireAlias = false
	if a.Op == bulk.Delete && to.Shadow && !mutantShadow {
		out.tombstone(rec, a)
		*tombstone = true
	}
}

// seenIDs is how many ids a Result remembers the customer of. They are to stay
// in the cache of a core: the table is looked at once a record.
const seenIDs = 1 << 13

// seen remembers the customers of recent ids: a table of fixed size in which
// ids replace each other. An entry has 48 bits of the id's hash and 16 of the
// customer's: of 65,536 changes one is missed.
type seen [seenIDs]uint64

// noteCustomer counts in moved when an id that may come again had another
// customer before.
func (out *Result) noteCustomer(moved *atomic.Uint64) {
	if !out.Ordered {
		return
	}
	if out.seen == nil {
		out.seen = new(seen)
	}
	id, customer := xxhash.Sum64(out.Action.ID), xxhash.Sum64(out.Customer)
	const ofCustomer = 1<<16 - 1
	e := &out.seen[id%seenIDs]
	now := id&^ofCustomer | customer&ofCustomer
	if *e != now && (*e^now)&^ofCustomer == 0 {
		moved.Add(1)
	}
	*e = now
}

// CheckRouting reports why the stream cannot be routed by customer at all: each
// section needs a customer and the one legacy index.
func (m *Mapper) CheckRouting() error {
	var errs []error
	for _, r := range m.sections() {
		fail := func(key, problem, remedy string) {
			errs = append(errs, &ConfigError{r.key + "." + key, problem, remedy})
		}
		if r.customer == nil {
			fail("customer", "there is no customer to route the stream by", "set it to header:NAME, key, key:REGEXP or field:/POINTER")
		}
		switch {
		case slices.ContainsFunc(r.index, func(p namePart) bool { return p.kind != literal }):
			fail("index", "a routed stream has one legacy index, and this is a template", "write its name")
		case r.indexText != m.base.indexText:
			fail("index", fmt.Sprintf("a routed stream has one legacy index, and documents.index is %q", m.base.indexText), "leave it out, or run a Sluice of its own for these topics")
		}
		if r.described.DataStream {
			fail("data_stream", "a data stream cannot be split by customer", "run a Sluice without routing.stream for these topics")
		}
	}
	return errors.Join(errs...)
}

// sections returns the base's rules, then each override's.
func (m *Mapper) sections() []*Rules {
	all := []*Rules{m.base}
	for _, o := range m.overrides {
		all = append(all, o.rules)
	}
	return all
}

// CheckDualWrite reports why records cannot be written to two indices at once,
// as a migration does: it needs ids that a second reader finds again, external
// versions, and a customer.
func (m *Mapper) CheckDualWrite() error {
	var errs []error
	for _, r := range m.sections() {
		fail := func(key, problem, remedy string) {
			errs = append(errs, &ConfigError{r.key + "." + key, problem + ", which cannot be written to two indices at once", remedy})
		}
		switch r.idKind {
		case idAuto:
			fail("id", "a record without a key gets its position as id, and is created without a version", "set id: key, which rejects such records, or take ids from field or header")
		case idPosition, idNone:
			fail("id", "ids are the record's position or the server's own", "take ids from key, field or header")
		}
		if r.keyed.versionType == bulk.Internal {
			fail("version", "writes carry no external version", "use op: index with version: sequence")
		}
		if r.customer == nil {
			fail("customer", "there is no customer to route by", "set documents.customer")
		}
	}
	return errors.Join(errs...)
}
