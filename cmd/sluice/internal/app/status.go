package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/heavy"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/procs"
)

var _ admin.Process = (*App)(nil)

// Alive implements admin.Process: whether the poll loop turns.
func (a *App) Alive() bool { return a.consumer.Load().Alive() }

// Ready implements admin.Process: joined, and not on the way out.
func (a *App) Ready() bool {
	return !a.stopping.Load() && a.consumer.Load().Healthy()
}

// Health implements admin.Process.
func (a *App) Health() admin.Health {
	return a.history.health(a.look(a.consumer.Load().Status()), time.Now())
}

// fullAt is the part of the memory limit from which on memory counts as full.
const fullAt = 0.9

// slowPart is the part of elasticsearch.request_timeout from which on a bulk
// request is slow.
const slowPart = 4

// standsAfter is how long nothing must have been committed while all partitions are
// paused for that to be no mere breath.
const standsAfter = 5 * time.Second

// stands says whether nothing is read any more for want of memory: what held
// targets leave of it may be less than fullAt.
func (a *App) stands(c consumer.Status) bool {
	for _, p := range c.Partitions {
		if p.State != consumer.StatePaused {
			return false
		}
	}
	last := c.LastCommit
	if last.Before(a.started) {
		last = a.started
	}
	return len(c.Partitions) > 0 && time.Since(last) > standsAfter
}

// look asks the rooms what they do.
func (a *App) look(c consumer.Status) view {
	v := view{
		stopping: a.stopping.Load(),
		joined:   a.consumer.Load().Healthy(),
		kafka:    c.Trouble, kafkaSince: c.TroubleSince,
		commits: c.CommitError, commitsSince: c.CommitErrorSince,
		indexer: a.indexer.Status(), routing: a.routing.Status(),
	}
	v.full = float64(a.budget.Used()) >= fullAt*float64(a.budget.Limit()) || len(v.indexer.Held) > 0 && a.stands(c)
	if a.letters != nil {
		v.letters = a.letters.Status()
	}
	v.silent, v.silentReason = a.link.state()
	v.pace, v.slow = a.link.pace(), a.cfg.Elasticsearch.RequestTimeout/slowPart
	if a.parked != nil {
		v.parked, v.parkedSince = a.parked.Trouble()
	}
	for _, p := range c.Partitions {
		switch {
		case p.Halt != nil:
			v.halted = append(v.halted, admin.HaltedPartition{
				Topic: p.Topic, Partition: p.Partition, Offset: p.Halt.Offset, Kind: p.Halt.Kind, Reason: p.Halt.Type, Since: p.Halt.Since,
			})
		case p.State == consumer.StateWaiting && v.waiting == "":
			v.waiting, v.waitingSince = fmt.Sprintf("topic %s: %s", p.Topic, p.Reason), p.Since
		}
		for _, l := range p.Parked {
			if l.Trouble != "" && v.parked == "" {
				v.parked = fmt.Sprintf("%s of %s/%d: %s", l.Target, p.Topic, p.Partition, l.Trouble)
			}
		}
		if p.NearStart && v.nearStart == "" {
			v.nearStart = fmt.Sprintf("%s/%d", p.Topic, p.Partition)
		}
	}
	return v
}

// Status is the answer of /v1/status.
type Status struct {
	Version       string              `json:"version"`
	Started       time.Time           `json:"started"`
	State         admin.State         `json:"state"`
	Since         time.Time           `json:"since"`
	Reason        string              `json:"reason,omitempty"`
	Memory        MemoryStatus        `json:"memory"`
	GOMAXPROCS    int                 `json:"gomaxprocs"`
	Indexer       IndexerStatus       `json:"indexer"`
	Held          []admin.HeldTarget  `json:"held"` // with the most bytes, 100 at most
	DeadLetters   *DeadLettersStatus  `json:"dead_letters,omitempty"`
	Routing       *RoutingStatus      `json:"routing,omitempty"`
	Consumer      consumer.Status     `json:"consumer"`
	Elasticsearch admin.Elasticsearch `json:"elasticsearch"`
	// Customers are those with the most bytes in the last minutes, the largest
	// first; none where no rule names a customer.
	Customers []heavy.Share `json:"customers,omitempty"`
}

// MemoryStatus is the byte budget.
type MemoryStatus struct {
	UsedBytes  int64 `json:"used_bytes"`
	LimitBytes int64 `json:"limit_bytes"`
}

// IndexerStatus is what the indexer is doing.
type IndexerStatus struct {
	Indexers      int   `json:"indexers"`
	InFlight      int   `json:"requests_in_flight"`
	RequestsLimit int   `json:"requests_limit"`
	Bytes         int64 `json:"bytes"`
	HeldTargets   int   `json:"held_targets"`
	BlockedOn     int   `json:"records_never_answered"`
	Throttled     bool  `json:"throttled"`
	// BulkSeconds is how long a bulk request takes, or has waited; 0: none was answered lately.
	BulkSeconds float64 `json:"bulk_seconds"`
}

// DeadLettersStatus is what the dead-letter writer is doing and has done.
type DeadLettersStatus struct {
	Waiting int               `json:"waiting"`
	Bytes   int64             `json:"bytes"`
	Alarm   string            `json:"alarm,omitempty"`
	Reasons map[string]uint64 `json:"reasons"` // acknowledged letters by error type
}

// Status implements admin.Process.
func (a *App) Status() any {
	c := a.consumer.Load().Status()
	v := a.look(c)
	health := a.history.health(v, time.Now())
	s := Status{
		Version: a.version, Started: a.started, State: health.State, Since: health.Since, Reason: health.Reason,
		Memory:     MemoryStatus{a.budget.Used(), a.budget.Limit()},
		GOMAXPROCS: procs.Current(),
		Indexer:    indexerStatus(v), Held: mostHeld(health.Held), Routing: v.routing,
		Consumer: c, Elasticsearch: health.Elasticsearch, Customers: a.noisy(),
	}
	if a.letters != nil {
		s.DeadLetters = letterStatus(v.letters)
	}
	return s
}

func indexerStatus(v view) IndexerStatus {
	s := v.indexer
	return IndexerStatus{
		Indexers: s.Indexers, InFlight: s.InFlight, RequestsLimit: s.RequestsLimit, Bytes: s.Bytes,
		HeldTargets: len(s.Held), BlockedOn: s.BlockedOn, Throttled: s.Throttled, BulkSeconds: v.pace.Seconds(),
	}
}

func letterStatus(s deadletter.Status) *DeadLettersStatus {
	return &DeadLettersStatus{Waiting: s.Letters, Bytes: s.Bytes, Alarm: s.Alarm, Reasons: s.Reasons}
}

// Skip implements admin.Process.
func (a *App) Skip(ctx context.Context, topic string, partition int32, offset int64, discard bool) error {
	err := a.consumer.Load().Skip(ctx, topic, partition, offset, discard)
	var owner *consumer.NotOwnerError
	var blocked *consumer.NotBlockedError
	switch {
	case errors.As(err, &owner):
		return &admin.NotOwnerError{Topic: topic, Partition: partition, MemberID: owner.Member, ClientHost: owner.Host}
	case errors.As(err, &blocked), errors.Is(err, consumer.ErrNoDeadLetters), errors.Is(err, deadletter.ErrRefused):
		return fmt.Errorf("%w: %w", admin.ErrRefused, err)
	}
	return err
}

// Release implements admin.Process.
func (a *App) Release(target string) bool { return a.indexer.Release(target) }

// watchState logs each change of state, once a second at most, until ctx ends.
// Between two looks it also keeps the history that /healthz tells.
func (a *App) watchState(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := admin.Starting
	var noisy bool
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		noisy = a.noteNoisy(noisy)
		health := a.Health()
		if health.State == last {
			continue
		}
		event := a.log.Info()
		if health.State == admin.Waiting || health.State == admin.Blocked {
			event = a.log.Warn()
		}
		event.Str("state", string(health.State)).Str("before", string(last)).Str("reason", health.Reason).Msg("state changed")
		last = health.State
	}
}
