package main

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A cluster that has never had a group has no coordinator when it is first asked,
// and one some seconds later.
func TestANewClusterHasNoCoordinatorYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		answer, err := coordinated(t.Context(), func() (int, error) {
			if asked++; asked < 4 {
				return 0, kerr.CoordinatorNotAvailable
			}
			return asked, nil
		})
		if answer != 4 || err != nil {
			t.Errorf("asked %d times: %d, %v", asked, answer, err)
		}

		asked = 0
		if _, err := coordinated(t.Context(), func() (int, error) { asked++; return 0, kerr.CoordinatorNotAvailable }); !errors.Is(err, kerr.CoordinatorNotAvailable) {
			t.Errorf("asked %d times: %v", asked, err)
		}
		asked = 0
		if _, err := coordinated(t.Context(), func() (int, error) { asked++; return 0, kerr.GroupAuthorizationFailed }); asked != 1 || err == nil {
			t.Errorf("asked %d times: %v", asked, err)
		}
	})
}
