package indexer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// server is a scripted _bulk behind a Transport. It applies actions without
// versions, so that any reordering shows in what it holds at the end, and
// reports ids that are in two requests at once.
type server struct {
	t testing.TB
	// All functions are called under mu.
	//
	// before and after decide the fate of a whole request, before and after it
	// is applied; nil: none.
	before, after func(r *request) *http.Response
	fail          func(r *request) error // the transport's error, before
	item          func(a action) *fault  // of one action
	noop          func(a action) bool    // an ingest pipeline drops it
	exists        func(index string) bool
	shuffle       bool // where there are both, drops are answered first, then failures, then the rest
	latency       func() time.Duration
	refuse        func(serving int) bool // 429 at once
	refuseOver    int                    // 413 above so many bytes; 0: never

	mu       sync.Mutex
	docs     map[string]string
	inFlight map[string]bool
	requests int
	serving  int   // requests that are not answered yet
	sizes    []int // actions per request
	applied  map[string]int
}

type request struct {
	actions []action
	bytes   int
	n       int // number of the request
}

type action struct {
	op, target, id, body string
}

type fault struct {
	status int
	kind   string
	reason string
}

func newServer(t testing.TB) *server {
	return &server{t: t, docs: map[string]string{}, inFlight: map[string]bool{}, applied: map[string]int{}}
}

func answer(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

func (s *server) Perform(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodHead {
		if s.exists != nil && s.exists(strings.TrimPrefix(req.URL.Path, "/")) {
			return answer(200, ""), nil
		}
		return answer(404, ""), nil
	}
	if req.Method == http.MethodGet {
		if s.fail != nil {
			if err := locked(&s.mu, func() error { return s.fail(&request{}) }); err != nil {
				return nil, err
			}
		}
		return answer(200, `{}`), nil
	}
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if req.ContentLength != int64(len(raw)) {
		s.t.Errorf("content length %d of %d bytes", req.ContentLength, len(raw))
	}
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			s.t.Errorf("gzip: %v", err)
			return nil, err
		}
		if raw, err = io.ReadAll(z); err != nil {
			s.t.Errorf("gzip: %v", err)
		}
	}
	r := s.parse(raw)
	s.enter(r)
	defer s.leave(r)
	if s.refuse != nil && locked(&s.mu, func() bool { return s.refuse(s.serving) }) {
		return answer(429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`), nil
	}
	if s.latency != nil {
		select {
		case <-time.After(locked(&s.mu, s.latency)):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	if s.fail != nil {
		if err := locked(&s.mu, func() error { return s.fail(r) }); err != nil {
			return nil, err
		}
	}
	if s.refuseOver > 0 && len(raw) > s.refuseOver {
		return answer(413, ""), nil
	}
	if s.before != nil {
		if resp := locked(&s.mu, func() *http.Response { return s.before(r) }); resp != nil {
			return resp, nil
		}
	}
	body := s.apply(r)
	if s.after != nil {
		if resp := locked(&s.mu, func() *http.Response { return s.after(r) }); resp != nil {
			return resp, nil
		}
	}
	return answer(200, body), nil
}

func (s *server) parse(raw []byte) *request {
	r := &request{bytes: len(raw)}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		var line map[string]struct {
			ID    string `json:"_id"`
			Index string `json:"_index"`
		}
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil {
			s.t.Errorf("action line %q: %v", lines[i], err)
			return r
		}
		for op, meta := range line {
			a := action{op: op, target: meta.Index, id: meta.ID}
			if op != "delete" {
				i++
				a.body = lines[i]
			}
			r.actions = append(r.actions, a)
		}
	}
	return r
}

func (s *server) enter(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.serving++
	r.n = s.requests
	s.sizes = append(s.sizes, len(r.actions))
	for _, k := range keys(r) {
		if s.inFlight[k] {
			s.t.Errorf("%s is in two requests at once", k)
		}
		s.inFlight[k] = true
	}
}

func (s *server) leave(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving--
	for _, k := range keys(r) {
		delete(s.inFlight, k)
	}
}

func keys(r *request) []string {
	seen := map[string]bool{}
	var all []string
	for _, a := range r.actions {
		if k := a.target + "/" + a.id; a.id != "" && !seen[k] {
			seen[k] = true
			all = append(all, k)
		}
	}
	return all
}

func (s *server) apply(r *request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []string
	errs := false
	for _, a := range r.actions {
		if s.item != nil {
			if f := s.item(a); f != nil {
				errs = true
				items = append(items, fmt.Sprintf(`{%q:{"status":%d,"error":{"type":%q,"reason":%q}}}`, a.op, f.status, f.kind, f.reason))
				continue
			}
		}
		if s.noop != nil && s.noop(a) {
			items = append(items, fmt.Sprintf(`{%q:{"status":200,"result":"noop"}}`, a.op))
			continue
		}
		k := a.target + "/" + a.id
		s.applied[k]++
		if a.op == "delete" {
			status, result := 404, "not_found"
			if _, ok := s.docs[k]; ok {
				status, result = 200, "deleted"
			}
			delete(s.docs, k)
			items = append(items, fmt.Sprintf(`{"delete":{"status":%d,"result":%q}}`, status, result))
			continue
		}
		s.docs[k] = a.body
		items = append(items, fmt.Sprintf(`{%q:{"status":201,"result":"created"}}`, a.op))
	}
	if all := strings.Join(items, ""); s.shuffle && strings.Contains(all, "noop") && strings.Contains(all, "error") {
		slices.SortStableFunc(items, func(a, b string) int { return rank(a) - rank(b) })
	}
	return fmt.Sprintf(`{"errors":%t,"items":[%s]}`, errs, strings.Join(items, ","))
}

// recorder is a Source that keeps what it is told and fails the test when it
// is told something twice.
type recorder struct {
	t testing.TB

	mu        sync.Mutex
	got       map[uint64]Outcome
	rejected  map[uint64]*Rejection
	conflicts map[uint64]int64
	closed    bool
}

func newRecorder(t testing.TB) *recorder {
	return &recorder{t: t, got: map[uint64]Outcome{}, rejected: map[uint64]*Rejection{}, conflicts: map[uint64]int64{}}
}

func (r *recorder) once(seq uint64) {
	_, a := r.got[seq]
	_, b := r.rejected[seq]
	_, c := r.conflicts[seq]
	if a || b || c {
		r.t.Errorf("action %d is reported twice", seq)
	}
	if r.closed {
		r.t.Errorf("action %d is reported after its source was dropped", seq)
	}
}

func (r *recorder) Settle(o Outcome, seqs []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seq := range seqs {
		r.once(seq)
		r.got[seq] = o
	}
}

func (r *recorder) Reject(seq uint64, j *Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.once(seq)
	r.rejected[seq] = j
}

func (r *recorder) Conflict(seq uint64, stored int64, _ *Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.once(seq)
	r.conflicts[seq] = stored
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got) + len(r.rejected) + len(r.conflicts)
}

var errReset = errors.New("connection reset by peer")

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

func locked[T any](mu *sync.Mutex, f func() T) T {
	mu.Lock()
	defer mu.Unlock()
	return f()
}

// pass lets virtual time go by.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock is a bubble's
}

func rank(item string) int {
	switch {
	case strings.Contains(item, "noop"):
		return 0
	case strings.Contains(item, "error"):
		return 1
	}
	return 2
}
