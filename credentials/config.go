package credentials

// Secret is a text that must never be shown: printed, logged or encoded,
// "[redacted]" comes out ("" stays ""). Reveal returns the text. Fields of this
// type are exported: fmt shows what is in others without asking their methods.
type Secret string

// TLS is a client's `tls` section. Files are PEM and are read again when they
// change on disk, so that certificates can be replaced while running.
type TLS struct {
	// CAFile holds the certificate authorities that are trusted instead of the
	// system's. "": the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile are the client's own certificate and key, both or
	// neither.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name that the server's certificate must carry. "": the
	// host of the address that was dialled.
	ServerName string `yaml:"server_name"`
	// InsecureSkipVerify accepts every certificate of every server. Whoever
	// sits between the two then reads and changes all records and reads the
	// credentials: for experiments only.
	InsecureSkipVerify bool `yaml:"insecure_skip_verify"`
}
