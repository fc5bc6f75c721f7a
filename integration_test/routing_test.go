//go:build integration

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// TestRoutingTable: a real server keeps a routing table whatever customers are
// called (they are names of fields in it), gives it back as it was, and lets
// one of two operators at once through.
func TestRoutingTable(t *testing.T) {
	for _, flavour := range []string{"Elasticsearch", "OpenSearch"} {
		t.Run(flavour, func(t *testing.T) {
			es := startElasticsearch(t, elasticsearchOptions{OpenSearch: flavour == "OpenSearch"})
			client, err := elastic.New(elastic.Config{Addresses: []string{es.URL()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close(context.Background()) })
			const index = ".sluice-control-routing"
			control := client.Control(index)
			if err := control.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := request(context.Background(), "DELETE", es.URL()+"/"+index, nil); err != nil {
					t.Error(err)
				}
			})

			table := partition.New("events", "events")
			table.Job, table.Write = "j7", partition.W2
			table.Partitions, table.Overrides = map[string]partition.Partition{}, map[string]string{}
			for i := range 100 {
				name := fmt.Sprintf("p%03d", i)
				table.Partitions[name] = partition.Partition{Index: "events-" + name, State: partition.Active}
			}
			for i := range table.Slots { // no two neighbours are together: the longest text
				table.SlotMap = append(table.SlotMap, fmt.Sprintf("p%03d", i*7%100))
			}
			awkward := []string{".", "..", "a..b", ".a", "a.", " ", "_id", "_source", "a b", "*", "a*.*", `"`, "\n", "é", "a", "a.b", strings.Repeat("x.", 128)}
			for _, customer := range awkward {
				table.Overrides[partition.Literal(customer)] = "p000"
			}
			for i := range 2000 {
				table.Overrides[fmt.Sprintf("tenant.%d.*", i)] = "p001"
			}
			table.Read.Allow = awkward[:3]

			store := partition.NewStore(control)
			if err := store.Create(t.Context(), table); err != nil {
				t.Fatal(err)
			}
			ann, err := store.Load(t.Context(), "events")
			if err != nil {
				t.Fatal(err)
			}
			bob := ann
			if !maps.Equal(ann.Overrides, table.Overrides) || !slices.Equal(ann.SlotMap, table.SlotMap) || !slices.Equal(ann.Read.Allow, table.Read.Allow) {
				t.Error("the table came back as another one")
			}
			change := func(read partition.Stored, percent int) error {
				next, err := read.Change(partition.Change{By: "test", Edit: func(t *partition.Table) error {
					t.Read.Percent, t.Read.Salt = percent, "j7"
					return nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				return store.Update(t.Context(), read, next)
			}
			if err := change(ann, 100); err != nil {
				t.Fatal(err)
			}
			var conflict *partition.ConflictError
			if err := change(bob, 200); !errors.As(err, &conflict) || conflict.Read != 1 || conflict.Stored != 2 {
				t.Errorf("the second of two operators: %v", err)
			}
			w := partition.NewWatcher(store, "events", partition.WatcherOptions{})
			if r, err := w.Refresh(t.Context()); err != nil || r.Epoch() != 2 || r.Table().Read.Percent != 100 || r.Route([]byte("..")).New != "events-p000" {
				t.Errorf("%v", err)
			}
			mapping := string(es.Do(t, "GET", "/"+index+"/_mapping", ""))
			if strings.Contains(mapping, "tenant") || strings.Contains(mapping, "overrides") {
				t.Errorf("customers are in the mapping: %s", mapping)
			}
		})
	}
}
