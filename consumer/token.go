package consumer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/deadletter"
)

// Each assignment takes a token before its first dispatch: see
// deadletter.ParkedState. What has to be asked for that is asked for many
// partitions at once: a rebalance, or an adopted routing table, begins them all.

const (
	// tokensAtOnce is how many partitions are asked for at once: the states of
	// so many are in memory then.
	tokensAtOnce = 256
	// tokenWrites is how many tokens are written at once.
	tokenWrites = 8
	// tokenTimeout bounds one attempt.
	tokenTimeout = 30 * time.Second
)

// tokenQueue holds the assignments that ask for a token.
type tokenQueue struct {
	wake chan struct{} // of capacity 1

	mu    sync.Mutex
	items []*tokenRequest
	asked int // requests there ever were
}

// tokenRequest is an assignment that asks for a token.
type tokenRequest struct {
	p       *parking
	start   int64
	keeper  *deadletter.ParkedKeeper
	err     error
	settled bool
	done    chan struct{} // closed when err, or what p is given, is there
}

func (q *tokenQueue) take() []*tokenRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.items), tokensAtOnce)
	now := slices.Clone(q.items[:n])
	if q.items = slices.Delete(q.items, 0, n); len(q.items) > 0 {
		signal(q.wake)
	}
	return now
}

// ask asks for the token. The state is an empty one where nobody ever parked
// anything and nothing is to be parked.
func (p *parking) ask() (deadletter.ParkedState, error) {
	none := deadletter.ParkedState{}
	ctx, cancel := context.WithTimeout(p.ctx, tokenTimeout)
	defer cancel()
	select {
	case <-p.a.topic.resolved:
	case <-ctx.Done():
		return none, fmt.Errorf("consumer: topic %s is not known yet", p.a.l.topic)
	}
	r := &tokenRequest{p: p, done: make(chan struct{})}
	q := &p.c.tokens
	q.mu.Lock()
	q.items = append(q.items, r)
	q.asked++
	q.mu.Unlock()
	signal(q.wake)
	select { // not the time-out: a token that was taken must be known of
	case <-r.done:
	case <-p.ctx.Done():
		return none, context.Cause(p.ctx)
	}
	if r.err != nil || r.keeper == nil {
		return none, r.err
	}
	p.keeper = r.keeper
	state := r.keeper.State()
	p.state.Store(&state)
	return state, nil
}

// takeTokens serves the queue. It ends with ctx.
func (c *Consumer) takeTokens(ctx context.Context) {
	for {
		select {
		case <-c.tokens.wake:
		case <-ctx.Done():
			return
		}
		requests := slices.DeleteFunc(c.tokens.take(), func(r *tokenRequest) bool { return r.p.ctx.Err() != nil })
		if len(requests) == 0 {
			continue
		}
		trying, cancel := context.WithTimeout(ctx, tokenTimeout)
		b := &tokenBatch{c, requests}
		if err := b.take(trying); err != nil {
			b.each(func(*tokenRequest) error { return err })
		}
		cancel()
		for _, r := range requests {
			close(r.done)
		}
	}
}

// tokenBatch are requests that are dealt with together.
type tokenBatch struct {
	c        *Consumer
	requests []*tokenRequest
}

// each calls f for those that are not settled; an error settles one.
func (b *tokenBatch) each(f func(*tokenRequest) error) {
	for _, r := range b.requests {
		if !r.settled {
			if r.err = f(r); r.err != nil {
				r.settled = true
			}
		}
	}
}

// left is how many are not settled.
func (b *tokenBatch) left() (n int) {
	b.each(func(*tokenRequest) error { n++; return nil })
	return n
}

// take takes the tokens. An error is that of all that are not settled.
func (b *tokenBatch) take(ctx context.Context) error {
	c, o := b.c, b.c.o.Parking
	if err := b.starts(ctx); err != nil {
		return err
	}
	if !o.Open && o.Ever != nil {
		if ever, err := o.Ever(ctx); err != nil || !ever {
			return err
		}
	}
	var of []deadletter.SourcePartition
	b.each(func(r *tokenRequest) error {
		of = append(of, deadletter.SourcePartition{Topic: r.p.a.l.topic, Partition: r.p.a.id})
		return nil
	})
	keepers, errs, err := deadletter.LoadParkedStates(ctx, o.Store, c.cfg.GroupID, of)
	if err != nil {
		return err
	}
	i := -1
	b.each(func(r *tokenRequest) error { // in the order of before
		i++
		r.p.start.Store(r.start)
		if errs[i] != nil {
			return errs[i]
		}
		state := keepers[i].State()
		if len(state.Lanes) > 0 && o.Log == nil {
			return fmt.Errorf("records for %v are parked, and dead_letter.topic is not set: set it as it was when they were parked", state.Targets())
		}
		if !keepers[i].Found() && !o.Open {
			r.settled = true // nobody of this group ever parked anything here
			return nil
		}
		r.keeper = keepers[i]
		return nil
	})
	if b.left() == 0 {
		return nil
	}
	if err := b.mayStart(ctx); err != nil {
		b.each(func(r *tokenRequest) error { r.keeper = nil; return nil })
		return err
	}
	var writes sync.WaitGroup
	room := make(chan struct{}, tokenWrites)
	for _, r := range b.requests {
		if r.settled {
			continue
		}
		room <- struct{}{}
		writes.Go(func() {
			r.err = r.keeper.Take(ctx, rand.Text(), r.p.a.topic.known.Load().id, r.start, r.p.standing)
			<-room
		})
	}
	writes.Wait()
	return nil
}

// starts finds the first offset that each will be given. They are paused: that
// does not move.
func (b *tokenBatch) starts(ctx context.Context) error {
	var topics []string
	var ask []*tokenRequest
	b.each(func(r *tokenRequest) error {
		a := r.p.a
		a.l.mu.Lock()
		defer a.l.mu.Unlock()
		position, known := a.tracker.Position()
		if r.start = position; !known {
			ask = append(ask, r)
			if !slices.Contains(topics, a.l.topic) {
				topics = append(topics, a.l.topic)
			}
		}
		return nil
	})
	if len(ask) == 0 {
		return nil
	}
	starts, err := b.c.adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return fmt.Errorf("consumer: where %v begin: %w", topics, err)
	}
	for _, r := range ask {
		at, ok := starts.Lookup(r.p.a.l.topic, r.p.a.id)
		if !ok || at.Err != nil {
			r.err, r.settled = fmt.Errorf("consumer: where %s/%d begins: %w", r.p.a.l.topic, r.p.a.id, at.Err), true
			continue
		}
		r.start = at.Offset
	}
	return nil
}

// errNoStanding keeps a member from taking a token that may have lost the
// partition.
var errNoStanding = errors.New("consumer: no heartbeat was answered lately: another member may have the partition")

// standing is asked between reading a state and replacing it.
func (p *parking) standing() error {
	p.a.l.mu.Lock()
	over := p.a.over
	p.a.l.mu.Unlock()
	if over || !p.c.Healthy() {
		return errNoStanding
	}
	return nil
}

// mayStart sees that the group has not committed more than an assignment starts
// at: what was parked from there on would be void, and whoever came next would
// start above it. It has such a partition start over there.
func (b *tokenBatch) mayStart(ctx context.Context) error {
	member, generation := b.c.cl.GroupMetadata()
	if member == "" || !b.c.Healthy() {
		return errNoStanding
	}
	commits, err := b.committed(ctx)
	if err != nil {
		return err
	}
	if m, g := b.c.cl.GroupMetadata(); m != member || g != generation {
		return errNoStanding // they may have been another's in between
	}
	b.each(func(r *tokenRequest) error {
		a := r.p.a
		at, ok := commits[tp{a.l.topic, a.id}]
		switch {
		case !ok:
			return fmt.Errorf("consumer: the group's commit of %s/%d: the answer does not hold it", a.l.topic, a.id)
		case at.err != nil:
			return fmt.Errorf("consumer: the group's commit of %s/%d: %w", a.l.topic, a.id, at.err)
		case at.offset > r.start:
			a.commitAgreed(at.offset)
			r.p.lost()
			return fmt.Errorf("consumer: the group has committed %s/%d at %d, above where it would start", a.l.topic, a.id, at.offset)
		}
		return nil
	})
	return nil
}

// committedAt is what a group has committed of a partition; -1: nothing.
type committedAt struct {
	offset int64
	err    error
}

// committed asks the group for its commits.
func (b *tokenBatch) committed(ctx context.Context) (map[tp]committedAt, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = b.c.cfg.GroupID
	b.each(func(r *tokenRequest) error {
		a := r.p.a
		i := slices.IndexFunc(req.Topics, func(t kmsg.OffsetFetchRequestTopic) bool { return t.Topic == a.l.topic })
		if i < 0 {
			i = len(req.Topics)
			t := kmsg.NewOffsetFetchRequestTopic()
			t.Topic = a.l.topic
			req.Topics = append(req.Topics, t)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, a.id)
		return nil
	})
	resp, err := req.RequestWith(ctx, b.c.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer: the commits of group %s: %w", b.c.cfg.GroupID, err)
	}
	commits := map[tp]committedAt{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			commits[tp{t.Topic, p.Partition}] = committedAt{p.Offset, kerr.ErrorForCode(p.ErrorCode)}
		}
	}
	return commits, nil
}
