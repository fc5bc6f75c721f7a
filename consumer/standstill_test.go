package consumer

import (
	"testing"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/memory"
)

// A partition that halts while its queue is over the high mark goes on after a
// skip: its queue is dropped, so that nothing but the halt may keep it paused.
func TestSkipOfAFullQueue(t *testing.T) {
	w := newWorld(t, 1)
	w.special(0, 5000, 300, "reject")
	m := w.start(nil, withRules(rules{policy: document.Stop, version: document.VersionSequence}), func(_ *Config, o *Options) {
		o.Budget = memory.New(4 << 20) // the high mark is 256 KiB
	})
	m.sink.setFull(true)
	w.wait("the queue to be full", func() bool { return m.paused() == 1 })
	m.sink.setFull(false)
	m.sink.setSettler(atOnce)
	m.waitState(0, StateHalted)
	if err := m.Skip(t.Context(), testTopic, 0, 300, false); err != nil {
		t.Fatal(err)
	}
	w.waitAllCommitted()
}
