package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/rs/zerolog"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluicehq/sluice/credentials"
)

// collector is where one signal is sent. What fails is logged and dropped, not
// tried again: the next metrics hold the lost ones.
type collector struct {
	alive   context.Context //nolint:containedctx // when it ends nothing is sent any more, whoever waits
	signal  string
	url     string
	headers http.Header
	client  *http.Client
	log     zerolog.Logger
}

// reach reads from the environment how a signal is sent; nil: it is not. Nothing
// is sent yet.
func reach(alive context.Context, signal string, log zerolog.Logger) (*collector, error) {
	u, err := address(signal)
	if u == nil || err != nil {
		return nil, err
	}
	c := &collector{alive: alive, signal: signal, url: u.String(), headers: http.Header{}, log: log}
	headers, from := of(signal, "HEADERS")
	for pair := range strings.SplitSeq(headers, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || err != nil || name == "" {
			return nil, fmt.Errorf("%s is not of the form name=value,name=value, with values as in a URL", from)
		}
		c.headers.Set(name, value)
	}
	c.headers.Set("Content-Type", "application/x-protobuf")
	ca, _ := of(signal, "CERTIFICATE")
	cert, _ := of(signal, "CLIENT_CERTIFICATE")
	key, _ := of(signal, "CLIENT_KEY")
	dialer, err := credentials.TLS{CAFile: ca, CertFile: cert, KeyFile: key}.Dialer()
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE or _CLIENT_KEY: %w", err)
	}
	timeout, _ := of(signal, "TIMEOUT")
	c.client = &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DialTLSContext: dialer.DialContext},
		Timeout:   milliseconds(timeout, defaultTimeout),
		// The headers are for this server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// send sends one message.
func (c *collector) send(m proto.Message) {
	if err := c.post(m); err != nil {
		c.log.Warn().Str("signal", c.signal).Err(err).Msg("OpenTelemetry: the collector did not take what was sent")
	}
}

func (c *collector) post(m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(c.alive, http.MethodPost, c.url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header = c.headers.Clone()
	resp, err := c.client.Do(req)
	if err != nil {
		// Without the address, which may hold a token. The environment has it.
		if outer := (*url.Error)(nil); errors.As(err, &outer) {
			err = outer.Err
		}
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		// Its own words could quote the headers.
		return fmt.Errorf("it answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}

// Start implements otlptrace.Client.
func (c *collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. The message is on the wire what the
// service's own request is, whose package would link gRPC.
func (c *collector) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	c.send(&tracepb.TracesData{ResourceSpans: spans})
	return nil
}
