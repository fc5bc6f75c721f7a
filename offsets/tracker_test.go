package offsets

import (
	"errors"
	"flag"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue && !testing.Short() {
		if err := f.Value.Set("10000"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// model is the tracker written without a thought for speed: it keeps every
// record for ever and searches all of them.
type model struct {
	recs     []modelRecord
	position int64
	started  bool
}

type modelRecord struct {
	offset    int64
	waits     int
	touched   bool
	abandoned bool
}

func (m *model) handled(i int) bool { return m.recs[i].waits == 0 && !m.recs[i].abandoned }

func (m *model) committable() (int64, bool) {
	for i, r := range m.recs {
		if !m.handled(i) {
			return r.offset, true
		}
	}
	return m.position, m.started
}

func (m *model) outstanding() (n int) {
	for _, r := range m.recs {
		if r.waits > 0 {
			n++
		}
	}
	return n
}

func (m *model) waiting() (n int) {
	for _, r := range m.recs {
		n += r.waits
	}
	return n
}

func (m *model) settle(seqs []uint64, handled bool) (h, a, wrong int) {
	for _, seq := range seqs {
		if seq >= uint64(len(m.recs)) || m.recs[seq].waits == 0 {
			wrong++
			continue
		}
		r := &m.recs[seq]
		r.waits--
		r.touched = true
		r.abandoned = r.abandoned || !handled
		switch {
		case r.waits == 0 && r.abandoned:
			a++
		case r.waits == 0:
			h++
		}
	}
	return h, a, wrong
}

// TestTrackerIsItsModel compares every answer of the tracker with the naive
// model's after each of 200 steps.
func TestTrackerIsItsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var tr Tracker
		var m model
		steps := rapid.SliceOfN(rapid.Uint32(), 200, 200).Draw(rt, "steps")
		for n, s := range steps {
			op, arg := s%16, s/16
			switch {
			case op < 6: // deliver, with a hole now and then
				offset := m.position
				if arg%4 == 0 {
					offset += int64(arg/4) % 50
				}
				seq := tr.Deliver(offset)
				if seq != uint64(len(m.recs)) {
					rt.Fatalf("delivered record %d got sequence number %d", len(m.recs), seq)
				}
				waits := 1
				if arg%8 == 3 {
					waits = 1 + int(arg/8)%3
					tr.Require(seq, waits)
				}
				m.recs = append(m.recs, modelRecord{offset: offset, waits: waits})
				m.position, m.started = offset+1, true
			case op < 13: // settle some, in any order, at times one too many
				var seqs []uint64
				for k := range arg % 6 {
					if len(m.recs) > 0 {
						back := (arg >> (4 * k)) % 32
						seqs = append(seqs, uint64(max(0, len(m.recs)-1-int(back))))
					}
				}
				if arg%97 == 0 {
					seqs = append(seqs, uint64(len(m.recs)))
				}
				handled := arg%101 != 0
				h, a, err := tr.Settle(seqs, handled)
				mh, ma, wrong := m.settle(seqs, handled)
				var se *SettledError
				if errors.As(err, &se) != (wrong > 0) || wrong > 0 && se.Count != wrong {
					rt.Fatalf("settle %v: error %v, the model counts %d", seqs, err, wrong)
				}
				if h != mh || a != ma {
					rt.Fatalf("settle %v: %d handled %d abandoned, the model says %d and %d", seqs, h, a, mh, ma)
				}
			case op == 13:
				position := m.position + int64(arg%5) - 1
				tr.Advance(position)
				if !m.started || position > m.position {
					m.position, m.started = position, true
				}
			default: // take back the untouched tail, or a part of it
				from := len(m.recs)
				for n := arg % 8; n > 0 && from > 0 && !m.recs[from-1].touched; n-- {
					from--
				}
				if got := tr.Undeliver(uint64(from)); got != len(m.recs)-from {
					rt.Fatalf("took back %d records of %d", got, len(m.recs)-from)
				}
				if from < len(m.recs) {
					m.position = m.recs[from].offset
					m.recs = slices.Clip(m.recs[:from])
				}
			}
			check(rt, &tr, &m)
			if n%10 == 9 { // what is found wrongly once is so afterwards
				checkFind(rt, &tr, &m)
			}
		}
	})
}

func checkFind(rt *rapid.T, tr *Tracker, m *model) {
	for i, r := range m.recs {
		if seq, ok := tr.Find(r.offset); ok != (r.waits > 0) || ok && seq != uint64(i) {
			rt.Fatalf("record %d at %d with %d targets left is found as %d %v", i, r.offset, r.waits, seq, ok)
		}
	}
}

func check(rt *rapid.T, tr *Tracker, m *model) {
	got, ok := tr.Committable()
	want, wantOK := m.committable()
	if got != want || ok != wantOK {
		rt.Fatalf("committable %d %v, the model says %d %v", got, ok, want, wantOK)
	}
	if got, ok := tr.Position(); got != m.position || ok != m.started {
		rt.Fatalf("position %d %v, the model says %d %v", got, ok, m.position, m.started)
	}
	if got, want := tr.Outstanding(), m.outstanding(); got != want {
		rt.Fatalf("outstanding %d, the model says %d", got, want)
	}
	if got, want := tr.Waiting(), m.waiting(); got != want {
		rt.Fatalf("%d settlements to come, the model says %d", got, want)
	}
	if n := len(m.recs); n > 0 {
		if got, ok := tr.Offset(uint64(n - 1)); ok && got != m.recs[n-1].offset {
			rt.Fatalf("offset of record %d is %d, the model says %d", n-1, got, m.recs[n-1].offset)
		}
	}
	if _, ok := tr.Offset(uint64(len(m.recs))); ok {
		rt.Fatal("offset of a record that was never delivered")
	}
}

func TestZeroValue(t *testing.T) {
	var tr Tracker
	if _, ok := tr.Committable(); ok {
		t.Fatal("nothing was delivered, yet something may be committed")
	}
	if h, a, err := tr.Settle(nil, true); h != 0 || a != 0 || err != nil {
		t.Fatalf("settling nothing: %d %d %v", h, a, err)
	}
	if _, _, err := tr.Settle([]uint64{0}, true); err == nil {
		t.Fatal("a settlement of nothing passed")
	}
	if tr.Undeliver(0) != 0 {
		t.Fatal("took back a record of none")
	}
}

// The floor is what invariant 1 rests on: an abandoned record holds it for good.
func TestAbandonedHoldsTheFloor(t *testing.T) {
	var tr Tracker
	a, b := tr.Deliver(10), tr.Deliver(20)
	if _, _, err := tr.Settle([]uint64{a}, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tr.Settle([]uint64{b}, true); err != nil {
		t.Fatal(err)
	}
	tr.Advance(50)
	if got, _ := tr.Committable(); got != 10 {
		t.Fatalf("committable %d beyond the abandoned record at 10", got)
	}
	if _, _, err := tr.Settle([]uint64{a}, true); err == nil {
		t.Fatal("an abandoned record was settled again")
	}
}

func TestMisusePanics(t *testing.T) {
	for name, f := range map[string]func(*Tracker){
		"an offset again":        func(tr *Tracker) { tr.Deliver(5) },
		"no target":              func(tr *Tracker) { tr.Require(0, 0) },
		"too many targets":       func(tr *Tracker) { tr.Require(0, MaxTargets+1) },
		"targets after the fact": func(tr *Tracker) { _, _, _ = tr.Settle([]uint64{0}, true); tr.Require(0, 2) },
		"taken back too late":    func(tr *Tracker) { _, _, _ = tr.Settle([]uint64{1}, false); tr.Undeliver(0) },
	} {
		t.Run(name, func(t *testing.T) {
			var tr Tracker
			tr.Deliver(5)
			tr.Deliver(6)
			defer func() {
				if recover() == nil {
					t.Fatal("no panic")
				}
			}()
			f(&tr)
		})
	}
}

func TestNoAllocation(t *testing.T) {
	var tr Tracker
	seqs := make([]uint64, 64)
	offset := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		for i := range seqs {
			seqs[i] = tr.Deliver(offset)
			offset += 2
		}
		if _, _, err := tr.Settle(seqs, true); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations a batch", n)
	}
}

// BenchmarkTracker delivers and settles batches of 256 with 16 of them in
// flight, settled in another order than delivered.
func BenchmarkTracker(b *testing.B) {
	const batch, depth = 256, 16
	var tr Tracker
	seqs := make([][]uint64, depth)
	for i := range seqs {
		seqs[i] = make([]uint64, 0, batch)
	}
	offset := int64(0)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s := seqs[i%depth]
		if len(s) > 0 {
			if _, _, err := tr.Settle(s, true); err != nil {
				b.Fatal(err)
			}
		}
		s = s[:0]
		for range batch {
			s = append(s, tr.Deliver(offset))
			offset++
		}
		seqs[i%depth] = s
		i += 7
		tr.Committable()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/record")
}
