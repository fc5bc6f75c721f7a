//go:build integration

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// blocked is how long the index of TestParking takes nothing.
const blocked = time.Minute

// TestParking makes one index of three read-only for a minute, with `held: park`,
// and kills the process twice: while records are parked, and while they are
// brought back. The other indices and the commits never stop; in the end each
// index is the fold of its part of the log, although it forgets deletes at once,
// and nothing is among the dead letters.
//
// It runs on request only: it has not yet been seen to end on a machine that is
// busy with other things, where the servers do not keep up with its flow.
func TestParking(t *testing.T) {
	if os.Getenv("SLUICE_TEST_PARKING") == "" {
		t.Skip("SLUICE_TEST_PARKING is not set")
	}
	const tenants, partitions, padding = 3, 4, 12 << 10
	kafka := startKafka(t, nil)
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	topic, letters, index, group := unique(t, "parking"), unique(t, "letters"), unique(t, "parking"), unique(t, "sluice")
	kafka.CreateTopic(t, topic, partitions)
	kafka.CreateTopic(t, letters, 2)
	name := func(tenant int) string { return fmt.Sprintf("%s-%d", index, tenant) }
	for tenant := range tenants {
		elasticsearch.CreateIndex(t, name(tenant), `{"dynamic":false}`)
		elasticsearch.Do(t, http.MethodPut, "/"+name(tenant)+"/_settings", `{"index.gc_deletes":"1s"}`)
	}

	// Inserts, updates and deletes of a few keys a tenant, all the time.
	var mu sync.Mutex
	want := make([]map[string]string, tenants)
	for tenant := range tenants {
		want[tenant] = map[string]string{}
	}
	config := fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 6s
  commit_interval: 200ms
elasticsearch: {addresses: [%q]}
documents: {index: '%s-${header:tenant}'}
indexer: {held: park, flush_documents: 50, flush_interval: 200ms}
memory: {limit: 16MiB, held_share: 3%%}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), index, letters)
	sluice := startSluice(t, config)
	n := 0
	stop := kafka.ProduceEvery(t, 50*time.Millisecond, func() []*kgo.Record {
		mu.Lock()
		defer mu.Unlock()
		n++
		var batch []*kgo.Record
		for tenant := range tenants {
			key := fmt.Sprintf("t%d-k%d", tenant, n%997)
			r := &kgo.Record{Topic: topic, Key: []byte(key), Headers: []kgo.RecordHeader{{Key: "tenant", Value: fmt.Append(nil, tenant)}}}
			if n%7 == 0 {
				delete(want[tenant], key)
			} else {
				want[tenant][key] = fmt.Sprintf(`{"n":%d,"pad":%q}`, n, strings.Repeat("x", padding))
				r.Value = []byte(want[tenant][key])
			}
			batch = append(batch, r)
		}
		return batch
	})
	indexed := func(tenant int) float64 {
		return sluice.Metrics().Sum("sluice_documents_total", fmt.Sprintf("target=%q", name(tenant)), `outcome="indexed"`)
	}
	parked := func() float64 { return sluice.Metrics().Sum("sluice_parked_targets") }
	// flows waits until all that the topic holds now is committed, and the open
	// indices have got more since.
	flows := func(when string) {
		t.Helper()
		ends, err := kafka.Admin.ListEndOffsets(t.Context(), topic)
		if err = errors.Join(err, ends.Error()); err != nil {
			t.Fatal(err)
		}
		before := []float64{indexed(1), indexed(2)}
		await(t, 2*time.Minute, "records and commits to flow "+when, func() error {
			if err := sluice.Check(); err != nil {
				return err
			}
			committed, err := kafka.Committed(t.Context(), group, topic)
			if err != nil {
				return err
			}
			for _, end := range ends[topic] {
				if committed[end.Partition] < end.Offset {
					return fmt.Errorf("partition %d is committed at %d, its end was %d", end.Partition, committed[end.Partition], end.Offset)
				}
			}
			for i, n := range before {
				if now := indexed(i + 1); now <= n {
					return fmt.Errorf("%s got nothing since %.0f", name(i+1), n)
				}
			}
			return nil
		})
	}
	block := func(on string) {
		t.Helper()
		elasticsearch.Do(t, http.MethodPut, "/"+name(0)+"/_settings", `{"index.blocks.read_only":`+on+`}`)
	}
	t.Cleanup(func() { // a read-only index cannot be removed
		_, _ = request(context.Background(), http.MethodPut, elasticsearch.URL()+"/"+name(0)+"/_settings", []byte(`{"index.blocks.read_only":null}`))
	})

	flows("before the block")
	block("true")
	released := time.After(blocked)
	await(t, time.Minute, "parked records in all partitions", func() error {
		if n := parked(); n != partitions {
			return fmt.Errorf("%.0f partitions park", n)
		}
		return sluice.Check()
	})
	flows("while records are parked")
	sluice.End(t, syscall.SIGKILL)
	assertLedger(t, sluice)
	sluice = startSluice(t, config)
	flows("after a kill while records are parked")
	if n := parked(); n != partitions {
		t.Errorf("%.0f partitions park after the kill", n)
	}
	for open := false; !open; {
		select {
		case <-released:
			open = true
		default:
			flows("during the block")
		}
	}
	if n := indexed(0); n != 0 {
		t.Errorf("the index that is read-only took %.0f documents", n)
	}

	block("null")
	await(t, time.Minute, "parked records to come back", func() error {
		if err := sluice.Check(); err != nil {
			return err
		}
		if n := indexed(0); n < 20 {
			return fmt.Errorf("%.0f did", n)
		}
		return nil
	})
	if parked() == 0 {
		t.Error("all was back before the kill, which was to come between")
	}
	sluice.End(t, syscall.SIGKILL)
	assertLedger(t, sluice)
	sluice = startSluice(t, config)
	flows("after a kill while records come back")
	stop()
	kafka.AwaitNoLag(t, 2*time.Minute, group, topic, sluice.Check)
	await(t, 2*time.Minute, "everything to be back", func() error {
		if n := parked(); n != 0 {
			return fmt.Errorf("%.0f partitions park", n)
		}
		return sluice.Check()
	})
	kafka.AwaitNoLag(t, time.Minute, group, topic, sluice.Check)
	if code := sluice.End(t, syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM ended sluice with exit code %d", code)
	}
	assertLedger(t, sluice)
	mu.Lock()
	defer mu.Unlock()
	for tenant := range tenants {
		compare(t, elasticsearch.Documents(t, name(tenant)), maps.Clone(want[tenant]))
	}
	if n := len(kafka.ReadAll(t, letters)); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
