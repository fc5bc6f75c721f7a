package elastic

import (
	"strings"
	"testing"
)

// Refused is certain: after any other answer, what was asked for may be done.
func TestRefused(t *testing.T) {
	for status, want := range map[int]bool{400: true, 403: true, 429: true, 408: false, 409: false, 500: false, 503: false, 504: false} {
		if e := (&Error{Status: status}); e.Refused() != want {
			t.Errorf("%d: %v", status, e.Refused())
		}
	}
}

// A server that answers without end takes no memory without end.
func TestReadAtMost(t *testing.T) {
	for text, fits := range map[string]bool{"": true, "1234567": true, "12345678": true, "123456789": false} {
		got, err := readAtMost(strings.NewReader(text), 8)
		if (err == nil) != fits || len(got) > 9 || fits && string(got) != text {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
