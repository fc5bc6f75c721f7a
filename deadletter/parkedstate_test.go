package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The model of parking: one source partition, one target, and owners that come
// and go while the target is blocked and opens again. Its store is stricter than
// Elasticsearch: it knows no versions, so that the last write wins. All that a
// zombie may still do is done, but for writing to the store, which the gate of
// the indexer forbids.

// omit is the rule that a variant of the model leaves out.
type omit int

const (
	nothing omit = iota
	omitAck
	omitRead
	omitToken
	omitIdleToken
	omitLater
	omitTakeBack
	omitDrained
	omitCloseAck
	omitEnd
	omitSettle
	omitCompare
	omitHealthy
	omitLaneToken
)

const (
	modelTopic  = "id"
	modelTarget = "x"
)

type modelRecord struct {
	token  int64
	offset int
}

type modelOwner struct {
	name    string
	zombie  bool
	read    *ParkedState // what it read to replace
	version int
	adopted bool
	state   ParkedState // as it was acknowledged

	start, pos int
	settled    map[int]bool

	lane    string // "", opening, open, closing
	held    []int  // in the indexer
	pending []int  // to be parked
	wire    []int  // parked, not acknowledged
	taken   bool   // the indexer has given back what it held
	cursor  int
	tail    int

	change  func(*ParkedState) // under way; nil: none
	sent    bool
	refused bool
}

type model struct {
	omit      omit
	keys      []int // of each record
	doc       *ParkedState
	version   int
	parked    []modelRecord
	committed int
	blocked   bool
	owner     *modelOwner
	zombies   []*modelOwner
	owners    int

	last    map[int]int // by key
	written map[int]bool
	trace   []string
}

func newModel(o omit, keys []int) *model {
	m := &model{omit: o, keys: keys, last: map[int]int{}, written: map[int]bool{}}
	m.next(0)
	return m
}

// next gives the partition to a new owner.
func (m *model) next(start int) {
	m.owners++
	m.owner = &modelOwner{name: fmt.Sprintf("o%d", m.owners), start: start, pos: start, settled: map[int]bool{}}
	if m.omit == omitRead {
		m.owner.adopted = true
	}
}

func (o *modelOwner) committable() int {
	n := o.start
	for o.settled[n] {
		n++
	}
	return n
}

func (m *model) write(offset int) {
	m.last[m.keys[offset]] = offset
	m.written[offset] = true
}

// replace is the compare-and-set.
func (m *model) replace(version int, next ParkedState) bool {
	if version != m.version && m.omit != omitCompare {
		return false
	}
	m.doc = &next
	m.version++
	return true
}

func (m *model) current() ParkedState {
	if m.doc == nil {
		return (&ParkedState{}).clone()
	}
	return m.doc.clone()
}

// step is something that can happen now.
type modelStep struct {
	name string
	do   func()
}

// stepsOf are those of one owner, in the order in which one that is left alone
// does them.
func (m *model) stepsOf(o *modelOwner) (steps []modelStep) {
	can := func(name string, when bool, do func()) {
		if when {
			steps = append(steps, modelStep{o.name + " " + name, do})
		}
	}
	live := !o.zombie
	can("reads", o.read == nil && (o.token() == 0) && (live || m.omit == omitHealthy), func() {
		s := m.current()
		o.read, o.version = &s, m.version
	})
	can("takes", o.read != nil, func() {
		next := o.read.clone()
		o.read = nil
		if m.omit == omitIdleToken && len(next.Lanes) == 0 {
			next.Token = max(next.Token, 1)
			o.adopt(next, len(m.parked))
			return
		}
		next.Take(o.name, modelTopic, int64(o.start))
		if m.replace(o.version, next) {
			o.version = m.version
			o.adopt(next, len(m.parked))
			if m.omit == omitEnd {
				o.tail = o.cursor
			}
		}
	})
	// A change of the state: it is sent, and later its answer comes, or never.
	can("changes", o.change != nil && !o.sent, func() {
		next := o.state.clone()
		o.change(&next)
		o.sent = true
		if o.refused = !m.replace(o.version, next); !o.refused {
			o.version, o.state = m.version, next
		}
	})
	can("hears", o.change != nil && o.sent, func() {
		o.change, o.sent = nil, false
		switch {
		case o.refused:
			o.lane = "lost" // it starts over, or finds that it is a zombie
		case o.lane == "opening":
			o.lane = "open"
		case o.lane == "closing":
			o.lane = ""
			o.held, o.pending = append(o.held, o.pending...), nil
		}
	})
	can("takes back", o.lane == "open" && !o.taken, func() {
		o.taken = true
		switch m.omit {
		case omitTakeBack:
			o.pending, o.held = append(o.pending, o.held...), nil
		default:
			o.pending, o.held = append(o.held, o.pending...), nil
		}
	})
	parks := o.lane == "open" && (o.taken || m.omit == omitTakeBack) || m.omit == omitAck && o.lane == "opening"
	can("parks", parks && len(o.pending) > 0, func() {
		m.parked = append(m.parked, modelRecord{o.token(), o.pending[0]})
		if m.omit == omitSettle {
			m.parked = m.parked[:len(m.parked)-1]
			o.settled[o.pending[0]] = true
			o.wire = append(o.wire, -o.pending[0]-1)
		} else {
			o.wire = append(o.wire, o.pending[0])
		}
		o.pending = o.pending[1:]
	})
	can("hears that it is parked", len(o.wire) > 0, func() {
		offset := o.wire[0]
		if offset < 0 {
			m.parked = append(m.parked, modelRecord{o.token(), -offset - 1})
		} else {
			o.settled[offset] = true
		}
		o.wire = o.wire[1:]
		o.tail = max(o.tail, len(m.parked))
	})
	can("replays", live && !m.blocked && o.lane == "open" && o.taken && o.cursor < len(m.parked), func() {
		r := m.parked[o.cursor]
		o.cursor++
		lane := o.state.Lanes[modelTarget]
		if m.omit == omitLaneToken {
			lane.Token = 0
		}
		if r.token > o.token() || m.omit != omitToken && o.state.Void(lane, r.token, modelTopic, int64(r.offset)) {
			return
		}
		m.write(r.offset)
	})
	can("notes how far it is", o.lane == "open" && o.change == nil && o.state.Lanes[modelTarget].From < int64(o.cursor), func() {
		at := int64(o.cursor)
		o.change = func(s *ParkedState) {
			l := s.Lanes[modelTarget]
			l.From = at
			s.Lanes[modelTarget] = l
		}
	})
	drained := o.cursor >= o.tail || m.omit == omitDrained
	can("closes", o.lane == "open" && o.change == nil && o.taken && len(o.pending)+len(o.wire) == 0 && drained, func() {
		o.lane = "closing"
		o.change = func(s *ParkedState) { delete(s.Lanes, modelTarget) }
		if m.omit == omitCloseAck {
			o.lane = ""
		}
	})
	can("opens", o.adopted && o.lane == "" && o.change == nil && len(o.held) > 0 && m.blocked, func() {
		o.lane, o.taken = "opening", false
		from := len(m.parked)
		o.cursor, o.tail = from, from
		token := o.token()
		o.change = func(s *ParkedState) { s.Lanes[modelTarget] = ParkedLane{Token: token, From: int64(from)} }
		if m.omit == omitAck {
			o.pending, o.held = append(o.held, o.pending...), nil
			o.taken = true
		}
	})
	can("writes", live && !m.blocked && len(o.held) > 0, func() {
		m.write(o.held[0])
		o.settled[o.held[0]] = true
		o.held = o.held[1:]
	})
	can("takes a record", o.adopted && o.pos < len(m.keys) && o.lane != "lost", func() {
		parking := o.lane == "open" || o.lane == "closing"
		if parking && m.omit != omitLater {
			o.pending = append(o.pending, o.pos)
		} else {
			o.held = append(o.held, o.pos)
		}
		o.pos++
	})
	can("commits", live && o.committable() > m.committed, func() { m.committed = o.committable() })
	can("starts over", live && o.lane == "lost", func() { m.rewind() })
	return steps
}

func (o *modelOwner) token() int64 { return o.state.Token }

// adopt is what an owner does once its token is acknowledged; end is the end of
// the parked records then.
func (o *modelOwner) adopt(s ParkedState, end int) {
	o.state, o.adopted = s, true
	if l, open := s.Lanes[modelTarget]; open {
		o.lane, o.taken, o.cursor, o.tail = "open", true, int(l.From), end
	}
}

// rewind has the owner start over; what it has under way stays under way.
func (m *model) rewind() {
	at := max(m.owner.committable(), m.committed)
	m.owner.zombie = true
	m.zombies = append(m.zombies, m.owner)
	m.next(at)
}

// steps are all that can happen.
func (m *model) steps() []modelStep {
	all := m.stepsOf(m.owner)
	for _, z := range m.zombies {
		all = append(all, m.stepsOf(z)...)
	}
	return append(all,
		modelStep{"the target blocks or opens", func() { m.blocked = !m.blocked }},
		modelStep{"kill", func() { m.next(m.committed) }},
		modelStep{"zombie", func() {
			m.owner.zombie = true
			m.zombies = append(m.zombies, m.owner)
			m.next(m.committed)
		}},
		modelStep{"rewind", m.rewind})
}

func (m *model) do(s modelStep) {
	m.trace = append(m.trace, s.name)
	s.do()
}

// finish lets everything come to its end and returns what is wrong then.
func (m *model) finish() error {
	m.blocked = false
	m.zombies = nil
	for range 1000 {
		steps := m.stepsOf(m.owner)
		if len(steps) == 0 {
			break
		}
		m.do(steps[0])
	}
	if m.committed != len(m.keys) || m.owner.lane != "" {
		return fmt.Errorf("it does not end: committed %d, lane %q", m.committed, m.owner.lane)
	}
	newest := map[int]int{}
	for offset, key := range m.keys {
		newest[key] = offset
		if !m.written[offset] {
			return fmt.Errorf("record %d is lost", offset)
		}
	}
	for key, offset := range newest {
		if m.last[key] != offset {
			return fmt.Errorf("record %d is the last of its key, %d was written last", offset, m.last[key])
		}
	}
	return nil
}

func (m *model) explain(err error) string {
	return fmt.Sprintf("%v\n%s", err, strings.Join(m.trace, "\n"))
}

func TestParkingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 8).Draw(t, "keys")
		m := newModel(nothing, keys)
		for range rapid.IntRange(0, 150).Draw(t, "steps") {
			steps := m.steps()
			m.do(steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")])
		}
		if err := m.finish(); err != nil {
			t.Fatal(m.explain(err))
		}
	})
}

// walk plays one random run, in which the members do more than what happens to
// them.
func walk(o omit, seed uint64) (*model, error) {
	r := rand.New(rand.NewPCG(seed, 7))
	keys := make([]int, 2+r.IntN(6))
	for i := range keys {
		keys[i] = r.IntN(2)
	}
	m := newModel(o, keys)
	for range 20 + r.IntN(100) {
		steps := m.steps()
		own := len(steps) - 4
		i := r.IntN(own + 1)
		if i == own {
			i += r.IntN(4)
		}
		m.do(steps[i])
	}
	return m, m.finish()
}

// The walk that finds all the bugs below finds none in the protocol.
func TestParkingWalk(t *testing.T) {
	for seed := range uint64(5_000) {
		if m, err := walk(nothing, seed); err != nil {
			t.Fatal(seed, m.explain(err))
		}
	}
}

// Each rule of the protocol is needed.
func TestParkingRules(t *testing.T) {
	for _, rule := range []struct {
		omit omit
		text string
		from uint64 // where the search begins; the rare ones need many walks
	}{
		{omitAck, "the state says that a lane is open before its first record is parked", 0},
		{omitRead, "the state is read before the first dispatch", 0},
		{omitToken, "records of an older token at or above the start are void", 0},
		{omitIdleToken, "a token is taken although no lane is open", 0},
		{omitLater, "later records go behind those that are parked", 0},
		{omitTakeBack, "what the indexer holds is parked before any later record", 2000},
		{omitDrained, "a lane closes when it is drained", 0},
		{omitCloseAck, "nothing passes by before the state says that the lane is closed", 44000},
		{omitEnd, "a lane that is taken over is replayed up to the end of the log", 0},
		{omitSettle, "a record is settled when it is parked durably", 0},
		{omitCompare, "the state is changed by compare-and-set", 0},
		{omitHealthy, "a token is taken by a member in good standing only", 0},
	} {
		t.Run(rule.text, func(t *testing.T) {
			for seed := range uint64(3_000) {
				if m, err := walk(rule.omit, rule.from+seed); err != nil {
					t.Logf("seed %d, %d steps: %v", rule.from+seed, len(m.trace), err)
					return
				}
			}
			t.Error("left out, nothing breaks")
		})
	}
}

// play does the steps of those names.
func (m *model) play(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		steps := m.steps()
		i := slices.IndexFunc(steps, func(s modelStep) bool { return s.name == name })
		if i < 0 {
			t.Fatalf("%q cannot happen after\n%s", name, strings.Join(m.trace, "\n"))
		}
		m.do(steps[i])
	}
}

// A lane knows nothing of tokens before its own: what a zombie parks late lies
// behind the start of a lane that was opened after its own was closed. No walk
// finds this within reasonable time.
func TestParkingRuleOfTheLanesToken(t *testing.T) {
	for o, broken := range map[omit]bool{nothing: false, omitLaneToken: true} {
		m := newModel(o, []int{0, 0, 0})
		m.play(t, "o1 reads", "o1 takes", "the target blocks or opens", "o1 takes a record", "o1 opens", "o1 changes", "o1 hears", "o1 takes back",
			"zombie", // with record 0 in hand
			"o2 reads", "o2 takes", "the target blocks or opens", "o2 closes", "o2 changes", "o2 hears",
			"o2 takes a record", "o2 writes", "o2 takes a record", "o2 writes", "o2 commits",
			"kill", "o3 reads", "o3 takes", "the target blocks or opens", "o3 takes a record", "o3 opens", "o3 changes", "o3 hears", "o3 takes back",
			"o3 parks", "o3 hears that it is parked", "o1 parks")
		m.trace = nil
		if err := m.finish(); (err != nil) != broken {
			t.Errorf("left out: %v; %s", broken, m.explain(err))
		}
	}
}

// memoryStore keeps control documents; the answer of the next change is lost
// where lose says so.
type memoryStore struct {
	docs    map[string]ParkedState
	version map[string]int64
	lose    bool
}

type storeError struct{ absent, conflict bool }

func (e storeError) Error() string {
	return fmt.Sprintf("%+v", struct{ a, c bool }{e.absent, e.conflict})
}
func (e storeError) NotFound() bool { return e.absent }
func (e storeError) Conflict() bool { return e.conflict }

var errLost = errors.New("the answer was lost")

func newMemoryStore() *memoryStore {
	return &memoryStore{docs: map[string]ParkedState{}, version: map[string]int64{}}
}

func (s *memoryStore) Get(_ context.Context, id string, doc any) (int64, int64, error) {
	d, ok := s.docs[id]
	if !ok {
		return 0, 0, storeError{absent: true}
	}
	*doc.(*ParkedState) = d.clone()
	return s.version[id], 1, nil
}

func (s *memoryStore) Create(_ context.Context, id string, doc any) error {
	if _, ok := s.docs[id]; ok {
		return storeError{conflict: true}
	}
	return s.put(id, doc)
}

func (s *memoryStore) Update(_ context.Context, id string, doc any, seqNo, _ int64) error {
	if _, ok := s.docs[id]; !ok || s.version[id] != seqNo {
		return storeError{conflict: true}
	}
	return s.put(id, doc)
}

func (s *memoryStore) put(id string, doc any) error {
	s.docs[id] = doc.(*ParkedState).clone()
	s.version[id]++
	if s.lose {
		s.lose = false
		return errLost
	}
	return nil
}

func keeper(t *testing.T, s ParkedStore) *ParkedKeeper {
	t.Helper()
	k, _, err := LoadParked(t.Context(), s, "g", "events", 3)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func fine() error { return nil }

func TestKeeper(t *testing.T) {
	s := newMemoryStore()
	a := keeper(t, s)
	if err := a.Take(t.Context(), "a", "id", 5, fine); err != nil {
		t.Fatal(err)
	}
	open := func(s *ParkedState) { s.Lanes["x"] = ParkedLane{Token: s.Token, From: 9} }
	s.lose = true
	if err := a.Change(t.Context(), open); !errors.Is(err, errLost) {
		t.Fatalf("a lost answer: %v", err)
	}
	if err := a.Change(t.Context(), open); err != nil {
		t.Fatalf("found out: %v", err)
	}
	if got := a.State(); got.Lanes["x"].From != 9 || got.Token != 1 {
		t.Errorf("%+v", got)
	}

	b, c := keeper(t, s), keeper(t, s)
	refusal := errors.New("no heartbeat")
	if err := c.Take(t.Context(), "c", "id", 7, func() error { return refusal }); !errors.Is(err, refusal) {
		t.Errorf("taken without standing: %v", err)
	}
	if err := b.Take(t.Context(), "b", "id", 7, fine); err != nil {
		t.Fatal(err)
	}
	if err := c.Take(t.Context(), "c", "id", 7, fine); !isConflict(err) {
		t.Errorf("taken by two: %v", err)
	}
	if err := a.Change(t.Context(), open); !errors.Is(err, ErrParkedOwner) {
		t.Errorf("changed by a former owner: %v", err)
	}
	if got := keeper(t, s).State(); got.Token != 2 || got.Owner != "b" || !slices.Equal(got.Targets(), []string{"x"}) {
		t.Errorf("%+v", got)
	}
}

func TestVoid(t *testing.T) {
	s := ParkedState{}
	s.Take("a", "id", 0)
	lane := ParkedLane{Token: 1}
	s.Lanes = map[string]ParkedLane{"x": lane}
	s.Take("b", "id", 10)
	s.Take("c", "id", 20)
	s.Take("d", "id", 15) // an operator's reset
	s.Take("e", "new", 0) // the topic was re-created
	for _, test := range []struct {
		token  int64
		id     string
		offset int64
		void   bool
	}{
		{1, "id", 9, false},
		{1, "id", 10, true},
		{2, "id", 14, false},
		{2, "id", 15, true},
		{2, "id", 21, true},
		{3, "id", 14, false},
		{3, "id", 25, true},
		{4, "id", 1000, false},
		{5, "new", 3, false},
		{0, "id", 3, true},
	} {
		if got := s.Void(lane, test.token, test.id, test.offset); got != test.void {
			t.Errorf("token %d, %s/%d: void is %v", test.token, test.id, test.offset, got)
		}
	}
	if len(s.Starts) != 4 {
		t.Errorf("%d starts are kept: %+v", len(s.Starts), s.Starts)
	}
	s.Lanes = nil
	if s.Take("f", "new", 9); len(s.Starts) != 1 {
		t.Errorf("starts of lanes that are closed: %+v", s.Starts)
	}
}
