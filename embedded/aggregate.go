package embedded

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A composite is a composite aggregation over the values of one field, the only
// aggregation that there is.
type composite struct {
	name, source, field string
	size                int
	after               any // a string, or nil
}

func parseAggregations(v any) ([]composite, *apiError) {
	all, _ := v.(map[string]any)
	var out []composite
	for _, name := range sortedKeys(all) {
		def, _ := all[name].(map[string]any)
		body, ok := def["composite"].(map[string]any)
		if !ok {
			for kind := range def {
				return nil, newError(http.StatusBadRequest, "parsing_exception", "Unknown aggregation type ["+kind+"]")
			}
		}
		c := composite{name: name, size: 10}
		if n, err := strconv.Atoi(fmt.Sprint(body["size"])); err == nil {
			c.size = n
		}
		sources, _ := body["sources"].([]any)
		if len(sources) != 1 {
			return nil, illegalArgument("Composite [sources] cannot be null or empty")
		}
		source, _ := sources[0].(map[string]any)
		for key, v := range source {
			kinds, _ := v.(map[string]any)
			terms, _ := kinds["terms"].(map[string]any)
			c.source, c.field = key, fmt.Sprint(terms["field"])
		}
		if after, ok := body["after"].(map[string]any); ok {
			c.after = after[c.source]
		}
		out = append(out, c)
	}
	return out, nil
}

// aggregate returns the aggregations over hits as JSON; nil where none was
// asked for.
func (s *searchRequest) aggregate(hits []hit) ([]byte, *apiError) {
	if len(s.aggs) == 0 {
		return nil, nil
	}
	out := map[string]any{}
	for _, c := range s.aggs {
		counts, err := c.count(hits)
		if err != nil {
			return nil, err
		}
		values := sortedKeys(counts)
		if after, ok := c.after.(string); ok {
			first, found := slices.BinarySearch(values, after)
			if found {
				first++
			}
			values = values[first:]
		}
		values = values[:min(c.size, len(values))]
		buckets := make([]any, len(values))
		for i, v := range values {
			buckets[i] = map[string]any{"key": map[string]any{c.source: v}, "doc_count": counts[v]}
		}
		result := map[string]any{"buckets": buckets}
		if len(values) > 0 {
			result["after_key"] = map[string]any{c.source: values[len(values)-1]}
		}
		out[c.name] = result
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic("embedded: an answer that is not JSON: " + err.Error()) // a mistake of this package
	}
	return text, nil
}

// count counts documents by the values of a keyword field.
func (c composite) count(hits []hit) (map[string]int, *apiError) {
	counts := map[string]int{}
	for _, h := range hits {
		f := h.ix.mapping.Load().lookup(c.field)
		if f == nil {
			continue
		}
		if f.typ != "keyword" {
			return nil, phaseFailure(illegalArgument("Fielddata is disabled on [" + c.field + "] in [" + h.ix.name +
				"]. Text fields are not optimised for operations that require per-document field data like aggregations and sorting, so these operations are disabled by default."))
		}
		limit := 0
		if v, ok := f.params["ignore_above"]; ok {
			limit, _ = strconv.Atoi(fmt.Sprint(v))
		}
		path := strings.Split(c.field, ".")
		if parent := h.ix.mapping.Load().lookup(strings.Join(path[:len(path)-1], ".")); len(path) > 1 && parent != nil && !parent.isObject() {
			path = path[:len(path)-1] // a multi-field
		}
		seen := map[string]bool{} // a document counts once for each of its values
		visit(h.doc.source, path, func(k tokenKind, l *lexer) bool {
			value := string(l.val)
			if k == tokString {
				value = string(l.text())
			}
			if k != tokObject && !seen[value] && (limit == 0 || len(value) <= limit) {
				seen[value] = true
				counts[value]++
			}
			return false
		})
	}
	return counts, nil
}
