package scenarios

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
)

// BenchmarkPage is what a page costs each second, however many look at it, of a
// replica with 1,000 partitions, 10,000 customers and 1,000 held targets: below
// 10 ms it is below a hundredth of a CPU. What it tells is checked once.
func BenchmarkPage(b *testing.B) {
	const partitions, customers, held = 1000, 10_000, 1000
	w := newWorld(b, worldOptions{partitions: partitions})
	w.effect = nil // nothing comes to its end
	w.must(http.MethodPut, "/_cluster/settings", `{"persistent":{"action.auto_create_index":"false"}}`)
	p := w.start(`
documents: {index: "events-${header:target}", customer: "header:customer"}
memory: {held_share: 100%}
`)
	var records []*kgo.Record
	for i := range customers {
		r := record(fmt.Sprint("k", i), i)
		r.Topic, r.Partition = topic, int32(i%partitions)
		r.Headers = []kgo.RecordHeader{{Key: "target", Value: fmt.Append(nil, i%held)}, {Key: "customer", Value: fmt.Append(nil, "c", i)}}
		records = append(records, r)
	}
	w.produceTo(records...)
	tell := func() app.Live { return p.Live().(app.Live) }
	w.await("all to be held", func() error {
		if l := tell(); l.HeldCount != held || l.Partitions != partitions || l.Records.InFlight != customers {
			return fmt.Errorf("%d targets are held, %d partitions, %d records in flight", l.HeldCount, l.Partitions, l.Records.InFlight)
		}
		return nil
	}, p)
	var size int
	for b.Loop() {
		body, err := json.Marshal(tell())
		if err != nil {
			b.Fatal(err)
		}
		size = len(body)
	}
	b.ReportMetric(float64(size), "bytes/page")
	if l := tell(); len(l.Topics) != 1 || l.Topics[0].Partitions != partitions || len(l.Held) != 100 || l.HeldCount != held {
		b.Errorf("the page is told of %+v and %d of %d held targets", l.Topics, len(l.Held), l.HeldCount)
	}
}
