package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a Process that does what its fields say.
type process struct {
	alive, ready bool
	health       Health
	skipErr      error
	skipped      []SkipRequest
	released     []string
	told         int
}

func (p *process) Alive() bool    { return p.alive }
func (p *process) Ready() bool    { return p.ready }
func (p *process) Health() Health { return p.health }
func (p *process) Status() any    { return map[string]any{"group_id": "g"} }
func (p *process) Live() any      { p.told++; return map[string]any{"told": p.told} }

func (p *process) Skip(_ context.Context, topic string, partition int32, offset int64, discard bool) error {
	if p.skipErr == nil {
		p.skipped = append(p.skipped, SkipRequest{topic, partition, offset, discard})
	}
	return p.skipErr
}

func (p *process) Release(target string) bool {
	p.released = append(p.released, target)
	return target == "held"
}

func listen(t *testing.T, cfg Config, p *process) *Server {
	t.Helper()
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1:0"
	}
	s, err := Listen(cfg, Options{Process: p, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		for range 2 { // a second Close is safe
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// call sends a request and returns status and body.
func call(t *testing.T, client *http.Client, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

const (
	skipBody = `{"topic":"orders","partition":3,"offset":17}`
	jsonType = "application/json"
)

func TestProbesTellOnlyYesOrNo(t *testing.T) {
	p := &process{health: Health{State: Blocked, Reason: "internals"}}
	s := listen(t, Config{}, p)
	for _, path := range []string{"/livez", "/readyz"} {
		p.alive, p.ready = false, false
		if code, body := call(t, http.DefaultClient, "GET", s.URL()+path, ""); code != 503 || body != "no\n" {
			t.Errorf("%s = %d %q, want 503 no", path, code, body)
		}
		p.alive, p.ready = true, true
		if code, body := call(t, http.DefaultClient, "GET", s.URL()+path, ""); code != 200 || body != "ok\n" {
			t.Errorf("%s = %d %q, want 200 ok", path, code, body)
		}
	}
}

// Elasticsearch being away must never make an orchestrator restart us.
func TestLivenessDoesNotLookAtElasticsearch(t *testing.T) {
	p := &process{alive: true, ready: true, health: Health{State: Waiting}}
	s := listen(t, Config{}, p)
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthz": 503} {
		if code, _ := call(t, http.DefaultClient, "GET", s.URL()+path, ""); code != want {
			t.Errorf("%s = %d, want %d", path, code, want)
		}
	}
}

func TestHealth(t *testing.T) {
	held := []HeldTarget{{Target: "events"}}
	halted := []HaltedPartition{{Topic: "events"}}
	for _, test := range []struct {
		health Health
		want   int
	}{
		{Health{State: Running}, 200},
		{Health{State: Throttled}, 200},
		{Health{State: Waiting}, 503},
		{Health{State: Blocked}, 503},
		{Health{State: Starting}, 503},
		{Health{State: Stopping}, 503},
		{Health{State: Running, Held: held}, 503},
		{Health{State: Running, Halted: halted}, 503},
	} {
		s := listen(t, Config{}, &process{health: test.health})
		code, body := call(t, http.DefaultClient, "GET", s.URL()+"/healthz", "")
		var got Health
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if code != test.want || got.State != test.health.State {
			t.Errorf("%+v: %d %s, want %d", test.health, code, body, test.want)
		}
	}
}

func TestRefusesToBeReachableWithoutProof(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		cfg Config
		ok  bool
	}{
		{Config{Address: "127.0.0.1:0"}, true},
		{Config{Address: "[::1]:0"}, true},
		{Config{Address: "localhost:0"}, true},
		{Config{Address: ":9600"}, false},
		{Config{Address: "0.0.0.0:9600"}, false},
		{Config{Address: "10.1.2.3:9600"}, false},
		{Config{Address: "sluice.example:9600"}, false},
		{Config{Address: "0.0.0.0:9600", TokenFile: token}, true},
		{Config{Address: "0.0.0.0:9600", TokenFile: empty}, false},
		{Config{Address: "127.0.0.1:0", TokenFile: empty}, false},
		{Config{Address: "127.0.0.1:0", TokenFile: token + ".absent"}, false},
		{Config{Address: "127.0.0.1"}, false},
		{Config{Address: "127.0.0.1:0", TLS: TLS{CertFile: "x"}}, false},
		{Config{Address: "127.0.0.1:0", TLS: TLS{ClientCAFile: "x"}}, false},
	} {
		if err := test.cfg.Check(); (err == nil) != test.ok {
			t.Errorf("%+v: %v, want ok %v", test.cfg, err, test.ok)
		}
	}
}

// Who starts a second replica on one machine is told what to do about it.
func TestAnAddressInUseNamesTheRemedy(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s, err := Listen(Config{Address: taken.Addr().String()}, Options{})
	if err == nil {
		_ = s.Close(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "--set admin.address=") {
		t.Errorf("%v", err)
	}
}

func TestTokenGuardsEveryChange(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &process{alive: true}
	s := listen(t, Config{TokenFile: token}, p)
	for _, path := range []string{"/v1/skip", "/v1/targets/held/release"} {
		for _, auth := range []string{"", "Bearer ", "Bearer wrong", "Bearer secret2", "Basic secret", "secret"} {
			if code, body := call(t, http.DefaultClient, "POST", s.URL()+path, skipBody, "Content-Type", jsonType, "Authorization", auth); code != 401 || strings.Contains(body, "secret") {
				t.Errorf("%s with %q = %d %s, want 401", path, auth, code, body)
			}
		}
		if code, body := call(t, http.DefaultClient, "POST", s.URL()+path, skipBody, "Content-Type", jsonType, "Authorization", "Bearer secret"); code != 200 {
			t.Errorf("%s with the token = %d %s, want 200", path, code, body)
		}
	}
	if len(p.skipped) != 1 || len(p.released) != 1 {
		t.Errorf("skipped %v, released %v, want one each", p.skipped, p.released)
	}
	// A replaced token counts at once.
	if err := os.WriteFile(token, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _ := call(t, http.DefaultClient, "POST", s.URL()+"/v1/skip", skipBody, "Content-Type", jsonType, "Authorization", "Bearer secret"); code != 401 {
		t.Errorf("the old token = %d, want 401", code)
	}
	if code, _ := call(t, http.DefaultClient, "GET", s.URL()+"/livez", ""); code != 200 {
		t.Errorf("/livez = %d, want 200 without a token", code)
	}
}

// Without a token, loopback is open to every program of this machine: but not
// to the web pages that its browsers show.
func TestForeignPagesCannotChangeAnything(t *testing.T) {
	p := &process{}
	s := listen(t, Config{}, p)
	for name, headers := range map[string][]string{
		"cross-site fetch": {"Sec-Fetch-Site", "cross-site"},
		"foreign origin":   {"Origin", "https://evil.example"},
		"rebound name":     {"Host", "evil.example:9600"},
		"simple form":      {"Content-Type", "text/plain"},
	} {
		code, _ := call(t, http.DefaultClient, "POST", s.URL()+"/v1/skip", skipBody, append([]string{"Content-Type", jsonType}, headers...)...)
		if code != 403 && code != 415 {
			t.Errorf("%s = %d, want a refusal", name, code)
		}
	}
	if code, _ := call(t, http.DefaultClient, "GET", s.URL()+"/debug/pprof/", "", "Host", "evil.example"); code != 403 {
		t.Errorf("profiles under a rebound name = %d, want 403", code)
	}
	if code, _ := call(t, http.DefaultClient, "GET", s.URL()+"/v1/skip", ""); code != 405 {
		t.Errorf("GET /v1/skip = %d, want 405", code)
	}
	if len(p.skipped) != 0 {
		t.Errorf("skipped %v", p.skipped)
	}
}

func TestProfilesOnlyOnLoopback(t *testing.T) {
	for _, loopback := range []bool{true, false} {
		s := &Server{process: &process{}, routing: new(streams), loopback: loopback}
		handler := s.handler(prometheus.NewRegistry())
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
			r := httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if got := w.Code == 200; got != loopback {
				t.Errorf("loopback %v: %s = %d", loopback, path, w.Code)
			}
		}
	}
}

func TestSkip(t *testing.T) {
	p := &process{}
	s := listen(t, Config{}, p)
	for body, want := range map[string]int{
		skipBody: 200,
		`{"topic":"orders","partition":3,"offset":17,"discard":true}`: 200,
		``:                                       400,
		`{"topic":"orders","offset":17`:          400,
		`{"topic":"orders","ofset":17}`:          400,
		`{"topic":"","partition":3,"offset":17}`: 400,
		`{"topic":"orders","partition":-1,"offset":17}`:                  400,
		`{"topic":"orders","partition":3,"offset":-17}`:                  400,
		skipBody + skipBody:                                              400,
		`{"topic":"` + strings.Repeat("x", maxBody) + `","partition":0}`: 400,
	} {
		if code, answer := call(t, http.DefaultClient, "POST", s.URL()+"/v1/skip", body, "Content-Type", jsonType); code != want {
			t.Errorf("%.80s = %d %s, want %d", body, code, answer, want)
		}
	}
	if len(p.skipped) != 2 {
		t.Errorf("skipped %v, want two", p.skipped)
	}

	p.skipErr = fmt.Errorf("skip: %w", &NotOwnerError{Topic: "orders", Partition: 3, MemberID: "sluice-1", ClientHost: "/10.0.0.7"})
	code, body := call(t, http.DefaultClient, "POST", s.URL()+"/v1/skip", skipBody, "Content-Type", jsonType)
	var failure Failure
	if err := json.Unmarshal([]byte(body), &failure); err != nil {
		t.Fatal(err)
	}
	if code != 421 || failure.MemberID != "sluice-1" || failure.ClientHost != "/10.0.0.7" {
		t.Errorf("not the owner = %d %s, want 421 with the owner", code, body)
	}

	p.skipErr = fmt.Errorf("%w: the partition is not blocked at 17", ErrRefused)
	if code, body := call(t, http.DefaultClient, "POST", s.URL()+"/v1/skip", skipBody, "Content-Type", jsonType); code != 409 || !strings.Contains(body, "not blocked") {
		t.Errorf("refused = %d %s, want 409", code, body)
	}
}

func TestRelease(t *testing.T) {
	s := listen(t, Config{}, &process{})
	for path, want := range map[string]int{"held": 200, "other": 404, "a%2Fb": 404} {
		if code, _ := call(t, http.DefaultClient, "POST", s.URL()+"/v1/targets/"+path+"/release", ""); code != want {
			t.Errorf("release %s = %d, want %d", path, code, want)
		}
	}
}

func TestPageIsWholeAndLocked(t *testing.T) {
	s := listen(t, Config{}, &process{})
	resp, err := http.Get(s.URL() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if strings.Contains(string(body), "http://") || strings.Contains(string(body), "https://") {
		t.Error("the page must bring everything with it")
	}
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("Content-Security-Policy = %q", csp)
	}
	// Everything that the page names is there, and is ours.
	named := regexp.MustCompile(`(?:src|href)="([^"#]+)"`).FindAllStringSubmatch(string(body), -1)
	if len(named) < 6 {
		t.Errorf("the page names %q", named)
	}
	for _, name := range named {
		if strings.HasPrefix(name[1], "data:") {
			continue
		}
		if code, _ := call(t, http.DefaultClient, "GET", s.URL()+"/"+name[1], ""); code != 200 && code != 503 { // /healthz is not well
			t.Errorf("%s = %d", name[1], code)
		}
	}
	_, script := call(t, http.DefaultClient, "GET", s.URL()+"/page/page.js", "")
	for _, unsafe := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("} {
		if strings.Contains(script, unsafe) {
			t.Errorf("the page uses %s on what it shows", unsafe)
		}
	}
	if code, _ := call(t, http.DefaultClient, "GET", s.URL()+"/elsewhere", ""); code != 404 {
		t.Errorf("/elsewhere = %d", code)
	}
}

func TestMutualTLS(t *testing.T) {
	dir := t.TempDir()
	ca, caKey := certificate(t, nil, nil)
	serverCert, serverKey := certificate(t, ca, caKey)
	clientCert, clientKey := certificate(t, ca, caKey)
	strangerCA, strangerKey := certificate(t, nil, nil)
	stranger, strangerLeafKey := certificate(t, strangerCA, strangerKey)

	cfg := Config{TLS: TLS{
		CertFile:     write(t, dir, "cert.pem", "CERTIFICATE", serverCert.Raw),
		KeyFile:      write(t, dir, "key.pem", "EC PRIVATE KEY", keyBytes(t, serverKey)),
		ClientCAFile: write(t, dir, "ca.pem", "CERTIFICATE", ca.Raw),
	}}
	p := &process{alive: true}
	s := listen(t, cfg, p)
	if !strings.HasPrefix(s.URL(), "https://") {
		t.Fatalf("URL = %s", s.URL())
	}
	client := func(cert *x509.Certificate, key *ecdsa.PrivateKey) *http.Client {
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		conf := &tls.Config{RootCAs: roots}
		if cert != nil {
			conf.Certificates = []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
		}
		transport := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	if code, _ := call(t, client(nil, nil), "GET", s.URL()+"/livez", ""); code != 200 {
		t.Errorf("/livez without a certificate = %d, want 200", code)
	}
	if code, _ := call(t, client(nil, nil), "POST", s.URL()+"/v1/skip", skipBody, "Content-Type", jsonType); code != 401 {
		t.Errorf("skip without a certificate = %d, want 401", code)
	}
	if code, body := call(t, client(clientCert, clientKey), "POST", s.URL()+"/v1/skip", skipBody, "Content-Type", jsonType); code != 200 {
		t.Errorf("skip with a certificate = %d %s, want 200", code, body)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL()+"/v1/skip", strings.NewReader(skipBody))
	req.Header.Set("Content-Type", jsonType)
	if resp, err := client(stranger, strangerLeafKey).Do(req); err == nil {
		resp.Body.Close()
		if resp.StatusCode != 401 {
			t.Errorf("skip with a stranger's certificate = %d, want a refusal", resp.StatusCode)
		}
	}
	if len(p.skipped) != 1 {
		t.Errorf("skipped %v, want one", p.skipped)
	}
}

// certificate makes a CA (parent nil) or a leaf for 127.0.0.1.
func certificate(t *testing.T, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, parentKey = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func keyBytes(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func write(t *testing.T, dir, name, kind string, raw []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
