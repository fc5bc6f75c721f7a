package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// routed is the configuration of a stream whose keys begin with the customer.
const routed = soon + `documents: {id: key, customer: "key:^(c[0-9]+)-"}
routing: {stream: events, refresh_interval: 50ms, max_staleness: 1s}
`

// verb runs a verb of migrate that must end with this code and say this.
func (s *site) verb(code int, say string, args ...string) string {
	s.Helper()
	got, stdout, stderr := sluice(s.T, append([]string{"migrate", args[0], "-c", s.config}, args[1:]...)...)
	if got != code || !strings.Contains(stdout+stderr, say) {
		s.Fatalf("migrate %v: exit code %d, want %d and %q:\n%s%s", args, got, code, say, stdout, stderr)
	}
	return stdout
}

// The runbook of docs/migrations.md, as it is written there, with real
// consumers that read and write all the while.
func TestMigrateRunbook(t *testing.T) {
	s := newSite(t, nil, routed)
	s.must(http.MethodPut, "/events", `{"settings":{"number_of_replicas":0,"number_of_shards":2},"mappings":{"properties":{"n":{"type":"long"}}}}`)
	key := func(i int) string { return fmt.Sprintf("c%d-k%d", i%9, i) }
	var legacy strings.Builder
	for i := range 500 {
		fmt.Fprintf(&legacy, `{"index":{"_id":%q}}`+"\n"+`{"n":-1}`+"\n", key(i))
	}
	s.must(http.MethodPost, "/events/_bulk?refresh=true", legacy.String())
	want := map[string]string{}
	for i := range 500 {
		want[key(i)] = `{"n":-1}`
	}
	if code, stdout, stderr := sluice(t, "routes", "init", "-c", s.config); code != 0 {
		t.Fatalf("routes init: exit code %d: %s%s", code, stdout, stderr)
	}
	first, second := s.start(), s.start()
	defer first.stop()
	defer second.stop()

	producing, end := context.WithCancel(t.Context())
	var producer sync.WaitGroup
	producer.Go(func() {
		random := rand.New(rand.NewPCG(1, 1))
		for n := 0; producing.Err() == nil; n++ {
			i := random.IntN(700)
			body := fmt.Sprintf(`{"n":%d}`, n)
			want[key(i)] = body
			if random.IntN(4) == 0 {
				body = ""
				delete(want, key(i))
			}
			s.produce(int32(i%2), key(i), body)
		}
	})

	plan := filepath.Join(t.TempDir(), "plan.json")
	s.verb(0, "c8", "plan", "--source", "events", "--partitions", "3", "--replicas", "0", "-o", plan)
	s.verb(0, "would do: index events-p000-j7", "create", "--plan", plan, "--job", "j7", "--dry-run")
	s.verb(0, "j7 is CREATED", "create", "--plan", plan, "--job", "j7")
	s.verb(1, "needs SYNCED", "cutover", "--job", "j7", "--all", "--yes")
	s.verb(0, "lag=1m", "throttle", "--job", "j7", "--set", "lag=1m", "--set", "disk=99")
	s.verb(0, "j7 is SYNCED", "run", "--job", "j7")
	s.verb(0, "j7 SYNCED 100.0%", "status")
	s.verb(0, "clean", "verify", "--job", "j7", "--level", "L2", "--full")
	s.verb(0, "now:      both sides are written", "status", "--job", "j7")
	s.verb(0, "1 2", "reports", "--job", "j7")
	s.verb(0, "clean", "reports", "--job", "j7", "--report", "2")
	s.verb(exitUsage, "job j7 keeps 2 reports", "reports", "--job", "j7", "--report", "3")
	s.verb(0, "j7 is CUTOVER", "cutover", "--job", "j7", "--customers", "c3")
	s.verb(0, "CUTOVER", "status", "--job", "j7")
	s.verb(0, "", "cutover", "--job", "j7", "--next", "--bake", "0s")
	s.verb(1, "repeat with --yes", "cutover", "--job", "j7", "--all")
	s.verb(0, "j7 is SYNCED", "rollback", "--job", "j7", "--all")
	s.verb(0, "", "cutover", "--job", "j7", "--all", "--yes")
	s.verb(1, "no clean verification", "complete", "--job", "j7", "--min-bake", "0s", "--keep-old", "0s", "--yes")
	s.verb(0, "clean", "verify", "--job", "j7")
	s.verb(exitTryLater, "wait, or name a shorter --min-bake", "complete", "--job", "j7", "--keep-old", "0s", "--yes")
	s.verb(exitTryLater, "would be refused: all customers are cut over since", "complete", "--job", "j7", "--keep-old", "0s", "--yes", "--dry-run")
	s.verb(exitFailed, "repeat with --yes", "complete", "--job", "j7") // that does not pass by itself
	s.verb(0, "j7 is COMPLETED", "complete", "--job", "j7", "--min-bake", "0s", "--keep-old", "0s", "--yes")
	s.verb(1, "repeat with --confirm events", "drop", "--job", "j7", "--confirm", "event")
	s.verb(0, "j7 is DROPPED", "drop", "--job", "j7", "--confirm", "events", "--searched")
	end()
	producer.Wait()

	s.wantsSplit(want)
	events := s.verb(0, "needs SYNCED", "events", "--job", "j7", "--json")
	refusals := 0
	for line := range strings.Lines(events) {
		var e migrate.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(e.Result, "is refused") {
			refusals++
		}
	}
	if refusals != 6 {
		t.Errorf("%d refusals are in the audit log, want 6:\n%s", refusals, events)
	}
	var jobs []migrate.Status
	s.get(first.url+"/v1/jobs", &jobs)
	if len(jobs) != 1 || jobs[0].State != migrate.Dropped || jobs[0].Mode != partition.W3 {
		t.Errorf("/v1/jobs says %+v", jobs)
	}
}

// wantsSplit waits until the index partitions hold exactly these documents.
func (s *site) wantsSplit(want map[string]string) {
	s.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		have := map[string]string{}
		for _, index := range s.es.Indices() {
			if strings.HasPrefix(index, "events-p") {
				for d := range s.es.Docs(index) {
					have[d.ID] = string(d.Source)
				}
			}
		}
		if maps.Equal(have, want) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			s.Fatalf("%d documents, want %d", len(have), len(want))
		}
	}
}

func (s *site) get(url string, into any) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusOK {
		s.Fatalf("%s: %s: %v", url, res.Status, err)
	}
}

// Every command that docs/migrations.md shows exists, with its flags.
func TestMigrationCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/migrations.md")
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
		if code, _, stderr := sluice(t, append(strings.Fields(command), "--help")...); code != 0 {
			t.Errorf("sluice %s: exit code %d: %s", command, code, stderr)
		}
	}
	if n < 9 {
		t.Errorf("%d commands were found: the test looks in the wrong place", n)
	}
}
