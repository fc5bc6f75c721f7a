package indexer

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// call is a rejection or a conflict to report when no lock is held.
type call struct {
	src      *source
	seq      uint64
	conflict bool
	stored   int64
	r        *Rejection
}

// failure is an item of an answer that is no plain success.
type failure struct {
	i    int // in batch.sent
	item bulk.Item
}

// share is the part of a batch that concerns one target.
type share struct {
	t         *target
	accepted  int // actions that were written, or were already
	deleted   int // those of them that were plain successes of deletes
	throttled bool
}

// process reads what came of a batch's request. It says whether the batch goes
// on at once, with the part at hand or the next one; else the batch waits or
// has ended.
func (w *worker) process(b *batch) (goOn bool) {
	x := w.x
	b.inHand = false
	b.attempts++
	res := &b.result
	if mutantHurry {
		res.retryAfter = 0
	}
	if mutantCut && res.status == 200 {
		res.err = nil
	}
	v := judgeRequest(res.err, res.status, b.answer)
	var failures []failure
	if v.kind == requestAnswered {
		sum, err := bulk.Decode(b.answer, len(b.sent), func(i int, it bulk.Item) {
			failures = append(failures, failure{i, it})
		})
		if err == nil && !x.shuffles(b, failures) && !tellsOf(b.sent, failures, sum.Deleted) {
			err = errOtherAnswer
		}
		if mutantItems || mutantCut && err != nil {
			failures, err = nil, nil
		}
		if err != nil {
			v = requestVerdict{kind: requestUnknown, status: res.status, errorType: "unusable_answer", reason: err.Error()}
		}
	}
	// No item can be trusted to be its action's: the parts are sent anew.
	shuffled := x.shuffles(b, failures)
	var shares []share
	if v.kind == requestAnswered && !shuffled {
		shares = w.written(b, failures)
	}
	x.metrics.request(res, b.bytes)

	x.mu.Lock()
	now := time.Now()
	inFlight, onWire := x.inFlight, x.onWire
	if b.onWire {
		b.onWire = false
		x.onWire--
	}
	throttled, turned, reload := v.kind == requestThrottled, 0, false
	if throttled {
		turned = len(b.sent)
	}
	if b.probesAll {
		b.probesAll, x.probing = false, false
		x.probeAt = now.Add(probeEvery)
	}
	if v.status > 0 && v.status < 500 { // a server that fails at everything is no better than none
		x.alive(now)
	}
	switch {
	case v.kind == requestAnswered && shuffled:
		b.split()
		goOn = true
	case v.kind == requestAnswered:
		x.resume()
		if b.solo != nil {
			x.unblock(b.solo)
		}
		x.heard(b)
		b.isolating, b.pause = b.isolating && len(b.parts) > 1, 0
		turned, reload = w.settle(now, b, shares, failures)
		throttled = turned > 0 && x.overloaded(shares, res.began)
		b.parts = b.parts[:len(b.parts)-1]
		b.resend = true
		goOn = len(b.parts) > 0
	case v.kind == requestUnknown:
		if mutantFlush {
			b.parts = nil
			break
		}
		goOn = w.noAnswer(now, b, v)
	case v.kind == requestThrottled:
		x.sendAgain(now, b, res.retryAfter)
	case v.kind == requestSplit:
		goOn = w.refused(now, b, v)
	default: // requestHoldAll, requestCredentials
		reload = v.kind == requestCredentials
		x.holdEverything(now, heldBy(v.errorType, v.status, v.reason))
		x.sendAgain(now, b, 0)
	}
	if v.kind == requestAnswered || v.kind == requestThrottled {
		if throttled {
			inFlight = onWire // those that wait after a 429 keep no cut from being felt
		}
		x.limiter.sample(now, res.began, res.took, b.bytes, throttled, inFlight)
		x.observe(now, observation{answered: len(b.sent), turned: turned})
	}
	x.forget(b)
	ended := len(b.parts) == 0
	if goOn && !x.opt.Gate() { // the next part is a request of its own
		b.due, goOn = now, false
		x.delayed = append(x.delayed, b)
	}
	if goOn {
		b.onWire = true
		x.onWire++
	}
	x.mu.Unlock()

	w.report()
	if reload {
		x.opt.Reload()
	}
	if ended {
		x.finish(b)
	}
	return goOn
}

// overloaded says that actions that were turned away tell of the server, not of
// one target among others: nothing else has gone through whole since the
// request began. A target that is throttled alone backs off alone, and must not
// take the others' requests.
func (x *Indexer) overloaded(shares []share, began time.Time) bool {
	return x.wholeAt.Before(began) ||
		slices.ContainsFunc(shares, func(s share) bool { return s.throttled && s.t == x.wholeOf })
}

// shuffles says that the items of an answer may stand in another order than the
// actions of its request, as some servers mix them up.
func (x *Indexer) shuffles(b *batch, failures []failure) bool {
	return len(b.sent) > 1 && dropsAndFails(failures) && x.opt.Unordered()
}

var errOtherAnswer = errors.New("the answer tells of other actions than were sent")

// tellsOf says whether an answer may be that of the request: its items are of
// deletes where deletes were sent, of which so many went well, and of nothing
// else. Else a proxy has mixed up the answers of two requests. (Further than
// that an item's name proves nothing: of an update that a pipeline drops,
// servers tell as of an index.)
func tellsOf(sent []ref, failures []failure, deleted int) bool {
	for i, f := range sent {
		isDelete := f.entry().op == bulk.Delete
		if len(failures) > 0 && failures[0].i == i {
			if (failures[0].item.Op == bulk.Delete) != isDelete {
				return false
			}
			failures = failures[1:]
		} else if isDelete {
			deleted--
		}
	}
	return deleted == 0
}

// dropsAndFails says that a request had documents that an ingest pipeline
// dropped and others that failed.
func dropsAndFails(failures []failure) bool {
	var drops, fails bool
	for i := range failures {
		it := &failures[i].item
		fails = fails || it.Failed
		drops = drops || !it.Failed && it.Result == bulk.Noop
	}
	return drops && fails
}

// report tells the sources what settle and its kin found, without a lock.
func (w *worker) report() {
	w.r.send()
	for _, c := range w.calls {
		switch {
		case c.src.state.Load() == dropped:
		case c.conflict:
			c.src.Conflict(c.seq, c.stored, c.r)
		default:
			c.src.Reject(c.seq, c.r)
		}
	}
	clear(w.calls)
	w.calls = w.calls[:0]
}

// written reports every action of an answer that is not among the failures as
// written, and counts them per target.
func (w *worker) written(b *batch, failures []failure) []share {
	var shares []share
	var s *share
	next := 0
	for i, f := range b.sent {
		if s == nil || s.t != f.c.target {
			shares = append(shares, share{t: f.c.target})
			s = &shares[len(shares)-1]
		}
		if next < len(failures) && failures[next].i == i {
			next++
			continue
		}
		s.accepted++
		e := f.entry()
		e.done = true
		o := e.written()
		if o == Deleted {
			s.deleted++
		}
		w.r.add(e, o)
	}
	for _, s := range shares {
		w.x.metrics.ended(s.t, "indexed", s.accepted-s.deleted)
		w.x.metrics.ended(s.t, "deleted", s.deleted)
	}
	return shares
}

// settle acts on an answer: an action without success waits for another try,
// is rejected, or is handed to its source as a conflict.
func (w *worker) settle(now time.Time, b *batch, shares []share, failures []failure) (turned int, reload bool) {
	x := w.x
	for k := range shares {
		s := &shares[k]
		s.t.answered++
		x.accept(now, s.t, s.accepted)
	}
	verdicts := make([]itemVerdict, len(failures))
	for k := range failures {
		f := b.sent[failures[k].i]
		e, t := f.entry(), f.c.target
		s := &shares[slices.IndexFunc(shares, func(s share) bool { return s.t == t })]
		a := tried{op: e.op, versionType: e.vtype, version: e.version, neighbours: s.accepted > 0}
		if prev := f.waiting(); prev != nil {
			a.refused, a.failed = prev.refused, prev.failed
			a.neighbours = a.neighbours || prev.failed > 0 && t.accepted > prev.accepted
		}
		v := judgeItem(&failures[k].item, a, x.cfg.Retry.ItemAttempts)
		verdicts[k] = v
		switch v.kind {
		case itemDone:
			e.done = true
			w.r.add(e, v.outcome)
			x.metrics.ended(t, v.outcome.String(), 1)
			s.accepted++
			x.accept(now, t, 1)
		case itemConflict:
			s.accepted++
			x.accept(now, t, 1)
			e.done = true
			x.metrics.ended(t, "conflict", 1)
			w.calls = append(w.calls, call{e.src, e.seq, true, v.stored, w.rejectionOf(f, &failures[k].item)})
		case itemThrottled:
			s.throttled = true
			turned++
		}
	}
	for _, s := range shares {
		if s.accepted > 0 && !s.throttled {
			x.wholeOf, x.wholeAt = s.t, now
			x.recovered(s.t)
		}
		if h := s.t.hold; h != nil && h == b.probe {
			accepted := s.accepted
			if mutantProbe {
				accepted = 1
			}
			w.probed(s.t, h, accepted)
		}
	}
	var later map[laterKey]int
	for k, v := range verdicts {
		f := b.sent[failures[k].i]
		e, t, it := f.entry(), f.c.target, &failures[k].item
		if e.done {
			continue
		}
		if v.kind == itemReject {
			w.reject(now, b, f, false, it.Status, errorTypeOf(it), reasonOf(it))
			continue
		}
		// What needs another try must not be sent after a newer action on its
		// id has been written: it is stale. One that was refused for what it
		// holds is rejected without its second try, so that whether it becomes
		// a dead letter does not hang on what shared its request.
		if later == nil {
			later = lastWritten(b.sent, failures, verdicts)
		}
		if e.ordered {
			if j, ok := later[laterKey{t, e.hash}]; ok && supersededBy(b.sent, failures[k].i, j) {
				if v.kind == itemSecondTry {
					w.reject(now, b, f, true, it.Status, errorTypeOf(it), reasonOf(it))
				} else {
					e.done = true
					w.r.add(e, Stale)
					x.metrics.ended(t, Stale.String(), 1)
				}
				continue
			}
		}
		// It goes with the target's next request, and by itself if there is
		// none soon.
		next := w.wait(b, f, now.Add(x.cfg.FlushInterval/dryShare))
		switch v.kind {
		case itemThrottled:
			if t.backOff(now, b.result.retryAfter, x.cfg.Retry.Initial, x.cfg.Retry.Max) {
				x.metrics.backingOff.Inc()
			}
			x.wakeAt(t.until)
		case itemHold, itemHoldCredentials:
			reload = reload || v.kind == itemHoldCredentials
			x.hold(now, t, heldBy(errorTypeOf(it), it.Status, it.Reason.String()), false)
		case itemSecondTry:
			if next != nil {
				next.refused++
			}
		case itemFailed:
			if next != nil {
				if next.failed++; next.failed == 1 {
					// What this answer accepted are neighbours: nothing else may
					// come after it.
					i := slices.IndexFunc(shares, func(s share) bool { return s.t == t })
					next.accepted = t.accepted - uint64(shares[i].accepted)
				}
				// What it fails of may pass.
				next.pause = jitter(next.pause, x.cfg.Retry.Initial, x.cfg.Retry.Max)
				next.due = now.Add(min(next.pause, x.cfg.FlushInterval))
			}
		}
	}
	return turned, reload
}

// accept counts actions that the target accepted.
func (x *Indexer) accept(now time.Time, t *target, n int) {
	if n == 0 {
		return
	}
	t.accepted += uint64(n)
	x.accepted += uint64(n)
	x.refusedOf = nil
	t.breaker.add(now, n, 0, 0)
}

// laterKey names an id by its hash.
type laterKey struct {
	t    *target
	hash uint64
}

// lastWritten returns the position of the newest ordered action on each id that
// was written. One that an ingest pipeline dropped was not.
func lastWritten(sent []ref, failures []failure, verdicts []itemVerdict) map[laterKey]int {
	last := make(map[laterKey]int)
	for i, f := range sent {
		ignored := false
		if len(failures) > 0 && failures[0].i == i {
			ignored = verdicts[0].outcome == Ignored && !mutantDropped
			failures, verdicts = failures[1:], verdicts[1:]
		}
		if e := f.entry(); e.done && e.ordered && !ignored {
			k := laterKey{f.c.target, e.hash}
			if j, ok := last[k]; !ok || newer(sent, i, j) {
				last[k] = i
			}
		}
	}
	return last
}

// newer says whether the action at i is newer than the one at j. Versions tell,
// where there are some: of a key that has moved to another source partition the
// older action may come later.
func newer(sent []ref, i, j int) bool {
	if a, b := sent[i].entry().version, sent[j].entry().version; a != b && !mutantNewer {
		return a > b
	}
	return i > j
}

// supersededBy says whether the action at j is newer than the one at i and
// concerns the same document.
func supersededBy(sent []ref, i, j int) bool {
	return newer(sent, j, i) && bytes.Equal(bulk.IDOf(sent[i].wire()), bulk.IDOf(sent[j].wire()))
}

// wait takes an action out of its batch to wait for another try, and returns
// it; nil if its source has ended instead.
func (w *worker) wait(b *batch, f ref, due time.Time) *waiting {
	next := w.takeOut(b, f)
	if next == nil {
		return nil
	}
	next.due = due
	w.x.metrics.retries.Inc()
	switch q := next.queue; {
	case q != nil && next == b.solo:
		q.again = slices.Insert(q.again, 0, next) // it is the first of its id
	case q != nil:
		q.again = append(q.again, next)
	case next.target.closed(&next.entry) != nil && next.target.closed(&next.entry).behind == b:
		next.queue = next.target.closed(&next.entry)
		next.queue.again = append(next.queue.again, next)
	default:
		next.target.wait(next)
		w.x.activate(next.target)
		w.x.wakeAt(due)
	}
	return next
}

// takeOut makes an action stand by itself. Its queue is the one in flight with
// the batch, nil if it came with a lane.
func (w *worker) takeOut(b *batch, f ref) *waiting {
	e := f.entry()
	e.done = true
	switch e.src.state.Load() {
	case dropped:
		return nil
	case draining:
		w.r.add(e, Abandoned)
		return nil
	}
	next := w.x.standAlone(f)
	next.attempts += b.attempts
	return next
}

// reject reports an action as rejected. While its target is held for having
// rejected too many it waits with the others instead, unless it must not be
// sent again (superseded).
func (w *worker) reject(now time.Time, b *batch, f ref, superseded bool, status int, errorType, reason string) {
	x, t, e := w.x, f.c.target, f.entry()
	if t.hold != nil && t.hold.breaker && !superseded {
		w.wait(b, f, now)
		return
	}
	if share := float64(x.opt.MaxShare); t.breaker.add(now, 1, 1, share) && share > 0 {
		x.hold(now, t, "too_many_rejections", true)
	}
	e.done = true
	x.metrics.ended(t, "rejected", 1)
	w.calls = append(w.calls, call{src: e.src, seq: e.seq, r: w.rejection(f, status, errorType, reason)})
}

func (w *worker) rejectionOf(f ref, it *bulk.Item) *Rejection {
	return w.rejection(f, it.Status, errorTypeOf(it), reasonOf(it))
}

// rejection describes a refused action and copies what a dead letter needs.
func (w *worker) rejection(f ref, status int, errorType, reason string) *Rejection {
	e := f.entry()
	r := &Rejection{
		Target: f.c.target.name, Status: status, Type: errorType, Reason: reason,
		Attempts: 1, Version: e.version,
		Meta: slices.Clone(f.c.metaOf(f.i)), Body: bodyOf(f.wire()),
	}
	if prev := f.waiting(); prev != nil {
		r.Attempts += prev.attempts
	}
	return r
}

// reasonOf joins an item's reason and its cause's.
func reasonOf(it *bulk.Item) string {
	if len(it.Cause) == 0 {
		return it.Reason.String()
	}
	return it.Reason.String() + ": " + it.Cause.String()
}
