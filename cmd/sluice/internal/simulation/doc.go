// Package simulation runs whole groups of Sluice against a Kafka and an
// Elasticsearch in the same process, in virtual time, while both servers, the
// network and the members misbehave.
//
// All that happens to a scenario follows from its seed: topics, records,
// configuration, who joins and leaves when, and what goes wrong. Only the
// order in which goroutines run does not, so that running one seed again tries
// other schedules. Every offset commit is compared with what is stored at that
// moment; at the end the indices must be the fold of the log, the dead letters
// exactly the bad records, the ledgers balanced and all memory given back.
//
// The package holds tests only, behind the build tag synctests: without it the
// Kafka client waits on mutexes that stop the virtual clock. See
// docs/testing.md for how to run it and to replay a seed.
package simulation
