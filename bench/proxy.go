package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// proxy stands before an Elasticsearch, makes bulk requests take longer, and
// keeps a diary of them.
type proxy struct {
	forward *httputil.ReverseProxy
	slots   chan struct{} // requests that are served at once; others queue

	mu struct {
		sync.Mutex
		delay    time.Duration // of each bulk request that is served
		inFlight int
		diary    []exchange
	}
}

// An exchange is one bulk request, as the proxy saw it.
type exchange struct {
	Began    time.Time
	Took     time.Duration
	InFlight int  // requests under way when it began, itself included
	Refused  bool // turned away with 429, or some of its items were
	Bytes    int64
}

// newProxy returns a proxy that serves so many bulk requests at once.
func newProxy(target string, slots int) (*proxy, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	p := &proxy{slots: make(chan struct{}, slots)}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = slots
	p.forward = &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: transport,
		// What cannot be handed on is a gateway's answer; it is not worth a line.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return p, nil
}

// setDelay makes the requests that are served from now on take longer by d.
func (p *proxy) setDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.delay = d
}

// ServeHTTP hands a request on.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/_bulk") {
		p.forward.ServeHTTP(w, r)
		return
	}
	e := exchange{Began: time.Now(), Bytes: r.ContentLength}
	p.mu.Lock()
	p.mu.inFlight++
	e.InFlight = p.mu.inFlight
	p.mu.Unlock()

	p.slots <- struct{}{}
	p.mu.Lock()
	delay := p.mu.delay
	p.mu.Unlock()
	pause(r.Context(), delay)
	r.Header.Del("Accept-Encoding") // the answer is read below
	answer := &watched{ResponseWriter: w}
	p.forward.ServeHTTP(answer, r)
	<-p.slots

	e.Took, e.Refused = time.Since(e.Began), answer.refused
	p.mu.Lock()
	p.mu.inFlight--
	p.mu.diary = append(p.mu.diary, e)
	p.mu.Unlock()
}

// read returns what has been noted so far, in the order in which it ended.
func (p *proxy) read() []exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]exchange(nil), p.mu.diary...)
}

// watched looks for 429 in an answer on its way.
type watched struct {
	http.ResponseWriter
	refused bool
	tail    []byte // of what was written, where the text may begin
}

const refusedItem = `"status":429`

// WriteHeader notes the status.
func (w *watched) WriteHeader(status int) {
	w.refused = w.refused || status == http.StatusTooManyRequests
	w.ResponseWriter.WriteHeader(status)
}

// Write looks for a refused item, also across two writes.
func (w *watched) Write(b []byte) (int, error) {
	if !w.refused {
		w.tail = append(w.tail, b...)
		w.refused = bytes.Contains(w.tail, []byte(refusedItem))
		w.tail = bytes.Clone(w.tail[max(0, len(w.tail)-len(refusedItem)+1):])
	}
	return w.ResponseWriter.Write(b)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
