package admin

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// view is a stream that is open.
type view struct {
	status int
	kind   string
	body   io.ReadCloser
}

// look opens the stream of a server, until the test ends.
func look(t *testing.T, url string) view {
	t.Helper()
	resp, err := http.Get(url + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() }) // it was only read
	return view{resp.StatusCode, resp.Header.Get("Content-Type"), resp.Body}
}

// A page is told something new each second, for longer than other requests may
// take.
func TestEvents(t *testing.T) {
	impatient := httptest.NewUnstartedServer(listen(t, Config{}, &process{}).http.Handler)
	impatient.Config.ReadTimeout, impatient.Config.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	impatient.Start()
	defer impatient.Close()
	v := look(t, impatient.URL)
	defer v.body.Close()
	if v.kind != "text/event-stream" {
		t.Errorf("Content-Type = %q", v.kind)
	}
	lines := bufio.NewScanner(v.body)
	for _, want := range []string{`data: {"told":1}`, "", `data: {"told":2}`, ""} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("told %q, want %q (%v)", lines.Text(), want, lines.Err())
		}
	}
}

// A page that is open does not hold the end of the server up.
func TestEventsEnd(t *testing.T) {
	s := listen(t, Config{}, &process{})
	v := look(t, s.URL())
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(v.body); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
}

// So many pages, and no more; one that goes makes room.
func TestEventsAreBounded(t *testing.T) {
	s := listen(t, Config{}, &process{})
	var last view
	for range maxViewers {
		last = look(t, s.URL())
	}
	if v := look(t, s.URL()); v.status != http.StatusServiceUnavailable {
		t.Errorf("one more page: %d", v.status)
	}
	last.body.Close()
	s.viewers <- struct{}{} // there is room as soon as the server notices
	<-s.viewers
	if v := look(t, s.URL()); v.status != http.StatusOK {
		t.Errorf("after one went: %d", v.status)
	}
}

// All pages are told the same, which is made once a second.
func TestEventsAreMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := &process{}, &live{}
		for range 5 {
			if body, err := l.look(p); err != nil || string(body) != `{"told":1}` {
				t.Errorf("%s, %v", body, err)
			}
		}
		pass(liveInterval)
		if body, _ := l.look(p); !strings.Contains(string(body), "2") {
			t.Errorf("a second later: %s", body)
		}
	})
}

// pass lets the bubble's time go on.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's clock
}
