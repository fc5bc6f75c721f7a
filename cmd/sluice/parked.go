package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer"
)

func newParked() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "Lists and replays parked records",
		Long: `Records of a target that takes none are parked in <dead_letter.topic>.parked
(indexer.held: park), so that commits go on. The members of the group write them,
in order, as soon as the target takes them again; nothing need be done for that.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("say what to do: list or replay")
		},
	}
	cmd.AddCommand(newParkedList(), newParkedReplay())
	return cmd
}

// parkedLane is a target of one source partition whose records are parked.
type parkedLane struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Target    string    `json:"target"`
	Since     time.Time `json:"since"`
	Reason    string    `json:"reason"`
	// Parked is the partition of the parked topic, From the first of its offsets
	// that may hold a record to be replayed, Records how many there are.
	Parked  int32 `json:"parked_partition"`
	From    int64 `json:"from"`
	Records int   `json:"records"`
	// Oldest is the time of the first of them.
	Oldest time.Time `json:"oldest,omitzero"`
}

// parkedGroup is what the configured group has parked.
type parkedGroup struct {
	*servers
	group string
	log   *deadletter.ParkedLog
	ends  map[int32]int64 // of the parked topic, as they are when first asked for
}

func (s *servers) parkedGroup() (*parkedGroup, error) {
	if s.cfg.DeadLetter.Topic == "" {
		return nil, &exit{exitBadConfig, errors.New("dead_letter.topic is not set: nothing is parked")}
	}
	opts, err := app.KafkaOptions(s.cfg)
	if err != nil {
		return nil, err
	}
	log, err := deadletter.NewParkedLog(app.ParkedTopic(s.cfg.DeadLetter.Topic), deadletter.ParkedOptions{
		Kafka: opts, DeadLetters: s.cfg.DeadLetter.Topic, Log: zerolog.Nop(),
	})
	if err != nil {
		return nil, err
	}
	return &parkedGroup{servers: s, group: s.cfg.Kafka.GroupID, log: log, ends: map[int32]int64{}}, nil
}

// states calls f for each source partition with parked records.
func (g *parkedGroup) states(ctx context.Context, f func(*deadletter.ParkedKeeper) error) error {
	ids, err := g.control.List(ctx, "parked:"+g.group+":", false)
	var refused *elastic.Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil // there is no control index: nothing was ever parked
	}
	if err != nil {
		return err
	}
	for _, id := range ids {
		var doc deadletter.ParkedState
		if _, _, err := g.control.Get(ctx, id, &doc); errors.Is(err, elastic.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		if doc.Group != g.group {
			continue
		}
		k, _, err := deadletter.LoadParked(ctx, g.control, g.group, doc.Topic, doc.Partition)
		if err != nil {
			return err
		}
		if state := k.State(); len(state.Lanes) == 0 {
			continue
		}
		if err := f(k); err != nil {
			return err
		}
	}
	return nil
}

// records calls f for each record of a lane that is to be replayed, in order,
// with where to go on after it.
func (g *parkedGroup) records(ctx context.Context, state deadletter.ParkedState, target string, f func(p *deadletter.Parked) error) error {
	lane := state.Lanes[target]
	end, known := g.ends[lane.Partition]
	if !known {
		var err error
		if end, err = g.log.End(ctx, lane.Partition); err != nil {
			return err
		}
		g.ends[lane.Partition] = end
	}
	for at := lane.From; at < end; {
		records, next, err := g.log.Read(ctx, lane.Partition, at)
		if err != nil {
			return err
		}
		if next <= at {
			return nil
		}
		for i := range records {
			p := &records[i]
			if p.Group == g.group && p.Topic == state.Topic && p.Partition == state.Partition && p.Target == target &&
				!state.Void(lane, p.Token, p.TopicID, p.Offset) {
				if err := f(p); err != nil {
					return err
				}
			}
		}
		at = next
	}
	return nil
}

func newParkedList() *cobra.Command {
	var flags configFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Lists what is parked, by target and source partition",
		Long: `Lists the targets for which the group's partitions have parked records, since when
and why, and counts the records. Nothing that records hold is printed.`,
		Example: `  sluice parked list -c sluice.yaml
  sluice parked list -c sluice.yaml --json | jq -s 'map(.records) | add'`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(ctx)
			g, err := s.parkedGroup()
			if err != nil {
				return err
			}
			defer g.log.Close()
			return g.list(ctx, cmd.OutOrStdout(), asJSON)
		}),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

func (g *parkedGroup) list(ctx context.Context, out io.Writer, asJSON bool) error {
	lanes := 0
	err := g.states(ctx, func(k *deadletter.ParkedKeeper) error {
		state := k.State()
		for _, target := range state.Targets() {
			at := state.Lanes[target]
			l := parkedLane{
				Topic: state.Topic, Partition: state.Partition, Target: target, Since: at.Since.UTC(), Reason: at.Reason,
				Parked: at.Partition, From: at.From,
			}
			err := g.records(ctx, state, target, func(p *deadletter.Parked) error {
				if l.Records++; l.Records == 1 {
					l.Oldest = p.Timestamp.UTC()
				}
				return nil
			})
			if err != nil {
				return err
			}
			lanes++
			if asJSON {
				if err := json.NewEncoder(out).Encode(l); err != nil {
					return err
				}
				continue
			}
			fmt.Fprintf(out, "%s  %s/%d  %d records since %s  %s", l.Target, l.Topic, l.Partition, l.Records, l.Since.Format(time.RFC3339), orDash(l.Reason))
			if !l.Oldest.IsZero() {
				fmt.Fprintf(out, "  oldest of %s", l.Oldest.Format(time.RFC3339))
			}
			fmt.Fprintln(out)
		}
		return nil
	})
	if err == nil && !asJSON && lanes == 0 {
		fmt.Fprintln(out, "nothing is parked")
	}
	return err
}

func newParkedReplay() *cobra.Command {
	var flags configFlags
	r := &parkedReplay{}
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Writes parked records while no member of the group runs",
		Long: `Writes what the group has parked, in order and by the rules that are configured
now, and ends the parking. The members do that by themselves: this is for a group
that is stopped, before its topics, its targets or indexer.held change for good.

While a target takes nothing the verb waits, and says so. It may be ended and run
again at any time: what was written counts as stale then. A record that is refused
becomes a dead letter.`,
		Example: `  sluice parked replay -c sluice.yaml`,
		Args:    cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(ctx)
			if r.parkedGroup, err = s.parkedGroup(); err != nil {
				return err
			}
			defer r.log.Close()
			opts, err := app.KafkaOptions(s.cfg)
			if err != nil {
				return err
			}
			r.letters, err = app.NewLetters(s.cfg, app.Rooms{Kafka: opts, Elastic: s.elastic, Version: readBuild().version, Log: zerolog.Nop()})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.letters.Close(ctx)) }()
			r.bulk = s.newBulkWriter()
			defer r.bulk.close()
			r.out, r.progress = cmd.OutOrStdout(), newProgress(cmd.ErrOrStderr())
			defer r.progress.clear()
			return r.run(ctx)
		}),
	}
	flags.add(cmd)
	return cmd
}

// parkedReplay is one run of the verb.
type parkedReplay struct {
	*parkedGroup
	letters  app.Letters
	bulk     *bulkWriter
	out      io.Writer
	progress *progress
	result   document.Result

	written, stale, ignored, refused int
}

func (r *parkedReplay) run(ctx context.Context) error {
	if err := r.standing(ctx); err != nil {
		return err
	}
	err := r.states(ctx, func(k *deadletter.ParkedKeeper) error { return r.partition(ctx, k) })
	fmt.Fprintf(r.out, "%d records written, %d were there already or are out of date", r.written, r.stale)
	if r.ignored > 0 {
		fmt.Fprintf(r.out, ", %d ignored by the rules", r.ignored)
	}
	if r.refused > 0 {
		fmt.Fprintf(r.out, ", %d refused: they are dead letters", r.refused)
	}
	fmt.Fprintln(r.out)
	return err
}

// standing refuses while a member runs.
func (r *parkedReplay) standing(ctx context.Context) error {
	members, err := groupMembers(ctx, r.kafka, r.group)
	if err == nil && members > 0 {
		err = &exit{exitTryLater, fmt.Errorf("group %s has %d members, which replay by themselves: release the target (sluice target release), or stop them first", r.group, members)}
	}
	return err
}

// partition takes a source partition over, as a member does, and replays its
// lanes.
func (r *parkedReplay) partition(ctx context.Context, k *deadletter.ParkedKeeper) error {
	state := k.State()
	if _, err := r.route(ctx); err != nil {
		return err
	}
	id, start, err := r.start(ctx, &state)
	if err != nil {
		return err
	}
	if err := k.Take(ctx, rand.Text(), id, start, func() error { return r.standing(ctx) }); err != nil {
		return err
	}
	clear(r.ends) // what was parked before that counts
	state = k.State()
	for _, target := range state.Targets() {
		var batch []deadletter.Parked
		size := int64(0)
		flush := func() error {
			err := r.flush(ctx, batch)
			batch, size = batch[:0], 0
			return err
		}
		err := r.records(ctx, state, target, func(p *deadletter.Parked) error {
			batch = append(batch, *p)
			if size += p.Size(); len(batch) < replayBatch && size < replayBytes {
				return nil
			}
			return flush()
		})
		if err == nil {
			err = flush()
		}
		if err == nil {
			err = k.Change(ctx, func(s *deadletter.ParkedState) { delete(s.Lanes, target) })
		}
		if err != nil {
			return fmt.Errorf("%s of %s/%d: %w", target, state.Topic, state.Partition, err)
		}
	}
	return nil
}

// start is where the group would go on, and the topic's id. Of a topic that does
// not exist any more nothing comes again.
func (r *parkedReplay) start(ctx context.Context, state *deadletter.ParkedState) (id string, start int64, err error) {
	topic, err := describeTopic(ctx, r.kafka, state.Topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return "", math.MaxInt64, nil
	}
	if err != nil {
		return "", 0, err
	}
	commits, err := groupOffsets(ctx, r.kafka, r.group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return "", 0, fmt.Errorf("group %s: its commits: %w", r.group, err)
	}
	start = topic.starts[state.Partition]
	if at, ok := commits.Lookup(state.Topic, state.Partition); ok && at.Err == nil && at.At >= 0 {
		start = at.At
	}
	return topic.id, start, nil
}

// flush writes a batch, and waits until that is done.
func (r *parkedReplay) flush(ctx context.Context, batch []deadletter.Parked) error {
	type sendable struct {
		action indexer.Action
		of     *deadletter.Parked
	}
	var left []sendable
	for i := range batch {
		p := &batch[i]
		r.mapper.Rules(p.Topic).Map(parkedRecord(p), p.Generation, &r.result)
		switch r.result.Verdict {
		case document.Send:
			switch {
			case r.result.Twin.Op != 0:
				return errors.New("records are written to both sides of the stream now (write mode W1 or W2): start a member of the group, which replays what is parked for either side and marks customers whose sides differ")
			case p.Twin && r.result.Action.Target != p.Target:
				r.ignored++ // of a side that is required no longer: the other has it
				continue
			}
			left = append(left, sendable{indexer.Action{Action: r.result.Action, Ordered: r.result.Ordered, Tombstone: r.result.Tombstone}, p})
			r.result = document.Result{} // the action holds parts of it
		case document.Ignore:
			r.ignored++
		default:
			if err := r.refuse(ctx, p, &indexer.Rejection{Type: r.result.Type, Reason: r.result.Reason, Target: p.Target}); err != nil {
				return err
			}
		}
	}
	for len(left) > 0 {
		if err := r.standing(ctx); err != nil {
			return err
		}
		endings, err := r.bulk.write(ctx, len(left), func(i int) indexer.Action { return left[i].action }, time.Now().Add(freshFor))
		if err != nil {
			return err
		}
		var again []sendable
		for i, end := range endings {
			switch {
			case end.rejected != nil:
				if err := r.refuse(ctx, left[i].of, end.rejected); err != nil {
					return err
				}
			case end.outcome == indexer.Indexed, end.outcome == indexer.Deleted:
				r.written++
			case end.outcome == indexer.Stale:
				r.stale++
			case end.outcome == indexer.Ignored:
				r.ignored++
			default:
				again = append(again, left[i])
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		trouble := ""
		if len(again) > 0 {
			trouble = "; trying again: " + cmp.Or(r.bulk.trouble(), "Elasticsearch does not answer")
		}
		r.progress.show("%d records written%s", r.written+r.stale, trouble)
		left = again
	}
	return nil
}

// refuse makes a record a dead letter.
func (r *parkedReplay) refuse(ctx context.Context, p *deadletter.Parked, why *indexer.Rejection) error {
	acked := make(chan error, 1)
	r.letters.Write(deadletter.Letter{
		Topic: p.Topic, Partition: p.Partition, Offset: p.Offset, Timestamp: p.Timestamp, Key: p.Key, Value: p.Value, Headers: p.Headers,
		Reason: why.Reason, Type: why.Type, Status: why.Status, Target: cmp.Or(why.Target, p.Target), Attempts: why.Attempts, Sequence: why.Version, Generation: p.Generation,
	}, func(err error) { acked <- err })
	select {
	case err := <-acked:
		if err != nil {
			return fmt.Errorf("the dead letter of %s/%d/%d: %w", p.Topic, p.Partition, p.Offset, err)
		}
		r.refused++
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func parkedRecord(p *deadletter.Parked) *kgo.Record {
	return &kgo.Record{
		Topic: p.Topic, Partition: p.Partition, Offset: p.Offset, Timestamp: p.Timestamp,
		Key: p.Key, Value: p.Value, Headers: p.Headers,
	}
}
