package app

import (
	"errors"
	"testing"
	"time"
)

// The age of a lag is found to a sixteenth, or to a tenth of a second, with few
// questions, and the limit is asked for as it is.
func TestOldest(t *testing.T) {
	const limit = 5 * time.Second
	for _, age := range []time.Duration{
		0, 30 * time.Millisecond, time.Second, limit - time.Millisecond, limit, limit + time.Millisecond, 9 * time.Second, time.Hour, 20 * 24 * time.Hour, 50 * 365 * 24 * time.Hour,
	} {
		asked := 0
		got, over, err := oldest(limit, func(a time.Duration) (bool, error) { asked++; return age > a, nil })
		if err != nil || over != (age > limit) || asked > 16 {
			t.Errorf("%s: %s, over %t, %v, after %d questions", age, got, over, err, asked)
		}
		far := age > 10*365*24*time.Hour
		if off := got - age; !far && (off < 0 || off > max(age/15, 100*time.Millisecond)) || far && got < 365*24*time.Hour {
			t.Errorf("%s: found %s", age, got)
		}
	}
	broken := errors.New("no answer")
	if _, _, err := oldest(limit, func(time.Duration) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}
