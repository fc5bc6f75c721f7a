package migrate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// TombstoneField marks a document that stands for a deletion: the field that
// consumers write in W1.
const TombstoneField = "_sluice_deleted"

// tombstones and alive are queries for documents that stand for a deletion, and
// for the others.
func tombstones() map[string]any {
	return map[string]any{"term": map[string]any{TombstoneField: true}}
}

func alive() map[string]any {
	return map[string]any{"bool": map[string]any{"must_not": tombstones()}}
}

const (
	itemsPerWorker = 4
	leastItem      = 1000 // sequence numbers
	// mostFailed is how many documents may fail before the job pauses itself: so
	// many have one cause.
	mostFailed = 1000
	// checkEvery is how often a change of the source's mapping is looked for.
	checkEvery = 10 * time.Second
)

// bounds are the highest numbers that are copied: of each shard the sequence
// number, of each part of a log the offset.
func (b *Backfill) bounds() []int64 {
	if b.Log == nil {
		return b.MaxSeqNo
	}
	last := make([]int64, len(b.Log))
	for i, part := range b.Log {
		last[i] = part.End - 1
	}
	return last
}

// split returns how many items a job's copy has.
func (b *Backfill) split(limit int) int {
	if b.PIT != "" {
		return max(1, limit)
	}
	perShard, bounds := 1, b.bounds()
	for _, most := range bounds {
		perShard = max(perShard, min(itemsPerWorker*max(1, limit)/len(bounds), int(most/leastItem)))
	}
	return perShard * len(bounds)
}

// item returns an item as it is before anything is copied.
func (b *Backfill) item(n int) *Item {
	if b.PIT != "" {
		return &Item{Number: n, Shard: n - b.First}
	}
	bounds := b.bounds()
	perShard := int64(b.Count / len(bounds))
	shard, piece := int64(n-b.First)/perShard, int64(n-b.First)%perShard
	all := bounds[shard] + 1
	i := &Item{Number: n, Shard: int(shard), After: all*piece/perShard - 1, To: all*(piece+1)/perShard - 1}
	i.Cursor = i.After
	return i
}

// begin notes, once the fence has passed, what there is to copy.
func (r *runner) begin(ctx context.Context, j *Job) error {
	epoch := j.Fence.Epoch
	if mutantUnfenced {
		epoch = 0
	}
	fence, err := r.m.awaitFence(ctx, epoch, func(f Fence) {
		r.tell("the fence of epoch %d waits for %s", f.Epoch, laggards(f))
	})
	if err != nil {
		return err
	}
	health, err := r.m.Cluster.Health(ctx, j.Source)
	if err != nil {
		return err
	}
	if health.Status == "red" {
		return stuckf("make its shards available, then repeat", "%s is red", j.Source)
	}
	stats, err := r.m.Cluster.IndexStats(ctx, j.Source)
	if err != nil {
		return err
	}
	backfill := Backfill{First: j.Backfill.First + j.Backfill.Count, Total: stats.Docs, MaxSeqNo: stats.MaxSeqNo}
	// All up to these numbers is visible from now on, in every copy.
	if !mutantInvisible {
		if err := r.m.Cluster.Refresh(ctx, j.Source); err != nil {
			return err
		}
	}
	if j.from() == FromKafka {
		if err := r.beginLog(ctx, j, fence, &backfill); err != nil {
			return err
		}
	} else if backfill.MaxSeqNo == nil {
		info, err := r.m.Cluster.Info(ctx)
		if err != nil {
			return err
		}
		if backfill.PIT, err = r.m.Cluster.OpenPIT(ctx, j.Source, pitKeepAlive, info.Flavour); err != nil {
			return err
		}
	}
	backfill.Count = backfill.split(max(1, j.Throttle.Concurrency))
	_, err = r.m.store.move(ctx, j.Name, Backfilling, func(j *Job) {
		j.Fence, j.Backfill = fence, backfill
		if j.Origin == nil {
			j.Origin = fence.Offsets
		}
	}, Dual)
	return err
}

// copyRun is the copy as one runner does it.
type copyRun struct {
	*runner
	job     *Job
	by      Customers
	table   *partition.Table
	router  *partition.Router
	aliases map[string]string // of this lease, by index
	scan    *scanner
	sender  *sender
	gate    *gate
	signals *gauges
	began   time.Time

	mu struct {
		sync.Mutex
		items    map[int]*Item
		failures int
		size     int // of a bulk request
		copied   int64
		trouble  string // the last error that is tried again
	}
}

// copy copies all items that are not done, and moves the job on when all are
// and the counts prove it.
func (r *runner) copy(ctx context.Context, j *Job) error {
	table, err := r.m.table(ctx, j)
	if err != nil {
		return err
	}
	if table.Write != partition.W1 {
		return stuckf("begin anew: sluice migrate detach --job "+j.Name, "the routing table of stream %s is in %s and a backfill needs W1: deletes would be forgotten", r.m.Stream, table.Write)
	}
	if err := j.Backfill.readInTime(time.Now()); err != nil {
		return err
	}
	if j.Backfill.Log != nil && r.m.Records == nil {
		return stuckf("run it with the consumers' configuration, or begin anew from the index: sluice migrate detach --job "+j.Name, "job %s copies from the topics, which this process cannot read", j.Name)
	}
	info, err := r.m.Cluster.Info(ctx)
	if err != nil {
		return err
	}
	// The copy needs where customers belong, which no change alters while the job
	// is under way; as in W2, so that it can be asked for the new side.
	by, err := ParseCustomers(j.Customer)
	if err != nil {
		return err
	}
	c := &copyRun{runner: r, job: j, by: by, table: table.Table, router: partition.NewRouter(table.Table, partition.CacheOptions{}), gate: newGate(), signals: newGauges(), began: time.Now()}
	c.scan = newScanner(r.m.Cluster, info.Flavour, j.Source, true, alive())
	c.sender = &sender{client: r.m.Cluster, bounds: r.bound, answered: c.signals.bulk, query: copying()}
	if j.Backfill.Log != nil {
		c.sender.query.Del("pipeline") // records pass those that they pass from the consumers
	}
	c.mu.size = j.Throttle.BulkBytes
	if c.aliases, err = r.takeAliases(ctx, j); err != nil {
		return err
	}
	if c.mu.items, err = r.m.store.items(ctx, j); err != nil {
		return err
	}
	failures, err := r.m.store.failures(ctx, j.Name)
	if err != nil {
		return err
	}
	c.mu.failures = len(failures)
	if err := c.work(ctx); err != nil {
		return err
	}
	return c.prove(ctx)
}

// takeAliases gives this lease an alias for each target and takes away those of
// all others, in one step: a runner that has lost its lease writes no more.
func (r *runner) takeAliases(ctx context.Context, j *Job) (map[string]string, error) {
	actions, err := r.m.dropAliases(ctx, j)
	if err != nil {
		return nil, err
	}
	if mutantOldLease {
		actions = nil
	}
	own := map[string]string{}
	for _, t := range j.Targets {
		own[t.Index] = fmt.Sprintf("%s%d", backfillAlias(t.Index), r.lease.token)
		actions = slices.DeleteFunc(actions, func(a elastic.AliasAction) bool { return a.Alias == own[t.Index] })
		actions = append(actions, elastic.AliasAction{Index: t.Index, Alias: own[t.Index]})
	}
	return own, r.m.Cluster.UpdateAliases(ctx, actions)
}

func backfillAlias(index string) string { return index + "-backfill-" }

// work runs the workers and the throttle until every item is done.
func (c *copyRun) work(ctx context.Context) error {
	pending := make(chan int, c.job.Backfill.Count)
	for n := c.job.Backfill.First; n < c.job.Backfill.First+c.job.Backfill.Count; n++ {
		if item := c.mu.items[n]; item == nil || !item.Done {
			pending <- n
		}
	}
	close(pending)
	if len(pending) == 0 {
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	throttled, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with throttled
		defer close(done)
		c.throttle(throttled, stop)
	}()
	for range min(len(pending), 256) {
		workers.Go(func() {
			for n := range pending {
				if err := c.item(ctx, n); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	workers.Wait()
	end()
	<-done
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// item copies one item to its end.
func (c *copyRun) item(ctx context.Context, n int) error {
	var item Item
	seqNo, term, err := c.m.store.control.Get(ctx, itemID(c.job.Name, n), &item)
	if errors.Is(err, elastic.ErrNotFound) {
		item = *c.job.Backfill.item(n)
		if err = c.m.store.control.Create(ctx, itemID(c.job.Name, n), &item); err != nil && !errors.Is(err, elastic.ErrConflict) {
			return err
		}
		seqNo, term, err = c.m.store.control.Get(ctx, itemID(c.job.Name, n), &item)
	}
	if err != nil {
		return err
	}
	var log tail
	defer log.drop()
	rescans := 0
	for wait := time.Second; !item.Done; {
		if err := c.gate.enter(ctx); err != nil {
			return err
		}
		next, err := c.page(ctx, item, &log)
		c.gate.leave()
		switch {
		case err == nil:
			wait = time.Second
			c.note("")
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case c.job.Backfill.PIT != "" && elastic.IsContextLost(err):
			return c.restart(ctx)
		case fatal(err):
			return err
		default:
			c.note(err.Error())
			if err := sleep(ctx, wait); err != nil {
				return err
			}
			wait = min(2*wait, 30*time.Second)
			continue
		}
		if next.Done && c.job.Backfill.PIT == "" && c.job.Backfill.Log == nil {
			missed, err := c.missed(ctx, next)
			if err != nil {
				c.note(err.Error())
				next.Done = false // its end is looked at again
			} else if missed > 0 {
				if rescans++; rescans > 3 {
					return stuckf("the copies of the shard differ: make its replicas anew (number_of_replicas 0, then as before), then repeat",
						"shard %d of %s: %d documents between %d and %d were not found by the scan three times", item.Shard, c.job.Source, missed, item.After, item.To)
				}
				next = *c.job.Backfill.item(n)
			}
		}
		if !next.balanced() {
			return stuckf("begin anew (sluice migrate detach --job "+c.job.Name+") and report this", "item %d: %d documents were seen and %d accounted for", n, next.Seen, next.Written+next.Superseded+next.Failed+next.Ignored)
		}
		if seqNo, term, err = c.save(ctx, &next, seqNo, term); err != nil {
			return err
		}
		c.mu.Lock()
		c.mu.copied += c.job.Backfill.reached(&next) - c.job.Backfill.reached(&item)
		c.mu.items[n] = &next
		c.mu.Unlock()
		item = next
	}
	return nil
}

// fatal errors do not pass by themselves.
func fatal(err error) bool {
	var refused *elastic.Error
	return errors.Is(err, errFenced) || errors.Is(err, errLeaseLost) || lost(err) ||
		errors.As(err, &refused) && (refused.Status == http.StatusNotFound || refused.Status == http.StatusBadRequest)
}

// save stores an item's cursor. That somebody else has stored it means that the
// lease is lost, unless it was this runner and the answer got lost.
func (c *copyRun) save(ctx context.Context, item *Item, seqNo, term int64) (int64, int64, error) {
	for {
		newSeqNo, newTerm, err := c.m.store.control.Replace(ctx, itemID(c.job.Name, item.Number), item, seqNo, term)
		var stored Item
		switch {
		case err == nil:
			return newSeqNo, newTerm, nil
		case errors.Is(err, elastic.ErrConflict):
			if newSeqNo, newTerm, err = c.m.store.control.Get(ctx, itemID(c.job.Name, item.Number), &stored); err == nil && stored == *item {
				return newSeqNo, newTerm, nil
			}
			if err == nil {
				return 0, 0, errLeaseLost
			}
		}
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		c.note(err.Error())
		if err := sleep(ctx, time.Second); err != nil {
			return 0, 0, err
		}
	}
}

// page copies one page of an item and returns the item after it.
func (c *copyRun) page(ctx context.Context, item Item, log *tail) (Item, error) {
	if c.job.Backfill.Log != nil {
		return c.logPage(ctx, item, log)
	}
	var hits []elastic.Hit
	var err error
	began := time.Now()
	if c.job.Backfill.PIT != "" {
		var after string
		hits, after, err = c.scan.slice(ctx, c.job.Backfill.PIT, item.Shard, c.job.Backfill.Count, item.Search)
		item.Done = err == nil && after == ""
		item.Search = after
	} else {
		hits, item.Cursor, err = c.scan.page(ctx, item.Shard, item.Cursor, item.To)
		item.Done = item.Cursor >= item.To
	}
	if err != nil {
		return item, err
	}
	c.signals.search(time.Since(began))
	ends, err := c.copyHits(ctx, hits)
	if err != nil {
		return item, err
	}
	item.Seen += int64(len(hits))
	for i, end := range ends {
		if item.count(end) {
			continue
		}
		hit := &hits[i]
		index, _ := c.target(hit)
		if err := c.fail(ctx, failedID(c.job.Name, c.job.Source, hit.ID), Failure{
			ID: hit.ID, Routing: hit.Routing, Target: index, Version: hit.Version, Status: end.status, Type: end.kind, Shard: item.Shard, SeqNo: hit.SeqNo,
		}); err != nil {
			return item, err
		}
	}
	return item, nil
}

// count counts how a write has ended, and says whether that is all there is to
// do: of one that failed it must be kept what is needed to try it again.
func (i *Item) count(end outcome) (settled bool) {
	switch end.ending {
	case written:
		i.Written++
	case superseded:
		i.Superseded++
	default:
		i.Failed++
		return false
	}
	return true
}

// copyHits writes documents to their partitions, each at its own version.
func (c *copyRun) copyHits(ctx context.Context, hits []elastic.Hit) ([]outcome, error) {
	ends := make([]outcome, len(hits))
	var actions []bulk.Action
	var at []int
	for i := range hits {
		hit := &hits[i]
		index, why := c.target(hit)
		body, err := oneLine(hit.Source)
		switch {
		case why != "":
			ends[i] = outcome{ending: failed, kind: why}
			continue
		case err != nil || len(body) == 0:
			ends[i] = outcome{ending: failed, kind: "no_source"}
			continue
		}
		action := bulk.Action{
			Op: bulk.Index, VersionType: bulk.External, Version: hit.Version, Target: c.aliases[index],
			ID: []byte(hit.ID), Routing: []byte(hit.Routing), Body: body, RequireAlias: true, Pipeline: "_none",
		}
		if mutantOverwrite || mutantCreate {
			action.VersionType, action.Version = bulk.Internal, 0
		}
		if mutantCreate {
			action.Op = bulk.Create
		}
		actions = append(actions, action)
		at = append(at, i)
	}
	results, err := c.send(ctx, actions)
	if err != nil {
		return nil, err
	}
	for i, end := range results {
		ends[at[i]] = end
	}
	return ends, nil
}

// send carries writes out and says how each has ended.
func (c *copyRun) send(ctx context.Context, actions []bulk.Action) ([]outcome, error) {
	// Requests to few indices at a time: those of one partition follow each other.
	order := make([]int, len(actions))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(actions[a].Target, actions[b].Target) })
	sorted := make([]bulk.Action, len(order))
	for i, from := range order {
		sorted[i] = actions[from]
	}
	c.mu.Lock()
	size := c.mu.size
	c.mu.Unlock()
	results, err := c.sender.send(ctx, sorted, size)
	if err != nil {
		return nil, err
	}
	ends := make([]outcome, len(actions))
	for i, from := range order {
		ends[from] = results[i]
	}
	return ends, nil
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// target returns the index that a document belongs into, or why there is none.
func (c *copyRun) target(hit *elastic.Hit) (index, why string) {
	customer, ok := c.by.Of(hit.ID, hit.Routing, hit.Source)
	if !ok {
		return "", "no_customer"
	}
	if index = c.router.Route([]byte(customer)).New; c.aliases[index] == "" {
		return "", "no_partition"
	}
	return index, ""
}

// fail keeps what is needed to try a document again. Its bytes stay where they
// are, in the source.
func (c *copyRun) fail(ctx context.Context, id string, f Failure) error {
	err := c.m.store.control.Create(ctx, id, f)
	if errors.Is(err, elastic.ErrConflict) {
		return nil // by an earlier try at this page
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.mu.failures++
	tooMany := c.mu.failures == mostFailed
	c.mu.Unlock()
	if tooMany {
		_, err = c.m.store.change(ctx, c.job.Name, func(j *Job) error {
			j.Paused = fmt.Sprintf("%d documents failed, the last with %s: see sluice migrate status --job %s --failed", mostFailed, f.Type, j.Name)
			return nil
		})
	}
	return err
}

func (c *copyRun) note(trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.trouble = trouble
}

// missed returns how many documents of an item's range the scan has not seen.
// What is there now was there all the time: a changed document has a higher
// number.
func (c *copyRun) missed(ctx context.Context, item Item) (int64, error) {
	if mutantInferred {
		return 0, nil
	}
	for refreshed := false; ; refreshed = true {
		page, err := c.m.Cluster.SearchShard(ctx, c.job.Source, item.Shard, c.scan.copies, map[string]any{
			"size": 0, "track_total_hits": true, "query": map[string]any{"bool": map[string]any{"filter": []any{
				alive(), map[string]any{"range": map[string]any{"_seq_no": map[string]any{"gt": item.After, "lte": item.To}}},
			}}},
		})
		if err != nil || page.Total <= item.Seen || refreshed {
			return max(0, page.Total-item.Seen), err
		}
		// A copy that has not refreshed shows what has been changed since.
		if err := c.m.Cluster.Refresh(ctx, c.job.Source); err != nil {
			return 0, err
		}
	}
}

// restart begins the copy anew: the point in time is gone, and slices of
// another one hold other documents.
func (c *copyRun) restart(ctx context.Context) error {
	info, err := c.m.Cluster.Info(ctx)
	if err != nil {
		return err
	}
	pit, err := c.m.Cluster.OpenPIT(ctx, c.job.Source, pitKeepAlive, info.Flavour)
	if err != nil {
		return err
	}
	_, err = c.m.store.change(ctx, c.job.Name, func(j *Job) error {
		if j.State != Backfilling || j.Backfill.PIT != c.job.Backfill.PIT {
			return errSame // another worker was first
		}
		j.Backfill.First += j.Backfill.Count
		j.Backfill.PIT = pit
		return nil
	})
	if err == nil {
		err = errAgain
	}
	return err
}

// errAgain says that the job has changed and its state is to be looked at anew.
var errAgain = errors.New("the job begins this step anew")

// prove ends the copy: every item is done and balanced, and no shard holds more
// documents of before the fence than were seen. Failed documents that nobody
// waived keep the job where it is.
func (c *copyRun) prove(ctx context.Context) error {
	items, err := c.m.store.items(ctx, c.job)
	if err != nil {
		return err
	}
	seen := int64(0)
	shards := make([]int64, len(c.job.Backfill.MaxSeqNo)) // of the index; a log was read to its end
	if c.job.Backfill.Log != nil {
		shards = nil
	}
	for n := c.job.Backfill.First; n < c.job.Backfill.First+c.job.Backfill.Count; n++ {
		item := items[n]
		if item == nil || !item.Done || !item.balanced() {
			return stuckf("run it again: sluice migrate backfill --job "+c.job.Name, "item %d of the copy is not proven", n)
		}
		seen += item.Seen
		if c.job.Backfill.PIT == "" && c.job.Backfill.Log == nil {
			shards[item.Shard] += item.Seen
		}
	}
	for shard, seen := range shards {
		missed, err := c.missed(ctx, Item{Shard: shard, After: -1, To: c.job.Backfill.MaxSeqNo[shard], Seen: seen})
		if err != nil {
			return err
		}
		if missed > 0 {
			return stuckf("begin anew (sluice migrate detach --job "+c.job.Name+") and report this", "shard %d of %s holds %d documents that the copy has not seen", shard, c.job.Source, missed)
		}
	}
	if err := c.job.Backfill.readInTime(time.Now()); err != nil {
		return err
	}
	if err := c.retryFailed(ctx); err != nil {
		return err
	}
	_, err = c.m.store.move(ctx, c.job.Name, Draining, func(j *Job) { j.Backfill.Copied = seen }, Backfilling)
	return err
}

// retryFailed tries the documents that failed once more, as they are now.
func (c *copyRun) retryFailed(ctx context.Context) error {
	failures, err := c.m.store.failures(ctx, c.job.Name)
	if err != nil {
		return err
	}
	left := 0
	var example Failure
	for id, f := range failures {
		if slices.Contains(c.job.Waived, "*") || slices.Contains(c.job.Waived, f.ID) {
			continue
		}
		solved, err := c.solve(ctx, &f)
		if err != nil {
			return err
		}
		if !solved {
			left++
			example = f
			continue
		}
		seqNo, term, err := c.m.store.control.Get(ctx, id, &f)
		if err == nil {
			err = c.m.store.control.Delete(ctx, id, seqNo, term)
		}
		if err != nil && !errors.Is(err, elastic.ErrNotFound) {
			return err
		}
	}
	if left > 0 {
		return &RefusedError{Verb: "backfill", Refusals: []Refusal{{
			Why: fmt.Sprintf("%d documents could not be copied, such as %q (%d %s)", left, example.ID, example.Status, example.Type),
			Remedy: fmt.Sprintf("see sluice migrate status --job %s --failed; mend them or the new indices' mapping and repeat sluice migrate backfill --job %s, or leave them out with --waive ID",
				c.job.Name, c.job.Name),
		}}}
	}
	return nil
}

// solve copies a failed document as it is now. One that is gone, or was written
// since the fence, needs no copy.
func (c *copyRun) solve(ctx context.Context, f *Failure) (bool, error) {
	if c.job.Backfill.Log != nil {
		return c.solveRecord(ctx, f)
	}
	docs, err := c.m.Cluster.GetMany(ctx, []elastic.DocID{{Index: c.job.Source, ID: f.ID, Routing: f.Routing}})
	if err != nil {
		return false, err
	}
	doc := docs[0]
	if !doc.Found || doc.SeqNo != f.SeqNo {
		return true, nil
	}
	ends, err := c.copyHits(ctx, []elastic.Hit{{Index: c.job.Source, ID: f.ID, Routing: f.Routing, Version: doc.Version, SeqNo: doc.SeqNo, Source: doc.Source}})
	if err != nil {
		return false, err
	}
	f.Status, f.Type = ends[0].status, ends[0].kind
	return ends[0].ending != failed, nil
}
