package admin

// Config is the `admin` section.
type Config struct {
	// Where health, metrics, status, the live page and calls of an operator are
	// answered. **Another address than
	// loopback is refused without `token_file` or `tls.client_ca_file`.**
	//
	// Values: host:port
	// Example: 0.0.0.0:9600
	Address string `yaml:"address"`
	// A file with the token that calls which change state must carry.
	//
	// Example: /etc/sluice/admin/token
	TokenFile string `yaml:"token_file"`
	TLS       TLS    `yaml:"tls"`
}

// TLS is the `admin.tls` section.
type TLS struct {
	// The server's certificate; with `key_file`: HTTPS.
	//
	// Example: /etc/sluice/tls/server.pem
	CertFile string `yaml:"cert_file"`
	// The certificate's key.
	//
	// Example: /etc/sluice/tls/server.key
	KeyFile string `yaml:"key_file"`
	// A client with a certificate of these authorities may change state. Needs
	// `cert_file`.
	//
	// Example: /etc/sluice/tls/operators.pem
	ClientCAFile string `yaml:"client_ca_file"`
}
