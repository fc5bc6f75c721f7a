package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/embedded"
)

// recreate deletes the topic events and makes it anew.
func (w *world) recreate(partitions int32) {
	w.t.Helper()
	if err := w.kafka.DeleteTopic(topic); err != nil {
		w.t.Fatal(err)
	}
	w.judge() // before anything can be committed for the new one
	if err := w.kafka.CreateTopic(topic, partitions, nil); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids[topic] = w.topicID(topic)
}

// reset does what kafka-consumer-groups --reset-offsets does: it commits
// positions without any metadata. It only goes back: what an operator skips is
// lost, and that is no fault.
func (w *world) reset(to int64) {
	w.t.Helper()
	offsets := kadm.Offsets{}
	for _, p := range w.kafka.PartitionInfos(topic) {
		offsets.AddOffset(topic, p.Partition, min(to, max(w.committed(topic, p.Partition), 0)), -1)
	}
	if err := w.admin.CommitAllOffsets(context.Background(), group, offsets); err != nil {
		w.t.Fatal(err)
	}
}

// needsRaise fails the test unless all of the topic's partitions are halted, for
// a reason that holds why and names the command that ends it.
func (p *program) needsRaise(why string) {
	p.w.t.Helper()
	for _, info := range p.w.kafka.PartitionInfos(topic) {
		h := p.awaitHalt(topic, info.Partition)
		if h.Kind != consumer.HaltGeneration || !strings.Contains(h.Type, why) || !strings.Contains(h.Type, "sluice generation raise --topic events") {
			p.w.t.Fatalf("partition %d: %+v", info.Partition, h)
		}
	}
	if health := p.Health(); health.State != admin.Blocked {
		p.w.t.Errorf("health %+v", health)
	}
}

// run starts a program, waits until it is done, and stops it.
func (w *world) run(yaml string) *program {
	w.t.Helper()
	p := w.start(yaml)
	w.awaitDone(p)
	if err := p.stop(); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// halts starts a program, waits until all of it needs a raise, and stops it.
func (w *world) halts(yaml, why string) {
	w.t.Helper()
	p := w.start(yaml)
	p.needsRaise(why)
	if n := p.outcomes("indexed") + p.outcomes("stale"); n != 0 {
		w.t.Errorf("%d records were handled all the same", n)
	}
	if err := p.stop(); err != nil {
		w.t.Fatal(err)
	}
}

// A topic that was deleted and made anew has offsets from 0 again: it halts
// until its generation is raised, and then its records win over those of the
// old topic.
func TestVersions_TopicRecreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2})
	w.produce(records(50)...)
	w.run("")
	w.recreate(2)
	for i := range 20 {
		w.produce(record(fmt.Sprintf("k%d", i), 1000+i))
	}
	w.halts("", "the topic was re-created")
	w.raise("", topic)
	w.run("")
	w.checkFold()
	if last := w.generations(topic); last.Highest() != 2 || len(last[1].Start) != 0 {
		t.Errorf("recorded %+v", last)
	}
}

// Partitions were added while nobody ran: keys have moved, so the topic halts;
// a raise while producers write is refused with the exit code that says to try
// again, and once they stand still the index ends as the fold.
func TestVersions_PartitionsAdded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2})
	w.produce(records(100)...)
	w.run("")
	w.addPartitions(topic, 5)
	w.halts("", "its partition count changed (5, recorded 2)")
	stop := w.load(100)
	code, said := w.sluice("", "generation", "raise", "--topic", topic)
	stop()
	if code != 75 || !strings.Contains(said, "producers still write to it: stop them and try again, or accept with --accept-reordering") {
		t.Errorf("exit code %d: %s", code, said)
	}
	if n := len(w.generations(topic)); n != 1 {
		t.Errorf("a refused raise recorded %d entries", n)
	}
}

// Positions that an operator reset, or that expired, are no reason to halt: all
// is read again, nothing is changed by it, and no delete comes undone.
func TestVersions_OffsetsResetOrExpired(t *testing.T) {
	for name, move := range map[string]func(*world){
		"reset to 0": func(w *world) { w.reset(0) },
		"reset by 5": func(w *world) { w.reset(5) },
		"expired": func(w *world) {
			if _, err := w.admin.DeleteGroup(context.Background(), group); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{partitions: 2})
			for round := range 4 {
				w.produce(records(20 + round)...)
			}
			w.produce(tombstone("k3"), tombstone("k4"), record("k4", 9))
			w.run("")
			w.checkFold()
			move(w)
			w.es.Restart() // it forgets deletes
			p := w.run("")
			w.checkFold()
			if n := p.outcomes("stale"); n == 0 {
				t.Error("nothing was read again")
			}
		})
	}
	t.Run("expired, and reset: none", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{})
		w.produce(records(20)...)
		p := w.start("kafka: {reset: none}")
		if h := p.awaitHalt(topic, 0); h.Kind != consumer.HaltNoCommit || !strings.Contains(h.Type, "sluice reset") {
			t.Errorf("%+v", h)
		}
	})
}

// The control index was lost: commits that carry a generation halt the topic,
// at the start and at a rebalance, and a raise goes on above what they carry.
func TestVersions_ControlIndexLost(t *testing.T) {
	const why = "its commits carry a generation that the control index does not know"
	lose := func(w *world) { w.must(http.MethodDelete, "/"+control, "") }
	t.Run("while it is stopped", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{partitions: 2})
		w.produce(records(50)...)
		w.run("")
		w.raise("", topic, "--to", "7")
		w.produce(records(50)...)
		w.run("")
		lose(w)
		w.produce(records(60)...)
		w.halts("", why)
		w.raise("", topic)
		w.run("")
		w.checkFold()
		if n := w.generations(topic).Highest(); n != 8 {
			t.Errorf("generation %d, want the one above that of the commits", n)
		}
	})
	t.Run("and the commits too", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, worldOptions{partitions: 2})
		w.produce(records(50)...)
		w.run("")
		w.raise("", topic, "--to", "7")
		for range 3 {
			w.produce(records(50)...)
		}
		w.run("")
		lose(w)
		if _, err := w.admin.DeleteGroup(t.Context(), group); err != nil {
			t.Fatal(err)
		}
		w.produce(records(50)...)
		// Nothing is left that could tell but the documents themselves.
		p := w.start("")
		h := p.awaitHalt(topic, 0)
		if h.Kind != consumer.HaltForeign || !strings.Contains(h.Type, "generation 7") || !strings.Contains(h.Type, "generation 1,") {
			t.Errorf("%+v", h)
		}
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		w.raise("", topic, "--to", "8")
		w.run("")
		w.checkFold()
	})
}

// The control index cannot be reached, or not made: the partitions wait and say
// why, nothing is written without a generation, and they start by themselves.
func TestVersions_ControlIndexUnreachable(t *testing.T) {
	onControl := func(r *embedded.Request) bool { return strings.HasPrefix(r.Path, "/"+control) }
	for name, c := range map[string]struct {
		fault embedded.Fault
		says  string
	}{
		"unreachable": {embedded.Refused(), "refused"},
		"no rights":   {embedded.Forbidden(), "grant Sluice on \".sluice-control\" the index privileges"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.produce(records(20)...)
			away := w.es.Inject(embedded.Rule{Match: onControl, Fault: c.fault})
			p := w.start("")
			w.await("the partition to wait", func() error {
				if s, ok := p.partition(topic, 0); !ok || s.State != consumer.StateWaiting || !strings.Contains(s.Reason, c.says) {
					return fmt.Errorf("%+v", s)
				}
				return nil
			}, p)
			if n := w.es.Count(index); n != 0 {
				t.Errorf("%d documents were written without a generation", n)
			}
			if h := p.Health(); h.State != admin.Starting || !strings.Contains(h.Reason, c.says) {
				t.Errorf("health %+v", h)
			}
			away.Remove()
			w.awaitDone(p)
			w.checkFold()
			// While it runs it does without.
			w.es.Inject(embedded.Rule{Match: onControl, Fault: c.fault})
			w.produce(records(40)...)
			w.awaitDone(p)
			w.checkFold()
		})
	}
}

// foreign writes a document of another writer.
func (w *world) foreign(id string, version int64, source string) {
	w.t.Helper()
	w.must(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version=%d&version_type=external", index, id, version), source)
}

// version is the sequence version of a generation and an offset.
func version(t *testing.T, generation int, offset int64) int64 {
	t.Helper()
	v, err := document.Sequence(generation, offset)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A document whose version this topic cannot have written halts the topic and
// names both versions; `skip` leaves the document as it is and goes on, a raise
// goes on above it.
func TestVersions_ForeignVersion(t *testing.T) {
	for _, way := range []string{"skip", "raise"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{partitions: 2})
			w.foreign("k3", version(t, 5, 77), `{"theirs":true}`)
			all := records(10)
			for i, r := range all {
				r.Partition = int32(i % 2)
			}
			w.produceTo(all...)
			p := w.start("")
			h := p.awaitHalt(topic, 1)
			if h.Kind != consumer.HaltForeign || h.Offset != all[3].Offset || !strings.Contains(h.Type, "generation 5, offset 77") || !strings.Contains(h.Type, "generation 1, offset 1") {
				t.Errorf("%+v", h)
			}
			p.awaitHalt(topic, 0) // the whole topic
			want := w.fold()
			if way == "skip" {
				if err := p.Skip(t.Context(), topic, 1, h.Offset, false); err != nil {
					t.Fatal(err)
				}
				w.awaitDone(p)
				want["k3"] = `{"theirs":true}`
				if n := len(w.letters()); n != 1 {
					t.Errorf("%d letters, want that of the record that was skipped", n)
				}
			} else {
				if err := p.stop(); err != nil {
					t.Fatal(err)
				}
				w.raise("", topic, "--to", "6")
				w.run("")
			}
			w.checkIndex(index, want)
		})
	}
}

// Late timestamps are no conflict of writers: the older record is stale and
// nothing halts, however far the stored version is from all offsets; an equal
// one is an update.
func TestVersions_LateTimestamps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.effect = nil // versions are times
	at := func(key string, n int, when time.Time) *kgo.Record {
		r := record(key, n)
		r.Timestamp = when
		return r
	}
	now := time.Now()
	w.produce(at("late", 1, now), at("equal", 1, now))
	p := w.start("documents: {version: timestamp}")
	w.awaitDone(p) // so that what follows goes in another request
	w.produce(at("late", 2, now.Add(-time.Hour)), at("equal", 2, now), at("fine", 2, now.Add(time.Hour)))
	w.awaitDone(p)
	w.checkIndex(index, map[string]string{"late": `{"n":1}`, "equal": `{"n":2}`, "fine": `{"n":2}`})
	if n := p.outcomes("stale"); n != 1 {
		t.Errorf("%d are stale", n)
	}
}

// An id that records of several partitions have: a stored offset beyond the end
// of the record's own partition, but not of its neighbour's, is stale.
func TestVersions_IDsOfSeveralPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 2})
	w.effect = nil // the key is not the id
	one := func(partition int32, n int) *kgo.Record {
		return &kgo.Record{Partition: partition, Key: []byte("x"), Value: fmt.Appendf(nil, `{"id":"a","n":%d}`, n)}
	}
	for i := range 30 {
		w.produceTo(one(0, i))
	}
	const yaml = `documents: {id: "field:/id"}`
	p := w.start(yaml)
	w.awaitDone(p)
	w.produceTo(one(1, 99))
	w.awaitDone(p)
	if n := p.outcomes("stale"); n != 1 {
		t.Errorf("%d are stale", n)
	}
	w.checkIndex(index, map[string]string{"a": `{"id":"a","n":29}`})
}

// A member that knows only old log ends meets what a later owner wrote: it asks
// for the ends anew and finds its record stale.
func TestVersions_OldLogEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.mapping(`{}`)
	w.effect = nil // another writes for us
	p := w.start("elasticsearch: {request_timeout: 20s}")
	p.awaitHeld(1)
	release := make(chan struct{})
	held := w.es.Inject(embedded.Rule{API: "bulk", Fault: embedded.Held(release)})
	for i := range 10 {
		w.produce(record("k", i))
	}
	w.await("ten records in flight", func() error {
		if n := p.sum("sluice_records_in_flight"); n != 10 || held.Hits() == 0 {
			return fmt.Errorf("%v", n)
		}
		return nil
	}, p)
	heal := w.kafka.Hiccup(kmsg.Fetch) // from now on it hears nothing of the log
	for i := range 10 {
		w.produce(record("k", 10+i))
	}
	w.foreign("k", version(t, 1, 15), `{"n":15}`)
	held.Remove()
	close(release)
	w.await("the commit", func() error {
		if at := w.committed(topic, 0); at != 10 {
			return fmt.Errorf("%d", at)
		}
		return nil
	}, p)
	if n := p.outcomes("stale"); n != 10 {
		t.Errorf("%d are stale", n)
	}
	heal()
	w.awaitDone(p)
	w.checkFold()
}

// A member that was away while its topic's generation was raised meets records
// of the new one: they are newer, not foreign, and it goes on in the new
// generation.
func TestVersions_RaisedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const yaml = "kafka: {session_timeout: 1s}\nelasticsearch: {request_timeout: 20s}"
	zombie := w.start(yaml, named("zombie"))
	zombie.awaitHeld(1)
	release := make(chan struct{})
	w.es.Inject(embedded.Rule{Fault: embedded.Fault{Hold: release, Late: true}, Match: of("zombie")})
	for i := range 10 {
		w.produce(record("k", i))
	}
	w.await("ten records in flight", func() error {
		if n := zombie.sum("sluice_records_in_flight"); n != 10 {
			return fmt.Errorf("%v", n)
		}
		return nil
	}, zombie)
	zombie.network.cutKafka()
	w.await("the group to be empty", func() error {
		if info := w.kafka.GroupInfo(group); info != nil && len(info.Members) != 0 {
			return fmt.Errorf("%d members", len(info.Members))
		}
		return nil
	})
	w.raise(yaml, topic)
	w.run(yaml)
	w.checkFold()
	close(release) // its bulk lands now
	zombie.network.mend()
	zombie.awaitHeld(1)
	w.produce(record("k", 11))
	w.awaitDone(zombie)
	w.checkFold()
	if n := zombie.sum("sluice_partition_halted"); n != 0 {
		t.Error("the zombie has halted")
	}
}

// However raises, replays, restarts and partition additions follow one another,
// the index ends as the fold of the log.
func TestVersions_AnyOrderFoldsToTheLog(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			w := newWorld(t, worldOptions{partitions: 2})
			partitions := 2
			var told []string
			defer func() {
				if t.Failed() {
					t.Log(told)
				}
			}()
			tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
			n := 0
			produce := func() {
				var batch []*kgo.Record
				for range 1 + r.IntN(60) {
					n++
					key := fmt.Sprintf("k%d", r.IntN(15))
					if r.IntN(4) == 0 {
						batch = append(batch, tombstone(key))
					} else {
						batch = append(batch, record(key, n))
					}
				}
				tell("produce %d", len(batch))
				w.produce(batch...)
			}
			produce()
			w.run("")
			for range 8 {
				switch r.IntN(6) {
				case 0, 1:
					produce()
				case 2:
					produce()
					tell("run")
					w.run("")
					w.checkFold()
				case 3:
					to := int64(r.IntN(8))
					tell("reset to %d", to)
					w.reset(to)
					w.es.Restart()
				case 4:
					tell("raise")
					w.raiseOrRewind(tell)
				case 5:
					partitions += 1 + r.IntN(2)
					tell("%d partitions, raise", partitions)
					w.addPartitions(topic, partitions)
					w.raiseOrRewind(tell)
				}
			}
			w.run("")
			w.checkFold()
		})
	}
}

// raiseOrRewind raises as an operator does: where the raise says that
// partitions must be read again first, it resets them all to the start.
func (w *world) raiseOrRewind(tell func(string, ...any)) {
	w.t.Helper()
	for range 2 {
		code, said := w.sluice("", "generation", "raise", "--topic", topic, "--accept-reordering")
		switch {
		case code == 0:
			return
		case strings.Contains(said, "reset these partitions"):
			tell("refused: rewind")
			w.reset(0)
		default:
			w.t.Fatalf("generation raise: exit code %d: %s", code, said)
		}
	}
	w.t.Fatal(errors.New("generation raise: refused after a rewind to the start"))
}

// A topic that replaces another one of the same ids begins above it, although
// the old one is in no configuration any more: its records win, at whatever
// offsets.
func TestVersions_TopicReplacesAnother(t *testing.T) {
	t.Parallel()
	const next = "events2"
	w := newWorld(t, worldOptions{topics: map[string]int32{next: 1}})
	w.produce(records(100)...)
	w.run("")
	// At offset 5 of 200 stands what the old topic had at offset 99: by its
	// offset alone it would pass for stale.
	for i := range 200 {
		r := record(fmt.Sprintf("new%d", i), i)
		if i == 5 {
			r = record("k99", 2)
		}
		r.Topic = next
		w.produce(r)
	}
	p := w.start("kafka: {topics: [events2], group_id: next}")
	w.await("all of it", func() error {
		if s, ok := p.partition(next, 0); !ok || s.Committed != 200 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	}, p)
	w.checkFold()
	if n := w.generations(next).Highest(); n != 2 {
		t.Errorf("its first generation is %d, want the one above the other's", n)
	}
	if n := p.outcomes("stale"); n != 0 {
		t.Errorf("%d records are stale", n)
	}
}
