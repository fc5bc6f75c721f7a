package app

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/migrate"
)

// jobLookEvery is how often the jobs are read for those who scrape.
const jobLookEvery = 30 * time.Second

// The metrics of migrations. Jobs that have come to their end have none. Why a job
// is throttled is a sentence with figures in it: it stands in /v1/jobs, not in a
// label.
var (
	descJobState = prometheus.NewDesc("sluice_job_state",
		"1 for the state that a migration is in.", []string{"job", "state"}, nil)
	descJobProgress = prometheus.NewDesc("sluice_job_progress_ratio",
		"The share of a migration's documents that the backfill has seen, 0 to 1.", []string{"job"}, nil)
	descJobRate = prometheus.NewDesc("sluice_job_documents_per_second",
		"Documents that a migration's backfill copies in a second.", []string{"job"}, nil)
	descJobThrottled = prometheus.NewDesc("sluice_job_throttled",
		"1 while a migration's backfill is throttled, else 0; /v1/jobs says why.", []string{"job"}, nil)
	descJobPaused = prometheus.NewDesc("sluice_job_paused",
		"1 while a migration is paused, else 0; /v1/jobs says why.", []string{"job"}, nil)
	descJobFailed = prometheus.NewDesc("sluice_job_failed_documents",
		"Documents that a migration could not copy.", []string{"job"}, nil)
)

// jobMetrics shows the migrations of the stream. They stand in the control index,
// which no scrape may wait for: they are read in between, and only while somebody
// scrapes.
type jobMetrics struct {
	jobs  jobs
	asked atomic.Bool // since the last look

	mu    sync.Mutex
	known []*migrate.Status // of the last look; nil: none, or it failed
}

// run reads the jobs until ctx ends.
func (m *jobMetrics) run(ctx context.Context) {
	ticker := time.NewTicker(jobLookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if !m.asked.Swap(false) {
			continue
		}
		// What cannot be read is not shown, rather than shown as it was once; why
		// it cannot be is told by what writes to the same cluster.
		known, _ := m.jobs.list(ctx)
		m.mu.Lock()
		m.known = known
		m.mu.Unlock()
	}
}

// Describe implements prometheus.Collector.
func (m *jobMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descJobState, descJobProgress, descJobRate, descJobThrottled, descJobPaused, descJobFailed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *jobMetrics) Collect(ch chan<- prometheus.Metric) {
	m.asked.Store(true)
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range known {
		if s.Over() {
			continue
		}
		gauge(descJobState, 1, s.Name, string(s.State))
		gauge(descJobProgress, s.Share(), s.Name)
		gauge(descJobRate, s.Progress.Rate, s.Name)
		gauge(descJobThrottled, oneIf(s.Progress.Reason != ""), s.Name)
		gauge(descJobPaused, oneIf(s.Paused != ""), s.Name)
		gauge(descJobFailed, float64(s.Failed), s.Name)
	}
}

func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// mostReasons bounds the values of a label that a server's words fill.
const (
	mostReasons  = 50
	otherReasons = "other"
)

var descHeld = prometheus.NewDesc("sluice_targets_held",
	"Targets that are held, by why: the error type; 50 at a time, the others are other.", []string{"reason"}, nil)

// heldMetrics counts the held targets by reason.
type heldMetrics struct{ indexer *indexer.Indexer }

// Describe implements prometheus.Collector.
func (m heldMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- descHeld }

// Collect implements prometheus.Collector.
func (m heldMetrics) Collect(ch chan<- prometheus.Metric) {
	counts := map[string]int{}
	for _, t := range m.indexer.Status().Held {
		reason := t.Type
		if _, ok := counts[reason]; !ok && len(counts) >= mostReasons {
			reason = otherReasons
		}
		counts[reason]++
	}
	for reason, n := range counts {
		ch <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, float64(n), reason)
	}
}
