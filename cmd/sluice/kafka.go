package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// groupMembers counts the members of a group, of either protocol. A group that
// does not exist has none.
func groupMembers(ctx context.Context, admin *kadm.Client, group string) (int, error) {
	listed, err := admin.ListGroups(ctx)
	if err != nil {
		return 0, fmt.Errorf("groups: %w", err)
	}
	if strings.EqualFold(listed[group].GroupType, "consumer") {
		groups, err := admin.DescribeConsumerGroups(ctx, group)
		if err := errors.Join(err, groups[group].Err); err != nil {
			return 0, fmt.Errorf("group %s: %w", group, err)
		}
		return len(groups[group].Members), nil
	}
	// Also where it is not listed: this tells what does not exist from what one
	// may not see.
	groups, err := coordinated(ctx, func() (kadm.DescribedGroups, error) {
		groups, err := admin.DescribeGroups(ctx, group)
		return groups, errors.Join(err, groups[group].Err)
	})
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return 0, fmt.Errorf("group %s: %w", group, err)
	}
	return len(groups[group].Members), nil
}

// groupOffsets returns all commits of a group, of any topic.
func groupOffsets(ctx context.Context, admin *kadm.Client, group string) (kadm.OffsetResponses, error) {
	return coordinated(ctx, func() (kadm.OffsetResponses, error) { return admin.FetchOffsets(ctx, group) })
}

// coordinated asks a group's coordinator, and for some seconds again where there
// is none yet: a new cluster makes the topic of the groups when it is first asked.
func coordinated[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for tries := 0; ; tries++ {
		answer, err := ask()
		if !errors.Is(err, kerr.CoordinatorNotAvailable) || tries == 10 {
			return answer, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return answer, err
		}
	}
}

// requireEmpty refuses, with exit code 75, while one of the groups has members.
func requireEmpty(ctx context.Context, admin *kadm.Client, groups []string) error {
	var busy []string
	for _, group := range groups {
		members, err := groupMembers(ctx, admin, group)
		if err != nil {
			return err
		}
		if members > 0 {
			busy = append(busy, fmt.Sprintf("%s (%d members)", group, members))
		}
	}
	if len(busy) > 0 {
		return &exit{exitTryLater, fmt.Errorf("stop all members of these groups first: %s", strings.Join(busy, ", "))}
	}
	return nil
}

// topicState is a topic as its brokers describe it.
type topicState struct {
	id           string
	starts, ends map[int32]int64 // by partition
}

func describeTopic(ctx context.Context, admin *kadm.Client, topic string) (*topicState, error) {
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("topic %s: %w", topic, err)
	}
	detail := topics[topic]
	if err := detail.Err; errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, fmt.Errorf("topic %s does not exist, or may not be seen: %w", topic, err)
	} else if err != nil {
		return nil, fmt.Errorf("topic %s: %w", topic, err)
	}
	starts, err := offsets(admin.ListStartOffsets(ctx, topic))
	if err != nil {
		return nil, fmt.Errorf("topic %s: first offsets: %w", topic, err)
	}
	ends, err := offsets(admin.ListEndOffsets(ctx, topic))
	if err != nil {
		return nil, fmt.Errorf("topic %s: last offsets: %w", topic, err)
	}
	return &topicState{id: detail.ID.String(), starts: starts[topic], ends: ends[topic]}, nil
}

// offsets flattens a listing whose partitions must all have answered.
func offsets(listed kadm.ListedOffsets, err error) (map[string]map[int32]int64, error) {
	if err := errors.Join(err, listed.Error()); err != nil {
		return nil, err
	}
	flat := map[string]map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if flat[o.Topic] == nil {
			flat[o.Topic] = map[int32]int64{}
		}
		flat[o.Topic][o.Partition] = o.Offset
	})
	return flat, nil
}
