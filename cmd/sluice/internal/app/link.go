package app

import (
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

	mu     sync.Mutex
	since  time.Time // of the silence; zero: it answers
	reason string
	took   time.Duration // a moving mean of the last requests that were answered
	at     time.Time     // of the last of them
}

// Of a moving mean: what the last request counts, and for how long the mean tells
// of the present.
const (
	tookWeight = 0.2
	tookValid  = time.Minute
)

func newLink(next indexer.Transport) *link {
	return &link{next: next, since: time.Now(), reason: "it has not told its version yet"}
}

// Perform implements indexer.Transport.
func (l *link) Perform(req *http.Request) (*http.Response, error) {
	began := time.Now()
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
		if strings.HasSuffix(req.URL.Path, "/_bulk") {
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

// pace is how long a bulk request takes; 0: none was answered lately.
func (l *link) pace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) > tookValid {
		return 0
	}
	return l.took
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
