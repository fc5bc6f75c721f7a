package consumer

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
	"github.com/sluicehq/sluice/memory"
)

// Config is the `kafka` section.
type Config struct {
	Brokers []string `yaml:"brokers"`
	GroupID string   `yaml:"group_id"`
	// Topics names what is consumed; an entry that begins with ^ is a regular
	// expression.
	Topics []string `yaml:"topics"`
	// Reset is where a partition without a commit starts: earliest, latest,
	// none or an RFC 3339 time.
	Reset string `yaml:"reset"`
	// OnDataLoss is "halt" or "resume": out of range, truncation.
	OnDataLoss     string `yaml:"on_data_loss"`
	IsolationLevel string `yaml:"isolation_level"` // read_committed | read_uncommitted
	InstanceID     string `yaml:"instance_id"`
	ClientID       string `yaml:"client_id"`
	Rack           string `yaml:"rack"`
	GroupProtocol  string `yaml:"group_protocol"` // classic | consumer

	SessionTimeout   time.Duration `yaml:"session_timeout"`
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout"`
	// DrainTimeout is the longest wait on a revoke for what is on the wire.
	DrainTimeout   time.Duration `yaml:"drain_timeout"`
	CommitInterval time.Duration `yaml:"commit_interval"`
	Fetch          Fetch         `yaml:"fetch"`
	TLS            TLS           `yaml:"tls"`
	SASL           SASL          `yaml:"sasl"`
}

// Fetch is the `kafka.fetch` section.
type Fetch struct {
	MaxBytes memory.Size   `yaml:"max_bytes"` // 0: auto, derived from the memory limit
	MinBytes memory.Size   `yaml:"min_bytes"`
	MaxWait  time.Duration `yaml:"max_wait"`
}

// TLS is the `kafka.tls` section.
type TLS struct {
	Enabled         bool `yaml:"enabled"`
	credentials.TLS `yaml:",inline"`
}

// SASL is the `kafka.sasl` section.
type SASL struct {
	Mechanism    string             `yaml:"mechanism"`
	Username     string             `yaml:"username"`
	Password     credentials.Secret `yaml:"password"`
	PasswordFile string             `yaml:"password_file"`
	TokenFile    string             `yaml:"token_file"`
}
