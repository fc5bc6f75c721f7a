package consumer

import (
	"maps"
	"testing"
)

// pausedSet is a client's set of paused partitions of one topic.
type pausedSet map[int32]bool

func (s pausedSet) PauseFetchPartitions(paused map[string][]int32) map[string][]int32 {
	for _, p := range paused[testTopic] {
		s[p] = true
	}
	return nil
}

func (s pausedSet) ResumeFetchPartitions(resumed map[string][]int32) {
	for _, p := range resumed[testTopic] {
		delete(s, p)
	}
}

// A partition that was paused when it was revoked, for whatever reason, is not
// paused when it comes back, and holds no other one up.
func TestRevokedIsPausedNoMore(t *testing.T) {
	client := pausedSet{}
	p := newPauses(client)
	a := &assignment{l: &ledger{topic: testTopic}, id: 3}
	b := &assignment{l: &ledger{topic: testTopic}, id: 4}
	p.add(pauseStarting, a, b)
	p.set(pauseHalted|pauseRetry, a, b)
	p.set(pauseFull, a)
	if own, all := p.of(b); own == 0 || !all {
		t.Fatalf("the other is paused for %b, all are: %v", own, all)
	}
	p.remove(a)
	if want := (pausedSet{4: true}); !maps.Equal(client, want) {
		t.Errorf("the client has %v paused, want %v", client, want)
	}
	if _, all := p.of(b); all {
		t.Error("a queue that is gone is full")
	}
}
