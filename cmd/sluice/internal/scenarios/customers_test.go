package scenarios

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
)

// Of many customers the one that sends half of all bytes stands first in
// /v1/status and on the page, and none of them is the label of a metric.
func TestTheNoisyCustomerIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const noisy = "acme <script>"
	var all []*kgo.Record
	for i := range 2000 {
		customer, filler := fmt.Sprintf("c%d", i), ""
		if i%10 == 0 {
			customer, filler = noisy, strings.Repeat("x", 900)
		}
		r := record(fmt.Sprintf("k%d", i), i)
		r.Value = fmt.Appendf(nil, `{"n":%d,"f":%q}`, i, filler)
		r.Headers = []kgo.RecordHeader{{Key: "customer", Value: []byte(customer)}}
		all = append(all, r)
	}
	w.produce(all...)
	p := w.begin("documents: {customer: 'header:customer'}")
	w.awaitDone(p)
	w.await("the customer", func() error {
		status, live := p.App.Status().(app.Status).Customers, p.Live().(app.Live).Customers
		if len(status) == 0 || status[0].Customer != noisy || status[0].Share < 0.5 || status[0].BytesPerSecond <= 0 {
			return fmt.Errorf("the status says %+v", status)
		}
		if len(live) == 0 || live[0].Customer != noisy {
			return errors.New("the page is not told")
		}
		return nil
	}, p)
	for name, f := range p.gather() {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == noisy {
					t.Errorf("%s has a customer as its %s", name, l.GetName())
				}
			}
		}
	}
}
