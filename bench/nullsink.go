package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/gzip"

	"github.com/sluicehq/sluice/bench/internal/bulk"
	"github.com/sluicehq/sluice/embedded"
)

// sink answers bulk requests as Elasticsearch would and keeps only counts.
// Every other call is answered by an embedded Elasticsearch, which keeps the
// control index, so that Sluice runs with its defaults.
type sink struct {
	latency time.Duration
	busy    float64         // share of requests answered with 429
	reject  float64         // share of items answered with 429
	invalid float64         // share of items answered with 400
	seen    []atomic.Uint64 // a bit for each "seq" that came

	dice    atomic.Uint64
	ids     atomic.Uint64
	filters sync.Map // filter_path to *bulk.Filter
	pool    sync.Pool
	other   *embedded.Elasticsearch

	mu struct {
		sync.Mutex
		stats
	}
}

// stats is what /stats shows. Documents count once they are accepted.
type stats struct {
	Requests     int64 `json:"requests"`
	BusyRequests int64 `json:"busy_requests"`
	BadRequests  int64 `json:"bad_requests"`
	Docs         int64 `json:"docs"`
	RejectedDocs int64 `json:"rejected_docs"`
	InvalidDocs  int64 `json:"invalid_docs"`
	// Distinct and Duplicates tell the documents that came for the first time
	// from those that came again; Sum adds up the xxh64 of the former.
	Distinct    int64     `json:"distinct_docs"`
	Duplicates  int64     `json:"duplicate_docs"`
	Sum         uint64    `json:"sum,string"`
	WireBytes   int64     `json:"wire_bytes"`
	BodyBytes   int64     `json:"body_bytes"`
	InFlight    int64     `json:"in_flight"`
	MaxInFlight int64     `json:"max_in_flight"`
	First       time.Time `json:"first"` // when the first bulk request came
	Last        time.Time `json:"last"`  // when the last one was answered
}

// add adds the counts of one request to s.
func (s *stats) add(d stats) {
	s.Requests++
	s.BusyRequests += d.BusyRequests
	s.BadRequests += d.BadRequests
	s.Docs += d.Docs
	s.RejectedDocs += d.RejectedDocs
	s.InvalidDocs += d.InvalidDocs
	s.Distinct += d.Distinct
	s.Duplicates += d.Duplicates
	s.Sum += d.Sum
	s.WireBytes += d.WireBytes
	s.BodyBytes += d.BodyBytes
}

// listening is what a server says when it is ready.
type listening struct {
	Address string `json:"address"`
}

func nullsink(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("nullsink", flag.ContinueOnError)
	s := new(sink)
	address := fs.String("address", "127.0.0.1:0", "`address` to listen on")
	fs.DurationVar(&s.latency, "latency", 0, "wait before every bulk answer")
	fs.Float64Var(&s.busy, "busy-requests", 0, "share of bulk requests to turn away whole with 429")
	fs.Float64Var(&s.reject, "reject-items", 0, "share of items to turn away with 429")
	fs.Float64Var(&s.invalid, "invalid-items", 0, "share of items to refuse with 400")
	verify := fs.Int64("verify", 0, `tell apart the "seq" values below `+"`N`"+` in accepted documents (0 is off)`)
	if err := fs.Parse(args); err != nil {
		return err
	}
	s.seen = make([]atomic.Uint64, (*verify+63)/64)
	return serve(ctx, *address, s.handler())
}

// serve listens on address, says which one it became, and serves until ctx ends.
func serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := context.AfterFunc(ctx, func() { _ = server.Close() }) // what it was doing is of no more interest
	defer ended()
	if err := say(listening{listener.Addr().String()}); err != nil {
		return err
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *sink) handler() http.Handler {
	s.pool.New = func() any { return new(scratch) }
	s.other = embedded.NewElasticsearch(embedded.Config{})
	mux := http.NewServeMux()
	mux.HandleFunc("/_bulk", s.bulk)
	mux.HandleFunc("/{index}/_bulk", s.bulk)
	mux.HandleFunc("GET /stats", s.showStats)
	mux.HandleFunc("POST /stats/reset", s.resetStats)
	mux.Handle("/", s.other)
	return mux
}

// scratch holds what serving one request needs, to be used again.
type scratch struct {
	wire, body bytes.Buffer
	gzip       gzip.Reader
	resp       bulk.Response
}

func (s *sink) bulk(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	s.mu.Lock()
	s.mu.InFlight++
	s.mu.MaxInFlight = max(s.mu.MaxInFlight, s.mu.InFlight)
	s.mu.Unlock()

	sc := s.pool.Get().(*scratch)
	defer s.pool.Put(sc)
	var d stats
	status, answer := s.answer(sc, r, start, &d)
	if s.latency > 0 {
		select {
		case <-time.After(s.latency):
		case <-r.Context().Done():
		}
	}

	now := time.Now()
	s.mu.Lock()
	s.mu.InFlight--
	s.mu.add(d)
	if s.mu.First.IsZero() {
		s.mu.First = start
	}
	s.mu.Last = now
	s.mu.Unlock()

	w.Header().Set("X-Elastic-Product", "Elasticsearch")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer) // the client may be gone
}

// answer reads one bulk request, adds it up in d and makes the answer.
func (s *sink) answer(sc *scratch, r *http.Request, start time.Time, d *stats) (status int, answer []byte) {
	bad := func(reason string) (int, []byte) {
		d.BadRequests++
		return refusal(http.StatusBadRequest, "illegal_argument_exception", reason)
	}

	sc.wire.Reset()
	if _, err := sc.wire.ReadFrom(r.Body); err != nil {
		return bad(err.Error())
	}
	d.WireBytes = int64(sc.wire.Len())
	if s.roll(s.busy) {
		d.BusyRequests++
		return refusal(http.StatusTooManyRequests, "es_rejected_execution_exception", "rejected execution of coordinating operation")
	}

	body := sc.wire.Bytes()
	if strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip") {
		sc.body.Reset()
		if err := sc.gzip.Reset(&sc.wire); err != nil {
			return bad(err.Error())
		}
		if _, err := io.Copy(&sc.body, &sc.gzip); err != nil {
			return bad(err.Error())
		}
		body = sc.body.Bytes()
	}
	d.BodyBytes = int64(len(body))

	n := uint64(bytes.Count(body, []byte{'\n'}))
	sc.resp.Reset(s.filter(r.URL.Query().Get("filter_path")), r.PathValue("index"), s.ids.Add(n)-n)
	actions, err := bulk.Parse(body, func(a bulk.Action) {
		switch {
		case s.roll(s.reject):
			d.RejectedDocs++
			sc.resp.Add(a, bulk.Rejected)
		case s.roll(s.invalid):
			d.InvalidDocs++
			sc.resp.Add(a, bulk.Invalid)
		default:
			d.Docs++
			s.mark(a.Doc, d)
			sc.resp.Add(a, bulk.Stored)
		}
	})
	if err == nil && actions == 0 {
		err = errors.New("request body is required")
	}
	if err != nil {
		*d = stats{WireBytes: d.WireBytes, BodyBytes: d.BodyBytes}
		return bad(err.Error())
	}
	return http.StatusOK, sc.resp.Bytes(time.Since(start).Milliseconds())
}

// refusal is the answer to a request that is refused as a whole.
func refusal(status int, kind, reason string) (int, []byte) {
	type cause struct {
		Type   string `json:"type"`
		Reason string `json:"reason"`
	}
	body, _ := json.Marshal(struct { // texts always have a form in JSON
		Error  cause `json:"error"`
		Status int   `json:"status"`
	}{cause{kind, reason}, status})
	return status, body
}

func (s *sink) filter(filterPath string) *bulk.Filter {
	if f, ok := s.filters.Load(filterPath); ok {
		return f.(*bulk.Filter)
	}
	f, _ := s.filters.LoadOrStore(filterPath, bulk.ParseFilter(filterPath))
	return f.(*bulk.Filter)
}

// roll says yes to the given share of calls, the same ones in every run.
func (s *sink) roll(share float64) bool {
	if share <= 0 {
		return false
	}
	z := s.dice.Add(0x9e3779b97f4a7c15)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>11)/(1<<53) < share
}

// mark counts a document as new or seen before, by its seq value.
func (s *sink) mark(doc []byte, d *stats) {
	if len(s.seen) == 0 {
		return
	}
	const key = `seq":`
	i := bytes.Index(doc, []byte(key))
	if i < 0 {
		return
	}
	seq := 0
	for _, c := range doc[i+len(key):] {
		if c < '0' || c > '9' {
			break
		}
		seq = seq*10 + int(c-'0')
	}
	if seq >= len(s.seen)*64 {
		return
	}
	bit := uint64(1) << (seq % 64)
	if s.seen[seq/64].Or(bit)&bit != 0 {
		d.Duplicates++
		return
	}
	d.Distinct++
	d.Sum += xxhash.Sum64(doc)
}

func (s *sink) showStats(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	d := s.mu.stats
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(d) // the client may be gone
}

func (s *sink) resetStats(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.mu.stats = stats{InFlight: s.mu.InFlight, MaxInFlight: s.mu.InFlight}
	s.mu.Unlock()
	s.dice.Store(0)
	for i := range s.seen {
		s.seen[i].Store(0)
	}
	w.WriteHeader(http.StatusNoContent)
}
