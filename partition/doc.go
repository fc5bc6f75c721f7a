// Package partition spreads one logical index over smaller ones by customer: a
// customer lives in exactly one of them.
//
// Where that is stands in a [Table], one small JSON document for any number of
// customers: a customer's hash leads to one of 4096 slots, a slot to a
// partition, and overrides lead single customers or patterns of them elsewhere.
// The table also says which side of a migration writes and reads go to.
//
//	customer --override?--> partition --write mode, read rules--> index
//	   \--hash--> slot -----^
//
// What the package promises:
//
//   - A table is followed only if all of it is understood: [Parse] is strict, and
//     a layout of a later program is an error.
//   - A [Router] never changes: what it says, it says under one epoch.
//   - A [Store] replaces a table only by the one that follows it, by
//     compare-and-set; nothing is merged, nothing lost. [Next] refuses what would
//     lose documents: a customer that has some never moves by a change of the
//     table, a write mode is never left out, a soiled index never comes back.
//   - A [Watcher] only ever hands out newer tables. In trouble it keeps the last
//     good one, and readers fall back to the legacy index in time.
//
// What callers must not assume: that all processes follow a new table at once.
// The consumer fences an epoch before anything may rely on it, and a reader may
// use a table for as long as max_staleness; until then both tables are in use.
// What neighbouring tables read, both write.
//
// A program in Go that searches reads the control index itself:
//
//	control := client.Control(".sluice-control") // of package elastic, or any Documents
//	w := partition.NewWatcher(partition.NewStore(control), "events", partition.WatcherOptions{})
//	go w.Run(ctx)
//	...
//	where, err := w.Lookup([]byte(customer)) // where.Index is the index to search
//
// Other programs ask over HTTP: see docs/routing.md, which also describes the
// two hashes.
//
// The package knows nothing of Kafka or Elasticsearch: control documents come
// through [Documents].
package partition
