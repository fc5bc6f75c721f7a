//go:build integration

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestRollingUpgrade replaces three replicas one after the other, as a
// Kubernetes StatefulSet does: SIGTERM, the same member again, the next one once
// it is ready; records flow meanwhile. Nothing is lost, nothing is read twice, and
// a source partition stands still for a few seconds at most. A second time one
// of the indices takes nothing: its records wait, and are read again.
//
// SLUICE_TEST_UPGRADES=10 does it so often, each; the default is once.
func TestRollingUpgrade(t *testing.T) {
	upgrades := 1
	if text := os.Getenv("SLUICE_TEST_UPGRADES"); text != "" {
		var err error
		if upgrades, err = strconv.Atoi(text); err != nil {
			t.Fatalf("SLUICE_TEST_UPGRADES=%s: want a number", text)
		}
	}
	for _, held := range []bool{false, true} {
		name := "all flows"
		if held {
			name = "a held target"
		}
		t.Run(name, func(t *testing.T) { rollingUpgrade(t, upgrades, held) })
	}
}

func rollingUpgrade(t *testing.T, upgrades int, held bool) {
	const replicas, partitions, every = 3, 12, 20 * time.Millisecond
	kafka := startKafka(t, nil)
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	topic, letters, index, group := unique(t, "upgrade"), unique(t, "letters"), unique(t, "upgrade"), unique(t, "sluice")
	kafka.CreateTopic(t, topic, partitions)
	kafka.CreateTopic(t, letters, 1)
	for _, name := range []string{"open", "shut"} {
		elasticsearch.CreateIndex(t, index+"-"+name, `{"dynamic":false}`)
	}
	block := func(on string) {
		t.Helper()
		elasticsearch.Do(t, http.MethodPut, "/"+index+"-shut/_settings", `{"index.blocks.write":`+on+`}`)
	}

	r := &replicaSet{handled: map[string]float64{}, rose: map[string]time.Time{}, longest: map[string]time.Duration{}}
	for i := range replicas {
		r.configs = append(r.configs, fmt.Sprintf(`
kafka: {brokers: [%q], group_id: %s, topics: [%s], instance_id: replica-%d, session_timeout: 30s}
elasticsearch: {addresses: [%q]}
documents: {index: '%s-${header:index}'}
dead_letter: {topic: %s}
`, kafka.address, group, topic, i, elasticsearch.URL(), index, letters))
		r.members = append(r.members, startSluice(t, r.configs[i]))
	}

	// In each partition a record every 20 ms, each with a key of its own; one in
	// fifty is for the other index.
	want := map[string]map[string]string{"open": {}, "shut": {}}
	n := 0
	stop := kafka.ProduceEvery(t, every, func() []*kgo.Record {
		batch := make([]*kgo.Record, partitions)
		for p := range batch {
			to := "open"
			if (n+p)%50 == 0 {
				to = "shut"
			}
			key, value := fmt.Sprintf("p%d-%d", p, n), fmt.Sprintf(`{"n":%d}`, n)
			want[to][key] = value
			batch[p] = &kgo.Record{Topic: topic, Partition: int32(p), Key: []byte(key), Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "index", Value: []byte(to)}}}
		}
		n++
		return batch
	})

	watching, end := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(watching) })
	t.Cleanup(func() { end(); watch.Wait() })
	flow := func() {
		t.Helper()
		began := time.Now()
		await(t, time.Minute, "records of all partitions to be handled", func() error {
			return errors.Join(r.check(), r.since(began, partitions))
		})
	}
	flow()
	if held {
		block("true")
		t.Cleanup(func() { // so that the index can be removed
			_, _ = request(context.Background(), http.MethodPut, elasticsearch.URL()+"/"+index+"-shut/_settings", []byte(`{"index.blocks.write":null}`))
		})
		await(t, time.Minute, "each replica to hold the target", func() error {
			for i, m := range r.members {
				if m.Metrics().Sum("sluice_targets_held") == 0 {
					return fmt.Errorf("replica %d does not", i)
				}
			}
			return r.check()
		})
	}
	r.round()
	r.gaps = nil // what came before does not count
	for range upgrades {
		for i := range replicas {
			if code := r.members[i].End(t, syscall.SIGTERM); code != 0 {
				t.Errorf("SIGTERM ended replica %d with exit code %d", i, code)
			}
			next := startSluice(t, r.configs[i])
			await(t, time.Minute, "the replica to be ready", func() error {
				_, err := request(t.Context(), http.MethodGet, "http://"+next.admin+"/readyz", nil)
				return errors.Join(err, next.Check())
			})
			r.replace(i, next)
			flow()
		}
		r.round()
	}
	end()
	watch.Wait()
	if held {
		block("null")
	}
	stop()
	kafka.AwaitNoLag(t, 2*time.Minute, group, topic, r.check)
	elasticsearch.Do(t, http.MethodPost, "/"+index+"-*/_refresh", "")
	for name, documents := range want {
		compare(t, elasticsearch.Documents(t, index+"-"+name), documents)
	}
	if got := kafka.ReadAll(t, letters); len(got) != 0 {
		t.Errorf("%d dead letters", len(got))
	}
	again := r.again()
	if again != 0 && !held {
		t.Errorf("%.0f records were indexed twice", again)
	}
	slices.Sort(r.gaps)
	most := len(r.gaps) - 1
	t.Logf("%d upgrades of %d replicas, %d partitions, %d records: %.0f indexed again; the longest that a partition stood still, an upgrade: median %s, p99 %s, most %s",
		upgrades, replicas, partitions, n*partitions, again, r.gaps[most/2], r.gaps[most*99/100], r.gaps[most])
}

// replicaSet is what the replicas of a group do together.
type replicaSet struct {
	configs []string

	mu      sync.Mutex
	members []*Sluice
	ended   float64                  // documents that those which have ended wrote again
	handled map[string]float64       // records by admin address and partition
	rose    map[string]time.Time     // when that of a partition last rose
	longest map[string]time.Duration // that it took to rise again, in this round
	gaps    []time.Duration          // of the rounds before
}

func (r *replicaSet) replace(i int, next *Sluice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended += stale(r.members[i])
	r.members[i] = next
}

func (r *replicaSet) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed []error
	for _, m := range r.members {
		failed = append(failed, m.Check())
	}
	return errors.Join(failed...)
}

// watch looks at which partitions go on, until ctx ends.
func (r *replicaSet) watch(ctx context.Context) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		r.look(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *replicaSet) look(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		byPartition := map[string]float64{}
		for _, sample := range m.Metrics() {
			if sample.name == "sluice_records_total" {
				byPartition[sample.label("partition")] += sample.value
			}
		}
		for partition, n := range byPartition {
			if n <= r.handled[m.admin+"/"+partition] {
				continue
			}
			r.handled[m.admin+"/"+partition] = n
			if last, ok := r.rose[partition]; ok {
				r.longest[partition] = max(r.longest[partition], now.Sub(last))
			}
			r.rose[partition] = now
		}
	}
}

// since fails unless all partitions have gone on since then.
func (r *replicaSet) since(then time.Time, partitions int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, last := range r.rose {
		if last.After(then) {
			n++
		}
	}
	if n < partitions {
		return fmt.Errorf("%d of %d partitions go on", n, partitions)
	}
	return nil
}

// round ends an upgrade.
func (r *replicaSet) round() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = slices.AppendSeq(r.gaps, maps.Values(r.longest))
	clear(r.longest)
}

func stale(s *Sluice) float64 { return s.Metrics().Sum("sluice_documents_total", `outcome="stale"`) }

// again is how many documents were written a second time.
func (r *replicaSet) again() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.ended
	for _, m := range r.members {
		sum += stale(m)
	}
	return sum
}
