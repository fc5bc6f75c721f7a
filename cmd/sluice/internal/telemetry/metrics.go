package telemetry

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
)

// reporter sends all metrics now and then.
type reporter struct {
	to      *collector
	from    prometheus.Gatherer
	of      *resourcepb.Resource
	started time.Time
	end     func() // ends the loop
	running sync.WaitGroup
}

// startReporter starts a reporter; close ends it.
func startReporter(to *collector, from prometheus.Gatherer, of *resource.Resource) *reporter {
	r := &reporter{to: to, from: from, started: time.Now(), of: &resourcepb.Resource{}}
	for _, a := range of.Attributes() {
		r.of.Attributes = append(r.of.Attributes, text(string(a.Key), a.Value.String()))
	}
	ended := make(chan struct{})
	r.end = sync.OnceFunc(func() { close(ended) })
	r.running.Go(func() {
		ticker := time.NewTicker(milliseconds(variable("OTEL_METRIC_EXPORT_INTERVAL"), defaultInterval))
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				r.report()
			case <-ended:
				r.report() // what was counted to the end
				return
			case <-to.alive.Done():
				return
			}
		}
	})
	return r
}

// close sends the metrics once more, while the collector's life lasts, and waits
// until nothing runs.
func (r *reporter) close() {
	r.end()
	r.running.Wait()
	r.to.client.CloseIdleConnections()
}

func (r *reporter) report() {
	families, err := r.from.Gather()
	if err != nil { // the others are there
		r.to.log.Warn().Err(err).Msg("OpenTelemetry: some metrics cannot be read")
	}
	now := time.Now()
	metrics := make([]*metricspb.Metric, 0, len(families))
	for _, f := range families {
		metrics = append(metrics, convert(f, r.started, now))
	}
	r.to.send(&metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource:     r.of,
		ScopeMetrics: []*metricspb.ScopeMetrics{{Scope: &commonpb.InstrumentationScope{Name: scope}, Metrics: metrics}},
	}}})
}

// convert makes of a family what OTLP has for it, under the same name: of a
// counter a sum that only grows. All is counted since start.
func convert(f *dto.MetricFamily, start, now time.Time) *metricspb.Metric {
	m := &metricspb.Metric{Name: f.GetName(), Description: f.GetHelp()}
	since, at := uint64(start.UnixNano()), uint64(now.UnixNano())
	numbers := func(since uint64, value func(*dto.Metric) float64) (points []*metricspb.NumberDataPoint) {
		for _, one := range f.GetMetric() {
			points = append(points, &metricspb.NumberDataPoint{
				Attributes: labels(one), StartTimeUnixNano: since, TimeUnixNano: at,
				Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: value(one)},
			})
		}
		return points
	}
	const cumulative = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		m.Data = &metricspb.Metric_Sum{Sum: &metricspb.Sum{
			AggregationTemporality: cumulative, IsMonotonic: true,
			DataPoints: numbers(since, func(one *dto.Metric) float64 { return one.GetCounter().GetValue() }),
		}}
	case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM:
		h := &metricspb.Histogram{AggregationTemporality: cumulative}
		for _, one := range f.GetMetric() {
			p := histogram(one.GetHistogram())
			p.Attributes, p.StartTimeUnixNano, p.TimeUnixNano = labels(one), since, at
			h.DataPoints = append(h.DataPoints, p)
		}
		m.Data = &metricspb.Metric_Histogram{Histogram: h}
	case dto.MetricType_SUMMARY:
		s := &metricspb.Summary{}
		for _, one := range f.GetMetric() {
			from := one.GetSummary()
			p := &metricspb.SummaryDataPoint{
				Attributes: labels(one), StartTimeUnixNano: since, TimeUnixNano: at, Count: from.GetSampleCount(), Sum: from.GetSampleSum(),
			}
			for _, q := range from.GetQuantile() {
				p.QuantileValues = append(p.QuantileValues, &metricspb.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()})
			}
			s.DataPoints = append(s.DataPoints, p)
		}
		m.Data = &metricspb.Metric_Summary{Summary: s}
	default:
		m.Data = &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: numbers(0, func(one *dto.Metric) float64 {
			return one.GetGauge().GetValue() + one.GetUntyped().GetValue() // one of them is there
		})}}
	}
	return m
}

// histogram is a histogram's point. Prometheus counts in a bucket what lies in
// the lower ones too, and may leave out the last; OTLP counts each by itself.
func histogram(from *dto.Histogram) *metricspb.HistogramDataPoint {
	p := &metricspb.HistogramDataPoint{Count: from.GetSampleCount(), Sum: from.SampleSum}
	below := uint64(0)
	for _, b := range from.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			break // it has no bound: what is left is in it
		}
		p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
		p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	p.BucketCounts = append(p.BucketCounts, p.Count-below)
	return p
}

func labels(m *dto.Metric) []*commonpb.KeyValue {
	attributes := make([]*commonpb.KeyValue, 0, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		attributes = append(attributes, text(l.GetName(), l.GetValue()))
	}
	return attributes
}

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}
