package scenarios

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/embedded"
)

// The secrets of V51, and the user name that some of them belong to.
const (
	user       = "sluice-user"
	saslSecret = "sasl-pa55+word"
	basicPass  = "basic-pa55+word"
	apiKey     = "key-id:api-k3y+secret"
	adminToken = "admin-t0ken+word"
)

// shows says which of the secrets a text shows, as it is or encoded; "": none.
func shows(text string) string {
	for _, s := range []string{saslSecret, basicPass, apiKey, strings.TrimPrefix(apiKey, "key-id:"), adminToken} {
		for _, form := range []string{
			s, url.QueryEscape(s), url.PathEscape(s), hex.EncodeToString([]byte(s)), base64.StdEncoding.EncodeToString([]byte(s)),
			base64.StdEncoding.EncodeToString([]byte(user + ":" + s)),
		} {
			if strings.Contains(text, form) {
				return form
			}
		}
	}
	return ""
}

// V51: with every secret that there is in use, and on every error path, none
// of them stands in the log, the metrics, the status, a profile, the printed
// configuration, an operator's command or the dump of a process that dies.
func TestV51_NoSecretIsShown(t *testing.T) {
	secretFile := func(t *testing.T, text string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, elasticsearch := range map[string]string{
		"api key":  fmt.Sprintf("elasticsearch: {api_key: %q}", apiKey),
		"password": fmt.Sprintf("elasticsearch: {username: %s, password: %q}", user, basicPass),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{
				kafka:  []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", user, saslSecret)},
				client: []kgo.Opt{kgo.SASL(plain.Auth{User: user, Pass: saslSecret}.AsMechanism())},
			})
			yaml := func(password string) string {
				return fmt.Sprintf("kafka: {sasl: {mechanism: PLAIN, username: %s, password_file: %s}}\nadmin: {token_file: %s}\nlog: {level: trace}\n%s",
					user, secretFile(t, password), secretFile(t, adminToken), elasticsearch)
			}
			check := func(where, text string) {
				if form := shows(text); form != "" {
					at := strings.Index(text, form)
					t.Errorf("%s shows %q: %q", where, form, text[max(0, at-100):min(len(text), at+100)])
				}
			}
			// A proxy that quotes what it was sent, with every kind of answer.
			echo := func(status int, format string) func(*embedded.Request) *embedded.Fault {
				return func(r *embedded.Request) *embedded.Fault {
					if r.Header.Get("Authorization") == "" {
						t.Error("a request carries no credentials")
					}
					f := embedded.Answer(status, fmt.Sprintf(format, r.Header.Get("Authorization")))
					return &f
				}
			}
			const refusal = `{"error":{"type":"security_exception","reason":"unable to authenticate [%[1]s]","caused_by":{"reason":"%[1]s"}},"status":401}`
			w.produce(records(10)...)
			p := w.launch(yaml(saslSecret))
			w.awaitDone()
			n := 10
			during := func(what string, fault func(*embedded.Request) *embedded.Fault) {
				var mu sync.Mutex
				hits := 0
				w.es.Intercept(func(r *embedded.Request) *embedded.Fault {
					mu.Lock()
					defer mu.Unlock()
					hits++
					return fault(r)
				})
				w.produce(record(fmt.Sprint("more-", n), n))
				n++
				w.await(what, func() error {
					mu.Lock()
					defer mu.Unlock()
					if hits < 3 {
						return fmt.Errorf("%d requests", hits)
					}
					return nil
				})
				for _, page := range []string{"/metrics", "/healthz", "/v1/status", "/", "/debug/pprof/heap?debug=1", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline"} {
					check(page+" during "+what, p.page(page))
				}
				if code, said := w.sluice(yaml(saslSecret), "validate"); code != 1 {
					t.Errorf("validate during %s: exit code %d", what, code)
				} else {
					check("validate during "+what, said)
				}
				w.es.Intercept(nil)
				w.awaitDone()
			}
			during("401", echo(http.StatusUnauthorized, refusal))
			during("403", echo(http.StatusForbidden, refusal))
			during("400", echo(http.StatusBadRequest, `{"error":"%s","status":400}`))
			during("a proxy's page", echo(http.StatusOK, "<html>%s</html>"))
			during("500", echo(http.StatusInternalServerError, "%s"))
			during("refused connections", func(*embedded.Request) *embedded.Fault { f := embedded.Refused(); return &f })
			fetches := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: topic, Err: kerr.UnknownServerError, Count: 3})
			commits := w.kafka.FailCommits(group, kerr.GroupAuthorizationFailed, 3)
			w.produce(records(n)...)
			w.await("brokers that fail", func() error {
				if fetches.Hits() < 3 || commits.Hits() < 3 {
					return fmt.Errorf("%d fetches, %d commits", fetches.Hits(), commits.Hits())
				}
				return nil
			})
			w.awaitDone()

			code, said := w.sluice(yaml(saslSecret), "validate", "--print")
			if check("validate --print", said); code != 0 || !strings.Contains(said, "[redacted]") {
				t.Errorf("validate --print: exit code %d: %s", code, said)
			}
			// A password that the brokers refuse: the one of Elasticsearch, say.
			code, said = w.sluice(yaml(basicPass), "validate")
			if check("validate with a wrong password", said); code != 1 {
				t.Errorf("validate with a wrong password: exit code %d: %s", code, said)
			}
			wrong := w.launch(yaml(basicPass))
			w.await("the refusal", func() error {
				if !strings.Contains(wrong.log.String(), "this member has no part in the group") {
					return errors.New("none")
				}
				return nil
			})
			wrong.end(syscall.SIGTERM)
			check("the log of one with a wrong password", wrong.log.String())

			// The Go runtime ends the process with a dump of all that runs.
			if code := p.end(syscall.SIGQUIT); code != 2 || !strings.Contains(p.log.String(), "goroutine ") {
				t.Errorf("exit code %d, and a dump: %v", code, strings.Contains(p.log.String(), "goroutine "))
			}
			check("the log", p.log.String())
		})
	}
	t.Run("bad configurations", func(t *testing.T) {
		t.Parallel()
		path, err := binary()
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []struct{ yaml, set string }{
			{yaml: `elasticsearch: {addresses: ["https://` + user + ":" + basicPass + `@host:9200"]}`},
			{yaml: `elasticsearch: {addresses: ["https://` + user + ":" + basicPass + `%zz@host:9200"]}`},
			{yaml: "elasticsearch: {username: a, password: " + basicPass + ", api_key: " + apiKey + "}"},
			{yaml: "elasticsearch: {password: [" + basicPass + "]}"},
			{yaml: "elasticsearch: {api_key: {" + apiKey + ": 1}}"},
			{yaml: "elasticsearch: {pasword: " + basicPass + "}"},
			{yaml: "elasticsearch:\n  password: " + basicPass + ": x"},
			{yaml: "elasticsearch:\n  password: *" + basicPass},
			{yaml: "elasticsearch:\n  password: \"" + basicPass},
			{yaml: "kafka: {sasl: {mechanism: NONE, username: a, password: " + saslSecret + ", password_file: /nowhere}}"},
			{yaml: "kafka: {session_timeout: \"${env:SLUICE_TEST_SECRET}\"}"},
			{yaml: "memory: {limit: \"${env:SLUICE_TEST_SECRET}\"}"},
			{set: "elasticsearch.pasword=" + basicPass},
			{set: "kafka.sasl.password=[" + basicPass},
		} {
			file := filepath.Join(t.TempDir(), "sluice.yaml")
			if err := os.WriteFile(file, []byte(c.yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{"validate", "--offline", "-c", file}
			if c.set != "" {
				args = append(args, "--set", c.set)
			}
			cmd := exec.Command(path, args...)
			cmd.Env = append(os.Environ(), "SLUICE_TEST_SECRET="+saslSecret)
			said, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 78 {
				t.Errorf("%d: it is taken: %v: %s", i, err, said)
			}
			if form := shows(string(said)); form != "" {
				t.Errorf("%d: it shows %q: %s", i, form, said)
			}
		}
	})
}

// page reads a page of the process's admin address, with headers of the
// answer.
func (p *process) page(path string) string {
	p.t.Helper()
	resp, err := http.Get(p.adminURL() + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprint(resp.Header, "\n", string(text))
}

// V54: what tells of a process's inside is for its own machine: nothing else
// is listened on unless a token or client certificates are asked for, profiles
// are served on loopback only, to who names it so, and probes say one word.
func TestV54_DebugEndpointsAreLocal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	if host, _, err := net.SplitHostPort(config.Default().Admin.Address); err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("the default address is %s", config.Default().Admin.Address)
	}
	if code, said := w.sluice("admin: {address: \"0.0.0.0:0\"}", "run"); code != 78 || !strings.Contains(said, "admin.token_file") {
		t.Errorf("an address for everybody, without a token: exit code %d: %s", code, said)
	}

	p := w.launch("")
	w.produce(records(10)...)
	w.awaitDone()
	get := func(method, path, host string) (status int, body string) {
		req, err := http.NewRequestWithContext(t.Context(), method, p.adminURL()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		resp, err := http.DefaultClient.Do(req)
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
	for _, c := range []struct {
		method, path, host string
		status             int
		body               string // "": any
	}{
		{"GET", "/livez", "", 200, "ok\n"},
		{"GET", "/readyz", "", 200, "ok\n"},
		{"GET", "/debug/pprof/", "", 200, ""},
		{"GET", "/debug/pprof/", "sluice.example", 403, ""},
		{"GET", "/debug/pprof/heap", "sluice.example:9600", 403, ""},
		{"POST", "/debug/pprof/", "", 405, ""},
		{"GET", "/debug/vars", "", 404, ""},
		{"GET", "/debug/", "", 404, ""},
		{"POST", "/v1/targets/events/release", "sluice.example", 403, ""},
	} {
		if status, body := get(c.method, c.path, c.host); status != c.status || c.body != "" && body != c.body {
			t.Errorf("%s %s for host %q: %d %q, want %d %q", c.method, c.path, c.host, status, body, c.status, c.body)
		}
	}
	// What is not ready says no more than that.
	gone := w.es.Inject(embedded.Rule{Fault: embedded.Unauthorized()})
	defer gone.Remove()
	w.produce(records(20)[10:]...)
	w.await("the outage", func() error {
		if status, _ := get("GET", "/healthz", ""); status != 503 {
			return fmt.Errorf("/healthz is %d", status)
		}
		return nil
	})
	if _, body := get("GET", "/readyz", ""); body != "ok\n" && body != "no\n" {
		t.Errorf("/readyz says %q", body)
	}
}
