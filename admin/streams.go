package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/partition"
)

// Stream is a stream that is routed by customer; *partition.Watcher is one.
type Stream interface {
	// Lookup says where a customer's documents are read from now.
	Lookup(customer []byte) (partition.Lookup, error)
	// View is what is known of the table now.
	View() *partition.View
	// Wait returns the router once its epoch is at least epoch, or the cause of
	// ctx.
	Wait(ctx context.Context, epoch int64) (*partition.Router, error)
	// Valid is for how much longer the table may be believed.
	Valid() time.Duration
}

// LookupAnswer is the body of GET /v1/streams/{name}/route: times are seconds.
type LookupAnswer struct {
	Index string  `json:"index"` // index or alias to read from
	Epoch int64   `json:"epoch"` // of the routing table that says so
	TTL   float64 `json:"ttl"`   // ask again after this
	// Valid is how long the answer may be used when nobody answers; after it,
	// read from the legacy index.
	Valid float64 `json:"valid"`
	Stale bool    `json:"stale"` // the table could not be confirmed: Index is the legacy index
}

// The headers of both answers.
const (
	headerEpoch = "Sluice-Routing-Epoch"
	headerValid = "Sluice-Routing-Valid" // seconds
)

const (
	// maxPolls is how many long polls wait at once. Each holds a connection.
	maxPolls = 1024
	// pollTime is how long one waits at most; it ends well before writeTimeout.
	pollTime = 25 * time.Second
	// retryAfter is what those are told who cannot be answered now, in seconds.
	retryAfter = "1"
)

// streams serves the routing tables.
type streams struct {
	server  *Server
	streams map[string]Stream
	polls   chan struct{}
	closing context.Context // ends when the server closes: nobody waits on
}

func (s *streams) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/streams/{name}/route", s.route)
	mux.HandleFunc("GET /v1/streams/{name}/routes", s.routes)
}

// ask finds the stream and its query, which may hold the one parameter only, at
// most once. ok is false where the answer was given already.
func (s *streams) ask(w http.ResponseWriter, r *http.Request, parameter string) (stream Stream, value string, given, ok bool) {
	stream, known := s.streams[r.PathValue("name")]
	if !known {
		fail(w, http.StatusNotFound, Failure{Error: s.unknown(r.PathValue("name"))})
		return nil, "", false, false
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, http.StatusBadRequest, Failure{Error: "the query cannot be read: " + err.Error() + "; escape values with percent signs"})
		return nil, "", false, false
	}
	for name, values := range query {
		switch {
		case name != parameter:
			fail(w, http.StatusBadRequest, Failure{Error: fmt.Sprintf("there is no parameter %q; use %s", name, parameter)})
			return nil, "", false, false
		case len(values) > 1:
			fail(w, http.StatusBadRequest, Failure{Error: fmt.Sprintf("%s is there %d times; ask for one", name, len(values))})
			return nil, "", false, false
		}
		value, given = values[0], true
	}
	return stream, value, given, true
}

func (s *streams) unknown(name string) string {
	if len(s.streams) == 0 {
		return "this Sluice does not route by customer: routing.stream is empty"
	}
	return fmt.Sprintf("there is no stream %q here; this Sluice has %s", name, strings.Join(slices.Sorted(maps.Keys(s.streams)), ", "))
}

// route answers where one customer is read from.
func (s *streams) route(w http.ResponseWriter, r *http.Request) {
	stream, customer, given, ok := s.ask(w, r, "customer")
	if !ok {
		return
	}
	if !given {
		fail(w, http.StatusBadRequest, Failure{Error: "which customer? Ask with ?customer=ID"})
		return
	}
	l, err := stream.Lookup([]byte(customer))
	switch {
	case errors.Is(err, partition.ErrNoTable) || errors.Is(err, partition.ErrStale):
		unavailable(w, err.Error()+"; ask again, or another replica")
		return
	case err != nil:
		fail(w, http.StatusBadRequest, Failure{Error: err.Error()})
		return
	}
	freshness(w, l.Epoch, l.Valid)
	s.server.reply(w, http.StatusOK, LookupAnswer{l.Index, l.Epoch, l.TTL.Seconds(), l.Valid.Seconds(), l.Stale})
}

// routes answers with the table, once it has the epoch that is waited for. When
// it takes too long the answer is 204, which confirms the table that the caller
// has.
func (s *streams) routes(w http.ResponseWriter, r *http.Request) {
	stream, text, given, ok := s.ask(w, r, "wait_epoch")
	if !ok {
		return
	}
	epoch, err := strconv.ParseInt(text, 10, 64)
	if given && (err != nil || epoch < 0) {
		fail(w, http.StatusBadRequest, Failure{Error: "wait_epoch is an epoch, one above the one that you have: ?wait_epoch=18"})
		return
	}
	if stream.View().Router == nil {
		unavailable(w, partition.ErrNoTable.Error()+"; ask again, or another replica")
		return
	}
	select {
	case s.polls <- struct{}{}:
		defer func() { <-s.polls }()
	default:
		unavailable(w, fmt.Sprintf("%d long polls wait here already; ask another replica", maxPolls))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pollTime)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()

	later, err := stream.Wait(ctx, epoch)
	now, valid := stream.View().Router, stream.Valid()
	switch {
	case s.closing.Err() != nil:
		unavailable(w, "this replica stops; ask another one")
	case valid == 0:
		unavailable(w, "the routing table could not be confirmed for longer than routing.max_staleness; ask another replica, or read from the legacy index")
	case err != nil:
		freshness(w, now.Epoch(), valid)
		w.WriteHeader(http.StatusNoContent)
	default:
		freshness(w, later.Epoch(), valid)
		s.server.reply(w, http.StatusOK, json.RawMessage(later.Document()))
	}
}

func freshness(w http.ResponseWriter, epoch int64, valid time.Duration) {
	w.Header().Set(headerEpoch, strconv.FormatInt(epoch, 10))
	w.Header().Set(headerValid, strconv.FormatFloat(valid.Seconds(), 'f', 3, 64))
}

func unavailable(w http.ResponseWriter, text string) {
	w.Header().Set("Retry-After", retryAfter)
	fail(w, http.StatusServiceUnavailable, Failure{Error: text})
}
