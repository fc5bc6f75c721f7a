package document

import (
	"fmt"
	"strings"
)

// template is a text with variables, in order.
type template []source

// parseTemplate reads `text ${variable} text`. A dollar without a brace is
// itself. The error says what is wrong with which variable.
func parseTemplate(s string) (template, error) {
	var t template
	for s != "" {
		before, rest, found := strings.Cut(s, "${")
		if before != "" {
			t = append(t, source{kind: literal, text: before})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, fmt.Errorf("${%s has no closing brace", rest)
		}
		v, err := parseVariable(name)
		if err != nil {
			return nil, err
		}
		t = append(t, v)
		s = after
	}
	return t, nil
}

func parseVariable(name string) (source, error) {
	switch name {
	case "topic":
		return source{kind: fromTopic}, nil
	case "partition":
		return source{kind: fromPartition}, nil
	case "offset":
		return source{kind: fromOffset}, nil
	case "customer":
		return source{kind: fromCustomer}, nil
	}
	if layout, ok := strings.CutPrefix(name, "timestamp:"); ok && layout != "" {
		return source{kind: fromTimestamp, text: layout}, nil
	}
	src, ok, err := parseSource(name)
	if err != nil {
		return source{}, fmt.Errorf("${%s}: %w", name, err)
	}
	if !ok {
		return source{}, fmt.Errorf("${%s} is no variable", name)
	}
	return src, nil
}

// has reports whether a variable of kind k occurs.
func (t template) has(k kind) bool {
	for i := range t {
		if t[i].kind == k {
			return true
		}
	}
	return false
}

// lostByNull returns the first part that a record without a value lacks; nil:
// there is none.
func (t template) lostByNull(customer *source) *source {
	for i := range t {
		if !t[i].keptByNull(customer) {
			return &t[i]
		}
	}
	return nil
}
