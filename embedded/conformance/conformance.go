// Package conformance holds the rules that Sluice relies on in an Elasticsearch
// or OpenSearch, as requests and the answers they must get. The same table runs
// against the embedded server and against real ones, so that the embedded one
// cannot drift from what it stands for.
package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A Capability is something that a case needs of a server and that not every
// server offers.
type Capability uint

// The capabilities.
const (
	// Exclusive: cluster settings may be changed; nobody else uses the server.
	Exclusive Capability = 1 << iota
	// Waiting: cases may wait for seconds, for deletes to be forgotten.
	Waiting
	// DropProcessor: the ingest processor drop is there.
	DropProcessor
	// DataStreams: data streams are there.
	DataStreams
	// SmallContentLength: http.max_content_length is 1mb.
	SmallContentLength
)

// A Server is what the cases run against.
type Server struct {
	// URL is the base URL, and Transport sends requests to it; nil is
	// http.DefaultTransport.
	URL       string
	Transport http.RoundTripper
	// OpenSearch leaves out what only Elasticsearch does and expects
	// OpenSearch's names for mapping errors.
	OpenSearch bool
	Has        Capability
	// Restart restarts the server and waits until it answers; nil: not offered.
	Restart func(context.Context) error
}

// Options say how the cases run.
type Options struct {
	// Server returns the server for one case. It may start one for each.
	Server func(t *testing.T) Server
	// Wrap runs a case; nil calls it. synctest.Test makes waiting free.
	Wrap func(t *testing.T, run func(t *testing.T))
}

// Run runs all cases as subtests.
func Run(t *testing.T, o Options) {
	wrap := o.Wrap
	if wrap == nil {
		wrap = func(t *testing.T, run func(t *testing.T)) { run(t) }
	}
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			wrap(t, func(t *testing.T) { c.run(t, o.Server(t)) })
		})
	}
}

// A tcase is one case. In its texts {i}, {j} and {k} stand for index names of
// its own, {a} and {b} for aliases.
type tcase struct {
	name    string
	needs   Capability
	restart bool
	// elastic cases are Elasticsearch's only: the text or the feature differs.
	elastic bool
	// opensearch cases are OpenSearch's only.
	opensearch bool
	steps      []step
}

// A step is one request and what its answer must be.
type step struct {
	method, path string // default: POST /_bulk
	// body is sent as it is; lines are a bulk body, joined with line ends.
	body    string
	lines   []string
	gzip    bool
	header  map[string]string
	wait    time.Duration // before the request
	restart bool          // the server, before the request

	status int // of the request; default 200
	// items are the items of a bulk answer: "201 created v1" for a success,
	// "409 type: reason" for an error. "..." at the end stands for any rest, and
	// "v*" for any version.
	items []string
	// anyOrder says that the items may stand anywhere; each begins with its id.
	anyOrder bool
	// err is the error of the whole request: "type: reason", with "..." as above.
	err string
	// json are values of the answer by dotted path; "-" is none.
	json map[string]string
	// raw is the whole body.
	raw *string
	// without are members that must not be there.
	without []string
	// noProduct demands that the answer lacks the product header.
	noProduct bool
}

var runs atomic.Int64

func (c *tcase) run(t *testing.T, s Server) {
	switch {
	case c.needs&^s.Has != 0:
		t.Skip("the server does not offer what this case needs")
	case c.restart && s.Restart == nil:
		t.Skip("the server cannot be restarted")
	case c.elastic && s.OpenSearch:
		t.Skip("Elasticsearch only")
	case c.opensearch && !s.OpenSearch:
		t.Skip("OpenSearch only")
	}
	if s.Transport == nil {
		s.Transport = http.DefaultTransport
	}
	prefix := "cf" + strconv.FormatInt(time.Now().UnixNano()%1e9, 36) + "x" + strconv.FormatInt(runs.Add(1), 36)
	names := strings.NewReplacer("{i}", prefix+"-i", "{j}", prefix+"-j", "{k}", prefix+"-k", "{a}", prefix+"-a", "{b}", prefix+"-b")
	defer s.clean(t, names)
	for n, st := range c.steps {
		st.run(t, s, fmt.Sprintf("step %d", n+1), names)
		if t.Failed() {
			return
		}
	}
}

// clean deletes what a case may have left.
func (s Server) clean(t *testing.T, names *strings.Replacer) {
	if s.Has&Exclusive != 0 {
		s.send(t, http.MethodPut, "/_cluster/settings", `{"persistent":{"action.auto_create_index":null,"cluster.max_shards_per_node":null}}`, &step{})
	}
	for _, path := range []string{"/{i}", "/{j}", "/{k}", "/_index_template/{i}", "/_index_template/{j}", "/_ingest/pipeline/{i}"} {
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodDelete, s.URL+names.Replace(path), http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := s.Transport.RoundTrip(req)
		if err != nil {
			t.Error(err)
			return
		}
		_ = resp.Body.Close() // a missing index is fine
	}
}

func (st *step) run(t *testing.T, s Server, at string, names *strings.Replacer) {
	t.Helper()
	if st.wait > 0 {
		<-time.After(st.wait) // for the server to forget deletes
	}
	if st.restart {
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	method, path := st.method, st.path
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = "/_bulk"
	}
	body := st.body
	if st.lines != nil {
		body = strings.Join(st.lines, "\n") + "\n"
	}
	at += " " + method + " " + path + ": "
	status, header, text := s.send(t, method, names.Replace(path), names.Replace(body), st)
	want := st.status
	if want == 0 {
		want = http.StatusOK
	}
	if status != want {
		t.Errorf("%sstatus %d, want %d\n%s", at, status, want, text)
		return
	}
	if st.noProduct && header.Get("X-Elastic-Product") != "" {
		t.Errorf("%sthe answer has the product header", at)
	}
	if st.raw != nil && text != names.Replace(*st.raw) {
		t.Errorf("%sbody %q, want %q", at, text, names.Replace(*st.raw))
	}
	var v any
	if len(text) > 0 {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Errorf("%s%v in %q", at, err, text)
			return
		}
	}
	st.check(t, s, at, v, names)
}

func (st *step) check(t *testing.T, s Server, at string, v any, names *strings.Replacer) {
	t.Helper()
	if st.err != "" {
		got := fmt.Sprint(lookup(v, "error.type"), ": ", lookup(v, "error.reason"))
		if _, plain := lookup(v, "error").(string); plain {
			got = fmt.Sprint(lookup(v, "error"))
		}
		if want := s.names(names.Replace(st.err)); !fits(got, want) {
			t.Errorf("%serror\n got %s\nwant %s", at, got, want)
		}
	}
	if st.items != nil {
		st.checkItems(t, s, at, v, names)
	}
	for path, want := range st.json {
		got := fmt.Sprint(lookup(v, names.Replace(path)))
		if lookup(v, names.Replace(path)) == nil {
			got = "-"
		}
		if want := names.Replace(want); !fits(got, want) {
			t.Errorf("%s%s is %s, want %s", at, path, got, want)
		}
	}
	for _, path := range st.without {
		if got := lookup(v, path); got != nil {
			t.Errorf("%s%s is %v, want none", at, path, got)
		}
	}
}

func (st *step) checkItems(t *testing.T, s Server, at string, v any, names *strings.Replacer) {
	t.Helper()
	list, _ := lookup(v, "items").([]any)
	if len(list) != len(st.items) {
		t.Errorf("%s%d items, want %d: %v", at, len(list), len(st.items), v)
		return
	}
	anyError := false
	rest := slices.Clone(st.items)
	for n, raw := range list {
		var item any
		for _, i := range raw.(map[string]any) {
			item = i
		}
		got := fmt.Sprintf("%v %v v%v", lookup(item, "status"), lookup(item, "result"), lookup(item, "_version"))
		if lookup(item, "error") != nil {
			anyError = true
			got = fmt.Sprintf("%v %v: %v", lookup(item, "status"), lookup(item, "error.type"), lookup(item, "error.reason"))
		}
		fitting := func(item string) (want string, ok bool) {
			want = s.names(names.Replace(item))
			if head, any := strings.CutSuffix(want, "v*"); any {
				want = head + "v..."
			}
			return want, fits(got, want)
		}
		if st.anyOrder {
			got = fmt.Sprintf("%v %s", lookup(item, "_id"), got)
			i := slices.IndexFunc(rest, func(item string) bool { _, ok := fitting(item); return ok })
			if i < 0 {
				t.Errorf("%sitem %d\n got %s\nwant one of %q", at, n+1, got, rest)
			} else {
				rest = slices.Delete(rest, i, i+1)
			}
			continue
		}
		if want, ok := fitting(st.items[n]); !ok {
			t.Errorf("%sitem %d\n got %s\nwant %s", at, n+1, got, want)
		}
	}
	if e := lookup(v, "errors"); e != nil && e != anyError {
		t.Errorf("%serrors is %v, items say %v", at, e, anyError)
	}
}

// names turns Elasticsearch's names into OpenSearch's.
func (s Server) names(text string) string {
	if s.OpenSearch {
		return strings.ReplaceAll(text, "document_parsing_exception", "mapper_parsing_exception")
	}
	return text
}

// fits compares with a text in which "..." stands for anything.
func fits(got, want string) bool {
	parts := strings.Split(want, "...")
	if len(parts) == 1 {
		return got == want
	}
	if !strings.HasPrefix(got, parts[0]) {
		return false
	}
	got = got[len(parts[0]):]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(got, p)
		if i < 0 {
			return false
		}
		got = got[i+len(p):]
	}
	return strings.HasSuffix(got, parts[len(parts)-1])
}

// lookup follows a dotted path; numbers index arrays.
func lookup(v any, path string) any {
	for path != "" {
		switch x := v.(type) {
		case map[string]any:
			// Names may hold dots themselves.
			found := false
			for end := len(path); end > 0; end = strings.LastIndexByte(path[:end], '.') {
				if next, ok := x[path[:end]]; ok {
					v, path, found = next, strings.TrimPrefix(path[end:], "."), true
					break
				}
			}
			if !found {
				return nil
			}
		case []any:
			head, rest, _ := strings.Cut(path, ".")
			n, err := strconv.Atoi(head)
			if err != nil || n >= len(x) {
				return nil
			}
			v, path = x[n], rest
		default:
			return nil
		}
	}
	return v
}

func (s Server) send(t *testing.T, method, path, body string, st *step) (int, http.Header, string) {
	t.Helper()
	payload := []byte(body)
	if st.gzip {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(payload); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		payload = b.Bytes()
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	if len(payload) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if st.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	for k, v := range st.header {
		if v == "" {
			req.Header.Del(k)
		} else {
			req.Header.Set(k, v)
		}
	}
	resp, err := s.Transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, resp.Header, string(b)
}
