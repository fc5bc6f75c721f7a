package app

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/indexer"
)

// view is what the rooms say of themselves at one moment.
type view struct {
	stopping bool
	joined   bool
	full     bool   // memory is full of records that wait
	kafka    string // why there is no part in the group; "": there is
	halted   []admin.HaltedPartition
	indexer  indexer.Status
	letters  deadletter.Status
	routing  *RoutingStatus // nil: the stream is not routed

	kafkaSince   time.Time
	commits      string // why commits fail; "": they are taken
	commitsSince time.Time
	waiting      string // why a topic's partitions do not start; "": all do
	waitingSince time.Time
	parked       string // why records cannot be parked, or replayed; "": they can
	parkedSince  time.Time
	nearStart    string    // partitions whose records Kafka is about to delete; "": none
	silent       time.Time // Elasticsearch has not answered since; zero: it does
	silentReason string
}

// judge says what a process is doing, why, and since when (zero: not known to
// the rooms). What concerns all records stands before what concerns some.
func judge(v view) (state admin.State, reason string, since time.Time) {
	switch {
	case v.stopping:
		return admin.Stopping, "", time.Time{}
	case v.indexer.HoldAll != "":
		return admin.Waiting, v.indexer.HoldAll, time.UnixMilli(v.indexer.HoldAllSince)
	case !v.silent.IsZero():
		return admin.Waiting, v.silentReason, v.silent
	case v.kafka != "":
		return admin.Starting, "waiting for Kafka: " + v.kafka, v.kafkaSince
	case !v.joined:
		return admin.Starting, "waiting for Kafka: not in the group yet: none of kafka.topics exists, a member that was killed still counts (up to kafka.session_timeout), or the coordinator does not answer", time.Time{}
	case len(v.halted) > 0:
		first := v.halted[0]
		for _, h := range v.halted {
			if h.Since.Before(first.Since) {
				first = h
			}
		}
		return admin.Blocked, fmt.Sprintf("%d partitions are halted, %s/%d at offset %d first: %s", len(v.halted), first.Topic, first.Partition, first.Offset, first.Reason), first.Since
	case v.indexer.BlockedOn > 0:
		return admin.Blocked, fmt.Sprintf("%d records are never answered by Elasticsearch", v.indexer.BlockedOn), time.Time{}
	case v.routing != nil && v.routing.Epoch == 0:
		return admin.Starting, "waiting for the routing table: " + cmp.Or(v.routing.Trouble, "it was not read yet"), v.routing.Since
	case v.waiting != "":
		return admin.Starting, v.waiting, v.waitingSince
	case v.commits != "":
		return admin.Throttled, "commits fail: " + v.commits, v.commitsSince
	case v.letters.Alarm != "":
		return admin.Throttled, "dead letters wait: " + v.letters.Alarm, v.letters.Since
	case v.parked != "":
		return admin.Throttled, "parked records wait: " + v.parked, v.parkedSince
	case v.nearStart != "":
		return admin.Throttled, "records that are not committed are within an hour of the log's start, where Kafka deletes: " + v.nearStart, time.Time{}
	case v.indexer.Throttled:
		return admin.Throttled, "Elasticsearch turns requests away", time.Time{}
	case v.full:
		return admin.Throttled, "memory is full of records that wait for Elasticsearch: fetching pauses", time.Time{}
	}
	return admin.Running, "", time.Time{}
}

// history remembers when the state last changed, for the states whose rooms do
// not know it.
type history struct {
	mu    sync.Mutex
	state admin.State
	since time.Time
}

// at returns since when state holds. It must be asked about once a second: what
// nobody looked at did not happen.
func (h *history) at(state admin.State, now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if state != h.state {
		h.state, h.since = state, now
	}
	return h.since
}

// current returns the state at the last look, for metrics: at most a second old.
func (h *history) current() admin.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == "" {
		return admin.Starting
	}
	return h.state
}

// health turns a view into the answer of /healthz.
func (h *history) health(v view, now time.Time) admin.Health {
	state, reason, since := judge(v)
	if changed := h.at(state, now); since.IsZero() {
		since = changed
	}
	health := admin.Health{
		State: state, Reason: reason, Since: since,
		Elasticsearch: admin.Elasticsearch{Available: v.silent.IsZero() && v.indexer.HoldAll == ""},
		Held:          []admin.HeldTarget{}, Halted: []admin.HaltedPartition{},
	}
	switch {
	case v.indexer.HoldAll != "":
		at := time.UnixMilli(v.indexer.HoldAllSince)
		health.Elasticsearch.Reason, health.Elasticsearch.Since = v.indexer.HoldAll, &at
	case !v.silent.IsZero():
		health.Elasticsearch.Reason, health.Elasticsearch.Since = v.silentReason, &v.silent
	}
	for _, t := range v.indexer.Held {
		health.Held = append(health.Held, admin.HeldTarget{Target: t.Target, Reason: t.Type, Since: time.UnixMilli(t.Since), Bytes: t.Bytes})
	}
	health.Halted = append(health.Halted, v.halted...)
	if r := v.routing; r != nil {
		health.Routing = &admin.Routing{Stream: r.Stream, Epoch: r.Epoch, Trouble: r.Trouble}
		if r.Trouble != "" {
			health.Routing.Since = &r.Since
		}
	}
	return health
}
