package admin

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// tokenFile holds the token "secret".
func tokenFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Whoever guesses gets nowhere, fills neither memory nor disk, and keeps nobody
// else out.
func TestWrongTokensLeaveNothingBehind(t *testing.T) {
	p := &process{alive: true}
	var log bytes.Buffer
	s, err := Listen(Config{Address: "127.0.0.1:0", TokenFile: tokenFile(t)}, Options{Process: p, Metrics: prometheus.NewRegistry(), Log: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	const guesses, guessers = 10_000, 4
	transport := &http.Transport{MaxIdleConnsPerHost: guessers}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	guess := func(n int, token string) {
		path := []string{"/v1/skip", "/v1/targets/held/release"}[n%2]
		if code, body := call(t, client, "POST", s.URL()+path, skipBody, "Content-Type", jsonType, "Authorization", token); code != 401 || strings.Contains(body, "secret") {
			t.Errorf("%q = %d %s, want 401", token, code, body)
		}
	}
	for i, token := range []string{
		"Bearer", "bearer secret", "Bearer  secret", "Bearer secret\tx", "Bearer secre", "Bearer secretsecret", "Bearer SECRET",
		"Bearer " + strings.Repeat("s", 8<<10), "Basic c2VjcmV0",
	} {
		guess(i, token)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for g := range guessers {
		wg.Go(func() {
			for i := range guesses / guessers {
				guess(i, fmt.Sprintf("Bearer %d-%d", g, i))
			}
		})
	}
	wg.Wait()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("%d wrong tokens leave %d bytes behind", guesses, grown)
	}
	if log.Len() > 0 {
		t.Errorf("wrong tokens fill the log: %.500s", log.String())
	}
	if len(p.skipped)+len(p.released) > 0 {
		t.Errorf("skipped %v, released %v", p.skipped, p.released)
	}
	if code, _ := call(t, client, "POST", s.URL()+"/v1/skip", skipBody, "Content-Type", jsonType, "Authorization", "Bearer secret"); code != 200 {
		t.Errorf("the token after all that = %d, want 200", code)
	}
}

// endless is a body without an end to speak of that counts what is taken of it.
type endless struct {
	left  int64
	taken atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.left)
	for i := range p[:n] {
		p[i] = ' ' // JSON lets blanks stand before a value
	}
	e.left -= n
	e.taken.Add(n)
	return int(n), nil
}

// A body of a gigabyte is not read, whether its sender may call or not.
func TestLargeBodiesAreNotRead(t *testing.T) {
	p := &process{}
	for name, test := range map[string]struct {
		cfg   Config
		token string
		path  string
	}{
		"without a token":    {Config{TokenFile: tokenFile(t)}, "", "/v1/skip"},
		"with the token":     {Config{TokenFile: tokenFile(t)}, "Bearer secret", "/v1/skip"},
		"on loopback":        {Config{}, "", "/v1/skip"},
		"where none belongs": {Config{}, "", "/livez"},
	} {
		for _, length := range []int64{1 << 30, -1} { // said, and in chunks
			s := listen(t, test.cfg, p)
			body := &endless{left: 1 << 30}
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL()+test.path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = length
			req.Header.Set("Content-Type", jsonType)
			req.Header.Set("Authorization", test.token)
			// The answer may be lost: the server closes while it is still sent to.
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode < 400 {
					t.Errorf("%s: status %d, want a refusal", name, resp.StatusCode)
				}
			}
			// What the sockets on both sides hold, at most.
			if n := body.taken.Load(); n > 64<<20 {
				t.Errorf("%s: %d bytes of the body were taken", name, n)
			}
		}
	}
	if len(p.skipped) > 0 {
		t.Errorf("skipped %v", p.skipped)
	}
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipes) Close() error   { close(l.done); return nil }
func (l *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (l *pipes) dial() net.Conn {
	near, far := net.Pipe()
	l.conns <- far
	return near
}

// Who sends slowly, or nothing, is cut off in time, however many they are, and
// nothing of them is left.
func TestSlowSendersAreCutOff(t *testing.T) {
	outside := listen(t, Config{}, &process{alive: true})
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		server := &http.Server{
			Handler: outside.http.Handler, ReadHeaderTimeout: outside.http.ReadHeaderTimeout, ReadTimeout: outside.http.ReadTimeout,
			WriteTimeout: outside.http.WriteTimeout, IdleTimeout: outside.http.IdleTimeout, MaxHeaderBytes: outside.http.MaxHeaderBytes,
		}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) })
		defer serving.Wait()
		defer func() { _ = server.Close() }()

		const head = "POST /v1/skip HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n"
		for name, test := range map[string]struct {
			head  string
			every string
			limit time.Duration
		}{
			"nothing at all":     {"", "", headerTimeout},
			"a header for ever":  {"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", "a", headerTimeout},
			"a body for ever":    {head + "\r\n", " ", readTimeout},
			"a body never sent":  {head + "\r\n", "", readTimeout},
			"one promised first": {head + "Expect: 100-continue\r\n\r\n", "", readTimeout},
		} {
			const senders = 50
			began := time.Now()
			var wg sync.WaitGroup
			for range senders {
				conn := l.dial()
				wg.Go(func() { // reads until it is cut off
					_, _ = io.Copy(io.Discard, conn)
					_ = conn.Close()
				})
				wg.Go(func() {
					_, err := io.WriteString(conn, test.head)
					ticker := time.NewTicker(time.Second)
					defer ticker.Stop()
					for err == nil && test.every != "" {
						<-ticker.C
						_, err = io.WriteString(conn, test.every)
					}
				})
			}
			wg.Wait()
			// Virtual time. The server lingers for half a second, and the sender
			// notices with its next byte.
			if took := time.Since(began); took > test.limit+2*time.Second {
				t.Errorf("%s: cut off after %s, want %s", name, took, test.limit)
			}
		}
		conn := l.dial()
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
			t.Errorf("afterwards: %q, %v", answer, err)
		}
	})
}

// raw sends bytes as they are and returns the answer's status, 0 where the
// connection was closed without one, and where it leads.
func raw(t *testing.T, s *Server, request string) (status int, location string) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, request) }() // ends with conn; the server may not read all of it
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Location")
}

// No spelling of a path comes past the token, out of what is served, or to
// another host.
func TestPathsHaveOneSpelling(t *testing.T) {
	p := &process{}
	s := listen(t, Config{TokenFile: tokenFile(t)}, p)
	for _, method := range []string{"GET", "POST", "PUT", "HEAD", "OPTIONS", "CONNECT", "TRACE", "post", "G\x00T"} {
		for _, path := range []string{
			"/v1/skip", "//v1/skip", "/v1//skip", "/v1/./skip", "/v1/x/../skip", "/v1/skip/", "/v1/skip/.", "/v1/%73kip", "/v1%2fskip", "/V1/skip",
			"/v1/%2e%2e/v1/skip", "/livez/..%2fv1/skip", "/livez/../v1/skip", "/livez;/../v1/skip", "/v1/skip%00", "/v1/skip\x00", "/v1/skip%0d%0aX:1",
			"/v1/targets/%2e%2e/release", "/v1/targets/../release", "/v1/targets/held%2frelease", "/v1/targets/%00/release", "/v1/targets//release",
			"/page/../../etc/passwd", "/page/%2e%2e/%2e%2e/etc/passwd", "/page/..%5c..%5cetc", "/page/%2e%2e%2fadmin.go", "/page/", "/debug/pprof/../../v1/skip",
			"//evil.example/..", "///evil.example", "/\\evil.example", "/%2f%2fevil.example", "http://evil.example/v1/skip", "http://evil.example//x/..", "*", "v1/skip", "",
			"/%", "/%zz", "/" + strings.Repeat("a", 8<<10), "/" + strings.Repeat("a", 2*maxHeader), "/v1/targets/" + strings.Repeat("%2e", 2<<10) + "/release",
			"/" + strings.Repeat("../", 1<<10) + "v1/skip",
		} {
			request := method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n" +
				fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(skipBody), skipBody)
			status, location := raw(t, s, request)
			// OPTIONS * is answered by net/http itself, with nothing.
			if 200 <= status && status < 300 && method+path != "OPTIONS*" && (method != "GET" && method != "HEAD" || path == "/v1/skip") {
				t.Errorf("%s %.60q = %d", method, path, status)
			}
			if location != "" && (!strings.HasPrefix(location, "/") || strings.HasPrefix(location, "//") || strings.HasPrefix(location, "/\\")) {
				t.Errorf("%s %.60q leads to %.60q", method, path, location)
			}
		}
	}
	if len(p.skipped)+len(p.released) > 0 {
		t.Errorf("skipped %v, released %q", p.skipped, p.released)
	}
	if status, _ := raw(t, s, "GET /"+strings.Repeat("a", 8<<20)+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); status != 0 && status != 431 {
		t.Errorf("a path of 8 MiB = %d, want 431", status)
	}
	if status, _ := raw(t, s, "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"+strings.Repeat("X: y\r\n", 1<<20)+"\r\n"); status != 0 && status != 431 {
		t.Errorf("a million headers = %d, want 431", status)
	}
}

// Without a token the Host header decides who is local: a name that only looks
// so is not.
func TestHostHeaderMustNameThisMachine(t *testing.T) {
	p := &process{}
	s := listen(t, Config{}, p)
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	send := func(headers string) int {
		t.Helper()
		status, _ := raw(t, s, "POST /v1/skip HTTP/1.1\r\n"+headers+"Connection: close\r\nContent-Type: application/json\r\n"+
			fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(skipBody), skipBody))
		return status
	}
	for _, headers := range []string{
		"", "Host:\r\n", "Host: evil.example\r\n", "Host: evil.example:" + port + "\r\n",
		"Host: 127.0.0.1.evil.example\r\n", "Host: localhost.evil.example\r\n", "Host: localhost@evil.example\r\n", "Host: evil.example#localhost\r\n",
		"Host: localhost/evil.example\r\n", "Host: [::1].evil.example\r\n", "Host: 127.0.0.1:80:evil\r\n", "Host: 127.1\r\n", "Host: 2130706433\r\n", "Host: 0\r\n",
		"Host: 0.0.0.0\r\n", "Host: [::]\r\n", "Host: 10.0.0.1\r\n", "Host: 127.0.0.1\x00.evil.example\r\n", "Host: localhost.\r\n",
		"Host: localhost\r\nHost: evil.example\r\n", "Host: evil.example\r\nHost: localhost\r\n", "Host: localhost\r\n Host: evil.example\r\n",
		"Host: evil.example\r\nX-Forwarded-Host: localhost\r\n", "Host: evil.example\r\nForwarded: host=localhost\r\n", "Host: evil.example\r\nX-Original-Host: localhost\r\n",
		"Host: " + strings.Repeat("localhost", 1<<10) + "\r\n",
	} {
		if status := send(headers); status != 400 && status != 403 {
			t.Errorf("%.60q = %d, want a refusal", headers, status)
		}
	}
	if len(p.skipped) > 0 {
		t.Errorf("skipped %v", p.skipped)
	}
	for _, host := range []string{"localhost", "LOCALHOST:" + port, "127.0.0.1", "127.0.0.2:1", "[::1]", "[::1]:80", "[::ffff:127.0.0.1]"} {
		if status := send("Host: " + host + "\r\n"); status != 200 {
			t.Errorf("%s = %d, want 200", host, status)
		}
	}
}
