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

// The metrics of migrations. Those that have come to their end have none. Why one
// is throttled is a sentence with figures in it: it stands in /v1/jobs; the label
// has its kind, of which there are a few. Prometheus has a label job of its own.
var (
	descMigrationState = prometheus.NewDesc("sluice_migration_state",
		"1 for the state that a migration is in.", []string{"migration", "state"}, nil)
	descMigrationProgress = prometheus.NewDesc("sluice_migration_progress_ratio",
		"The share of a migration's documents that the backfill has seen, 0 to 1.", []string{"migration"}, nil)
	descMigrationDocuments = prometheus.NewDesc("sluice_migration_documents",
		"Documents that a migration's backfill has copied, by outcome: written, superseded (something newer was there) or failed.", []string{"migration", "outcome"}, nil)
	descMigrationRate = prometheus.NewDesc("sluice_migration_documents_per_second",
		"Documents that a migration's backfill copies in a second, or its verification reads.", []string{"migration"}, nil)
	descMigrationItems = prometheus.NewDesc("sluice_migration_items_left",
		"Work items of a migration's backfill that are not done.", []string{"migration"}, nil)
	descMigrationThrottled = prometheus.NewDesc("sluice_migration_throttled",
		"1 while a migration's backfill or verification is throttled, by the kind of reason; /v1/jobs says more.", []string{"migration", "reason"}, nil)
	descMigrationPaused = prometheus.NewDesc("sluice_migration_paused",
		"1 while a migration is paused, else 0; /v1/jobs says why.", []string{"migration"}, nil)
	descMigrationLaggards = prometheus.NewDesc("sluice_migration_fence_laggards",
		"Source partitions that the fence of a migration waits for; none where the process does not know.", []string{"migration"}, nil)
	descMigrationDifferences = prometheus.NewDesc("sluice_migration_verify_differences",
		"Documents that the last verification of a migration found to differ, by class.", []string{"migration", "class"}, nil)
	descMigrationVerified = prometheus.NewDesc("sluice_migration_verified_timestamp_seconds",
		"When the last verification of a migration began, in Unix time.", []string{"migration"}, nil)
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
		if m.asked.Swap(false) {
			m.look(ctx)
		}
	}
}

// look reads the jobs. What cannot be read is not shown, rather than shown as it
// was once; why it cannot be is told by what writes to the same cluster.
func (m *jobMetrics) look(ctx context.Context) {
	known, _ := m.jobs.list(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = known
}

// Describe implements prometheus.Collector.
func (m *jobMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descMigrationState, descMigrationProgress, descMigrationDocuments, descMigrationRate, descMigrationItems,
		descMigrationThrottled, descMigrationPaused, descMigrationLaggards, descMigrationDifferences, descMigrationVerified,
	} {
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
		gauge(descMigrationState, 1, s.Name, string(s.State))
		gauge(descMigrationProgress, s.Share(), s.Name)
		gauge(descMigrationDocuments, float64(s.Written), s.Name, "written")
		gauge(descMigrationDocuments, float64(s.Newer), s.Name, "superseded")
		gauge(descMigrationDocuments, float64(s.Failed), s.Name, "failed")
		gauge(descMigrationRate, s.Progress.Rate, s.Name)
		gauge(descMigrationItems, float64(s.Backfill.Count-s.Items), s.Name)
		if class := s.Progress.Class; class != "" {
			gauge(descMigrationThrottled, 1, s.Name, class)
		}
		gauge(descMigrationPaused, oneIf(s.Paused != ""), s.Name)
		if s.Fence.Passed || len(s.Fence.Laggards) > 0 {
			gauge(descMigrationLaggards, float64(len(s.Fence.Laggards)), s.Name)
		}
		if v := s.Verified; v != nil {
			for class, n := range v.Differences() {
				gauge(descMigrationDifferences, float64(n), s.Name, class)
			}
			gauge(descMigrationVerified, float64(v.At.UnixMilli())/1000, s.Name)
		}
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
