package partition

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// What a plan aims at where its input does not say. A shard of 10 to 50 GB and
// at most 200 million documents is what Elastic advises.
const (
	TargetShard     = 30 << 30    // bytes
	TargetDocuments = 150_000_000 // of a shard, so that there is room up to MostDocuments
	SmallestShard   = 10 << 30
	LargestShard    = 50 << 30
	MostDocuments   = 200_000_000
	// LuceneDocuments is how many documents one shard can hold at all, deleted
	// and nested ones included.
	LuceneDocuments = 2_147_483_519
	ShardsPerNode   = 1000
	IndicesPerGB    = 3000 // of a master's heap
	// LowWatermark is the share of a disk above which Elasticsearch allocates no
	// more shards to a node.
	LowWatermark = 0.85
	// copyRoom is what a copy takes on disk while it is made, merges included.
	copyRoom = 1.2
)

// Size is what a customer, a slot or a partition holds.
type Size struct {
	Documents int64 `json:"documents"`
	Bytes     int64 `json:"bytes"` // of primaries
}

func (s Size) plus(o Size) Size { return Size{s.Documents + o.Documents, s.Bytes + o.Bytes} }

// CustomerSize is the size of one customer.
type CustomerSize struct {
	Customer string `json:"customer"`
	Size
}

// PlanInput is all that a plan depends on. Zero values have the defaults that
// are named.
type PlanInput struct {
	// Prefix begins the names of the plan's indices, as in events-p000.
	Prefix string `json:"prefix"`
	// Customers are the sizes by customer, in any order. None: nothing is known
	// of the sizes, so Partitions must be set and slots are dealt evenly.
	Customers []CustomerSize `json:"customers"`
	Slots     int            `json:"slots"` // default: 4096
	// Partitions is how many share the customers that have none of their own; 0:
	// as many as they need.
	Partitions int `json:"partitions"`
	// Primaries is the number of primary shards of a shared partition; default:
	// 1. More let one customer's searches run in parallel.
	Primaries   int     `json:"primaries"`
	Replicas    int     `json:"replicas"`
	TargetShard int64   `json:"target_shard"` // bytes; default: 30 GB
	Growth      float64 `json:"growth"`       // sizes are multiplied by it first; default: 1.5
	Cluster     Cluster `json:"cluster"`
}

// Cluster is what the plan's indices must fit into. A value of 0 is not known
// and not looked at.
type Cluster struct {
	Nodes         int     `json:"nodes"` // that hold data
	DiskBytes     int64   `json:"disk_bytes"`
	DiskUsed      int64   `json:"disk_used"`
	LowWatermark  float64 `json:"low_watermark"`   // default: 0.85
	Shards        int     `json:"shards"`          // there are now, replicas included
	ShardsPerNode int     `json:"shards_per_node"` // cluster.max_shards_per_node; default: 1000
	Indices       int     `json:"indices"`
	MasterHeap    int64   `json:"master_heap"` // bytes
}

// Plan says which customers live in which partitions. Its file is JSON.
type Plan struct {
	Format int `json:"format"` // 1
	// Inputs is the hash over PlanInput: the same inputs make the same plan.
	Inputs string `json:"inputs"`
	// Hash is the hash over the plan without it. A plan that was edited by hand
	// is refused: see Check.
	Hash        string             `json:"hash"`
	Prefix      string             `json:"prefix"`
	Slots       int                `json:"slots"`
	Replicas    int                `json:"replicas"`
	TargetShard int64              `json:"target_shard"`
	Growth      float64            `json:"growth"`
	Partitions  []PlannedPartition `json:"partitions"`
	SlotMap     SlotMap            `json:"slot_map"`
	Overrides   map[string]string  `json:"overrides"`
	Total       Size               `json:"total"` // as measured, without growth
	Customers   int                `json:"customers"`
	// MaxOverMean compares the fullest shared partition with the mean of them;
	// 1 is even.
	MaxOverMean float64   `json:"max_over_mean"`
	Findings    []Finding `json:"findings"`
}

// PlannedPartition is one partition of a plan, with its size as measured.
type PlannedPartition struct {
	Name      string `json:"name"`
	Primaries int    `json:"primaries"`
	Size
	Customers int `json:"customers"`
	// Own is the customer that has the partition for itself; "": it is shared.
	Own string `json:"own,omitempty"`
	// Largest are the customers that fill it most, at most 3.
	Largest []CustomerSize `json:"largest,omitempty"`
}

// Finding is what a check of a plan has to say.
type Finding struct {
	Refused bool   `json:"refused"` // else a warning
	Text    string `json:"text"`
}

// Refused says whether the plan must not be carried out.
func (p *Plan) Refused() bool {
	return slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Refused })
}

// PlanError is an input that no plan can be made from.
type PlanError struct{ Problem, Remedy string }

func (e *PlanError) Error() string { return "plan: " + e.Problem + "; " + e.Remedy }

// planFormat is the version of the plan file's layout.
const planFormat = 1

func (in PlanInput) withDefaults() PlanInput {
	in.Slots = cmp.Or(in.Slots, Slots)
	in.Primaries = cmp.Or(in.Primaries, 1)
	in.TargetShard = cmp.Or(in.TargetShard, TargetShard)
	in.Growth = cmp.Or(in.Growth, 1.5)
	in.Cluster.LowWatermark = cmp.Or(in.Cluster.LowWatermark, LowWatermark)
	in.Cluster.ShardsPerNode = cmp.Or(in.Cluster.ShardsPerNode, ShardsPerNode)
	in.Customers = slices.Clone(in.Customers)
	slices.SortFunc(in.Customers, func(a, b CustomerSize) int { return cmp.Compare(a.Customer, b.Customer) })
	return in
}

func (in PlanInput) validate() error {
	refuse := func(problem, remedy string) error { return &PlanError{problem, remedy} }
	switch {
	case CheckIndex(in.Prefix) != "":
		return refuse(fmt.Sprintf("the prefix %q %s", in.Prefix, CheckIndex(in.Prefix)), "use the stream's name")
	case len(in.Prefix) > 100:
		return refuse("the prefix is longer than 100 bytes, which leaves no room for the rest of a name", "use a shorter one")
	case in.Slots < 1 || in.Slots > MaxSlots:
		return refuse(fmt.Sprintf("%d slots are not between 1 and %d", in.Slots, MaxSlots), fmt.Sprintf("use %d", Slots))
	case in.Partitions < 0 || in.Partitions > in.Slots:
		return refuse(fmt.Sprintf("%d partitions are not between 1 and the %d slots", in.Partitions, in.Slots), "ask for fewer")
	case in.Primaries < 1 || in.Primaries > 1024 || in.Replicas < 0 || in.Replicas > 1024:
		return refuse(fmt.Sprintf("%d primaries and %d replicas are no numbers of shards", in.Primaries, in.Replicas), "use 1 to 1024 primaries")
	case in.TargetShard < 1:
		return refuse("the target of a shard is not above 0 bytes", "use 30GB")
	case !(in.Growth >= 1 && in.Growth <= 1000):
		return refuse(fmt.Sprintf("growth %v is not between 1 and 1000", in.Growth), "use 1.5 to leave room for half as much again")
	case len(in.Customers) == 0 && in.Partitions == 0:
		return refuse("nothing says how many partitions there should be", "give the customers' sizes or a number of partitions")
	}
	var total Size
	for i, c := range in.Customers {
		if err := CheckCustomer([]byte(c.Customer)); err != nil {
			return refuse(fmt.Sprintf("customer %q: %v", c.Customer, err), "leave it out: it is not routed")
		}
		if i > 0 && c.Customer == in.Customers[i-1].Customer {
			return refuse(fmt.Sprintf("customer %q is there twice", c.Customer), "add its sizes up")
		}
		if total = total.plus(c.Size); c.Documents < 0 || c.Bytes < 0 || total.Documents < 0 || total.Bytes < 0 {
			return refuse(fmt.Sprintf("customer %q has %d documents and %d bytes, which is out of range", c.Customer, c.Documents, c.Bytes), "measure anew")
		}
	}
	return nil
}

// MakePlan spreads customers over partitions:
//
//   - A customer that would fill more than half of a partition gets its own.
//   - The others go where their slot goes. Slots are packed into as few
//     partitions as keep every shard at its target, evenly; of a slot that would
//     fill more than half of a partition the largest customers are packed by
//     themselves.
//
// No shared partition is over its target unless in.Partitions asks for too
// few; then a finding says so. MakePlan is pure: the same input, customers in
// any order, makes the same plan. Errors are *PlanError.
func MakePlan(in PlanInput) (*Plan, error) {
	in = in.withDefaults()
	if err := in.validate(); err != nil {
		return nil, err
	}
	b := newBuilder(in)
	b.separate()
	if err := b.pack(); err != nil {
		return nil, err
	}
	p := b.plan()
	p.Findings = findings(in, p)
	p.Inputs = hashOver(in)
	p.Hash = p.hash()
	return p, nil
}

func (p *Plan) hash() string {
	unsigned := *p
	unsigned.Hash = ""
	return hashOver(unsigned)
}

func hashOver(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers are finite, see validate
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(text))
}

// ParsePlan reads a plan file and refuses one that was changed since it was
// made, or that belongs to another version of the program.
func ParsePlan(file []byte) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal(file, &p); err != nil {
		return nil, &PlanError{fmt.Sprintf("the file is no plan: %v", err), "make it anew with sluice migrate plan"}
	}
	if p.Format != planFormat {
		return nil, &PlanError{fmt.Sprintf("the file has format %d and this program knows %d", p.Format, planFormat), "make it anew with sluice migrate plan"}
	}
	if p.hash() != p.Hash {
		return nil, &PlanError{"the file was changed since it was made: its hash is another", "make it anew with sluice migrate plan, with the options that lead to what you want"}
	}
	return &p, nil
}

// Index returns the name of the index that a partition gets. The suffix sets it
// apart from those of other jobs and attempts, whose names are never used twice;
// it does not end in read, as aliases do.
func (p *Plan) Index(planned PlannedPartition, suffix string) string {
	if planned.Own != "" {
		return Name(p.Prefix+"-w-", planned.Own, "-"+suffix)
	}
	return p.Prefix + "-" + planned.Name + "-" + suffix
}

// Alias returns the name of the alias that a partition is read by.
func (p *Plan) Alias(planned PlannedPartition) string {
	if planned.Own != "" {
		return Name(p.Prefix+"-w-", planned.Own, "-read")
	}
	return p.Prefix + "-" + planned.Name + "-read"
}

// Apply puts the plan into a table that writes to the legacy index only (W0),
// or that is about to be a stream's first: its partitions with their slots and
// overrides, the job, and the salt of its percents. Retired partitions are
// dropped: their indices must be gone.
func (p *Plan) Apply(t *Table, job, suffix string) error {
	if t.Slots != p.Slots {
		return &RefusedError{"slots", fmt.Sprintf("the table has %d and the plan %d", t.Slots, p.Slots), "make the plan with the table's"}
	}
	t.Partitions = map[string]Partition{}
	for _, planned := range p.Partitions {
		t.Partitions[planned.Name] = Partition{Index: p.Index(planned, suffix), Alias: p.Alias(planned), State: Active}
	}
	t.SlotMap, t.Overrides = slices.Clone(p.SlotMap), maps.Clone(p.Overrides)
	t.Job, t.Read.Salt = job, job
	return nil
}

// Simulated is a partition after some growth.
type Simulated struct {
	Name       string
	ShardBytes int64 // of each primary
	Documents  int64
	Overflows  bool // a shard is over LargestShard or MostDocuments
	// At is the growth at which it begins to.
	At float64
}

// Simulate says what the partitions are like once everybody has grown by a
// factor, the fullest first. 1 is today.
func (p *Plan) Simulate(growth float64) ([]Simulated, error) {
	if !(growth > 0 && growth <= 1e6) {
		return nil, &PlanError{fmt.Sprintf("growth %v is not above 0", growth), "use 2 for twice as much"}
	}
	all := make([]Simulated, 0, len(p.Partitions))
	for _, planned := range p.Partitions {
		shards := float64(planned.Primaries)
		s := Simulated{
			Name:       planned.Name,
			ShardBytes: int64(float64(planned.Bytes) * growth / shards),
			Documents:  int64(float64(planned.Documents) * growth / shards),
			At:         math.Inf(1),
		}
		if planned.Bytes > 0 || planned.Documents > 0 {
			s.At = min(LargestShard*shards/float64(planned.Bytes), MostDocuments*shards/float64(planned.Documents))
		}
		s.Overflows = growth > s.At
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b Simulated) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}
