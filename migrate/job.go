package migrate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/partition"
)

// State is where a job stands.
type State string

// The states, in their order. There is none without a way out: Cancel leads
// out of every one before CUTOVER, Rollback out of CUTOVER.
const (
	Planned     State = "PLANNED"     // the name is taken, its indices are being made
	Created     State = "CREATED"     // the new indices stand, nothing is written to them
	Dual        State = "DUAL"        // live records go to both sides once the fence has passed
	Backfilling State = "BACKFILLING" // what the fence left behind is copied
	Draining    State = "DRAINING"    // no copy is under way any more; stalled writers are shut out
	Sweeping    State = "SWEEPING"    // deletes are real again; tombstones are removed
	Synced      State = "SYNCED"      // both sides hold the same
	Cutover     State = "CUTOVER"     // some customers are read from the new side
	Completed   State = "COMPLETED"   // the legacy index is written no more
	Dropped     State = "DROPPED"     // and is gone
	Cancelling  State = "CANCELLING"  // on the way back; repeat cancel to go on
	Detaching   State = "DETACHING"   // on the way back to CREATED; repeat detach to go on
	Cancelled   State = "CANCELLED"
)

// Job is the control document `job:<name>`.
type Job struct {
	Schema int    `json:"schema"`
	Name   string `json:"name"`
	Stream string `json:"stream"`
	State  State  `json:"state"`
	Source string `json:"source"` // the legacy index
	Prefix string `json:"prefix"` // of the new names
	Plan   string `json:"plan"`   // hash of the plan
	// Customer says where documents name their customer, see ParseCustomers.
	Customer string `json:"customer"`
	// From is where the copy comes from; "": the legacy index.
	From From `json:"from,omitempty"`
	// Round counts how often the new side was made: detach makes it anew under
	// other names, since a late write may soil the old ones.
	Round   int      `json:"round"`
	Targets []Target `json:"targets"`
	// Large are customers whose digests are kept in buckets.
	Large []string `json:"large,omitempty"`
	// Restore are settings of the targets that differ while documents are copied.
	Restore map[string]string `json:"restore,omitempty"`

	Fence Fence `json:"fence"` // the last one that was asked for
	// Origin is where dual writing began: the first offsets that went to both
	// sides, at the latest.
	Origin Offsets `json:"origin,omitempty"`

	Backfill Backfill `json:"backfill"`
	Mapping  string   `json:"mapping"`          // hash of the source's mapping that the targets have
	Unlike   []string `json:"unlike,omitempty"` // where theirs was another one when it was given to them
	// ApplyMapping lets a change of the source's mapping be made on the targets
	// too; else the job stops.
	ApplyMapping bool     `json:"apply_mapping,omitempty"`
	Paused       string   `json:"paused,omitempty"` // why; "": it is not
	Throttle     Limits   `json:"throttle"`
	Waived       []string `json:"waived,omitempty"` // failed documents that may be missing; * is all

	Verified *Report `json:"verified,omitempty"`
	// EverCut says that a reader may have been sent to the new side.
	EverCut  bool       `json:"ever_cut,omitempty"`
	CutAt    *time.Time `json:"cut_at,omitempty"`  // of the last change of a read flag
	FullAt   *time.Time `json:"full_at,omitempty"` // since when all customers are read from the new side
	Done     *Done      `json:"done,omitempty"`
	Created  time.Time  `json:"created"`
	Modified time.Time  `json:"modified"`
}

// Target is one new index.
type Target struct {
	Partition string `json:"partition"` // its name in the routing table
	Index     string `json:"index"`
	Alias     string `json:"alias"` // for reads; it hides tombstones
	Shards    int    `json:"shards"`
	Replicas  int    `json:"replicas"`
}

// Offsets are positions by topic and source partition.
type Offsets map[string]map[int32]int64

// Fence is the proof that every source partition is handled under an epoch or a
// later one.
type Fence struct {
	Epoch  int64 `json:"epoch"`
	Passed bool  `json:"passed"`
	// Offsets are the committed positions when it passed.
	Offsets Offsets `json:"offsets,omitempty"`
	// Laggards are the source partitions that have not passed, as TOPIC/PARTITION
	// and why.
	Laggards []string `json:"laggards,omitempty"`
}

// Backfill says what is copied.
type Backfill struct {
	// MaxSeqNo bounds each shard's documents; what has a higher number was
	// written after the fence. Nil: not begun, or a point in time is read.
	MaxSeqNo []int64 `json:"max_seq_no,omitempty"`
	// PIT is the point in time that is read where shards cannot be addressed.
	PIT string `json:"pit,omitempty"`
	// Log is what is read of the topics in place of the legacy index; nil: the
	// index is. Began is when.
	Log   []LogPart `json:"log,omitempty"`
	Began time.Time `json:"began,omitzero"`
	// First and Count are the numbers of the items. A new first one leaves all
	// earlier items behind.
	First  int   `json:"first"`
	Count  int   `json:"count"`
	Total  int64 `json:"total"`  // documents of the source when it began, or offsets of the log, for the percentage
	Copied int64 `json:"copied"` // seen, once it has ended
}

// Done is what was there when the job was completed.
type Done struct {
	At          time.Time `json:"at"`
	SourceDocs  int64     `json:"source_docs"`
	TargetDocs  int64     `json:"target_docs"`
	Searches    int64     `json:"searches"`     // that the source had answered
	KeptUntil   time.Time `json:"kept_until"`   // the source is not dropped before
	LastVerify  string    `json:"last_verify"`  // id of the report
	SourceBytes int64     `json:"source_bytes"` // of its primaries
}

// Item is the control document `item:<job>:<n>`: a part of the copy.
type Item struct {
	Number int `json:"n"`
	// Shard and the sequence numbers above After up to To; or a part of the log
	// and offsets; or a slice of a point in time.
	Shard int   `json:"shard"`
	After int64 `json:"after"`
	To    int64 `json:"to"`
	// Cursor is the last sequence number or offset that is copied; of a point in time the
	// sort values of the last document.
	Cursor int64  `json:"cursor"`
	Search string `json:"search_after,omitempty"`

	Seen       int64 `json:"seen"`
	Written    int64 `json:"written"`
	Superseded int64 `json:"superseded"` // something newer was there already
	Failed     int64 `json:"failed"`
	Ignored    int64 `json:"ignored,omitempty"` // records that the new side gets nothing of
	Done       bool  `json:"done"`
}

// balanced says whether every document that was seen ended in one way.
func (i *Item) balanced() bool { return i.Seen == i.Written+i.Superseded+i.Failed+i.Ignored }

// reached is how much of an item is done, in the unit of Total.
func (b *Backfill) reached(i *Item) int64 {
	if b.Log != nil {
		return i.Cursor - i.After
	}
	return i.Seen
}

// Failure is the control document `failed:<job>:<hash>`: a document or record
// that could not be copied. Its bytes stay in the source.
type Failure struct {
	ID      string `json:"id"`
	Routing string `json:"routing,omitempty"`
	Target  string `json:"target"` // "" for a document without a customer
	Version int64  `json:"version"`
	Status  int    `json:"status"`
	Type    string `json:"type"`
	Shard   int    `json:"shard"`
	SeqNo   int64  `json:"seq_no"` // or the record's offset
}

// Event is the control document `event:<job>:<seq>`: one line of the audit log.
type Event struct {
	Seq    int       `json:"seq"`
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`
	Verb   string    `json:"verb"`
	Args   string    `json:"args,omitempty"`
	Reason string    `json:"reason,omitempty"`
	From   State     `json:"from"`
	To     State     `json:"to"`
	Epoch  int64     `json:"epoch"`
	// Result is done, refused: why, or failed: why.
	Result string `json:"result"`
}

// checkName returns what is wrong with a job's name ("": nothing). It becomes a
// part of index names.
func checkName(name string) string {
	if name == "" || len(name) > 40 {
		return "a job's name has 1 to 40 characters"
	}
	if name[0] == '-' || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) {
		return fmt.Sprintf("%q: a job's name has lower-case letters, digits and -", name)
	}
	return ""
}

// indices returns the names of the new indices.
func (j *Job) indices() []string {
	names := make([]string, len(j.Targets))
	for i, t := range j.Targets {
		names[i] = t.Index
	}
	return names
}

// suffix sets the names of the round's indices apart from all others.
func (j *Job) suffix() string {
	if j.Round == 1 {
		return j.Name
	}
	return fmt.Sprintf("%s-r%d", j.Name, j.Round)
}

// lay gives the job the targets of its plan in its round.
func (j *Job) lay(p *partition.Plan) {
	j.Targets = nil
	for _, planned := range p.Partitions {
		j.Targets = append(j.Targets, Target{
			Partition: planned.Name, Index: p.Index(planned, j.suffix()), Alias: p.Alias(planned), Shards: planned.Primaries, Replicas: p.Replicas,
		})
	}
}

// again makes the job one that has nothing yet, in its next round; its targets
// are to be laid anew.
func (j *Job) again() {
	j.Round++
	j.Targets = nil
	j.Fence, j.Origin = Fence{}, nil
	j.Backfill = Backfill{First: j.Backfill.First + j.Backfill.Count}
	j.Verified, j.EverCut, j.CutAt, j.FullAt = nil, false, nil, nil
	j.Waived, j.Paused = nil, ""
}

// Over says that a job has come to its end and holds nothing any more.
func (j *Job) Over() bool { return slices.Contains([]State{Cancelled, Dropped, Completed}, j.State) }
