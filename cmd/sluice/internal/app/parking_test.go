package app

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// Where nothing is to be parked any more, a control index that is not there holds
// no state; one that cannot be read is no answer, but where it need not be read.
func TestParkedStoreAbsent(t *testing.T) {
	es := embedded.NewElasticsearch(embedded.Config{})
	url, err := es.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(es.Close)
	client, err := elastic.New(elastic.Config{Addresses: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{"parked:g:t:0", "parked:g:t:1"}
	s := &parkedStore{Control: client.Control(".sluice-control"), suspect: "dead.parked"}
	optional := &parkedStore{Control: s.Control, optional: true}
	for _, s := range []*parkedStore{s, optional} {
		if docs, err := s.GetMany(t.Context(), ids); err != nil || len(docs) != 2 || docs[0].Found {
			t.Error(docs, err)
		}
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		refuse := es.Inject(embedded.Rule{Fault: embedded.Fault{Status: status}})
		if _, err := s.GetMany(t.Context(), ids); err == nil || !strings.Contains(err.Error(), "delete that topic") {
			t.Errorf("status %d: %v", status, err)
		}
		if docs, err := optional.GetMany(t.Context(), ids); err != nil || docs[0].Found {
			t.Errorf("status %d: %v", status, err)
		}
		refuse.Remove()
	}
	es.Inject(embedded.Rule{Next: 2, Fault: embedded.Fault{Status: http.StatusServiceUnavailable}})
	if _, err := optional.GetMany(t.Context(), ids); err == nil {
		t.Error("an index that is away for a while holds no state")
	}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), ids[1], map[string]int{"token": 7}); err != nil {
		t.Fatal(err)
	}
	docs, err := s.GetMany(t.Context(), ids)
	if err != nil || docs[0].Found || !docs[1].Found || string(docs[1].Source) != `{"token":7}` || docs[1].PrimaryTerm == 0 {
		t.Errorf("%+v, %v", docs, err)
	}
	if err := s.Update(t.Context(), ids[1], map[string]int{"token": 8}, docs[1].SeqNo, docs[1].PrimaryTerm); err != nil {
		t.Error(err)
	}
}

// The fingerprint of the rules changes with what decides where records go, be it
// configuration or routing table, and with nothing else.
func TestRulesFingerprint(t *testing.T) {
	rules := func(settings string) *document.Rules {
		t.Helper()
		cfg, err := config.Parse([]config.Source{{Name: "t", Data: []byte("dead_letter: {topic: dead}\n" + settings)}}, nil, nil)
		if err != nil {
			t.Fatal(settings, err)
		}
		mapper, err := Mapper(cfg)
		if err != nil {
			t.Fatal(settings, err)
		}
		return mapper.Rules("events")
	}
	of := func(settings string) string {
		t.Helper()
		return RulesFingerprint(rules(settings), "")
	}
	base := of("documents: {index: a, id: key}")
	for settings, same := range map[string]bool{
		"documents: {index: a, id: key, on_null: ignore, on_rejected: stop, validate: strict, max_depth: 50}": true,
		"documents: {index: a, id: key, version: offset, deletes: tombstone, op: index}":                      true,
		"documents: {index: a, id: key, customer: 'header:org', metadata: {field: meta}, timestamp: record}":  true,
		"documents: {index: a, id: key}\noverrides: [{topics: [other], documents: {index: b}}]":               true,
		"documents: {index: a, id: key}\noverrides: [{topics: [events], documents: {index: b}}]":              false,
		"documents: {index: b, id: key}":                                       false,
		"documents: {index: a, id: 'field:/id', on_null: ignore}":              false,
		"documents: {index: a, id: key, long_ids: hash}":                       false,
		"documents: {index: a, id: key, routing: 'header:r'}":                  false,
		"documents: {index: a, id: key, pipeline: elsewhere}":                  false,
		"documents: {index: 'a-${customer}', id: key, customer: 'header:org'}": false,
	} {
		if got := of(settings); (got == base) != same {
			t.Errorf("%s: the same: %t", settings, got == base)
		}
	}
	if x, y := of("documents: {index: 'a-${customer}', id: key, customer: 'header:org'}"), of("documents: {index: 'a-${customer}', id: key, customer: 'header:tenant'}"); x == y {
		t.Error("another customer, in the index name")
	}
	if x, y := of("documents: {index: a, id: position}"), of("documents: {index: b, id: position}"); x != y {
		t.Error("no two records have one id")
	}

	table := func(change func(*partition.Table)) string {
		x := partition.New("s", "legacy")
		x.Partitions = map[string]partition.Partition{"p0": {Index: "i0", State: partition.Active}, "p1": {Index: "i1", State: partition.Active}}
		x.SlotMap = make(partition.SlotMap, x.Slots)
		for i := range x.SlotMap {
			x.SlotMap[i] = "p0"
		}
		x.Overrides = map[string]string{"acme": "p1"}
		change(x)
		return tablePlaces(x)
	}
	first := table(func(*partition.Table) {})
	for what, c := range map[string]struct {
		same   bool
		change func(*partition.Table)
	}{
		"epoch, mode, readers": {true, func(x *partition.Table) {
			x.Epoch, x.Write, x.Read.Percent, x.Job, x.UpdatedBy = 9, partition.W2, 50, "j", "me"
		}},
		"a partition of nobody": {true, func(x *partition.Table) { x.Partitions["p2"] = partition.Partition{Index: "i2"} }},
		"a slot":                {false, func(x *partition.Table) { x.SlotMap[7] = "p1" }},
		"the slots":             {false, func(x *partition.Table) { x.Slots = 8 }},
		"the hash":              {false, func(x *partition.Table) { x.Hash = "other" }},
		"an override":           {false, func(x *partition.Table) { x.Overrides["acme"] = "p0" }},
		"one more":              {false, func(x *partition.Table) { x.Overrides["emca*"] = "p1" }},
		"an index":              {false, func(x *partition.Table) { x.Partitions["p0"] = partition.Partition{Index: "i9"} }},
	} {
		if got := table(c.change); (got == first) != c.same {
			t.Errorf("%s: the same: %t", what, got == first)
		}
	}
	if x := rules(""); RulesFingerprint(x, first) == RulesFingerprint(x, "") {
		t.Error("the table is not part of it")
	}
}
