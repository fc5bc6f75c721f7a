// Package admin is the HTTP side of a running Sluice: health for probes and
// people, metrics, status, and the few calls that an operator makes to a
// replica.
//
// It knows nothing of Kafka or Elasticsearch: what it shows and does stands
// behind Process. Reading is open to whoever reaches the address; changing
// anything needs what is configured (a token, a client certificate or both),
// and without either the server only listens on loopback. Profiles are served
// on loopback only.
package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Process is what the server shows and does. All methods are called from many
// goroutines and must not block, but for Skip.
type Process interface {
	// Alive says whether the process makes progress at all; Elasticsearch has
	// no part in it. False asks for a restart.
	Alive() bool
	// Ready says whether the process takes part: configured, joined, running.
	Ready() bool
	// Health says what it is doing.
	Health() Health
	// Status is everything there is to show; it is encoded as JSON.
	Status() any
	// Live is what the page is told each second; it stays small however many
	// partitions and held targets there are. It is encoded as JSON.
	Live() any
	// Skip settles the record that blocks a partition: by a dead letter, or by
	// nothing at all with discard. It returns *NotOwnerError where another
	// member holds the partition, and an error wrapping ErrRefused where there
	// is nothing to skip.
	Skip(ctx context.Context, topic string, partition int32, offset int64, discard bool) error
	// Release lets a held target go on; false: it is not held.
	Release(target string) bool
}

// State is what a process is doing, in one phrase.
type State string

// The states, from the least to the most urgent.
const (
	Running   State = "running"
	Throttled State = "throttled"                 // slowed down by Elasticsearch or by its own memory limit
	Waiting   State = "waiting for Elasticsearch" // nothing is sent
	Blocked   State = "blocked on a record"       // a partition stands until an operator acts
	Starting  State = "starting"
	Stopping  State = "stopping"
)

// States are all of them.
var States = []State{Running, Throttled, Waiting, Blocked, Starting, Stopping}

// Health is the answer of /healthz: 200 where OK holds, else 503. It is for
// people and alerts, not for a liveness probe: a restart heals none of it.
type Health struct {
	State  State     `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Elasticsearch is reported apart: it is never a reason to restart.
	Elasticsearch Elasticsearch     `json:"elasticsearch"`
	Held          []HeldTarget      `json:"held_targets"`
	Halted        []HaltedPartition `json:"halted_partitions"`
	// Routing is nil where no stream is routed by customer.
	Routing *Routing `json:"routing,omitempty"`
}

// Routing is the routing table of a stream.
type Routing struct {
	Stream string `json:"stream"`
	Epoch  int64  `json:"epoch"` // of the table in force; 0: none is yet
	// Trouble is why the table cannot be followed: the one in force stays.
	Trouble string     `json:"trouble,omitempty"`
	Since   *time.Time `json:"since,omitempty"` // of the trouble
}

// Elasticsearch is how the cluster looks from here.
type Elasticsearch struct {
	Available bool       `json:"available"`
	Reason    string     `json:"reason,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
}

// HeldTarget is an index, alias or data stream whose records wait.
type HeldTarget struct {
	Target string    `json:"target"`
	Reason string    `json:"reason"` // error type
	Since  time.Time `json:"since"`
	Bytes  int64     `json:"bytes"`
}

// HaltedPartition is a source partition that stands.
type HaltedPartition struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"` // -1: no record in particular
	Kind      string    `json:"kind"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
}

// OK holds while records flow everywhere, if slowly, and the routing table can be
// followed.
func (h Health) OK() bool {
	return (h.State == Running || h.State == Throttled) && len(h.Held) == 0 && len(h.Halted) == 0 &&
		(h.Routing == nil || h.Routing.Trouble == "")
}

// ErrRefused marks an operator's call that does not fit the state of things:
// answered 409 with the error's text.
var ErrRefused = errors.New("refused")

// NotOwnerError is the answer of a replica that does not hold a partition:
// 421, with the member that does, where it is known.
type NotOwnerError struct {
	Topic      string
	Partition  int32
	MemberID   string // "" where no member holds it
	ClientHost string
}

func (e *NotOwnerError) Error() string {
	if e.MemberID == "" {
		return fmt.Sprintf("partition %s/%d is held by no member of the group that is known here", e.Topic, e.Partition)
	}
	return fmt.Sprintf("partition %s/%d is held by member %s on %s: send the call there", e.Topic, e.Partition, e.MemberID, e.ClientHost)
}

// Options are what a Server needs beside its configuration.
type Options struct {
	Process Process
	// Streams are those that are routed by customer, by name; none: nil.
	Streams map[string]Stream
	// Jobs are the migrations; nil where no stream is routed by customer.
	Jobs    Jobs
	Metrics prometheus.Gatherer
	Log     zerolog.Logger
}

// Limits of the server. No call of ours has a body near the limit.
const (
	maxBody       = 64 << 10
	maxHeader     = 16 << 10
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second // profiles move their own deadline
	idleTimeout   = 2 * time.Minute
)

// Server serves until it is closed.
type Server struct {
	cfg      Config
	process  Process
	routing  *streams
	jobs     Jobs // nil: none
	log      zerolog.Logger
	loopback bool
	listener net.Listener
	http     *http.Server
	doors    *doors
	served   chan struct{} // closed when the serving goroutine has ended

	live    live
	viewers chan struct{}   // one for each page that is told
	closing <-chan struct{} // closed when the server closes: nobody is told any more
}

// Check says what is wrong with the configuration, nil for nothing. It reads
// the files that are named.
func (c Config) Check() error {
	var errs []error
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return fmt.Errorf("admin.address %q: want host:port: %w", c.Address, err)
	}
	if !isLoopback(host) && c.TokenFile == "" && c.TLS.ClientCAFile == "" {
		errs = append(errs, fmt.Errorf("admin.address %q can be reached from other machines: set admin.token_file or admin.tls.client_ca_file, or listen on 127.0.0.1", c.Address))
	}
	if c.TokenFile != "" {
		if _, err := readToken(c.TokenFile); err != nil {
			errs = append(errs, err)
		}
	}
	switch t := c.TLS; {
	case (t.CertFile == "") != (t.KeyFile == ""):
		errs = append(errs, errors.New("admin.tls: cert_file and key_file go together"))
	case t.CertFile == "" && t.ClientCAFile != "":
		errs = append(errs, errors.New("admin.tls.client_ca_file needs cert_file and key_file: client certificates only exist over TLS"))
	case t.CertFile != "":
		if _, err := c.TLS.load(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Listen binds the address and serves. The caller closes the server.
func Listen(cfg Config, opts Options) (*Server, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("admin.address: %w: another replica on this machine? Give this one an address of its own, such as --set admin.address=127.0.0.1:9601", err)
	}
	if err != nil {
		return nil, fmt.Errorf("admin.address: %w", err)
	}
	host, _, _ := net.SplitHostPort(cfg.Address) // Check has parsed it
	s := &Server{
		cfg: cfg, process: opts.Process, jobs: opts.Jobs, log: opts.Log,
		loopback: isLoopback(host), listener: listener, served: make(chan struct{}),
		doors: &doors{most: maxConnections, open: map[net.Conn]http.ConnState{}},
	}
	// A name counts as loopback by its spelling; what it resolved to decides.
	if tcp, ok := listener.Addr().(*net.TCPAddr); s.loopback && (!ok || !tcp.IP.IsLoopback()) {
		listener.Close()
		return nil, fmt.Errorf("admin.address %q resolves to %s, which is not loopback", cfg.Address, listener.Addr())
	}
	if cfg.TLS.CertFile != "" {
		listener = tls.NewListener(listener, cfg.TLS.server())
	}
	closing, closed := context.WithCancel(context.Background())
	s.routing = &streams{s, opts.Streams, make(chan struct{}, maxPolls), closing}
	s.viewers, s.closing = make(chan struct{}, maxViewers), closing.Done()
	s.http = &http.Server{
		Handler:           s.handler(opts.Metrics),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         s.doors.changed,
		ErrorLog:          log.New(debugWriter{opts.Log}, "", 0),
	}
	s.http.RegisterOnShutdown(closed) // long polls do not hold the end up
	go func() {                       // ends when Close closes the listener
		defer close(s.served)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error().Err(err).Msg("the admin server stopped")
		}
	}()
	return s, nil
}

// Addr is the address that is listened on, with the real port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL is where the server is reached from this machine.
func (s *Server) URL() string {
	scheme := "http://"
	if s.cfg.TLS.CertFile != "" {
		scheme = "https://"
	}
	return scheme + s.Addr()
}

// Close ends the server: requests under way may finish until ctx ends. A
// second Close does nothing.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("admin: requests were cut off: %w", errors.Join(err, s.http.Close()))
	}
	<-s.served
	return err
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// readToken reads a token file: one line, surrounding blanks dropped.
func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("admin.token_file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("admin.token_file %s is empty: write a token of your choice into it", file)
	}
	return token, nil
}

// server makes the TLS side. Files are read anew for each handshake, so that
// replaced certificates count at once; handshakes are rare here.
func (t TLS) server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.load() },
	}
}

func (t TLS) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{cert},
	}
	if t.ClientCAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(t.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("admin.tls.client_ca_file: %w", err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("admin.tls.client_ca_file %s holds no PEM certificate", t.ClientCAFile)
	}
	// Probes come without a certificate; what changes state asks for one.
	cfg.ClientAuth = tls.VerifyClientCertIfGiven
	return cfg, nil
}

// debugWriter takes net/http's own complaints (broken handshakes, resets):
// noise that anybody who reaches the port can cause.
type debugWriter struct{ log zerolog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug().Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}
