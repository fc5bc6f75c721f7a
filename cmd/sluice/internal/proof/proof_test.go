package proof

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// index is an index of plain bytes behind _mget, _refresh and _count.
type index struct {
	documents map[string]string
	hidden    int // documents that gets see and searches do not
	failures  int // answers of 503 before the next proper one
}

func (x *index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if x.failures > 0 {
		x.failures--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch _, call, _ := strings.Cut(r.URL.Path[1:], "/"); call {
	case "_mget":
		var req struct {
			IDs []string `json:"ids"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		docs := []map[string]any{}
		for _, id := range req.IDs {
			doc := map[string]any{"_id": id, "found": false}
			if source, ok := x.documents[id]; ok {
				doc["found"], doc["_source"] = true, json.RawMessage(source)
			}
			docs = append(docs, doc)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"docs": docs})
	case "_refresh":
		_, _ = w.Write([]byte(`{}`))
	case "_count":
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(x.documents) - x.hidden, "_shards": map[string]int{"failed": 0}})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// world is a topic, its dead letters and an index that agree.
type world struct {
	where Where
	index *index
}

const bad = `{"broken`

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "events"), kfake.SeedTopics(1, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	w := &world{index: &index{documents: map[string]string{
		"a": `{"v":2}`, "b": `{"v":1}`, "d": `{"v":3}`,
	}}}
	server := httptest.NewServer(w.index)
	t.Cleanup(server.Close)
	w.where = Where{
		Kafka: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}, Topic: "events", DeadLetters: "dead",
		Elasticsearch: server.URL, HTTP: server.Client(), Index: "events",
		Bad: func(value []byte) bool { return !json.Valid(value) },
	}
	w.produce(t,
		record(0, "a", `{"v":1}`), record(0, "a", `{"v":2}`),
		record(1, "b", `{"v":1}`), record(1, "b", bad), // 1/1
		record(0, "c", `{"v":1}`), record(0, "c", ""), // deleted
		record(1, "d", `{"v":1}`), record(1, "d", ""), record(1, "d", `{"v":3}`),
		record(1, "e", bad), // 1/5
		w.letter("events", 1, 1, "b", bad), w.letter("events", 1, 5, "e", bad), w.letter("events", 1, 5, "e", bad),
	)
	return w
}

// record makes a record of the topic; an empty value is a null.
func record(partition int32, key, value string) *kgo.Record {
	r := &kgo.Record{Topic: "events", Partition: partition, Key: []byte(key)}
	if value != "" {
		r.Value = []byte(value)
	}
	return r
}

func (w *world) letter(topic string, partition int32, offset int64, key, value string) *kgo.Record {
	return &kgo.Record{Topic: "dead", Key: []byte(key), Value: []byte(value), Headers: []kgo.RecordHeader{
		{Key: "sluice.topic", Value: []byte(topic)},
		{Key: "sluice.partition", Value: strconv.AppendInt(nil, int64(partition), 10)},
		{Key: "sluice.offset", Value: strconv.AppendInt(nil, offset, 10)},
	}}
}

func (w *world) produce(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(append(slices.Clone(w.where.Kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) check(t *testing.T) *Report {
	t.Helper()
	report, err := Check(t.Context(), w.where)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAgreement(t *testing.T) {
	w := newWorld(t)
	w.index.failures = 2
	got := w.check(t)
	want := Report{Records: 10, Keys: 5, Live: 3, Deleted: 1, DeadLettered: 2}
	if got.Faults() != 0 || got.Records != want.Records || got.Keys != want.Keys || got.Live != want.Live || got.Deleted != want.Deleted || got.DeadLettered != want.DeadLettered {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Each fault that is done behind the program's back must be found, and called
// by its name.
func TestEveryFaultIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*testing.T, *world)
		count func(*Report) int
	}{
		"lost":          {func(_ *testing.T, w *world) { delete(w.index.documents, "a") }, func(r *Report) int { return r.Lost }},
		"unsearchable":  {func(_ *testing.T, w *world) { w.index.hidden = 1 }, func(r *Report) int { return r.Lost }},
		"stale":         {func(_ *testing.T, w *world) { w.index.documents["a"] = `{"v":1}` }, func(r *Report) int { return r.Stale }},
		"altered":       {func(_ *testing.T, w *world) { w.index.documents["a"] = `{"v":20}` }, func(r *Report) int { return r.Altered }},
		"resurrected":   {func(_ *testing.T, w *world) { w.index.documents["c"] = `{"v":1}` }, func(r *Report) int { return r.Resurrected }},
		"phantom":       {func(_ *testing.T, w *world) { w.index.documents["x"] = `{"v":1}` }, func(r *Report) int { return r.Phantom }},
		"bad indexed":   {func(_ *testing.T, w *world) { w.index.documents["e"] = `{}` }, func(r *Report) int { return r.Phantom }},
		"missing":       {func(t *testing.T, w *world) { w.produce(t, record(0, "a", bad)) }, func(r *Report) int { return r.Missing }},
		"good rejected": {func(t *testing.T, w *world) { w.produce(t, w.letter("events", 0, 0, "a", `{"v":1}`)) }, func(r *Report) int { return r.Unjust }},
		"changed":       {func(t *testing.T, w *world) { w.produce(t, w.letter("events", 1, 5, "e", bad+" ")) }, func(r *Report) int { return r.Unjust }},
		"invented":      {func(t *testing.T, w *world) { w.produce(t, w.letter("events", 1, 99, "e", bad)) }, func(r *Report) int { return r.Unjust }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			test.spoil(t, w)
			report := w.check(t)
			if test.count(report) != 1 || report.Faults() != 1 || len(report.Samples) != 1 {
				t.Errorf("got %+v, want exactly this fault", report)
			}
			if len(report.Samples) > 0 && strings.Contains(report.Samples[0], `{"`) {
				t.Errorf("a sample shows content: %s", report.Samples[0])
			}
		})
	}
}

func TestUnreadableIsNotAgreement(t *testing.T) {
	w := newWorld(t)
	w.index.failures = 1000
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if report, err := Check(ctx, w.where); err == nil {
		t.Errorf("a cancelled check reported %+v", report)
	}
	w.index.failures = 0
	w.where.Topic = "absent"
	if report, err := Check(t.Context(), w.where); err == nil {
		t.Errorf("an absent topic reported %+v", report)
	}
	w.where.Topic = "events"
	w.produce(t, w.letter("other", 0, 0, "a", bad))
	if report, err := Check(t.Context(), w.where); err == nil {
		t.Errorf("a foreign dead letter reported %+v", report)
	}
}
