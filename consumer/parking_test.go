package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/indexer"
)

// parkedWorld is what parking needs, in memory: states, the parked topic with
// one partition, and an index that is blocked or not.
type parkedWorld struct {
	w *world

	mu       sync.Mutex
	docs     map[string][]byte
	versions map[string]int64
	shut     chan struct{} // states cannot be read until it is closed; nil: they can
	records  []deadletter.Parked
	open     bool
	waiting  []func()
	written  []int64 // source offsets that were replayed, in order
}

type parkedError string

func (e parkedError) Error() string  { return string(e) }
func (e parkedError) NotFound() bool { return e == "absent" }
func (e parkedError) Conflict() bool { return e == "conflict" }

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
	if !ok {
		return 0, 0, parkedError("absent")
	}
	return p.versions[id], 1, json.Unmarshal(text, doc)
}

func (p *parkedWorld) Create(ctx context.Context, id string, doc any) error {
	return p.Update(ctx, id, doc, 0, 0)
}

func (p *parkedWorld) Update(_ context.Context, id string, doc any, seqNo, _ int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	return 0, int64(len(p.records)), "parked", nil
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
	for _, r := range records {
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
	return &parkedWorld{w: w, docs: map[string][]byte{}, versions: map[string]int64{}}
}

// parking is the change that has a member park.
func (p *parkedWorld) parking() change {
	return func(_ *Config, o *Options) {
		s := o.Sink.(*sink)
		o.Parking = &Parking{
			Open: true, Store: p, Log: p, Writer: func() Writer { return p }, Rules: func(string) string { return "rules" },
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
