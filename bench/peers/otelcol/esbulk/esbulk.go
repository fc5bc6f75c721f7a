// Package esbulk stands for the Elasticsearch exporter, which could not be had:
// its module is not on the module proxy at a version that fits the receiver's.
// It is made of the same parts, the collector's own queue with its batches in
// front of go-docappender's bulk indexer, and does less for each document: none
// of the mapping modes' work.
package esbulk

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	docappender "github.com/elastic/go-docappender/v2"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
)

// Config is the exporter's section.
type Config struct {
	Endpoint   string `mapstructure:"endpoint"`
	Index      string `mapstructure:"index"`
	Gzip       int    `mapstructure:"gzip"`        // level, 0 for none
	FlushBytes int    `mapstructure:"flush_bytes"` // of a bulk request
	// Mode is what becomes a document: "bytes", a record's body as it is (the
	// receiver's encoding raw), or "bodymap", its body as an object (json).
	Mode  string                                                   `mapstructure:"mode"`
	Queue configoptional.Optional[exporterhelper.QueueBatchConfig] `mapstructure:"sending_queue"`
}

// NewFactory returns the exporter's factory, with the defaults of the exporter
// that it stands for.
func NewFactory() exporter.Factory {
	return exporter.NewFactory(component.MustNewType("esbulk"),
		func() component.Config {
			return &Config{Gzip: 1, FlushBytes: 5_000_000, Mode: "bodymap", Queue: configoptional.Default(exporterhelper.NewDefaultQueueConfig())}
		},
		exporter.WithLogs(newLogs, component.StabilityLevelDevelopment))
}

type sender struct {
	cfg     *Config
	client  *elastictransport.Client
	buffers sync.Pool
}

func newLogs(ctx context.Context, settings exporter.Settings, c component.Config) (exporter.Logs, error) {
	cfg := c.(*Config)
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	client, err := elastictransport.New(elastictransport.Config{
		URLs:      []*url.URL{u},
		Transport: &http.Transport{MaxIdleConnsPerHost: 32},
	})
	if err != nil {
		return nil, err
	}
	s := &sender{cfg: cfg, client: client}
	s.buffers.New = func() any { b := make(document, 0, 2048); return &b }
	return exporterhelper.NewLogs(ctx, settings, cfg, s.push,
		exporterhelper.WithCapabilities(consumer.Capabilities{MutatesData: false}),
		exporterhelper.WithTimeout(exporterhelper.TimeoutConfig{Timeout: 90 * time.Second}),
		exporterhelper.WithQueue(cfg.Queue),
	)
}

type document []byte

// WriteTo writes the document.
func (d *document) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(*d)
	return int64(n), err
}

// push sends one batch of the queue.
func (s *sender) push(ctx context.Context, logs plog.Logs) error {
	indexer, err := docappender.NewBulkIndexer(docappender.BulkIndexerConfig{
		Client: s.client, CompressionLevel: s.cfg.Gzip, MaxDocumentRetries: 2,
	})
	if err != nil {
		return err
	}
	buffer := s.buffers.Get().(*document)
	defer s.buffers.Put(buffer)
	for _, resource := range logs.ResourceLogs().All() {
		for _, scope := range resource.ScopeLogs().All() {
			for _, record := range scope.LogRecords().All() {
				if err := s.encode(buffer, record.Body()); err != nil {
					return err
				}
				if err := indexer.Add(docappender.BulkIndexerItem{Index: s.cfg.Index, Body: buffer}); err != nil {
					return err
				}
				if indexer.UncompressedLen() >= s.cfg.FlushBytes {
					if err := flush(ctx, indexer); err != nil {
						return err
					}
				}
			}
		}
	}
	return flush(ctx, indexer)
}

func (s *sender) encode(to *document, body pcommon.Value) error {
	switch {
	case s.cfg.Mode == "bytes" && body.Type() == pcommon.ValueTypeBytes:
		*to = append((*to)[:0], body.Bytes().AsRaw()...)
	case s.cfg.Mode == "bodymap" && body.Type() == pcommon.ValueTypeMap:
		*to = appendMap((*to)[:0], body.Map())
	default:
		return errors.New("the mode " + s.cfg.Mode + " does not fit a body of type " + body.Type().String() + ": set the receiver's encoding")
	}
	return nil
}

// flush sends what the indexer holds, and again what is to be tried again.
func flush(ctx context.Context, indexer *docappender.BulkIndexer) error {
	for wait := 200 * time.Millisecond; indexer.Items() > 0; wait *= 2 {
		result, err := indexer.Flush(ctx)
		if err != nil {
			return err
		}
		for _, failed := range result.FailedDocs {
			log.Printf("a document was refused: %d %s", failed.Status, failed.Error.Type)
		}
		if indexer.Items() == 0 {
			break
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func appendMap(b []byte, m pcommon.Map) []byte {
	b = append(b, '{')
	first := true
	for k, v := range m.All() {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, k)
		b = append(b, ':')
		b = appendValue(b, v)
	}
	return append(b, '}')
}

func appendValue(b []byte, v pcommon.Value) []byte {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return appendString(b, v.Str())
	case pcommon.ValueTypeInt:
		return strconv.AppendInt(b, v.Int(), 10)
	case pcommon.ValueTypeDouble:
		f := v.Double()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return append(b, "null"...)
		}
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	case pcommon.ValueTypeBool:
		return strconv.AppendBool(b, v.Bool())
	case pcommon.ValueTypeMap:
		return appendMap(b, v.Map())
	case pcommon.ValueTypeSlice:
		b = append(b, '[')
		s := v.Slice()
		for i := 0; i < s.Len(); i++ {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, s.At(i))
		}
		return append(b, ']')
	case pcommon.ValueTypeBytes:
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, v.Bytes().AsRaw())
		return append(b, '"')
	}
	return append(b, "null"...)
}

func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf || (c >= 0x20 && c != '"' && c != '\\') {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
