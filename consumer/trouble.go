package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
)

// knockEvery is how often a member without heartbeats asks why, and one that
// misses topics looks for them.
const knockEvery = 2 * time.Second

// trouble is why this member has no part in the group. It is said once per
// cause, since the client tries again for as long as it lasts.
type trouble struct {
	mu sync.Mutex
	// reach is what a knock found, until the next finds otherwise; session what
	// the client said of the group, until this member is part of it.
	reach, session string
	since          time.Time
	missing        []string // topics that are not there, part of the group or not
}

func (t *trouble) text() string {
	if t.reach != "" {
		return t.reach
	}
	return t.session
}

// change sets causes, says what is different then, and notes since when there is
// any.
func (t *trouble) change(now time.Time, log zerolog.Logger, set func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, since := t.text(), t.since
	set()
	after := t.text()
	switch {
	case after == before:
		return
	case after == "":
		log.Info().Str("trouble", before).Time("since", since).Msg("nothing known keeps this member out of the group any more")
		t.since = time.Time{}
		return
	case before == "":
		t.since = now
	}
	log.Warn().Str("trouble", after).Msg("this member has no part in the group; trying again")
}

// found notes what a knock found, "" for nothing.
func (t *trouble) found(text string, now time.Time, log zerolog.Logger) {
	t.change(now, log, func() { t.reach = text })
}

// refused notes what the client said of the group.
func (t *trouble) refused(text string, now time.Time, log zerolog.Logger) {
	t.change(now, log, func() { t.session = text })
}

// joined ends all trouble.
func (t *trouble) joined(now time.Time, log zerolog.Logger) {
	t.change(now, log, func() { t.reach, t.session = "", "" })
}

// miss notes which topics are not there.
func (t *trouble) miss(topics []string, log zerolog.Logger) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range topics {
		if !slices.Contains(t.missing, name) {
			log.Warn().Str("topic", name).Msg("kafka.topics: no such topic yet: make it, or correct the name")
		}
	}
	for _, name := range t.missing {
		if !slices.Contains(topics, name) {
			log.Info().Str("topic", name).Msg("kafka.topics: the topic is there")
		}
	}
	t.missing = topics
}

func (t *trouble) now() (text string, since time.Time, missing []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text(), t.since, t.missing
}

// knock looks why this member has no part in the group, for as long as it has
// none, and which of its topics are not there: of either the client itself says
// nothing. It ends with ctx.
func (c *Consumer) knock(ctx context.Context) {
	tick := time.NewTicker(knockEvery)
	defer tick.Stop()
	complete := false // all topics have been seen
	for {
		joined := c.Healthy()
		if joined {
			c.trouble.joined(c.now(), c.log)
		}
		if !joined || !complete {
			asking, cancel := context.WithTimeout(ctx, 2*knockEvery)
			missing, err := c.missingTopics(asking)
			cancel()
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				complete = len(missing) == 0
				c.trouble.miss(missing, c.log)
			}
			if !joined {
				c.trouble.found(c.diagnose(missing, err), c.now(), c.log)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// diagnose is why this member cannot join, as far as a knock tells: err is what
// a broker, if any, answered when it was asked for the topics.
func (c *Consumer) diagnose(missing []string, err error) string {
	switch {
	case err != nil:
		return c.remedied(err).Error()
	case len(missing) < len(c.cfg.Topics):
		return "" // there is something to join for
	default:
		return "no topic to read: there is none of kafka.topics: " + strings.Join(missing, ", ")
	}
}

// missingTopics are those of kafka.topics, names and expressions, that fit no
// topic. An error says that no broker told, or what it refuses.
func (c *Consumer) missingTopics(ctx context.Context) (missing []string, err error) {
	names := slices.DeleteFunc(slices.Clone(c.cfg.Topics), func(t string) bool { return strings.HasPrefix(t, "^") })
	if len(names) < len(c.cfg.Topics) {
		names = nil // all
	}
	there, err := c.adm.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("no broker tells of the topics: %w", err)
	}
	for _, t := range c.cfg.Topics {
		if strings.HasPrefix(t, "^") {
			fits, err := MatchTopic(t, c.o.Exclude)
			if err != nil { // New has checked it
				return nil, err
			}
			if !slices.ContainsFunc(there.Names(), fits) {
				missing = append(missing, t)
			}
			continue
		}
		switch d, ok := there[t]; {
		case !ok, errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			missing = append(missing, t)
		case d.Err != nil && !kerr.IsRetriable(d.Err):
			return nil, fmt.Errorf("topic %s: %w", t, d.Err)
		}
	}
	return missing, nil
}
