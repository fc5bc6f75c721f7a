package demo

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicehq/sluice/embedded"
)

// embeddedServers are the servers of a demo that needs none. A nil one is that
// of a demo on real servers.
type embeddedServers struct {
	kafka         *embedded.Kafka
	elasticsearch *embedded.Elasticsearch
}

// brokers is enough for a broker to fail while others go on.
const brokers = 3

func startServers(seed uint64) (*embeddedServers, error) {
	kafka, err := embedded.StartKafka(embedded.KafkaConfig{
		Brokers: brokers,
		Options: []kfake.Opt{kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})},
	})
	if err != nil {
		return nil, err
	}
	s := &embeddedServers{kafka: kafka, elasticsearch: embedded.NewElasticsearch(embedded.Config{Seed: seed})}
	if _, err := s.elasticsearch.Start("127.0.0.1:0"); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *embeddedServers) close() {
	if s != nil {
		s.elasticsearch.Close()
		s.kafka.Close()
	}
}

// disturb makes the servers misbehave, one fault after the other, until ctx
// ends: each once within duration, in a random order, and then again. It leaves
// the servers well behaved.
func (s *embeddedServers) disturb(ctx context.Context, seed uint64, duration time.Duration, say func(string)) {
	random := rand.New(rand.NewPCG(seed, 1))
	lasts := min(4*time.Second, duration/8)
	faults := []func(context.Context, time.Duration, func(string)){s.storm, s.outage, s.lostAnswers, s.hiccup}
	for sleep(ctx, lasts/2) == nil {
		for _, i := range random.Perm(len(faults)) {
			faults[i](ctx, lasts, say)
			say("")
			if sleep(ctx, lasts/2) != nil {
				return
			}
		}
	}
}

// storm has Elasticsearch refuse most requests and, in others, some items, for
// as long as lasts.
func (s *embeddedServers) storm(ctx context.Context, lasts time.Duration, say func(string)) {
	say("storm of 429s")
	whole := s.elasticsearch.Inject(embedded.Rule{API: "bulk", Share: 0.7, Fault: embedded.CircuitBreaker()})
	defer whole.Remove()
	items := s.elasticsearch.Inject(embedded.Rule{API: "bulk", Fault: embedded.Fault{Items: func(a embedded.Action) *embedded.ItemError {
		if a.Version%5 != 0 {
			return nil
		}
		return &embedded.ItemError{Status: 429, Type: "es_rejected_execution_exception", Reason: "rejected execution of primary operation"}
	}}})
	defer items.Remove()
	_ = sleep(ctx, lasts)
}

// outage has nobody answer at Elasticsearch's address.
func (s *embeddedServers) outage(ctx context.Context, lasts time.Duration, say func(string)) {
	say("elasticsearch is away")
	defer s.elasticsearch.Inject(embedded.Rule{Fault: embedded.Refused()}).Remove()
	_ = sleep(ctx, lasts)
}

// lostAnswers has Elasticsearch do what it is asked, and the answers get lost.
func (s *embeddedServers) lostAnswers(ctx context.Context, lasts time.Duration, say func(string)) {
	say("answers of elasticsearch get lost")
	defer s.elasticsearch.Inject(embedded.Rule{API: "bulk", Share: 0.5, Fault: embedded.Lost()}).Remove()
	_ = sleep(ctx, lasts)
}

// hiccup moves all partitions to other brokers, whose connections break for as
// long as lasts.
func (s *embeddedServers) hiccup(ctx context.Context, lasts time.Duration, say func(string)) {
	say("brokers fail over")
	s.kafka.ShufflePartitionLeaders()
	defer s.kafka.Hiccup(kmsg.Produce, kmsg.Fetch, kmsg.OffsetCommit)()
	_ = sleep(ctx, lasts)
}

// sleep waits for d, or until ctx ends, and says so.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
