package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each bad configuration gives exactly these errors: place, key, problem and
// remedy. DIR stands for a folder with the files of badFiles.
var bad = []struct {
	name string
	text string
	want []string
}{
	// YAML
	{"not YAML", "kafka:\n\tbrokers: []\n", []string{
		"sluice.yaml:2: not YAML: found character that cannot start any token; check the indentation, and quote texts that hold : # { } [ ] & * or begin with % @ `",
	}},
	{"two documents", "kafka: {}\n---\nlog: {}\n", []string{
		"sluice.yaml:2:1: a second YAML document begins here; keep one document in a file; several files can be given with several --config",
	}},
	{"a list at the top", "- kafka\n", []string{
		"sluice.yaml:1:1: the file holds a list, not sections; begin with a section such as `kafka:`; `sluice init` prints a whole file",
	}},
	{"a key twice", "log:\n  level: info\n  level: warn\n", []string{
		`sluice.yaml:3:3: "level" stands twice in this section, first at sluice.yaml:2:3; keep one of the two`,
	}},
	{"a section twice", "log: {level: info}\nkafka: {}\nlog: {format: json}\n", []string{
		`sluice.yaml:3:1: "log" stands twice in this section, first at sluice.yaml:1:1; keep one of the two`,
	}},
	{"an anchor and its alias", "kafka:\n  group_id: &a x\n  client_id: *a\n", []string{
		"sluice.yaml:2:13: anchors and aliases are not supported; write the value out, or quote a text that begins with & or *",
		"sluice.yaml:3:14: anchors and aliases are not supported; write the value out, or quote a text that begins with & or *",
	}},
	{"an unknown alias", "kafka: {sasl: {password: *hunter2}}\n", []string{
		"sluice.yaml:1: not YAML: unknown anchor ... referenced; quote a text that begins with *",
	}},
	{"a merge key", "kafka:\n  <<: {group_id: x}\n", []string{
		"sluice.yaml:2:3: merge keys are not supported; write the keys out; later files given with --config are laid over earlier ones",
	}},
	{"a tag", "kafka:\n  group_id: !secret x\n", []string{
		"sluice.yaml:2:13: tags are not supported; remove it, or quote a text that begins with !",
	}},
	{"a list as key", "[a]: b\n", []string{
		"sluice.yaml:1:1: a key must be a single word; quote a text that begins with { or [",
	}},

	// Keys
	{"a misspelt key", "kafka:\n  group_id: a\n  broker: [a:1]\n", []string{
		"sluice.yaml:3:3: kafka.broker: unknown key; did you mean brokers?",
	}},
	{"a key in another style", "kafka: {groupId: a}\n", []string{
		"sluice.yaml:1:9: kafka.groupId: unknown key; did you mean group_id?",
	}},
	{"a key of another section", "isolation_level: read_committed\n", []string{
		"sluice.yaml:1:1: isolation_level: unknown key; did you mean kafka.isolation_level?",
	}},
	{"a key like no other", "log: {colour: red}\n", []string{
		"sluice.yaml:1:7: log.colour: unknown key; the keys here are level, format",
	}},
	{"an unknown key of an override", "overrides:\n  - topics: [a]\n    documents:\n      idd: key\n", []string{
		"sluice.yaml:4:7: overrides[0].documents.idd: unknown key; did you mean id?",
	}},

	// Types and units
	{"a value instead of a section", "kafka: a\n", []string{
		"sluice.yaml:1:1: kafka: a single value where a section belongs; write its keys below it, indented",
	}},
	{"a value instead of a list", "kafka:\n  topics: events\n", []string{
		"sluice.yaml:2:3: kafka.topics: a single value where a list belongs; write [a, b], or one `- ` line for each; [] for none",
	}},
	{"a list instead of a value", "kafka:\n  group_id: [a]\n", []string{
		`sluice.yaml:2:3: kafka.group_id: a list where a single value belongs; write one after the colon ("" for an empty text), or remove the key`,
	}},
	{"no value", "kafka:\n  group_id:\n", []string{
		`sluice.yaml:2:3: kafka.group_id: no value; write one after the colon ("" for an empty text), or remove the key`,
	}},
	{"a duration without a unit", "indexer:\n  flush_interval: 10\n", []string{
		`sluice.yaml:2:3: indexer.flush_interval: "10" is not a duration; write a number with a unit: ms, s, m, h or d, such as 250ms, 30s or 7d`,
	}},
	{"a size without a unit", "indexer:\n  flush_bytes: 4194304\n", []string{
		`sluice.yaml:2:3: indexer.flush_bytes: "4194304" is not a size; write a number with a unit: B, KB, MB, GB, KiB, MiB or GiB, such as 4MiB`,
	}},
	{"auto where there is none", "indexer: {flush_bytes: auto}\n", []string{
		`sluice.yaml:1:11: indexer.flush_bytes: "auto" is not a size; write a number with a unit: B, KB, MB, GB, KiB, MiB or GiB, such as 4MiB`,
	}},
	{"no memory", "memory: {limit: 0B}\n", []string{
		"sluice.yaml:1:10: memory.limit: must be above 0; write a number with a unit: B, KB, MB, GB, KiB, MiB or GiB, such as 4MiB, or auto",
	}},
	{"a share without its sign", "memory:\n  held_share: 0.25\n", []string{
		`sluice.yaml:2:3: memory.held_share: "0.25" is not a percentage; write a percentage from 0% to 100%, such as 25%`,
	}},
	{"a share above all", "dead_letter: {max_share: 101%}\n", []string{
		`sluice.yaml:1:15: dead_letter.max_share: "101%" is not a percentage; write a percentage from 0% to 100%, such as 25%`,
	}},
	{"yes", "indexer: {scaling: {enabled: yes}}\n", []string{
		`sluice.yaml:1:21: indexer.scaling.enabled: "yes" is not true or false; write true or false`,
	}},
	{"half a document", "indexer: {flush_documents: 1.5}\n", []string{
		`sluice.yaml:1:11: indexer.flush_documents: "1.5" is not a whole number; write digits only, such as 10`,
	}},
	{"no number", "indexer: {scaling: {active_ratio: .inf}}\n", []string{
		`sluice.yaml:1:21: indexer.scaling.active_ratio: ".inf" is not a number; write one such as 0.5`,
	}},

	// Variables
	{"a variable that is not set", "kafka: {group_id: '${env:NONE}'}\n", []string{
		"sluice.yaml:1:9: kafka.group_id: the environment variable NONE is not set; set it, or give a default: ${env:NONE:-default}",
	}},
	{"a variable that is asked for", "kafka: {group_id: 'a${env:EMPTY:?name the group}'}\n", []string{
		"sluice.yaml:1:9: kafka.group_id: the environment variable EMPTY is not set or empty: name the group; set it",
	}},
	{"a variable without an end", "kafka: {group_id: '${env:X'}\n", []string{
		"sluice.yaml:1:9: kafka.group_id: ${env: is not closed; write ${env:NAME}, or $${ for a plain ${",
	}},
	{"a variable of another language", "kafka: {group_id: '${env:X-y}'}\n", []string{
		"sluice.yaml:1:9: kafka.group_id: a variable that cannot be read; write ${env:NAME}, ${env:NAME:-default} or ${env:NAME:?message}",
	}},
	{"a variable's bad value", "kafka:\n  commit_interval: ${env:HIDDEN}\n  brokers: [a:1, '${env:HIDDEN}:x']\n", []string{
		"sluice.yaml:2:3: kafka.commit_interval: the value (not shown) is not a duration; write a number with a unit: ms, s, m, h or d, such as 250ms, 30s or 7d",
		"sluice.yaml:3:18: kafka.brokers[1]: the value (not shown) is not host:port; write one broker for each element, without a scheme, such as kafka-1:9092",
	}},

	// Kafka
	{"nothing to connect to or consume", "kafka:\n  brokers: []\n  topics: []\n  group_id: ''\n", []string{
		`sluice.yaml:2:3: kafka.brokers: no broker is named; write at least one, such as ["localhost:9092"]`,
		`sluice.yaml:3:3: kafka.topics: no topic is named; write at least one, such as ["events"] or ["^logs-.*"]`,
		"sluice.yaml:4:3: kafka.group_id: is empty; name the consumer group, such as sluice",
	}},
	{"brokers in one text", "kafka:\n  brokers:\n    - a:9092\n    - b:9092,c:9092\n    - http://d:9092\n    - u:hunter2@e:9092\n", []string{
		`sluice.yaml:4:7: kafka.brokers[1]: "b:9092,c:9092" is not host:port; write one broker for each element, without a scheme, such as kafka-1:9092`,
		`sluice.yaml:5:7: kafka.brokers[2]: "http://d:9092" is not host:port; write one broker for each element, without a scheme, such as kafka-1:9092`,
		`sluice.yaml:6:7: kafka.brokers[3]: the value (not shown) is not host:port; write one broker for each element, without a scheme, such as kafka-1:9092`,
	}},
	{"a bad regular expression", "kafka: {topics: ['^logs-(']}\n", []string{
		"sluice.yaml:1:18: kafka.topics[0]: \"^logs-(\" is not a regular expression: error parsing regexp: missing closing ): `^logs-(`; see https://pkg.go.dev/regexp/syntax; a backslash in double quotes is written twice",
	}},
	{"a glob", "kafka: {topics: ['logs-*']}\n", []string{
		`sluice.yaml:1:18: kafka.topics[0]: "logs-*" is not a topic's name; put ^ in front to make it a regular expression, such as ^logs-.*`,
	}},
	{"a topic that cannot be", "kafka: {topics: ['my events']}\n", []string{
		`sluice.yaml:1:18: kafka.topics[0]: "my events" is not a topic's name; use letters, digits and . _ - only, 249 at most`,
	}},
	{"Sluice's own topics and Kafka's", "kafka: {topics: [dead, dead.parked, __consumer_offsets]}\ndead_letter: {topic: dead}\ndocuments: {disjoint_keys: true}\n", []string{
		"sluice.yaml:1:18: kafka.topics[0]: is the dead-letter topic: its letters would be consumed again and again; remove it; `sluice deadletter replay` reads the letters",
		"sluice.yaml:1:24: kafka.topics[1]: is the topic of parked records, which Sluice replays by itself; remove it",
		"sluice.yaml:1:37: kafka.topics[2]: is one of Kafka's own topics; remove it",
	}},
	{"words that are not known", "kafka:\n  reset: beginning\n  on_data_loss: ignore\n  isolation_level: dirty\n  group_protocol: new\n", []string{
		`sluice.yaml:2:3: kafka.reset: "beginning" is not known here; use earliest, latest, none or an RFC 3339 time such as 2026-01-31T12:00:00Z`,
		`sluice.yaml:3:3: kafka.on_data_loss: "ignore" is not known here; use halt or resume`,
		`sluice.yaml:4:3: kafka.isolation_level: "dirty" is not known here; use read_committed or read_uncommitted`,
		`sluice.yaml:5:3: kafka.group_protocol: "new" is not known here; use classic or consumer`,
	}},
	{"timeouts that do not fit", "kafka:\n  session_timeout: 10ms\n  rebalance_timeout: 5s\n  drain_timeout: 10s\n  commit_interval: 0s\n", []string{
		"sluice.yaml:2:3: kafka.session_timeout: must be 1s to 30m; choose a value in between; the default is sane",
		"sluice.yaml:4:3: kafka.drain_timeout: is not below kafka.rebalance_timeout: the group would go on without this member while it drains; lower it, or raise kafka.rebalance_timeout",
		"sluice.yaml:5:3: kafka.commit_interval: must be above 0; write a value such as 1s",
	}},
	{"a fetch that cannot be", "kafka:\n  fetch: {min_bytes: 2MiB, max_bytes: 1MiB}\n", []string{
		"sluice.yaml:2:11: kafka.fetch.min_bytes: is above kafka.fetch.max_bytes; lower it, or raise kafka.fetch.max_bytes",
	}},
	{"TLS that is off", "kafka:\n  tls:\n    ca_file: DIR/ca.pem\n", []string{
		"sluice.yaml:3:5: kafka.tls.ca_file: has no effect: kafka.tls.enabled is false and the connection is not encrypted; set kafka.tls.enabled: true, or remove it",
	}},
	{"files that are not PEM, or half of a pair", "kafka:\n  tls: {enabled: true, cert_file: DIR/ca.pem,\n   ca_file: DIR/secret}\n", []string{
		"sluice.yaml:2:24: kafka.tls.cert_file: a client certificate without its key; set key_file too",
		"sluice.yaml:3:4: kafka.tls.ca_file: DIR/secret holds no certificate that can be read; it must be PEM, with CERTIFICATE blocks",
	}},
	{"a mechanism that is not known", "kafka: {sasl: {mechanism: plain}}\n", []string{
		`sluice.yaml:1:16: kafka.sasl.mechanism: "plain" is not known here; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM`,
	}},
	{"half of a login", "kafka:\n  sasl:\n    mechanism: PLAIN\n", []string{
		"sluice.yaml:3:5: kafka.sasl.mechanism: PLAIN needs a user name; set kafka.sasl.username",
		"sluice.yaml:3:5: kafka.sasl.mechanism: PLAIN needs a password; set kafka.sasl.password_file, or password: ${env:NAME}",
	}},
	{"a login without a mechanism", "kafka: {sasl: {username: u, password: p}}\n", []string{
		"sluice.yaml:1:16: kafka.sasl.username: has no effect without a mechanism; set kafka.sasl.mechanism to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM",
	}},
	{"a password twice", "kafka:\n  sasl: {mechanism: PLAIN, username: u, password: p, password_file: DIR/secret}\n", []string{
		"sluice.yaml:2:54: kafka.sasl.password_file: stands beside kafka.sasl.password; keep one of the two",
	}},
	{"a token beside a password", "kafka:\n  sasl: {mechanism: OAUTHBEARER, username: u}\n", []string{
		"sluice.yaml:2:10: kafka.sasl.mechanism: OAUTHBEARER needs a token; set kafka.sasl.token_file",
		"sluice.yaml:2:10: kafka.sasl.mechanism: OAUTHBEARER knows no user name and no password; remove them, or use PLAIN or SCRAM-SHA-512",
	}},
	{"half of an access key", "kafka:\n  sasl: {mechanism: AWS_MSK_IAM, username: u}\n", []string{
		"sluice.yaml:2:10: kafka.sasl.mechanism: AWS_MSK_IAM is taken over TLS only; set kafka.tls.enabled: true",
		"sluice.yaml:2:10: kafka.sasl.mechanism: half of an access key; set kafka.sasl.username and password_file, or neither: AWS gives the process its credentials then",
	}},
	{"a session token of no access key", "kafka:\n  tls: {enabled: true}\n  sasl: {mechanism: AWS_MSK_IAM, token_file: DIR/secret}\n", []string{
		"sluice.yaml:3:34: kafka.sasl.token_file: is the session token of an access key, and there is none; set kafka.sasl.username and password_file, or remove it",
	}},
	{"secrets that are not there", "kafka:\n  sasl: {mechanism: PLAIN, username: u, password_file: DIR/none}\nelasticsearch:\n  api_key_file: DIR/empty\n", []string{
		"sluice.yaml:2:41: kafka.sasl.password_file: cannot read DIR/none: no such file or directory; check the path and who may read it",
		"sluice.yaml:4:3: elasticsearch.api_key_file: DIR/empty is empty; write the secret into it",
	}},

	// Elasticsearch
	{"addresses", "elasticsearch:\n  addresses:\n    - es:9200\n    - https://u:hunter2@es:9200\n    - http://es:9200?x=y\n", []string{
		"sluice.yaml:3:7: elasticsearch.addresses[0]: is not an http or https address; write it like http://host:9200 or https://host:9200",
		"sluice.yaml:4:7: elasticsearch.addresses[1]: holds a user name; move it to elasticsearch.username and password_file, where it is not shown in logs",
		"sluice.yaml:5:7: elasticsearch.addresses[2]: has no host, or parts after the path; write it like http://host:9200 or https://host:9200",
	}},
	{"no address", "elasticsearch: {addresses: []}\n", []string{
		`sluice.yaml:1:17: elasticsearch.addresses: no address is named; write at least one, such as ["http://localhost:9200"]`,
	}},
	{"two ways to get there", "elasticsearch:\n  addresses: ['http://es:9200']\n  cloud_id: prod:ZXhhbXBsZS5jb20kYWJj\n", []string{
		"sluice.yaml:3:3: elasticsearch.cloud_id: stands beside elasticsearch.addresses; keep one of the two",
	}},
	{"half a cloud id", "elasticsearch: {cloud_id: 'prod:ZXhhbXBs'}\n", []string{
		`sluice.yaml:1:17: elasticsearch.cloud_id: the value (not shown) is not a cloud id; copy it whole from the deployment's page: name:letters`,
	}},
	{"two ways to log in", "elasticsearch:\n  api_key: hunter2\n  username: u\n  password: hunter3\n", []string{
		"sluice.yaml:3:3: elasticsearch.username: stands beside an API key; keep one of the two ways to log in",
	}},
	{"a user without a password", "elasticsearch: {username: u}\n", []string{
		"sluice.yaml:1:17: elasticsearch.username: has no password; set elasticsearch.password_file, or password: ${env:NAME}",
	}},
	{"a password without a user", "elasticsearch: {password: hunter2}\n", []string{
		"sluice.yaml:1:17: elasticsearch.password: has no user name; set elasticsearch.username",
	}},
	{"TLS over plain HTTP", "elasticsearch:\n  tls: {insecure_skip_verify: true}\n", []string{
		"sluice.yaml:2:9: elasticsearch.tls.insecure_skip_verify: has no effect: no address begins with https:// and the connection is not encrypted; write https:// in elasticsearch.addresses, or remove it",
	}},
	{"compression and timeout", "elasticsearch:\n  compression_level: 10\n  request_timeout: 60s\n", []string{
		"sluice.yaml:2:3: elasticsearch.compression_level: must be 0 (off) to 9; 1 costs least and gains most",
		"sluice.yaml:3:3: elasticsearch.request_timeout: must be above 0 and below 60s: Elasticsearch forgets a deleted document's version after 60s, and an older write that came later would bring it back; the default is 20s",
	}},

	// Documents: what document.New finds, brought to its place
	{"an index that a record chooses", "documents:\n  customer: key\n  index: ${customer}\n", []string{
		"sluice.yaml:3:3: documents.index: the name must begin with text of its own or with ${topic}: nothing in a record may choose any index; write a literal name, or one such as events-${customer}",
	}},
	{"an index that cannot be", "documents: {index: My Events}\n", []string{
		"sluice.yaml:1:13: documents.index: ' ' cannot stand in an index name; write a literal name, or one such as events-${customer}",
	}},
	{"an unknown variable", "documents: {index: 'events-${tenant}'}\n", []string{
		"sluice.yaml:1:13: documents.index: ${tenant} is no variable; write a literal name, or one such as events-${customer}",
	}},
	{"op and version", "documents:\n  op: create\n  version: sequence\n", []string{
		"sluice.yaml:3:3: documents.version: the server takes external versions with op: index and an id only; use version: auto, or op: index and an id",
	}},
	{"a delete without its id", "documents:\n  id: field:/id\n  on_null: delete\n", []string{
		"sluice.yaml:3:3: documents.on_null: a null value is a delete, but has no such id: field:/id; take it from the key, a header, the topic or the record's timestamp, or set on_null to ignore, fail or dead_letter",
	}},
	{"strip without reading", "documents: {metadata_fields: strip}\n", []string{
		"sluice.yaml:1:13: documents.metadata_fields: strip needs a value that is read, and validate: server does not read it; use validate: strict, or metadata_fields: reject",
	}},
	{"a data stream that is updated", "documents: {data_stream: true, op: index}\n", []string{
		"sluice.yaml:1:32: documents.op: a data stream takes op: create only; use op: auto",
	}},
	{"dead letters without a place", "documents: {on_rejected: dead_letter}\n", []string{
		"sluice.yaml:1:13: documents.on_rejected: there is no place for dead letters; set dead_letter.topic or index, or use stop or drop",
	}},
	{"zeros that would be defaults", "documents:\n  time_window: {past: 0s}\n  max_depth: 0\n", []string{
		"sluice.yaml:2:17: documents.time_window.past: must be above 0; write a value such as 365d",
		"sluice.yaml:3:3: documents.max_depth: must be above 0; write a value such as 200",
	}},
	{"two topics in one index", "kafka: {topics: [a, b]}\ndocuments:\n  id: key\n", []string{
		`sluice.yaml:3:3: documents.id: several topics (a, b) write to "events" with ids that may be equal, so that one topic's record replaces another's; put ${topic} into the id or the index, or say disjoint_keys: true where no two topics share a key`,
	}},
	{"an override's regular expression, and a word of its base", "documents: {op: delete}\noverrides:\n  - topics: ['^(']\n    documents: {index: b}\n", []string{
		`sluice.yaml:1:13: documents.op: "delete" is not known; use auto, index, create, update, upsert`,
		"sluice.yaml:3:5: overrides[0].topics: \"^(\" is not a regular expression; error parsing regexp: missing closing ): `^(`",
	}},

	// The rest
	{"nothing in flight", "indexer:\n  requests: {min: 0, max: 4}\n  scaling: {min: 4, max: 2, active_ratio: 0}\n  retry: {initial: 10s, item_attempts: 0}\n", []string{
		"sluice.yaml:2:14: indexer.requests.min: must be at least 1; write 1 or more",
		"sluice.yaml:3:13: indexer.scaling.min: is above indexer.scaling.max; lower it, or raise indexer.scaling.max",
		"sluice.yaml:3:29: indexer.scaling.active_ratio: must be above 0; write a value such as 1: as many indexers as GOMAXPROCS",
		"sluice.yaml:4:11: indexer.retry.initial: is above indexer.retry.max; lower it, or raise indexer.retry.max",
		"sluice.yaml:4:25: indexer.retry.item_attempts: must be at least 1; write 1 or more",
	}},
	{"more requests at least than at most", "indexer: {requests: {min: 65}}\n", []string{
		"sluice.yaml:1:22: indexer.requests.min: is above indexer.requests.max; lower it, or raise indexer.requests.max",
	}},
	{"a record above all memory", "memory: {limit: 64MiB, max_record: 128MiB}\n", []string{
		"sluice.yaml:1:24: memory.max_record: is above memory.limit; lower it, or raise memory.limit",
	}},
	{"a request above all memory", "memory: {limit: 1MiB}\n", []string{
		"sluice.yaml:1:1: indexer.flush_bytes: is above memory.limit; lower it, or raise memory.limit",
	}},
	{"procs", "procs: {mode: cgroup, interval: 0}\n", []string{
		`sluice.yaml:1:9: procs.mode: "cgroup" is not known here; use automaxprocs or runtime`,
		"sluice.yaml:1:23: procs.interval: must be above 0; write a value such as 30s",
	}},
	{"dead letters", "dead_letter: {topic: 'dead letters', max_share: 0%, oversize: cut}\n", []string{
		`sluice.yaml:1:15: dead_letter.topic: "dead letters" is not a topic's name; use letters, digits and . _ - only, 242 at most`,
		"sluice.yaml:1:38: dead_letter.max_share: must be above 0%: every rejection would hold its target; write a percentage from 0% to 100%, such as 25%",
		`sluice.yaml:1:53: dead_letter.oversize: "cut" is not known here; use hold or chunk`,
	}},
	{"routing", "routing: {control_index: Control, refresh_interval: 10m}\n", []string{
		"sluice.yaml:1:11: routing.control_index: has upper case, which Elasticsearch takes in no index name; write a name such as .sluice-control",
		"sluice.yaml:1:35: routing.refresh_interval: is above routing.max_staleness; lower it, or raise routing.max_staleness",
	}},
	{"an open door", "admin:\n  address: 0.0.0.0:9600\n", []string{
		`sluice.yaml:2:3: admin.address: "0.0.0.0:9600" can be reached from other machines: set admin.token_file or admin.tls.client_ca_file, or listen on 127.0.0.1`,
	}},
	{"log and shutdown", "log: {level: loud, format: xml}\nshutdown_timeout: -1s\n", []string{
		`sluice.yaml:1:7: log.level: "loud" is not known here; use trace, debug, info, warn or error`,
		`sluice.yaml:1:20: log.format: "xml" is not known here; use auto, text or json`,
		"sluice.yaml:2:1: shutdown_timeout: must be above 0; write a value such as 30s",
	}},

	{"an index of dead letters beside a topic", "dead_letter: {topic: dead, index: dead, oversize: chunk}\n", []string{
		"sluice.yaml:1:28: dead_letter.index: stands beside dead_letter.topic; keep one of the two",
		"sluice.yaml:1:41: dead_letter.oversize: chunk cuts letters for a topic, and they go to an index; use hold; an index takes letters as large as the servers' http.max_content_length",
	}},
	{"an index of dead letters that is none", "dead_letter: {index: Dead}\n", []string{
		"sluice.yaml:1:15: dead_letter.index: has upper case, which Elasticsearch takes in no index name; write a name such as dead-letters",
	}},
	{"an index of dead letters that documents go to", "overrides: [{topics: [a], documents: {index: dead}}]\ndead_letter: {index: dead}\n", []string{
		"sluice.yaml:2:15: dead_letter.index: is an index that documents go to; name an index of its own",
	}},
	{"an index of dead letters that controls", "dead_letter: {index: .sluice-control}\n", []string{
		"sluice.yaml:1:15: dead_letter.index: is the control index; name an index of its own",
	}},
	{"tombstones without versions", "documents: {deletes: tombstone, version: none}\n", []string{
		"sluice.yaml:1:13: documents.deletes: a tombstone keeps the version of its delete, and there is none; use deletes: hard, or op: index with a version",
	}},

	// Routing by customer
	{"a routed stream without a customer", "routing: {stream: s}\n", []string{
		"sluice.yaml:1:1: documents.customer: there is no customer to route the stream by; set it to header:NAME, key, key:REGEXP or field:/POINTER",
	}},
	{"S27: a customer that null values lack", "documents: {customer: 'field:/c'}\nrouting: {stream: s}\n", []string{
		"sluice.yaml:1:13: documents.customer: a null value is a delete, but has no field to take the customer from; take it from the key, a header, the topic or the record's timestamp, or set on_null to ignore, fail or dead_letter",
	}},
	{"a routed stream with several indices", `documents: {index: events, customer: key}
overrides:
  - topics: [a]
    documents: {index: others}
routing: {stream: a b}
`, []string{
		"sluice.yaml:4:17: overrides[0].documents.index: a routed stream has one legacy index, and documents.index is \"events\"; leave it out, or run a Sluice of its own for these topics",
		"sluice.yaml:5:11: routing.stream: \"a b\" is not a stream's name; use letters, digits and . _ - only, 200 at most",
	}},

	// Not available yet
	{"what comes later", `documents:
  format: avro
  schema_registry: {url: "http://registry"}
overrides:
  - topics: [a]
    documents: {format: protobuf}
dead_letter: {topic: dead}
`, []string{
		"sluice.yaml:2:3: documents.format: is not available yet with this value; use json, or raw to keep the bytes in a field",
		"sluice.yaml:3:3: documents.schema_registry: is not available yet; remove the section",
		"sluice.yaml:6:17: overrides[0].documents.format: is not available yet with this value; use json, or raw to keep the bytes in a field",
	}},
	{"parking without dead letters", "indexer: {held: park}\n", []string{
		"sluice.yaml:1:11: indexer.held: park needs a topic for the parked records; set dead_letter.topic: they go to its name with .parked",
	}},
}

// badFiles writes the files that the table names and returns their folder.
func badFiles(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"ca.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"secret": []byte("hunter2\n"),
		"empty":  []byte("\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBadConfigurations(t *testing.T) {
	dir := badFiles(t)
	variables := env(map[string]string{"EMPTY": "", "HIDDEN": "hunter2"})
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.ReplaceAll(tt.text, "DIR", dir)
			_, err := Parse([]Source{{"sluice.yaml", []byte(text)}}, nil, variables)
			if err == nil {
				t.Fatal("is accepted")
			}
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("%T instead of Errors", err)
			}
			got := strings.ReplaceAll(err.Error(), dir, "DIR")
			if want := strings.Join(tt.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if strings.Contains(got, "hunter") {
				t.Errorf("shows a secret:\n%s", got)
			}
		})
	}
}

// Errors of several sources come in the order in which the sources were given,
// and name theirs.
func TestErrorsNameTheirSource(t *testing.T) {
	tests := []struct {
		sets []string
		want string
	}{
		{
			[]string{"indexer.requests.max=5", "kafka.client_id=", "kafka.commit_interval=1", "elasticsearch.addresses=[]"},
			"a.yaml:2:14: indexer.requests.min: is above indexer.requests.max; lower it, or raise indexer.requests.max\n" +
				`a.yaml:3:7: log.level: "loud" is not known here; use trace, debug, info, warn or error` + "\n" +
				`b.yaml:1:7: log.format: "xml" is not known here; use auto, text or json` + "\n" +
				`--set kafka.commit_interval: "1" is not a duration; ` + durationRemedy + "\n" +
				`--set elasticsearch.addresses: no address is named; write at least one, such as ["http://localhost:9200"]`,
		},
		{ // what cannot be read is all that is said
			[]string{"kafka.topics=events", "kafka", "kafka.tipics=[a]", "=x", "kafka.group_id=[", "kafka.rack=*x", "kafka.rack=# none"},
			"--set kafka.topics: a single value where a list belongs; write [a, b], or one `- ` line for each; [] for none\n" +
				"--set kafka: is not KEY=VALUE; write it like --set kafka.group_id=sluice\n" +
				"--set kafka.tipics: unknown key; did you mean topics?\n" +
				"--set : is not KEY=VALUE; write it like --set kafka.group_id=sluice\n" +
				"--set kafka.group_id: not YAML: did not find expected node content; check the indentation, and quote texts that hold : # { } [ ] & * or begin with % @ `\n" +
				"--set kafka.rack: not YAML: unknown anchor ... referenced; quote a text that begins with *",
		},
	}
	for _, tt := range tests {
		_, err := Parse([]Source{
			{"a.yaml", []byte("indexer:\n  requests: {min: 10}\nlog: {level: loud}\n")},
			{"b.yaml", []byte("log: {format: xml}\n")},
		}, tt.sets, env(nil))
		if err == nil || err.Error() != tt.want {
			t.Errorf("got\n%v\nwant\n%s", err, tt.want)
		}
	}
}
