// Package corpus generates the benchmark documents: JSON events shaped like the
// request log of a shop. A document depends on nothing but the configuration
// and its sequence number, so every run sees the same bytes.
package corpus

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// Config says which documents there are.
type Config struct {
	Seed      uint64
	Customers int // distinct customer ids, Zipf-distributed
	// Bytes is about the size of a document: from 100 for the barest event over
	// 1,000 for one as it would be logged to any size for one with a long trail.
	Bytes int
}

// Sizes in bytes: below bareBelow an event has only what tells it apart; the
// whole event is a little longer than wholeBytes, and gets a trail where much
// more is asked for.
const (
	bareBelow  = 500
	wholeBytes = 1200
)

// Gen generates documents. It isn't safe for concurrent use.
type Gen struct {
	cfg  Config
	pcg  *rand.PCG
	r    *rand.Rand
	zipf *rand.Zipf
}

// New returns a generator.
func New(cfg Config) *Gen {
	pcg := rand.NewPCG(cfg.Seed, 0)
	r := rand.New(pcg)
	return &Gen{
		cfg:  cfg,
		pcg:  pcg,
		r:    r,
		zipf: rand.NewZipf(r, 1.1, 2, uint64(cfg.Customers-1)),
	}
}

var epoch = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Append appends document number seq to doc and its customer id to key.
func (g *Gen) Append(doc, key []byte, seq int64) (newDoc, newKey []byte) {
	g.pcg.Seed(g.cfg.Seed, uint64(seq))
	r := g.r

	key = append(key, 'c')
	key = pad(key, int64(g.zipf.Uint64()), 6)
	if g.cfg.Bytes < bareBelow {
		return appendBare(doc, key, seq, r), key
	}
	ev := events[r.IntN(len(events))]
	city := cities[r.IntN(len(cities))]
	items := 1 + r.IntN(5)
	orderID := r.Int64N(1e9)
	latency := 1 + int64(r.ExpFloat64()*40)

	b := doc
	b = append(b, `{"@timestamp":"`...)
	b = epoch.Add(time.Duration(seq)*3*time.Millisecond).AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","seq":`...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, `,"event_id":"`...)
	b = hex(b, r.Uint64())
	b = hex(b, r.Uint64())
	b = append(b, `","event_type":"`...)
	b = append(b, ev.name...)
	b = append(b, `","customer_id":"`...)
	b = append(b, key...)
	b = append(b, `","session_id":"`...)
	b = hex(b, r.Uint64())
	b = append(b, `","trace":{"trace_id":"`...)
	b = hex(b, r.Uint64())
	b = hex(b, r.Uint64())
	b = append(b, `","span_id":"`...)
	b = hex(b, r.Uint64())
	b = append(b, `"},"service":{"name":"`...)
	b = append(b, ev.service...)
	b = append(b, `","version":"4.`...)
	b = strconv.AppendInt(b, int64(r.IntN(20)), 10)
	b = append(b, `.1","node":"`...)
	b = append(b, ev.service...)
	b = append(b, `-7f9c5d-`...)
	b = strconv.AppendInt(b, int64(r.IntN(24)), 10)
	b = append(b, `"},"level":"`...)
	b = append(b, levels[r.IntN(len(levels))]...)
	b = append(b, `","http":{"method":"`...)
	b = append(b, ev.method...)
	b = append(b, `","path":"`...)
	b = append(b, ev.path...)
	b = strconv.AppendInt(b, orderID, 10)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, statuses[r.IntN(len(statuses))], 10)
	b = append(b, `,"latency_ms":`...)
	b = strconv.AppendInt(b, latency, 10)
	b = append(b, `,"client_ip":"10.`...)
	b = strconv.AppendInt(b, int64(r.IntN(256)), 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(r.IntN(256)), 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(r.IntN(256)), 10)
	b = append(b, `","user_agent":"`...)
	b = append(b, agents[r.IntN(len(agents))]...)
	b = append(b, `"},"geo":{"country":"`...)
	b = append(b, city.country...)
	b = append(b, `","city":"`...)
	b = append(b, city.name...)
	b = append(b, `","location":{"lat":`...)
	b = strconv.AppendFloat(b, city.lat, 'f', 4, 64)
	b = append(b, `,"lon":`...)
	b = strconv.AppendFloat(b, city.lon, 'f', 4, 64)
	b = append(b, `}},"order":{"id":"o-`...)
	b = pad(b, orderID, 9)
	b = append(b, `","currency":"`...)
	b = append(b, city.currency...)
	b = append(b, `","items":[`...)
	var total int64
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		qty, cents := 1+r.Int64N(3), 99+r.Int64N(20000)
		total += qty * cents
		b = append(b, `{"sku":"SKU-`...)
		b = pad(b, r.Int64N(100000), 5)
		b = append(b, `","name":"`...)
		b = append(b, adjectives[r.IntN(len(adjectives))]...)
		b = append(b, ' ')
		b = append(b, nouns[r.IntN(len(nouns))]...)
		b = append(b, `","qty":`...)
		b = strconv.AppendInt(b, qty, 10)
		b = append(b, `,"price":`...)
		b = money(b, cents)
		b = append(b, '}')
	}
	b = append(b, `],"total":`...)
	b = money(b, total)
	b = append(b, `},"message":"`...)
	b = append(b, ev.service...)
	b = append(b, `: `...)
	b = append(b, ev.text...)
	b = append(b, ` for customer `...)
	b = append(b, key...)
	b = append(b, ` in `...)
	b = strconv.AppendInt(b, latency, 10)
	b = append(b, ` ms, \"cart\" had `...)
	b = strconv.AppendInt(b, int64(items), 10)
	b = append(b, ` lines","tags":["shop","`...)
	b = append(b, city.country...)
	b = append(b, `"],"sampled":`...)
	b = strconv.AppendBool(b, r.IntN(10) == 0)
	if g.cfg.Bytes > wholeBytes {
		b = appendTrail(b, len(doc)+g.cfg.Bytes-len("]}"), r)
	}
	b = append(b, '}')
	return b, key
}

// appendBare appends an event of about 100 bytes.
func appendBare(b, key []byte, seq int64, r *rand.Rand) []byte {
	b = append(b, `{"@timestamp":"`...)
	b = epoch.Add(time.Duration(seq)*3*time.Millisecond).AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","seq":`...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, `,"customer_id":"`...)
	b = append(b, key...)
	b = append(b, `","latency_ms":`...)
	b = strconv.AppendInt(b, 1+int64(r.ExpFloat64()*40), 10)
	return append(b, '}')
}

// appendTrail appends a field with the lines of a trail, until b is about as
// long as asked for.
func appendTrail(b []byte, until int, r *rand.Rand) []byte {
	b = append(b, `,"trail":[`...)
	for first := true; first || len(b) < until; first = false {
		if !first {
			b = append(b, ',')
		}
		ev := events[r.IntN(len(events))]
		b = append(b, `{"at_ms":`...)
		b = strconv.AppendInt(b, int64(r.IntN(1e5)), 10)
		b = append(b, `,"span":"`...)
		b = hex(b, r.Uint64())
		b = append(b, `","service":"`...)
		b = append(b, ev.service...)
		b = append(b, `","text":"`...)
		b = append(b, ev.text...)
		b = append(b, `"}`...)
	}
	return append(b, ']')
}

func pad(b []byte, n int64, width int) []byte {
	var tmp [20]byte
	s := strconv.AppendInt(tmp[:0], n, 10)
	for range width - len(s) {
		b = append(b, '0')
	}
	return append(b, s...)
}

func hex(b []byte, n uint64) []byte {
	const digits = "0123456789abcdef"
	for i := 60; i >= 0; i -= 4 {
		b = append(b, digits[n>>i&15])
	}
	return b
}

func money(b []byte, cents int64) []byte {
	b = strconv.AppendInt(b, cents/100, 10)
	b = append(b, '.')
	return pad(b, cents%100, 2)
}

var events = []struct{ name, service, method, path, text string }{
	{"order_placed", "checkout", "POST", "/api/v2/orders/", "order accepted and queued for fulfilment"},
	{"order_viewed", "storefront", "GET", "/api/v2/orders/", "order page rendered from the read replica"},
	{"cart_updated", "cart", "PUT", "/api/v1/carts/", "cart repriced after a quantity change"},
	{"payment_captured", "payments", "POST", "/internal/payments/", "card payment captured by the acquirer"},
	{"parcel_shipped", "logistics", "POST", "/internal/shipments/", "parcel handed over to the carrier"},
	{"product_viewed", "storefront", "GET", "/catalog/items/", "product page served from the edge cache"},
	{"refund_issued", "payments", "POST", "/internal/refunds/", "refund booked against the original capture"},
	{"search_served", "search", "GET", "/api/v1/search?page=", "search results ranked and returned"},
}

var cities = []struct {
	country, name, currency string
	lat, lon                float64
}{
	{"DE", "Berlin", "EUR", 52.52, 13.405},
	{"FR", "Lyon", "EUR", 45.764, 4.8357},
	{"US", "Portland", "USD", 45.5152, -122.6784},
	{"JP", "Osaka", "JPY", 34.6937, 135.5023},
	{"BR", "Recife", "BRL", -8.0476, -34.877},
	{"IN", "Pune", "INR", 18.5204, 73.8567},
	{"TR", "Istanbul", "TRY", 41.0082, 28.9784},
	{"SE", "Malm\u00f6", "SEK", 55.605, 13.0038},
}

var (
	levels   = []string{"INFO", "INFO", "INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"}
	statuses = []int64{200, 200, 200, 200, 201, 202, 304, 404, 500}
	agents   = []string{
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 14_6) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15",
		"Mozilla/5.0 (X11; Linux x86_64; rv:141.0) Gecko/20100101 Firefox/141.0",
		"ShopApp/9.14 (iPhone16,2; iOS 18.5; Scale/3.00)",
		"okhttp/5.1.0",
	}
	adjectives = []string{"Walnut", "Linen", "Folding", "Ceramic", "Rugged", "Compact", "Wool", "Brass"}
	nouns      = []string{"desk lamp", "throw blanket", "bike pannier", "coffee grinder", "bookshelf", "rain jacket"}
)
