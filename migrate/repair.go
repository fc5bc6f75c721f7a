package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer/bulk"
)

// tombstoneSource says whether a document stands for a deletion.
func tombstoneSource(source []byte) bool {
	var d struct {
		Deleted bool `json:"_sluice_deleted"`
	}
	return json.Unmarshal(source, &d) == nil && d.Deleted
}

// repair mends differences and returns those that are left. Every write goes
// through the version check, so that none can undo a newer live one.
func (v *verification) repair(ctx context.Context, bad []*difference) ([]*difference, error) {
	var actions []bulk.Action
	var mended []*difference
	var left []*difference
	for _, d := range bad {
		action, ok, err := v.remedy(ctx, d)
		if err != nil {
			return nil, err
		}
		if !ok {
			left = append(left, d)
			continue
		}
		actions, mended = append(actions, action), append(mended, d)
	}
	if len(actions) > 0 {
		// From here on the job's report is of what is there no longer, also where
		// this run does not come to its end.
		if _, err := v.store.change(ctx, v.job.Name, func(j *Job) error {
			if j.Verified == nil || j.Verified.Stale != "" {
				return errSame
			}
			j.Verified.Stale = fmt.Sprintf("%d documents were to be repaired after it", len(actions))
			return nil
		}); err != nil {
			return nil, err
		}
	}
	s := &sender{client: v.Cluster, query: url.Values{"filter_path": {bulk.FilterPath}, "pipeline": {"_none"}}}
	if _, err := s.send(ctx, actions, 5<<20); err != nil {
		return nil, err
	}
	sights, err := v.look(ctx, mended)
	if err != nil {
		return nil, err
	}
	for i, d := range mended {
		if sights[i].equal() {
			v.report.Repaired++
			continue
		}
		if d.sight = sights[i]; d.class != duplicateInOld {
			d.class = sights[i].class()
		}
		left = append(left, d)
	}
	return left, nil
}

// authority is which side is right about a customer.
func (v *verification) authority(customer string) string {
	if v.check.Authority != "" {
		return v.check.Authority
	}
	if v.table.Legacy != nil && v.router.Read([]byte(customer)) == v.table.Legacy.ReadName() {
		return "old"
	}
	return "new"
}

// remedy returns the write that makes the sides equal; ok is false where there
// is none that may be made.
func (v *verification) remedy(ctx context.Context, d *difference) (a bulk.Action, ok bool, err error) {
	docs, err := v.Cluster.GetMany(ctx, []elastic.DocID{{Index: v.job.Source, ID: d.id, Routing: d.routing}, {Index: d.index, ID: d.id, Routing: d.routing}})
	if err != nil {
		return a, false, err
	}
	old, renewed := docs[0], docs[1]
	index := func(target string, from elastic.Doc, kind bulk.VersionType) (bulk.Action, bool, error) {
		body, err := oneLine(from.Source)
		return bulk.Action{
			Op: bulk.Index, VersionType: kind, Version: from.Version, Target: target, ID: []byte(d.id), Routing: []byte(from.Routing), Body: body,
		}, err == nil && len(body) > 0, err
	}
	switch d.class {
	case missingOnNew, newOlder:
		if !old.Found {
			return a, false, nil
		}
		return index(d.index, old, bulk.External)
	case oldOlder:
		return index(v.job.Source, renewed, bulk.External)
	case contentDiffers:
		if v.authority(d.customer) == "old" {
			return index(d.index, old, bulk.ExternalGTE)
		}
		return index(v.job.Source, renewed, bulk.ExternalGTE)
	case extraOnNew:
		// Only where somebody has said that the old side is right: it may have lost
		// the document to another writer.
		misplaced := old.Found
		if v.check.Authority != "old" && !misplaced || !renewed.Found {
			return a, false, nil
		}
		return bulk.Action{
			Op: bulk.Delete, VersionType: bulk.ExternalGTE, Version: renewed.Version, Target: d.index, ID: []byte(d.id), Routing: []byte(d.routing),
		}, true, nil
	}
	return a, false, nil
}
