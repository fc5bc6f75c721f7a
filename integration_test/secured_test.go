//go:build integration

package integration_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go/exec"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// The servers' own administrators, and the user that Sluice is to both.
const (
	adminPassword = "the-tests-own-0"
	sluiceUser    = "sluice"
)

// secured are a broker and a node that let nobody in without a certificate of
// theirs (the broker), a password or a key, over TLS, and to nothing that was
// not allowed. Everything that a client needs lies in files, as it would for
// Sluice.
type secured struct {
	kafka         *securedKafka
	elasticsearch *securedElasticsearch
	dir           string
}

// file is the path of one of the files.
func (s *secured) file(name string) string { return filepath.Join(s.dir, name) }

// put replaces a file at once, as Kubernetes and certificate managers do.
func (s *secured) put(t *testing.T, name, text string) {
	t.Helper()
	path := s.file(name)
	must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(t, os.Rename(path+".new", path))
}

// startSecured starts both, side by side, for one test.
func startSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir()}
	var starting sync.WaitGroup
	starting.Go(func() { s.elasticsearch = startSecuredElasticsearch(t) })
	starting.Go(func() { s.kafka = startSecuredKafka(t) })
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	s.kafka.SetPassword(t, sluiceUser, "sasl-1")
	s.put(t, "sasl-password", "sasl-1")
	s.put(t, "kafka-ca.pem", s.kafka.servers.pem())
	cert, key := s.kafka.clients.leaf(t, leaf{})
	s.put(t, "client.pem", cert)
	s.put(t, "client-key.pem", key)
	s.elasticsearch.SetPassword(t, "basic-1")
	s.put(t, "basic-password", "basic-1")
	s.put(t, "elasticsearch-ca.pem", s.elasticsearch.servers.pem())
	return s
}

// kafkaTLS is the line of a configuration that has Sluice speak TLS to Kafka.
func (s *secured) kafkaTLS() string {
	return fmt.Sprintf("  tls: {enabled: true, ca_file: %q, cert_file: %q, key_file: %q}\n", s.file("kafka-ca.pem"), s.file("client.pem"), s.file("client-key.pem"))
}

// config is a configuration of Sluice by which it reaches both; more is YAML
// that is added.
func (s *secured) config(topic, group, index, letters, more string) string {
	return fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 6s
  commit_interval: 200ms
%s  sasl: {mechanism: SCRAM-SHA-512, username: %s, password_file: %q}
elasticsearch:
  addresses: [%q]
  username: %s
  password_file: %q
  tls: {ca_file: %q}
documents: {index: %q}
indexer: {flush_documents: 500, flush_interval: 200ms}
dead_letter: {topic: %s}
%s`, s.kafka.address, group, topic, s.kafkaTLS(), sluiceUser, s.file("sasl-password"), s.elasticsearch.URL(), sluiceUser, s.file("basic-password"), s.file("elasticsearch-ca.pem"),
		index, letters, more)
}

// securedKafka is a broker behind a link. Its Client and Admin are its
// administrator's and take any certificate.
type securedKafka struct {
	*Kafka
	link             *link
	servers, clients *authority // have signed the broker's certificate; sign those of clients
}

func startSecuredKafka(t *testing.T) *securedKafka {
	t.Helper()
	k := &securedKafka{servers: newAuthority(t, "kafka servers"), clients: newAuthority(t, "kafka clients"), link: newLink(t)}
	spec := kafkaSpec(nil)
	base := spec.env
	cert, key := k.servers.leaf(t, leaf{})
	own, ownKey := k.clients.leaf(t, leaf{})
	pair, err := tls.X509KeyPair([]byte(own), []byte(ownKey))
	if err != nil {
		t.Error(err)
		return k
	}
	options := []kgo.Opt{
		kgo.DialTLSConfig(&tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // the test's own way in, whatever the broker shows
			// The broker takes this one for as long as any authority of the run.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		}),
		kgo.SASL(plain.Auth{User: "admin", Pass: adminPassword}.AsMechanism()),
	}
	spec.env = func(hostPort int) map[string]string {
		k.link.leadTo(fmt.Sprintf("127.0.0.1:%d", hostPort))
		env := base(hostPort)
		const listener = "KAFKA_LISTENER_NAME_OUTSIDE_"
		for name, value := range map[string]string{
			"KAFKA_ADVERTISED_LISTENERS":                    "OUTSIDE://" + k.link.address() + ",INSIDE://localhost:9094",
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":          "OUTSIDE:SASL_SSL,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"KAFKA_SASL_ENABLED_MECHANISMS":                 "PLAIN,SCRAM-SHA-512",
			listener + "PLAIN_SASL_JAAS_CONFIG":             fmt.Sprintf("org.apache.kafka.common.security.plain.PlainLoginModule required user_admin=%q;", adminPassword),
			listener + "SCRAM___SHA___512_SASL_JAAS_CONFIG": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
			listener + "SSL_CLIENT_AUTH":                    "required",
			listener + "SSL_KEYSTORE_TYPE":                  "PEM",
			listener + "SSL_KEYSTORE_KEY":                   oneLine(key),
			listener + "SSL_KEYSTORE_CERTIFICATE_CHAIN":     oneLine(cert),
			listener + "SSL_TRUSTSTORE_TYPE":                "PEM",
			listener + "SSL_TRUSTSTORE_CERTIFICATES":        oneLine(k.clients.pem()),
			"KAFKA_AUTHORIZER_CLASS_NAME":                   "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"KAFKA_SUPER_USERS":                             "User:admin;User:ANONYMOUS",
		} {
			env[name] = value
		}
		return env
	}
	spec.ready = func(ctx context.Context, _ string) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		client, err := kgo.NewClient(append(options, kgo.SeedBrokers(k.link.address()))...)
		if err != nil {
			return err
		}
		defer client.Close()
		brokers, err := kadm.NewClient(client).ListBrokers(ctx)
		if err == nil && len(brokers) == 0 {
			err = errors.New("the broker is not registered yet")
		}
		return err
	}
	started, err := startServer(t.Context(), spec)
	if err != nil {
		t.Error(err)
		return k
	}
	t.Cleanup(func() { removeServer(t, started) })
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(k.link.address()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Error(err)
		return k
	}
	t.Cleanup(client.Close)
	k.Kafka = &Kafka{server: &server{address: k.link.address(), container: started.container}, Client: client, Admin: kadm.NewClient(client), options: options}
	return k
}

// oneLine is PEM as the broker's settings want it.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", `\n`) }

// SetPassword sets a user's SCRAM-SHA-512 password.
func (k *securedKafka) SetPassword(t *testing.T, user, password string) {
	t.Helper()
	done, err := k.Admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: user, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: password}})
	if err == nil {
		err = done.Error()
	}
	must(t, err)
}

// setConfig changes what the listener of clients does.
func (k *securedKafka) setConfig(t *testing.T, values map[string]string) {
	t.Helper()
	var alter []kadm.AlterConfig
	for name, value := range values {
		alter = append(alter, kadm.AlterConfig{Name: "listener.name.outside." + name, Value: kadm.StringPtr(value)})
	}
	done, err := k.Admin.AlterBrokerConfigs(t.Context(), alter, 1)
	must(t, err)
	for _, d := range done {
		if d.Err != nil {
			t.Fatalf("the broker's configuration: %v: %s", d.Err, d.ErrMessage)
		}
	}
}

// Show has the broker show a certificate from now on.
func (k *securedKafka) Show(t *testing.T, by *authority, l leaf) {
	t.Helper()
	cert, key := by.leaf(t, l)
	k.setConfig(t, map[string]string{"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": cert, "ssl.keystore.key": key})
}

// Take has the broker take clients that an authority has signed, and the
// test's own.
func (k *securedKafka) Take(t *testing.T, authorities ...*authority) {
	t.Helper()
	pem := k.clients.pem()
	for _, a := range authorities {
		pem += a.pem()
	}
	k.setConfig(t, map[string]string{"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem})
}

// securedElasticsearch is a node behind a link, which has the address.
type securedElasticsearch struct {
	*Elasticsearch
	link    *link
	servers *authority // has signed the node's certificate
	key     *ecdsa.PrivateKey
}

// configs are where the node's files lie: in the images that are built here, and
// in the public one.
var configs = []string{"/app/elasticsearch/config/", "/usr/share/elasticsearch/config/"}

func startSecuredElasticsearch(t *testing.T) *securedElasticsearch {
	t.Helper()
	e := &securedElasticsearch{servers: newAuthority(t, "elasticsearch servers"), link: newLink(t)}
	spec := elasticsearchSpec(os.Getenv(elasticsearchImage), map[string]string{
		"discovery.type": "single-node",
		"ES_JAVA_OPTS":   "-Xms512m -Xmx512m -XX:TieredStopAtLevel=1",
		"cluster.routing.allocation.disk.threshold_enabled": "false",
		"xpack.security.enabled":                            "true",
		"xpack.security.http.ssl.enabled":                   "true",
		"xpack.security.http.ssl.certificate":               "certs/http.crt",
		"xpack.security.http.ssl.key":                       "certs/http.key",
		"resource.reload.interval.high":                     "500ms", // how soon it sees that they were replaced
	})
	e.key = newKey(t)
	cert, key := e.servers.leaf(t, leaf{key: e.key})
	for _, dir := range configs {
		spec.files = append(spec.files,
			containerFile(dir+"certs/http.crt", cert), containerFile(dir+"certs/http.key", key),
			containerFile(dir+"users", "admin:"+hashed(t, adminPassword)+"\n"), containerFile(dir+"users_roles", "superuser:admin\n"))
	}
	spec.ready = func(ctx context.Context, address string) error {
		e.link.leadTo(address)
		_, err := e.request(ctx, http.MethodGet, "/_cluster/health?wait_for_status=yellow&timeout=1s", nil)
		return err
	}
	started, err := startServer(t.Context(), spec)
	if err != nil {
		t.Error(err)
		return e
	}
	t.Cleanup(func() { removeServer(t, started) })
	e.Elasticsearch = &Elasticsearch{server: &server{address: e.link.address(), container: started.container}, asAdmin: e.request}
	return e
}

// URL is the node's base URL.
func (e *securedElasticsearch) URL() string { return "https://" + e.link.address() }

// hashed is a password as the node's file of users wants it.
func hashed(t *testing.T, password string) string {
	t.Helper()
	const rounds = 10000
	salt := make([]byte, 32)
	_, _ = rand.Read(salt) // does not fail
	sum, err := pbkdf2.Key(sha512.New, password, salt, rounds, 32)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("{PBKDF2}%d$%s$%s", rounds, base64.StdEncoding.EncodeToString(salt), base64.StdEncoding.EncodeToString(sum))
}

// request is the administrator's, which takes any certificate.
func (e *securedElasticsearch) request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.URL()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth("admin", adminPassword)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the test's own way in, whatever the node shows
	return answerOf(client.Do(req))
}

// SetPassword sets the password of Sluice's user, who has one role of the same
// name, and makes both where they are missing.
func (e *securedElasticsearch) SetPassword(t *testing.T, password string) {
	t.Helper()
	e.Do(t, http.MethodPut, "/_security/user/"+sluiceUser, fmt.Sprintf(`{"password":%q,"roles":[%q]}`, password, sluiceUser))
}

// Show has the node show another certificate soon. Its key stays: the node
// reads both files when it sees that one has changed, and shows what does not
// belong together.
func (e *securedElasticsearch) Show(t *testing.T, by *authority, l leaf) {
	t.Helper()
	l.key = e.key
	cert, _ := by.leaf(t, l)
	for _, dir := range configs {
		path := dir + "certs/http.crt"
		must(t, e.container.CopyToContainer(t.Context(), []byte(cert), path, 0o644))
		// What is copied is of 1970, each time, and the node looks at the time and
		// the length, which most certificates have in common.
		code, _, err := e.container.Exec(t.Context(), []string{"touch", path}, exec.WithUser("root"))
		must(t, err)
		if code != 0 {
			t.Fatalf("touch %s: exit code %d", path, code)
		}
	}
}

// awaitSignedBy waits until the node shows a certificate of an authority.
func (e *securedElasticsearch) awaitSignedBy(t *testing.T, a *authority) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	await(t, 30*time.Second, "the node to read its certificate", func() error {
		conn, err := tls.Dial("tcp", e.link.address(), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// link is a TCP address in front of a server that stays when the server's does
// not, and can break all connections. Of the bytes it
// looks at the first only.
type link struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
	conns    map[net.Conn]bool
	plain    int // connections whose first byte was none of TLS
}

func newLink(t *testing.T) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{listener: listener, conns: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			running.Go(func() { l.carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.Break()
		running.Wait()
	})
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) leadTo(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = address
}

// carry moves bytes both ways until one side closes.
func (l *link) carry(near net.Conn) {
	defer near.Close()
	l.mu.Lock()
	to := l.to
	l.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return // the near side sees its connection close
	}
	defer far.Close()
	l.mu.Lock()
	l.conns[near], l.conns[far] = true, true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.conns, near)
		delete(l.conns, far)
		l.mu.Unlock()
	}()
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		if from == near {
			l.look(to, from)
		}
		_, _ = io.Copy(to, from) // it ends when either is closed
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { pipe(far, near) })
	both.Go(func() { pipe(near, far) })
	both.Wait()
}

// look passes the first byte on, and counts those that begin no handshake.
func (l *link) look(to, from net.Conn) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(from, first); err != nil {
		return
	}
	if first[0] != 0x16 { // a handshake record
		l.mu.Lock()
		l.plain++
		l.mu.Unlock()
	}
	_, _ = to.Write(first)
}

// Plain is how many connections did not begin as TLS.
func (l *link) Plain() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plain
}

// Break closes all connections that there are.
func (l *link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	a.key = newKey(t)
	a.cert = a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotAfter: time.Now().Add(time.Hour),
	}, a.key)
	return a
}

// leaf says what is special about a certificate; else it is for 127.0.0.1, for
// servers and clients, and good for an hour.
type leaf struct {
	host    string
	expired bool
	key     *ecdsa.PrivateKey // nil: a new one
}

// leaf returns a certificate and its key in PEM.
func (a *authority) leaf(t *testing.T, l leaf) (cert, key string) {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "leaf"}, KeyUsage: x509.KeyUsageDigitalSignature, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if l.host != "" {
		template.DNSNames = []string{l.host}
	} else {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	if l.expired {
		template.NotAfter = time.Now().Add(-time.Minute)
	}
	if l.key == nil {
		l.key = newKey(t)
	}
	issued, private := a.issue(t, template, l.key), l.key
	der, err := x509.MarshalPKCS8PrivateKey(private) // the only form that Kafka reads
	if err != nil {
		t.Fatal(err)
	}
	return toPEM("CERTIFICATE", issued.Raw), toPEM("PRIVATE KEY", der)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue signs template for a key; an authority without a certificate signs its
// own.
func (a *authority) issue(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-2 * time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *authority) pem() string { return toPEM("CERTIFICATE", a.cert.Raw) }

func toPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
