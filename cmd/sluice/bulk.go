package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/memory"
)

// bulkWriter writes batches of actions for verbs and waits for how each ended,
// by the same way that `sluice run` takes.
type bulkWriter struct {
	indexer *indexer.Indexer
	writer  *indexer.Writer
	timeout time.Duration // of one request
	// deadline is until when requests may start, in Unix nanoseconds.
	deadline atomic.Int64
}

// ending is how an action ended.
type ending struct {
	outcome  indexer.Outcome    // 0: rejected, or it is not known how
	rejected *indexer.Rejection // nil: it was not
}

// newBulkWriter returns a writer that must be closed.
func (s *servers) newBulkWriter() *bulkWriter {
	limit, _, _ := memory.Auto(s.cfg.Memory)
	b := &bulkWriter{timeout: s.cfg.Elasticsearch.RequestTimeout}
	cfg := s.cfg.Indexer
	cfg.FlushInterval = 10 * time.Millisecond // a batch comes whole: there is nothing to wait for
	cfg.Scaling = indexer.Scaling{}           // one indexer will do
	b.indexer = indexer.New(cfg, indexer.Options{
		Transport: s.elastic, Budget: memory.New(limit), RequestTimeout: b.timeout,
		CompressionLevel: s.cfg.Elasticsearch.CompressionLevel,
		Gate:             func() bool { return time.Now().UnixNano() < b.deadline.Load() },
		Reload:           func() { _ = s.elastic.ReloadCredentials() }, // what is wrong shows in trouble
		Log:              zerolog.Nop(),
	})
	b.writer = b.indexer.NewWriter()
	return b
}

func (b *bulkWriter) close() { b.indexer.Close() }

// write writes n actions and returns how they ended. No request starts after
// deadline; what is not decided then, or when ctx ends, has an ending without
// an outcome: it may have been written all the same.
func (b *bulkWriter) write(ctx context.Context, n int, action func(i int) indexer.Action, deadline time.Time) ([]ending, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	b.deadline.Store(deadline.UnixNano())
	src := &endings{all: make([]ending, n), left: n, done: make(chan struct{})}
	for i := 0; i < n; i++ {
		a := action(i)
		a.Source, a.Seq = src, uint64(i)
		if err := b.writer.Add(ctx, &a); err != nil {
			if ctx.Err() == nil {
				return nil, err
			}
			for ; i < n; i++ {
				src.set(ending{}, uint64(i)) // they were not taken
			}
			break
		}
	}
	b.writer.Publish()
	select {
	case <-src.done:
	case <-ctx.Done():
		b.indexer.Drain(src)
		timer := time.NewTimer(b.timeout)
		defer timer.Stop()
		select {
		case <-src.done:
		case <-timer.C:
		}
	}
	b.indexer.Drop(src)
	return src.take(), nil
}

// trouble says why nothing goes on; "": nothing is known.
func (b *bulkWriter) trouble() string {
	s := b.indexer.Status()
	switch {
	case s.HoldAll != "":
		return "Elasticsearch: " + s.HoldAll
	case len(s.Held) > 0:
		return fmt.Sprintf("%d targets are held, %s first: %s", len(s.Held), s.Held[0].Target, s.Held[0].Type)
	}
	return ""
}

// endings hears how the actions of one batch ended; Seq is their index.
type endings struct {
	mu   sync.Mutex
	all  []ending
	left int
	done chan struct{} // closed when all are known
}

func (e *endings) take() []ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	taken := e.all
	e.all = nil
	return taken
}

func (e *endings) set(end ending, seqs ...uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		return // it came too late
	}
	for _, seq := range seqs {
		e.all[seq] = end
	}
	if e.left -= len(seqs); e.left == 0 {
		close(e.done)
	}
}

// Settle implements indexer.Source.
func (e *endings) Settle(o indexer.Outcome, seqs []uint64) {
	if o == indexer.Abandoned {
		e.set(ending{}, seqs...)
		return
	}
	e.set(ending{outcome: o}, seqs...)
}

// Reject implements indexer.Source.
func (e *endings) Reject(seq uint64, r *indexer.Rejection) { e.set(ending{rejected: r}, seq) }

// Conflict implements indexer.Source: what is stored is newer, and stays.
func (e *endings) Conflict(seq uint64, _ int64, _ *indexer.Rejection) {
	e.set(ending{outcome: indexer.Stale}, seq)
}
