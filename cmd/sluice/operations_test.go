package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/document"
)

// Every command that docs/operations.md shows exists, with its flags.
func TestOperationsCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "sluice ")
		if !ok {
			continue
		}
		n++
		command, _, _ = strings.Cut(command, " #")
		command, _, _ = strings.Cut(command, " |")
		if code, _, stderr := sluice(t, append(strings.Fields(command), "--help")...); code != 0 {
			t.Errorf("sluice %s: exit code %d: %s", command, code, stderr)
		}
	}
	if n < 15 {
		t.Errorf("%d commands were found: the test looks in the wrong place", n)
	}
}

// docs/operations.md, "Raise a generation": partitions were added.
func TestRaiseAfterPartitionsWereAdded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, soon)
	s.produce(0, "a", `{"n":1}`)
	r := s.start()
	s.wants(1, map[int32]int64{0: 1})
	if _, err := s.fresh().CreatePartitions(t.Context(), 1, "events"); err != nil {
		t.Fatal(err)
	}
	s.produce(2, "a", `{"n":2}`)
	r.stop()
	r = s.start() // sooner than the client notices by itself
	r.log.wait(t, "partition halted", `"kind":"needs_generation"`, "sluice generation raise --topic events")
	if code, _, stderr := sluice(t, "generation", "raise", "-c", s.config, "--topic", "events"); code != 75 || !strings.Contains(stderr, "stop all members") {
		t.Errorf("with a member: exit code %d: %s", code, stderr)
	}
	r.stop()
	if code, _, stderr := sluice(t, "generation", "raise", "-c", s.config, "--topic", "events"); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	s.start()
	s.wants(1, map[int32]int64{0: 1, 2: 1})
	s.holds("a", `{"n":2}`, sequence(t, 2, 0))
}

// docs/operations.md, "Foreign versions": another writer has left higher ones.
func TestRaiseAboveForeignVersions(t *testing.T) {
	s := newSite(t, nil, soon)
	foreign := sequence(t, 1, 1<<30)
	s.must(http.MethodPut, fmt.Sprintf("/events/_doc/a?version_type=external&version=%d", foreign), `{"n":0}`)
	s.produce(0, "a", `{"n":1}`)
	s.produce(0, "b", `{"n":1}`)
	r := s.start()
	r.log.wait(t, "partition halted", `"kind":"foreign_version"`, fmt.Sprint(foreign))
	code, stdout, _ := sluice(t, "version", "decode", fmt.Sprint(foreign))
	if code != 0 || !strings.Contains(stdout, "generation 1\n") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	r.stop()
	if code, _, stderr := sluice(t, "generation", "raise", "-c", s.config, "--topic", "events"); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	s.start()
	s.wants(2, map[int32]int64{0: 2})
	s.holds("a", `{"n":1}`, sequence(t, 2, 0))
}

// docs/operations.md, "A missing dead-letter topic".
func TestMissingDeadLetterTopic(t *testing.T) {
	s := newSite(t, nil, soon)
	if err := s.kafka.DeleteTopic("dead"); err != nil {
		t.Fatal(err)
	}
	s.produce(0, "bad", `no document`)
	s.produce(1, "a", `{"n":1}`)
	r := s.start()
	r.log.wait(t, "dead letters cannot be written", "create it")
	s.wants(1, map[int32]int64{1: 1}) // the others go on
	if code, stdout, _ := sluice(t, "validate", "-c", s.config); code != 1 || !strings.Contains(stdout, "dead_letter.topic dead does not exist") {
		t.Errorf("validate: exit code %d:\n%s", code, stdout)
	}
	if err := s.kafka.CreateTopic("dead", 1, nil); err != nil {
		t.Fatal(err)
	}
	s.wants(1, map[int32]int64{0: 1, 1: 1})
	if code, stdout, _ := sluice(t, "deadletter", "list", "-c", s.config); code != 0 || !strings.Contains(stdout, document.TypeNotObject) {
		t.Errorf("list: exit code %d:\n%s", code, stdout)
	}
}

// Too many rejections hold the target; released, it goes on.
func TestReleaseAfterTooManyRejections(t *testing.T) {
	s := newSite(t, nil, soon)
	s.must(http.MethodPut, "/events", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	const good, bad = 1000, 100
	var records []*kgo.Record
	for i := range good + bad {
		value := `{"n":1}`
		if i >= good {
			value = `{"n":"x"}`
		}
		records = append(records, &kgo.Record{Topic: "events", Key: fmt.Append(nil, i), Value: []byte(value)})
	}
	if err := s.kafka.ProduceTo(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	r := s.start()
	r.log.wait(t, "held", "too_many_rejections")
	code, stdout, stderr := sluice(t, "target", "list", "--admin", r.url)
	if code != 0 || !strings.Contains(stdout, "events  too_many_rejections") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr := sluice(t, "target", "release", "events", "--admin", r.url); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	s.wants(good, map[int32]int64{0: good + bad})
}

// The dead-letter topic must keep every letter, and take large ones.
func TestValidateLooksAtTheDeadLetterTopic(t *testing.T) {
	s := newSite(t, map[string]string{"max.message.bytes": "5000000"}, "")
	s.must(http.MethodPut, "/events", `{}`)
	code, stdout, _ := sluice(t, "validate", "-c", s.config)
	for _, want := range []string{
		"--entity-name dead --add-config max.message.bytes=5002048",
		`index.gc_deletes is 1m0s`, `PUT /events/_settings {"index.gc_deletes": "15m"}`,
	} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, want %q:\n%s", code, want, stdout)
		}
	}
	s.must(http.MethodPut, "/events/_settings", `{"index.gc_deletes": "15m"}`)
	if _, stdout, _ := sluice(t, "validate", "-c", s.config); strings.Contains(stdout, "gc_deletes") {
		t.Errorf("after the remedy:\n%s", stdout)
	}
	if err := s.kafka.CreateTopic("compacted", 1, map[string]string{"cleanup.policy": "compact"}); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ = sluice(t, "validate", "-c", s.config, "--set", "dead_letter.topic=compacted")
	if code != 1 || !strings.Contains(stdout, "compacted is compacted") || !strings.Contains(stdout, "cleanup.policy=delete") {
		t.Errorf("a compacted topic: exit code %d:\n%s", code, stdout)
	}
	code, stdout, _ = sluice(t, "validate", "-c", s.config, "--set", "dead_letter.topic=", "--set", "dead_letter.index=letters")
	if code != 0 || !strings.Contains(stdout, "dead_letter.index letters does not exist") {
		t.Errorf("an index: exit code %d:\n%s", code, stdout)
	}
	s.must(http.MethodPut, "/letters", `{}`)
	code, stdout, _ = sluice(t, "validate", "-c", s.config, "--set", "dead_letter.topic=", "--set", "dead_letter.index=letters")
	if code != 1 || !strings.Contains(stdout, "holds no dead letters of Sluice") {
		t.Errorf("another's index: exit code %d:\n%s", code, stdout)
	}
}
