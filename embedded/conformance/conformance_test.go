package conformance_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/embedded/conformance"
)

const everything = conformance.Exclusive | conformance.Waiting | conformance.DropProcessor | conformance.DataStreams | conformance.SmallContentLength

// fake returns a fresh embedded server for each case.
func fake(flavour embedded.Flavour) func(t *testing.T) conformance.Server {
	return func(t *testing.T) conformance.Server {
		es := embedded.NewElasticsearch(embedded.Config{Flavour: flavour, MaxContentLength: 1 << 20})
		t.Cleanup(es.Close)
		return conformance.Server{
			URL: "http://embedded", Transport: es.Transport(), OpenSearch: flavour == embedded.FlavourOpenSearch, Has: everything,
			Restart: func(context.Context) error {
				es.Restart()
				return nil
			},
		}
	}
}

func TestElasticsearch(t *testing.T) {
	conformance.Run(t, conformance.Options{Server: fake(embedded.FlavourElasticsearch), Wrap: synctest.Test})
}

func TestOpenSearch(t *testing.T) {
	conformance.Run(t, conformance.Options{Server: fake(embedded.FlavourOpenSearch), Wrap: synctest.Test})
}

// TestSockets runs the cases over a real connection.
func TestSockets(t *testing.T) {
	es := embedded.NewElasticsearch(embedded.Config{MaxContentLength: 1 << 20})
	t.Cleanup(es.Close)
	url, err := es.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conformance.Run(t, conformance.Options{Server: func(*testing.T) conformance.Server {
		return conformance.Server{URL: url, Has: everything &^ conformance.Waiting}
	}})
}

// TestReal runs the cases against the server at CONFORMANCE_URL.
func TestReal(t *testing.T) {
	url := os.Getenv("CONFORMANCE_URL")
	if url == "" {
		t.Skip("CONFORMANCE_URL is not set")
	}
	conformance.Run(t, conformance.Options{Server: func(*testing.T) conformance.Server {
		return conformance.Server{
			URL: url, OpenSearch: os.Getenv("CONFORMANCE_OPENSEARCH") != "",
			Has: conformance.Exclusive | conformance.Waiting | conformance.DropProcessor | conformance.DataStreams,
		}
	}})
}
