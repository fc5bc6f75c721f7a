//go:build synctests

package scenarios

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/memory"
)

// parks has the records of held targets parked.
func parks(cfg *config.Config, _ *app.Options) { cfg.Indexer.Held = "park" }

// tenants are customers with an index each, of one topic.
type tenants struct {
	*world
	n    int
	rows int
}

func newTenants(t *testing.T, n int, partitions int32) *tenants {
	t.Helper()
	x := &tenants{newWorld(t, worldOptions{
		partitions: partitions, brokers: 2, virtual: true, topics: map[string]int32{app.ParkedTopic(letters): 3},
	}), n, 0}
	x.effect = func(r *kgo.Record) embedded.Effect {
		e := x.sequenced(r)
		e.Index = tenantIndex(r)
		return e
	}
	return x
}

func tenantIndex(r *kgo.Record) string { return "events-" + string(r.Headers[0].Value) }

const tenantSettings = "documents: {index: 'events-${header:tenant}'}\n"

// put changes the settings of a tenant's index past the program.
func (x *tenants) block(tenant int, on bool) {
	x.t.Helper()
	value := "null"
	if on {
		value = "true"
	}
	name := fmt.Sprintf("http://elasticsearch/events-%d", tenant)
	if on && x.es.Count(fmt.Sprintf("events-%d", tenant)) < 0 {
		x.t.Fatal("no index to block")
	}
	x.send(http.MethodPut, name+"/_settings", fmt.Sprintf(`{"index.blocks.write":%s}`, value))
}

func (x *tenants) send(method, url, body string) {
	x.t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := x.es.Transport().RoundTrip(req)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		x.t.Fatalf("%s %s: %d %s %v", method, url, resp.StatusCode, text, err)
	}
}

// create makes the tenants' indices, which keep deletes in mind.
func (x *tenants) create() {
	x.t.Helper()
	for i := range x.n {
		x.send(http.MethodPut, fmt.Sprintf("http://elasticsearch/events-%d", i), `{"settings":{"index":{"gc_deletes":"15m"}}}`)
	}
}

// more writes a record for each tenant: inserts, updates and deletes of a few
// keys.
func (x *tenants) more() {
	x.t.Helper()
	var all []*kgo.Record
	for i := range x.n {
		r := &kgo.Record{
			Key:     fmt.Appendf(nil, "t%d-k%d", i, x.rows%37),
			Headers: []kgo.RecordHeader{{Key: "tenant", Value: fmt.Append(nil, i)}},
		}
		if x.rows%11 != 0 {
			r.Value = fmt.Appendf(nil, `{"n":%d,"pad":%q}`, x.rows, strings.Repeat("x", 1000))
		}
		all = append(all, r)
	}
	x.rows++
	x.produce(all...)
}

// check compares all indices with the fold of the log.
func (x *tenants) check() {
	x.t.Helper()
	want := map[string]map[string]string{}
	for i := range x.n {
		want[fmt.Sprintf("events-%d", i)] = map[string]string{}
	}
	x.mu.Lock()
	for _, r := range x.log {
		if r.Value == nil {
			delete(want[tenantIndex(r)], string(r.Key))
		} else {
			want[tenantIndex(r)][string(r.Key)] = string(r.Value)
		}
	}
	x.mu.Unlock()
	for name, docs := range want {
		x.checkIndex(name, docs)
	}
	if n := len(x.letters()); n != 0 {
		x.t.Errorf("%d dead letters", n)
	}
}

// parked is how many targets are parked, over all partitions that are held.
func (p *program) parked() (n int) {
	for _, s := range p.partitions() {
		n += len(s.Parked)
	}
	return n
}

// awaitReopened waits until nothing is parked any more.
func (x *tenants) awaitReopened(apps ...*program) {
	x.t.Helper()
	x.await("all lanes to close", func() error {
		for _, p := range apps {
			if n := p.parked(); n != 0 {
				return fmt.Errorf("%d targets are parked: %+v", n, p.partitions())
			}
		}
		return nil
	}, apps...)
}

// One customer's index, a tenth of the flow, is blocked for five minutes: the
// others go on as fast as before, commits go on, memory is bounded, nothing is
// dead-lettered, and everything is in order afterwards.
func TestParking_OneCustomerBlocked(t *testing.T) {
	const count, blocked, every = 10, 5 * time.Minute, 250 * time.Millisecond
	bubble(t, func(t *testing.T) {
		x := newTenants(t, count, 4)
		x.create()
		p := x.start(tenantSettings+"memory: {limit: 4MiB, held_share: 3%}\nindexer: {flush_bytes: 64KiB}", parks)
		x.more()
		x.awaitDone(p)
		x.block(0, true)
		written := func() (n float64) {
			for i := 1; i < count; i++ {
				n += p.sum("sluice_documents_total", "target", fmt.Sprintf("events-%d", i))
			}
			return n
		}
		before, began, rows := written(), time.Now(), x.rows
		behind := int64(0)
		for time.Since(began) < blocked {
			x.more()
			pass(every)
			p.audit()
			if time.Since(began) > time.Minute {
				behind = max(behind, x.lag(topic))
			}
		}
		others, produced := written()-before, float64((x.rows-rows)*(count-1))
		if others < 0.9*produced {
			t.Errorf("of the others' %v records %v were written during the block", produced, others)
		}
		if most := int64(20 * count); behind > most {
			t.Errorf("commits were up to %d records behind", behind)
		}
		if n := p.parked(); n != 4 {
			t.Errorf("%d targets of partitions are parked", n)
		}
		if h := p.Health(); len(h.Held) != 1 || h.Held[0].Target != "events-0" {
			t.Errorf("health: %+v", h)
		}
		x.awaitDone(p) // although the target is held
		if n := p.outcomes("parked"); n < x.rows/2 {
			t.Errorf("%d records were parked", n)
		}
		x.block(0, false)
		x.awaitReopened(p)
		x.more()
		x.awaitDone(p)
		x.check()
		if n := p.sum("sluice_documents_total", "outcome", "stale"); n != 0 {
			t.Errorf("%v documents came after newer ones, or twice", n)
		}
		t.Logf("%v of %v records of the others, at most %d behind, %d parked", others, produced, behind, p.outcomes("parked"))
	})
}

// A member is killed, thrown out of the group, or joined by another at each
// step of the protocol: nothing is lost, and everything is in order, although
// Elasticsearch forgets deletes within a second.
func TestParking_EachStep(t *testing.T) {
	steps := []string{"state acknowledged", "records produced", "committed", "replay begun", "replay half", "reopened"}
	for _, step := range steps {
		for _, what := range []string{"kill", "thrown out", "rebalance"} {
			t.Run(what+", "+step, func(t *testing.T) {
				bubble(t, func(t *testing.T) { disturbParking(t, step, what) })
			})
		}
	}
}

func disturbParking(t *testing.T, step, what string) {
	x := newTenants(t, 2, 2)
	for i := range x.n {
		x.send(http.MethodPut, fmt.Sprintf("http://elasticsearch/events-%d", i), `{"settings":{"index":{"gc_deletes":"1s"}}}`)
	}
	small := func(cfg *config.Config, _ *app.Options) {
		cfg.Memory.HeldShare = memory.Share(8<<10) / memory.Share(cfg.Memory.Limit)
	}
	start := func() *program {
		return x.start(tenantSettings+"kafka: {session_timeout: 6s}\nmemory: {limit: 4MiB}\nindexer: {flush_bytes: 16KiB}", parks, small)
	}
	running := []*program{start()}
	for range 20 {
		x.more()
	}
	x.awaitDone(running...)
	x.block(0, true)

	// Requests tell of the steps of parking; they are dropped when it is time.
	reached := make(chan struct{}, 1)
	arm := func(key kmsg.Key, when func(kmsg.Request) bool) {
		x.kafka.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			if !when(req) {
				x.kafka.KeepControl()
				return nil, nil, false
			}
			x.kafka.DropControl()
			reached <- struct{}{}
			return nil, errCut, true
		})
	}
	switch step {
	case "state acknowledged":
		id := x.kafka.TopicInfo(app.ParkedTopic(letters)).TopicID
		arm(kmsg.Produce, func(req kmsg.Request) bool {
			return slices.ContainsFunc(req.(*kmsg.ProduceRequest).Topics, func(t kmsg.ProduceRequestTopic) bool {
				return t.Topic == app.ParkedTopic(letters) || t.TopicID == id
			})
		})
	case "records produced":
		arm(kmsg.OffsetCommit, func(kmsg.Request) bool { return running[0].outcomes("parked") > 0 })
	}
	more := func(n int) {
		for range n {
			x.more()
			pass(20 * time.Millisecond)
		}
	}
	strike := func() {
		switch what {
		case "kill":
			running[0].kill()
			running = []*program{start()}
		case "thrown out":
			x.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.UnknownMemberID, Count: 1})
		case "rebalance":
			running = append(running, start())
		}
	}
	early := step == "state acknowledged" || step == "records produced"
	more(100)
	if early {
		<-reached
		strike()
	}
	x.await("records to be parked, and commits to go on", func() error {
		if n := x.lag(topic); n != 0 {
			return fmt.Errorf("lag is %d", n)
		}
		for _, p := range running {
			if p.outcomes("parked") > 0 || p.parked() > 0 {
				return nil
			}
		}
		return errors.New("nothing is parked")
	}, running...)
	if step == "committed" {
		strike()
	}
	more(50)
	slow := x.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Slow(150 * time.Millisecond)})
	done := len(x.es.Ops("events-0"))
	x.block(0, false)
	replayed := func(n int) func() error {
		return func() error {
			if got := len(x.es.Ops("events-0")) - done; got < n {
				return fmt.Errorf("%d records were replayed", got)
			}
			return nil
		}
	}
	switch step {
	case "replay begun":
		x.await(step, replayed(1), running...)
		strike()
	case "replay half":
		x.await(step, replayed(60), running...)
		strike()
	case "reopened":
		x.awaitReopened(running...)
		strike()
	}
	more(20)
	slow.Remove()
	x.awaitDone(running...)
	x.awaitReopened(running...)
	x.check()
}
