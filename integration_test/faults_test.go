//go:build integration

package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// stream produces records all the time: keys in turn, now and then a delete.
type stream struct {
	mu   sync.Mutex
	n    int
	want map[string]string // the fold of what the broker has acknowledged
	end  func()
}

// startStream produces about 500 records a second until end is called. What
// the broker does not take at once is tried again for as long as it takes.
func startStream(t *testing.T, kafka *Kafka, topic string, customers ...string) *stream {
	t.Helper()
	s := &stream{want: map[string]string{}}
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			batch := s.batch(topic, customers)
			for {
				err := kafka.Client.ProduceSync(t.Context(), batch...).FirstErr()
				if err == nil {
					break
				}
				// A port whose broker is not up yet takes connections and closes
				// them, and the client gives up on that. Written twice, a batch
				// folds to the same.
				select {
				case <-t.Context().Done():
					t.Errorf("producing: %v", err)
					return
				case <-ticker.C:
				}
			}
			select {
			case <-stopped:
				return
			case <-ticker.C:
			}
		}
	})
	s.end = sync.OnceFunc(func() { close(stopped); running.Wait() })
	t.Cleanup(s.end)
	return s
}

// batch is the next ten records.
func (s *stream) batch(topic string, customers []string) []*kgo.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := make([]*kgo.Record, 10)
	for i := range batch {
		s.n++
		key, value := fmt.Sprintf("key-%d", s.n%997), fmt.Sprintf(`{"n":%d}`, s.n)
		r := &kgo.Record{Topic: topic, Key: []byte(key)}
		if len(customers) > 0 {
			r.Headers = []kgo.RecordHeader{{Key: "customer", Value: []byte(customers[s.n%997%len(customers)])}}
		}
		if s.n%7 == 0 {
			delete(s.want, key)
		} else {
			r.Value, s.want[key] = []byte(value), value
		}
		batch[i] = r
	}
	return batch
}

func (s *stream) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// TestBrokerGoesAway takes the only broker away in midstream: Sluice stays up,
// loses nothing and goes on by itself soon after it is back.
func TestBrokerGoesAway(t *testing.T) {
	t.Parallel() // with what waits for a disk
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	kafka := startKafka(t, kafkaOptions{}) // its own: it is killed
	for _, test := range []struct {
		name       string
		away, back func(*testing.T)
		lasts      time.Duration
	}{
		{"paused", kafka.Pause, kafka.Unpause, 20 * time.Second},
		{"restarted", kafka.Stop, kafka.Restart, 0},
		{"killed", kafka.Kill, kafka.Restart, 3 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			topic, letters, index, group := unique(t, "events"), unique(t, "letters"), unique(t, "events"), unique(t, "sluice")
			kafka.CreateTopic(t, topic, 6)
			kafka.CreateTopic(t, letters, 1)
			elasticsearch.CreateIndex(t, index, `{"dynamic":false}`)
			sluice := startSluice(t, fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  session_timeout: 10s   # below what the pause lasts
elasticsearch: {addresses: [%q]}
documents: {index: %s}
indexer: {flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), index, letters))
			producing := startStream(t, kafka, topic)
			sluice.AwaitOutcomes(t, time.Minute, 500)
			test.away(t)
			hold(t, sluice, time.After(test.lasts))
			test.back(t)
			back := time.Now()
			before := producing.count()
			await(t, time.Minute, "the producer to go on", func() error {
				if n := producing.count(); n < before+500 {
					return fmt.Errorf("%d records since", n-before)
				}
				return sluice.Check()
			})
			producing.end()
			kafka.AwaitNoLag(t, time.Minute, group, topic, sluice.Check)
			t.Logf("all delivered %.1f s after the broker was back", time.Since(back).Seconds())
			if code := sluice.End(t, syscall.SIGTERM); code != 0 {
				t.Errorf("SIGTERM ended sluice with exit code %d", code)
			}
			compare(t, elasticsearch.Documents(t, index), producing.want)
			if n := len(kafka.ReadAll(t, letters)); n != 0 {
				t.Errorf("%d dead letters, want none", n)
			}
		})
	}
}

// TestDiskIsFull lets Elasticsearch come to its flood-stage watermark and be
// freed again: all waits, nothing is rejected, and it goes on by itself.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	kafka := startKafka(t, nil)
	elasticsearch := startElasticsearch(t, elasticsearchOptions{Settings: map[string]string{
		"cluster.routing.allocation.disk.threshold_enabled": "true",
	}})
	watermarks := func(value string) {
		elasticsearch.Do(t, http.MethodPut, "/_cluster/settings", strings.ReplaceAll(`{"persistent":{
			"cluster.info.update.interval":"10s",
			"cluster.routing.allocation.disk.watermark.low":V,
			"cluster.routing.allocation.disk.watermark.high":V,
			"cluster.routing.allocation.disk.watermark.flood_stage":V,
			"cluster.routing.allocation.disk.watermark.flood_stage.max_headroom":null}}`, "V", value))
	}
	watermarks(`"100%"`) // of the developer's disk
	topic, letters, index, group := unique(t, "events"), unique(t, "letters"), unique(t, "events"), unique(t, "sluice")
	kafka.CreateTopic(t, topic, 6)
	kafka.CreateTopic(t, letters, 1)
	elasticsearch.CreateIndex(t, index, `{"dynamic":false}`)
	sluice := startSluice(t, fmt.Sprintf(`
kafka: {brokers: [%q], group_id: %s, topics: [%s]}
elasticsearch: {addresses: [%q]}
documents: {index: %s}
indexer: {flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), index, letters))
	producing := startStream(t, kafka, topic)
	sluice.AwaitOutcomes(t, time.Minute, 500)
	watermarks(`"1%"`)
	await(t, time.Minute, "the index to be held", func() error { return sluice.held(index) })
	full := commits(t, kafka, group, topic)
	hold(t, sluice, time.After(3*time.Second))
	watermarks("null")
	watermarks(`"100%"`)
	freed := time.Now()
	await(t, time.Minute, "commits to go on", func() error {
		for partition, offset := range commits(t, kafka, group, topic) {
			if offset <= full[partition] {
				return fmt.Errorf("partition %d stands at %d", partition, offset)
			}
		}
		return sluice.Check()
	})
	producing.end()
	kafka.AwaitNoLag(t, time.Minute, group, topic, sluice.Check)
	t.Logf("all delivered %.1f s after the disk was free", time.Since(freed).Seconds())
	if code := sluice.End(t, syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM ended sluice with exit code %d", code)
	}
	compare(t, elasticsearch.Documents(t, index), producing.want)
	if n := len(kafka.ReadAll(t, letters)); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

// held fails unless /healthz names the target among those that are held.
func (s *Sluice) held(target string) error {
	resp, err := http.Get("http://" + s.admin + "/healthz")
	if err != nil {
		return errors.Join(err, s.Check())
	}
	defer resp.Body.Close()
	var health struct {
		Held []struct{ Target string } `json:"held_targets"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&health); err != nil {
		return err
	}
	for _, h := range health.Held {
		if h.Target == target {
			return nil
		}
	}
	return fmt.Errorf("held are %v", health.Held)
}

// TestOneTargetIsBlocked blocks the index of one customer and mends it: that
// customer's records wait, those of the other flow, and nothing is rejected.
func TestOneTargetIsBlocked(t *testing.T) {
	kafka := startKafka(t, nil)
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	for _, test := range []struct {
		name           string
		block, unblock func(t *testing.T, target string)
	}{
		{
			"read-only",
			func(t *testing.T, target string) {
				elasticsearch.Do(t, http.MethodPut, "/"+target+"-1/_settings", `{"index.blocks.write":true}`)
			},
			func(t *testing.T, target string) {
				elasticsearch.Do(t, http.MethodPut, "/"+target+"-1/_settings", `{"index.blocks.write":null}`)
			},
		},
		{
			"alias without write index",
			func(t *testing.T, target string) {
				elasticsearch.Do(t, http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[
					{"add":{"index":"%[1]s-1","alias":"%[1]s","is_write_index":false}},
					{"add":{"index":"%[1]s-2","alias":"%[1]s","is_write_index":false}}]}`, target))
			},
			func(t *testing.T, target string) {
				elasticsearch.Do(t, http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[
					{"remove":{"index":"%[1]s-2","alias":"%[1]s"}},
					{"add":{"index":"%[1]s-1","alias":"%[1]s","is_write_index":true}}]}`, target))
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			topic, letters, prefix, group := unique(t, "events"), unique(t, "letters"), unique(t, "events"), unique(t, "sluice")
			kafka.CreateTopic(t, topic, 6)
			kafka.CreateTopic(t, letters, 1)
			blocked, free := prefix+"-blocked", prefix+"-free"
			for _, target := range []string{blocked, free} {
				elasticsearch.CreateIndex(t, target+"-1", `{"dynamic":false}`)
				elasticsearch.CreateIndex(t, target+"-2", `{"dynamic":false}`)
				elasticsearch.Do(t, http.MethodPost, "/_aliases", fmt.Sprintf(`{"actions":[{"add":{"index":"%[1]s-1","alias":"%[1]s","is_write_index":true}}]}`, target))
			}
			sluice := startSluice(t, fmt.Sprintf(`
kafka: {brokers: [%q], group_id: %s, topics: [%s]}
elasticsearch: {addresses: [%q]}
documents: {index: "%s-${customer}", customer: "header:customer", require_alias: true}
indexer: {flush_interval: 200ms}
dead_letter: {topic: %s}
`, kafka.address, group, topic, elasticsearch.URL(), prefix, letters))
			producing := startStream(t, kafka, topic, "blocked", "free")
			sluice.AwaitOutcomes(t, time.Minute, 500)
			test.block(t, blocked)
			await(t, time.Minute, "the target to be held", func() error { return sluice.held(blocked) })
			if err := sluice.held(free); err == nil {
				t.Errorf("%s is held too", free)
			}
			written := func() float64 {
				return sluice.Metrics().Sum("sluice_documents_total", fmt.Sprintf("target=%q", free))
			}
			before := written()
			await(t, time.Minute, "the other target to go on", func() error {
				if n := written(); n < before+300 {
					return fmt.Errorf("%.0f documents since", n-before)
				}
				return sluice.Check()
			})
			if err := sluice.held(blocked); err != nil {
				t.Errorf("it is not held any more: %v", err)
			}
			test.unblock(t, blocked)
			producing.end()
			kafka.AwaitNoLag(t, time.Minute, group, topic, sluice.Check)
			if code := sluice.End(t, syscall.SIGTERM); code != 0 {
				t.Errorf("SIGTERM ended sluice with exit code %d", code)
			}
			got := elasticsearch.Documents(t, blocked+"-1")
			for id, document := range elasticsearch.Documents(t, free+"-1") {
				got[id] = document
			}
			compare(t, got, producing.want)
			if n := len(elasticsearch.Documents(t, blocked+"-2")); n != 0 {
				t.Errorf("%d documents were misplaced", n)
			}
			if n := len(kafka.ReadAll(t, letters)); n != 0 {
				t.Errorf("%d dead letters, want none", n)
			}
		})
	}
}

// TestConsumerProtocol has two members of the consumer protocol (KIP-848) share
// a topic, and kills one: all records arrive.
func TestConsumerProtocol(t *testing.T) {
	kafka := startKafka(t, nil)
	elasticsearch := startElasticsearch(t, elasticsearchOptions{})
	topic, letters, index, group := unique(t, "events"), unique(t, "letters"), unique(t, "events"), unique(t, "sluice")
	kafka.CreateTopic(t, topic, 6)
	kafka.CreateTopic(t, letters, 1)
	elasticsearch.CreateIndex(t, index, `{"dynamic":false}`)
	const token = "a token of this test"
	tokenFile := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	config := fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
  group_protocol: consumer
  session_timeout: 6s   # as the broker has it
elasticsearch: {addresses: [%q]}
documents: {index: %s}
indexer: {flush_interval: 200ms}
dead_letter: {topic: %s}
admin: {token_file: %q}
`, kafka.address, group, topic, elasticsearch.URL(), index, letters, tokenFile)
	first := startSluice(t, config)
	producing := startStream(t, kafka, topic)
	first.AwaitOutcomes(t, time.Minute, 500)
	second := startSluice(t, config)
	second.AwaitOutcomes(t, time.Minute, 200)
	misdirected := 0
	groups, err := kafka.Admin.DescribeConsumerGroups(t.Context(), group)
	if err == nil {
		err = groups.Error()
	}
	if err != nil || len(groups[group].Members) != 2 {
		t.Errorf("the group is %+v, %v: want two members of the consumer protocol", groups[group], err)
	}
	// Who does not hold a partition names the member that does.
	for _, member := range groups[group].Members {
		for partition := range member.Assignment[topic] {
			switch status, said := first.trySkip(t, token, topic, partition); {
			case status == http.StatusOK, status == http.StatusConflict:
				// It is the first's.
			case status != http.StatusMisdirectedRequest:
				t.Errorf("skip of partition %d: %d %s", partition, status, said)
			case !strings.Contains(said, member.MemberID):
				t.Errorf("%s holds partition %d, and the other says: %s", member.MemberID, partition, said)
			default:
				misdirected++
			}
		}
	}
	if misdirected != 3 {
		t.Errorf("%d of 6 partitions are with the other, says the first", misdirected)
	}
	second.End(t, syscall.SIGKILL)
	await(t, time.Minute, "the first to have all partitions", func() error {
		if n := len(first.Metrics().named("sluice_committed_offset")); n != 6 {
			return fmt.Errorf("it has %d", n)
		}
		return first.Check()
	})
	producing.end()
	kafka.AwaitNoLag(t, time.Minute, group, topic, first.Check)
	if code := first.End(t, syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM ended sluice with exit code %d", code)
	}
	compare(t, elasticsearch.Documents(t, index), producing.want)
	if n := len(kafka.ReadAll(t, letters)); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

// trySkip asks the process to skip the first record of a partition, which blocks
// nothing, and gives its answer.
func (s *Sluice) trySkip(t *testing.T, token, topic string, partition int32) (status int, said string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.admin+"/v1/skip",
		strings.NewReader(fmt.Sprintf(`{"topic":%q,"partition":%d,"offset":0}`, topic, partition)))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(text)
}

// named gives the samples of a name.
func (m Metrics) named(name string) (samples Metrics) {
	for i := range m {
		if m[i].name == name {
			samples = append(samples, m[i])
		}
	}
	return samples
}
