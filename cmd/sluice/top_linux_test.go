package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// pseudoTerminal returns both sides of a terminal: what a person holds, and what
// the program has.
func pseudoTerminal(t *testing.T, width, height uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	resize(t, program, width, height)
	return person, program
}

func resize(t *testing.T, terminal *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

// shown is what has come to the person.
type shown struct {
	mu   sync.Mutex
	text []byte
	more chan struct{}
}

func (s *shown) read(terminal *os.File) {
	buffer := make([]byte, 4096)
	for {
		n, err := terminal.Read(buffer)
		s.mu.Lock()
		s.text = append(s.text, buffer[:n]...)
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// wait waits for a text behind what was there, and returns all from there on.
func (s *shown) wait(t *testing.T, from int, want string) (text string, at int) {
	t.Helper()
	for ctx, cancel := context.WithTimeout(t.Context(), time.Minute); ; {
		s.mu.Lock()
		text, at = string(s.text[from:]), len(s.text)
		s.mu.Unlock()
		if strings.Contains(text, want) {
			cancel()
			return text, at
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			cancel()
			t.Fatalf("waited in vain for %q; it shows %q", want, text)
		}
	}
}

// On a terminal: it draws, draws anew when the size changes, quits by q, and
// leaves the terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	_, now := troubledGroup()
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = now[0].Status
		switch r.URL.Path {
		case "/healthz":
			answer = now[0].Health
		case "/v1/jobs":
			answer = []jobLine{}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer replica.Close()
	person, program := pseudoTerminal(t, 80, 24)
	before, err := term.GetState(int(program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	s := &shown{more: make(chan struct{}, 1)}
	go s.read(person)
	ended := make(chan error, 1)
	go func() {
		root := newRoot()
		root.SetArgs([]string{"top", "--admin", replica.URL, "--interval", "1h"})
		root.SetIn(program)
		root.SetOut(program)
		ended <- root.ExecuteContext(t.Context())
	}()
	text, at := s.wait(t, 0, "rejected_record")
	if !strings.HasPrefix(text, openScreen) || strings.Contains(text, "\x1b[31m") {
		t.Errorf("it shows %q", text)
	}
	resize(t, program, 50, 9)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // the terminal is not the test's own
		t.Fatal(err)
	}
	text, at = s.wait(t, at, eraseBelow)
	if lines := strings.Count(text, "\r\n") + 1; lines > 9 || !strings.Contains(text, "…") {
		t.Errorf("in 50x9 it shows %d lines: %q", lines, text)
	}
	if _, err := person.WriteString("xq"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.wait(t, at, closeScreen)
	after, err := term.GetState(int(program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(fmt.Append(nil, *before), fmt.Append(nil, *after)) {
		t.Error("the terminal is not as it was")
	}
}
