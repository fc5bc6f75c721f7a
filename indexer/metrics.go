package indexer

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// metrics are the counters that events feed; gauges are read from the indexer
// when it is scraped.
type metrics struct {
	requests   *prometheus.CounterVec
	seconds    prometheus.Histogram
	bytes      prometheus.Counter
	documents  *prometheus.CounterVec
	flushes    *prometheus.CounterVec
	retries    prometheus.Counter
	created    prometheus.Counter
	destroyed  prometheus.Counter
	backingOff prometheus.Gauge

	labels map[string]bool // of documents; Indexer.mu guards it
}

func newMetrics() *metrics {
	return &metrics{
		labels: make(map[string]bool),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_bulk_requests_total",
			Help: "Bulk requests by HTTP status; 0: no answer.",
		}, []string{"status"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_bulk_request_seconds",
			Help:    "Time from the start of a bulk request to the end of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_bulk_bytes_total",
			Help: "Bytes of bulk requests before compression, repeats included.",
		}),
		documents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_documents_total",
			Help: "Actions by target and how they ended: indexed, deleted, stale (it, or something newer, is stored already), ignored, rejected, or conflict (a newer version is stored). A record may have several. 200 targets at a time have series of their own, the others, and those that have been quiet for minutes, are _other.",
		}, []string{"target", "outcome"}),
		flushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_bulk_flushes_total",
			Help: "Batches by what made them due: bytes, documents, interval, dry (the rest of a burst), again (tries that nothing new came to go with), memory, drain, probe, alone.",
		}, []string{"reason"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_retries_total",
			Help: "Actions sent again, each time.",
		}),
		created: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_indexers_created_total",
			Help: "Indexers started.",
		}),
		destroyed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_indexers_destroyed_total",
			Help: "Indexers retired.",
		}),
		backingOff: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_targets_backing_off",
			Help: "Targets that are held or throttled.",
		}),
	}
}

func (m *metrics) request(res *result, bytes int64) {
	m.requests.WithLabelValues(strconv.Itoa(res.status)).Inc()
	m.seconds.Observe(res.took.Seconds())
	m.bytes.Add(float64(bytes))
}

// ended counts actions that are not tried again.
func (m *metrics) ended(t *target, outcome string, n int) {
	if n > 0 {
		m.documents.WithLabelValues(t.label, outcome).Add(float64(n))
	}
}

const (
	// mostLabels bounds the targets that have series of their own.
	mostLabels = 200
	// otherTargets is the label of the rest. No index can be named like this.
	otherTargets = "_other"
)

// label returns the label of a new target. Indexer.mu must be held.
func (m *metrics) label(name string) string {
	if len(m.labels) >= mostLabels {
		return otherTargets
	}
	m.labels[name] = true
	return name
}

// retire makes room for another label: what was counted under this one is
// counted as others' from now on. Indexer.mu must be held.
func (m *metrics) retire(label string) {
	if label == otherTargets {
		return
	}
	delete(m.labels, label)
	for _, outcome := range [...]string{"indexed", "deleted", "stale", "ignored", "rejected", "conflict"} {
		c := m.documents.WithLabelValues(label, outcome)
		var value dto.Metric
		if err := c.Write(&value); err == nil && value.Counter.GetValue() > 0 {
			m.documents.WithLabelValues(otherTargets, outcome).Add(value.Counter.GetValue())
		}
	}
	m.documents.DeletePartialMatch(prometheus.Labels{"target": label})
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.requests, m.seconds, m.bytes, m.documents, m.flushes, m.retries, m.created, m.destroyed, m.backingOff,
	}
}

var (
	activeDesc = prometheus.NewDesc("sluice_indexers_active",
		"Indexers that fill, compress and read answers.", nil, nil)
	limitDesc = prometheus.NewDesc("sluice_adaptive_concurrency_limit",
		"Bulk requests that may be in flight.", nil, nil)
	inFlightDesc = prometheus.NewDesc("sluice_adaptive_concurrency_in_flight",
		"Bulk requests in flight, those that wait to be sent again included.", nil, nil)
)

// Describe implements prometheus.Collector.
func (x *Indexer) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range x.metrics.all() {
		c.Describe(ch)
	}
	ch <- activeDesc
	ch <- limitDesc
	ch <- inFlightDesc
}

// Collect implements prometheus.Collector.
func (x *Indexer) Collect(ch chan<- prometheus.Metric) {
	for _, c := range x.metrics.all() {
		c.Collect(ch)
	}
	x.mu.Lock()
	active, limit, inFlight := x.workers, x.limiter.current(), x.inFlight
	x.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(active))
	ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(limit))
	ch <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(inFlight))
}
