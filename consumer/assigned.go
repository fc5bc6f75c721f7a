package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// onOffsetsFetched notes what the group has committed for partitions that were
// assigned, before any of their records is fetched.
func (c *Consumer) onOffsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				a := c.holding(tp{t.Topic, p.Partition})
				if a == nil || p.ErrorCode != 0 {
					continue
				}
				if p.Offset < 0 {
					if (c.cfg.Reset == "" || c.cfg.Reset == "earliest") && c.o.Routing == nil {
						a.parking.begin()
					}
					if c.cfg.Reset == "none" {
						c.halt(a, &Halt{Kind: HaltNoCommit, Offset: -1, Type: "the group has no commit here and kafka.reset is none: run sluice reset, or set kafka.reset", Since: c.now()})
					}
					continue
				}
				a.startAt(p.Offset, p.Offset, p.LeaderEpoch)
			}
		}
	}
	return nil
}

// startAt sets where the assignment begins; committed is what the group has
// committed, -1 for nothing, and epoch the leader epoch that was committed with
// it, -1 for none.
func (a *assignment) startAt(offset, committed int64, epoch int32) {
	if a.c.o.Routing == nil { // else with the commit that names the epoch
		defer a.parking.begin()
	}
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if _, ok := a.tracker.Position(); ok || a.over {
		return // a rebalance asked again: it runs already
	}
	a.tracker.Advance(offset)
	a.fetched, a.committed = offset, committed
	a.marks = append(a.marks, mark{offset: offset - 1, epoch: epoch})
}

// adjustOffsets turns `latest` and a time, where there is no commit, into the
// offset that they mean now. It is committed before the first record comes:
// otherwise records that are written while nobody runs would be skipped, since
// "the end" means another place at the next start.
func (c *Consumer) adjustOffsets(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	start, err := startOffset(c.cfg.Reset)
	earliest := c.cfg.Reset == "" || c.cfg.Reset == "earliest"
	if err != nil || earliest && c.o.Routing == nil || c.cfg.Reset == "none" {
		return offsets, nil //nolint:nilerr // New has checked it
	}
	var topics []string
	for topic, partitions := range offsets {
		for _, o := range partitions {
			if o == start && !slices.Contains(topics, topic) {
				topics = append(topics, topic)
			}
		}
	}
	if len(topics) == 0 {
		return offsets, nil
	}
	var listed kadm.ListedOffsets
	switch {
	case earliest: // said under the epoch even if no record ever comes
		listed, err = c.adm.ListStartOffsets(ctx, topics...)
	case c.cfg.Reset == "latest":
		listed, err = c.adm.ListEndOffsets(ctx, topics...)
	default:
		listed, err = c.adm.ListOffsetsAfterMilli(ctx, start.EpochOffset().Offset, topics...)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer: where %s begins: %w", c.cfg.Reset, err)
	}
	for topic, partitions := range offsets {
		for p, o := range partitions {
			if o != start {
				continue
			}
			at, ok := listed.Lookup(topic, p)
			if !ok || at.Err != nil || at.Offset < 0 {
				return nil, fmt.Errorf("consumer: where %s begins in %s/%d: %w", c.cfg.Reset, topic, p, at.Err)
			}
			partitions[p] = kgo.NewOffset().At(at.Offset)
			if a := c.holding(tp{topic, p}); a != nil {
				a.startAt(at.Offset, -1, -1)
			}
		}
	}
	return offsets, nil
}

// describeAssigned names partitions for a log line: events[0 1 2] users[4].
func describeAssigned(as []*assignment) string {
	by := make(map[string][]int32)
	var topics []string
	for _, a := range as {
		if by[a.l.topic] == nil {
			topics = append(topics, a.l.topic)
		}
		by[a.l.topic] = append(by[a.l.topic], a.id)
	}
	slices.Sort(topics)
	var b strings.Builder
	for i, t := range topics {
		if i > 0 {
			b.WriteByte(' ')
		}
		slices.Sort(by[t])
		fmt.Fprintf(&b, "%s%v", t, by[t])
	}
	return b.String()
}
