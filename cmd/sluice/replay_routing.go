package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/partition"
)

// route puts the routing table of now into force for the mapper and returns its
// epoch; 0 where the stream is not routed.
func (s *servers) route(ctx context.Context) (int64, error) {
	stream := s.cfg.Routing.Stream
	if stream == "" {
		return 0, nil
	}
	t, err := partition.NewStore(s.control).Load(ctx, stream)
	if err == nil {
		err = app.CheckTable(s.cfg, s.mapper, t.Table)
	}
	if err != nil {
		return 0, err
	}
	s.mapper.Use(partition.NewRouter(t.Table, partition.CacheOptions{}))
	return t.Epoch, nil
}

// replayLease is the control document lease:replay:<group>. While a replay of a
// routed stream runs it names the epoch that what is under way is written by: a
// fence of a later epoch is not passed before.
type replayLease struct {
	Schema int       `json:"schema"`
	Epoch  int64     `json:"epoch"`
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
}

const replayLeases = "lease:replay:"

func (s *servers) replayLeaseID() string { return replayLeases + s.cfg.Kafka.GroupID }

// begin takes the lease of a routed stream. end gives it back.
func (r *replay) begin(ctx context.Context) (end func(), err error) {
	epoch, err := r.route(ctx)
	if err != nil || epoch == 0 || r.dryRun {
		return func() {}, err
	}
	r.lease = replayLease{1, epoch, actor(), time.Now().UTC().Truncate(time.Second)}
	if r.takeOver {
		var old replayLease
		seqNo, term, err := r.control.Get(ctx, r.replayLeaseID(), &old)
		if err == nil {
			err = r.control.Delete(ctx, r.replayLeaseID(), seqNo, term)
		}
		if err != nil && !errors.Is(err, elastic.ErrNotFound) {
			return nil, err
		}
	}
	err = r.control.Create(ctx, r.replayLeaseID(), r.lease)
	if conflict := (*elastic.ConflictError)(nil); errors.As(err, &conflict) {
		return nil, &exit{exitTryLater, fmt.Errorf("another replay for group %s runs, or was killed: %s: --take-over, if it does not run any more", r.cfg.Kafka.GroupID, conflict.Current)}
	}
	if err != nil {
		return nil, err
	}
	return func() {
		// Also after a signal: nothing is under way any more.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		var lease replayLease
		if seqNo, term, err := r.control.Get(ctx, r.replayLeaseID(), &lease); err == nil && lease == r.lease {
			_ = r.control.Delete(ctx, r.replayLeaseID(), seqNo, term) // else --take-over is needed
		}
	}, nil
}

// follow makes what is written next go by the newest table, and the lease say
// so. Nothing may be under way.
func (r *replay) follow(ctx context.Context) error {
	if r.lease.Epoch == 0 {
		return nil
	}
	epoch, err := r.route(ctx)
	if err != nil || epoch == r.lease.Epoch {
		return err
	}
	var stored replayLease
	seqNo, term, err := r.control.Get(ctx, r.replayLeaseID(), &stored)
	if err == nil && stored != r.lease {
		err = errors.New("another replay has taken over")
	}
	if err != nil {
		return fmt.Errorf("the lease of this replay: %w", err)
	}
	next := r.lease
	next.Epoch = epoch
	if err := r.control.Update(ctx, r.replayLeaseID(), next, seqNo, term); err != nil {
		return fmt.Errorf("the lease of this replay: %w", err)
	}
	r.lease = next
	return nil
}

// replaying returns the replay that runs by a table older than epoch; "": none.
func (s *servers) replaying(ctx context.Context, epoch int64) (string, error) {
	var lease replayLease
	switch _, _, err := s.control.Get(ctx, s.replayLeaseID(), &lease); {
	case errors.Is(err, elastic.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case lease.Epoch >= epoch:
		return "", nil
	}
	return fmt.Sprintf("a replay of dead letters by %s, since %s (sluice deadletter replay --take-over, if it was killed)", lease.By, lease.Since.Format(time.RFC3339)), nil
}

// twins writes the second actions of the letters of a batch whose first are
// done, and puts into endings how the letters ended on both sides.
func (r *replay) twins(ctx context.Context, n int, action func(i int) indexer.Action, endings []ending, deadline time.Time) error {
	var letters []int
	for i := range n {
		if action(i); r.result.Twin.Op != 0 && endings[i].rejected == nil && endings[i].outcome != 0 {
			letters = append(letters, i)
		}
	}
	if len(letters) == 0 {
		return nil
	}
	second, err := r.bulk.write(ctx, len(letters), func(i int) indexer.Action {
		a := action(letters[i])
		a.Action, a.Tombstone = r.result.Twin, r.result.TwinTombstone
		return a
	}, deadline)
	if err != nil {
		return err
	}
	for k, i := range letters {
		switch end := second[k]; {
		case end.rejected != nil || end.outcome == 0:
			endings[i] = end
		case endings[i].outcome == indexer.Stale:
			endings[i] = end // it was there on one side only
		}
	}
	return nil
}
