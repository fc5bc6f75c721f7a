package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

const (
	// purgePage is how many tombstones are searched and deleted at once.
	purgePage = 2000
	// purgePatience is how long a page may wait for Elasticsearch before it is
	// searched anew.
	purgePatience = 30 * time.Second
)

func newPurge() *cobra.Command {
	var flags configFlags
	var dryRun, asJSON bool
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Removes old tombstones",
		Long: `Removes the tombstones (documents.deletes: tombstone) whose records are older than
documents.tombstone_ttl, in every index that the configuration writes to, and in
the index partitions of a routed stream. Each is
deleted at its own version, so that what was written meanwhile stays. From then on
Elasticsearch remembers the deletion for index.gc_deletes only.

Run it from time to time, once a day or so; consumers may go on.`,
		Example: `  sluice purge -c sluice.yaml --dry-run
  sluice purge -c sluice.yaml`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(cmd.Context())
			p := &purge{servers: s, dryRun: dryRun, out: cmd.OutOrStdout(), progress: newProgress(cmd.ErrOrStderr()), results: []purged{}}
			defer p.progress.clear()
			if asJSON {
				p.out = io.Discard
			}
			err = p.run(cmd.Context(), time.Now())
			if asJSON {
				p.progress.clear()
				err = errors.Join(err, printJSON(cmd.OutOrStdout(), p.results))
			}
			return err
		}),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "counts them, and removes none")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

type purge struct {
	*servers
	dryRun   bool
	out      io.Writer
	progress *progress
	bulk     *bulkWriter
	results  []purged
}

// purged is what became of a target's tombstones.
type purged struct {
	Target     string    `json:"target"`
	Before     time.Time `json:"before"`
	Tombstones int64     `json:"tombstones"` // that were found
	Removed    int64     `json:"removed"`
	Replaced   int64     `json:"replaced"` // by something newer meanwhile
	DryRun     bool      `json:"dry_run"`
}

// tombstoneTargets returns where tombstones are written, and how long they
// stay. Names that records decide have wildcards; a name that several sections
// write to has the longest time.
func tombstoneTargets(cfg *config.Config) map[string]time.Duration {
	targets := map[string]time.Duration{}
	consider := func(c document.Config) {
		if c.Deletes == "tombstone" {
			name := variable.ReplaceAllString(c.Index, "*")
			targets[name] = max(targets[name], c.TombstoneTTL)
		}
	}
	consider(cfg.Documents)
	for _, o := range cfg.Overrides {
		consider(o.Documents)
	}
	return targets
}

// tombstoneProblem says why tombstones in an index would not be found ("": they
// would), and whether they would be refused.
func tombstoneProblem(m elastic.Mapping) (problem string, refused bool) {
	for _, field := range []struct {
		name  string
		types []string
	}{
		{document.TombstoneField, []string{"boolean"}},
		{document.TombstoneTimeField, []string{"date", "date_nanos", "long"}},
	} {
		switch have, mapped := m.Fields[field.name]; {
		case slices.Contains(field.types, have):
		case mapped:
			problem = fmt.Sprintf("%s is mapped as %s", field.name, have)
		case m.Dynamic == "strict":
			return fmt.Sprintf("its mapping is strict and has no %s", field.name), true
		case m.Dynamic == "false":
			problem = fmt.Sprintf("%s is not mapped, and dynamic is false", field.name)
		}
	}
	return problem, false
}

// tombstoneRemedy is the request that makes tombstones in an index searchable.
func tombstoneRemedy(index string) string {
	return fmt.Sprintf(`PUT /%s/_mapping {"properties": {%q: {"type": "boolean"}, %q: {"type": "date", "format": "epoch_millis"}}}`,
		index, document.TombstoneField, document.TombstoneTimeField)
}

// routedTargets replaces the legacy index of a routed stream by what its table
// has. While a migration copies (W1) the tombstones of the new side stay: they
// keep deleted documents from being copied.
func routedTargets(targets map[string]time.Duration, legacy string, t *partition.Table) {
	ttl, ok := targets[legacy]
	if !ok {
		return
	}
	if !t.Write.Legacy() {
		delete(targets, legacy)
	}
	if t.Write < partition.W2 {
		return
	}
	for _, p := range t.Partitions {
		if p.State == partition.Active {
			targets[p.Index] = ttl
		}
	}
}

func (p *purge) run(ctx context.Context, now time.Time) error {
	targets := tombstoneTargets(p.cfg)
	if stream := p.cfg.Routing.Stream; stream != "" {
		t, err := partition.NewStore(p.control).Load(ctx, stream)
		if err != nil {
			return err
		}
		routedTargets(targets, p.cfg.Documents.Index, t.Table)
	}
	if len(targets) == 0 {
		return &exit{exitBadConfig, errors.New("documents.deletes is tombstone nowhere in the configuration: there is nothing to purge")}
	}
	p.bulk = p.newBulkWriter()
	defer p.bulk.close()
	var errs []error
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		errs = append(errs, p.target(ctx, target, now.Add(-targets[target])))
	}
	return errors.Join(errs...)
}

// target purges one target of the tombstones from before a moment.
func (p *purge) target(ctx context.Context, target string, before time.Time) error {
	mappings, err := p.elastic.Mappings(ctx, target)
	if err != nil {
		return err
	}
	var hidden error // of indices whose tombstones are not found
	for _, index := range slices.Sorted(maps.Keys(mappings)) {
		if problem, _ := tombstoneProblem(mappings[index]); problem != "" {
			hidden = errors.Join(hidden, fmt.Errorf("%s: its tombstones cannot be searched: %s: see docs/operations.md, and for those to come: %s", index, problem, tombstoneRemedy(index)))
		}
	}
	if len(mappings) == 0 {
		fmt.Fprintf(p.out, "%s does not exist\n", target)
		return nil
	}
	search := map[string]any{
		"size": purgePage, "version": true, "_source": false, "track_total_hits": true,
		"query": map[string]any{"bool": map[string]any{"filter": []any{
			map[string]any{"term": map[string]any{document.TombstoneField: true}},
			map[string]any{"range": map[string]any{document.TombstoneTimeField: map[string]any{"lt": before.UnixMilli()}}},
		}}},
	}
	if p.dryRun {
		search["size"] = 0
	}
	result := purged{Target: target, Before: before.UTC().Truncate(time.Second), DryRun: p.dryRun}
	defer func() { p.results = append(p.results, result) }()
	for {
		if err := p.elastic.Refresh(ctx, target); err != nil {
			return err
		}
		page, err := p.elastic.Search(ctx, target, search)
		if err != nil {
			return err
		}
		result.Tombstones = max(result.Tombstones, page.Total)
		if p.dryRun {
			fmt.Fprintf(p.out, "%s: %d tombstones from before %s (dry run: none was removed)\n", target, result.Tombstones, before.UTC().Format(time.RFC3339))
			return hidden
		}
		if len(page.Hits) == 0 {
			break
		}
		removed, newer, err := p.remove(ctx, page.Hits)
		result.Removed, result.Replaced = result.Removed+removed, result.Replaced+newer
		if err != nil {
			return err
		}
		trouble := ""
		if removed+newer < int64(len(page.Hits)) {
			trouble = "; trying again: " + cmp.Or(p.bulk.trouble(), "Elasticsearch does not answer")
		}
		p.progress.show("%s: %d of %d tombstones%s", target, result.Removed, result.Tombstones, trouble)
	}
	p.progress.clear()
	fmt.Fprintf(p.out, "%s: %d tombstones removed", target, result.Removed)
	if result.Replaced > 0 {
		fmt.Fprintf(p.out, ", %d were replaced meanwhile", result.Replaced)
	}
	fmt.Fprintln(p.out)
	return hidden
}

// remove deletes tombstones, each at its own version: what is newer stays. What
// could not be done now is found again.
func (p *purge) remove(ctx context.Context, hits []elastic.Hit) (removed, newer int64, err error) {
	endings, err := p.bulk.write(ctx, len(hits), func(i int) indexer.Action {
		h := &hits[i]
		return indexer.Action{Ordered: true, Action: bulk.Action{
			Op: bulk.Delete, VersionType: bulk.ExternalGTE, Version: h.Version,
			Target: h.Index, ID: []byte(h.ID), Routing: []byte(h.Routing),
		}}
	}, time.Now().Add(purgePatience))
	if err != nil {
		return 0, 0, err
	}
	for i, end := range endings {
		switch {
		case end.rejected != nil:
			return removed, newer, fmt.Errorf("a tombstone in %s cannot be deleted: %d %s", hits[i].Index, end.rejected.Status, end.rejected.Type)
		case end.outcome == indexer.Deleted:
			removed++
		case end.outcome != 0:
			newer++
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return removed, newer, err
}
