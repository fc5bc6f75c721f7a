package consumer

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// pause is why a partition is not fetched; several may hold at once.
type pause uint8

const (
	pauseStarting pause = 1 << iota // its topic's generations are not known yet
	pauseFull                       // its queue is over the high mark
	pauseHalted                     // it waits for an operator
	pauseRetry                      // its last fetches failed
)

// fetchPauser is the part of the Kafka client that pauses fetching.
type fetchPauser interface {
	PauseFetchPartitions(map[string][]int32) map[string][]int32
	ResumeFetchPartitions(map[string][]int32)
}

var _ fetchPauser = (*kgo.Client)(nil)

// pauses keeps the client's set of paused partitions equal to what the reasons
// say. Pausing drops what the client has prefetched of a partition, so the
// marks lie apart.
type pauses struct {
	client fetchPauser

	mu      sync.Mutex
	reasons map[*assignment]pause
	all     map[string]bool // why everything is paused
}

func newPauses(client fetchPauser) *pauses {
	return &pauses{client: client, reasons: make(map[*assignment]pause), all: make(map[string]bool)}
}

// add takes a new assignment in, paused for why.
func (p *pauses) add(why pause, as ...*assignment) { p.change(why, 0, as) }

// set pauses assignments that are known; others are left alone.
func (p *pauses) set(why pause, as ...*assignment) { p.change(why, 0, p.known(as)) }

// clear takes a reason away; an assignment with none left is fetched again.
func (p *pauses) clear(why pause, as ...*assignment) { p.change(0, why, p.known(as)) }

func (p *pauses) known(as []*assignment) []*assignment {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := make([]*assignment, 0, len(as))
	for _, a := range as {
		if _, ok := p.reasons[a]; ok {
			known = append(known, a)
		}
	}
	return known
}

// remove forgets assignments. The client keeps a pause for a partition that is
// not assigned, so it is lifted.
func (p *pauses) remove(as ...*assignment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resume := make(map[string][]int32)
	for _, a := range as {
		if _, ok := p.reasons[a]; ok {
			delete(p.reasons, a)
			resume[a.l.topic] = append(resume[a.l.topic], a.id)
		}
	}
	if len(resume) > 0 && !mutantPause {
		p.client.ResumeFetchPartitions(resume)
	}
}

func (p *pauses) change(set, clear pause, as []*assignment) {
	if len(as) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pause, resume := make(map[string][]int32), make(map[string][]int32)
	for _, a := range as {
		before, known := p.reasons[a]
		after := (before | set) &^ clear
		p.reasons[a] = after
		switch {
		case len(p.all) > 0 && known: // paused, and stays so
		case after != 0 && (before == 0 || !known) || len(p.all) > 0:
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

// setAll pauses everything for why, or takes that reason away.
func (p *pauses) setAll(why string, on bool) {
	p.setAllBy(why, func(bool) bool { return on })
}

// setAllBy is setAll with a decision that is made under the lock: of two
// goroutines that look at what they both change, the later look wins.
func (p *pauses) setAllBy(why string, decide func(on bool) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	on := decide(p.all[why])
	if p.all[why] == on {
		return
	}
	before := len(p.all)
	if on {
		p.all[why] = true
	} else {
		delete(p.all, why)
	}
	if before > 0 == (len(p.all) > 0) {
		return
	}
	running := make(map[string][]int32)
	for a, reasons := range p.reasons {
		if reasons == 0 {
			running[a.l.topic] = append(running[a.l.topic], a.id)
		}
	}
	if len(running) == 0 {
		return
	}
	if on {
		p.client.PauseFetchPartitions(running)
	} else {
		p.client.ResumeFetchPartitions(running)
	}
}

// of is why an assignment is paused; all includes what pauses everything.
func (p *pauses) of(a *assignment) (own pause, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reasons[a], len(p.all) > 0
}

// count is the number of partitions that are not fetched.
func (p *pauses) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, reasons := range p.reasons {
		if reasons != 0 || len(p.all) > 0 {
			n++
		}
	}
	return n
}
