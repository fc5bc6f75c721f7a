package consumer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// deniedFor is how long a refused fetch counts: while a right is missing the
// next one is refused sooner, and of one that brings nothing nobody is told.
const deniedFor = 15 * time.Second

// MissesTLS says that a broker's answer looks like that of one that speaks TLS
// to a client that does not.
func MissesTLS(cfg Config, err error) bool {
	if err == nil || cfg.TLS.Enabled {
		return false
	}
	var closed *kgo.ErrFirstReadEOF
	return errors.As(err, &closed) || strings.Contains(err.Error(), "tls alert record") // the client knows an alert, by no type
}

// SetTLS is what helps where MissesTLS holds.
const SetTLS = "if this port of the brokers speaks TLS, set kafka.tls.enabled: true"

// remedied adds to a broker's refusal for want of a right which one that is, and
// to what looks like TLS that it must be spoken; any other error stays as it is.
func (c *Consumer) remedied(err error) error {
	switch {
	case MissesTLS(c.cfg, err):
		return fmt.Errorf("%w: %s", err, SetTLS)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("%w: allow READ on each of kafka.topics (%s) to the user of kafka.sasl or of the client certificate", err, strings.Join(c.cfg.Topics, ", "))
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("%w: allow READ on the group %s (kafka.group_id) to the user of kafka.sasl or of the client certificate", err, c.cfg.GroupID)
	}
	return err
}

// denied is remedied for a refusal for want of a right, else "".
func (c *Consumer) denied(err error) string {
	if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.GroupAuthorizationFailed) {
		return c.remedied(err).Error()
	}
	return ""
}

// deny notes for all partitions held of a topic that their fetches want a right:
// where a whole topic is refused, the client names no partition.
func (c *Consumer) deny(topic string, err error) {
	for _, a := range c.holdings() {
		if a.l.topic != topic {
			continue
		}
		a.l.mu.Lock()
		first := a.denied == ""
		a.denied, a.deniedAt = c.denied(err), c.now()
		a.l.mu.Unlock()
		if first {
			c.log.Warn().Str("topic", topic).Int32("partition", a.id).Err(c.remedied(err)).Msg("fetch failed, trying again")
		}
	}
}
