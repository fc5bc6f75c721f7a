package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// Level is how much is compared; each compares all that the one before does.
type Level string

// The levels.
const (
	L0 Level = "L0" // how many documents each customer has
	L1 Level = "L1" // a digest of the ids and versions of each
	L2 Level = "L2" // the contents of a sample too, or of all
)

// Check says what is verified.
type Check struct {
	Level    Level
	Full     bool   // of L2: the contents of all documents
	Customer string // only this one; "": all
	Repair   bool   // mend what differs
	// Authority is which side is right where the content differs, or where
	// something is on the new side only: old or new. "": old before a customer's
	// cut-over, new after it; then nothing is deleted.
	Authority string
	Ignore    []string // fields at the top of documents that may differ
	// Accept are classes of differences, and foreign, that somebody has looked at
	// and that block nothing: see Acceptable. They are accepted in this report only.
	Accept []string
}

// Classes of differences.
const (
	missingOnNew   = "missing_on_new"
	extraOnNew     = "extra_on_new"
	newOlder       = "new_older"
	oldOlder       = "old_older"
	contentDiffers = "content_differs"
	duplicateInOld = "duplicate_id_in_old"
)

func classes() []string {
	return []string{missingOnNew, extraOnNew, newOlder, oldOlder, contentDiffers, duplicateInOld}
}

// foreignWrites stands beside the classes: documents that somebody else wrote.
const foreignWrites = "foreign"

// Acceptable are the classes that may be accepted: what was written last is on the
// new side, which readers get, and only the legacy index, which goes, misses it.
// Documents that somebody else wrote count as such even where both sides have them
// alike.
func Acceptable() []string { return []string{oldOlder, extraOnNew, foreignWrites} }

// Report is what a verification found.
type Report struct {
	ID      string        `json:"id"`
	Level   Level         `json:"level"`
	Full    bool          `json:"full,omitempty"`
	Only    string        `json:"only,omitempty"` // the one customer that was looked at
	At      time.Time     `json:"at"`
	Took    time.Duration `json:"took"`
	Epoch   int64         `json:"epoch"`
	Offsets Offsets       `json:"offsets,omitempty"` // log ends when it began

	Customers int   `json:"customers"`
	Old       int64 `json:"old"`     // documents that were looked at
	New       int64 `json:"new"`     // on each side
	Reused    int64 `json:"reused"`  // of both, those that an earlier verification has read and nothing has changed
	Sampled   int64 `json:"sampled"` // whose contents were compared
	// Ahead is up to which percent of the customers a cut-over may grow so that the
	// contents of all documents of those who are cut over then were compared.
	Ahead   float64 `json:"ahead,omitempty"`
	Settled int64   `json:"settled"` // that differed at first sight only
	// Unsettled are documents that changed each time they were looked at.
	Unsettled int64               `json:"unsettled"`
	Classes   map[string]int64    `json:"classes,omitempty"`
	Samples   map[string][]string `json:"samples,omitempty"` // CUSTOMER/ID
	// Foreign are documents of the legacy index that somebody else wrote since the
	// fence.
	Foreign  int64    `json:"foreign"`
	Bad      []string `json:"bad,omitempty"` // customers with differences
	BadMore  bool     `json:"bad_more,omitempty"`
	Repaired int64    `json:"repaired"`
	Tried    bool     `json:"tried,omitempty"` // to repair: what differs still differed after that
	// Accepted counts by class what block nothing, since By has said Why.
	Accepted   map[string]int64 `json:"accepted,omitempty"`
	AcceptedBy string           `json:"accepted_by,omitempty"`
	Why        string           `json:"why,omitempty"`
	Stale      string           `json:"stale,omitempty"` // why it holds no longer
}

// Clean says that nothing differs.
func (r *Report) Clean() bool {
	return len(r.Classes) == 0 && r.Unsettled == 0 && r.Foreign == 0 && len(r.Bad) == 0
}

// Differences counts the documents that differ by class, those of which there
// are none too.
func (r *Report) Differences() map[string]int64 {
	counts := map[string]int64{"unsettled": r.Unsettled, foreignWrites: r.Foreign}
	for _, class := range classes() {
		counts[class] = r.Classes[class]
	}
	return counts
}

const (
	samplesPerClass = 10
	mostBad         = 100
	// mostDifferences is how many documents are looked at one by one: with more,
	// the sides do not belong together.
	mostDifferences = 500_000
	mostSampled     = 20_000
	settleTries     = 5
)

// Verify compares both sides and keeps the report in the job.
func (m *Manager) Verify(ctx context.Context, r Request, check Check, told func(string)) (*Report, Result, error) {
	var report *Report
	result, err := m.do(ctx, r, "verify", func(ctx context.Context, j *Job) (*step, error) {
		s := &step{}
		if !s.needs(j, Synced, Cutover) {
			return s, nil
		}
		limit := max(time.Minute, j.Throttle.Lag)
		lag, err := m.Group.Behind(ctx, limit)
		if err != nil {
			return nil, err
		}
		if lag.Over {
			s.wait("wait until the consumers have caught up", "the live lag is %s: differences would not settle", lag.over(limit))
		}
		if check.Repair && check.Level == L0 {
			s.refuse("repeat with --level L1 or L2", "L0 knows no documents that could be mended")
		}
		if len(check.Accept) > 0 {
			s.checkAccept(r, check)
		}
		s.does("compare %s with %d indices, level %s", j.Source, len(j.Targets), check.Level)
		s.act = func(ctx context.Context) error {
			v := &verification{Manager: m, job: j, check: check, told: told, request: r}
			var err error
			report, err = v.run(ctx)
			if err != nil {
				return err
			}
			if err := m.store.keep(ctx, j.Name, report); err != nil {
				return err
			}
			if check.Customer != "" {
				return nil // it says nothing of the others
			}
			// It may have been cut over or rolled back meanwhile: that changes nothing
			// of what was compared.
			_, err = m.store.change(ctx, j.Name, func(j *Job) error {
				if j.State != Synced && j.State != Cutover {
					return &MovedError{j.Name, j.State, []State{Synced, Cutover}}
				}
				j.Verified = report
				return nil
			})
			return err
		}
		return s, nil
	})
	return report, result, err
}

// checkAccept refuses to accept what only repairs can make good, or what nobody
// answers for.
func (s *step) checkAccept(r Request, check Check) {
	for _, class := range check.Accept {
		if !slices.Contains(Acceptable(), class) {
			s.refuse("sluice migrate verify --repair --job "+r.Job, "%s cannot be accepted, only %s: the new side would lose what the old one has", class, strings.Join(Acceptable(), ", "))
		}
	}
	if r.Reason == "" {
		s.refuse("repeat with --reason", "accepting differences needs a reason")
	}
	if check.Level == L0 {
		s.refuse("repeat with --level L1 or L2", "L0 knows no versions, which say what is newer")
	}
}

// verification is one run.
type verification struct {
	*Manager
	job     *Job
	check   Check
	request Request
	told    func(string)
	by      Customers
	field   string // a keyword field with the customer; "": there is none
	table   *partition.Table
	router  *partition.Router
	report  *Report
	info    elastic.Info
	large   map[string]bool
	cut     int    // Read.Percent when it began
	dirty   []mark // customers that have a dirty mark as it was at the beginning

	sample map[string]place // by id
	gate   *gate            // that every request for documents passes
	seen   *gauges

	telling sync.Mutex // one at a time

	mu          sync.Mutex
	customers   map[string]bool // that were met
	total       int64           // sequence numbers that count
	known, done int64           // of these, read by an earlier verification, and by this one
	docs        int64           // that were read
	doing       string          // Verifying.Doing
	trouble     string          // the last error that is tried again
}

type mark struct {
	customer    string
	seqNo, term int64
}

// place is a document of the new side, or where one should be.
type place struct{ customer, index, id, routing string }

func (v *verification) tell(format string, args ...any) {
	if v.told != nil {
		v.telling.Lock()
		defer v.telling.Unlock()
		v.told(fmt.Sprintf(format, args...))
	}
}

func (v *verification) compare(ctx context.Context) (*Report, error) {
	table, err := v.Manager.table(ctx, v.job)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	v.table, v.router = table.Table, partition.NewRouter(table.Table, partition.CacheOptions{})
	v.report = &Report{
		ID: began.UTC().Format("20060102T150405.000"), Level: v.check.Level, Full: v.check.Full, Only: v.check.Customer,
		At: began.UTC().Truncate(time.Millisecond), Epoch: table.Epoch, Classes: map[string]int64{}, Samples: map[string][]string{},
	}
	v.cut = table.Read.Percent % partition.Percent
	v.large = map[string]bool{}
	for _, customer := range v.job.Large {
		v.large[customer] = true
	}
	if v.info, err = v.Cluster.Info(ctx); err != nil {
		return nil, err
	}
	if v.by, err = ParseCustomers(v.job.Customer); err != nil {
		return nil, err
	}
	definitions, err := v.Cluster.Definitions(ctx, v.job.Source)
	if err != nil {
		return nil, err
	}
	v.field = v.by.Countable(definitions[v.job.Source].Mappings)
	if v.report.Offsets, err = v.Group.Ends(ctx); err != nil {
		return nil, err
	}
	if err := v.readMarks(ctx); err != nil {
		return nil, err
	}
	if err := v.refresh(ctx); err != nil {
		return nil, err
	}
	suspects, err := v.suspects(ctx)
	if err != nil {
		return nil, err
	}
	bad, err := v.settle(ctx, suspects)
	if err != nil {
		return nil, err
	}
	if v.report.Tried = v.check.Repair; v.check.Repair {
		v.does(fmt.Sprintf("repairs %d documents", len(bad)))
		if bad, err = v.repair(ctx, bad); err != nil {
			return nil, err
		}
	}
	for _, d := range bad {
		v.count(d)
	}
	if v.report.Foreign > 0 && slices.Contains(v.check.Accept, foreignWrites) {
		v.accept(foreignWrites, v.report.Foreign)
		v.report.Foreign = 0
	}
	slices.Sort(v.report.Bad)
	v.report.Bad = slices.Compact(v.report.Bad)
	if len(v.report.Bad) > mostBad {
		v.report.Bad, v.report.BadMore = v.report.Bad[:mostBad], true
	}
	if v.report.Repaired > 0 {
		v.report.Stale = fmt.Sprintf("%d documents were repaired after it", v.report.Repaired)
	}
	v.report.Took = time.Since(began).Round(time.Millisecond)
	if v.check.Repair || len(v.check.Accept) > 0 {
		return v.report, v.clearMarks(ctx)
	}
	return v.report, nil
}

func (v *verification) accept(class string, n int64) {
	if v.report.Accepted == nil {
		v.report.Accepted = map[string]int64{}
		v.report.AcceptedBy, v.report.Why = v.request.Actor, v.request.Reason
	}
	v.report.Accepted[class] += n
}

// accepts says whether a difference was accepted. A document that belongs into
// another index partition is none of that: nothing would ever take it away.
func (v *verification) accepts(d *difference) bool {
	return slices.Contains(v.check.Accept, d.class) && !d.sight.misplaced
}

func (v *verification) refresh(ctx context.Context) error {
	for _, index := range append(v.job.indices(), v.job.Source) {
		if err := v.Cluster.Refresh(ctx, index); err != nil {
			return err
		}
	}
	return nil
}

// query restricts a scan to what counts.
func (v *verification) query(customers []string) any {
	filter := []any{alive()}
	if v.check.Customer != "" {
		customers = []string{v.check.Customer}
	}
	const most = 1000 // of terms in one query, well under the server's limit
	if v.field != "" && len(customers) > 0 && len(customers) <= most {
		filter = append(filter, map[string]any{"terms": map[string]any{v.field: customers}})
	}
	return map[string]any{"bool": map[string]any{"filter": filter}}
}

// suspects returns the documents of both sides that may differ.
func (v *verification) suspects(ctx context.Context) (map[place]*difference, error) {
	if v.check.Level == L0 && v.field != "" {
		return v.suspectCounts(ctx)
	}
	old, renewed, err := v.digests(ctx)
	if err != nil {
		return nil, err
	}
	differ := map[int]bool{}
	for g := range groupCount {
		if old[g] != renewed[g] && (v.check.Level != L0 || old[g].count != renewed[g].count) {
			differ[g] = true
		}
	}
	customers, err := v.named(ctx, differ)
	if err != nil {
		return nil, err
	}
	found, err := v.collect(ctx, customers, differ)
	if err != nil {
		return nil, err
	}
	if v.check.Level == L2 && !v.check.Full {
		for _, p := range v.sample {
			if found[p] == nil {
				found[p] = &difference{place: p, content: true}
			}
		}
		v.report.Sampled = int64(len(v.sample))
	}
	return found, nil
}

// suspectCounts compares the numbers of documents by customer, and names the
// documents of those that differ.
func (v *verification) suspectCounts(ctx context.Context) (map[place]*difference, error) {
	old, err := v.counts(ctx, v.job.Source)
	if err != nil {
		return nil, err
	}
	renewed := map[string]int64{}
	for _, t := range v.job.Targets {
		counts, err := v.counts(ctx, t.Index)
		if err != nil {
			return nil, err
		}
		for customer, n := range counts {
			renewed[customer] += n
		}
	}
	var customers []string
	differ := map[int]bool{}
	for customer := range maps.Keys(old) {
		v.report.Old += old[customer]
		if old[customer] != renewed[customer] {
			customers = append(customers, customer)
		}
	}
	for customer, n := range renewed {
		v.report.New += n
		if _, known := old[customer]; !known {
			customers = append(customers, customer)
		}
	}
	for _, customer := range customers {
		for _, g := range v.groups(customer) {
			differ[g] = true
		}
	}
	v.report.Customers = len(old)
	return v.collect(ctx, customers, differ)
}

// groups are those that a customer's documents are summed up in.
func (v *verification) groups(customer string) []int {
	if !v.large[customer] {
		return []int{v.group(customer, "")}
	}
	first := v.group(customer, "") - bucketOf("")
	groups := make([]int, bucketCount)
	for bucket := range groups {
		groups[bucket] = ((first+bucket)%groupCount + groupCount) % groupCount
	}
	return groups
}

// named returns the customers whose documents are in some groups, where the
// server can tell, and counts all customers.
func (v *verification) named(ctx context.Context, groups map[int]bool) (customers []string, err error) {
	known := v.customers
	if v.field != "" && v.check.Customer == "" {
		known = map[string]bool{}
		for _, index := range append(v.job.indices(), v.job.Source) {
			counts, err := v.counts(ctx, index)
			if err != nil {
				return nil, err
			}
			for customer := range counts {
				known[customer] = true
			}
		}
	} else if before := v.job.Verified; before != nil && v.report.Reused > 0 {
		v.report.Customers = before.Customers // those of what was not read again are not known
	}
	v.report.Customers = max(v.report.Customers, len(known))
	if v.field == "" {
		return nil, nil
	}
	for customer := range known {
		if slices.ContainsFunc(v.groups(customer), func(g int) bool { return groups[g] }) {
			customers = append(customers, customer)
		}
	}
	return customers, nil
}

func (v *verification) counts(ctx context.Context, index string) (map[string]int64, error) {
	all := map[string]int64{}
	for after := ""; ; {
		var counts map[string]int64
		var next string
		err := v.read(ctx, func() (err error) {
			counts, next, err = v.Cluster.Terms(ctx, index, v.field, after, v.query(nil))
			return err
		})
		if err != nil {
			return nil, err
		}
		maps.Copy(all, counts)
		if after = next; next == "" {
			return all, nil
		}
	}
}

// content returns the hash of a document's content where all are compared.
func (v *verification) content(hit *elastic.Hit) (uint64, error) {
	if v.check.Level != L2 || !v.check.Full {
		return 0, nil
	}
	return contentHash(hit.Source, v.check.Ignore)
}

// digests sums both sides up by customer.
func (v *verification) digests(ctx context.Context) (old, renewed map[int]sum, err error) {
	old, renewed = map[int]sum{}, map[int]sum{}
	v.sample, v.customers = map[string]place{}, map[string]bool{}
	parts, err := v.plan(ctx)
	if err != nil {
		return nil, nil, err
	}
	if parts != nil {
		err = v.readParts(ctx, parts)
	} else {
		parts, err = v.readWhole(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	ahead := partition.Percent
	for _, p := range parts {
		if p.Index == v.job.Source {
			p.addTo(old)
			v.report.Old += p.Docs
			v.report.Foreign += p.Foreign
			continue
		}
		p.addTo(renewed)
		v.report.New += p.Docs
		ahead = min(ahead, p.reaches(v.cut))
		for id, s := range p.Sample {
			v.sample[id] = place{s.Customer, p.Index, id, s.Routing}
		}
	}
	if v.check.Level == L2 && !v.check.Full && v.check.Customer == "" {
		v.report.Ahead = float64(ahead) / 100
	}
	return old, renewed, nil
}

// readWhole reads both sides where parts cannot be kept: of one customer, all of
// whose contents are compared, or where shards cannot be addressed.
func (v *verification) readWhole(ctx context.Context) ([]*partSum, error) {
	var parts []*partSum
	for _, old := range []bool{true, false} {
		sides := map[part]*partSum{}
		err := v.scan(ctx, old, nil, func(shard int, hit *elastic.Hit) error {
			of := part{Index: hit.Index, Shard: shard}
			p := sides[of]
			if p == nil {
				p = &partSum{part: of, number: -1}
				p.restart(v.cut)
				if v.check.Customer != "" {
					p.Share = ^uint64(0)
				}
				sides[of] = p
				parts = append(parts, p)
			}
			return v.sumUp(p, hit, mostSampled)
		})
		if err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// judge says whose a document is, and whether it counts; foreign: whether
// somebody else has written it since the fence.
func (v *verification) judge(old bool, shard int, hit *elastic.Hit) (customer string, foreign, ok bool, err error) {
	foreign = old && v.foreign(shard, hit)
	customer, ok = v.by.Of(hit.ID, hit.Routing, hit.Source)
	if !ok && old && !slices.Contains(v.job.Waived, "*") && !slices.Contains(v.job.Waived, hit.ID) {
		err = fmt.Errorf("document %q of %s names no customer", hit.ID, hit.Index)
	}
	return customer, foreign, ok && (v.check.Customer == "" || customer == v.check.Customer), err
}

// scan visits every live document of one side, one at a time.
func (v *verification) scan(ctx context.Context, old bool, customers []string, visit func(shard int, hit *elastic.Hit) error) error {
	indices := v.job.indices()
	if old {
		indices = []string{v.job.Source}
	}
	var one sync.Mutex
	visited := func(shard int, hits []elastic.Hit) error {
		one.Lock()
		defer one.Unlock()
		for i := range hits {
			if err := visit(shard, &hits[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return v.beside(ctx, func(ctx context.Context, work chan<- func() error) error {
		return v.parts(ctx, indices, v.source(), v.query(customers), visited, work)
	})
}

// source is what is read of the documents.
func (v *verification) source() any {
	if v.check.Level == L2 && v.check.Full {
		return true
	}
	return v.by.source()
}

// beside does what hand hands out, several at a time. The first error ends it.
func (v *verification) beside(ctx context.Context, hand func(ctx context.Context, work chan<- func() error) error) error {
	work := make(chan func() error)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	for range readers {
		workers.Go(func() {
			for job := range work {
				if err := job(); err != nil {
					stop(err)
				}
			}
		})
	}
	err := hand(ctx, work)
	close(work)
	workers.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// parts hands out the shards of indices to be read.
func (v *verification) parts(ctx context.Context, indices []string, source, query any, visited func(int, []elastic.Hit) error, work chan<- func() error) error {
	all := make([]elastic.IndexStats, len(indices))
	for i, index := range indices {
		var err error
		if all[i], err = v.Cluster.IndexStats(ctx, index); err != nil {
			return err
		}
		for _, end := range all[i].MaxSeqNo {
			v.expect(end+1, 0)
		}
	}
	for i, index := range indices {
		stats := all[i]
		s := newScanner(v.Cluster, v.info.Flavour, index, source, query)
		if stats.MaxSeqNo == nil {
			if err := v.readPIT(ctx, s, visited); err != nil {
				return err
			}
			continue
		}
		for shard, end := range stats.MaxSeqNo {
			read := func() error {
				for cursor := int64(-1); cursor < end; {
					hits, next, err := v.page(ctx, s, shard, cursor, end)
					if err != nil {
						return err
					}
					if err := visited(shard, hits); err != nil {
						return err
					}
					cursor = next
				}
				return nil
			}
			select {
			case work <- read:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

func (v *verification) readPIT(ctx context.Context, s *scanner, visited func(int, []elastic.Hit) error) error {
	pit, err := v.Cluster.OpenPIT(ctx, s.index, pitKeepAlive, v.info.Flavour)
	if err != nil {
		return err
	}
	for after := ""; ; {
		var hits []elastic.Hit
		var next string
		err := v.read(ctx, func() (err error) {
			hits, next, err = s.slice(ctx, pit, 0, 1, after)
			return err
		})
		if err != nil || next == "" {
			return err
		}
		if err := visited(0, hits); err != nil {
			return err
		}
		after = next
	}
}

// foreign says whether somebody else has written a document since the fence.
func (v *verification) foreign(shard int, hit *elastic.Hit) bool {
	bounds := v.job.Backfill.MaxSeqNo
	return v.Versions.Ours != nil && shard < len(bounds) && hit.SeqNo > bounds[shard] && !v.Versions.Ours(hit.Version)
}

// sight is a document as it was seen once on each side.
type sight struct {
	old, renewed int64 // versions; 0 also for none
	hasOld       bool
	hasNew       bool
	oldContent   uint64
	newContent   uint64
	// The versions of tombstones, which count as no document; 0: there is none.
	oldDead, newDead int64
	misplaced        bool // the legacy index has it, of a customer of another index
}

// difference is a document that may differ.
type difference struct {
	place
	content bool // the contents are compared too
	copies  int  // how often it is in the legacy index
	sight   sight
	class   string
}

// collect names the documents of groups that differ; customers are all that are
// in them, nil where that is not known.
func (v *verification) collect(ctx context.Context, customers []string, differ map[int]bool) (map[place]*difference, error) {
	found := map[place]*difference{}
	if len(differ) == 0 {
		return found, nil
	}
	v.tell("documents of %d groups of customers differ at first sight", len(differ))
	v.does("finds the documents that differ")
	type seen struct {
		version int64
		content uint64
	}
	old := map[place]seen{}
	twice := map[string]int{} // of the legacy index, by id
	add := func(p place) (*difference, error) {
		if found[p] == nil {
			if len(found) >= mostDifferences {
				return nil, fmt.Errorf("more than %d documents differ: the sides do not belong together", mostDifferences)
			}
			found[p] = &difference{place: p, content: v.check.Full}
		}
		return found[p], nil
	}
	differing := func(old bool, shard int, hit *elastic.Hit) (customer string, content uint64, ok bool, err error) {
		if customer, _, ok, err = v.judge(old, shard, hit); err != nil || !ok || !differ[v.group(customer, hit.ID)] {
			return "", 0, false, err
		}
		content, err = v.content(hit)
		return customer, content, true, err
	}
	err := v.scan(ctx, true, customers, func(shard int, hit *elastic.Hit) error {
		customer, content, ok, err := differing(true, shard, hit)
		if err != nil || !ok {
			return err
		}
		old[place{customer, v.router.Route([]byte(customer)).New, hit.ID, hit.Routing}] = seen{hit.Version, content}
		twice[hit.ID]++
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = v.scan(ctx, false, customers, func(shard int, hit *elastic.Hit) error {
		customer, content, ok, err := differing(false, shard, hit)
		if err != nil || !ok {
			return err
		}
		p := place{customer, hit.Index, hit.ID, hit.Routing}
		if have, ok := old[p]; ok && have == (seen{hit.Version, content}) {
			delete(old, p)
			return nil
		}
		_, err = add(p)
		return err
	})
	if err != nil {
		return nil, err
	}
	for p := range old {
		d, err := add(p)
		if err != nil {
			return nil, err
		}
		d.copies = twice[p.id]
	}
	return found, nil
}

// look reads documents on both sides in real time.
func (v *verification) look(ctx context.Context, differences []*difference) ([]sight, error) {
	sights := make([]sight, 0, len(differences))
	size := 100
	for len(differences) > 0 {
		var page []*difference
		var docs []elastic.Doc
		err := v.read(ctx, func() (err error) {
			page = differences[:min(size, len(differences))]
			ids := make([]elastic.DocID, 0, 2*len(page))
			for _, d := range page {
				ids = append(ids, elastic.DocID{Index: v.job.Source, ID: d.id, Routing: d.routing}, elastic.DocID{Index: d.index, ID: d.id, Routing: d.routing})
			}
			if docs, err = v.Cluster.GetMany(ctx, ids); err != nil {
				size = fewer(len(page))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		differences = differences[len(page):]
		bytes := 64 * len(page)
		for _, d := range docs {
			bytes += len(d.Source)
		}
		size = fitting(size, 500, len(page), bytes)
		for i, d := range page {
			s, err := v.see(d, docs[2*i], docs[2*i+1])
			if err != nil {
				return nil, err
			}
			sights = append(sights, s)
		}
	}
	return sights, nil
}

// see compares one document. What the legacy index holds belongs into the
// partition of the customer that it names now: anywhere else it should not be.
func (v *verification) see(d *difference, old, renewed elastic.Doc) (s sight, err error) {
	if s.hasOld = old.Found && !dead(old.Source); s.hasOld {
		customer, ok := v.by.Of(d.id, old.Routing, old.Source)
		s.hasOld = ok && v.router.Route([]byte(customer)).New == d.index
		s.misplaced = !s.hasOld
	} else if old.Found {
		s.oldDead = old.Version
	}
	if s.hasOld {
		s.old = old.Version
	}
	if s.hasNew = renewed.Found && !dead(renewed.Source); s.hasNew {
		s.renewed = renewed.Version
	} else if renewed.Found {
		s.newDead = renewed.Version
	}
	if d.content && s.hasOld && s.hasNew {
		if s.oldContent, err = contentHash(old.Source, v.check.Ignore); err == nil {
			s.newContent, err = contentHash(renewed.Source, v.check.Ignore)
		}
	}
	return s, err
}

// dead says whether a document stands for a deletion.
func dead(source []byte) bool { return tombstoneSource(source) }

// equal does not look at tombstones: one side may have taken its away.
func (s sight) equal() bool {
	return s.hasOld == s.hasNew && s.old == s.renewed && s.oldContent == s.newContent
}

func (s sight) class() string {
	switch {
	case !s.hasNew && s.newDead > s.old: // only the new side has taken its deletion
		return oldOlder
	case !s.hasNew:
		return missingOnNew
	case !s.hasOld && s.oldDead > s.renewed:
		return newOlder
	case !s.hasOld:
		return extraOnNew
	case s.renewed < s.old:
		return newOlder
	case s.renewed > s.old:
		return oldOlder
	}
	return contentDiffers
}

// settle tells what differs from what was only on its way: a difference counts
// if it is the same after the consumers have passed the log end of its first
// sight. What changes each time is left as unsettled.
func (v *verification) settle(ctx context.Context, suspects map[place]*difference) ([]*difference, error) {
	open := slices.Collect(maps.Values(suspects))
	slices.SortFunc(open, func(a, b *difference) int { return cmp.Or(compare(a.customer, b.customer), compare(a.id, b.id)) })
	if len(open) == 0 {
		return nil, nil
	}
	v.does(fmt.Sprintf("compares %d documents one by one", len(open)))
	sights, err := v.look(ctx, open)
	if err != nil {
		return nil, err
	}
	var bad []*difference
	for try := 0; ; try++ {
		var still []*difference
		for i, d := range open {
			if sights[i].equal() {
				if v.suspected(d, try) {
					v.report.Settled++
				}
				continue
			}
			if try > 0 && d.sight == sights[i] {
				d.class = sights[i].class()
				if d.copies > 1 {
					d.class = duplicateInOld
				}
				bad = append(bad, d)
				continue
			}
			d.sight = sights[i]
			still = append(still, d)
		}
		open = still
		if len(open) == 0 {
			return bad, nil
		}
		if try == settleTries {
			for _, d := range open {
				v.report.Unsettled++
				v.report.Bad = append(v.report.Bad, d.customer)
			}
			return bad, nil
		}
		v.does(fmt.Sprintf("%d differ: waits until the consumers have passed the log end", len(open)))
		v.tell("%d documents differ; waiting for the consumers to pass the log end of now", len(open))
		if err := v.awaitEnds(ctx); err != nil {
			return nil, err
		}
		if sights, err = v.look(ctx, open); err != nil {
			return nil, err
		}
	}
}

// suspected says whether a document that is equal now had differed: one of the
// sample has not.
func (v *verification) suspected(d *difference, try int) bool {
	return try > 0 || v.sample[d.id] != d.place
}

// awaitEnds waits until the group has committed up to the log ends of now.
func (v *verification) awaitEnds(ctx context.Context) error {
	ends, err := v.Group.Ends(ctx)
	if err != nil {
		return err
	}
	for {
		behind, err := v.Group.Passed(ctx, ends)
		if err != nil || behind == "" {
			return err
		}
		if err := sleep(ctx, v.Poll); err != nil {
			return err
		}
	}
}

func (v *verification) count(d *difference) {
	if v.accepts(d) {
		v.accept(d.class, 1)
		return
	}
	v.report.Classes[d.class]++
	if len(v.report.Samples[d.class]) < samplesPerClass {
		v.report.Samples[d.class] = append(v.report.Samples[d.class], d.customer+"/"+d.id)
	}
	v.report.Bad = append(v.report.Bad, d.customer)
}

// readMarks notes the dirty marks as they are before anything is looked at: one
// that is written later stays.
func (v *verification) readMarks(ctx context.Context) error {
	customers, err := v.store.dirty(ctx, v.job.Name)
	if err != nil {
		return err
	}
	for _, customer := range customers {
		var any struct{}
		seqNo, term, err := v.Control.Get(ctx, dirtyID(v.job.Name, customer), &any)
		if errors.Is(err, elastic.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		v.dirty = append(v.dirty, mark{customer, seqNo, term})
	}
	return nil
}

// clearMarks takes the marks away of customers of whom nothing differs any more, or
// nothing that is not accepted.
func (v *verification) clearMarks(ctx context.Context) error {
	for _, mark := range v.dirty {
		if v.check.Customer != "" && mark.customer != v.check.Customer || slices.Contains(v.report.Bad, mark.customer) ||
			v.report.BadMore {
			continue
		}
		err := v.Control.Delete(ctx, dirtyID(v.job.Name, mark.customer), mark.seqNo, mark.term)
		if err != nil && !errors.Is(err, elastic.ErrConflict) && !errors.Is(err, elastic.ErrNotFound) {
			return err
		}
	}
	return nil
}
