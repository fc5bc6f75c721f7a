package consumer

import (
	"context"
	"time"
)

const (
	// nearStart is how close, in the records' own time, what is not committed
	// may come to the log's start before that is an alarm.
	nearStart = time.Hour
	// nearStartLag is below which age of the oldest record that is not handled
	// nobody asks.
	nearStartLag = time.Minute
)

// watchStarts looks whether records that are not committed are about to be
// deleted: they are among the oldest hour of a log that has lost records before.
func (c *Consumer) watchStarts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	for _, a := range c.holdings() {
		now := c.now()
		a.l.mu.Lock()
		start := a.start
		_, age := a.lag(now)
		a.l.mu.Unlock()
		near := false
		if start > 0 && age >= nearStartLag {
			// Nothing in the log is older than that record by an hour.
			first, err := c.adm.ListOffsetsAfterMilli(ctx, now.Add(-age-nearStart).UnixMilli(), a.l.topic)
			if err != nil {
				c.log.Debug().Err(err).Msg("how old the logs are cannot be read")
				return
			}
			at, ok := first.Lookup(a.l.topic, a.id)
			if !ok || at.Err != nil {
				continue
			}
			near = at.Offset >= 0 && at.Offset <= start
		}
		a.l.mu.Lock()
		before := a.nearStart
		a.nearStart = near
		a.l.mu.Unlock()
		if near && !before {
			c.log.Error().Str("topic", a.l.topic).Int32("partition", a.id).Dur("age_ms", age).
				Msg("records that are not committed are within an hour of the log's start: Kafka is about to delete them; give the topic a longer retention, or help the partition on")
		}
		if before && !near {
			c.log.Info().Str("topic", a.l.topic).Int32("partition", a.id).Msg("what is not committed is far from the log's start again")
		}
	}
}
