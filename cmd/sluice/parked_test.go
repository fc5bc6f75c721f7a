package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicehq/sluice/deadletter"
)

// park opens a lane for partition 1 as the owner with token 1 did, and parks what
// that owner and a zombie of token 0 had.
func (s *site) park(target string, values ...string) {
	s.Helper()
	ctx := s.Context()
	log, err := deadletter.NewParkedLog("dead.parked", deadletter.ParkedOptions{Kafka: s.kafka.ClientOptions(), DeadLetters: "dead", Log: zerolog.Nop()})
	if err != nil {
		s.Fatal(err)
	}
	defer log.Close()
	k, _, err := deadletter.LoadParked(ctx, s.servers.control, "g", "events", 1)
	if err != nil {
		s.Fatal(err)
	}
	id := s.topic().ID
	if err := k.Take(ctx, "a", id, 0, func() error { return nil }); err != nil {
		s.Fatal(err)
	}
	place, end, parkedID, err := log.Place(ctx, target, "events", 1)
	if err != nil {
		s.Fatal(err)
	}
	err = k.Change(ctx, func(s *deadletter.ParkedState) {
		s.Lanes[target] = deadletter.ParkedLane{Token: s.Token, Since: time.Now(), Reason: "cluster_block_exception", Partition: place, From: end, TopicID: parkedID}
	})
	if err != nil {
		s.Fatal(err)
	}
	var all []deadletter.Parked
	for i, value := range values {
		p := deadletter.Parked{
			Group: "g", Token: 1, TopicID: id, Topic: "events", Partition: 1, Offset: int64(i), Timestamp: time.UnixMilli(1700000000000),
			Key: fmt.Appendf(nil, "k%d", i%2), Target: target, Generation: 1,
		}
		if value != "" {
			p.Value = []byte(value)
		}
		other := p
		other.Group = "another"
		zombie := p
		zombie.Token, zombie.Value = 0, []byte(`{"n":"of a zombie"}`)
		all = append(all, p, other, zombie)
	}
	if _, err := log.Append(ctx, place, all); err != nil {
		s.Fatal(err)
	}
	// What was parked is committed.
	for range values {
		s.produce(1, "k", `{}`)
	}
	s.commit(1, int64(len(values)))
}

func (s *site) commit(partition int32, offset int64) {
	s.Helper()
	var at kadm.Offsets
	at.Add(kadm.Offset{Topic: "events", Partition: partition, At: offset, LeaderEpoch: -1})
	if _, err := s.fresh().CommitOffsets(s.Context(), "g", at); err != nil {
		s.Fatal(err)
	}
}

func (s *site) run(want int, args ...string) string {
	s.Helper()
	var out, errs bytes.Buffer
	if code := execute(s.Context(), append(args, "-c", s.config), &out, &errs); code != want {
		s.Fatalf("%v: exit %d\n%s%s", args, code, out.String(), errs.String())
	}
	return out.String()
}

func TestParkedVerbs(t *testing.T) {
	s := newSite(t, nil, "indexer: {held: park}")
	if out := s.run(0, "parked", "list"); !strings.Contains(out, "nothing is parked") {
		t.Errorf("%s", out)
	}
	if out := s.run(0, "validate"); !strings.Contains(out, "ok       topic dead.parked does not exist: the first parked record makes it, with 1 partitions") {
		t.Errorf("%s", out)
	}
	s.must("PUT", "/events", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	s.park("events", `{"n":1}`, `{"n":2}`, `{"n":"bad"}`, "", `{"n":5}`)
	s.must("POST", "/.sluice-control/_refresh", "")
	if out := s.run(0, "parked", "list"); !strings.Contains(out, "events  events/1  5 records since") || !strings.Contains(out, "cluster_block_exception") {
		t.Errorf("%s", out)
	}
	if out := s.run(0, "parked", "list", "--json"); !strings.Contains(out, `"records":5`) {
		t.Errorf("%s", out)
	}
	if out := s.run(0, "parked", "replay"); !strings.Contains(out, "4 records written") || !strings.Contains(out, "1 refused") {
		t.Errorf("%s", out)
	}
	if out := s.run(0, "validate"); !strings.Contains(out, "ok       topic dead.parked: 1 partitions") {
		t.Errorf("%s", out)
	}
	docs := map[string]string{}
	for d := range s.es.Docs("events") {
		docs[d.ID] = string(d.Source)
	}
	if len(docs) != 1 || docs["k0"] != `{"n":5}` {
		t.Errorf("%v", docs)
	}
	if out := s.run(0, "parked", "list"); !strings.Contains(out, "nothing is parked") {
		t.Errorf("%s", out)
	}
	if letters, err := s.kafka.ReadAll(context.Background(), "dead"); err != nil || len(letters) != 1 {
		t.Errorf("%d letters: %v", len(letters), err)
	}
}

// Parked records of a routed stream go where the table says, not to the index
// that the configuration names.
func TestParkedReplayRouted(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.must("PUT", "/legacy", `{"mappings":{"properties":{"n":{"type":"long"}}}}`)
	s.routes(0, "", "init", "--partitions", "1", "--replicas", "0")
	var index string
	for _, p := range s.table().Partitions {
		index = p.Index
	}
	s.park(index, `{"n":1,"org":{"id":"acme"}}`, `{"n":2,"org":{"id":"acme"}}`)
	s.must("POST", "/.sluice-control/_refresh", "")
	if out := s.run(0, "parked", "replay"); !strings.Contains(out, "2 records written") {
		t.Errorf("%s", out)
	}
	for name, want := range map[string]int{index: 2, "legacy": 0} {
		docs := 0
		for range s.es.Docs(name) {
			docs++
		}
		if docs != want {
			t.Errorf("%s has %d documents, want %d", name, docs, want)
		}
	}
}
