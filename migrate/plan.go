package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// Wish is what a plan is asked for. Zero values have the planner's defaults.
type Wish struct {
	Source      string
	Customer    string // see ParseCustomers
	Partitions  int
	Primaries   int
	Replicas    int // below 0: those of the source
	TargetShard int64
	Growth      float64
	// Sizes are the customers' sizes where they are known; nil: they are measured.
	Sizes []partition.CustomerSize
}

// large is from how many documents on a customer's digests are kept in buckets.
const large = 1_000_000

// Plan measures the source and proposes a layout. It changes nothing.
func (m *Manager) Plan(ctx context.Context, w Wish) (Plan, error) {
	plan := Plan{Schema: schema, Stream: m.Stream, Source: w.Source, At: time.Now().UTC().Truncate(time.Second), Customer: w.Customer}
	by, err := ParseCustomers(w.Customer)
	if err != nil {
		return plan, err
	}
	refused := &step{}
	m.checkVersions(refused)
	source, err := m.checkSource(ctx, refused, w.Source)
	if err != nil {
		return plan, err
	}
	if len(refused.refusals) > 0 {
		return plan, &RefusedError{Verb: "plan", Refusals: refused.refusals}
	}
	stats, err := m.Cluster.IndexStats(ctx, w.Source)
	if err != nil {
		return plan, err
	}
	plan.Docs, plan.Bytes = stats.Docs, stats.Bytes
	sizes := w.Sizes
	if sizes == nil {
		if sizes, err = m.measure(ctx, *source, stats, by); err != nil {
			return plan, err
		}
	}
	for _, c := range sizes {
		if c.Documents >= large {
			plan.Large = append(plan.Large, c.Customer)
		}
	}
	slices.Sort(plan.Large)
	input := partition.PlanInput{
		Prefix: m.Stream, Customers: sizes, Partitions: w.Partitions, Primaries: w.Primaries, Replicas: w.Replicas,
		TargetShard: w.TargetShard, Growth: w.Growth,
	}
	if w.Replicas < 0 {
		_, input.Replicas = source.Shards()
	}
	if table, err := m.Tables.Load(ctx, m.Stream); err == nil {
		input.Slots = table.Slots
	} else if !errors.Is(err, partition.ErrNotFound) {
		return plan, err
	}
	if input.Cluster, err = m.room(ctx); err != nil {
		return plan, err
	}
	if plan.Layout, err = partition.MakePlan(input); err != nil {
		return plan, err
	}
	return plan, plan.Seal()
}

// room is what the new indices must fit into.
func (m *Manager) room(ctx context.Context) (partition.Cluster, error) {
	var c partition.Cluster
	health, err := m.Cluster.Health(ctx)
	if err != nil {
		return c, err
	}
	nodes, err := m.Cluster.Nodes(ctx)
	if err != nil {
		return c, err
	}
	mark, err := m.lowWatermark(ctx)
	if err != nil {
		return c, err
	}
	c.Nodes, c.Shards = len(nodes), health.ActiveShards+health.UnassignedShards
	keep := int64(0)
	for _, n := range nodes {
		c.DiskBytes += n.DiskTotal
		c.DiskUsed += n.DiskTotal - n.DiskFree
		keep += min(n.DiskTotal, mark.keep(n.DiskTotal))
	}
	if c.DiskBytes > 0 {
		c.LowWatermark = 1 - float64(keep)/float64(c.DiskBytes)
	}
	most, err := m.Cluster.ClusterSettings(ctx, "cluster.max_shards_per_node")
	if err != nil {
		return c, err
	}
	c.ShardsPerNode, _ = strconv.Atoi(most[0]) // "" where it is not told: the default
	return c, nil
}

// measure counts the documents of each customer and estimates their bytes: from
// the lengths of a sample, scaled to what the index takes on disk.
func (m *Manager) measure(ctx context.Context, source elastic.Definition, stats elastic.IndexStats, by Customers) ([]partition.CustomerSize, error) {
	counts := map[string]int64{}
	if field := by.Countable(source.Mappings); field != "" {
		for after := ""; ; {
			page, next, err := m.Cluster.Terms(ctx, source.Name, field, after, alive())
			if err != nil {
				return nil, err
			}
			for customer, n := range page {
				if partition.CheckCustomer([]byte(customer)) == nil {
					counts[customer] += n
				}
			}
			if after = next; next == "" {
				break
			}
		}
	} else if err := m.visit(ctx, source.Name, stats, by.source(), func(hit *elastic.Hit) {
		if customer, ok := by.Of(hit.ID, hit.Routing, hit.Source); ok {
			counts[customer]++
		}
	}); err != nil {
		return nil, err
	}
	lengths, err := m.sample(ctx, source.Name, stats, by)
	if err != nil {
		return nil, err
	}
	return weigh(counts, lengths, stats.Bytes), nil
}

// length is what a sample says of a customer's documents.
type length struct{ documents, bytes int64 }

// leastSample is from how many documents on a customer's own mean is taken.
const leastSample = 20

// weigh spreads the bytes of an index over its customers.
func weigh(counts map[string]int64, lengths map[string]length, bytes int64) []partition.CustomerSize {
	var all length
	for _, l := range lengths {
		all.documents, all.bytes = all.documents+l.documents, all.bytes+l.bytes
	}
	mean := func(l length) float64 {
		if l.documents == 0 {
			return 1
		}
		return float64(l.bytes) / float64(l.documents)
	}
	weights := map[string]float64{}
	total := 0.0
	for customer, n := range counts {
		l := lengths[customer]
		if l.documents < leastSample {
			l = all
		}
		weights[customer] = float64(n) * mean(l)
		total += weights[customer]
	}
	sizes := make([]partition.CustomerSize, 0, len(counts))
	for customer, n := range counts {
		sizes = append(sizes, partition.CustomerSize{
			Customer: customer, Size: partition.Size{Documents: n, Bytes: int64(weights[customer] / total * float64(bytes))},
		})
	}
	slices.SortFunc(sizes, func(a, b partition.CustomerSize) int { return compare(a.Customer, b.Customer) })
	return sizes
}

// visit reads all documents of an index.
func (m *Manager) visit(ctx context.Context, index string, stats elastic.IndexStats, source any, visit func(*elastic.Hit)) error {
	info, err := m.Cluster.Info(ctx)
	if err != nil {
		return err
	}
	s := newScanner(m.Cluster, info.Flavour, index, source, alive())
	for shard, end := range stats.MaxSeqNo {
		failed := 0
		for cursor := int64(-1); cursor < end; {
			hits, next, err := s.page(ctx, shard, cursor, end)
			if err != nil {
				if failed++; failed > halvings || !passing(err) || ctx.Err() != nil {
					return err
				}
				continue // with a smaller page
			}
			failed = 0
			for i := range hits {
				visit(&hits[i])
			}
			cursor = next
		}
	}
	return nil
}

// sample reads documents from some places of each shard.
func (m *Manager) sample(ctx context.Context, index string, stats elastic.IndexStats, by Customers) (map[string]length, error) {
	const pages = 20
	hits := 200
	lengths := map[string]length{}
	random := rand.New(rand.NewPCG(1, 1)) // a plan that is made again is the same
	for page := range pages {
		if len(stats.MaxSeqNo) == 0 {
			break
		}
		shard := page % len(stats.MaxSeqNo)
		from := random.Int64N(stats.MaxSeqNo[shard] + 2)
		if page < len(stats.MaxSeqNo) {
			from = 0
		}
		query := map[string]any{
			"track_total_hits": false, "sort": []any{map[string]any{"_seq_no": "asc"}},
			"query": map[string]any{"bool": map[string]any{"filter": []any{alive(), map[string]any{"range": map[string]any{"_seq_no": map[string]any{"gte": from}}}}}},
		}
		var found elastic.Page
		for {
			var err error
			query["size"] = hits
			if found, err = m.Cluster.SearchShard(ctx, index, shard, "", query); err == nil {
				break
			}
			if hits == 1 || !passing(err) || ctx.Err() != nil {
				return nil, err
			}
			hits = fewer(hits)
		}
		for _, hit := range found.Hits {
			if customer, ok := by.Of(hit.ID, hit.Routing, hit.Source); ok {
				l := lengths[customer]
				lengths[customer] = length{l.documents + 1, l.bytes + int64(len(hit.Source)+len(hit.ID))}
			}
		}
	}
	return lengths, nil
}

// ParsePlan reads a plan file and refuses one that was changed.
func ParsePlan(text []byte) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("the file is no plan: %w: make one with sluice migrate plan", err)
	}
	if p.Schema != schema || p.Layout == nil || !p.sealed() {
		return p, errors.New("the plan was changed by hand, or is of another version: make one with sluice migrate plan")
	}
	return p, nil
}
