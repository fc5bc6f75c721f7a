package app

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/heavy"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/document"
)

// mostCustomers is how many customers are shown.
const mostCustomers = 20

// newCustomers returns what counts the bytes of customers; nil where no rule names
// a customer.
func newCustomers(mapper *document.Mapper) *heavy.Customers {
	if !slices.ContainsFunc(mapper.Describe(), func(d document.Description) bool { return d.Customer != "" }) {
		return nil
	}
	return heavy.New()
}

// weighed are the rules of a topic, which also count what each customer sends. A
// parked record counts again when it is replayed: it is work again.
type weighed struct {
	*document.Rules
	customers *heavy.Customers
}

// Map implements consumer.Rules.
func (w weighed) Map(rec *kgo.Record, generation int, out *document.Result) {
	w.Rules.Map(rec, generation, out)
	w.customers.Add(out.Customer, len(rec.Key)+len(rec.Value))
}

// rules returns those of a topic.
func (a *App) rules(topic string) consumer.Rules {
	if a.customers == nil {
		return a.mapper.Rules(topic)
	}
	return weighed{a.mapper.Rules(topic), a.customers}
}

// noisy are the customers with the most bytes in the last minutes, the largest
// first.
func (a *App) noisy() []heavy.Share {
	if a.customers == nil {
		return nil
	}
	return a.customers.Top(mostCustomers)
}
