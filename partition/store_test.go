package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
)

var _ Documents = (*elastic.Control)(nil)

// memory is Documents in memory, with trouble to order.
type memory struct {
	mu    sync.Mutex
	docs  map[string]json.RawMessage
	seqNo map[string]int64
	gets  int

	getErr  error // of each Get
	lost    bool  // the next write is carried out and its answer is lost
	refused error // of the next write, which is not carried out
}

func newMemory() *memory {
	return &memory{docs: map[string]json.RawMessage{}, seqNo: map[string]int64{}}
}

type absent struct{ error }

func (absent) NotFound() bool { return true }

type changed struct{ error }

func (changed) Conflict() bool { return true }

func (m *memory) Get(_ context.Context, id string, doc any) (seqNo, primaryTerm int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	if m.getErr != nil {
		return 0, 0, m.getErr
	}
	raw, ok := m.docs[id]
	if !ok {
		return 0, 0, fmt.Errorf("memory: %w", absent{errors.New("absent")})
	}
	return m.seqNo[id], 1, json.Unmarshal(raw, doc)
}

func (m *memory) Create(_ context.Context, id string, doc any) error {
	return m.put(id, doc, func() bool { return m.docs[id] == nil })
}

func (m *memory) Update(_ context.Context, id string, doc any, seqNo, primaryTerm int64) error {
	return m.put(id, doc, func() bool { return m.docs[id] != nil && m.seqNo[id] == seqNo && primaryTerm == 1 })
}

func (m *memory) put(id string, doc any, allowed func() bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refused; err != nil {
		m.refused = nil
		return err
	}
	if !allowed() {
		return fmt.Errorf("memory: %w", changed{errors.New("changed")})
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	m.docs[id] = raw
	m.seqNo[id]++
	if m.lost {
		m.lost = false
		return errors.New("no answer within 20s")
	}
	return nil
}

// set stores any bytes, as an operator would who goes past Sluice.
func (m *memory) set(stream, document string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.docs[ID(stream)] = json.RawMessage(document)
	m.seqNo[ID(stream)]++
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.getErr = err
}

// change makes and stores a change, from the table that read holds.
func change(t *testing.T, s *Store, read Stored, edit func(*Table)) error {
	t.Helper()
	next, err := read.Change(Change{By: "test", Edit: func(t *Table) error { edit(t); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	return s.Update(t.Context(), read, next)
}

func load(t *testing.T, s *Store, stream string) Stored {
	t.Helper()
	read, err := s.Load(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// stores are all that a Store must work on.
func stores(t *testing.T) map[string]Documents {
	es := embedded.NewElasticsearch(embedded.Config{})
	client, err := elastic.New(elastic.Config{Addresses: []string{"http://es:9200"}}, elastic.WithRoundTripper(es.Transport()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
		es.Close()
	})
	control := client.Control(".sluice-control")
	if err := control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return map[string]Documents{"memory": newMemory(), "elastic": control}
}

// Two operators change routing at once: the second learns of both epochs, and
// nothing is merged.
func TestS37_TwoOperatorsAtOnce(t *testing.T) {
	for name, documents := range stores(t) {
		t.Run(name, func(t *testing.T) {
			s := NewStore(documents)
			if err := s.Create(t.Context(), mustParse(t, example)); err != nil {
				t.Fatal(err)
			}
			var conflict *ConflictError
			if err := s.Create(t.Context(), New("events", "other")); !errors.As(err, &conflict) || conflict.Read != 0 || conflict.Stored != 17 {
				t.Fatalf("a second first table: %v", err)
			}
			ann, bob := load(t, s, "events"), load(t, s, "events")
			if err := change(t, s, ann, func(t *Table) { t.Read.Percent = 1000 }); err != nil {
				t.Fatal(err)
			}
			err := change(t, s, bob, func(t *Table) { t.Read.Deny = []string{"x"} })
			if !errors.As(err, &conflict) || conflict.Read != 17 || conflict.Stored != 18 || !conflict.Conflict() {
				t.Fatalf("%v, want a conflict of 17 and 18", err)
			}
			for _, want := range []string{"epoch 17", "epoch 18", "sluice routes show"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %s", err, want)
				}
			}
			if now := load(t, s, "events"); now.Epoch != 18 || now.Read.Percent != 1000 || len(now.Read.Deny) != 0 || now.UpdatedBy != "test" {
				t.Errorf("stored is %+v", now.Table)
			}
		})
	}
}

// An answer that is lost says nothing: what stands there does.
func TestLostAnswers(t *testing.T) {
	m := newMemory()
	s := NewStore(m)
	m.lost = true
	if err := s.Create(t.Context(), mustParse(t, example)); err != nil {
		t.Errorf("the table is stored, and Create says %v", err)
	}
	m.lost = true
	if err := change(t, s, load(t, s, "events"), func(t *Table) { t.Read.Percent = 1000 }); err != nil {
		t.Errorf("the change is stored, and Update says %v", err)
	}
	m.refused = errors.New("503")
	err := change(t, s, load(t, s, "events"), func(t *Table) { t.Read.Percent = 2000 })
	var conflict *ConflictError
	if err == nil || errors.As(err, &conflict) || !strings.Contains(err.Error(), "storing epoch 19 of its routing table: 503") {
		t.Errorf("not stored, and Update says %v", err)
	}
	read := load(t, s, "events")
	next, err := read.Change(Change{Edit: func(*Table) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	m.set("events", `{"schema":9}`)
	if err := s.Update(t.Context(), read, next); !errors.As(err, &conflict) || conflict.Stored != 0 || !strings.Contains(err.Error(), "cannot be read now") {
		t.Errorf("over a table that cannot be read: %v", err)
	}
}

func TestStoreRefusesWhatIsNoSuccessor(t *testing.T) {
	s := NewStore(newMemory())
	if err := s.Create(t.Context(), mustParse(t, example)); err != nil {
		t.Fatal(err)
	}
	read := load(t, s, "events")
	next := read.Clone()
	next.Epoch += 2
	var refused *RefusedError
	if err := s.Update(t.Context(), read, next); !errors.As(err, &refused) {
		t.Errorf("an epoch left out: %v", err)
	}
	next.Epoch, next.Hash = read.Epoch+1, ""
	var invalid *InvalidError
	if err := s.Update(t.Context(), read, next); !errors.As(err, &invalid) {
		t.Errorf("a damaged table: %v", err)
	}
	if err := s.Create(t.Context(), &Table{Schema: Schema}); !errors.As(err, &invalid) {
		t.Errorf("a damaged first table: %v", err)
	}
}

func TestLoadTellsTroublesApart(t *testing.T) {
	m := newMemory()
	s := NewStore(m)
	if _, err := s.Load(t.Context(), "events"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "sluice routes init") {
		t.Errorf("absent: %v", err)
	}
	m.set("events", `{"schema":2}`)
	var later *SchemaError
	if _, err := s.Load(t.Context(), "events"); !errors.As(err, &later) || !strings.Contains(err.Error(), "routing:events") {
		t.Errorf("later: %v", err)
	}
	m.set("events", `{"schema":1}`)
	var invalid *InvalidError
	if _, err := s.Load(t.Context(), "events"); !errors.As(err, &invalid) {
		t.Errorf("damaged: %v", err)
	}
	m.set("other", example)
	if _, err := s.Load(t.Context(), "other"); !errors.As(err, &invalid) || invalid.Path != "name" {
		t.Errorf("another stream's: %v", err)
	}
	away := errors.New("connection refused")
	m.fail(away)
	if _, err := s.Load(t.Context(), "events"); !errors.Is(err, away) || errors.Is(err, ErrNotFound) {
		t.Errorf("away: %v", err)
	}
}
