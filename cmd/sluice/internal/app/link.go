package app

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sluicehq/sluice/indexer"
)

// link passes the indexer's requests on and remembers whether the cluster
// answers, and how long it takes, for /healthz. Which answers mean what is the indexer's to judge: here
// only the gateway's "nobody there" counts as none.
type link struct {
	next indexer.Transport

	mu       sync.Mutex
	since    time.Time // of the silence; zero: it answers
	reason   string
	took     time.Duration               // a moving mean of the last bulk requests that were answered
	at       time.Time                   // of the last of them
	answered time.Time                   // the last answer to anything
	bulks    map[*http.Request]time.Time // those under way, and when they began
	givenUp  time.Time                   // when the first began that was given up by time since; zero: none
}

// Of a moving mean: what the last request counts, and for how long the mean tells
// of the present.
const (
	tookWeight = 0.2
	tookValid  = time.Minute
)

func newLink(next indexer.Transport) *link {
	return &link{
		next: next, since: time.Now(), reason: "it has not told its version yet",
		bulks: make(map[*http.Request]time.Time),
	}
}

// Perform implements indexer.Transport.
func (l *link) Perform(req *http.Request) (*http.Response, error) {
	began, bulk := time.Now(), strings.HasSuffix(req.URL.Path, "/_bulk")
	if bulk {
		l.begin(req, began)
		defer l.end(req)
	}
	resp, err := l.next.Perform(req)
	switch {
	case err != nil && !bulk && errors.Is(req.Context().Err(), context.DeadlineExceeded):
		l.unanswered(began)
	case err != nil && errors.Is(req.Context().Err(), context.DeadlineExceeded):
		// It may be what is in it that is never answered. The indexer asks for a
		// sign of life now, which tells.
		l.gaveUp(began)
	case err != nil && req.Context().Err() != nil:
		// Given up at the end: it says nothing.
	case err != nil:
		l.silent("it cannot be reached")
	case resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		l.silent("answers " + resp.Status)
	default:
		l.answers()
		if bulk {
			l.measure(time.Since(began))
		}
	}
	return resp, err
}

// measure takes the time of a bulk request up to its answer's first byte.
func (l *link) measure(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.at) > tookValid {
		l.took = took
	} else {
		l.took += time.Duration(tookWeight * float64(took-l.took))
	}
	l.at = now
}

func (l *link) begin(bulk *http.Request, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bulks[bulk] = now
}

func (l *link) end(bulk *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bulks, bulk)
}

func (l *link) gaveUp(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.givenUp.IsZero() && !l.answered.After(began) {
		l.givenUp = began
	}
}

// pace is how long a bulk request takes; 0: none was answered lately. Those under
// way, or given up, count as soon as they have waited longer, for as long as nothing
// at all was answered: a server that hangs ends no request, so no mean would tell of it.
func (l *link) pace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var owed time.Duration
	if !l.givenUp.IsZero() {
		owed = now.Sub(l.givenUp)
	}
	for _, began := range l.bulks {
		if began.Before(l.answered) {
			began = l.answered
		}
		owed = max(owed, now.Sub(began))
	}
	if now.Sub(l.at) > tookValid {
		return owed
	}
	return max(owed, l.took)
}

func (l *link) answers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since, l.reason = time.Time{}, ""
	l.answered, l.givenUp = time.Now(), time.Time{}
}

// unanswered takes a request that was given up by time: silence since it began,
// unless something was answered meanwhile. Nothing would end that silence.
func (l *link) unanswered(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.answered.After(began):
		return
	case l.since.IsZero():
		l.since = began
	}
	l.reason = "it does not answer"
}

// waits says why the cluster has not told its version yet. It tells nothing
// where requests were answered meanwhile.
func (l *link) waits(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		l.reason = err.Error()
	}
}

func (l *link) silent(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		l.since = time.Now()
	}
	l.reason = reason
}

// state returns since when the cluster is silent, zero if it answers, and why.
func (l *link) state() (since time.Time, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.reason
}
