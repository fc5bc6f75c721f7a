package admin

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"time"
)

// The live page. uplot.js and uplot.css are uPlot 1.6.32, whose licence stands
// beside them.
//
//go:embed page
var pageFiles embed.FS

const (
	// liveInterval is how often the page is told.
	liveInterval = time.Second
	// maxViewers is how many pages are told at once: each is a connection.
	maxViewers = 16
	// liveWriteTimeout ends the stream of a viewer that reads nothing.
	liveWriteTimeout = 10 * time.Second
)

// page serves the files of the live page.
func page(mux *http.ServeMux) {
	files, _ := fs.Sub(pageFiles, "page") // it is embedded
	kinds := map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".LICENSE": "text/plain; charset=utf-8"}
	entries, _ := fs.ReadDir(files, ".")
	for _, entry := range entries {
		body, _ := fs.ReadFile(files, entry.Name())
		pattern := "GET /page/" + entry.Name()
		if entry.Name() == "index.html" {
			pattern = "GET /{$}"
		}
		mux.HandleFunc(pattern, asset(kinds[path.Ext(entry.Name())], body))
	}
}

// live is what all viewers are told at one moment: made once.
type live struct {
	mu   sync.Mutex
	at   time.Time
	body []byte
	err  error
}

// look returns what the process does, at most an interval old, as one line.
func (l *live) look(process Process) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.at) >= liveInterval*9/10 {
		l.at = now
		l.body, l.err = json.Marshal(process.Live())
	}
	return l.body, l.err
}

// events tells the page once a second what the process does, as server-sent
// events, until the viewer goes or the server ends.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.viewers <- struct{}{}:
		defer func() { <-s.viewers }()
	default:
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, Failure{Error: "too many pages are open on this replica: close one"})
		return
	}
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Time{}) // the server's is for requests that send something
	w.Header().Set("Content-Type", "text/event-stream")
	ticker := time.NewTicker(liveInterval)
	defer ticker.Stop()
	for {
		body, err := s.live.look(s.process)
		if err != nil {
			s.log.Error().Err(err).Msg("the page cannot be told: an answer cannot be encoded")
			return
		}
		_ = stream.SetWriteDeadline(time.Now().Add(liveWriteTimeout)) // else the server's own would end it
		if _, err := w.Write([]byte("data: " + string(body) + "\n\n")); err != nil {
			return
		}
		if stream.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		case <-s.closing:
			return
		}
	}
}
