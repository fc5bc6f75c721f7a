package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/partition"
)

func newRoutesSet() *cobra.Command {
	var flags routesFlags
	var c routesChange
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Sends customers to other index partitions, and adds partitions",
		Long: `Changes the overrides of a stream that is partitioned (W3): which customers are in
another index partition than the one of their slot. A customer is a name or a
pattern in which * stands for any text; \* and \\ are a star and a backslash. The
customer itself comes before any pattern, and of patterns the longest.

A customer that has documents stays where it is: its documents would be left
behind. What has documents is counted in Elasticsearch, by the field that
documents.customer names, or by --field where the customer comes from a header or
the key; without such a field an index must be empty.

Every replica adopts the change within routing.refresh_interval. A record of such a
customer that comes meanwhile may still be written to the old place: set routes
before a customer's first record.

Exit code 75 says that somebody else changed the table at the same time: look at
it, then decide anew.`,
		Example: `  sluice routes set -c sluice.yaml --add p024 --override bigcorp=p024 --dry-run
  sluice routes set -c sluice.yaml --override 'acme-*=p003' --remove old-customer`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if len(c.add)+len(c.overrides)+len(c.remove) == 0 {
				return &exit{exitUsage, errors.New("nothing to change: pass --override, --remove or --add")}
			}
			r, err := flags.connect(cmd)
			if err != nil {
				return err
			}
			defer r.close(ctx)
			report, err := r.set(ctx, &c)
			if err != nil {
				return storeError(err)
			}
			return r.print(report, report.show)
		}),
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVar(&c.overrides, "override", nil, "CUSTOMER=PARTITION: the customer, or pattern, and where it belongs; repeatable")
	cmd.Flags().StringArrayVar(&c.remove, "remove", nil, "CUSTOMER: takes its override away, so that its slot decides; repeatable")
	cmd.Flags().StringArrayVar(&c.add, "add", nil, "NAME of a new partition, such as p024: its index and alias are made; repeatable")
	cmd.Flags().StringVar(&c.field, "field", "", "keyword field that holds the customer (default: that of documents.customer)")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "says what would change or be refused, and changes nothing")
	return cmd
}

// routesChange is what an operator wants changed.
type routesChange struct {
	overrides, remove, add []string
	field                  string
	dryRun                 bool
}

// setReport is what set has done.
type setReport struct {
	DryRun bool             `json:"dry_run"`
	Stream string           `json:"stream"`
	From   int64            `json:"from_epoch"`
	Epoch  int64            `json:"epoch"`
	Made   []string         `json:"indices_made"`
	Table  *partition.Table `json:"table"`
}

func (s *setReport) show(out io.Writer) {
	if s.DryRun {
		fmt.Fprintf(out, "epoch %d would follow epoch %d (dry run: nothing was changed)\n", s.Epoch, s.From)
	} else {
		fmt.Fprintf(out, "epoch %d follows epoch %d\n", s.Epoch, s.From)
	}
	showTable(out, s.Table)
}

// set makes the change, or says why it is refused.
func (r *routes) set(ctx context.Context, c *routesChange) (*setReport, error) {
	read, err := r.store.Load(ctx, r.stream)
	if err != nil {
		return nil, err
	}
	switch {
	case read.Write != partition.W3:
		return nil, fmt.Errorf("stream %s is not partitioned (%s): its customers move by a migration: sluice migrate plan", r.stream, writes(read.Write))
	case read.Job != "":
		return nil, fmt.Errorf("job %s is at work on stream %s: complete or cancel it first (sluice migrate status --job %s)", read.Job, r.stream, read.Job)
	}
	added, all, err := r.added(read.Table, c.add)
	if err != nil {
		return nil, err
	}
	affected, edit, err := c.edit(added)
	if err != nil {
		return nil, &exit{exitUsage, err}
	}
	documents, failed := r.customersWith(ctx, read.Table, affected, c.field)
	next, err := read.Change(partition.Change{By: actor(), At: time.Now().UTC().Truncate(time.Second), Documents: documents, Edit: edit})
	if err := errors.Join(*failed, err); err != nil {
		return nil, err
	}
	report := &setReport{DryRun: c.dryRun, Stream: r.stream, From: read.Epoch, Epoch: next.Epoch, Made: []string{}, Table: next}
	var exist map[string]bool
	if len(added) > 0 {
		if exist, err = r.mine(ctx, prefixOf(added)+"-p*", added); err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(added)) {
			report.Made = append(report.Made, added[name].Index)
		}
	}
	if c.dryRun {
		return report, nil
	}
	if err := r.makeIndices(ctx, all, exist, added); err != nil {
		return nil, err
	}
	return report, r.store.Update(ctx, read, next)
}

// prefixOf is what the names of partitions' indices begin with.
func prefixOf(partitions map[string]partition.Partition) (prefix string) {
	for name, p := range partitions {
		prefix, _ = strings.CutSuffix(p.Index, "-"+name)
	}
	return prefix
}

// added returns the partitions to add, whose indices are named as those that
// are there, and the alias over all.
func (r *routes) added(t *partition.Table, names []string) (added map[string]partition.Partition, all string, err error) {
	l := layout{stream: r.stream, prefix: prefixOf(t.Partitions)}
	added = map[string]partition.Partition{}
	for _, name := range names {
		if _, exists := t.Partitions[name]; exists {
			return nil, "", &exit{exitUsage, fmt.Errorf("--add: there is a partition %s already", name)}
		}
		if !strings.HasPrefix(name, "p") || l.prefix == "" {
			return nil, "", &exit{exitUsage, fmt.Errorf("--add: %q: a partition's name begins with p, as in p024, so that the index template %s covers its index", name, l.template())}
		}
		added[name] = l.index(name)
	}
	return added, l.all(), nil
}

// edit returns the change of a table, and the overrides that it touches.
func (c *routesChange) edit(added map[string]partition.Partition) (affected []string, edit func(*partition.Table) error, err error) {
	set := map[string]string{}
	for _, text := range c.overrides {
		i := strings.LastIndexByte(text, '=')
		if i <= 0 || i == len(text)-1 {
			return nil, nil, fmt.Errorf("--override: %q: want CUSTOMER=PARTITION, as in acme=p003", text)
		}
		set[text[:i]] = text[i+1:]
	}
	affected = append(slices.Sorted(maps.Keys(set)), c.remove...)
	return affected, func(t *partition.Table) error {
		if t.Overrides == nil {
			t.Overrides = map[string]string{}
		}
		maps.Copy(t.Partitions, added)
		for _, key := range c.remove {
			if _, ok := t.Overrides[key]; !ok {
				return fmt.Errorf("--remove: there is no override %s", key)
			}
			delete(t.Overrides, key)
		}
		maps.Copy(t.Overrides, set)
		return nil
	}, nil
}

// customersWith yields the customers, of those that some override matches, that
// have documents in the stream's index partitions. It is nil where that cannot
// be known. What goes wrong while it yields is left in failed.
func (r *routes) customersWith(ctx context.Context, t *partition.Table, overrides []string, field string) (customers iter.Seq[string], failed *error) {
	failed = new(error)
	return func(yield func(string) bool) {
		*failed = r.eachCustomer(ctx, t, overrides, field, yield)
	}, failed
}

func (r *routes) eachCustomer(ctx context.Context, t *partition.Table, overrides []string, field string, yield func(string) bool) error {
	for _, name := range slices.Sorted(maps.Keys(t.Partitions)) {
		index := t.Partitions[name].Index
		holder, field, err := r.customerField(ctx, index, field)
		if err != nil {
			return err
		}
		// Of a tombstone, and where there is no field, nobody knows whose it is.
		var unknown any
		if holder != "" {
			unknown = map[string]any{"bool": map[string]any{"must_not": map[string]any{"exists": map[string]any{"field": holder}}}}
		}
		n, err := r.count(ctx, index, unknown)
		switch {
		case err != nil:
			return err
		case n > 0 && field == "":
			return fmt.Errorf("refused: %s holds %d documents, and which customers they belong to cannot be seen: name the keyword field that holds the customer: --field", index, n)
		case n > 0:
			return fmt.Errorf("refused: %s holds %d documents without the field %s (tombstones, where documents.deletes is tombstone), which may be of customers that would move: sluice purge removes tombstones, sluice migrate moves customers", index, n, holder)
		case field == "":
			continue
		}
		for after, more := "", len(overrides) > 0; more; more = after != "" {
			var counts map[string]int64
			if counts, after, err = r.elastic.Terms(ctx, index, field, after, matching(field, overrides)); err != nil {
				return err
			}
			for _, customer := range slices.Sorted(maps.Keys(counts)) {
				if !yield(customer) {
					return nil
				}
			}
		}
	}
	return nil
}

// matching is a query that finds at least the customers that overrides match:
// the customer itself, or all that begin as a pattern does.
func matching(field string, overrides []string) any {
	var should []any
	for _, key := range overrides {
		text, whole := literal(key)
		kind := "prefix"
		if whole {
			kind = "term"
		}
		should = append(should, map[string]any{kind: map[string]any{field: text}})
	}
	return map[string]any{"bool": map[string]any{"should": should, "minimum_should_match": 1}}
}

// literal returns the text of an override's key up to its first star; whole: it
// has none.
func literal(key string) (text string, whole bool) {
	var b strings.Builder
	for i := 0; i < len(key); i++ {
		switch {
		case key[i] == '*':
			return b.String(), false
		case key[i] == '\\' && i+1 < len(key):
			i++
		}
		b.WriteByte(key[i])
	}
	return b.String(), true
}

// customerField returns the field of an index that holds the customer, and the
// keyword to look it up by: the same, or one of its multi-fields. Both are "" where
// there is none that is known of.
func (r *routes) customerField(ctx context.Context, index, field string) (holder, keyword string, err error) {
	if field == "" {
		for _, s := range sections(r.cfg, r.mapper) {
			pointer, ok := strings.CutPrefix(s.cfg.Customer, "field:/")
			name := strings.ReplaceAll(pointer, "/", ".")
			if !ok || field != "" && field != name {
				return "", "", nil // not in the document, or not always at one place
			}
			field = name
		}
	}
	found, err := r.elastic.Definitions(ctx, index)
	if err != nil {
		return "", "", err
	}
	var mapping mappedField
	if err := json.Unmarshal(found[index].Mappings, &mapping); err != nil {
		return "", "", fmt.Errorf("%s: its mapping cannot be read: %w", index, err)
	}
	for name := range strings.SplitSeq(field, ".") {
		var ok bool
		if mapping, ok = mapping.Properties[name]; !ok {
			return "", "", nil
		}
	}
	if mapping.Type == "keyword" {
		return field, field, nil
	}
	for _, name := range slices.Sorted(maps.Keys(mapping.Fields)) {
		if mapping.Fields[name].Type == "keyword" {
			return field, field + "." + name, nil
		}
	}
	return "", "", nil
}

// mappedField is a field of a mapping, or the mapping itself.
type mappedField struct {
	Type       string                 `json:"type"`
	Properties map[string]mappedField `json:"properties"`
	Fields     map[string]mappedField `json:"fields"`
}
