package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// knockEvery is how often a member without heartbeats asks why.
const knockEvery = 2 * time.Second

// trouble is why this member has no part in the group. It is said once per
// cause, since the client tries again for as long as it lasts.
type trouble struct {
	mu    sync.Mutex
	text  string
	since time.Time
}

// is notes a cause, "" for none.
func (t *trouble) is(text string, now time.Time, log zerolog.Logger) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text == t.text {
		return
	}
	if text == "" {
		log.Info().Str("trouble", t.text).Time("since", t.since).Msg("Kafka is reached, and this member is part of the group")
	} else {
		log.Warn().Str("trouble", text).Msg("this member has no part in the group; trying again")
	}
	if t.text == "" || text == "" {
		t.since = now
	}
	if t.text = text; text == "" {
		t.since = time.Time{}
	}
}

func (t *trouble) now() (text string, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text, t.since
}

// knock asks the brokers for a sign of life while the group gives none: the
// client itself tries on in silence, whatever the cause. It ends with ctx.
func (c *Consumer) knock(ctx context.Context) {
	tick := time.NewTicker(knockEvery)
	defer tick.Stop()
	for {
		if c.Healthy() {
			c.trouble.is("", c.now(), c.log)
		} else {
			ping, cancel := context.WithTimeout(ctx, 2*knockEvery)
			err := c.cl.Ping(ping)
			cancel()
			if err != nil && ctx.Err() == nil {
				c.trouble.is(err.Error(), c.now(), c.log)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
