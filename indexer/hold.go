package indexer

import (
	"context"
	"net/http"
	"time"
)

// hold keeps a target's actions back until a probe gets through.
func (x *Indexer) hold(now time.Time, t *target, kind string, breaker bool) {
	if t.hold != nil {
		return
	}
	x.holds++
	t.hold = &hold{kind: kind, since: now, probeAt: now.Add(probeEvery), breaker: breaker}
	if !t.backing {
		t.backing = true
		x.metrics.backingOff.Inc()
	}
	x.wakeAt(t.hold.probeAt)
	x.log.Warn().Str("target", t.name).Str("type", kind).
		Msg("target held: its records wait, others go on; it is tried once a second")
	x.checkRoom()
}

// unhold lets a held target go.
func (x *Indexer) unhold(t *target) {
	if t.hold.kind != kindLooking {
		x.log.Info().Str("target", t.name).Str("type", t.hold.kind).
			Dur("held_ms", time.Since(t.hold.since)).Msg("target released")
	}
	t.hold = nil
	x.holds--
	x.recovered(t)
	x.activate(t)
	x.checkRoom()
}

// recovered ends a target's back-off.
func (x *Indexer) recovered(t *target) {
	if t.hold != nil {
		return
	}
	t.pause, t.until = 0, time.Time{}
	if t.backing {
		t.backing = false
		x.metrics.backingOff.Dec()
	}
}

// probed takes the result of a probe: how many of its actions were accepted.
func (w *worker) probed(t *target, h *hold, accepted int) {
	switch {
	case accepted == 0:
		h.accepted = 0
	case !h.breaker:
		w.x.unhold(t)
	default:
		if h.accepted += accepted; h.accepted >= breakerProbes {
			t.breaker = breaker{}
			w.x.unhold(t)
		}
	}
}

// holdEverything stops all requests but one probe a second.
func (x *Indexer) holdEverything(now time.Time, reason string) {
	x.probeAt = now.Add(probeEvery)
	x.wakeAt(x.probeAt)
	if x.holdAll == "" {
		x.holdSince = now
		x.log.Error().Str("reason", reason).
			Msg("Elasticsearch refuses all requests: nothing is written, nothing is lost; it is tried once a second")
	}
	x.holdAll = reason
}

// resume ends what holdEverything began.
func (x *Indexer) resume() {
	if x.holdAll == "" {
		return
	}
	x.log.Info().Dur("held_ms", time.Since(x.holdSince)).Msg("Elasticsearch takes requests again")
	x.holdAll = ""
	x.wake(time.Now())
}

// wake makes all batches that wait due, over a short while.
func (x *Indexer) wake(now time.Time) {
	for _, b := range x.delayed {
		if due := now.Add(jitter(0, 0, 250*time.Millisecond)); due.Before(b.due) {
			b.due = due
		}
	}
	x.cond.Broadcast()
}

// sendAgain queues a whole batch for another try, with its permit, its lanes
// and its bytes.
func (x *Indexer) sendAgain(now time.Time, b *batch, asked time.Duration) {
	b.pause = jitter(b.pause, x.cfg.Retry.Initial, x.cfg.Retry.Max)
	b.due = now.Add(max(b.pause, asked))
	b.resend = true
	x.metrics.retries.Add(float64(len(b.sent)))
	x.delayed = append(x.delayed, b)
	x.wakeAt(b.due)
}

// silentTries without an answer make a batch suspect.
const silentTries = 2

// heard ends a batch's run of tries without an answer.
func (x *Indexer) heard(b *batch) {
	if b.unanswered >= silentTries {
		x.silent--
	}
	b.unanswered = 0
}

// alive notes that the server answers.
func (x *Indexer) alive(now time.Time) {
	x.lives++
	if x.outage {
		x.outage = false
		x.log.Info().Msg("Elasticsearch answers again")
		x.wake(now)
	}
}

// noAnswer handles a request of which it is unknown what came of it: the same
// actions are sent again, for ever. A request that is never answered while
// others are is split until the record that spoils it is alone.
func (w *worker) noAnswer(now time.Time, b *batch, v requestVerdict) (goOn bool) {
	x := w.x
	answered := uint64(0)
	var last *target
	for _, f := range b.sent {
		if t := f.c.target; t != last {
			answered += t.answered
			last = t
		}
	}
	if b.unanswered == 0 {
		b.answeredBy, b.lives = answered, x.lives
	}
	if b.unanswered++; b.unanswered == silentTries {
		x.silent++
	}
	x.log.Debug().Str("type", v.errorType).Int("actions", len(b.sent)).Int("tries", b.unanswered).
		Msg("bulk request without a usable answer; it is sent again")
	if v.errorType == "endless_answer" {
		x.log.Warn().Int("actions", len(b.sent)).Int("status", v.status).
			Msg("the answer to a bulk request does not end where any server's would: it is sent again; see what elasticsearch.addresses names and what is between")
	}
	if v.nobody() {
		x.watch(v.errorType)
	}
	// Where others to its targets cannot be answered, because they are behind
	// this one, a sign of life must do.
	suspect := b.isolating || answered > b.answeredBy && b.unanswered >= silentTries ||
		x.lives > b.lives && b.unanswered > silentTries
	switch {
	case !suspect:
		x.sendAgain(now, b, 0)
		return false
	case len(b.sent) > 1:
		b.isolating = true
		x.heard(b)
		b.split()
		return true
	}
	x.heard(b)
	b.isolating = false // what is left is suspected of nothing yet
	w.alone(now, b, func(next *waiting) {
		// Its first request of its own may still find a server that is only
		// slow.
		if !next.blocked && next == b.solo {
			next.blocked = true
			x.blockedOn++
			x.log.Error().Str("target", next.target.name).
				Msg("blocked on a record: its request is never answered; skip it, or mend what breaks on it")
		}
	})
	return len(b.parts) > 0
}

// watch asks an unresponsive server for a sign of life until there is one.
func (x *Indexer) watch(reason string) {
	if x.outage || x.closed {
		return
	}
	x.outage = true
	x.log.Warn().Str("reason", reason).Msg("Elasticsearch does not answer: records wait, nothing is lost")
	x.wg.Go(func() {
		timer := time.NewTimer(outagePing)
		defer timer.Stop()
		for {
			select {
			case <-x.ctx.Done():
				return
			case <-timer.C:
			}
			x.mu.Lock()
			over := !x.outage
			x.mu.Unlock()
			if over {
				return
			}
			if x.ping() {
				x.mu.Lock()
				x.alive(time.Now())
				x.mu.Unlock()
				return
			}
			timer.Reset(outagePing)
		}
	})
}

func (x *Indexer) ping() bool {
	ctx, cancel := context.WithTimeout(x.ctx, outagePing)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return false
	}
	resp, err := x.opt.Transport.Perform(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode < http.StatusInternalServerError
}

// split replaces the part at hand by its halves.
func (b *batch) split() {
	p := b.parts[len(b.parts)-1]
	mid := p.from + (p.to-p.from)/2
	b.parts = append(b.parts[:len(b.parts)-1], part{mid, p.to}, part{p.from, mid})
	if mutantHalf {
		b.parts = b.parts[:len(b.parts)-1]
	}
	b.resend = true
}

// cutOut replaces the part at hand, a request that is too large, by what comes
// before its largest action, that action, and what comes after, if that action
// is more than half of it. It says whether it is: else nothing is done.
func (b *batch) cutOut() bool {
	p := b.parts[len(b.parts)-1]
	for i := p.from; i < p.to; i++ {
		if f := b.refs[i]; !f.entry().done && 2*int64(len(f.wire())) > b.bytes {
			b.parts = append(b.parts[:len(b.parts)-1], part{i + 1, p.to}, part{i, i + 1}, part{p.from, i})
			b.resend = true
			return true
		}
	}
	return false
}

// alone takes the only action of a request that was refused, or never
// answered, out of its batch, to be tried by itself.
func (w *worker) alone(now time.Time, b *batch, mark func(*waiting)) {
	x := w.x
	b.parts = b.parts[:len(b.parts)-1]
	next := w.takeOut(b, b.sent[0])
	if next == nil {
		return
	}
	mark(next)
	next.pause = jitter(next.pause, x.cfg.Retry.Initial, x.cfg.Retry.Max)
	next.target.waitAlone(next, now.Add(next.pause))
	x.activate(next.target)
	x.wakeAt(next.due)
}

// refused handles a request that was refused whole for what is in it: it is
// split until the record that spoils it is alone. Alone, a record that is too
// large is rejected; for any other refusal something else must have been
// accepted since the first one, lest a wrong path or a proxy empties a topic
// into the dead letters.
func (w *worker) refused(now time.Time, b *batch, v requestVerdict) (goOn bool) {
	x := w.x
	if v.final && len(b.sent) > 1 {
		if b.cutOut() {
			return true
		}
		x.bodyLimit = max(leastBody, min(x.bodyLimit, b.bytes/2))
	}
	if len(b.sent) > 1 {
		if b.marks == nil {
			b.marks = make(map[*target]uint64)
			for _, f := range b.sent {
				b.marks[f.c.target] = f.c.target.accepted
			}
		}
		b.split()
		return true
	}
	f := b.sent[0]
	t := f.c.target
	first := f.waiting()
	mark, split := b.marks[t]
	proven := split && t.accepted > mark || first != nil && first.lone &&
		(t.accepted > first.mark || t.empty() && x.accepted > first.others)
	if v.final || proven {
		b.parts = b.parts[:len(b.parts)-1]
		w.reject(now, b, f, false, v.status, v.errorType, v.reason)
		return len(b.parts) > 0
	}
	if first != nil && first.lone {
		x.hold(now, t, v.errorType, false)
		if x.refusedOf != nil && x.refusedOf != t {
			x.holdEverything(now, "requests with a single action are refused for several targets: is there a proxy, or a wrong path, between Sluice and Elasticsearch?")
		}
	}
	x.refusedOf = t
	w.alone(now, b, func(next *waiting) {
		if !next.lone {
			next.lone, next.mark, next.others = true, t.accepted, x.accepted
			if split {
				next.mark = mark
			}
		}
	})
	return len(b.parts) > 0
}

// finish ends a batch: its lanes are idle again, its queues open or go on, its
// permit and its bytes are free.
func (x *Indexer) finish(b *batch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.letGo(b)
	x.cond.Signal()
}

func (x *Indexer) letGo(b *batch) {
	x.land(b)
	for _, q := range b.queues {
		q.target.release(q)
		x.activate(q.target)
	}
	for _, l := range b.lanes {
		l.busy = false
		l.target.offer(l)
		l.target.turn()
		x.activate(l.target)
	}
	if h := b.probe; h != nil {
		h.probing = false
		h.probeAt = time.Now().Add(probeEvery)
		x.wakeAt(h.probeAt)
	}
	if b.probesAll {
		x.probing = false
	}
	if w := b.solo; w != nil && w.inBatch {
		x.unblock(w)
	}
	x.heard(b)
	if b.onWire {
		x.onWire--
	}
	x.inFlight--
	x.recycle(b)
}
