package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/migrate"
)

// ServeJobs serves the metrics and the status of the migrations on an admin
// address, for a process that works on one and consumes nothing. stop ends it.
func ServeJobs(cfg admin.Config, manager *migrate.Manager, log zerolog.Logger) (url string, stop func(), err error) {
	known := jobs{manager}
	metrics := &jobMetrics{jobs: known}
	registry := prometheus.NewRegistry()
	if err := registry.Register(metrics); err != nil {
		return "", nil, err
	}
	server, err := admin.Listen(cfg, admin.Options{Process: worker{known, time.Now()}, Jobs: known, Metrics: registry, Log: log})
	if err != nil {
		return "", nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { metrics.look(ctx); metrics.run(ctx) })
	return server.URL(), func() {
		end()
		running.Wait()
		patience, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Close(patience) // who still reads is cut off
	}, nil
}

// worker is a process that works on migrations, as the admin address shows it.
type worker struct {
	jobs  jobs
	since time.Time
}

var _ admin.Process = worker{}

// Alive implements admin.Process: what it does may take weeks, and waits for
// others.
func (worker) Alive() bool { return true }

// Ready implements admin.Process.
func (worker) Ready() bool { return true }

// Health implements admin.Process.
func (w worker) Health() admin.Health {
	return admin.Health{State: admin.Running, Since: w.since, Elasticsearch: admin.Elasticsearch{Available: true}}
}

// Status implements admin.Process: that of the jobs is under /v1/jobs.
func (w worker) Status() any { return map[string]any{"state": admin.Running, "since": w.since} }

// Live implements admin.Process.
func (w worker) Live() any { return w.Status() }

// Skip implements admin.Process.
func (worker) Skip(context.Context, string, int32, int64, bool) error {
	return fmt.Errorf("%w: this process consumes nothing", admin.ErrRefused)
}

// Release implements admin.Process.
func (worker) Release(string) bool { return false }
