// Package consumer is the group's side of Sluice: it fetches, queues and maps
// records, hands their actions to the indexer, hears how they ended, and
// commits.
//
// Promise: the committed offset of a source partition never passes a record
// that was delivered and is not handled (indexed, deleted, stale,
// dead-lettered, parked or ignored), and nothing is committed for a partition
// that another member may own.
//
// Callers must not assume that a record is delivered once, that records of
// different partitions keep any order, or that a partition that halts stops
// its neighbours.
//
// # Goroutines
//
// Run is the poll loop: it polls, enqueues, starts commits and does what must
// not race with a rebalance. One dispatcher takes from the partitions' queues
// in turn, and may wait for memory without holding up polls, heartbeats or
// commits. The resolver asks for topic ids and recorded generations before a
// topic's first record is mapped, and that the routing table is as new as the
// group's commits. The follower adopts newer tables; the marker marks customers
// whose sides differ before their records end. The watcher reads log ends for the lag and
// settles version conflicts that need a look at them. The knocker says why
// this member is in no group, or which topics are missing. kgo calls the
// rebalance callbacks from its own goroutine. Outcomes arrive from the
// indexer's. All end before Run returns.
//
// # Locks, in the order in which they are taken
//
// Consumer.adopting, by whoever adopts a routing table. Consumer.turn, a channel and not a mutex because it is held across waits: a
// commit, a rebalance callback or a seek, one at a time. Then Consumer.mu:
// which partitions are held. Then dispatcher.mu and pauses.mu. Last ledger.mu:
// one source partition, taken per batch.
package consumer
