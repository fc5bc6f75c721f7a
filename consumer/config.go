package consumer

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
	"github.com/sluicehq/sluice/memory"
)

// Config is the `kafka` section.
type Config struct {
	// Where the cluster is first asked for, `host:port`; one or two brokers are
	// enough. Without a port it is 9092.
	//
	// Example: ["kafka-1:9092", "kafka-2:9092"]
	Brokers []string `yaml:"brokers"`
	// The consumer group. Its committed offsets say how far everything is handled.
	// **Another name starts anew at `reset`.**
	//
	// Example: orders-search
	GroupID string `yaml:"group_id"`
	// What is consumed: names, and regular expressions that begin with `^` (Go
	// syntax; write the `$` too where it must match to the end). A regular
	// expression never matches the dead-letter topic, its `.parked` topic or
	// `__*`; naming one of them is refused.
	//
	// Values: list of names, and of regular expressions that begin with ^
	// Example: ["orders", "^returns-.*$"]
	Topics []string `yaml:"topics"`
	// Where a partition without a commit starts: `earliest`, `latest`, `none`
	// (that is an error) or an RFC 3339 time. **`latest` leaves out what was
	// written before the first commit.**
	//
	// Values: `earliest`, `latest`, `none`, or an RFC 3339 time
	// Example: 2026-01-31T12:00:00Z
	Reset string `yaml:"reset"`
	// Records that are gone before they were read (out of range, truncation):
	// `halt` stops that partition and names the lost range; `resume` goes on
	// behind it.
	//
	// Values: `halt`, `resume`
	// Example: resume
	OnDataLoss string `yaml:"on_data_loss"`
	// What of transactions is read. **`read_uncommitted` also indexes what they
	// took back.**
	//
	// Values: `read_committed`, `read_uncommitted`
	// Example: read_uncommitted
	IsolationLevel string `yaml:"isolation_level"`
	// Static membership: a name that is this replica's own and stays the same over
	// restarts. A restart within `session_timeout` then moves no partition; at
	// scale-down the partitions of the member that is gone stand still that long.
	//
	// Example: ${env:POD_NAME}
	InstanceID string `yaml:"instance_id"`
	// The name in the brokers' logs and quotas.
	//
	// Example: orders-search
	ClientID string `yaml:"client_id"`
	// Where this replica stands, in the words of the brokers' own `broker.rack`.
	// It then fetches from replicas of its rack where the brokers allow it
	// ([scaling](scaling.md#zones)). Empty: from leaders only.
	//
	// Example: zone-a
	Rack string `yaml:"rack"`
	// `classic`, or `consumer` (KIP-848): the brokers assign the partitions, and a
	// change moves only those that change hands. It needs brokers from 4.3 on:
	// older ones fail commits in normal operation, so Sluice ends with an error
	// where it meets one. With it the brokers decide the session time-out and the
	// heartbeats (`group.consumer.session.timeout.ms`); set `session_timeout` to
	// the same, since it also bounds how long writing goes on without a heartbeat.
	// Keep it above 10s: the brokers ask for a heartbeat every 5 s by default. To
	// change the protocol of a group, stop its members first.
	//
	// Values: `classic`, `consumer`
	// Example: consumer
	GroupProtocol string `yaml:"group_protocol"`

	// Within the brokers' own limits. The group gives a silent member's
	// partitions away after this. Bulk requests stop when the last heartbeat is
	// older than half of it.
	//
	// Values: duration, 1s to 30m
	// Example: 30s
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// How long the group waits for its members to let go of partitions.
	//
	// Values: duration, 1s to 1h
	// Example: 90s
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout"`
	// How long a partition that leaves waits for its requests on the wire; below
	// `rebalance_timeout`. Shorter: more records are delivered again.
	//
	// Example: 10s
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// How often progress is committed. Longer: more records are delivered again
	// after a crash.
	//
	// Example: 5s
	CommitInterval time.Duration `yaml:"commit_interval"`
	Fetch          Fetch         `yaml:"fetch"`
	TLS            TLS           `yaml:"tls"`
	SASL           SASL          `yaml:"sasl"`
}

// Fetch is the `kafka.fetch` section.
type Fetch struct {
	// The most that one fetch brings from one broker. `auto` follows `memory.limit`: the fetches of
	// all brokers together, decompressed, stay below a quarter of it, and each
	// below 8MiB.
	//
	// Example: 16MiB
	MaxBytes memory.Size `yaml:"max_bytes"`
	// A broker answers when it has this much, or after `max_wait`.
	//
	// Values: size, or a number of bytes
	// Example: 64KiB
	MinBytes memory.Size `yaml:"min_bytes"`
	// The longest that a broker waits for `min_bytes`.
	//
	// Example: 1s
	MaxWait time.Duration `yaml:"max_wait"`
}

// TLS is the `kafka.tls` section.
type TLS struct {
	// Encrypt the connection and check the brokers' certificates. **Without it,
	// records and passwords can be read on the way**; the keys below are refused
	// then.
	Enabled         bool `yaml:"enabled"`
	credentials.TLS `yaml:",inline"`
}

// SASL is the `kafka.sasl` section.
type SASL struct {
	// How to log in; empty: not at all. `AWS_MSK_IAM` needs nothing else where AWS
	// gives the process its credentials: by an EKS service account or pod identity,
	// ECS, an instance's role, or `AWS_ACCESS_KEY_ID` and its kin in the
	// environment. **`PLAIN` without TLS sends the password as it is.**
	//
	// Values: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`, `AWS_MSK_IAM`, or empty
	// Example: SCRAM-SHA-512
	Mechanism string `yaml:"mechanism"`
	// The name to log in with, for `PLAIN` and `SCRAM-*`; for `AWS_MSK_IAM` an
	// access key's id, where AWS gives the process none.
	//
	// Example: sluice
	Username string `yaml:"username"`
	// The password, for `PLAIN` and `SCRAM-*`, or the access key's secret; or
	// `password_file`, not both.
	//
	// Example: ${env:KAFKA_PASSWORD}
	Password credentials.Secret `yaml:"password"`
	// A file with the password.
	//
	// Example: /etc/sluice/secrets/kafka/password
	PasswordFile string `yaml:"password_file"`
	// A file with the token, for `OAUTHBEARER`, or with the session token of the
	// access key.
	//
	// Example: /etc/sluice/secrets/kafka/token
	TokenFile string `yaml:"token_file"`
}
