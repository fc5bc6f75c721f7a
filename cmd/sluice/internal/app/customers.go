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

// noisyFrom is the share of all bytes from which on a customer is worth a line of
// the log, quietTo the one at which that is over.
const (
	noisyFrom = 0.5
	quietTo   = 0.4
)

// largestShare is the share of the customer with the most bytes; 0: nobody's is
// known.
func (a *App) largestShare() float64 {
	if a.customers == nil {
		return 0
	}
	if top := a.customers.Top(1); len(top) > 0 {
		return top[0].Share
	}
	return 0
}

// noteNoisy logs when one customer begins to send most of all bytes. Who it is
// stands in the status: a customer may be a field of a document, and nothing of
// these stands in logs. It returns whether there is one.
func (a *App) noteNoisy(was bool) bool {
	share := a.largestShare()
	switch {
	case !was && share >= noisyFrom:
		a.log.Warn().Float64("share", share).Msg("one customer sends most of all bytes: sluice status says who")
		return true
	case was && share < quietTo:
		a.log.Info().Msg("no customer sends most of all bytes any more")
		return false
	}
	return was
}

// noisy are the customers with the most bytes in the last minutes, the largest
// first.
func (a *App) noisy() []heavy.Share {
	if a.customers == nil {
		return nil
	}
	return a.customers.Top(mostCustomers)
}
