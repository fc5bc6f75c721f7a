package indexer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sluicehq/sluice/memory"
)

// How much is read of an answer: memory must be bounded also where a server, or
// what poses as one, answers without end.
const (
	// plainItem is as much as an item takes that was written, or was turned away
	// with the reason that busy servers give.
	plainItem = 512
	// maxText is as much as is kept of a text in an answer that is not small. The
	// reason of a version conflict is shorter, whatever id it quotes.
	maxText = 4 << 10
	// largestItem holds an item with the three texts that it may have.
	largestItem = 3*maxText + plainItem
	// maxWire bounds what passes of an answer, most of which may be left out:
	// refusals quote documents, more than once.
	maxWire = 64 << 20
)

var errAnswerTooLarge = errors.New("the answer to a bulk request does not end where any server's would: is it Elasticsearch that elasticsearch.addresses names, and what is between?")

// smallAnswer is as much of an answer as any request may read. Beyond that one
// goes on at a time, until its answer has been dealt with.
func (x *Indexer) smallAnswer() int {
	return int(max(16<<10, min(1<<20, x.opt.Budget.Limit()/8/int64(max(x.cfg.Requests.Max, 1)))))
}

// mostAnswer is as much as is kept of the answer to a request of so many
// actions: an eighth of the budget, unless what servers usually say is more.
func (x *Indexer) mostAnswer(actions int) int {
	return max(largestItem+leastAnswer, plainItem*actions, min(largestItem*actions, int(x.opt.Budget.Limit()/8)))
}

// leastAnswer holds what is around the items, or a proxy's page.
const leastAnswer = 64 << 10

// readAnswer makes b.answer of what r gives. What it takes beyond a small answer
// is charged to the budget.
func (x *Indexer) readAnswer(ctx context.Context, b *batch, r io.Reader) (err error) {
	var large *memory.TooLargeError
	most := x.mostAnswer(len(b.sent))
	b.answer, err = memory.ReadAtMost(b.answer[:0], r, min(most, x.smallAnswer()), nil)
	if !errors.As(err, &large) {
		return unfinished(ctx, err)
	}
	select {
	case x.large <- struct{}{}:
		b.large = true
	case <-ctx.Done():
		return fmt.Errorf("while others with large answers were read: %w", context.Cause(ctx))
	}
	rest := brief{r: r, left: maxWire + 4*b.bytes}
	b.answer = b.answer[:rest.shorten(b.answer)]
	b.answer, err = memory.ReadAtMost(b.answer, &rest, most, func(more int64) {
		b.charged += more
		x.chunks.charge(more)
	})
	if errors.As(err, &large) {
		return errAnswerTooLarge
	}
	return unfinished(ctx, err)
}

// unfinished says of an answer that broke off because its time was up that it
// had begun.
func unfinished(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the answer began and did not end in time (elasticsearch.request_timeout): %w", context.Cause(ctx))
	}
	return err
}

// forget lets another large answer be read when nobody needs this one any more.
func (x *Indexer) forget(b *batch) {
	if b.large {
		x.chunks.give(b.charged)
		b.large, b.charged, b.answer = false, 0, nil
		<-x.large
	}
}

// brief reads JSON and leaves out what is beyond maxText bytes of its texts. It
// ends with errAnswerTooLarge if more than left bytes come.
type brief struct {
	r      io.Reader
	left   int64
	text   int  // bytes of the text that it is in, quote included; 0: it is in none
	escape int  // bytes that the escape still has; afterSlash: its letter comes
	drop   bool // the text is too long
}

const afterSlash = 5

func (b *brief) Read(p []byte) (int, error) {
	for {
		n, err := b.r.Read(p)
		if b.left -= int64(n); b.left < 0 {
			return 0, errAnswerTooLarge
		}
		if n = b.shorten(p[:n]); n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// shorten leaves out of p, in place, and returns how much is kept. No escape is
// cut.
func (b *brief) shorten(p []byte) int {
	kept := 0
	for _, c := range p {
		switch {
		case b.text == 0:
			if c == '"' {
				b.text, b.drop = 1, false
			}
		case b.escape == afterSlash:
			b.escape = 0
			if c == 'u' {
				b.escape = 4
			}
			b.text++
		case b.escape > 0:
			b.escape--
			b.text++
		case c == '"':
			b.text, b.drop = 0, false
		default:
			b.text++
			b.drop = b.text > maxText
			if c == '\\' {
				b.escape = afterSlash
			}
		}
		if !b.drop {
			p[kept] = c
			kept++
		}
	}
	return kept
}
