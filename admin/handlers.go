package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// SkipRequest is the body of POST /v1/skip.
type SkipRequest struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Discard   bool   `json:"discard"`
}

// Failure is the body of every answer that is not a success. MemberID and
// ClientHost come with 421: who holds the partition.
type Failure struct {
	Error      string `json:"error"`
	MemberID   string `json:"member_id,omitempty"`
	ClientHost string `json:"client_host,omitempty"`
}

func (s *Server) handler(metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	// Probe answers are one word: they tell a stranger nothing.
	mux.HandleFunc("GET /livez", probe(s.process.Alive))
	mux.HandleFunc("GET /readyz", probe(s.process.Ready))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		health := s.process.Health()
		code := http.StatusOK
		if !health.OK() {
			code = http.StatusServiceUnavailable
		}
		s.reply(w, code, health)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		s.reply(w, http.StatusOK, s.process.Status())
	})
	s.routing.register(mux)
	s.registerJobs(mux)
	mux.Handle("POST /v1/skip", s.guarded(s.skip))
	mux.Handle("POST /v1/targets/{name}/release", s.guarded(s.release))
	mux.HandleFunc("GET /v1/events", s.events)
	page(mux)
	if s.loopback {
		profiles := http.NewServeMux()
		profiles.HandleFunc("/debug/pprof/", pprof.Index)
		profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
		profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.Handle("GET /debug/pprof/", localOnly(profiles))
	}
	return limited(mux)
}

// limited bounds bodies and sets the headers that keep a browser from doing
// anything with our answers but showing them.
func limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		next.ServeHTTP(w, r)
	})
}

// localOnly refuses requests that name a foreign host. A web page can make a
// browser on this machine send such requests to loopback, under a name of its
// own that resolves to 127.0.0.1.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !isLoopback(strings.Trim(host, "[]")) {
			fail(w, http.StatusForbidden, Failure{Error: "the Host header does not name this machine"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guarded stands before everything that changes state: each check that is
// configured must pass, and requests that a browser sends for a foreign page
// are refused.
func (s *Server) guarded(next http.HandlerFunc) http.Handler {
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.TLS.ClientCAFile != "" && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			fail(w, http.StatusUnauthorized, Failure{Error: "this call needs a client certificate that admin.tls.client_ca_file has signed"})
			return
		}
		if s.cfg.TokenFile != "" {
			// Read for each call, so that a replaced token counts at once.
			token, err := readToken(s.cfg.TokenFile)
			if err != nil {
				s.log.Error().Err(err).Msg("a call was refused: the admin token cannot be read")
				fail(w, http.StatusServiceUnavailable, Failure{Error: "the token cannot be checked: see the log"})
				return
			}
			given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || !same(given, token) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				fail(w, http.StatusUnauthorized, Failure{Error: "this call needs the header Authorization: Bearer TOKEN, with the token of admin.token_file"})
				return
			}
		}
		next(w, r)
	})
	if s.cfg.TokenFile == "" && s.cfg.TLS.ClientCAFile == "" {
		handler = localOnly(handler) // Check lets this happen on loopback only
	}
	return http.NewCrossOriginProtection().Handler(handler)
}

// same compares in a time that tells nothing about either text.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func (s *Server) skip(w http.ResponseWriter, r *http.Request) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, Failure{Error: "the body must be application/json"})
		return
	}
	var req SkipRequest
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(&req); err != nil {
		fail(w, http.StatusBadRequest, Failure{Error: `want {"topic": ..., "partition": ..., "offset": ..., "discard": false}: ` + err.Error()})
		return
	}
	if _, err := body.Token(); !errors.Is(err, io.EOF) || req.Topic == "" || req.Partition < 0 || req.Offset < 0 {
		fail(w, http.StatusBadRequest, Failure{Error: "want one object with a topic and a partition and offset of 0 or more"})
		return
	}
	err := s.process.Skip(r.Context(), req.Topic, req.Partition, req.Offset, req.Discard)
	var other *NotOwnerError
	switch {
	case err == nil:
		s.log.Warn().Str("topic", req.Topic).Int32("partition", req.Partition).Int64("offset", req.Offset).
			Bool("discard", req.Discard).Str("from", r.RemoteAddr).Msg("an operator skipped a record")
		s.reply(w, http.StatusOK, req)
	case errors.As(err, &other):
		fail(w, http.StatusMisdirectedRequest, Failure{Error: err.Error(), MemberID: other.MemberID, ClientHost: other.ClientHost})
	case errors.Is(err, ErrRefused):
		fail(w, http.StatusConflict, Failure{Error: err.Error()})
	default:
		fail(w, http.StatusInternalServerError, Failure{Error: err.Error()})
	}
}

func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	target := r.PathValue("name")
	if !s.process.Release(target) {
		fail(w, http.StatusNotFound, Failure{Error: "this target is not held by this replica"})
		return
	}
	s.log.Warn().Str("target", target).Str("from", r.RemoteAddr).Msg("an operator released a target")
	s.reply(w, http.StatusOK, map[string]string{"released": target})
}

func probe(holds func() bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if !holds() {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "no\n")
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}

func asset(kind string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(body) // the reader went away: nobody to tell
	}
}

func (s *Server) reply(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.log.Error().Err(err).Msg("an answer cannot be encoded")
		fail(w, http.StatusInternalServerError, Failure{Error: "the answer cannot be encoded: see the log"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

func fail(w http.ResponseWriter, code int, f Failure) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(f) // strings always encode; the reader may be gone
}
