//go:build integration

package integration_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// outage is how long Elasticsearch is away: 20 s, or what SLUICE_TEST_OUTAGE
// says.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SLUICE_TEST_OUTAGE")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SLUICE_TEST_OUTAGE: %v", err)
	}
	return d
}

// recovery is the longest from the first healthy answer to the last commit.
const recovery = 15 * time.Second

// TestElasticsearchGoesAway takes Elasticsearch away in midstream. Sluice stays
// up and in its group, commits nothing, holds no more bytes than it may, and
// delivers everything soon after the cluster is back.
func TestElasticsearchGoesAway(t *testing.T) {
	kafka := startKafka(t, nil)
	// A node of its own, since it is killed.
	elasticsearch := startElasticsearch(t, elasticsearchOptions{Settings: map[string]string{}})
	for _, test := range []struct {
		name string
		away func(*testing.T)
		back func(*testing.T)
	}{
		{"paused", elasticsearch.Pause, elasticsearch.Unpause},
		{"killed", elasticsearch.Kill, elasticsearch.Restart},
	} {
		t.Run(test.name, func(t *testing.T) {
			topic, letters, index, group := unique(t, "events"), unique(t, "letters"), unique(t, "events"), unique(t, "sluice")
			kafka.CreateTopic(t, topic, 12)
			kafka.CreateTopic(t, letters, 1)
			elasticsearch.CreateIndex(t, index, `{"dynamic":false}`)

			// Twice what memory holds, so that fetching must pause.
			const limit, size, count = 16 << 20, 1 << 10, 32 << 10
			random := rand.NewChaCha8([32]byte{})
			filler := make([]byte, size/2)
			want := map[string]string{}
			var records []*kgo.Record
			for n := range count {
				_, _ = random.Read(filler) // does not fail
				key, value := fmt.Sprintf("key-%d", n), fmt.Sprintf(`{"n":%d,"filler":"%x"}`, n, filler)
				want[key] = value
				records = append(records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)})
			}
			first, rest := records[:count/8], records[count/8:]

			sluice := startSluice(t, fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 10s   # below the outage
elasticsearch: {addresses: [%q]}
documents: {index: %s}
indexer: {flush_documents: 500}
memory: {limit: %dB}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), index, limit, letters))
			produceAside(t, kafka, first).Wait()
			kafka.AwaitNoLag(t, time.Minute, group, topic, sluice.Check)

			producing := produceAside(t, kafka, rest)
			sluice.AwaitOutcomes(t, time.Minute, count/8+1) // midstream
			test.away(t)
			producing.Wait()
			// What was answered before is committed within commit_interval; 3 s
			// is plenty for that and part of the outage.
			ended := time.After(outage(t))
			hold(t, sluice, time.After(3*time.Second))
			before, member := commits(t, kafka, group, topic), membership(t, kafka, group)
			hold(t, sluice, ended)
			if after := commits(t, kafka, group, topic); !maps.Equal(before, after) {
				t.Errorf("commits moved while nothing was answered: from %v to %v", before, after)
			}
			if after := membership(t, kafka, group); after != member {
				t.Errorf("the group was %s and is %s: sluice did not stay in it", member, after)
			}
			if lag, err := kafka.Lag(t.Context(), group, topic); err != nil || lag == 0 {
				t.Errorf("lag is %d (%v): nothing was left to deliver, the outage came too late", lag, err)
			}

			test.back(t)
			await(t, time.Minute, "a healthy cluster", func() error { return errors.Join(sluice.Check(), elasticsearch.Healthy(t.Context())) })
			healthy := time.Now()
			kafka.AwaitNoLag(t, recovery, group, topic, sluice.Check)
			t.Logf("all delivered %.1f s after the first healthy answer; resident memory at its highest: %s",
				time.Since(healthy).Seconds(), highWater(sluice.cmd.Process.Pid))
			if after := membership(t, kafka, group); after != member {
				t.Errorf("the group was %s and is %s: sluice did not stay in it", member, after)
			}
			if code := sluice.End(t, syscall.SIGTERM); code != 0 {
				t.Errorf("SIGTERM ended sluice with exit code %d", code)
			}
			assertLedger(t, sluice)
			compare(t, elasticsearch.Documents(t, index), want)
			if n := len(kafka.ReadAll(t, letters)); n != 0 {
				t.Errorf("%d dead letters, want none", n)
			}
		})
	}
}

// hold lets time pass, and fails when sluice ends or a scrape is wrong.
func hold(t *testing.T, sluice *Sluice, until <-chan time.Time) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-until:
			return
		case <-ticker.C:
			if err := sluice.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func commits(t *testing.T, kafka *Kafka, group, topic string) map[int32]int64 {
	t.Helper()
	committed, err := kafka.Committed(t.Context(), group, topic)
	if err != nil {
		t.Fatal(err)
	}
	return committed
}

// membership describes who is in the group: its state and member ids. An id
// changes when a member is thrown out and joins again.
func membership(t *testing.T, kafka *Kafka, group string) string {
	t.Helper()
	groups, err := kafka.Admin.DescribeGroups(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	described := groups[group]
	text := described.State
	for i := range described.Members {
		text += " " + described.Members[i].MemberID
	}
	if described.State != "Stable" || len(described.Members) != 1 {
		t.Errorf("the group %s is not one member's: %s (%v)", group, text, described.Err)
	}
	return text
}

// highWater reads the most memory a process ever had resident, where the
// system tells.
func highWater(pid int) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "not known"
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			return strings.TrimSpace(value)
		}
	}
	return "not known"
}
