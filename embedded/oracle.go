package embedded

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An Oracle compares every offset commit with what is stored at that moment: a
// commit that passes a record whose effect is nowhere is a violation of the
// promise, whether or not anything is lost later.
//
// It learns of records by [Oracle.Produced], or reads them with [Oracle.Read]; a
// record it hears of only after a commit has passed it is checked then. A
// record that is dead-lettered is excused by [Oracle.ReadLetters], which looks
// at the letters when the test is over: one that was written before the commit
// counts.
type Oracle struct {
	held func(*kgo.Record) bool

	mu         sync.Mutex
	partitions map[topicPartition]*oracleLog
	violations []Violation
	backwards  []Commit
}

type topicPartition struct {
	topic     string
	partition int32
}

type oracleLog struct {
	records []*kgo.Record // by offset
	// passed is the highest offset that each group has committed: all known
	// records below it have been checked.
	passed map[string]Commit
}

// A Violation is a record that a commit passed while it was stored nowhere.
type Violation struct {
	Record *kgo.Record
	Commit Commit
	At     time.Time
}

func (v Violation) String() string {
	return fmt.Sprintf("%s committed %s/%d at %d, record %d is held nowhere", v.Commit.Group, v.Commit.Topic, v.Commit.Partition,
		v.Commit.Offset, v.Record.Offset)
}

// NewOracle returns an oracle for which a record is held if held says so: its
// effect, or that of a newer version, is stored, or nothing is to be stored.
// held runs on the cluster's goroutine and must not call the cluster.
func NewOracle(held func(*kgo.Record) bool) *Oracle {
	return &Oracle{held: held, partitions: map[topicPartition]*oracleLog{}}
}

// Watch makes the oracle see the cluster's commits.
func (o *Oracle) Watch(k *Kafka) { k.WatchCommits(o.Commit) }

// Produced tells the oracle of records whose offsets are known.
func (o *Oracle) Produced(records ...*kgo.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range records {
		l := o.log(topicPartition{r.Topic, r.Partition})
		i, found := slices.BinarySearchFunc(l.records, r.Offset, func(r *kgo.Record, off int64) int { return int(r.Offset - off) })
		if found {
			continue
		}
		l.records = slices.Insert(l.records, i, r)
		for _, group := range sortedKeys(l.passed) {
			if c := l.passed[group]; r.Offset < c.Offset {
				o.check(r, c)
			}
		}
	}
}

// Read tells the oracle of all that topics hold.
func (o *Oracle) Read(ctx context.Context, k *Kafka, topics ...string) error {
	for _, t := range topics {
		records, err := k.ReadAll(ctx, t)
		if err != nil {
			return err
		}
		o.Produced(records...)
	}
	return nil
}

func (o *Oracle) log(tp topicPartition) *oracleLog {
	l := o.partitions[tp]
	if l == nil {
		l = &oracleLog{passed: map[string]Commit{}}
		o.partitions[tp] = l
	}
	return l
}

// Commit checks one commit.
func (o *Oracle) Commit(c Commit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.log(topicPartition{c.Topic, c.Partition})
	before, known := l.passed[c.Group]
	if known && c.Offset < before.Offset {
		o.backwards = append(o.backwards, c)
		return
	}
	from := int64(0)
	if known {
		from = before.Offset
	}
	i, _ := slices.BinarySearchFunc(l.records, from, func(r *kgo.Record, off int64) int { return int(r.Offset - off) })
	for _, r := range l.records[i:] {
		if r.Offset >= c.Offset {
			break
		}
		o.check(r, c)
	}
	l.passed[c.Group] = c
}

func (o *Oracle) check(r *kgo.Record, c Commit) {
	if !o.held(r) {
		o.violations = append(o.violations, Violation{Record: r, Commit: c, At: time.Now()})
	}
}

// Violations returns what was found so far.
func (o *Oracle) Violations() []Violation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.violations)
}

// Backwards returns the commits below an earlier one of the same group. A
// zombie may try that; the broker must have refused it.
func (o *Oracle) Backwards() []Commit {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.backwards)
}

// Excuse drops the violations that why accepts.
func (o *Oracle) Excuse(why func(Violation) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.violations = slices.DeleteFunc(o.violations, why)
}

// ReadLetters excuses records that dead-letter topics hold, by the headers
// sluice.topic, sluice.partition and sluice.offset, if the letter's timestamp is
// not after the commit.
func (o *Oracle) ReadLetters(ctx context.Context, k *Kafka, topics ...string) error {
	type place struct {
		topicPartition
		offset int64
	}
	letters := map[place]time.Time{}
	for _, t := range topics {
		records, err := k.ReadAll(ctx, t)
		if err != nil {
			return err
		}
		for _, r := range records {
			var p place
			var perr, oerr error
			for _, h := range r.Headers {
				switch h.Key {
				case "sluice.topic":
					p.topic = string(h.Value)
				case "sluice.partition":
					var n int64
					n, perr = strconv.ParseInt(string(h.Value), 10, 32)
					p.partition = int32(n)
				case "sluice.offset":
					p.offset, oerr = strconv.ParseInt(string(h.Value), 10, 64)
				}
			}
			if perr != nil || oerr != nil {
				return fmt.Errorf("embedded kafka: the letter at %s/%d/%d has a bad header", r.Topic, r.Partition, r.Offset)
			}
			if first, seen := letters[p]; !seen || r.Timestamp.Before(first) {
				letters[p] = r.Timestamp
			}
		}
	}
	o.Excuse(func(v Violation) bool {
		at, ok := letters[place{topicPartition{v.Record.Topic, v.Record.Partition}, v.Record.Offset}]
		return ok && !at.After(v.At)
	})
	return nil
}

// An Effect is what a record does to an index.
type Effect struct {
	Index, ID string
	// Version is the external version it is written with; 0: none.
	Version int64
	// Ignored records leave no trace.
	Ignored bool
}

// StoredIn returns a predicate for [NewOracle]: the record's write, or one of
// the same id with a version at or above its own, was accepted by es, which
// needs [Config.History].
func StoredIn(es *Elasticsearch, effect func(*kgo.Record) Effect) func(*kgo.Record) bool {
	return func(r *kgo.Record) bool {
		e := effect(r)
		if e.Ignored {
			return true
		}
		version, ok := es.Peak(e.Index, e.ID)
		return ok && version >= e.Version
	}
}
