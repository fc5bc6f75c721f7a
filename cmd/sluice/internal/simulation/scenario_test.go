//go:build synctests

package simulation

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/memory"
)

const (
	group       = "sluice"
	deadLetters = "dead"
	control     = ".control"
	// deletesKept is index.gc_deletes: longer than anything is delayed.
	deletesKept = "15m"
	// load is how long records are produced and faults begin.
	load = 30 * time.Second
	// heldBytes is what held targets may fill where their records are parked:
	// the worlds are small.
	heldBytes = 1 << 10
	// patience bounds the time from the last fault to the end, when everything
	// must be committed.
	patience = 10 * time.Minute
)

// scenario is all that follows from a seed.
type scenario struct {
	seed    uint64
	brokers int
	topics  []topicPlan
	batches []batchPlan // in order
	steps   []step      // by time
	members int         // how many are named in steps
	grow    *growth     // nil: no topic gets more partitions
	cfg     configPlan
	records int
}

// topicPlan is one topic, whose records go to an index for each tenant.
type topicPlan struct {
	name       string
	partitions int32
	tenants    int
	shards     int
}

// growth is a topic that gets more partitions, so that keys move: the group is
// stopped, the generation raised, and others start.
type growth struct {
	at         time.Duration
	partitions int32 // of the first topic, from then on
}

// batchPlan is what is produced at once.
type batchPlan struct {
	at      time.Duration
	records []*planned
	abort   bool // its transaction is aborted: the records never count
	grown   bool // the topic has grown before
}

// planned is a record and what is to become of it.
type planned struct {
	*kgo.Record
	fate  fate
	index string
	doc   string // the id of its document
	gen   int    // recorded generation
}

type fate uint8

const (
	stored  fate = iota
	deleted      // a null
	bad          // no index takes it
	ignored      // a null without a key
)

// configPlan is the configuration that all members share.
type configPlan struct {
	text         []byte
	tombstones   bool
	openSearch   bool
	static       bool // members with an instance id
	offsets      bool // version: offset
	transactions bool // the producer's, not Sluice's
	parks        bool // the records of held targets are parked, soon
	session      time.Duration
	request      time.Duration
}

// step is something that is done to servers or members, and undone later.
type step struct {
	at, lasts time.Duration
	kind      string
	text      string
	begin     func(*world) (end func())
}

func (s step) String() string {
	if s.lasts == 0 {
		return fmt.Sprintf("%8v          %-18s %s", s.at.Round(time.Millisecond), s.kind, s.text)
	}
	return fmt.Sprintf("%8v +%-8v%-18s %s", s.at.Round(time.Millisecond), s.lasts.Round(time.Millisecond), s.kind, s.text)
}

func (s *scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d brokers, topics", s.seed, s.brokers)
	for _, t := range s.topics {
		fmt.Fprintf(&b, " %s(%d partitions, %d indices)", t.name, t.partitions, t.tenants)
	}
	fmt.Fprintf(&b, ", %d records, parks %v\n  configuration %s\n", s.records, s.cfg.parks, s.cfg.text)
	for _, step := range s.steps {
		fmt.Fprintf(&b, "  %s\n", step)
	}
	return b.String()
}

// pick returns one of choices.
func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// between returns a duration in [low, high).
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// derive makes a seed's scenario.
func derive(seed uint64) *scenario {
	r := rand.New(rand.NewPCG(seed, 0x51ce))
	s := &scenario{seed: seed, brokers: 1 + r.IntN(3)}
	for i := range 1 + r.IntN(4)/3 {
		s.topics = append(s.topics, topicPlan{
			name: fmt.Sprintf("t%d", i), partitions: int32(1 + r.IntN(12/(i+1))), tenants: 1 + r.IntN(3), shards: 1 + r.IntN(2),
		})
	}
	s.configure(r)
	if !s.cfg.offsets && r.IntN(8) == 0 {
		s.grow = &growth{at: between(r, load/4, load*3/4), partitions: s.topics[0].partitions + 1 + int32(r.IntN(6))}
	}
	s.produce(r)
	s.cast(r)
	s.disturb(r)
	slices.SortStableFunc(s.steps, func(a, b step) int { return int(a.at - b.at) })
	// Drawn apart, so that it changes nothing else of a seed.
	s.cfg.parks = rand.New(rand.NewPCG(seed, 0x9a2c)).IntN(2) == 0
	return s
}

func (s *scenario) configure(r *rand.Rand) {
	c := &s.cfg
	c.session = between(r, 6*time.Second, 12*time.Second)
	c.request = between(r, 2*time.Second, 10*time.Second)
	c.tombstones, c.offsets, c.transactions = r.IntN(5) == 0, r.IntN(6) == 0, r.IntN(4) == 0
	c.openSearch, c.static = r.IntN(5) == 0, r.IntN(6) == 0
	limit := pick(r, "1MiB", "8MiB", "64MiB")
	if limit != "64MiB" {
		// kfake leaves the aborted transactions of the partition at which an
		// answer is full out of the answer, and a small limit fills answers.
		c.transactions = false
	}
	topics := make([]string, len(s.topics))
	for i, t := range s.topics {
		topics[i] = t.name
	}
	documents := map[string]any{"index": "i-${topic}-${header:tenant}", "validate": pick(r, "server", "server", "strict")}
	if c.offsets {
		documents["version"] = "offset"
	}
	text, err := json.Marshal(map[string]any{ // JSON is YAML
		"kafka": map[string]any{
			"group_id": group, "topics": topics, "brokers": []string{"localhost:9092"},
			"session_timeout": c.session.String(), "rebalance_timeout": between(r, 8*time.Second, 20*time.Second).String(),
			"drain_timeout":   between(r, 300*time.Millisecond, 4*time.Second).String(),
			"commit_interval": pick(r, "100ms", "500ms", "1s", "3s"),
			"fetch":           map[string]any{"max_wait": pick(r, "1s", "2s", "5s")},
		},
		"elasticsearch": map[string]any{
			"addresses": []string{"http://elasticsearch:9200"}, "compression_level": r.IntN(2), "request_timeout": c.request.String(),
		},
		"documents": documents,
		"indexer": map[string]any{
			"flush_bytes": pick(r, "4KiB", "16KiB", "64KiB", "512KiB"), "flush_documents": pick(r, 1, 7, 50, 10000, 10000),
			"flush_interval": pick(r, "20ms", "100ms", "500ms", "1s"),
			"requests":       map[string]any{"min": 1, "max": pick(r, 1, 2, 4, 16)},
			"scaling":        map[string]any{"min": 1, "max": 1 + r.IntN(3)},
			"retry":          map[string]any{"initial": "100ms", "max": pick(r, "1s", "5s")},
		},
		"memory":           map[string]any{"limit": limit},
		"dead_letter":      map[string]any{"topic": deadLetters},
		"routing":          map[string]any{"control_index": control},
		"procs":            map[string]any{"mode": "runtime"},
		"shutdown_timeout": between(r, 2*time.Second, 20*time.Second).String(),
	})
	if err != nil {
		panic(err) // texts and numbers
	}
	c.text = text
}

// config returns a configuration of its own for each member.
func (s *scenario) config() (*config.Config, error) {
	cfg, err := config.Parse([]config.Source{{Name: "simulation", Data: s.cfg.text}}, nil, func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, err
	}
	cfg.Admin.Address = "" // no real sockets in a bubble
	if s.cfg.tombstones {
		cfg.Documents.Deletes = "tombstone" // not for users yet
	}
	if s.cfg.parks {
		cfg.Indexer.Held = "park"
		cfg.Memory.HeldShare = memory.Share(heldBytes / float64(cfg.Memory.Limit))
	}
	return cfg, nil
}

// Bad values, by what is wrong with them; each is refused by the index, or
// before it.
var badValues = []func(good string) string{
	func(good string) string { return good[:len(good)/2] },
	func(good string) string { return good + good },
	func(string) string { return `[{"n":1}]` },
	func(string) string { return `"text"` },
	func(string) string { return "" },
	func(string) string { return `{"n":"not a number"}` },
	func(string) string { return `{"n":NaN}` },
	func(string) string { return "{\"n\":1,\n\"s\":}" },
}

// produce plans the records: the lives of a few keys, in batches.
func (s *scenario) produce(r *rand.Rand) {
	keys := 4 + r.IntN(40)
	s.records = 500 + r.IntN(150)
	large := r.IntN(4) == 0
	for n := 0; n < s.records; {
		size := min(1+r.IntN(60), s.records-n)
		s.batches = append(s.batches, batchPlan{at: between(r, 0, load), records: make([]*planned, size)})
		n += size
	}
	// Their times are in order, but not evenly spread: bursts and pauses.
	slices.SortFunc(s.batches, func(a, b batchPlan) int { return int(a.at - b.at) })
	n := 0
	for i := range s.batches {
		b := &s.batches[i]
		b.abort = s.cfg.transactions && r.IntN(6) == 0
		b.grown = s.grow != nil && b.at >= s.grow.at
		for k := range b.records {
			b.records[k] = s.record(r, n, keys, large, b.grown)
			n++
		}
	}
}

func (s *scenario) record(r *rand.Rand, n, keys int, large, grown bool) *planned {
	topic := r.IntN(len(s.topics))
	t := s.topics[topic]
	p := &planned{Record: &kgo.Record{Topic: t.name}, gen: 1}
	if grown && topic == 0 {
		t.partitions, p.gen = s.grow.partitions, 2
	}
	key := fmt.Sprintf("key-%d", r.IntN(keys))
	place := fnv.New32a()
	_, _ = place.Write([]byte(key)) // never fails
	p.Partition = int32(place.Sum32() % uint32(t.partitions))
	tenant := int(place.Sum32()>>8) % t.tenants
	p.Key, p.doc = []byte(key), key
	pad := r.IntN(200)
	if large {
		pad = r.IntN(3000)
	}
	good := fmt.Sprintf(`{"n":%d,"of":%q,"pad":%q}`, n, key, strings.Repeat("x", pad))
	switch chance := r.IntN(100); {
	case chance < 8: // the id is the position, known once it is written
		p.Key, p.doc = pick(r, nil, []byte{}), ""
		p.Partition = int32(r.IntN(int(t.partitions)))
		p.Value = []byte(good)
	case chance < 10:
		p.Key, p.doc, p.fate = nil, "", ignored
	case chance < 12:
		p.fate = bad
		p.Value = []byte(badValues[r.IntN(len(badValues))](good))
	case chance < 13: // an id over 512 bytes
		p.fate = bad
		p.Key = []byte(key + strings.Repeat("k", 600))
		p.doc = string(p.Key)
		p.Value = []byte(good)
	case chance < 30:
		p.fate = deleted
	case chance < 33: // compacted to one line before it is sent
		p.Value = []byte(strings.Replace(good, ",", ",\n  ", 1))
	default:
		p.Value = []byte(good)
	}
	p.index = fmt.Sprintf("i-%s-%d", t.name, tenant)
	p.Headers = []kgo.RecordHeader{{Key: "tenant", Value: fmt.Append(nil, tenant)}, {Key: "other", Value: nil}}
	return p
}

// document is the source that an index must hold for the record.
func (p *planned) document() string { return strings.ReplaceAll(string(p.Value), ",\n  ", ",") }

// position is the id of a record without a key (DESIGN 5.1).
func (p *planned) position() string {
	topic := p.Topic
	if p.gen > 1 {
		topic += fmt.Sprintf("+g%d", p.gen)
	}
	return fmt.Sprintf("%s+%d+%d", topic, p.Partition, p.Offset)
}

// version is what a record is written with (DESIGN 5.2).
func (s *scenario) version(p *planned) int64 {
	switch {
	case len(p.Key) == 0:
		return 0
	case s.cfg.offsets:
		return p.Offset
	}
	return int64(p.gen)<<53 | (p.Offset+1)<<8
}
