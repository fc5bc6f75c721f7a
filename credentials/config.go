package credentials

// Secret is a text that must never be shown: printed, logged or encoded,
// "[redacted]" comes out ("" stays ""). Reveal returns the text. Fields of this
// type are exported: fmt shows what is in others without asking their methods.
type Secret string

// TLS is a client's `tls` section. Files are PEM and are read again when they
// change on disk, so that certificates can be replaced while running.
type TLS struct {
	// Certificate authorities that are trusted instead of the system's.
	//
	// Example: /etc/sluice/tls/ca.pem
	CAFile string `yaml:"ca_file"`
	// The client's own certificate; with `key_file`.
	//
	// Example: /etc/sluice/tls/client.pem
	CertFile string `yaml:"cert_file"`
	// The certificate's key.
	//
	// Example: /etc/sluice/tls/client.key
	KeyFile string `yaml:"key_file"`
	// The name that the server's certificate must carry, where it is not the host
	// of the address.
	//
	// Example: search.example.org
	ServerName string `yaml:"server_name"`
	// **Danger: accepts every certificate.** Whoever sits in between reads and
	// changes everything. For experiments only.
	InsecureSkipVerify bool `yaml:"insecure_skip_verify"`
}
