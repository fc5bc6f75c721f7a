package generation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestAt(t *testing.T) {
	l := List{
		{1, "a", 2, nil},
		{2, "a", 3, map[int32]int64{0: 100, 1: 80}},
		{3, "b", 3, nil},
		{7, "b", 3, map[int32]int64{0: 50, 1: 60, 2: 70}},
		{8, "b", 3, map[int32]int64{0: 40, 1: 90, 2: 70}},
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		id         string
		partition  int32
		offset     int64
		generation int
		until      int64
	}{
		{"a", 0, 0, 1, 100},
		{"a", 0, 99, 1, 100},
		{"a", 0, 100, 2, math.MaxInt64},
		{"a", 2, 0, 2, math.MaxInt64}, // a partition that the raise found new
		{"b", 0, 39, 3, 40},
		{"b", 0, 40, 8, math.MaxInt64}, // the later entry hides the earlier one
		{"b", 1, 59, 3, 60},
		{"b", 1, 60, 7, 90},
		{"b", 1, 90, 8, math.MaxInt64},
		{"c", 0, 0, 0, math.MaxInt64},
	}
	for _, tt := range tests {
		generation, until := l.At(tt.id, tt.partition, tt.offset)
		if generation != tt.generation || until != tt.until {
			t.Errorf("At(%s, %d, %d) = %d, %d, want %d, %d", tt.id, tt.partition, tt.offset, generation, until, tt.generation, tt.until)
		}
	}
}

// At's until is exact enough to cache by: the answer holds below it.
func TestAtUntil(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l List
		for i := range rapid.IntRange(1, 6).Draw(t, "entries") {
			l = append(l, Entry{
				i + 1, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "id"), 1,
				map[int32]int64{0: rapid.Int64Range(0, 20).Draw(t, "start")},
			})
		}
		offset := rapid.Int64Range(0, 20).Draw(t, "offset")
		generation, until := l.At("a", 0, offset)
		if until <= offset {
			t.Fatalf("until %d is not above offset %d", until, offset)
		}
		for o := offset; o < min(until, 25); o++ {
			if g, _ := l.At("a", 0, o); g != generation {
				t.Fatalf("At(%d) = %d, but At(%d) = %d until %d", o, g, offset, generation, until)
			}
		}
	})
}

func TestValidate(t *testing.T) {
	for name, l := range map[string]List{
		"zero":               {{0, "a", 1, nil}},
		"too high":           {{Max + 1, "a", 1, nil}},
		"repeated":           {{1, "a", 1, nil}, {1, "a", 1, nil}},
		"falling":            {{2, "a", 1, nil}, {1, "a", 1, nil}},
		"no id":              {{1, "", 1, nil}},
		"no partitions":      {{1, "a", 0, nil}},
		"unknown partition":  {{1, "a", 1, map[int32]int64{1: 5}}},
		"negative partition": {{1, "a", 1, map[int32]int64{-1: 5}}},
		"negative start":     {{1, "a", 1, map[int32]int64{0: -1}}},
	} {
		if l.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestExtends(t *testing.T) {
	l := List{{1, "a", 1, nil}, {2, "a", 1, map[int32]int64{0: 5}}}
	if err := append(slices.Clone(l), Entry{3, "b", 2, nil}).Extends(l); err != nil {
		t.Error(err)
	}
	for name, other := range map[string]List{
		"shorter": l[:1],
		"start":   {l[0], {2, "a", 1, map[int32]int64{0: 6}}},
		"id":      {{1, "b", 1, nil}, l[1]},
		"number":  {l[0], {3, "a", 1, map[int32]int64{0: 5}}},
		"bad end": append(slices.Clone(l), Entry{2, "a", 1, nil}),
	} {
		if other.Extends(l) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCheck(t *testing.T) {
	l := List{{1, "a", 2, nil}, {4, "b", 3, nil}}
	tests := []struct {
		name  string
		list  List
		topic Topic
		why   Why
	}{
		{"same", l, Topic{Name: "t", ID: "b", Partitions: 3, Committed: 4}, ""},
		{"other id", l, Topic{Name: "t", ID: "a", Partitions: 3}, Recreated},
		{"more partitions", l, Topic{Name: "t", ID: "b", Partitions: 4}, Repartitioned},
		{"more partitions, positions", l, Topic{Name: "t", ID: "b", Partitions: 4, AnyPartitions: true}, ""},
		{"other id, positions", l, Topic{Name: "t", ID: "c", Partitions: 3, AnyPartitions: true}, Recreated},
		{"committed above", l, Topic{Name: "t", ID: "b", Partitions: 3, Committed: 5}, Lost},
		{"nothing recorded", nil, Topic{Name: "t", ID: "b", Partitions: 3, Committed: 1}, Lost},
	}
	for _, tt := range tests {
		err := tt.list.Check(tt.topic)
		var needs *NeedsRaiseError
		switch {
		case tt.why == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.why != "" && (!errors.As(err, &needs) || needs.Why != tt.why):
			t.Errorf("%s: %v, want %s", tt.name, err, tt.why)
		case tt.why != "" && !strings.Contains(err.Error(), "sluice generation raise --topic t"):
			t.Errorf("%s: no remedy in %v", tt.name, err)
		}
	}
	if err := l.Check(Topic{Name: "t", Partitions: 3}); err == nil {
		t.Error("a topic without an id was accepted")
	}
}

func TestRaise(t *testing.T) {
	one := List{{1, "a", 2, nil}}
	two := List{{1, "a", 2, nil}, {2, "a", 3, map[int32]int64{0: 100, 1: 80}}}
	topic := func(id string, partitions int32) Topic {
		return Topic{Name: "t", ID: id, Partitions: partitions}
	}
	ends := map[int32]int64{0: 100, 1: 80, 2: 3}
	tests := []struct {
		name string
		list List
		p    Raise
		want List // the entries added
	}{
		{
			"re-created", two,
			Raise{Topic: topic("b", 1), Committed: map[int32]int64{0: 5}},
			List{{3, "b", 1, nil}},
		},
		{
			"partitions added", one,
			Raise{Topic: topic("a", 3), LogEnds: ends, LogEndsLater: ends, Committed: map[int32]int64{0: 5}},
			List{{2, "a", 3, map[int32]int64{0: 100, 1: 80}}},
		},
		{
			"partitions added, producers accepted", one,
			Raise{Topic: topic("a", 3), LogEnds: ends, LogEndsLater: map[int32]int64{0: 101, 1: 80, 2: 9}, AcceptReordering: true},
			List{{2, "a", 3, map[int32]int64{0: 100, 1: 80}}},
		},
		{
			"foreign version", one,
			Raise{Topic: topic("a", 2), Committed: map[int32]int64{0: 7}},
			List{{2, "a", 2, map[int32]int64{0: 7, 1: 0}}},
		},
		{
			"foreign version, far up", one,
			Raise{Topic: topic("a", 2), To: Max, Committed: map[int32]int64{0: 7, 1: 8}},
			List{{Max, "a", 2, map[int32]int64{0: 7, 1: 8}}},
		},
		{
			"truncation", one,
			Raise{Topic: topic("a", 2), Committed: map[int32]int64{0: 7, 1: 8}, Diverged: map[int32]int64{0: 9, 1: 3}},
			List{{2, "a", 2, map[int32]int64{0: 7, 1: 3}}},
		},
		{
			"truncation and partitions added", one,
			Raise{Topic: topic("a", 3), LogEnds: ends, LogEndsLater: ends, Committed: map[int32]int64{0: 70, 1: 80}, Diverged: map[int32]int64{1: 30}},
			List{{2, "a", 3, map[int32]int64{0: 70, 1: 30}}, {3, "a", 3, map[int32]int64{0: 100, 1: 80}}},
		},
		{
			"truncation below an earlier start", two,
			Raise{Topic: topic("a", 3), Committed: map[int32]int64{0: 150, 1: 80}, Diverged: map[int32]int64{0: 60}},
			List{{3, "a", 3, map[int32]int64{0: 60, 1: 80, 2: 0}}, {4, "a", 3, map[int32]int64{0: 60, 1: 80}}},
		},
		{
			"foreign version on both sides of a raise", two,
			Raise{Topic: topic("a", 3), Committed: map[int32]int64{0: 50, 1: 60}},
			List{{3, "a", 3, map[int32]int64{0: 50, 1: 60, 2: 0}}, {4, "a", 3, map[int32]int64{0: 100, 1: 80}}},
		},
		{
			"foreign version above the raise", two,
			Raise{Topic: topic("a", 3), Committed: map[int32]int64{0: 100, 1: 90, 2: 5}},
			List{{3, "a", 3, map[int32]int64{0: 100, 1: 90, 2: 5}}},
		},
		{
			"control index lost", nil,
			Raise{Topic: Topic{Name: "t", ID: "a", Partitions: 2, Committed: 6}},
			List{{7, "a", 2, nil}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.list.Raise(tt.p)
			if err != nil {
				t.Fatal(err)
			}
			if want := append(slices.Clone(tt.list), tt.want...); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v\nwant %v", got, want)
			}
			after := tt.p.Topic
			after.Committed = got.Highest()
			if err := got.Check(after); err != nil {
				t.Errorf("after the raise: %v", err)
			}
		})
	}
}

func TestRaiseRefused(t *testing.T) {
	two := List{{1, "a", 2, nil}, {2, "a", 3, map[int32]int64{0: 100, 1: 80}}}
	ends := map[int32]int64{0: 100, 1: 80, 2: 3, 3: 0}
	moved := maps.Clone(ends)
	moved[1]++
	movedNew := maps.Clone(ends)
	movedNew[3]++
	topic := func(partitions int32) Topic { return Topic{Name: "t", ID: "a", Partitions: partitions} }
	for name, p := range map[string]Raise{
		"producers write":                       {Topic: topic(4), LogEnds: ends, LogEndsLater: moved},
		"producers write to the new partitions": {Topic: topic(4), LogEnds: ends, LogEndsLater: movedNew},
		"unknown log end":                       {Topic: topic(4), LogEnds: ends, LogEndsLater: map[int32]int64{0: 100}},
		"fewer partitions":                      {Topic: topic(2)},
		"downwards":                             {Topic: topic(3), To: 2},
		"below a committed one":                 {Topic: Topic{Name: "t", ID: "a", Partitions: 3, Committed: 9}, To: 9},
		"above the highest":                     {Topic: topic(3), To: Max + 1},
		"no room for the repeated entries":      {Topic: topic(3), To: Max},
		"no id":                                 {Topic: Topic{Name: "t", Partitions: 3}},
	} {
		if l, err := two.Raise(p); err == nil {
			t.Errorf("%s: %v", name, l)
		}
	}
	_, err := two.Raise(Raise{Topic: topic(4), LogEnds: ends, LogEndsLater: moved})
	if !errors.Is(err, ErrProducing) {
		t.Errorf("producers write: %v", err)
	}

	// Partition 1 was read beyond its start in generation 2 while partition 0
	// still holds records of generation 1.
	_, err = two.Raise(Raise{Topic: topic(3), Committed: map[int32]int64{0: 50, 1: 90, 2: 4}})
	var rewind *RewindError
	if !errors.As(err, &rewind) || !maps.Equal(rewind.Offsets, map[int32]int64{1: 80, 2: 0}) {
		t.Errorf("read on both sides of a raise: %v", err)
	}
}

// world is a topic, its consumer and an index that compares external versions.
type world struct {
	t     *rapid.T
	list  List
	topic Topic

	logs      [][]logged // by partition; the offset is the index
	committed []int64
	clock     int
	newest    map[string]int     // by key: the last value produced, where it was not truncated
	index     map[string]indexed // what the consumer wrote
}

type logged struct {
	key   string
	value int
}

type indexed struct {
	version, value int
}

func (w *world) produce() {
	key := fmt.Sprint(rapid.IntRange(0, 3).Draw(w.t, "key"))
	hash := 0
	for _, c := range []byte(key) {
		hash = hash*31 + int(c)
	}
	p := hash % len(w.logs)
	w.clock++
	w.logs[p] = append(w.logs[p], logged{key, w.clock})
	w.newest[key] = w.clock
}

// read hands the records of one partition to the index.
func (w *world) read(p int, n int64) {
	for ; n > 0 && w.committed[p] < int64(len(w.logs[p])); n-- {
		offset := w.committed[p]
		generation, _ := w.list.At(w.topic.ID, int32(p), offset)
		if generation == 0 {
			w.t.Fatalf("no generation for %d/%d in %v", p, offset, w.list)
		}
		rec := w.logs[p][offset]
		version := generation<<20 | int(offset+1)
		if version > w.index[rec.key].version {
			w.index[rec.key] = indexed{version, rec.value}
		}
		w.committed[p]++
	}
}

func (w *world) vector(of func(p int) int64) map[int32]int64 {
	v := map[int32]int64{}
	for p := range w.logs {
		v[int32(p)] = of(p)
	}
	return v
}

func (w *world) raise(to int, diverged map[int32]int64) {
	ends := w.vector(func(p int) int64 { return int64(len(w.logs[p])) })
	for {
		next, err := w.list.Raise(Raise{
			Topic: w.topic, To: to, LogEnds: ends, LogEndsLater: ends, Diverged: diverged,
			Committed: w.vector(func(p int) int64 { return w.committed[p] }),
		})
		var rewind *RewindError
		if errors.As(err, &rewind) { // the operator does as told
			for p, offset := range rewind.Offsets {
				w.committed[p] = offset
			}
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if err := next.Extends(w.list); err != nil {
			w.t.Fatal(err)
		}
		w.list = next
		return
	}
}

// Invariant 11, and what it is for: after any order of raises, added
// partitions, truncations, re-creations and replays, the index is the fold of
// the log, and every record has the generation that the same list gives again.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, topic: Topic{Name: "t", ID: "id0", Partitions: 1},
			logs: make([][]logged, 1), committed: make([]int64, 1),
			newest: map[string]int{}, index: map[string]indexed{},
		}
		list, err := Ensure(context.Background(), newStore(), w.topic)
		if err != nil {
			t.Fatal(err)
		}
		w.list = list
		partition := func() int { return rapid.IntRange(0, len(w.logs)-1).Draw(t, "partition") }

		t.Repeat(map[string]func(*rapid.T){
			"produce": func(*rapid.T) {
				for range rapid.IntRange(1, 6).Draw(t, "records") {
					w.produce()
				}
			},
			"read": func(*rapid.T) { w.read(partition(), rapid.Int64Range(1, 9).Draw(t, "n")) },
			"replay": func(*rapid.T) {
				p := partition()
				w.committed[p] = rapid.Int64Range(0, w.committed[p]).Draw(t, "offset")
			},
			"add partitions": func(*rapid.T) {
				if len(w.logs) > 5 {
					return
				}
				for range rapid.IntRange(1, 2).Draw(t, "more") {
					w.logs = append(w.logs, nil)
					w.committed = append(w.committed, 0)
				}
				w.topic.Partitions = int32(len(w.logs))
				w.raise(0, nil)
			},
			"raise": func(*rapid.T) {
				if w.list.Highest() > Max/2 {
					return
				}
				to := 0
				if rapid.Bool().Draw(t, "far") {
					to = w.list.Highest() + rapid.IntRange(1, 20).Draw(t, "by")
				}
				w.raise(to, nil)
			},
			"truncate": func(*rapid.T) {
				if w.list.Highest() > Max/2 {
					return
				}
				p := partition()
				at := rapid.IntRange(0, len(w.logs[p])).Draw(t, "at")
				for _, rec := range w.logs[p][at:] {
					if w.newest[rec.key] == rec.value {
						delete(w.newest, rec.key) // may have been indexed: nothing is promised before the key's next record
					}
				}
				w.logs[p] = w.logs[p][:at:at]
				w.raise(0, map[int32]int64{int32(p): int64(at)})
				w.committed[p] = min(w.committed[p], int64(at)) // consuming resumes where the log changed
			},
			"re-create": func(*rapid.T) {
				n := rapid.IntRange(1, 3).Draw(t, "partitions")
				w.topic.ID += "'"
				w.topic.Partitions = int32(n)
				w.logs, w.committed = make([][]logged, n), make([]int64, n)
				w.newest = map[string]int{}
				w.raise(0, nil)
			},
			"": func(*rapid.T) {},
		})

		for p := range w.logs {
			w.read(p, math.MaxInt64)
		}
		for key, value := range w.newest {
			if got := w.index[key].value; got != value {
				t.Fatalf("key %s is %d, the log's last value is %d\nlist %v\nlogs %v", key, got, value, w.list, w.logs)
			}
		}
	})
}

// store is a Store in memory. It keeps JSON, as the real one does.
type store struct {
	mu   sync.Mutex
	docs map[string]json.RawMessage
	seq  map[string]int64
	next int64

	beforeCreate func() // runs once, outside the lock
}

func newStore() *store {
	return &store{docs: map[string]json.RawMessage{}, seq: map[string]int64{}}
}

type storeError struct{ notFound, conflict bool }

func (e storeError) Error() string {
	return fmt.Sprintf("store: absent %t, conflict %t", e.notFound, e.conflict)
}
func (e storeError) NotFound() bool { return e.notFound }
func (e storeError) Conflict() bool { return e.conflict }

func (s *store) Get(_ context.Context, id string, doc any) (seqNo, primaryTerm int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, ok := s.docs[id]
	if !ok {
		return 0, 0, fmt.Errorf("wrapped: %w", storeError{notFound: true})
	}
	return s.seq[id], 1, json.Unmarshal(raw, doc)
}

func (s *store) Create(_ context.Context, id string, doc any) error {
	if f := s.beforeCreate; f != nil {
		s.beforeCreate = nil
		f()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.docs[id]; ok {
		return fmt.Errorf("wrapped: %w", storeError{conflict: true})
	}
	return s.put(id, doc)
}

func (s *store) Update(_ context.Context, id string, doc any, seqNo, primaryTerm int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.docs[id]; !ok || s.seq[id] != seqNo || primaryTerm != 1 {
		return fmt.Errorf("wrapped: %w", storeError{conflict: true})
	}
	return s.put(id, doc)
}

func (s *store) put(id string, doc any) error {
	raw, err := json.Marshal(doc)
	s.docs[id] = raw
	s.next++
	s.seq[id] = s.next
	return err
}

func TestEnsure(t *testing.T) {
	ctx := context.Background()
	s := newStore()
	ensure := func(topic Topic, others ...string) List {
		t.Helper()
		l, err := Ensure(ctx, s, topic, others...)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a := Topic{Name: "a", ID: "ida", Partitions: 2}
	if l := ensure(a); !reflect.DeepEqual(l, List{{1, "ida", 2, nil}}) {
		t.Errorf("first sight: %v", l)
	}
	if l := ensure(a, "a", "b"); l.Highest() != 1 {
		t.Errorf("second sight: %v", l)
	}
	if _, _, err := Apply(ctx, s, Raise{Topic: a, To: 41, Committed: map[int32]int64{0: 3}}); err != nil {
		t.Fatal(err)
	}
	if l := ensure(Topic{Name: "b", ID: "idb", Partitions: 1}, "a", "b", "unseen"); l.Highest() != 42 {
		t.Errorf("above another topic's: %v", l)
	}
	if l := ensure(Topic{Name: "c", ID: "idc", Partitions: 1}); l.Highest() != 1 {
		t.Errorf("beside other topics: %v", l)
	}

	l, err := Ensure(ctx, s, Topic{Name: "a", ID: "new", Partitions: 2})
	var needs *NeedsRaiseError
	if !errors.As(err, &needs) || needs.Why != Recreated || l.Highest() != 41 {
		t.Errorf("a re-created topic: %v, %v", l, err)
	}
	_, err = Ensure(ctx, s, Topic{Name: "d", ID: "idd", Partitions: 2, Committed: 3})
	if !errors.As(err, &needs) || needs.Why != Lost {
		t.Errorf("a lost control index: %v", err)
	}
	if _, err := Load(ctx, s, "d"); err != nil || s.docs[ID("d")] != nil {
		t.Errorf("a refusal recorded something: %s, %v", s.docs[ID("d")], err)
	}
	if _, _, err := Apply(ctx, s, Raise{Topic: Topic{Name: "top", ID: "x", Partitions: 1}, To: Max}); err != nil {
		t.Fatal(err)
	}
	if l, err := Ensure(ctx, s, Topic{Name: "e", ID: "ide", Partitions: 2}, "top"); err == nil {
		t.Errorf("no generation is left above %d: %v", Max, l)
	}
}

// Two replicas see a topic first at the same time: both get the list of the
// one that was quicker.
func TestEnsureRace(t *testing.T) {
	ctx := context.Background()
	s := newStore()
	s.beforeCreate = func() {
		if _, err := Ensure(ctx, s, Topic{Name: "a", ID: "quick", Partitions: 1}); err != nil {
			t.Error(err)
		}
	}
	l, err := Ensure(ctx, s, Topic{Name: "a", ID: "quick", Partitions: 1})
	if err != nil || len(l) != 1 || s.next != 1 {
		t.Errorf("%v, %v after %d writes", l, err, s.next)
	}
}

func TestJoin(t *testing.T) {
	ctx := context.Background()
	s := newStore()
	join := func(index, topic string, want ...string) {
		t.Helper()
		others, err := Join(ctx, s, index, topic)
		if err != nil || !slices.Equal(others, want) {
			t.Errorf("%s writes to %s: others are %v, %v, want %v", topic, index, others, err, want)
		}
	}
	join("i", "a")
	join("i", "a")
	join("i", "b", "a")
	join("j", "b")
	s.beforeCreate = func() { join("k", "quick") }
	join("k", "slow", "quick")
	join("i", "a", "b")
	writes := s.next
	join("i", "b", "a")
	if s.next != writes {
		t.Error("a topic that is known was recorded again")
	}
	s.docs["index:l"] = json.RawMessage(`{"format":2,"topics":["a"]}`)
	if _, err := Join(ctx, s, "l", "b"); err == nil || !strings.Contains(err.Error(), "update Sluice") {
		t.Errorf("a later format: %v", err)
	}
}

// A topic that was recorded when it wrote to another index is refused where an
// earlier topic's documents would keep its records out, each time, until it is
// raised above them.
func TestJoinOfATopicThatMoves(t *testing.T) {
	ctx := context.Background()
	s := newStore()
	record := func(topic string, generations ...int) {
		t.Helper()
		var l List
		for _, g := range generations {
			l = append(l, Entry{Generation: g, TopicID: topic, Partitions: 1})
		}
		if err := s.Create(ctx, ID(topic), document{Format, topic, l}); err != nil {
			t.Fatal(err)
		}
	}
	record("old", 1, 3)
	record("moves", 1)
	record("above", 4)
	if others, err := Join(ctx, s, "i", "old"); err != nil || len(others) != 0 {
		t.Fatalf("%v, %v", others, err)
	}
	for range 2 {
		var raise *NeedsRaiseError
		if _, err := Join(ctx, s, "i", "moves"); !errors.As(err, &raise) || raise.Why != Moved || raise.To != 4 || !strings.Contains(err.Error(), "sluice generation raise --topic moves --to 4") {
			t.Errorf("%v", err)
		}
	}
	if others, err := Join(ctx, s, "i", "above"); err != nil || !slices.Equal(others, []string{"old"}) {
		t.Errorf("a topic that is above it: %v, %v", others, err)
	}
	if others, err := Join(ctx, s, "i", "new"); err != nil || len(others) != 2 {
		t.Errorf("a topic that nothing is recorded of: %v, %v", others, err)
	}
	if others, err := Join(ctx, s, "another", "moves"); err != nil || len(others) != 0 {
		t.Errorf("an index that is its own: %v, %v", others, err)
	}
	if _, _, err := Apply(ctx, s, Raise{Topic: Topic{Name: "moves", ID: "moves", Partitions: 1}, To: 5}); err != nil {
		t.Fatal(err)
	}
	if others, err := Join(ctx, s, "i", "moves"); err != nil || !slices.Equal(others, []string{"old", "above", "new"}) {
		t.Errorf("after the raise: %v, %v", others, err)
	}
}

func TestApply(t *testing.T) {
	ctx := context.Background()
	s := newStore()
	topic := Topic{Name: "a", ID: "id", Partitions: 1}
	if _, err := Ensure(ctx, s, topic); err != nil {
		t.Fatal(err)
	}
	before, after, err := Apply(ctx, s, Raise{Topic: topic, Committed: map[int32]int64{0: 9}})
	if err != nil || len(before) != 1 || after.Highest() != 2 {
		t.Fatalf("%v, %v, %v", before, after, err)
	}
	got, err := Load(ctx, s, "a")
	if err != nil || !reflect.DeepEqual(got, after) {
		t.Errorf("recorded %v, %v, want %v", got, err, after)
	}
	const want = `{"format":1,"topic":"a","entries":[{"generation":1,"topic_id":"id","partitions":1},{"generation":2,"topic_id":"id","partitions":1,"start":{"0":9}}]}`
	if raw := string(s.docs[ID("a")]); raw != want {
		t.Errorf("control document\n%s\nwant\n%s", raw, want)
	}

	// A raise that was prepared on a list that changed meanwhile is refused.
	_, _, err = Apply(ctx, racing{s, func() {
		if _, _, err := Apply(ctx, s, Raise{Topic: topic, Committed: map[int32]int64{0: 9}}); err != nil {
			t.Error(err)
		}
	}}, Raise{Topic: topic})
	if !isConflict(err) {
		t.Errorf("a race was not noticed: %v", err)
	}
	if l, _ := Load(ctx, s, "a"); l.Highest() != 3 {
		t.Errorf("recorded %v", l)
	}
}

// racing runs f between a Get and what follows.
type racing struct {
	*store
	f func()
}

func (r racing) Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error) {
	defer r.f()
	return r.store.Get(ctx, id, doc)
}

func TestLoadRefuses(t *testing.T) {
	ctx := context.Background()
	for name, doc := range map[string]string{
		"a newer format":  `{"format":2,"topic":"a","entries":[{"generation":1,"topic_id":"x","partitions":1}]}`,
		"no format":       `{"topic":"a","entries":[{"generation":1,"topic_id":"x","partitions":1}]}`,
		"another topic":   `{"format":1,"topic":"b","entries":[{"generation":1,"topic_id":"x","partitions":1}]}`,
		"no entries":      `{"format":1,"topic":"a","entries":[]}`,
		"damaged entries": `{"format":1,"topic":"a","entries":[{"generation":0,"topic_id":"x","partitions":1}]}`,
		"not a document":  `[]`,
	} {
		s := newStore()
		s.docs[ID("a")] = json.RawMessage(doc)
		if l, err := Load(ctx, s, "a"); err == nil {
			t.Errorf("%s: %v", name, l)
		}
		if l, err := Ensure(ctx, s, Topic{Name: "a", ID: "x", Partitions: 1}); err == nil {
			t.Errorf("%s: Ensure: %v", name, l)
		}
	}
}
