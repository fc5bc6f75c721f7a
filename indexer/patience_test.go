package indexer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/memory"
)

// A server that says when to come back is not asked before, neither for a
// whole request nor for the items of one.
func TestRetryAfter(t *testing.T) {
	const asked = 30 * time.Second // retry.max is 5 s
	for name, refusal := range map[string]struct {
		status int
		body   string
	}{
		"request": {429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`},
		"items":   {200, `{"errors":true,"items":[{"index":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"full"}}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
				var times []time.Time
				s.before = func(*request) *http.Response {
					if times = append(times, time.Now()); len(times) > 1 {
						return nil
					}
					resp := answer(refusal.status, refusal.body)
					resp.Header.Set("Retry-After", "30")
					return resp
				}
				add(t, w, index(rec, 1, "a", "1", `{}`))
				w.Publish()
				waitFor(t, x, rec, 1)
				if len(times) != 2 || rec.got[1] != Indexed {
					t.Fatalf("%d requests, outcome %v", len(times), rec.got)
				}
				if waited := times[1].Sub(times[0]); waited < asked {
					t.Errorf("it came back after %v, the server asked for %v", waited, asked)
				}
			})
		})
	}
}

// A probe that is refused leaves its target held, since the same moment: it is
// one alarm, however long the cause lasts.
func TestRefusedProbeKeepsTheHold(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.item = func(action) *fault { return &fault{403, "cluster_block_exception", "blocked"} }
		add(t, w, index(rec, 1, "a", "1", `{}`))
		w.Publish()
		pass(5 * time.Second)
		first := x.Status().Held
		probes := locked(&s.mu, func() int { return s.requests })
		pass(time.Minute)
		last := x.Status().Held
		if len(first) != 1 || len(last) != 1 || last[0].Since != first[0].Since {
			t.Errorf("held %+v, a minute later %+v", first, last)
		}
		if n := locked(&s.mu, func() int { return s.requests }); n < probes+10 {
			t.Errorf("%d probes in a minute", n-probes)
		}
		x.Drop(rec)
	})
}

// A request is on the wire while its source is dropped, and turned away: the
// source's part of it is not sent again. Its partition is another member's now.
func TestDroppedIsNotSentAgain(t *testing.T) {
	rig(t, nil, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		s.latency = func() time.Duration { return 2 * time.Second }
		first := true
		s.before = func(*request) *http.Response {
			if !first {
				return nil
			}
			first = false
			return answer(429, `{"error":{"type":"es_rejected_execution_exception","reason":"full"},"status":429}`)
		}
		other := newRecorder(t)
		add(t, w, index(rec, 1, "a", "1", `{}`))
		add(t, w, index(other, 1, "a", "2", `{}`))
		w.Publish()
		pass(2 * time.Second) // it was sent after one, and is answered after three
		if n := locked(&s.mu, func() int { return s.serving }); n != 1 {
			t.Fatalf("%d requests are on the wire", n)
		}
		x.Drop(rec)
		waitFor(t, x, other, 1)
		if s.applied["a/1"] != 0 || s.applied["a/2"] != 1 {
			t.Errorf("applied %v", s.applied)
		}
	})
}

// drip is an answer that never ends and counts how many like it have given more
// than a small answer and are not closed.
type drip struct {
	text      byte // it repeats
	small     int
	given     int
	now, most *atomic.Int32
}

func (d *drip) Read(p []byte) (int, error) {
	before := d.given
	if d.given += len(p); before <= d.small && d.given > d.small {
		d.most.Store(max(d.most.Load(), d.now.Add(1)))
		pass(time.Second) // time for others to come as far
	}
	for i := range p {
		p[i] = d.text
	}
	if before == 0 {
		p[0] = '"'
	}
	return len(p), nil
}

func (d *drip) Close() error {
	if d.given > d.small {
		d.now.Add(-1)
	}
	return nil
}

// However many requests are answered without end, no more than one at a time is
// read beyond a small answer, what is read is charged and bounded by the limit, and
// everything is written once the server is well. It does not help a liar to say
// all of it in one text.
func TestAnswersWithoutEnd(t *testing.T) {
	const limit = 16 << 20
	for name, text := range map[string]byte{"nothing": 0, "one text": 'x', "texts": '"', "an escape": '\\'} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			rig(t, func(c *Config, o *Options) {
				c.FlushDocuments, c.Requests.Min, c.Requests.Max = 10, 8, 64
				c.Retry = Retry{Initial: time.Second, Max: time.Second, ItemAttempts: 1}
				o.Budget, o.Log = memory.New(limit), zerolog.New(&logged)
			}, func(s *server, x *Indexer, w *Writer, rec *recorder) {
				var now, most atomic.Int32
				lies := 8
				s.before = func(*request) *http.Response {
					if lies == 0 {
						return nil
					}
					lies--
					return &http.Response{StatusCode: 200, Header: http.Header{}, Body: &drip{text: text, small: x.smallAnswer() + 1, now: &now, most: &most}}
				}
				var charged int64
				s.after = func(*request) *http.Response { charged = max(charged, x.opt.Budget.Used()); return nil }
				for seq := range uint64(160) {
					add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
				}
				w.Publish()
				waitFor(t, x, rec, 160)
				if lies != 0 || most.Load() != 1 || len(rec.rejected) != 0 {
					t.Errorf("%d lies left, %d answers read at once, rejected %v", lies, most.Load(), rec.rejected)
				}
				if charged > limit/4 {
					t.Errorf("%d bytes were charged", charged)
				}
				if n := strings.Count(logged.String(), "does not end where any server's would"); n != 8 {
					t.Errorf("it is told %d times:\n%s", n, logged.String())
				}
				if n := x.smallAnswer() * x.cfg.Requests.Max; n > limit/8 && x.smallAnswer() > 16<<10 {
					t.Errorf("small answers take %d bytes together", n)
				}
			})
		})
	}
}

// What real servers say of documents that they refuse is read also where it is far
// more than is kept: of long texts the beginning is.
func TestRefusalsThatQuoteLongDocuments(t *testing.T) {
	const limit, length = 16 << 20, 1 << 20
	rig(t, func(c *Config, o *Options) {
		c.FlushBytes, c.FlushDocuments = 64<<20, 20
		o.Budget = memory.New(limit)
	}, func(s *server, x *Indexer, w *Writer, rec *recorder) {
		// Text that ends each cut in the midst of an escape, of one kind or another.
		quoted := strings.Repeat(`\u00e9\"\\`, length/10)
		s.after = func(r *request) *http.Response {
			items := make([]string, len(r.actions))
			for i := range items {
				items[i] = fmt.Sprintf(`{"index":{"status":400,"error":{"type":"document_parsing_exception","reason":"value: '%s%s'","caused_by":{"reason":"%s"}}}}`, strings.Repeat("x", i), quoted, quoted)
			}
			return answer(200, `{"errors":true,"items":[`+strings.Join(items, ",")+`]}`)
		}
		for seq := range uint64(20) {
			add(t, w, index(rec, seq, "a", fmt.Sprint(seq), `{}`))
		}
		w.Publish()
		waitFor(t, x, rec, 20)
		if len(rec.rejected) != 20 {
			t.Fatalf("%d rejected, %v", len(rec.rejected), rec.got)
		}
		for seq, r := range rec.rejected {
			if r.Reason = strings.ReplaceAll(r.Reason, "x", ""); !strings.HasPrefix(r.Reason, "value: 'é\"\\") || len(r.Reason) > 3*maxText {
				t.Errorf("%d: %d bytes: %.60q", seq, len(r.Reason), r.Reason)
			}
		}
	})
}

// However an answer is cut into reads, it stays JSON.
func TestBriefKeepsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := map[string]string{}
		for range rapid.IntRange(0, 4).Draw(t, "texts") {
			piece := rapid.String().Draw(t, "piece")
			value[rapid.String().Draw(t, "key")] = strings.Repeat(piece, rapid.IntRange(0, 2*maxText/(len(piece)+1)).Draw(t, "times"))
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		r := brief{r: &pieces{text, func() int { return rapid.IntRange(1, 5000).Draw(t, "read") }}, left: int64(len(text))}
		got, err := io.ReadAll(&r)
		if err != nil {
			t.Fatal(err)
		}
		var kept map[string]string
		if err := json.Unmarshal(got, &kept); err != nil || len(kept) != len(value) {
			t.Fatalf("%v: %q", err, got)
		}
		for k, v := range value {
			if short := strings.TrimRight(kept[k], "\ufffd"); !strings.HasPrefix(v, short) || len(v) < maxText/6 && kept[k] != v {
				t.Fatalf("%q became %q", v, kept[k])
			}
		}
	})
}

type pieces struct {
	text []byte
	next func() int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.text) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(len(p.text), p.next())])
	p.text = p.text[n:]
	return n, nil
}
