package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// mappingHash identifies a mapping: fields, whatever their order, without
// _meta, which belongs to who made the index.
func mappingHash(mappings json.RawMessage) (string, error) {
	fields, err := decodeMapping(mappings)
	if err != nil {
		return "", err
	}
	delete(fields, "_meta")
	text, err := json.Marshal(fields) // sorts the keys
	if err != nil {
		return "", err
	}
	return digest(string(text)), nil
}

func decodeMapping(mappings json.RawMessage) (map[string]any, error) {
	fields := map[string]any{}
	if len(mappings) == 0 {
		return fields, nil
	}
	d := json.NewDecoder(bytes.NewReader(mappings))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return nil, fmt.Errorf("a mapping cannot be read: %w", err)
	}
	return fields, nil
}

// followMapping compares the source's mapping with the one that the targets
// were made from. A change is made on the targets too where the job says so, and
// else pauses it: a partition that lacks a field would index the documents
// otherwise.
func (m *Manager) followMapping(ctx context.Context, j *Job) error {
	definitions, err := m.Cluster.Definitions(ctx, j.Source)
	if err != nil {
		return err
	}
	hash, err := mappingHash(definitions[j.Source].Mappings)
	if err != nil || hash == j.Mapping {
		return err
	}
	if !j.ApplyMapping {
		_, err := m.store.change(ctx, j.Name, func(j *Job) error {
			if j.Paused != "" {
				return errSame
			}
			j.Paused = fmt.Sprintf("the mapping of %s has changed: sluice migrate resume --job %s --apply-mapping makes the change on the new indices too", j.Source, j.Name)
			return nil
		})
		return err
	}
	return m.applyMapping(ctx, j)
}

// applyMapping gives the targets the source's mapping.
func (m *Manager) applyMapping(ctx context.Context, j *Job) error {
	definitions, err := m.Cluster.Definitions(ctx, j.Source)
	if err != nil {
		return err
	}
	mappings := definitions[j.Source].Mappings
	hash, err := mappingHash(mappings)
	if err != nil {
		return err
	}
	fields, err := decodeMapping(mappings)
	if err != nil {
		return err
	}
	delete(fields, "_meta")
	for _, fixed := range []string{"_routing", "_source"} {
		delete(fields, fixed) // cannot change
	}
	for _, t := range j.Targets {
		if err := m.Cluster.PutMapping(ctx, t.Index, fields); err != nil {
			return err
		}
	}
	_, err = m.store.change(ctx, j.Name, func(j *Job) error {
		j.Mapping = hash
		if j.Verified != nil {
			j.Verified.Stale = "the mapping has changed"
		}
		return nil
	})
	return err
}
