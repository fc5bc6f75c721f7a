package indexer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig() Config {
	return Config{
		FlushBytes: 64 << 10, FlushDocuments: 1000, FlushInterval: time.Second,
		Requests: Requests{Min: 1, Max: 8},
		Scaling:  Scaling{Min: 3, Max: 3},
		Retry:    Retry{Initial: 100 * time.Millisecond, Max: 5 * time.Second, ItemAttempts: 10},
	}
}

func testOptions(s Transport) Options {
	return Options{
		Transport: s, Budget: memory.New(64 << 20), RequestTimeout: 20 * time.Second,
		MaxShare: 0.05, Log: zerolog.Nop(),
	}
}

func index(src Source, seq uint64, target, id, body string) *Action {
	return &Action{
		Action:  bulk.Action{Op: bulk.Index, Target: target, ID: []byte(id), Body: []byte(body)},
		Ordered: true, Source: src, Seq: seq, Meta: []byte("m" + id),
	}
}

func remove(src Source, seq uint64, target, id string) *Action {
	return &Action{
		Action:  bulk.Action{Op: bulk.Delete, Target: target, ID: []byte(id)},
		Ordered: true, Source: src, Seq: seq,
	}
}

func add(t *testing.T, w *Writer, a *Action) {
	t.Helper()
	if err := w.Add(context.Background(), a); err != nil {
		t.Fatal(err)
	}
}

// waitFor lets virtual time pass until the source has heard of n actions.
func waitFor(t *testing.T, x *Indexer, rec *recorder, n int) {
	t.Helper()
	for range 2 * 3600 {
		if rec.count() >= n {
			return
		}
		pass(time.Second)
	}
	defer x.Close()
	t.Fatalf("heard of %d actions of %d after two hours; status %+v", rec.count(), n, x.Status())
}

func closeAll(t *testing.T, x *Indexer) {
	t.Helper()
	x.Close()
	x.Close()
	if used := x.opt.Budget.Used(); used != 0 {
		t.Errorf("%d bytes of the budget are still taken", used)
	}
}

// The whole of it: random actions on few ids, random faults of every kind. At
// the end each id holds its last action, each action was reported once, the bad
// ones as rejected, and no id was ever in two requests.
func TestChaos(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	faults := rand.New(rand.NewPCG(seed, 1))
	s := newServer(t)
	var calm bool
	s.latency = func() time.Duration { return time.Duration(faults.IntN(500)) * time.Millisecond }
	s.fail = func(*request) error {
		if !calm && chance(faults, 0.1) {
			return errReset
		}
		return nil
	}
	s.before = func(r *request) *http.Response {
		for _, a := range r.actions {
			if strings.Contains(a.body, "spoils its request") {
				return answer(400, `{"error":{"type":"illegal_argument_exception","reason":"bad"},"status":400}`)
			}
		}
		if calm {
			return nil
		}
		switch p := faults.Float64(); {
		case p < 0.05:
			return answer(429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`)
		case p < 0.08:
			return answer(503, "")
		case p < 0.09:
			return answer(401, `{"error":{"type":"security_exception","reason":"no"},"status":401}`)
		case p < 0.10:
			return answer(404, "not here")
		}
		return nil
	}
	s.after = func(*request) *http.Response {
		if calm {
			return nil
		}
		switch p := faults.Float64(); {
		case p < 0.05:
			return answer(200, `{"errors":false,"items":[{"index":{"stat`)
		case p < 0.08:
			return answer(200, `<html>proxy</html>`)
		case p < 0.1:
			return answer(200, `{"errors":false,"items":[]}`)
		}
		return nil
	}
	blockedUntil := time.Now().Add(time.Duration(faults.IntN(60)) * time.Second)
	s.item = func(a action) *fault {
		switch {
		case strings.Contains(a.body, "bad mapping"):
			return &fault{400, "document_parsing_exception", "failed to parse"}
		case strings.Contains(a.body, "always fails"):
			return &fault{500, "exception", "ingest"}
		case a.target == "blocked" && time.Now().Before(blockedUntil):
			return &fault{403, "cluster_block_exception", "index [blocked] blocked by"}
		case !calm && chance(faults, 0.1):
			return &fault{429, "es_rejected_execution_exception", "full"}
		}
		return nil
	}
	if chance(faults, 0.3) {
		s.refuseOver = 30 << 10
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	opt := testOptions(s)
	opt.MaxShare = 0
	opt.CompressionLevel = rnd.IntN(2)
	x := New(testConfig(), opt)
	w := x.NewWriter()
	rec := newRecorder(t)
	targets := []string{"a", "b", "blocked"}
	last := map[string]string{}
	bad, mayBe := map[uint64]bool{}, map[uint64]bool{}
	n := 1500
	for seq := range uint64(n) {
		target := targets[rnd.IntN(len(targets))]
		id := fmt.Sprintf("id \"%d", rnd.IntN(40))
		k := target + "/" + id
		switch p := rnd.Float64(); {
		case p < 0.2:
			add(t, w, remove(rec, seq, target, id))
			delete(last, k)
		case p < 0.21:
			add(t, w, index(rec, seq, target, id, `{"x":"bad mapping"}`))
			bad[seq] = true
		case p < 0.213:
			add(t, w, index(rec, seq, target, id, `{"x":"always fails"}`))
			mayBe[seq] = true // stale, if a later one shared its request
		case p < 0.216:
			add(t, w, index(rec, seq, target, id, `{"x":"spoils its request"}`))
			bad[seq] = true
		default:
			body := fmt.Sprintf(`{"seq":%d,"pad":%q}`, seq, strings.Repeat("x", rnd.IntN(300)))
			add(t, w, index(rec, seq, target, id, body))
			last[k] = body
		}
		if rnd.IntN(20) == 0 {
			w.Publish()
			pass(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
	}
	w.Publish()
	pass(30 * time.Second)
	synctest.Wait()
	s.mu.Lock()
	calm = true
	s.mu.Unlock()
	// A record that spoils its request is told from a server that refuses
	// everything by what is accepted after it.
	for i := range 3 {
		pass(time.Minute)
		for k, target := range targets {
			seq := uint64(n + 3*i + k)
			add(t, w, index(rec, seq, target, "good", `{}`))
			last[target+"/good"] = `{}`
		}
		w.Publish()
	}
	waitFor(t, x, rec, n+9)
	for seq := range uint64(n) {
		if _, rejected := rec.rejected[seq]; rejected != bad[seq] && !mayBe[seq] {
			t.Errorf("action %d: rejected %t, bad %t: %+v", seq, rejected, bad[seq], rec.rejected[seq])
		}
	}
	for k, body := range last {
		if s.docs[k] != body {
			t.Errorf("%s holds %.30q, want %.30q", k, s.docs[k], body)
		}
	}
	for k := range s.docs {
		if _, ok := last[k]; !ok {
			t.Errorf("%s is there again", k)
		}
	}
	closeAll(t, x)
}
