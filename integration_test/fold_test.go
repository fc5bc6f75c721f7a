//go:build integration

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestIndexIsTheFoldOfTheLog writes few keys often, with deletes between, and
// kills the process once: the newest record of each key wins, and a deleted
// key stays deleted.
func TestIndexIsTheFoldOfTheLog(t *testing.T) {
	kafka := startKafka(t, nil)
	for name, options := range map[string]elasticsearchOptions{
		"Elasticsearch": {},
		"OpenSearch":    {OpenSearch: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := startElasticsearch(t, options)
			topic, letters, index, group := unique(t, "keys"), unique(t, "letters"), unique(t, "keys"), unique(t, "sluice")
			kafka.CreateTopic(t, topic, 4)
			kafka.CreateTopic(t, letters, 1)
			server.CreateIndex(t, index, `{"dynamic":false}`)

			random := rand.New(rand.NewPCG(1, 2))
			want := map[string]string{}
			var records []*kgo.Record
			for n := range 40_000 {
				key := fmt.Sprintf("key-%d", random.IntN(500))
				record := &kgo.Record{Topic: topic, Key: []byte(key)}
				if random.IntN(4) == 0 {
					delete(want, key)
				} else {
					want[key] = fmt.Sprintf(`{"n": %d}`, n)
					record.Value = []byte(want[key])
				}
				records = append(records, record)
			}

			config := fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 6s
  commit_interval: 200ms
elasticsearch: {addresses: [%q]}
documents: {index: %s}
indexer: {flush_documents: 500, flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, server.URL(), index, letters)
			sluice := startSluice(t, config)
			producing := produceAside(t, kafka, records)
			sluice.AwaitOutcomes(t, time.Minute, float64(len(records)/4))
			sluice.End(t, syscall.SIGKILL)
			assertLedger(t, sluice)
			producing.Wait()

			sluice = startSluice(t, config)
			kafka.AwaitNoLag(t, 2*time.Minute, group, topic, sluice.Check)
			if code := sluice.End(t, syscall.SIGTERM); code != 0 {
				t.Errorf("SIGTERM ended sluice with exit code %d", code)
			}
			assertLedger(t, sluice)
			compare(t, server.Documents(t, index), want)
			if n := len(kafka.ReadAll(t, letters)); n != 0 {
				t.Errorf("%d dead letters, want none", n)
			}
		})
	}
}
