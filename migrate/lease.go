package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicehq/sluice/elastic"
)

// leaseDoc is the control document `lease:<job>`: who works on the job.
type leaseDoc struct {
	Owner string `json:"owner"` // "": nobody
	// Token grows with each owner. Copies go through an alias that carries it.
	Token  int64         `json:"token"`
	Period time.Duration `json:"period"` // it is renewed at a third of this
	// Progress is what the owner tells of its work, for status.
	Progress Progress `json:"progress"`
}

// Progress is what a runner is doing.
type Progress struct {
	Rate        float64 `json:"rate"` // documents a second
	Concurrency int     `json:"concurrency"`
	Max         int     `json:"max"`
	Lag         *Lag    `json:"lag,omitempty"`    // of the live consumers; nil: not known
	Reason      string  `json:"reason,omitempty"` // of throttling; "": none
	Class       string  `json:"class,omitempty"`  // its kind, one of a few words
}

var errLeaseLost = errors.New("another runner has taken the job over")

// lease is the right to work on a job. No two clocks are compared: whoever wants
// it must see its document stand still for a whole period by its own monotonic
// clock, and the owner stops well before a period has passed by its own.
type lease struct {
	store  store
	job    string
	token  int64
	period time.Duration

	mu struct {
		sync.Mutex
		doc         leaseDoc
		seqNo, term int64
		renewed     time.Time // with its monotonic reading; taken before the renewal was sent
	}
}

// acquire waits for the lease. waiting is told who has it meanwhile.
func acquire(ctx context.Context, s store, job, owner string, period time.Duration, waiting func(owner string)) (*lease, error) {
	for {
		l := &lease{store: s, job: job, period: period}
		var doc leaseDoc
		sent := time.Now()
		seqNo, term, err := s.control.Get(ctx, leaseID(job), &doc)
		switch {
		case errors.Is(err, elastic.ErrNotFound):
			l.mu.doc = leaseDoc{Owner: owner, Token: 1, Period: period}
			err = s.control.Create(ctx, leaseID(job), l.mu.doc)
		case err != nil:
			return nil, err
		default:
			if doc.Owner != "" {
				waiting(doc.Owner)
				if still, err := s.standsStill(ctx, job, seqNo, doc.Period); err != nil {
					return nil, err
				} else if !still {
					continue
				}
				sent = time.Now()
			}
			l.mu.doc = leaseDoc{Owner: owner, Token: doc.Token + 1, Period: period}
			err = s.control.Update(ctx, leaseID(job), l.mu.doc, seqNo, term)
		}
		if errors.Is(err, elastic.ErrConflict) {
			continue // somebody else was faster
		}
		if err != nil {
			return nil, err
		}
		var stored leaseDoc
		l.mu.seqNo, l.mu.term, err = s.control.Get(ctx, leaseID(job), &stored)
		if err != nil {
			return nil, err
		}
		if stored.Owner != owner || stored.Token != l.mu.doc.Token {
			continue
		}
		l.token, l.mu.renewed = stored.Token, sent
		return l, nil
	}
}

// standsStill watches a lease for a whole period.
func (s store) standsStill(ctx context.Context, job string, seqNo int64, period time.Duration) (bool, error) {
	began := time.Now()
	for {
		left := period - time.Since(began)
		if left <= 0 {
			return true, nil
		}
		if err := sleep(ctx, min(left, max(period/10, time.Millisecond))); err != nil {
			return false, err
		}
		var doc leaseDoc
		now, _, err := s.control.Get(ctx, leaseID(job), &doc)
		if err != nil {
			return false, err
		}
		if now != seqNo {
			return false, nil
		}
	}
}

// left is for how long work may still be sent: three quarters of the period, or
// all but 30 s of a long one, since the last renewal.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.period*3/4, l.period-30*time.Second) - time.Since(l.mu.renewed)
}

// keep renews the lease until ctx ends, sooner where the progress has changed,
// and ends work with errLeaseLost when it is lost or could not be renewed in time.
func (l *lease) keep(ctx context.Context, progress func() Progress, changed <-chan struct{}, lost context.CancelCauseFunc) {
	ticker := time.NewTicker(l.period / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-changed:
		}
		err := l.renew(ctx, progress())
		if errors.Is(err, elastic.ErrConflict) || err != nil && l.left() <= 0 {
			lost(fmt.Errorf("job %s: %w", l.job, errLeaseLost))
			return
		}
	}
}

func (l *lease) renew(ctx context.Context, progress Progress) error {
	l.mu.Lock()
	doc, seqNo, term := l.mu.doc, l.mu.seqNo, l.mu.term
	l.mu.Unlock()
	doc.Progress = progress
	ctx, cancel := context.WithTimeout(ctx, max(l.period/3, time.Millisecond))
	defer cancel()
	sent := time.Now()
	newSeqNo, newTerm, err := l.store.control.Replace(ctx, leaseID(l.job), doc, seqNo, term)
	if errors.Is(err, elastic.ErrConflict) {
		// Perhaps an earlier renewal was carried out and its answer lost.
		var stored leaseDoc
		var errGet error
		newSeqNo, newTerm, errGet = l.store.control.Get(ctx, leaseID(l.job), &stored)
		if errGet != nil {
			return errGet
		}
		if stored.Owner != doc.Owner || stored.Token != doc.Token {
			return err
		}
		newSeqNo, newTerm, err = l.store.control.Replace(ctx, leaseID(l.job), doc, newSeqNo, newTerm)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.seqNo, l.mu.term, l.mu.renewed = newSeqNo, newTerm, sent
	return nil
}

// release gives the lease back, so that nobody has to wait for it.
func (l *lease) release(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.doc.Owner = ""
	// Where this fails, the next one waits a period.
	_ = l.store.control.Update(ctx, leaseID(l.job), l.mu.doc, l.mu.seqNo, l.mu.term)
}

// sleep waits, or returns why it must not go on.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
