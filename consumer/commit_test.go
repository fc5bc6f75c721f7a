package consumer

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// V05: the connection breaks under a commit. The client repeats it at once, so
// nothing fails; still the broker may carry the first copy out after later
// commits, so the position is said again and again for a while.
func TestCommitWhoseConnectionBroke(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(atOnce)
	w.waitAllCommitted()
	w.wait("the first answer", func() bool { s, _ := m.partition(0); return s.Committed == 10 })
	broken := false // of the cluster's goroutine
	w.kafka.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		if broken {
			w.kafka.DropControl()
			return nil, nil, false
		}
		w.kafka.KeepControl()
		broken = true
		return nil, errors.New("the connection is dropped by the test"), true
	})
	w.produce(0, 10)
	w.wait("the commit", func() bool { s, _ := m.partition(0); return s.Committed == 20 })
	w.mu.Lock()
	n := w.commitN
	w.mu.Unlock()
	// Nothing new is handled.
	w.wait("the position to be committed again", func() bool { return w.commitN >= n+3 })
}
