package credentials

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"
)

func TestASecretNeverShows(t *testing.T) {
	const text = "hunter2"
	type section struct {
		User     string
		Password Secret
		Nested   *section
		Many     []Secret
		ByName   map[string]Secret
	}
	v := section{User: "u", Password: text, Nested: &section{Password: text}, Many: []Secret{text}, ByName: map[string]Secret{"a": text}}
	hex := fmt.Sprintf("%x", text)

	source, err := Open(text, "")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%10v"} {
		shown[verb] = fmt.Sprintf(verb, v)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10v", "%t", "%08b"} {
		shown["direct "+verb] = fmt.Sprintf(verb, v.Password)
		shown["pointer "+verb] = fmt.Sprintf(verb, &v.Nested.Password)
		shown["source "+verb] = fmt.Sprintf(verb, source)
		shown["source in a struct "+verb] = fmt.Sprintf(verb, struct{ s *Source }{source})
	}
	encode := func(name string, out []byte, err error) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		shown[name] = string(out)
	}
	out, err := json.Marshal(v)
	encode("JSON", out, err)
	out, err = yaml.Marshal(v)
	encode("YAML", out, err)
	out, err = xml.Marshal(v.Many)
	encode("XML", out, err)
	var log strings.Builder
	l := zerolog.New(&log)
	l.Info().Interface("v", v).Stringer("s", v.Password).Any("p", v.Password).Msgf("%v", v)
	shown["zerolog"] = log.String()
	shown["error"] = fmt.Errorf("wrapped: %w", errors.New(fmt.Sprint(v.Password))).Error()

	for how, text := range shown {
		if strings.Contains(text, "hunter2") || strings.Contains(strings.ToLower(text), hex) {
			t.Errorf("%s shows the secret: %s", how, text)
		}
	}
	if got := fmt.Sprintf("%v|%s|%q|%#v", v.Password, v.Password, v.Password, v.Password); got != `[redacted]|[redacted]|"[redacted]"|"[redacted]"` {
		t.Errorf("formats as %s", got)
	}
	if got := fmt.Sprintf("%v|%#v", Secret(""), Secret("")); got != `|""` {
		t.Errorf("an empty secret formats as %s", got)
	}
	if v.Password.Reveal() != text {
		t.Error("Reveal does not reveal")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// age sets a file's modification time apart from the one before, which writes
// within one tick of the file system's clock would share.
func age(t *testing.T, path string, by time.Duration) {
	t.Helper()
	at := time.Now().Add(by)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestSourceFollowsItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write(t, path, "first\n")
	s, err := Open("", path)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when, want string) {
		t.Helper()
		if got := s.Get().Reveal(); got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	expect("one trailing line end is cut", "first")

	write(t, path, " two \n\n")
	age(t, path, time.Minute)
	expect("changed; only one line end is cut", " two \n")

	write(t, path, "")
	age(t, path, 2*time.Minute)
	expect("emptied: the last good one stays", " two \n")
	if err := s.Reload(); err == nil {
		t.Error("Reload of an empty file gives no error")
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("removed: the last good one stays", " two \n")

	// As Kubernetes does it: a link is turned to another file.
	other := filepath.Join(t.TempDir(), "next")
	write(t, other, "three")
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	expect("a link to another file", "three")

	// The same size and time: only Reload can see it.
	info, err := os.Stat(other)
	if err != nil {
		t.Fatal(err)
	}
	write(t, other, "THREE")
	if err := os.Chtimes(other, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(); err != nil {
		t.Error(err)
	}
	expect("reloaded", "THREE")
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	write(t, empty, "\n")
	tests := map[string]struct {
		value Secret
		file  string
		want  string // part of the error; "": none
	}{
		"neither": {"", "", ""},
		"text":    {"x", "", ""},
		"both":    {"hunter2", empty, "given twice"},
		"empty":   {"", empty, "is empty"},
		"missing": {"", filepath.Join(dir, "none"), "no such file"},
		"folder":  {"", dir, "is a directory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := Open(tt.value, tt.file)
			if tt.want == "" {
				if err != nil || s.Get() != tt.value || s.Reload() != nil {
					t.Fatalf("Open = %v, %v", s.Get().Reveal(), err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || e.Key != "file" || !strings.Contains(e.Error(), tt.want) || e.Remedy == "" {
				t.Errorf("error %v, want an *Error about file with %q and a remedy", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}
