package elastic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestInfo(t *testing.T) {
	const form = `{"cluster_name":"c","cluster_uuid":"u","version":{"number":"%s"%s},"tagline":"x"}`
	for _, tt := range []struct {
		number, more string
		want         Info // the zero value: refused
	}{
		{"7.17.29", "", Info{Elasticsearch, "7.17.29", 7, 17, "c", "u"}},
		{"8.19.21", `,"build_flavor":"default"`, Info{Elasticsearch, "8.19.21", 8, 19, "c", "u"}},
		{"9.0.0-beta1", "", Info{Elasticsearch, "9.0.0-beta1", 9, 0, "c", "u"}},
		{"10.1.0", "", Info{Elasticsearch, "10.1.0", 10, 1, "c", "u"}},
		{"2.19.6", `,"distribution":"opensearch"`, Info{OpenSearch, "2.19.6", 2, 19, "c", "u"}},
		{"3.9.0", `,"distribution":"opensearch"`, Info{OpenSearch, "3.9.0", 3, 9, "c", "u"}},
		{"7.16.3", "", Info{}},
		{"7.10.2", "", Info{}},
		{"6.8.0", "", Info{}},
		{"1.3.0", `,"distribution":"opensearch"`, Info{}},
		{"", "", Info{}},
		{"x.y", "", Info{}},
	} {
		c := newClient(t, answering(200, fmt.Sprintf(form, tt.number, tt.more)))
		got, err := c.Info(t.Context())
		if tt.want == (Info{}) {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: %v, %v", tt.number, got, err)
			}
			if hint := strings.Contains(fmt.Sprint(err), "override_main_response_version"); hint != (tt.number == "7.10.2") {
				t.Errorf("%s: %v", tt.number, err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v", tt.number, got, err)
		}
	}
	if _, err := newClient(t, answering(200, "hello")).Info(t.Context()); err == nil {
		t.Error("a greeting was taken for a version")
	}
}

func TestWaitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n := 0
		rt := roundTripper(func(*http.Request) (*http.Response, error) {
			n++
			switch {
			case n <= 3:
				return nil, fmt.Errorf("dial tcp 127.0.0.1:%d: connection refused", 40000+n)
			case n <= 5:
				return answer(503, ""), nil
			}
			return answer(200, `{"version":{"number":"8.19.0"}}`), nil
		})
		var log bytes.Buffer
		c := newClient(t, rt, WithLog(zerolog.New(&log)))
		info, err := c.WaitReady(t.Context(), nil)
		if err != nil || info.Major != 8 || time.Since(start) != 5*waitInterval {
			t.Errorf("%+v, %v after %s", info, err, time.Since(start))
		}
		if lines := strings.Count(log.String(), "\n"); lines != 3 {
			t.Errorf("%d lines:\n%s", lines, &log)
		}
	})
}

func TestWaitReadyGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, answering(200, `{"version":{"number":"6.8.0"}}`))
		if _, err := c.WaitReady(t.Context(), nil); !errors.Is(err, ErrUnsupported) {
			t.Errorf("an old server: %v", err)
		}
		cause := errors.New("stopped")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
		defer cancel()
		var refused *Error
		var told error
		_, err := newClient(t, answering(401, "")).WaitReady(ctx, func(err error) { told = err })
		if !errors.Is(err, cause) || !errors.As(err, &refused) || refused.Status != 401 || !errors.As(told, &refused) || refused.Status != 401 {
			t.Errorf("the context ended: %v", err)
		}
	})
}

func TestIndexInfo(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   string
		want   IndexInfo
	}{
		"missing": {404, `{"error":{"type":"index_not_found_exception"}}`, IndexInfo{Name: "x", Kind: Missing}},
		"index": {
			200, `{"x":{"aliases":{"y":{}},"settings":{"index.number_of_shards":"1"}}}`,
			IndexInfo{"x", Index, []string{"x"}, "x", time.Minute},
		},
		"index with gc_deletes": {
			200, `{"x":{"settings":{"index.gc_deletes":"15m"}}}`,
			IndexInfo{"x", Index, []string{"x"}, "x", 15 * time.Minute},
		},
		"alias of one": {
			200, `{"x-1":{"aliases":{"x":{}},"settings":{"index.gc_deletes":"1.5h"}}}`,
			IndexInfo{"x", Alias, []string{"x-1"}, "x-1", 90 * time.Minute},
		},
		"alias that is not written to": {
			200, `{"x-1":{"aliases":{"x":{"is_write_index":false}}}}`,
			IndexInfo{"x", Alias, []string{"x-1"}, "", time.Minute},
		},
		"alias with a write index": {
			200, `{"x-1":{"aliases":{"x":{"is_write_index":false}},"settings":{"index.gc_deletes":"1s"}},"x-2":{"aliases":{"x":{"is_write_index":true}},"settings":{"index.gc_deletes":"2d"}}}`,
			IndexInfo{"x", Alias, []string{"x-1", "x-2"}, "x-2", 48 * time.Hour},
		},
		"alias of several": {
			200, `{"x-1":{"aliases":{"x":{}},"settings":{"index.gc_deletes":"-1"}},"x-2":{"aliases":{"x":{}},"settings":{"index.gc_deletes":"5m"}},"x-3":{"aliases":{"x":{}},"settings":{"index.gc_deletes":"10m"}}}`,
			IndexInfo{"x", Alias, []string{"x-1", "x-2", "x-3"}, "", 5 * time.Minute},
		},
		"data stream": {
			200, `{".ds-x-2026.01.02-000010":{"data_stream":"x"},".ds-x-2026.01.01-000009":{"data_stream":"x"}}`,
			IndexInfo{"x", DataStream, []string{".ds-x-2026.01.01-000009", ".ds-x-2026.01.02-000010"}, ".ds-x-2026.01.02-000010", time.Minute},
		},
		"never forgotten": {
			200, `{"x":{"settings":{"index.gc_deletes":"-1"}}}`,
			IndexInfo{"x", Index, []string{"x"}, "x", -1},
		},
	} {
		got, err := newClient(t, answering(tt.status, tt.body)).IndexInfo(t.Context(), "x")
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, tt.want)
		}
	}
	for status, body := range map[int]string{
		404: `not here`, 403: `{"error":{"type":"security_exception"}}`,
		200: `{"x":{"settings":{"index.gc_deletes":"soon"}}}`,
	} {
		if got, err := newClient(t, answering(status, body)).IndexInfo(t.Context(), "x"); err == nil {
			t.Errorf("%d %s: %+v", status, body, got)
		}
	}
}

func TestMissingPrivileges(t *testing.T) {
	ask := func(status int, body string) ([]string, error) {
		return newClient(t, answering(status, body)).MissingPrivileges(t.Context(), "events", "index", "delete")
	}
	if missing, err := ask(200, `{"index":{"events":{"index":true,"delete":false}}}`); err != nil || !reflect.DeepEqual(missing, []string{"delete"}) {
		t.Errorf("%v, %v", missing, err)
	}
	if missing, err := ask(200, `{"index":{"events":{"index":true,"delete":true}}}`); err != nil || missing != nil {
		t.Errorf("%v, %v", missing, err)
	}
	for status, none := range map[int]bool{400: true, 404: true, 405: true, 500: true, 401: false, 403: false, 429: false, 503: false} {
		if _, err := ask(status, ""); errors.Is(err, ErrNoSecurity) != none || err == nil {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestHealth(t *testing.T) {
	var path string
	c := newClient(t, roundTripper(func(req *http.Request) (*http.Response, error) {
		path = req.URL.Path
		return answer(200, `{"status":"yellow","number_of_nodes":3,"number_of_data_nodes":2,"active_shards":4,"unassigned_shards":5}`), nil
	}))
	h, err := c.Health(t.Context(), "a", "b")
	if err != nil || h != (Health{"yellow", 3, 2, 4, 5}) || path != "/_cluster/health/a,b" {
		t.Errorf("%+v, %v from %s", h, err, path)
	}
}

// A request's first line has room for some indices only.
func TestHealthOfManyIndices(t *testing.T) {
	var asked []string
	states := []string{"yellow", "red", "green"}
	c := newClient(t, roundTripper(func(req *http.Request) (*http.Response, error) {
		if line := len(req.Method + " " + req.URL.RequestURI() + " HTTP/1.1\r\n"); line > 4096 {
			t.Errorf("the first line has %d bytes", line)
		}
		names, _ := strings.CutPrefix(req.URL.Path, "/_cluster/health/")
		asked = append(asked, strings.Split(names, ",")...)
		state := states[0]
		states = states[1:]
		return answer(200, `{"status":"`+state+`","number_of_nodes":3,"number_of_data_nodes":2,"active_shards":4,"unassigned_shards":5}`), nil
	}))
	var indices []string
	for i := range 40 {
		indices = append(indices, strings.Repeat("ü", 30)+fmt.Sprint(i)) // six bytes each, escaped
	}
	h, err := c.Health(t.Context(), indices...)
	if err != nil || h != (Health{"red", 3, 2, 12, 15}) || !slices.Equal(asked, indices) {
		t.Errorf("%+v, %v of %v", h, err, asked)
	}
}
