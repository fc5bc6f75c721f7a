package migrate

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sluicehq/sluice/elastic"
)

// readers is how many requests of a verification are on their way at most,
// whatever the throttle allows: each may answer with pageBytes.
const readers = 16

// verifyingFor is how old what a verification says of itself may be: of one that
// was killed it stays.
const verifyingFor = time.Minute

// Verifying is the control document `verifying:<job>`: a verification that is
// under way, as it was when it said so last.
type Verifying struct {
	Owner string    `json:"owner"`
	At    time.Time `json:"at"`
	Read  int64     `json:"read"`  // sequence numbers of both sides
	Total int64     `json:"total"` // that are to be read, as far as is known
	// ETA is how long the reading needs at its pace of now, in seconds; 0: not known.
	ETA      float64  `json:"eta_seconds,omitempty"`
	Doing    string   `json:"doing,omitempty"` // what it does when it does not read both sides
	Progress Progress `json:"progress"`
}

func verifyingID(job string) string { return "verifying:" + job }

func (v *Verifying) share() float64 {
	if v.Total <= 0 {
		return 0
	}
	return min(1, float64(v.Read)/float64(v.Total))
}

// run compares both sides at the pace that the job's throttle sets.
func (v *verification) run(ctx context.Context) (*Report, error) {
	v.gate, v.seen = newGate(), newGauges()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	throttled, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with throttled
		defer close(done)
		v.throttle(throttled, stop)
	}()
	report, err := v.compare(ctx)
	end()
	<-done
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return report, errors.Join(err, v.leave(context.WithoutCancel(ctx)))
}

// leave takes away what the verification has kept if its job was ended under it.
// All its writes are over. A verb that ends a job moves it first and cleans up
// then, so whatever was written before the job was looked at here is seen by one
// of the two.
func (v *verification) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	job, err := v.store.load(ctx, v.job.Name)
	if err != nil || (job.State == Synced || job.State == Cutover) && job.Round == v.job.Round {
		return err
	}
	return v.store.forget(ctx, v.job.Name, verifyPrefix)
}

// read makes one request for documents or counts, once the throttle lets it
// through, and again until it is answered.
func (v *verification) read(ctx context.Context, request func() error) error {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		if err := v.gate.enter(ctx); err != nil {
			return err
		}
		began := time.Now()
		err := request()
		v.gate.leave()
		switch {
		case err == nil:
			v.seen.search(time.Since(began))
			v.note("")
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !passing(err):
			return err
		}
		var refused *elastic.Error
		if errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
			v.seen.rejected()
		}
		v.note(err.Error())
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// page reads a page of a shard, see scanner.page.
func (v *verification) page(ctx context.Context, s *scanner, shard int, cursor, end int64) (hits []elastic.Hit, next int64, err error) {
	err = v.read(ctx, func() (err error) {
		hits, next, err = s.page(ctx, shard, cursor, end)
		return err
	})
	if err == nil {
		v.progress(next-cursor, int64(len(hits)))
	}
	return hits, next, err
}

// expect adds to what is to be read, and to what needs not be.
func (v *verification) expect(total, known int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.total, v.known = v.total+total, v.known+known
}

func (v *verification) progress(read, docs int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done, v.docs = v.done+read, v.docs+docs
}

// does shows what the verification does now; "": it reads both sides.
func (v *verification) does(doing string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.doing = doing
}

func (v *verification) note(trouble string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.trouble = trouble
}

// throttle looks at the same signals as that of the copy, with the same limits,
// sets the pace and says so, until ctx ends. It stops a verification whose job
// has left the states that can be verified.
func (v *verification) throttle(ctx context.Context, stop context.CancelCauseFunc) {
	var t Throttle
	w := watch{m: v.Manager}
	var told time.Time
	var counted, reached int64
	since, rate, speed, reason, did := time.Now(), 0.0, 0.0, "", ""
	defer v.silent(ctx)
	for {
		var s Signals
		v.seen.take(&s)
		job, err := v.store.load(ctx, v.job.Name)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.Unknown = err.Error()
			job = v.job
		case job.State != Synced && job.State != Cutover || job.Round != v.job.Round:
			stop(&MovedError{v.job.Name, job.State, []State{Synced, Cutover}})
			return
		default:
			s.Paused = job.Paused
		}
		w.look(ctx, job, &s)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		t = t.Next(now, s, job.Throttle)
		v.gate.set(min(t.Concurrency, readers))
		v.mu.Lock()
		total, known, done, docs, trouble, doing := v.total, v.known, v.done, v.docs, v.trouble, v.doing
		v.mu.Unlock()
		if spent := now.Sub(since); spent >= 10*time.Second || spent > 0 && counted == 0 {
			rate, speed = float64(docs-counted)/spent.Seconds(), float64(done-reached)/spent.Seconds()
			counted, reached, since = docs, done, now
		}
		left := 0.0
		if speed > 0 {
			left = max(0, float64(total-known-done)/speed)
		}
		p := Progress{Rate: rate, Concurrency: min(t.Concurrency, readers), Max: min(job.Throttle.Concurrency, readers), Lag: s.Lag, Reason: t.Reason, Class: t.Class}
		if p.Reason == "" && trouble != "" {
			p.Reason, p.Class = trouble, "trouble"
		}
		if p.Reason != reason {
			if reason = p.Reason; reason != "" {
				v.tell("throttled: %s", reason)
			}
			told = time.Time{}
		}
		if now.Sub(told) >= 5*v.Poll || doing != did {
			told, did = now, doing
			v.say(ctx, Verifying{Owner: v.Owner, At: now.UTC().Truncate(time.Millisecond), Read: known + done, Total: total, ETA: left, Doing: doing, Progress: p})
		}
		if sleep(ctx, v.Poll) != nil {
			return
		}
	}
}

// say shows how far a verification is. It is a help only: of two that are under
// way at once, or without an answer, one is not seen.
func (v *verification) say(ctx context.Context, now Verifying) {
	var before Verifying
	seqNo, term, err := v.Control.Get(ctx, verifyingID(v.job.Name), &before)
	switch {
	case errors.Is(err, elastic.ErrNotFound):
		_ = v.Control.Create(ctx, verifyingID(v.job.Name), now)
	case err == nil:
		_ = v.Control.Update(ctx, verifyingID(v.job.Name), now, seqNo, term)
	}
}

// silent takes away what the verification has said.
func (v *verification) silent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var last Verifying
	if seqNo, term, err := v.Control.Get(ctx, verifyingID(v.job.Name), &last); err == nil && last.Owner == v.Owner {
		_ = v.Control.Delete(ctx, verifyingID(v.job.Name), seqNo, term) // else it ages
	}
}
