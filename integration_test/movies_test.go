//go:build integration

package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/sluicehq/sluice/integration_test/feed"
)

// film is what decides whether a mapping can take a film.
type film struct {
	Title json.RawMessage `json:"Title"`
	Gross *int64          `json:"Worldwide Gross"`
}

func (f *film) numericTitle() bool { return f.Title[0] >= '0' && f.Title[0] <= '9' }

// TestImpossibleFilmsBecomeDeadLetters maps an index so that some films can
// never be stored. Exactly those go to the dead-letter topic, byte for byte;
// all others are stored, and every partition moves on.
func TestImpossibleFilmsBecomeDeadLetters(t *testing.T) {
	file := cached(t, "movies.json")
	kafka, elasticsearch := startKafka(t, nil), startElasticsearch(t, elasticsearchOptions{})
	for _, test := range []struct {
		name       string
		properties string
		maxShare   string
		impossible func(*film) bool
		count      int
	}{
		{
			// Nine titles are numbers, which this type of field refuses; one
			// film made more money than an integer holds.
			"few", `{"Title":{"type":"completion"},"Worldwide Gross":{"type":"integer"}}`, "5%",
			func(f *film) bool { return f.numericTitle() || f.Gross != nil && *f.Gross > math.MaxInt32 }, 10,
		},
		{
			// Only numbers pass, and the one film without a title. The share of
			// rejections that would hold the target is switched off.
			"most", `{"Title":{"type":"long","coerce":false}}`, "100%",
			func(f *film) bool { return !f.numericTitle() && string(f.Title) != "null" }, 3191,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			topic, letters, index, group := unique(t, "movies"), unique(t, "letters"), unique(t, "movies"), unique(t, "sluice")
			kafka.CreateTopic(t, topic, 6)
			kafka.CreateTopic(t, letters, 2)
			elasticsearch.CreateIndex(t, index, `{"dynamic":false,"properties":`+test.properties+`}`)

			spec := feed.Spec{Topic: topic, Key: []string{"/Title", "/Release Date"}, Customer: "/MPAA Rating"}
			stored, dead := map[string]string{}, map[string]string{}
			for record, err := range spec.Records(bytes.NewReader(file)) {
				if err != nil {
					t.Fatal(err)
				}
				var f film
				if err := json.Unmarshal(record.Value, &f); err != nil {
					t.Fatal(err)
				}
				if test.impossible(&f) {
					dead[string(record.Key)] = string(record.Value)
				} else {
					stored[string(record.Key)] = string(record.Value)
				}
			}
			if len(dead) != test.count || len(dead)+len(stored) != 3201 {
				t.Fatalf("%d films are impossible and %d are not: want %d of 3,201", len(dead), len(stored), test.count)
			}
			if n, err := feed.Produce(t.Context(), kafka.Client, spec.Records(bytes.NewReader(file))); err != nil {
				t.Fatalf("%d films were produced: %v", n, err)
			}

			sluice := startSluice(t, fmt.Sprintf(`
kafka:
  brokers: [%q]
  group_id: %s
  topics: [%s]
elasticsearch: {addresses: [%q]}
documents: {index: %s}
dead_letter: {topic: %s, max_share: %s}
`, kafka.address, group, topic, elasticsearch.URL(), index, letters, test.maxShare))
			kafka.AwaitNoLag(t, time.Minute, group, topic, sluice.Check)
			if code := sluice.End(t, syscall.SIGTERM); code != 0 {
				t.Errorf("SIGTERM ended sluice with exit code %d", code)
			}
			assertLedger(t, sluice)
			if n := sluice.Metrics().Sum("sluice_records_total", `outcome="dead_lettered"`); n != float64(len(dead)) {
				t.Errorf("sluice says that %.0f records were dead-lettered, not %d", n, len(dead))
			}

			compare(t, elasticsearch.Documents(t, index), stored)
			got := map[string]string{}
			for _, letter := range kafka.ReadAll(t, letters) {
				if _, twice := got[string(letter.Key)]; twice {
					t.Errorf("two dead letters for %q", letter.Key)
				}
				got[string(letter.Key)] = string(letter.Value)
				headers := map[string]string{}
				for _, header := range letter.Headers {
					headers[header.Key] = string(header.Value)
				}
				if headers["sluice.topic"] != topic || headers["sluice.status"] != "400" || headers["sluice.type"] == "" || headers["sluice.offset"] == "" {
					t.Errorf("the letter for %q does not say where it comes from and why: %v", letter.Key, headers)
				}
				if _, kept := headers[feed.CustomerHeader]; !kept {
					t.Errorf("the letter for %q has lost the header %s", letter.Key, feed.CustomerHeader)
				}
			}
			compare(t, got, dead)
		})
	}
}
