package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// dialTimeout bounds a Dialer's connection attempt, handshake included; the
// clients it serves set no bound of their own on a dialer that they are given.
const dialTimeout = 10 * time.Second

// Config returns a client's TLS configuration for the files as they are now.
// The system's authorities, or those of ca_file, must have signed the server's
// certificate, and it must carry the server's name; TLS 1.2 is the least. An
// error joins one *Error per key at fault.
//
// A configuration is a snapshot: a long-lived client uses a Dialer, whose
// connections follow the files.
func (t TLS) Config() (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
	}
	var errs []error
	if t.CAFile != "" {
		pool, err := readPool(t.CAFile)
		if err != nil {
			errs = append(errs, err)
		}
		cfg.RootCAs = pool
	}
	switch {
	case t.CertFile == "" && t.KeyFile == "":
	case t.KeyFile == "":
		errs = append(errs, &Error{Key: "cert_file", Problem: "a client certificate without its key", Remedy: "set key_file too"})
	case t.CertFile == "":
		errs = append(errs, &Error{Key: "key_file", Problem: "a client key without its certificate", Remedy: "set cert_file too"})
	default:
		pair, err := readPair(t.CertFile, t.KeyFile)
		if err != nil {
			errs = append(errs, err)
			break
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return cfg, nil
}

func readPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, unreadable("ca_file", file, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &Error{Key: "ca_file", Problem: fmt.Sprintf("%s holds no certificate that can be read", file), Remedy: "it must be PEM, with CERTIFICATE blocks"}
	}
	return pool, nil
}

func readPair(certFile, keyFile string) (tls.Certificate, error) {
	var none tls.Certificate
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return none, unreadable("cert_file", certFile, err)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return none, unreadable("key_file", keyFile, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		// The error names what is missing or does not match, never the content.
		return none, &Error{Key: "cert_file", Problem: fmt.Sprintf("%s and %s are not a certificate and its key: %v", certFile, keyFile, err), Remedy: "both must be PEM, and belong together"}
	}
	return pair, nil
}

// Dialer opens TLS connections that follow the section's files: each new
// connection is checked against the authorities, and shows the client
// certificate, that the files hold at that moment. Connections that are open
// stay as they are. It is safe for concurrent use.
//
// It exists because a shared tls.Config cannot follow its authorities safely:
// RootCAs must not change while in use, and a check of one's own in
// VerifyConnection is not told the host when that is an IP address, so the
// certificate's name would go unchecked. A configuration of its own for every
// connection leaves all checks to crypto/tls.
type Dialer struct {
	tls TLS
	// Dial opens the connection below TLS. Nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	config *tls.Config    // never changed, only replaced
	seen   [3]os.FileInfo // of the files config was read from
}

// Dialer reads the files and returns a dialer that follows them. Errors are
// those of Config.
func (t TLS) Dialer() (*Dialer, error) {
	d := &Dialer{tls: t}
	if err := d.Reload(); err != nil {
		return nil, err
	}
	return d, nil
}

// Reload reads the files again, whether they look changed or not, and says
// what is wrong with them; what was read last stays in use then.
func (d *Dialer) Reload() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.read(d.stat())
}

func (d *Dialer) read(seen [3]os.FileInfo) error {
	config, err := d.tls.Config()
	if err != nil {
		return err
	}
	d.config, d.seen = config, seen
	return nil
}

func (d *Dialer) stat() (seen [3]os.FileInfo) {
	for i, file := range []string{d.tls.CAFile, d.tls.CertFile, d.tls.KeyFile} {
		if file != "" {
			seen[i], _ = os.Stat(file) // nil differs from what was seen, and reading says why
		}
	}
	return seen
}

// current returns the configuration for the files as they are. While they
// cannot be used (a certificate is replaced before its key, say) it is the
// last good one, and the next connection tries again.
func (d *Dialer) current() *tls.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := d.stat()
	for i := range seen {
		if seen[i] == nil && d.seen[i] == nil || same(seen[i], d.seen[i]) {
			continue
		}
		_ = d.read(seen) // Reload reports
		break
	}
	return d.config
}

// DialContext opens a TLS connection to address (host:port) and completes the
// handshake, within 10 seconds. It fits http.Transport's DialTLSContext and
// kgo's Dialer.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	config := d.current()
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	dial := d.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, &HandshakeError{Address: address, Remedy: remedy(err), Err: err}
	}
	return conn, nil
}

// HandshakeError is a server that TLS could not be agreed on with. Nothing was
// sent to it.
type HandshakeError struct {
	Address string // host:port
	Remedy  string // "" where none is known
	Err     error
}

// Error returns address, cause and remedy in one line.
func (e *HandshakeError) Error() string {
	text := fmt.Sprintf("TLS handshake with %s: %v", e.Address, e.Err)
	if e.Remedy != "" {
		text += ": " + e.Remedy
	}
	return text
}

// Unwrap returns the cause.
func (e *HandshakeError) Unwrap() error { return e.Err }

// remedy is what helps against a handshake that failed; "": not known.
func remedy(err error) string {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.HostnameError)):
		return "name the server as its certificate does, or set tls.server_name to a name that stands in it"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "set tls.ca_file to the authority that has signed the server's certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the server's certificate, or set this machine's clock right"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "the server does not speak TLS on this port: name the port on which it does"
	}
	return ""
}
