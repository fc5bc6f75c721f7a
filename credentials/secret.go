// Package credentials holds what proves who Sluice is: secrets that cannot be
// printed by accident, and TLS clients, both following their files on disk.
//
// Nothing here watches or polls: files are looked at when they are needed (one
// stat), so there is no goroutine, and a file that is being replaced is never
// the reason for a failure while the old content still works.
package credentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
)

const redacted = "[redacted]"

// Reveal returns the text itself, for the one place that sends it.
func (s Secret) Reveal() string { return string(s) }

// String returns "[redacted]", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString is String in quotes, for %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format writes String for every verb: %x and %d would otherwise show the
// bytes.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		text = s.GoString()
	}
	_, _ = io.WriteString(f, text) // a fmt.State reports its errors itself
}

// MarshalText returns String, for XML and for encoders that know neither of
// the next two.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns String as a JSON string.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalYAML returns String.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// Error is a credential that cannot be used. Its text holds no secret.
type Error struct {
	// Key is the configuration key at fault, relative to the section, such as
	// "ca_file"; "" where the section as a whole is.
	Key     string
	Problem string // what is wrong, naming the file
	Remedy  string // what to do
}

// Error returns key, problem and remedy in one line.
func (e *Error) Error() string {
	text := e.Problem + "; " + e.Remedy
	if e.Key != "" {
		text = e.Key + ": " + text
	}
	return text
}

// Source gives a secret that was written down or that stands in a file. All
// methods are safe for concurrent use.
type Source struct {
	file string // "": value never changes

	mu sync.Mutex
	// value is a pointer because fmt shows what is in a field that is not
	// exported; of a pointer in a struct it shows the address.
	value *Secret
	seen  os.FileInfo // of the file that value was read from
}

// Open returns the source of a secret that is given as value or as the path of
// a file, which is read at once. With neither it gives "". An error is an
// *Error whose Key is "file": both were given, or the file cannot be read or is
// empty.
func Open(value Secret, file string) (*Source, error) {
	s := &Source{file: file, value: &value}
	if file == "" {
		return s, nil
	}
	if value != "" {
		return nil, &Error{Key: "file", Problem: "the secret is given twice, as a text and as a file", Remedy: "keep one of the two"}
	}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Get returns the secret. Where it comes from a file that has changed since,
// the file is read again; while that fails, or gives nothing, the last good
// secret is returned.
func (s *Source) Get() Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == "" {
		return *s.value
	}
	// The file may be replaced at any moment, by a rename, a symbolic link
	// (Kubernetes) or a write in place. In the last case it may be read half
	// written; its next stat differs again, so the next Get puts that right.
	if info, err := os.Stat(s.file); err == nil && !same(info, s.seen) {
		_ = s.read() // the last good secret is all that can be given; Reload reports
	}
	return *s.value
}

// Reload reads the file again whether it looks changed or not, and says what
// is wrong with it; the last good secret then stays in use. Without a file it
// does nothing.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == "" {
		return nil
	}
	return s.read()
}

// read replaces value by the file's content without one line end. s.mu is
// held.
func (s *Source) read() error {
	info, err := os.Stat(s.file) // before the content: what is written in between is seen next time
	if err != nil {
		return unreadable("file", s.file, err)
	}
	data, err := os.ReadFile(s.file)
	if err != nil {
		return unreadable("file", s.file, err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" {
		return &Error{Key: "file", Problem: fmt.Sprintf("%s is empty", s.file), Remedy: "write the secret into it"}
	}
	value := Secret(text)
	s.value, s.seen = &value, info
	return nil
}

// same reports whether two stats of one path describe the same content.
func same(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// unreadable describes the failure to read the file of a key.
func unreadable(key, file string, err error) *Error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = path.Err // the path stands in the text already
	}
	return &Error{Key: key, Problem: fmt.Sprintf("cannot read %s: %v", file, err), Remedy: "check the path and who may read it"}
}
