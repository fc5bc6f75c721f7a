package elastic

import (
	"time"

	"github.com/sluicehq/sluice/credentials"
)

// Config is the `elasticsearch` section.
type Config struct {
	// The nodes that take bulk requests, `http://` or `https://`. No user name or
	// password in it: they would stand in logs.
	//
	// Values: list of URLs
	// Example: ["https://search-1:9200", "https://search-2:9200"]
	Addresses []string `yaml:"addresses"`
	// The name to log in with; with `password` or `password_file`.
	//
	// Example: sluice
	Username string `yaml:"username"`
	// The password; or `password_file`, not both.
	//
	// Example: ${env:ELASTICSEARCH_PASSWORD}
	Password credentials.Secret `yaml:"password"`
	// A file with the password.
	//
	// Example: /etc/sluice/secrets/elasticsearch/password
	PasswordFile string `yaml:"password_file"`
	// An API key, instead of a user name: `id:key` or its encoded form.
	//
	// Example: ${env:ELASTICSEARCH_API_KEY}
	APIKey credentials.Secret `yaml:"api_key"`
	// A file with the API key.
	//
	// Example: /etc/sluice/secrets/elasticsearch/api-key
	APIKeyFile string `yaml:"api_key_file"`
	// Elastic Cloud's name of a deployment, instead of `addresses`.
	//
	// Example: search:ZXhhbXBsZS5vcmckYWJj
	CloudID string `yaml:"cloud_id"`
	// The level of gzip for requests. 0 is off: about a third of the CPU, several times the
	// network. Above 1 costs much and gains little.
	//
	// Values: 0 to 9
	// Example: 0
	CompressionLevel int `yaml:"compression_level"`
	// The longest that one bulk request may take. **Keep it well below
	// `index.gc_deletes` of the indices** (60s unless set; `sluice validate` warns
	// below 15m): a write that lands after a deleted document's version is
	// forgotten brings the document back.
	//
	// Values: duration, below 60s
	// Example: 30s
	RequestTimeout time.Duration   `yaml:"request_timeout"`
	TLS            credentials.TLS `yaml:"tls"`
}
