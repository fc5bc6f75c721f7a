package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
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

// unlike lists where a target's mapping is not that of its source: fields that it
// lacks, and parameters that differ. Fields that it has beside are its owner's
// affair.
func unlike(source, target json.RawMessage) ([]string, error) {
	of, err := decodeMapping(source)
	if err != nil {
		return nil, err
	}
	in, err := decodeMapping(target)
	if err != nil {
		return nil, err
	}
	delete(of, "_meta")
	delete(in, "_meta")
	var paths []string
	var compare func(path string, of, in map[string]any)
	compare = func(path string, of, in map[string]any) {
		names := maps.Clone(of)
		maps.Copy(names, in)
		for name := range names {
			if name != "properties" && name != "fields" {
				if !reflect.DeepEqual(of[name], in[name]) {
					paths = append(paths, strings.TrimPrefix(path+" "+name, " "))
				}
				continue
			}
			fields, _ := of[name].(map[string]any)
			others, _ := in[name].(map[string]any)
			for field, definition := range fields {
				at := strings.TrimPrefix(path+"."+field, ".")
				a, _ := definition.(map[string]any)
				b, there := others[field].(map[string]any)
				if !there {
					paths = append(paths, at)
					continue
				}
				compare(at, a, b)
			}
		}
	}
	compare("", of, in)
	slices.Sort(paths)
	return paths, nil
}

// unlikeTargets lists where the mapping of any target is not the source's.
func (m *Manager) unlikeTargets(ctx context.Context, j *Job, source json.RawMessage) ([]string, error) {
	var all []string
	for _, t := range j.Targets {
		definitions, err := m.Cluster.Definitions(ctx, t.Index)
		if err != nil {
			return nil, err
		}
		paths, err := unlike(source, definitions[t.Index].Mappings)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Index, err)
		}
		all = append(all, paths...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
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
	differ, err := m.unlikeTargets(ctx, j, mappings)
	if err != nil {
		return err
	}
	_, err = m.store.change(ctx, j.Name, func(j *Job) error {
		j.Mapping, j.Unlike = hash, differ
		if j.Verified != nil {
			j.Verified.Stale = "the mapping has changed"
		}
		return nil
	})
	return err
}
