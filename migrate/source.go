package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/elastic"
)

// checkSource looks at the index that is to be split, for plan and create alike,
// and refuses what cannot be split. It is nil where there is no such index.
func (m *Manager) checkSource(ctx context.Context, s *step, name string) (*elastic.Definition, error) {
	definitions, err := m.Cluster.Definitions(ctx, name)
	if err != nil {
		return nil, err
	}
	const rollOver = "let it roll over to smaller ones; a migration is for an index"
	source, itself := definitions[name]
	behind := slices.Sorted(maps.Keys(definitions))
	streams := map[string]bool{} // that are behind the name
	for _, d := range definitions {
		if d.DataStream != "" {
			streams[d.DataStream] = true
		}
	}
	switch stream := shorten(slices.Sorted(maps.Keys(streams))); {
	case len(definitions) == 0:
		s.refuse("name an index that is there, with plan --source", "%s is no index", name)
	case itself && stream != "":
		s.refuse(rollOver, "%s backs the data stream %s", name, stream)
	case streams[name]:
		s.refuse(rollOver, "%s is a data stream", name)
	case stream != "":
		s.refuse(rollOver, "%s is no index but an alias of the data stream %s", name, stream)
	case !itself:
		s.refuse("name the index itself, with plan --source "+behind[0], "%s is no index but an alias of %s", name, shorten(behind))
	}
	if !itself {
		return nil, nil
	}
	problem := unsuitable(source)
	if problem == "" {
		hidden, err := m.hidesVectors(ctx, source)
		if err != nil {
			return nil, err
		}
		if hidden == "true" {
			problem = name + " leaves its vectors out of _source (" + hideVectors + ")"
		}
	}
	if problem != "" {
		s.refuse("reindex it into one without, name that as documents.index, then plan", "%s: it cannot be copied document by document", problem)
	}
	return &source, nil
}

// sourceMode says how an index keeps the documents' _source: "stored" is as they
// were written, in full.
func sourceMode(d elastic.Definition) (string, error) {
	var m struct {
		Source struct {
			Enabled  *bool    `json:"enabled"`
			Mode     string   `json:"mode"`
			Includes []string `json:"includes"`
			Excludes []string `json:"excludes"`
		} `json:"_source"`
	}
	if len(d.Mappings) > 0 {
		if err := json.Unmarshal(d.Mappings, &m); err != nil {
			return "", fmt.Errorf("the mapping of %s cannot be read: %w", d.Name, err)
		}
	}
	mode := strings.ToLower(m.Source.Mode)
	if mode == "" {
		mode = strings.ToLower(d.Setting("index.mapping.source.mode"))
	}
	switch {
	case m.Source.Enabled != nil && !*m.Source.Enabled || mode == "disabled":
		return "disabled", nil
	case mode == "synthetic", d.Setting("index.derived_source.enabled") == "true":
		return "synthetic", nil
	case len(m.Source.Includes)+len(m.Source.Excludes) > 0:
		return fmt.Sprintf("includes %q excludes %q", m.Source.Includes, m.Source.Excludes), nil
	}
	return "stored", nil
}

// checkTarget looks at a new index as the server has made it: templates may have
// had a say.
func (m *Manager) checkTarget(ctx context.Context, j *Job, index string) error {
	found, err := m.Cluster.Definitions(ctx, index)
	if err != nil {
		return err
	}
	made := found[index]
	if owner, _ := ownerOf(made); owner != j.Name {
		return fmt.Errorf("%s exists and does not carry the name of job %s: cancel the job", index, j.Name)
	}
	if problem := unsuitable(made); problem != "" {
		return stuckf("take away the index template that makes it so, sluice migrate cancel --job "+j.Name+", then create another job",
			"%s, unlike %s: they cannot hold the same documents", problem, j.Source)
	}
	return nil
}

// unsuitable says why an index cannot be split.
func unsuitable(d elastic.Definition) string {
	kept, err := sourceMode(d)
	switch mode := d.Setting("index.mode"); {
	case err != nil:
		return "its mapping cannot be read"
	case kept == "disabled":
		return d.Name + " keeps no _source"
	case mode == "time_series" || mode == "logsdb":
		return d.Name + " has index.mode " + mode
	case kept == "synthetic":
		return d.Name + " has a synthetic _source, which is not what was written"
	case kept != "stored":
		return d.Name + " keeps a part of _source only (" + kept + ")"
	case d.Setting("index.final_pipeline") != "" && d.Setting("index.final_pipeline") != "_none":
		return d.Name + " has index.final_pipeline: every copied document would pass it a second time"
	}
	return ""
}

// hideVectors is a setting of newer servers, which is on where an index does not
// say otherwise: what they show as _source lacks the vectors.
const hideVectors = "index.mapping.exclude_source_vectors"

// hidesVectors is the value of that setting for an index with vectors; "": it has
// none, or the server shows all.
func (m *Manager) hidesVectors(ctx context.Context, d elastic.Definition) (string, error) {
	if !hasVectors(d.Mappings) {
		return "", nil
	}
	hidden, err := m.Cluster.IndexSettings(ctx, hideVectors, d.Name)
	return hidden[d.Name], err
}

// hasVectors says whether a mapping has a field that a server may leave out of
// what it shows as _source.
func hasVectors(mappings json.RawMessage) bool {
	fields, err := decodeMapping(mappings)
	return err == nil && slices.ContainsFunc(slices.Collect(maps.Values(fields)), vectors)
}

func vectors(part any) bool {
	switch part := part.(type) {
	case map[string]any:
		kind, _ := part["type"].(string)
		return slices.Contains([]string{"dense_vector", "sparse_vector", "rank_vectors"}, kind) ||
			slices.ContainsFunc(slices.Collect(maps.Values(part)), vectors)
	case []any: // dynamic templates
		return slices.ContainsFunc(part, vectors)
	}
	return false
}
