package main

import (
	"fmt"
	"strings"
	"testing"
)

// say runs a verb that must succeed and checks what it prints.
func (s *site) say(wants []string, args ...string) string {
	s.Helper()
	stdout := s.run(0, args...)
	squeezed := strings.Join(strings.Fields(stdout), " ")
	for _, want := range wants {
		if !strings.Contains(squeezed, want) {
			s.Errorf("sluice %v does not say %q:\n%s", args, want, stdout)
		}
	}
	return stdout
}

// dry-run tells what comes next and changes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, "documents: {on_rejected: dead_letter}")
	s.produce(0, "a", `{"n":1}`)
	s.produce(0, "b", "")
	s.produce(0, "c", `not json with a secret`)
	s.produce(1, "\x1b[31m", `{"n":2}`)
	out := s.say([]string{
		fmt.Sprintf(`events/0/0 index, events, id "a", version %d, 7 bytes`, sequence(t, 1, 0)),
		fmt.Sprintf(`events/0/1 delete, events, id "b", version %d, 0 bytes`, sequence(t, 1, 1)),
		`events/0/2 reject, then dead letter: `,
		`events/1/0 index, events, id "\x1b[31m"`,
		"nothing was written",
	}, "dry-run")
	if strings.Contains(out, "secret") {
		t.Errorf("a value is shown:\n%s", out)
	}
	if s.es.Count("events") != 0 {
		t.Error("something was written")
	}
	if own, err := fetchCommits(t.Context(), s.servers.kafka, "g", "events"); err != nil || len(own) > 0 {
		t.Errorf("something was committed: %v, %v", own, err)
	}
	if out := s.say(nil, "dry-run", "-n", "2", "--json"); strings.Count(out, "\n") != 2 || !strings.Contains(out, `"target":"events"`) {
		t.Errorf("two records as JSON:\n%s", out)
	}
	s.commit(0, 3)
	s.commit(1, 1)
	s.say([]string{"no record is waiting"}, "dry-run")
	if out := s.say(nil, "dry-run", "--from", "latest", "-n", "1"); !strings.HasPrefix(out, "events/0/2 ") && !strings.HasPrefix(out, "events/1/0 ") {
		t.Errorf("the last record is %s", out)
	}
	for _, args := range [][]string{{"-n", "0"}, {"--from", "soon"}} {
		if code, _, _ := sluice(t, append([]string{"dry-run", "-c", s.config}, args...)...); code != 2 {
			t.Errorf("dry-run %v: exit code %d, want 2", args, code)
		}
	}
}

// lag counts from the commit, or from where a reset leads.
func TestLag(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, "")
	for range 5 {
		s.produce(0, "a", `{"n":1}`)
	}
	s.produce(1, "b", `{"n":1}`)
	s.commit(0, 2)
	s.say([]string{"events/0 0 2 5 3 events/1 0 - 1 1 group g 4"}, "lag")
	s.say([]string{"events/1 0 - 1 0 group g 3"}, "lag", "--set", "kafka.reset=latest")
	s.say([]string{`{"topic":"events","partition":0,"start":0,"committed":2,"end":5,"lag":3}`}, "lag", "--json")
	if code, _, stderr := sluice(t, "lag", "-c", s.config, "--set", "kafka.topics=[nowhere]"); code != 1 || !strings.Contains(stderr, "nowhere") {
		t.Errorf("a topic that does not exist: exit code %d: %s", code, stderr)
	}
}

// explain tells a record's story: not read yet, written, overwritten, deleted,
// dead-lettered, gone.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, soon)
	s.produce(0, "a", `{"n":1}`)
	s.say([]string{
		`becomes index, events, id "a"`, "generation 1", "group g has committed nothing", "dead letter none",
	}, "explain", "events/0/0")
	s.say([]string{"nothing yet: the log ends at 1"}, "explain", "events/0/9")

	bad := s.produce(1, "bad", `{"n":1}`)
	s.letter(bad, 1)
	replica := s.start()
	s.wants(2, map[int32]int64{0: 1, 1: 1})
	s.say([]string{"committed 1, behind the record: it is handled", "this record's document"}, "explain", "events/0/0")
	s.say([]string{"dead letter 0/0 of ", "document_parsing_exception, status 400, at events"}, "explain", "events/1/0")

	s.produce(0, "a", `{"n":2}`)
	s.wants(2, map[int32]int64{0: 2})
	s.say([]string{"a later record's document: generation 1, offset 1 of"}, "explain", "events/0/0")
	s.produce(0, "a", "")
	s.wants(1, map[int32]int64{0: 3})
	replica.stop()
	s.say([]string{"no document: a later record deleted it"}, "explain", "events/0/1")
	s.say([]string{"no document: the record asks for that"}, "explain", "events/0/2")
	if out := s.say(nil, "explain", "events/0/2", "--json"); !strings.Contains(out, `"op":"delete"`) {
		t.Errorf("as JSON: %s", out)
	}
	if err := s.kafka.DeleteRecords("events", 0, 2); err != nil {
		t.Fatal(err)
	}
	s.say([]string{"nothing any more: the log begins at 2"}, "explain", "events/0/0")
	for _, at := range []string{"events/7/0", "events/0", "events"} {
		if code, _, _ := sluice(t, "explain", "-c", s.config, at); code != 2 {
			t.Errorf("explain %s: exit code %d, want 2", at, code)
		}
	}
}
