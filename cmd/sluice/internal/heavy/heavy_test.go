package heavy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// pass is what time does in a bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of a bubble
}

// What is certain is never more than the truth, what is shown never less, and a
// customer above one part in `tracked` has a place.
func TestSpaceSaving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		truth, total := map[string]float64{}, 0.0
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		many := rapid.IntRange(1, 4*tracked).Draw(t, "customers")
		for range rapid.IntRange(1, 1500).Draw(t, "records") {
			customer := strconv.Itoa(int(float64(many) * math.Pow(random.Float64(), 3)))
			n := float64(1 + random.IntN(1000))
			c.count([]byte(customer), n)
			truth[customer] += n
			total += n
		}
		if len(c.counts) > tracked || len(c.at) != len(c.counts) {
			t.Fatalf("%d counts, %d places", len(c.counts), len(c.at))
		}
		for i, k := range c.counts {
			if c.at[k.customer] != i {
				t.Fatalf("%s is at %d, not %d", k.customer, i, c.at[k.customer])
			}
			if i > 0 && k.bytes < c.counts[(i-1)/2].bytes {
				t.Fatalf("no heap at %d", i)
			}
			if is := truth[k.customer]; k.bytes < is || k.bytes-k.error > is || k.error > total/tracked {
				t.Fatalf("%s: %v at most %v too high, and it is %v", k.customer, k.bytes, k.error, is)
			}
		}
		for customer, n := range truth {
			if _, there := c.at[customer]; !there && n > total/tracked {
				t.Fatalf("%s with %v of %v has no place", customer, n, total)
			}
		}
	})
}

// A noisy customer among many is found with its share, whatever the rate is and
// however large records are; after it has gone quiet it leaves the list.
func TestTheNoisyOneIsFound(t *testing.T) {
	for _, rate := range []int{5, 50, 250} { // records a second
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New()
				random := rand.New(rand.NewPCG(1, uint64(rate)))
				// Of every ten records one is the noisy customer's, with nine times the
				// bytes of another one: half of all.
				run := func(d time.Duration, noisy bool) {
					for range int(d.Seconds()) {
						for range rate {
							if noisy && random.IntN(10) == 0 {
								c.Add([]byte("noisy"), 9000)
							} else {
								c.Add([]byte("c"+strconv.Itoa(random.IntN(100_000))), 1000)
							}
						}
						pass(time.Second)
					}
				}
				// Soon after the start the rate is as right as the samples are by then.
				want := float64(rate) * 900
				run(20*time.Second, true)
				if top := c.Top(1); rate == 250 && (len(top) == 0 || top[0].BytesPerSecond < want*0.6 || top[0].BytesPerSecond > want*1.4) {
					t.Errorf("after 20 s %+v, want about %v bytes/s", top, want)
				}
				run(3*time.Minute, true)
				top := c.Top(5)
				if len(top) == 0 || top[0].Customer != "noisy" || top[0].Share < 0.3 || top[0].Share > 0.7 {
					t.Fatalf("the list is %+v", top)
				}
				if got := top[0].BytesPerSecond; got < want*0.6 || got > want*1.4 {
					t.Errorf("%v bytes/s, want about %v", got, want)
				}
				run(7*time.Minute, false)
				for _, s := range c.Top(5) {
					if s.Customer == "noisy" && s.Share > 0.05 {
						t.Errorf("quiet for minutes, and still %+v", s)
					}
				}
				pass(2 * time.Hour) // beyond what exponents hold
				if top := c.Top(5); len(top) != 0 {
					t.Errorf("nothing passed for hours, and the list is %+v", top)
				}
			})
		})
	}
}

// Where all are alike nobody is noisy, and what is no customer is not counted.
func TestNobodyIsNoisy(t *testing.T) {
	c := New()
	for i := range 10 * tracked {
		c.count([]byte(strconv.Itoa(i)), 1000)
	}
	if top := c.Top(5); len(top) != 0 {
		t.Errorf("the list is %+v", top)
	}
	c = New()
	c.Add(nil, 1000)
	c.Add([]byte("a"), 0)
	c.Add([]byte(strings.Repeat("x", maxName+1)), 1000)
	if top := c.Top(5); len(top) != 0 {
		t.Errorf("the list is %+v", top)
	}
}

func TestManyGoroutines(t *testing.T) {
	c := New()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 3000 {
				c.Add([]byte{'a', byte(i)}, 1000)
				if n%1000 == 0 {
					c.Top(3)
				}
			}
		})
	}
	wg.Wait()
	if top := c.Top(9); len(top) != 4 {
		t.Errorf("the list is %+v", top)
	}
}

// BenchmarkAdd is what a record costs, at as many a second as there can be, of
// some hundred customers: documents cost 1,500 ns and more
// (docs/performance.md).
func BenchmarkAdd(b *testing.B) {
	customers := make([][]byte, 1<<9)
	for i := range customers {
		customers[i] = strconv.AppendInt(nil, int64(i), 10)
	}
	c := New()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		c.Add(customers[i&(1<<9-1)], 1000)
		i += 7919
	}
}
