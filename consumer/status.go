package consumer

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// The states of a partition.
const (
	StateStarting = "starting" // its topic's metadata or generations are being read
	StateWaiting  = "waiting"  // they, or its records, cannot be read: see Reason
	StateRunning  = "running"
	StatePaused   = "paused"   // its queue, or memory, is full
	StateRetrying = "retrying" // its fetches fail
	StateHalted   = "halted"   // it waits for an operator: see Halt
)

// Status is what the consumer is doing.
type Status struct {
	Group         string `json:"group"`
	Member        string `json:"member"` // "": not joined
	Instance      string `json:"instance,omitempty"`
	Generation    int32  `json:"generation"` // of the group; -1: not joined
	LastHeartbeat int64  `json:"last_heartbeat"`
	// Trouble is why this member has no part in the group: no broker is
	// reached, it is not let in, or the group refuses it; "" while it has.
	Trouble      string    `json:"trouble,omitempty"`
	TroubleSince time.Time `json:"trouble_since,omitzero"`
	// MissingTopics are those of kafka.topics, names and expressions, that no
	// topic has been seen for yet.
	MissingTopics []string `json:"missing_topics,omitempty"`
	// CommitError is why the last commit failed and CommitErrorSince when that
	// began; "" while commits are taken.
	CommitError      string    `json:"commit_error,omitempty"`
	CommitClass      string    `json:"commit_class,omitempty"`
	CommitErrorSince time.Time `json:"commit_error_since,omitzero"`
	LastCommit       time.Time `json:"last_commit,omitzero"`
	QueueBytes       int64     `json:"queue_bytes"`

	Partitions []PartitionStatus `json:"partitions"` // those held, by topic and number
}

// PartitionStatus is the state of a source partition that is held.
type PartitionStatus struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"` // of waiting
	Since     time.Time `json:"since,omitzero"`
	Halt      *Halt     `json:"halt,omitempty"`
	Blocked   int       `json:"blocked,omitempty"` // records that wait for sluice skip

	Position   int64   `json:"position"`  // the next record to dispatch; -1: not known yet
	Committed  int64   `json:"committed"` // -1: nothing
	Start      int64   `json:"start"`     // of the log; -1: not known yet
	End        int64   `json:"end"`
	Lag        int64   `json:"lag"` // -1: not known yet
	LagSeconds float64 `json:"lag_seconds"`
	Queued     int     `json:"queued"`
	InFlight   int     `json:"in_flight"` // queued ones included
	QueueBytes int64   `json:"queue_bytes"`
	Generation int     `json:"generation"` // recorded, of the position; 0: none
	// Epoch is that of the routing table by which its records are written; 0:
	// the stream is not routed, or no table was read yet.
	Epoch int64 `json:"epoch,omitempty"`
	// Parked are the targets whose records are parked, NearStart says that what
	// is not committed is among the oldest hour of the log.
	Parked    []ParkedTarget `json:"parked_targets,omitempty"`
	NearStart bool           `json:"near_log_start,omitempty"`
	Ledger    LedgerStatus   `json:"ledger"`
	lag       time.Duration  // as a duration
}

// LedgerStatus counts records since the process started.
type LedgerStatus struct {
	Consumed     uint64 `json:"consumed"`
	Indexed      uint64 `json:"indexed"`
	Deleted      uint64 `json:"deleted"`
	Stale        uint64 `json:"stale"`
	DeadLettered uint64 `json:"dead_lettered"`
	Parked       uint64 `json:"parked"`
	Ignored      uint64 `json:"ignored"`
	Abandoned    uint64 `json:"abandoned"`
	InFlight     uint64 `json:"in_flight"`
}

// Add adds another partition's counts.
func (l *LedgerStatus) Add(o LedgerStatus) {
	l.Consumed += o.Consumed
	l.Indexed += o.Indexed
	l.Deleted += o.Deleted
	l.Stale += o.Stale
	l.DeadLettered += o.DeadLettered
	l.Parked += o.Parked
	l.Ignored += o.Ignored
	l.Abandoned += o.Abandoned
	l.InFlight += o.InFlight
}

// counters are those that no ledger holds.
type counters struct {
	rebalances, dataLoss, bugs atomic.Uint64
}

// Status may be called at any time.
func (c *Consumer) Status() Status {
	s := Status{
		Group:      c.cfg.GroupID,
		Instance:   c.cfg.InstanceID,
		Generation: -1,
		QueueBytes: c.queued.Load(),
	}
	if h := c.LastHeartbeat(); !h.IsZero() {
		s.LastHeartbeat = h.UnixMilli()
	}
	s.Trouble, s.TroubleSince, s.MissingTopics = c.trouble.now()
	c.commits.mu.Lock()
	if c.commits.failing != nil {
		s.CommitError, s.CommitClass, s.CommitErrorSince = c.commits.failing.Error(), string(c.commits.class), c.commits.since
	}
	s.LastCommit = c.commits.last
	c.commits.mu.Unlock()
	as := c.holdings()
	if len(as) > 0 {
		s.Member, s.Generation = c.cl.GroupMetadata()
	}
	for _, a := range as {
		s.Partitions = append(s.Partitions, c.partitionStatus(a))
	}
	slices.SortFunc(s.Partitions, func(x, y PartitionStatus) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	return s
}

func (c *Consumer) partitionStatus(a *assignment) PartitionStatus {
	own, all := c.pauses.of(a)
	c.mu.Lock()
	waiting, since := a.topic.waiting, a.topic.since
	c.mu.Unlock()
	parked, parkedWaiting := a.parking.status()
	now := c.now()

	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	s := PartitionStatus{
		Topic: a.l.topic, Partition: a.id,
		Committed: a.committed, Start: a.start, End: a.end,
		Queued: a.queued, InFlight: int(a.l.inFlight()), QueueBytes: a.bytes,
		Blocked: len(a.blockers), Parked: parked, NearStart: a.nearStart, Epoch: a.epoch,
		Ledger: LedgerStatus{
			Consumed: a.l.consumed, Indexed: a.l.counts[outIndexed], Deleted: a.l.counts[outDeleted],
			Stale: a.l.counts[outStale], DeadLettered: a.l.counts[outDeadLettered], Parked: a.l.counts[outParked],
			Ignored: a.l.counts[outIgnored], Abandoned: a.l.counts[outAbandoned], InFlight: a.l.inFlight(),
		},
	}
	s.Position = -1
	if position, ok := a.tracker.Position(); ok {
		s.Position = position
		s.Generation = a.topic.newest(a.id, position)
	}
	s.Lag, s.lag = a.lag(now)
	s.LagSeconds = s.lag.Seconds()
	switch {
	case a.halt != nil:
		h := *a.halt
		if len(a.blockers) > 0 { // the one to skip next
			b := a.blockers[0]
			h.Offset, h.Type, h.Target, h.Kind = b.offset, b.letter.Type, b.letter.Target, b.kind
		}
		s.State, s.Halt, s.Since = StateHalted, &h, h.Since
	case own&pauseStarting != 0 && waiting != "":
		s.State, s.Reason, s.Since = StateWaiting, waiting, since
	case a.denied != "" && now.Sub(a.deniedAt) < deniedFor:
		s.State, s.Reason = StateWaiting, a.denied
	case own&pauseParking != 0 && parkedWaiting != "":
		s.State, s.Reason = StateWaiting, parkedWaiting
	case own&(pauseStarting|pauseParking) != 0:
		s.State = StateStarting
	case own&(pauseRetry|pauseSuspect) != 0:
		s.State = StateRetrying
	case own&pauseFull != 0 || all:
		s.State = StatePaused
	default:
		s.State = StateRunning
	}
	return s
}

// lag is how far the commits are behind the log: in offsets, -1 while that is
// not known, and by the age of the first record that is not handled. Records
// that the log has lost do not count. l.mu must be held.
func (a *assignment) lag(now time.Time) (n int64, age time.Duration) {
	if a.end < 0 {
		return -1, 0
	}
	from := max(a.committed, a.start)
	handled, ok := a.tracker.Committable()
	n = max(0, a.end-from)
	if n == 0 || !ok || handled >= a.end {
		return n, 0
	}
	for i := range a.marks {
		if a.marks[i].offset > handled {
			break
		}
		if !a.marks[i].time.IsZero() {
			age = max(0, now.Sub(a.marks[i].time))
		}
	}
	return n, age
}
