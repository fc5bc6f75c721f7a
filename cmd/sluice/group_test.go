package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/generation"
)

// place is a Kafka and an Elasticsearch with a topic of 2 partitions that hold
// 3 records each, and a configuration for them.
type place struct {
	config string // file
	kafka  *kgo.Client
	admin  *kadm.Client
	flags  configFlags
}

func newPlace(t *testing.T) *place {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "events"), kfake.SeedTopics(1, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	es := embedded.NewElasticsearch(embedded.Config{})
	url, err := es.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(es.Close)
	p := &place{config: write(t, fmt.Sprintf(`
kafka: {brokers: [%q], topics: [events], group_id: g}
elasticsearch: {addresses: [%q]}
dead_letter: {topic: dead}
admin: {address: "127.0.0.1:0"}
`, cluster.ListenAddrs()[0], url))}
	p.flags.files = []string{p.config}
	if p.kafka, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kafka.Close)
	p.admin = kadm.NewClient(p.kafka)
	for i := range 6 {
		r := &kgo.Record{
			Topic: "events", Partition: int32(i % 2), Key: fmt.Append(nil, "k", i), Value: fmt.Appendf(nil, `{"n":%d}`, i),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}},
		}
		if err := p.kafka.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// commit commits an offset of partition 0 with the metadata of a generation.
func (p *place) commit(t *testing.T, at int64, generation int) {
	t.Helper()
	metadata := fmt.Sprintf(`{"v":1,"e":0,"g":%d,"t":"x","n":2}`, generation)
	err := p.admin.CommitAllOffsets(t.Context(), "g", kadm.Offsets{"events": {0: {Topic: "events", At: at, LeaderEpoch: -1, Metadata: metadata}}})
	if err != nil {
		t.Fatal(err)
	}
}

func (p *place) committed(t *testing.T) (at int64, metadata string) {
	t.Helper()
	all, err := p.admin.FetchOffsets(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	o, ok := all.Lookup("events", 0)
	if !ok {
		return -1, ""
	}
	return o.At, o.Metadata
}

// letters returns the records of the dead-letter topic.
func (p *place) letters(t *testing.T) []*kgo.Record {
	t.Helper()
	ends, err := p.admin.ListEndOffsets(t.Context(), "dead")
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup("dead", 0)
	if end.Offset == 0 {
		return nil
	}
	p.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{"dead": {0: kgo.NewOffset().AtStart()}})
	defer p.kafka.PurgeTopicsFromConsuming("dead")
	var letters []*kgo.Record
	for int64(len(letters)) < end.Offset {
		fetches := p.kafka.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		letters = append(letters, fetches.Records()...)
	}
	return letters
}

// join makes a member of the group, for the rest of the test.
func (p *place) join(t *testing.T) {
	t.Helper()
	client, err := kgo.NewClient(append(p.kafka.Opts(), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("events"), kgo.DisableAutoCommit())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.PollFetches(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestSkipWithoutMembers(t *testing.T) {
	p := newPlace(t)
	p.commit(t, 1, 4)
	for args, want := range map[string]string{
		"events/0/2": "stands at offset 1", // would lose the record at 1
		"events/0/0": "stands at offset 1", // would go back
		"events/9/0": "no partition 9",
		"events/1/1": "stands at offset 0", // nothing is committed there
	} {
		if code, _, stderr := sluice(t, "skip", args, "-c", p.config); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("skip %s: exit code %d, want 1 and %q: %s", args, code, want, stderr)
		}
	}
	if letters := p.letters(t); len(letters) != 0 {
		t.Fatalf("%d letters of records that were not skipped", len(letters))
	}

	if code, _, stderr := sluice(t, "skip", "events/0/1", "-c", p.config); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if at, metadata := p.committed(t); at != 2 || !strings.Contains(metadata, `"g":4`) {
		t.Errorf("committed %d %s, want 2 with the metadata kept", at, metadata)
	}
	letters := p.letters(t)
	if len(letters) != 1 || string(letters[0].Key) != "k2" || string(letters[0].Value) != `{"n":2}` || letters[0].Headers[0].Key != "h" {
		t.Fatalf("letters %v, want the record as it was", letters)
	}

	if code, _, stderr := sluice(t, "skip", "events/0/2", "--discard", "-c", p.config); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if at, _ := p.committed(t); at != 3 {
		t.Errorf("committed %d, want 3", at)
	}
	if n := len(p.letters(t)); n != 1 {
		t.Errorf("%d letters, want 1: a discarded record has none", n)
	}
	if code, _, stderr := sluice(t, "skip", "events/0/3", "--discard", "-c", p.config); code != 1 || !strings.Contains(stderr, "nothing to skip") {
		t.Errorf("behind the end: exit code %d: %s", code, stderr)
	}
}

// While members run only the owner may skip: a commit from outside would be
// refused, or worse, taken.
func TestSkipGoesToTheOwner(t *testing.T) {
	p := newPlace(t)
	p.commit(t, 1, 1)
	p.join(t)
	if code, _, stderr := sluice(t, "skip", "events/0/1", "-c", p.config); code != 75 || !strings.Contains(stderr, "--admin") {
		t.Errorf("no replica reached: exit code %d: %s", code, stderr)
	}
	var asked []admin.SkipRequest
	replica := func(code int, failure admin.Failure) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var req admin.SkipRequest
			if err := json.NewDecoder(r.Body).Decode(&req); err != nil || r.Header.Get("Authorization") != "Bearer secret" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			asked = append(asked, req)
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(failure)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	token := write(t, "secret\n")
	other := replica(421, admin.Failure{Error: "held by member b on /10.0.0.8"})
	skip := func(urls ...string) (int, string) {
		args := []string{"skip", "events/0/1", "-c", p.config, "--admin-token-file", token}
		for _, url := range urls {
			args = append(args, "--admin", url)
		}
		code, _, stderr := sluice(t, args...)
		return code, stderr
	}
	if code, stderr := skip("http://127.0.0.1:1", other); code != 75 || !strings.Contains(stderr, "member b on /10.0.0.8") {
		t.Errorf("only others: exit code %d: %s", code, stderr)
	}
	if code, stderr := skip(other, replica(200, admin.Failure{})); code != 0 {
		t.Errorf("with the owner: exit code %d: %s", code, stderr)
	}
	if code, stderr := skip(other, replica(409, admin.Failure{Error: "it is not blocked there"})); code != 1 || !strings.Contains(stderr, "not blocked") {
		t.Errorf("refused by the owner: exit code %d: %s", code, stderr)
	}
	if want := (admin.SkipRequest{Topic: "events", Partition: 0, Offset: 1}); len(asked) != 5 || asked[0] != want {
		t.Errorf("asked %v, want 5 times %v", asked, want)
	}
	if at, _ := p.committed(t); at != 1 {
		t.Errorf("committed %d from outside", at)
	}
}

func TestGenerationRaise(t *testing.T) {
	p := newPlace(t)
	p.commit(t, 2, 1)
	s, err := p.flags.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close(t.Context())
	if err := s.control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	state, err := describeTopic(t.Context(), p.admin, "events")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := generation.Ensure(t.Context(), s.control, generation.Topic{Name: "events", ID: state.id, Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := sluice(t, "generation", "raise", "-c", p.config, "--topic", "events", "--to", "7", "--dry-run")
	if code != 0 || !strings.Contains(stdout, "would raise events from 1 to 7") {
		t.Errorf("dry run: exit code %d: %s%s", code, stdout, stderr)
	}
	if list, err := generation.Load(t.Context(), s.control, "events"); err != nil || list.Highest() != 1 {
		t.Errorf("a dry run has recorded %v, %v", list, err)
	}
	code, stdout, stderr = sluice(t, "generation", "raise", "-c", p.config, "--topic", "events", "--to", "7")
	if code != 0 || !strings.Contains(stdout, "from 1 to 7") {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	list, err := generation.Load(t.Context(), s.control, "events")
	if err != nil {
		t.Fatal(err)
	}
	// What is not committed is written anew, in the new generation.
	if last := list[len(list)-1]; last.Generation != 7 || last.Start[0] != 2 || last.Start[1] != 0 {
		t.Errorf("recorded %+v, want generation 7 from 0:2 1:0", last)
	}
	if code, stdout, stderr := sluice(t, "generation", "show", "-c", p.config); code != 0 || !strings.Contains(stdout, "generation 7") || !strings.Contains(stdout, "2 partitions") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}

	var shown []generationFacts
	code, stdout, stderr = sluice(t, "generation", "show", "-c", p.config, "--json")
	if err := json.Unmarshal([]byte(stdout), &shown); code != 0 || err != nil || len(shown) != 1 || shown[0].Recorded.Highest() != 7 || shown[0].Partitions != 2 {
		t.Errorf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	code, stdout, _ = sluice(t, "validate", "-c", p.config, "--json")
	var v validation
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.Errors > 0 != (code != 0) || len(v.Findings) < 5 ||
		!slices.ContainsFunc(v.Findings, func(f finding) bool { return strings.HasPrefix(f.About, "kafka ") && f.Level == "ok" && f.Text != "" }) {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}

	p.join(t)
	if code, _, stderr := sluice(t, "generation", "raise", "-c", p.config, "--topic", "events"); code != 75 || !strings.Contains(stderr, "g (1 members)") {
		t.Errorf("with a member: exit code %d: %s", code, stderr)
	}
	if again, err := generation.Load(t.Context(), s.control, "events"); err != nil || len(again) != len(list) {
		t.Errorf("a refused raise recorded %v, %v", again, err)
	}
}

func TestValidateAsksServers(t *testing.T) {
	p := newPlace(t)
	code, stdout, stderr := sluice(t, "validate", "-c", p.config)
	if code != 0 || !strings.Contains(stdout, "topic events: 2 partitions") || !strings.Contains(stdout, "dead_letter.topic dead") || !strings.Contains(stdout, "events does not exist") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ = sluice(t, "validate", "-c", p.config, "--set", "kafka.topics=[absent]", "--set", "dead_letter.topic=gone")
	if code != 1 || !strings.Contains(stdout, "topic absent does not exist") || !strings.Contains(stdout, "dead_letter.topic gone does not exist") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
	code, stdout, _ = sluice(t, "validate", "-c", p.config, "--set", "elasticsearch.addresses=[http://127.0.0.1:1]")
	if code != 1 || !strings.Contains(stdout, "error") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}
