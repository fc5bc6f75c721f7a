package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/memory"
)

// skipTimeout bounds everything that a skip asks servers for.
const skipTimeout = time.Minute

func newSkip() *cobra.Command {
	var flags configFlags
	var discard bool
	var replicas adminFlags
	cmd := &cobra.Command{
		Use:   "skip TOPIC/PARTITION/OFFSET",
		Short: "Dead-letters the record that blocks a partition",
		Long: `Settles the record that blocks a partition, so that the partition goes on behind
it: the record goes to the dead letters, or with --discard nowhere at all. /healthz
and the log name the records that block.

The call goes to the replicas that --admin names; the one that holds the partition
carries it out. With no member of the group running, the record is read from Kafka,
dead-lettered, and the offset behind it is committed from here.

Exit code 75: members are running, and none of those that were asked holds the
partition.`,
		Example: `  sluice skip -c sluice.yaml events/3/1024
  sluice skip -c sluice.yaml events/3/1024 --discard
  sluice skip -c sluice.yaml events/3/1024 --admin http://10.0.0.7:9600 --admin http://10.0.0.8:9600`,
		Args: cobra.ExactArgs(1),
		RunE: action(func(cmd *cobra.Command, args []string) error {
			req, err := parsePosition(args[0])
			if err != nil {
				return &exit{exitUsage, err}
			}
			req.Discard = discard
			s, err := flags.connect()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), skipTimeout)
			defer cancel()
			defer s.close(ctx)
			if req.Discard {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s will be gone for good\n", args[0])
			}
			hints, done, err := replicas.skip(ctx, s.cfg.Admin, req)
			if err != nil {
				return err
			}
			if done != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "skipped %s by the replica at %s\n", args[0], done)
				return nil
			}
			members, err := groupMembers(ctx, s.kafka, s.cfg.Kafka.GroupID)
			if err != nil {
				return err
			}
			if members > 0 {
				return &exit{exitTryLater, fmt.Errorf("the group %s has %d members, and the one that holds the partition was not reached: name it with --admin\n%s",
					s.cfg.Kafka.GroupID, members, strings.Join(hints, "\n"))}
			}
			if err := s.skipAlone(ctx, req); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "skipped %s; no member of the group %s is running\n", args[0], s.cfg.Kafka.GroupID)
			return nil
		}),
	}
	flags.add(cmd)
	replicas.add(cmd)
	cmd.Flags().BoolVar(&discard, "discard", false, "without a dead letter; also past a batch that cannot be decoded")
	return cmd
}

// skip asks the replicas in turn until one has done it, and returns that one's
// URL. Without any, hints say what each answered. A refusal by the holder is an
// error.
func (f *adminFlags) skip(ctx context.Context, cfg admin.Config, call admin.SkipRequest) (hints []string, done string, err error) {
	client, err := f.client(ctx, cfg)
	if err != nil {
		return nil, "", err
	}
	for _, url := range client.urls {
		err := client.call(ctx, url, http.MethodPost, "/v1/skip", call, nil)
		var refused *refusal
		switch {
		case err == nil:
			return nil, url, nil
		case errors.As(err, &refused) && refused.status != http.StatusMisdirectedRequest:
			return nil, "", err
		default:
			hints = append(hints, err.Error())
		}
	}
	return hints, "", nil
}

// skipAlone does what a member would do, while the group has none. The broker
// refuses the commit should a member join meanwhile.
func (s *servers) skipAlone(ctx context.Context, req admin.SkipRequest) error {
	group, where := s.cfg.Kafka.GroupID, fmt.Sprintf("%s/%d", req.Topic, req.Partition)
	state, err := describeTopic(ctx, s.kafka, req.Topic)
	if err != nil {
		return err
	}
	start, exists := state.starts[req.Partition]
	if !exists {
		return fmt.Errorf("topic %s has no partition %d", req.Topic, req.Partition)
	}
	own, err := fetchCommits(ctx, s.kafka, group, req.Topic)
	if err != nil {
		return err
	}
	commit, ok := own[req.Partition]
	if !ok {
		commit = kadm.Offset{Topic: req.Topic, Partition: req.Partition, At: start}
	}
	if end := state.ends[req.Partition]; req.Offset >= end {
		return fmt.Errorf("%s ends at offset %d: there is nothing to skip at %d", where, end, req.Offset)
	}
	// Everything up to the commit is handled. A record behind it is not: to
	// commit behind one that does not stand next would lose those between.
	stands := func(at int64) error {
		return fmt.Errorf("%s stands at offset %d, not at %d: only the record that it stands at can be skipped", where, at, req.Offset)
	}
	if req.Offset < commit.At {
		return stands(commit.At)
	}
	next := req.Offset + 1
	record, err := s.read(ctx, req.Topic, req.Partition, commit.At)
	var refused *kerr.Error
	switch {
	case err == nil && record.Offset != req.Offset:
		return stands(record.Offset)
	case err == nil:
	case ctx.Err() != nil || errors.As(err, &refused):
		return err
	case req.Offset != commit.At:
		return stands(commit.At)
	case !req.Discard:
		return fmt.Errorf("%w; --discard passes over the batch", err)
	default:
		raw, err := rawFetch(ctx, s.client, sourcePartition{req.Topic, req.Partition}, req.Offset, false)
		if err != nil {
			return fmt.Errorf("reading %s/%d: %w", where, req.Offset, err)
		}
		next = afterBatch(raw, req.Offset) // a batch is decoded as a whole, or not at all
	}
	if !req.Discard {
		if !s.cfg.DeadLetter.Enabled() {
			return errors.New("neither dead_letter.topic nor index is set: set one, or pass --discard to throw the record away")
		}
		if err := s.deadLetter(ctx, record, state); err != nil {
			return err
		}
	}
	commit.At = next
	if err := s.kafka.CommitAllOffsets(ctx, group, kadm.Offsets{req.Topic: {req.Partition: commit}}); err != nil {
		return fmt.Errorf("committing %s/%d for group %s: %w", where, commit.At, group, err)
	}
	return nil
}

// read reads the first record of a partition from an offset on.
func (s *servers) read(ctx context.Context, topic string, number int32, from int64) (*kgo.Record, error) {
	opts, err := app.KafkaOptions(s.cfg)
	if err != nil {
		return nil, err
	}
	level := kgo.ReadCommitted()
	if s.cfg.Kafka.IsolationLevel == "read_uncommitted" {
		level = kgo.ReadUncommitted()
	}
	client, err := kgo.NewClient(append(opts, kgo.FetchIsolationLevel(level), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {number: kgo.NewOffset().At(from)},
	}))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for {
		fetches := client.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("reading %s/%d/%d: %w", topic, number, from, err)
		}
		if records := fetches.Records(); len(records) > 0 {
			return records[0], nil
		}
	}
}

// deadLetter writes the record's letter and waits for the brokers.
func (s *servers) deadLetter(ctx context.Context, record *kgo.Record, state *topicState) error {
	letter := deadletter.Letter{
		Topic: record.Topic, Partition: record.Partition, Offset: record.Offset, Timestamp: record.Timestamp,
		Key: record.Key, Value: record.Value, Headers: record.Headers,
		Type: "skipped", Reason: "skipped by an operator while no member was running",
	}
	if rules := s.mapper.Rules(record.Topic); rules.NeedsGeneration() {
		list, err := s.generations(ctx, record.Topic)
		if err != nil {
			return err
		}
		letter.Generation, _ = list.At(state.id, record.Partition, record.Offset)
	}
	if letter.Generation > 0 || !s.mapper.Rules(record.Topic).NeedsGeneration() {
		var result document.Result
		s.mapper.Rules(record.Topic).Map(record, letter.Generation, &result)
		if result.Verdict == document.Send {
			letter.Target, letter.Sequence = result.Action.Target, result.Action.Version
		}
	}
	opts, err := app.KafkaOptions(s.cfg)
	if err != nil {
		return err
	}
	writer, err := app.NewLetters(s.cfg, app.Rooms{
		Kafka: opts, Elastic: s.elastic, Budget: memory.New(1 << 30), Version: readBuild().version, Log: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	written := make(chan error, 1)
	writer.Write(letter, func(err error) { written <- err })
	select {
	case err = <-written:
	case <-ctx.Done():
		err = context.Cause(ctx)
		if alarm := writer.Status().Alarm; alarm != "" {
			err = errors.New(alarm)
		}
	}
	return errors.Join(err, writer.Close(context.WithoutCancel(ctx)))
}
