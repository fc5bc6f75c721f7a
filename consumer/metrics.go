package consumer

import (
	"maps"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

var byPartition = []string{"topic", "partition"}

// The metrics. Counters stay for the life of the process; gauges of partitions
// that are not held any more disappear.
var (
	descRecords = prometheus.NewDesc("sluice_records_total",
		"Records by how they ended. Consumed is the sum of these and of those in flight.", []string{"topic", "partition", "outcome"}, nil)
	descConsumed = prometheus.NewDesc("sluice_records_consumed_total",
		"Records taken from Kafka.", byPartition, nil)
	descInFlight = prometheus.NewDesc("sluice_records_in_flight",
		"Records taken from Kafka whose end is open.", byPartition, nil)
	descQueueBytes = prometheus.NewDesc("sluice_queue_bytes",
		"Bytes of records that wait to be encoded.", byPartition, nil)
	descPaused = prometheus.NewDesc("sluice_partitions_paused",
		"Source partitions that are held and not fetched, for whatever reason.", nil, nil)
	descHalted = prometheus.NewDesc("sluice_partition_halted",
		"1 for a source partition that waits for an operator, by why.", []string{"topic", "partition", "kind"}, nil)
	descHaltedAt = prometheus.NewDesc("sluice_partition_halted_offset",
		"The offset that a halted source partition cannot pass; -1: none in particular.", byPartition, nil)
	descLag = prometheus.NewDesc("sluice_consumer_lag",
		"Offsets between the commit, or the log's start if that is higher, and the log's end.", byPartition, nil)
	descLagSeconds = prometheus.NewDesc("sluice_consumer_lag_seconds",
		"Age of the oldest record that is not handled, by its timestamp.", byPartition, nil)
	descCommitted = prometheus.NewDesc("sluice_committed_offset",
		"The committed offset.", byPartition, nil)
	descNearStart = prometheus.NewDesc("sluice_log_start_near",
		"1 for a source partition whose records that are not committed are within an hour of the log's start.", byPartition, nil)
	descParked = prometheus.NewDesc("sluice_parked_targets",
		"Targets whose records are parked, by source partition.", byPartition, nil)
	descRebalances = prometheus.NewDesc("sluice_rebalances_total",
		"Rebalances of the group that this member took part in.", nil, nil)
	descCommitFailures = prometheus.NewDesc("sluice_commit_failures_total",
		"Commits that failed, by what they call for: retriable, rejoin, denied, fenced, failed.", []string{"class"}, nil)
	descDataLoss = prometheus.NewDesc("sluice_data_loss_total",
		"Times that Kafka no longer had what was to be read next.", nil, nil)
	descBugs = prometheus.NewDesc("sluice_internal_errors_total",
		"Things that must not happen.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Consumer) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descRecords, descConsumed, descInFlight, descQueueBytes, descPaused, descHalted, descHaltedAt, descLag,
		descLagSeconds, descCommitted, descNearStart, descParked, descRebalances, descCommitFailures, descDataLoss, descBugs,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. The counts of one partition are
// those of one moment.
func (c *Consumer) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.mu.Lock()
	ledgers := maps.Clone(c.ledgers)
	c.mu.Unlock()
	now := c.now()
	for _, l := range ledgers {
		topic, partition := l.topic, strconv.Itoa(int(l.partition))
		l.mu.Lock()
		consumed, counts, inFlight, a := l.consumed, l.counts, l.inFlight(), l.cur
		var bytes, committed, lag int64
		var behind float64
		var halt *Halt
		var near bool
		if a != nil {
			near = a.nearStart
			bytes, committed, halt = a.bytes, a.committed, a.halt
			n, age := a.lag(now)
			lag, behind = n, age.Seconds()
		}
		l.mu.Unlock()
		counter(descConsumed, consumed, topic, partition)
		for o, n := range counts {
			counter(descRecords, n, topic, partition, outcomeNames[o])
		}
		if a == nil {
			continue
		}
		gauge(descInFlight, float64(inFlight), topic, partition)
		gauge(descQueueBytes, float64(bytes), topic, partition)
		if lag >= 0 {
			gauge(descLag, float64(lag), topic, partition)
			gauge(descLagSeconds, behind, topic, partition)
		}
		if committed >= 0 {
			gauge(descCommitted, float64(committed), topic, partition)
		}
		if near {
			gauge(descNearStart, 1, topic, partition)
		}
		if a.parking != nil {
			gauge(descParked, float64(a.parking.count()), topic, partition)
		}
		if halt != nil {
			gauge(descHalted, 1, topic, partition, halt.Kind)
			gauge(descHaltedAt, float64(halt.Offset), topic, partition)
		}
	}
	paused := 0
	if c.running.Load() {
		paused = c.pauses.count()
	}
	gauge(descPaused, float64(paused))
	counter(descRebalances, c.counters.rebalances.Load())
	counter(descDataLoss, c.counters.dataLoss.Load())
	counter(descBugs, c.counters.bugs.Load())
	c.commits.mu.Lock()
	failures := maps.Clone(c.commits.failures)
	c.commits.mu.Unlock()
	for _, class := range []commitClass{commitRetry, commitRejoin, commitRights, commitFenced, commitOther} {
		counter(descCommitFailures, failures[class], string(class))
	}
}
