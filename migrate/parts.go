package migrate

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// What a verification has read is kept, so that a killed one goes on where it
// was and the next one reads what has changed. A side is cut into parts: ranges of
// the sequence numbers of a shard, each with the sum of the documents in it. No
// document can come into a range that lies below the shard's global checkpoint,
// since a change gives it a higher number; it can only leave. So a range that
// holds as many documents as were read holds the same ones, as they were, and a
// count is all that it costs. One that holds fewer is read again: which documents
// have left it nobody can say any more.

// groupCount is how many sums a part has: its documents are summed up by
// customer, and customers by hash, so that it stays small with any number of them.
const groupCount = 4096

const (
	partNumbers = 20_000 // Manager.partNumbers
	mostParts   = 32     // of a shard at first
	// mostOfShard is from how many parts of one shard on all is read anew: each
	// verification adds one.
	mostOfShard = 128
	// saveEvery is how much work a killed verification may lose.
	saveEvery = time.Second
)

// verifyParts is the control document `verify:<job>`: which parts there are.
type verifyParts struct {
	// Of is what the sums were made of; under other conditions they say nothing.
	Of    string `json:"of"`
	First int    `json:"first"` // number of the first; each has one of its own
	Parts []part `json:"parts"`
}

// part is a range of sequence numbers of a shard: above After, up to To.
type part struct {
	Index string `json:"index"`
	Shard int    `json:"shard"`
	After int64  `json:"after"`
	To    int64  `json:"to"`
}

// partSum is the control document `verify:<job>:<n>`: what was read of a part.
type partSum struct {
	part
	Of      string `json:"of"`
	Cursor  int64  `json:"cursor"` // the last sequence number that was read
	Found   int64  `json:"found"`  // documents up to it
	Docs    int64  `json:"docs"`   // those that count
	Foreign int64  `json:"foreign,omitempty"`
	// Sums are those of the groups that are not empty: number, count, a, b.
	Sums []byte `json:"sums,omitempty"`
	// Sample are documents of the new side whose contents are compared, by id:
	// those of the customers who are cut over next, and of all others those whose
	// ids have a hash up to Share. From is how far readers were cut over, and the
	// Ahead basis points above it are those who are next.
	Sample map[string]sampled `json:"sample,omitempty"`
	Share  uint64             `json:"share"`
	From   int                `json:"from"`
	Ahead  int                `json:"ahead"`

	groups      map[int]*sum
	number      int   // below 0: it is not kept
	seqNo, term int64 // of the document; term 0: there is none
	saved       time.Time
}

// sampled is what is to be known of a document to find it again.
type sampled struct {
	Customer string `json:"c"`
	Routing  string `json:"r,omitempty"`
}

func verifyID(job string) string      { return "verify:" + job }
func verifyPrefix(job string) string  { return verifyID(job) + ":" }
func partID(job string, n int) string { return fmt.Sprintf("%s%d", verifyPrefix(job), n) }

// restart forgets what was read. cut is how far readers are cut over.
func (p *partSum) restart(cut int) {
	*p = partSum{
		part: p.part, Of: p.Of, Cursor: p.After, Sample: map[string]sampled{}, Share: firstShare, From: cut, Ahead: partition.Percent,
		groups: map[int]*sum{}, number: p.number, seqNo: p.seqNo, term: p.term,
	}
}

// pack writes the groups as they are stored, in their order.
func (p *partSum) pack() {
	p.Sums = nil
	for g := range groupCount {
		if s := p.groups[g]; s != nil {
			p.Sums = binary.AppendUvarint(p.Sums, uint64(g))
			p.Sums = binary.AppendUvarint(p.Sums, s.count)
			p.Sums = binary.BigEndian.AppendUint64(p.Sums, s.a)
			p.Sums = binary.BigEndian.AppendUint64(p.Sums, s.b)
		}
	}
}

// unpack says whether what was stored is whole.
func (p *partSum) unpack() bool {
	p.groups = map[int]*sum{}
	for rest := p.Sums; len(rest) > 0; {
		g, n := binary.Uvarint(rest)
		if n <= 0 || g >= groupCount {
			return false
		}
		rest = rest[n:]
		count, n := binary.Uvarint(rest)
		if n <= 0 || len(rest) < n+16 {
			return false
		}
		rest = rest[n:]
		p.groups[int(g)] = &sum{count, binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])} //nolint:gosec // below groupCount
		rest = rest[16:]
	}
	return true
}

// group is what a document is summed up in. Large customers have several.
func (v *verification) group(customer, id string) int {
	h := xxhash.Sum64String(customer)
	if v.large[customer] {
		h += uint64(bucketOf(id)) //nolint:gosec // it is a byte
	}
	return int(h % groupCount) //nolint:gosec // below groupCount
}

// of is what the sums of a verification are made of.
func (v *verification) of() string {
	text, _ := json.Marshal([]any{"ahead", v.job.Round, v.job.Customer, v.check.Level == L2 && v.check.Full, v.check.Ignore, v.job.Large, v.job.Waived, v.job.Backfill.MaxSeqNo}) // they are texts and numbers
	return fmt.Sprintf("%016x", xxhash.Sum64(text))
}

// plan returns the parts of both sides: those that are known, and what has come
// since. Nil: shards cannot be addressed, or one customer is looked at.
func (v *verification) plan(ctx context.Context) ([]*partSum, error) {
	if v.check.Customer != "" {
		return nil, nil
	}
	stats := map[string]elastic.IndexStats{}
	for _, index := range append(v.job.indices(), v.job.Source) {
		s, err := v.Cluster.IndexStats(ctx, index)
		if err != nil {
			return nil, err
		}
		if s.MaxSeqNo == nil {
			return nil, nil
		}
		stats[index] = s
	}
	// All that is below these numbers is visible from now on.
	if err := v.refresh(ctx); err != nil {
		return nil, err
	}
	known := verifyParts{}
	seqNo, term, err := v.Control.Get(ctx, verifyID(v.job.Name), &known)
	absent := errors.Is(err, elastic.ErrNotFound)
	if err != nil && !absent {
		return nil, err
	}
	ends := map[part]int64{} // by index and shard
	perShard := map[part]int{}
	of := v.of()
	if known.Of != of {
		known = verifyParts{Of: of, First: known.First + len(known.Parts)}
	}
	for _, p := range known.Parts {
		shard := part{Index: p.Index, Shard: p.Shard}
		ends[shard] = p.To + 1
		if perShard[shard]++; perShard[shard] == mostOfShard {
			known = verifyParts{Of: of, First: known.First + len(known.Parts)}
			clear(ends)
			break
		}
	}
	before := len(known.Parts)
	var rest []*partSum // what is not settled yet: read, and not kept
	for _, index := range append(v.job.indices(), v.job.Source) {
		for shard, settled := range stats[index].Settled {
			from := ends[part{Index: index, Shard: shard}] - 1
			pieces := max(1, min(mostParts, (settled-from)/v.partNumbers))
			for n := range pieces {
				p := part{index, shard, from + (settled-from)*n/pieces, from + (settled-from)*(n+1)/pieces}
				if p.To > p.After {
					known.Parts = append(known.Parts, p)
				}
			}
			if last := max(from, settled); stats[index].MaxSeqNo[shard] > last {
				rest = append(rest, &partSum{part: part{index, shard, last, stats[index].MaxSeqNo[shard]}, number: -1})
			}
		}
	}
	switch {
	case absent:
		err = v.Control.Create(ctx, verifyID(v.job.Name), known)
	case len(known.Parts) > before || before == 0:
		err = v.Control.Update(ctx, verifyID(v.job.Name), known, seqNo, term)
	}
	if err != nil && !errors.Is(err, elastic.ErrConflict) {
		return nil, err
	}
	if err != nil {
		return nil, errOtherVerify
	}
	parts, err := v.loadParts(ctx, known)
	if err != nil {
		return nil, err
	}
	for _, p := range rest {
		p.restart(v.cut)
	}
	return append(parts, rest...), nil
}

var errOtherVerify = errors.New("another verification of this job is under way: let it end, or repeat when it has")

// firstShare is the share of the ids that are sampled, unless they are too many:
// 1 %.
const firstShare = ^uint64(0) / 100

// loadParts reads what was read of the parts before.
func (v *verification) loadParts(ctx context.Context, known verifyParts) ([]*partSum, error) {
	parts := make([]*partSum, len(known.Parts))
	for i, p := range known.Parts {
		s := &partSum{}
		var err error
		s.seqNo, s.term, err = v.Control.Get(ctx, partID(v.job.Name, known.First+i), s)
		if err != nil && !errors.Is(err, elastic.ErrNotFound) {
			return nil, err
		}
		whole := err == nil && s.part == p && s.Of == known.Of && s.unpack()
		s.part, s.Of, s.number = p, known.Of, known.First+i
		if !whole {
			s.restart(v.cut)
		}
		parts[i] = s
	}
	return parts, nil
}

// readParts reads what is not known of the parts, several at a time.
func (v *verification) readParts(ctx context.Context, parts []*partSum) error {
	scanners := map[string]*scanner{}
	renewed := 0
	for _, p := range parts {
		if scanners[p.Index] == nil {
			scanners[p.Index] = newScanner(v.Cluster, v.info.Flavour, p.Index, v.source(), v.query(nil))
		}
		if p.Index != v.job.Source {
			renewed++
		}
	}
	for _, p := range parts {
		v.expect(p.To-p.After, p.Cursor-p.After)
	}
	perPart := max(1, mostSampled/max(1, renewed))
	return v.beside(ctx, func(ctx context.Context, work chan<- func() error) error {
		for _, p := range parts {
			select {
			case work <- func() error { return v.readPart(ctx, scanners[p.Index], p, perPart) }:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
}

// readPart reads a part to its end, from where it was left or anew if documents
// have left it since.
func (v *verification) readPart(ctx context.Context, s *scanner, p *partSum, mostSampled int) error {
	if p.Cursor > p.After {
		var page elastic.Page
		err := v.read(ctx, func() (err error) {
			page, err = v.Cluster.SearchShard(ctx, p.Index, p.Shard, s.copies, map[string]any{
				"size": 0, "track_total_hits": true, "query": map[string]any{"bool": map[string]any{"filter": []any{
					v.query(nil), map[string]any{"range": map[string]any{"_seq_no": map[string]any{"gt": p.After, "lte": p.Cursor}}},
				}}},
			})
			return err
		})
		if err != nil {
			return err
		}
		if page.Total != p.Found {
			v.expect(0, p.After-p.Cursor)
			p.restart(v.cut)
		}
	}
	v.mu.Lock()
	v.report.Reused += p.Docs
	v.mu.Unlock()
	p.saved = time.Now()
	for p.Cursor < p.To {
		hits, next, err := v.page(ctx, s, p.Shard, p.Cursor, p.To)
		if err != nil {
			return err
		}
		for i := range hits {
			if err := v.sumUp(p, &hits[i], mostSampled); err != nil {
				return err
			}
		}
		p.Found, p.Cursor = p.Found+int64(len(hits)), next
		if p.number >= 0 && (next >= p.To || time.Since(p.saved) >= saveEvery) {
			if err := v.save(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// sumUp adds a document to its part.
func (v *verification) sumUp(p *partSum, hit *elastic.Hit, mostSampled int) error {
	old := p.Index == v.job.Source
	customer, foreign, ok, err := v.judge(old, p.Shard, hit)
	if err != nil {
		return err
	}
	if foreign {
		p.Foreign++
	}
	if !ok {
		return nil
	}
	content, err := v.content(hit)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", hit.Index, hit.ID, err)
	}
	g := v.group(customer, hit.ID)
	if p.groups[g] == nil {
		p.groups[g] = &sum{}
	}
	p.groups[g].add(hit.ID, hit.Version, content)
	p.Docs++
	v.mu.Lock()
	v.customers[customer] = true
	v.mu.Unlock()
	if one := (sampled{customer, hit.Routing}); !old && v.samples(p, hit.ID, one) {
		p.Sample[hit.ID] = one
		v.thin(p, mostSampled)
	}
	return nil
}

// samples says whether a document belongs to a part's sample.
func (v *verification) samples(p *partSum, id string, s sampled) bool {
	return xxhash.Sum64String(id) <= p.Share || v.turn(p, s.Customer) < p.Ahead
}

// turn is when a customer is cut over: 0 is next.
func (v *verification) turn(p *partSum, customer string) int {
	return (partition.Rank(customer, v.job.Name) - p.From + partition.Percent) % partition.Percent
}

// thin makes a sample smaller that has become too large. Half of it is for those
// who are cut over next, the other half for chance.
func (v *verification) thin(p *partSum, most int) {
	for len(p.Sample) > most {
		var turns []int
		for _, s := range p.Sample {
			if turn := v.turn(p, s.Customer); turn < p.Ahead {
				turns = append(turns, turn)
			}
		}
		if len(turns) > most/2 {
			slices.Sort(turns)
			p.Ahead = turns[most/2]
		} else {
			p.Share /= 2
		}
		maps.DeleteFunc(p.Sample, func(id string, s sampled) bool { return !v.samples(p, id, s) })
	}
}

// reaches is up to which basis point of customers, from cut on, a part has all
// documents in its sample.
func (p *partSum) reaches(cut int) int {
	if cut < p.From || cut > p.From+p.Ahead {
		return cut
	}
	return min(partition.Percent, p.From+p.Ahead)
}

// save stores what was read of a part.
func (v *verification) save(ctx context.Context, p *partSum) error {
	p.pack()
	p.saved = time.Now()
	id := partID(v.job.Name, p.number)
	var err error
	if p.term == 0 {
		if err = v.Control.Create(ctx, id, p); err == nil {
			var stored partSum
			p.seqNo, p.term, err = v.Control.Get(ctx, id, &stored)
		}
	} else {
		p.seqNo, p.term, err = v.Control.Replace(ctx, id, p, p.seqNo, p.term)
	}
	if errors.Is(err, elastic.ErrConflict) {
		return errOtherVerify
	}
	return err
}

// addTo adds the sums of a part to those of its side.
func (p *partSum) addTo(side map[int]sum) {
	for g, s := range p.groups {
		have := side[g]
		side[g] = sum{have.count + s.count, have.a + s.a, have.b + s.b}
	}
}
