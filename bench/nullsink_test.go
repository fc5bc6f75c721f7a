package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/gzip"

	"github.com/sluicehq/sluice/elastic"
)

const twoDocs = `{"index":{}}
{"seq":5,"a":1}
{"create":{"_index":"i"}}
{"seq":6,"a":2}
`

func post(t *testing.T, h http.Handler, path, body, encoding string) (int, string) {
	t.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Content-Encoding", encoding)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, _ := io.ReadAll(w.Body)
	if strings.HasSuffix(path, "_bulk") && w.Header().Get("X-Elastic-Product") != "Elasticsearch" {
		t.Error("no X-Elastic-Product header")
	}
	return w.Code, string(b)
}

func packed(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(s)) // to memory
	_ = w.Close()
	return b.String()
}

func statsOf(t *testing.T, h http.Handler) (st stats) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/stats", nil))
	if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestSinkCounts(t *testing.T) {
	s := &sink{seen: make([]atomic.Uint64, 1)}
	h := s.handler()
	const want = `{"errors":false,"items":[{"index":{"_index":"logs"}},{"create":{"_index":"i"}}]}`
	for _, tc := range [][2]string{{twoDocs, ""}, {packed(twoDocs), "gzip"}} {
		code, body := post(t, h, "/logs/_bulk?filter_path=errors,items.*._index", tc[0], tc[1])
		if code != 200 || body != want {
			t.Errorf("%d %s", code, body)
		}
	}
	if code, _ := post(t, h, "/_bulk", "nonsense\n", ""); code != 400 {
		t.Errorf("nonsense got %d", code)
	}
	st := statsOf(t, h)
	if want := xxhash.Sum64String(`{"seq":5,"a":1}`) + xxhash.Sum64String(`{"seq":6,"a":2}`); st.Sum != want {
		t.Errorf("the sum is %x, want that of two documents, each once: %x", st.Sum, want)
	}
	if st.Docs != 4 || st.Distinct != 2 || st.Duplicates != 2 || st.Requests != 3 || st.BadRequests != 1 {
		t.Errorf("%+v", st)
	}
	post(t, h, "/stats/reset", "", "")
	if st := statsOf(t, h); st.Docs != 0 || st.Requests != 0 {
		t.Errorf("after reset: %+v", st)
	}
}

// Sluice keeps its generations in the control index before it writes.
func TestSinkKeepsTheControlIndex(t *testing.T) {
	server := httptest.NewServer(new(sink).handler())
	defer server.Close()
	client, err := elastic.New(elastic.Config{Addresses: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	control := client.Control(".sluice-control")
	if err := control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := control.Create(t.Context(), "generation:bench", map[string]int{"a": 7}); err != nil {
		t.Fatal(err)
	}
	var doc map[string]int
	if _, _, err := control.Get(t.Context(), "generation:bench", &doc); err != nil || doc["a"] != 7 {
		t.Errorf("got %v, error %v", doc, err)
	}
}

func TestSinkTrouble(t *testing.T) {
	s := &sink{busy: 1}
	h := s.handler()
	if code, _ := post(t, h, "/_bulk", twoDocs, ""); code != 429 {
		t.Errorf("busy sink answered %d", code)
	}
	s = &sink{reject: 1}
	h = s.handler()
	code, body := post(t, h, "/_bulk?filter_path=errors,items.*.status", twoDocs, "")
	if code != 200 || body != `{"errors":true,"items":[{"index":{"status":429}},{"create":{"status":429}}]}` {
		t.Errorf("%d %s", code, body)
	}
	if st := statsOf(t, h); st.Docs != 0 || st.RejectedDocs != 2 {
		t.Errorf("%+v", st)
	}

	// The dice fall for the stated share.
	s, n := new(sink), 0
	for range 100000 {
		if s.roll(0.01) {
			n++
		}
	}
	if n < 900 || n > 1100 {
		t.Errorf("%d of 100000 at 1 %%", n)
	}
}
