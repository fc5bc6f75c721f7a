package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func newReset() *cobra.Command {
	var flags configFlags
	var topic, to string
	var only []int32
	var dryRun, yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "reset --topic T --to earliest|latest|TIME|OFFSET",
		Short: "Moves the group's committed positions",
		Long: `Shows how the positions from which the group reads a topic would move, and moves
them with --yes. All members of the group must be stopped for that. What is read again is written again with the versions it had, so
nothing newer is overwritten; what is passed over is never indexed.

TIME is RFC 3339, or a span such as 90m that lies back from now; a partition
without a record since then goes to its end. An OFFSET outside the log goes to
the nearer end of it.

Exit code 75: members are running, also where nothing was to be moved yet.`,
		Example: `  sluice reset -c sluice.yaml --topic events --to earliest
  sluice reset -c sluice.yaml --topic events --to 2026-03-01T00:00:00Z --yes
  sluice reset -c sluice.yaml --topic events --partition 3 --to 1024 --yes`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			target, err := parseReset(to, time.Now())
			if err != nil {
				return &exit{exitUsage, err}
			}
			s, err := flags.connect()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			defer s.close(ctx)
			busy := requireEmpty(ctx, s.kafka, []string{s.cfg.Kafka.GroupID})
			if refused := (*exit)(nil); busy != nil && (yes || !errors.As(busy, &refused)) {
				return busy
			}
			moves, err := s.planReset(ctx, topic, only, target)
			if err != nil {
				return err
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), resetResult(topic, moves, yes)); err != nil {
					return err
				}
				if !yes {
					return busy
				}
				return s.reset(ctx, topic, moves)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "partition\tcommitted\tto\tread again\tpassed over\n")
			for _, m := range moves {
				fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\n", m.partition, m.committed(), m.to, max(0, m.from-m.to), max(0, m.to-m.from))
			}
			_ = w.Flush()
			if !yes {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing was changed; --yes moves them")
				return busy
			}
			return s.reset(ctx, topic, moves)
		}),
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&topic, "topic", "", "topic whose positions are moved")
	cmd.Flags().StringVar(&to, "to", "", "earliest, latest, a time, or an offset")
	cmd.Flags().Int32SliceVar(&only, "partition", nil, "only this partition; repeatable (default: all)")
	cmd.Flags().BoolVar(&yes, "yes", false, "move the positions")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would change, as without --yes")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	for _, name := range []string{"topic", "to"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flags are defined above
		}
	}
	return cmd
}

// resetTo is where positions go: an end of the log, a time, or an offset.
type resetTo struct {
	end    string // earliest | latest | ""
	since  time.Time
	offset int64
}

func parseReset(text string, now time.Time) (resetTo, error) {
	if text == "earliest" || text == "latest" {
		return resetTo{end: text}, nil
	}
	if offset, err := strconv.ParseInt(text, 10, 64); err == nil && offset >= 0 {
		return resetTo{offset: offset}, nil
	}
	if since, err := moment(text, now); err == nil && !since.IsZero() {
		return resetTo{since: since}, nil
	}
	return resetTo{}, fmt.Errorf("--to %q: use earliest, latest, an offset, a time such as 2026-03-01T00:00:00Z, or a span such as 90m", text)
}

// move is what a reset does to one partition.
type move struct {
	partition int32
	from, to  int64
	none      bool // there was no commit; from is the log's start
	metadata  string
}

func (m *move) committed() string {
	if m.none {
		return "-"
	}
	return strconv.FormatInt(m.from, 10)
}

type resetPartition struct {
	Partition  int32  `json:"partition"`
	Committed  *int64 `json:"committed"` // null: nothing
	To         int64  `json:"to"`
	ReadAgain  int64  `json:"read_again"`
	PassedOver int64  `json:"passed_over"`
}

// resetResult is what a reset prints as JSON, before it moves anything.
func resetResult(topic string, moves []move, moved bool) any {
	partitions := make([]resetPartition, len(moves))
	for i, m := range moves {
		partitions[i] = resetPartition{Partition: m.partition, To: m.to, ReadAgain: max(0, m.from-m.to), PassedOver: max(0, m.to-m.from)}
		if !m.none {
			partitions[i].Committed = &m.from
		}
	}
	return struct {
		Topic      string           `json:"topic"`
		DryRun     bool             `json:"dry_run"`
		Partitions []resetPartition `json:"partitions"`
	}{topic, !moved, partitions}
}

func (s *servers) planReset(ctx context.Context, topic string, only []int32, to resetTo) ([]move, error) {
	state, err := describeTopic(ctx, s.kafka, topic)
	if err != nil {
		return nil, err
	}
	commits, err := fetchCommits(ctx, s.kafka, s.cfg.Kafka.GroupID, topic)
	if err != nil {
		return nil, err
	}
	var since map[int32]int64
	if !to.since.IsZero() {
		listed, err := offsets(s.kafka.ListOffsetsAfterMilli(ctx, to.since.UnixMilli(), topic))
		if err != nil {
			return nil, fmt.Errorf("topic %s: offsets at %s: %w", topic, to.since.Format(time.RFC3339), err)
		}
		since = listed[topic]
	}
	for _, p := range only {
		if _, ok := state.ends[p]; !ok {
			return nil, &exit{exitUsage, fmt.Errorf("topic %s has no partition %d", topic, p)}
		}
	}
	var moves []move
	for p, end := range state.ends {
		if len(only) > 0 && !slices.Contains(only, p) {
			continue
		}
		start := state.starts[p]
		m := move{partition: p, from: start, none: true}
		if c, ok := commits[p]; ok {
			m.from, m.none, m.metadata = c.At, false, c.Metadata
		}
		switch {
		case to.end == "earliest":
			m.to = start
		case to.end == "latest":
			m.to = end
		case since != nil:
			m.to = min(max(since[p], start), end)
		default:
			m.to = min(max(to.offset, start), end)
		}
		moves = append(moves, m)
	}
	slices.SortFunc(moves, func(a, b move) int { return int(a.partition) - int(b.partition) })
	return moves, nil
}

// reset commits the moves. Each keeps its commit's metadata: which generation
// the group has seen does not depend on where it reads.
func (s *servers) reset(ctx context.Context, topic string, moves []move) error {
	group := s.cfg.Kafka.GroupID
	if err := requireEmpty(ctx, s.kafka, []string{group}); err != nil {
		return err
	}
	var commit kadm.Offsets
	for _, m := range moves {
		commit.Add(kadm.Offset{Topic: topic, Partition: m.partition, At: m.to, LeaderEpoch: -1, Metadata: m.metadata})
	}
	answers, err := s.kafka.CommitOffsets(ctx, group, commit)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("committing the new positions of group %s: %w", group, err)
	}
	return nil
}
