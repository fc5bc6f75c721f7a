//go:build synctests

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/embedded"
)

// These scenarios last minutes, of a clock that goes on whenever nothing else
// does. The build tag makes the Kafka client's mutexes such that it can.

// bubble runs f with such a clock.
func bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock is virtual
}

// commits is what the group has committed of the topic events.
func (w *world) commits() string {
	var b strings.Builder
	for _, p := range w.kafka.PartitionInfos(topic) {
		fmt.Fprint(&b, w.committed(topic, p.Partition), " ")
	}
	return b.String()
}

// Elasticsearch refuses all connections for 30 s, twice: no exit, no record
// lost, and the commit stands still meanwhile.
func TestV02_AllNodesRefuse(t *testing.T) {
	const count, outage = 200_000, 30 * time.Second
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 4, virtual: true})
		p := w.start("elasticsearch: {compression_level: 0}\nindexer: {retry: {initial: 100ms, max: 5s}}")
		all := records(count)
		for i, part := range [][]*kgo.Record{all[:count/3], all[count/3 : 2*count/3], all[2*count/3:]} {
			if i == 0 {
				w.produce(part...)
				w.awaitDone(p)
				continue
			}
			refused := w.es.Inject(embedded.Rule{Fault: embedded.Refused()})
			w.produce(part...)
			pass(time.Second)
			before := w.commits()
			pass(outage - time.Second)
			if after := w.commits(); before != after {
				t.Errorf("commits moved during the outage: %s, then %s", before, after)
			}
			if h := p.Health(); h.State != admin.Waiting || h.Elasticsearch.Available {
				t.Errorf("health during the outage: %+v", h)
			}
			refused.Remove()
			w.awaitDone(p)
		}
		w.checkFold()
		if n := p.outcomes("indexed"); n != count {
			t.Errorf("%d records were indexed", n)
		}
	})
}

// A commit whose connection broke, and that the broker carries out late, does
// not have the last word.
func TestV05_LateCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{virtual: true})
		p := w.start("")
		w.produce(records(100)...)
		w.awaitDone(p)
		// The connection breaks under a commit of 150; the client repeats it
		// and later ones pass; then the broker carries the first out after all.
		var late atomic.Pointer[kmsg.OffsetCommitRequest]
		w.kafka.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
			if late.CompareAndSwap(nil, req.(*kmsg.OffsetCommitRequest)) {
				return nil, errCut, true
			}
			w.kafka.DropControl()
			return nil, nil, false
		})
		w.produce(records(50)...)
		w.await("the first commit to be kept back", func() error {
			if late.Load() == nil {
				return errors.New("none yet")
			}
			return nil
		}, p)
		w.produce(records(50)...)
		w.awaitDone(p)
		if at := w.committed(topic, 0); at != 200 {
			t.Fatalf("committed %d", at)
		}
		w.deliver(late.Load())
		if at := w.committed(topic, 0); at >= 200 {
			t.Fatalf("the late commit did not put the group back: %d", at)
		}
		w.awaitDone(p)
		if at := w.committed(topic, 0); at != 200 {
			t.Errorf("committed %d", at)
		}
	})
}

// A flush that takes longer than every limit of its own goes on all the same:
// the commit rises each minute.
func TestV09_SlowFlush(t *testing.T) {
	for name, fault := range map[string]func(*embedded.Request) *embedded.Fault{
		// Slower than flush_interval, drain_timeout and commit_interval.
		"5 s a bulk": func(r *embedded.Request) *embedded.Fault {
			f := embedded.Slow(5 * time.Second)
			return &f
		},
		// A full batch would take 20 s, and is given up after 2.
		"2 ms a document": func(r *embedded.Request) *embedded.Fault {
			f := embedded.Slow(time.Duration(strings.Count(string(r.Body), "\n")/2) * 2 * time.Millisecond)
			return &f
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, worldOptions{virtual: true})
				yaml := "indexer: {flush_interval: 2s}\nkafka: {commit_interval: 1s}\nelasticsearch: {request_timeout: 20s}"
				if strings.HasPrefix(name, "2 ms") {
					yaml = "elasticsearch: {request_timeout: 2s}\nindexer: {flush_interval: 1s}"
				}
				w.es.Intercept(func(r *embedded.Request) *embedded.Fault {
					if r.API() != "bulk" {
						return nil
					}
					return fault(r)
				})
				w.produce(records(20_000)...)
				p := w.start(yaml)
				last := int64(-1)
				for minute := 1; w.lag(topic) > 0; minute++ {
					pass(time.Minute)
					at := w.committed(topic, 0)
					if at <= last {
						t.Fatalf("minute %d: the commit stands at %d; %s", minute, at, p.log.tail())
					}
					last = at
				}
				w.checkFold()
			})
		})
	}
}

// Leaders move 20 times, then all brokers are gone for 5 s: it resumes.
func TestV14_FencedOrLeaderless(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 6, brokers: 3, virtual: true})
		p := w.start("")
		for i := range 20 {
			w.kafka.ShufflePartitionLeaders()
			w.produce(records(30 + i)...)
			pass(100 * time.Millisecond)
		}
		w.awaitDone(p)
		heal := w.kafka.Hiccup()
		pass(5 * time.Second)
		heal()
		w.produce(records(60)...)
		began := time.Now()
		w.awaitDone(p)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v to go on", took)
		}
		w.checkFold()
		if n := p.sum("sluice_data_loss_total"); n != 0 {
			t.Errorf("%v losses were reported, none happened", n)
		}
	})
}

// A batch that cannot be decoded: its partition is marked stuck with its offset
// in metrics and health within 30 s, others move on, and an operator's skip
// goes on behind it.
func TestV15_UndecodableBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 2, virtual: true})
		p := w.start("")
		w.produceEach(2, 0)
		w.awaitDone(p)
		w.produceGarbage(0, 4)
		w.produceEach(2, 1)
		began := time.Now()
		h := p.awaitHalt(topic, 0)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		if h.Kind != consumer.HaltUndecodable || h.Offset != 1 {
			t.Errorf("%+v", h)
		}
		if n := p.sum("sluice_partition_halted_offset", "topic", topic, "partition", "0"); n != 1 {
			t.Errorf("the metric says offset %v", n)
		}
		if health := p.Health(); health.State != admin.Blocked || len(health.Halted) != 1 || health.Halted[0].Offset != 1 {
			t.Errorf("health %+v", health)
		}
		w.await("the other partition to go on", func() error {
			if at := w.committed(topic, 1); at != 2 {
				return fmt.Errorf("committed %d", at)
			}
			return nil
		}, p)
		if err := p.Skip(context.Background(), topic, 0, 1, false); !errors.Is(err, admin.ErrRefused) {
			t.Errorf("a batch that nobody can read went to the dead letters: %v", err)
		}
		if err := p.Skip(context.Background(), topic, 0, 1, true); err != nil {
			t.Fatal(err)
		}
		w.awaitDone(p)
		w.checkFold()
	})
}

// A topic without traffic for ten minutes: healthy, no exit, no rebalance.
func TestV17_IdleTopic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 3, virtual: true})
		w.produce(records(10)...)
		p := w.start("")
		w.awaitDone(p)
		rebalances := p.sum("sluice_rebalances_total")
		for range 10 {
			pass(time.Minute)
			if h := p.Health(); !p.Alive() || !p.Ready() || !h.OK() {
				t.Fatalf("alive %v, ready %v, health %+v", p.Alive(), p.Ready(), h)
			}
		}
		if n := p.sum("sluice_rebalances_total") - rebalances; n != 0 {
			t.Errorf("%v rebalances", n)
		}
		w.produce(records(10)...)
		w.awaitDone(p)
	})
}

// Elasticsearch is a black hole for longer than any limit of the group: the
// member stays, or comes back, and goes on by itself. What was on its way into the
// hole at the cure is known to be lost when its time is over, and may be what all
// the rest waits for.
func TestV08_OutageBeyondTheLimits(t *testing.T) {
	const session, rebalance, request, retry = 45 * time.Second, 60 * time.Second, 20 * time.Second, 5 * time.Second
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 3, virtual: true})
		// The defaults of a deployment.
		p := w.start("kafka: {session_timeout: 45s, rebalance_timeout: 60s, drain_timeout: 5s, commit_interval: 1s}\n" +
			"elasticsearch: {request_timeout: 20s}\nindexer: {flush_interval: 1s, retry: {initial: 100ms, max: 5s}}")
		w.produce(records(1000)...)
		w.awaitDone(p)
		member := p.Status().(app.Status).Consumer.Member
		hole := w.es.Inject(embedded.Rule{Fault: embedded.Unanswered()})
		w.produce(records(5000)...)
		pass(3*session + rebalance)
		if !p.Alive() || len(p.partitions()) != 3 {
			t.Errorf("alive %v, %d partitions are held", p.Alive(), len(p.partitions()))
		}
		if now := p.Status().(app.Status).Consumer.Member; now != member {
			t.Logf("it was thrown out and came back: %s, %s", member, now)
		}
		hole.Remove()
		began, before := time.Now(), w.es.Count(index)
		w.await("it to go on", func() error {
			if w.es.Count(index) == before {
				return errors.New("nothing was written")
			}
			return nil
		})
		if took := time.Since(began); took > request+retry {
			t.Errorf("it took %v to go on", took)
		}
		w.awaitDone(p)
		if took := time.Since(began); took > request+3*retry {
			t.Errorf("it took %v to write all", took)
		}
		w.checkFold()
	})
}

// A topic that is made anew while the program runs halts too; the Kafka client
// takes a while to tell.
func TestVersions_TopicRecreatedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 2, virtual: true})
		w.produce(records(50)...)
		p := w.start("")
		w.awaitDone(p)
		want := w.fold()
		w.recreate(2)
		w.produce(records(20)...)
		p.needsRaise("the topic was re-created")
		w.checkIndex(index, want)
	})
}

// updates are many records on few keys, spread in time; with deletes three in
// ten are deletes.
func updates(keys, each int, deletes bool) (all []*kgo.Record) {
	random := rand.New(rand.NewPCG(3, 1))
	for i := range keys * each {
		r := record(fmt.Sprint("k", random.IntN(keys)), i)
		if deletes && random.IntN(10) < 3 {
			r.Value = nil
		}
		all = append(all, r)
	}
	return all
}

// unquiet makes each bulk request take up to half a second, one in ten of them
// fail whole, and refuses a share of the items.
func unquiet(c *tally) func(*embedded.Request) *embedded.Fault {
	random := rand.New(rand.NewPCG(5, 1))
	var mu sync.Mutex
	return func(r *embedded.Request) *embedded.Fault {
		if r.API() != "bulk" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		f := embedded.Fault{Items: c.item}
		if random.IntN(10) == 0 {
			f = embedded.TooManyRequests(0)
		}
		f.Delay = time.Duration(random.IntN(501)) * time.Millisecond
		return &f
	}
}

// Updates of one document go over many connections, slowly, and a fifth of
// them is turned away: no update arrives after a newer one, and each key has
// its last value.
func TestV31_UpdatesOfOneDocumentStayInOrder(t *testing.T) {
	storm(t, false)
}

// The same with deletes among them: what was deleted last is gone, with the
// delete's version, and what was written last is there.
func TestV32_DeletesCarryVersionsToo(t *testing.T) {
	storm(t, true)
}

func storm(t *testing.T, deletes bool) {
	const keys, each = 100, 1000
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 4, virtual: true})
		c := newTally(some(0.2, -1))
		w.es.Intercept(unquiet(c))
		p := w.begin("elasticsearch: {compression_level: 0}\nindexer: {flush_documents: 500, scaling: {min: 8, max: 8}, requests: {min: 8, max: 16}}")
		// In waves, so that newer updates come while older ones wait to be tried again.
		for wave := range slices.Chunk(updates(keys, each, deletes), 1000) {
			w.produce(wave...)
			pass(100 * time.Millisecond)
		}
		w.awaitDone(p)

		want, accepted, newest := map[string]versioned{}, 0, map[string]*kgo.Record{}
		for _, r := range w.log {
			newest[string(r.Key)] = r
			want[string(r.Key)] = versioned{string(r.Value), sequence(r)}
			if r.Value == nil {
				delete(want, string(r.Key))
			}
			accepted += c.accepted[fmt.Sprintf("%s@%d", r.Key, sequence(r))]
		}
		w.checkVersioned(index, want)
		for key, r := range newest {
			if version, gone, known := w.es.Known(index, key); !known || version != sequence(r) || gone != (r.Value == nil) {
				t.Errorf("%s is known as version %d, deleted %v; want %d, %v", key, version, gone, sequence(r), r.Value == nil)
			}
		}
		if len(newest) != keys || len(w.log) != keys*each {
			t.Errorf("%d records on %d keys", len(w.log), len(newest))
		}
		if len(c.late) > 0 {
			t.Errorf("%d actions came after a newer one of their id was accepted, such as %s", len(c.late), c.late[0])
		}
		// An action that was turned away while a newer one of its id in the same
		// request was accepted is stale (DESIGN 6.3), and no other is.
		written, stale := p.outcomes("indexed")+p.outcomes("deleted"), p.outcomes("stale")
		if written != accepted || written+stale != len(w.log) {
			t.Errorf("of %d records %d were accepted; %d count as written and %d as stale", len(w.log), accepted, written, stale)
		}
		if !deletes && p.outcomes("deleted") != 0 {
			t.Errorf("%d deletes", p.outcomes("deleted"))
		}
		w.checkLetters(nil)
	})
}

// Of the items of successful answers three in ten are 429 for ten seconds: they
// are sent again, and no others; nothing is lost, nothing is dead-lettered.
func TestV20_ItemsTurnedAwayInsideASuccess(t *testing.T) {
	const busy = 10 * time.Second
	bubble(t, func(t *testing.T) {
		w := newWorld(t, worldOptions{partitions: 4, virtual: true})
		third := some(0.3, -1)
		over := time.Now().Add(busy)
		c := newTally(func() bool { return time.Now().Before(over) && third() })
		w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Fault{Items: c.item}})
		p := w.begin("indexer: {flush_documents: 200}")
		const n = 20_000
		for part := range slices.Chunk(records(n), n/100) {
			w.produce(part...)
			pass(busy / 100)
		}
		w.awaitDone(p)
		w.checkFates(p, nil)
		tries := 0
		for action, seen := range c.seen {
			tries += seen
			if c.accepted[action] != 1 {
				t.Errorf("%s was accepted %d times", action, c.accepted[action])
			}
		}
		if len(c.seen) != n || tries < n+n/5 {
			t.Errorf("%d actions were sent %d times for %d records", len(c.seen), tries, n)
		}
	})
}

// One customer's index is read-only for 20 s, as when the disk is full (429) or
// by an operator (403): that customer's records wait, others flow, and all goes
// on by itself afterwards.
func TestV28_OneIndexIsReadOnly(t *testing.T) {
	for name, block := range map[string]string{"429": "index.blocks.read_only_allow_delete", "403": "index.blocks.write"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, worldOptions{partitions: 2, virtual: true})
				w.effect = customerEffect
				p := w.begin(byCustomer)
				w.produce(ofCustomers(100, "full", "a", "b")...)
				w.awaitDone(p)
				w.must(http.MethodPut, "/events-full/_settings", `{"`+block+`":true}`)
				all := ofCustomers(2100, "full", "a", "b")[300:]
				for second := range 20 {
					w.produce(all[second*300 : (second+1)*300]...)
					pass(time.Second)
					for _, c := range []string{"a", "b"} {
						if n, want := w.es.Count("events-"+c), 100+100*(second+1); n != want {
							t.Fatalf("%d of %d documents of %s after %d s", n, want, c, second+1)
						}
					}
				}
				if reason := p.awaitHold("events-full"); reason != "cluster_block_exception" {
					t.Errorf("held for %s", reason)
				}
				if n := w.es.Count("events-full"); n != 100 || w.lag(topic) == 0 {
					t.Errorf("%d documents in a read-only index, lag %d", n, w.lag(topic))
				}
				w.must(http.MethodPut, "/events-full/_settings", `{"`+block+`":null}`)
				w.awaitDone(p)
				w.checkCustomers("full", "a", "b")
				w.checkLetters(nil)
				if h := p.App.Health(); len(h.Held) != 0 || !h.OK() {
					t.Errorf("%+v when all is well again", h)
				}
				if log := p.log.String(); strings.Count(log, "target held") != 1 || strings.Count(log, "target released") != 1 {
					t.Errorf("the log should tell of the hold and of its end, once each")
				}
			})
		})
	}
}
