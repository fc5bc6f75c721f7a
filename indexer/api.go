package indexer

import (
	"github.com/sluicehq/sluice/indexer/bulk"
)

// Action is one operation on its way to Elasticsearch, and whom to tell how it
// ended.
type Action struct {
	bulk.Action
	// Ordered actions on one (target, id) are never in flight in two requests
	// at once and never overtake each other. It is false for ids that occur
	// once (position) and for none.
	Ordered bool
	// Tombstone says that the document stands for a deletion: once written, it
	// is reported as Deleted.
	Tombstone bool
	// NewPerHour is how many new indices of the kind of Target may be made
	// within an hour; 0: no bound. It is meant for time-named indices.
	NewPerHour int
	// Source and Seq name the record: the outcome goes to Source under Seq.
	Source Source
	Seq    uint64
	// Meta is kept beside the action and handed back with a rejection; only
	// the caller knows what it means.
	Meta []byte
}

// Outcome is how an action ended.
type Outcome uint8

// The outcomes that Source.Settle reports. Rejections and version conflicts
// are reported by methods of their own, and are settled by the source.
const (
	Indexed   Outcome = iota + 1
	Deleted           // also: was not there; also: an Action.Tombstone is written
	Stale             // a newer version, or this one, is stored already
	Ignored           // dropped by an ingest pipeline
	Abandoned         // given up without a verdict: its source drains; it will be delivered again
)

// String returns the outcome as metrics name it.
func (o Outcome) String() string {
	return [...]string{Indexed: "indexed", Deleted: "deleted", Stale: "stale", Ignored: "ignored", Abandoned: "abandoned"}[o]
}

// Source is the side of a source partition that hears how its actions ended:
// each action is reported exactly once, by one of the three methods. They are
// called from the indexer's goroutines, must not block, and must not call the
// indexer.
type Source interface {
	// Settle reports the outcome of the actions seqs. It does not keep seqs.
	Settle(o Outcome, seqs []uint64)
	// Reject reports an action that can never be written.
	Reject(seq uint64, r *Rejection)
	// Conflict reports a version conflict with a version above the one sent.
	// The source decides what it means (DESIGN 5.3).
	Conflict(seq uint64, stored int64, r *Rejection)
}

// Rejection says why an action was refused and carries what a dead letter
// needs. The callee owns it and everything in it.
type Rejection struct {
	Target   string
	Status   int    // HTTP status of the item, or of the request that held it alone
	Type     string // error type, such as document_parsing_exception
	Reason   string // may quote document content: shorten before showing, never log
	Attempts int
	Version  int64 // the version that was sent; 0: none
	Meta     []byte
	Body     []byte // the document as it was sent; nil for a delete
}

// HeldTarget is a target whose actions wait for Elasticsearch or an operator.
type HeldTarget struct {
	Target string
	Type   string // error type of the answer that held it; where credentials are at fault, with the remedy
	Since  int64  // Unix milliseconds
	Bytes  int64  // bytes that wait
}

// Status is what the indexer is doing.
type Status struct {
	// HoldAll is why no request is sent at all ("" while writing goes on), and
	// since when (Unix milliseconds).
	HoldAll      string
	HoldAllSince int64
	Held         []HeldTarget
	// BlockedOn counts actions that wait alone because their request is never
	// answered.
	BlockedOn     int
	InFlight      int // requests
	RequestsLimit int
	Throttled     bool // the server turns requests or items away at present
	Indexers      int  // active
	Bytes         int64
}
