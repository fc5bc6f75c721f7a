package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// commitTimeout bounds one commit, the wait for a rebalance included.
	commitTimeout = 15 * time.Second
	// commitSlow is from when on a commit may have been sent twice: the client
	// repeats it on another connection, and the first copy may still arrive.
	commitSlow = 5 * time.Second
	// commitUncertain is how long all positions are committed again and again
	// after such a commit, so that a late copy does not have the last word.
	commitUncertain = 30 * time.Second
	// commitDenied is how long fetching goes on while commits are refused for
	// want of rights.
	commitDenied = 30 * time.Second
)

const allCommits = "commits refused"

// errOtherGeneration keeps a commit that was made up in one generation of the
// group from being sent in another.
var errOtherGeneration = errors.New("consumer: the group has rebalanced since the offsets were read")

// commitClass is what a failed commit calls for.
type commitClass string

const (
	commitRetry  commitClass = "retriable" // comes again with the next commit
	commitRejoin commitClass = "rejoin"    // no member, or of another generation: the client rejoins
	commitRights commitClass = "denied"    // an operator must act
	commitFenced commitClass = "fenced"    // another process has our place
	commitOther  commitClass = "failed"    // unexpected, tried again all the same
)

// classifyCommit is the one place that knows what an error means.
func classifyCommit(err error) commitClass {
	var ke *kerr.Error
	switch {
	case errors.Is(err, errOtherGeneration), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return commitRetry
	case errors.Is(err, kerr.FencedInstanceID):
		return commitFenced
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.StaleMemberEpoch), errors.Is(err, kerr.FencedMemberEpoch):
		return commitRejoin
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return commitRights
	case errors.Is(err, kerr.RebalanceInProgress):
		return commitRetry
	case errors.As(err, &ke):
		if ke.Retriable {
			return commitRetry
		}
		return commitOther
	default: // no answer
		return commitRetry
	}
}

// commitState is how commits have gone.
type commitState struct {
	mu        sync.Mutex
	failing   error // of the last commit; nil: it was taken
	class     commitClass
	since     time.Time // of the first failure in a row
	alarmed   bool
	uncertain time.Time // until when everything is committed again
	failures  map[commitClass]uint64
	last      time.Time // of the last success

	// member is whom the last commit was made as. It is guarded by turn.
	member string
}

// startCommit begins a commit unless one is on its way or a callback runs. It
// is called by the poll loop, which does not wait for the answer: during a
// rebalance the client holds commits back.
func (c *Consumer) startCommit() {
	if !c.tryTurn() {
		return
	}
	c.tasks.Go(func() {
		defer c.endTurn()
		c.commit(c.holdings(), false)
	})
}

// commit commits what is handled of as. turn must be held, so that commits
// follow one another and no partition is released meanwhile. final says that
// there will be no other: it is tried again once.
func (c *Consumer) commit(as []*assignment, final bool) {
	if err := c.checkMember(as); err != nil {
		c.noteCommit(err)
		return
	}
	all := c.commits.isUncertain(c.now())
	tries := 1
	if final {
		tries = 3
	}
	for range tries {
		offsets := make(map[string]map[int32]kgo.EpochOffset)
		by := make(map[tp]*assignment)
		for _, a := range as {
			at, ok := a.committable(all)
			if !ok {
				continue
			}
			if offsets[a.l.topic] == nil {
				offsets[a.l.topic] = make(map[int32]kgo.EpochOffset)
			}
			offsets[a.l.topic][a.id] = at
			by[tp{a.l.topic, a.id}] = a
		}
		if len(by) == 0 {
			return
		}
		err := c.commitOffsets(offsets, by)
		c.noteCommit(err)
		if err == nil || classifyCommit(err) != commitRetry {
			return
		}
	}
}

// checkMember looks at what the group has committed if this member has another
// id than at the last commit. A member that is thrown out while it rejoins gets
// a new id, and may get the partitions that it holds again without being told
// that it lost them. Whoever had them meanwhile may have committed more: our
// next commits must not put the group back.
func (c *Consumer) checkMember(as []*assignment) error {
	member, _ := c.cl.GroupMetadata()
	switch member {
	case c.commits.member:
		return nil
	case "": // between two ids
		return errOtherGeneration
	}
	if c.commits.member != "" && len(as) > 0 {
		ctx, cancel := context.WithTimeout(c.ending, commitTimeout)
		defer cancel()
		commits, err := c.adm.FetchOffsets(ctx, c.cfg.GroupID)
		if err != nil {
			return fmt.Errorf("consumer: the group's commits, as a new member: %w", err)
		}
		for _, a := range as {
			if o, ok := commits.Lookup(a.l.topic, a.id); ok && o.Err == nil {
				if a.commitAgreed(o.At) {
					c.restart(a, "the group has committed more than it begins with")
				}
			}
		}
	}
	if c.commits.member != "" && c.doubt(as) {
		c.commits.member = member
		return errOtherGeneration
	}
	c.commits.member = member
	return nil
}

// commitOffsets sends one commit and notes what was agreed to. The error is
// the request's, else the first of a partition.
func (c *Consumer) commitOffsets(offsets map[string]map[int32]kgo.EpochOffset, by map[tp]*assignment) error {
	member, gen := c.cl.GroupMetadata()
	ctx, cancel := context.WithTimeout(c.ending, commitTimeout)
	defer cancel()
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		// The client fills in the generation of the moment it sends. If this
		// member was thrown out and rejoined meanwhile, another one may have
		// committed more, and ours would put the group back.
		if req.MemberID != member || req.Generation != gen && c.cfg.GroupProtocol != "consumer" {
			return errOtherGeneration
		}
		for i := range req.Topics {
			t := &req.Topics[i]
			for j := range t.Partitions {
				p := &t.Partitions[j]
				if a := by[tp{t.Topic, p.Partition}]; a != nil {
					meta := a.topic.commitMeta(p.Partition, p.Offset, a.epoch).String()
					p.Metadata = &meta
				}
			}
		}
		return nil
	})
	began := c.now()
	var failed error
	c.cl.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err != nil {
			return
		}
		// From version 10 on the answer may name topics by id only.
		names := make(map[[16]byte]string)
		for _, t := range req.Topics {
			names[t.TopicID] = t.Topic
		}
		for _, t := range resp.Topics {
			name := t.Topic
			if name == "" {
				name = names[t.TopicID]
			}
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					if failed == nil {
						failed = fmt.Errorf("consumer: commit of %s/%d: %w", name, p.Partition, err)
					}
					continue
				}
				if a := by[tp{name, p.Partition}]; a != nil && a.commitDone(offsets[name][p.Partition].Offset) {
					c.pauses.clear(pauseStarting, a) // it was admitted, and waited for this
					a.parking.begin()
				}
			}
		}
	})
	if c.now().Sub(began) > commitSlow || failed != nil && !errors.Is(failed, errOtherGeneration) {
		c.commits.mu.Lock()
		c.commits.uncertain = c.now().Add(commitUncertain)
		c.commits.mu.Unlock()
	}
	return failed
}

// commitMeta is the metadata of a commit of a partition at offset: from there on
// records are written under epoch.
func (t *topic) commitMeta(partition int32, offset, epoch int64) commitMeta {
	m := commitMeta{Version: commitVersion, Epoch: epoch, Generation: t.newest(partition, offset)}
	if k := t.known.Load(); k != nil {
		m.TopicID, m.Partitions = k.id, k.partitions
	}
	return m
}

func (s *commitState) isUncertain(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(s.uncertain)
}

// noteCommit acts on how a commit went.
func (c *Consumer) noteCommit(err error) {
	err = c.remedied(err)
	now := c.now()
	s := &c.commits
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		if s.alarmed {
			c.log.Info().Msg("commits are taken again")
		}
		s.failing, s.class, s.since, s.alarmed, s.last = nil, "", time.Time{}, false, now
		c.pauses.setAll(allCommits, false)
		return
	}
	class := classifyCommit(err)
	if s.failing == nil || s.class != class {
		s.since, s.alarmed = now, false
	}
	s.failing, s.class = err, class
	if s.failures == nil {
		s.failures = make(map[commitClass]uint64)
	}
	s.failures[class]++
	switch class {
	case commitFenced:
		c.fail(ErrFenced)
	case commitRights:
		if now.Sub(s.since) >= commitDenied {
			c.pauses.setAll(allCommits, true)
			if !s.alarmed {
				s.alarmed = true
				c.log.Error().Err(err).Msg("commits are refused: fetching stops until this group may commit (READ on the group and its topics)")
			}
		}
	case commitRejoin:
		c.log.Warn().Err(err).Msg("commit refused: this member is no longer part of the group, it rejoins")
	default:
		c.log.Debug().Err(err).Msg("commit failed, it comes again with the next")
		if !s.alarmed && now.Sub(s.since) >= time.Minute {
			s.alarmed = true
			c.log.Error().Err(err).Time("since", s.since).Msg("commits have failed for a minute: after a restart everything since is delivered again")
		}
	}
}
