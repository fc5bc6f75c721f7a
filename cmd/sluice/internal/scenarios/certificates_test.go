package scenarios

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// V52: under load the servers get certificates of another authority, then ask
// for client certificates of another one, then get new certificates once more,
// and connections break each time. Handshakes fail until the files are
// replaced too, and are tried again; the process goes on with the new files,
// without a restart, and nothing is lost.
func TestV52_CertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	oldServers, newServers := newAuthority(t, "servers 1"), newAuthority(t, "servers 2")
	oldClients, newClients := newAuthority(t, "clients 1"), newAuthority(t, "clients 2")
	testers := newAuthority(t, "testers")
	tester := testers.leaf(t, "tester")
	kafka, elasticsearch := newGate(), newGate()
	kafka.change(oldServers.leaf(t, "kafka"), oldClients, testers)
	elasticsearch.change(oldServers.leaf(t, "elasticsearch"), oldClients)

	w := newWorld(t, worldOptions{
		partitions: 3,
		kafka:      []kfake.Opt{kfake.ListenFn(kafka.listen)},
		client: []kgo.Opt{kgo.DialTLSConfig(&tls.Config{
			InsecureSkipVerify:   true, //nolint:gosec // the test's own way in, whatever the servers show
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tester, nil },
		})},
	})
	listener, err := elasticsearch.listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: w.es, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() { // ends with the server
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	w.url = "https://" + listener.Addr().String()

	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	identify := func(a *authority, name string) {
		leaf := a.leaf(t, name)
		replace(t, cert, "CERTIFICATE", leaf.Certificate[0])
		der, err := x509.MarshalECPrivateKey(leaf.PrivateKey.(*ecdsa.PrivateKey))
		if err != nil {
			t.Fatal(err)
		}
		replace(t, key, "EC PRIVATE KEY", der)
	}
	replace(t, ca, "CERTIFICATE", oldServers.cert.Raw)
	identify(oldClients, "first")
	files := fmt.Sprintf("ca_file: %q, cert_file: %q, key_file: %q", ca, cert, key)
	p := w.launch(fmt.Sprintf("kafka: {tls: {enabled: true, %s}}\nelasticsearch: {tls: {%s}}", files, files))
	stop := w.load(200)
	defer stop()

	await := func(what string, done func() bool) {
		t.Helper()
		w.await(what, func() error {
			select {
			case <-p.exited:
				t.Fatal("the process has ended")
			default:
			}
			if !done() {
				return errors.New("not yet")
			}
			return nil
		})
	}
	taken := func(name string) {
		t.Helper()
		await("Kafka to take "+name, func() bool { return kafka.taken(name) })
		await("Elasticsearch to take "+name, func() bool { return elasticsearch.taken(name) })
	}
	moved := func() {
		t.Helper()
		before := len(w.es.Ops(index))
		await("records to move", func() bool { return len(w.es.Ops(index)) >= before+100 })
	}
	// Elasticsearch goes first: while Kafka is away nothing is sent to it.
	change := func(servers, clients *authority) {
		elasticsearch.change(servers.leaf(t, "elasticsearch"), clients)
		await("Elasticsearch and it to part", elasticsearch.refused)
		kafka.change(servers.leaf(t, "kafka"), clients, testers)
		await("Kafka and it to part", kafka.refused)
	}
	taken("first")
	moved()
	change(newServers, oldClients)
	replace(t, ca, "CERTIFICATE", newServers.cert.Raw)
	taken("first")
	moved()
	change(newServers, newClients)
	identify(newClients, "second")
	taken("second")
	moved()
	// The same again, by authorities that are known: nothing fails.
	elasticsearch.change(newServers.leaf(t, "elasticsearch"), newClients)
	kafka.change(newServers.leaf(t, "kafka"), newClients, testers)
	taken("second")
	moved()
	stop()
	w.awaitDone()
	w.checkFold()
	w.checkLetters(nil)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// gate is the TLS side of a server.
type gate struct {
	mu     sync.Mutex
	config *tls.Config
	conns  map[net.Conn]bool
	// Since the last change: how many handshakes began, and how many clients
	// were taken, by the name in their certificate.
	began  int
	passed map[string]int
}

func newGate() *gate { return &gate{conns: map[net.Conn]bool{}} }

// change gives the server a certificate, has it take the clients that the
// authorities have signed and no others, and breaks all connections.
func (g *gate) change(cert tls.Certificate, clients ...*authority) {
	pool := x509.NewCertPool()
	for _, a := range clients {
		pool.AddCert(a.cert)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	passed := map[string]int{}
	g.began, g.passed = 0, passed
	g.config = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			passed[state.PeerCertificates[0].Subject.CommonName]++
			return nil
		},
	}
	for conn := range g.conns {
		_ = conn.Close()
	}
}

func (g *gate) taken(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passed[name] > 0
}

// refused says that several handshakes came to nothing: more than may be under
// way at a time.
func (g *gate) refused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	failed := g.began
	for _, n := range g.passed {
		failed -= n
	}
	return failed > 5
}

// listen is net.Listen behind the gate.
func (g *gate) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(&gateListener{l, g}, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.began++
		return g.config, nil
	}}), nil
}

type gateListener struct {
	net.Listener
	g *gate
}

func (l *gateListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.conns[conn] = true
	return &gateConn{conn, l.g}, nil
}

type gateConn struct {
	net.Conn
	g *gate
}

func (c *gateConn) Close() error {
	c.g.mu.Lock()
	delete(c.g.conns, c.Conn)
	c.g.mu.Unlock()
	return c.Conn.Close()
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key = a.issue(t, template)
	return a
}

// leaf returns a certificate for servers on loopback and for clients.
func (a *authority) leaf(t *testing.T, name string) tls.Certificate {
	t.Helper()
	cert, key := a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// issue signs template for a new key; an authority that has no certificate yet
// signs its own.
func (a *authority) issue(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// replace puts a new PEM file in a file's place.
func replace(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
