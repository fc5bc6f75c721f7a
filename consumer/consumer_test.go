package consumer

import (
	"testing"
)

func TestConsumesAndCommits(t *testing.T) {
	w := newWorld(t, 4)
	for p := range int32(4) {
		w.produce(p, 500)
	}
	m := w.start(shuffled(1))
	w.waitAllCommitted()
	w.wait("the answer to the commit", func() bool { s, _ := m.partition(0); return s.Committed == 500 })
	if n := m.total(outIndexed); n != 2000 {
		t.Errorf("%d records indexed of 2000", n)
	}
	s, ok := m.partition(0)
	if !ok || s.State != StateRunning || s.Lag != 0 || s.Committed != 500 || s.Generation != 1 {
		t.Errorf("status %+v", s)
	}
	if !m.Healthy() || !m.Alive() {
		t.Error("a member that works is neither healthy nor alive")
	}
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	for k, n := range w.handled {
		if len(n) != 500 {
			t.Errorf("%v: %d records of 500 handled", k, len(n))
		}
		for o, times := range n {
			if times != 1 {
				t.Errorf("%v: offset %d handled %d times", k, o, times)
			}
		}
	}
	meta, ok := parseCommitMeta(w.metas[tp{testTopic, 0}])
	if !ok || meta.Generation != 1 || meta.Partitions != 4 || meta.TopicID == "" {
		t.Errorf("commit metadata %q", w.metas[tp{testTopic, 0}])
	}
}
