package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/migrate"
)

// migrateGroup is what a migration asks of the consumers: by their commits and
// the topics only, so that it works whoever runs them, and where.
type migrateGroup struct{ *servers }

var _ migrate.Group = migrateGroup{}

// notConsumed are topics that a pattern may match and nobody consumes.
func (s *servers) notConsumed() []string {
	if topic := s.cfg.DeadLetter.Topic; topic != "" {
		return []string{topic, topic + ".parked"}
	}
	return nil
}

func (g migrateGroup) read(ctx context.Context, epoch int64) (consumer.Fence, error) {
	return consumer.ReadFence(ctx, g.kafka, g.cfg.Kafka, g.notConsumed(), epoch)
}

// Fence implements migrate.Group.
func (g migrateGroup) Fence(ctx context.Context, epoch int64) (migrate.Fence, error) {
	read, err := g.read(ctx, epoch)
	if err != nil {
		return migrate.Fence{}, err
	}
	fence := migrate.Fence{Epoch: epoch, Passed: read.Passed(), Offsets: read.Offsets()}
	for _, position := range read.Laggards() {
		fence.Laggards = append(fence.Laggards, position.String())
	}
	if replay, err := g.replaying(ctx, epoch); err != nil {
		return migrate.Fence{}, err
	} else if replay != "" {
		fence.Passed = false
		fence.Laggards = append(fence.Laggards, replay)
	}
	// Parked records were routed under the table of their time.
	parked, err := g.control.List(ctx, "parked:"+g.cfg.Kafka.GroupID+":", true)
	if err != nil {
		return migrate.Fence{}, err
	}
	for _, id := range parked {
		fence.Passed = false
		fence.Laggards = append(fence.Laggards, "parked records ("+id+")")
	}
	return fence, nil
}

// topics are those that the group consumes.
func (g migrateGroup) topics(f consumer.Fence) []string {
	names := map[string]bool{}
	for _, position := range f.Positions {
		names[position.Topic] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Ends implements migrate.Group: what may be read, which is less than the log
// where a transaction is open.
func (g migrateGroup) Ends(ctx context.Context) (migrate.Offsets, error) {
	fence, err := g.read(ctx, 0)
	if err != nil {
		return nil, err
	}
	return g.ends(ctx, g.topics(fence))
}

func (g migrateGroup) ends(ctx context.Context, topics []string) (migrate.Offsets, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	list := g.kafka.ListCommittedOffsets
	if g.cfg.Kafka.IsolationLevel == "read_uncommitted" {
		list = g.kafka.ListEndOffsets
	}
	ends, err := offsets(list(ctx, topics...))
	if err != nil {
		return nil, fmt.Errorf("log ends: %w", err)
	}
	return ends, nil
}

// Passed implements migrate.Group.
func (g migrateGroup) Passed(ctx context.Context, ends migrate.Offsets) (string, error) {
	fence, err := g.read(ctx, 0)
	if err != nil {
		return "", err
	}
	starts, err := g.starts(ctx, g.topics(fence))
	if err != nil {
		return "", err
	}
	for _, position := range fence.Positions {
		at := max(position.Offset, starts[position.Topic][position.Partition])
		if end := ends[position.Topic][position.Partition]; at < end {
			return fmt.Sprintf("%s/%d is at %d of %d", position.Topic, position.Partition, at, end), nil
		}
	}
	return "", nil
}

// starts are the first offsets: a partition without a commit stands there.
func (g migrateGroup) starts(ctx context.Context, topics []string) (migrate.Offsets, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	starts, err := offsets(g.kafka.ListStartOffsets(ctx, topics...))
	if err != nil {
		return nil, fmt.Errorf("log starts: %w", err)
	}
	return starts, nil
}

// Behind implements migrate.Group: the group is behind by more than a time where
// a record older than that is not committed.
func (g migrateGroup) Behind(ctx context.Context, limit time.Duration) (over bool, lag string, err error) {
	fence, err := g.read(ctx, 0)
	if err != nil {
		return false, "", err
	}
	topics := g.topics(fence)
	starts, err := g.starts(ctx, topics)
	if err != nil || len(topics) == 0 {
		return false, "", err
	}
	recent, err := offsets(func() (kadm.ListedOffsets, error) {
		return g.kafka.ListOffsetsAfterMilli(ctx, time.Now().Add(-limit).UnixMilli(), topics...)
	}())
	if err != nil {
		return false, "", fmt.Errorf("offsets by time: %w", err)
	}
	ends, err := g.ends(ctx, topics)
	if err != nil {
		return false, "", err
	}
	records := int64(0)
	for _, position := range fence.Positions {
		at := max(position.Offset, starts[position.Topic][position.Partition])
		end := ends[position.Topic][position.Partition]
		records += max(0, end-at)
		first, ok := recent[position.Topic][position.Partition]
		if !ok || first < 0 {
			first = end // nothing is that young
		}
		over = over || at < min(first, end)
	}
	return over, fmt.Sprintf("%d records", records), nil
}

// HighestEpoch implements migrate.Group.
func (g migrateGroup) HighestEpoch(ctx context.Context) (int64, error) {
	return consumer.HighestEpoch(ctx, g.kafka, g.cfg.Kafka.GroupID)
}

// Members implements migrate.Group.
func (g migrateGroup) Members(ctx context.Context) (int, error) {
	return groupMembers(ctx, g.kafka, g.cfg.Kafka.GroupID)
}
