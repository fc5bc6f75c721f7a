package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/generation"
)

// site is a Kafka and an Elasticsearch, with a configuration for them.
type site struct {
	*testing.T
	kafka   *embedded.Kafka
	es      *embedded.Elasticsearch
	url     string
	config  string // file
	servers *servers
}

// newSite starts servers with a topic of 2 partitions, of generation 1, and one
// for dead letters. more are further lines of the configuration.
func newSite(t *testing.T, topicConfig map[string]string, more string, opts ...kfake.Opt) *site {
	t.Helper()
	kafka, err := embedded.StartKafka(embedded.KafkaConfig{Topics: map[string]int32{"dead": 1}, Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	if err := kafka.CreateTopic("events", 2, topicConfig); err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, kafka: kafka, es: embedded.NewElasticsearch(embedded.Config{})}
	if s.url, err = s.es.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.es.Close)
	s.config = write(t, fmt.Sprintf(`
kafka: {brokers: [%q], topics: [events], group_id: g}
elasticsearch: {addresses: [%q], request_timeout: 2s}
dead_letter: {topic: dead}
admin: {address: "127.0.0.1:0"}
%s`, kafka.Addresses()[0], s.url, more))
	flags := configFlags{files: []string{s.config}}
	if s.servers, err = flags.connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.servers.close(context.Background()) })
	if err := s.servers.control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := generation.Ensure(t.Context(), s.servers.control, s.topic()); err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh is a client that knows topics as they are now.
func (s *site) fresh() *kadm.Client {
	s.Helper()
	client, err := kadm.NewOptClient(s.kafka.ClientOptions()...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(client.Close)
	return client
}

func (s *site) topic() generation.Topic {
	s.Helper()
	state, err := describeTopic(s.Context(), s.fresh(), "events")
	if err != nil {
		s.Fatal(err)
	}
	return generation.Topic{Name: "events", ID: state.id, Partitions: int32(len(state.ends))}
}

// must sends a request to Elasticsearch.
func (s *site) must(method, path, body string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode >= 300 {
		s.Fatalf("%s %s: %s %s", method, path, res.Status, text)
	}
}

// produce writes a record; an empty value is a null.
func (s *site) produce(partition int32, key, value string) *kgo.Record {
	s.Helper()
	r := &kgo.Record{Topic: "events", Partition: partition, Key: []byte(key), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(key)}}}
	if value != "" {
		r.Value = []byte(value)
	}
	if err := s.kafka.ProduceTo(s.Context(), r); err != nil {
		s.Fatal(err)
	}
	return r
}

// letter dead-letters a record of a generation, as a consumer would.
func (s *site) letter(r *kgo.Record, generation int) {
	s.Helper()
	l := deadletter.Letter{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Headers: r.Headers,
		Type: "document_parsing_exception", Status: 400, Target: "events", Reason: "failed to parse", Generation: generation,
	}
	var result document.Result
	if rules := s.servers.mapper.Rules("events"); generation > 0 || !rules.NeedsGeneration() {
		rules.Map(r, generation, &result)
		l.Sequence = result.Action.Version
	}
	w, err := deadletter.New(s.servers.cfg.DeadLetter, deadletter.Options{Kafka: s.kafka.ClientOptions(), Log: zerolog.Nop()})
	if err != nil {
		s.Fatal(err)
	}
	w.Write(l, func(err error) {
		if err != nil {
			s.Error(err)
		}
	})
	if err := w.Close(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// replay runs the verb and checks its exit code and what it prints.
func (s *site) replay(code int, say string, args ...string) {
	s.Helper()
	got, stdout, stderr := sluice(s.T, append([]string{"deadletter", "replay", "-c", s.config}, args...)...)
	if got != code || !strings.Contains(stdout, say) {
		s.Errorf("replay %v: exit code %d, want %d and %q:\n%s%s", args, got, code, say, stdout, stderr)
	}
}

// holds checks a document; an empty source: it must not be there.
func (s *site) holds(id, source string, version int64) {
	s.Helper()
	got, v, found := s.es.Get("events", id)
	if found != (source != "") || string(got) != source || found && v != version {
		s.Errorf("document %s is %s of version %d, want %s of %d", id, got, v, source, version)
	}
}

func sequence(t *testing.T, generation int, offset int64) int64 {
	t.Helper()
	n, err := document.Sequence(generation, offset)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A replayed letter has the version that it always had.
func TestReplayKeepsTheVersion(t *testing.T) {
	s := newSite(t, nil, "")
	s.produce(0, "other", `{"n":0}`)
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	s.produce(0, "b", `{"n":2}`)
	s.replay(0, "events/0/1  would be sent to events\n1 letters, 1 to be sent (dry run: nothing was written)", "--dry-run")
	s.holds("a", "", 0)
	s.replay(0, "1 letters, 1 written")
	s.holds("a", `{"n":1}`, sequence(t, 1, 1))
	s.replay(0, "1 there already") // a letter stays where it is
}

// What is newer is not overwritten, and of several letters the newest wins.
func TestReplaySkipsWhatHasLaterRecords(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	s.produce(0, "a", `{"n":2}`) // by some other way not in the index: the log decides
	first := s.produce(1, "b", `{"n":1}`)
	second := s.produce(1, "b", `{"n":2}`)
	s.letter(second, 1)
	s.letter(first, 1)
	s.letter(second, 1) // letters may be written twice
	s.replay(0, "4 letters, 1 written, 2 skipped: their ids have later records, 1 repeats")
	s.holds("a", "", 0)
	s.holds("b", `{"n":2}`, sequence(t, 1, 1))
}

// A letter does not bring a deleted document back, although Elasticsearch has
// forgotten the delete. The document is there to show that it has.
func TestReplayDoesNotResurrect(t *testing.T) {
	s := newSite(t, nil, "")
	s.must(http.MethodPut, "/events", `{"settings":{"index.gc_deletes":"0ms"}}`)
	for _, id := range []string{"a", "witness"} {
		s.letter(s.produce(0, id, `{"n":1}`), 1)
		if id == "a" {
			s.produce(0, id, "")
		}
		s.must(http.MethodPut, "/events/_doc/"+id+fmt.Sprintf("?version_type=external&version=%d", sequence(t, 1, 10)), `{"n":2}`)
		s.must(http.MethodDelete, "/events/_doc/"+id+fmt.Sprintf("?version_type=external&version=%d", sequence(t, 1, 11)), "")
	}
	s.es.Restart() // and with it what was remembered of deletes
	s.replay(0, "1 skipped: their ids have later records")
	s.holds("a", "", 0)
	s.holds("witness", `{"n":1}`, sequence(t, 1, 2))
}

// After partitions were added, and the generation raised, later records of an
// id may be in any of them.
func TestReplayAfterARaise(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "moved", `{"n":1}`), 1)
	s.letter(s.produce(0, "gone", `{"n":1}`), 1)
	s.letter(s.produce(0, "alone", `{"n":1}`), 1)
	if _, err := s.fresh().CreatePartitions(s.Context(), 2, "events"); err != nil {
		t.Fatal(err)
	}
	raise := generation.Raise{Topic: s.topic(), LogEnds: map[int32]int64{0: 3, 1: 0}, LogEndsLater: map[int32]int64{0: 3, 1: 0}}
	if _, _, err := generation.Apply(t.Context(), s.servers.control, raise); err != nil {
		t.Fatal(err)
	}
	s.produce(2, "moved", `{"n":2}`)
	s.produce(3, "gone", "")
	s.replay(0, "3 letters, 1 written, 2 skipped")
	s.holds("moved", "", 0)
	s.holds("gone", "", 0)
	s.holds("alone", `{"n":1}`, sequence(t, 1, 2))
	// A letter of the new generation has its version.
	s.letter(s.produce(3, "new", `{"n":3}`), 2)
	s.replay(0, "1 written")
	s.holds("new", `{"n":3}`, sequence(t, 2, 1))
}

// Of a topic that was re-created, what came after a letter in the old log is not
// known; what came in the new one is.
func TestReplayOfARecreatedTopic(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	s.letter(s.produce(0, "b", `{"n":1}`), 1)
	if err := s.kafka.DeleteTopic("events"); err != nil {
		t.Fatal(err)
	}
	s.replay(1, "the topic does not exist any more: --force writes it")
	if err := s.kafka.CreateTopic("events", 2, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := generation.Apply(t.Context(), s.servers.control, generation.Raise{Topic: s.topic()}); err != nil {
		t.Fatal(err)
	}
	s.produce(1, "b", "")
	s.letter(s.produce(0, "c", `{"n":3}`), 2) // where b's letter was, in the old log
	s.replay(1, "3 letters, 1 written, 1 skipped: their ids have later records, 1 need --force")
	s.holds("c", `{"n":3}`, sequence(t, 2, 0))
	s.holds("a", "", 0)
	s.replay(0, "1 written, 1 there already, or something newer, 1 skipped", "--force")
	s.holds("a", `{"n":1}`, sequence(t, 1, 0))
	s.holds("b", "", 0)
}

// Another topic may have taken the place of the letter's, with generations above
// its own.
func TestReplayOfAReplacedTopic(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	others := []string{}
	for _, topic := range []string{"events", "later"} {
		var err error
		if others, err = generation.Join(t.Context(), s.servers.control, "events", topic); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := generation.Ensure(t.Context(), s.servers.control, generation.Topic{Name: "later", ID: "x", Partitions: 1}, others...); err != nil {
		t.Fatal(err)
	}
	s.replay(1, "the topic later has written to the same index since: --force", "--set", "kafka.topics=[later]")
	s.replay(0, "1 written", "--set", "kafka.topics=[later]", "--force")
	s.holds("a", `{"n":1}`, sequence(t, 1, 0))
}

// Compaction may have removed a delete that came after an old record.
func TestReplayFromACompactedTopic(t *testing.T) {
	s := newSite(t, map[string]string{"cleanup.policy": "compact", "delete.retention.ms": "60000"}, "")
	old := &kgo.Record{Topic: "events", Key: []byte("old"), Value: []byte(`{"n":1}`), Timestamp: time.Now().Add(-time.Hour)}
	if err := s.kafka.ProduceTo(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	s.letter(old, 1) // now: it is the record's age that counts
	first := s.produce(0, "updated", `{"n":1}`)
	s.letter(first, 1)
	s.letter(s.produce(0, "recent", `{"n":1}`), 1)
	s.produce(0, "updated", `{"n":2}`)
	s.produce(0, "updated", `{"n":3}`)
	s.produce(0, "end", `{"n":4}`)
	s.kafka.Compact() // leaves holes
	s.replay(1, "3 letters, 1 written, 1 skipped: their ids have later records, 1 need --force")
	s.holds("recent", `{"n":1}`, sequence(t, 1, 2))
	s.holds("updated", "", 0)
	s.holds("old", "", 0)
	s.replay(0, "1 written", "--force")
	s.holds("old", `{"n":1}`, sequence(t, 1, 0))
}

// Where the log no longer reaches back, later records cannot be seen.
func TestReplayBeyondTheLog(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	s.produce(0, "b", `{"n":2}`)
	s.produce(0, "c", `{"n":2}`)
	s.deleteRecords(2)
	s.replay(1, "events/0/0  not written: the log of partition 0 begins at 2, and is needed from 1 on: --force")
	s.holds("a", "", 0)
	s.replay(0, "1 written", "--force")
	s.holds("a", `{"n":1}`, sequence(t, 1, 0))
}

func (s *site) deleteRecords(before int64) {
	s.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: "events", Partition: 0, At: before})
	if _, err := s.fresh().DeleteRecords(s.Context(), offsets); err != nil {
		s.Fatal(err)
	}
}

// A letter that is refused again stays one, and its neighbours are written.
func TestReplayRefusedAgain(t *testing.T) {
	s := newSite(t, nil, "")
	s.must(http.MethodPut, "/events", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	s.letter(s.produce(0, "a", `{"n":"s3cret"}`), 1)
	s.letter(s.produce(0, "b", `{"n":2}`), 1)
	s.letter(s.produce(0, "c", `no document`), 1)
	code, stdout, stderr := sluice(t, "deadletter", "replay", "-c", s.config)
	if code != 1 || !strings.Contains(stdout, "events/0/0  refused again: document_parsing_exception 400") ||
		!strings.Contains(stdout, "events/0/2  not written: not_an_object") || !strings.Contains(stdout, "2 refused again, and still letters") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, "s3cret") {
		t.Errorf("content is printed:\n%s%s", stdout, stderr)
	}
	s.holds("b", `{"n":2}`, sequence(t, 1, 1))
}

// Ids that are not keys: their records may be in any partition, and the offset
// decides, as in the version.
func TestReplayByHeader(t *testing.T) {
	s := newSite(t, nil, "documents: {id: header:id}\n")
	s.produce(0, "a", `{"n":0}`)
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	s.letter(s.produce(0, "b", `{"n":1}`), 1)
	for range 3 {
		s.produce(1, "b", `{"n":9}`)
	}
	s.produce(1, "a", "")
	s.letter(s.produce(0, "c", `{"n":1}`), 1)
	s.replay(0, "3 letters, 1 written, 2 skipped")
	s.holds("c", `{"n":1}`, sequence(t, 1, 3))
}

// Versions from records: the higher one counts, wherever it stands.
func TestReplayByRecordVersions(t *testing.T) {
	s := newSite(t, nil, "documents: {id: key, version: timestamp}\n")
	at := time.UnixMilli(1_700_000_000_000)
	produce := func(key, value string, after time.Duration) *kgo.Record {
		r := &kgo.Record{Topic: "events", Key: []byte(key), Timestamp: at.Add(after)}
		if value != "" {
			r.Value = []byte(value)
		}
		if err := s.kafka.ProduceTo(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	produce("a", "", time.Hour) // a delete that came before, with a higher version
	s.letter(produce("a", `{"n":1}`, 0), 0)
	s.letter(produce("b", `{"n":1}`, time.Hour), 0)
	produce("b", `{"n":2}`, 0)
	produce("c", `{"n":1}`, 0)
	s.letter(produce("c", `{"n":2}`, 0), 0) // equal versions: the later one is an update
	s.replay(0, "3 letters, 2 written, 1 skipped")
	s.holds("a", "", 0)
	s.holds("b", `{"n":1}`, at.Add(time.Hour).UnixMilli())
	s.holds("c", `{"n":2}`, at.UnixMilli())
}

// Ids that are positions occur once: nothing has to be read for them.
func TestReplayOfPositions(t *testing.T) {
	s := newSite(t, map[string]string{"cleanup.policy": "compact,delete", "delete.retention.ms": "0"}, "documents: {id: position}\n")
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	s.produce(0, "a", `{"n":2}`)
	s.deleteRecords(1)
	s.replay(0, "1 written")
	s.holds("events+0+0", `{"n":1}`, 1)
}

// A letter whose place cannot be told is not written, --force or not.
func TestReplayOfLettersUnderOtherRules(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "a", `{"n":1}`), 0)
	s.replay(1, "the letter names no generation", "--force")
	s.replay(1, "1 do not fit the rules of now", "--force")
	s.letter(s.produce(0, "b", `{"n":1}`), 1)
	s.replay(1, "the letter had version", "--force", "--set", "documents.version=timestamp")
	if n := s.es.Count("events"); n != 0 {
		t.Errorf("%d documents", n)
	}
}

// While Elasticsearch is away a delete may come and be forgotten: what the log
// says counts as it is when a letter is written at last.
func TestReplayLooksAgain(t *testing.T) {
	s := newSite(t, nil, "")
	s.letter(s.produce(0, "a", `{"n":1}`), 1)
	tried, looked := make(chan struct{}, 1), make(chan struct{}, 1)
	signal := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	away := s.es.Inject(embedded.Rule{
		API: "bulk", Fault: embedded.Fault{Status: http.StatusServiceUnavailable},
		Match: func(*embedded.Request) bool { signal(tried); return true },
	})
	var out bytes.Buffer
	r := &replay{servers: s.servers, out: &out, progress: newProgress(io.Discard), fresh: 300 * time.Millisecond}
	done := make(chan error, 1)
	go func() { done <- r.run(t.Context()) }()
	<-tried
	s.produce(0, "a", "")
	s.kafka.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.kafka.KeepControl()
		signal(looked)
		return nil, nil, false
	})
	<-looked
	away.Remove()
	if err := <-done; err != nil || !strings.Contains(out.String(), "1 skipped: their ids have later records") {
		t.Errorf("%v\n%s", err, out.String())
	}
	s.holds("a", "", 0)
}

func TestReplaySelects(t *testing.T) {
	s := newSite(t, nil, "")
	for i := range 4 {
		s.letter(s.produce(0, fmt.Sprint("k", i), `{"n":1}`), 1)
	}
	s.replay(0, "0 letters", "--type", "other")
	s.replay(0, "0 letters", "--until", "1h")
	s.replay(0, "4 letters, 4 to be sent (dry run", "--since", "1h", "--topic", "events", "--dry-run")
	s.replay(0, "2 letters, 2 written", "--limit", "2")
	if n := s.es.Count("events"); n != 2 {
		t.Errorf("%d documents, want 2", n)
	}
}

// A tail passes over offsets that hold no record, and over nothing else.
func TestTailPassesHoles(t *testing.T) {
	s := newSite(t, nil, "")
	s.produce(0, "a", `{"n":1}`)
	p := sourcePartition{"events", 0}
	tail, err := newTail(map[sourcePartition]int64{p: 0}, true, s.kafka.ClientOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	if at, err := tail.passHole(t.Context(), p, 1); at != 0 || err != nil {
		t.Errorf("over a record: %d, %v", at, err)
	}
	n := 0
	if err := tail.catchUp(t.Context(), func(*kgo.Record) { n++ }); n != 1 || err != nil {
		t.Errorf("%d records, %v", n, err)
	}
	if at, err := tail.passHole(t.Context(), p, 7); at != 7 || err != nil {
		t.Errorf("over nothing: %d, %v", at, err)
	}
}

// Only show prints what a record holds.
func TestListAndShow(t *testing.T) {
	s := newSite(t, nil, "")
	r := s.produce(1, "k3y", `{"n":"s3cret"}`)
	s.letter(r, 1)
	for _, args := range [][]string{{"list"}, {"list", "--json"}} {
		code, stdout, stderr := sluice(t, append([]string{"deadletter", "-c", s.config}, args...)...)
		if code != 0 || strings.Contains(stdout+stderr, "s3cret") || strings.Contains(stdout+stderr, "k3y") || !strings.Contains(stdout, "document_parsing_exception") {
			t.Errorf("%v: exit code %d:\n%s%s", args, code, stdout, stderr)
		}
	}
	for _, place := range []string{"events/1/0", "dead/0/0"} {
		code, stdout, stderr := sluice(t, "deadletter", "show", place, "-c", s.config)
		if code != 0 || !strings.Contains(stdout, "s3cret") || !strings.Contains(stdout, "k3y") {
			t.Errorf("show %s: exit code %d:\n%s%s", place, code, stdout, stderr)
		}
	}
	code, stdout, _ := sluice(t, "deadletter", "show", "events/1/0", "--json", "-c", s.config)
	var d deadletter.Document
	if err := json.Unmarshal([]byte(stdout), &d); code != 0 || err != nil || string(d.Key) != "k3y" || string(d.Value) != string(r.Value) || d.Sluice.Sequence != sequence(t, 1, 0) {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
	if code, _, stderr := sluice(t, "deadletter", "show", "events/1/7", "-c", s.config); code != 1 || !strings.Contains(stderr, "no dead letter") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if got := printable([]byte("a\x1b[2Jb")); strings.Contains(got, "\x1b") {
		t.Errorf("%q reaches the terminal", got)
	}
}

// The verbs read letters in an index as they read those in a topic.
func TestLettersInAnIndex(t *testing.T) {
	s := newSite(t, nil, "")
	r := s.produce(1, "a", `{"n":1}`)
	w, err := deadletter.NewIndex(deadletter.Config{Index: "dead-letters"}, deadletter.IndexOptions{Transport: s.servers.elastic, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(deadletter.Letter{
		Topic: "events", Partition: 1, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Type: "x", Sequence: sequence(t, 1, 0), Generation: 1,
	}, func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sets := []string{"--set", "dead_letter.topic=", "--set", "dead_letter.index=dead-letters"}
	for _, args := range [][]string{{"list"}, {"show", "events/1/0"}} {
		if code, stdout, stderr := sluice(t, append(append([]string{"deadletter", "-c", s.config}, args...), sets...)...); code != 0 || !strings.Contains(stdout, "events/1/0") {
			t.Errorf("%v: exit code %d:\n%s%s", args, code, stdout, stderr)
		}
	}
	s.replay(0, "1 written", sets...)
	s.holds("a", `{"n":1}`, sequence(t, 1, 0))
}
