package consumer

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer"
)

// special produces n records of which number at has another value.
func (w *world) special(partition int32, n, at int, value string) {
	w.produceTo(testTopic, partition, n, func(i int) (string, string) {
		if i == at {
			return "k" + strconv.Itoa(i), value
		}
		return "k" + strconv.Itoa(i), `{}`
	})
}

func (w *world) markHandled(offsets ...int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range offsets {
		w.handle(tp{testTopic, 0}, o)
	}
}

// What the mapper decides: ignored, dropped, and dead-lettered records are
// handled; a dead letter only when it is acknowledged.
func TestMapperVerdicts(t *testing.T) {
	t.Parallel()
	t.Run("ignore", func(t *testing.T) {
		w := newWorld(t, 1)
		w.markHandled(3)
		w.special(0, 10, 3, "ignore")
		m := w.start(atOnce)
		w.waitAllCommitted()
		if n := m.total(outIgnored); n != 1 {
			t.Errorf("%d ignored", n)
		}
	})
	t.Run("drop", func(t *testing.T) {
		w := newWorld(t, 1)
		w.markHandled(3)
		w.special(0, 10, 3, "reject")
		m := w.start(atOnce, withRules(rules{policy: document.Drop, version: document.VersionOffset}))
		w.waitAllCommitted()
		if n := m.total(outIgnored); n != 1 {
			t.Errorf("%d ignored", n)
		}
	})
	for _, value := range []string{"reject", "letter"} {
		t.Run(value, func(t *testing.T) {
			w := newWorld(t, 1)
			w.special(0, 10, 3, value)
			m := w.start(atOnce, func(_ *Config, o *Options) { o.DeadLetters.(*letters).hold = true })
			w.wait("the others", func() bool { return m.total(outIndexed) == 9 })
			w.wait("the commit before it", func() bool { return w.commits[tp{testTopic, 0}] == 3 })
			m.letters.release()
			w.waitAllCommitted()
			l := m.letters.all()
			if len(l) != 1 || l[0].Offset != 3 || string(l[0].Key) != "k3" || string(l[0].Value) != value {
				t.Errorf("letters %+v", l)
			}
		})
	}
}

// V43: the server's rejection becomes a letter with the record as it was.
func TestServerRejection(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(func(s *sink, as []*act) {
		for _, a := range as {
			if a.offset == 4 {
				a.reject("document_parsing_exception")
				continue
			}
			s.index([]*act{a})
		}
	})
	w.waitAllCommitted()
	l := m.letters.all()
	if len(l) != 1 {
		t.Fatalf("%d letters", len(l))
	}
	if x := l[0]; x.Offset != 4 || string(x.Key) != "k4" || string(x.Value) != `{"n":4}` || x.Type != "document_parsing_exception" || x.Target != "index" || x.Status != 400 || x.Sequence == 0 || x.Timestamp.IsZero() {
		t.Errorf("letter %+v", x)
	}
}

// on_rejected: stop. The partition halts at the record, its neighbour goes on,
// and skip lets it go on too.
func TestStopAndSkip(t *testing.T) {
	for _, discard := range []bool{false, true} {
		t.Run("discard "+strconv.FormatBool(discard), func(t *testing.T) {
			w := newWorld(t, 2)
			w.special(0, 1000, 300, "reject")
			w.produce(1, 100)
			if discard {
				w.markHandled(300)
			}
			m := w.start(atOnce, withRules(rules{policy: document.Stop, version: document.VersionSequence}))
			s := m.waitState(0, StateHalted)
			if s.Halt.Kind != HaltRejected || s.Halt.Offset != 300 || s.Halt.Type != "bad_document" || s.Halt.Since.IsZero() || s.Blocked != 1 {
				t.Errorf("halt %+v", s.Halt)
			}
			w.wait("the commit up to it", func() bool { return w.commits[tp{testTopic, 0}] == 300 })
			w.produce(1, 100)
			w.wait("its neighbour", func() bool { return w.commits[tp{testTopic, 1}] == 200 })

			var notOwner *NotOwnerError
			var notBlocked *NotBlockedError
			if err := m.Skip(t.Context(), testTopic, 7, 300, discard); !errors.As(err, &notOwner) {
				t.Errorf("a partition of another: %v", err)
			}
			if err := m.Skip(t.Context(), testTopic, 0, 299, discard); !errors.As(err, &notBlocked) || notBlocked.Halt == nil {
				t.Errorf("another offset: %v", err)
			}
			if err := m.Skip(t.Context(), testTopic, 1, 5, discard); !errors.As(err, &notBlocked) || notBlocked.Halt != nil {
				t.Errorf("a partition that runs: %v", err)
			}
			if err := m.Skip(t.Context(), testTopic, 0, 300, discard); err != nil {
				t.Fatal(err)
			}
			w.waitAllCommitted()
			if n := len(m.letters.all()); n != map[bool]int{true: 0, false: 1}[discard] {
				t.Errorf("%d letters", n)
			}
			m.waitState(0, StateRunning)
		})
	}
}

func TestSkipNeedsDeadLetters(t *testing.T) {
	w := newWorld(t, 1)
	w.special(0, 10, 3, "halt")
	m := w.start(atOnce, func(_ *Config, o *Options) { o.DeadLetters = nil })
	m.waitState(0, StateHalted)
	if err := m.Skip(t.Context(), testTopic, 0, 3, false); !errors.Is(err, ErrNoDeadLetters) {
		t.Error(err)
	}
	m.DeadLettersFail(t)
}

// DeadLettersFail shows that a letter which is not acknowledged skips nothing.
func (m *member) DeadLettersFail(t *testing.T) {
	t.Helper()
	m.o.DeadLetters = &letters{w: m.sink.w, hold: true}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.Skip(ctx, testTopic, 0, 3, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a skip whose letter was not acknowledged: %v", err)
	}
	if s := m.state(0); s != StateHalted {
		t.Errorf("it is %s", s)
	}
}

// A letter that no topic takes blocks the record.
func TestOversizeLetterBlocks(t *testing.T) {
	w := newWorld(t, 1)
	w.special(0, 10, 3, "reject")
	m := w.start(atOnce, func(_ *Config, o *Options) { o.DeadLetters.(*letters).err = deadletter.ErrOversize })
	if s := m.waitState(0, StateHalted); s.Halt.Offset != 3 || s.Halt.Type != "dead_letter_oversize" {
		t.Errorf("halt %+v", s.Halt)
	}
}

// An action that the indexer holds is skipped through it.
func TestSkipHeld(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(nil)
	w.wait("everything to be with the sink", func() bool { return m.sink.held() == 10 })
	m.sink.index(m.sink.take(func(a *act) bool { return a.offset != 6 }))
	if err := m.Skip(t.Context(), testTopic, 0, 6, false); err != nil {
		t.Fatal(err)
	}
	w.waitAllCommitted()
	if l := m.letters.all(); len(l) != 1 || l[0].Type != "skipped" {
		t.Errorf("letters %+v", l)
	}
}

// Records that the indexer gives up without being asked are delivered again.
func TestAbandonedIsDeliveredAgain(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 20)
	once := true
	m := w.start(func(s *sink, as []*act) {
		for _, a := range as {
			if once && a.offset == 12 {
				once = false
				a.src.Settle(indexer.Abandoned, []uint64{a.seq})
				continue
			}
			s.index([]*act{a})
		}
	})
	w.waitAllCommitted()
	if n := m.total(outAbandoned); n == 0 {
		t.Error("nothing was abandoned")
	}
}

// conflicts makes every action of one offset conflict with a stored version.
func conflicts(offset, stored int64) func(*sink, []*act) {
	return func(s *sink, as []*act) {
		for _, a := range as {
			if a.offset == offset {
				s.w.mu.Lock()
				s.w.handle(a.tp, a.offset) // in the eye of the world; the consumer decides
				s.w.mu.Unlock()
				a.src.Conflict(a.seq, stored, &indexer.Rejection{Target: "index", Status: 409, Type: "version_conflict_engine_exception", Version: a.version, Meta: a.meta, Body: []byte(a.body)})
				continue
			}
			s.index([]*act{a})
		}
	}
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	sequence := func(gen int, offset int64) int64 {
		v, err := document.Sequence(gen, offset)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, c := range map[string]struct {
		mode   document.VersionMode
		stored int64
		stale  bool
	}{
		"timestamps are never foreign":             {document.VersionTimestamp, 1 << 60, true},
		"fields are never foreign":                 {document.VersionField, 1 << 60, true},
		"a later record of the topic":              {document.VersionSequence, sequence(1, 9), true},
		"a record that nobody wrote":               {document.VersionSequence, sequence(1, 50), false},
		"a generation that nobody recorded":        {document.VersionSequence, sequence(2, 1), false},
		"a version of another kind":                {document.VersionSequence, 1<<53 - 1, false},
		"an offset of the topic":                   {document.VersionOffset, 9, true},
		"an offset beyond the end of any log":      {document.VersionOffset, 50, false},
		"an offset of a longer partition's record": {document.VersionOffset, 25, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.produce(0, 10)
			if c.stored == 25 {
				w.produceTo(testTopic, 1, 30, func(int) (string, string) { return "x", "{}" })
			}
			m := w.start(conflicts(4, c.stored), withRules(rules{policy: document.ToDeadLetter, version: c.mode}))
			if c.stale {
				w.waitAllCommitted()
				if n := m.total(outStale); n == 0 {
					t.Error("nothing is stale")
				}
				return
			}
			s := m.waitState(0, StateHalted)
			if s.Halt.Kind != HaltForeign || s.Halt.Offset != 4 {
				t.Errorf("halt %+v", s.Halt)
			}
			m.waitState(1, StateHalted) // the whole topic
			w.wait("the commit up to it", func() bool { return w.commits[tp{testTopic, 0}] == 4 })
			if err := m.Skip(t.Context(), testTopic, 0, 4, false); err != nil {
				t.Fatal(err)
			}
			w.waitAllCommitted()
			m.waitState(1, StateRunning)
		})
	}
}

func TestForeign(t *testing.T) {
	list := generation.List{{Generation: 3, TopicID: "a", Partitions: 1}, {Generation: 5, TopicID: "b", Partitions: 1}}
	v := func(gen int, offset int64) int64 { s, _ := document.Sequence(gen, offset); return s }
	for _, c := range []struct {
		mode         document.VersionMode
		stored, sent int64
		end          int64
		foreign      bool
	}{
		{document.VersionSequence, v(3, 9), v(3, 5), 10, false},
		{document.VersionSequence, v(3, 10), v(3, 5), 10, true},
		{document.VersionSequence, v(5, 999), v(3, 5), 10, false}, // a later recorded generation
		{document.VersionSequence, v(4, 1), v(3, 5), 10, true},
		{document.VersionSequence, v(6, 1), v(5, 5), 10, true},
		{document.VersionSequence, 1 << 62, v(5, 5), 10, true},
		{document.VersionOffset, 9, 5, 10, false},
		{document.VersionOffset, 10, 5, 10, true},
		{document.VersionTimestamp, 1 << 62, 5, 10, false},
		{document.VersionHeader, 1 << 62, 5, 10, false},
		{document.VersionField, 1 << 62, 5, 10, false},
	} {
		if got := foreign(c.mode, c.stored, c.sent, list, c.end); got != c.foreign {
			t.Errorf("mode %d, stored %d, sent %d, end %d: foreign %v", c.mode, c.stored, c.sent, c.end, got)
		}
	}
}

// Below the log's start: halt says what is lost, resume goes on.
func TestOutOfRange(t *testing.T) {
	for _, mode := range []string{"halt", "resume"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, 1)
			w.produce(0, 10)
			w.start(atOnce).waitDone(w)
			w.produce(0, 10)
			if err := w.kafka.DeleteRecords(testTopic, 0, 15); err != nil {
				t.Fatal(err)
			}
			m := w.start(atOnce, func(c *Config, _ *Options) { c.OnDataLoss = mode })
			if mode == "halt" {
				s := m.waitState(0, StateHalted)
				if s.Halt.Kind != HaltDataLoss || s.Halt.Offset != 10 || !strings.Contains(s.Halt.Type, "deleted offsets 10 to 14") ||
					!strings.Contains(s.Halt.Type, "on_data_loss: resume") || strings.Contains(s.Halt.Type, "generation") {
					t.Errorf("halt %+v", s.Halt)
				}
				if n := m.counters.dataLoss.Load(); n != 1 {
					t.Errorf("%d losses counted", n)
				}
				return
			}
			w.markHandled(10, 11, 12, 13, 14) // lost
			w.waitAllCommitted()
			if n := m.counters.dataLoss.Load(); n != 1 {
				t.Errorf("%d losses counted", n)
			}
		})
	}
}

// A commit beyond the log's end: the log lost its end, whose offsets come again.
func TestCommitBeyondLogEnd(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	w.start(atOnce).waitDone(w)
	ctx := t.Context()
	for o := range int64(30) {
		w.markHandled(o)
	}
	ahead := kadm.Offsets{}
	ahead.AddOffset(testTopic, 0, 30, -1)
	if err := w.adm.CommitAllOffsets(ctx, testGroup, ahead); err != nil {
		t.Fatal(err)
	}
	m := w.start(atOnce)
	s := m.waitState(0, StateHalted)
	if s.Halt.Kind != HaltDataLoss || s.Halt.Offset != 30 || !strings.Contains(s.Halt.Type, "generation raise --topic events, then sluice reset --topic events --partition 0 --to 10") {
		t.Errorf("halt %+v", s.Halt)
	}
}

func TestLossText(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		to      int64
		mode    document.VersionMode
		has, no string
	}{
		{15, document.VersionSequence, "on_data_loss: resume", "raise"},
		{15, document.VersionField, "on_data_loss: resume", "raise"},
		{5, document.VersionSequence, "generation raise", "resume"},
		{5, document.VersionOffset, "change documents.version", "raise"},
		{5, document.VersionTimestamp, "on_data_loss: resume", "raise"},
		{10, document.VersionSequence, "generation raise", "resume"},
	} {
		if text := lossText("t", 3, 10, c.to, c.mode, cause); !strings.Contains(text, c.has) || strings.Contains(text, c.no) || !strings.Contains(text, "cause") {
			t.Errorf("10 -> %d, mode %d: %s", c.to, c.mode, text)
		}
	}
}

// The topic was made anew under a commit.
func TestCommitBeyondEnd(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	w.start(atOnce).waitDone(w)
	if err := w.kafka.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	if err := w.kafka.CreateTopic(testTopic, 1, nil); err != nil {
		t.Fatal(err)
	}
	m := w.start(atOnce)
	s := m.waitState(0, StateHalted)
	if s.Halt.Kind != HaltGeneration && s.Halt.Kind != HaltDataLoss {
		t.Errorf("halt %+v", s.Halt)
	}
}

func TestResetNone(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(atOnce, func(c *Config, _ *Options) { c.Reset = "none" })
	if s := m.waitState(0, StateHalted); s.Halt.Kind != HaltNoCommit {
		t.Errorf("halt %+v", s.Halt)
	}
}

// latest: what is written while nobody runs is read, since the start was
// committed.
func TestResetLatest(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	latest := func(c *Config, _ *Options) { c.Reset = "latest" }
	m := w.start(atOnce, latest)
	w.markHandled(0, 1, 2, 3, 4, 5, 6, 7, 8, 9) // passed over by choice
	w.wait("the start to be committed", func() bool { return w.commits[tp{testTopic, 0}] == 10 })
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	w.produce(0, 10)
	m = w.start(atOnce, latest)
	w.waitAllCommitted()
	if n := m.total(outIndexed); n != 10 {
		t.Errorf("%d of 10 records read", n)
	}
}

// A time before Kafka's first is its first: the protocol's -1 is the log's end,
// and the records before it would never be read.
func TestResetBeforeAllTime(t *testing.T) {
	for reset, want := range map[string]int64{"1969-12-31T23:59:59.999Z": 0, "1931-01-31T00:00:00Z": 0, "1970-01-01T00:00:01Z": 1000} {
		start, err := startOffset(reset)
		if err != nil || start.EpochOffset().Offset != want {
			t.Errorf("%s: %v, %v, want after %d ms", reset, start, err, want)
		}
	}
}

// V12: compaction leaves holes in the middle, at a batch's end, and before the
// last batch.
func TestCompactionHoles(t *testing.T) {
	w := newWorld(t, 1)
	if err := w.kafka.CreateTopic("compacted", 1, map[string]string{"cleanup.policy": "compact"}); err != nil {
		t.Fatal(err)
	}
	w.topics = []string{"compacted"}
	for range 5 {
		w.produceTo("compacted", 0, 20, func(i int) (string, string) { return "k" + strconv.Itoa(i%7), "{}" })
	}
	w.kafka.Compact()
	// What is left is unknown: whoever reads it tells.
	w.mu.Lock()
	w.produced[tp{"compacted", 0}] = nil
	w.mu.Unlock()
	m := w.start(atOnce)
	w.wait("the end of the log", func() bool { return w.commits[tp{"compacted", 0}] == 100 })
	if n := m.total(outIndexed); n == 100 || n == 0 {
		t.Errorf("%d records: nothing was compacted", n)
	}
	w.wait("the lag to be 0", func() bool { s := m.Status().Partitions; return len(s) == 1 && s[0].Lag == 0 })
}

// A member that comes back to a commit behind which compaction took records of
// the next leader's away has lost nothing.
func TestCompactionAcrossLeaders(t *testing.T) {
	w := newWorld(t, 1)
	if err := w.kafka.CreateTopic("compacted", 1, map[string]string{"cleanup.policy": "compact"}); err != nil {
		t.Fatal(err)
	}
	w.topics = []string{"compacted"}
	one := func(key string) func(int) (string, string) {
		return func(int) (string, string) { return key, "{}" }
	}
	w.produceTo("compacted", 0, 1, one("a"))
	if err := w.kafka.MoveTopicPartition("compacted", 0, 1-w.kafka.LeaderFor("compacted", 0)); err != nil {
		t.Fatal(err)
	}
	for range 5 { // offsets 1 to 5, of which one is left
		w.produceTo("compacted", 0, 1, one("b"))
	}
	w.produceTo("compacted", 0, 1, one("c"))
	w.kafka.Compact()
	// Brokers remember where an epoch began, whatever is left of it.
	w.kafka.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		req := kreq.(*kmsg.OffsetForLeaderEpochRequest)
		p := &req.Topics[0].Partitions[0]
		if p.LeaderEpoch != 0 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = req.Topics[0].Topic
		rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
		rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, 0, 1
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	w.mu.Lock()
	w.produced[tp{"compacted", 0}] = []int64{0, 5, 6}
	w.mu.Unlock()
	m := w.start(nil, func(_ *Config, o *Options) { o.ShutdownTimeout = 100 * time.Millisecond })
	w.wait("the records", func() bool { return m.sink.held() == 3 })
	m.sink.index(m.sink.take(func(a *act) bool { return a.offset == 0 }))
	w.wait("the commit before the hole", func() bool { return w.commits[tp{"compacted", 0}] == 5 })
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	m = w.start(atOnce)
	w.waitAllCommitted()
	if n := m.counters.dataLoss.Load(); n != 0 {
		t.Errorf("%d losses counted, nothing was lost: %+v", n, m.Status().Partitions)
	}
}

// V13: exactly the committed records are read, and the lag reaches 0 although
// the log ends with markers.
func TestAbortedTransactions(t *testing.T) {
	w := newWorld(t, 1)
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	committed := 0
	for i := range 30 {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		commit := kgo.TryCommit
		n := 3
		switch i % 10 {
		case 3:
			commit = kgo.TryAbort
		case 7:
			commit, n = kgo.TryAbort, 0
		}
		recs := make([]*kgo.Record, n)
		for j := range recs {
			recs[j] = &kgo.Record{Topic: testTopic, Key: []byte("k"), Value: []byte("{}")}
		}
		if n > 0 {
			if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
		if commit == kgo.TryCommit {
			committed += n
		}
	}
	m := w.start(atOnce)
	w.wait("the lag to be 0", func() bool { s, _ := m.partition(0); return s.Lag == 0 && s.Committed > 0 })
	if n := m.total(outIndexed); n != uint64(committed) {
		t.Errorf("%d records of %d", n, committed)
	}
	s, _ := m.partition(0)
	if s.Ledger.Consumed != uint64(committed) {
		t.Errorf("%d consumed: markers count", s.Ledger.Consumed)
	}
}

// V15: a batch that cannot be decoded stops its partition, others go on, and
// skip with discard passes it.
func TestUndecodableBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(0, 5)
	w.produce(0, 5) // the bad batch: offsets 5 to 9
	w.produce(0, 5)
	w.kafka.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		return nil, nil, false
	})
	corrupt := &corruptor{at: 5}
	m := w.start(atOnce, func(_ *Config, o *Options) {
		o.Kafka = append(o.Kafka, kgo.Dialer(corrupt.dial))
	})
	s := m.waitState(0, StateHalted)
	if s.Halt.Kind != HaltUndecodable || s.Halt.Offset != 5 {
		t.Errorf("halt %+v", s.Halt)
	}
	w.produce(1, 10)
	w.wait("its neighbour", func() bool { return w.commits[tp{testTopic, 1}] == 10 })
	var notBlocked *NotBlockedError
	if err := m.Skip(t.Context(), testTopic, 0, 5, false); !errors.As(err, &notBlocked) {
		t.Errorf("a batch that nobody can read went to the dead letters: %v", err)
	}
	w.markHandled(5, 6, 7, 8, 9)
	if err := m.Skip(t.Context(), testTopic, 0, 5, true); err != nil {
		t.Fatal(err)
	}
	w.waitAllCommitted()
}
