package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

var (
	_ consumer.Routing = (*Routing)(nil)
	_ consumer.Dirty   = (*Routing)(nil)
)

// CheckTable says why a configuration cannot follow a routing table: what the
// table asks for would lose or misplace records.
func CheckTable(cfg *config.Config, mapper *document.Mapper, t *partition.Table) error {
	if t.Write.Legacy() && t.Legacy.Index != cfg.Documents.Index {
		return fmt.Errorf("epoch %d of the routing table writes to the legacy index %s, and documents.index is %s: set it to that", t.Epoch, t.Legacy.Index, cfg.Documents.Index)
	}
	if t.Write.Legacy() && t.Write.New() {
		if err := mapper.CheckDualWrite(); err != nil {
			return fmt.Errorf("epoch %d of the routing table writes to both sides (%s), and this configuration cannot: %w", t.Epoch, t.Write, err)
		}
	}
	return nil
}

// Routing follows the routing table of a stream: it puts tables into force for
// records when the consumer says so, and marks customers whose sides differ. A
// table that the configuration cannot follow is never put into force, which the
// fence then shows: nothing relies on it.
type Routing struct {
	cfg     *config.Config
	watcher *partition.Watcher
	mapper  *document.Mapper
	control *elastic.Control
	log     zerolog.Logger
	backoff prometheus.Gauge

	inForce atomic.Pointer[partition.Router]
	placing atomic.Pointer[string] // see places

	mu sync.Mutex
	// fit is the newest table that can be followed; unfit says why a newer one
	// cannot, and since when that is known.
	fit   *partition.Router
	unfit error
	since time.Time
}

// NewRouting returns what follows the table of cfg's stream, which routes the
// records of mapper; nothing is read before Run. It is nil for a stream that is
// not routed.
func NewRouting(cfg *config.Config, mapper *document.Mapper, control *elastic.Control, log zerolog.Logger) *Routing {
	if cfg.Routing.Stream == "" {
		return nil
	}
	r := &Routing{
		cfg: cfg, mapper: mapper, control: control, log: log.With().Str("stream", cfg.Routing.Stream).Logger(),
		backoff: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_routing_cache_backoff", Help: "1 while the cache of a routing table with many patterns is bypassed, since changes flood it."}),
	}
	r.watcher = partition.NewWatcher(partition.NewStore(control), cfg.Routing.Stream, partition.WatcherOptions{
		Interval: cfg.Routing.RefreshInterval, MaxStaleness: cfg.Routing.MaxStaleness,
		Cache: partition.CacheOptions{InBackoff: r.backoff}, Report: r.report,
	})
	mapper.Use(nil)
	return r
}

// Run follows the table until ctx ends.
func (r *Routing) Run(ctx context.Context) { r.watcher.Run(ctx) }

func (r *Routing) report(trouble error) {
	if trouble == nil {
		r.log.Info().Msg("the routing table can be followed again")
		return
	}
	r.log.Error().Err(trouble).Msg("the routing table cannot be followed: the last good one stays in force")
}

// newest returns the newest table that can be followed; nil: none was read.
func (r *Routing) newest() (*partition.Router, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.watcher.View().Router
	if known == nil || r.fit != nil && known.Epoch() <= r.fit.Epoch() {
		return r.fit, r.unfit
	}
	err := CheckTable(r.cfg, r.mapper, known.Table())
	if err == nil {
		r.fit, r.unfit = known, nil
	} else if r.unfit == nil || r.unfit.Error() != err.Error() {
		r.unfit, r.since = err, time.Now()
		r.log.Error().Err(err).Int64("epoch", known.Epoch()).Msg("the routing table asks for what this configuration cannot do")
	}
	return r.fit, r.unfit
}

// Refresh implements consumer.Routing.
func (r *Routing) Refresh(ctx context.Context) (epoch int64, err error) {
	_, err = r.watcher.Refresh(ctx)
	fit, unfit := r.newest()
	if fit != nil {
		epoch = fit.Epoch()
	}
	return epoch, errors.Join(err, unfit)
}

// Wait implements consumer.Routing.
func (r *Routing) Wait(ctx context.Context, after int64) error {
	for {
		known, err := r.watcher.Wait(ctx, after+1)
		if err != nil {
			return err
		}
		if fit, _ := r.newest(); fit != nil && fit.Epoch() > after {
			return nil
		}
		// This one cannot be followed; the next one may be.
		after = known.Epoch()
	}
}

// Adopt implements consumer.Routing.
func (r *Routing) Adopt() (epoch int64) {
	fit, _ := r.newest()
	if fit == nil {
		return 0
	}
	if old := r.inForce.Swap(fit); old == nil || old.Epoch() != fit.Epoch() {
		r.log.Info().Int64("epoch", fit.Epoch()).Stringer("write_mode", fit.Table().Write).Msg("routing table in force")
	}
	r.mapper.Use(fit)
	places := tablePlaces(fit.Table())
	r.placing.Store(&places)
	return fit.Epoch()
}

// places identifies where the table in force puts customers; "": there is none.
func (r *Routing) places() string {
	if r == nil || r.placing.Load() == nil {
		return ""
	}
	return *r.placing.Load()
}

// tablePlaces identifies to which index of the new side a table sends each
// customer. Its epoch, its modes, its states and partitions that nobody is in are
// not part of it, nor is the legacy index, which is documents.index.
func tablePlaces(t *partition.Table) string {
	slots := make([]string, len(t.SlotMap))
	for i, p := range t.SlotMap {
		slots[i] = t.Partitions[p].Index
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %d %q ", t.Hash, t.Slots, slots)
	for _, customer := range slices.Sorted(maps.Keys(t.Overrides)) {
		fmt.Fprintf(sum, "%q=%q ", customer, t.Partitions[t.Overrides[customer]].Index)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// dirtyMark is the control document dirty:<job>:<customer>.
type dirtyMark struct {
	Schema   int       `json:"schema"`
	Job      string    `json:"job"`
	Customer string    `json:"customer"`
	Epoch    int64     `json:"epoch"` // of the last rejection
	Count    int64     `json:"count"` // of rejections, redelivered ones counted again
	At       time.Time `json:"at"`    // of the last
}

// MarkDirty implements consumer.Dirty. A mark that is there is written again: a
// repair takes it away only if it has not changed since the repair began.
func (r *Routing) MarkDirty(ctx context.Context, customer string) error {
	now := r.inForce.Load()
	if now == nil {
		return partition.ErrNoTable
	}
	id := "dirty:" + now.Table().Job + ":" + customer
	for {
		var mark dirtyMark
		seqNo, term, err := r.control.Get(ctx, id, &mark)
		absent := errors.Is(err, elastic.ErrNotFound)
		if err != nil && !absent {
			return err
		}
		mark = dirtyMark{1, now.Table().Job, customer, now.Epoch(), mark.Count + 1, time.Now().UTC().Truncate(time.Millisecond)}
		if absent {
			err = r.control.Create(ctx, id, mark)
		} else {
			err = r.control.Update(ctx, id, mark, seqNo, term)
		}
		if !errors.Is(err, elastic.ErrConflict) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
}

// RoutingStatus is the routing table in /v1/status.
type RoutingStatus struct {
	Stream string `json:"stream"`
	// Epoch is that of the table in force; 0: none is yet.
	Epoch int64 `json:"epoch"`
	// Write is its write mode: W0 to W3.
	Write string `json:"write_mode,omitempty"`
	// Known is the newest epoch that was read; it is adopted next.
	Known int64 `json:"known_epoch"`
	// Confirmed is when the table was last read; zero: never.
	Confirmed time.Time `json:"confirmed"`
	// Trouble is why the table cannot be followed; "": it can.
	Trouble string    `json:"trouble,omitempty"`
	Since   time.Time `json:"since"` // of the trouble
	// CustomerChanges counts records whose id had another customer before.
	CustomerChanges uint64 `json:"customer_changes"`
}

// Status returns what is known of the table, nil for a stream that is not
// routed.
func (r *Routing) Status() *RoutingStatus {
	if r == nil {
		return nil
	}
	view := r.watcher.View()
	s := &RoutingStatus{Stream: r.watcher.Stream(), Confirmed: view.Seen, CustomerChanges: r.mapper.CustomerChanges()}
	if view.Router != nil {
		s.Known = view.Router.Epoch()
	}
	if now := r.inForce.Load(); now != nil {
		s.Epoch, s.Write = now.Epoch(), now.Table().Write.String()
	}
	switch _, unfit := r.newest(); {
	case view.Trouble != nil:
		s.Trouble, s.Since = view.Alarm(), view.Since
	case unfit != nil:
		r.mu.Lock()
		s.Trouble, s.Since = unfit.Error(), r.since
		r.mu.Unlock()
	}
	return s
}

// streams are what readers may ask about.
func (r *Routing) streams() map[string]admin.Stream {
	if r == nil {
		return nil
	}
	return map[string]admin.Stream{r.watcher.Stream(): r.watcher}
}

// collectors are the metrics of the table.
func (r *Routing) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		r.backoff,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_routing_epoch", Help: "The epoch of the routing table in force; 0: none is yet.",
			ConstLabels: prometheus.Labels{"stream": r.watcher.Stream()},
		}, func() float64 {
			if now := r.inForce.Load(); now != nil {
				return float64(now.Epoch())
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_routing_trouble", Help: "1 while the routing table cannot be read or followed, else 0.",
			ConstLabels: prometheus.Labels{"stream": r.watcher.Stream()},
		}, func() float64 {
			if r.Status().Trouble != "" {
				return 1
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_customer_changes_total", Help: "Records whose id was seen with another customer not long before.",
		}, func() float64 { return float64(r.mapper.CustomerChanges()) }),
	}
}
