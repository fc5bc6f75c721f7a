package elastic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/memory"
)

// endless is a body that never ends and counts what was read of it.
type endless struct {
	request context.Context
	pause   time.Duration
	read    *atomic.Int64
}

func (e endless) Read(p []byte) (int, error) {
	if e.pause > 0 {
		p = p[:1]
		select {
		case <-e.request.Done():
			return 0, e.request.Err()
		case <-time.After(e.pause):
		}
	}
	for i := range p {
		p[i] = ' '
	}
	e.read.Add(int64(len(p)))
	return len(p), nil
}

func (endless) Close() error { return nil }

// Every call that is answered without end, or by drips, ends with an error that
// says so and what to do; not much is read.
func TestAnswersWithoutEnd(t *testing.T) {
	const most = 3 << 20
	calls := map[string]func(context.Context, *Client) error{
		"version":   func(ctx context.Context, c *Client) error { _, err := c.Info(ctx); return err },
		"index":     func(ctx context.Context, c *Client) error { _, err := c.IndexInfo(ctx, "a"); return err },
		"mapping":   func(ctx context.Context, c *Client) error { _, err := c.Mappings(ctx, "a"); return err },
		"search":    func(ctx context.Context, c *Client) error { _, err := c.Search(ctx, "a", map[string]any{}); return err },
		"documents": func(ctx context.Context, c *Client) error { _, err := c.GetMany(ctx, []DocID{{ID: "1"}}); return err },
		"bulk": func(ctx context.Context, c *Client) error {
			_, err := c.Bulk(ctx, []byte("{}\n"), url.Values{})
			return err
		},
		"refresh": func(ctx context.Context, c *Client) error { return c.Refresh(ctx, "a") },
		"change": func(ctx context.Context, c *Client) error {
			return c.change(ctx, "changing", request{method: http.MethodPut, path: "/a"}, nil)
		},
		"control document": func(ctx context.Context, c *Client) error {
			_, _, err := c.Control("control").Get(ctx, "id", new(any))
			return err
		},
	}
	for name, call := range calls {
		for _, status := range []int{200, 404, 500} {
			for _, pause := range []time.Duration{0, time.Second / 4} {
				t.Run(fmt.Sprint(name, status, pause), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var read atomic.Int64
						c := newClient(t, roundTripper(func(req *http.Request) (*http.Response, error) {
							res := answer(status, "")
							res.Body = endless{req.Context(), pause, &read}
							return res, nil
						}), WithMaxAnswer(most))
						err := call(t.Context(), c)
						var large *memory.TooLargeError
						switch {
						case err == nil:
							t.Error("it went well")
						case status == 200 && pause == 0:
							if !errors.As(err, &large) || !strings.Contains(err.Error(), "elasticsearch.addresses") {
								t.Error(err)
							}
						case status == 200:
							if !strings.Contains(err.Error(), "began and did not end: no answer within 20s") {
								t.Error(err)
							}
						}
						if n := read.Load(); n > most+1 {
							t.Errorf("%d bytes were read", n)
						}
					})
				})
			}
		}
	}
}

// However many calls are answered without end, one is read at a time.
func TestLargeAnswersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var read atomic.Int64
		c := newClient(t, roundTripper(func(req *http.Request) (*http.Response, error) {
			res := answer(200, "")
			res.Body = io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat(" ", smallAnswer)), endless{req.Context(), time.Second, &read}))
			return res, nil
		}))
		failed := make(chan error)
		for range 4 {
			go func() { _, err := c.Info(t.Context()); failed <- err }()
		}
		for range 4 {
			if err := <-failed; err == nil || !strings.Contains(err.Error(), "no answer within 20s") {
				t.Error(err)
			}
		}
		// A byte each to see that there is more, and one a second.
		if read.Load() > 30 {
			t.Errorf("%d bytes were read", read.Load())
		}
	})
}

// Headers without end do not fill memory either, bulk requests included.
func TestHeadersWithoutEnd(t *testing.T) {
	for name, text := range map[string]struct{ first, more string }{
		"lines":       {"HTTP/1.1 200 OK\r\n", "X-More: and more\r\n"},
		"one":         {"HTTP/1.1 200 OK\r\nX: ", "more "},
		"more to say": {"", "HTTP/1.1 103 Early Hints\r\nX-More: and more\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				for _, err := io.WriteString(conn, text.first); err == nil; {
					_, err = io.WriteString(conn, strings.Repeat(text.more, 1000)) // until whoever asked has gone
				}
			}))
			defer s.Close()
			c, err := New(Config{Addresses: []string{s.URL}, RequestTimeout: 2 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context()) //nolint:errcheck // it is shown elsewhere
			_, errCall := c.Info(t.Context())
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/_bulk", strings.NewReader("{}\n"))
			if err != nil {
				t.Fatal(err)
			}
			res, errBulk := c.Perform(req)
			if errBulk == nil {
				res.Body.Close()
			}
			for _, err := range []error{errCall, errBulk} {
				if err == nil || !strings.Contains(err.Error(), "see what elasticsearch.addresses names") {
					t.Errorf("%v", err)
				}
			}
		})
	}
}
