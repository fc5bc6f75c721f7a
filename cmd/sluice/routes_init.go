package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/partition"
)

func newRoutesInit() *cobra.Command {
	var flags routesFlags
	var layout layout
	var n int
	var from string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Makes the routing table of a stream, and index partitions for a new one",
		Long: `Makes the routing table of routing.stream. Without --partitions the stream goes on
as it is (W0): documents.index is its legacy index, which a migration can split
later (sluice migrate).

With --partitions the stream starts partitioned (W3); documents.index is not used
then. It makes, in this order, each step safe to repeat:

  an index template over PREFIX-p*   what the cluster's templates and --body say,
                                     the fields of tombstones, and that no index
                                     comes into being by itself
  the indices PREFIX-p000, ...       as the template says
  an alias PREFIX-p000-read for each which hides tombstones: searches go there
  the alias PREFIX-all over all of them
  the routing table                  from now on members may start

The epoch begins above the highest that the group's commits carry. After the
table was lost, damaged or put back from a backup, --from makes it anew from what
sluice routes show --json printed of it last.`,
		Example: `  sluice routes init -c sluice.yaml
  sluice routes init -c sluice.yaml --partitions 24 --shards 2 --dry-run`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			r, err := flags.connect(cmd)
			if err != nil {
				return err
			}
			defer r.close(ctx)
			if cmd.Flags().Changed("partitions") && (n < 1 || n > partition.Slots) {
				return &exit{exitUsage, fmt.Errorf("--partitions: %d is not between 1 and %d", n, partition.Slots)}
			}
			if from != "" && n > 0 {
				return &exit{exitUsage, errors.New("--from says which partitions there are: leave --partitions out")}
			}
			layout.stream, layout.prefix = r.stream, cmp.Or(layout.prefix, r.stream)
			plan, err := r.plan(ctx, &layout, n, from)
			if err != nil {
				return err
			}
			plan.DryRun = dryRun
			if !dryRun {
				if err := r.make(ctx, plan); err != nil {
					return storeError(err)
				}
			}
			return r.print(plan, plan.show)
		}),
	}
	flags.add(cmd)
	cmd.Flags().IntVar(&n, "partitions", 0, "starts partitioned, with so many index partitions")
	layout.add(cmd)
	cmd.Flags().StringVar(&from, "from", "", "file with a table of this stream as routes show --json prints it: it is stored under a new epoch, and nothing else is made")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "says what would be made, and makes nothing")
	return cmd
}

// layout is how index partitions are made.
type layout struct {
	stream, prefix   string
	shards, replicas int // below 0: as the cluster's templates say
	body             string
}

func (l *layout) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.prefix, "prefix", "", "what the names of the indices begin with (default: the stream's name)")
	cmd.Flags().IntVar(&l.shards, "shards", -1, "primary shards of each index (default: as the cluster's templates say)")
	cmd.Flags().IntVar(&l.replicas, "replicas", -1, "copies of each shard (default: as the cluster's templates say)")
	cmd.Flags().StringVar(&l.body, "body", "", "JSON file with settings and mappings for each index, which win over the templates'")
}

// index names the index of a partition, and its alias for readers.
func (l *layout) index(name string) partition.Partition {
	index := l.prefix + "-" + name
	return partition.Partition{Index: index, Alias: index + "-read", State: partition.Active}
}

// all is the alias over all partitions. While a document is in one index only,
// a search over it counts none twice.
func (l *layout) all() string { return l.prefix + "-all" }

// template is the index template that keeps indices from being made by
// themselves: a late write to one that was deleted would.
func (l *layout) template() string { return "sluice-" + l.stream }

// partitionMeta marks an index as a partition of a stream.
type partitionMeta struct {
	Stream string `json:"stream"`
	Kind   string `json:"kind"`
}

// definition returns the settings and mappings of each index: what the cluster's
// templates give it, what the file says, and what index partitions need.
func (l *layout) definition(ctx context.Context, client *elastic.Client) (map[string]any, error) {
	settings, mappings, err := client.TemplateFor(ctx, l.index("p000").Index)
	if err != nil {
		return nil, err
	}
	if l.body != "" {
		var file struct {
			Settings map[string]any `json:"settings"`
			Mappings map[string]any `json:"mappings"`
		}
		text, err := os.ReadFile(l.body)
		if err == nil {
			d := json.NewDecoder(strings.NewReader(string(text)))
			d.DisallowUnknownFields()
			err = d.Decode(&file)
		}
		if err != nil {
			return nil, &exit{exitUsage, fmt.Errorf("--body: %w: it holds an object with settings and mappings", err)}
		}
		overlay(settings, flat("", file.Settings))
		overlay(mappings, file.Mappings)
	}
	if _, ok := settings["index.gc_deletes"]; !ok {
		settings["index.gc_deletes"] = fmt.Sprintf("%.0fm", safeGCDeletes.Minutes()) // servers know one unit at a time
	}
	if l.shards >= 0 {
		settings["index.number_of_shards"] = l.shards
	}
	if l.replicas >= 0 {
		settings["index.number_of_replicas"] = l.replicas
	}
	overlay(mappings, map[string]any{
		"_meta": map[string]any{"sluice": partitionMeta{l.stream, "partition"}},
		"properties": map[string]any{
			document.TombstoneField:     map[string]any{"type": "boolean"},
			document.TombstoneTimeField: map[string]any{"type": "date", "format": "epoch_millis"},
		},
	})
	return map[string]any{"settings": settings, "mappings": mappings}, nil
}

// overlay puts the members of top over those of base, object by object.
func overlay(base, top map[string]any) {
	for key, value := range top {
		under, ok1 := base[key].(map[string]any)
		over, ok2 := value.(map[string]any)
		if ok1 && ok2 {
			overlay(under, over)
		} else {
			base[key] = value
		}
	}
}

// flat returns settings by their full names: index.number_of_shards.
func flat(path string, settings map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range settings {
		key = strings.TrimPrefix(path+"."+key, ".")
		if inner, ok := value.(map[string]any); ok {
			overlay(out, flat(key, inner))
			continue
		}
		if !strings.HasPrefix(key, "index.") {
			key = "index." + key
		}
		out[key] = value
	}
	return out
}

// hideTombstones is the filter of the aliases that readers use.
var hideTombstones = map[string]any{"bool": map[string]any{"must_not": map[string]any{"term": map[string]any{document.TombstoneField: true}}}}

// initPlan is what init makes.
type initPlan struct {
	DryRun   bool             `json:"dry_run"`
	Template string           `json:"template,omitempty"`
	All      string           `json:"all_alias,omitempty"`
	Body     map[string]any   `json:"body,omitempty"` // of the template: what each index gets
	Table    *partition.Table `json:"table"`
	Notes    []string         `json:"notes"`

	prefix  string
	replace bool            // what is stored is no table, or an older one
	exist   map[string]bool // indices that an earlier, interrupted run has made
}

func (p *initPlan) show(out io.Writer) {
	made := "made"
	if p.DryRun {
		made = "would be made (dry run: nothing was)"
	}
	if p.Template != "" {
		fmt.Fprintf(out, "index template %s, %d indices with an alias each, alias %s, and the routing table %s:\n", p.Template, len(p.Table.Partitions), p.All, made)
	} else {
		fmt.Fprintf(out, "the routing table %s:\n", made)
	}
	showTable(out, p.Table)
	for _, note := range p.Notes {
		fmt.Fprintln(out, "note:", note)
	}
}

// plan looks at what there is and says what to make; n is 0 for a stream that
// goes on with its legacy index, and from names a file with a table that was
// kept.
func (r *routes) plan(ctx context.Context, l *layout, n int, from string) (*initPlan, error) {
	highest, err := r.highestEpoch(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := r.store.Load(ctx, r.stream)
	damaged := (*partition.InvalidError)(nil)
	outdated := err == nil && stored.Epoch < highest
	if errors.As(err, &damaged) {
		outdated = true
		var head struct {
			Epoch int64 `json:"epoch"`
		}
		if _, _, err := r.control.Get(ctx, partition.ID(r.stream), &head); err == nil {
			highest = max(highest, head.Epoch) // somebody may have followed it while it was whole
		}
	}
	switch {
	case err == nil && !outdated:
		return nil, fmt.Errorf("stream %s has a routing table already, epoch %d: sluice routes show", r.stream, stored.Epoch)
	case outdated && from == "":
		if err == nil {
			err = fmt.Errorf("epoch %d is stored", stored.Epoch)
		}
		return nil, fmt.Errorf("the routing table of stream %s is damaged, or older than epoch %d, which is committed: pass --from with the right one (%w)", r.stream, highest, err)
	case !outdated && !errors.Is(err, partition.ErrNotFound) && !isMissing(err):
		return nil, err
	}
	t := partition.New(r.stream, r.cfg.Documents.Index)
	if from != "" {
		if t, err = kept(from, r.stream); err != nil {
			return nil, err
		}
		highest = max(highest, t.Epoch)
	}
	t.Epoch, t.UpdatedBy, t.UpdatedAt = highest+1, actor(), time.Now().UTC().Truncate(time.Second)
	p := &initPlan{Table: t, Notes: []string{}, prefix: l.prefix, replace: outdated}
	if n == 0 {
		if t.Write.Legacy() {
			p.legacyNotes(ctx, r)
		}
		return p, t.Validate()
	}
	t.Write, t.Legacy = partition.W3, nil
	t.Partitions = map[string]partition.Partition{}
	for i := range n {
		t.Partitions[partitionName(i, n)] = l.index(partitionName(i, n))
	}
	for slot := range t.Slots {
		t.SlotMap = append(t.SlotMap, partitionName(slot*n/t.Slots, n))
	}
	if err := t.Validate(); err != nil {
		return nil, &exit{exitUsage, fmt.Errorf("%w (--prefix names the indices)", err)}
	}
	p.Template, p.All = l.template(), l.all()
	if p.Body, err = l.definition(ctx, r.elastic); err != nil {
		return nil, err
	}
	p.exist, err = r.mine(ctx, l.prefix+"-p*", t.Partitions)
	return p, err
}

// highestEpoch is the highest epoch that the group has committed. A group that
// is the first of its brokers has no coordinator for some seconds.
func (r *routes) highestEpoch(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*checkTimeout)
	defer cancel()
	for {
		epoch, err := consumer.HighestEpoch(ctx, r.kafka, r.cfg.Kafka.GroupID)
		if !errors.Is(err, kerr.CoordinatorNotAvailable) && !errors.Is(err, kerr.CoordinatorLoadInProgress) {
			return epoch, err
		}
		select {
		case <-time.After(coordinatorRetry):
		case <-ctx.Done():
			return 0, &exit{exitTryLater, err}
		}
	}
}

// coordinatorRetry is how soon a group's coordinator is asked for again.
const coordinatorRetry = 500 * time.Millisecond

// kept reads a table that somebody kept.
func kept(file, stream string) (*partition.Table, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, &exit{exitUsage, fmt.Errorf("--from: %w", err)}
	}
	t, err := partition.Parse(text)
	if err == nil && t.Name != stream {
		err = fmt.Errorf("it is the table of stream %s, and routing.stream is %s", t.Name, stream)
	}
	if err != nil {
		return nil, &exit{exitUsage, fmt.Errorf("--from %s: %w", file, err)}
	}
	return t, nil
}

// partitionName is the name of partition i of n. Names sort as their numbers do.
func partitionName(i, n int) string {
	return fmt.Sprintf("p%0*d", max(3, len(fmt.Sprint(n-1))), i)
}

func (p *initPlan) legacyNotes(ctx context.Context, r *routes) {
	info, err := r.elastic.IndexInfo(ctx, p.Table.Legacy.Index)
	if err == nil && info.Kind == elastic.Missing {
		p.Notes = append(p.Notes, fmt.Sprintf("the legacy index %s does not exist yet; a stream without one starts better partitioned: --partitions", p.Table.Legacy.Index))
	}
}

// mine returns which of the partitions' indices exist, made by an earlier run.
// One that somebody else made, or that holds documents already, is refused.
func (r *routes) mine(ctx context.Context, pattern string, partitions map[string]partition.Partition) (map[string]bool, error) {
	exist := map[string]bool{}
	found, err := r.elastic.Definitions(ctx, pattern)
	if err != nil {
		return nil, err
	}
	for _, p := range partitions {
		d, ok := found[p.Index]
		if !ok {
			continue
		}
		var mappings struct {
			Meta struct {
				Sluice partitionMeta `json:"sluice"`
			} `json:"_meta"`
		}
		if err := json.Unmarshal(d.Mappings, &mappings); err != nil {
			return nil, fmt.Errorf("%s: its mapping cannot be read: %w", p.Index, err)
		}
		if mappings.Meta.Sluice != (partitionMeta{r.stream, "partition"}) {
			return nil, fmt.Errorf("the index %s exists, and is no partition of stream %s: choose another --prefix, or delete it", p.Index, r.stream)
		}
		exist[p.Index] = true
	}
	for index := range exist {
		n, err := r.count(ctx, index, nil)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			return nil, fmt.Errorf("the index %s holds %d documents, which a new table might not find: choose another --prefix, or delete it; --from makes a table anew that was lost", index, n)
		}
	}
	return exist, nil
}

// count counts the documents of an index, those of the last moment too.
func (r *routes) count(ctx context.Context, index string, query any) (int64, error) {
	if err := r.elastic.Refresh(ctx, index); err != nil {
		return 0, err
	}
	return r.elastic.Count(ctx, index, query)
}

// make carries the plan out. It can be repeated wherever it was interrupted.
func (r *routes) make(ctx context.Context, p *initPlan) error {
	if err := r.control.Open(ctx); err != nil {
		return err
	}
	if p.Template != "" {
		if err := r.makeTemplate(ctx, p); err != nil {
			return err
		}
		if err := r.makeIndices(ctx, p.All, p.exist, p.Table.Partitions); err != nil {
			return err
		}
	}
	if p.replace {
		var old json.RawMessage
		seqNo, term, err := r.control.Get(ctx, partition.ID(r.stream), &old)
		if err == nil {
			err = r.control.Delete(ctx, partition.ID(r.stream), seqNo, term)
		}
		if err != nil && !errors.Is(err, elastic.ErrNotFound) {
			return err
		}
	}
	return r.store.Create(ctx, p.Table)
}

// templatePriority is above what people use, and below that of a migration's
// template, whose patterns may overlap.
const templatePriority = 999_999

// makeTemplate writes what every index partition gets, those that are added
// later too, and forbids that one comes into being by itself: a late write to an
// index that was deleted would make it anew.
func (r *routes) makeTemplate(ctx context.Context, p *initPlan) error {
	info, err := r.elastic.Info(ctx)
	if err != nil {
		return err
	}
	body := map[string]any{
		"index_patterns": []string{p.prefix + "-p*"}, "priority": templatePriority, "allow_auto_create": false, "template": p.Body,
		"_meta": map[string]any{"sluice": partitionMeta{r.stream, "template"}},
	}
	if info.Flavour == elastic.OpenSearch {
		delete(body, "allow_auto_create") // it knows no such key
		p.Notes = append(p.Notes, fmt.Sprintf("OpenSearch makes a missing index by itself: forbid it for %s-p* (cluster setting action.auto_create_index), or never delete one", p.prefix))
	}
	return r.elastic.PutTemplate(ctx, p.Template, body)
}

// makeIndices makes those of the partitions that do not exist, each with its
// aliases.
func (r *routes) makeIndices(ctx context.Context, all string, exist map[string]bool, partitions map[string]partition.Partition) error {
	for _, name := range slices.Sorted(maps.Keys(partitions)) {
		p := partitions[name]
		if exist[p.Index] {
			continue
		}
		hidden := map[string]any{"filter": hideTombstones}
		if err := r.elastic.CreateIndex(ctx, p.Index, map[string]any{"aliases": map[string]any{p.Alias: hidden, all: hidden}}); err != nil {
			return err
		}
	}
	return nil
}

// isMissing says whether the server does not know what a call was about: the
// control index, before anything was written to it.
func isMissing(err error) bool {
	var refused *elastic.Error
	return errors.As(err, &refused) && refused.Status == http.StatusNotFound
}
