package partition

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// builder makes a plan.
type builder struct {
	in    PlanInput
	limit weight // what a shared partition takes
	own   []PlannedPartition
	items []item // what shared partitions are filled with
	bins  []bin
}

// weight is a size after growth.
type weight struct{ documents, bytes float64 }

func (l weight) plus(o weight) weight { return weight{l.documents + o.documents, l.bytes + o.bytes} }

// of returns how much of a limit the weight fills: the fuller of the two counts.
func (l weight) of(limit weight) float64 {
	return max(l.documents/limit.documents, l.bytes/limit.bytes)
}

// item is a slot, or a customer that is taken out of its slot.
type item struct {
	weight
	slot      int
	customer  string // "": all of the slot that is not taken out
	customers []CustomerSize
}

// bin is a shared partition that is being filled.
type bin struct {
	weight
	items []int
	slots int
}

func newBuilder(in PlanInput) *builder {
	shards := float64(in.Primaries)
	return &builder{in: in, limit: weight{TargetDocuments * shards, float64(in.TargetShard) * shards}}
}

func (b *builder) grown(s Size) weight {
	return weight{float64(s.Documents) * b.in.Growth, float64(s.Bytes) * b.in.Growth}
}

// large is the share of a partition above which a customer or a slot is not
// packed with the others: what is packed is at most half of what it goes into,
// so that there always is a number of partitions that fits.
const large = 0.5

// separate gives large customers partitions of their own and makes items of the
// others.
func (b *builder) separate() {
	slots := make([]item, b.in.Slots)
	for slot := range slots {
		slots[slot].slot = slot
	}
	for _, c := range b.in.Customers {
		grown := b.grown(c.Size)
		if grown.of(b.limit) > large {
			b.own = append(b.own, PlannedPartition{
				Name: Name("w-", c.Customer, ""), Primaries: b.shards(grown), Size: c.Size, Customers: 1, Own: c.Customer, Largest: []CustomerSize{c},
			})
			continue
		}
		s := &slots[Slot([]byte(c.Customer), b.in.Slots)]
		s.weight = s.plus(grown)
		s.customers = append(s.customers, c)
	}
	for i := range slots {
		s := &slots[i]
		slices.SortStableFunc(s.customers, func(x, y CustomerSize) int {
			return cmp.Compare(b.grown(y.Size).of(b.limit), b.grown(x.Size).of(b.limit))
		})
		for s.of(b.limit) > large && len(s.customers) > 1 {
			c := s.customers[0]
			s.customers = s.customers[1:]
			b.items = append(b.items, item{weight: b.grown(c.Size), slot: s.slot, customer: c.Customer, customers: []CustomerSize{c}})
			s.weight = weight{}
			for _, rest := range s.customers {
				s.weight = s.plus(b.grown(rest.Size))
			}
		}
		b.items = append(b.items, *s)
	}
	slices.SortStableFunc(b.items, func(x, y item) int { return cmp.Compare(y.of(b.limit), x.of(b.limit)) })
}

// shards returns how many primaries a customer of its own needs: one a target,
// and no more than there are nodes.
func (b *builder) shards(l weight) int {
	n := math.Ceil(max(l.bytes/float64(b.in.TargetShard), l.documents/TargetDocuments))
	if b.in.Cluster.Nodes > 0 {
		n = min(n, float64(b.in.Cluster.Nodes))
	}
	return int(max(1, min(n, 1024)))
}

// pack fills the shared partitions.
func (b *builder) pack() error {
	var rest weight
	for _, item := range b.items {
		rest = rest.plus(item.weight)
	}
	n := b.in.Partitions
	if n == 0 {
		n = b.round(max(1, int(math.Ceil(min(rest.of(b.limit), MaxSlots)))))
		for n+len(b.own) <= b.in.Slots && !b.fill(n, 1) {
			n = b.round(n + 1)
		}
	}
	if n+len(b.own) > b.in.Slots {
		return &PlanError{fmt.Sprintf("it takes more partitions than there are slots (%d)", b.in.Slots), "raise the target of a shard, or use more primaries"}
	}
	// Even is what fills the partitions to the lowest level: it is searched for
	// between the mean and what surely holds all.
	low, high := rest.of(b.limit)/float64(n), max(1, rest.of(b.limit)*1.000001)
	b.fill(n, high)
	best := b.bins
	for range 30 {
		level := (low + high) / 2
		if b.fill(n, level) {
			best, high = b.bins, level
		} else {
			low = level
		}
	}
	b.bins = best
	b.deal()
	return nil
}

// round returns the next number of partitions, from n on, with which all
// primaries and replicas together spread evenly over the nodes; n where fewer
// partitions than nodes, or none of the next, do.
func (b *builder) round(n int) int {
	nodes, own := b.in.Cluster.Nodes, 0
	for _, p := range b.own {
		own += p.Primaries
	}
	if n < nodes {
		return n
	}
	for more := range nodes {
		if (own+(n+more)*b.in.Primaries)*(1+b.in.Replicas)%nodes == 0 && n+more <= b.in.Slots {
			return n + more
		}
	}
	return n
}

// fill packs the items into n partitions, each up to a level of its limit, first
// fit, the largest first (items are in that order). It says whether they fit.
func (b *builder) fill(n int, level float64) bool {
	b.bins = make([]bin, n)
	limit := weight{b.limit.documents * level, b.limit.bytes * level}
	for i, item := range b.items {
		if item.weight == (weight{}) {
			break // an empty slot, as all that follow: see deal
		}
		at := slices.IndexFunc(b.bins, func(bin bin) bool { return bin.plus(item.weight).of(limit) <= 1 })
		if at < 0 {
			return false
		}
		b.put(at, i)
	}
	return true
}

func (b *builder) put(at, i int) {
	bin := &b.bins[at]
	bin.weight = bin.plus(b.items[i].weight)
	bin.items = append(bin.items, i)
	if b.items[i].customer == "" {
		bin.slots++
	}
}

// deal gives the slots that hold nobody yet to the partitions with the fewest
// slots, in runs, so that customers to come spread evenly.
func (b *builder) deal() {
	var empty []int // items; by slot, since equal items keep their order
	for i, item := range b.items {
		if item.customer == "" && item.weight == (weight{}) {
			empty = append(empty, i)
		}
	}
	left := len(empty)
	share := make([]int, len(b.bins))
	for left > 0 {
		fewest := 0
		for at := range b.bins {
			if b.bins[at].slots+share[at] < b.bins[fewest].slots+share[fewest] {
				fewest = at
			}
		}
		share[fewest]++
		left--
	}
	for at, n := range share {
		for range n {
			b.put(at, empty[left])
			left++
		}
	}
}

// plan returns what was built.
func (b *builder) plan() *Plan {
	p := &Plan{
		Format: planFormat, Prefix: b.in.Prefix, Slots: b.in.Slots, Replicas: b.in.Replicas, TargetShard: b.in.TargetShard, Growth: b.in.Growth,
		SlotMap: make(SlotMap, b.in.Slots), Overrides: map[string]string{}, Customers: len(b.in.Customers), MaxOverMean: 1,
	}
	var sum, most float64
	for at, bin := range b.bins {
		planned := PlannedPartition{Name: fmt.Sprintf("p%03d", at), Primaries: b.in.Primaries}
		var customers []CustomerSize
		for _, i := range bin.items {
			item := b.items[i]
			if item.customer == "" {
				p.SlotMap[item.slot] = planned.Name
			} else {
				p.Overrides[Literal(item.customer)] = planned.Name
			}
			customers = append(customers, item.customers...)
		}
		for _, c := range customers {
			planned.Size = planned.plus(c.Size)
		}
		planned.Customers = len(customers)
		slices.SortFunc(customers, func(x, y CustomerSize) int {
			return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Documents, x.Documents), cmp.Compare(x.Customer, y.Customer))
		})
		planned.Largest = slices.Clone(customers[:min(3, len(customers))])
		p.Partitions = append(p.Partitions, planned)
		sum, most = sum+bin.of(b.limit), max(most, bin.of(b.limit))
	}
	if sum > 0 {
		p.MaxOverMean = most / (sum / float64(len(b.bins)))
	}
	for _, own := range b.own {
		p.Partitions = append(p.Partitions, own)
		p.Overrides[Literal(own.Own)] = own.Name
	}
	for _, planned := range p.Partitions {
		p.Total = p.Total.plus(planned.Size)
	}
	return p
}

// findings checks a plan against what an index and the cluster can hold.
func findings(in PlanInput, p *Plan) []Finding {
	var found []Finding
	warn := func(format string, args ...any) { found = append(found, Finding{false, fmt.Sprintf(format, args...)}) }
	refuse := func(format string, args ...any) { found = append(found, Finding{true, fmt.Sprintf(format, args...)}) }

	primaries := 0
	smallest := math.Inf(1)
	for _, planned := range p.Partitions {
		primaries += planned.Primaries
		shards := float64(planned.Primaries)
		bytes, documents := float64(planned.Bytes)*in.Growth/shards, float64(planned.Documents)*in.Growth/shards
		smallest = min(smallest, float64(planned.Bytes)/shards)
		switch {
		case documents > LuceneDocuments:
			refuse("%s would hold %.0f documents a shard with growth %v, and a shard holds %d: ask for more partitions or primaries", planned.Name, documents, in.Growth, LuceneDocuments)
		case documents > MostDocuments:
			warn("%s would hold %.0f M documents a shard with growth %v; 200 M is what is advised", planned.Name, documents/1e6, in.Growth)
		}
		if bytes > LargestShard {
			warn("%s would hold %.0f GB a shard with growth %v; 10 to 50 GB is what is advised", planned.Name, bytes/(1<<30), in.Growth)
		} else if planned.Own == "" && bytes > float64(in.TargetShard)*1.0001 {
			warn("%s would hold %.1f GB a shard with growth %v, over the target of %.1f GB: ask for more partitions", planned.Name, bytes/(1<<30), in.Growth, float64(in.TargetShard)/(1<<30))
		}
	}
	if p.Total.Bytes > 0 && smallest < SmallestShard && len(p.Partitions) > 1 {
		warn("the smallest shard would hold %.1f GB; below 10 GB fewer partitions are usually better", smallest/(1<<30))
	}
	if p.MaxOverMean > 1.25 {
		warn("the fullest shared partition holds %.2f times the mean", p.MaxOverMean)
	}

	c := in.Cluster
	shards := primaries * (1 + in.Replicas)
	if c.Nodes > 0 {
		if room := c.Nodes * c.ShardsPerNode; c.Shards+shards > room {
			refuse("%d shards and %d new ones are more than the %d that %d nodes take (cluster.max_shards_per_node): ask for fewer partitions, or remove indices", c.Shards, shards, room, c.Nodes)
		}
		if shards%c.Nodes != 0 && shards > c.Nodes {
			warn("%d shards do not spread evenly over %d nodes", shards, c.Nodes)
		}
		if in.Replicas >= c.Nodes {
			refuse("%d replicas need %d nodes and there are %d: ask for fewer", in.Replicas, in.Replicas+1, c.Nodes)
		}
	}
	if c.DiskBytes > 0 {
		peak := float64(c.DiskUsed) + copyRoom*float64(p.Total.Bytes)*float64(1+in.Replicas)
		if room := c.LowWatermark * float64(c.DiskBytes); peak > room {
			refuse("at its peak the copy fills the disks with %.0f GB, and allocation stops at %.0f GB (low watermark %.0f %%): add disk, or copy with fewer replicas", peak/(1<<30), room/(1<<30), c.LowWatermark*100)
		}
	}
	if c.MasterHeap > 0 {
		if room := float64(c.MasterHeap) / (1 << 30) * IndicesPerGB; float64(c.Indices+len(p.Partitions)) > room {
			warn("%d indices are more than the %.0f that a master with %.0f GB of heap is good for", c.Indices+len(p.Partitions), room, float64(c.MasterHeap)/(1<<30))
		}
	}
	return found
}

// Table returns the first table of a stream that starts partitioned: W3, no
// legacy index.
func (p *Plan) Table(stream, suffix string) (*Table, error) {
	t := New(stream, "")
	t.Legacy, t.Write, t.Slots = nil, W3, p.Slots
	if err := p.Apply(t, "", suffix); err != nil {
		return nil, err
	}
	return t, t.Validate()
}
