package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

// Group is what a migration asks of the consumers: by their commits and the
// topics only, so that it works whoever runs them, and where.
type Group struct {
	Config  *config.Config
	Kafka   *kadm.Client
	Control *elastic.Control
	// Replaying names the replay that runs by a table older than epoch; "":
	// none. Nil: nobody replays.
	Replaying func(ctx context.Context, epoch int64) (string, error)
}

var _ migrate.Group = Group{}

// NewMigrations returns the manager of the migrations of cfg's stream. owner
// names this process in leases.
func NewMigrations(cfg *config.Config, mapper *document.Mapper, client *elastic.Client, group migrate.Group, owner string, log zerolog.Logger) *migrate.Manager {
	control := client.Control(cfg.Routing.ControlIndex)
	tombstones := cfg.Documents.Deletes == "tombstone"
	versions := migrate.Versions{Ours: ours(cfg, mapper)}
	if err := mapper.CheckDualWrite(); err != nil {
		versions.Problem = err.Error()
	} else if !tombstones && slices.ContainsFunc(mapper.Describe(), func(d document.Description) bool { return d.Version != "sequence" && d.Version != "offset" }) {
		versions.Problem = "versions that records supply may repeat, and the sweep of tombstones could take a record of the same version with it: use version: sequence, or deletes: tombstone"
	}
	return migrate.New(migrate.Config{
		Cluster: client, Control: control, Tables: partition.NewStore(control), Group: group, Stream: cfg.Routing.Stream,
		Versions: versions, Tombstones: tombstones, MaxStaleness: cfg.Routing.MaxStaleness, Owner: owner, Log: log,
	})
}

// newJobs returns the migrations of the stream, which must be a routed one.
func (a *App) newJobs() jobs {
	// Without a group: who asks a replica asks for what is recorded.
	return jobs{NewMigrations(a.cfg, a.mapper, a.elastic, nil, "", a.log)}
}

// adminJobs are those that the admin address shows; nil for a stream that is not
// routed.
func (a *App) adminJobs() admin.Jobs {
	if a.jobs == nil {
		return nil
	}
	return a.jobs.jobs
}

// jobs shows the migrations of the process's stream on its admin address.
type jobs struct{ manager *migrate.Manager }

var _ admin.Jobs = jobs{}

// jobStatus is a job on the admin address.
type jobStatus struct {
	*migrate.Status
	Line string `json:"line"` // all of it in one line
}

// Jobs implements admin.Jobs.
func (j jobs) Jobs(ctx context.Context) (any, error) {
	known, err := j.list(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]jobStatus, len(known))
	for i, s := range known {
		all[i] = jobStatus{s, s.Line()}
	}
	return all, nil
}

// list reads the status of every job.
func (j jobs) list(ctx context.Context) ([]*migrate.Status, error) {
	names, err := j.manager.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	var all []*migrate.Status
	for _, name := range names {
		status, err := j.manager.Status(ctx, name)
		if errors.Is(err, migrate.ErrNoJob) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, status)
	}
	return all, nil
}

// Job implements admin.Jobs.
func (j jobs) Job(ctx context.Context, name string) (any, error) {
	status, err := j.manager.Status(ctx, name)
	if errors.Is(err, migrate.ErrNoJob) {
		return nil, fmt.Errorf("%w: %s", admin.ErrNoJob, name)
	}
	if err != nil {
		return nil, err
	}
	return jobStatus{status, status.Line()}, nil
}

// ours says whether a version was written by the consumers, where it can be
// told: a sequence is above any that another program writes.
func ours(cfg *config.Config, mapper *document.Mapper) func(int64) bool {
	for _, topic := range cfg.Kafka.Topics {
		if mapper.Rules(topic).Version() != document.VersionSequence {
			return nil
		}
	}
	return func(version int64) bool {
		_, _, _, ok := document.DecodeSequence(version)
		return ok
	}
}

func (g Group) read(ctx context.Context, epoch int64) (consumer.Fence, error) {
	var exclude []string
	if topic := g.Config.DeadLetter.Topic; topic != "" {
		exclude = []string{topic, ParkedTopic(topic)}
	}
	return consumer.ReadFence(ctx, g.Kafka, g.Config.Kafka, exclude, epoch)
}

// Fence implements migrate.Group.
func (g Group) Fence(ctx context.Context, epoch int64) (migrate.Fence, error) {
	read, err := g.read(ctx, epoch)
	if err != nil {
		return migrate.Fence{}, err
	}
	fence := migrate.Fence{Epoch: epoch, Passed: read.Passed(), Offsets: read.Offsets()}
	for _, position := range read.Laggards() {
		fence.Laggards = append(fence.Laggards, position.String())
	}
	if g.Replaying != nil {
		replay, err := g.Replaying(ctx, epoch)
		if err != nil {
			return migrate.Fence{}, err
		}
		if replay != "" {
			fence.Passed = false
			fence.Laggards = append(fence.Laggards, replay)
		}
	}
	// Parked records were routed by the table of their time.
	ids, err := g.Control.List(ctx, "parked:"+g.Config.Kafka.GroupID+":", true)
	if err != nil {
		return migrate.Fence{}, err
	}
	for _, id := range ids {
		var state deadletter.ParkedState
		if _, _, err := g.Control.Get(ctx, id, &state); err != nil && !errors.Is(err, elastic.ErrNotFound) {
			return migrate.Fence{}, err
		}
		for _, target := range state.Targets() {
			fence.Passed = false
			fence.Laggards = append(fence.Laggards, fmt.Sprintf("%s/%d: records for %s are parked", state.Topic, state.Partition, target))
		}
	}
	return fence, nil
}

// topics are those that the group consumes.
func (g Group) topics(f consumer.Fence) []string {
	names := map[string]bool{}
	for _, position := range f.Positions {
		names[position.Topic] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Ends implements migrate.Group: what may be read, which is less than the log
// where a transaction is open.
func (g Group) Ends(ctx context.Context) (migrate.Offsets, error) {
	fence, err := g.read(ctx, 0)
	if err != nil {
		return nil, err
	}
	return g.ends(ctx, g.topics(fence))
}

func (g Group) ends(ctx context.Context, topics []string) (migrate.Offsets, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	list := g.Kafka.ListCommittedOffsets
	if g.Config.Kafka.IsolationLevel == "read_uncommitted" {
		list = g.Kafka.ListEndOffsets
	}
	ends, err := listed(list(ctx, topics...))
	if err != nil {
		return nil, fmt.Errorf("log ends: %w", err)
	}
	return ends, nil
}

// Passed implements migrate.Group.
func (g Group) Passed(ctx context.Context, ends migrate.Offsets) (string, error) {
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
func (g Group) starts(ctx context.Context, topics []string) (migrate.Offsets, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	starts, err := listed(g.Kafka.ListStartOffsets(ctx, topics...))
	if err != nil {
		return nil, fmt.Errorf("log starts: %w", err)
	}
	return starts, nil
}

// Behind implements migrate.Group: the group is behind by more than a time where
// a record older than that is not committed.
func (g Group) Behind(ctx context.Context, limit time.Duration) (migrate.Lag, error) {
	fence, err := g.read(ctx, 0)
	if err != nil {
		return migrate.Lag{}, err
	}
	topics := g.topics(fence)
	starts, err := g.starts(ctx, topics)
	if err != nil || len(topics) == 0 {
		return migrate.Lag{}, err
	}
	now := time.Now()
	ends, err := g.ends(ctx, topics)
	if err != nil {
		return migrate.Lag{}, err
	}
	lag := migrate.Lag{}
	for _, position := range fence.Positions {
		at := max(position.Offset, starts[position.Topic][position.Partition])
		lag.Records += max(0, ends[position.Topic][position.Partition]-at)
	}
	if lag.Records == 0 {
		return lag, nil
	}
	age, over, err := oldest(limit, func(age time.Duration) (bool, error) {
		recent, err := listed(g.Kafka.ListOffsetsAfterMilli(ctx, now.Add(-age).UnixMilli(), topics...))
		if err != nil {
			return false, fmt.Errorf("offsets by time: %w", err)
		}
		for _, position := range fence.Positions {
			at := max(position.Offset, starts[position.Topic][position.Partition])
			end := ends[position.Topic][position.Partition]
			first, ok := recent[position.Topic][position.Partition]
			if !ok || first < 0 {
				first = end // nothing is that young
			}
			if at < min(first, end) {
				return true, nil
			}
		}
		return false, nil
	})
	lag.Over, lag.Seconds = over, age.Seconds()
	return lag, err
}

// oldest finds an age, to a sixteenth, from whether it is more than another:
// brokers find offsets by time, and no time by its offset. over: it is more than
// limit. No age is looked for beyond a year.
func oldest(limit time.Duration, older func(time.Duration) (bool, error)) (age time.Duration, over bool, err error) {
	const far = 365 * 24 * time.Hour
	over, err = older(limit)
	low, high := time.Duration(0), limit
	for more := over; err == nil && more && low < far; {
		low, high = high, 8*high
		more, err = older(high)
	}
	for err == nil && high-low > max(high/16, 100*time.Millisecond) {
		var more bool
		middle := low + (high-low)/2
		if more, err = older(middle); more {
			low = middle
		} else {
			high = middle
		}
	}
	return high, over, err
}

// HighestEpoch implements migrate.Group.
func (g Group) HighestEpoch(ctx context.Context) (int64, error) {
	return consumer.HighestEpoch(ctx, g.Kafka, g.Config.Kafka.GroupID)
}

// Members implements migrate.Group.
func (g Group) Members(ctx context.Context) (int, error) {
	group := g.Config.Kafka.GroupID
	described, err := g.Kafka.DescribeGroups(ctx, group)
	if err == nil && len(described[group].Members) > 0 {
		return len(described[group].Members), nil
	}
	consumers, errConsumers := g.Kafka.DescribeConsumerGroups(ctx, group)
	if errConsumers == nil && len(consumers[group].Members) > 0 {
		return len(consumers[group].Members), nil
	}
	if err != nil && errConsumers != nil {
		return 0, fmt.Errorf("group %s: %w", group, errors.Join(err, errConsumers))
	}
	return 0, nil
}

// listed flattens a listing whose partitions must all have answered.
func listed(offsets kadm.ListedOffsets, err error) (migrate.Offsets, error) {
	if err := errors.Join(err, offsets.Error()); err != nil {
		return nil, err
	}
	flat := migrate.Offsets{}
	offsets.Each(func(o kadm.ListedOffset) {
		if flat[o.Topic] == nil {
			flat[o.Topic] = map[int32]int64{}
		}
		flat[o.Topic][o.Partition] = o.Offset
	})
	return flat, nil
}
