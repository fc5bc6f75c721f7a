package admin

import (
	"context"
	"errors"
	"net/http"
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
	jobs := s.jobs
	if jobs == nil {
		return
	}
	mux.HandleFunc("GET /v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		all, err := jobs.Jobs(r.Context())
		s.told(w, all, err)
	})
	mux.HandleFunc("GET /v1/jobs/{name}", func(w http.ResponseWriter, r *http.Request) {
		job, err := jobs.Job(r.Context(), r.PathValue("name"))
		s.told(w, job, err)
	})
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
