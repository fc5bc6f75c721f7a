package partition

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const gb = 1 << 30

// sizes draws customers of all sizes, up to whales.
func sizes(t *rapid.T) []CustomerSize {
	n := rapid.IntRange(1, 60).Draw(t, "customers")
	all := make([]CustomerSize, n)
	for i := range all {
		all[i] = CustomerSize{fmt.Sprintf("c%d*", i), Size{
			Documents: int64(math.Pow(10, rapid.Float64Range(0, 9).Draw(t, "documents"))),
			Bytes:     int64(math.Pow(10, rapid.Float64Range(0, 11.5).Draw(t, "bytes"))),
		}}
	}
	return all
}

func mustPlan(t interface{ Fatal(...any) }, in PlanInput) *Plan {
	p, err := MakePlan(in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Every customer is in one partition, by the table that the plan makes: the
// sizes that the plan promises are those that routing leads to.
func TestPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := PlanInput{
			Prefix: "events", Customers: sizes(t), Slots: rapid.SampledFrom([]int{64, 512}).Draw(t, "slots"),
			Primaries: rapid.IntRange(1, 3).Draw(t, "primaries"), Growth: rapid.Float64Range(1, 3).Draw(t, "growth"),
			Cluster: Cluster{Nodes: rapid.IntRange(0, 5).Draw(t, "nodes")},
		}
		if rapid.Bool().Draw(t, "few") {
			in.Partitions = rapid.IntRange(1, 10).Draw(t, "partitions")
		}
		p, err := MakePlan(in)
		var refused *PlanError
		if errors.As(err, &refused) && strings.Contains(refused.Problem, "more partitions than there are slots") {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		table, err := p.Table("events", "j1")
		if err != nil {
			t.Fatal(err)
		}
		r, held := NewRouter(table, CacheOptions{}), map[string]PlannedPartition{}
		for _, c := range in.Customers {
			at := r.Route([]byte(c.Customer)).New
			h := held[at]
			held[at] = PlannedPartition{Size: h.plus(c.Size), Customers: h.Customers + 1}
		}
		slotsOf := map[string]int{}
		for _, name := range p.SlotMap {
			slotsOf[name]++
		}
		shared := 0
		for _, planned := range p.Partitions {
			h := held[p.Index(planned, "j1")]
			if h.Size != planned.Size || h.Customers != planned.Customers {
				t.Fatalf("%s holds %+v and the plan says %+v", planned.Name, h, planned)
			}
			if planned.Own != "" {
				if planned.Customers != 1 || slotsOf[planned.Name] > 0 {
					t.Fatalf("%s is not %s's own: %+v", planned.Name, planned.Own, planned)
				}
				continue
			}
			shared++
			shards := float64(planned.Primaries) / in.Growth
			if in.Partitions == 0 && (float64(planned.Bytes) > TargetShard*shards*1.0001 || float64(planned.Documents) > TargetDocuments*shards*1.0001) {
				t.Fatalf("%s is over its target: %+v", planned.Name, planned)
			}
		}
		if in.Partitions > 0 && shared != in.Partitions {
			t.Fatalf("%d partitions, and %d were asked for", shared, in.Partitions)
		}

		shuffled := slices.Clone(in.Customers)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again := in
		again.Customers = shuffled
		if q := mustPlan(t, again); q.Hash != p.Hash || q.Inputs != p.Inputs || !reflect.DeepEqual(p, q) {
			t.Fatal("the same customers in another order make another plan")
		}
		file, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		read, err := ParsePlan(file)
		if err != nil || read.hash() != p.Hash || !slices.Equal(read.SlotMap, p.SlotMap) {
			t.Fatalf("the plan file cannot be read back: %v", err)
		}
	})
}

// Even customers spread evenly, and customers to come do too.
func TestPlanIsEven(t *testing.T) {
	var even []CustomerSize
	for _, c := range customers(3000) {
		even = append(even, CustomerSize{string(c), Size{1_000_000, gb / 10}})
	}
	p := mustPlan(t, PlanInput{Prefix: "events", Customers: even, Growth: 1, Cluster: Cluster{Nodes: 4}})
	if n := len(p.Partitions); n != 24 && n != 20 {
		t.Errorf("3000 customers of 0.1 GB and 1 M documents: %d partitions", n)
	}
	if p.MaxOverMean > 1.02 {
		t.Errorf("the fullest is %.3f times the mean", p.MaxOverMean)
	}
	count := map[string]int{}
	for _, name := range p.SlotMap {
		count[name]++
	}
	for name, n := range count {
		if n < Slots/len(p.Partitions)*8/10 {
			t.Errorf("%s has %d slots for customers to come", name, n)
		}
	}
}

// Without sizes the slots are dealt evenly, in runs: a short table.
func TestPlanWithoutSizes(t *testing.T) {
	p := mustPlan(t, PlanInput{Prefix: "events", Partitions: 3})
	text, err := p.SlotMap.MarshalText()
	if err != nil || string(text) != "0-1365=p000 1366-2730=p001 2731-4095=p002" {
		t.Errorf("%s, %v", text, err)
	}
	table, err := p.Table("events", "1")
	if err != nil {
		t.Fatal(err)
	}
	if r := NewRouter(table, CacheOptions{}); r.Route([]byte("acme")) != (Route{New: "events-p002-1"}) || r.Read([]byte("acme")) != "events-p002-read" {
		t.Errorf("%+v, %s", r.Route([]byte("acme")), r.Read([]byte("acme")))
	}
}

// A customer over half a partition gets one of its own, with as many shards as
// it needs and the nodes give.
func TestPlanGivesWhalesTheirOwn(t *testing.T) {
	p := mustPlan(t, PlanInput{Prefix: "events", Growth: 1, Cluster: Cluster{Nodes: 3}, Customers: []CustomerSize{
		{"Whale*", Size{10, 70 * gb}}, {"leviathan", Size{10, 500 * gb}}, {"many", Size{100_000_000, gb}}, {"half", Size{10, 15 * gb}}, {"small", Size{10, gb}},
	}})
	own := map[string]int{}
	for _, planned := range p.Partitions {
		if planned.Own != "" {
			own[planned.Own] = planned.Primaries
		}
	}
	if want := map[string]int{"Whale*": 3, "leviathan": 3, "many": 1}; !reflect.DeepEqual(own, want) {
		t.Errorf("%v, want %v", own, want)
	}
	if got := p.Overrides[`Whale\*`]; got != "w-=57hale=2a" || p.Index(p.Partitions[len(p.Partitions)-3], "j7") != "events-w-=57hale=2a-j7" {
		t.Errorf("%q, %+v", got, p.Partitions)
	}
	if !slices.ContainsFunc(p.Findings, func(f Finding) bool {
		return !f.Refused && strings.Contains(f.Text, "w-leviathan would hold 167 GB a shard")
	}) {
		t.Errorf("no word of shards of 167 GB: %v", p.Findings)
	}
}

func TestPlanFindings(t *testing.T) {
	base := PlanInput{Prefix: "events", Growth: 1, Replicas: 1, Customers: []CustomerSize{{"a", Size{1000, 14 * gb}}, {"b", Size{1000, 14 * gb}}, {"c", Size{1000, 14 * gb}}, {"d", Size{1000, 14 * gb}}}}
	if p := mustPlan(t, base); len(p.Findings) != 0 || len(p.Partitions) != 2 {
		t.Fatalf("%v %+v", p.Findings, p.Partitions)
	}
	for want, edit := range map[string]func(*PlanInput){
		"more than the 4000 that 4 nodes take": func(in *PlanInput) { in.Cluster = Cluster{Nodes: 4, Shards: 3999} },
		"1 replicas need 2 nodes":              func(in *PlanInput) { in.Cluster = Cluster{Nodes: 1} },
		"fills the disks with 234 GB, and allocation stops at 170 GB": func(in *PlanInput) {
			in.Cluster = Cluster{DiskBytes: 200 * gb, DiskUsed: 100 * gb}
		},
		"over the target of 30.0 GB":      func(in *PlanInput) { in.Partitions = 1; in.Customers = in.Customers[:3] },
		"would hold 56 GB a shard":        func(in *PlanInput) { in.Partitions = 1 },
		"do not spread evenly over 3":     func(in *PlanInput) { in.Cluster.Nodes = 3; in.Partitions = 2 },
		"250 M documents a shard":         func(in *PlanInput) { in.Partitions = 1; add(in, 50, Size{5_000_000, 0}) },
		"a shard holds 2147483519":        func(in *PlanInput) { in.Partitions = 1; add(in, 50, Size{50_000_000, 0}) },
		"the smallest shard would hold 0": func(in *PlanInput) { in.Partitions = 64 },
		"holds 2.00 times the mean":       func(in *PlanInput) { in.Partitions = 8 },
		"a master with 1 GB of heap":      func(in *PlanInput) { in.Cluster = Cluster{MasterHeap: gb, Indices: 2999} },
	} {
		in := base
		in.Customers = slices.Clone(base.Customers)
		edit(&in)
		p := mustPlan(t, in)
		if !slices.ContainsFunc(p.Findings, func(f Finding) bool { return strings.Contains(f.Text, want) }) {
			t.Errorf("no finding says %q: %v", want, p.Findings)
		}
	}
}

func add(in *PlanInput, n int, size Size) {
	for i := range n {
		in.Customers = append(in.Customers, CustomerSize{fmt.Sprint("more", i), size})
	}
}

func TestPlanRefusesBadInput(t *testing.T) {
	for want, in := range map[string]PlanInput{
		"nothing says how many partitions":     {Prefix: "events"},
		`the prefix "Events" has upper case`:   {Prefix: "Events", Partitions: 1},
		"5 partitions are not between 1 and":   {Prefix: "events", Partitions: 5, Slots: 4},
		"growth 0.5 is not between":            {Prefix: "events", Partitions: 1, Growth: 0.5},
		"growth NaN is not between":            {Prefix: "events", Partitions: 1, Growth: math.NaN()},
		`customer "": a customer is not empty`: {Prefix: "events", Customers: []CustomerSize{{}}},
		`customer "a" is there twice`:          {Prefix: "events", Customers: []CustomerSize{{"a", Size{}}, {"b", Size{}}, {"a", Size{}}}},
		"which is out of range":                {Prefix: "events", Customers: []CustomerSize{{"a", Size{1, math.MaxInt64}}, {"b", Size{1, 1}}}},
		"more partitions than there are slots": {Prefix: "events", Customers: []CustomerSize{{"a", Size{1, 1 << 60}}}, TargetShard: 1, Slots: 1},
	} {
		_, err := MakePlan(in)
		var refused *PlanError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || refused.Remedy == "" {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestParsePlanRefusesEdits(t *testing.T) {
	file, err := json.Marshal(mustPlan(t, PlanInput{Prefix: "events", Partitions: 2}))
	if err != nil {
		t.Fatal(err)
	}
	for old, edit := range map[string]string{
		`"primaries":1`: `"primaries":2`, `"0-2047=p000`: `"0-2046=p000`, `"format":1`: `"format":2`, `{"format"`: `"format"`,
		`2048-4095=p001`: `2048=p001 2049-4095=p000`, `"refused":true`: `"refused":false`,
	} {
		changed := strings.Replace(string(file), old, edit, 1)
		if _, err := ParsePlan([]byte(changed)); (err == nil) != (changed == string(file)) {
			t.Errorf("%s instead of %s: %v", edit, old, err)
		}
	}
}

func TestSimulate(t *testing.T) {
	p := mustPlan(t, PlanInput{Prefix: "events", Growth: 1, Partitions: 2, Customers: []CustomerSize{{"a", Size{1000, 14 * gb}}, {"b", Size{50_000_000, gb}}}})
	today, err := p.Simulate(1)
	if err != nil || today[0].Overflows || today[0].ShardBytes != 14*gb || today[0].At < 3.5 || today[0].At > 3.6 || today[1].At != 4 {
		t.Errorf("%+v, %v", today, err)
	}
	later, err := p.Simulate(3.8)
	if err != nil || !later[0].Overflows || later[1].Overflows {
		t.Errorf("%+v, %v", later, err)
	}
	if _, err := p.Simulate(-1); err == nil {
		t.Error("growth -1 is possible")
	}
}

func TestApply(t *testing.T) {
	p := mustPlan(t, PlanInput{Prefix: "events", Partitions: 2})
	table := New("events", "events")
	next, err := table.Change(Change{Edit: func(t *Table) error { return p.Apply(t, "j7", "j7") }})
	if err != nil || next.Job != "j7" || next.Read.Salt != "j7" || next.Partitions["p001"].Index != "events-p001-j7" {
		t.Errorf("%+v, %v", next, err)
	}
	table.Slots = 8
	var refused *RefusedError
	if err := p.Apply(table, "j7", "j7"); !errors.As(err, &refused) {
		t.Errorf("a plan of %d slots for a table of %d: %v", p.Slots, table.Slots, err)
	}
}

func BenchmarkPlan(b *testing.B) {
	var all []CustomerSize
	random := rand.New(rand.NewPCG(1, 1))
	for _, c := range customers(100_000) {
		all = append(all, CustomerSize{string(c), Size{random.Int64N(1_000_000), random.Int64N(gb / 10)}})
	}
	for b.Loop() {
		if _, err := MakePlan(PlanInput{Prefix: "events", Customers: all, Cluster: Cluster{Nodes: 5}}); err != nil {
			b.Fatal(err)
		}
	}
}
