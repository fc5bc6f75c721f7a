package embedded

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

const oneDoc = `{"index":{"_index":"i","_id":"1"}}` + "\n{}\n"

// post sends a bulk request on a goroutine and returns what came of it.
type posted struct {
	status int
	body   string
	err    error
}

func post(ctx context.Context, es *Elasticsearch, body string) <-chan posted {
	done := make(chan posted, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://embedded/_bulk", strings.NewReader(body))
		if err != nil {
			done <- posted{err: err}
			return
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		resp, err := es.Transport().RoundTrip(req)
		if err != nil {
			done <- posted{err: err}
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		done <- posted{resp.StatusCode, string(b), err}
	}()
	return done
}

func TestWriteBlockWaitsForWritesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := NewElasticsearch(Config{})
		defer es.Close()
		must(t, es, http.MethodPut, "/i", "")
		release := make(chan struct{})
		es.Inject(Rule{API: "bulk", Next: 1, Fault: Fault{HoldWrite: release}})
		write := post(t.Context(), es, oneDoc)
		synctest.Wait()
		blocked := make(chan struct{})
		go func() {
			defer close(blocked)
			must(t, es, http.MethodPut, "/i/_block/write", "")
		}()
		synctest.Wait()
		select {
		case <-blocked:
			t.Fatal("the block was acknowledged with a write in flight")
		default:
		}
		if items := bulk(t, es, `{"index":{"_index":"i","_id":"2"}}`, `{}`); items[0].Status != 403 {
			t.Errorf("a write that came after the block was answered %+v", items[0])
		}
		close(release)
		<-blocked
		if p := <-write; p.err != nil || decodeBulk(t, p.body)[0].Status != 201 {
			t.Errorf("the write in flight ended with %+v", p)
		}
	})
}

func TestFaults(t *testing.T) {
	stored := func(es *Elasticsearch) bool {
		_, _, found := es.Get("i", "1")
		return found
	}
	for _, tc := range []struct {
		name    string
		fault   Fault
		status  int // 0: an error
		stored  bool
		product bool
		body    string
	}{
		{"refused", Refused(), 0, false, false, ""},
		{"429", TooManyRequests(7), 429, false, true, "es_rejected_execution_exception"},
		{"circuit breaker", CircuitBreaker(), 429, false, true, "circuit_breaking_exception"},
		{"503", Unavailable(), 503, false, true, "no master"},
		{"500", ServerError(), 500, false, true, "null_pointer_exception"},
		{"proxy", HTML(502), 502, false, false, "<html>"},
		{"wrong address", HTML(200), 200, false, false, "<html>"},
		{"401", Unauthorized(), 401, false, false, "security_exception"},
		{"403", Forbidden(), 403, false, false, "unauthorized"},
		{"413", TooLarge(), 413, false, false, ""},
		{"cut", Cut(9), -200, true, true, `{"errors"`},
		{"lost", Lost(), 0, true, false, ""},
		{"one item less", OneItemLess(), 200, true, true, `"items":[]`},
		{"items", FailItems(ItemError{Status: 429, Type: "es_rejected_execution_exception", Reason: "full"}, nil), 200, false, true, `"status":429`},
		{"other items", FailItems(ItemError{Status: 429}, func(a Action) bool { return string(a.ID) == "2" }), 200, true, true, `"errors":false`},
		{"all items rejected", RejectItems(1, 1), 200, false, true, `"status":429`},
		{"no items rejected", RejectItems(0, 1), 200, true, true, `"errors":false`},
		{"answer of its own", Fault{Status: 500, Apply: true}, 500, true, true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			es := NewElasticsearch(Config{})
			defer es.Close()
			in := es.Inject(Rule{API: "bulk", Index: "i*", Next: 1, Fault: tc.fault})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://embedded/_bulk", strings.NewReader(oneDoc))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := es.Transport().RoundTrip(req)
			if tc.status == 0 {
				if err == nil {
					t.Errorf("status %d, want an error", resp.StatusCode)
					_ = resp.Body.Close()
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				body, rerr := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if cut := tc.status < 0; cut != (rerr != nil) {
					t.Errorf("reading the body: %v", rerr)
				}
				if resp.StatusCode != max(tc.status, -tc.status) || !strings.Contains(string(body), tc.body) {
					t.Errorf("answer %d %s, want %d with %q", resp.StatusCode, body, tc.status, tc.body)
				}
				if got := resp.Header.Get("X-Elastic-Product") != ""; got != tc.product {
					t.Errorf("product header: %v, want %v", got, tc.product)
				}
			}
			if stored(es) != tc.stored {
				t.Errorf("stored: %v, want %v", !tc.stored, tc.stored)
			}
			if in.Hits() != 1 {
				t.Errorf("%d hits, want 1", in.Hits())
			}
			if items := bulk(t, es, `{"index":{"_index":"i","_id":"1"}}`, `{}`); items[0].Status >= 300 {
				t.Errorf("the fault outlives its request: %+v", items[0])
			}
		})
	}
}

func TestRefusedIsARefusedConnection(t *testing.T) {
	es := NewElasticsearch(Config{})
	es.Inject(Rule{Fault: Refused()})
	for range 2 { // the second time the node is closed
		if _, _, err := try(t, es, http.MethodGet, "/", ""); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("error %v, want a refused connection", err)
		}
		es.Close()
	}
}

func TestRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := NewElasticsearch(Config{Seed: 1})
		defer es.Close()
		status := func(path string) int {
			s, _ := do(t, es, http.MethodGet, path, "")
			return s
		}
		in := es.Inject(Rule{API: "info", From: time.Now().Add(time.Second), Until: time.Now().Add(2 * time.Second), Fault: Answer(599, "")})
		var got []int
		for range 3 {
			got = append(got, status("/"))
			pass(time.Second)
		}
		if !slices.Equal(got, []int{200, 599, 200}) {
			t.Errorf("statuses %v over the seconds, want the second one only to fail", got)
		}
		in.Remove()
		in.Remove() // twice is fine
		in = es.Inject(Rule{API: "health", Share: 0.25, Fault: Answer(599, "")})
		for range 1000 {
			status("/_cluster/health")
		}
		if n := in.Hits(); n < 200 || n > 300 {
			t.Errorf("a share of a quarter fell on %d of 1000", n)
		}
		in.Remove()
		es.Inject(Rule{Fault: Slow(time.Second)})
		es.Intercept(func(r *Request) *Fault {
			if r.Path == "/_cluster/health" {
				return &Fault{Delay: time.Second, Status: 598}
			}
			return nil
		})
		start := time.Now()
		if s := status("/_cluster/health"); s != 598 || time.Since(start) != 2*time.Second {
			t.Errorf("status %d after %v, want 598 after both delays", s, time.Since(start))
		}
		es.Intercept(nil)
		if s := status("/_cluster/health"); s != 200 {
			t.Errorf("status %d after the intercept was removed", s)
		}
	})
}

func TestTargetsOfABulk(t *testing.T) {
	es := NewElasticsearch(Config{})
	defer es.Close()
	es.Inject(Rule{Index: "b", Fault: Answer(599, "")})
	for body, want := range map[string]int{
		`{"delete":{"_index":"a","_id":"1"}}` + "\n":                                                200,
		`{"delete":{"_index":"a","_id":"1"}}` + "\n" + `{"delete":{"_index":"b","_id":"1"}}` + "\n": 599,
	} {
		if s, text := do(t, es, http.MethodPost, "/_bulk", body); s != want {
			t.Errorf("%q: %d %s, want %d", body, s, text, want)
		}
	}
}

// A client that gives up leaves the node to go on or not, as the fault says; the
// transport returns at once and nothing leaks.
func TestCancelledRequests(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  func(release chan struct{}) Fault
		stored bool
	}{
		{"on its way", func(c chan struct{}) Fault { return Held(c) }, false},
		{"a zombie's write", func(c chan struct{}) Fault { return Fault{Hold: c, Late: true} }, true},
		{"a slow zombie", func(chan struct{}) Fault { return Fault{Delay: time.Hour, Late: true} }, true},
		{"slow", func(chan struct{}) Fault { return Slow(time.Hour) }, false},
		{"in the node", func(c chan struct{}) Fault { return Fault{HoldWrite: c} }, true},
		{"answer held", func(c chan struct{}) Fault { return Fault{HoldAnswer: c} }, true},
		{"never answered", func(chan struct{}) Fault { return Unanswered() }, false},
		{"never answered, but done", func(chan struct{}) Fault { return Fault{Never: true, Apply: true} }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				es := NewElasticsearch(Config{})
				release := make(chan struct{})
				es.Inject(Rule{API: "bulk", Fault: tc.fault(release)})
				cause := errors.New("enough")
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
				defer cancel()
				start := time.Now()
				p := <-post(ctx, es, oneDoc)
				if !errors.Is(p.err, cause) || time.Since(start) != time.Second {
					t.Errorf("ended with %v after %v, want the context's cause after a second", p.err, time.Since(start))
				}
				close(release)
				pass(2 * time.Hour)
				if _, _, found := es.Get("i", "1"); found != tc.stored {
					t.Errorf("stored: %v, want %v", found, tc.stored)
				}
				es.Close()
				es.Close()
			})
		})
	}
}

func TestCloseReleasesWhatIsHeld(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		es := NewElasticsearch(Config{})
		es.Inject(Rule{Fault: Fault{HoldWrite: make(chan struct{}), Late: true}})
		held := post(t.Context(), es, oneDoc)
		synctest.Wait()
		es.Close()
		if p := <-held; p.status == 200 {
			t.Errorf("a request that was held at the close ended with %+v", p)
		}
	})
}

func TestRefreshInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := NewElasticsearch(Config{})
		defer es.Close()
		count := func() string { return must(t, es, http.MethodGet, "/i/_count?filter_path=count", "") }
		bulk(t, es, `{"index":{"_index":"i","_id":"1"}}`, `{}`)
		pass(time.Second - 1)
		if got := count(); got != `{"count":0}` {
			t.Errorf("%s just before the refresh interval has passed", got)
		}
		pass(1)
		bulk(t, es, `{"index":{"_index":"i","_id":"2"}}`, `{}`)
		if got := count(); got != `{"count":1}` {
			t.Errorf("%s after the refresh interval, with one newer write", got)
		}
		must(t, es, http.MethodPut, "/i/_settings", `{"refresh_interval":"-1"}`)
		pass(time.Hour)
		if got := count(); got != `{"count":1}` {
			t.Errorf("%s with refreshes off", got)
		}
		must(t, es, http.MethodPost, "/i/_refresh", "")
		if got := count(); got != `{"count":2}` {
			t.Errorf("%s after a refresh", got)
		}
	})
}

func TestDeletesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := NewElasticsearch(Config{History: true})
		defer es.Close()
		del := `{"delete":{"_index":"i","_id":"1","version":10,"version_type":"external"}}`
		old := `{"index":{"_index":"i","_id":"1","version":5,"version_type":"external"}}`
		bulk(t, es, del)
		pass(time.Minute)
		if got := bulk(t, es, old, `{}`)[0]; got.Status != 409 {
			t.Errorf("%+v at gc_deletes: the delete still counts", got)
		}
		if v, deleted, known := es.Known("i", "1"); v != 10 || !deleted || !known {
			t.Errorf("known %d %v %v, want the delete's version", v, deleted, known)
		}
		pass(1)
		if got := bulk(t, es, old, `{}`)[0]; got.Status != 201 {
			t.Errorf("%+v after gc_deletes: an older write revives the document", got)
		}
		// Pruning keeps what is written again and what is not due.
		bulk(t, es, `{"delete":{"_index":"i","_id":"2","version":1,"version_type":"external"}}`)
		pass(2 * time.Minute)
		must(t, es, http.MethodPost, "/i/_refresh", "")
		if _, v, found := es.Get("i", "1"); !found || v != 5 {
			t.Errorf("document 1: %d %v", v, found)
		}
		s := es.allIndices()[0].shards[0]
		s.mu.Lock()
		slots, deletes := len(s.mu.slots), len(s.mu.deletes)
		s.mu.Unlock()
		if slots != 1 || deletes != 0 {
			t.Errorf("%d slots and %d deletes are kept, want 1 and 0", slots, deletes)
		}
		want := []Op{{"1", true, 10, 0}, {"1", false, 5, 1}, {"2", true, 1, 2}}
		if got := es.Ops("i"); !slices.Equal(got, want) {
			t.Errorf("history %v, want %v", got, want)
		}
		if v, ok := es.Peak("i", "1"); v != 10 || !ok {
			t.Errorf("peak %d %v: the highest version ever accepted is not forgotten", v, ok)
		}
	})
}

func TestRestartRaisesThePrimaryTerm(t *testing.T) {
	es := NewElasticsearch(Config{})
	defer es.Close()
	bulk(t, es, `{"index":{"_index":"i","_id":"1"}}`, `{"a":1}`)
	es.Restart()
	if got := must(t, es, http.MethodPut, "/i/_doc/2", `{}`); !strings.Contains(got, `"_seq_no":1,"_primary_term":2`) {
		t.Errorf("a write after the restart: %s", got)
	}
	if src, v, found := es.Get("i", "1"); string(src) != `{"a":1}` || v != 1 || !found {
		t.Errorf("document 1 after the restart: %s %d %v", src, v, found)
	}
}

func TestAuthentication(t *testing.T) {
	es := NewElasticsearch(Config{Username: "u", Password: "p", APIKey: "key"})
	defer es.Close()
	for _, tc := range []struct {
		header string
		want   int
	}{{"", 401}, {"Basic dTpw", 200}, {"Basic dTpx", 401}, {"ApiKey key", 200}, {"ApiKey no", 401}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://embedded/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if tc.header != "" {
			req.Header.Set("Authorization", tc.header)
		}
		resp, err := es.Transport().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tc.want || tc.want == 401 && resp.Header.Get("X-Elastic-Product") != "" {
			t.Errorf("%q: %d %v, want %d", tc.header, resp.StatusCode, resp.Header, tc.want)
		}
	}
	es.SetCredentials("", "", "")
	if s, _ := do(t, es, http.MethodGet, "/", ""); s != 200 {
		t.Errorf("%d after the credentials were taken away", s)
	}
}

func TestFlavours(t *testing.T) {
	for flavour, want := range map[Flavour][2]string{FlavourElasticsearch: {"Elasticsearch", "-"}, FlavourOpenSearch: {"", "opensearch"}} {
		es := NewElasticsearch(Config{Flavour: flavour})
		defer es.Close()
		body := must(t, es, http.MethodGet, "/", "")
		if has := strings.Contains(body, `"distribution":"opensearch"`); has != (want[1] == "opensearch") {
			t.Errorf("info %s", body)
		}
		text := must(t, es, http.MethodPost, "/_bulk", oneDoc)
		if first := strings.HasPrefix(text, `{"took"`); first != (flavour == FlavourOpenSearch) {
			t.Errorf("bulk answer %s", text)
		}
	}
}

func TestHealth(t *testing.T) {
	es := NewElasticsearch(Config{})
	defer es.Close()
	es.SetHealth("red")
	if got := must(t, es, http.MethodGet, "/_cluster/health?filter_path=status", ""); got != `{"status":"red"}` {
		t.Error(got)
	}
	if s, _ := do(t, es, http.MethodGet, "/_cluster/health?wait_for_status=yellow&timeout=1s", ""); s != 408 {
		t.Errorf("waiting for yellow while red: %d", s)
	}
	es.SetHealth("")
	if got := must(t, es, http.MethodGet, "/_cluster/health?filter_path=status", ""); got != `{"status":"green"}` {
		t.Error(got)
	}
}

func TestFailedShards(t *testing.T) {
	es := NewElasticsearch(Config{})
	defer es.Close()
	must(t, es, http.MethodPost, "/_bulk?refresh=true", oneDoc)
	es.Inject(Rule{API: "search", Fault: Fault{FailShards: true}})
	if got := must(t, es, http.MethodPost, "/i/_search?filter_path=_shards.failed,hits.hits", ""); got != `{"_shards":{"failed":1},"hits":{"hits":[]}}` {
		t.Errorf("a search that lost a shard: %s", got)
	}
	if s, _ := do(t, es, http.MethodPost, "/i/_search?allow_partial_search_results=false", ""); s != 503 {
		t.Errorf("without partial results: %d", s)
	}
}

func TestPointInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		es := NewElasticsearch(Config{})
		defer es.Close()
		must(t, es, http.MethodPut, "/i", `{"settings":{"number_of_shards":3}}`)
		var lines []string
		for _, id := range strings.Split("abcdefghij", "") {
			lines = append(lines, `{"index":{"_index":"i","_id":"`+id+`"}}`, `{}`)
		}
		must(t, es, http.MethodPost, "/_bulk?refresh=true", strings.Join(lines, "\n")+"\n")
		pit := must(t, es, http.MethodPost, "/i/_pit?keep_alive=1m&filter_path=id", "")
		must(t, es, http.MethodPost, "/_bulk?refresh=true", `{"delete":{"_index":"i","_id":"a"}}`+"\n"+`{"index":{"_index":"i","_id":"z"}}`+"\n{}\n")
		seen := 0
		for _, slice := range []string{"0", "1"} {
			got := must(t, es, http.MethodPost, "/_search?filter_path=hits.hits._id", `{"pit":`+pit+`,"size":100,"sort":["_shard_doc"],"slice":{"id":`+slice+`,"max":2}}`)
			seen += strings.Count(got, `"_id"`)
			if strings.Contains(got, `"z"`) {
				t.Errorf("a later write is seen: %s", got)
			}
		}
		if seen != 10 {
			t.Errorf("%d documents over both slices, want 10", seen)
		}
		pass(time.Minute + 1)
		if s, text := do(t, es, http.MethodPost, "/_search", `{"pit":`+pit+`}`); s != 404 || !strings.Contains(text, "search_context_missing_exception") {
			t.Errorf("a point in time past its keep_alive: %d %s", s, text)
		}
	})
}

// Many writers of one index, over real sockets, with gzip both ways.
func TestConcurrentWriters(t *testing.T) {
	es := NewElasticsearch(Config{})
	url, err := es.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for round := range 20 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/_bulk", strings.NewReader(string(benchBody(20, round))))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/x-ndjson")
				resp, err := client.Do(req)
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || !strings.HasPrefix(string(b), `{"errors":`) {
					t.Errorf("writer %d: %v %.100s", w, err, b)
				}
			}
		})
	}
	wg.Wait()
	client.CloseIdleConnections()
	if n := es.Count("bench"); n != 20 {
		t.Errorf("%d documents, want 20", n)
	}
	for d := range es.Docs("bench") {
		if d.Version != 20 {
			t.Errorf("document %s ended at version %d, want 20", d.ID, d.Version)
		}
	}
	es.Close()
}

// The version rules against a model that knows nothing of shards: whatever is
// written in whatever order, a document ends at the highest external version.
func TestExternalVersionsConverge(t *testing.T) {
	type op struct {
		id      string
		del     bool
		version int
	}
	rapid.Check(t, func(rt *rapid.T) {
		es := NewElasticsearch(Config{})
		defer es.Close()
		ops := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) op {
			return op{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "id"), rapid.Bool().Draw(rt, "delete"), rapid.IntRange(0, 9).Draw(rt, "version")}
		}), 1, 40).Draw(rt, "ops")
		best := map[string]op{}
		var body strings.Builder
		for _, o := range ops {
			verb := "index"
			if o.del {
				verb = "delete"
			}
			body.WriteString(`{"` + verb + `":{"_index":"i","_id":"` + o.id + `","version":` + string(rune('0'+o.version)) + `,"version_type":"external"}}` + "\n")
			if !o.del {
				body.WriteString("{}\n")
			}
			if b, ok := best[o.id]; !ok || o.version > b.version {
				best[o.id] = o
			}
		}
		must(t, es, http.MethodPost, "/_bulk", body.String())
		for id, want := range best {
			v, deleted, known := es.Known("i", id)
			if !known || v != int64(want.version) || deleted != want.del {
				rt.Fatalf("%s ended at %d deleted %v, want %+v", id, v, deleted, want)
			}
		}
	})
}

// Two templates may have the same priority if no name could match both.
func TestPatternsOverlap(t *testing.T) {
	for _, tc := range []struct {
		p, q string
		want bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a*", "a", true},
		{"a*", "b*", false},
		{"*a", "b*", true},
		{"", "*", true},
		{"e-*-j1*", "e-*-j2*", true},
		{"e-*-j1", "e-*-j2", false},
		{"e-p0-j1*", "e-p0-j10*", true},
		{"a*b", "a", false},
		{"", "a", false},
	} {
		if overlap(tc.p, tc.q) != tc.want || overlap(tc.q, tc.p) != tc.want {
			t.Errorf("%q and %q overlap: want %t", tc.p, tc.q, tc.want)
		}
	}
}
