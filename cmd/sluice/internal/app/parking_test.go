package app

import (
	"errors"
	"net/http"
	"testing"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
)

// Where nothing is to be parked any more, a control index that is not there holds
// no state; one that cannot be read is no answer.
func TestParkedStoreAbsent(t *testing.T) {
	es := embedded.NewElasticsearch(embedded.Config{})
	url, err := es.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(es.Close)
	client, err := elastic.New(elastic.Config{Addresses: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	s := &parkedStore{Control: client.Control(".sluice-control")}
	var doc any
	if _, _, err := s.Get(t.Context(), "parked:g:t:0", &doc); !errors.Is(err, elastic.ErrNotFound) {
		t.Error(err)
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		es.Inject(embedded.Rule{Next: 1, Fault: embedded.Fault{Status: status}})
		if _, _, err := s.Get(t.Context(), "parked:g:t:0", &doc); err == nil || errors.Is(err, elastic.ErrNotFound) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}
