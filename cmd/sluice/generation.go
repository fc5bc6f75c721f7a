package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicehq/sluice/generation"
)

// settle is how far apart log ends are read to see whether producers write.
const settle = 5 * time.Second

func newGeneration() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generation",
		Short: "Shows or raises the recorded generation of a topic",
		Long: `The version of every keyed document begins with the generation of its topic,
which is recorded in the control index. It must be raised when newer records
would otherwise get lower versions than older ones: after a topic was
re-created, got more partitions or lost records, and to pass versions that
another writer left.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("say what to do: show or raise")
		},
	}
	cmd.AddCommand(newGenerationShow(), newGenerationRaise())
	return cmd
}

func newGenerationShow() *cobra.Command {
	var flags configFlags
	var topics []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Shows what is recorded for topics, and what they are now",
		Example: "  sluice generation show -c sluice.yaml --topic events",
		Args:    cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(ctx)
			if len(topics) == 0 {
				topics = slices.DeleteFunc(slices.Clone(s.cfg.Kafka.Topics), func(t string) bool { return strings.HasPrefix(t, "^") })
			}
			if len(topics) == 0 {
				return &exit{exitUsage, fmt.Errorf("kafka.topics names no topic, only patterns: pass --topic")}
			}
			facts := []generationFacts{}
			for _, topic := range topics {
				list, err := s.generations(ctx, topic)
				if err != nil {
					return err
				}
				state, err := describeTopic(ctx, s.kafka, topic)
				if err != nil {
					return err
				}
				now := generation.Topic{Name: topic, ID: state.id, Partitions: int32(len(state.ends))}
				commits, err := readCommits(ctx, s.kafka, topic, []string{s.cfg.Kafka.GroupID}, state.starts)
				if err != nil {
					return err
				}
				now.Committed = commits.generation
				f := generationFacts{Topic: topic, Recorded: slices.Concat(generation.List{}, list), TopicID: now.ID, Partitions: now.Partitions, Committed: now.Committed}
				if err := list.Check(now); err != nil && len(list) > 0 {
					f.Attention = err.Error()
				}
				facts = append(facts, f)
			}
			if asJSON {
				return printJSON(out, facts)
			}
			for _, f := range facts {
				showList(out, f.Topic, f.Recorded)
				fmt.Fprintf(out, "  now         topic id %s, %d partitions\n", f.TopicID, f.Partitions)
				if f.Attention != "" {
					fmt.Fprintf(out, "  attention   %s\n", f.Attention)
				}
			}
			return nil
		}),
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVar(&topics, "topic", nil, "topic to show; repeatable (default: those of kafka.topics)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// generationFacts is what is recorded for a topic, and what it is now.
type generationFacts struct {
	Topic      string          `json:"topic"`
	Recorded   generation.List `json:"recorded"`
	TopicID    string          `json:"topic_id"`
	Partitions int32           `json:"partitions"`
	Committed  int             `json:"committed"`           // the generation that the group's commits carry, 0 for none
	Attention  string          `json:"attention,omitempty"` // what is wrong, and what helps
}

func newGenerationRaise() *cobra.Command {
	var flags configFlags
	var topic string
	var to int
	var accept, dryRun, asJSON bool
	var groups []string
	var diverged map[string]int64
	cmd := &cobra.Command{
		Use:   "raise --topic T",
		Short: "Raises a topic's generation",
		Long: `Raises a topic's generation. All members of every group that uses the topic with
this control index must be stopped: kafka.group_id and those named by --group.
After a change of the partition count the log ends are read twice, 5 seconds
apart, to see that producers stand still.

Exit code 75 says that it may be tried again when groups or producers stand
still.`,
		Example: `  sluice generation raise -c sluice.yaml --topic events --dry-run
  sluice generation raise -c sluice.yaml --topic events
  sluice generation raise -c sluice.yaml --topic events --to 7 --group sluice-archive`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			truncated, err := partitions(diverged)
			if err != nil {
				return &exit{exitUsage, fmt.Errorf("--diverged: %w", err)}
			}
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(ctx)
			groups = append(groups, s.cfg.Kafka.GroupID)
			slices.Sort(groups)
			groups = slices.Compact(groups)
			if err := requireEmpty(ctx, s.kafka, groups); err != nil {
				return err
			}
			if !dryRun {
				if err := s.control.Open(ctx); err != nil {
					return err
				}
			}
			list, err := s.generations(ctx, topic)
			if err != nil {
				return err
			}
			raise, err := gather(ctx, s.kafka, topic, groups, list, !accept)
			if err != nil {
				return err
			}
			raise.To, raise.AcceptReordering = to, accept
			maps.Copy(raise.Diverged, truncated)
			// The groups must have stood still all the while.
			if err := requireEmpty(ctx, s.kafka, groups); err != nil {
				return err
			}
			before := list
			var after generation.List
			if dryRun {
				after, err = before.Raise(raise)
			} else {
				before, after, err = generation.Apply(ctx, s.control, raise)
			}
			if err != nil {
				return raiseError(err)
			}
			if asJSON {
				return printJSON(out, struct {
					Topic    string          `json:"topic"`
					DryRun   bool            `json:"dry_run"`
					From     int             `json:"from"`
					To       int             `json:"to"`
					Recorded generation.List `json:"recorded"` // then
				}{topic, dryRun, before.Highest(), after.Highest(), after})
			}
			verb := "raised"
			if dryRun {
				verb = "would raise"
			}
			fmt.Fprintf(out, "%s %s from %d to %d\n", verb, topic, before.Highest(), after.Highest())
			showList(out, topic, after)
			return nil
		}),
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&topic, "topic", "", "topic whose generation is raised")
	cmd.Flags().IntVar(&to, "to", 0, "the new generation (default: one above the highest that is known)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be recorded, or why it is refused")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.Flags().BoolVar(&accept, "accept-reordering", false, "raise although producers write: keys that moved to another partition meanwhile may keep an older value")
	cmd.Flags().StringArrayVar(&groups, "group", nil, "a further group that uses the topic with this control index; repeatable")
	cmd.Flags().StringToInt64Var(&diverged, "diverged", nil, "PARTITION=OFFSET,...: first offsets at which the log is no longer the one that was consumed (found by itself where the brokers know)")
	if err := cmd.MarkFlagRequired("topic"); err != nil {
		panic(err) // the flag is defined two lines above
	}
	return cmd
}

// gather reads from the brokers what a raise needs to know. Log ends are only
// watched where they count: after a change of the partition count, unless the
// operator accepts that producers write.
func gather(ctx context.Context, admin *kadm.Client, topic string, groups []string, list generation.List, watch bool) (generation.Raise, error) {
	state, err := describeTopic(ctx, admin, topic)
	if err != nil {
		return generation.Raise{}, err
	}
	commits, err := readCommits(ctx, admin, topic, groups, state.starts)
	if err != nil {
		return generation.Raise{}, err
	}
	diverged, err := findDiverged(ctx, admin, topic, commits, state.ends)
	if err != nil {
		return generation.Raise{}, err
	}
	raise := generation.Raise{
		Topic:   generation.Topic{Name: topic, ID: state.id, Partitions: int32(len(state.ends)), Committed: commits.generation},
		LogEnds: state.ends, LogEndsLater: state.ends,
		Committed: commits.lowest, Diverged: diverged,
	}
	if watch && len(list) > 0 && list[len(list)-1].TopicID == state.id && list[len(list)-1].Partitions != raise.Partitions {
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return generation.Raise{}, context.Cause(ctx)
		}
		later, err := describeTopic(ctx, admin, topic)
		if err != nil {
			return generation.Raise{}, err
		}
		raise.LogEndsLater = later.ends
	}
	return raise, nil
}

// commits is what several groups have committed of one topic.
type commits struct {
	generation int             // the highest that the commits carry
	lowest     map[int32]int64 // by partition: not below the log's start, which also stands for no commit
	epochs     map[int32]int32 // the lowest leader epochs; partitions without one are left out
}

func readCommits(ctx context.Context, admin *kadm.Client, topic string, groups []string, starts map[int32]int64) (*commits, error) {
	c := &commits{lowest: make(map[int32]int64, len(starts)), epochs: map[int32]int32{}}
	for _, group := range groups {
		own, err := fetchCommits(ctx, admin, group, topic)
		if err != nil {
			return nil, err
		}
		for p, start := range starts {
			at := start
			if commit, ok := own[p]; ok {
				at = max(start, commit.At)
				c.generation = max(c.generation, committedGeneration(commit.Metadata))
				if epoch, ok := c.epochs[p]; commit.LeaderEpoch >= 0 && (!ok || commit.LeaderEpoch < epoch) {
					c.epochs[p] = commit.LeaderEpoch
				}
			}
			if lowest, ok := c.lowest[p]; !ok || at < lowest {
				c.lowest[p] = at
			}
		}
	}
	return c, nil
}

// committedGeneration reads the generation from a commit's metadata (DESIGN,
// section 7), 0 where it has none: that of another program, or none.
func committedGeneration(metadata string) int {
	var m struct {
		Generation int `json:"g"`
	}
	if json.Unmarshal([]byte(metadata), &m) != nil {
		return 0
	}
	return m.Generation
}

// findDiverged returns the first offset of each truncated partition that is not
// what was consumed: where the log ends below the commit, its end, and where the
// commit's leader epoch ended below it, that end.
func findDiverged(ctx context.Context, admin *kadm.Client, topic string, c *commits, ends map[int32]int64) (map[int32]int64, error) {
	diverged := map[int32]int64{}
	ask := kadm.OffsetForLeaderEpochRequest{}
	for p, at := range c.lowest {
		if ends[p] < at {
			diverged[p] = ends[p]
		}
		if epoch, ok := c.epochs[p]; ok {
			ask.Add(topic, p, epoch)
		}
	}
	if len(ask) == 0 {
		return diverged, nil
	}
	answers, err := admin.OffsetForLeaderEpoch(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("topic %s: leader epochs: %w", topic, err)
	}
	for p, answer := range answers[topic] {
		if answer.Err != nil {
			return nil, fmt.Errorf("topic %s, partition %d: leader epoch: %w", topic, p, answer.Err)
		}
		first, ok := diverged[p]
		if end := answer.EndOffset; end >= 0 && end < c.lowest[p] && (!ok || end < first) {
			diverged[p] = end
		}
	}
	return diverged, nil
}

// fetchCommits returns a group's commits of one topic, by partition.
func fetchCommits(ctx context.Context, admin *kadm.Client, group, topic string) (map[int32]kadm.Offset, error) {
	all, err := groupOffsets(ctx, admin, group)
	if err == nil {
		err = all.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil // nobody ever joined it or committed for it
	}
	if err != nil {
		return nil, fmt.Errorf("commits of group %s: %w", group, err)
	}
	commits := map[int32]kadm.Offset{}
	for p, response := range all[topic] {
		if response.At >= 0 {
			commits[p] = response.Offset
		}
	}
	return commits, nil
}

// partitions turns the names of a flag's map into partition numbers.
func partitions(byName map[string]int64) (map[int32]int64, error) {
	numbers := make(map[int32]int64, len(byName))
	for name, offset := range byName {
		p, err := strconv.ParseInt(name, 10, 32)
		if err != nil || p < 0 || offset < 0 {
			return nil, fmt.Errorf("%s=%d: want PARTITION=OFFSET", name, offset)
		}
		numbers[int32(p)] = offset
	}
	return numbers, nil
}

// raiseError gives a refusal that ends by itself the exit code that says so.
func raiseError(err error) error {
	if errors.Is(err, generation.ErrProducing) {
		return &exit{exitTryLater, err}
	}
	return err
}

func showList(out io.Writer, topic string, list generation.List) {
	fmt.Fprintf(out, "%s\n", topic)
	if len(list) == 0 {
		fmt.Fprintln(out, "  nothing is recorded: the first start with version: sequence records it")
	}
	for _, e := range list {
		fmt.Fprintf(out, "  generation %-4d topic id %s, %d partitions, from", e.Generation, e.TopicID, e.Partitions)
		if len(e.Start) == 0 {
			fmt.Fprint(out, " the start")
		}
		for _, p := range slices.Sorted(maps.Keys(e.Start)) {
			fmt.Fprintf(out, " %d:%d", p, e.Start[p])
		}
		fmt.Fprintln(out)
	}
}
