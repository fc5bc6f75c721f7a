package admin

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"testing"
)

// dial opens a connection.
func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// knock asks over a connection whether the process lives, and leaves it open.
func knock(conn net.Conn) error {
	if _, err := fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}

// limit sets the limit anew.
func (d *doors) limit(most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.most = most
}

// await waits until so many connections are in a state.
func (d *doors) await(state http.ConnState, n int) {
	for {
		d.mu.Lock()
		found := 0
		for _, s := range d.open {
			if s == state {
				found++
			}
		}
		d.mu.Unlock()
		if found == n {
			return
		}
		runtime.Gosched()
	}
}

// Whoever holds connections, asking for nothing, keeps nobody out, and there are
// never more than the limit.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 3
	for name, hold := range map[string]func(*testing.T, *Server){
		"that asked once": func(t *testing.T, s *Server) {
			if err := knock(dial(t, s)); err != nil {
				t.Fatal(err)
			}
		},
		"that never ask": func(t *testing.T, s *Server) { dial(t, s) },
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t, Config{}, &process{alive: true})
			s.doors.limit(most)
			state := http.StateIdle
			if name == "that never ask" {
				state = http.StateNew
			}
			for n := range most {
				hold(t, s)
				s.doors.await(state, n+1)
			}
			for range 3 * most {
				if err := knock(dial(t, s)); err != nil {
					t.Fatalf("a probe beside %d connections %s: %v", most, name, err)
				}
				s.doors.await(http.StateActive, 0) // its answer may be here before it counts as idle
				s.doors.mu.Lock()
				if n := len(s.doors.open); n > most {
					t.Errorf("%d connections are open, want at most %d", n, most)
				}
				s.doors.mu.Unlock()
			}
		})
	}
}

// Who is being answered is not cut off for a new one.
func TestBusyConnectionsStay(t *testing.T) {
	s := listen(t, Config{}, &process{alive: true})
	s.doors.limit(2)
	first, second := look(t, s.URL()), look(t, s.URL())
	if err := knock(dial(t, s)); err == nil {
		t.Error("a third connection was answered")
	}
	for _, v := range []view{first, second} {
		if line, err := bufio.NewReader(v.body).ReadString('\n'); err != nil {
			t.Errorf("a page was cut off: %q, %v", line, err)
		}
	}
	first.body.Close()
	s.doors.await(http.StateActive, 1)
	if err := knock(dial(t, s)); err != nil {
		t.Errorf("after one went: %v", err)
	}
}
