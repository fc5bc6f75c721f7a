package scenarios

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/embedded"
)

// forms are a text as it is and as it is commonly encoded. Base64 has three
// shapes, by what stands before the text.
func forms(text string) []string {
	all := []string{text, url.QueryEscape(text), url.PathEscape(text), hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text)))}
	for shift := range 3 {
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			encoded := encoding.EncodeToString(append(make([]byte, shift), text...))
			all = append(all, encoded[[]int{0, 2, 3}[shift]:len(encoded)-1]) // the characters that the text alone decides
		}
	}
	return all
}

// lookFor fails the test where a text shows a canary in any form.
func lookFor(t *testing.T, where, text string, canaries ...string) {
	t.Helper()
	if unzipped, err := gzip.NewReader(strings.NewReader(text)); err == nil {
		more, _ := io.ReadAll(unzipped) // a profile; what cannot be read is looked at as it is
		text += string(more)
	}
	for _, canary := range canaries {
		for _, form := range forms(canary) {
			if at := strings.Index(text, form); at >= 0 {
				t.Errorf("%s shows %q as %q: %q", where, canary, form, text[max(0, at-100):min(len(text), at+100)])
				break
			}
		}
	}
}

// The search finds what it is to find.
func TestCanariesAreFound(t *testing.T) {
	const canary = "C4nary+/with=signs"
	for _, shown := range []string{
		canary, url.QueryEscape(canary), fmt.Sprintf("%x", canary), base64.StdEncoding.EncodeToString([]byte(canary)),
		base64.StdEncoding.EncodeToString([]byte("user:" + canary)), base64.URLEncoding.EncodeToString([]byte("ab:" + canary + "tail")),
	} {
		found := false
		for _, form := range forms(canary) {
			found = found || strings.Contains("before "+shown+" after", form)
		}
		if !found {
			t.Errorf("%q is not found", shown)
		}
	}
}

// V51: no byte of a record's value or headers stands in the log, the metrics,
// the status, a profile, what a collector is sent, an operator's command, a
// letter's own headers or the dump of a process that dies, whatever becomes of the record and whatever
// servers answer.
func TestV51_NoRecordIsShown(t *testing.T) {
	t.Parallel()
	const value, header = "c4nary-in-the-value", "c4nary-in-a-header"
	w := newWorld(t, worldOptions{})
	w.effect = nil // what becomes of the records is other tests'
	w.mapping(`{"properties":{"n":{"type":"long"},"d":{"type":"date"},"o":{"properties":{"x":{"type":"long"}}}}}`)
	const yaml = "log: {level: trace}\nkafka: {client_id: canary}"
	var sent output
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(&sent, r.Body) }))
	t.Cleanup(collector.Close)
	p := w.launch(yaml, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_METRIC_EXPORT_INTERVAL=500", "OTEL_BSP_SCHEDULE_DELAY=100")
	check := func(where, text string) {
		t.Helper()
		lookFor(t, where, text, value, header)
	}
	n := 0
	send := func(value string) {
		n++
		r := record(fmt.Sprint("key-", n), 0)
		r.Value = []byte(value)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "h", Value: []byte(header)})
		w.produce(r)
	}
	for _, text := range []string{
		`{"text":"` + value + `"}`, `{"n":"` + value + `"}`, `{"d":"` + value + `"}`, `{"o":"` + value + `"}`, `{"` + value + `":1,"n":"x"}`,
		`{"text":"` + value, value, `{"n":1}{"x":"` + value + `"}`, `["` + value + `"]`, `{"_id":"` + value + `"}`, "{\"a\":\"" + value + "\xff\"}",
		`{"a..b":"` + value + `"}`, strings.Repeat(`{"a":`, 2000) + `"` + value + `"` + strings.Repeat("}", 2000),
	} {
		send(text)
	}
	w.awaitDone()
	pages := func(during string) {
		t.Helper()
		for _, page := range []string{
			"/metrics", "/healthz", "/v1/status", "/", "/v1/jobs", "/debug/pprof/heap", "/debug/pprof/heap?debug=1", "/debug/pprof/allocs",
			"/debug/pprof/goroutine?debug=2", "/debug/pprof/block?debug=1", "/debug/pprof/cmdline",
		} {
			check(page+" "+during, p.page(page))
		}
		for _, args := range [][]string{
			{"validate"},
			{"lag"},
			{"lag", "--json"},
			{"deadletter", "list"},
			{"deadletter", "list", "--json"},
			{"generation", "show", "--topic", topic},
			{"explain", "events/0/0"},
			{"explain", "events/0/1"},
			{"explain", "events/0/1", "--json"},
			{"explain", fmt.Sprintf("events/0/%d", n-1)},
			{"status", "--admin", p.adminURL()},
			{"status", "--admin", p.adminURL(), "--json"},
			{"target", "list", "--admin", p.adminURL()},
			{"parked", "list"},
			{"skip", "events/0/0", "--admin", p.adminURL()},
		} {
			_, said := w.sluice(yaml, args...)
			check(fmt.Sprint(args, " ", during), said)
		}
	}
	pages("when all is settled")
	// A server that quotes all that it was sent.
	quote := func(status int, format string) func(*embedded.Request) *embedded.Fault {
		return func(r *embedded.Request) *embedded.Fault {
			f := embedded.Answer(status, fmt.Sprintf(format, value))
			return &f
		}
	}
	for what, fault := range map[string]func(*embedded.Request) *embedded.Fault{
		"400":               quote(http.StatusBadRequest, `{"error":{"type":"mapper_parsing_exception","reason":"[%s]"},"status":400}`),
		"403":               quote(http.StatusForbidden, `{"error":{"type":"cluster_block_exception","reason":"[%s]"},"status":403}`),
		"500":               quote(http.StatusInternalServerError, `{"error":{"type":"illegal_state_exception","reason":"[%s]"},"status":500}`),
		"429":               quote(http.StatusTooManyRequests, `{"error":{"type":"es_rejected_execution_exception","reason":"[%s]"},"status":429}`),
		"a page":            quote(http.StatusBadGateway, "<html>%s</html>"),
		"an unusable body":  quote(http.StatusOK, `{"took":1,"errors":true,"items":["%s"]}`),
		"refused addresses": func(*embedded.Request) *embedded.Fault { f := embedded.Refused(); return &f },
	} {
		var hits atomic.Int64
		w.es.Intercept(func(r *embedded.Request) *embedded.Fault {
			hits.Add(1)
			return fault(r)
		})
		send(`{"text":"` + value + `"}`)
		w.await(what, func() error {
			if hits.Load() < 2 {
				return errors.New("nothing was sent")
			}
			return nil
		})
		check("/healthz during "+what, p.page("/healthz"))
		w.es.Intercept(nil)
		w.awaitDone()
	}
	pages("after all errors")
	letters := w.letters()
	if len(letters) < 5 {
		t.Errorf("%d dead letters: too few paths were taken", len(letters))
	}
	for _, l := range letters {
		for _, h := range l.Headers {
			if strings.HasPrefix(h.Key, "sluice.") {
				check("the letter's header "+h.Key, string(h.Value))
			}
		}
	}
	w.await("metrics and spans at the collector", func() error {
		for _, word := range []string{"sluice_dead_letters_total", "db.operation.batch.size", "http.response.status_code"} {
			if !strings.Contains(sent.String(), word) {
				return fmt.Errorf("no %s", word)
			}
		}
		return nil
	})
	check("what the collector was sent", sent.String())
	// The Go runtime ends the process with a dump of all that runs, as it does
	// for a panic.
	if code := p.end(syscall.SIGQUIT); code != 2 {
		t.Errorf("exit code %d", code)
	}
	check("the log", p.log.String())
}

// V51: what stands in the files and addresses of a configuration that cannot
// work is not told either.
func TestV51_NoCredentialFileIsShown(t *testing.T) {
	t.Parallel()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	const canary = "c4nary+credential/word="
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	broken := file("broken.pem", "-----BEGIN PRIVATE KEY-----\n"+canary+"\n-----END PRIVATE KEY-----\n")
	encoded := file("encoded.pem", "-----BEGIN CERTIFICATE-----\n"+base64.StdEncoding.EncodeToString([]byte(canary))+"\n-----END CERTIFICATE-----\n")
	secret := file("secret", canary)
	const base = "kafka: {brokers: ['127.0.0.1:1'], topics: [t], group_id: g%s}\ndocuments: {index: i, version: none}\nelasticsearch: {%s}\nadmin: {address: ''}\n"
	es := "addresses: ['http://127.0.0.1:1']"
	for name, c := range map[string]struct {
		yaml string
		env  string
	}{
		"a key that is none":            {yaml: fmt.Sprintf(base, fmt.Sprintf(", tls: {enabled: true, cert_file: %q, key_file: %q}", encoded, broken), es)},
		"a certificate that is none":    {yaml: fmt.Sprintf(base, fmt.Sprintf(", tls: {enabled: true, ca_file: %q}", encoded), es)},
		"Elasticsearch's key":           {yaml: fmt.Sprintf(base, "", es+fmt.Sprintf(", tls: {cert_file: %q, key_file: %q}", encoded, broken))},
		"a token":                       {yaml: fmt.Sprintf(base, fmt.Sprintf(", sasl: {mechanism: OAUTHBEARER, token_file: %q}", secret), es)},
		"an access key":                 {yaml: fmt.Sprintf(base, fmt.Sprintf(", tls: {enabled: true}, sasl: {mechanism: AWS_MSK_IAM, username: %q, password_file: %q, token_file: %q}", "user", secret, secret), es)},
		"a password in a file":          {yaml: fmt.Sprintf(base, fmt.Sprintf(", sasl: {mechanism: SCRAM-SHA-256, username: u, password_file: %q}", secret), es+fmt.Sprintf(", username: u, password_file: %q", secret))},
		"a password in a key's place":   {yaml: fmt.Sprintf(base, "", es+fmt.Sprintf(", api_key_file: %q, username: u", secret))},
		"a cloud id that is none":       {yaml: fmt.Sprintf(base, "", fmt.Sprintf("cloud_id: %q, api_key_file: %q", "name:"+canary, secret))},
		"a cloud id":                    {yaml: fmt.Sprintf(base, "", fmt.Sprintf("cloud_id: %q, api_key_file: %q", "name:"+base64.StdEncoding.EncodeToString([]byte("invalid$host$"+canary)), secret))},
		"a password in an address":      {yaml: fmt.Sprintf(base, "", fmt.Sprintf("addresses: [%q]", "http://u:"+url.QueryEscape(canary)+"@127.0.0.1:1"))},
		"a password in another address": {yaml: fmt.Sprintf(base, "", fmt.Sprintf("addresses: [%q, %q]", "http://127.0.0.1:1", "http://u:"+url.QueryEscape(canary)+"@127.0.0.1:2/?q="+canary))},
		"a password in a broker":        {yaml: fmt.Sprintf(strings.Replace(base, "127.0.0.1:1", "u:"+canary+"@127.0.0.1:1", 1), "", es)},
		"a proxy's password":            {yaml: fmt.Sprintf(base, "", "addresses: ['http://elastic.invalid:9200']"), env: "HTTP_PROXY=http://u:" + url.QueryEscape(canary) + "@127.0.0.1:1"},
		"an admin token":                {yaml: fmt.Sprintf(base, "", es) + fmt.Sprintf("log: {level: trace}\ndead_letter: {topic: dead}\n#%s", secret)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := filepath.Join(t.TempDir(), "sluice.yaml")
			if err := os.WriteFile(config, []byte(c.yaml+"shutdown_timeout: 1s\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"validate", "--print"}, {"explain", "t/0/0"}} {
				cmd := exec.Command(path, append(args, "-c", config, "--log-level", "trace")...)
				cmd.Env = append(os.Environ(), c.env)
				said, err := cmd.CombinedOutput()
				if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				if len(bytes.TrimSpace(said)) == 0 {
					t.Errorf("%v says nothing", args)
				}
				lookFor(t, fmt.Sprint(args), string(said), canary)
			}
		})
	}
}
