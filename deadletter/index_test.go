package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/memory"
)

// inProcess is a Transport to a server in this process.
type inProcess struct{ http.RoundTripper }

func (t inProcess) Perform(req *http.Request) (*http.Response, error) { return t.RoundTrip(req) }

type indexFixture struct {
	*testing.T
	es        *embedded.Elasticsearch
	transport Transport
	budget    *memory.Budget
	log       *lines
	writer    *IndexWriter
}

func startIndex(t *testing.T, prepare func(*embedded.Elasticsearch)) *indexFixture {
	t.Helper()
	es := embedded.NewElasticsearch(embedded.Config{})
	t.Cleanup(es.Close)
	if prepare != nil {
		prepare(es)
	}
	f := &indexFixture{T: t, es: es, transport: inProcess{es.Transport()}, budget: memory.New(1 << 40), log: &lines{more: make(chan struct{})}}
	var err error
	f.writer, err = NewIndex(Config{Index: "dead"}, IndexOptions{Transport: f.transport, Budget: f.budget, Release: "1.2.3", Log: zerolog.New(f.log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.writer.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if f.budget.Used() != 0 {
			t.Errorf("%d bytes were not given back", f.budget.Used())
		}
	})
	return f
}

func (f *indexFixture) write(l Letter) <-chan error {
	outcome := make(chan error, 1)
	f.writer.Write(l, func(err error) {
		select {
		case outcome <- err:
		default:
			f.Errorf("%s/%d/%d was reported twice", l.Topic, l.Partition, l.Offset)
		}
	})
	return outcome
}

func (f *indexFixture) list(filter Filter) (letters []Letter) {
	f.Helper()
	for l, err := range NewIndexReader("dead", f.transport).List(f.Context(), filter) {
		if err != nil {
			f.Fatal(err)
		}
		letters = append(letters, l)
	}
	return letters
}

// A letter comes back as it was, whatever bytes it holds, and its content is
// not in the mapping.
func TestIndexWriteAndList(t *testing.T) {
	f := startIndex(t, nil)
	if err := <-f.write(example(42)); err != nil {
		t.Fatal(err)
	}
	empty := Letter{Topic: "other", Timestamp: time.UnixMilli(-1), Type: "position", Value: []byte{}} // null key, empty value
	if err := <-f.write(empty); err != nil {
		t.Fatal(err)
	}
	got := f.list(Filter{Topic: "events"})
	if len(got) != 1 {
		t.Fatalf("%d letters", len(got))
	}
	want := example(42)
	want.Release, want.Stored = "1.2.3", got[0].Stored
	want.Reason = "failed to parse field [age] of type [long]. Preview of field's value: '…"
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("got  %+v\nwant %+v", got[0], want)
	}
	if got := f.list(Filter{Type: "position"}); len(got) != 1 || got[0].Key != nil || got[0].Value == nil || len(got[0].Value) != 0 {
		t.Errorf("got %+v, want a null key and an empty value", got)
	}
	now := time.Now()
	for name, tt := range map[string]struct {
		filter Filter
		want   int
	}{
		"all":    {Filter{}, 2},
		"since":  {Filter{Since: now.Add(-time.Hour)}, 2},
		"later":  {Filter{Since: now.Add(time.Hour)}, 0},
		"until":  {Filter{Until: now.Add(-time.Hour)}, 0},
		"absent": {Filter{Topic: "x"}, 0},
	} {
		if got := f.list(tt.filter); len(got) != tt.want {
			t.Errorf("%s: %d letters, want %d", name, len(got), tt.want)
		}
	}
	if n, _ := f.log.count("s3cret"); n != 0 {
		t.Errorf("content in the log: %s", f.log.all)
	}
	if missing, err := CheckIndex(t.Context(), f.transport, "dead"); missing || err != nil {
		t.Errorf("CheckIndex: %v, %v", missing, err)
	}
}

// Invariant 5, for an index: nothing is reported before the acknowledgement,
// and an outage is waited for, aloud.
func TestIndexWaitsForTheAcknowledgement(t *testing.T) {
	f := startIndex(t, nil)
	alarms := 0
	for name, fault := range map[string]embedded.Fault{
		"unreachable": {Refuse: true},
		"lost answer": {Drop: true},
		"unavailable": {Status: 503},
		"forbidden":   {Status: 403, Body: []byte(`{"error":{"type":"security_exception","reason":"s3cret"}}`)},
		"item refused": {Items: func(embedded.Action) *embedded.ItemError {
			return &embedded.ItemError{Status: 429, Type: "cluster_block_exception"}
		}},
		"proxy's page": {Status: 200, Body: []byte("<html>")},
		"short answer": {Status: 200, Body: []byte(`{"items":[]}`)},
	} {
		down := f.es.Inject(embedded.Rule{API: "bulk", Fault: fault})
		l := example(1)
		l.Topic = strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", "")
		outcome := f.write(l)
		alarms++
		for {
			n, more := f.log.count("dead letters cannot be written")
			if n == alarms {
				break
			}
			select {
			case err := <-outcome:
				t.Fatalf("%s: reported before it was written: %v", name, err)
			case <-more:
			}
		}
		if alarm := f.writer.Status().Alarm; strings.Contains(alarm, "s3cret") {
			t.Errorf("%s: content in the alarm: %s", name, alarm)
		}
		down.Remove()
		if err := <-outcome; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s := f.writer.Status(); s.Letters != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if got := f.list(Filter{}); len(got) != 7 {
		t.Errorf("%d letters, want 7", len(got))
	}
}

// Where no generation tells a re-created topic's records from those before, the
// record's time does: their letters do not pass for written.
func TestIndexOfARecreatedTopicWithoutGenerations(t *testing.T) {
	f := startIndex(t, nil)
	l := example(7)
	l.Generation = 0
	again := l
	again.Timestamp, again.Value = l.Timestamp.Add(time.Hour), []byte("another")
	for _, l := range []Letter{l, l, again} {
		if err := <-f.write(l); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.list(Filter{}); len(got) != 2 {
		t.Errorf("%d letters, want 2", len(got))
	}
}

// A letter that is written again finds itself; one of a later generation does
// not.
func TestIndexIsWrittenOnce(t *testing.T) {
	f := startIndex(t, nil)
	l := example(1)
	for range 2 {
		if err := <-f.write(l); err != nil {
			t.Fatal(err)
		}
	}
	l.Generation = 2
	if err := <-f.write(l); err != nil {
		t.Fatal(err)
	}
	if got := f.list(Filter{}); len(got) != 2 || got[0].Generation != 1 || got[1].Generation != 2 {
		t.Errorf("letters %+v", got)
	}
}

// Of letters that were refused together, only the one that is too large is
// given back.
func TestIndexOversize(t *testing.T) {
	f := startIndex(t, func(es *embedded.Elasticsearch) { es.SetMaxContentLength(20_000) })
	var outcomes []<-chan error
	for i := range 50 {
		l := example(int64(i))
		l.Value = random(1000)
		if i == 20 {
			l.Value = random(30_000)
		}
		outcomes = append(outcomes, f.write(l))
	}
	for i, outcome := range outcomes {
		if err := <-outcome; errors.Is(err, ErrOversize) != (i == 20) || err != nil && i != 20 {
			t.Errorf("letter %d: %v", i, err)
		}
	}
}

// An index with a mapping of its own may refuse a letter for ever: it is given
// back, not tried again and again.
func TestIndexRefuses(t *testing.T) {
	f := startIndex(t, nil)
	f.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
		if string(a.ID) != "events+7+5" {
			return nil
		}
		return &embedded.ItemError{Status: 400, Type: "strict_dynamic_mapping_exception"}
	}}})
	bad, good := f.write(example(5)), f.write(example(6))
	if err := <-bad; !errors.Is(err, ErrRefused) || errors.Is(err, ErrOversize) {
		t.Errorf("refused for ever: %v", err)
	}
	if err := <-good; err != nil {
		t.Errorf("its neighbour: %v", err)
	}
}

// An index that holds something else is not written to.
func TestIndexOfAnother(t *testing.T) {
	f := startIndex(t, func(es *embedded.Elasticsearch) {
		if _, err := call(t.Context(), inProcess{es.Transport()}, http.MethodPut, "/dead/_doc/1", "application/json", []byte(`{"x":1}`), nil); err != nil {
			t.Fatal(err)
		}
	})
	f.log.wait(t, "holds no dead letters of Sluice")
	outcome := f.write(example(1))
	if _, err := call(t.Context(), f.transport, http.MethodDelete, "/dead", "", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	if n := f.es.Count("dead"); n != 1 {
		t.Errorf("%d documents", n)
	}
}

func TestIndexPages(t *testing.T) {
	f := startIndex(t, nil)
	const n = 2*indexPage + indexPage/2
	var outcomes []<-chan error
	for i := range n {
		l := example(int64(i))
		l.Partition = int32(i % 3)
		outcomes = append(outcomes, f.write(l))
	}
	for _, outcome := range outcomes {
		if err := <-outcome; err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int64]bool{}
	for _, l := range f.list(Filter{}) {
		seen[l.Offset] = true
	}
	if len(seen) != n {
		t.Errorf("%d of %d letters", len(seen), n)
	}
	for _, err := range NewIndexReader("dead", f.transport).List(t.Context(), Filter{}) {
		if err != nil {
			t.Error(err)
		}
		break // a list may be left
	}
	for _, err := range NewIndexReader("absent", f.transport).List(t.Context(), Filter{}) {
		if err == nil || IsNotLetter(err) {
			t.Errorf("an index that is not there: %v", err)
		}
	}
}

// The mapping that docs/operations.md gives, for who makes the index by hand, is
// the one that is used.
func TestIndexMappingIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "PUT /dead-letters\n")
	body, _, _ := strings.Cut(rest, "```")
	type index struct {
		Mappings any `json:"mappings"`
	}
	var documented, used index
	if err := errors.Join(json.Unmarshal([]byte(body), &documented), json.Unmarshal([]byte(indexBody), &used)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(documented, used) {
		t.Errorf("documented %v\nused       %v", documented, used)
	}
}

// endless is a server whose answers never end, or do not go on.
type endless struct{ pause time.Duration }

func (e endless) Perform(req *http.Request) (*http.Response, error) {
	body := endlessBody{req.Context(), e.pause, new(int)}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: body}, nil
}

type endlessBody struct {
	request context.Context
	pause   time.Duration
	read    *int
}

func (b endlessBody) Read(p []byte) (int, error) {
	if b.pause > 0 {
		p = p[:1]
		select {
		case <-b.request.Done():
			return 0, b.request.Err()
		case <-time.After(b.pause):
		}
	}
	for i := range p {
		p[i] = ' '
	}
	if *b.read += len(p); *b.read > maxAnswer+1 {
		return 0, errors.New("it is read on and on")
	}
	return len(p), nil
}

func (endlessBody) Close() error { return nil }

// A call that is answered without end, or by drips, ends with an error that says so.
func TestIndexAnswersWithoutEnd(t *testing.T) {
	for want, pause := range map[string]time.Duration{
		"the answer is larger than any server's":   0,
		"no answer within " + callTimeout.String(): time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, path := range []string{"/dead/_bulk", "/dead/_mapping", "/dead"} {
				if _, err := call(t.Context(), endless{pause}, http.MethodPost, path, "", nil, nil); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want: %s", path, err, want)
				}
			}
		})
	}
}

func TestIndexClose(t *testing.T) {
	f := startIndex(t, nil)
	f.es.Inject(embedded.Rule{Fault: embedded.Fault{Refuse: true}})
	outcome := f.write(example(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := f.writer.Close(ctx); !errors.Is(err, cause) {
		t.Errorf("Close: %v", err)
	}
	if err := <-outcome; !errors.Is(err, ErrClosed) {
		t.Errorf("outcome: %v", err)
	}
	if err := <-f.write(example(2)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := NewIndex(Config{}, IndexOptions{}); err == nil {
		t.Error("an empty name was accepted")
	}
}
