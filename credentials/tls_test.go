package credentials

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority issues certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key := newKey(t)
	cert := issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, key, key)
	return &authority{cert, key}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue signs template, for key, by parent (nil: by itself).
func issue(t *testing.T, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// leaf returns a certificate and its key in PEM.
func (a *authority) leaf(t *testing.T, name string, hosts ...string) (cert, key []byte) {
	t.Helper()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	k := newKey(t)
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return toPEM("CERTIFICATE", issue(t, template, a.cert, k, a.key).Raw), toPEM("EC PRIVATE KEY", der)
}

func (a *authority) pem() []byte { return toPEM("CERTIFICATE", a.cert.Raw) }

func toPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// put replaces a file in such a way that it is seen to have changed.
func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// serve starts an HTTPS server that answers with the name in the client's
// certificate, and asks for one that clients has signed (nil: for none).
func serve(t *testing.T, cert, key []byte, clients *authority) *httptest.Server {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != nil {
		pool := x509.NewCertPool()
		pool.AddCert(clients.cert)
		s.TLS.ClientCAs, s.TLS.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// get fetches url over a new connection of d.
func get(d *Dialer, url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DialTLSContext: d.DialContext, DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestDialerFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	section := TLS{CAFile: filepath.Join(dir, "ca"), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")}
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	cert, key := clients.leaf(t, "before")
	put(t, section.CAFile, servers.pem())
	put(t, section.CertFile, cert)
	put(t, section.KeyFile, key)
	d, err := section.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	serverCert, serverKey := servers.leaf(t, "server", "127.0.0.1")
	old := serve(t, serverCert, serverKey, clients)
	expect := func(when, url, want string) {
		t.Helper()
		if got, err := get(d, url); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", when, got, err, want)
		}
	}
	expect("at first", old.URL, "before")

	// The certificate without its key is of no use yet.
	cert, key = clients.leaf(t, "after")
	put(t, section.CertFile, cert)
	expect("half replaced", old.URL, "before")
	if err := d.Reload(); err == nil {
		t.Error("Reload accepts a certificate with another's key")
	}
	put(t, section.KeyFile, key)
	expect("replaced", old.URL, "after")

	// A new authority: the old server is not trusted any more, the new one is.
	next := newAuthority(t, "next")
	serverCert, serverKey = next.leaf(t, "server", "127.0.0.1")
	renewed := serve(t, serverCert, serverKey, clients)
	if _, err := get(d, renewed.URL); !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("an unknown authority: %v", err)
	}
	put(t, section.CAFile, next.pem())
	expect("new authority", renewed.URL, "after")
	if _, err := get(d, old.URL); !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("the authority that was taken out: %v", err)
	}

	put(t, section.CAFile, []byte("not PEM"))
	expect("a broken file: the last good one stays", renewed.URL, "after")
	if err := os.Remove(section.CAFile); err != nil {
		t.Fatal(err)
	}
	expect("a missing file: the last good one stays", renewed.URL, "after")
}

func TestDialerChecksTheServersName(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, "ca")
	section := TLS{CAFile: filepath.Join(dir, "ca")}
	put(t, section.CAFile, ca.pem())
	cert, key := ca.leaf(t, "server", "kafka.example")
	s := serve(t, cert, key, nil)

	tests := map[string]struct {
		serverName string
		insecure   bool
		ok         bool
	}{
		"the dialled address is not in it":  {"", false, false},
		"server_name is":                    {"kafka.example", false, true},
		"server_name is not":                {"other.example", false, false},
		"insecure_skip_verify asks nothing": {"", true, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			section := section
			section.ServerName, section.InsecureSkipVerify = tt.serverName, tt.insecure
			d, err := section.Dialer()
			if err != nil {
				t.Fatal(err)
			}
			_, err = get(d, s.URL)
			if (err == nil) != tt.ok {
				t.Errorf("err = %v, want success %v", err, tt.ok)
			}
			if !tt.ok && !errors.As(err, new(x509.HostnameError)) {
				t.Errorf("err = %v, want a host name error", err)
			}
		})
	}
}

func TestDialerRefusesOldTLS(t *testing.T) {
	ca := newAuthority(t, "ca")
	section := TLS{CAFile: filepath.Join(t.TempDir(), "ca")}
	put(t, section.CAFile, ca.pem())
	cert, key := ca.leaf(t, "server", "127.0.0.1")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	s.StartTLS()
	defer s.Close()
	d, err := section.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(d, s.URL); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v, want a refusal of the protocol version", err)
	}
}

func TestDialerClosesWhatItCannotUse(t *testing.T) {
	d, err := TLS{}.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	d.Dial = func(context.Context, string, string) (net.Conn, error) { return client, nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.DialContext(ctx, "tcp", "host:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want that of the context", err)
	}
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is still open: %v", err)
	}
	if _, err := d.DialContext(t.Context(), "tcp", "no-port"); err == nil {
		t.Error("an address without a port is dialled")
	}
}

func TestConfigNamesTheKeyAtFault(t *testing.T) {
	dir := t.TempDir()
	a, b := newAuthority(t, "a"), newAuthority(t, "b")
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		put(t, path, data)
		return path
	}
	cert, key := a.leaf(t, "x")
	_, otherKey := b.leaf(t, "x")
	certFile, keyFile, wrongKey := file("cert", cert), file("key", key), file("wrong", otherKey)
	tests := map[string]struct {
		tls  TLS
		keys []string
	}{
		"nothing":          {TLS{}, nil},
		"good":             {TLS{CAFile: file("ca", a.pem()), CertFile: certFile, KeyFile: keyFile}, nil},
		"no such CA":       {TLS{CAFile: filepath.Join(dir, "none")}, []string{"ca_file"}},
		"CA without certs": {TLS{CAFile: keyFile}, []string{"ca_file"}},
		"cert alone":       {TLS{CertFile: certFile}, []string{"cert_file"}},
		"key alone":        {TLS{KeyFile: keyFile}, []string{"key_file"}},
		"another's key":    {TLS{CertFile: certFile, KeyFile: wrongKey}, []string{"cert_file"}},
		"no such cert":     {TLS{CertFile: filepath.Join(dir, "none"), KeyFile: keyFile}, []string{"cert_file"}},
		"no such key":      {TLS{CertFile: certFile, KeyFile: filepath.Join(dir, "none")}, []string{"key_file"}},
		"two at once":      {TLS{CAFile: keyFile, CertFile: certFile}, []string{"ca_file", "cert_file"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg, err := tt.tls.Config()
			if (cfg != nil) != (len(tt.keys) == 0) {
				t.Fatalf("Config = %v, %v", cfg, err)
			}
			var errs []error
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				errs = joined.Unwrap()
			}
			if len(errs) != len(tt.keys) {
				t.Fatalf("errors %v, want keys %v", err, tt.keys)
			}
			for i, err := range errs {
				var e *Error
				if !errors.As(err, &e) || e.Key != tt.keys[i] || e.Problem == "" || e.Remedy == "" {
					t.Errorf("error %v, want key %s, a problem and a remedy", err, tt.keys[i])
				}
			}
		})
	}
}

// A server that cannot be trusted, or is not what was expected, is refused
// before anything is sent, and the error says what helps.
func TestHandshakeErrorsNameTheRemedy(t *testing.T) {
	dir := t.TempDir()
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	trusted, unknown := filepath.Join(dir, "ca"), filepath.Join(dir, "other")
	put(t, trusted, ca.pem())
	put(t, unknown, other.pem())
	cert, key := ca.leaf(t, "server", "127.0.0.1")
	good := serve(t, cert, key, nil)
	named, namedKey := ca.leaf(t, "server", "kafka.example")
	elsewhere := serve(t, named, namedKey, nil)
	k := newKey(t)
	old := &x509.Certificate{Subject: pkix.Name{CommonName: "old"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(-time.Minute)}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	expired := serve(t, toPEM("CERTIFICATE", issue(t, old, ca.cert, k, ca.key).Raw), toPEM("EC PRIVATE KEY", der), nil)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()

	for name, test := range map[string]struct {
		url, ca, remedy string
	}{
		"another name":         {elsewhere.URL, trusted, "server_name"},
		"an unknown authority": {good.URL, unknown, "tls.ca_file"},
		"an old certificate":   {expired.URL, trusted, "renew"},
		"plain text":           {plain.URL, trusted, "does not speak TLS"},
	} {
		d, err := TLS{CAFile: test.ca}.Dialer()
		if err != nil {
			t.Fatal(err)
		}
		address := strings.TrimPrefix(strings.TrimPrefix(test.url, "https://"), "http://")
		conn, err := d.DialContext(t.Context(), "tcp", address)
		if conn != nil {
			_ = conn.Close()
		}
		var refused *HandshakeError
		if !errors.As(err, &refused) || refused.Address != address || !strings.Contains(refused.Remedy, test.remedy) || !strings.Contains(err.Error(), refused.Remedy) {
			t.Errorf("%s: %v, want a *HandshakeError with a remedy about %s", name, err, test.remedy)
		}
	}
}
