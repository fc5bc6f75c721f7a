//go:build synctests

//nolint:bodyclose // lies put bodies in the places of others; whoever asked closes what it gets
package scenarios

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/elastic"
)

// liar stands between a program and Elasticsearch and puts answers of its own in
// the place of the first, or of some, to requests of a kind, which are carried out.
type liar struct {
	truth http.RoundTripper
	about string // which: what their paths begin with
	lie   func(*http.Response) error

	mu   sync.Mutex
	left int
}

func (l *liar) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.truth.RoundTrip(req)
	if err != nil || !strings.HasPrefix(req.URL.Path, l.about) {
		return resp, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 {
		return resp, nil
	}
	l.left--
	return resp, l.lie(resp)
}

// endless is a body that goes on as long as the request may: by as much as one
// asks for, or by a byte after a pause.
type endless struct {
	request context.Context
	pause   time.Duration
}

func (e endless) Read(p []byte) (int, error) {
	if e.pause > 0 {
		p = p[:1]
		select {
		case <-e.request.Done():
		case <-time.After(e.pause):
		}
	}
	clear(p)
	return len(p), context.Cause(e.request)
}

func (endless) Close() error { return nil }

// neverEnding is an answer whose body is endless.
func neverEnding(pause time.Duration) func(*http.Response) error {
	return func(resp *http.Response) error {
		err := resp.Body.Close()
		resp.Body, resp.ContentLength = endless{resp.Request.Context(), pause}, -1
		return err
	}
}

// edited is a lie about an answer's text.
func edited(edit func([]byte) []byte) func(*http.Response) error {
	return func(resp *http.Response) error {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil {
			return err
		}
		text = edit(text)
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		return nil
	}
}

// with is a lie that puts a status and a text in the place of the answer.
func with(status int, text string) func(*http.Response) error {
	return func(resp *http.Response) error {
		resp.StatusCode = status
		resp.Header.Set("Location", "http://elsewhere/_bulk")
		return edited(func([]byte) []byte { return []byte(text) })(resp)
	}
}

// Whatever stands between Sluice and Elasticsearch, or went wrong in it, answers
// something that no server answers: it proves nothing, nothing is lost, nothing
// is dead-lettered, and nobody waits for ever.
func TestV25_Liars(t *testing.T) {
	items := func(item string) func(*http.Response) error {
		return edited(func(text []byte) []byte {
			n := bytes.Count(text, []byte(`"status"`))
			return []byte(`{"errors":false,"items":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]}`)
		})
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 100<<20)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for name, lie := range map[string]func(*http.Response) error{
		"one item more": edited(func(text []byte) []byte {
			return bytes.Replace(text, []byte(`"items":[`), []byte(`"items":[{"index":{"status":201,"result":"created"}},`), 1)
		}),
		"another answer's items": items(`{"delete":{"status":200,"result":"deleted"}}`),
		"items twice":            edited(func(text []byte) []byte { return bytes.Replace(text, []byte(`{`), []byte(`{"items":[],`), 1) }),
		"text behind it":         edited(func(text []byte) []byte { return append(text, `{"errors":false,"items":[]}`...) }),
		"status as text":         items(`{"index":{"status":"201"}}`),
		"no number":              items(`{"index":{"status":1e400}}`),
		"too large a number":     items(`{"index":{"status":99999999999999999999999}}`),
		"negative":               items(`{"index":{"status":-201}}`),
		"two actions an item":    items(`{"index":{"status":201},"delete":{"status":200}}`),
		"very deep":              with(200, `{"errors":false,"items":`+strings.Repeat("[", 1<<20)+strings.Repeat("]", 1<<20)+`}`),
		"an error with 200":      with(200, `{"error":{"type":"illegal_argument_exception","reason":"no"},"status":400}`),
		"null":                   with(200, `null`),
		"202":                    with(202, `{}`),
		"moved for good":         with(301, ""),
		"moved for now":          with(307, "<html>"),
		"a page for 404":         with(404, "<html>"),
		"nobody asked for gzip": func(resp *http.Response) error {
			resp.Header.Set("Content-Encoding", "gzip")
			return edited(func([]byte) []byte { return bomb.Bytes() })(resp)
		},
		"endless":          neverEnding(0),
		"a byte at a time": neverEnding(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, worldOptions{partitions: 2, virtual: true})
				const n = 300
				w.produce(records(n)...)
				l := &liar{truth: w.es.Transport(), about: "/_bulk", lie: lie, left: 1}
				p := w.begin("indexer: {flush_documents: 100}", func(_ *config.Config, o *app.Options) {
					o.Elastic = []elastic.Option{elastic.WithRoundTripper(l)}
				})
				w.awaitDone(p)
				w.checkFold()
				w.checkLetters(nil)
				if l.left != 0 {
					t.Errorf("%d lies were not told", l.left)
				}
				if stale, indexed := p.outcomes("stale"), p.outcomes("indexed"); stale+indexed != n || stale == 0 {
					t.Errorf("%d records count as repeats and %d as indexed, want %d in all", stale, indexed, n)
				}
				if h := p.App.Health(); !h.OK() {
					t.Errorf("%+v", h)
				}
			})
		})
	}
}

// Lies about control documents, at the start: the program says what is wrong and
// ends, or asks again; it writes nothing that it would not have written, and a
// later start finds all in order.
func TestLiesAboutTheControlIndex(t *testing.T) {
	for name, lie := range map[string]func(*http.Response) error{
		"page":                with(200, "<html>"),
		"nothing":             with(200, ""),
		"empty object":        with(200, `{}`),
		"null":                with(200, `null`),
		"array":               with(200, `[]`),
		"found, but nothing":  with(200, `{"found":true}`),
		"found, and no entry": with(200, `{"found":true,"_seq_no":1,"_primary_term":1,"_source":{"format":1,"topic":"events","entries":[]}}`),
		"another topic's":     with(200, `{"found":true,"_seq_no":1,"_primary_term":1,"_source":{"format":1,"topic":"x","entries":[{"generation":1,"topic_id":"x","partitions":1}]}}`),
		"of the future":       with(200, `{"found":true,"_seq_no":1,"_primary_term":1,"_source":{"format":99}}`),
		"a page for 404":      with(404, "<html>"),
		"not found":           with(404, `{"found":false}`),
		"moved":               with(302, ""),
		"too many requests":   with(429, ""),
		"bad gateway":         with(502, "<html>"),
		"endless":             neverEnding(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, worldOptions{partitions: 2, virtual: true})
				first := w.begin("")
				w.produce(records(100)...)
				w.awaitDone(first)
				if err := first.stop(); err != nil {
					t.Fatal(err)
				}
				recorded := w.generations(topic)
				w.produce(records(200)...)
				l := &liar{truth: w.es.Transport(), about: "/" + control, lie: lie, left: 3}
				p := w.begin("", func(_ *config.Config, o *app.Options) {
					o.Elastic = []elastic.Option{elastic.WithRoundTripper(l)}
				})
				select {
				case <-p.ended:
					if p.err == nil || len(p.err.Error()) > 500 {
						t.Errorf("it ended with: %v", p.err)
					}
				case <-time.After(patience):
				}
				if n := w.lag(topic); n > 0 {
					if err := p.stop(); err != nil {
						t.Logf("it ended with: %v", err)
					}
					w.awaitDone(w.begin(""))
				}
				w.checkFold()
				w.checkLetters(nil)
				if now := w.generations(topic); len(now) != len(recorded) {
					t.Errorf("the generations were %v and are %v", recorded, now)
				}
			})
		})
	}
}
