package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a buffer for several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func run(t *testing.T, o Options) (string, error) {
	t.Helper()
	if o.Duration == 0 {
		o.Duration = 2 * time.Second
	}
	out := &output{}
	o.Rate, o.Customers, o.Partitions, o.Seed = 2000, 300, 4, 7
	if o.Migrate {
		o.Rate = 300 // of 1,500 documents
	}
	o.View, o.Log = NewView(out, nil), zerolog.New(out).Level(zerolog.WarnLevel)
	// Sooner than a deployment commits and flushes, so that the end is near.
	o.Sets = []string{"kafka.commit_interval=100ms", "indexer.flush_interval=100ms"}
	err := Run(t.Context(), o)
	return out.String(), err
}

func TestNothingIsLostThroughFaults(t *testing.T) {
	out, err := run(t, Options{Duration: 3 * time.Second, Faults: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"live page", "http://127.0.0.1:", "byte for byte"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q:\n%s", want, out)
		}
	}
}

// A demo that always passes would prove nothing: what is done to the index
// behind Sluice's back must be found.
func TestMischiefIsFound(t *testing.T) {
	for name, mischief := range map[string]func(t *testing.T, s *stage, live, deleted string){
		"removed": func(t *testing.T, s *stage, live, _ string) {
			s.must(t, http.MethodDelete, live, "")
		},
		"changed": func(t *testing.T, s *stage, live, _ string) {
			s.must(t, http.MethodPut, live, `{"other":"document"}`)
		},
		"resurrected": func(t *testing.T, s *stage, _, deleted string) {
			s.must(t, http.MethodPut, deleted, `{"back":"again"}`)
		},
		"invented": func(t *testing.T, s *stage, _, _ string) {
			s.must(t, http.MethodPut, "nobody", `{"nobody":"wrote this"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, Options{Duration: 500 * time.Millisecond, beforeCheck: func(s *stage) {
				live, deleted := s.lastWords(t)
				mischief(t, s, live, deleted)
			}})
			if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "1 faults") {
				t.Fatalf("err = %v, want ErrBroken for one fault\n%s", err, out)
			}
		})
	}
}

// must does something to a document.
func (s *stage) must(t *testing.T, method, id, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, anyHost+"/"+s.index+"/_doc/"+id, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s", method, id, resp.Status)
	}
}

// lastWords returns a key whose last record is a document, and one whose last
// is a null.
func (s *stage) lastWords(t *testing.T) (live, deleted string) {
	t.Helper()
	ends, err := s.admin.ListEndOffsets(t.Context(), s.topic)
	if err != nil {
		t.Fatal(err)
	}
	var left int64
	for _, end := range ends[s.topic] {
		left += end.Offset
	}
	client, err := kgo.NewClient(append(s.kafka, kgo.ConsumeTopics(s.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	last := map[string][]byte{}
	for left > 0 {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			last[string(r.Key)] = r.Value
			left--
		})
	}
	for key, value := range last {
		switch {
		case value == nil:
			deleted = key
		case json.Valid(value):
			live = key
		}
	}
	if live == "" || deleted == "" {
		t.Fatal("the generator wrote no documents, or no deletes")
	}
	return live, deleted
}

// On real servers the demo takes away what it made, and nothing else.
func TestRealServersAreLeftClean(t *testing.T) {
	servers, err := startServers(1)
	if err != nil {
		t.Fatal(err)
	}
	defer servers.close()
	o := Options{Duration: 500 * time.Millisecond, Faults: true, Kafka: servers.kafka.Addresses(), Elasticsearch: servers.elasticsearch.URL()}
	o.beforeCheck = func(s *stage) {
		if s.disturb != nil {
			t.Error("faults are injected into real servers")
		}
	}
	look := func() (topics int, indices string) {
		t.Helper()
		client, err := kgo.NewClient(kgo.SeedBrokers(servers.kafka.Addresses()...))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		names, err := kadm.NewClient(client).ListTopics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get(servers.elasticsearch.URL() + "/_all")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return len(names), string(text)
	}
	if out, err := run(t, o); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if topics, indices := look(); topics != 0 || strings.Contains(indices, "sluice-demo") {
		t.Errorf("left behind: %d topics, indices %s", topics, indices)
	}
	o.Keep = true
	if out, err := run(t, o); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if topics, indices := look(); topics != 2 || !strings.Contains(indices, "sluice-demo") {
		t.Errorf("not kept: %d topics, indices %s", topics, indices)
	}
}

// A whole migration, in a few seconds.
func TestMigration(t *testing.T) {
	out, err := run(t, Options{Duration: 3 * time.Second, Migrate: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"plan: ", "dual-write: ", "copy: ", "rollback: ", "drop: ", "byte for byte"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q:\n%s", want, out)
		}
	}
}

// Its proof is of the new indices.
func TestMigrationMischiefIsFound(t *testing.T) {
	out, err := run(t, Options{Duration: time.Second, Migrate: true, beforeCheck: func(s *stage) {
		live, _ := s.lastWords(t)
		for index := range s.indices(t) {
			_ = s.call(t.Context(), http.MethodDelete, index+"/_doc/"+url.PathEscape(live), "") // one has it
		}
	}})
	if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "1 faults") {
		t.Fatalf("err = %v, want ErrBroken for one fault\n%s", err, out)
	}
}

// indices are those of the stage's stream.
func (s *stage) indices(t *testing.T) map[string]bool {
	t.Helper()
	stored, err := partition.NewStore(s.es.Control(s.controlIndex)).Load(t.Context(), s.index)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, p := range stored.Partitions {
		names[p.Index] = true
	}
	return names
}

// Ctrl-C ends the generator, not the proof.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := &output{}
	err := Run(ctx, Options{
		Duration: time.Hour, Rate: 100, Customers: 10, Partitions: 1,
		View: NewView(out, nil), Log: zerolog.Nop(),
	})
	if err != nil || !strings.Contains(out.String(), "byte for byte") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestGenerator(t *testing.T) {
	generate := func(seed uint64) []*kgo.Record {
		g := newGenerator(nil, "events", 0, 1000, 0, seed)
		var records []*kgo.Record
		for range 100_000 {
			records = append(records, g.next())
		}
		if bad := g.bad.Load(); bad == 0 || bad > 100 {
			t.Errorf("%d bad documents of 100,000, want about 10", bad)
		}
		if g.inserts.Load() == 0 || g.deletes.Load() == 0 || g.updates.Load() < g.inserts.Load() {
			t.Errorf("inserts %d, updates %d, deletes %d", g.inserts.Load(), g.updates.Load(), g.deletes.Load())
		}
		return records
	}
	a, b, other := generate(1), generate(1), generate(2)
	differ, broken := 0, int64(0)
	for i := range a {
		if !bytes.Equal(a[i].Key, b[i].Key) || !bytes.Equal(a[i].Value, b[i].Value) {
			t.Fatalf("record %d does not follow from the seed", i)
		}
		if !bytes.Equal(a[i].Key, other[i].Key) {
			differ++
		}
		if a[i].Value != nil && !json.Valid(a[i].Value) {
			broken++
		}
	}
	if differ == 0 || broken == 0 {
		t.Errorf("%d keys differ between seeds, %d values are not JSON", differ, broken)
	}
}

func TestView(t *testing.T) {
	out := &output{}
	v := NewView(out, func() int { return 10 })
	v.draw("0123456789abc")
	if _, err := v.Write([]byte("a line\n")); err != nil {
		t.Fatal(err)
	}
	v.done()
	want := clearLine + "012345678" + clearLine + "a line\n012345678\n"
	if out.String() != want {
		t.Errorf("on a terminal %q, want %q", out.String(), want)
	}
	out = &output{}
	v = NewView(out, nil)
	v.draw("one")
	v.draw("two")
	v.done()
	if out.String() != "one\ntwo\n" {
		t.Errorf("elsewhere %q", out.String())
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -999: "-999"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s, want %s", n, got, want)
		}
	}
}
