// Package elastic talks to Elasticsearch (7.17 and later) and OpenSearch (2
// and later): the client that carries bulk requests, what there is to know
// about the cluster and its indices, and the control documents.
//
// It never retries and never compresses: the indexer decides what is sent
// again and has compressed what it sends. Only one thing is decided here: which
// of several addresses a request goes to. Bulk requests pass through Perform
// untouched; every other call is bounded in time and reports a refusal as an
// *Error.
package elastic

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v8/esapi"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/credentials"
)

var _ esapi.Transport = (*Client)(nil)

const (
	dialTimeout = 5 * time.Second
	// spareConnections are kept beside those of bulk requests: for control
	// documents, probes and the status of indices.
	spareConnections = 8
	// maxHeaders is the most bytes of headers that an answer may have.
	maxHeaders = 256 << 10
)

// Client is one cluster. All methods are safe for concurrent use.
type Client struct {
	transport *elastictransport.Client
	timeout   time.Duration // of a call other than Perform
	log       zerolog.Logger
	maxAnswer int           // bytes of an answer, of a call other than Perform
	large     chan struct{} // of capacity 1: full while an answer above smallAnswer is read

	authorization func() string // the header of the moment; "": none
	sources       []*credentials.Source
	dialer        *credentials.Dialer // nil without TLS
	close         func()              // closes idle connections
}

// Option changes how New builds a client.
type Option func(*options)

type options struct {
	roundTripper http.RoundTripper
	version      string
	maxRequests  int
	maxAnswer    int
	log          zerolog.Logger
}

// WithRoundTripper sends requests through rt instead of the network: for a
// server in this process. TLS and connection settings have no effect then.
func WithRoundTripper(rt http.RoundTripper) Option {
	return func(o *options) { o.roundTripper = rt }
}

// WithVersion names Sluice's own version in the User-Agent. The default is
// "dev".
func WithVersion(version string) Option { return func(o *options) { o.version = version } }

// WithMaxRequests says how many bulk requests may be in flight, so that as
// many connections are kept open between them. The default is 64.
func WithMaxRequests(n int) Option { return func(o *options) { o.maxRequests = n } }

// WithMaxAnswer bounds the bytes that are read of an answer, those to Perform
// apart. The default is 256 MiB.
func WithMaxAnswer(n int) Option { return func(o *options) { o.maxAnswer = n } }

// WithLog is where changes of the cluster's state are logged. The default is
// nowhere.
func WithLog(log zerolog.Logger) Option { return func(o *options) { o.log = log } }

// New returns a client for the cluster of cfg; nothing is sent yet. Errors name
// the configuration key and hold neither secret nor user information of an
// address.
func New(cfg Config, opts ...Option) (*Client, error) {
	o := options{version: "dev", maxRequests: 64, maxAnswer: maxAnswer, log: zerolog.Nop()}
	for _, opt := range opts {
		opt(&o)
	}
	addresses, user, errAddresses := addresses(cfg)
	if user != nil && cfg.Username == "" {
		cfg.Username = user.Username()
		if cfg.Password == "" && cfg.PasswordFile == "" {
			password, _ := user.Password()
			cfg.Password = credentials.Secret(password)
		}
	}
	auth, sources, errAuth := authorization(cfg)
	dialer, errTLS := cfg.TLS.Dialer()
	var snapshot *tls.Config
	if errTLS == nil {
		snapshot, errTLS = cfg.TLS.Config()
	}
	if errTLS != nil {
		errTLS = fmt.Errorf("elasticsearch.tls.%w", errTLS)
	}
	if err := errors.Join(errAddresses, errAuth, errTLS); err != nil {
		return nil, err
	}

	c := &Client{timeout: cfg.RequestTimeout, log: o.log, maxAnswer: o.maxAnswer, large: make(chan struct{}, 1), authorization: auth, sources: sources, dialer: dialer, close: func() {}}
	if c.timeout <= 0 {
		c.timeout = 20 * time.Second
	}
	if o.roundTripper == nil {
		t := transport(dialer, snapshot, o.maxRequests)
		o.roundTripper, c.close = t, t.CloseIdleConnections
	}
	var err error
	c.transport, err = elastictransport.NewClient(
		elastictransport.WithURLs(addresses...),
		elastictransport.WithTransport(&authorized{next: o.roundTripper, header: auth}),
		elastictransport.WithUserAgent("sluice/"+o.version),
		elastictransport.WithDisableRetry(),
	)
	if err != nil {
		return nil, fmt.Errorf("elasticsearch: %w", err)
	}
	return c, nil
}

// transport is tuned for bulk requests: few hosts, large bodies, as many
// connections as requests, all of them kept.
//
// HTTP/1.1 only. Elasticsearch speaks nothing else; a proxy that offers HTTP/2
// would put all bulk requests onto one connection, where megabyte bodies wait
// for each other's flow control and one lost packet stops all of them.
func transport(dialer *credentials.Dialer, snapshot *tls.Config, maxRequests int) *http.Transport {
	plain := &net.Dialer{
		Timeout: dialTimeout,
		// A peer that went away without a word is noticed within 30 s also
		// where no request is in flight to time out.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	dialer.Dial = plain.DialContext
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         vectored(plain.DialContext),
		DialTLSContext:      dialer.DialContext,
		TLSClientConfig:     snapshot, // through a proxy the transport does TLS itself: there, files are not followed
		Protocols:           &protocols,
		MaxIdleConnsPerHost: maxRequests + spareConnections,
		IdleConnTimeout:     60 * time.Second,
		// Answers are small (filter_path) and the server's CPU is better spent
		// on indexing than on compressing them.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     16 << 10,
		// All connections' together must be bounded too. Servers send a few hundred
		// bytes, and a line for each kind of deprecated use.
		MaxResponseHeaderBytes: maxHeaders,
		// No ResponseHeaderTimeout: each request's context bounds it, and how
		// long a bulk may take is the indexer's to say.
	}
}

// addresses returns the cluster's addresses without user information, and that
// information where one has it.
func addresses(cfg Config) (urls []*url.URL, user *url.Userinfo, err error) {
	if cfg.CloudID != "" {
		address, err := cloudAddress(cfg.CloudID)
		return []*url.URL{address}, nil, err
	}
	if len(cfg.Addresses) == 0 {
		return nil, nil, errors.New("elasticsearch.addresses: none is given")
	}
	for i, address := range cfg.Addresses {
		key := fmt.Sprintf("elasticsearch.addresses[%d]", i)
		// What url.Parse says of an address that it cannot read quotes it, with
		// any password in it.
		u, parseErr := url.Parse(strings.TrimSpace(address))
		switch {
		case parseErr != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			err = errors.Join(err, errors.New(key+": not an address such as https://host:9200"))
			continue
		case u.RawQuery != "" || u.Fragment != "":
			err = errors.Join(err, errors.New(key+": an address has no query and no fragment"))
		case u.User != nil && user != nil && u.User.String() != user.String():
			err = errors.Join(err, errors.New(key+": other credentials than in an earlier address: all addresses are one cluster, use elasticsearch.username and password_file"))
		}
		if u.User != nil {
			user, u.User = u.User, nil
		}
		u.Path = strings.TrimRight(u.Path, "/")
		urls = append(urls, u)
	}
	return urls, user, err
}

// cloudAddress reads an Elastic Cloud id: a name, a colon, and in base64 the
// domain and the Elasticsearch host below it.
func cloudAddress(id string) (*url.URL, error) {
	bad := errors.New("elasticsearch.cloud_id: not a cloud id: copy it from the deployment's page, it has the form name:text")
	_, encoded, ok := strings.Cut(id, ":")
	if !ok {
		return nil, bad
	}
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, bad
	}
	parts := strings.Split(string(decoded), "$")
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return nil, bad
	}
	// Either part may carry a port; the host's own wins.
	domain, port, _ := strings.Cut(parts[0], ":")
	host, hostPort, ok := strings.Cut(parts[1], ":")
	if ok {
		port = hostPort
	}
	if port == "" {
		port = "443"
	}
	u, err := url.Parse("https://" + net.JoinHostPort(host+"."+domain, port))
	if err != nil {
		return nil, bad
	}
	return u, nil
}

// authorization returns what gives the Authorization header ("": none) for the
// next request, and the secrets behind it. Files are followed as they change.
func authorization(cfg Config) (header func() string, sources []*credentials.Source, err error) {
	hasKey := cfg.APIKey != "" || cfg.APIKeyFile != ""
	hasPassword := cfg.Password != "" || cfg.PasswordFile != ""
	switch {
	case hasKey && cfg.Username != "":
		return nil, nil, errors.New("elasticsearch: username and api_key are both given: keep one")
	case hasPassword && cfg.Username == "":
		return nil, nil, errors.New("elasticsearch.username: missing for the password that is given")
	case cfg.Username != "" && !hasPassword:
		return nil, nil, errors.New("elasticsearch.password_file: missing for the username that is given")
	case hasKey:
		key, err := credentials.Open(cfg.APIKey, cfg.APIKeyFile)
		if err != nil {
			return nil, nil, fmt.Errorf("elasticsearch.api_key_%w", err)
		}
		return func() string {
			text := key.Get().Reveal()
			if strings.Contains(text, ":") { // id:key, as the API gave it; encoded it has no colon
				text = base64.StdEncoding.EncodeToString([]byte(text))
			}
			return "ApiKey " + text
		}, []*credentials.Source{key}, nil
	case hasPassword:
		password, err := credentials.Open(cfg.Password, cfg.PasswordFile)
		if err != nil {
			return nil, nil, fmt.Errorf("elasticsearch.password_%w", err)
		}
		return func() string {
			return "Basic " + base64.StdEncoding.EncodeToString([]byte(cfg.Username+":"+password.Get().Reveal()))
		}, []*credentials.Source{password}, nil
	default:
		return func() string { return "" }, nil, nil
	}
}

// authorized sends requests with the credentials of the moment.
type authorized struct {
	next     http.RoundTripper
	header   func() string
	answered atomic.Bool // the cluster has, to some request
}

func (a *authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	if header := a.header(); header != "" {
		req.Header.Set("Authorization", header)
	}
	// elastictransport puts an address's path before the decoded path only:
	// an id with an escaped slash would lose its escape.
	if req.URL.RawPath != "" && req.URL.EscapedPath() != req.URL.RawPath {
		if path, err := url.PathUnescape(req.URL.RawPath); err == nil {
			if prefix, ok := strings.CutSuffix(req.URL.Path, path); ok {
				req.URL.RawPath = (&url.URL{Path: prefix}).EscapedPath() + req.URL.RawPath
			}
		}
	}
	res, err := a.next.RoundTrip(req)
	switch {
	case err == nil:
		a.answered.Store(true)
	case req.URL.Scheme == "http" && !a.answered.Load() && (errors.Is(err, io.EOF) || strings.Contains(err.Error(), "malformed HTTP response")):
		// What a server that speaks TLS does to a client that does not.
		err = fmt.Errorf("%w: if the server speaks TLS, write https:// in elasticsearch.addresses", err)
	case strings.Contains(err.Error(), "server response headers exceeded"):
		err = fmt.Errorf("%w: see what elasticsearch.addresses names and what is between", err)
	}
	return res, err
}

// Perform sends a request whose URL has a path and no host to the next address
// that is not known to be dead, once. It satisfies esapi.Transport. Errors are
// those of the network: an answer of any status is no error.
func (c *Client) Perform(req *http.Request) (*http.Response, error) {
	return c.transport.Perform(req)
}

// ReloadCredentials reads password, API key and certificate files again, closes
// idle connections so that later requests use what was read, and says what
// cannot be read; that stays as it was. Files that change are followed without
// this; it is for SIGHUP and after a 401 or 403, to report.
func (c *Client) ReloadCredentials() error {
	var errs []error
	for _, s := range c.sources {
		errs = append(errs, s.Reload())
	}
	errs = append(errs, c.dialer.Reload())
	c.close()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("elasticsearch: reading credentials again: %w", err)
	}
	return nil
}

// Close ends what the client does in the background and closes its idle
// connections. Requests that are under way go on.
func (c *Client) Close(ctx context.Context) error {
	err := c.transport.Close(ctx)
	c.close()
	if errors.Is(err, elastictransport.ErrAlreadyClosed) {
		return nil
	}
	return err
}
