package credentials

// Secret is a text that must never be shown: its String, GoString, MarshalText
// and MarshalJSON give "[redacted]" ("" stays ""). Reveal returns the text.
type Secret string

// TLS is a client's `tls` section. Files are PEM and are read again when they
// change on disk, so that certificates can be replaced while running.
type TLS struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	ServerName         string `yaml:"server_name"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}
