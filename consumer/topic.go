package consumer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/generation"
)

// Rules say what becomes of a topic's records; *document.Rules is one.
type Rules interface {
	// Map decides what becomes of rec; see document.Rules.Map.
	Map(rec *kgo.Record, generation int, out *document.Result)
	OnRejected() document.Policy
	// TimeNamed says whether index names hold a timestamp, and how many new
	// ones may then be made within an hour.
	TimeNamed() (newPerHour int, ok bool)
	Version() document.VersionMode
	// NeedsGeneration says whether Map looks at the generation, NeedsRaise
	// whether a changed partition count needs a new one.
	NeedsGeneration() bool
	NeedsRaise() bool
}

// Generations gives the recorded generations of a topic.
type Generations interface {
	// Ensure returns the list of a topic that is about to be consumed, and
	// records its first entry where there is none; see generation.Ensure. It
	// is asked again at each rebalance and before a version is called
	// foreign, and must read in real time.
	Ensure(ctx context.Context, t generation.Topic) (generation.List, error)
}

// topic is what is known of a topic that partitions are held of.
type topic struct {
	name  string
	rules Rules

	// known is replaced as a whole by the resolver; nil until its first
	// answer.
	known atomic.Pointer[known]
	// resolved is closed when known is set.
	resolved chan struct{}
	// end is the highest log end seen of any of its partitions.
	end atomic.Int64

	// Under Consumer.mu.

	waiting string // why its partitions do not start; "": they do
	since   time.Time
	stale   bool // the resolver is to ask anew
}

// known is a topic's identity and its recorded generations.
type known struct {
	id         string
	partitions int32
	list       generation.List // nil where the rules need none
}

// generationOf is the generation of a record, for the offsets below until.
func (t *topic) generationOf(partition int32, offset int64) (gen int, until int64) {
	k := t.known.Load()
	return k.list.At(k.id, partition, offset)
}

// newest is the generation that a commit of this partition at offset names.
func (t *topic) newest(partition int32, offset int64) int {
	k := t.known.Load()
	if k == nil || k.list == nil {
		return 0
	}
	gen, _ := k.list.At(k.id, partition, offset)
	return gen
}

func (t *topic) sawEnd(end int64) {
	for {
		old := t.end.Load()
		if end <= old || t.end.CompareAndSwap(old, end) {
			return
		}
	}
}

// commitMeta is the metadata of a commit (DESIGN 7).
type commitMeta struct {
	Version    int    `json:"v"`
	Epoch      int64  `json:"e"`
	Generation int    `json:"g"`
	TopicID    string `json:"t"`
	Partitions int32  `json:"n"`
}

// commitVersion is the layout of commitMeta that this program writes.
const commitVersion = 1

// parseCommitMeta reads a commit's metadata; false where it is not ours.
func parseCommitMeta(s string) (m commitMeta, ok bool) {
	if err := json.Unmarshal([]byte(s), &m); err != nil || m.Version < 1 {
		return commitMeta{}, false
	}
	return m, true
}

func (m commitMeta) String() string {
	b, err := json.Marshal(m)
	if err != nil { // numbers and a text: cannot fail
		panic(err)
	}
	return string(b)
}

const (
	resolveRetryMin = 500 * time.Millisecond
	resolveRetryMax = 15 * time.Second
)

// resolve is the resolver: for each topic that is new or may have changed, it
// asks Kafka for its id, its partition count and the generations of its
// commits, and the control index for its generations. It ends with ctx.
func (c *Consumer) resolve(ctx context.Context) {
	retry := resolveRetryMin
	for {
		topics := c.staleTopics()
		if len(topics) == 0 {
			retry = resolveRetryMin
			select {
			case <-c.resolveNow:
				continue
			case <-ctx.Done():
				return
			}
		}
		if c.resolveTopics(ctx, topics) {
			retry = resolveRetryMin
			continue
		}
		t := time.NewTimer(retry)
		select {
		case <-t.C:
		case <-c.resolveNow: // a new topic does not wait for an old one's trouble
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return
		}
		retry = min(2*retry, resolveRetryMax)
	}
}

func (c *Consumer) staleTopics() []*topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	var stale []*topic
	for _, t := range c.topics {
		if t.stale {
			t.stale = false
			stale = append(stale, t)
		}
	}
	slices.SortFunc(stale, func(a, b *topic) int { return cmp.Compare(a.name, b.name) })
	return stale
}

// resolveTopics reports whether all of topics are settled: started, or halted.
func (c *Consumer) resolveTopics(ctx context.Context, topics []*topic) bool {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	// What is asked after now is true of those that are held now.
	asking := make(map[*assignment]bool)
	for _, a := range c.holdings() {
		asking[a.origin] = true
	}
	if err := c.catchUp(ctx); err != nil {
		for _, t := range topics {
			c.waitTopic(t, err)
		}
		return false
	}
	all := true
	for _, t := range topics {
		now, list, err := c.describeTopic(ctx, t)
		var raise *generation.NeedsRaiseError
		switch {
		case errors.Is(err, errNoControl), errors.As(err, &raise):
			c.haltTopic(t, &Halt{Kind: HaltGeneration, Type: err.Error(), Since: c.now()})
		case err != nil:
			all = false
			c.waitTopic(t, err)
		default:
			if t.known.Swap(&known{now.ID, now.Partitions, list}) == nil {
				close(t.resolved)
			}
			c.admit(t, asking)
			c.startTopic(t)
		}
	}
	return all
}

// errNoControl halts topics that cannot do without recorded generations.
var errNoControl = errors.New("consumer: versions or ids of this topic need recorded generations, and there is no control index: set routing.control_index")

// describeTopic asks Kafka what t is, and where its rules need it the control
// index for its generations. The list may come with a NeedsRaiseError.
func (c *Consumer) describeTopic(ctx context.Context, t *topic) (generation.Topic, generation.List, error) {
	none := generation.Topic{}
	details, err := c.adm.ListTopics(ctx, t.name)
	if err != nil {
		return none, nil, fmt.Errorf("consumer: topic %s: metadata: %w", t.name, err)
	}
	commits, err := c.adm.FetchOffsetsForTopics(ctx, c.cfg.GroupID, t.name)
	if err != nil {
		return none, nil, fmt.Errorf("consumer: topic %s: the group's commits: %w", t.name, err)
	}
	now, err := describe(details, commits, t)
	if err != nil || !t.rules.NeedsGeneration() {
		return now, nil, err
	}
	if c.o.Generations == nil {
		return now, nil, errNoControl
	}
	list, err := c.o.Generations.Ensure(ctx, now)
	return now, list, err
}

// describe is the topic as Kafka knows it.
func describe(details kadm.TopicDetails, commits kadm.OffsetResponses, t *topic) (generation.Topic, error) {
	d, ok := details[t.name]
	if !ok {
		return generation.Topic{}, fmt.Errorf("consumer: topic %s: no metadata", t.name)
	}
	if d.Err != nil {
		return generation.Topic{}, fmt.Errorf("consumer: topic %s: metadata: %w", t.name, d.Err)
	}
	now := generation.Topic{
		Name:          t.name,
		ID:            d.ID.String(),
		Partitions:    int32(len(d.Partitions)),
		AnyPartitions: !t.rules.NeedsRaise(),
	}
	for _, o := range commits[t.name] {
		if o.Err != nil {
			return generation.Topic{}, fmt.Errorf("consumer: topic %s: the group's commits: %w", t.name, o.Err)
		}
		if m, ok := parseCommitMeta(o.Metadata); ok {
			now.Committed = max(now.Committed, m.Generation)
		}
	}
	return now, nil
}

// waitTopic notes why partitions of a topic are not started yet; it is asked for
// again.
func (c *Consumer) waitTopic(t *topic, err error) {
	err = c.remedied(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	t.stale = true
	if t.known.Load() != nil && !c.unadmitted(t) {
		return // it runs; what was known stays true
	}
	if t.waiting == "" || t.since.IsZero() {
		t.since = c.now()
	}
	if text := err.Error(); t.waiting != text {
		t.waiting = text
		c.log.Warn().Str("topic", t.name).Err(err).Msg("partitions wait: the topic's metadata, its generations or the routing table cannot be read; trying again")
	}
}

// unadmitted says whether a partition of t waits to be admitted; c.mu must be
// held.
func (c *Consumer) unadmitted(t *topic) bool {
	for _, a := range c.held {
		if a.topic == t && !a.isAdmitted() {
			return true
		}
	}
	return false
}

// startTopic lets the topic's partitions run; those of a routed stream once
// their position is committed under the epoch.
func (c *Consumer) startTopic(t *topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.waiting, t.since = "", time.Time{}
	var start []*assignment
	for _, a := range c.held {
		if a.topic == t && a.hasSaid() {
			start = append(start, a)
		}
	}
	c.pauses.clear(pauseStarting, start...)
}

// recheckTopics has the resolver ask anew about all held topics.
func (c *Consumer) recheckTopics() {
	c.mu.Lock()
	for _, t := range c.topics {
		t.stale = true
	}
	c.mu.Unlock()
	select {
	case c.resolveNow <- struct{}{}:
	default:
	}
}
