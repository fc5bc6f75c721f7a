package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/partition"
)

var _ Stream = (*partition.Watcher)(nil)

// control keeps one control document; nil: it cannot be read.
type control struct {
	mu  sync.Mutex
	doc json.RawMessage
}

func (c *control) Get(_ context.Context, _ string, doc any) (seqNo, primaryTerm int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doc == nil {
		return 0, 0, errors.New("connection refused")
	}
	return 1, 1, json.Unmarshal(c.doc, doc)
}

func (c *control) Create(context.Context, string, any) error { return errors.ErrUnsupported }

func (c *control) Update(context.Context, string, any, int64, int64) error {
	return errors.ErrUnsupported
}

func (c *control) set(t testing.TB, table *partition.Table) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doc = nil
	if table != nil {
		doc, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		c.doc = doc
	}
}

// table is of a stream in W2 whose customer "in" is cut over.
func table(epoch int64) *partition.Table {
	t := partition.New("events", "events")
	t.Epoch, t.Job, t.Write = epoch, "j7", partition.W2
	t.Partitions = map[string]partition.Partition{"p000": {Index: "events-p000-j7", Alias: "events-read-p000", State: partition.Active}}
	t.SlotMap = slices.Repeat([]string{"p000"}, t.Slots)
	t.Read.Allow = []string{"in"}
	return t
}

// serve returns a server that follows a table, and what refreshes it.
func serve(t testing.TB, o partition.WatcherOptions) (s *Server, c *control, w *partition.Watcher) {
	t.Helper()
	c = &control{}
	w = partition.NewWatcher(partition.NewStore(c), "events", o)
	s, err := Listen(Config{Address: "127.0.0.1:0"}, Options{
		Process: &process{}, Streams: map[string]Stream{"events": w}, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, c, w
}

func get(t testing.TB, url string) (status int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, nil, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func TestRouteOfACustomer(t *testing.T) {
	s, c, w := serve(t, partition.WatcherOptions{Interval: 2 * time.Second, MaxStaleness: time.Hour})
	at := s.URL() + "/v1/streams/events/route"
	if status, header, body := get(t, at+"?customer=in"); status != 503 || header.Get("Retry-After") == "" || !strings.Contains(body, "was not read yet") {
		t.Errorf("without a table: %d %s", status, body)
	}
	c.set(t, table(17))
	if _, err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for customer, want := range map[string]string{"in": "events-read-p000", "out": "events", "é &=*": "events"} {
		status, header, body := get(t, at+"?customer="+url.QueryEscape(customer))
		var answer LookupAnswer
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		if status != 200 || answer.Index != want || answer.Epoch != 17 || answer.TTL != 2 || answer.Valid < 3500 || answer.Valid > 3600 || answer.Stale || header.Get("Sluice-Routing-Epoch") != "17" {
			t.Errorf("%s: %d %s %v", customer, status, body, header)
		}
	}
}

func TestRouteRefusesWithARemedy(t *testing.T) {
	s, c, w := serve(t, partition.WatcherOptions{})
	c.set(t, table(1))
	if _, err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"events/route":                                      "400 which customer? Ask with ?customer=ID",
		"events/route?customer=":                            "400 a customer is not empty",
		"events/route?customer=a&customer=b":                "400 customer is there 2 times; ask for one",
		"events/route?cusotmer=a":                           "400 there is no parameter \"cusotmer\"; use customer",
		"events/route?customer=%ff":                         "400 a customer is UTF-8",
		"events/route?customer=%zz":                         "400 the query cannot be read",
		"events/route?customer=" + strings.Repeat("x", 257): "400 a customer has 256 bytes at most",
		"other/route?customer=a":                            "404 there is no stream \"other\" here; this Sluice has events",
		"events/routes?wait_epoch=x":                        "400 wait_epoch is an epoch",
		"events/routes?wait_epoch=-1":                       "400 wait_epoch is an epoch",
		"events/routes?wait_epoch=":                         "400 wait_epoch is an epoch",
		"events/routes?epoch=1":                             "400 there is no parameter \"epoch\"; use wait_epoch",
		"other/routes":                                      "404 there is no stream \"other\" here",
	} {
		status, _, body := get(t, s.URL()+"/v1/streams/"+path)
		var failure Failure
		if err := json.Unmarshal([]byte(body), &failure); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(status, " ", failure.Error); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s\nwant %s", path, got, want)
		}
	}
	plain := listen(t, Config{}, &process{})
	if status, _, body := get(t, plain.URL()+"/v1/streams/events/route?customer=a"); status != 404 || !strings.Contains(body, "routing.stream is empty") {
		t.Errorf("without streams: %d %s", status, body)
	}
}

// A long poll ends with the table that it waits for, which is the stored
// document.
func TestRoutesLongPoll(t *testing.T) {
	s, c, w := serve(t, partition.WatcherOptions{})
	at := s.URL() + "/v1/streams/events/routes"
	if status, _, body := get(t, at+"?wait_epoch=0"); status != 503 || !strings.Contains(body, "was not read yet") {
		t.Errorf("without a table: %d %s", status, body)
	}
	c.set(t, table(17))
	if _, err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{"", "?wait_epoch=0", "?wait_epoch=17"} {
		status, header, body := get(t, at+query)
		now, err := partition.Parse([]byte(body))
		if err != nil || status != 200 || now.Epoch != 17 || header.Get("Sluice-Routing-Epoch") != "17" || header.Get("Sluice-Routing-Valid") == "" {
			t.Errorf("%q: %d %v %s", query, status, err, body)
		}
	}
	var polls sync.WaitGroup
	for range 3 {
		polls.Go(func() {
			status, _, body := get(t, at+"?wait_epoch=18")
			if next, err := partition.Parse([]byte(body)); err != nil || status != 200 || next.Epoch != 18 {
				t.Errorf("%d %v %s", status, err, body)
			}
		})
	}
	for _, epoch := range []int64{17, 18} {
		c.set(t, table(epoch))
		if _, err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	polls.Wait()
}

// direct returns the handler itself, for tests in virtual time: no sockets.
func direct(closing context.Context, w Stream, polls int) http.Handler {
	s := &Server{process: &process{}, log: zerolog.Nop()}
	s.routing = &streams{s, map[string]Stream{"events": w}, make(chan struct{}, polls), closing}
	return s.handler(prometheus.NewRegistry())
}

func ask(handler http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return w
}

// A poll that nothing comes for confirms the table; more polls than there is
// room for are told to go elsewhere; none outlives the server or the table.
func TestRoutesLongPollsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &control{}
		c.set(t, table(17))
		w := partition.NewWatcher(partition.NewStore(c), "events", partition.WatcherOptions{Interval: time.Second, MaxStaleness: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		defer running.Wait()
		defer cancel()
		closing, closed := context.WithCancel(t.Context())
		handler := direct(closing, w, 2)
		synctest.Wait()

		start, got := time.Now(), make(chan *httptest.ResponseRecorder, 2)
		poll := func() { got <- ask(handler, "/v1/streams/events/routes?wait_epoch=18") }
		go poll()
		go poll()
		synctest.Wait()
		if full := ask(handler, "/v1/streams/events/routes?wait_epoch=18"); full.Code != 503 || full.Header().Get("Retry-After") != "1" || !strings.Contains(full.Body.String(), "another replica") {
			t.Errorf("a third poll: %d %s", full.Code, full.Body)
		}
		if route := ask(handler, "/v1/streams/events/route?customer=a"); route.Code != 200 {
			t.Errorf("polls keep lookups away: %d %s", route.Code, route.Body)
		}
		for range 2 {
			if r := <-got; r.Code != 204 || time.Since(start) != pollTime || r.Header().Get("Sluice-Routing-Epoch") != "17" || r.Header().Get("Sluice-Routing-Valid") < "58" {
				t.Errorf("after %s: %d %v %s", time.Since(start), r.Code, r.Header(), r.Body)
			}
		}

		c.set(t, nil) // the control index is away
		start = time.Now()
		for stale := false; !stale; {
			go poll()
			r := <-got
			stale = r.Code == 503
			if after := time.Since(start); stale && (!strings.Contains(r.Body.String(), "could not be confirmed") || after < time.Minute-time.Second) || after > 2*time.Minute {
				t.Fatalf("after %s: %d %s", after, r.Code, r.Body)
			}
		}
		if r := ask(handler, "/v1/streams/events/route?customer=in"); r.Code != 200 || !strings.Contains(r.Body.String(), `"index":"events"`) || !strings.Contains(r.Body.String(), `"stale":true`) {
			t.Errorf("a reader of a stale table: %d %s", r.Code, r.Body)
		}

		go poll()
		synctest.Wait()
		start = time.Now()
		closed()
		if r := <-got; r.Code != 503 || time.Since(start) != 0 || !strings.Contains(r.Body.String(), "stops") {
			t.Errorf("a poll at the end, after %s: %d %s", time.Since(start), r.Code, r.Body)
		}
	})
}

// A server that closes waits for no long poll.
func TestCloseEndsLongPolls(t *testing.T) {
	s, c, w := serve(t, partition.WatcherOptions{})
	c.set(t, table(17))
	if _, err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	status := make(chan int, 1)
	go func() {
		code, _, _ := get(t, s.URL()+"/v1/streams/events/routes?wait_epoch=18")
		status <- code
	}()
	for len(s.routing.polls) == 0 {
		runtime.Gosched()
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if code := <-status; code != 503 {
		t.Errorf("the poll ended with %d", code)
	}
}

// BenchmarkRouteLookup asks over loopback connections that stay open, as a pool
// of readers does, and reports the CPU time of a lookup (clients included, which
// cost little) and the slowest of a hundred.
func BenchmarkRouteLookup(b *testing.B) {
	s, c, w := serve(b, partition.WatcherOptions{})
	c.set(b, table(17))
	if _, err := w.Refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	var times []time.Duration
	before := cpuTime(b)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		answers := bufio.NewReader(conn)
		var request []byte
		var mine []time.Duration
		for i := 0; pb.Next(); i++ {
			start := time.Now()
			request = fmt.Appendf(request[:0], "GET /v1/streams/events/route?customer=customer-%d HTTP/1.1\r\nHost: localhost\r\n\r\n", i%1000)
			if _, err := conn.Write(request); err != nil {
				b.Error(err)
				return
			}
			if err := skipAnswer(answers); err != nil {
				b.Error(err)
				return
			}
			mine = append(mine, time.Since(start))
		}
		mu.Lock()
		defer mu.Unlock()
		times = append(times, mine...)
	})
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lookups/s")
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}

// skipAnswer reads one answer of status 200.
func skipAnswer(r *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
			return fmt.Errorf("the answer is %q", line)
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			_, err := r.Discard(length)
			return err
		}
	}
}

// cpuTime is what the process has used so far.
func cpuTime(tb testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkRouteHandler is the server's own part, without sockets and clients.
func BenchmarkRouteHandler(b *testing.B) {
	c := &control{}
	c.set(b, table(17))
	w := partition.NewWatcher(partition.NewStore(c), "events", partition.WatcherOptions{})
	if _, err := w.Refresh(b.Context()); err != nil {
		b.Fatal(err)
	}
	handler := direct(b.Context(), w, 1)
	b.ReportAllocs()
	for b.Loop() {
		if r := ask(handler, "/v1/streams/events/route?customer=customer-17"); r.Code != 200 {
			b.Fatal(r.Code)
		}
	}
}
