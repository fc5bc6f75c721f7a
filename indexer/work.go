package indexer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// worker is what one indexer works with.
type worker struct {
	x     *Indexer
	zip   *bulk.Compressor
	r     reports
	calls []call
}

// work is one indexer: it makes batches and reads answers until it retires.
func (x *Indexer) work() {
	w := &worker{x: x}
	if level := x.opt.CompressionLevel; level > 0 {
		zip, err := bulk.NewCompressor(level)
		if err != nil {
			panic(err) // the configuration was checked
		}
		w.zip = zip
	}
	for b := x.next(); b != nil; b = x.next() {
		if !b.inHand || w.process(b) {
			w.start(b)
		}
	}
}

// next waits for something to do: an answer to read, a batch whose time has
// come to be sent again, or a new batch. It returns nil when the worker is to
// retire.
func (x *Indexer) next() *batch {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		if x.closed || x.workers > x.scaler.n {
			x.workers--
			x.metrics.destroyed.Inc()
			x.cond.Signal() // what woke this one may concern another
			return nil
		}
		if len(x.answered) > 0 {
			b := x.answered[0]
			x.answered = append(x.answered[:0], x.answered[1:]...)
			return b
		}
		now := time.Now()
		if idle := x.scaler.idleAt(); !idle.IsZero() {
			if !now.Before(idle) {
				x.observe(now, observation{})
				continue
			}
			x.wakeAt(idle)
		}
		switch {
		case !x.opt.Gate() && !mutantGate:
			if len(x.delayed)+len(x.active) > 0 {
				x.wakeAt(now.Add(gatePoll))
			}
		case x.holdAll != "" && (x.probing || now.Before(x.probeAt)):
			if !x.probing {
				x.wakeAt(x.probeAt)
			}
		default:
			// A limit that was cut is felt at once: batches keep their permits
			// while they wait, and would else all be sent again.
			var b *batch
			if x.onWire < x.permits() {
				b = x.dueDelayed(now)
			}
			if b == nil && x.inFlight < x.permits() {
				var wake time.Time
				if b, wake = x.claim(now); b == nil {
					x.wakeAt(wake)
					break
				}
				b.seal()
				x.board(b)
				x.inFlight++
				x.checkRoom()
				x.metrics.flushes.WithLabelValues(b.reason).Inc()
				x.observe(now, observation{flush: b.reason})
			}
			if b == nil {
				break
			}
			b.onWire = true
			x.onWire++
			if x.holdAll != "" {
				x.probing, b.probesAll = true, true
			}
			x.cond.Signal() // there may be enough for another worker
			return b
		}
		x.cond.Wait()
	}
}

// permits returns how many batches may be under way. One more than the limit
// where none of them is ever answered: what comes of another tells whether it
// is their fault or the server's.
func (x *Indexer) permits() int {
	if x.silent > 0 && x.silent >= x.inFlight {
		return x.limiter.current() + 1
	}
	return x.limiter.current()
}

// dueDelayed takes a batch whose next try is due.
func (x *Indexer) dueDelayed(now time.Time) *batch {
	var wake time.Time
	for i, b := range x.delayed {
		if !now.Before(b.due) {
			x.delayed = append(x.delayed[:i], x.delayed[i+1:]...)
			b.resend = true
			return b
		}
		wake = earlier(wake, b.due)
	}
	x.wakeAt(wake)
	return nil
}

// start sends the part at hand of a batch, or the next one of which something
// is left, or ends the batch.
func (w *worker) start(b *batch) {
	x := w.x
	for len(b.parts) > 0 {
		p := b.parts[len(b.parts)-1]
		if b.resend {
			x.mu.Lock()
			x.refilter(b, p, &w.r)
			x.mu.Unlock()
			w.r.send()
		} else {
			b.sent = b.refs[p.from:p.to]
		}
		if len(b.sent) == 0 {
			b.parts = b.parts[:len(b.parts)-1]
			continue
		}
		b.gather()
		if w.zip != nil {
			w.pack(b)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.closed {
			x.letGo(b)
			return
		}
		x.wg.Go(func() { x.send(b) })
		return
	}
	x.finish(b)
}

// refilter makes b.sent of what of the part may still be sent: an action whose
// source has ended is given up, one whose id was closed meanwhile queues there.
func (x *Indexer) refilter(b *batch, p part, r *reports) {
	b.sent = make([]ref, 0, p.to-p.from)
	for _, f := range b.refs[p.from:p.to] {
		e, w, t := f.entry(), f.waiting(), f.c.target
		if e.done {
			continue
		}
		switch state := e.src.state.Load(); {
		case state == dropped:
			e.done = true
		case state == draining:
			e.done = true
			r.add(e, Abandoned)
		case w != nil && w != b.solo && (len(w.queue.again) > 0 || w.queue.flights > 1):
			// An earlier action of its id waits, or is under way by itself.
			e.done = true
			w.queue.again = append(w.queue.again, x.standAlone(f))
		case w == nil && t.closed(e) != nil && t.closed(e).behind != b:
			e.done = true
			t.wait(x.standAlone(f))
			x.activate(t)
		default:
			b.sent = append(b.sent, f)
		}
	}
}

// gather lists the bytes of b.sent: whole runs of a chunk at a time.
func (b *batch) gather() {
	b.pieces, b.bytes = b.pieces[:0], 0
	for i := 0; i < len(b.sent); {
		c, first := b.sent[i].c, b.sent[i].i
		j := i + 1
		for j < len(b.sent) && b.sent[j].c == c && b.sent[j].i == b.sent[j-1].i+1 {
			j++
		}
		from := uint32(0)
		if first > 0 {
			from = c.entries[first-1].end
		}
		piece := c.wire[from:c.entries[b.sent[j-1].i].end]
		b.pieces = append(b.pieces, piece)
		b.bytes += int64(len(piece))
		i = j
	}
}

// send carries one request and hands the batch back with what came of it.
func (x *Indexer) send(b *batch) {
	began := time.Now()
	err := x.roundTrip(b)
	b.result.err = err
	b.result.began, b.result.took = began, time.Since(began)
	b.inHand = true
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		x.letGo(b)
		return
	}
	x.answered = append(x.answered, b)
	x.cond.Signal()
}

// Actions returns how many actions a bulk request of an Indexer carries, for a
// Transport that wants to know; 0 for any other request.
func Actions(req *http.Request) int {
	if b, ok := req.Body.(*body); ok {
		return b.actions
	}
	return 0
}

func (x *Indexer) roundTrip(b *batch) error {
	ctx, cancel := context.WithTimeout(x.ctx, x.opt.RequestTimeout)
	defer cancel()
	pieces, size := b.pieces, b.bytes
	if b.packed != nil && x.opt.CompressionLevel > 0 {
		pieces, size = [][]byte{b.packed}, int64(len(b.packed))
	}
	body := &body{pieces: pieces, actions: len(b.sent)}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/_bulk?filter_path="+bulk.FilterPath, body)
	if err != nil {
		return err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", "application/x-ndjson")
	req.Header.Set("Accept", "application/json")
	if x.opt.CompressionLevel > 0 {
		req.Header.Set("Content-Encoding", "gzip")
	}
	b.result = result{}
	resp, err := x.opt.Transport.Perform(req)
	if err == nil {
		b.result.status = resp.StatusCode
		b.result.retryAfter = retryAfter(resp.Header)
		err = x.readAnswer(ctx, b, resp.Body)
		_ = resp.Body.Close()
	}
	// After an early answer the transport may still be reading the body, whose
	// bytes are about to be used again.
	body.end()
	return err
}

func retryAfter(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s < 0 {
		return 0
	}
	return min(time.Duration(s)*time.Second, 5*time.Minute)
}

// body reads a request's pieces. After end has returned nobody reads them any
// more: a Read that comes later fails.
type body struct {
	actions int

	mu     sync.Mutex
	pieces [][]byte
	at     int
	ended  bool
}

var errBodyEnded = errors.New("indexer: the request has ended")

func (r *body) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return 0, errBodyEnded
	}
	for len(r.pieces) > 0 {
		n := copy(p, r.pieces[0][r.at:])
		if r.at += n; r.at == len(r.pieces[0]) {
			r.pieces, r.at = r.pieces[1:], 0
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

// WriteTo implements io.WriterTo, with one vectored call where w is a
// connection. The lock is held meanwhile: end waits until nobody reads the
// pieces, which a request that has ended brings about by closing w.
func (r *body) WriteTo(w io.Writer) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return 0, errBodyEnded
	}
	left := make(net.Buffers, 0, len(r.pieces))
	for _, p := range r.pieces {
		left = append(left, p[r.at:])
		r.at = 0
	}
	r.pieces = nil
	return left.WriteTo(w)
}

// Close implements io.Closer; the transport calls it when it likes.
func (r *body) Close() error { return nil }

func (r *body) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}
