package deadletter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// The protocol of parking (docs/DESIGN.md, section 6.5). A target that is held
// must not hold back the commits of the partitions that write to it. What it
// holds goes to a Kafka topic instead, and comes back when it is open again.
//
//   - A lane is a target of one source partition that is parked. While it is
//     open, no record of that partition for that target is written but from the
//     lane's parked records, in their order; every new one goes to their end.
//   - Everything that several owners of the partition must agree on stands in
//     one control document, ParkedState: which lanes are open, from where on
//     their records are still to be replayed, and who owns the partition.
//   - An owner begins by taking a new token: it reads the document, sees that
//     it is still a member in good standing, and replaces exactly what it read.
//     It dispatches nothing before that is acknowledged. From then on whatever
//     an earlier owner tries to change is refused, since its copy is old.
//   - The document says that a lane is open before its first record is parked,
//     and that it is closed before the first record goes past it again.
//   - A parked record is settled when the brokers have acknowledged it. Until
//     that is committed, its next owner is given the source record once more.
//     So whoever takes a token notes the offset at which it starts, and a
//     parked record of an earlier token at or above it is void: it will be
//     parked again, or written. One below it was acknowledged and committed, and
//     stands only here.
//   - A lane is drained when all of it was replayed up to the end that the log
//     had after the token was taken, and up to the last record that the owner
//     itself has parked.
//
// The model in parkedstate_test.go leaves out each of these rules in turn, and
// finds what then breaks.

// ParkedFormat is the version of the control document's layout. One of a later
// version is refused.
const ParkedFormat = 1

// ParkedState is the control document of a source partition in a group.
type ParkedState struct {
	Format    int    `json:"format"`
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`

	// Token is that of the partition's owner: one more for each that took it
	// over or started over. Owner is random, and tells an owner whether a change
	// whose answer was lost was its own.
	Token int64  `json:"token"`
	Owner string `json:"owner"`
	// Rules is a fingerprint of the rules by which the lanes' records were
	// given their targets.
	Rules string `json:"rules"`
	// Starts are those of tokens that make something void, by token.
	Starts []ParkedStart         `json:"starts"`
	Lanes  map[string]ParkedLane `json:"lanes"` // open ones, by target
}

// ParkedStart says where the owner with a token began.
type ParkedStart struct {
	Token   int64  `json:"token"`
	TopicID string `json:"topic_id"`
	Offset  int64  `json:"offset"`
}

// ParkedLane is a target whose records are parked.
type ParkedLane struct {
	// Token is that of the owner that opened the lane: older ones have nothing
	// in it.
	Token  int64     `json:"token"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"` // error type that held the target
	// Partition of the parked topic has the lane's records, and From is the
	// first offset that may hold one that was not replayed. TopicID is the
	// parked topic's.
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	TopicID   string `json:"topic_id"`
}

// ParkedID returns the id of the control document of a source partition.
func ParkedID(group, topic string, partition int32) string {
	return "parked:" + group + ":" + topic + ":" + strconv.Itoa(int(partition))
}

// Take makes owner the owner of a partition that it will consume from start on.
// topicID tells the topic from one of the same name that was there before.
func (s *ParkedState) Take(owner, topicID string, start int64) {
	s.Token++
	s.Owner = owner
	if len(s.Lanes) == 0 {
		s.Starts = nil
	}
	// Whatever this start does not make void an earlier, higher one did not
	// either.
	s.Starts = slices.DeleteFunc(s.Starts, func(e ParkedStart) bool { return e.TopicID == topicID && e.Offset >= start })
	s.Starts = append(s.Starts, ParkedStart{s.Token, topicID, start})
}

// Void says whether a parked record is none of the lane's: its owner lost the
// partition before it was committed, or before the lane was opened.
func (s *ParkedState) Void(lane ParkedLane, token int64, topicID string, offset int64) bool {
	if mutantVoid {
		return false
	}
	return token < lane.Token || slices.ContainsFunc(s.Starts, func(e ParkedStart) bool {
		return e.Token > token && e.TopicID == topicID && e.Offset <= offset
	})
}

// clone copies the state, so that a change that is refused changes nothing.
func (s *ParkedState) clone() ParkedState {
	c := *s
	c.Starts = slices.Clone(s.Starts)
	c.Lanes = maps.Clone(s.Lanes)
	if c.Lanes == nil {
		c.Lanes = map[string]ParkedLane{}
	}
	return c
}

// Targets returns the open lanes' targets, in order.
func (s *ParkedState) Targets() []string { return slices.Sorted(maps.Keys(s.Lanes)) }

// ParkedStore keeps control documents; see generation.Store, whose errors these
// are too.
type ParkedStore interface {
	// Get decodes the document into doc, a pointer, and returns its version.
	Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error)
	// Create stores a document that must not exist yet.
	Create(ctx context.Context, id string, doc any) error
	// Update replaces the document if its version is still this one.
	Update(ctx context.Context, id string, doc any, seqNo, primaryTerm int64) error
}

// ParkedStates is a ParkedStore that reads many documents at once.
type ParkedStates interface {
	ParkedStore
	// GetMany reads documents in real time, in the order of their ids.
	GetMany(ctx context.Context, ids []string) ([]ParkedDoc, error)
}

// ParkedDoc is a control document, or that there is none.
type ParkedDoc struct {
	Found              bool
	SeqNo, PrimaryTerm int64
	Source             json.RawMessage
}

// SourcePartition names a partition of a source topic.
type SourcePartition struct {
	Topic     string
	Partition int32
}

// ErrParkedOwner says that another owner has taken the partition over.
var ErrParkedOwner = errors.New("another owner has taken the partition's parked records over")

// ParkedKeeper is an owner's hand on the state of its partition. It belongs to
// one goroutine at a time.
type ParkedKeeper struct {
	store              ParkedStore
	id                 string
	state              ParkedState
	seqNo, primaryTerm int64
	absent             bool
	// unread says that the document was written since it was read, so that its
	// version is not known.
	unread bool
}

// LoadParked reads a partition's state in real time; found is false where
// nothing was ever parked by this group and nobody took a token.
func LoadParked(ctx context.Context, store ParkedStore, group, topic string, partition int32) (k *ParkedKeeper, found bool, err error) {
	k = newParkedKeeper(store, group, SourcePartition{topic, partition})
	if err := k.read(ctx); err != nil {
		return nil, false, err
	}
	return k, !k.absent, nil
}

// LoadParkedStates is LoadParked for several partitions at once. For one whose
// state cannot be used there is an error in errs; err says that nothing is known
// of any.
func LoadParkedStates(ctx context.Context, store ParkedStates, group string, of []SourcePartition) (keepers []*ParkedKeeper, errs []error, err error) {
	keepers, errs = make([]*ParkedKeeper, len(of)), make([]error, len(of))
	ids := make([]string, len(of))
	for i, p := range of {
		keepers[i] = newParkedKeeper(store, group, p)
		ids[i] = keepers[i].id
	}
	docs, err := store.GetMany(ctx, ids)
	if err == nil && len(docs) != len(ids) {
		err = fmt.Errorf("the store gave %d documents for %d ids", len(docs), len(ids))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("parked records: reading their states: %w", err)
	}
	for i, doc := range docs {
		if !doc.Found {
			continue
		}
		var now ParkedState
		if errs[i] = json.Unmarshal(doc.Source, &now); errs[i] != nil {
			errs[i] = fmt.Errorf("parked records: control document %s is damaged: %w", ids[i], errs[i])
			continue
		}
		errs[i] = keepers[i].took(now, doc.SeqNo, doc.PrimaryTerm)
	}
	return keepers, errs, nil
}

// newParkedKeeper returns one whose document was not read yet: as if there were
// none.
func newParkedKeeper(store ParkedStore, group string, p SourcePartition) *ParkedKeeper {
	return &ParkedKeeper{
		store: store, id: ParkedID(group, p.Topic, p.Partition), absent: true,
		state: ParkedState{Format: ParkedFormat, Group: group, Topic: p.Topic, Partition: p.Partition, Lanes: map[string]ParkedLane{}},
	}
}

func (k *ParkedKeeper) read(ctx context.Context) error {
	var now ParkedState
	seqNo, primaryTerm, err := k.store.Get(ctx, k.id, &now)
	switch {
	case isNotFound(err):
		k.absent, k.unread = true, false
		return nil
	case err != nil:
		return fmt.Errorf("parked records: reading %s: %w", k.id, err)
	}
	return k.took(now, seqNo, primaryTerm)
}

// took takes over what was read.
func (k *ParkedKeeper) took(now ParkedState, seqNo, primaryTerm int64) error {
	mine := &k.state
	switch {
	case now.Format > ParkedFormat:
		return fmt.Errorf("parked records: control document %s has format %d, this program knows %d: update Sluice", k.id, now.Format, ParkedFormat)
	case now.Format < 1 || now.Group != mine.Group || now.Topic != mine.Topic || now.Partition != mine.Partition:
		return fmt.Errorf("parked records: control document %s is not one of %s/%d in group %s (format %d): restore it", k.id, mine.Topic, mine.Partition, mine.Group, now.Format)
	}
	k.state, k.seqNo, k.primaryTerm, k.absent, k.unread = now, seqNo, primaryTerm, false, false
	return nil
}

// Found says whether there is a state: somebody of the group took a token here
// once.
func (k *ParkedKeeper) Found() bool { return !k.absent }

// State returns the state as it was last read or acknowledged.
func (k *ParkedKeeper) State() ParkedState { return k.state.clone() }

// ErrParkedRefused says that the store refused a change of the state: it was not
// made.
var ErrParkedRefused = errors.New("the state of parked records may not be changed now")

// Change replaces the state by what change makes of it, and returns when that is
// acknowledged. An error that wraps ErrParkedOwner says that the state is
// another owner's now, one that wraps ErrParkedRefused that this call changed
// nothing; after any other it is not known whether the change was made, and
// calling Change again finds out. change may be called more than once.
func (k *ParkedKeeper) Change(ctx context.Context, change func(*ParkedState)) error {
	if k.unread {
		if err := k.reread(ctx); err != nil {
			return err
		}
	}
	next := k.state.clone()
	change(&next)
	err := k.write(ctx, next)
	if !isConflict(err) {
		return err
	}
	// An earlier change of ours whose answer was lost, or another owner's.
	if err := k.reread(ctx); err != nil {
		return err
	}
	next = k.state.clone()
	change(&next)
	if err := k.write(ctx, next); isConflict(err) {
		return fmt.Errorf("%s: %w", k.id, ErrParkedOwner)
	} else if err != nil {
		return err
	}
	return nil
}

// reread reads the state of an owner anew; ErrParkedOwner: it is another's now.
func (k *ParkedKeeper) reread(ctx context.Context) error {
	mine := k.state
	if err := k.read(ctx); err != nil {
		return err
	}
	if k.absent || k.state.Token != mine.Token || k.state.Owner != mine.Owner {
		return fmt.Errorf("%s: %w", k.id, ErrParkedOwner)
	}
	return nil
}

// Take takes the partition over: see ParkedState.Take. between is called after
// the state was read and before it is replaced; its error says that the caller
// may have lost the partition, and ends the attempt. So does a conflict, which
// is an error like any other here: load the state again.
func (k *ParkedKeeper) Take(ctx context.Context, owner, topicID string, start int64, between func() error) error {
	if err := between(); err != nil {
		return err
	}
	next := k.state.clone()
	next.Take(owner, topicID, start)
	return k.write(ctx, next)
}

// write replaces the state that was read last. The answer does not tell the
// version of what is written: it is read before the next change, if one comes.
func (k *ParkedKeeper) write(ctx context.Context, next ParkedState) (err error) {
	if k.absent {
		err = k.store.Create(ctx, k.id, &next)
	} else {
		err = k.store.Update(ctx, k.id, &next, k.seqNo, k.primaryTerm)
	}
	if isRefused(err) {
		return fmt.Errorf("parked records: changing %s: %w: %w", k.id, ErrParkedRefused, err)
	}
	if err != nil {
		return fmt.Errorf("parked records: changing %s: %w", k.id, err)
	}
	k.state, k.absent, k.unread = next, false, true
	return nil
}

// ParkedPlace chooses the partition of the parked topic, of n, for a lane: the
// same for all its life, others for others.
func ParkedPlace(target, topic string, partition int32, n int) int32 {
	h := uint64(14695981039346656037) // FNV-1a
	for _, text := range []string{target, topic, strconv.Itoa(int(partition))} {
		for i := range len(text) {
			h = (h ^ uint64(text[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return int32(h % uint64(cmp.Or(n, 1)))
}

func isNotFound(err error) bool {
	var absent interface{ NotFound() bool }
	return errors.As(err, &absent) && absent.NotFound()
}

func isRefused(err error) bool {
	var refused interface{ Refused() bool }
	return errors.As(err, &refused) && refused.Refused() && !isConflict(err)
}

func isConflict(err error) bool {
	var taken interface{ Conflict() bool }
	return errors.As(err, &taken) && taken.Conflict()
}
