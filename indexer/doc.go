// Package indexer writes actions to Elasticsearch or OpenSearch through the
// bulk API and tells each action's source how it ended: exactly once, whatever
// the server and the network do.
//
// # Promise
//
//   - Every action that Writer.Add took is reported to its Source exactly once,
//     unless its source was dropped: then never again.
//   - Two ordered actions on one (target, id) are never in flight in two
//     requests at once, and none overtakes an earlier one that is still to be
//     tried again.
//   - A failure whose cause lies outside the record is tried again for ever; a
//     record is rejected only for what the server says about that record.
//   - A target that is blocked or throttled waits alone.
//   - The bytes held are taken from the memory budget, from Add to the report.
//
// Not promised: that an action is written once. A request whose answer was
// lost is sent again; external versions make that harmless.
//
// # Flow
//
// One goroutine per Writer encodes actions at arrival into the open chunk of
// their lane. Published chunks wait in their lane. A lane (a hash of the id
// within a target) is in at most one request at a time, so order per id holds
// while one source partition can use every indexer. Indexers (workers) claim
// idle lanes until a batch is full, compress it and hand it to the network;
// the answer comes back to whichever indexer is free. An action that needs
// another try leaves its batch, closes its own id, and waits in its target:
// later actions on that id queue behind it, the lane goes on.
//
// Locks: Indexer.mu guards targets, lanes, queues and counters. It is never
// held while a Source is called, while bytes are compressed, or on the network.
package indexer
