package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// later lists what the configuration knows and the program does not do yet:
// such a value is refused, so that nobody believes in it. An entry goes when
// its feature comes.
var later = []struct {
	key     string
	values  []string // of the key that are refused; nil: all but the empty one
	instead string
}{
	{"documents.format", []string{"avro", "protobuf", "json_schema"}, "use json, or raw to keep the bytes in a field"},
	{"documents.schema_registry", nil, "remove the section"},
}

// refuseLater reports the values of later that the configuration holds, in
// overrides too.
func (v *validator) refuseLater() {
	for _, l := range later {
		paths := []string{l.key}
		if rest, ok := strings.CutPrefix(l.key, "documents."); ok {
			for i := range v.cfg.Overrides {
				if path := fmt.Sprintf("overrides[%d].documents.%s", i, rest); v.written(path) {
					paths = append(paths, path)
				}
			}
		}
		for _, path := range paths {
			value := lookup(reflect.ValueOf(v.cfg).Elem(), path)
			if l.values == nil && !value.IsZero() || l.values != nil && slices.Contains(l.values, value.String()) {
				problem := "is not available yet"
				if l.values != nil {
					problem += " with this value"
				}
				v.fail(path, problem, l.instead)
				v.refused[path] = true
			}
		}
	}
}

// lookup returns the value at a path of section.
func lookup(section reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		name, index, isList := strings.Cut(strings.TrimSuffix(name, "]"), "[")
		for _, f := range fields(section.Type()) {
			if f.key == name {
				section = section.FieldByIndex(f.index)
				break
			}
		}
		if isList {
			section = section.Index(atoi(index))
		}
	}
	return section
}
