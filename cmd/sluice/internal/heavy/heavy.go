// Package heavy finds the customers that most bytes belong to, among any number
// of them, in a fixed amount of memory and at next to no cost a record.
//
// Records are sampled by their bytes, about a thousand a second however many
// there are, and what a sample stands for goes into a list of Space-Saving
// (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k
// Elements in Data Streams", 2005) whose counts fade, so that it tells of the last
// minutes. A customer with 1 % of the bytes is found, within some tenths of its
// share; one with a thousandth may be missing, and the bytes of a single record
// are nobody's business here.
package heavy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// tracked is how many customers have a count. An estimate is too high by one
	// part in so many of all bytes at most.
	tracked = 512
	// perSecond is about how many samples are taken.
	perSecond = 1000
	// halfLife is when half of what was counted has faded.
	halfLife = time.Minute
	// maxName is the longest customer that is counted, in bytes; a longer one is
	// none that a stream could be routed by.
	maxName = 256
	// adjustAfter is the number of samples after which the distance between them
	// is set anew at the latest.
	adjustAfter = 2 * perSecond
)

// Customers counts the bytes of customers. Make it with New; all methods may be
// called from many goroutines.
type Customers struct {
	// left is how many bytes pass until the next sample. It is all that most
	// records touch.
	left atomic.Int64

	mu       sync.Mutex
	counts   []count        // a heap, the smallest first
	at       map[string]int // into counts
	total    float64        // of all samples, faded
	began    time.Time      // when it was made
	epoch    time.Time      // what is counted at time t counts 2^((t-epoch)/halfLife)
	distance float64        // mean bytes between samples
	samples  int            // since the distance was set,
	weighed  float64        // the bytes that they stand for,
	adjusted time.Time      // and when
}

// count is what is known of a customer; error is by how much bytes may be too
// high: what the one before it in this place had.
type count struct {
	customer     string
	bytes, error float64
}

// Share is a customer's part of what passed in the last minutes.
type Share struct {
	Customer       string  `json:"customer"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	Share          float64 `json:"share"` // of all bytes that had a customer, 0 to 1
}

// New returns an empty list.
func New() *Customers {
	now := time.Now()
	return &Customers{at: map[string]int{}, began: now, epoch: now, adjusted: now, distance: 1}
}

// Add counts a record of n bytes. It keeps nothing of customer; an empty one is
// not counted.
func (c *Customers) Add(customer []byte, n int) {
	if len(customer) == 0 || n <= 0 || c.left.Add(-int64(n)) >= 0 {
		return
	}
	c.sample(customer, n)
}

func (c *Customers) sample(customer []byte, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The gaps are exponential, so that every byte is as likely to be hit as any
	// other; a hit record stands for itself and for those that were not.
	weight := float64(n)
	if p := 1 - math.Exp(-float64(n)/c.distance); p > 0 {
		weight /= p
	}
	now := time.Now()
	c.weighed += weight
	if c.samples++; c.samples >= adjustAfter || now.Sub(c.adjusted) >= time.Second {
		elapsed := max(now.Sub(c.adjusted), time.Millisecond).Seconds()
		c.distance = max(1, c.weighed/elapsed/perSecond)
		c.samples, c.weighed, c.adjusted = 0, 0, now
	}
	c.left.Store(int64(rand.ExpFloat64() * c.distance)) //nolint:gosec // no secret
	if len(customer) <= maxName {
		c.count(customer, weight*c.fade(now))
	}
}

// fade returns what a byte counts now: more and more, in place of all counts that
// would have to shrink. Before it is too large, they do.
func (c *Customers) fade(now time.Time) float64 {
	const far = 64 // half-lives
	ages := now.Sub(c.epoch).Seconds() / halfLife.Seconds()
	if ages > far {
		for i := range c.counts {
			c.counts[i].bytes *= math.Exp2(-ages)
			c.counts[i].error *= math.Exp2(-ages)
		}
		c.total *= math.Exp2(-ages)
		c.epoch, ages = now, 0
	}
	return math.Exp2(ages)
}

// count is Space-Saving: whoever is new takes the place of the smallest, and its
// count as an error.
func (c *Customers) count(customer []byte, bytes float64) {
	c.total += bytes
	i, known := c.at[string(customer)]
	switch {
	case known:
	case len(c.counts) < tracked:
		i = len(c.counts)
		c.counts = append(c.counts, count{customer: string(customer)})
		c.at[c.counts[i].customer] = i
		i = c.up(i)
	default:
		least := &c.counts[0]
		delete(c.at, least.customer)
		*least = count{string(customer), least.bytes, least.bytes}
		c.at[least.customer] = 0
	}
	c.counts[i].bytes += bytes
	c.down(i)
}

func (c *Customers) up(i int) int {
	for i > 0 && c.counts[i].bytes < c.counts[(i-1)/2].bytes {
		c.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	return i
}

func (c *Customers) down(i int) {
	for {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(c.counts) && c.counts[child].bytes < c.counts[least].bytes {
				least = child
			}
		}
		if least == i {
			return
		}
		c.swap(i, least)
		i = least
	}
}

func (c *Customers) swap(i, j int) {
	c.counts[i], c.counts[j] = c.counts[j], c.counts[i]
	c.at[c.counts[i].customer], c.at[c.counts[j].customer] = i, j
}

// Top returns the n customers with the most bytes, the largest first. Those of
// whom less than half is certain are left out: where all are alike, nobody is
// noisy.
func (c *Customers) Top(n int) []Share {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.fade(time.Now())
	// A steady rate has filled so much of its count by now.
	filled := 1 - math.Exp2(-max(time.Since(c.began), time.Second).Seconds()/halfLife.Seconds())
	all := []Share{}
	for _, k := range c.counts {
		if k.bytes < 2*k.error || k.bytes/now < 1 {
			continue
		}
		all = append(all, Share{
			Customer: k.customer, Share: k.bytes / c.total,
			BytesPerSecond: k.bytes / now * math.Ln2 / halfLife.Seconds() / filled,
		})
	}
	slices.SortFunc(all, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), cmp.Compare(a.Customer, b.Customer))
	})
	return all[:min(n, len(all))]
}
