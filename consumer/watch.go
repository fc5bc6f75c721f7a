package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer"
)

const (
	// watchEvery is how often the logs' ends are read. Between, fetches tell.
	watchEvery = 10 * time.Second
	// conflictRetry is the pause after an attempt to classify a conflict that
	// could not read what it needed.
	conflictRetry = time.Second
)

// foreign says whether a stored version above the one sent is none that this
// topic can have brought, as far as is known now: log ends and generations
// that were read before the answer came may be too old to tell.
func (t *topic) foreign(stored, sent int64) bool {
	var list generation.List
	if k := t.known.Load(); k != nil {
		list = k.list
	}
	return foreign(t.rules.Version(), stored, sent, list, t.end.Load())
}

// foreign is the rule of DESIGN 5.3. end is the highest log end of the topic's
// partitions: a record of a key may have been written to any of them.
func foreign(mode document.VersionMode, stored, sent int64, list generation.List, end int64) bool {
	switch mode {
	case document.VersionSequence:
		gen, offset, _, ok := document.DecodeSequence(stored)
		if !ok || !slices.ContainsFunc(list, func(e generation.Entry) bool { return e.Generation == gen }) {
			return true
		}
		ours, _, _, _ := document.DecodeSequence(sent)
		return gen <= ours && offset >= end
	case document.VersionOffset:
		return stored >= end
	default: // versions that records bring: whoever wrote it, it is newer
		return false
	}
}

// conflict is an action whose version the index refused, waiting to be
// classified.
type conflict struct {
	of     subject
	topic  *topic
	seq    uint64
	stored int64
	r      *indexer.Rejection
}

// subject is whose record met a conflict, or is stained: a partition's, or a
// parked one.
type subject interface {
	// waits says whether the record is still to be settled.
	waits(seq uint64) bool
	// stale settles it: what is stored is a newer one of this topic.
	stale(seq uint64)
	// foreign has it wait for an operator.
	foreign(x *conflict)
}

// bytes are what the conflict takes of the budget until it is settled.
func (x *conflict) bytes() int64 { return int64(len(x.r.Meta)+len(x.r.Body)+len(x.r.Reason)) + 512 }

// conflictQueue holds conflicts for the watcher. It is as large as what is in
// flight at most.
type conflictQueue struct {
	wake chan struct{}

	mu    sync.Mutex
	items []*conflict
}

func (q *conflictQueue) add(items ...*conflict) {
	q.mu.Lock()
	q.items = append(q.items, items...)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *conflictQueue) takeAll() []*conflict {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}

// watch is the watcher. It ends with ctx.
func (c *Consumer) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	defer func() { c.giveBack(c.conflicts.takeAll()) }()
	for {
		select {
		case <-tick.C:
			c.readEnds(ctx)
			c.watchStarts(ctx)
		case <-c.conflicts.wake:
			if left := c.settleConflicts(ctx, c.conflicts.takeAll()); len(left) > 0 {
				t := time.NewTimer(conflictRetry)
				select {
				case <-t.C:
				case <-ctx.Done():
					t.Stop()
				}
				c.conflicts.add(left...)
			}
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (c *Consumer) giveBack(conflicts []*conflict) {
	for _, x := range conflicts {
		c.o.Budget.Give(x.bytes())
	}
}

// settleConflicts reads log ends and generations anew, after the answers, and
// settles what they explain. What they do not halts its topic. It returns the
// conflicts for which they could not be read.
func (c *Consumer) settleConflicts(ctx context.Context, all []*conflict) (left []*conflict) {
	byTopic := make(map[*topic][]*conflict)
	for _, x := range all {
		if x.of.waits(x.seq) {
			byTopic[x.topic] = append(byTopic[x.topic], x)
		} else { // the partition was lost: of no consequence
			c.o.Budget.Give(x.bytes())
		}
	}
	for t, conflicts := range byTopic {
		if err := c.learn(ctx, t); err != nil {
			c.log.Warn().Str("topic", t.name).Int("records", len(conflicts)).Err(err).Msg("version conflicts wait: what explains them cannot be read; trying again")
			left = append(left, conflicts...)
			continue
		}
		for _, x := range conflicts {
			c.o.Budget.Give(x.bytes())
			if !t.foreign(x.stored, x.r.Version) {
				x.of.stale(x.seq)
				continue
			}
			x.of.foreign(x)
		}
	}
	return left
}

// learn reads the log ends and the generations of t.
func (c *Consumer) learn(ctx context.Context, t *topic) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ends, err := c.adm.ListEndOffsets(ctx, t.name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("consumer: log ends of topic %s: %w", t.name, err)
	}
	ends.Each(func(o kadm.ListedOffset) { t.sawEnd(o.Offset) })
	if !t.rules.NeedsGeneration() {
		return nil
	}
	now, list, err := c.describeTopic(ctx, t)
	var raise *generation.NeedsRaiseError
	switch {
	case errors.As(err, &raise):
		c.haltTopic(t, &Halt{Kind: HaltGeneration, Type: err.Error(), Since: c.now()})
	case err != nil:
		return err
	}
	if list != nil {
		t.known.Store(&known{now.ID, now.Partitions, list})
	}
	return nil
}

// waits implements subject.
func (a *assignment) waits(seq uint64) bool {
	_, ok := a.offset(seq)
	return ok
}

// stale implements subject.
func (a *assignment) stale(seq uint64) { a.settle(outStale, seq) }

// foreign implements subject: it halts the partition on the record, and its
// topic.
func (a *assignment) foreign(x *conflict) {
	a.stain(x.seq, x.r)
	letter, ok := a.letter(x.seq, x.r)
	if !ok {
		return
	}
	letter.Type = foreignText(x)
	a.block(x.seq, letter, HaltForeign)
	a.c.haltTopic(a.topic, &Halt{Kind: HaltForeign, Offset: -1, Type: fmt.Sprintf("partition %d met a foreign version: %s", a.id, letter.Type), Target: letter.Target, Since: a.c.now()})
}

func foreignText(x *conflict) string {
	mode := x.topic.rules.Version()
	return fmt.Sprintf("stored version %s is above %s and none that this topic wrote", explainVersion(mode, x.stored), explainVersion(mode, x.r.Version))
}

func explainVersion(mode document.VersionMode, v int64) string {
	if mode == document.VersionSequence {
		if gen, offset, _, ok := document.DecodeSequence(v); ok {
			return fmt.Sprintf("%d (generation %d, offset %d)", v, gen, offset)
		}
	}
	return fmt.Sprint(v)
}

// readEnds reads where the logs of the held topics begin and end, for the lag
// of partitions that are not fetched at present, and how many brokers there
// are.
func (c *Consumer) readEnds(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	c.mu.Lock()
	topics := make([]string, 0, len(c.topics))
	for name := range c.topics {
		topics = append(topics, name)
	}
	c.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	list := c.adm.ListEndOffsets
	if c.committedOnly() {
		list = c.adm.ListCommittedOffsets
	}
	ends, err := list(ctx, topics...)
	if err != nil {
		c.log.Debug().Err(err).Msg("log ends cannot be read")
		return
	}
	starts, err := c.adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		c.log.Debug().Err(err).Msg("log starts cannot be read")
		return
	}
	for _, a := range c.holdings() {
		end, okEnd := ends.Lookup(a.l.topic, a.id)
		start, okStart := starts.Lookup(a.l.topic, a.id)
		a.l.mu.Lock()
		if okEnd && end.Err == nil {
			a.end = end.Offset
		}
		if okStart && start.Err == nil {
			a.start = start.Offset
		}
		a.l.mu.Unlock()
	}
	if brokers, err := c.adm.ListBrokers(ctx); err == nil {
		c.brokers.Store(int64(len(brokers)))
	}
}
