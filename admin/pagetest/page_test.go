// Package pagetest opens the live page in a browser. It is a module of its own:
// what drives the browser does not go into the program.
package pagetest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/admin"
)

var screenshots = flag.String("screenshots", "", "folder that pictures of the page are written to")

// hostile is a name as nobody honest would choose it.
const hostile = `<img src=x onerror="document.title='owned'">"'&lt;b`

// replica is an admin.Process that does what its fields say.
type replica struct {
	mu     sync.Mutex
	live   map[string]any
	status map[string]any
}

func (r *replica) Alive() bool          { return true }
func (r *replica) Ready() bool          { return true }
func (r *replica) Health() admin.Health { return admin.Health{State: admin.Running} }
func (r *replica) Release(string) bool  { return false }
func (r *replica) Skip(context.Context, string, int32, int64, bool) error {
	return errors.New("not here")
}

func (r *replica) Live() any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live
}

func (r *replica) Status() any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// busy is a replica in trouble, with so many partitions and held targets.
func busy(partitions, held int) *replica {
	since := time.Now().Add(-90 * time.Second)
	ledger := map[string]any{"consumed": 1_234_567, "indexed": 1_200_000, "deleted": 30_000, "stale": 11, "dead_lettered": 42, "parked": 0, "ignored": 0, "abandoned": 7, "in_flight": 4_507}
	r := &replica{status: map[string]any{}}
	var all []map[string]any
	for i := range partitions {
		p := map[string]any{
			"topic": "events", "partition": i, "state": "running", "position": 5000 + i, "committed": 4000 + i, "start": 0, "end": 9000,
			"lag": 5000 - i, "lag_seconds": 3.5, "queued": 1, "in_flight": 12, "queue_bytes": 4096, "ledger": ledger,
		}
		if i == 3 {
			p["halt"] = map[string]any{"kind": "rejected_record", "offset": 4003}
		}
		all = append(all, p)
	}
	r.status["consumer"] = map[string]any{"partitions": all}
	targets := []map[string]any{{"target": hostile, "reason": "cluster_block_exception", "since": since, "bytes": 5 << 20}}
	for i := 1; i < min(held, 100); i++ {
		targets = append(targets, map[string]any{"target": fmt.Sprintf("events-%04d", i), "reason": "cluster_block_exception", "since": since, "bytes": 1024})
	}
	r.live = map[string]any{
		"version": "1.2.3", "group": hostile, "state": "blocked on a record", "since": since, "reason": "1 partitions are halted",
		"memory": map[string]any{"used_bytes": 200 << 20, "limit_bytes": 256 << 20}, "gomaxprocs": 2,
		"indexer":       map[string]any{"indexers": 2, "requests_in_flight": 5, "requests_limit": 12, "bytes": 1 << 20, "throttled": false},
		"elasticsearch": map[string]any{"available": true},
		"dead_letters":  map[string]any{"waiting": 0, "bytes": 0, "reasons": map[string]any{"mapper_parsing_exception": 41, hostile: 1}},
		"customers":     []map[string]any{{"customer": hostile, "bytes_per_second": 3 << 20, "share": 0.625}, {"customer": "acme", "bytes_per_second": 512, "share": 0.125}},
		"held":          targets, "held_count": held,
		"halted":       []map[string]any{{"topic": "events", "partition": 3, "offset": 4003, "kind": "rejected_record", "reason": hostile, "since": since}},
		"halted_count": 1, "partitions": partitions, "partitions_halted": 1, "partitions_waiting": 0, "lag": 1_234_000, "lag_unknown": 0, "lag_seconds": 61.5, "records": ledger,
		"topics": []map[string]any{{"topic": hostile, "partitions": partitions, "partitions_halted": 1, "partitions_waiting": 0, "lag": 1_234_000, "lag_unknown": 0, "lag_seconds": 61.5, "records": ledger}},
	}
	return r
}

func serve(t *testing.T, r *replica) *admin.Server {
	t.Helper()
	s, err := admin.Listen(admin.Config{Address: "127.0.0.1:0"}, admin.Options{Process: r, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tab is a page of a browser, and what it complained of.
type tab struct {
	context.Context
	t *testing.T

	mu         sync.Mutex
	complaints []string
	expected   bool // complaints are not errors: the server is away
}

func open(t *testing.T, url string) *tab {
	t.Helper()
	b := newTab(t)
	b.run(chromedp.Navigate(url), until(`document.getElementById("flow-in").textContent !== "–"`))
	return b
}

func newTab(t *testing.T) *tab {
	t.Helper()
	var binary string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if file, err := exec.LookPath(name); err == nil {
			binary = file
			break
		}
	}
	if binary == "" {
		t.Skip("no Chromium is installed (Debian: apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(binary), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(time.Minute))
	allocator, cancelAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancelAllocator)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	ctx, cancelTime := context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancelTime)
	b := &tab{Context: ctx, t: t}
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.expected {
			return
		}
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.complaints = append(b.complaints, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			b.complaints = append(b.complaints, "console."+string(e.Type))
		case *log.EventEntryAdded:
			// The server of these tests knows of no migrations.
			if !strings.HasSuffix(e.Entry.URL, "/v1/jobs") {
				b.complaints = append(b.complaints, e.Entry.Text+" "+e.Entry.URL)
			}
		case *page.EventJavascriptDialogOpening:
			b.complaints = append(b.complaints, "a dialog: "+e.Message)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// until waits until an expression holds.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression)
}

// eval returns the value of an expression, or what it promises.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

func (b *tab) text(id string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf("document.getElementById(%q).innerText", id))
}

func (b *tab) silent() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		b.t.Error("the browser complains: ", c)
	}
}

// The page says what /v1/events says, shows hostile names as text, and the
// browser has nothing to complain of, the Content-Security-Policy included.
func TestPageShowsWhatItIsTold(t *testing.T) {
	r := busy(12, 3)
	b := open(t, serve(t, r).URL())
	for id, want := range map[string][]string{
		"state": {"blocked on a record"}, "why": {"1 partitions are halted", "for 1 min "},
		"flow-lag": {"lag 1,234,000, 12 partitions"}, "flow-held": {"200 MiB"}, "flow-memory": {"of 256 MiB, 4,507 records"},
		"flow-indexers": {"2"}, "flow-requests": {"5 of 12 requests"}, "flow-letters": {"42"},
		"halted": {"events/3", "4,003", "rejected_record", hostile, "sluice skip events/3/4003"},
		"held":   {hostile, "cluster_block_exception", "5.0 MiB", "events-0002"},
		"topics": {hostile, "1,234,000", "1 min 2 s", "1 halted"}, "letters": {"mapper_parsing_exception", "41", hostile}, "customers": {hostile, "3.0 MiB", "62.5 %", "acme", "512 B"},
		"who": {"1.2.3, group " + hostile},
	} {
		got := b.text(id)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s shows %q, want %q", id, got, w)
			}
		}
	}
	if n := eval[int](b, "document.images.length"); n != 0 {
		t.Errorf("a name became %d pictures", n)
	}
	if title := eval[string](b, "document.title"); title != "Sluice" {
		t.Errorf("the title is %q", title)
	}

	// What comes next is shown next: a rate is the growth of a second.
	r.mu.Lock()
	grown := r.live["records"].(map[string]any)
	next := map[string]any{}
	for k, v := range grown {
		next[k] = v
	}
	next["consumed"] = grown["consumed"].(int) + 5000
	later := map[string]any{}
	for k, v := range r.live {
		later[k] = v
	}
	later["records"], later["state"], later["held"], later["held_count"], later["halted"] = next, "running", []any{}, 0, []any{}
	r.live = later
	r.mu.Unlock()
	b.run(until(`document.getElementById("flow-in").textContent !== "0 /s"`))
	var rate int
	if _, err := fmt.Sscanf(strings.ReplaceAll(b.text("flow-in"), ",", ""), "%d /s", &rate); err != nil || rate < 1000 || rate > 6000 {
		t.Errorf("5,000 records more are %q", b.text("flow-in"))
	}
	if class := eval[string](b, `document.getElementById("state").className`); class != "pill good" || eval[bool](b, `!document.getElementById("trouble").hidden`) {
		t.Errorf("all is well again, and the page shows %q", class)
	}

	b.run(chromedp.Click("#partitions-details summary"), chromedp.WaitVisible("#partitions table"))
	if rows := eval[int](b, `document.querySelectorAll("#partitions tbody tr").length`); rows != 12 || !strings.Contains(b.text("partitions"), "halted: rejected_record") {
		t.Errorf("%d partitions are shown:\n%s", rows, b.text("partitions"))
	}
	b.silent()
}

// migrations are an admin.Jobs with a hostile name.
type migrations struct{}

func (migrations) Jobs(context.Context) (any, error) {
	return []map[string]any{{"name": hostile, "state": "BACKFILLING", "line": "j7 BACKFILLING 61.2% " + hostile}}, nil
}

func (migrations) Job(context.Context, string) (any, error) { return nil, admin.ErrNoJob }

// Migrations are shown as /v1/jobs tells of them.
func TestPageShowsMigrations(t *testing.T) {
	s, err := admin.Listen(admin.Config{Address: "127.0.0.1:0"}, admin.Options{Process: busy(1, 1), Jobs: migrations{}, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	b := open(t, s.URL())
	b.run(chromedp.WaitVisible("#jobs table"))
	for _, want := range []string{hostile, "BACKFILLING", "61.2%"} {
		if got := b.text("jobs"); !strings.Contains(got, want) {
			t.Errorf("the migrations are %q, want %q", got, want)
		}
	}
	b.silent()
}

// The other tests hear what a browser complains of.
func TestComplaintsAreHeard(t *testing.T) {
	b := open(t, serve(t, busy(1, 1)).URL())
	b.run(chromedp.Evaluate[chromedp.Void](`console.error("ouch"); setTimeout(() => { throw new Error("thrown") })`))
	b.run(chromedp.Evaluate[chromedp.Void](`document.body.insertAdjacentHTML("beforeend", "<b onclick='x()'>")`)) // the policy refuses the handler
	for range 100 {
		b.run(until("true"))
		b.mu.Lock()
		heard := strings.Join(b.complaints, "\n")
		b.mu.Unlock()
		if strings.Contains(heard, "console.error") && strings.Contains(heard, "Uncaught") && strings.Contains(heard, "Content Security Policy") {
			return
		}
	}
	t.Errorf("only %q was heard", b.complaints)
}

// It can be read on a phone, in the dark and by keyboard.
func TestPageIsForEverybody(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join("..", "..", "integration_test", "cache", "axe.min.js"))
	if err != nil {
		t.Logf("axe-core is not there (make test-unit fetches it): %v", err)
	}
	b := open(t, serve(t, busy(12, 3)).URL())
	b.run(chromedp.Click("#partitions-details summary"), chromedp.WaitVisible("#partitions table"))
	for _, theme := range []string{"light", "dark"} {
		if eval[string](b, "document.documentElement.dataset.theme") != theme {
			// By keyboard: the button is reached with Tab and pressed with Enter.
			b.run(chromedp.Focus("#theme"), chromedp.KeyEvent("\r"))
		}
		if got := eval[string](b, "document.documentElement.dataset.theme"); got != theme {
			t.Fatalf("the theme is %s, want %s", got, theme)
		}
		for _, width := range []int64{1280, 390} {
			b.run(chromedp.EmulateViewport(width, 900), until(fmt.Sprintf("innerWidth === %d", width)))
			fits := fmt.Sprintf("document.documentElement.scrollWidth <= %d", width) // as soon as it has been laid out anew
			_ = chromedp.Do(b, chromedp.Poll[chromedp.Void](fits, chromedp.WithPollingTimeout(5*time.Second)))
			if wide := eval[int64](b, "document.documentElement.scrollWidth"); wide > width {
				t.Errorf("%s: the page is %d wide on a screen of %d", theme, wide, width)
			}
			if axe != nil {
				b.run(chromedp.Evaluate[chromedp.Void](string(axe)))
				found := eval[string](b, `axe.run().then((r) => JSON.stringify(r.violations.map((v) => ({rule: v.id, help: v.help, where: v.nodes.map((n) => n.html).slice(0, 3)}))))`)
				if found != "[]" {
					t.Errorf("%s, %d wide: axe: %s", theme, width, found)
				}
			}
			if *screenshots != "" {
				picture, err := chromedp.Run(b, chromedp.FullScreenshot(100))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(*screenshots, fmt.Sprintf("page-%s-%d.png", theme, width)), picture, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	b.silent()
}

// It says when what it shows is old, and goes on by itself.
func TestPageLosesTheConnection(t *testing.T) {
	r := busy(12, 3)
	s := serve(t, r)
	b := open(t, s.URL())
	b.mu.Lock()
	b.expected = true
	b.mu.Unlock()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.WaitVisible("#lost"))
	if text := b.text("lost"); !strings.Contains(text, "connection is lost since") {
		t.Errorf("the page says %q", text)
	}
	again, err := admin.Listen(admin.Config{Address: s.Addr()}, admin.Options{Process: r, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	b.run(chromedp.WaitNotVisible("#lost"))
}

// A large replica: everything is there, and the stream stays small.
func TestPageOfALargeReplica(t *testing.T) {
	r := busy(1000, 1000)
	b := open(t, serve(t, r).URL())
	told, err := json.Marshal(r.Live())
	if err != nil || len(told) > 64<<10 {
		t.Errorf("%d bytes a second, %v", len(told), err)
	}
	if held := b.text("held"); !strings.Contains(held, "and 900 more: sluice target list") {
		t.Errorf("held targets: %.200s", held)
	}
	b.run(chromedp.Click("#partitions-details summary"), chromedp.WaitVisible("#partitions table"))
	if rows := eval[int](b, `document.querySelectorAll("#partitions tbody tr").length`); rows != 1000 {
		t.Errorf("%d partitions are shown", rows)
	}
	b.silent()
}
