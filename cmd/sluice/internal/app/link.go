package app

import (
	"net/http"
	"sync"
	"time"

	"github.com/sluicehq/sluice/indexer"
)

// link passes the indexer's requests on and remembers whether the cluster
// answers, for /healthz. Which answers mean what is the indexer's to judge: here
// only the gateway's "nobody there" counts as none.
type link struct {
	next indexer.Transport

	mu     sync.Mutex
	since  time.Time // of the silence; zero: it answers
	reason string
}

func newLink(next indexer.Transport) *link {
	return &link{next: next, since: time.Now(), reason: "it has not told its version yet"}
}

// Perform implements indexer.Transport.
func (l *link) Perform(req *http.Request) (*http.Response, error) {
	resp, err := l.next.Perform(req)
	switch {
	case err != nil && req.Context().Err() != nil:
		// Given up from this side, by time or at the end: it says nothing.
	case err != nil:
		l.silent("it cannot be reached")
	case resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		l.silent("answers " + resp.Status)
	default:
		l.answers()
	}
	return resp, err
}

func (l *link) answers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since, l.reason = time.Time{}, ""
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
