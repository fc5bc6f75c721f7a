package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// run --source kafka with real consumers: what the topics hold, deletes and
// records of no consequence among it, and nothing of the old index is copied.
func TestMigrateFromTheTopics(t *testing.T) {
	s := newSite(t, nil, routed)
	s.must(http.MethodPut, "/events", `{"settings":{"number_of_replicas":0},"mappings":{"properties":{"n":{"type":"long"}}}}`)
	if code, stdout, stderr := sluice(t, "routes", "init", "-c", s.config); code != 0 {
		t.Fatalf("routes init: exit code %d: %s%s", code, stdout, stderr)
	}
	want := map[string]string{}
	records := 0
	put := func(i, n int, deleted bool) {
		key, body := fmt.Sprintf("c%d-k%d", i%5, i), fmt.Sprintf(`{"n":%d}`, n)
		want[key] = body
		if deleted {
			body = ""
			delete(want, key)
		}
		s.produce(int32(i%2), key, body)
		records++
	}
	for i := range 120 {
		put(i, i, false)
		put(i, -i, i%4 == 0)
	}
	s.produce(0, "without a customer", `{"n":1}`) // a dead letter
	s.produce(1, "c1-bad", `{"n":"no number"}`)   // another, by the index
	records += 2
	replica := s.start()
	defer replica.stop()
	s.wants(len(want), map[int32]int64{0: 121, 1: 121})
	s.must(http.MethodPost, "/events/_refresh", "") // a plan counts what a search sees

	plan := filepath.Join(t.TempDir(), "plan.json")
	s.verb(0, "", "plan", "--source", "events", "--partitions", "3", "--replicas", "0", "-o", plan)
	s.verb(0, "j7 is CREATED", "create", "--plan", plan, "--job", "j7")
	s.verb(2, "want index or kafka", "run", "--job", "j7", "--source", "topics")
	s.verb(0, "", "throttle", "--job", "j7", "--set", "lag=1m", "--set", "disk=99")
	s.verb(0, "j7 is SYNCED", "run", "--job", "j7", "--source", "kafka")
	s.wantsSplit(want)
	s.verb(0, "clean", "verify", "--job", "j7", "--level", "L2", "--full")
	line := s.verb(0, "242/242 offsets", "status", "--job", "j7")
	if !strings.Contains(line, "1 failed") { // the bad one; it is on neither side
		t.Errorf("the status is %s", line)
	}
	var job migrate.Status
	s.get(replica.url+"/v1/jobs/j7", &job)
	if job.From != migrate.FromKafka || job.Mode != partition.W2 || job.Seen != int64(records) || job.Seen != job.Written+job.Newer+job.Failed+1 {
		t.Errorf("the job says %+v", job)
	}
}

// What the topics do not hold is refused, with the way that works.
func TestMigrateFromTopicsThatAreNotWhole(t *testing.T) {
	for name, c := range map[string]struct {
		topic   map[string]string
		more    string
		prepare func(*site)
		args    []string
		say     string
	}{
		"retention": {nil, routed, func(s *site) { s.deleteRecords(2) }, nil, "the log of events/0 begins at 2"},
		"reset":     {nil, routed, nil, []string{"--set", "kafka.reset=latest"}, "kafka.reset is latest"},
		"compacted by another key": {
			map[string]string{"cleanup.policy": "compact"}, strings.Replace(routed, "id: key", `id: "field:/id"`, 1), nil, nil, "compacted by key",
		},
		"stranger": {nil, routed, func(s *site) { s.must(http.MethodPut, "/events/_doc/c1-x?refresh=true", `{"n":1}`) }, nil, `such as "c1-x"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, c.topic, c.more)
			s.must(http.MethodPut, "/events", `{"settings":{"number_of_replicas":0}}`)
			for i := range 4 {
				s.produce(0, fmt.Sprintf("c%d-k", i), `{"id":"c1-1","n":1}`)
			}
			if code, stdout, stderr := sluice(t, "routes", "init", "-c", s.config); code != 0 {
				t.Fatalf("routes init: exit code %d: %s%s", code, stdout, stderr)
			}
			if c.prepare != nil {
				c.prepare(s)
			}
			plan := filepath.Join(t.TempDir(), "plan.json")
			s.verb(0, "", "plan", "--source", "events", "--partitions", "2", "--replicas", "0", "--customer", "id:^(c[0-9]+)-", "-o", plan)
			s.verb(0, "", "create", "--plan", plan, "--job", "j7")
			run := append([]string{"run", "--job", "j7", "--source", "kafka"}, c.args...)
			s.verb(1, c.say, run...)
			s.verb(1, "copy from the index: sluice migrate run --source index --job j7", run...)
			s.verb(1, "would be refused", append(run, "--dry-run")...)
		})
	}
}
