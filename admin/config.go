package admin

// Config is the `admin` section.
type Config struct {
	Address   string `yaml:"address"`
	TokenFile string `yaml:"token_file"`
	TLS       TLS    `yaml:"tls"`
}

// TLS is the `admin.tls` section.
type TLS struct {
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
	ClientCAFile string `yaml:"client_ca_file"`
}
