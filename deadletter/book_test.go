package deadletter

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/memory"
)

// A letter that is acknowledged before Write returns gives back no bytes that
// were not taken.
func TestChargedBeforeQueued(t *testing.T) {
	var b book
	budget := memory.New(1 << 20)
	b.open(budget, "", zerolog.Nop())
	b.take(example(1), func(error) {}, func(l *letter) {
		if used := budget.Used(); used != l.size || used == 0 {
			t.Errorf("%d bytes are charged for a letter of %d when it is queued", used, l.size)
		}
	})
	b.giveUp()
	if used := budget.Used(); used != 0 {
		t.Errorf("%d bytes were never given back", used)
	}
}
