package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What the generator makes of the customers' lives.
const (
	zipfExponent  = 1.1    // a few customers have most of the events
	deleteShare   = 0.05   // of the events
	badShare      = 0.0001 // of the events: about one in 10,000
	tick          = 10 * time.Millisecond
	embeddedBytes = 512 << 20 // the embedded broker keeps all of it in memory
)

// generator writes the lives of customers to a topic: inserts, updates and
// deletes (nulls), and now and then a document that no index can take. What
// it writes follows from the seed.
type generator struct {
	client *kgo.Client
	topic  string
	rate   atomic.Int64 // records a second; 0: as fast as it goes
	most   int64        // bytes after which it stops; 0: none
	each   int          // documents of a customer, CUSTOMER/N; 0: one, CUSTOMER

	random *rand.Rand
	zipf   *rand.Zipf
	alive  []bool // by customer and document
	event  int64

	produced, inserts, updates, deletes, bad, bytes atomic.Int64
	failure                                         atomic.Pointer[error]
}

// newGenerator takes each for the documents of a customer, see generator.
func newGenerator(client *kgo.Client, topic string, rate, customers, each int, seed uint64) *generator {
	random := rand.New(rand.NewPCG(seed, 0))
	flat := 1.0
	if each > 0 {
		// A document that changes at any moment is never seen to be equal on two sides.
		flat = float64(customers)
	}
	g := &generator{
		client: client, topic: topic, each: each,
		random: random,
		zipf:   rand.NewZipf(random, zipfExponent, flat, uint64(customers-1)),
		alive:  make([]bool, customers*max(each, 1)),
	}
	g.rate.Store(int64(rate))
	return g
}

// leastRate is what slower goes down to, in records a second.
const leastRate = 50

// slower halves the pace of a generator that has been at it for so long, and
// returns it.
func (g *generator) slower(since time.Duration) int64 {
	rate := g.rate.Load()
	if rate == 0 { // as fast as it went
		rate = int64(float64(g.produced.Load()) / since.Seconds())
	}
	rate = max(leastRate, rate/2)
	if now := g.rate.Load(); now > 0 {
		rate = min(rate, now)
	}
	g.rate.Store(rate)
	return rate
}

// run writes until ctx ends, until the log has its most bytes, or until a
// record cannot be written, and then waits for the broker to acknowledge all.
func (g *generator) run(ctx context.Context, patience time.Duration) error {
	last, owed := time.Now(), 0.0
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var made int64
	for ctx.Err() == nil && g.failure.Load() == nil && (g.most == 0 || g.bytes.Load() < g.most) {
		due, rate := made+1000, g.rate.Load()
		if now := time.Now(); rate > 0 {
			owed += now.Sub(last).Seconds() * float64(rate)
			last, due = now, made+int64(owed)
			owed -= float64(due - made)
		} else {
			last = now
		}
		for ; made < due && ctx.Err() == nil; made++ {
			r := g.next()
			g.bytes.Add(int64(len(r.Key) + len(r.Value)))
			// Not ctx: a record that was begun is written to its end, so that
			// the log never depends on when somebody typed Ctrl-C.
			g.client.Produce(context.WithoutCancel(ctx), r, g.acknowledged)
		}
		if rate > 0 {
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := g.client.Flush(flush); err != nil {
		return fmt.Errorf("the broker did not acknowledge all records within %s: %w", patience, err)
	}
	if failure := g.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}

func (g *generator) acknowledged(_ *kgo.Record, err error) {
	if err != nil {
		err = fmt.Errorf("a record was not written: %w", err)
		g.failure.CompareAndSwap(nil, &err)
		return
	}
	g.produced.Add(1)
}

// next makes the next event of some customer.
func (g *generator) next() *kgo.Record {
	g.event++
	customer := int(g.zipf.Uint64())
	key := fmt.Appendf(make([]byte, 0, 24), "customer-%06d", customer)
	if g.each > 0 {
		n := g.random.IntN(g.each)
		key = fmt.Appendf(key, "/%d", n)
		customer = customer*g.each + n
	}
	record := &kgo.Record{Topic: g.topic, Key: key}
	chance := g.random.Float64()
	switch {
	case chance < badShare && g.each == 0: // both sides would refuse it, and its customer not be cut over
		value := g.document(key)
		record.Value = value[:len(value)/2] // cut: never JSON
		g.bad.Add(1)
		return record
	case chance < badShare+deleteShare && g.alive[customer]:
		g.alive[customer] = false
		g.deletes.Add(1)
		return record
	case g.alive[customer]:
		g.updates.Add(1)
	default:
		g.alive[customer] = true
		g.inserts.Add(1)
	}
	record.Value = g.document(key)
	return record
}

var (
	events = [...]string{"signed_up", "order_placed", "order_shipped", "payment_received", "address_changed", "support_called"}
	towns  = [...]string{"Amsterdam", "Bergen", "Cádiz", "Dresden", "Évora", "Gdańsk", "Łódź", "Malmö", "Tromsø", "Zürich"}
)

// document is one line of JSON, about 300 bytes. The event's number makes each
// differ from all others, so that a stale document can be told from the newest.
func (g *generator) document(key []byte) []byte {
	b := make([]byte, 0, 384)
	b = append(b, `{"customer":"`...)
	b = append(b, key...)
	b = append(b, `","event":`...)
	b = strconv.AppendInt(b, g.event, 10)
	b = append(b, `,"type":"`...)
	b = append(b, events[g.random.IntN(len(events))]...)
	b = append(b, `","town":"`...)
	b = append(b, towns[g.random.IntN(len(towns))]...)
	b = append(b, `","amount":`...)
	b = strconv.AppendFloat(b, float64(g.random.IntN(100_000))/100, 'f', 2, 64)
	b = append(b, `,"basket":[`...)
	for i := range 12 {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"sku":`...)
		b = strconv.AppendInt(b, int64(g.random.IntN(10_000)), 10)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}
