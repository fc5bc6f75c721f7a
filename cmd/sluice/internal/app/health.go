package app

import (
	"cmp"
	"fmt"
	"slices"
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
	// pace is how long a bulk request takes, slow from when on that is too long.
	pace, slow time.Duration
}

// cause is why a process is not simply running: one of a few words, for metrics.
type cause string

// The causes, from what concerns all records to what concerns some.
const (
	causeRefused    cause = "elasticsearch_refuses" // everything: credentials, rights, a wrong path
	causeSilent     cause = "elasticsearch_silent"
	causeKafka      cause = "kafka"
	causeHalted     cause = "partition_halted"
	causeUnanswered cause = "record_never_answered"
	causeRouting    cause = "routing_table"
	causeTopic      cause = "topic_waits" // its metadata or generations cannot be read
	causeCommits    cause = "commits_fail"
	causeLetters    cause = "dead_letters_wait"
	causeParked     cause = "parked_records_wait"
	causeLogStart   cause = "log_start_near"
	causeThrottled  cause = "elasticsearch_throttles"
	causeSlow       cause = "elasticsearch_slow"
	causeMemory     cause = "memory_full"
)

// causes are all of them, in the order in which they decide what the process says.
var causes = []cause{
	causeRefused, causeSilent, causeKafka, causeHalted, causeUnanswered, causeRouting, causeTopic, causeCommits,
	causeLetters, causeParked, causeLogStart, causeThrottled, causeSlow, causeMemory,
}

// trouble is one reason not to be simply running.
type trouble struct {
	cause  cause
	state  admin.State
	reason string
	since  time.Time // zero: not known to the rooms
}

// troubles are all that hold, in the order of causes.
func troubles(v view) (all []trouble) {
	add := func(holds bool, c cause, state admin.State, since time.Time, reason string) {
		if holds {
			all = append(all, trouble{c, state, reason, since})
		}
	}
	var halted string
	var haltedSince time.Time
	if len(v.halted) > 0 {
		first := v.halted[0]
		for _, h := range v.halted {
			if h.Since.Before(first.Since) {
				first = h
			}
		}
		haltedSince = first.Since
		halted = fmt.Sprintf("%d partitions are halted, %s/%d at offset %d first: %s", len(v.halted), first.Topic, first.Partition, first.Offset, first.Reason)
	}
	add(v.indexer.HoldAll != "", causeRefused, admin.Waiting, time.UnixMilli(v.indexer.HoldAllSince), v.indexer.HoldAll)
	add(!v.silent.IsZero(), causeSilent, admin.Waiting, v.silent, v.silentReason)
	add(v.kafka != "", causeKafka, admin.Starting, v.kafkaSince, "waiting for Kafka: "+v.kafka)
	add(v.kafka == "" && !v.joined, causeKafka, admin.Starting, time.Time{}, "waiting for Kafka: not in the group yet: none of kafka.topics exists, a member that was killed still counts (up to kafka.session_timeout), or the coordinator does not answer")
	add(len(v.halted) > 0, causeHalted, admin.Blocked, haltedSince, halted)
	add(v.indexer.BlockedOn > 0, causeUnanswered, admin.Blocked, time.Time{}, fmt.Sprintf("%d records are never answered by Elasticsearch", v.indexer.BlockedOn))
	if r := v.routing; r != nil {
		add(r.Epoch == 0, causeRouting, admin.Starting, r.Since, "waiting for the routing table: "+cmp.Or(r.Trouble, "it was not read yet"))
	}
	add(v.waiting != "", causeTopic, admin.Starting, v.waitingSince, v.waiting)
	add(v.commits != "", causeCommits, admin.Throttled, v.commitsSince, "commits fail: "+v.commits)
	add(v.letters.Alarm != "", causeLetters, admin.Throttled, v.letters.Since, "dead letters wait: "+v.letters.Alarm)
	add(v.parked != "", causeParked, admin.Throttled, v.parkedSince, "parked records wait: "+v.parked)
	add(v.nearStart != "", causeLogStart, admin.Throttled, time.Time{}, "records that are not committed are within an hour of the log's start, where Kafka deletes: "+v.nearStart)
	add(v.indexer.Throttled, causeThrottled, admin.Throttled, time.Time{}, "Elasticsearch turns requests away")
	add(v.pace > v.slow && v.slow > 0, causeSlow, admin.Throttled, time.Time{}, fmt.Sprintf("Elasticsearch is slow: a bulk request takes %s", v.pace.Round(100*time.Millisecond)))
	add(v.full, causeMemory, admin.Throttled, time.Time{}, "memory is full of records that wait for Elasticsearch: fetching pauses")
	return all
}

// judge says what a process is doing, why, and since when (zero: not known to
// the rooms). What concerns all records stands before what concerns some.
func judge(v view) (state admin.State, reason string, since time.Time) {
	if v.stopping {
		return admin.Stopping, "", time.Time{}
	}
	if all := troubles(v); len(all) > 0 {
		return all[0].state, all[0].reason, all[0].since
	}
	return admin.Running, "", time.Time{}
}

// history remembers when the state last changed, for the states whose rooms do
// not know it.
type history struct {
	mu       sync.Mutex
	state    admin.State
	since    time.Time
	troubles []trouble // at the last look
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

// suffers says whether a cause held at the last look, for metrics.
func (h *history) suffers(c cause) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.troubles, func(t trouble) bool { return t.cause == c })
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
	h.mu.Lock()
	h.troubles = troubles(v)
	h.mu.Unlock()
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
