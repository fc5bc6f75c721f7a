package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// FencePosition is where the group stands in one source partition.
type FencePosition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// Offset is the committed one, Epoch that of the routing table under which
	// everything from it on is written; both -1 where nothing is committed, Epoch
	// alone where the commit does not say: by another program, or for a topic
	// that was deleted and made anew.
	Offset int64 `json:"offset"`
	Epoch  int64 `json:"epoch"`
	// Member and Host are of who holds the partition; "": nobody is known to.
	Member string `json:"member,omitempty"`
	Host   string `json:"host,omitempty"`
}

func (p FencePosition) String() string {
	epoch, owner := "no epoch committed", "held by nobody"
	if p.Epoch >= 0 {
		epoch = fmt.Sprintf("epoch %d", p.Epoch)
	}
	if p.Member != "" {
		owner = fmt.Sprintf("held by %s on %s", p.Member, p.Host)
	}
	return fmt.Sprintf("%s/%d: %s, %s", p.Topic, p.Partition, epoch, owner)
}

// Fence is how far a group has come under an epoch of its routing table. What it
// says of a partition stays true: no commit ever names a lower epoch.
type Fence struct {
	// Epoch is the one that was asked about.
	Epoch int64 `json:"epoch"`
	// Positions are those of all source partitions of all topics, by topic and
	// number.
	Positions []FencePosition `json:"positions"`
}

// Laggards are the positions that are not committed under the epoch, or a later
// one, yet.
func (f Fence) Laggards() []FencePosition {
	return slices.DeleteFunc(slices.Clone(f.Positions), func(p FencePosition) bool { return p.Epoch >= f.Epoch })
}

// Passed says whether every record that is not handled yet will be written under
// the epoch or a later one, and every one that is was acknowledged. It does not
// know of parked records nor of replays. A group without partitions passes
// nothing.
func (f Fence) Passed() bool { return len(f.Positions) > 0 && len(f.Laggards()) == 0 }

// Offsets are the committed ones, by topic and partition; of partitions that
// have none nothing.
func (f Fence) Offsets() map[string]map[int32]int64 {
	offsets := make(map[string]map[int32]int64)
	for _, p := range f.Positions {
		if p.Offset < 0 {
			continue
		}
		if offsets[p.Topic] == nil {
			offsets[p.Topic] = make(map[int32]int64)
		}
		offsets[p.Topic][p.Partition] = p.Offset
	}
	return offsets
}

// ReadFence asks the brokers how far the group of cfg, of which only GroupID and
// Topics are looked at, has come under epoch. Topics in exclude are not
// consumed.
func ReadFence(ctx context.Context, adm *kadm.Client, cfg Config, exclude []string, epoch int64) (Fence, error) {
	f := Fence{Epoch: epoch}
	// Commits first: a partition that is made meanwhile is missed by neither.
	commits, err := fetchCommits(ctx, adm, cfg.GroupID)
	if err != nil {
		return f, err
	}
	topics, err := sourceTopics(ctx, adm, cfg.Topics, exclude)
	if err != nil {
		return f, err
	}
	owners := groupOwners(ctx, adm, cfg.GroupID)
	for _, d := range topics {
		for _, p := range d.Partitions {
			at := FencePosition{Topic: d.Topic, Partition: p.Partition, Offset: -1, Epoch: -1}
			if o, ok := commits.Lookup(d.Topic, p.Partition); ok && o.At >= 0 {
				at.Offset = o.At
				if m, ok := parseCommitMeta(o.Metadata); ok && m.TopicID == d.ID.String() {
					at.Epoch = m.Epoch
				}
			}
			if o, ok := owners[tp{d.Topic, p.Partition}]; ok {
				at.Member, at.Host = o.member, o.host
			}
			f.Positions = append(f.Positions, at)
		}
	}
	slices.SortFunc(f.Positions, func(x, y FencePosition) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	return f, nil
}

// HighestEpoch is the highest epoch that a group has committed, over all
// partitions of all topics; 0 where no commit names one. A new routing table
// starts above it.
func HighestEpoch(ctx context.Context, adm *kadm.Client, group string) (int64, error) {
	commits, err := fetchCommits(ctx, adm, group)
	if err != nil {
		return 0, err
	}
	highest := int64(0)
	commits.Each(func(o kadm.OffsetResponse) {
		if m, ok := parseCommitMeta(o.Metadata); ok {
			highest = max(highest, m.Epoch)
		}
	})
	return highest, nil
}

// fetchCommits are all commits of a group. None may be missing: a partition
// whose commit cannot be read is an error.
func fetchCommits(ctx context.Context, adm *kadm.Client, group string) (kadm.OffsetResponses, error) {
	commits, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err == nil {
		err = commits.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("consumer: commits of group %s: %w", group, err)
	}
	return commits, nil
}

// sourceTopics are those that fit `topics`; names that do not exist are left
// out.
func sourceTopics(ctx context.Context, adm *kadm.Client, topics, exclude []string) ([]kadm.TopicDetail, error) {
	there, err := adm.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("consumer: topics: %w", err)
	}
	fits := make([]func(string) bool, len(topics))
	for i, t := range topics {
		if fits[i], err = MatchTopic(t, exclude); err != nil {
			return nil, err
		}
	}
	var source []kadm.TopicDetail
	for _, d := range there.Sorted() {
		if !slices.ContainsFunc(fits, func(fits func(string) bool) bool { return fits(d.Topic) }) {
			continue
		}
		if d.Err != nil {
			return nil, fmt.Errorf("consumer: topic %s: metadata: %w", d.Topic, d.Err)
		}
		source = append(source, d)
	}
	return source, nil
}

// MatchTopic returns which topics an entry of kafka.topics stands for: the one of
// its name, or those that it matches where it begins with ^; never Kafka's own
// (__*), and none of exclude. Its error is a *ConfigError.
func MatchTopic(entry string, exclude []string) (func(topic string) bool, error) {
	fits := func(topic string) bool { return topic == entry }
	if strings.HasPrefix(entry, "^") {
		expression, err := regexp.Compile(entry)
		if err != nil {
			return nil, &ConfigError{"topics", fmt.Sprintf("%q is not a regular expression", entry), err.Error()}
		}
		fits = expression.MatchString
	}
	return func(topic string) bool {
		return fits(topic) && !strings.HasPrefix(topic, "__") && !slices.Contains(exclude, topic)
	}, nil
}

// owner is who holds a source partition.
type owner struct{ member, host string }

// groupOwners asks the group who holds what, by either protocol. What cannot be
// learned is left out: it is there to help people.
func groupOwners(ctx context.Context, adm *kadm.Client, group string) map[tp]owner {
	owners := make(map[tp]owner)
	if groups, err := adm.DescribeGroups(ctx, group); err == nil {
		for _, m := range groups[group].Members {
			assigned, ok := m.Assigned.AsConsumer()
			if !ok {
				continue
			}
			for _, t := range assigned.Topics {
				for _, p := range t.Partitions {
					owners[tp{t.Topic, p}] = owner{m.MemberID, strings.TrimPrefix(m.ClientHost, "/")}
				}
			}
		}
	}
	if len(owners) > 0 {
		return owners
	}
	if groups, err := adm.DescribeConsumerGroups(ctx, group); err == nil {
		for _, m := range groups[group].Members {
			for t, partitions := range m.Assignment {
				for p := range partitions {
					owners[tp{t, p}] = owner{m.MemberID, strings.TrimPrefix(m.ClientHost, "/")}
				}
			}
		}
	}
	return owners
}
