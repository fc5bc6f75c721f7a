package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
