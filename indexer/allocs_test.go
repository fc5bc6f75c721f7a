package indexer

import "testing"

// deaf hears outcomes and keeps nothing.
type deaf struct{}

func (deaf) Settle(Outcome, []uint64)           {}
func (deaf) Reject(uint64, *Rejection)          {}
func (deaf) Conflict(uint64, int64, *Rejection) {}

// An answer that all went well allocates for its batch, not for its records.
func TestSettlingDoesNotAllocate(t *testing.T) {
	const records = 1000
	target := &target{name: "a", label: "a"}
	src := &source{Source: deaf{}}
	c := &chunk{target: target, entries: make([]entry, records)}
	b := &batch{chunks: []*chunk{c}}
	for i := range c.entries {
		c.entries[i] = entry{src: src, seq: uint64(i)}
	}
	b.seal()
	b.sent = b.refs
	w := &worker{x: &Indexer{metrics: newMetrics()}}
	settle := func() {
		w.written(b, nil)
		w.r.send()
	}
	settle()
	if n := testing.AllocsPerRun(100, settle); n > records/100 {
		t.Errorf("%v allocations for %d records", n, records)
	}
}
