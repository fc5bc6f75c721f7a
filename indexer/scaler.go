package indexer

import (
	"math"
	"time"
)

// scaler is what decides how many indexers are active, who fill, compress and
// read answers: CPU, that is. How many requests are in flight is the limiter's
// affair, and neither looks at the other.
//
// It is a value; decide makes the next one of it. Indexer.mu guards the
// Indexer's.
type scaler struct {
	cfg   Scaling
	procs int // GOMAXPROCS

	n           int       // indexers that should be active
	why         string    // of the last change
	changed     time.Time // the last change; zero: none
	full, timed int       // such flushes in a row, since the last change
	busy        time.Time // the last flush, or step for want of one
	answers     window
}

// throttledShare of the answered actions turned away with 429 is too much.
const throttledShare = 0.01

// observation is what a scaler hears. One that says nothing lets it look at
// the clock.
type observation struct {
	flush            string // why a batch was flushed
	answered, turned int    // actions answered, and those of them turned away with 429
	procs            int    // GOMAXPROCS now
}

func newScaler(cfg Scaling, procs int, now time.Time) scaler {
	s := scaler{cfg: cfg, procs: procs, busy: now}
	least, most := s.bounds()
	if s.n = least; !cfg.Enabled {
		s.n = most
	}
	return s
}

// bounds returns the least and the most indexers. An explicit max does not
// depend on GOMAXPROCS; min is kept in any case.
func (s *scaler) bounds() (least, most int) {
	most = s.cfg.Max
	if most == 0 {
		most = int(math.Ceil(float64(s.procs) * s.cfg.ActiveRatio))
	}
	least = max(1, s.cfg.Min)
	return least, max(least, most)
}

// decide returns the scaler after an observation. It is pure.
//
// A flush that was full (bytes, documents) or timed (interval) counts towards a
// step up or down, and ends the run of the other kind. The rest of a burst (dry),
// tries by themselves (again) and one that pressure caused (memory, drain) say
// nothing about the load: they only are none of an idle indexer. One of a single
// action (probe, alone) is not even that.
func decide(s scaler, o observation, now time.Time) scaler {
	full := o.flush == "bytes" || o.flush == "documents"
	switch o.flush {
	case "bytes", "documents":
		s.full, s.timed, s.busy = s.full+1, 0, now
	case "interval":
		s.full, s.timed, s.busy = 0, s.timed+1, now
	case "dry", "again", "memory", "drain":
		s.busy = now
	}
	if o.answered > 0 {
		s.answers.add(now, o.answered, o.turned)
	}
	if o.procs > 0 {
		s.procs = o.procs
	}
	least, most := s.bounds()
	since := now.Sub(s.changed)
	mayUp := s.n < most && (s.changed.IsZero() || since >= s.cfg.UpCooldown)
	mayDown := s.n > least && (s.changed.IsZero() || since >= s.cfg.DownCooldown)
	idle := now.Sub(s.busy) >= s.cfg.IdleInterval
	switch {
	case s.n > most:
		return s.step(now, most, "GOMAXPROCS")
	case !s.cfg.Enabled && s.n < most:
		return s.step(now, most, "GOMAXPROCS")
	case !s.cfg.Enabled:
	case s.throttled(now):
		if mayDown {
			return s.step(now, s.n-1, "429")
		}
	case mayUp && full && s.full >= s.cfg.UpAfter:
		return s.step(now, s.n+1, "full")
	case mayDown && s.timed >= s.cfg.DownAfter:
		return s.step(now, s.n-1, "timed")
	case mayDown && idle:
		s.busy = now
		return s.step(now, s.n-1, "idle")
	}
	return s
}

func (s scaler) step(now time.Time, n int, why string) scaler {
	s.n, s.why, s.changed = n, why, now
	s.full, s.timed = 0, 0
	return s
}

// throttled says that the server turned away too much of late.
func (s *scaler) throttled(now time.Time) bool {
	return s.answers.share(now) >= throttledShare
}

// idleAt returns when the want of flushes becomes a step; zero: never.
func (s *scaler) idleAt() time.Time {
	if least, _ := s.bounds(); !s.cfg.Enabled || s.n <= least {
		return time.Time{}
	}
	at := s.busy.Add(s.cfg.IdleInterval)
	if cool := s.changed.Add(s.cfg.DownCooldown); !s.changed.IsZero() && cool.After(at) {
		return cool
	}
	return at
}

// window counts actions over the last minute: a share since the start of the
// process would never recover from a storm.
type window [6]slot

const slotTime = 10 * time.Second

type slot struct {
	number           int64 // of the slotTime that it counts
	answered, turned int
}

func slotAt(now time.Time) int64 { return now.UnixNano() / int64(slotTime) }

func (w *window) add(now time.Time, answered, turned int) {
	number := slotAt(now)
	s := &w[number%int64(len(w))]
	if s.number != number {
		*s = slot{number: number}
	}
	s.answered += answered
	s.turned += turned
}

func (w *window) share(now time.Time) float64 {
	answered, turned := 0, 0
	for _, s := range w {
		if slotAt(now)-s.number < int64(len(w)) {
			answered += s.answered
			turned += s.turned
		}
	}
	if answered == 0 {
		return 0
	}
	return float64(turned) / float64(answered)
}

// observe lets the scaler hear something and does what it decides.
func (x *Indexer) observe(now time.Time, o observation) {
	before := x.scaler.n
	if x.scaler = decide(x.scaler, o, now); x.scaler.n != before {
		x.log.Info().Int("from", before).Int("indexers", x.scaler.n).Str("why", x.scaler.why).
			Msg("indexers scaled")
	}
	x.resize()
}

// resize starts the indexers that are wanted and not there, unless the Indexer
// is closed. Surplus ones retire between batches.
func (x *Indexer) resize() {
	if x.closed {
		return
	}
	for x.workers < x.scaler.n {
		x.workers++
		x.metrics.created.Inc()
		x.wg.Go(x.work)
	}
	if x.workers > x.scaler.n {
		x.cond.Broadcast()
	}
}

// SetProcs tells that GOMAXPROCS has changed to n: indexers above the new bound
// retire when they have finished the batch at hand.
func (x *Indexer) SetProcs(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.observe(time.Now(), observation{procs: n})
}
