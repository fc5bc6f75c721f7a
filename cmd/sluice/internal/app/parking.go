package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
)

// Parks says whether the records of held targets are parked.
func Parks(cfg *config.Config) bool { return cfg.Indexer.Held == "park" }

// parking returns what the consumer needs to park records, or to bring back what
// was parked before `indexer.held: wait`; nil where neither can be. That needs
// the control index, which is asked for only where something else needs it too.
func (a *App) parking(kafka []kgo.Opt) (*consumer.Parking, error) {
	control := slices.ContainsFunc(a.mapper.Describe(), func(d document.Description) bool { return d.NeedControl })
	if a.cfg.DeadLetter.Topic == "" || !Parks(a.cfg) && !control {
		return nil, nil //nolint:nilnil // see above
	}
	log, err := deadletter.NewParkedLog(ParkedTopic(a.cfg.DeadLetter.Topic), deadletter.ParkedOptions{
		Kafka: kafka, DeadLetters: a.cfg.DeadLetter.Topic, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	a.parked = log
	return &consumer.Parking{
		Open:  Parks(a.cfg),
		Store: &parkedStore{Control: a.control, create: Parks(a.cfg)},
		Log:   log, TakeBack: a.indexer.TakeBack,
		Writer: func() consumer.LaneWriter { return a.indexer.NewWriter() },
		Rules:  func(topic string) string { return RulesFingerprint(a.mapper.Rules(topic), a.routing.places()) },
	}, nil
}

// RulesFingerprint identifies what decides which document of which index a
// topic's records are written to: the topic's rules, and what the routing table
// in force says of that ("" where there is none). Nothing else is in it: a change
// has all parked records replayed before anything else is read.
func RulesFingerprint(rules *document.Rules, places string) string {
	place := rules.Place()
	if place == "" {
		return "" // no two records meet in one document
	}
	sum := sha256.Sum256([]byte(place + "\n" + places))
	return hex.EncodeToString(sum[:8])
}

// parkedStore keeps the states of parked records in the control index.
type parkedStore struct {
	*elastic.Control
	create bool // the index, where it is missing
	opened atomic.Bool
}

// Get implements deadletter.ParkedStore. Without create, an index that is not
// there holds no state. One that may not be read for a while may hold some:
// records that passed by would overtake those that are parked.
func (s *parkedStore) Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error) {
	if s.create && !s.opened.Load() {
		if err := s.Open(ctx); err != nil {
			return 0, 0, err
		}
		s.opened.Store(true)
	}
	seqNo, primaryTerm, err = s.Control.Get(ctx, id, doc)
	var refused *elastic.Error
	if !s.create && errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		err = fmt.Errorf("%s: %w", id, elastic.ErrNotFound)
	}
	return seqNo, primaryTerm, err
}
