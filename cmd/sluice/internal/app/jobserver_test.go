package app

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// A runner of a migration shows its job, as a replica does.
func TestServeJobs(t *testing.T) {
	es := embedded.NewElasticsearch(embedded.Config{})
	t.Cleanup(es.Close)
	client, err := elastic.New(elastic.Config{Addresses: []string{"http://es:9200"}}, elastic.WithRoundTripper(es.Transport()))
	if err != nil {
		t.Fatal(err)
	}
	control := client.Control(".sluice-control")
	if err := control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	job := migrate.Job{Schema: 1, Name: "j7", Stream: "events", State: migrate.Created, Source: "events"}
	if err := control.Create(t.Context(), "job:j7", job); err != nil {
		t.Fatal(err)
	}
	if err := client.Refresh(t.Context(), ".sluice-control"); err != nil { // jobs are listed by a search
		t.Fatal(err)
	}
	manager := migrate.New(migrate.Config{Cluster: client, Control: control, Tables: partition.NewStore(control), Stream: "events"})
	url, stop, err := ServeJobs(admin.Config{Address: "127.0.0.1:0"}, manager, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	get := func(path string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", path, res.Status, err)
		}
		return string(text)
	}
	if text := get("/v1/jobs/j7"); !strings.Contains(text, `"state":"CREATED"`) {
		t.Errorf("/v1/jobs/j7: %s", text)
	}
	tick := time.NewTicker(10 * time.Millisecond) // the first look is on its way
	defer tick.Stop()
	for !strings.Contains(get("/metrics"), `sluice_migration_state{migration="j7",state="CREATED"} 1`) {
		<-tick.C
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		get(path)
	}
}
