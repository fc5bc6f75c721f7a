package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// logState is what the tests make of a journal as a Log.
type logState struct {
	refusals []Refusal
	deletes  time.Duration        // see LogPart.Deletes
	gone     int                  // offsets below it are gone
	compact  bool                 // what a later record replaces is gone
	fault    func(page int) error // pages are counted; nil: none
	reads    int
}

// Parts implements Log.
func (j *journal) Parts(_ context.Context, ends Offsets) ([]LogPart, []Refusal, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var parts []LogPart
	for p := range int32(sourcePartitions) {
		parts = append(parts, LogPart{Topic: "t", TopicID: "id", Partition: p, End: ends["t"][p], Deletes: j.log.deletes})
	}
	return parts, j.log.refusals, nil
}

// Open implements Log.
func (j *journal) Open(_ context.Context, part LogPart, table *partition.Table, from, end int64) (LogReader, error) {
	return &journalReader{j, part, partition.NewRouter(table, partition.CacheOptions{}), from, end}, nil
}

type journalReader struct {
	*journal
	part      LogPart
	router    *partition.Router
	next, end int64
}

// Next implements LogReader.
func (r *journalReader) Next(ctx context.Context) (LogPage, error) {
	if err := sleep(ctx, 50*time.Millisecond); err != nil {
		return LogPage{}, err
	}
	r.mu.Lock()
	r.log.reads++
	page, fault := r.log.reads, r.log.fault
	r.mu.Unlock()
	if fault != nil { // not under the lock: it may wait
		if err := fault(page); err != nil {
			return LogPage{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next < int64(r.log.gone) {
		return LogPage{}, &LostError{r.part.Topic, r.part.Partition, "the log begins later by now"}
	}
	entries := r.entries[r.part.Partition]
	var read LogPage
	for ; r.next < r.end && len(read.Writes)+read.Ignored < 7; r.next++ {
		e := entries[r.next]
		if r.log.compact && slices.ContainsFunc(entries[r.next+1:], func(later entry) bool { return later.id == e.id }) {
			continue
		}
		if e.body == ignored {
			read.Ignored++
			continue
		}
		a := bulk.Action{
			Op: bulk.Index, VersionType: bulk.External, Version: versionOf(int(r.next)), Target: r.router.Route([]byte(e.customer)).New,
			ID: []byte(e.id), Body: []byte(e.body),
		}
		if e.deleted {
			a.Body = []byte(`{"_sluice_deleted":true,"_sluice_deleted_at":1}`)
		}
		read.Writes = append(read.Writes, LogWrite{a, r.next})
	}
	read.Next = r.next
	return read, nil
}

// Close implements LogReader.
func (r *journalReader) Close() {}

// ignored is the body of a record that a rule passes over.
const ignored = "ignored"

// fill puts documents into the source through the log: each is written, some
// are written again, some deleted.
func (w *world) fill(docs, customers int) {
	w.Helper()
	w.fromLog = true
	for i := range docs {
		id, customer := fmt.Sprintf("d%d", i), fmt.Sprintf("c%d", i%customers)
		w.log.put(id, customer, -i)
		switch i % 5 {
		case 1:
			w.log.put(id, customer, i)
		case 2:
			w.log.remove(id, customer)
		}
	}
	w.log.deliver()
}

// logged brings a job that copies from the log to where both sides are written.
func (w *world) logged(docs int) {
	w.Helper()
	w.fill(docs, 5)
	w.create(2)
	_, err := w.m.Source(w.Context(), request(), FromKafka)
	w.check(err)
	_, err = w.m.DualWrite(w.Context(), request())
	w.check(err)
}

// A job that reads the topics again ends with the same documents at the same
// versions as one that copies the index, whatever is compacted away, beside live
// records, and although reads and writes fail.
func TestCopyFromTheLog(t *testing.T) {
	for seed := range uint64(4) {
		inBubble(t, func(w *world) {
			w.log.log.compact = seed%2 == 1
			w.logged(400)
			w.log.log.fault = func(page int) error {
				if (page*7+int(seed))%10 == 0 { //nolint:gosec // a small number
					return errors.New("the leader has moved")
				}
				return nil
			}
			lost := w.es.Inject(embedded.Rule{API: "bulk", Index: "*-backfill-*", Share: 0.1, Fault: embedded.Fault{Drop: true}})
			live, end := context.WithCancel(w.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.log.run(live, rand.New(rand.NewPCG(seed, 6)), 5, 500) }()
			w.check(w.m.Work(w.Context(), jobName, w.tell))
			w.state(Synced)
			end()
			<-done
			lost.Remove()
			w.log.adopt()
			w.log.deliver()
			w.same()
			if n := w.tombstonesLeft(); n > 0 {
				w.Errorf("%d tombstones are left", n)
			}
			status, err := w.m.Status(w.Context(), jobName)
			w.check(err)
			if status.Reached != status.Backfill.Total || status.Seen != status.Written+status.Newer || !strings.Contains(status.Line(), " offsets") {
				w.Errorf("%s: %+v", status.Line(), status.Backfill)
			}
			if report := w.verify(Check{Level: L2, Full: true}); !report.Clean() {
				w.Errorf("%+v", report)
			}
		})
	}
}

// Each page is read once: a runner that takes over goes on at the cursors.
func TestTheLogIsReadOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.logged(300)
		w.log.adopt()
		life, kill := context.WithCancel(w.Context())
		w.log.log.fault = func(page int) error {
			if page == 30 {
				kill()
			}
			return nil
		}
		if err := w.manager("first", nil).Work(life, jobName, nil); err == nil {
			w.Fatal("it was not killed")
		}
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.same()
		pages := 0
		for _, part := range w.job().Backfill.Log {
			pages += int(part.End+6) / 7
		}
		if most := pages + 4 + 16; w.log.log.reads > most { // a page of each partition, and of each worker
			w.Errorf("%d pages were read of %d", w.log.log.reads, pages)
		}
	})
}

// A log that does not hold what the index holds is refused, with what to do.
func TestALogThatIsNotWhole(t *testing.T) {
	inBubble(t, func(w *world) {
		w.fill(50, 5)
		w.create(2)
		w.log.log.refusals = []Refusal{{Why: "the log of t/1 begins at 812"}}
		_, err := w.m.Source(w.Context(), request(), FromKafka)
		w.refused(err, "begins at 812: copy from the index: sluice migrate run --source index --job j7")
		w.log.log.refusals = nil
		_, err = w.m.Source(w.Context(), request(), FromKafka)
		w.check(err)
		_, err = w.m.DualWrite(w.Context(), request())
		w.check(err)
		// Retention goes on while the fence is awaited.
		w.log.log.refusals = []Refusal{{Why: "the log of t/1 begins at 812"}}
		stop := w.consume()
		var refused *RefusedError
		if err := w.m.Work(w.Context(), jobName, nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), "begins at 812") {
			w.Errorf("the copy began: %v", err)
		}
		w.state(Dual)
		_, err = w.m.Source(w.Context(), request(), FromIndex)
		w.check(err)
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		w.same()
		_, err = w.m.Source(w.Context(), request(), FromKafka)
		w.refused(err, "job j7 is SYNCED and copies from the index: sluice migrate detach --job j7 begins anew")
	})
	inBubble(t, func(w *world) {
		w.fill(50, 5)
		w.seed(1, 1) // was there before the consumers, and is there still
		w.call("PUT", "/"+source+"/_doc/stranger?refresh=true", `{"customer":"c1"}`)
		w.create(2)
		_, err := w.m.Source(w.Context(), request(), FromKafka)
		w.refused(err, "holds documents that no record of the consumers has written")
	})
}

// What retention takes before it was read ends the copy; what it takes after
// does not.
func TestRetentionDuringTheCopy(t *testing.T) {
	for name, c := range map[string]struct {
		after, gone int // pages, offsets
		lost        bool
	}{"read": {54, 1, false}, "unread": {15, 1000, true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.logged(300)
				w.log.log.fault = func(page int) error {
					if page > c.after {
						w.log.mu.Lock()
						w.log.log.gone = c.gone
						w.log.mu.Unlock()
					}
					return nil
				}
				stop := w.consume()
				err := w.m.Work(w.Context(), jobName, nil)
				stop()
				if c.lost && (err == nil || !strings.Contains(err.Error(), "begin anew, from the index: sluice migrate detach")) {
					w.Errorf("the copy ended as %s: %v", w.job().State, err)
				}
				if !c.lost {
					w.check(err)
					w.same()
				}
			})
		})
	}
}

// A compacted topic forgets deletes after a while: a copy that takes longer may
// have read what was deleted and not the delete.
func TestDeletesThatACompactedTopicForgets(t *testing.T) {
	inBubble(t, func(w *world) {
		w.log.log.deletes = 20 * time.Second
		w.logged(300)
		stop := w.consume()
		w.log.log.fault = func(page int) error {
			if page == 15 {
				_, err := w.m.Pause(w.Context(), request())
				return err
			}
			return nil
		}
		work := w.start(w.m)
		sleepFor(w, 30*time.Second)
		_, err := w.m.Resume(w.Context(), request(), false)
		w.check(err)
		if err := work(); err == nil || !strings.Contains(err.Error(), "keeps deletes for 20s only") {
			w.Errorf("the copy ended as %s: %v", w.job().State, err)
		}
		if err := w.m.Work(w.Context(), jobName, nil); err == nil {
			w.Error("another try takes the job for done")
		}
		w.log.log.fault = nil
		_, err = w.m.Detach(w.Context(), request(), nil)
		w.check(err)
		_, err = w.m.Source(w.Context(), request(), FromIndex)
		w.check(err)
		w.toSynced()
		stop()
		w.same()
	})
}

// A record that the new side refuses keeps the job where it is only if the old
// side has taken it.
func TestRecordsThatFail(t *testing.T) {
	inBubble(t, func(w *world) {
		refuse := func(index string, versions ...int) *embedded.Injection {
			return w.es.Inject(embedded.Rule{API: "bulk", Index: index, Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
				if string(a.ID) == "odd" && slices.Contains(versions, int(a.Version-epochs)>>8) {
					return &embedded.ItemError{Status: 400, Type: "document_parsing_exception", Reason: "no"}
				}
				return nil
			}}})
		}
		p := partitionOf("odd")
		put := func(n int) int { w.log.put("odd", "c1", n); return len(w.log.entries[p]) }
		first := put(1)
		second := put(2) // refused by both sides
		w.log.append(entry{id: "skipped", customer: "c2", body: ignored})
		both := refuse(source, second)
		for w.log.committed[p].offset < int64(second) {
			w.log.next(p)
		}
		both.Remove()
		w.fromLog = true
		w.log.deliverIgnoring()
		w.create(2)
		_, err := w.m.Source(w.Context(), request(), FromKafka)
		w.check(err)
		_, err = w.m.DualWrite(w.Context(), request())
		w.check(err)
		w.log.adopt()
		onNew := refuse("*-backfill-*", second)
		atFirst := refuse("*-backfill-*", first)
		err = w.m.Work(w.Context(), jobName, nil)
		if err == nil || !strings.Contains(err.Error(), "2 documents could not be copied") {
			w.Errorf("the job went on: %v", err)
		}
		atFirst.Remove()
		stop := w.consume()
		w.check(w.m.Work(w.Context(), jobName, nil))
		stop()
		onNew.Remove()
		w.state(Synced)
		w.same()
		status, err := w.m.Status(w.Context(), jobName)
		w.check(err)
		if status.Failed != 2 || status.Seen != 3 {
			w.Errorf("seen %d, failed %d", status.Seen, status.Failed)
		}
	})
}

// deliverIgnoring delivers what is left, and passes over what a rule ignores.
func (j *journal) deliverIgnoring() {
	for p := range sourcePartitions {
		for int(j.committed[p].offset) < len(j.entries[p]) {
			if j.entries[p][j.committed[p].offset].body == ignored {
				j.committed[p].offset++
				continue
			}
			j.next(p)
		}
	}
}

// The rule behind the copy from the log: what is read below the fence is written
// with deletes as tombstone documents, in any order (parts are read beside each
// other, and again after a crash), beside live operations; and a compacted log
// may lose a delete only once all of it was read.
func TestModelOfTheLog(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules logRules
		holds bool
	}{
		{"as it is", logRules{}, true},
		{"compacted, read in time", logRules{compacts: true}, true},
		{"deletes are deletes", logRules{hard: true}, false},
		{"read up to where the table was published", logRules{short: true}, false},
		{"compacted, and deletes are forgotten meanwhile", logRules{compacts: true, forgets: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := c.rules.counterexample()
			if c.holds != (found == "") {
				t.Errorf("counterexample: %q", found)
			}
			t.Log(found)
		})
	}
}

type logRules struct {
	hard     bool // deletes that are read are written as deletes
	short    bool // the last operation before the fence is not read
	compacts bool // what a later operation replaces may go from the log at any time
	forgets  bool // and a delete that is the last of all, while the log is read
}

// logMoment is a state of the model: one document on the new side, its log, the
// operations that were read, and the next live one.
type logMoment struct {
	new        side
	gone, read uint8 // by operation
	live       int
}

func (r logRules) counterexample() string {
	for n := 1; n <= 3; n++ {
		for bits := range 1 << n {
			for fence := range n + 1 {
				ops := make([]byte, n)
				for i := range ops {
					ops[i] = "ID"[bits>>i&1]
				}
				if found := r.search(ops, fence); found != "" {
					return fmt.Sprintf("%s, fence %d: %s", ops, fence, found)
				}
			}
		}
	}
	return ""
}

func (r logRules) search(ops []byte, fence int) string {
	want := -1
	if last := len(ops) - 1; ops[last] == 'I' {
		want = firstVersion + last
	}
	end := fence
	if r.short && fence > 0 {
		end--
	}
	seen := map[logMoment]bool{}
	var visit func(m logMoment, trace string) string
	apply := func(s side, k int, tombstone bool) side {
		return rules{}.liveOnNew(s, ops[k], firstVersion+k, tombstone)
	}
	visit = func(m logMoment, trace string) string {
		if seen[m] {
			return ""
		}
		seen[m] = true
		if all := uint8(1)<<end - 1; m.live == len(ops) && (m.read|m.gone)&all == all && m.new.visible() != want {
			return fmt.Sprintf("%s: new shows %d, want %d", trace, m.new.visible(), want)
		}
		for k := range end {
			if m.gone>>k&1 == 0 { // again too
				next := m
				next.new, next.read = apply(m.new, k, !r.hard), m.read|1<<k
				if found := visit(next, fmt.Sprintf("%s read %c%d", trace, ops[k], k)); found != "" {
					return found
				}
			}
			replaced := k < len(ops)-1 && (k+1 < fence || m.live > k+1)
			if r.compacts && m.gone>>k&1 == 0 && (replaced || r.forgets && ops[k] == 'D') {
				next := m
				next.gone |= 1 << k
				if found := visit(next, fmt.Sprintf("%s %d goes", trace, k)); found != "" {
					return found
				}
			}
		}
		if k := max(m.live, fence); k < len(ops) {
			next := m
			next.new, next.live = apply(m.new, k, true), k+1
			if found := visit(next, fmt.Sprintf("%s live %c%d", trace, ops[k], k)); found != "" {
				return found
			}
		} else if m.live < len(ops) {
			next := m
			next.live = len(ops)
			if found := visit(next, trace); found != "" {
				return found
			}
		}
		if m.new.memory != 0 {
			next := m
			next.new.memory = 0
			return visit(next, trace+" forgets")
		}
		return ""
	}
	return visit(logMoment{}, "")
}
