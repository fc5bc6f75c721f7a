package elastic

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic/go-elasticsearch/v8/esapi"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/credentials"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewRefuses(t *testing.T) {
	address := []string{"http://localhost:9200"}
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"no address":          {Config{}, "elasticsearch.addresses"},
		"no scheme":           {Config{Addresses: []string{"me:s3cret@host:9200"}}, "elasticsearch.addresses[0]"},
		"not an address":      {Config{Addresses: []string{address[0], "http://me:s3cret@host:92 00"}}, "elasticsearch.addresses[1]"},
		"a query":             {Config{Addresses: []string{"http://me:s3cret@host/?x=1"}}, "elasticsearch.addresses[0]"},
		"two users":           {Config{Addresses: []string{"http://a:s3cret@host", "http://b:s3cret@host"}}, "elasticsearch.addresses[1]"},
		"key and user":        {Config{Addresses: address, Username: "u", Password: "s3cret", APIKey: "s3cret"}, "keep one"},
		"key and address":     {Config{Addresses: []string{"http://a:s3cret@host"}, APIKey: "s3cret"}, "keep one"},
		"password alone":      {Config{Addresses: address, Password: "s3cret"}, "elasticsearch.username"},
		"user alone":          {Config{Addresses: address, Username: "u"}, "elasticsearch.password_file"},
		"password twice":      {Config{Addresses: address, Username: "u", Password: "s3cret", PasswordFile: "x"}, "elasticsearch.password_file"},
		"key twice":           {Config{Addresses: address, APIKey: "s3cret", APIKeyFile: "x"}, "elasticsearch.api_key_file"},
		"key file missing":    {Config{Addresses: address, APIKeyFile: "/nonexistent"}, "elasticsearch.api_key_file"},
		"ca file missing":     {Config{Addresses: address, TLS: credentials.TLS{CAFile: "/nonexistent"}}, "elasticsearch.tls.ca_file"},
		"cloud id":            {Config{CloudID: "s3cret"}, "elasticsearch.cloud_id"},
		"cloud id not base64": {Config{CloudID: "name:s3cret!"}, "elasticsearch.cloud_id"},
		"cloud id of one":     {Config{CloudID: "name:" + base64.StdEncoding.EncodeToString([]byte("s3cret"))}, "elasticsearch.cloud_id"},
	} {
		c, err := New(tt.cfg)
		switch {
		case err == nil:
			t.Errorf("%s: accepted", name)
			_ = c.Close(t.Context())
		case !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret"):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCloudAddress(t *testing.T) {
	for decoded, want := range map[string]string{
		"cloud.example$es$kibana":      "https://es.cloud.example:443",
		"cloud.example$es":             "https://es.cloud.example:443",
		"cloud.example:9243$es$kibana": "https://es.cloud.example:9243",
		"cloud.example:1$es:2":         "https://es.cloud.example:2",
	} {
		u, err := cloudAddress("name:" + base64.StdEncoding.EncodeToString([]byte(decoded)))
		if err != nil || u.String() != want {
			t.Errorf("%s: %v, %v, want %s", decoded, u, err, want)
		}
	}
}

// What goes out: once, whatever the answer, with our name, the credentials of
// the moment and the body as it is.
func TestPerform(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	var got []*http.Request
	var body []byte
	rt := roundTripper(func(req *http.Request) (*http.Response, error) {
		got = append(got, req)
		var err error
		body, err = io.ReadAll(req.Body)
		return answer(503, ""), err
	})
	c, err := New(Config{Addresses: []string{"http://es:9200"}, Username: "u", PasswordFile: file}, WithRoundTripper(rt), WithVersion("1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	perform := func(want string) {
		t.Helper()
		got = nil
		sent := strings.Repeat("line\n", 1000)
		// A reader that no client can rewind: nothing may be copied to do so.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/_bulk", io.NopCloser(strings.NewReader(sent)))
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Perform(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 503 || len(got) != 1 {
			t.Fatalf("status %d after %d requests", res.StatusCode, len(got))
		}
		user, password, _ := got[0].BasicAuth()
		if user != "u" || password != want {
			t.Errorf("user %s, password %s, want %s", user, password, want)
		}
		if ua := got[0].Header.Get("User-Agent"); ua != "sluice/1.2.3" {
			t.Errorf("User-Agent %s", ua)
		}
		if string(body) != sent || got[0].Header.Get("Content-Encoding") != "" {
			t.Error("the body was changed")
		}
		if got[0].URL.String() != "http://es:9200/_bulk" {
			t.Errorf("URL %s", got[0].URL)
		}
	}
	perform("first")
	write("second, longer")
	perform("second, longer") // the file is followed
	if err := c.ReloadCredentials(); err != nil {
		t.Error(err)
	}
	write("")
	if err := c.ReloadCredentials(); err == nil {
		t.Error("an empty password file was accepted")
	}
	perform("second, longer")
}

func TestAuthorization(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"none":                      {Config{}, ""},
		"key as encoded":            {Config{APIKey: "aWQ6a2V5"}, "ApiKey aWQ6a2V5"},
		"key as id and key":         {Config{APIKey: "id:key"}, "ApiKey aWQ6a2V5"},
		"password":                  {Config{Username: "id", Password: "key"}, "Basic aWQ6a2V5"},
		"address":                   {Config{Addresses: []string{"http://id:key@es:9200", "http://id:key@es2:9200"}}, "Basic aWQ6a2V5"},
		"address, name in the file": {Config{Addresses: []string{"http://other:no@es:9200"}, Username: "id", Password: "key"}, "Basic aWQ6a2V5"},
	} {
		if tt.cfg.Addresses == nil {
			tt.cfg.Addresses = []string{"http://es:9200"}
		}
		c, err := New(tt.cfg, WithRoundTripper(roundTripper(func(req *http.Request) (*http.Response, error) {
			if got := req.Header.Get("Authorization"); got != tt.want {
				t.Errorf("%s: %q, want %q", name, got, tt.want)
			}
			if req.URL.User != nil {
				t.Errorf("%s: user information in the URL", name)
			}
			return nil, errors.New("down")
		})))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := c.Info(t.Context()); err == nil || strings.Contains(err.Error(), "key") {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(c.Close(context.Background()), c.Close(context.Background())); err != nil {
			t.Error(err)
		}
	}
}

// An address may have a path; ids keep their escapes behind it.
func TestAddressWithPath(t *testing.T) {
	s := newServer()
	var got string
	c, err := New(Config{Addresses: []string{"http://proxy/es%20x/"}}, WithRoundTripper(roundTripper(func(req *http.Request) (*http.Response, error) {
		got = req.URL.EscapedPath()
		return s.RoundTrip(req)
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	for id, want := range map[string]string{
		"a":         "/es%20x/.control/_doc/a",
		"a/b?c#d %": "/es%20x/.control/_doc/a%2Fb%3Fc%23d%20%25",
	} {
		_, _, _ = c.Control(".control").Get(t.Context(), id, new(any)) // the path is what is looked at
		if got != want {
			t.Errorf("%s: path %s, want %s", id, got, want)
		}
	}
}

// Over the network: requests go round, a dead node is left out, connections
// are kept, answers are not compressed.
func TestNodes(t *testing.T) {
	hits := map[string]int{}
	connections := map[string]bool{}
	node := func(name string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hits[name]++ // requests are made one by one
			connections[r.RemoteAddr] = true
			if r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("Accept-Encoding %s", r.Header.Get("Accept-Encoding"))
			}
			_, _ = w.Write([]byte(`{"version":{"number":"8.19.0"}}`))
		}))
	}
	a, b, gone := node("a"), node("b"), node("gone")
	defer a.Close()
	defer b.Close()
	gone.Close()
	c, err := New(Config{Addresses: []string{a.URL, gone.URL, b.URL}})
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for range 30 {
		if _, err := c.Info(t.Context()); err != nil {
			failed++
		}
	}
	if failed != 1 || hits["a"] < 10 || hits["b"] < 10 || len(connections) != 2 {
		t.Errorf("%d failed, hits %v, %d connections", failed, hits, len(connections))
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("protocol %s", r.Proto)
		}
		_, _ = w.Write([]byte(`{"version":{"number":"8.19.0"}}`))
	}))
	defer s.Close()
	for _, skip := range []bool{true, false} {
		c, err := New(Config{Addresses: []string{s.URL}, TLS: credentials.TLS{InsecureSkipVerify: skip}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Info(t.Context()); err == nil != skip {
			t.Errorf("insecure_skip_verify %t: %v", skip, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The authorities of ca_file count on both ways: directly, and through a proxy.
func TestTLSThroughProxy(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
	defer s.Close()
	tunnels := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tunnels++ // requests are made one by one
		up, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		w.WriteHeader(http.StatusOK)
		down, read, err := http.NewResponseController(w).Hijack() // read may hold the first bytes already
		if err != nil {
			t.Error(err)
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(up, read); _ = up.Close() })
		wg.Go(func() { _, _ = io.Copy(down, up); _ = down.Close() })
		wg.Wait()
	}))
	defer proxy.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	section := credentials.TLS{CAFile: ca, ServerName: "example.com"}
	dialer, err := section.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := section.Config()
	if err != nil {
		t.Fatal(err)
	}
	via, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, proxyURL := range []*url.URL{nil, via} {
		rt := transport(dialer, snapshot, 4)
		rt.Proxy = http.ProxyURL(proxyURL)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := rt.RoundTrip(req)
		if err != nil {
			t.Errorf("proxy %v: %v", proxyURL, err)
			continue
		}
		_ = res.Body.Close()
		rt.CloseIdleConnections()
	}
	if tunnels != 1 {
		t.Errorf("%d tunnels", tunnels)
	}
}

// A call other than Perform ends by itself.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Addresses: []string{"http://es:9200"}, RequestTimeout: 3 * time.Second},
			WithRoundTripper(roundTripper(func(req *http.Request) (*http.Response, error) {
				<-req.Context().Done()
				return nil, req.Context().Err()
			})))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = c.Info(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no answer within 3s") || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		_ = c.Close(t.Context())
	})
}

func TestError(t *testing.T) {
	long := strings.Repeat("é", 300)
	for name, tt := range map[string]struct {
		status int
		body   string
		want   Error
	}{
		"both":   {403, `{"error":{"type":"security_exception","reason":"no\n rights","root_cause":[]},"status":403}`, Error{Status: 403, Type: "security_exception", Reason: "no rights"}},
		"text":   {400, `{"error":"no handler","status":400}`, Error{Status: 400, Reason: "no handler"}},
		"page":   {502, `<html>s3cret</html>`, Error{Status: 502}},
		"empty":  {413, ``, Error{Status: 413}},
		"a word": {401, `Unauthorized`, Error{Status: 401, Reason: "the credentials are refused"}},
		"other":  {500, `{"message":"s3cret"}`, Error{Status: 500}},
		"long":   {400, `{"error":{"type":"x","reason":"` + long + `"}}`, Error{Status: 400, Type: "x", Reason: strings.Repeat("é", 128) + "..."}},
		"get":    {404, `{"found":false}`, Error{Status: 404, absent: true}},
		"delete": {404, `{"result":"not_found"}`, Error{Status: 404, absent: true}},
	} {
		if got := newError(tt.status, []byte(tt.body)); *got != tt.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := (&Error{Status: 404, Type: "t", Reason: "r"}).Error(); got != "404 Not Found t: r" {
		t.Error(got)
	}
}

// An answer outside 2xx is an *Error, a redirect too; one that is cut is none.
func TestCall(t *testing.T) {
	for _, status := range []int{301, 404, 500} {
		c := newClient(t, answering(status, "x"))
		var refused *Error
		if err := c.call(t.Context(), "trying", esapi.InfoRequest{}, nil); !errors.As(err, &refused) || refused.Status != status {
			t.Errorf("%d: %v", status, err)
		}
	}
	c := newClient(t, roundTripper(func(*http.Request) (*http.Response, error) {
		res := answer(200, "")
		res.Body = io.NopCloser(io.MultiReader(bytes.NewReader([]byte(`{"a":`)), errReader{}))
		return res, nil
	}))
	if err := c.call(t.Context(), "trying", esapi.InfoRequest{}, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A server that closes a plain connection, as one that speaks TLS does, is not
// tried with TLS; the error says what to write. Once it has answered, a broken
// connection is just that.
func TestPlainTextToTLSNamesTheRemedy(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			panic(http.ErrAbortHandler) // closes without an answer
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer s.Close()
	c, err := New(Config{Addresses: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	const remedy = "write https://"
	if _, err := c.Info(t.Context()); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("closed at once: %v", err)
	}
	broken.Store(false)
	if _, err := c.Info(t.Context()); err == nil || strings.Contains(err.Error(), remedy) {
		t.Errorf("answered: %v", err)
	}
	broken.Store(true)
	if _, err := c.Info(t.Context()); err == nil || strings.Contains(err.Error(), remedy) {
		t.Errorf("closed later: %v", err)
	}
}
