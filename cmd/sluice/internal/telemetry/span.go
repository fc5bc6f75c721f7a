package telemetry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluicehq/sluice/indexer"
)

// Transport returns next with a span around each bulk request, from its first
// byte to the last of its answer: next itself where no spans are sent.
func (x *Exporter) Transport(next indexer.Transport) indexer.Transport {
	if x == nil || x.tracer == nil {
		return next
	}
	return traced{next, x.tracer}
}

type traced struct {
	next   indexer.Transport
	tracer trace.Tracer
}

// Perform implements indexer.Transport.
func (t traced) Perform(req *http.Request) (*http.Response, error) {
	actions := indexer.Actions(req)
	if actions == 0 {
		return t.next.Perform(req)
	}
	_, span := t.tracer.Start(req.Context(), "bulk", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("db.system.name", "elasticsearch"), attribute.String("db.operation.name", "bulk"), attribute.Int("db.operation.batch.size", actions),
		attribute.String("http.request.method", req.Method), attribute.Int64("http.request.body.size", req.ContentLength),
	))
	resp, err := t.next.Perform(req)
	if err != nil {
		fail(span, err)
		span.End()
		return resp, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
	if resp.StatusCode >= http.StatusBadRequest {
		span.SetAttributes(attribute.String("error.type", strconv.Itoa(resp.StatusCode)))
		span.SetStatus(codes.Error, "")
	}
	resp.Body = &answer{resp.Body, span}
	return resp, nil
}

// fail says that a request has no whole answer, and of what kind the reason is:
// the log has its words.
func fail(span trace.Span, err error) {
	kind := "no_answer"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		kind = "timeout"
	case errors.Is(err, context.Canceled):
		kind = "canceled"
	}
	span.SetAttributes(attribute.String("error.type", kind))
	span.SetStatus(codes.Error, "")
}

// answer ends the span when the answer was read.
type answer struct {
	io.ReadCloser
	span trace.Span
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		fail(a.span, err)
	}
	return n, err
}

// Close implements io.Closer.
func (a *answer) Close() error {
	defer a.span.End()
	return a.ReadCloser.Close()
}
