package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever children take, force and give: the budget counts what they hold, and
// what was not forced stays within the limit.
func TestChildrenAreTheBudget(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			limit := rapid.Int64Range(1, 10_000).Draw(t, "limit")
			b := New(limit)
			children := make([]*Child, rapid.IntRange(1, 5).Draw(t, "children"))
			used := make([][]int64, len(children)) // what each has to give
			for i := range children {
				children[i] = b.Child(rapid.Int64Range(1, 2000).Draw(t, "piece"))
			}
			forced := false
			t.Repeat(map[string]func(*rapid.T){
				"take": func(t *rapid.T) {
					i, n := rapid.IntRange(0, len(children)-1).Draw(t, "child"), rapid.Int64Range(0, limit).Draw(t, "bytes")
					room := limit - b.Used()
					switch ok := children[i].TryTake(n); {
					case ok:
						used[i] = append(used[i], n)
					case n <= room:
						t.Fatalf("%d bytes were refused, there is room for %d", n, room)
					}
				},
				"force": func(t *rapid.T) {
					i, n := rapid.IntRange(0, len(children)-1).Draw(t, "child"), rapid.Int64Range(0, limit).Draw(t, "bytes")
					children[i].Force(n)
					used[i] = append(used[i], n)
					forced = true
				},
				"give": func(t *rapid.T) {
					i := rapid.IntRange(0, len(children)-1).Draw(t, "child")
					if len(used[i]) == 0 {
						t.Skip("nothing to give")
					}
					last := len(used[i]) - 1
					children[i].Give(used[i][last])
					used[i] = used[i][:last]
				},
				"close": func(t *rapid.T) { children[rapid.IntRange(0, len(children)-1).Draw(t, "child")].Close() },
				"time":  func(*rapid.T) { elapse(childIdle / 2) },
				"": func(t *rapid.T) {
					var held int64
					for i, c := range children {
						var sum int64
						for _, n := range used[i] {
							sum += n
						}
						if c.Used() != sum || c.Held() < sum {
							t.Fatalf("child %d: %d used of %d held, want %d used", i, c.Used(), c.Held(), sum)
						}
						held += c.Held()
					}
					if b.Used() != held {
						t.Fatalf("the children hold %d, the budget says %d", held, b.Used())
					}
					if !forced && held > limit {
						t.Fatalf("%d are held, the limit is %d", held, limit)
					}
				},
			})
			// What nobody uses is back within two periods.
			elapse(2 * childIdle)
			for i, c := range children {
				if c.Held() != c.Used() {
					t.Fatalf("child %d still holds %d, %d are used", i, c.Held(), c.Used())
				}
			}
		})
	})
}

// elapse lets virtual time pass.
func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time, in a synctest bubble
	synctest.Wait()
}

// Who waits for the budget gets what a child gives back, though the child would
// keep it for a while.
func TestWaitingEndsWithRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100)
		c := b.Child(50)
		if !c.TryTake(60) || b.Used() != 100 {
			t.Fatalf("%d used", b.Used())
		}
		began := time.Now()
		go func() {
			elapse(10 * time.Millisecond)
			c.Give(60)
		}()
		if err := b.Take(t.Context(), 100); err != nil || time.Since(began) > childIdle/2 {
			t.Errorf("took %v, error %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Take(ctx, 1); err == nil {
			t.Error("more than the limit was taken")
		}
		b.Give(100)
	})
}

// counter is a budget as one would write it first.
type counter struct {
	mu    sync.Mutex
	limit int64
	used  int64
}

func (c *counter) take(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used+n > c.limit {
		return false
	}
	c.used += n
	return true
}

func (c *counter) give(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used -= n
}

// What it costs to take the bytes of a record and to give them back: with
// nothing counted, from one counter that all share, from the budget itself, and
// from a child of one's own.
func BenchmarkContention(b *testing.B) {
	const record = 1100
	for _, goroutines := range []int{1, 2, 4, 8, 16, 32, 64} {
		run := func(name string, worker func() (take, give func())) {
			b.Run(fmt.Sprintf("%s/%d", name, goroutines), func(b *testing.B) {
				var wg sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(b.N))
				for range goroutines {
					take, give := worker()
					wg.Go(func() {
						for left.Add(-1000) > -1000 {
							for range 1000 {
								take()
								give()
							}
						}
					})
				}
				wg.Wait()
			})
		}
		run("none", func() (func(), func()) { return func() {}, func() {} })
		shared := &counter{limit: 1 << 30}
		run("naive", func() (func(), func()) {
			return func() { shared.take(record) }, func() { shared.give(record) }
		})
		budget := New(1 << 30)
		run("budget", func() (func(), func()) {
			return func() { budget.TryTake(record) }, func() { budget.Give(record) }
		})
		run("child", func() (func(), func()) {
			c := budget.Child(256 << 10)
			return func() { c.TryTake(record) }, func() { c.Give(record) }
		})
	}
}
