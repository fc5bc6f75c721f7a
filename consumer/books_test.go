package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/memory"
)

// quiet is a client whose pauses nobody looks at.
type quiet struct{}

func (quiet) PauseFetchPartitions(map[string][]int32) map[string][]int32 { return nil }
func (quiet) ResumeFetchPartitions(map[string][]int32)                   {}

// heap is a writer that keeps actions until somebody settles them, and at times
// has no room.
type heap struct {
	actions []indexer.Action
	full    bool
}

func (h *heap) Add(ctx context.Context, a *indexer.Action) error {
	if h.full {
		h.full = false // the next try finds room
		return context.Canceled
	}
	kept := *a
	kept.Meta = slices.Clone(a.Meta)
	h.actions = append(h.actions, kept)
	return nil
}
func (h *heap) Publish() {}

// postponed keeps letters until somebody acknowledges them.
type postponed struct{ done []func(error) }

func (p *postponed) Write(_ deadletter.Letter, done func(error)) { p.done = append(p.done, done) }

// bench makes a consumer without a Kafka, with one partition held.
func benchConsumer(w Writer, letters DeadLetters, r Rules) (*Consumer, *assignment) {
	c := &Consumer{
		cfg: Config{}, o: Options{Rules: func(string) Rules { return r }, Budget: memory.New(1 << 30), DeadLetters: letters},
		log: zerolog.Nop(), highMark: 1 << 20, lowMark: 1 << 19,
		turn: make(chan struct{}, 1), held: map[tp]*assignment{}, topics: map[string]*topic{}, ledgers: map[tp]*ledger{},
		resolveNow: make(chan struct{}, 1), pauses: newPauses(quiet{}),
	}
	c.stopping, c.stop = context.WithCancelCause(context.Background())
	c.ending, c.end = context.WithCancel(context.Background())
	c.conflicts.wake = make(chan struct{}, 1)
	c.dispatcher = newDispatcher(c, w)
	t := &topic{name: testTopic, rules: r}
	t.known.Store(&known{"id", 1, generation.List{{Generation: 1, TopicID: "id", Partitions: 1}}})
	c.topics[testTopic] = t
	a := c.begin(t, 0)
	c.pauses.add(0, a)
	return c, a
}

// TestBooksBalance drives one partition through everything that can happen to
// it, in random order, and checks after each step that the ledger balances
// (invariant 7), that nothing below the committable offset is open (invariant
// 1), and that the budget holds exactly what the queue does.
func TestBooksBalance(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h, letters := &heap{}, &postponed{}
		policy := rapid.SampledFrom([]document.Policy{document.ToDeadLetter, document.Stop, document.Drop}).Draw(rt, "policy")
		c, a := benchConsumer(h, letters, rules{policy: policy, version: document.VersionSequence})
		l := a.l
		open := map[int64]bool{} // records that were fetched and are not handled
		offset := int64(0)
		settle := func(i int) (x indexer.Action) {
			x = h.actions[i]
			h.actions[i] = h.actions[len(h.actions)-1]
			h.actions = h.actions[:len(h.actions)-1]
			return x
		}
		ended := false
		steps := rapid.SliceOfN(rapid.IntRange(0, 1<<16), 60, 60).Draw(rt, "steps")
		for _, s := range steps {
			switch op := s % 12; {
			case op < 3: // fetch
				var recs []*kgo.Record
				for range s / 12 % 40 {
					offset += int64(s / 512 % 3)
					value := "{}"
					switch (s + int(offset)) % 23 {
					case 3:
						value = "ignore"
					case 5:
						value = "reject"
					case 7:
						value = "letter"
					}
					recs = append(recs, &kgo.Record{Topic: testTopic, Offset: offset, Value: []byte(value), Timestamp: time.UnixMilli(offset)})
					offset++
				}
				if len(recs) == 0 {
					continue
				}
				before := l.consumed
				if _, err := a.enqueue(recs); err != nil {
					rt.Fatal(err)
				}
				if l.consumed > before {
					for _, r := range recs {
						open[r.Offset] = true
					}
				} else {
					offset = recs[0].Offset // not taken: it comes again
				}
			case op < 6: // dispatch
				h.full = s%7 == 0
				before := a.fetched
				c.dispatcher.batch(context.Background(), a)
				if a.fetched < before {
					offset = a.fetched
				}
			case op < 9: // settle some
				for n := s / 12 % 8; n > 0 && len(h.actions) > 0; n-- {
					x := settle(s % len(h.actions))
					switch s % 5 {
					case 0:
						x.Source.Reject(x.Seq, &indexer.Rejection{Type: "t", Meta: x.Meta})
					case 1:
						x.Source.Settle(indexer.Stale, []uint64{x.Seq})
					default:
						x.Source.Settle(indexer.Indexed, []uint64{x.Seq})
					}
				}
			case op == 9: // acknowledge a letter, or give it up
				if n := len(letters.done); n > 0 {
					done := letters.done[n-1]
					letters.done = letters.done[:n-1]
					var err error
					if s%11 == 0 {
						err = deadletter.ErrOversize
					}
					done(err)
				}
			case op == 10 && s%5 == 0 && !ended: // the end of the assignment
				a.stop()
				if s%2 == 0 {
					a.forget()
					ended = true
				}
			case op == 11 && s%9 == 0:
				c.halt(a, &Halt{Kind: HaltDataLoss, Offset: a.fetched})
				if !ended {
					offset = max(offset, 0)
				}
			}
			l.mu.Lock()
			sum := l.inFlight()
			for _, n := range l.counts {
				sum += n
			}
			if sum != l.consumed {
				rt.Fatalf("consumed %d, outcomes %v, in flight %d", l.consumed, l.counts, l.inFlight())
			}
			if !ended {
				at, _ := a.tracker.Committable()
				handled := l.counts[outIndexed] + l.counts[outStale] + l.counts[outDeadLettered] + l.counts[outIgnored]
				below := uint64(0)
				for o := range open {
					if o < at {
						below++
					}
				}
				if below > handled {
					rt.Fatalf("%d records below the committable offset %d, %d are handled", below, at, handled)
				}
			}
			held := a.bytes
			for _, b := range a.blockers {
				held += b.bytes
			}
			l.mu.Unlock()
			if used := c.o.Budget.Used(); used != held {
				rt.Fatalf("the budget holds %d bytes, queue and blockers %d", used, held)
			}
		}
		a.forget()
		if used := c.o.Budget.Used(); used != 0 {
			rt.Fatalf("%d bytes left in the budget", used)
		}
		if c.counters.bugs.Load() != 0 {
			rt.Fatal("internal errors")
		}
	})
}

// Each record is mapped in its own generation: the first one at a recorded start
// belongs to the entry that begins there, wherever fetches and batches are cut,
// and the dead letter of a record names the same.
func TestGenerationOfEachRecord(t *testing.T) {
	h, letters := &heap{}, &postponed{}
	c, a := benchConsumer(h, letters, rules{policy: document.ToDeadLetter, version: document.VersionSequence})
	list := generation.List{
		{Generation: 1, TopicID: "id", Partitions: 1},
		{Generation: 3, TopicID: "id", Partitions: 1, Start: map[int32]int64{0: 100}},
		{Generation: 4, TopicID: "id", Partitions: 1, Start: map[int32]int64{0: 101}},
		{Generation: 9, TopicID: "id", Partitions: 1, Start: map[int32]int64{0: 300}},
	}
	a.topic.known.Store(&known{"id", 1, list})
	want := func(offset int64) int {
		switch {
		case offset < 100:
			return 1
		case offset < 101:
			return 3
		case offset < 300:
			return 4
		}
		return 9
	}
	offset := int64(90)
	for _, fetch := range []int64{10, 1, 100, 300} { // the first two end at starts, the others between
		var recs []*kgo.Record
		for range fetch {
			recs = append(recs, &kgo.Record{Topic: testTopic, Offset: offset, Value: []byte("{}")})
			offset++
		}
		if _, err := a.enqueue(recs); err != nil {
			t.Fatal(err)
		}
		for a.queued > 0 {
			c.dispatcher.batch(t.Context(), a)
		}
	}
	if len(h.actions) != int(offset-90) {
		t.Fatalf("%d actions of %d records", len(h.actions), offset-90)
	}
	for _, x := range h.actions {
		generation, at, _, _ := document.DecodeSequence(x.Version)
		if generation != want(at) || at != 90+int64(x.Seq) {
			t.Errorf("record %d was written as that at %d of generation %d", x.Seq, at, generation)
		}
		if letter, ok := a.letter(x.Seq, &indexer.Rejection{Meta: x.Meta}); !ok || letter.Generation != want(at) {
			t.Errorf("the letter of the record at %d names generation %d", at, letter.Generation)
		}
	}
	a.forget()
}

// A letter that was given up counts for nothing: its record, and what blocks on
// it, stay uncommitted for the next owner.
func TestLetterNotAcknowledged(t *testing.T) {
	for _, test := range []struct {
		err       error
		lettered  uint64
		abandoned uint64
		blockers  int
		at        int64 // committable
	}{
		{nil, 1, 0, 0, 1},
		{deadletter.ErrClosed, 0, 1, 0, 0},
		{fmt.Errorf("events/0/0: %w", deadletter.ErrRefused), 0, 0, 1, 0},
		{fmt.Errorf("events/0/0: %w", deadletter.ErrOversize), 0, 0, 1, 0},
		{errors.New("of another kind"), 0, 1, 0, 0},
	} {
		t.Run(fmt.Sprint(test.err), func(t *testing.T) {
			letters := &postponed{}
			c, a := benchConsumer(&heap{}, letters, rules{policy: document.ToDeadLetter})
			if _, err := a.enqueue([]*kgo.Record{{Topic: testTopic, Value: []byte("letter")}}); err != nil {
				t.Fatal(err)
			}
			c.dispatcher.batch(t.Context(), a)
			if len(letters.done) != 1 {
				t.Fatalf("%d letters", len(letters.done))
			}
			if at, ok := a.committable(true); !ok || at.Offset != 0 {
				t.Errorf("committable before the answer: %+v %v", at, ok)
			}
			letters.done[0](test.err)
			if at, ok := a.committable(true); !ok || at.Offset != test.at {
				t.Errorf("committable %+v %v, want %d", at, ok, test.at)
			}
			if n := &a.l.counts; n[outDeadLettered] != test.lettered || n[outAbandoned] != test.abandoned || len(a.blockers) != test.blockers {
				t.Errorf("counted %v, with %d blockers", *n, len(a.blockers))
			}
			a.forget()
		})
	}
}

// A conflict that waits to be classified gives its memory back where its
// partition is gone by then.
func TestConflictOfALostPartition(t *testing.T) {
	h := &heap{}
	c, a := benchConsumer(h, nil, rules{version: document.VersionSequence})
	if _, err := a.enqueue([]*kgo.Record{{Topic: testTopic, Value: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	c.dispatcher.batch(t.Context(), a)
	stored, err := document.Sequence(1, 50)
	if err != nil {
		t.Fatal(err)
	}
	a.Conflict(0, stored, &indexer.Rejection{Version: h.actions[0].Version, Body: []byte("{}")})
	if c.o.Budget.Used() == 0 {
		t.Error("a conflict that waits takes no memory")
	}
	a.forget()
	if left := c.settleConflicts(t.Context(), c.conflicts.takeAll()); len(left) > 0 || c.o.Budget.Used() > 0 {
		t.Errorf("%d conflicts are left, and %d bytes", len(left), c.o.Budget.Used())
	}
}

// A log that begins anew below what was read is no record's second delivery.
func TestLogReset(t *testing.T) {
	_, a := benchConsumer(&heap{}, nil, rules{version: document.VersionSequence})
	rec := func(o int64) []*kgo.Record { return []*kgo.Record{{Topic: testTopic, Offset: o}} }
	if _, err := a.enqueue(rec(10)); err != nil {
		t.Fatal(err)
	}
	var reset *logReset
	if _, err := a.enqueue(rec(10)); !errors.As(err, &reset) || reset.expected != 11 || reset.got != 10 {
		t.Fatalf("offset 10 again: %v", err)
	}
}

// The commit's leader epoch is that of the record at it, and at the end that of
// the last record.
func TestCommittableEpoch(t *testing.T) {
	c, a := benchConsumer(&heap{}, nil, rules{version: document.VersionSequence})
	var recs []*kgo.Record
	for o := range int64(600) {
		recs = append(recs, &kgo.Record{Topic: testTopic, Offset: o, Value: []byte("{}"), LeaderEpoch: int32(o / 100)})
	}
	if _, err := a.enqueue(recs); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c.dispatcher.batch(context.Background(), a)
	}
	for seq := range uint64(600) {
		a.settle(outIndexed, seq)
		if at, ok := a.committable(false); !ok || at.Offset != int64(seq)+1 || at.Epoch != int32(min(seq+1, 599)/100) {
			t.Fatalf("after record %d: %+v %v", seq, at, ok)
		}
	}
	if n := len(a.marks); n > 2 {
		t.Errorf("%d marks are kept", n)
	}
}

// A leader epoch that ended below the offset it is committed with makes brokers
// call the log truncated: none is committed that may have.
func TestCommittedEpochReachesTheOffset(t *testing.T) {
	records := func(epoch int32, offsets ...int64) (recs []*kgo.Record) {
		for _, o := range offsets {
			recs = append(recs, &kgo.Record{Topic: testTopic, Offset: o, Value: []byte("{}"), LeaderEpoch: epoch})
		}
		return recs
	}
	want := func(a *assignment, offset int64, epoch int32) {
		t.Helper()
		if at, ok := a.committable(true); !ok || at.Offset != offset || at.Epoch != epoch {
			t.Errorf("committable %+v %v, want %d of epoch %d", at, ok, offset, epoch)
		}
		if at, ok := a.restartPoint(); !ok || at.Offset != offset || at.Epoch != epoch {
			t.Errorf("restart at %+v %v, want %d of epoch %d", at, ok, offset, epoch)
		}
	}
	begin := func() (*Consumer, *assignment) {
		c, a := benchConsumer(&heap{}, nil, rules{version: document.VersionSequence})
		a.startAt(10, 10, 3)
		want(a, 10, 3)
		return c, a
	}
	t.Run("a hole", func(t *testing.T) {
		c, a := begin()
		// Compaction took 11 to 19 away: epoch 4 may have begun at any of them.
		if _, err := a.enqueue(append(records(3, 10), records(4, 20)...)); err != nil {
			t.Fatal(err)
		}
		c.dispatcher.batch(t.Context(), a)
		want(a, 10, 3)
		a.settle(outIndexed, 0)
		want(a, 20, 4)
		a.settle(outIndexed, 1)
		want(a, 21, 4)
	})
	t.Run("a discarded batch", func(t *testing.T) {
		c, a := begin()
		a.halt = &Halt{Kind: HaltUndecodable, Offset: 10}
		if _, ok := a.pass(10, 20); !ok {
			t.Fatal("not passed")
		}
		c.dispatcher.batch(t.Context(), a)
		want(a, 20, -1)
	})
	t.Run("another member's commit", func(t *testing.T) {
		c, a := begin()
		if _, err := a.enqueue(records(3, 10, 11)); err != nil {
			t.Fatal(err)
		}
		c.dispatcher.batch(t.Context(), a)
		a.commitAgreed(15)
		if at, ok := a.restartPoint(); !ok || at.Offset != 15 || at.Epoch != -1 {
			t.Errorf("restart at %+v %v", at, ok)
		}
	})
}

// BenchmarkHotPath is what a record costs between poll and indexer: queue,
// tracker, generation, meta and settlement.
func BenchmarkHotPath(b *testing.B) {
	n := &null{}
	c, a := benchConsumer(n, nil, rules{version: document.VersionSequence})
	const batch = 256
	recs := make([]*kgo.Record, batch)
	for i := range recs {
		recs[i] = &kgo.Record{Topic: testTopic, Key: []byte("customer-000123"), Value: make([]byte, 1024), Timestamp: time.UnixMilli(1)}
	}
	offset := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		for _, r := range recs {
			r.Offset = offset
			offset++
		}
		if _, err := a.enqueue(recs); err != nil {
			b.Fatal(err)
		}
		c.dispatcher.batch(context.Background(), a)
		a.Settle(indexer.Indexed, n.seqs)
		n.seqs = n.seqs[:0]
		a.committable(false)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/record")
}

type null struct{ seqs []uint64 }

func (n *null) Add(_ context.Context, a *indexer.Action) error {
	n.seqs = append(n.seqs, a.Seq)
	return nil
}
func (*null) Publish() {}

// A partition whose group has committed more than it handled itself starts
// over there: it must not wait for ever for a commit that would go back.
func TestRestartPoint(t *testing.T) {
	_, a := benchConsumer(&heap{}, &postponed{}, rules{})
	var recs []*kgo.Record
	for offset := range int64(10) {
		recs = append(recs, &kgo.Record{Topic: testTopic, Offset: offset, LeaderEpoch: int32(offset / 5), Value: []byte("{}")})
	}
	if _, err := a.enqueue(recs); err != nil {
		t.Fatal(err)
	}
	if _, _, _, _, ok := a.take(); !ok {
		t.Fatal("nothing to take")
	}
	if at, ok := a.restartPoint(); !ok || at.Offset != 0 {
		t.Errorf("nothing handled: %+v, %v", at, ok)
	}
	a.commitAgreed(7)
	if at, ok := a.restartPoint(); !ok || at.Offset != 7 || at.Epoch != -1 {
		t.Errorf("the group has committed 7: %+v, %v", at, ok)
	}
}
