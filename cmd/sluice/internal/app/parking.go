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

// parking returns what the consumer needs to park records, and to bring back
// what was parked, whatever `indexer.held` is by now. Where nothing else needs the
// control index, it is looked at only if something can have been parked.
func (a *App) parking(kafka []kgo.Opt) (*consumer.Parking, error) {
	needed := slices.ContainsFunc(a.mapper.Describe(), func(d document.Description) bool { return d.NeedControl })
	letters := a.cfg.DeadLetter.Topic
	store := &parkedStore{Control: a.control, create: Parks(a.cfg)}
	p := &consumer.Parking{
		Open: Parks(a.cfg), Store: store,
		TakeBack: a.indexer.TakeBack,
		Writer:   func() consumer.LaneWriter { return a.indexer.NewWriter() },
		Rules:    func(topic string) string { return RulesFingerprint(a.mapper.Rules(topic), a.routing.places()) },
	}
	if letters == "" {
		// Only the states can tell. Who may not read them has no need to.
		store.optional = !needed
		return p, nil
	}
	log, err := deadletter.NewParkedLog(ParkedTopic(letters), deadletter.ParkedOptions{
		Kafka: kafka, DeadLetters: letters, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	a.parked, p.Log = log, log
	if !needed && !p.Open {
		p.Ever = log.Exists // it is made before anything is parked
		store.suspect = ParkedTopic(letters)
	}
	return p, nil
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
	// optional says that an index that may not be read holds no state.
	optional bool
	// suspect is the topic because of which the index is read; "": it is read in
	// any case.
	suspect string
	opened  atomic.Bool
}

func (s *parkedStore) open(ctx context.Context) error {
	if !s.create || s.opened.Load() {
		return nil
	}
	err := s.Open(ctx)
	s.opened.Store(err == nil)
	return err
}

// Get implements deadletter.ParkedStore.
func (s *parkedStore) Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error) {
	if err := s.open(ctx); err != nil {
		return 0, 0, err
	}
	return s.Control.Get(ctx, id, doc)
}

// GetMany implements deadletter.ParkedStates. Without create, an index that is
// not there holds no state. One that may not be read for a while may hold some:
// records that passed by would overtake those that are parked.
func (s *parkedStore) GetMany(ctx context.Context, ids []string) ([]deadletter.ParkedDoc, error) {
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	docs := make([]deadletter.ParkedDoc, len(ids))
	found, err := s.GetVersions(ctx, ids)
	if err != nil && !s.create {
		// An answer says of each document that it cannot be read, and not why.
		var refused *elastic.Error
		check := s.Check(ctx)
		if errors.As(check, &refused) && (refused.Status == http.StatusNotFound || s.optional && refused.Refused()) {
			return docs, nil
		}
		if s.suspect != "" {
			err = fmt.Errorf("%w\nThe topic %s exists, so records may be parked, and only the control index knows for whom: allow Sluice to read it, or, if nothing is parked (sluice parked list), delete that topic", err, s.suspect)
		}
	}
	if err != nil {
		return nil, err
	}
	for i, doc := range found {
		docs[i] = deadletter.ParkedDoc{Found: doc.Found, SeqNo: doc.SeqNo, PrimaryTerm: doc.PrimaryTerm, Source: doc.Source}
	}
	return docs, nil
}
