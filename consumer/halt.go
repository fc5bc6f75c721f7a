package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/document"
)

// The kinds of halts.
const (
	HaltRejected    = "rejected_record"  // on_rejected: stop, or on_null: fail
	HaltForeign     = "foreign_version"  // the index holds a version that is not ours
	HaltDataLoss    = "data_loss"        // out of range or truncated
	HaltUndecodable = "undecodable"      // a batch cannot be read
	HaltGeneration  = "needs_generation" // the topic is not what its recorded generations describe
	HaltNoCommit    = "no_commit"        // reset: none, and the group has no commit
)

// Halt says why a partition stands still until an operator acts.
type Halt struct {
	Kind   string `json:"kind"`
	Offset int64  `json:"offset"` // the record that blocks it, or where fetching stopped; -1: none
	// Type is the error's type, or a sentence. It quotes no record.
	Type   string    `json:"type"`
	Target string    `json:"target,omitempty"`
	Since  time.Time `json:"since"`
}

// logReset says that a fetch begins below what was fetched before.
type logReset struct{ expected, got int64 }

func (e *logReset) Error() string {
	return fmt.Sprintf("offset %d came after %d: the log was truncated, or the topic was made anew", e.got, e.expected-1)
}

// halt stops a partition, once: it takes no more, its queue is dropped, what
// is in flight goes on. A batch that cannot be decoded stops fetching only: what
// was fetched before it goes on, and may halt the partition for another reason.
func (c *Consumer) halt(a *assignment, h *Halt) {
	a.l.mu.Lock()
	if a.over || a.halt != nil && (a.halt.Kind != HaltUndecodable || h.Kind == HaltUndecodable) {
		a.l.mu.Unlock()
		return
	}
	a.halt = h
	if h.Kind != HaltUndecodable {
		a.stopped.Store(true)
		a.dropQueue()
	}
	a.l.mu.Unlock()
	c.pauses.set(pauseHalted, a)
	if h.Kind != HaltUndecodable {
		c.pauses.clear(pauseFull, a) // the dispatcher, which ends it, sees no queue any more
	}
	c.checkMemory()
	c.log.Error().Str("topic", a.l.topic).Int32("partition", a.id).Int64("offset", h.Offset).
		Str("kind", h.Kind).Str("type", h.Type).Str("target", h.Target).Msg("partition halted: it waits for an operator")
}

func (a *assignment) haltedBy(kind string) bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.halt != nil && a.halt.Kind == kind
}

// haltTopic halts all partitions of t that are held.
func (c *Consumer) haltTopic(t *topic, h *Halt) {
	for _, a := range c.holdings() {
		if a.topic == t {
			own := *h
			if own.Kind != HaltForeign {
				own.Offset = -1
			}
			c.halt(a, &own)
		}
	}
}

// resume lets a halted partition go on from its position. It runs in the poll
// loop, with turn held.
func (c *Consumer) resume(a *assignment) {
	a.l.mu.Lock()
	if a.over || a.halt == nil {
		a.l.mu.Unlock()
		return
	}
	a.l.mu.Unlock()
	// The dispatcher may not have let go of the batch in which it halted.
	<-c.dispatcher.flush()
	a.l.mu.Lock()
	at := kgo.EpochOffset{Epoch: -1, Offset: a.fetched}
	a.halt = nil
	a.fetchErrors, a.denied = 0, ""
	a.stopped.Store(false)
	a.l.mu.Unlock()
	if at.Offset >= 0 {
		c.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{a.l.topic: {a.id: at}})
	}
	c.pauses.clear(pauseHalted|pauseRetry, a)
	c.log.Info().Str("topic", a.l.topic).Int32("partition", a.id).Int64("offset", at.Offset).Msg("partition goes on")
}

// fetchError acts on an error that a poll brought for a partition.
func (c *Consumer) fetchError(p kgo.FetchTopicPartition) {
	topic, partition, err := p.Topic, p.Partition, p.Err
	var tooLarge *kgo.ErrDecompressTooLarge
	var loss *kgo.ErrDataLoss
	var session *kgo.ErrGroupSession
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, kgo.ErrClientClosed):
		return
	case errors.Is(err, kerr.FencedInstanceID):
		c.fail(ErrFenced)
		return
	case errors.As(err, &session):
		c.trouble.refused(c.remedied(err).Error(), c.now(), c.log)
		return
	}
	a := c.holding(tp{topic, partition})
	if a == nil {
		if c.denied(err) != "" {
			c.deny(topic, err)
			return
		}
		c.log.Warn().Str("topic", topic).Int32("partition", partition).Err(err).Msg("fetch failed")
		return
	}
	switch {
	case errors.Is(err, errUnpackedFull):
		c.fetchLater(a)
	case errors.As(err, &loss), errors.Is(err, kerr.OffsetOutOfRange):
		c.dataLoss(a, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		c.recheckTopics() // deleted, or made anew: the resolver tells
		c.failedFetch(a, err, false)
	case errors.As(err, &tooLarge):
		// The client has given the batch up: it tries no more.
		c.halt(a, &Halt{Kind: HaltUndecodable, Offset: tooLarge.Offset, Type: err.Error(), Since: c.now()})
	default:
		var ke *kerr.Error
		content := !errors.As(err, &ke)
		if content {
			a.saw(p.FetchPartition, c.committedOnly())
		}
		c.failedFetch(a, err, content)
	}
}

// failedFetch leaves the partition alone for a while. Content that cannot be
// read again and again halts it.
func (c *Consumer) failedFetch(a *assignment, err error, content bool) {
	retry := fetchRetry
	var h *Halt
	a.l.mu.Lock()
	if a.over || a.halt != nil && a.halt.Kind != HaltUndecodable {
		a.l.mu.Unlock()
		return
	}
	a.fetchErrors++
	a.denied, a.deniedAt = c.denied(err), c.now()
	tries := a.fetchErrors
	if content && tries >= fetchTries {
		// Now and then all the same: it may be the network.
		retry = undecodableRetry
		at := a.fetched
		if at < 0 { // nothing was read yet: it is the log's first
			at = a.start
		}
		h = &Halt{Kind: HaltUndecodable, Offset: at, Type: err.Error(), Since: c.now()}
	}
	a.retryFetch = c.now().Add(retry)
	a.l.mu.Unlock()
	c.pauses.set(pauseRetry, a)
	if h != nil {
		c.halt(a, h)
		return
	}
	if tries == 1 {
		c.log.Warn().Str("topic", a.l.topic).Int32("partition", a.id).Err(c.remedied(err)).Msg("fetch failed, trying again")
	}
}

// fetchLater leaves a partition alone of which a batch came that there was no
// room for.
func (c *Consumer) fetchLater(a *assignment) {
	a.l.mu.Lock()
	if a.over || a.halt != nil {
		a.l.mu.Unlock()
		return
	}
	a.retryFetch = c.now().Add(fullRetry)
	a.l.mu.Unlock()
	c.pauses.set(pauseRetry, a)
}

// retryFetches fetches partitions again whose wait is over.
func (c *Consumer) retryFetches() {
	now := c.now()
	for _, a := range c.holdings() {
		a.l.mu.Lock()
		due := !a.retryFetch.IsZero() && !now.Before(a.retryFetch)
		lift := pauseRetry
		if due {
			a.retryFetch = time.Time{}
			if a.halt != nil && a.halt.Kind == HaltUndecodable {
				lift |= pauseHalted
			}
		}
		a.l.mu.Unlock()
		if due {
			c.pauses.clear(lift, a)
		}
	}
}

// dataLoss acts by on_data_loss. err is an ErrDataLoss, an out of range, or a
// *logReset.
func (c *Consumer) dataLoss(a *assignment, err error) {
	var loss *kgo.ErrDataLoss
	var reset *logReset
	from := a.fetchedNow()
	switch {
	case errors.As(err, &loss):
		c.lost(a, loss.ConsumedTo, loss.ResetTo, err)
	case errors.As(err, &reset):
		c.lost(a, from, reset.got, err)
	case c.resumes: // the client goes on by itself, and says where
		c.counters.dataLoss.Add(1)
		c.failedFetch(a, err, false)
	default:
		// On which side of the log the offset lies decides what helps.
		c.failedFetch(a, err, false) // the error comes again if that cannot be told now
		c.tasks.Go(func() { c.outOfRange(a, from, err) })
	}
}

// outOfRange asks where the log begins and ends now and halts the partition,
// whose next offset, from, lies outside.
func (c *Consumer) outOfRange(a *assignment, from int64, err error) {
	ctx, cancel := context.WithTimeout(c.stopping, outOfRangeTimeout)
	defer cancel()
	start, end, asked := c.logRange(ctx, a)
	if asked != nil {
		c.log.Warn().Str("topic", a.l.topic).Int32("partition", a.id).Err(asked).Msg("the next offset is out of range, and the log's range cannot be read; trying again")
		return
	}
	c.do(func() {
		switch {
		case c.holding(tp{a.l.topic, a.id}) != a || a.fetchedNow() != from:
			return
		case from < start:
			c.lost(a, from, start, err)
		case from > end:
			c.lost(a, from, end, err)
		}
		// Else the log has grown beyond it, or the answers are of different
		// replicas: the next fetch tells.
	})
}

// logRange is where the log of a partition begins and ends.
func (c *Consumer) logRange(ctx context.Context, a *assignment) (start, end int64, err error) {
	at := func(listed kadm.ListedOffsets, err error) (int64, error) {
		if err != nil {
			return 0, err
		}
		o, ok := listed.Lookup(a.l.topic, a.id)
		if !ok || o.Err != nil {
			return 0, fmt.Errorf("consumer: range of %s/%d: no answer, or %w", a.l.topic, a.id, o.Err)
		}
		return o.Offset, nil
	}
	if start, err = at(c.adm.ListStartOffsets(ctx, a.l.topic)); err != nil {
		return 0, 0, err
	}
	end, err = at(c.adm.ListEndOffsets(ctx, a.l.topic))
	return start, end, err
}

// lost acts on a loss that is known: the partition was read up to from, and
// goes on, if at all, at to. Above from, what lies between was deleted before
// it was read; at from or below, the log was cut, and what was read is no longer
// there.
func (c *Consumer) lost(a *assignment, from, to int64, err error) {
	c.counters.dataLoss.Add(1)
	v := a.topic.rules.Version()
	again := to < from && (v == document.VersionSequence || v == document.VersionOffset)
	if !c.resumes || again {
		c.halt(a, &Halt{Kind: HaltDataLoss, Offset: from, Type: lossText(a.l.topic, a.id, from, to, v, err), Since: c.now()})
		return
	}
	c.log.Error().Str("topic", a.l.topic).Int32("partition", a.id).Int64("from", from).Int64("to", to).Err(err).Msg("data loss: records are gone from Kafka; going on (on_data_loss: resume)")
	if to < from {
		c.do(func() {
			if c.holding(tp{a.l.topic, a.id}) == a {
				c.restartAt(a, kgo.EpochOffset{Epoch: -1, Offset: to})
			}
		})
	}
}

// lossText says what was lost of a partition between from and to, and what
// helps, which follows from how the versions of the topic's documents are made.
func lossText(topic string, partition int32, from, to int64, v document.VersionMode, err error) string {
	what := fmt.Sprintf("the log was truncated below offset %d: how far is not known (%s)", from, err)
	switch {
	case to > from:
		return fmt.Sprintf("Kafka deleted offsets %d to %d before they were read (%s): to go on at the log's start, set kafka.on_data_loss: resume and restart", from, to-1, err)
	case to < from:
		what = fmt.Sprintf("the log was truncated: offsets %d to %d are not the ones that were read before (%s)", to, from-1, err)
	}
	reset := fmt.Sprintf("sluice reset --topic %s --partition %d --to %d --yes", topic, partition, to)
	switch v {
	case document.VersionSequence:
		return fmt.Sprintf("%s: offsets are used again, so stop the group and run: sluice generation raise --topic %s, then %s", what, topic, reset)
	case document.VersionOffset:
		return fmt.Sprintf("%s: offsets are used again, and documents of the lost ones refuse newer records: delete those documents or change documents.version, stop the group and run: %s", what, reset)
	default:
		return fmt.Sprintf("%s: to read again from %d, set kafka.on_data_loss: resume and restart", what, to)
	}
}

func (a *assignment) fetchedNow() int64 {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.fetched
}

// NotOwnerError says that another member holds the partition.
type NotOwnerError struct {
	Topic     string
	Partition int32
	Member    string // the owner's member id; "": nobody is known
	Host      string // and its client host
}

func (e *NotOwnerError) Error() string {
	owner := "no member is known to"
	if e.Member != "" {
		owner = fmt.Sprintf("member %s on %s", e.Member, e.Host)
	}
	return fmt.Sprintf("consumer: this replica does not hold %s/%d: %s does", e.Topic, e.Partition, owner)
}

// NotBlockedError says that nothing at that offset blocks the partition.
type NotBlockedError struct {
	Topic     string
	Partition int32
	Offset    int64
	Halt      *Halt // what does; nil: nothing
}

func (e *NotBlockedError) Error() string {
	text := fmt.Sprintf("consumer: %s/%d is not blocked at %d", e.Topic, e.Partition, e.Offset)
	if e.Halt != nil {
		text += fmt.Sprintf(": it halted at %d (%s)", e.Halt.Offset, e.Halt.Kind)
	}
	return text
}

// ErrNoDeadLetters refuses a skip that has nowhere to put the record.
var ErrNoDeadLetters = errors.New("consumer: no dead-letter topic is configured: skip with discard to lose the record")

// Skip settles the record at offset, which blocks its partition, and lets the
// partition go on: by a dead letter, once that is acknowledged, or by nothing
// at all with discard. A batch that cannot be decoded can be discarded only.
// Errors are *NotOwnerError, *NotBlockedError, ErrNoDeadLetters, and ctx's.
func (c *Consumer) Skip(ctx context.Context, topic string, partition int32, offset int64, discard bool) error {
	a := c.holding(tp{topic, partition})
	if a == nil {
		return c.notOwner(ctx, topic, partition)
	}
	if !discard && c.o.DeadLetters == nil {
		return ErrNoDeadLetters
	}
	a.l.mu.Lock()
	var bs []*blocker // one for each side that rejected it
	for _, x := range a.blockers {
		if x.offset == offset && !x.skipping {
			bs = append(bs, x)
			x.skipping = true
		}
	}
	h := a.halt
	a.l.mu.Unlock()
	switch {
	case len(bs) > 0:
		var errs []error
		for _, b := range bs {
			errs = append(errs, c.skipBlocker(ctx, a, b, discard))
		}
		return errors.Join(errs...)
	case h != nil && h.Kind == HaltUndecodable && h.Offset == offset && discard:
		return c.skipBatch(ctx, a, offset)
	case h == nil && c.skipHeld(a, offset, discard):
		return nil
	}
	if found, err := a.parking.skip(ctx, offset, discard); found {
		return err
	}
	return &NotBlockedError{topic, partition, offset, h}
}

// skipHeld skips an action that the indexer holds.
func (c *Consumer) skipHeld(a *assignment, offset int64, discard bool) bool {
	a.l.mu.Lock()
	seq, ok := a.tracker.Find(offset)
	if !ok || a.over {
		a.l.mu.Unlock()
		return false
	}
	if a.skipped == nil {
		a.skipped = make(map[uint64]bool)
	}
	a.skipped[seq] = discard
	a.l.mu.Unlock()
	held := c.o.Sink.Skip(a, seq)
	if held {
		c.o.Sink.Skip(a, seq) // the other side's action, where it is held too
	}
	a.l.mu.Lock()
	if !held || !a.tracker.Waits(seq) {
		delete(a.skipped, seq)
	}
	a.l.mu.Unlock()
	return held
}

func (c *Consumer) skipBlocker(ctx context.Context, a *assignment, b *blocker, discard bool) error {
	log := c.log.Warn().Str("topic", a.l.topic).Int32("partition", a.id).Int64("offset", b.offset).Str("type", b.letter.Type).Bool("discard", discard)
	failed := func(what string, err error) error {
		a.l.mu.Lock()
		b.skipping = false
		a.l.mu.Unlock()
		return fmt.Errorf("consumer: %s of %s/%d/%d: %w", what, a.l.topic, a.id, b.offset, err)
	}
	if customer, ok := a.takeStain(b.seq); ok {
		if err := c.o.Dirty.MarkDirty(ctx, customer); err != nil {
			a.l.mu.Lock()
			a.stains[b.seq] = customer
			a.l.mu.Unlock()
			return failed("dirty mark for the customer", err)
		}
	}
	if !discard {
		acked := make(chan error, 1)
		c.o.DeadLetters.Write(*b.letter, func(err error) { acked <- err })
		var err error
		select {
		case err = <-acked:
		case <-ctx.Done():
			err = context.Cause(ctx) // the letter may be written all the same: skip again is safe
		}
		if err != nil {
			return failed("dead letter", err)
		}
	}
	a.l.mu.Lock()
	left, over := 0, a.over
	if !over {
		for i, x := range a.blockers {
			if x == b {
				a.blockers = append(a.blockers[:i], a.blockers[i+1:]...)
				break
			}
		}
		left = len(a.blockers)
	}
	a.l.mu.Unlock()
	if over {
		return &NotOwnerError{Topic: a.l.topic, Partition: a.id}
	}
	c.o.Budget.Give(b.bytes)
	if discard {
		a.settle(outIgnored, b.seq)
	} else {
		a.settle(outDeadLettered, b.seq)
	}
	a.skipOther(b.seq, discard)
	log.Msg("record skipped by an operator")
	if left == 0 {
		c.unblocked(a, b.kind)
	}
	return nil
}

// skipOther has the other side of a record that an operator has skipped follow
// it, should that side reject the record too.
func (a *assignment) skipOther(seq uint64, discard bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if !a.tracker.Waits(seq) {
		return
	}
	if a.skipped == nil {
		a.skipped = make(map[uint64]bool)
	}
	a.skipped[seq] = discard
}

// unblocked resumes a partition whose last blocker is gone, and with a foreign
// version the partitions that halted with it. The partition may be gone with its
// blocker: it is another member's to skip then, and nobody could free them here.
func (c *Consumer) unblocked(a *assignment, kind string) {
	c.do(func() {
		for _, x := range c.holdings() {
			if x != a && (kind != HaltForeign || x.topic != a.topic) {
				continue
			}
			x.l.mu.Lock()
			h := x.halt
			free := h != nil && len(x.blockers) == 0 && (h.Kind == HaltRejected || h.Kind == HaltForeign)
			x.l.mu.Unlock()
			if !free || kind == HaltForeign && c.foreignBlockers(a.topic) {
				continue
			}
			c.resume(x)
		}
	})
}

// foreignBlockers says whether a record with a foreign version still blocks a
// partition of t.
func (c *Consumer) foreignBlockers(t *topic) bool {
	for _, a := range c.holdings() {
		if a.topic != t {
			continue
		}
		a.l.mu.Lock()
		for _, b := range a.blockers {
			if b.kind == HaltForeign {
				a.l.mu.Unlock()
				return true
			}
		}
		a.l.mu.Unlock()
	}
	return false
}

// skipBatch goes on after the batch at offset, which cannot be decoded.
func (c *Consumer) skipBatch(ctx context.Context, a *assignment, offset int64) error {
	next, err := c.batchEnd(ctx, a.l.topic, a.id, offset)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	c.do(func() {
		switch h, ok := a.pass(offset, next); {
		case c.holding(tp{a.l.topic, a.id}) != a:
			done <- &NotOwnerError{Topic: a.l.topic, Partition: a.id}
		case !ok:
			done <- &NotBlockedError{a.l.topic, a.id, offset, h}
		default:
			c.log.Error().Str("topic", a.l.topic).Int32("partition", a.id).Int64("from", offset).Int64("to", next-1).Msg("batch discarded by an operator")
			c.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{a.l.topic: {a.id: {Epoch: -1, Offset: next}}})
			c.pauses.clear(pauseHalted|pauseRetry, a)
			c.dispatcher.ready(a)
			done <- nil
		}
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pass lets the partition go on at next, after the batch at offset on which it
// halted and behind what its queue holds. ok is false where it did not halt
// there, or not any more.
func (a *assignment) pass(offset, next int64) (h *Halt, ok bool) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if h = a.halt; a.over || h == nil || h.Kind != HaltUndecodable || h.Offset != offset {
		return h, false
	}
	a.halt = nil
	a.fetchErrors, a.retryFetch = 0, time.Time{}
	a.queue = append(a.queue, batch{passed: next})
	a.fetched = next
	a.marks = append(a.marks, mark{offset: offset, epoch: -1}) // of a batch that nobody can read
	return nil, true
}

// batchEnd reads the header of the batch at offset and returns the offset
// after it; where even that cannot be read, the next one.
func (c *Consumer) batchEnd(ctx context.Context, topic string, partition int32, offset int64) (int64, error) {
	rp, err := c.rawFetch(ctx, topic, partition, offset)
	if err != nil {
		return 0, err
	}
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(rp.RecordBatches); err == nil {
		if last := batch.FirstOffset + int64(batch.LastOffsetDelta); last >= offset && batch.LastOffsetDelta >= 0 {
			return last + 1, nil
		}
	}
	return offset + 1, nil
}

// rawFetch is one fetch of one partition from its leader, past the consumer's
// own position.
func (c *Consumer) rawFetch(ctx context.Context, topic string, partition int32, offset int64) (*kmsg.FetchResponseTopicPartition, error) {
	md, err := c.adm.Metadata(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("consumer: metadata of %s: %w", topic, err)
	}
	d := md.Topics[topic]
	p, ok := d.Partitions[partition]
	if !ok || p.Leader < 0 {
		return nil, fmt.Errorf("consumer: %s/%d has no leader now: try again", topic, partition)
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes = partitionBytes
	req.MinBytes = 0
	req.MaxWaitMillis = 100
	if c.committedOnly() {
		req.IsolationLevel = 1
	}
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic, d.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, partitionBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := c.cl.Broker(int(p.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("consumer: fetching %s/%d at %d: %w", topic, partition, offset, err)
	}
	resp := kresp.(*kmsg.FetchResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("consumer: fetching %s/%d at %d: an answer without the partition", topic, partition, offset)
	}
	out := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(out.ErrorCode); err != nil {
		return nil, fmt.Errorf("consumer: fetching %s/%d at %d: %w", topic, partition, offset, err)
	}
	return out, nil
}

// notOwner asks the group who holds a partition.
func (c *Consumer) notOwner(ctx context.Context, topic string, partition int32) error {
	e := &NotOwnerError{Topic: topic, Partition: partition}
	if !c.running.Load() {
		return e
	}
	if c.cfg.GroupProtocol == "consumer" {
		groups, err := c.adm.DescribeConsumerGroups(ctx, c.cfg.GroupID)
		if err != nil {
			return e
		}
		for _, m := range groups[c.cfg.GroupID].Members {
			if m.Assignment.Lookup(topic, partition) {
				e.Member, e.Host = m.MemberID, strings.TrimPrefix(m.ClientHost, "/")
			}
		}
		return e
	}
	groups, err := c.adm.DescribeGroups(ctx, c.cfg.GroupID)
	if err != nil {
		return e
	}
	for _, m := range groups[c.cfg.GroupID].Members {
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				for _, p := range t.Partitions {
					if t.Topic == topic && p == partition {
						e.Member, e.Host = m.MemberID, strings.TrimPrefix(m.ClientHost, "/")
					}
				}
			}
		}
	}
	return e
}
