package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/memory"
)

// environment sets the OTEL_* variables, and no others.
func environment(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

// sheet is a log that tests read.
type sheet struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sheet) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *sheet) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// receiver is a collector.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	headers []http.Header
	metrics map[string]*metricspb.Metric
	of      map[string]string // the resource's attributes
	spans   []*tracepb.Span
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{metrics: map[string]*metricspb.Metric{}, of: map[string]string{}}
	mux := http.NewServeMux()
	take := func(message proto.Message, keep func()) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			r.mu.Lock()
			defer r.mu.Unlock()
			if err == nil {
				err = proto.Unmarshal(body, message)
			}
			if err != nil || req.Header.Get("Content-Type") != "application/x-protobuf" {
				t.Errorf("%s: %v, headers %v", req.URL, err, req.Header)
				return
			}
			r.headers = append(r.headers, req.Header)
			keep()
		}
	}
	metrics, traces := &metricspb.MetricsData{}, &tracepb.TracesData{}
	mux.Handle("POST /v1/metrics", take(metrics, func() {
		for _, of := range metrics.GetResourceMetrics() {
			for _, a := range of.GetResource().GetAttributes() {
				r.of[a.GetKey()] = a.GetValue().GetStringValue()
			}
			for _, s := range of.GetScopeMetrics() {
				for _, m := range s.GetMetrics() {
					r.metrics[m.GetName()] = m
				}
			}
		}
	}))
	mux.Handle("POST /v1/traces", take(traces, func() {
		for _, of := range traces.GetResourceSpans() {
			for _, s := range of.GetScopeSpans() {
				r.spans = append(r.spans, s.GetSpans()...)
			}
		}
	}))
	r.Server = httptest.NewServer(mux)
	t.Cleanup(r.Close)
	return r
}

func pairs(attributes []*commonpb.KeyValue) string {
	var all []string
	for _, a := range attributes {
		value := a.GetValue().GetStringValue()
		if i, ok := a.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			value = fmt.Sprint(i.IntValue)
		}
		all = append(all, a.GetKey()+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// cluster takes bulk requests and fails as it is told to.
type cluster struct {
	mu       sync.Mutex
	requests int
	answer   func(n int, actions int) (*http.Response, error) // n counts from 1
}

func (c *cluster) Perform(req *http.Request) (*http.Response, error) {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	return c.answer(c.requests, indexer.Actions(req))
}

func accepted(actions int) *http.Response {
	items := strings.Repeat(`,{"index":{"status":201,"result":"created","_version":1}}`, actions)
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"took":1,"errors":false,"items":[` + items[1:] + `]}`))}
}

// source counts what is settled.
type source struct{ settled chan int }

func (s source) Settle(_ indexer.Outcome, seqs []uint64)    { s.settled <- len(seqs) }
func (s source) Reject(uint64, *indexer.Rejection)          { s.settled <- 1 }
func (s source) Conflict(uint64, int64, *indexer.Rejection) { s.settled <- 1 }

// write sends documents by an indexer, and waits until all are settled.
func write(t *testing.T, to indexer.Transport, documents int) {
	t.Helper()
	cfg, err := config.Parse([]config.Source{{Name: "test", Data: []byte(`
kafka: {brokers: ["127.0.0.1:1"], group_id: g, topics: [events]}
elasticsearch: {addresses: ["http://127.0.0.1:1"]}
indexer: {flush_documents: 2, retry: {initial: 1ms}}
`)}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := indexer.New(cfg.Indexer, indexer.Options{
		Transport: to, Budget: memory.New(64 << 20), RequestTimeout: time.Minute, CompressionLevel: 1,
		Gate: func() bool { return true }, Reload: func() {}, Unordered: func() bool { return false }, Log: zerolog.Nop(),
	})
	defer x.Close()
	w, s := x.NewWriter(), source{make(chan int, documents)}
	for i := range documents {
		a := &indexer.Action{Action: bulk.Action{Op: bulk.Index, Target: "events", ID: fmt.Append(nil, i), Body: []byte(`{}`)}, Source: s, Seq: uint64(i)}
		if err := w.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	w.Publish()
	defer w.Close()
	for left := documents; left > 0; {
		left -= <-s.settled
	}
}

func TestNothingIsStartedUnlessTheEnvironmentAsks(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for name, variables := range map[string]map[string]string{
		"nothing":     {},
		"none":        {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"disabled":    {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"other names": {"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"},
	} {
		environment(t, variables)
		var log sheet
		x := Start(Options{Metrics: prometheus.NewRegistry(), Version: "1", Instance: "i", Log: zerolog.New(&log)})
		if x != nil {
			t.Errorf("%s: something was started", name)
		}
		next := &cluster{}
		if got := x.Transport(next); got != indexer.Transport(next) {
			t.Errorf("%s: requests take a way round, by %T", name, got)
		}
		x.Close(t.Context())
		if log.String() != "" {
			t.Errorf("%s: the log says %s", name, &log)
		}
	}
}

func TestACollectorHasAllMetricsAndASpanForEachBulk(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r := newReceiver(t)
	defer r.Close()
	environment(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": r.URL + "/", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20t0ken, x-scope = a",
		"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,service.instance.id=mine",
	})
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "records_total", Help: "Records."}, []string{"outcome"})
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "held"})
	untyped := prometheus.NewUntypedFunc(prometheus.UntypedOpts{Name: "untyped"}, func() float64 { return 8 })
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds", Buckets: []float64{1, 2}})
	summary := prometheus.NewSummary(prometheus.SummaryOpts{Name: "pauses", Objectives: map[float64]float64{0.5: 0}})
	registry.MustRegister(counter, gauge, untyped, histogram, summary)
	var log sheet
	x := Start(Options{Metrics: registry, Version: "1.2", Instance: "i", Log: zerolog.New(&log)})
	fate := func(n, actions int) (*http.Response, error) {
		switch n {
		case 1:
			return nil, errors.New("connection reset")
		case 2:
			return &http.Response{StatusCode: 429, Body: io.NopCloser(strings.NewReader(`{}`))}, nil
		case 3:
			return &http.Response{StatusCode: 200, Body: io.NopCloser(iotest.ErrReader(context.DeadlineExceeded))}, nil
		}
		return accepted(actions), nil
	}
	elastic := &cluster{answer: fate}
	write(t, x.Transport(elastic), 8)
	// Counted after the start, and sent at the end.
	counter.WithLabelValues("indexed").Add(5)
	gauge.Set(3)
	for _, v := range []float64{0.5, 1.5, 1.5, 9} {
		histogram.Observe(v)
		summary.Observe(v)
	}
	x.Close(t.Context())
	x.Close(t.Context()) // again

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.headers {
		if h.Get("Authorization") != "Bearer t0ken" || h.Get("X-Scope") != "a" {
			t.Errorf("the headers are %v", h)
		}
	}
	for name, want := range map[string]string{"service.name": "sluice", "service.version": "1.2", "service.instance.id": "mine", "deployment.environment.name": "test"} {
		if got := r.of[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	sum := r.metrics["records_total"].GetSum()
	if len(sum.GetDataPoints()) != 1 || !sum.GetIsMonotonic() || sum.GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
		t.Fatalf("the counter is %v", r.metrics["records_total"])
	}
	if p := sum.GetDataPoints()[0]; p.GetAsDouble() != 5 || pairs(p.GetAttributes()) != "outcome=indexed" || p.GetStartTimeUnixNano() == 0 || p.GetTimeUnixNano() < p.GetStartTimeUnixNano() {
		t.Errorf("the counter's point is %v", p)
	}
	if d := r.metrics["records_total"].GetDescription(); d != "Records." {
		t.Errorf("the counter is described as %q", d)
	}
	for name, want := range map[string]float64{"held": 3, "untyped": 8} {
		if p := r.metrics[name].GetGauge().GetDataPoints(); len(p) != 1 || p[0].GetAsDouble() != want {
			t.Errorf("%s is %v", name, r.metrics[name])
		}
	}
	if p := r.metrics["seconds"].GetHistogram().GetDataPoints(); len(p) != 1 || p[0].GetCount() != 4 || p[0].GetSum() != 12.5 ||
		!slices.Equal(p[0].GetExplicitBounds(), []float64{1, 2}) || !slices.Equal(p[0].GetBucketCounts(), []uint64{1, 2, 1}) {
		t.Errorf("the histogram is %v", r.metrics["seconds"])
	}
	if p := r.metrics["pauses"].GetSummary().GetDataPoints(); len(p) != 1 || p[0].GetCount() != 4 || p[0].GetQuantileValues()[0].GetValue() != 1.5 {
		t.Errorf("the summary is %v", r.metrics["pauses"])
	}

	if len(r.spans) != elastic.requests || elastic.requests < 4 {
		t.Errorf("%d spans of %d requests", len(r.spans), elastic.requests)
	}
	kinds := map[string]int{}
	for _, s := range r.spans {
		if s.GetName() != "bulk" || s.GetKind() != tracepb.Span_SPAN_KIND_CLIENT || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
			t.Errorf("a span is %v", s)
		}
		said := pairs(s.GetAttributes())
		if !strings.Contains(said, "db.operation.batch.size=") || !strings.Contains(said, "db.system.name=elasticsearch") || strings.Contains(said, "http.request.body.size=0") {
			t.Errorf("a span says %s", said)
		}
		kind := "none"
		for _, word := range strings.Fields(said) {
			if is, ok := strings.CutPrefix(word, "error.type="); ok {
				kind = is
			}
		}
		if failed := s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR; failed != (kind != "none") {
			t.Errorf("a span's status is %v, and it says %s", s.GetStatus(), said)
		}
		kinds[kind]++
	}
	if kinds["no_answer"] != 1 || kinds["429"] != 1 || kinds["timeout"] != 1 {
		t.Errorf("requests went wrong like this: %v", kinds)
	}
	if log.String() != "" {
		t.Errorf("the log says %s", &log)
	}
}

// A collector that is not there, refuses, or never answers costs a line in the
// log: records do not wait for it, and neither does the end.
func TestABadCollectorIsAWarning(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "what is "+r.Header.Get("X-Key")+"?", http.StatusUnauthorized)
	}))
	defer refuses.Close()
	asked := make(chan struct{}, 100)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	for name, test := range map[string]struct{ url, says string }{
		"not there": {"http://" + closed.Addr().String(), "connection refused"},
		"refuses":   {refuses.URL, "401"},
		"silent":    {silent.URL, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": test.url + "/?token=c4nary", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=c4nary",
				"OTEL_METRIC_EXPORT_INTERVAL": "1", "OTEL_BSP_SCHEDULE_DELAY": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "2",
				"OTEL_EXPORTER_OTLP_TIMEOUT": "3600000",
			})
			var log sheet
			x := Start(Options{Metrics: prometheus.NewRegistry(), Version: "1", Instance: "i", Log: zerolog.New(&log)})
			write(t, x.Transport(&cluster{answer: func(_, actions int) (*http.Response, error) { return accepted(actions), nil }}), 100)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "silent" { // both are asked, and would be for an hour
				<-asked
				<-asked
				cancel()
			}
			x.Close(ctx)
			for _, want := range []string{"the collector did not take", test.says, `"signal":"metrics"`, `"signal":"traces"`, `"level":"warn"`} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log does not say %s: %s", want, &log)
				}
			}
			if strings.Contains(log.String(), "c4nary") {
				t.Errorf("the log shows a secret: %s", &log)
			}
		})
	}
}

func TestTheEnvironment(t *testing.T) {
	const base = "OTEL_EXPORTER_OTLP_"
	for _, test := range []struct {
		name            string
		variables       map[string]string
		metrics, traces string // the URLs, or what the error says
	}{
		{"a base", map[string]string{base + "ENDPOINT": "http://c:4318/otlp/"}, "http://c:4318/otlp/v1/metrics", "http://c:4318/otlp/v1/traces"},
		{"one signal as it is", map[string]string{base + "METRICS_ENDPOINT": "https://c/in"}, "https://c/in", ""},
		{"one signal elsewhere", map[string]string{base + "ENDPOINT": "http://a", base + "TRACES_ENDPOINT": "http://b/t"}, "http://a/v1/metrics", "http://b/t"},
		{"one signal off", map[string]string{base + "ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "none"}, "http://a/v1/metrics", ""},
		{"the usual port", map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, "", "http://localhost:4318/v1/traces"},
		{"an unknown exporter", map[string]string{base + "ENDPOINT": "http://a", "OTEL_METRICS_EXPORTER": "console"}, "OTEL_METRICS_EXPORTER", "http://a/v1/traces"},
		{"gRPC", map[string]string{base + "ENDPOINT": "http://a", base + "PROTOCOL": "grpc"}, "4318", "4318"},
		{"gRPC for one", map[string]string{base + "ENDPOINT": "http://a", base + "TRACES_PROTOCOL": "grpc"}, "http://a/v1/metrics", base + "TRACES_PROTOCOL"},
		{"no scheme", map[string]string{base + "ENDPOINT": "c4nary:4318"}, base + "ENDPOINT", base + "ENDPOINT"},
		{"no URL", map[string]string{base + "ENDPOINT": "http://c4nary\x7f"}, base + "ENDPOINT", base + "ENDPOINT"},
		{"a user", map[string]string{base + "ENDPOINT": "http://u:c4nary@a"}, base + "HEADERS", base + "HEADERS"},
		{"headers", map[string]string{base + "ENDPOINT": "http://a", base + "HEADERS": "c4nary"}, base + "HEADERS", base + "HEADERS"},
		{"headers in a bad form", map[string]string{base + "ENDPOINT": "http://a", base + "METRICS_HEADERS": "a=c4nary%zz"}, base + "METRICS_HEADERS", "http://a/v1/traces"},
		{"no such authority", map[string]string{base + "ENDPOINT": "http://a", base + "CERTIFICATE": "/no/such.pem"}, "/no/such.pem", "/no/such.pem"},
	} {
		t.Run(test.name, func(t *testing.T) {
			environment(t, test.variables)
			for signal, want := range map[string]string{"metrics": test.metrics, "traces": test.traces} {
				c, err := reach(t.Context(), signal, zerolog.Nop())
				switch {
				case err != nil && (want == "" || strings.HasPrefix(want, "http") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "c4nary")):
					t.Errorf("%s: %v, want %s", signal, err, want)
				case err == nil && c == nil && want != "", c != nil && c.url != want:
					t.Errorf("%s: sent to %+v, want %s", signal, c, want)
				}
			}
		})
	}
}

// The image stays small: gRPC would be a third of the program.
func TestGRPCIsNotLinked(t *testing.T) {
	packages, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/sluicehq/sluice/cmd/sluice").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(packages), "sluice/cmd/sluice/internal/telemetry\n") {
		t.Error("what was listed is not the program")
	}
	if strings.Contains(string(packages), "google.golang.org/grpc") {
		t.Error("gRPC is linked")
	}
}
