package scenarios

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/embedded"
)

// tally sees the actions that reach Elasticsearch, and refuses some.
type tally struct {
	refuse func() bool // nil: none

	mu       sync.Mutex
	seen     map[string]int
	accepted map[string]int
	newest   map[string]int64 // version that was accepted last
	late     []string         // actions that came after a newer one was accepted
}

func newTally(refuse func() bool) *tally {
	return &tally{refuse: refuse, seen: map[string]int{}, accepted: map[string]int{}, newest: map[string]int64{}}
}

// item is a Fault.Items.
func (c *tally) item(a embedded.Action) *embedded.ItemError {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := string(a.ID)
	action := id + "@" + strconv.FormatInt(a.Version, 10)
	c.seen[action]++
	if a.Version > 0 && a.Version <= c.newest[id] {
		c.late = append(c.late, action)
	}
	if c.refuse != nil && c.refuse() {
		return &embedded.ItemError{Status: http.StatusTooManyRequests, Type: "es_rejected_execution_exception", Reason: "rejected execution of primary operation"}
	}
	c.accepted[action]++
	c.newest[id] = a.Version
	return nil
}

// some refuses a share of what it is asked for, up to a number.
func some(share float64, most int) func() bool {
	random := rand.New(rand.NewPCG(7, 7))
	return func() bool {
		if most == 0 || random.Float64() >= share {
			return false
		}
		most--
		return true
	}
}

// produceFilled writes n records of size bytes or so, which do not compress, in
// batches that are small beside the memory limits of these tests.
func (w *world) produceFilled(n, size int) {
	w.t.Helper()
	random := rand.NewChaCha8([32]byte{})
	filler := make([]byte, size/2)
	all := make([]*kgo.Record, n)
	for i := range all {
		_, _ = random.Read(filler) // does not fail
		all[i] = &kgo.Record{Key: fmt.Appendf(nil, "k%d", i), Value: fmt.Appendf(nil, `{"filler":"%x"}`, filler)}
	}
	w.write(func(ctx context.Context, records ...*kgo.Record) error {
		client, err := kgo.NewClient(append(w.kafka.ClientOptions(), kgo.ProducerBatchMaxBytes(128<<10))...)
		if err != nil {
			return err
		}
		defer client.Close()
		return client.ProduceSync(ctx, records...).FirstErr()
	}, all)
}

// V21: the whole request fails with 500 while memory is full: every record has
// exactly one result.
func TestV21_ServerErrorWhileTheBufferIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 4})
	w.produceFilled(1200, 8<<10)
	broken := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.ServerError()})
	p := w.begin("{indexer: {flush_bytes: 256KiB}, memory: {limit: 16MiB}}")
	w.await("memory to be full", func() error {
		if paused, hits := p.sum("sluice_partitions_paused"), broken.Hits(); paused == 0 || hits < 10 {
			return fmt.Errorf("%v partitions are paused, %d requests failed", paused, hits)
		}
		return nil
	}, p)
	broken.Remove()
	w.awaitDone(p)
	w.checkFates(p, nil)
}

// V22: answers under index, create, delete and update are understood; one under
// a key that nobody knows proves nothing, and the same actions are sent again.
func TestV22_AnswerKeys(t *testing.T) {
	for _, test := range []struct {
		key, yaml string
		record    func(i int) *kgo.Record
		repeats   bool // the second try is a repeat for the server
		outcome   string
	}{
		{"index", "", func(i int) *kgo.Record { return record(fmt.Sprint("k", i), i) }, true, "indexed"},
		{"create", "", func(i int) *kgo.Record { return value(fmt.Sprintf(`{"n":%d}`, i)) }, true, "indexed"},
		{"delete", "", func(i int) *kgo.Record { return tombstone(fmt.Sprint("k", i)) }, true, "deleted"},
		{"update", "documents: {op: upsert}", func(i int) *kgo.Record { return record(fmt.Sprint("k", i), i) }, false, "indexed"},
	} {
		t.Run(test.key, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.effect = nil // updates carry no version to go by
			const n = 50
			var all []*kgo.Record
			for i := range n {
				all = append(all, test.record(i))
			}
			w.produce(all...)
			known, unknown := fmt.Appendf(nil, "{%q:", test.key), []byte(`{"frobnicate":`)
			w.es.Inject(embedded.Rule{API: "bulk", Next: 1, Fault: embedded.Fault{Edit: func(body []byte) []byte {
				if got := bytes.Count(body, known); got != n {
					t.Errorf("%d items under %s, want %d", got, test.key, n)
				}
				return bytes.ReplaceAll(body, known, unknown)
			}}})
			p := w.begin("indexer: {flush_documents: 50, flush_interval: 5s}\n" + test.yaml)
			w.awaitDone(p)
			want := map[string]int{test.outcome: n}
			if test.repeats {
				want = map[string]int{"stale": n}
			}
			for _, outcome := range []string{"indexed", "deleted", "stale", "dead_lettered"} {
				if got := p.outcomes(outcome); got != want[outcome] {
					t.Errorf("%d records are %s, want %d", got, outcome, want[outcome])
				}
			}
			if docs := w.es.Count(index); docs != n && test.key != "delete" || docs != 0 && test.key == "delete" {
				t.Errorf("%d documents", docs)
			}
			if got := p.sum("sluice_bulk_requests_total"); got != 2 {
				t.Errorf("%v requests, want the one and its repeat", got)
			}
		})
	}
}

// V23: a create whose answer was lost finds its own document: it is handled,
// and counted as a repeat.
func TestV23_CreateSeesItsOwnFirstTry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const n = 100
	var all []*kgo.Record
	for i := range n {
		all = append(all, value(fmt.Sprintf(`{"n":%d}`, i)))
	}
	w.produce(all...)
	want := map[string]versioned{}
	for _, r := range all {
		want[fmt.Sprintf("%s+0+%d", topic, r.Offset)] = versioned{string(r.Value), keyless}
	}
	lost := w.es.Inject(embedded.Rule{API: "bulk", Next: 1, Fault: embedded.Lost()})
	p := w.begin("indexer: {flush_documents: 100, flush_interval: 5s}")
	w.awaitDone(p)
	w.checkVersioned(index, want)
	w.checkLetters(nil)
	if stale, indexed := p.outcomes("stale"), p.outcomes("indexed"); lost.Hits() != 1 || stale != n || indexed != 0 {
		t.Errorf("%d answers were lost; %d records count as repeats and %d as indexed, want all %d as repeats", lost.Hits(), stale, indexed, n)
	}
}

// V24: the answer breaks off after each of its bytes: the actions are sent
// again, and there is one document a record.
func TestV24_AnswerBreaksOffAnywhere(t *testing.T) {
	for name, make := range map[string]func(i int) *kgo.Record{
		"keys":      func(i int) *kgo.Record { return record(fmt.Sprint("k", i), i) },
		"positions": func(i int) *kgo.Record { return value(fmt.Sprintf(`{"n":%d}`, i)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			const n = 2
			fates := map[*kgo.Record]fate{}
			for i := range n {
				r := make(i)
				w.produce(r)
				fates[r] = fate{}
			}
			var mu sync.Mutex
			cut, whole := 0, -1
			w.es.Intercept(func(r *embedded.Request) *embedded.Fault {
				if r.API() != "bulk" {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if whole >= 0 && cut >= whole {
					return nil
				}
				f := embedded.Cut(cut)
				cut++
				f.Edit = func(body []byte) []byte {
					mu.Lock()
					defer mu.Unlock()
					whole = len(body) // of the repeats' answer, in the end
					return body
				}
				return &f
			})
			p := w.begin("indexer: {flush_documents: 2, flush_interval: 5s, retry: {initial: 1ms, max: 1ms}}")
			w.awaitDone(p)
			if cut < whole || whole < 100 { // more, where an earlier answer was longer
				t.Fatalf("the answer was cut after %d of its %d bytes", cut, whole)
			}
			want := map[string]versioned{}
			for r := range fates {
				id, version := string(r.Key), sequence(r)
				if r.Key == nil {
					id, version = fmt.Sprintf("%s+0+%d", topic, r.Offset), keyless
				}
				want[id] = versioned{string(r.Value), version}
			}
			w.checkVersioned(index, want)
			w.checkLetters(nil)
			if got := p.outcomes("stale"); got != n {
				t.Errorf("%d records count as repeats, want %d", got, n)
			}
			if got := len(w.es.Ops(index)); got != n {
				t.Errorf("%d writes were accepted, want %d", got, n)
			}
		})
	}
}

// V25: an answer that is a proxy's page, half of it, none, or one item short
// proves nothing: the actions are sent again; no page stands in the log.
func TestV25_AnswerIsNoAnswer(t *testing.T) {
	for name, fault := range map[string]embedded.Fault{
		"page":           embedded.HTML(http.StatusOK),
		"half":           {Edit: func(b []byte) []byte { return b[:len(b)/2] }},
		"none":           {Edit: func([]byte) []byte { return nil }},
		"one item short": embedded.OneItemLess(),
		"bad gateway":    embedded.HTML(http.StatusBadGateway),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{partitions: 2})
			const n = 500
			all := records(n)
			w.produce(all...)
			fault.Apply = true
			w.es.Inject(embedded.Rule{API: "bulk", Next: 2, Fault: fault})
			p := w.begin("indexer: {flush_documents: 100}")
			w.awaitDone(p)
			w.checkFold()
			w.checkLetters(nil)
			stale, indexed := p.outcomes("stale"), p.outcomes("indexed")
			if stale+indexed != n || stale == 0 {
				t.Errorf("%d records count as repeats and %d as indexed, want %d in all, of them the first two requests'", stale, indexed, n)
			}
			if log := p.log.String(); strings.Contains(log, "<html") || strings.Contains(log, `\u003chtml`) {
				t.Error("the page stands in the log")
			}
		})
	}
}

// V26: the server takes requests up to 1 MiB, batches are of 4. They are split
// to fit, the size is learnt, and the one record of 2 MiB, which never fits, is
// dead-lettered.
func TestV26_RequestTooLarge(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	w := newWorld(t, worldOptions{
		kafka:  []kfake.Opt{kfake.BrokerConfigs(map[string]string{"message.max.bytes": fmt.Sprint(4 * limit)})},
		client: []kgo.Opt{kgo.ProducerBatchMaxBytes(3 * limit)},
	})
	w.es.SetMaxContentLength(limit)
	n := 0
	documents := func(count, size int) (all []*kgo.Record) {
		filler := strings.Repeat("x", size)
		for range count {
			all = append(all, &kgo.Record{Key: fmt.Appendf(nil, "k%d", n), Value: fmt.Appendf(nil, `{"n":%d,"filler":%q}`, n, filler)})
			n++
		}
		return all
	}
	large := documents(1, 2*limit)[0]
	p := w.begin("indexer: {flush_bytes: 4MiB}")
	fates := map[*kgo.Record]fate{large: returned(http.StatusRequestEntityTooLarge, "http_413")}
	w.runFates(p, fates, slices.Concat(documents(2500, 2<<10), []*kgo.Record{large}, documents(2500, 2<<10))...)

	refused := p.sum("sluice_bulk_requests_total", "status", "413")
	if refused == 0 {
		t.Fatal("no request was too large")
	}
	w.runFates(p, fates, documents(2500, 2<<10)...)
	if again := p.sum("sluice_bulk_requests_total", "status", "413") - refused; again != 0 {
		t.Errorf("%v more requests were too large: the limit was not learnt", again)
	}
}

// V27: the server turns whole requests away, or its thread pool shuts down:
// nothing ends and nothing is lost, fewer requests are sent, and more again
// when it has recovered.
func TestV27_RequestsTurnedAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 4})
	p := w.begin("indexer: {flush_documents: 20, requests: {max: 16}, retry: {initial: 5ms, max: 20ms}}")
	w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Slow(2 * time.Millisecond)})
	n := 0
	more := func() {
		var all []*kgo.Record
		for range 2000 {
			all = append(all, record(fmt.Sprint("k", n), n))
			n++
		}
		w.produce(all...)
	}
	await := func(what string, there func(limit float64) bool) {
		w.await(what, func() error {
			if w.lag(topic) < 2000 && n < 100_000 {
				more()
			}
			if limit := p.sum("sluice_adaptive_concurrency_limit"); !there(limit) {
				return fmt.Errorf("the limit is %v after %d records", limit, n)
			}
			return nil
		}, p)
	}
	var before, lowered float64
	await("some requests in flight", func(limit float64) bool { before = limit; return limit >= 4 })
	away := w.es.Inject(embedded.Rule{API: "bulk", Share: 0.5, Fault: embedded.TooManyRequests(0)})
	await("half as many requests in flight", func(limit float64) bool { lowered = limit; return limit <= before/2 })
	w.await("the state to say so", func() error {
		if state := p.App.Health().State; state != "throttled" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	}, p)
	away.Remove()
	await("more requests in flight again", func(limit float64) bool { return limit > lowered })

	closed := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Answer(http.StatusServiceUnavailable,
		`{"error":{"type":"es_rejected_execution_exception","reason":"rejected execution (shutting down)"},"status":503}`)})
	more()
	w.await("refusals", func() error {
		if closed.Hits() < 50 {
			return fmt.Errorf("%d", closed.Hits())
		}
		return nil
	}, p)
	closed.Remove()
	w.awaitDone(p)
	w.checkFates(p, nil)
}

// An outage behind a gateway, which answers for Elasticsearch, is no record's
// fault, however long it lasts.
func TestV27_GatewayWithoutAServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2})
	p := w.begin("indexer: {flush_documents: 100, retry: {initial: 1ms, max: 2ms}}")
	w.produce(records(1)...)
	w.awaitDone(p)
	gone := w.es.Inject(embedded.Rule{Fault: embedded.HTML(http.StatusServiceUnavailable)})
	w.produce(records(1001)[1:]...)
	w.await("a long outage", func() error {
		if gone.Hits() < 500 {
			return fmt.Errorf("%d requests failed", gone.Hits())
		}
		return nil
	}, p)
	if h := p.App.Health(); h.Elasticsearch.Available || h.State == "running" {
		t.Errorf("%+v while only the gateway answers", h)
	}
	gone.Remove()
	w.awaitDone(p)
	w.checkFates(p, nil)
	if strings.Contains(p.log.String(), "blocked on a record") {
		t.Error("a record is called the cause of an outage")
	}
}

// ofCustomers are n records of each customer, in turn.
func ofCustomers(n int, customers ...string) (all []*kgo.Record) {
	for i := range n {
		for _, c := range customers {
			all = append(all, &kgo.Record{
				Key: fmt.Appendf(nil, "%s-%d", c, i), Value: fmt.Appendf(nil, `{"n":%d}`, i),
				Headers: []kgo.RecordHeader{{Key: "customer", Value: []byte(c)}},
			})
		}
	}
	return all
}

const byCustomer = `documents: {index: "events-${customer}", customer: "header:customer"}`

// customerEffect is what a record of ofCustomers does.
func customerEffect(r *kgo.Record) embedded.Effect {
	return embedded.Effect{Index: "events-" + string(r.Headers[0].Value), ID: string(r.Key), Version: sequence(r)}
}

// checkCustomers fails the test unless each customer's index holds its records.
func (w *world) checkCustomers(customers ...string) {
	w.t.Helper()
	for _, c := range customers {
		want := map[string]versioned{}
		for _, r := range w.log {
			if string(r.Headers[0].Value) == c {
				want[string(r.Key)] = versioned{string(r.Value), sequence(r)}
			}
		}
		w.checkVersioned("events-"+c, want)
	}
}

// awaitHold waits until exactly this target is held, and returns why.
func (p *program) awaitHold(target string) (reason string) {
	p.w.t.Helper()
	p.w.await(target+" to be held", func() error {
		held := p.App.Health().Held
		if len(held) != 1 || held[0].Target != target {
			return fmt.Errorf("held are %+v", held)
		}
		reason = held[0].Reason
		return nil
	}, p)
	return reason
}

// V28: what waits for the blocked index fills its share of memory at most; then
// reading pauses, and goes on when the index is free again.
func TestV28_HeldShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.must(http.MethodPut, "/"+index, `{"settings":{"index.blocks.write":true}}`)
	w.produceFilled(1200, 8<<10)
	p := w.begin("{indexer: {flush_bytes: 256KiB}, memory: {limit: 16MiB, held_share: 25%}}")
	p.awaitHold(index)
	looks := 0
	w.await("reading to pause, for a while", func() error {
		held, paused := p.App.Health().Held, p.sum("sluice_partitions_paused")
		if paused == 1 && len(held) == 1 && held[0].Bytes > 0 {
			looks++
		}
		if len(held) == 1 && held[0].Bytes > 5<<20 {
			t.Fatalf("%d bytes wait for the held target, its share is 4 MiB", held[0].Bytes)
		}
		if looks < 10 {
			return fmt.Errorf("%v partitions are paused, held are %+v", paused, held)
		}
		return nil
	}, p)
	w.must(http.MethodPut, "/"+index+"/_settings", `{"index.blocks.write":null}`)
	w.awaitDone(p)
	w.checkFates(p, nil)
}

// V29: while records are written an alias loses its write index, or is deleted:
// nothing is written to the wrong place and no index of that name is made, the
// alarm names the alias, and all goes on when it is repaired. Elasticsearch asks
// require_alias of no delete, and makes a missing index for one that carries a
// version: a template must forbid that.
func TestV29_AliasTrouble(t *testing.T) {
	const aliasOf = `{"actions":[{"add":{"index":"store-1","alias":"events","is_write_index":%v}},{"add":{"index":"store-2","alias":"events"}}]}`
	const gone = `{"actions":[{"remove":{"index":"store-1","alias":"events"}},{"remove":{"index":"store-2","alias":"events"}}]}`
	const noIndexForDeletes = `{"index_patterns":["events"],"allow_auto_create":false}`
	for name, test := range map[string]struct {
		trouble, template string
		deletes           bool
		reason            string
	}{
		"no write index":        {fmt.Sprintf(aliasOf, false), "", true, "illegal_argument_exception"},
		"deleted":               {gone, "", false, "index_not_found_exception"},
		"deleted, with deletes": {gone, noIndexForDeletes, true, "index_not_found_exception"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.must(http.MethodPut, "/store-1", "")
			w.must(http.MethodPut, "/store-2", "")
			if test.template != "" {
				w.must(http.MethodPut, "/_index_template/no-index-for-deletes", test.template)
			}
			w.must(http.MethodPost, "/_aliases", fmt.Sprintf(aliasOf, true))
			w.effect = func(r *kgo.Record) embedded.Effect {
				return embedded.Effect{Index: "store-1", ID: string(r.Key), Version: sequence(r)}
			}
			p := w.begin("documents: {require_alias: true}")
			all := records(100)
			w.produce(all[:50]...)
			w.awaitDone(p)

			w.must(http.MethodPost, "/_aliases", test.trouble)
			before := w.fold()
			w.produce(all[50:]...)
			if test.deletes {
				w.produce(tombstone("k0"))
			}
			if reason := p.awaitHold(index); reason != test.reason {
				t.Errorf("held for %s, want %s", reason, test.reason)
			}
			if slices.Contains(w.es.Indices(), index) || w.es.Count("store-2") != 0 {
				t.Errorf("misplaced: indices %v", w.es.Indices())
			}
			w.checkIndex("store-1", before)
			w.must(http.MethodPost, "/_aliases", fmt.Sprintf(aliasOf, true))
			w.awaitDone(p)
			if slices.Contains(w.es.Indices(), index) || w.es.Count("store-2") != 0 {
				t.Errorf("misplaced: indices %v", w.es.Indices())
			}
			w.checkIndex("store-1", w.fold())
			w.checkLetters(nil)
		})
	}
}

// V30: while Elasticsearch is down fetching pauses, memory stays below its
// limit and nothing is committed; afterwards everything arrives.
func TestV30_MemoryWhileElasticsearchIsDown(t *testing.T) {
	t.Parallel()
	const partitions = 24 // whose queues would fill memory, each below its own mark
	w := newWorld(t, worldOptions{partitions: partitions})
	const n, size, limit = 2000, 8 << 10, 8 << 20 // twice what memory holds
	w.produceFilled(n, size)
	down := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Refused()})
	p := w.begin("{indexer: {flush_bytes: 128KiB}, memory: {limit: 8MiB}}")
	// Each look of await checks that no more is held than may be.
	looks := 0
	w.await("memory to be full, for a while", func() error {
		families := p.gather()
		paused, used := sumOf(families, "sluice_partitions_paused"), sumOf(families, "sluice_memory_used_bytes")
		if paused == partitions && used > limit/4 {
			looks++
		}
		if looks < 10 || down.Hits() < 10 {
			return fmt.Errorf("%v partitions are paused, %v bytes held, %d requests failed", paused, used, down.Hits())
		}
		return nil
	}, p)
	if consumed := p.sum("sluice_records_consumed_total"); consumed*size > limit {
		t.Errorf("%v records of %d bytes were taken into %d", consumed, size, limit)
	}
	for partition := range int32(partitions) {
		if at := w.committed(topic, partition); at > 0 {
			t.Errorf("partition %d is committed at %d", partition, at)
		}
	}
	down.Remove()
	w.awaitDone(p)
	w.checkFates(p, nil)
}
