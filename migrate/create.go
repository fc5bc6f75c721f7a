package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

// Plan is a plan file: what a job will make. It changes nothing by itself.
type Plan struct {
	Schema int       `json:"schema"`
	Stream string    `json:"stream"`
	Source string    `json:"source"`
	At     time.Time `json:"at"`
	// Docs and Bytes are what the source held.
	Docs  int64 `json:"docs"`
	Bytes int64 `json:"bytes"`
	// Customer says where documents name their customer, see ParseCustomers.
	Customer string `json:"customer"`
	// Large are customers with so many documents that a difference must be
	// narrowed before their ids are fetched.
	Large []string `json:"large,omitempty"`
	// Layout says which customer goes where.
	Layout *partition.Plan `json:"layout"`
	// Hash is over all of the above: a plan that was edited is another plan.
	Hash string `json:"hash"`
}

// Seal fills in the hash.
func (p *Plan) Seal() error {
	p.Hash = ""
	text, err := json.Marshal(p)
	if err == nil {
		p.Hash = digest(string(text))
	}
	return err
}

// sealed says whether the hash is that of the plan.
func (p Plan) sealed() bool {
	hash := p.Hash
	return p.Seal() == nil && p.Hash == hash
}

// drift is how far the source may have grown since the plan was made.
const drift = 0.2

func planID(job string) string { return "plan:" + job }

// Create makes what a plan says: the job, the new indices and their aliases,
// and their places in the routing table. Nothing is written to them yet. A
// create that was interrupted is repeated with the same plan.
func (m *Manager) Create(ctx context.Context, r Request, p Plan) (Result, error) {
	result := Result{Job: r.Job, Verb: "create", DryRun: r.DryRun}
	s := &step{}
	job, err := m.store.load(ctx, r.Job)
	if err != nil && !errors.Is(err, ErrNoJob) {
		return result, err
	}
	if job != nil {
		result.From = job.State
		if job.State != Planned || job.Plan != p.Hash {
			s.refuse("name another with --job, or go on with it: "+job.next(), "job %s exists and is %s", r.Job, job.State)
		}
	} else if m.checkVersions(s); len(s.refusals) > 0 {
		job = nil
	} else if job, err = m.draft(ctx, s, r.Job, p); err != nil {
		return result, err
	}
	if job != nil {
		for _, t := range job.Targets {
			s.does("index %s: %d shards, %d replicas; alias %s", t.Index, t.Shards, t.Replicas, t.Alias)
		}
	}
	result.Actions, result.Refusals = s.actions, s.refusals
	if r.DryRun {
		return result, nil
	}
	if len(s.refusals) > 0 {
		err := &RefusedError{"create", s.refusals, false}
		if result.From == "" {
			return result, err // there is no job whose audit log could tell
		}
		return m.finish(ctx, r, result, err)
	}
	if result.From == "" {
		if err := m.Control.Create(ctx, planID(r.Job), p); err != nil && !errors.Is(err, elastic.ErrConflict) {
			return result, err
		}
		if err := m.Control.Create(ctx, jobID(r.Job), job); err != nil {
			return result, err
		}
	}
	return m.finish(ctx, r, result, m.build(ctx, r.Job))
}

// draft is the job of a plan, and what speaks against it.
func (m *Manager) draft(ctx context.Context, s *step, name string, p Plan) (*Job, error) {
	const replan = "make another plan: sluice migrate plan"
	if problem := checkName(name); problem != "" {
		s.refuse("name it with --job", "%s", problem)
		return nil, nil
	}
	if p.Schema != schema || p.Layout == nil || !p.sealed() {
		s.refuse(replan, "the plan was changed by hand, or is of another version")
		return nil, nil
	}
	for _, finding := range p.Layout.Findings {
		if finding.Refused {
			s.refuse(replan, "%s", finding.Text)
		}
	}
	if p.Stream != m.Stream {
		s.refuse(replan, "the plan is for stream %s and routing.stream is %s", p.Stream, m.Stream)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	job := &Job{
		Schema: schema, Name: name, Stream: m.Stream, State: Planned, Source: p.Source, Prefix: p.Layout.Prefix, Plan: p.Hash, Customer: p.Customer, Round: 1,
		Large: p.Large, Throttle: DefaultLimits(), Created: now, Modified: now,
	}
	job.lay(p.Layout)
	if problem, err := m.problems(ctx, s, job, p); problem || err != nil {
		return job, err
	}
	return job, nil
}

// problems refuses a source that cannot be split, or a cluster without room.
func (m *Manager) problems(ctx context.Context, s *step, j *Job, p Plan) (bool, error) {
	source, err := m.checkSource(ctx, s, p.Source)
	if err != nil || source == nil {
		return true, err
	}
	if j.Mapping, err = mappingHash(source.Mappings); err != nil {
		return true, err
	}
	j.Restore = map[string]string{"index.refresh_interval": source.Setting("index.refresh_interval")}
	stats, err := m.Cluster.IndexStats(ctx, source.Name)
	if err != nil {
		return false, err
	}
	if grown := float64(stats.Docs - p.Docs); grown > drift*float64(p.Docs) || grown < -drift*float64(p.Docs) {
		s.refuse("make another plan: sluice migrate plan", "%s had %d documents when the plan was made and has %d now", p.Source, p.Docs, stats.Docs)
	}
	table, err := m.Tables.Load(ctx, m.Stream)
	switch {
	case errors.Is(err, partition.ErrNotFound):
	case err != nil:
		return false, err
	case table.Job != "":
		s.refuse("finish it or end it first (sluice migrate status --job "+table.Job+")", "job %s is under way on stream %s", table.Job, m.Stream)
	case table.Write != partition.W0 || table.Legacy == nil:
		s.refuse("leave it as it is; customers without documents can be placed with sluice routes set", "stream %s is in %s already, and customers with documents are not moved between its partitions", m.Stream, table.Write)
	case table.Legacy.Index != p.Source:
		s.refuse("plan with --source "+table.Legacy.Index, "the legacy index of stream %s is %s", m.Stream, table.Legacy.Index)
	}
	for _, t := range j.Targets {
		if problem := partition.CheckIndex(t.Index); problem != "" {
			s.refuse("name the job shorter", "%s: %s", t.Index, problem)
		}
		found, err := m.Cluster.Definitions(ctx, t.Index)
		if err != nil {
			return false, err
		}
		if d, there := found[t.Index]; there {
			if owner, _ := ownerOf(d); owner != j.Name {
				s.refuse("name another job with --job", "%s exists and does not carry the job's name", t.Index)
			}
		}
	}
	return false, m.checkShards(ctx, s, j)
}

// checkShards refuses more shards than the cluster lets open, and, where no
// template can forbid it, that a late delete makes an index.
func (m *Manager) checkShards(ctx context.Context, s *step, j *Job) error {
	info, err := m.Cluster.Info(ctx)
	if err != nil {
		return err
	}
	if info.Flavour == elastic.OpenSearch {
		settings, err := m.Cluster.ClusterSettings(ctx, "action.auto_create_index")
		if err != nil {
			return err
		}
		if !forbids(settings[0], pattern(j)) {
			s.refuse(fmt.Sprintf(`forbid it: PUT /_cluster/settings {"persistent":{"action.auto_create_index":"-%s,+*"}}`, pattern(j)),
				"a late delete would make a missing index: OpenSearch has no templates that forbid it")
		}
	}
	return nil
}

// forbids says whether action.auto_create_index refuses a pattern.
func forbids(setting, pattern string) bool {
	if setting == "false" {
		return true
	}
	for rule := range strings.SplitSeq(setting, ",") {
		rule = strings.TrimSpace(rule)
		if rule == "-"+pattern || rule == "-*" {
			return true
		}
		if !strings.HasPrefix(rule, "-") {
			return false // the first that may match decides
		}
	}
	return false
}

// pattern matches the job's indices and their aliases.
func pattern(j *Job) string { return j.Prefix + "-*-" + j.Name + "*" }

// priority is that of a job's index template: above all that others have, and
// its own, since a server refuses two templates of one priority whose patterns
// some name might match both, and an earlier job's template stays.
func priority(job string) int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(job)) // a hash never fails
	return 1_000_000 + int64(h.Sum32())
}

// build makes what a planned job needs, and is repeated until it is there.
func (m *Manager) build(ctx context.Context, name string) error {
	var p Plan
	if _, _, err := m.Control.Get(ctx, planID(name), &p); err != nil {
		return err
	}
	j, err := m.store.change(ctx, name, func(j *Job) error {
		if j.State != Planned || len(j.Targets) > 0 {
			return errSame
		}
		j.lay(p.Layout)
		return nil
	})
	if err != nil || j.State == Created {
		return err
	}
	info, err := m.Cluster.Info(ctx)
	if err != nil {
		return err
	}
	if info.Flavour == elastic.Elasticsearch {
		// Before the first write: a delete with an external version makes a missing
		// index, whatever else is said.
		if err := m.Cluster.PutTemplate(ctx, "sluice-"+name, map[string]any{
			"index_patterns": []string{pattern(j)}, "priority": priority(name), "allow_auto_create": false,
			"_meta": map[string]any{"sluice": map[string]any{"job": name}},
		}); err != nil {
			return err
		}
	}
	definitions, err := m.Cluster.Definitions(ctx, j.Source)
	if err != nil {
		return err
	}
	source, there := definitions[j.Source]
	if !there {
		return fmt.Errorf("%s is gone", j.Source)
	}
	hash, err := mappingHash(source.Mappings)
	if err != nil {
		return err
	}
	vectors, err := m.hidesVectors(ctx, source)
	if err != nil {
		return err
	}
	for _, t := range j.Targets {
		body, err := definition(source, j, t, vectors != "")
		if err != nil {
			return err
		}
		if err := m.Cluster.CreateIndex(ctx, t.Index, body); err != nil && !errors.Is(err, elastic.ErrExists) {
			return err
		}
		if err := m.checkTarget(ctx, j, t.Index); err != nil {
			return err
		}
	}
	if err := m.place(ctx, j, p); err != nil {
		return err
	}
	differ, err := m.unlikeTargets(ctx, j, source.Mappings)
	if err != nil {
		return err
	}
	_, err = m.store.move(ctx, name, Created, func(j *Job) { j.Mapping, j.Unlike = hash, differ }, Planned)
	return err
}

// place puts the new indices into the routing table, which goes on to send
// everything to the legacy index.
func (m *Manager) place(ctx context.Context, j *Job, p Plan) error {
	edit := func(t *partition.Table) error {
		switch {
		case t.Job == j.Name && len(t.SlotMap) > 0:
			return errSame
		case t.Job != "" && t.Job != j.Name:
			return fmt.Errorf("job %s is under way on stream %s: finish or cancel it first", t.Job, m.Stream)
		}
		return p.Layout.Apply(t, j.Name, j.suffix())
	}
	read, err := m.Tables.Load(ctx, m.Stream)
	if errors.Is(err, partition.ErrNotFound) {
		highest, err := m.Group.HighestEpoch(ctx)
		if err != nil {
			return err
		}
		t := partition.New(m.Stream, j.Source)
		t.Epoch, t.UpdatedBy, t.UpdatedAt = highest+1, m.Owner, time.Now().UTC().Truncate(time.Millisecond)
		if err := edit(t); err != nil {
			return err
		}
		return m.Tables.Create(ctx, t)
	}
	if err != nil {
		return err
	}
	next, err := m.next(read, edit)
	if errors.Is(err, errSame) {
		return nil
	}
	if err != nil {
		return err
	}
	return m.Tables.Update(ctx, read, next)
}

// kept are settings of an index that belong to that index only.
var kept = []string{
	"index.uuid", "index.creation_date", "index.provided_name", "index.version.", "index.number_of_shards", "index.number_of_replicas",
	"index.number_of_routing_shards", "index.routing_partition_size", "index.blocks.", "index.resize.", "index.history.", "index.lifecycle.",
	"index.routing.allocation.initial_recovery.", "index.auto_expand_replicas", "index.replication.type", "index.refresh_interval", "index.hidden",
}

// leastGC is how long the new indices remember deletes at least.
const leastGC = 15 * time.Minute

// definition is the request that makes a target as the source is, not as the
// documents that happen to come first would have it.
// vectors says that it is to show them.
func definition(source elastic.Definition, j *Job, t Target, vectors bool) (map[string]any, error) {
	settings := map[string]any{}
	for name, value := range source.Settings {
		if !slices.ContainsFunc(kept, func(k string) bool { return name == k || strings.HasSuffix(k, ".") && strings.HasPrefix(name, k) }) {
			settings[name] = value
		}
	}
	settings["index.number_of_shards"], settings["index.number_of_replicas"] = strconv.Itoa(t.Shards), strconv.Itoa(t.Replicas)
	settings["index.refresh_interval"] = "30s" // while documents are copied
	if gc, err := time.ParseDuration(source.Setting("index.gc_deletes")); err != nil || gc < leastGC {
		settings["index.gc_deletes"] = "15m"
	}
	if vectors {
		settings[hideVectors] = "false"
	}
	mappings, err := decodeMapping(source.Mappings)
	if err != nil {
		return nil, err
	}
	fields, _ := mappings["properties"].(map[string]any)
	fields = maps.Clone(fields)
	if fields == nil {
		fields = map[string]any{}
	}
	fields[TombstoneField] = map[string]any{"type": "boolean"}
	fields[TombstoneField+"_at"] = map[string]any{"type": "date", "format": "epoch_millis"}
	mappings["properties"] = fields
	mappings["_meta"] = map[string]any{"sluice": map[string]any{"job": j.Name, "plan": j.Plan}}
	return map[string]any{
		"settings": settings, "mappings": mappings,
		"aliases": map[string]any{t.Alias: map[string]any{"filter": alive()}},
	}, nil
}

// ownerOf returns the job that made an index; "" for none.
func ownerOf(d elastic.Definition) (string, error) {
	var m struct {
		Meta struct {
			Sluice struct {
				Job string `json:"job"`
			} `json:"sluice"`
		} `json:"_meta"`
	}
	if len(d.Mappings) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(d.Mappings, &m); err != nil {
		return "", fmt.Errorf("the mapping of %s cannot be read: %w", d.Name, err)
	}
	return m.Meta.Sluice.Job, nil
}
