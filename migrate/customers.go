package migrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/sluicehq/sluice/partition"
)

// Customers says where documents, as they lie in the index, name their
// customer.
type Customers struct {
	of func(id, routing string, source []byte) ([]byte, bool)
	// path is the field's name in searches; "": it is no field.
	path string
}

// ParseCustomers reads field:/POINTER, id, id:REGEXP with one group, or routing.
func ParseCustomers(text string) (Customers, error) {
	name, arg, _ := strings.Cut(text, ":")
	switch {
	case text == "id":
		return Customers{of: func(id, _ string, _ []byte) ([]byte, bool) { return []byte(id), true }}, nil
	case text == "routing":
		return Customers{of: func(_, routing string, _ []byte) ([]byte, bool) { return []byte(routing), true }}, nil
	case name == "id" && arg != "":
		re, err := regexp.Compile(arg)
		if err != nil {
			return Customers{}, fmt.Errorf("the customer %q: %w", text, err)
		}
		if re.NumSubexp() != 1 {
			return Customers{}, fmt.Errorf("the customer %q: put one pair of brackets around the customer, and write others as (?:...)", text)
		}
		return Customers{of: func(id, _ string, _ []byte) ([]byte, bool) {
			if m := re.FindStringSubmatch(id); m != nil {
				return []byte(m[1]), true
			}
			return nil, false
		}}, nil
	case name == "field" && strings.HasPrefix(arg, "/") && len(arg) > 1:
		var steps []string
		for step := range strings.SplitSeq(arg[1:], "/") {
			steps = append(steps, strings.NewReplacer("~1", "/", "~0", "~").Replace(step))
		}
		return Customers{
			of:   func(_, _ string, source []byte) ([]byte, bool) { return fieldText(source, steps) },
			path: strings.Join(steps, "."),
		}, nil
	}
	return Customers{}, fmt.Errorf("%q does not say where a document names its customer: use field:/POINTER, id, id:REGEXP or routing", text)
}

// Of returns a document's customer; ok is false where it names none that can be
// routed.
func (c Customers) Of(id, routing string, source []byte) (customer string, ok bool) {
	text, ok := c.of(id, routing, source)
	return string(text), ok && partition.CheckCustomer(text) == nil
}

// source is what Of needs of a document, as a search's _source.
func (c Customers) source() any {
	if c.path == "" {
		return false
	}
	return []string{c.path}
}

// fieldText returns a field's text as records are routed by it: a string's
// characters, a number or a truth value as it is written.
func fieldText(source []byte, steps []string) ([]byte, bool) {
	value := json.RawMessage(source)
	for _, step := range steps {
		value = bytes.TrimLeft(value, " \t\r\n")
		var err error
		switch {
		case len(value) > 0 && value[0] == '{':
			var members map[string]json.RawMessage
			err = json.Unmarshal(value, &members)
			value = members[step]
		case len(value) > 0 && value[0] == '[':
			var elements []json.RawMessage
			err = json.Unmarshal(value, &elements)
			n, errIndex := strconv.Atoi(step)
			if err != nil || errIndex != nil || n < 0 || n >= len(elements) {
				return nil, false
			}
			value = elements[n]
		default:
			return nil, false
		}
		if err != nil {
			return nil, false
		}
	}
	value = bytes.TrimSpace(value)
	if len(value) == 0 || value[0] == '{' || value[0] == '[' || string(value) == "null" {
		return nil, false
	}
	if value[0] != '"' {
		return value, true
	}
	var text string
	if json.Unmarshal(value, &text) != nil || text == "" {
		return nil, false
	}
	return []byte(text), true
}

// Countable returns the keyword field that holds the customer's text whole, by
// which a search can count and select; "": there is none.
func (c Customers) Countable(mappings json.RawMessage) string {
	if c.path == "" {
		return ""
	}
	type field struct {
		Type        string                     `json:"type"`
		IgnoreAbove *int                       `json:"ignore_above"`
		Normalizer  string                     `json:"normalizer"`
		Properties  map[string]json.RawMessage `json:"properties"`
		Fields      map[string]json.RawMessage `json:"fields"`
		Index       *bool                      `json:"index"`
		DocValues   *bool                      `json:"doc_values"`
	}
	whole := func(f field) bool {
		return f.Type == "keyword" && f.Normalizer == "" && (f.IgnoreAbove == nil || *f.IgnoreAbove >= partition.MaxCustomer) &&
			(f.Index == nil || *f.Index) && (f.DocValues == nil || *f.DocValues)
	}
	at := mappings
	for _, step := range strings.Split(c.path, ".") {
		var f field
		if json.Unmarshal(at, &f) != nil || f.Properties[step] == nil {
			return ""
		}
		at = f.Properties[step]
	}
	var f field
	if json.Unmarshal(at, &f) != nil {
		return ""
	}
	if whole(f) {
		return c.path
	}
	for name, raw := range f.Fields {
		var sub field
		if json.Unmarshal(raw, &sub) == nil && whole(sub) {
			return c.path + "." + name
		}
	}
	return ""
}
