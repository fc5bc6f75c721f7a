package consumer

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A topic that does not exist is named, whatever kept this member out of the
// group before, and is no trouble any more once it is made.
func TestMissingTopic(t *testing.T) {
	t.Parallel()
	soon := func(_ *Config, o *Options) {
		o.Kafka = append(o.Kafka, kgo.MetadataMaxAge(200*time.Millisecond), kgo.MetadataMinAge(50*time.Millisecond))
	}
	for name, topics := range map[string][]string{"name": {"absent"}, "expression": {"^absent"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.topics = topics
			var away atomic.Bool
			away.Store(true)
			m := w.start(atOnce, soon, func(_ *Config, o *Options) {
				o.Kafka = append(o.Kafka, kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
					if away.Load() {
						return nil, errors.New("no way there")
					}
					return new(net.Dialer).DialContext(ctx, network, address)
				}))
			})
			trouble := func(text string) func() bool {
				return func() bool { return strings.Contains(m.Status().Trouble, text) }
			}
			w.wait("a member without brokers to say so", trouble("no way there"))
			if since := m.Status().TroubleSince; since.IsZero() {
				t.Error("since when?")
			}
			away.Store(false)
			w.wait("the topic to be named", trouble("none of kafka.topics: "+topics[0]))
			if missing := m.Status().MissingTopics; !slices.Equal(missing, topics) {
				t.Errorf("missing %q", missing)
			}
			if err := w.kafka.CreateTopic("absent", 1, nil); err != nil {
				t.Fatal(err)
			}
			w.connect()
			w.produceTo("absent", 0, 3, func(int) (string, string) { return "k", "{}" })
			w.waitAllCommitted()
			w.wait("the trouble to be over", func() bool {
				s := m.Status()
				return s.Trouble == "" && s.TroubleSince.IsZero() && len(s.MissingTopics) == 0
			})
		})
	}
	t.Run("one of two", func(t *testing.T) {
		w := newWorld(t, 1)
		w.topics = []string{testTopic, "absent"}
		m := w.start(atOnce, soon)
		w.produce(0, 3)
		w.waitAllCommitted()
		w.wait("the topic to be named", func() bool { return slices.Equal(m.Status().MissingTopics, []string{"absent"}) })
		if s := m.Status(); s.Trouble != "" {
			t.Errorf("a member that works is in trouble: %s", s.Trouble)
		}
		if err := w.kafka.CreateTopic("absent", 1, nil); err != nil {
			t.Fatal(err)
		}
		w.wait("it to be seen", func() bool { return len(m.Status().MissingTopics) == 0 })
	})
}
