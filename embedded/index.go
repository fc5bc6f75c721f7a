package embedded

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// The blocks of an index, by the setting index.blocks.*.
const (
	blockWrite uint32 = 1 << iota
	blockReadOnly
	blockAllowDelete
	blockMetadata
	blockRead
)

// An index is one index and its shards.
type index struct {
	es      *Elasticsearch
	name    string
	quoted  []byte // name as a JSON string
	uuid    string
	created time.Time
	shards  []*shard
	stream  string // the data stream it backs

	term         atomic.Int64
	gcDeletes    atomic.Int64 // nanoseconds
	refreshEvery atomic.Int64 // nanoseconds; negative: never

	mapping   atomic.Pointer[mapping]
	mappingMu sync.Mutex // held while the mapping is replaced

	// settings are guarded by Elasticsearch.mu; flat names without "index.".
	settings map[string]string

	// gate counts the requests that are writing, so that a write block can wait
	// for them.
	gate struct {
		sync.Mutex
		blocks  uint32
		closed  bool
		deleted bool
		writers int
		idle    []chan struct{} // closed when writers falls to 0
	}
}

// enter admits a request to write, or says why not.
func (ix *index) enter() *apiError {
	ix.gate.Lock()
	defer ix.gate.Unlock()
	if ix.gate.deleted {
		return indexMissing(ix.name)
	}
	if ix.gate.closed {
		return newError(http.StatusBadRequest, "index_closed_exception", "closed", "index_uuid", ix.uuid, "index", ix.name)
	}
	if err := ix.blockedLocked(blockWrite | blockReadOnly | blockAllowDelete); err != nil {
		return err
	}
	ix.gate.writers++
	return nil
}

func (ix *index) leave() {
	ix.gate.Lock()
	defer ix.gate.Unlock()
	if ix.gate.writers--; ix.gate.writers == 0 {
		for _, c := range ix.gate.idle {
			close(c)
		}
		ix.gate.idle = nil
	}
}

// drained returns a channel that is closed once the writers of this moment have
// left, or nil if there are none.
func (ix *index) drained() <-chan struct{} {
	ix.gate.Lock()
	defer ix.gate.Unlock()
	if ix.gate.writers == 0 {
		return nil
	}
	c := make(chan struct{})
	ix.gate.idle = append(ix.gate.idle, c)
	return c
}

func (ix *index) blocked(kinds uint32) *apiError {
	ix.gate.Lock()
	defer ix.gate.Unlock()
	return ix.blockedLocked(kinds)
}

func (ix *index) blockedLocked(kinds uint32) *apiError {
	b := ix.gate.blocks & kinds
	if b == 0 {
		return nil
	}
	var text string
	status := http.StatusForbidden
	switch {
	case b&blockReadOnly != 0:
		text = "FORBIDDEN/5/index read-only (api)"
	case b&blockWrite != 0:
		text = "FORBIDDEN/8/index write (api)"
	case b&blockMetadata != 0:
		text = "FORBIDDEN/9/index metadata (api)"
	case b&blockRead != 0:
		text = "FORBIDDEN/7/index read (api)"
	default:
		status = http.StatusTooManyRequests
		text = "TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block"
		if ix.es.cfg.Flavour == FlavourElasticsearch {
			text += "; for more information, see https://www.elastic.co/guide/en/elasticsearch/reference/8.19/fix-watermark-errors.html"
		}
	}
	return newError(status, "cluster_block_exception", "index ["+ix.name+"] blocked by: ["+text+"];")
}

func (ix *index) setBlock(kind uint32, on bool) {
	ix.gate.Lock()
	defer ix.gate.Unlock()
	if on {
		ix.gate.blocks |= kind
	} else {
		ix.gate.blocks &^= kind
	}
}

func (ix *index) isClosed() bool {
	ix.gate.Lock()
	defer ix.gate.Unlock()
	return ix.gate.closed
}

// shard returns the shard of an id, or of a routing value where there is one.
func (ix *index) shard(id, routing []byte) *shard {
	if len(ix.shards) == 1 {
		return ix.shards[0]
	}
	if len(routing) > 0 {
		id = routing
	}
	return ix.shards[xxhash.Sum64(id)%uint64(len(ix.shards))]
}

// check reads a document against the mapping, and extends the mapping where it
// is dynamic.
func (ix *index) check(p *docParser, id, source []byte) *apiError {
	p.reset(ix.mapping.Load(), id, source)
	err := p.parse()
	if !p.needGrow {
		return ix.docError(err)
	}
	ix.mappingMu.Lock()
	defer ix.mappingMu.Unlock()
	p.reset(ix.mapping.Load().clone(), id, source)
	p.grow = true
	if err = p.parse(); err != nil {
		return ix.docError(err)
	}
	if p.added > 0 {
		if err := ix.blocked(blockMetadata); err != nil {
			return err
		}
		p.m.root.settle()
		ix.mapping.Store(p.m)
	}
	return nil
}

// docError names the error as the flavour does.
func (ix *index) docError(err *apiError) *apiError {
	if err != nil && ix.es.cfg.Flavour == FlavourOpenSearch && err.typ == "document_parsing_exception" {
		err.typ = "mapper_parsing_exception"
	}
	return err
}

func (p *docParser) reset(m *mapping, id, source []byte) {
	*p = docParser{lexer: lexer{b: source}, m: m, id: id, names: p.names[:0], path: p.path[:0]}
}

// count returns the documents of the index, searchable or not.
func (ix *index) count() int {
	n := 0
	for _, s := range ix.shards {
		s.mu.Lock()
		n += s.mu.count
		s.mu.Unlock()
	}
	return n
}
