package app

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/heavy"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/procs"
)

// mostShown is how many held targets and halted partitions the page is told of.
const mostShown = 100

// Live is what the page is told each second. Counts of records are those of the
// partitions that are held now.
type Live struct {
	Version       string                  `json:"version"`
	Group         string                  `json:"group"`
	State         admin.State             `json:"state"`
	Since         time.Time               `json:"since"`
	Reason        string                  `json:"reason,omitempty"`
	Memory        MemoryStatus            `json:"memory"`
	GOMAXPROCS    int                     `json:"gomaxprocs"`
	Indexer       IndexerStatus           `json:"indexer"`
	Elasticsearch admin.Elasticsearch     `json:"elasticsearch"`
	DeadLetters   *DeadLettersStatus      `json:"dead_letters,omitempty"`
	Customers     []heavy.Share           `json:"customers,omitempty"` // see Status
	Held          []admin.HeldTarget      `json:"held"`                // those with the most bytes
	HeldCount     int                     `json:"held_count"`
	Halted        []admin.HaltedPartition `json:"halted"` // those that stand longest
	HaltedCount   int                     `json:"halted_count"`
	TopicSum
	Topics []LiveTopic `json:"topics"` // by name
}

// TopicSum is what partitions do together.
type TopicSum struct {
	Partitions int                   `json:"partitions"`
	Halted     int                   `json:"partitions_halted"`
	Waiting    int                   `json:"partitions_waiting"`
	Lag        int64                 `json:"lag"`         // records
	LagUnknown int                   `json:"lag_unknown"` // partitions whose lag is not known yet
	LagSeconds float64               `json:"lag_seconds"` // the largest
	Records    consumer.LedgerStatus `json:"records"`
}

// LiveTopic is what the held partitions of a topic do.
type LiveTopic struct {
	Topic string `json:"topic"`
	TopicSum
}

// add counts a partition.
func (s *TopicSum) add(p *consumer.PartitionStatus) {
	s.Partitions++
	if p.Halt != nil {
		s.Halted++
	} else if p.State == consumer.StateWaiting {
		s.Waiting++
	}
	if p.Lag < 0 {
		s.LagUnknown++
	} else {
		s.Lag += p.Lag
	}
	s.LagSeconds = max(s.LagSeconds, p.LagSeconds)
	s.Records.Add(p.Ledger)
}

// mostHeld are the held targets with the most bytes.
func mostHeld(held []admin.HeldTarget) []admin.HeldTarget {
	slices.SortFunc(held, func(a, b admin.HeldTarget) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Target, b.Target))
	})
	return held[:min(len(held), mostShown)]
}

// Live implements admin.Process.
func (a *App) Live() any {
	c := a.consumer.Load().Status()
	v := a.look(c)
	health := a.history.health(v, time.Now())
	l := Live{
		Version: a.version, Group: c.Group, State: health.State, Since: health.Since, Reason: health.Reason,
		Memory: MemoryStatus{a.budget.Used(), a.budget.Limit()}, GOMAXPROCS: procs.Current(),
		Indexer: indexerStatus(v), Elasticsearch: health.Elasticsearch,
		Held: mostHeld(health.Held), HeldCount: len(health.Held), Halted: health.Halted, HaltedCount: len(health.Halted),
		Customers: a.noisy(), Topics: []LiveTopic{},
	}
	slices.SortFunc(l.Halted, func(a, b admin.HaltedPartition) int { return a.Since.Compare(b.Since) })
	l.Halted = l.Halted[:min(len(l.Halted), mostShown)]
	if a.letters != nil {
		l.DeadLetters = letterStatus(v.letters)
	}
	for i := range c.Partitions { // by topic
		p := &c.Partitions[i]
		if n := len(l.Topics); n == 0 || l.Topics[n-1].Topic != p.Topic {
			l.Topics = append(l.Topics, LiveTopic{Topic: p.Topic})
		}
		l.add(p)
		l.Topics[len(l.Topics)-1].add(p)
	}
	return l
}
