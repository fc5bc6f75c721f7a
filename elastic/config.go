package elastic

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
)

// Config is the `elasticsearch` section.
type Config struct {
	Addresses        []string           `yaml:"addresses"`
	Username         string             `yaml:"username"`
	Password         credentials.Secret `yaml:"password"`
	PasswordFile     string             `yaml:"password_file"`
	APIKey           credentials.Secret `yaml:"api_key"`
	APIKeyFile       string             `yaml:"api_key_file"`
	CloudID          string             `yaml:"cloud_id"`
	CompressionLevel int                `yaml:"compression_level"` // gzip, 0 (off) to 9
	RequestTimeout   time.Duration      `yaml:"request_timeout"`
	TLS              credentials.TLS    `yaml:"tls"`
}
