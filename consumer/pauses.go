package consumer

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// pause is why a partition is not read; several may hold at once.
type pause uint8

const (
	pauseStarting pause = 1 << iota // its topic's generations are not known yet
	pauseFull                       // its queue is over the high mark
	pauseHalted                     // it waits for an operator
	pauseRetry                      // its last fetches failed
	pauseParking                    // the state of its parked records is not its own yet
	pauseSuspect                    // its log is looked at: a batch was cut short
)

// fetchPauser is the part of the Kafka client that pauses fetching.
type fetchPauser interface {
	PauseFetchPartitions(map[string][]int32) map[string][]int32
	ResumeFetchPartitions(map[string][]int32)
}

var _ fetchPauser = (*kgo.Client)(nil)

// pauses is why partitions are not read. Most reasons are one partition's: it is
// paused in the client, whose set of paused ones this keeps equal. That drops
// what the client has prefetched of it, and a fetch of the others that is on its
// way then has to end before this one is asked for again. So memory that is full
// and queues that are full are no such reasons: the poll loop takes nothing
// then, and the client keeps what it has.
type pauses struct {
	client fetchPauser
	// resumed has an element after the poll loop may take again.
	resumed chan struct{}

	mu      sync.Mutex
	reasons map[*assignment]pause
	full    int             // assignments with pauseFull
	all     map[string]bool // why else nothing is taken
}

func newPauses(client fetchPauser) *pauses {
	return &pauses{client: client, resumed: make(chan struct{}, 1), reasons: make(map[*assignment]pause), all: make(map[string]bool)}
}

// add takes a new assignment in, paused for why.
func (p *pauses) add(why pause, as ...*assignment) { p.change(why, 0, as, true) }

// set pauses assignments that are known; others are left alone.
func (p *pauses) set(why pause, as ...*assignment) { p.change(why, 0, as, false) }

// clear takes a reason away; an assignment with none left is fetched again.
func (p *pauses) clear(why pause, as ...*assignment) { p.change(0, why, as, false) }

// remove forgets assignments. The client keeps a pause for a partition that is
// not assigned, so it is lifted.
func (p *pauses) remove(as ...*assignment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resume := make(map[string][]int32)
	for _, a := range as {
		if reasons, ok := p.reasons[a]; ok {
			delete(p.reasons, a)
			if mutantPause {
				continue
			}
			p.countFull(reasons, 0)
			resume[a.l.topic] = append(resume[a.l.topic], a.id)
		}
	}
	if len(resume) > 0 {
		p.client.ResumeFetchPartitions(resume)
	}
}

func (p *pauses) change(set, clear pause, as []*assignment, add bool) {
	if len(as) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pause, resume := make(map[string][]int32), make(map[string][]int32)
	for _, a := range as {
		before, known := p.reasons[a]
		if !known && !add {
			continue
		}
		after := (before | set) &^ clear
		p.reasons[a] = after
		p.countFull(before, after)
		switch before, after := before&^pauseFull, after&^pauseFull; {
		case after != 0 && before == 0:
			pause[a.l.topic] = append(pause[a.l.topic], a.id)
		case after == 0 && before != 0:
			resume[a.l.topic] = append(resume[a.l.topic], a.id)
		}
	}
	if len(pause) > 0 {
		p.client.PauseFetchPartitions(pause)
	}
	if len(resume) > 0 {
		p.client.ResumeFetchPartitions(resume)
	}
}

// setAll has nothing taken for why, or ends that reason.
func (p *pauses) setAll(why string, on bool) {
	p.setAllBy(why, func(bool) bool { return on })
}

// setAllBy is setAll with a decision that is made under the lock: of two
// goroutines that look at what they both change, the later look wins.
func (p *pauses) setAllBy(why string, decide func(on bool) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if decide(p.all[why]) {
		p.all[why] = true
		return
	}
	if !p.all[why] {
		return
	}
	delete(p.all, why)
	p.wake()
}

// countFull notes that an assignment's reasons change; mu must be held.
func (p *pauses) countFull(before, after pause) {
	switch {
	case before&pauseFull == 0 && after&pauseFull != 0:
		p.full++
	case before&pauseFull != 0 && after&pauseFull == 0:
		p.full--
		p.wake()
	}
}

// wake tells the poll loop if it may take again; mu must be held.
func (p *pauses) wake() {
	if p.nothing() {
		return
	}
	select {
	case p.resumed <- struct{}{}:
	default:
	}
}

// everything says whether nothing may be taken.
func (p *pauses) everything() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nothing()
}

// nothing is everything with mu held.
func (p *pauses) nothing() bool { return p.full > 0 || len(p.all) > 0 }

// of is why an assignment is paused; all includes what pauses everything.
func (p *pauses) of(a *assignment) (own pause, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reasons[a], p.nothing()
}

// count is the number of partitions that are not read.
func (p *pauses) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, reasons := range p.reasons {
		if reasons != 0 || p.nothing() {
			n++
		}
	}
	return n
}
