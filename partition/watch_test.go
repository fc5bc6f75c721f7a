package partition

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch runs a watcher of the stream events until the test ends.
func watch(t *testing.T, m *memory, o WatcherOptions) *Watcher {
	w := NewWatcher(NewStore(m), "events", o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// replace returns the example with one text in place of another.
func replace(what, by string) string { return strings.Replace(example, what, by, 1) }

// The store unreachable: writers keep the last epoch, readers keep it up to
// max_staleness and then read the legacy index, and no change is possible.
func TestS38_StoreUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval, staleness = time.Second, 5 * time.Minute
		m := newMemory()
		m.set("events", replace(`"percent":500`, `"percent":10000`))
		var reports []string
		w := watch(t, m, WatcherOptions{Interval: interval, MaxStaleness: staleness, Report: func(err error) { reports = append(reports, text(err)) }})
		wait(time.Millisecond)
		customer := []byte("a")
		lookup := func() (Lookup, error) { return w.Lookup(customer) }
		fresh, err := lookup()
		if err != nil || fresh.Stale || !strings.HasPrefix(fresh.Index, "events-p0") || fresh.Epoch != 17 || fresh.TTL != interval || fresh.Valid <= staleness-interval {
			t.Fatalf("%+v %v", fresh, err)
		}
		read := load(t, NewStore(m), "events")
		m.fail(errors.New("connection refused"))

		wait(staleness - 3*time.Second)
		if kept, err := lookup(); err != nil || kept.Index != fresh.Index || kept.Stale || kept.Valid > 4*time.Second {
			t.Errorf("before max_staleness: %+v %v", kept, err)
		}
		if v := w.View(); v.Router.Epoch() != 17 || !strings.Contains(v.Alarm(), "stays at epoch 17 since 2000-01-01T00:00:01Z: stream events: reading its routing table: connection refused") {
			t.Errorf("the alarm is %q", v.Alarm())
		}
		wait(4 * time.Second)
		if w.Valid() != 0 {
			t.Errorf("valid for %s", w.Valid())
		}
		if stale, err := lookup(); err != nil || stale.Index != "events" || !stale.Stale || stale.Valid != 0 || stale.TTL != interval {
			t.Errorf("after max_staleness: %+v %v", stale, err)
		}
		if route := w.View().Router.Route(customer); route.New != "events-p001-j7" && route.New != "events-p000-j7" || route.Legacy != "events" {
			t.Errorf("a writer must not guess, and routes to %+v", route)
		}
		m.refused = errors.New("connection refused")
		if err := change(t, NewStore(m), read, func(*Table) {}); err == nil {
			t.Error("a change was possible")
		}

		m.fail(nil)
		wait(interval)
		if again, err := lookup(); err != nil || again.Index != fresh.Index || again.Stale || w.View().Alarm() != "" {
			t.Errorf("after the trouble: %+v %v %s", again, err, w.View().Alarm())
		}
		if len(reports) != 2 || reports[0] == "" || reports[1] != "" {
			t.Errorf("reported was %q: once each is enough", reports)
		}
	})
}

// Without a legacy index that is current, nothing is better than a wrong index.
func TestS38_NoLegacyToFallBackTo(t *testing.T) {
	table := partitioned(1, 0, W3)
	v := &View{Router: NewRouter(table, CacheOptions{}), Seen: time.Now().Add(-time.Hour)}
	if l, err := v.Lookup([]byte("a"), time.Now(), time.Second, time.Minute); !errors.Is(err, ErrStale) {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := v.Lookup([]byte("a"), time.Now(), time.Second, 2*time.Hour); err != nil || l.Index != "events-p000" {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := new(View).Lookup([]byte("a"), time.Now(), time.Second, time.Minute); !errors.Is(err, ErrNoTable) {
		t.Errorf("without a table: %v", err)
	}
	for _, bad := range []string{"", strings.Repeat("x", MaxCustomer+1), "\xff"} {
		if _, err := v.Lookup([]byte(bad), time.Now(), time.Second, 2*time.Hour); err == nil {
			t.Errorf("customer %q is good", bad)
		}
	}
}

// Nothing that stands in the control index makes a process leave a good table
// but a later one.
func TestWatcherKeepsTheLastGoodTable(t *testing.T) {
	m := newMemory()
	w := NewWatcher(NewStore(m), "events", WatcherOptions{})
	if _, err := w.Refresh(t.Context()); !errors.Is(err, ErrNotFound) || w.View().Router != nil || !strings.Contains(w.View().Alarm(), "nothing can be routed") {
		t.Fatalf("no table yet: %v", err)
	}
	m.set("events", example)
	first, err := w.Refresh(t.Context())
	if err != nil || first.Epoch() != 17 || w.View().Alarm() != "" {
		t.Fatalf("%v", err)
	}
	for what, bad := range map[string]string{
		"went back from epoch 17 to 16": replace(`"epoch":17`, `"epoch":16`),
		"kept epoch 17":                 replace(`"percent":500`, `"percent":501`),
		"which would move all customers": strings.NewReplacer(`"epoch":17`, `"epoch":18`, `"slots":8`, `"slots":4`,
			`0-3=p000 4=p001 5-7=p000`, `0-3=p000`).Replace(example),
		"this program knows 1": replace(`"schema":1`, `"schema":2`),
		"name: is empty":       `{"schema":1}`,
	} {
		m.set("events", bad)
		if _, err := w.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
		v := w.View()
		if v.Router != first || v.Trouble == nil || !strings.Contains(v.Alarm(), what) {
			t.Errorf("%s: the view became %+v", what, v)
		}
	}
	m.set("events", example)
	if again, err := w.Refresh(t.Context()); err != nil || again != first || w.View().Trouble != nil {
		t.Errorf("the same table again: %v, %+v", err, w.View())
	}
	m.set("events", replace(`"epoch":17`, `"epoch":29`))
	if next, err := w.Refresh(t.Context()); err != nil || next.Epoch() != 29 {
		t.Errorf("a later one: %v", err)
	}
}

// A long poll ends with the epoch, and with its context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.set("events", example)
		w := watch(t, m, WatcherOptions{Interval: time.Second})
		got := make(chan int64, 3)
		for _, epoch := range []int64{0, 17, 19} {
			go func() {
				r, err := w.Wait(t.Context(), epoch)
				if err != nil {
					t.Error(err)
				}
				got <- r.Epoch()
			}()
		}
		wait(time.Millisecond)
		if len(got) != 2 || <-got != 17 || <-got != 17 {
			t.Fatal("epochs that are there already were waited for")
		}
		m.set("events", replace(`"epoch":17`, `"epoch":18`))
		wait(2 * time.Second)
		if len(got) != 0 {
			t.Fatal("epoch 18 ended the wait for 19")
		}
		m.set("events", replace(`"epoch":17`, `"epoch":20`))
		wait(time.Second)
		if len(got) != 1 || <-got != 20 {
			t.Fatal("epoch 20 did not end the wait for 19")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := w.Wait(ctx, 99); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// A read that a caller gives up says nothing about the table.
func TestRefreshGivenUp(t *testing.T) {
	m := newMemory()
	m.set("events", example)
	w := NewWatcher(NewStore(m), "events", WatcherOptions{})
	if _, err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.fail(context.Canceled)
	if _, err := w.Refresh(ctx); err == nil || w.View().Trouble != nil {
		t.Errorf("%v, %v", err, w.View().Trouble)
	}
	w.reading <- struct{}{} // another read is under way
	if _, err := w.Refresh(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-w.reading
}
