//go:build synctests

package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/embedded"
)

// cast plans the members: who joins, leaves, is killed or frozen, and when.
// Someone is left in the end.
func (s *scenario) cast(r *rand.Rand) {
	n := 2 + r.IntN(3)
	lives := func(m int, join time.Duration) {
		s.step("join", join, fmt.Sprintf("member %d", m), func(w *world) { w.join(m) })
	}
	for m := range n {
		join := time.Duration(0)
		if m > 0 && r.IntN(3) > 0 {
			join = between(r, 0, load)
		}
		lives(m, join)
		if m == 0 {
			continue // the one that is left
		}
		if r.IntN(4) > 0 {
			at := between(r, join+100*time.Millisecond, load+5*time.Second)
			if r.IntN(2) == 0 {
				s.step("soft stop", at, fmt.Sprintf("member %d", m), func(w *world) { w.leave(m) })
			} else {
				s.step("hard kill", at, fmt.Sprintf("member %d", m), func(w *world) { w.kill(m) })
			}
		}
	}
	if s.cfg.static {
		// One that is killed may start anew in its place, before the group knows.
		for _, x := range slices.Clone(s.steps) {
			if m, again := n, x; x.kind == "hard kill" && r.IntN(2) == 0 {
				var before int
				_, _ = fmt.Sscanf(again.text, "member %d", &before) // this file wrote it
				s.step("restart", x.at+between(r, 0, 5*time.Second), fmt.Sprintf("member %d as %d", before, m), func(w *world) { w.joinAs(m, before) })
				n++
			}
		}
	}
	s.members = n
	if s.grow != nil {
		s.steps = append(s.steps, step{
			at: s.grow.at, kind: "growth", text: fmt.Sprintf("%s has %d partitions, the generation is raised", s.topics[0].name, s.grow.partitions),
			begin: func(w *world) func() {
				w.met("growth", 1)
				w.growTopic()
				return nil
			},
		})
		lives(n, s.grow.at+between(r, 0, 3*time.Second))
		s.members++
		return
	}
	if r.IntN(3) > 0 {
		return
	}
	// The first one goes, too, and another one takes over.
	at := between(r, load/3, load)
	if r.IntN(2) == 0 {
		s.step("soft stop", at, "member 0", func(w *world) { w.leave(0) })
	} else {
		s.step("hard kill", at, "member 0", func(w *world) { w.kill(0) })
	}
	lives(n, at+between(r, 0, 5*time.Second))
	s.members++
}

// books is the kind of the steps that only look.
const books = "books"

// step plans something that has no end.
func (s *scenario) step(kind string, at time.Duration, text string, do func(*world)) {
	s.steps = append(s.steps, step{at: at, kind: kind, text: text, begin: func(w *world) func() {
		w.met(kind, 1)
		do(w)
		return nil
	}})
}

// disturb plans the faults.
func (s *scenario) disturb(r *rand.Rand) {
	n := 5 + r.IntN(6)
	for len(s.steps) < n+s.members+2 {
		f := faults[r.IntN(len(faults))]
		text, begin := f.plan(r, s)
		if begin == nil {
			continue
		}
		at := between(r, 0, load)
		lasts := between(r, 200*time.Millisecond, 8*time.Second)
		if f.lasts != nil {
			lasts = f.lasts(r, s)
		}
		s.steps = append(s.steps, step{at: at, lasts: lasts, kind: f.kind, text: text, begin: begin})
	}
	for range 3 {
		s.steps = append(s.steps, step{at: between(r, 0, load), kind: books, begin: func(w *world) func() {
			w.checkBooks()
			return nil
		}})
	}
}

// late says whether something may reach the servers long after it was sent, or
// what is newer of a key before what is older.
func (s *scenario) late() bool { return s.has("zombie", "es late writes", "growth") }

// has says whether a step of one of the kinds is planned.
func (s *scenario) has(kinds ...string) bool {
	return slices.ContainsFunc(s.steps, func(x step) bool { return slices.Contains(kinds, x.kind) })
}

// fault is one kind of what goes wrong. plan chooses the details, or declines
// with a nil begin.
type fault struct {
	kind  string
	plan  func(*rand.Rand, *scenario) (text string, begin func(*world) (end func()))
	lasts func(*rand.Rand, *scenario) time.Duration
}

// once is for what happens at one moment.
func once(*rand.Rand, *scenario) time.Duration { return 0 }

// inject puts rules into force; hits are counted when they end.
func inject(kind string, rules ...embedded.Rule) func(*world) func() {
	return func(w *world) func() {
		in := make([]*embedded.Injection, len(rules))
		for i, rule := range rules {
			match := rule.Match
			rule.Match = func(r *embedded.Request) bool {
				return r.Header.Get(simulationHeader) == "" && (match == nil || match(r))
			}
			in[i] = w.es.Inject(rule)
		}
		return func() {
			for _, i := range in {
				i.Remove()
				w.met(kind, i.Hits())
			}
		}
	}
}

// onBulk is a fault of Elasticsearch on bulk requests, or now and then on all.
func onBulk(kind string, f func(*rand.Rand, *scenario) (string, embedded.Fault)) fault {
	return fault{kind: kind, plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		text, fault := f(r, s)
		rule := embedded.Rule{API: "bulk", Fault: fault, Share: pick(r, 0.2, 0.5, 0.8, 0)}
		if r.IntN(5) == 0 {
			rule.API = ""
		}
		switch {
		case rule.Share > 0:
			text = fmt.Sprintf("%s for %v%% of %q requests", text, 100*rule.Share, rule.API)
		default:
			text = fmt.Sprintf("%s for all %q requests", text, rule.API)
		}
		return text, inject(kind, rule)
	}}
}

// broker is a fault that kfake injects.
func broker(kind string, f func(*rand.Rand, *scenario) (string, kfake.Fault)) fault {
	return fault{kind: kind, plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		text, fault := f(r, s)
		return text, func(w *world) func() {
			h := w.kafka.Fault(fault)
			return func() {
				h.Remove()
				w.met(kind, h.Hits())
			}
		}
	}}
}

func answers(f ...embedded.Fault) func(*rand.Rand, *scenario) (string, embedded.Fault) {
	return func(r *rand.Rand, _ *scenario) (string, embedded.Fault) {
		x := pick(r, f...)
		return fmt.Sprint(x.Status), x
	}
}

// someMember is a member that has a chance to be there.
func someMember(r *rand.Rand, s *scenario) int { return r.IntN(s.members) }

// someIndex is the index of a tenant.
func someIndex(r *rand.Rand, s *scenario) string {
	t := pick(r, s.topics...)
	return fmt.Sprintf("i-%s-%d", t.name, r.IntN(t.tenants))
}

var faults = []fault{
	onBulk("es 429", answers(embedded.TooManyRequests(0), embedded.TooManyRequests(1), embedded.CircuitBreaker())),
	{kind: "es 429 items", plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		share := pick(r, 0.05, 0.3, 0.9)
		return fmt.Sprintf("for %v%% of the items", 100*share), inject("es 429 items",
			embedded.Rule{API: "bulk", Fault: embedded.RejectItems(share, r.Uint64())})
	}},
	onBulk("es 503", answers(embedded.Unavailable(), embedded.HTML(http.StatusServiceUnavailable))),
	onBulk("es 500", answers(embedded.ServerError())),
	onBulk("es html", answers(embedded.HTML(http.StatusBadGateway), embedded.HTML(http.StatusOK))),
	onBulk("es 401", answers(embedded.Unauthorized(), embedded.Forbidden())),
	onBulk("es refused", func(*rand.Rand, *scenario) (string, embedded.Fault) { return "connection refused", embedded.Refused() }),
	onBulk("es latency", func(r *rand.Rand, s *scenario) (string, embedded.Fault) {
		d := between(r, 0, s.cfg.request*3/2)
		return d.Round(time.Millisecond).String(), embedded.Slow(d)
	}),
	onBulk("es late writes", func(r *rand.Rand, s *scenario) (string, embedded.Fault) {
		f := embedded.Slow(between(r, s.cfg.request, 5*s.cfg.request))
		f.Late = true
		return f.Delay.Round(time.Millisecond).String(), f
	}),
	onBulk("es cut answer", func(r *rand.Rand, _ *scenario) (string, embedded.Fault) {
		n := r.IntN(400)
		return fmt.Sprintf("after %d bytes", n), embedded.Cut(n)
	}),
	onBulk("es lost answer", func(*rand.Rand, *scenario) (string, embedded.Fault) { return "carried out", embedded.Lost() }),
	onBulk("es item missing", func(*rand.Rand, *scenario) (string, embedded.Fault) {
		return "the last of the answer", embedded.OneItemLess()
	}),
	onBulk("es silent", func(r *rand.Rand, _ *scenario) (string, embedded.Fault) {
		f := embedded.Unanswered()
		f.Apply = r.IntN(2) == 0
		return fmt.Sprintf("no answer, carried out: %v,", f.Apply), f
	}),
	{kind: "es items fail", plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		err := pick(r, embedded.ItemError{Status: 500, Type: "null_pointer_exception", Reason: "null"},
			embedded.ItemError{Status: 503, Type: "unavailable_shards_exception", Reason: "primary shard is not active"},
			embedded.ItemError{Status: 500, Type: "node_closed_exception", Reason: "node closed"})
		n := 1 + r.IntN(3)
		return fmt.Sprintf("%s in %d requests", err.Type, n), inject("es items fail",
			embedded.Rule{API: "bulk", Next: n, Fault: embedded.FailItems(err, nil)})
	}},
	{kind: "es refused once", plan: func(_ *rand.Rand, s *scenario) (string, func(*world) func()) {
		// Twice in a row would be a rejection.
		if s.has("es refused once") {
			return "", nil
		}
		err := embedded.ItemError{Status: 400, Type: "document_parsing_exception", Reason: "the mapping is being changed"}
		return "all items of a request", inject("es refused once", embedded.Rule{API: "bulk", Next: 1, Fault: embedded.FailItems(err, nil)})
	}},
	{kind: "es target blocked", plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		index := someIndex(r, s)
		if r.IntN(2) == 0 {
			return index + " has a write block", func(w *world) func() {
				w.put("/"+index+"/_settings", `{"index.blocks.write":true}`)
				w.met("es target blocked", 1)
				return func() { w.put("/"+index+"/_settings", `{"index.blocks.write":null}`) }
			}
		}
		err := pick(r,
			embedded.ItemError{Status: 429, Type: "cluster_block_exception", Reason: "index [" + index + "] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"},
			embedded.ItemError{Status: 400, Type: "index_closed_exception", Reason: "closed"},
			embedded.ItemError{Status: 403, Type: "security_exception", Reason: "action [indices:data/write/bulk[s]] is unauthorized"})
		return index + ": " + err.Type, inject("es target blocked", embedded.Rule{
			API: "bulk", Index: index,
			Fault: embedded.FailItems(err, func(a embedded.Action) bool { return a.Index == index }),
		})
	}},
	{kind: "es 413", plan: func(r *rand.Rand, _ *scenario) (string, func(*world) func()) {
		limit := int64(8<<10 + r.IntN(24<<10))
		return fmt.Sprintf("above %d bytes", limit), func(w *world) func() {
			w.es.SetMaxContentLength(limit)
			w.met("es 413", 1)
			return func() { w.es.SetMaxContentLength(100 << 20) }
		}
	}},
	{kind: "es restart", lasts: once, plan: func(_ *rand.Rand, s *scenario) (string, func(*world) func()) {
		// Deletes are forgotten: nothing older may be under way then.
		if s.late() {
			return "", nil
		}
		return "forgets deletes", func(w *world) func() {
			if !w.s.late() {
				w.es.Restart()
				w.met("es restart", 1)
			}
			return nil
		}
	}},
	broker("kafka not leader", func(r *rand.Rand, s *scenario) (string, kfake.Fault) {
		t := pick(r, s.topics...)
		return t.name, kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: t.name, Err: kerr.NotLeaderForPartition, Count: -1}
	}),
	broker("kafka commit", func(r *rand.Rand, _ *scenario) (string, kfake.Fault) {
		err := pick(r, kerr.RequestTimedOut, kerr.RequestTimedOut, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator,
			kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.UnknownServerError)
		n := pick(r, 1, 3, -1)
		return fmt.Sprintf("%s, %d times", err.Message, n), kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: err, Count: n}
	}),
	broker("kafka thrown out", func(r *rand.Rand, _ *scenario) (string, kfake.Fault) {
		err := pick(r, kerr.UnknownMemberID, kerr.IllegalGeneration)
		n := 1 + r.IntN(3)
		return fmt.Sprintf("%s, %d times", err.Message, n), kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: err, Count: n}
	}),
	broker("kafka group", func(r *rand.Rand, _ *scenario) (string, kfake.Fault) {
		key := pick(r, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat)
		err := pick(r, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.RebalanceInProgress)
		n := 1 + r.IntN(4)
		return fmt.Sprintf("%s: %s, %d times", key.Name(), err.Message, n), kfake.Fault{Keys: []kmsg.Key{key}, TopLevel: true, Err: err, Count: n}
	}),
	broker("kafka dead letters", func(r *rand.Rand, _ *scenario) (string, kfake.Fault) {
		err := pick(r, kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError, kerr.TopicAuthorizationFailed)
		return err.Message, kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: deadLetters, Err: err, Count: -1}
	}),
	{kind: "kafka leaders", lasts: once, plan: func(*rand.Rand, *scenario) (string, func(*world) func()) {
		return "move", func(w *world) func() {
			w.kafka.ShufflePartitionLeaders()
			w.met("kafka leaders", 1)
			return nil
		}
	}},
	{kind: "kafka coordinator", lasts: once, plan: func(*rand.Rand, *scenario) (string, func(*world) func()) {
		return "moves", func(w *world) func() {
			w.kafka.RehashCoordinators()
			w.met("kafka coordinator", 1)
			return nil
		}
	}},
	{kind: "kafka drops", plan: func(r *rand.Rand, _ *scenario) (string, func(*world) func()) {
		key := pick(r, kmsg.Fetch, kmsg.OffsetCommit, kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.OffsetFetch)
		return "connections that ask for " + key.Name(), func(w *world) func() {
			w.met("kafka drops", 1)
			return w.kafka.Hiccup(key)
		}
	}},
	{kind: "reset", lasts: once, plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		n := someMember(r, s)
		return fmt.Sprintf("connections of member %d", n), func(w *world) func() {
			if m := w.member(n); m != nil {
				m.link.reset()
				w.met("reset", 1)
			}
			return nil
		}
	}},
	{kind: "zombie", plan: func(r *rand.Rand, s *scenario) (string, func(*world) func()) {
		if s.has("es restart") {
			return "", nil
		}
		n := someMember(r, s)
		return fmt.Sprintf("the network of member %d is frozen", n), func(w *world) func() {
			m := w.member(n)
			if m == nil || m.killed {
				return nil
			}
			w.met("zombie", 1)
			return m.link.freeze()
		}
	}, lasts: func(r *rand.Rand, s *scenario) time.Duration {
		return between(r, s.cfg.session/2, 3*s.cfg.session)
	}},
}
