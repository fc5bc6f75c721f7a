package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/indexer"
)

// replay is a run of a lane's parked records that are being written. It is the
// indexer.Source of their actions, whose Seq is their index. Its records were
// settled when they were parked: what becomes of them counts for no partition's
// ledger.
type replay struct {
	l       *lane
	ctx     context.Context // ends when the run is given up
	giveUp  context.CancelFunc
	records []deadletter.Parked // without their content once they are sent
	done    chan struct{}       // closed when all have ended

	mu       sync.Mutex
	left     int
	ended    []bool
	blocked  map[int]*deadletter.Letter
	skipping map[int]bool // records that an operator is skipping; true: without a dead letter
}

// laneMappings is how many lanes map records at once.
const laneMappings = 4

// results are what lanes map records into, of which each takes 64 KiB
// where the stream is routed: lanes share a few.
type results chan *document.Result

func newResults() results {
	r := make(results, laneMappings)
	for range laneMappings {
		r <- new(document.Result)
	}
	return r
}

// get waits for one that is free; nil: ctx has ended. It is kept for one record:
// until the indexer has taken its action.
func (r results) get(ctx context.Context) *document.Result {
	select {
	case x := <-r:
		return x
	case <-ctx.Done():
		return nil
	}
}

func (r results) put(x *document.Result) { r <- x }

// write writes records; false: that was given up, and some may have been
// written.
func (l *lane) write(ctx context.Context, w Writer, records []deadletter.Parked) bool {
	b := &replay{l: l, records: records, done: make(chan struct{}), left: len(records), ended: make([]bool, len(records))}
	b.ctx, b.giveUp = context.WithCancel(ctx)
	defer b.giveUp()
	var size int64
	for i := range records {
		size += records[i].Size()
	}
	l.p.c.o.Budget.Force(size)
	l.setBatch(b)
	defer l.setBatch(nil)
	defer l.p.c.o.Sink.Drop(b)
	for i := range records {
		if !b.send(w, i) {
			break
		}
		records[i].Key, records[i].Value, records[i].Headers = nil, nil, nil
	}
	l.p.c.o.Budget.Give(size)
	w.Publish()
	select {
	case <-b.done:
		return true
	case <-b.ctx.Done():
		return false
	}
}

func (l *lane) setBatch(b *replay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batch, l.trouble = b, ""
}

// send maps a record and hands its action on; false: the run has ended.
func (b *replay) send(w Writer, i int) bool {
	a, p := b.l.p.a, &b.records[i]
	res := a.c.results.get(b.ctx)
	if res == nil {
		return false
	}
	defer a.c.results.put(res)
	r := recordOf(p)
	generation := p.Generation
	if generation == 0 && a.topic.rules.NeedsGeneration() { // the rules needed none when it was parked
		generation = a.topic.newest(p.Partition, p.Offset)
	}
	a.topic.rules.Map(r, generation, res)
	switch res.Verdict {
	case document.Send:
		action, ok := b.l.action(r, res, p)
		if !ok {
			b.finish(i) // its side is required no longer
			return true
		}
		action.Source, action.Seq = b, uint64(i)
		if err := w.Add(b.ctx, &action); err != nil {
			if b.ctx.Err() == nil {
				b.giveUp() // the indexer is closed
			}
			return false
		}
	case document.Ignore:
		b.finish(i)
	case document.DeadLetter:
		b.writeLetter(i, letterOf(r, res, generation))
	case document.Halt:
		b.block(i, letterOf(r, res, generation))
	default:
		b.refuse(i, letterOf(r, res, generation))
	}
	return true
}

// finish ends a record, once.
func (b *replay) finish(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended[i] {
		return
	}
	b.ended[i] = true
	delete(b.blocked, i)
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// head is the source offset of the first record that has not ended.
func (b *replay) head() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, ended := range b.ended {
		if !ended {
			return b.records[i].Offset
		}
	}
	return -1
}

// Settle implements indexer.Source.
func (b *replay) Settle(o indexer.Outcome, seqs []uint64) {
	if o == indexer.Abandoned {
		b.giveUp()
		return
	}
	for _, seq := range seqs {
		b.finish(int(seq))
	}
}

// Park implements indexer.Parker: all but one record of a target that is held
// are as well off where they stand.
func (b *replay) Park(string, string) {
	if len(b.records) > 1 {
		b.giveUp()
	}
}

// action is the action of a mapped record for the side that it was parked for,
// whatever that side's target is by now. Where it has one action it is that; but
// of a twin, which had two when it was parked, only if its side is required still
// (ok): the other side has the record, or a lane of its own, and gets nothing from
// here, which would come after later records.
func (l *lane) action(r *kgo.Record, res *document.Result, p *deadletter.Parked) (x indexer.Action, ok bool) {
	x = indexer.Action{Action: res.Action, Ordered: res.Ordered, Tombstone: res.Tombstone}
	flags, changed := sideFlags(res.Side), res.Changed
	switch two := res.Twin.Op != 0; {
	case two && document.Side(p.Side) == document.SideNew:
		x.Action, x.Tombstone = res.Twin, res.TwinTombstone
		flags = sideFlags(document.SideNew) | metaTwin
		changed = changed || res.TwinTombstone != res.Tombstone
	case two:
		flags |= metaTwin
	case p.Twin && document.Side(p.Side) != res.Side:
		return x, false
	}
	x.Meta = appendSideMeta(nil, r, changed, flags, res.Customer)
	if perHour, named := l.p.a.topic.rules.TimeNamed(); named {
		x.NewPerHour = perHour
	}
	return x, true
}

// Reject implements indexer.Source. The customer of a record that has another
// side is marked dirty before the record ends.
func (b *replay) Reject(seq uint64, r *indexer.Rejection) {
	if len(r.Meta) == 0 || r.Meta[0]&metaTwin == 0 {
		b.rejected(seq, r)
		return
	}
	m, err := decodeMeta(r.Meta)
	if err != nil {
		b.l.p.c.bug(b.l.p.a, err)
	}
	b.l.p.c.markFirst(b, seq, string(m.customer), func() { b.rejected(seq, r) })
}

func (b *replay) rejected(seq uint64, r *indexer.Rejection) {
	i := int(seq)
	b.mu.Lock()
	discard, skipped := b.skipping[i]
	b.mu.Unlock()
	if discard || b.l.p.a.topic.rules.OnRejected() == document.Drop {
		b.finish(i)
		return
	}
	letter := b.letter(i, r)
	if skipped {
		b.writeLetter(i, letter)
		return
	}
	b.refuse(i, letter)
}

func (b *replay) letter(i int, r *indexer.Rejection) *deadletter.Letter {
	return b.l.p.a.letterAt(b.records[i].Offset, b.records[i].Generation, r)
}

// Conflict implements indexer.Source.
func (b *replay) Conflict(seq uint64, stored int64, r *indexer.Rejection) {
	a := b.l.p.a
	if !a.topic.foreign(stored, r.Version) {
		b.finish(int(seq))
		return
	}
	x := &conflict{of: b, topic: a.topic, seq: seq, stored: stored, r: r}
	a.c.o.Budget.Force(x.bytes())
	a.c.conflicts.add(x)
}

// waits implements subject.
func (b *replay) waits(uint64) bool { return b.ctx.Err() == nil }

// stale implements subject.
func (b *replay) stale(seq uint64) { b.finish(int(seq)) }

// foreign implements subject: the lane waits. Its partition's own records will
// meet the same version.
func (b *replay) foreign(x *conflict) {
	letter := b.letter(int(x.seq), x.r)
	letter.Type = foreignText(x)
	b.block(int(x.seq), letter)
}

// refuse sends a record that can never be indexed where `on_rejected` says.
func (b *replay) refuse(i int, letter *deadletter.Letter) {
	switch b.l.p.a.topic.rules.OnRejected() {
	case document.Drop:
		b.finish(i)
	case document.ToDeadLetter:
		b.writeLetter(i, letter)
	default:
		b.block(i, letter)
	}
}

func (b *replay) writeLetter(i int, letter *deadletter.Letter) {
	letters := b.l.p.c.o.DeadLetters
	if letters == nil {
		b.block(i, letter)
		return
	}
	letters.Write(*letter, func(err error) {
		switch {
		case err == nil:
			b.finish(i)
		case errors.Is(err, deadletter.ErrRefused):
			letter.Type = "dead_letter_refused"
			b.block(i, letter)
		default: // the writer was closed: it is replayed again
			b.giveUp()
		}
	})
}

// block has the lane wait for an operator to skip a record.
func (b *replay) block(i int, letter *deadletter.Letter) {
	b.mu.Lock()
	if b.blocked == nil {
		b.blocked = map[int]*deadletter.Letter{}
	}
	b.blocked[i] = letter
	b.mu.Unlock()
	b.l.say(fmt.Sprintf("blocked on the record at offset %d: %s", letter.Offset, letter.Type))
	b.l.p.c.log.Error().Str("topic", letter.Topic).Int32("partition", letter.Partition).Int64("offset", letter.Offset).Str("target", b.l.target).Str("type", letter.Type).
		Msg("a parked record waits for an operator: skip it; later records for its target stay parked")
}

// skip ends the record at a source offset, if it is in hand: by a dead letter,
// or by nothing at all.
func (b *replay) skip(ctx context.Context, offset int64, discard bool) (found bool, err error) {
	for i := range b.records {
		if b.records[i].Offset != offset {
			continue
		}
		b.mu.Lock()
		letter, ended := b.blocked[i], b.ended[i]
		if !ended && letter == nil {
			if b.skipping == nil {
				b.skipping = map[int]bool{}
			}
			b.skipping[i] = discard
		}
		b.mu.Unlock()
		switch {
		case ended:
			continue
		case letter == nil:
			held := b.l.p.c.o.Sink.Skip(b, uint64(i))
			b.mu.Lock()
			delete(b.skipping, i)
			b.mu.Unlock()
			if held {
				return true, nil
			}
		case discard:
			b.finish(i)
			return true, nil
		default:
			acked := make(chan error, 1)
			b.l.p.c.o.DeadLetters.Write(*letter, func(err error) { acked <- err })
			select {
			case err = <-acked:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			if err != nil {
				return true, fmt.Errorf("consumer: dead letter of %s/%d/%d: %w", letter.Topic, letter.Partition, offset, err)
			}
			b.finish(i)
			return true, nil
		}
	}
	return false, nil
}

// skip skips a parked record that is in hand.
func (p *parking) skip(ctx context.Context, offset int64, discard bool) (found bool, err error) {
	if p == nil {
		return false, nil
	}
	p.mu.Lock()
	var hands []*replay
	for _, l := range p.all {
		l.mu.Lock()
		if l.batch != nil {
			hands = append(hands, l.batch)
		}
		l.mu.Unlock()
	}
	p.mu.Unlock()
	for _, b := range hands {
		if found, err := b.skip(ctx, offset, discard); found {
			return true, err
		}
	}
	return false, nil
}

// recordOf is the source record that a parked one was.
func recordOf(p *deadletter.Parked) *kgo.Record {
	return &kgo.Record{
		Topic: p.Topic, Partition: p.Partition, Offset: p.Offset, Timestamp: p.Timestamp,
		Key: p.Key, Value: p.Value, Headers: p.Headers,
	}
}
