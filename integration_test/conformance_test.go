//go:build integration

package integration_test

import (
	"context"
	"testing"

	"github.com/sluicehq/sluice/embedded/conformance"
)

// TestConformance holds the real servers to the cases that the embedded one
// passes: a fake that answers otherwise would make every other test worthless.
func TestConformance(t *testing.T) {
	for _, flavour := range []struct {
		name       string
		openSearch bool
	}{{"Elasticsearch", false}, {"OpenSearch", true}} {
		t.Run(flavour.name, func(t *testing.T) {
			server := startElasticsearch(t, elasticsearchOptions{
				OpenSearch: flavour.openSearch,
				Settings:   map[string]string{"http.max_content_length": "1mb"},
			})
			conformance.Run(t, conformance.Options{Server: func(*testing.T) conformance.Server {
				return conformance.Server{
					URL:        server.URL(),
					OpenSearch: flavour.openSearch,
					Has: conformance.Exclusive | conformance.Waiting | conformance.DropProcessor |
						conformance.DataStreams | conformance.SmallContentLength,
					Restart: func(ctx context.Context) error {
						if err := server.kill(ctx); err != nil {
							return err
						}
						return server.container.Start(ctx)
					},
				}
			}})
		})
	}
}
