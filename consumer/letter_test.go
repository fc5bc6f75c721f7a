package consumer

import (
	"testing"

	"github.com/sluicehq/sluice/deadletter"
)

// A letter that its topic never takes, whatever the reason, blocks the record:
// given up, the record would come back and be refused again, without end.
func TestRefusedLetterBlocks(t *testing.T) {
	w := newWorld(t, 1)
	w.special(0, 10, 3, "reject")
	m := w.start(atOnce, func(_ *Config, o *Options) { o.DeadLetters.(*letters).err = deadletter.ErrRefused })
	if s := m.waitState(0, StateHalted); s.Halt.Offset != 3 || s.Halt.Type != "dead_letter_refused" {
		t.Errorf("halt %+v", s.Halt)
	}
}

// A letter names the recorded generation of its record, whether it was refused
// here or by the server.
func TestLettersNameTheirGeneration(t *testing.T) {
	w := newWorld(t, 1)
	w.special(0, 10, 3, "reject")
	m := w.start(func(s *sink, as []*act) {
		for _, a := range as {
			if a.offset == 5 {
				a.reject("bad_document")
				continue
			}
			s.index([]*act{a})
		}
	})
	w.waitAllCommitted()
	l := m.letters.all()
	if len(l) != 2 || l[0].Generation != 1 || l[1].Generation != 1 {
		t.Errorf("letters %+v, want two of generation 1", l)
	}
}
