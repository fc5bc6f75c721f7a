package indexer

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Wild timestamps can make thousands of time-named indices, each of which costs
// the cluster. So the first action for such a target waits until it is known
// that its index exists, or that this process has caused fewer than
// Action.NewPerHour new ones within the last hour.

const (
	newIndexWindow = time.Hour
	kindLooking    = "looking_for_the_index"
	kindNewIndex   = "new_indices_per_hour"
)

// admit holds a target that was not seen before until its index may be made.
func (x *Indexer) admit(t *target, perHour int) {
	t.hold = &hold{kind: kindLooking, since: time.Now(), gate: true}
	x.holds++
	x.wg.Go(func() {
		for {
			exists, known := x.exists(t.name)
			x.mu.Lock()
			h := t.hold
			if h == nil || !h.gate { // released by hand, or nothing waits any more
				x.mu.Unlock()
				return
			}
			now := time.Now()
			for len(x.newIndices) > 0 && now.Sub(x.newIndices[0]) >= newIndexWindow {
				x.newIndices = x.newIndices[1:]
			}
			wait := outagePing
			switch {
			case !known:
			case h.kind == kindNewIndex && t.queued == 0 && t.waitBytes == 0:
				// What waited was dropped: no index comes of it, nor a claim on
				// the hour.
			case exists || len(x.newIndices) < perHour:
				if !exists {
					x.newIndices = append(x.newIndices, now)
				}
				x.unhold(t)
				x.cond.Broadcast()
				x.mu.Unlock()
				return
			default:
				if h.kind != kindNewIndex {
					h.kind = kindNewIndex
					t.backing = true
					x.metrics.backingOff.Inc()
					x.log.Warn().Str("target", t.name).Int("per_hour", perHour).
						Msg("target held: as many new indices as documents.time_window.new_indices_per_hour allows were made within the last hour")
				}
				wait = newIndexWindow - now.Sub(x.newIndices[0])
			}
			x.mu.Unlock()
			select {
			case <-time.After(wait):
			case <-x.ctx.Done():
				return
			}
		}
	})
}

// exists asks whether there is an index, alias or data stream of that name. It
// is not known where the server does not answer, or refuses to say.
func (x *Indexer) exists(name string) (exists, known bool) {
	ctx, cancel := context.WithTimeout(x.ctx, x.opt.RequestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "/"+url.PathEscape(name), nil)
	if err != nil {
		return false, true // the bulk request will tell
	}
	resp, err := x.opt.Transport.Perform(req)
	if err != nil {
		return false, false
	}
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return true, true
	case http.StatusNotFound:
		return false, true
	case http.StatusForbidden:
		return false, true // counted as new: the cap holds without the right to look
	}
	return false, false
}
