package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
)

// parkedWorld is what parking needs, in memory: states, the parked topic with
// one partition, and an index that is blocked or not.
type parkedWorld struct {
	w *world

	writers atomic.Int64 // that are not closed
	reads   atomic.Int64 // of many states

	mu       sync.Mutex
	docs     map[string][]byte
	versions map[string]int64
	shut     chan struct{} // states cannot be read until it is closed; nil: they can
	down     error         // of reading states
	refuse   error         // of changing states
	closing  chan struct{} // closed when a state without lanes comes, which waits then for close; nil: it does not
	close    chan struct{}
	id       string // of the parked topic
	records  []deadletter.Parked
	most     int // of a record's value; 0: any
	open     bool
	waiting  []func()
	written  []int64 // source offsets that were replayed, in order
}

type parkedError string

func (e parkedError) Error() string  { return string(e) }
func (e parkedError) NotFound() bool { return e == "absent" }
func (e parkedError) Conflict() bool { return e == "conflict" }
func (e parkedError) Refused() bool  { return e == "blocked" }

func (p *parkedWorld) Get(ctx context.Context, id string, doc any) (int64, int64, error) {
	p.mu.Lock()
	shut := p.shut
	p.mu.Unlock()
	if shut != nil {
		select {
		case <-shut:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	text, ok := p.docs[id]
	switch {
	case p.down != nil:
		return 0, 0, p.down
	case !ok:
		return 0, 0, parkedError("absent")
	}
	return p.versions[id], 1, json.Unmarshal(text, doc)
}

func (p *parkedWorld) GetMany(ctx context.Context, ids []string) (docs []deadletter.ParkedDoc, err error) {
	p.reads.Add(1)
	for _, id := range ids {
		var doc deadletter.ParkedDoc
		doc.SeqNo, doc.PrimaryTerm, err = p.Get(ctx, id, &doc.Source)
		if doc.Found = err == nil; err != nil && !errors.Is(err, parkedError("absent")) {
			return nil, err
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

func (p *parkedWorld) Create(ctx context.Context, id string, doc any) error {
	return p.Update(ctx, id, doc, 0, 0)
}

func (p *parkedWorld) Update(_ context.Context, id string, doc any, seqNo, _ int64) error {
	p.mu.Lock()
	if closing := p.closing; closing != nil && len(doc.(*deadletter.ParkedState).Lanes) == 0 {
		p.closing = nil
		p.mu.Unlock()
		close(closing)
		<-p.close
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if p.refuse != nil {
		return p.refuse
	}
	if p.versions[id] != seqNo {
		return parkedError("conflict")
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	p.docs[id] = text
	p.versions[id]++
	return nil
}

func (p *parkedWorld) state() (s deadletter.ParkedState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text, ok := p.docs[deadletter.ParkedID(testGroup, testTopic, 0)]; ok {
		if err := json.Unmarshal(text, &s); err != nil {
			p.w.t.Error(err)
		}
	}
	return s
}

func (p *parkedWorld) Place(context.Context, string, string, int32) (int32, int64, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 0, int64(len(p.records)), p.id, nil
}

func (p *parkedWorld) End(context.Context, int32) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.records)), nil
}

func (p *parkedWorld) Append(_ context.Context, _ int32, records []deadletter.Parked) (int64, error) {
	if lanes := p.state().Lanes; len(lanes) == 0 {
		p.w.t.Error("records are parked before the state says so")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range records {
		if p.most > 0 && len(r.Value) > p.most {
			return int64(len(p.records)), &deadletter.ParkedOversizeError{Topic: "parked", Index: i}
		}
		r.At = int64(len(p.records))
		p.records = append(p.records, r)
		p.w.mu.Lock()
		p.w.handle(tp{r.Topic, r.Partition}, r.Offset)
		p.w.mu.Unlock()
	}
	return int64(len(p.records)), nil
}

func (p *parkedWorld) Read(_ context.Context, _ int32, from int64) ([]deadletter.Parked, int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := min(from+10, int64(len(p.records)))
	return slices.Clone(p.records[from:end]), end, nil
}

// Add implements Writer for lanes.
func (p *parkedWorld) Add(_ context.Context, a *indexer.Action) error {
	src, seq := a.Source, a.Seq
	if s, ok := src.(*assignment); ok {
		if l := s.lane(a.Target); l == nil || l.isClosed() {
			p.w.t.Error("later records pass by before those that came while the lane closed")
		}
	}
	settle := func() {
		switch s := src.(type) {
		case *replay:
			p.written = append(p.written, s.records[seq].Offset)
		case *assignment: // it came while the lane closed
			offset, _ := s.offset(seq)
			p.written = append(p.written, offset)
			p.w.mu.Lock()
			p.w.handle(tp{s.l.topic, s.id}, offset)
			p.w.mu.Unlock()
		}
		go src.Settle(indexer.Indexed, []uint64{seq})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		settle()
	} else {
		p.waiting = append(p.waiting, settle)
	}
	return nil
}

func (p *parkedWorld) Publish() {}

func (p *parkedWorld) Close() { p.writers.Add(-1) }

func (p *parkedWorld) unblock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = true
	for _, f := range p.waiting {
		f()
	}
	p.waiting = nil
}

func newParkedWorld(w *world) *parkedWorld {
	p := &parkedWorld{w: w, id: "parked", docs: map[string][]byte{}, versions: map[string]int64{}}
	w.t.Cleanup(func() { // of the world, after its members' end
		if n := p.writers.Load(); n != 0 {
			w.t.Errorf("%d writers of lanes are not closed", n)
		}
	})
	return p
}

// parking is the change that has a member park.
func (p *parkedWorld) parking() change {
	return func(_ *Config, o *Options) {
		s := o.Sink.(*sink)
		o.Parking = &Parking{
			Open: true, Store: p, Log: p, Writer: func() LaneWriter { p.writers.Add(1); return p }, Rules: func(string) string { return "rules" },
			TakeBack: func(_ context.Context, src indexer.Source, _ string) (back []indexer.TakenBack, _ error) {
				for _, a := range s.take(func(a *act) bool { return a.src == src }) {
					back = append(back, indexer.TakenBack{Seq: a.seq, Meta: a.meta, Body: []byte(a.body)})
				}
				return back, nil
			},
		}
	}
}

// Nothing is read before the state of what is parked is known and the token
// taken; a token is taken although nothing is parked.
func TestParkedStateFirst(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	p.shut = make(chan struct{})
	w.produce(0, 10)
	m := w.start(atOnce, p.parking())
	w.wait("the partition to be assigned", m.topicKnown)
	// Were it read, records would come at once.
	for range 20 {
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // what must not happen tells nobody
		if m.sink.held() > 0 || m.Status().Partitions[0].Ledger.Consumed > 0 {
			t.Fatal("records were read before the state was known")
		}
	}
	close(p.shut)
	w.waitAllCommitted()
	if s := p.state(); s.Token != 1 || len(s.Starts) != 1 || s.Starts[0].Offset != 0 {
		t.Errorf("%+v", s)
	}
}

func (m *member) topicKnown() bool {
	a := m.holding(tp{testTopic, 0})
	return a != nil && a.topic.known.Load() != nil
}

// What the indexer holds is parked, in order, then later records behind it;
// commits go on; when the index opens they are written in order, and then records
// pass by again.
func TestParkAndReplay(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	m := w.start(nil, p.parking())
	w.produce(0, 50)
	w.wait("the sink to hold all", func() bool { return m.sink.held() == 50 })
	a := m.holding(tp{testTopic, 0})
	a.Park("index", "cluster_block_exception")
	w.waitAllCommitted()
	w.produce(0, 50)
	w.waitAllCommitted()
	p.mu.Lock()
	for i, r := range p.records {
		if r.Offset != int64(i) || r.Token != 1 || string(r.Key) != fmt.Sprint("k", i%50) || string(r.Value) != fmt.Sprintf(`{"n":%d}`, i%50) {
			t.Errorf("record %d is parked as %+v", i, r)
		}
	}
	if len(p.records) != 100 || len(p.written) != 0 {
		t.Errorf("%d records are parked, %d were written", len(p.records), len(p.written))
	}
	p.mu.Unlock()
	s := m.Status().Partitions[0]
	if s.Ledger.Parked != 100 || len(s.Parked) != 1 || s.Parked[0].Target != "index" || s.Parked[0].Head != 0 {
		t.Errorf("%+v", s)
	}
	p.unblock()
	w.wait("the lane to close", func() bool { return len(m.Status().Partitions[0].Parked) == 0 })
	p.mu.Lock()
	for i, offset := range p.written {
		if offset != int64(i) {
			t.Errorf("record %d was written as number %d", offset, i)
		}
	}
	if len(p.written) != 100 {
		t.Errorf("%d records were written", len(p.written))
	}
	p.mu.Unlock()
	if s := p.state(); len(s.Lanes) != 0 {
		t.Errorf("%+v", s)
	}
	m.sink.setSettler(atOnce)
	w.produce(0, 10)
	w.waitAllCommitted()
	if s := m.Status().Partitions[0].Ledger; s.Parked != 100 || s.Indexed != 10 {
		t.Errorf("%+v", s)
	}
}

// parkNew produces the first n records of partition 0, which a member holds until
// their target is parked.
func (w *world) parkNew(m *member, n int) {
	w.t.Helper()
	w.produce(0, n)
	w.wait("the sink to hold all", func() bool { return m.sink.held() == n })
	m.holding(tp{testTopic, 0}).Park("index", "cluster_block_exception")
	w.waitAllCommitted()
}

// A lane that cannot be closed, since the control index is blocked, goes on
// parking: what comes meanwhile is committed, and passes by in order later.
func TestParkedStateBlocked(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	m := w.start(nil, p.parking())
	w.parkNew(m, 20)
	block := func(err error) {
		p.mu.Lock()
		p.refuse = err
		p.mu.Unlock()
	}
	block(parkedError("blocked"))
	p.unblock()
	w.wait("the lane to say why it stays", func() bool {
		s := m.Status().Partitions[0].Parked
		return len(s) == 1 && strings.Contains(s[0].Trouble, "blocked")
	})
	w.produce(0, 20)
	w.waitAllCommitted()
	if s := m.Status().Partitions[0].Ledger; s.Parked != 40 {
		t.Errorf("what came meanwhile is not parked: %+v", s)
	}
	block(nil)
	w.wait("the lane to close", func() bool { return len(m.Status().Partitions[0].Parked) == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.written) != 40 || !slices.IsSorted(p.written) {
		t.Errorf("written: %v", p.written)
	}
}

// What comes while the state is told that the lane is closed passes by, in order,
// before any later record does.
func TestParkedWhileTheLaneCloses(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	m := w.start(nil, p.parking())
	w.parkNew(m, 20)
	closing := make(chan struct{})
	p.mu.Lock()
	p.closing, p.close = closing, make(chan struct{})
	p.mu.Unlock()
	p.unblock()
	<-closing
	w.produce(0, 10)
	w.wait("what comes to wait", func() bool { return m.Status().Partitions[0].Parked[0].Waiting == 10 })
	close(p.close)
	w.waitAllCommitted()
	w.wait("the lane to close", func() bool { return len(m.Status().Partitions[0].Parked) == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.written) != 30 || !slices.IsSorted(p.written) {
		t.Errorf("written: %v", p.written)
	}
}

// An owner whose token was taken starts over where the group has committed.
func TestParkedOwnerLost(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	m := w.start(atOnce, p.parking())
	w.produce(0, 10)
	w.waitAllCommitted()
	m.sink.setSettler(nil)
	k, _, err := deadletter.LoadParked(t.Context(), p, testGroup, testTopic, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Take(t.Context(), "other", "id", 10, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	w.produce(0, 10)
	w.wait("the sink to hold all", func() bool { return m.sink.held() == 10 })
	m.holding(tp{testTopic, 0}).Park("index", "cluster_block_exception")
	w.wait("the token to be taken again", func() bool { return p.state().Token == 3 })
	m.sink.setSettler(atOnce)
	w.waitAllCommitted()
	if s := p.state(); s.Starts[len(s.Starts)-1].Offset != 10 {
		t.Errorf("%+v", s)
	}
}

// A parked topic that was made anew does not hold what was parked: the lane says
// so and waits, and later records are parked behind; `resume` goes on.
func TestParkedTopicMadeAnew(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	m := w.start(nil, p.parking())
	w.parkNew(m, 10)
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.records, p.id, p.waiting, p.open = nil, "another", nil, true
	p.mu.Unlock()

	m = w.start(atOnce, p.parking())
	w.produce(0, 10)
	w.waitAllCommitted()
	w.wait("the loss to be said", func() bool {
		s := m.Status().Partitions[0].Parked
		return len(s) == 1 && s[0].Trouble == parkedGone && m.counters.dataLoss.Load() == 1
	})
	if s := p.state(); len(s.Lanes) != 1 || len(p.records) != 10 || len(p.written) != 0 {
		t.Errorf("%+v, %d parked, %v written", s, len(p.records), p.written)
	}
	if err := m.end(); err != nil {
		t.Fatal(err)
	}

	m = w.start(atOnce, p.parking(), func(c *Config, _ *Options) { c.OnDataLoss = "resume" })
	w.wait("the lane to close", func() bool { return len(p.state().Lanes) == 0 })
	w.wait("all to be written", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.Equal(p.written, []int64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19})
	})
	if n := m.counters.dataLoss.Load(); n != 1 {
		t.Errorf("%d losses", n)
	}
}

// What keeps all partitions waiting is one line in the log.
func TestParkedOneLine(t *testing.T) {
	const partitions = 4
	w := newWorld(t, partitions)
	p := newParkedWorld(w)
	p.down = parkedError("away")
	lines := &lineCounter{text: "cannot be taken over"}
	m := w.start(atOnce, p.parking(), func(_ *Config, o *Options) { o.Log = zerolog.New(lines) })
	w.wait("all partitions to wait", func() bool {
		waiting := 0
		for _, a := range m.holdings() {
			if a.parking.waiting.Load() != nil {
				waiting++
			}
		}
		return waiting == partitions
	})
	p.mu.Lock()
	p.down = nil
	p.mu.Unlock()
	w.produce(0, 10)
	w.waitAllCommitted()
	w.wait("nobody to wait", func() bool { return m.parkedTroubles.Load() == 0 })
	if n := lines.n.Load(); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// lineCounter counts lines with a text.
type lineCounter struct {
	text string
	n    atomic.Int64
}

func (c *lineCounter) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(c.text)) {
		c.n.Add(1)
	}
	return len(line), nil
}

// A record that was parked for one side of two goes to that side, wherever it is
// by now, or nowhere: the other side has it, or a lane of its own.
func TestLaneSide(t *testing.T) {
	l := &lane{p: &parking{a: &assignment{topic: &topic{rules: rules{}}}}}
	to := func(target string) bulk.Action { return bulk.Action{Op: bulk.Index, Target: target} }
	legacy := document.Result{Side: document.SideLegacy, Action: to("legacy")}
	both := document.Result{Side: document.SideLegacy, Action: to("legacy"), Twin: to("new-2")}
	only := document.Result{Side: document.SideNew, Action: to("new-2")}
	unrouted := document.Result{Action: to("index")}
	for _, c := range []struct {
		now  document.Result
		side document.Side
		twin bool
		want string // "": nowhere
	}{
		{legacy, document.SideLegacy, true, "legacy"},
		{legacy, document.SideNew, true, ""}, // the migration was given up
		{legacy, document.SideLegacy, false, "legacy"},
		{both, document.SideLegacy, true, "legacy"},
		{both, document.SideNew, true, "new-2"}, // although parked for new-1
		{both, document.SideLegacy, false, "legacy"},
		{both, document.SideNone, false, "legacy"}, // there were no sides
		{only, document.SideNew, true, "new-2"},
		{only, document.SideLegacy, true, ""},
		{only, document.SideNew, false, "new-2"},
		{only, document.SideNone, false, "new-2"},
		{unrouted, document.SideNone, false, "index"},
	} {
		x, ok := l.action(&kgo.Record{}, &c.now, &deadletter.Parked{Side: string(c.side), Twin: c.twin})
		if ok != (c.want != "") || ok && x.Target != c.want {
			t.Errorf("parked for side %q, twin %t: it goes to %s, %t, want %q", c.side, c.twin, x.Target, ok, c.want)
		}
	}
}

// A token is not taken below what the group has committed: what another member
// parked from there on would be void, and never come again.
func TestParkedStartBelowTheCommit(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	p.shut = make(chan struct{})
	m := w.start(nil, p.parking())
	w.wait("the partition to begin", func() bool {
		a := m.holding(tp{testTopic, 0})
		if a == nil {
			return false
		}
		select {
		case <-a.parking.begun:
			return true
		default:
			return false
		}
	})
	w.produce(0, 10)
	w.markHandled(0, 1, 2, 3, 4, 5, 6) // another member had it meanwhile
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = testGroup
	req.MemberID, req.Generation = m.cl.GroupMetadata()
	topic, partition := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	topic.Topic, partition.Offset, partition.Metadata = testTopic, 7, kmsg.StringPtr(m.holding(tp{testTopic, 0}).topic.commitMeta(0, 7, 0).String())
	topic.TopicID = w.kafka.TopicInfo(testTopic).TopicID
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	if resp, err := req.RequestWith(t.Context(), m.cl); err != nil || kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode) != nil {
		t.Fatal(resp, err)
	}
	close(p.shut)
	w.wait("the token to be taken", func() bool { return p.state().Token > 0 })
	for _, s := range p.state().Starts {
		if s.Offset < 7 {
			t.Errorf("%+v", s)
		}
	}
	m.sink.setSettler(atOnce)
	w.waitAllCommitted()
}

// adopting looks at what runs while tables change.
type adopting struct {
	*follower
	look func()
}

func (a *adopting) Adopt() int64 {
	a.look()
	return a.follower.Adopt()
}

// Lanes map records, so none runs while tables change: what is parked is
// replayed, and what came late passes by, under one epoch or the other.
func TestParkedAcrossEpochs(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	s, seen := newStored(1), newHandledUnder()
	var running atomic.Pointer[member]
	var looked atomic.Int64
	r := w.join(s, seen, 99, nil, p.parking(), func(_ *Config, o *Options) {
		o.Routing = &adopting{o.Routing.(*follower), func() {
			m := running.Load()
			if m == nil {
				return
			}
			for _, a := range m.holdings() {
				if _, ok := a.restartPoint(); !ok {
					continue
				}
				looked.Add(1)
				select {
				case <-a.parking.ended:
				default:
					t.Error("lanes run while tables change")
				}
			}
		}}
	})
	m := r.member
	w.waitEpoch(1, 1)
	running.Store(m)
	w.produce(0, 20)
	w.wait("the sink to hold all", func() bool { return m.sink.held() == 20 })
	m.holding(tp{testTopic, 0}).Park("legacy@1", "cluster_block_exception")
	w.waitAllCommitted()
	s.set(2)
	w.waitEpoch(2, 1)
	if looked.Load() == 0 {
		t.Error("nothing ran when the table was adopted")
	}
	p.unblock()
	w.wait("the lane to close", func() bool { return len(p.state().Lanes) == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	// The first was under way when the table changed, and came twice.
	if len(slices.Compact(slices.Clone(p.written))) != 20 || !slices.IsSorted(p.written) {
		t.Errorf("written: %v", p.written)
	}
}

// twoTargets sends records whose key begins with x to a target of their own.
type twoTargets struct{ rules }

func (r twoTargets) Map(rec *kgo.Record, gen int, out *document.Result) {
	r.rules.Map(rec, gen, out)
	if bytes.HasPrefix(rec.Key, []byte("x")) {
		out.Action.Target = "other"
	}
}

// A request to a held target that is never answered stops nobody else: what it
// carries is parked by another delivery, and other targets never wait.
func TestParkedRequestNeverAnswered(t *testing.T) {
	w := newWorld(t, 2)
	p := newParkedWorld(w)
	for name, pending := range map[string]int64{"by time": 0, "by memory": 8 << 10} {
		t.Run(name, func(t *testing.T) {
			m := w.start(func(s *sink, as []*act) {
				for _, a := range as {
					if a.target == "other" { // the rest is on the wire for good
						s.index([]*act{a})
					}
				}
			}, p.parking(), func(_ *Config, o *Options) {
				o.Rules = func(string) Rules {
					return twoTargets{rules{policy: document.ToDeadLetter, version: document.VersionOffset}}
				}
				o.AdoptTimeout = time.Hour
				if pending == 0 {
					o.AdoptTimeout = 200 * time.Millisecond
				}
				o.Parking.Pending = pending
				o.Parking.TakeBack = func(ctx context.Context, _ indexer.Source, _ string) ([]indexer.TakenBack, error) {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
			})
			for partition := range int32(2) {
				w.produce(partition, 10)
			}
			w.wait("all to be on the wire", func() bool { return m.sink.added() == 20 })
			for partition := range int32(2) {
				m.holding(tp{testTopic, partition}).Park("index", "cluster_block_exception")
			}
			w.wait("lanes", func() bool {
				return m.holding(tp{testTopic, 0}).lane("index") != nil && m.holding(tp{testTopic, 1}).lane("index") != nil
			})
			for range 5 {
				for partition := range int32(2) {
					w.produce(partition, 20)
					w.produceTo(testTopic, partition, 20, func(i int) (string, string) { return fmt.Sprint("x", i), `{}` })
				}
			}
			w.waitAllCommitted()
			p.unblock()
			w.wait("the lanes to close", func() bool {
				return len(m.Status().Partitions[0].Parked)+len(m.Status().Partitions[1].Parked) == 0
			})
			if err := m.end(); err != nil {
				t.Error(err)
			}
			p.mu.Lock()
			p.open = false
			p.mu.Unlock()
		})
	}
}

// A record that is too large for the parked topic halts its partition by name; an
// operator may skip it; and when its target takes records again, it is written.
func TestParkedOversize(t *testing.T) {
	for _, skip := range []bool{false, true} {
		t.Run(fmt.Sprint("skip ", skip), func(t *testing.T) {
			w := newWorld(t, 2)
			p := newParkedWorld(w)
			p.most = 100
			m := w.start(nil, p.parking())
			w.produce(0, 10)
			w.wait("the sink to hold all", func() bool { return m.sink.held() == 10 })
			m.holding(tp{testTopic, 0}).Park("index", "cluster_block_exception")
			w.waitAllCommitted()
			w.produceTo(testTopic, 0, 20, func(i int) (string, string) {
				if i == 5 {
					return "large", fmt.Sprintf(`{"x":%0200d}`, 1)
				}
				return fmt.Sprint("k", i), `{}`
			})
			s := m.waitState(0, StateHalted)
			if s.Halt == nil || s.Halt.Offset != 15 || s.Halt.Type != "parked_oversize" || s.Halt.Target != "index" {
				t.Errorf("%+v", s.Halt)
			}
			w.wait("what comes before it", func() bool { return w.commits[tp{testTopic, 0}] == 15 })
			m.sink.setSettler(atOnce)
			w.produce(1, 10)
			w.wait("the other partition", func() bool { return w.commits[tp{testTopic, 1}] == 10 })
			if skip {
				if err := m.Skip(t.Context(), testTopic, 0, 15, false); err != nil {
					t.Fatal(err)
				}
				w.waitAllCommitted()
				if letters := m.letters.all(); len(letters) != 1 || letters[0].Offset != 15 || string(letters[0].Key) != "large" {
					t.Errorf("%+v", letters)
				}
			}
			p.unblock()
			w.wait("the lane to close", func() bool { return len(p.state().Lanes) == 0 })
			w.waitAllCommitted()
			if s := m.waitState(0, StateRunning); s.Halt != nil {
				t.Errorf("%+v", s.Halt)
			}
			if n := len(m.letters.all()); (n == 1) != skip {
				t.Errorf("%d letters", n)
			}
		})
	}
}

// Parked records of both sides that one side rejects are marked dirty by the one
// goroutine that marks, which says what keeps it; they end after that.
func TestParkedTwinsAreMarked(t *testing.T) {
	const records = 200
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	seen := newHandledUnder()
	lines := &lineCounter{text: "cannot be marked"}
	r := w.join(newStored(1), seen, 1, nil, p.parking(), func(_ *Config, o *Options) {
		o.Dirty.(*marks).err = errors.New("the control index is away")
		o.Log = zerolog.New(lines)
	})
	l := newLane(r.newIdleParking(), "new@1", deadletter.ParkedLane{})
	b := &replay{l: l, records: make([]deadletter.Parked, records), done: make(chan struct{}), left: records, ended: make([]bool, records)}
	b.ctx, b.giveUp = context.WithCancel(t.Context())
	defer b.giveUp()
	w.wait("the consumer to run", r.running.Load)
	before := runtime.NumGoroutine()
	for i := range records {
		meta := appendSideMeta(nil, &kgo.Record{}, false, metaTwin, fmt.Append(nil, "c", i%3))
		b.Reject(uint64(i), &indexer.Rejection{Target: "new@1", Meta: meta})
	}
	if n := runtime.NumGoroutine(); n > before+20 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	w.wait("a line in the log", func() bool { return lines.n.Load() > 0 })
	if n := len(r.letters.all()); n != 0 {
		t.Errorf("%d letters before the mark", n)
	}
	r.marks.mu.Lock()
	r.marks.err = nil
	r.marks.mu.Unlock()
	<-b.done
	if got := r.marks.all(); len(got) > 6 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 3 {
		t.Errorf("dirty: %v", got)
	}
}

// A lane is not drained while anything of it is on its way: a record whose
// acknowledgement comes after the closing would be parked, committed, and never
// brought back.
func TestLaneIsNotDrained(t *testing.T) {
	c, a := benchConsumer(&heap{}, nil, rules{})
	for name, change := range map[string]func(*lane){
		"a record is to be appended":        func(l *lane) { l.pending = make([]pending, 1) },
		"a record is being appended":        func(l *lane) { l.wire = 1 },
		"a record is to be replayed":        func(l *lane) { l.tail = 8 },
		"what waited for it was given up":   func(l *lane) { l.stopped = true },
		"what was delivered is to come yet": func(l *lane) { l.p.again = map[string]int64{l.target: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			ended, end := context.WithCancel(t.Context())
			end() // nothing lingers, and no state can be changed
			l := newLane(&parking{a: a, c: c, ctx: ended}, "index", deadletter.ParkedLane{})
			l.tail = 7
			change(l)
			if l.close(ended, 7, nil) || l.closing || l.closed {
				t.Error("the lane closes")
			}
		})
	}
}

// newIdleParking is that of an assignment that parks nothing.
func (r *replica) newIdleParking() *parking {
	a := &assignment{c: r.Consumer, l: &ledger{topic: testTopic}, topic: &topic{name: testTopic, rules: r.o.Rules(testTopic)}}
	return &parking{a: a, c: r.Consumer}
}

// Tokens of all partitions are taken together: their states, and the group's
// commits, are asked for once.
func TestParkedTokensTogether(t *testing.T) {
	const partitions = 60
	w := newWorld(t, partitions)
	p := newParkedWorld(w)
	var lists, commits atomic.Int64
	w.kafka.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		lists.Add(1)
		return nil, nil, false
	})
	w.kafka.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		commits.Add(1)
		return nil, nil, false
	})
	p.shut = make(chan struct{})
	m := w.start(atOnce, p.parking())
	w.wait("all to ask", func() bool {
		m.tokens.mu.Lock()
		defer m.tokens.mu.Unlock()
		return m.tokens.asked == partitions
	})
	close(p.shut)
	for i := range int32(partitions) {
		w.produce(i, 3)
	}
	w.waitAllCommitted()
	p.mu.Lock()
	if len(p.docs) != partitions {
		t.Errorf("%d tokens", len(p.docs))
	}
	p.mu.Unlock()
	if n := p.reads.Load(); n > 2 {
		t.Errorf("states were read %d times", n)
	}
	if n := lists.Load(); n > partitions/2 {
		t.Errorf("offsets were listed %d times", n)
	}
	if n := commits.Load(); n > partitions/2 {
		t.Errorf("commits were asked for %d times", n)
	}
	if err := m.end(); err != nil {
		t.Error(err)
	}
}

// With `held: wait` what was parked before comes back. States are not read where
// nothing can have been parked; and where something was, and the parked topic is
// not configured any more, the partition waits and says what to do.
func TestParkedThenWait(t *testing.T) {
	w := newWorld(t, 1)
	p := newParkedWorld(w)
	waits := func(o *Options) { o.Parking.Open = false }
	m := w.start(atOnce, p.parking(), func(_ *Config, o *Options) {
		waits(o)
		o.Parking.Ever = func(context.Context) (bool, error) { return false, nil }
	})
	w.produce(0, 5)
	w.waitAllCommitted()
	if n := p.reads.Load(); n != 0 {
		t.Errorf("states were read %d times", n)
	}
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	m = w.start(atOnce, p.parking(), func(_ *Config, o *Options) { waits(o) })
	w.produce(0, 5)
	w.waitAllCommitted()
	if s := p.state(); s.Token != 0 {
		t.Errorf("a token was taken, although nothing was ever parked: %+v", s)
	}
	if err := m.end(); err != nil {
		t.Fatal(err)
	}

	m = w.start(nil, p.parking())
	w.parkNew(m, 10)
	if err := m.end(); err != nil {
		t.Fatal(err)
	}

	m = w.start(atOnce, p.parking(), func(_ *Config, o *Options) {
		waits(o)
		o.Parking.Log = nil
	})
	w.wait("the partition to say what is missing", func() bool {
		s, _ := m.partition(0)
		return s.State == StateWaiting && strings.Contains(s.Reason, "dead_letter.topic is not set")
	})
	if err := m.end(); err != nil {
		t.Fatal(err)
	}

	p.unblock()
	w.start(atOnce, p.parking(), func(_ *Config, o *Options) {
		waits(o)
		o.Parking.Ever = func(context.Context) (bool, error) { return true, nil }
	})
	w.produce(0, 10)
	w.waitAllCommitted()
	w.wait("the lane to close", func() bool { return len(p.state().Lanes) == 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, offset := range []int64{10, 15, 19} {
		if !slices.Contains(p.written, offset) {
			t.Errorf("%d was parked and did not come back: %v", offset, p.written)
		}
	}
}
