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

// viewer opens the stream of a server.
func viewer(t *testing.T, url string) *http.Response {
	t.Helper()
	resp, err := http.Get(url + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A page is told something new each second, for longer than other requests may
// take.
func TestEvents(t *testing.T) {
	impatient := httptest.NewUnstartedServer(listen(t, Config{}, &process{}).http.Handler)
	impatient.Config.ReadTimeout, impatient.Config.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	impatient.Start()
	defer impatient.Close()
	resp := viewer(t, impatient.URL)
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("Content-Type = %q", kind)
	}
	lines := bufio.NewScanner(resp.Body)
	for _, want := range []string{`data: {"told":1}`, "", `data: {"told":2}`, ""} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("told %q, want %q (%v)", lines.Text(), want, lines.Err())
		}
	}
}

// A page that is open does not hold the end of the server up.
func TestEventsEnd(t *testing.T) {
	s := listen(t, Config{}, &process{})
	resp := viewer(t, s.URL())
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
}

// So many pages, and no more; one that goes makes room.
func TestEventsAreBounded(t *testing.T) {
	s := listen(t, Config{}, &process{})
	var first *http.Response
	for range maxViewers {
		first = viewer(t, s.URL())
	}
	if resp := viewer(t, s.URL()); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more page: %d", resp.StatusCode)
	}
	first.Body.Close()
	s.viewers <- struct{}{} // there is room as soon as the server notices
	<-s.viewers
	if resp := viewer(t, s.URL()); resp.StatusCode != http.StatusOK {
		t.Errorf("after one went: %d", resp.StatusCode)
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
