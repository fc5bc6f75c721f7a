package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer/bulk"
)

// ending is what became of one write.
type ending uint8

const (
	unsettled  ending = iota
	written           // stored, or deleted
	superseded        // something as new or newer is there
	failed            // refused for what it is
)

// outcome is how one write ended.
type outcome struct {
	ending ending
	status int
	kind   string // of a failure
	// stored is the version that superseded it; 0: not known.
	stored int64
}

// errFenced is a write through an alias that is gone: another runner has the
// lease, or the job was drained, cancelled or detached.
var errFenced = errors.New("the alias of this runner's lease is gone")

// verdict says how an item of a bulk answer ended; unsettled: it is sent again.
// The error says that nothing more may be sent.
func verdict(it bulk.Item) (outcome, error) {
	kind := it.Type.String()
	o := outcome{status: it.Status, kind: kind}
	switch {
	case !it.Failed && it.Status < 300, !it.Failed && it.Status == http.StatusNotFound: // a delete of what is gone
		o.ending = written
	case kind == "version_conflict_engine_exception":
		o.ending = superseded
		if stored, _, ok := bulk.ConflictVersions(it.Reason); ok {
			o.stored = stored
		}
	case kind == "index_not_found_exception":
		return o, errFenced
	case it.Status == http.StatusBadRequest && kind != "index_closed_exception", it.Status == http.StatusRequestEntityTooLarge:
		o.ending = failed
	}
	return o, nil
}

// mostTries is how often a document may be refused for a reason that is not
// known to pass, while its neighbours are taken.
const mostTries = 10

// sender sends writes until each has ended. The first unanswered, refused or
// throttled try is not the last: only a document's own fault ends as failed.
type sender struct {
	client *elastic.Client
	// bounds limits a request's time; it returns an error where none may be sent
	// any more. Nil: no limit of its own.
	bounds func() (time.Duration, error)
	// answered is told of each answer and of the requests and items that the
	// server had no room for; it may be nil.
	answered func(took time.Duration, rejected int)
	query    url.Values
}

// parameters of requests that copy: they pass no ingest pipeline, and go
// through an alias.
func copying() url.Values {
	return url.Values{"filter_path": {bulk.FilterPath}, "require_alias": {"true"}, "pipeline": {"_none"}}
}

func deleting() url.Values { return url.Values{"filter_path": {bulk.FilterPath}} }

// send carries out actions, in requests of at most so many bytes.
func (s *sender) send(ctx context.Context, actions []bulk.Action, size int) ([]outcome, error) {
	ends := make([]outcome, len(actions))
	tries := make([]int, len(actions))
	left := make([]int, len(actions))
	for i := range left {
		left[i] = i
	}
	for wait := 100 * time.Millisecond; len(left) > 0; {
		var again []int
		trouble := false
		for len(left) > 0 {
			var body []byte
			n := 0
			for ; n < len(left) && (n == 0 || len(body)+bulk.Bound(&actions[left[n]]) <= size); n++ {
				body = bulk.Append(body, &actions[left[n]])
			}
			batch := left[:n]
			left = left[n:]
			if err := s.request(ctx, body, batch, ends); err != nil {
				if errors.Is(err, errFenced) || ctx.Err() != nil {
					return nil, err
				}
				var refused *elastic.Error
				if errors.As(err, &refused) && !passes(refused.Status) {
					switch {
					case len(batch) > 1: // find the one that it is about
						again, size = append(again, batch...), max(1, len(body)/2)
						continue
					case refused.Status == http.StatusBadRequest || refused.Status == http.StatusRequestEntityTooLarge:
						ends[batch[0]] = outcome{ending: failed, status: refused.Status, kind: refused.Type}
						continue
					}
					return nil, err
				}
				trouble = true
			}
			for _, i := range batch {
				if ends[i].ending != unsettled {
					continue
				}
				trouble = true
				if ends[i].status == http.StatusInternalServerError {
					if tries[i]++; tries[i] == mostTries {
						ends[i].ending = failed
						continue
					}
				}
				again = append(again, i)
			}
		}
		if left = again; len(left) > 0 && trouble {
			if err := sleep(ctx, wait/2+rand.N(wait/2)); err != nil {
				return nil, err
			}
			wait = min(2*wait, 5*time.Second)
		}
	}
	return ends, nil
}

// passes says whether a refusal of a whole request passes by itself.
func passes(status int) bool {
	return status == http.StatusTooManyRequests || status >= 500 || status == http.StatusUnauthorized || status == http.StatusForbidden
}

// request sends one request and fills in the ends of its actions.
func (s *sender) request(ctx context.Context, body []byte, batch []int, ends []outcome) error {
	if s.bounds != nil {
		limit, err := s.bounds()
		if err != nil {
			return err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	began := time.Now()
	answer, err := s.client.Bulk(ctx, body, s.query)
	rejected := 0
	if err == nil {
		var stop error
		for _, i := range batch {
			ends[i] = outcome{ending: written}
		}
		_, err = bulk.Decode(answer, len(batch), func(i int, it bulk.Item) {
			end, fenced := verdict(it)
			ends[batch[i]] = end
			stop = errors.Join(stop, fenced)
			if it.Status == http.StatusTooManyRequests {
				rejected++
			}
		})
		if err != nil {
			for _, i := range batch {
				ends[i] = outcome{}
			}
		}
		if stop != nil {
			err = fmt.Errorf("writing: %w", errFenced)
		}
	}
	var refused *elastic.Error
	if errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
		rejected++
	}
	if s.answered != nil {
		s.answered(time.Since(began), rejected)
	}
	return err
}
