package migrate

import (
	"context"
	"errors"
	"slices"

	"github.com/sluicehq/sluice/elastic"
)

// mostReports is how many reports of verifications a job keeps.
const mostReports = 5

// reports is the control document `reports:<job>`: the last verifications, the
// newest first. Like the audit log it outlives the job.
type reports struct {
	Reports []*Report `json:"reports"`
}

func reportsID(job string) string { return "reports:" + job }

// keep adds a report to those of its job.
func (s store) keep(ctx context.Context, job string, r *Report) error {
	for {
		var kept reports
		seqNo, term, err := s.control.Get(ctx, reportsID(job), &kept)
		absent := errors.Is(err, elastic.ErrNotFound)
		if err != nil && !absent {
			return err
		}
		kept.Reports = append([]*Report{r}, kept.Reports...)
		kept.Reports = kept.Reports[:min(len(kept.Reports), mostReports)]
		if absent {
			err = s.control.Create(ctx, reportsID(job), kept)
		} else {
			err = s.control.Update(ctx, reportsID(job), kept, seqNo, term)
		}
		if !errors.Is(err, elastic.ErrConflict) {
			return err
		}
	}
}

// Reports reads what the last verifications of a job have found, the newest
// first. Stale is filled in for the one that a cut-over asks for only.
func (m *Manager) Reports(ctx context.Context, name string) ([]*Report, error) {
	job, err := m.store.load(ctx, name)
	if err != nil {
		return nil, err
	}
	kept := reports{Reports: []*Report{}}
	if _, _, err := m.Control.Get(ctx, reportsID(name), &kept); err != nil && !errors.Is(err, elastic.ErrNotFound) {
		return nil, err
	}
	if last := job.Verified; last != nil {
		if i := slices.IndexFunc(kept.Reports, func(r *Report) bool { return r.ID == last.ID }); i >= 0 {
			kept.Reports[i] = last
		}
	}
	return kept.Reports, nil
}
