package scenarios

import "testing"

// Everything that is produced arrives, and is committed.
func TestHarness(t *testing.T) {
	w := newWorld(t, worldOptions{partitions: 3})
	w.produce(records(1000)...)
	p := w.start("")
	w.awaitDone(p)
	w.checkFold()
	if n := p.outcomes("indexed"); n != 1000 {
		t.Errorf("%d records were indexed", n)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	q := w.launch("")
	w.produce(records(10)...)
	w.awaitDone()
	w.checkFold()
	if code := q.end(15); code != 0 {
		t.Error(code)
	}
	w.raise("", topic)
}
