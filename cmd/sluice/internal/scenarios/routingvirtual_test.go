//go:build synctests

package scenarios

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// An epoch is adopted while one partition is busy with slow requests, one has
// nothing to do, one never had anything to do, one waits for a target that is
// held, and one is halted on a record: the fence passes within little more than
// what a request takes, and leaves the last two where they are. When their
// causes are gone both sides are equal.
func TestRouting_AdoptsWhateverPartitionsDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const busy, idle, empty, held, halted = 0, 1, 2, 3, 4
		w := newRoutedWorldOf(t, worldOptions{partitions: 5, virtual: true})
		table := partition.New("events", "legacy")
		table.Job, table.Write = "j1", partition.W1
		partitioned(table, "p", 2)
		table.Overrides = map[string]string{"blocked": "p001", "acme": "p000"}
		for _, name := range []string{"legacy", "events-p000", "events-p001"} {
			w.makeIndex(name)
		}
		w.begin(table)
		w.must(http.MethodPut, "/legacy/_mapping", `{"properties":{"n":{"type":"long"}}}`)
		w.must(http.MethodPut, "/events-p001/_settings", `{"index.blocks.write":true}`)
		sendTo := func(p int32, customer string, first, n int) {
			t.Helper()
			all := recordsOf(customer, first, n)
			for _, r := range all {
				r.Partition = p
			}
			w.sendTo(all...)
		}
		for _, p := range []int32{busy, idle, held, halted} {
			sendTo(p, "acme", 100*int(p), 10)
		}
		p := w.start(routedSettings, func(cfg *config.Config, _ *app.Options) { cfg.Documents.OnRejected = "stop" })
		w.awaitDone(p)
		// From now on each request takes a second.
		slow := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Fault{Delay: time.Second}})
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for i := 0; ; i += 10 {
				select {
				case <-stop:
					return
				default:
				}
				sendTo(busy, "acme", 1000+i, 10)
				pass(50 * time.Millisecond)
			}
		}()
		sendTo(held, "blocked", 0, 10)
		w.excuse("acme/bad")
		w.sendTo(&kgo.Record{Partition: halted, Key: []byte("acme/bad"), Value: []byte(`{"n":"no number"}`)})
		p.awaitHold("events-p001")
		p.awaitHalt(topic, halted)
		began := time.Now()
		next := w.change(func(t *partition.Table) error { t.Write = partition.W2; return nil })
		fence := w.fence(next.Epoch, p)
		took := time.Since(began)
		t.Logf("the fence of epoch %d passed after %s, with requests of 1s", next.Epoch, took)
		if took > 3*time.Second {
			t.Errorf("the fence took %s", took)
		}
		if fence[held] != 10 || fence[empty] != 0 || fence[idle] != 10 || fence[halted] != 10 {
			t.Errorf("offsets %v", fence)
		}
		close(stop)
		<-stopped
		slow.Remove()
		w.must(http.MethodPut, "/events-p001/_settings", `{"index.blocks.write":null}`)
		w.await("the record to block again, on the one side that refuses it, and to be skipped", func() error {
			return p.App.Skip(t.Context(), topic, halted, 10, false)
		}, p)
		w.awaitDone(p)
		if s, ok := p.partition(topic, held); !ok || s.State != consumer.StateRunning || s.Epoch != next.Epoch {
			t.Errorf("the held partition: %+v", s)
		}
		fold := w.fold()
		delete(fold, "acme/bad")
		w.checkIndex("legacy", fold)
		both := w.documents("events-p000")
		for id, source := range w.documents("events-p001") {
			both[id] = source
		}
		for id := range fold {
			if both[id] != fold[id] {
				t.Errorf("%s is not the same on the new side", id)
			}
		}
		if _, _, found := w.es.Get(control, "dirty:j1:acme"); !found {
			t.Error("the customer whose sides differ is not marked")
		}
	})
}

// One customer's index, a tenth of the flow, is blocked. Others flow until what
// waits for it fills its share of memory; then reading pauses, and it is said.
func TestRouting_OneCustomerBlocked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newRoutedWorldOf(t, worldOptions{partitions: 4, virtual: true})
		table := partition.New("events", "legacy")
		table.Write, table.Legacy = partition.W3, nil
		partitioned(table, "p", 4)
		table.Partitions["big"] = partition.Partition{Index: "events-big", State: partition.Active}
		table.Overrides = map[string]string{"big": "big"}
		for _, p := range table.Partitions {
			w.makeIndex(p.Index)
		}
		w.begin(table)
		w.must(http.MethodPut, "/events-big/_settings", `{"index.blocks.write":true}`)
		filler := strings.Repeat("x", 4<<10)
		round := func(n int) {
			var batch []*kgo.Record
			for i := range 200 {
				customer := fmt.Sprintf("c%d", i%50)
				if i%10 == 0 {
					customer = "big"
				}
				batch = append(batch, &kgo.Record{Key: fmt.Appendf(nil, "%s/%d-%d", customer, n, i), Value: fmt.Appendf(nil, `{"filler":%q}`, filler)})
			}
			w.send(batch...)
		}
		others := func() (n int) {
			for i := range 4 {
				n += w.es.Count(fmt.Sprintf("events-p%03d", i))
			}
			return n
		}
		p := w.start(routedSettings + "\nmemory: {limit: 64MiB, held_share: 4%}\nindexer: {flush_bytes: 256KiB}\n")
		round(0)
		p.awaitHold("events-big")
		for n := 1; n < 10; n++ { // less than the share
			round(n)
		}
		w.await("the others' records", func() error {
			if n := others(); n != 1800 {
				return fmt.Errorf("%d of 1800", n)
			}
			return nil
		}, p)
		rounds := 10
		w.await("the share to be full, and to be said so", func() error {
			if strings.Contains(p.log.String(), "held targets fill their share of memory") && p.sum("sluice_partitions_paused") > 0 {
				return nil
			}
			if rounds < 80 {
				round(rounds)
				rounds++
			}
			return fmt.Errorf("reading goes on after %d rounds: %v partitions are paused, held are %+v", rounds, p.sum("sluice_partitions_paused"), p.App.Health().Held)
		}, p)
		if h := p.App.Health(); h.OK() || len(h.Held) != 1 || h.Held[0].Target != "events-big" {
			t.Errorf("health %+v", h)
		}
		w.must(http.MethodPut, "/events-big/_settings", `{"index.blocks.write":null}`)
		w.awaitDone(p)
		if n, big := others(), w.es.Count("events-big"); n != rounds*180 || big != rounds*20 {
			t.Errorf("%d and %d documents, want %d and %d", n, big, rounds*180, rounds*20)
		}
	})
}
