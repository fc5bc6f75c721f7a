package admin

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Jobs are the migrations of the process's stream.
type Jobs interface {
	// Jobs returns the status of every job, to be encoded as JSON.
	Jobs(ctx context.Context) (any, error)
	// Job returns that of one. An error that wraps ErrNoJob says that there is
	// none of this name.
	Job(ctx context.Context, name string) (any, error)
}

// ErrNoJob is a job that does not exist: answered 404.
var ErrNoJob = errors.New("no such job")

// registerJobs serves the jobs; where there is no routed stream there are none.
func (s *Server) registerJobs(mux *http.ServeMux) {
	if s.jobs == nil {
		return
	}
	jobs := &sharedJobs{jobs: s.jobs, turn: make(chan struct{}, 1)}
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		all, err := jobs.Jobs(r.Context())
		s.told(w, all, err)
	})
	mux.HandleFunc("GET /v1/jobs/{name}", func(w http.ResponseWriter, r *http.Request) {
		job, err := s.jobs.Job(r.Context(), r.PathValue("name"))
		s.told(w, job, err)
	})
}

// jobsFresh is how old what is told of all jobs may be: however many ask, the
// control index is read once in so long.
const jobsFresh = time.Second

// sharedJobs reads all jobs once for all who ask within jobsFresh. What could not
// be read is kept as well: it is no reason to ask more often.
type sharedJobs struct {
	jobs Jobs
	turn chan struct{} // whoever has sent into it reads, and owns the rest
	at   time.Time
	all  any
	err  error
}

// Jobs implements Jobs.
func (s *sharedJobs) Jobs(ctx context.Context) (any, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s.at.IsZero() || time.Since(s.at) >= jobsFresh {
		all, err := s.jobs.Jobs(ctx)
		if ctx.Err() != nil { // who asked has gone: that is no answer for others
			return nil, context.Cause(ctx)
		}
		s.at, s.all, s.err = time.Now(), all, err
	}
	return s.all, s.err
}

// told answers with what was read, or why it could not be.
func (s *Server) told(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, ErrNoJob):
		fail(w, http.StatusNotFound, Failure{Error: err.Error()})
	case err != nil:
		s.log.Warn().Err(err).Msg("the jobs cannot be read")
		fail(w, http.StatusServiceUnavailable, Failure{Error: "the jobs cannot be read: see the log"})
	default:
		s.reply(w, http.StatusOK, v)
	}
}
