package elastic

import "testing"

// Refused is certain: after any other answer, what was asked for may be done.
func TestRefused(t *testing.T) {
	for status, want := range map[int]bool{400: true, 403: true, 429: true, 408: false, 409: false, 500: false, 503: false, 504: false} {
		if e := (&Error{Status: status}); e.Refused() != want {
			t.Errorf("%d: %v", status, e.Refused())
		}
	}
}
