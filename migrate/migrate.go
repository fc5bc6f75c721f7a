package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// Group is what a job must know of the consumers.
type Group interface {
	// Fence says whether every source partition of every topic of the group is
	// handled under an epoch or a later one, and where they stand.
	Fence(ctx context.Context, epoch int64) (Fence, error)
	// Ends returns the log ends of the group's source partitions.
	Ends(ctx context.Context) (Offsets, error)
	// Passed says whether the group has committed up to these offsets; behind
	// names a source partition that has not.
	Passed(ctx context.Context, ends Offsets) (behind string, err error)
	// Behind says how far the group is behind, and whether that is more than limit.
	Behind(ctx context.Context, limit time.Duration) (Lag, error)
	// HighestEpoch is the highest epoch that a commit of the group carries; 0:
	// none does.
	HighestEpoch(ctx context.Context) (int64, error)
	// Members counts the group's members.
	Members(ctx context.Context) (int, error)
}

// Lag is how far the live consumers are behind.
type Lag struct {
	Records int64 `json:"records"` // that are not committed
	// Seconds is the age of the oldest of them; 0: not known, or there is none.
	Seconds float64 `json:"seconds"`
	Over    bool    `json:"over"` // it is more than the limit
}

func (l Lag) String() string {
	switch {
	case l.Seconds == 0 && l.Records > 0:
		return fmt.Sprintf("%d records", l.Records)
	case l.Seconds >= 100:
		return eta(time.Duration(l.Seconds * float64(time.Second)))
	}
	return fmt.Sprintf("%.1fs", l.Seconds)
}

// over says of a lag what it is and what it may be.
func (l Lag) over(limit time.Duration) string {
	text := fmt.Sprintf("%s > %s", l, limit)
	if l.Seconds > 0 {
		text += fmt.Sprintf(" (%d records)", l.Records)
	}
	return text
}

// Versions says what orders the writes of a document.
type Versions struct {
	// Ours says whether a version was written by the consumers; nil: it cannot be
	// told from another's.
	Ours func(version int64) bool
	// Problem says why documents cannot be written to two sides; "": they can.
	Problem string
}

// Config is what a Manager works with. Logs hold neither documents nor secrets.
type Config struct {
	Cluster *elastic.Client
	Control *elastic.Control
	Tables  *partition.Store
	Group   Group
	// Records are the topics, for jobs that copy from them; nil: none can.
	Records Log
	// Stream is the routing table's name.
	Stream   string
	Versions Versions
	// Tombstones says that deletes stay tombstone documents for good
	// (documents.deletes: tombstone): nothing is swept then.
	Tombstones bool
	// MaxStaleness is how old a routing table a reader may use
	// (routing.max_staleness).
	MaxStaleness time.Duration
	// Period is that of the lease of a job. The default is 30 s.
	Period time.Duration
	// Poll is how often a wait looks again. The default is 1 s.
	Poll time.Duration
	// Owner names this process in leases.
	Owner string
	Log   zerolog.Logger
	// Probe asks an HTTP probe of the throttle; nil: http.Get.
	Probe func(ctx context.Context, url string) error
}

// Manager carries out the verbs on jobs. Several may work at once, in several
// processes.
type Manager struct {
	Config
	store store
	// partNumbers is how many sequence numbers a part of a verification has, at
	// least.
	partNumbers int64
}

// New returns a manager.
func New(c Config) *Manager {
	if c.Period <= 0 {
		c.Period = 30 * time.Second
	}
	if c.Poll <= 0 {
		c.Poll = time.Second
	}
	return &Manager{Config: c, store: store{c.Control}, partNumbers: partNumbers}
}

// Refusal is why a verb may not be carried out now, and what would help.
type Refusal struct {
	Why    string `json:"why"`
	Remedy string `json:"remedy"`
}

// RefusedError holds every reason at once.
type RefusedError struct {
	Verb     string
	Refusals []Refusal
	// Later says that all the reasons pass by themselves.
	Later bool
}

func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		lines[i] = r.Why
		if r.Remedy != "" {
			lines[i] += ": " + r.Remedy
		}
	}
	return e.Verb + " is refused: " + strings.Join(lines, "; ")
}

// table reads the stream's routing table, which must be this job's.
func (m *Manager) table(ctx context.Context, j *Job) (partition.Stored, error) {
	t, err := m.Tables.Load(ctx, m.Stream)
	if err == nil && t.Job != j.Name {
		err = stuckf("look at it with sluice routes show; sluice migrate cancel gives job "+j.Name+" up and leaves the table as it is", "the routing table of stream %s is not that of job %s but of %q", m.Stream, j.Name, t.Job)
	}
	return t, err
}

// reroute changes the routing table, which must be this job's, unless the edit
// says errSame. Conflicts are returned: nobody's change is merged.
func (m *Manager) reroute(ctx context.Context, j *Job, edit func(*partition.Table) error) (*partition.Table, error) {
	read, err := m.table(ctx, j)
	if err != nil {
		return nil, err
	}
	next, err := m.next(read, edit)
	if errors.Is(err, errSame) {
		return read.Table, nil
	}
	if err != nil {
		return nil, err
	}
	return next, m.Tables.Update(ctx, read, next)
}

func (m *Manager) next(read partition.Stored, edit func(*partition.Table) error) (*partition.Table, error) {
	return read.Change(partition.Change{By: m.Owner, At: time.Now().UTC().Truncate(time.Millisecond), Edit: edit})
}

// awaitFence waits until the fence of an epoch has passed. told hears of the
// laggards.
func (m *Manager) awaitFence(ctx context.Context, epoch int64, told func(Fence)) (Fence, error) {
	for {
		fence, err := m.Group.Fence(ctx, epoch)
		if err != nil {
			return fence, err
		}
		if fence.Passed {
			return fence, nil
		}
		if told != nil {
			told(fence)
		}
		if err := sleep(ctx, m.Poll); err != nil {
			return fence, err
		}
	}
}

// awaitReaders waits until no reader can use a table that was replaced before
// this call.
func (m *Manager) awaitReaders(ctx context.Context) error {
	const skew = time.Second
	if mutantReaders {
		return nil
	}
	m.Log.Info().Stringer("wait", m.MaxStaleness+skew).Msg("waiting until no reader goes by the routing table of before")
	return sleep(ctx, m.MaxStaleness+skew)
}

func laggards(f Fence) string {
	const most = 5
	names := slices.Sorted(slices.Values(f.Laggards))
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}
