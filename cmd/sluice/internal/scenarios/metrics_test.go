package scenarios

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/embedded"
)

// gauge is the value of a partition's gauge, false where there is no such
// series. Lag is never negative, whenever one looks.
func (p *program) gauge(name string, partition int) (value float64, there bool) {
	p.w.t.Helper()
	for _, m := range p.gather()[name].GetMetric() {
		if labelOf(m, "topic") == topic && labelOf(m, "partition") == strconv.Itoa(partition) {
			value, there = m.GetGauge().GetValue(), true
		}
	}
	if value < 0 {
		p.w.t.Errorf("%s of partition %d is %v", name, partition, value)
	}
	return value, there
}

// awaitLag waits until the lag of a partition is n.
func (p *program) awaitLag(partition int, n float64) {
	p.w.t.Helper()
	p.w.await(fmt.Sprintf("lag %v of partition %d", n, partition), func() error {
		if lag, there := p.gauge("sluice_consumer_lag", partition); !there || lag != n {
			return fmt.Errorf("there is a series: %v, it says %v", there, lag)
		}
		return nil
	}, p)
}

// onPartition are n records with keys of their own for one partition.
func onPartition(partition int32, from, n int) (all []*kgo.Record) {
	for i := range n {
		r := record(fmt.Sprintf("p%d-%d", partition, from+i), from+i)
		r.Topic, r.Partition = topic, partition
		all = append(all, r)
	}
	return all
}

// V49: lag is what there is to read between the commit, or the log's start if
// that is higher, and the log's end; the series of a partition goes when the
// partition goes.
func TestV49_LagNumbers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2})
	w.produceTo(append(onPartition(0, 0, 100), onPartition(1, 0, 10)...)...)
	first := w.begin("kafka: {on_data_loss: resume}")
	w.awaitDone(first)
	first.awaitLag(0, 0)
	first.awaitLag(1, 0)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if _, there := first.gauge("sluice_consumer_lag", 0); there {
		t.Error("there is a lag of a partition that is not held any more")
	}

	// 100 to 199 are written and 0 to 149 deleted while nobody reads.
	w.produceTo(append(onPartition(0, 100, 100), onPartition(1, 10, 3)...)...)
	if err := w.kafka.DeleteRecords(topic, 0, 150); err != nil {
		t.Fatal(err)
	}
	w.effect = func(r *kgo.Record) embedded.Effect {
		return embedded.Effect{Index: index, ID: string(r.Key), Version: sequence(r), Ignored: r.Partition == 0 && 100 <= r.Offset && r.Offset < 150}
	}
	halted := w.begin("kafka: {on_data_loss: halt}")
	if h := halted.awaitHalt(topic, 0); h.Kind != "data_loss" {
		t.Errorf("halted: %+v", h)
	}
	halted.awaitLag(0, 50)
	if at := w.committed(topic, 0); at != 100 {
		t.Errorf("committed is %d, want 100, where the first member stopped", at)
	}
	if err := halted.stop(); err != nil {
		t.Fatal(err)
	}

	w.produceTo(onPartition(1, 13, 3)...)
	down := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Refused()})
	second := w.begin("kafka: {on_data_loss: resume}")
	second.awaitLag(0, 50)
	second.awaitLag(1, 3)
	down.Remove()
	w.await("lag 0", func() error {
		if a, b := w.committed(topic, 0), w.committed(topic, 1); a != 200 || b != 16 {
			return fmt.Errorf("committed is %d and %d", a, b)
		}
		return nil
	}, second)
	second.awaitLag(0, 0)
	if at, there := second.gauge("sluice_committed_offset", 0); !there || at != 200 {
		t.Errorf("the committed offset is shown as %v", at)
	}

	third := w.begin("kafka: {on_data_loss: resume}")
	shown := func(p *program) (n int) {
		for partition := range 2 {
			for _, name := range []string{"sluice_consumer_lag", "sluice_consumer_lag_seconds", "sluice_committed_offset", "sluice_records_in_flight", "sluice_queue_bytes"} {
				if _, there := p.gauge(name, partition); there {
					n++
				}
			}
		}
		return n
	}
	second.awaitHeld(1)
	third.awaitHeld(1)
	// The ends of logs that stand still are looked at now and then only.
	w.produceTo(append(onPartition(0, 200, 1), onPartition(1, 16, 1)...)...)
	w.await("each member to show one partition", func() error {
		if a, b := shown(second), shown(third); a != 5 || b != 5 {
			return fmt.Errorf("%d and %d series", a, b)
		}
		return nil
	}, second, third)
	// Counters stay.
	if n := second.sum("sluice_records_consumed_total"); n != 54 {
		t.Errorf("%v records were consumed, want 54", n)
	}
}

// V50: where 3 documents of 1,000 in one request fail, the counters of
// failures move by 3, whatever follows a rejection.
func TestV50_CountersCountDocuments(t *testing.T) {
	for policy, outcome := range map[string]string{"dead_letter": "dead_lettered", "drop": "ignored"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			const n = 1000
			bad := map[string]bool{"k7": true, "k500": true, "k999": true}
			w.effect = func(r *kgo.Record) embedded.Effect {
				return embedded.Effect{Index: index, ID: string(r.Key), Version: sequence(r), Ignored: bad[string(r.Key)]}
			}
			w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.FailItems(embedded.ItemError{Status: 400, Type: parsing, Reason: "failed to parse"},
				func(a embedded.Action) bool { return bad[string(a.ID)] })})
			w.produce(records(n)...)
			p := w.begin("indexer: {flush_documents: 1000}\ndocuments: {on_rejected: " + policy + "}")
			w.awaitDone(p)
			for _, c := range []struct {
				name   string
				labels []string
				want   float64
			}{
				{"sluice_records_total", []string{"outcome", outcome}, 3},
				{"sluice_records_total", []string{"outcome", "indexed"}, n - 3},
				{"sluice_records_total", nil, n},
				{"sluice_records_consumed_total", nil, n},
				{"sluice_documents_total", []string{"target", index, "outcome", "rejected"}, 3},
				{"sluice_documents_total", []string{"target", index, "outcome", "indexed"}, n - 3},
				{"sluice_documents_total", nil, n},
				{"sluice_dead_letters_total", nil, map[string]float64{"dead_letter": 3}[policy]},
				{"sluice_retries_total", nil, 3}, // the one second try of each
				{"sluice_memory_used_bytes", nil, 0},
			} {
				// What is counted when an answer has been dealt with may come after the
				// commit.
				w.await(fmt.Sprint(c.name, c.labels), func() error {
					if got := p.sum(c.name, c.labels...); got != c.want {
						return fmt.Errorf("it is %v, want %v", got, c.want)
					}
					return nil
				}, p)
			}
		})
	}
}

// V53: for each dead-lettered record there is a log line that says where it
// came from and of what type its error is; its content stands in the dead
// letter alone.
func TestV53_DeadLettersCanBeFound(t *testing.T) {
	eachValidate(t, func(t *testing.T, strict bool, validate change) {
		w := newWorld(t, worldOptions{partitions: 3})
		w.mapping(`{"properties":{"n":{"type":"long"}}}`)
		fates := map[*kgo.Record]fate{}
		all := records(200)
		for i := range 20 {
			r := record(fmt.Sprint("bad-", secret, i), i)
			r.Headers = []kgo.RecordHeader{{Key: "token", Value: []byte(secret)}}
			switch i % 4 {
			case 0:
				r.Value, fates[r] = []byte(`{"n":"`+secret+`"}`), returned(400, parsing)
			case 1:
				r.Value, fates[r] = []byte(`["`+secret+`"]`), refused("not_an_object")
			case 2:
				r.Key, fates[r] = []byte(strings.Repeat(secret, 100)+strconv.Itoa(i)), refused("id_too_long")
			case 3:
				r.Value, fates[r] = []byte(`{"`+secret+`":nope}`), returned(400, parsing)
				if strict {
					fates[r] = refused("invalid_json")
				}
			}
			all = append(all, r)
		}
		p := w.begin("", validate)
		w.runFates(p, fates, all...)
		found := map[string]string{}
		for line := range strings.Lines(p.log.String()) {
			var l struct {
				Message, Topic, Type string
				Partition            int32
				Offset               int64
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("a log line is not JSON: %v", err)
			}
			if l.Message == "dead letter" {
				found[fmt.Sprintf("%s/%d/%d", l.Topic, l.Partition, l.Offset)] = l.Type
			}
		}
		for r, f := range fates {
			if got := found[position(r)]; got != f.typ {
				t.Errorf("the log tells of %s as %q, want %s", position(r), got, f.typ)
			}
		}
		if len(found) != len(fates) {
			t.Errorf("the log tells of %d dead letters, want %d", len(found), len(fates))
		}
	})
}
