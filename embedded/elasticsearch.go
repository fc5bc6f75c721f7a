package embedded

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"
)

// A Flavour is the product that [Elasticsearch] behaves like.
type Flavour uint8

// The flavours. OpenSearch sends no product header, names mapping errors
// mapper_parsing_exception and says in GET / what it is.
const (
	FlavourElasticsearch Flavour = iota
	FlavourOpenSearch
)

// Config configures an [Elasticsearch]; the zero value is an open Elasticsearch
// 8.19.
type Config struct {
	Flavour Flavour
	// Version is the version number that GET / tells: 8.19.21 by default, 2.19.6
	// for OpenSearch.
	Version string
	// Username and Password, or APIKey (as the header carries it, after
	// "ApiKey "), are demanded of every request where they are set.
	Username, Password, APIKey string
	// MaxContentLength is the largest request body in bytes after gunzip; 100 MiB
	// by default. Larger ones get a 413 without body.
	MaxContentLength int64
	// History keeps every accepted write for [Elasticsearch.Ops].
	History bool
	// Seed decides which requests and items a share of faults falls on, and the
	// ids and uuids that the server makes up.
	Seed uint64
}

// Elasticsearch is one node with one cluster state. It is an http.Handler; see
// [Elasticsearch.Start] for a listener on loopback and
// [Elasticsearch.Transport] for use without sockets. All methods are safe for
// concurrent use.
type Elasticsearch struct {
	cfg    Config
	uuid   string
	random atomic.Uint64 // state of the generator of ids
	creds  atomic.Pointer[credentials]
	maxLen atomic.Int64
	health atomic.Value // string; "": computed

	faults    faults
	closing   chan struct{}
	closeOnce sync.Once
	running   sync.WaitGroup // requests through Transport and the listener's server
	server    *http.Server
	address   string

	mu        sync.RWMutex // guards what follows, never held while waiting
	indices   map[string]*index
	aliases   map[string]map[string]*alias // alias, index
	streams   map[string]*stream
	templates map[string]*template
	pipelines map[string]*pipeline
	cluster   map[string]map[string]any // persistent, transient: flat settings

	pits struct {
		sync.Mutex
		open map[string]*pit
	}
}

type credentials struct{ username, password, apiKey string }

// NewElasticsearch returns an empty node.
func NewElasticsearch(cfg Config) *Elasticsearch {
	if cfg.Version == "" {
		cfg.Version = "8.19.21"
		if cfg.Flavour == FlavourOpenSearch {
			cfg.Version = "2.19.6"
		}
	}
	if cfg.MaxContentLength == 0 {
		cfg.MaxContentLength = 100 << 20
	}
	es := &Elasticsearch{
		cfg:       cfg,
		closing:   make(chan struct{}),
		indices:   map[string]*index{},
		aliases:   map[string]map[string]*alias{},
		streams:   map[string]*stream{},
		templates: map[string]*template{},
		pipelines: map[string]*pipeline{},
		cluster:   map[string]map[string]any{"persistent": {}, "transient": {}},
	}
	es.random.Store(cfg.Seed)
	es.uuid = es.newID()
	es.creds.Store(&credentials{cfg.Username, cfg.Password, cfg.APIKey})
	es.maxLen.Store(cfg.MaxContentLength)
	es.health.Store("")
	es.faults.seed = cfg.Seed
	es.pits.open = map[string]*pit{}
	return es
}

// Start listens on a loopback address such as "127.0.0.1:0" and serves until
// Close. It returns the base URL.
func (es *Elasticsearch) Start(address string) (string, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", fmt.Errorf("embedded elasticsearch: listen on %s: %w", address, err)
	}
	es.server = &http.Server{Handler: es, ReadHeaderTimeout: 10 * time.Second}
	es.address = "http://" + l.Addr().String()
	es.running.Go(func() { _ = es.server.Serve(l) }) // always ErrServerClosed, from Close
	return es.address, nil
}

// URL returns the base URL after Start.
func (es *Elasticsearch) URL() string { return es.address }

// Close releases all held requests, closes the listener and its connections and
// waits for what still runs. It is safe to call twice.
func (es *Elasticsearch) Close() {
	es.closeOnce.Do(func() {
		close(es.closing)
		if es.server != nil {
			_ = es.server.Close() // nothing to do about a listener that will not close
		}
	})
	es.running.Wait()
}

// SetCredentials changes what requests must carry, as [Config] sets it at first.
func (es *Elasticsearch) SetCredentials(username, password, apiKey string) {
	es.creds.Store(&credentials{username, password, apiKey})
}

// SetMaxContentLength changes [Config.MaxContentLength].
func (es *Elasticsearch) SetMaxContentLength(n int64) { es.maxLen.Store(n) }

// SetHealth makes _cluster/health answer green, yellow or red; "" goes back to
// the computed status.
func (es *Elasticsearch) SetHealth(status string) { es.health.Store(status) }

// Restart does what a restart of the node does to the data: every known delete
// is forgotten and primary terms grow. Documents, acknowledged or not, stay.
func (es *Elasticsearch) Restart() {
	now := nanos()
	for _, ix := range es.allIndices() {
		ix.term.Add(1)
		for _, s := range ix.shards {
			s.forget(now)
		}
	}
}

func (es *Elasticsearch) allIndices() []*index {
	es.mu.RLock()
	defer es.mu.RUnlock()
	out := make([]*index, 0, len(es.indices))
	for _, name := range sortedKeys(es.indices) {
		out = append(out, es.indices[name])
	}
	return out
}

// next returns the next number of the generator (splitmix64).
func (es *Elasticsearch) next() uint64 { return mix(es.random.Add(0x9e3779b97f4a7c15)) }

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// newID returns a made-up id in the server's form: 20 characters.
func (es *Elasticsearch) newID() string {
	var b [15]byte
	for i := 0; i < len(b); i += 8 {
		v := es.next()
		for k := i; k < min(i+8, len(b)); k++ {
			b[k] = byte(v)
			v >>= 8
		}
	}
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// An answer is what a request gets. A negative cut is none.
type answer struct {
	status  int
	header  http.Header // further headers
	body    []byte
	bare    bool // no product header
	text    string
	cut     int
	release func()
}

// Transport returns a RoundTripper that serves requests without sockets, each
// on a goroutine that it starts, so that it belongs to the caller's synctest
// bubble. A request that is cancelled returns at once; the node may go on with
// it, as a real one does.
func (es *Elasticsearch) Transport() http.RoundTripper { return transport{es} }

type transport struct{ es *Elasticsearch }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	es := t.es
	ctx := req.Context()
	type outcome struct {
		a   *answer
		err error
	}
	done := make(chan outcome, 1)
	select {
	case <-es.closing:
		closeBody(req)
		return nil, refused(req)
	default:
	}
	es.running.Go(func() {
		buf := bodies.Get().(*bytes.Buffer)
		defer bodies.Put(buf)
		err := es.read(req, buf)
		closeBody(req)
		if err != nil {
			done <- outcome{nil, err}
			return
		}
		a, err := es.exchange(ctx, newRequest(req, buf.Bytes()))
		done <- outcome{a, err}
	})
	select {
	case o := <-done:
		if o.err != nil {
			if errors.Is(o.err, errRefused) {
				return nil, refused(req)
			}
			return nil, o.err
		}
		return o.a.response(req), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // read to its end or given up
	}
}

var (
	errRefused = errors.New("connection refused")
	// errLost ends a request whose answer never comes.
	errLost = io.ErrUnexpectedEOF
)

func refused(req *http.Request) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%s: %w", req.URL.Host, syscall.ECONNREFUSED)}
}

func (a *answer) headers(es *Elasticsearch) http.Header {
	h := http.Header{}
	if !a.bare && es.cfg.Flavour == FlavourElasticsearch {
		h.Set("X-Elastic-Product", "Elasticsearch")
	}
	if len(a.body) > 0 || a.status == http.StatusOK {
		text := a.text
		if text == "" {
			text = "application/json"
		}
		h.Set("Content-Type", text)
	}
	for k, v := range a.header {
		h[k] = v
	}
	return h
}

func (a *answer) response(req *http.Request) *http.Response {
	body := io.Reader(bytes.NewReader(a.body))
	if req.Method == http.MethodHead {
		body = bytes.NewReader(nil)
	}
	if a.cut >= 0 && a.cut < len(a.body) {
		body = io.MultiReader(bytes.NewReader(a.body[:a.cut]), failingReader{})
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, ContentLength: int64(len(a.body)), Request: req,
		Body: &answerBody{Reader: body, release: a.release},
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// answerBody gives its buffer back once, when it is closed.
type answerBody struct {
	io.Reader
	once    sync.Once
	release func()
}

func (b *answerBody) Close() error {
	b.once.Do(func() {
		b.Reader = bytes.NewReader(nil)
		if b.release != nil {
			b.release()
		}
	})
	return nil
}

// ServeHTTP serves one request of a real connection.
func (es *Elasticsearch) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	buf := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buf)
	if err := es.read(req, buf); err != nil {
		panic(http.ErrAbortHandler)
	}
	a, err := es.exchange(req.Context(), newRequest(req, buf.Bytes()))
	if err != nil {
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	if a.release != nil {
		defer a.release()
	}
	h := w.Header()
	for k, v := range a.header {
		h[k] = v
	}
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	if req.Method == http.MethodHead {
		return
	}
	if a.cut >= 0 && a.cut < len(a.body) {
		_, _ = w.Write(a.body[:a.cut]) // the client may be gone
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(a.body) // the client may be gone
}

// read reads a request's body.
func (es *Elasticsearch) read(req *http.Request, buf *bytes.Buffer) error {
	buf.Reset()
	if req.Body == nil {
		return nil
	}
	if n := req.ContentLength; n > 0 && n <= es.maxLen.Load() {
		buf.Grow(int(n) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(req.Body)
	return err
}

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// A Request is one request on its way into the node, for [Rule] and
// [Elasticsearch.Intercept].
type Request struct {
	Method string
	Path   string // escaped
	Query  url.Values
	Header http.Header
	// Body is the body after gunzip. It may be read only until the fault is
	// decided.
	Body []byte

	segments []string // of the path, unescaped
	wire     []byte
	badGzip  bool
	pooled   *bytes.Buffer
	targets  []string
}

func newRequest(req *http.Request, body []byte) *Request {
	r := &Request{Method: req.Method, Path: req.URL.EscapedPath(), Header: req.Header, wire: body, Body: body}
	r.Query, _ = url.ParseQuery(req.URL.RawQuery) // what cannot be parsed is left out
	for _, s := range strings.Split(strings.Trim(r.Path, "/"), "/") {
		if u, err := url.PathUnescape(s); err == nil {
			s = u
		}
		if s != "" {
			r.segments = append(r.segments, s)
		}
	}
	return r
}

var gunzips = sync.Pool{New: func() any { return new(gzip.Reader) }}

// inflate replaces a gzipped body by what it holds, at most limit+1 bytes of it.
func (r *Request) inflate(limit int64) {
	if !strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip") || len(r.wire) == 0 {
		return
	}
	z := gunzips.Get().(*gzip.Reader)
	defer gunzips.Put(z)
	if err := z.Reset(bytes.NewReader(r.wire)); err != nil {
		r.badGzip, r.Body = true, nil
		return
	}
	buf := bodies.Get().(*bytes.Buffer)
	buf.Reset()
	r.pooled = buf
	if _, err := buf.ReadFrom(io.LimitReader(z, limit+1)); err != nil {
		r.badGzip, r.Body = true, nil
		return
	}
	r.Body = buf.Bytes()
}

// exchange answers a request, or returns the error of a connection that broke.
// It is where faults happen.
func (es *Elasticsearch) exchange(ctx context.Context, r *Request) (*answer, error) {
	limit := es.maxLen.Load()
	r.inflate(limit)
	defer func() {
		if r.pooled != nil {
			bodies.Put(r.pooled)
		}
	}()
	f := es.faults.decide(r)
	if f.Refuse {
		return nil, errRefused
	}
	if err := es.wait(ctx, f); err != nil {
		return nil, err
	}
	var a *answer
	if f.Status == 0 && !f.Never || f.Apply {
		a = es.answer(ctx, r, f, limit)
	}
	if err := es.hold(ctx, f.HoldAnswer, false); err != nil {
		return nil, err
	}
	if f.Never {
		_ = es.hold(ctx, make(chan struct{}), false) // until somebody gives up
		return nil, errLost
	}
	if f.Drop {
		return nil, errLost
	}
	if f.Status != 0 {
		a = &answer{status: f.Status, body: f.Body, bare: f.Bare, text: f.Header.Get("Content-Type"), header: f.Header}
	}
	if f.Edit != nil {
		a.body = f.Edit(a.body)
	}
	a.cut = -1
	if f.Cut {
		a.cut = min(f.CutAfter, max(0, len(a.body)-1))
	}
	es.compress(r, a)
	a.header = a.headers(es)
	if f.Cut && len(a.body) == 0 {
		return nil, errLost
	}
	return a, nil
}

// compress gzips an answer where the client takes it, as the real node does.
func (es *Elasticsearch) compress(r *Request, a *answer) {
	if len(a.body) < 256 || a.cut >= 0 || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return
	}
	var out bytes.Buffer
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(&out)
	_, _ = z.Write(a.body) // a buffer takes all
	_ = z.Close()
	if a.release != nil {
		a.release()
		a.release = nil
	}
	a.body = out.Bytes()
	if a.header == nil {
		a.header = http.Header{}
	} else {
		a.header = a.header.Clone()
	}
	a.header.Set("Content-Encoding", "gzip")
}

var gzips = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return z
}}

// wait spends a fault's time before the node has read the request.
func (es *Elasticsearch) wait(ctx context.Context, f *Fault) error {
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-es.closing:
			return errRefused
		case <-ctx.Done():
			if !f.Late {
				return context.Cause(ctx)
			}
			<-t.C
		}
	}
	return es.hold(ctx, f.Hold, f.Late)
}

// hold waits for c, unless it is nil. With late the client's going away does
// not end it.
func (es *Elasticsearch) hold(ctx context.Context, c <-chan struct{}, late bool) error {
	if c == nil {
		return nil
	}
	gone := ctx.Done()
	if late {
		gone = nil
	}
	select {
	case <-c:
		return nil
	case <-es.closing:
		return errRefused
	case <-gone:
		return context.Cause(ctx)
	}
}

// answer carries a request out.
func (es *Elasticsearch) answer(ctx context.Context, r *Request, f *Fault, limit int64) *answer {
	if int64(len(r.Body)) > limit || int64(len(r.wire)) > limit {
		return &answer{status: http.StatusRequestEntityTooLarge, bare: true}
	}
	if a := es.authenticate(r); a != nil {
		return a
	}
	a := es.route(ctx, r, f)
	if paths := r.Query.Get("filter_path"); paths != "" && a.status < 400 && !r.isBulk() && len(a.body) > 0 {
		a.body = newFilter(paths).apply(a.body)
	}
	return a
}

func (es *Elasticsearch) authenticate(r *Request) *answer {
	c := es.creds.Load()
	if c.username == "" && c.apiKey == "" {
		return nil
	}
	auth := r.Header.Get("Authorization")
	scheme, token, _ := strings.Cut(auth, " ")
	switch {
	case strings.EqualFold(scheme, "ApiKey") && c.apiKey != "" && token == c.apiKey:
		return nil
	case strings.EqualFold(scheme, "Basic") && c.username != "":
		if raw, err := base64.StdEncoding.DecodeString(token); err == nil && string(raw) == c.username+":"+c.password {
			return nil
		}
	}
	reason := "missing authentication credentials for REST request [" + r.Path + "]"
	switch {
	case strings.EqualFold(scheme, "ApiKey"):
		reason = "unable to authenticate with provided credentials and anonymous access is not allowed for this request"
	case auth != "":
		reason = "unable to authenticate user for REST request [" + r.Path + "]"
	}
	a := failure(newError(http.StatusUnauthorized, "security_exception", reason))
	a.bare = true
	a.header = http.Header{"Www-Authenticate": {`Basic realm="security", charset="UTF-8"`, "ApiKey"}}
	return a
}

func failure(err *apiError) *answer {
	return &answer{status: err.status, body: err.body()}
}

// maxRange is above every sequence number.
const maxRange = 1<<63 - 1
