package migrate

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// gate lets so many in at once; the number may change at any time.
type gate struct {
	mu struct {
		sync.Mutex
		limit, used int
		changed     chan struct{} // closed at the next change
	}
}

func newGate() *gate {
	g := &gate{}
	g.mu.changed = make(chan struct{})
	return g
}

func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.mu.used < g.mu.limit {
			g.mu.used++
			g.mu.Unlock()
			return nil
		}
		changed := g.mu.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.used--
	g.wake()
}

func (g *gate) set(limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.limit != limit {
		g.mu.limit = limit
		g.wake()
	}
}

func (g *gate) wake() {
	close(g.mu.changed)
	g.mu.changed = make(chan struct{})
}

// gauges collect what the work itself sees of the cluster.
type gauges struct {
	mu struct {
		sync.Mutex
		bulks, searches []time.Duration
		rejected        int
		usual           time.Duration
	}
}

func newGauges() *gauges { return &gauges{} }

func (g *gauges) bulk(took time.Duration, rejected int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.bulks = append(g.mu.bulks, took)
	g.mu.rejected += rejected
}

// rejected tells of a search that the server had no room for.
func (g *gauges) rejected() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.rejected++
}

func (g *gauges) search(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.searches = append(g.mu.searches, took)
}

// take fills in what was seen since the last call.
func (g *gauges) take(s *Signals) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Bulks, s.Rejected, s.Usual = len(g.mu.bulks), g.mu.rejected, g.mu.usual
	s.Bulk, s.Search = p95(g.mu.bulks), p95(g.mu.searches)
	if s.Bulks > 0 {
		// The baseline follows slowly, and faster down than up, so that a cluster
		// that gets slower step by step is noticed.
		switch {
		case g.mu.usual == 0:
			g.mu.usual = s.Bulk
		case s.Bulk < g.mu.usual:
			g.mu.usual -= (g.mu.usual - s.Bulk) / 4
		default:
			g.mu.usual += (s.Bulk - g.mu.usual) / 32
		}
	}
	g.mu.bulks, g.mu.searches, g.mu.rejected = nil, nil, 0
}

func p95(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)*95/100]
}

// throttle looks at the signals and sets the pace until ctx ends. It stops the
// copy when the job has left the state.
func (c *copyRun) throttle(ctx context.Context, stop context.CancelCauseFunc) {
	var t Throttle
	w := watch{m: c.m}
	var checked time.Time
	counted, since := int64(0), time.Now()
	for {
		now := time.Now()
		var s Signals
		c.signals.take(&s)
		job, err := c.m.store.load(ctx, c.job.Name)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.Unknown = err.Error()
			job = c.job
		case job.State != Backfilling:
			stop(&MovedError{c.job.Name, job.State, []State{Backfilling}})
			return
		case job.Backfill.First != c.job.Backfill.First:
			stop(errAgain)
			return
		default:
			s.Paused = job.Paused
		}
		w.look(ctx, job, &s)
		if now.Sub(checked) >= checkEvery {
			checked = now
			if err := c.m.followMapping(ctx, job); err != nil {
				s.Unknown = err.Error()
			}
		}
		if ctx.Err() != nil {
			return
		}
		t = t.Next(now, s, job.Throttle)
		c.gate.set(t.Concurrency)
		c.mu.Lock()
		c.mu.size = t.BulkBytes
		copied, trouble := c.mu.copied, c.mu.trouble
		c.mu.Unlock()
		p := Progress{Concurrency: t.Concurrency, Max: job.Throttle.Concurrency, Lag: s.Lag, Reason: t.Reason, Class: t.Class}
		if p.Reason == "" && trouble != "" {
			p.Reason, p.Class = trouble, "trouble"
		}
		if spent := now.Sub(since); spent >= 10*time.Second || spent > 0 && counted == 0 {
			p.Rate = float64(copied-counted) / spent.Seconds()
			counted, since = copied, now
			c.report(p, true)
		} else {
			c.report(p, false)
		}
		if sleep(ctx, c.m.Poll) != nil {
			return
		}
	}
}

// watch looks at the signals that do not come from the work itself.
type watch struct {
	m     *Manager
	last  Signals // of the cluster
	asked time.Time
}

// look adds them to s.
func (w *watch) look(ctx context.Context, job *Job, s *Signals) {
	// The nodes are asked less often: they answer with a lot.
	if now := time.Now(); now.Sub(w.asked) >= 5*w.m.Poll {
		w.asked = now
		w.m.ask(ctx, job, &w.last)
	}
	s.Queue, s.Pressure, s.Disk, s.Flood, s.Red = w.last.Queue, w.last.Pressure, w.last.Disk, w.last.Flood, w.last.Red
	if s.Unknown == "" {
		s.Unknown = w.last.Unknown
	}
	switch lag, err := w.m.Group.Behind(ctx, job.Throttle.Lag); {
	case err == nil:
		s.Lag = &lag
	case s.Unknown == "":
		s.Unknown = "live lag: " + err.Error()
	}
	if job.Throttle.Probe != "" {
		if err := w.m.probe(ctx, job.Throttle.Probe); err != nil {
			s.Probe = err.Error()
		}
	}
}

// ask asks the cluster for its load. What cannot be asked is said in Unknown.
func (m *Manager) ask(ctx context.Context, j *Job, s *Signals) {
	*s = Signals{}
	health, err := m.Cluster.Health(ctx, append(j.indices(), j.Source)...)
	if err != nil {
		s.Unknown = err.Error()
		return
	}
	s.Red = health.Status == "red"
	// The cluster blocks an index on a disk that is too full, and takes the block
	// away long after the disk is below that again.
	blocked, err := m.Cluster.IndexSettings(ctx, "index.blocks.read_only_allow_delete", append(j.indices(), j.Source)...)
	if err != nil {
		s.Unknown = err.Error()
		return
	}
	s.Flood = slices.Contains(slices.Collect(maps.Values(blocked)), "true")
	flood, err := m.diskMark(ctx, "flood_stage", 95)
	if err != nil {
		s.Unknown = err.Error()
		return
	}
	nodes, err := m.Cluster.Nodes(ctx)
	if err != nil {
		s.Unknown = err.Error()
		return
	}
	for _, n := range nodes {
		s.Queue = max(s.Queue, n.WriteQueue)
		if n.Pressed > 0 {
			s.Pressure = max(s.Pressure, float64(n.PressureUsed)/float64(n.Pressed))
		}
		if n.DiskTotal > 0 {
			used := 100 * (1 - float64(n.DiskFree)/float64(n.DiskTotal))
			s.Disk = max(s.Disk, used)
			s.Flood = s.Flood || n.DiskFree < flood.keep(n.DiskTotal)
		}
	}
}

func (m *Manager) probe(ctx context.Context, url string) error {
	if m.Probe != nil {
		return m.Probe(ctx, url)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no answer")
	}
	_ = resp.Body.Close() // only the status is looked at
	if resp.StatusCode >= 300 {
		return fmt.Errorf("answered %d", resp.StatusCode)
	}
	return nil
}

// diskMark is how full the cluster lets a disk become at one of its stages.
type diskMark struct {
	percent float64 // used; 0: free counts
	free    int64   // bytes
	most    int64   // bytes that must be free at most, where percent counts; below 1: no bound
}

// keep is how many bytes of a disk must stay free.
func (d diskMark) keep(total int64) int64 {
	if d.percent == 0 {
		return d.free
	}
	keep := int64(float64(total) * (100 - d.percent) / 100)
	if d.most > 0 {
		keep = min(keep, d.most)
	}
	return keep
}

// diskMark asks for the mark of a stage: what is set, or the server's default, or
// ours in percent where it tells none.
func (m *Manager) diskMark(ctx context.Context, stage string, unknown float64) (diskMark, error) {
	const disk = "cluster.routing.allocation.disk."
	settings, err := m.Cluster.ClusterSettings(ctx, disk+"threshold_enabled", disk+"watermark."+stage, disk+"watermark."+stage+".max_headroom")
	if err != nil {
		return diskMark{}, err
	}
	if settings[0] == "false" {
		return diskMark{percent: 100}, nil
	}
	percent, free, ok := watermark(settings[1])
	if !ok {
		percent = unknown
	}
	_, most, _ := watermark(settings[2])
	return diskMark{percent, free, most}, nil
}

// watermark reads a disk watermark, in percent used (85% or 0.85) or bytes free.
func watermark(text string) (percent float64, free int64, ok bool) {
	if number, found := strings.CutSuffix(text, "%"); found {
		p, err := strconv.ParseFloat(number, 64)
		return p, 0, err == nil
	}
	if ratio, err := strconv.ParseFloat(text, 64); err == nil {
		return 100 * ratio, 0, ratio > 0 && ratio <= 1
	}
	number := strings.TrimSuffix(strings.ToLower(text), "b")
	unit := 1.0
	if n := len(number); n > 0 {
		if power := strings.IndexByte("kmgtp", number[n-1]); power >= 0 {
			number, unit = number[:n-1], float64(int64(1)<<(10*(power+1)))
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	return 0, int64(n * unit), err == nil && n >= 0
}
