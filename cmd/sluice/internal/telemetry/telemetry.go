// Package telemetry sends what Prometheus would read, and a span for each bulk
// request, to an OpenTelemetry collector over OTLP/HTTP. The ordinary OTEL_*
// environment variables say where to; without them nothing is started.
//
// It must never matter to records: what cannot be sent is dropped and logged, a
// queue that is full drops spans, and the end waits for a few seconds at most.
//
// Of the OpenTelemetry SDK it uses the spans alone. The exporters over HTTP link
// all of gRPC, for 9 MB of a program of 22.
package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// scope is whose metrics and spans these are.
	scope = "github.com/sluicehq/sluice"
	// CloseTimeout is how long Close goes on sending what is left.
	CloseTimeout = 5 * time.Second

	defaultInterval = time.Minute      // OTEL_METRIC_EXPORT_INTERVAL
	defaultTimeout  = 10 * time.Second // OTEL_EXPORTER_OTLP_TIMEOUT
)

// Options is what an Exporter works with; all are required.
type Options struct {
	Metrics  prometheus.Gatherer
	Version  string // service.version
	Instance string // service.instance.id, unless OTEL_RESOURCE_ATTRIBUTES says another
	Log      zerolog.Logger
}

// Exporter sends in the background from Start to Close. A nil one is off: it
// does nothing.
type Exporter struct {
	tracer  trace.Tracer // nil: no spans
	traces  *sdktrace.TracerProvider
	metrics *reporter          // nil: no metrics
	giveUp  context.CancelFunc // ends all sending
}

// Start starts what the environment asks for and returns nil where that is
// nothing. What is asked for and cannot be is logged and left out.
func Start(o Options) *Exporter {
	if strings.EqualFold(variable("OTEL_SDK_DISABLED"), "true") {
		return nil
	}
	alive, giveUp := context.WithCancel(context.Background())
	reach := func(signal string) *collector {
		c, err := reach(alive, signal, o.Log)
		if err != nil {
			o.Log.Warn().Err(err).Msg("OpenTelemetry: the environment asks for what cannot be")
		}
		return c
	}
	metrics, traces := reach("metrics"), reach("traces")
	if metrics == nil && traces == nil {
		giveUp()
		return nil
	}
	who, err := resource.New(alive,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", "sluice"), attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Instance),
		),
		resource.WithFromEnv(), // the last one counts
	)
	if err != nil {
		o.Log.Warn().Err(err).Msg("OpenTelemetry: OTEL_RESOURCE_ATTRIBUTES is not understood")
	}
	x := &Exporter{giveUp: giveUp}
	if metrics != nil {
		x.metrics = startReporter(metrics, o.Metrics, who)
	}
	if traces != nil {
		spans, _ := otlptrace.New(alive, traces) // a collector's Start gives no error
		x.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(who))
		x.tracer = x.traces.Tracer(scope)
	}
	return x
}

// Close sends what is left, for CloseTimeout at most, or until ctx ends. Nothing
// runs any more when it returns. Closing again does nothing.
func (x *Exporter) Close(ctx context.Context) {
	if x == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, CloseTimeout)
	defer cancel()
	defer x.giveUp()
	defer context.AfterFunc(ctx, x.giveUp)()
	var both sync.WaitGroup
	if x.metrics != nil {
		both.Go(x.metrics.close)
	}
	if x.traces != nil {
		// Left early, it would still send behind our back: what ends it is that
		// nothing is sent any more. A collector gives no error to report here.
		both.Go(func() { _ = x.traces.Shutdown(context.WithoutCancel(ctx)) })
	}
	both.Wait()
}

// variable is a variable of the environment, without spaces around it.
func variable(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// of is one of the OTEL_EXPORTER_OTLP_ variables: that of a signal, else that of
// all; and which it was.
func of(signal, name string) (value, from string) {
	for _, from := range []string{"OTEL_EXPORTER_OTLP_" + strings.ToUpper(signal) + "_" + name, "OTEL_EXPORTER_OTLP_" + name} {
		if value := variable(from); value != "" {
			return value, from
		}
	}
	return "", ""
}

// address is where the environment wants a signal, metrics or traces, sent; nil:
// nowhere. An error says why it cannot be.
func address(signal string) (*url.URL, error) {
	endpoint, from := of(signal, "ENDPOINT")
	exporter := "OTEL_" + strings.ToUpper(signal) + "_EXPORTER"
	switch value := variable(exporter); value {
	case "none":
		return nil, nil
	case "":
		if endpoint == "" {
			return nil, nil
		}
	case "otlp":
		if endpoint == "" {
			endpoint = "http://localhost:4318"
		}
	default:
		return nil, fmt.Errorf("%s: %q is none of otlp, none", exporter, value)
	}
	switch protocol, from := of(signal, "PROTOCOL"); protocol {
	case "", "http/protobuf":
	default:
		return nil, fmt.Errorf("%s: %q is not http/protobuf, the one that is spoken here; most collectors have it on port 4318", from, protocol)
	}
	u, err := url.Parse(endpoint)
	// What cannot be read, or holds a user, is not quoted: it may be a secret.
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%s is not an address such as http://localhost:4318", from)
	case u.User != nil:
		return nil, fmt.Errorf("%s holds a user: put credentials into OTEL_EXPORTER_OTLP_HEADERS", from)
	}
	if !strings.Contains(from, strings.ToUpper(signal)) { // the address of all is a base
		u = u.JoinPath("v1", signal)
	}
	return u, nil
}

// milliseconds reads a duration as OpenTelemetry writes it; what is not one is
// as if it were not there.
func milliseconds(value string, otherwise time.Duration) time.Duration {
	if n, err := strconv.Atoi(value); err == nil && n > 0 {
		return time.Duration(n) * time.Millisecond
	}
	return otherwise
}
