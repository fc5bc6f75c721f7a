// Package embedded holds an Elasticsearch and a Kafka inside the process, for
// `sluice demo` and for tests.
//
// [Elasticsearch] keeps documents in memory and answers the REST calls that
// Sluice makes as the real server does: the same statuses, error types and
// texts, the same rules for versions, deletes, refreshes, aliases, blocks and
// mappings. Where it was possible each rule was confirmed against a real one;
// the suite in embedded/conformance runs the same cases against both. It is not
// a search engine: it knows the queries that Sluice sends and refuses others,
// analyses no text, has one node and no replicas.
//
// [Kafka] is franz-go's fake cluster with fault helpers and with an [Oracle]
// that compares every offset commit with what is stored at that moment.
//
// Both work inside a testing/synctest bubble: Elasticsearch through
// [Elasticsearch.Transport], Kafka over kfake's virtual network (see
// [KafkaConfig.Virtual]). Everything random follows from a seed.
package embedded
