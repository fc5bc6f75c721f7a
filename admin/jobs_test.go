package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// fakeJobs has one job; broken: it cannot be read.
type fakeJobs struct{ broken bool }

func (f fakeJobs) Jobs(ctx context.Context) (any, error) {
	job, err := f.Job(ctx, "j7")
	return []any{job}, err
}

func (f fakeJobs) Job(_ context.Context, name string) (any, error) {
	switch {
	case f.broken:
		return nil, errors.New("dial tcp 10.1.2.3:9200: refused")
	case name != "j7":
		return nil, fmt.Errorf("%w: %s", ErrNoJob, name)
	}
	return map[string]string{"name": "j7", "state": "BACKFILLING"}, nil
}

func TestJobs(t *testing.T) {
	for _, c := range []struct {
		jobs Jobs
		path string
		code int
		say  string
	}{
		{fakeJobs{}, "/v1/jobs", http.StatusOK, `[{"name":"j7","state":"BACKFILLING"}]`},
		{fakeJobs{}, "/v1/jobs/j7", http.StatusOK, `{"name":"j7","state":"BACKFILLING"}`},
		{fakeJobs{}, "/v1/jobs/j8", http.StatusNotFound, "no such job: j8"},
		{fakeJobs{broken: true}, "/v1/jobs", http.StatusServiceUnavailable, "see the log"},
		{nil, "/v1/jobs", http.StatusNotFound, ""},
	} {
		s := &Server{process: &process{}, jobs: c.jobs, log: zerolog.Nop(), routing: &streams{}}
		w := httptest.NewRecorder()
		s.handler(prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, http.NoBody))
		body := strings.Join(strings.Fields(w.Body.String()), "")
		if w.Code != c.code || !strings.Contains(body, strings.ReplaceAll(c.say, " ", "")) || strings.Contains(body, "10.1.2.3") {
			t.Errorf("%s: %d %s", c.path, w.Code, body)
		}
	}
}

// slowJobs count how often they are read, which takes a while.
type slowJobs struct {
	fakeJobs
	reads atomic.Int32
}

func (s *slowJobs) Jobs(ctx context.Context) (any, error) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.reads.Add(1)
	return s.fakeJobs.Jobs(ctx)
}

// However many browsers ask, the jobs are read once a second, whoever goes
// meanwhile; what is told is no older.
func TestJobsAreReadOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs := &slowJobs{}
		s := &Server{process: &process{}, jobs: jobs, log: zerolog.Nop(), routing: &streams{}}
		handler := s.handler(prometheus.NewRegistry())
		ask := func(ctx context.Context) int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/jobs", http.NoBody))
			return w.Code
		}
		gone, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer leave()
		var all sync.WaitGroup
		all.Go(func() { ask(gone) })
		synctest.Wait()
		for range 100 {
			all.Go(func() {
				if code := ask(t.Context()); code != http.StatusOK {
					t.Errorf("answered %d", code)
				}
			})
		}
		all.Wait()
		if n := jobs.reads.Load(); n != 1 {
			t.Errorf("%d reads for 100 at once", n)
		}
		<-time.After(jobsFresh - 10*time.Millisecond)
		ask(t.Context())
		if n := jobs.reads.Load(); n != 1 {
			t.Errorf("%d reads within a second", n)
		}
		<-time.After(10 * time.Millisecond)
		ask(t.Context())
		if n := jobs.reads.Load(); n != 2 {
			t.Errorf("%d reads after a second", n)
		}
	})
}
