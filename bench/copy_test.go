package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/embedded"
)

// The yardstick copies each document once, into the index of its customer: one
// that leaves some out would be fast.
func TestTheLoopCopiesEverything(t *testing.T) {
	es := embedded.NewElasticsearch(embedded.Config{})
	defer es.Close()
	url, err := es.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const docs = 250
	c := copying{url: url, source: copySource, job: "j1", flavour: "elasticsearch", targets: 3, workers: 4, page: 7}
	var body strings.Builder
	for n := range docs {
		fmt.Fprintf(&body, "{\"index\":{\"_id\":\"c%d/%d\"}}\n{\"n\":%d}\n", n%20, n, n)
	}
	if err := call(t.Context(), http.MethodPut, url+"/"+copySource, `{"settings":{"number_of_shards":3}}`, nil); err != nil {
		t.Fatal(err)
	}
	if err := bulkAll(t.Context(), url+"/"+copySource+"/_bulk", []byte(body.String())); err != nil {
		t.Fatal(err)
	}
	if err := call(t.Context(), http.MethodPost, url+"/"+copySource+"/_refresh", "", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.loop(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for n := range c.targets {
		index := copyTarget(c.job, n)
		for d := range es.Docs(index) {
			seen++
			customer, number, _ := strings.Cut(d.ID, "/")
			if c.target(customer) != index || string(d.Source) != fmt.Sprintf(`{"n":%s}`, number) {
				t.Errorf("%s/%s is %s", index, d.ID, d.Source)
			}
		}
	}
	if seen != docs {
		t.Errorf("%d documents of %d were copied", seen, docs)
	}
}

func TestPercentiles(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(100 - i)
	}
	if got, want := percentilesOf(values), (percentiles{51, 100, 100}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := percentilesOf(nil); got != (percentiles{}) {
		t.Errorf("of nothing: %+v", got)
	}
}
