package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
)

// journal is a log that a test can wait on.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced with each line
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	close(j.more)
	j.more = make(chan struct{})
	return j.text.Write(p)
}

// wait waits for a line that holds all of the texts.
func (j *journal) wait(t *testing.T, texts ...string) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		j.mu.Lock()
		all, more := j.text.String(), j.more
		j.mu.Unlock()
		for line := range strings.Lines(all) {
			found := true
			for _, text := range texts {
				found = found && strings.Contains(line, text)
			}
			if found {
				return
			}
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no line with %q in:\n%s", texts, all)
		}
	}
}

// replica is a running Sluice.
type replica struct {
	*app.App
	url  string
	log  *journal
	stop func() // and wait
}

// soon are settings that make a replica act sooner than in a deployment.
const soon = "indexer: {flush_interval: 20ms}\nmemory: {limit: 64MiB}\n"

// start runs a replica of the site's configuration until the test ends.
func (s *site) start() *replica {
	s.Helper()
	cfg, _, err := (&configFlags{files: []string{s.config}, sets: []string{"kafka.commit_interval=20ms", "kafka.fetch.max_wait=20ms"}}).load()
	if err != nil {
		s.Fatal(err)
	}
	r := &replica{log: &journal{more: make(chan struct{})}}
	if r.App, err = app.New(cfg, app.Options{Log: zerolog.New(r.log), Version: "test"}); err != nil {
		s.Fatal(err)
	}
	r.url = r.AdminURL()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(r.stop)
	return r
}

// get asks a replica.
func (r *replica) get(t *testing.T, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// wants waits until the index holds so many documents and the group has
// committed so far.
func (s *site) wants(documents int, committed map[int32]int64) {
	s.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for {
		own, err := fetchCommits(s.Context(), s.servers.kafka, "g", "events")
		if err != nil {
			s.Fatal(err)
		}
		reached := s.es.Count("events") == documents
		for p, at := range committed {
			reached = reached && own[p].At == at
		}
		if reached {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.Fatalf("%d documents and commits %v, want %d and %v", s.es.Count("events"), own, documents, committed)
		}
	}
}

// on_rejected: stop halts the source partition of the record, and no other,
// where everybody sees it; a skip by the replica that holds it moves it on.
func TestStopAndSkip(t *testing.T) {
	s := newSite(t, nil, "documents: {on_rejected: stop}\n"+soon)
	s.must(http.MethodPut, "/events", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	s.produce(0, "a", `{"n":1}`)
	bad := s.produce(0, "bad", `{"n":"s3cret"}`)
	r := s.start()
	r.log.wait(t, `"message":"partition halted: it waits for an operator"`, `"partition":0`, `"offset":1`, `"type":"document_parsing_exception"`)
	s.produce(0, "b", `{"n":1}`)
	for i := range 3 {
		s.produce(1, fmt.Sprint("other", i), `{"n":1}`)
	}
	s.wants(4, map[int32]int64{0: 1, 1: 3})

	code, body := r.get(t, "/healthz")
	var health admin.Health
	if err := json.Unmarshal([]byte(body), &health); err != nil {
		t.Fatal(err)
	}
	if code != 503 || health.State != admin.Blocked || len(health.Halted) != 1 || health.Halted[0].Partition != 0 || health.Halted[0].Offset != 1 || health.Halted[0].Kind != "rejected_record" {
		t.Errorf("/healthz says %d %s", code, body)
	}
	if _, body := r.get(t, "/v1/status"); !strings.Contains(body, `"state":"halted"`) || !strings.Contains(body, `"offset":1`) {
		t.Errorf("/v1/status says %s", body)
	}
	_, metrics := r.get(t, "/metrics")
	for _, line := range []string{`sluice_partition_halted{kind="rejected_record",partition="0",topic="events"} 1`, `sluice_partition_halted_offset{partition="0",topic="events"} 1`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	if code, _ := r.get(t, "/livez"); code != 200 {
		t.Errorf("/livez says %d: a halted partition is no reason to restart", code)
	}
	exitCode, stdout, stderr := sluice(t, "status", "-c", s.config, "--admin", r.url, "--interval", "1ms")
	if exitCode != 1 || !strings.Contains(stdout, "1 of 1 members seen") || !strings.Contains(stdout, "events/0") || !strings.Contains(stderr, "blocked on a record") {
		t.Errorf("status: exit code %d:\n%s%s", exitCode, stdout, stderr)
	}

	if exitCode, _, stderr := sluice(t, "skip", "events/0/2", "-c", s.config, "--admin", r.url); exitCode != 1 || !strings.Contains(stderr, "not blocked at 2") {
		t.Errorf("another record: exit code %d: %s", exitCode, stderr)
	}
	if exitCode, _, stderr := sluice(t, "skip", "events/0/1", "-c", s.config, "--admin", r.url); exitCode != 0 {
		t.Fatalf("exit code %d: %s", exitCode, stderr)
	}
	s.wants(5, map[int32]int64{0: 3, 1: 3})
	if code, body := r.get(t, "/healthz"); code != 200 {
		t.Errorf("/healthz says %d %s", code, body)
	}
	exitCode, stdout, _ = sluice(t, "deadletter", "show", "events/0/1", "-c", s.config)
	if exitCode != 0 || !strings.Contains(stdout, string(bad.Value)) || !strings.Contains(stdout, "document_parsing_exception") {
		t.Errorf("the letter: exit code %d:\n%s", exitCode, stdout)
	}
	if all := r.log.text.String() + metrics; strings.Contains(all, "s3cret") {
		t.Error("content in the log or in metrics")
	}
}

// With no member running a skip reads the record itself and commits behind it.
func TestStopAndSkipAlone(t *testing.T) {
	s := newSite(t, nil, "documents: {on_rejected: stop}\n"+soon)
	s.produce(0, "a", `{"n":1}`)
	s.produce(0, "bad", `no document`)
	r := s.start()
	r.log.wait(t, "partition halted", `"offset":1`)
	s.produce(0, "b", `{"n":1}`)
	s.wants(1, map[int32]int64{0: 1})
	r.stop()
	if code, stdout, stderr := sluice(t, "skip", "events/0/1", "-c", s.config); code != 0 || !strings.Contains(stdout, "no member of the group g is running") {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	if code, stdout, _ := sluice(t, "deadletter", "list", "-c", s.config); code != 0 || !strings.Contains(stdout, "events/0/1  skipped") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
	s.start()
	s.wants(2, map[int32]int64{0: 3})
}

// A letter that is too large for its topic blocks the record, until the topic
// takes it or the record is discarded.
func TestSkipOfAnOversizeLetter(t *testing.T) {
	s := newSite(t, nil, soon)
	s.limitLetters("1000")
	random := make([]byte, 4000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random) // never fails
	noise := hex.EncodeToString(random)             // does not compress to 1000 bytes
	s.produce(0, "large", noise)
	s.produce(1, "large", noise)
	r := s.start()
	for _, partition := range []string{`"partition":0`, `"partition":1`} {
		r.log.wait(t, "partition halted", partition, `"offset":0`, "dead_letter_oversize")
	}
	s.produce(0, "b", `{"n":1}`)
	s.produce(1, "c", `{"n":1}`)
	if code, _, stderr := sluice(t, "skip", "events/0/0", "-c", s.config, "--admin", r.url); code != 1 || !strings.Contains(stderr, "max.message.bytes") {
		t.Errorf("too large still: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := sluice(t, "skip", "events/1/0", "--discard", "-c", s.config, "--admin", r.url); code != 0 || !strings.Contains(stderr, "gone for good") {
		t.Errorf("discarded: exit code %d: %s", code, stderr)
	}
	s.wants(1, map[int32]int64{1: 2})
	s.limitLetters("100000")
	if code, _, stderr := sluice(t, "skip", "events/0/0", "-c", s.config, "--admin", r.url); code != 0 {
		t.Errorf("with room for it: exit code %d: %s", code, stderr)
	}
	s.wants(2, map[int32]int64{0: 2, 1: 2})
	if code, stdout, _ := sluice(t, "deadletter", "show", "events/0/0", "-c", s.config); code != 0 || !strings.Contains(stdout, noise) {
		t.Errorf("exit code %d: the letter is not whole", code)
	}
	if code, _, _ := sluice(t, "deadletter", "show", "events/1/0", "-c", s.config); code != 1 {
		t.Errorf("exit code %d: a discarded record has a letter", code)
	}
}

// limitLetters sets what the dead-letter topic takes.
func (s *site) limitLetters(bytes string) {
	s.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, "dead"
	change := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	change.Name, change.Op, change.Value = "max.message.bytes", kmsg.IncrementalAlterConfigOpSet, &bytes
	resource.Configs = append(resource.Configs, change)
	req.Resources = append(req.Resources, resource)
	if _, err := req.RequestWith(s.Context(), s.servers.client); err != nil {
		s.Fatal(err)
	}
}

// A batch that cannot be decoded halts its partition; it can be discarded only,
// as a whole, by the member that holds it or by nobody's leave.
func TestSkipOfAnUndecodableBatch(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone %t", alone), func(t *testing.T) {
			t.Parallel() // a batch is tried five times, a second apart
			s := newSite(t, nil, soon, kfake.ListenFn(corruptingListen(5)))
			for i := range 5 {
				s.produce(0, fmt.Sprint("k", i), `{"n":1}`)
			}
			s.produceBatch(0, 3) // offsets 5 to 7
			s.produce(0, "k8", `{"n":1}`)
			s.produce(1, "other", `{"n":1}`)
			r := s.start()
			r.log.wait(t, "partition halted", `"partition":0`, `"offset":5`, `"kind":"undecodable"`)
			s.wants(6, map[int32]int64{0: 5, 1: 1})
			args := []string{"skip", "events/0/5", "-c", s.config}
			if alone {
				r.stop()
			} else {
				args = append(args, "--admin", r.url)
			}
			if code, _, stderr := sluice(t, args...); code != 1 {
				t.Errorf("without --discard: exit code %d: %s", code, stderr)
			}
			if code, _, stderr := sluice(t, append(args, "--discard")...); code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			if alone {
				s.start()
			}
			s.wants(7, map[int32]int64{0: 9, 1: 1})
		})
	}
}

// produceBatch writes n records in one batch.
func (s *site) produceBatch(partition int32, n int) {
	s.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: "events", Partition: partition, Key: fmt.Append(nil, "batch", i), Value: []byte(`{"n":1}`)}
	}
	client, err := kgo.NewClient(append(s.kafka.ClientOptions(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing())...)
	if err != nil {
		s.Fatal(err)
	}
	defer client.Close()
	for _, r := range records {
		client.Produce(s.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				s.Error(err)
			}
		})
	}
	if err := client.Flush(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// corruptingListen makes brokers that flip a byte of each batch that begins at
// an offset, on its way out: the batch's checksum no longer fits.
func corruptingListen(offset int64) func(network, address string) (net.Listener, error) {
	return func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		return &corruptingListener{l, offset}, err
	}
}

type corruptingListener struct {
	net.Listener
	offset int64
}

func (l *corruptingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &corruptingConn{conn, l.offset}, err
}

type corruptingConn struct {
	net.Conn
	offset int64
}

// Write is called with whole answers.
func (c *corruptingConn) Write(p []byte) (int, error) {
	var first [8]byte
	binary.BigEndian.PutUint64(first[:], uint64(c.offset))
	out := bytes.Clone(p)
	for i := 0; i+61 < len(out); i++ {
		// A record batch: first offset, length, leader epoch, magic 2.
		if out[i+16] != 2 || !bytes.Equal(out[i:i+8], first[:]) {
			continue
		}
		if n := int(binary.BigEndian.Uint32(out[i+8:])); n > 49 && i+12+n <= len(out) {
			out[i+12+n-1] ^= 0xff
		}
	}
	return c.Conn.Write(out)
}

// A held target is listed, and goes on when its cause is gone.
func TestTargets(t *testing.T) {
	s := newSite(t, nil, soon)
	s.must(http.MethodPut, "/events", `{"settings":{"index.blocks.write":true}}`)
	s.produce(0, "a", `{"n":1}`)
	r := s.start()
	r.log.wait(t, "held", `"target":"events"`)
	if code, stdout, stderr := sluice(t, "target", "list", "--admin", r.url); code != 0 || !strings.Contains(stdout, "events  cluster_block_exception") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, stdout, _ := sluice(t, "target", "list", "--admin", r.url, "--json")
	var targets []heldTarget
	if err := json.Unmarshal([]byte(stdout), &targets); code != 0 || err != nil || len(targets) != 1 || targets[0].Target != "events" || len(targets[0].Replicas) != 1 {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
	code, stdout, _ = sluice(t, "status", "--admin", r.url, "--admin", "http://127.0.0.1:1", "--interval", "1ms", "--json")
	var status statusSum
	if err := json.Unmarshal([]byte(stdout), &status); code != 1 || err != nil || len(status.Held) != 1 || status.Members != -1 || status.MembersSeen != 1 ||
		len(status.Replicas) != 2 || status.Replicas[1].Error == "" || status.Lag != 1 || status.ETASeconds != -1 {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}
	if code, _, stderr := sluice(t, "target", "release", "other", "--admin", r.url); code != 1 || !strings.Contains(stderr, "held by none") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := sluice(t, "target", "release", "events", "--admin", "http://127.0.0.1:1"); code != 1 || stderr == "" {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	s.must(http.MethodPut, "/events/_settings", `{"index.blocks.write":false}`)
	if code, stdout, stderr := sluice(t, "target", "release", "events", "--admin", r.url); code != 0 || !strings.Contains(stdout, "released events") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	s.wants(1, map[int32]int64{0: 1})
	if code, stdout, _ := sluice(t, "target", "list", "--admin", r.url); code != 0 || !strings.Contains(stdout, "no target is held") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
	code, stdout, stderr := sluice(t, "status", "-c", s.config, "--admin", r.url, "--interval", "1ms")
	if code != 0 || !strings.Contains(stdout, "1 of 1 members seen") || !strings.Contains(stdout, "indexed 1") || !strings.Contains(stdout, "0 records") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}

// A consumer's tombstones count as deleted, keep their version where
// Elasticsearch would forget it, and are hidden by the alias of
// docs/operations.md; a purge ends them.
func TestTombstones(t *testing.T) {
	s := newSite(t, nil, "documents: {deletes: tombstone, tombstone_ttl: 1ms}\n"+soon)
	s.produce(0, "a", `{"n":1}`)
	s.produce(0, "gone", `{"n":1}`)
	s.produce(0, "gone", "")
	r := s.start()
	s.wants(2, map[int32]int64{0: 3})
	if _, metrics := r.get(t, "/metrics"); !strings.Contains(metrics, `sluice_records_total{outcome="deleted",partition="0",topic="events"} 1`) {
		t.Error("the tombstone does not count as deleted")
	}
	s.es.Restart() // what is remembered of deletes is gone; what stands in documents is not
	stale := fmt.Sprintf("/events/_doc/gone?version_type=external&version=%d", sequence(t, 1, 1))
	if code := s.send(http.MethodPut, stale, `{"n":1}`); code != http.StatusConflict {
		t.Errorf("a late write of the older record: %d, want a conflict", code)
	}
	s.must(http.MethodPost, "/_aliases", `{"actions":[{"add":{"index":"events","alias":"events-read","filter":{"bool":{"must_not":{"term":{"_sluice_deleted":true}}}}}}]}`)
	s.must(http.MethodPost, "/events/_refresh", "")
	if page, err := s.servers.elastic.Search(t.Context(), "events-read", map[string]any{"size": 10}); err != nil || len(page.Hits) != 1 || page.Hits[0].ID != "a" {
		t.Errorf("through the alias: %+v, %v", page, err)
	}
	if code, stdout, stderr := sluice(t, "purge", "-c", s.config); code != 0 || !strings.Contains(stdout, "1 tombstones removed") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	s.wants(1, nil)
}

// send sends a request to Elasticsearch and returns the status.
func (s *site) send(method, path, body string) int {
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
	return res.StatusCode
}

// Letters go to an index, with everything that they hold, and come back from it.
func TestDeadLetterIndex(t *testing.T) {
	s := newSite(t, nil, soon)
	sets := []string{"--set", "dead_letter.topic=", "--set", "dead_letter.index=dead-letters"}
	s.config = s.withIndex()
	s.must(http.MethodPut, "/events", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	s.produce(0, "bad", `{"n":"x"}`)
	s.produce(0, "b", `{"n":1}`)
	s.start()
	s.wants(1, map[int32]int64{0: 2})
	if n := s.es.Count("dead-letters"); n != 1 {
		t.Fatalf("%d letters", n)
	}
	s.must(http.MethodDelete, "/events", "") // and with it the mapping that was wrong
	s.replay(0, "1 written", sets...)
	s.holds("bad", `{"n":"x"}`, sequence(t, 1, 0))
}

// withIndex is the configuration with an index for dead letters.
func (s *site) withIndex() string {
	s.Helper()
	return write(s.T, fmt.Sprintf(`
kafka: {brokers: [%q], topics: [events], group_id: g}
elasticsearch: {addresses: [%q]}
dead_letter: {index: dead-letters}
admin: {address: "127.0.0.1:0"}
%s`, s.kafka.Addresses()[0], s.url, soon))
}
