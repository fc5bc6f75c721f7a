package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commented is a key of the template that is commented out.
var commented = regexp.MustCompile(`(?m)^( *)#([a-z_]+:)`)

func TestTemplate(t *testing.T) {
	if got := parse(t, Template()); !reflect.DeepEqual(got, Default()) {
		t.Errorf("the template loads as\n%s", Redacted(got))
	}

	// What is commented out are the defaults, and with it every key is there.
	whole := commented.ReplaceAllString(Template(), "$1$2")
	if got := parse(t, whole); !reflect.DeepEqual(got, Default()) {
		t.Errorf("without its comments the template loads as\n%s", Redacted(got))
	}
	var errs Errors
	p := parser{errs: &errs}
	root := p.file(Source{"template.yaml", []byte(whole)}, 0)
	for _, key := range keys("", reflect.TypeFor[Config]()) {
		if n := root.path(key); n == nil && !strings.HasPrefix(key, "overrides[]") {
			t.Errorf("%s is not in the template", key)
		}
	}
	for i, line := range strings.Split(Template(), "\n") {
		if m := commented.FindString(line); m != "" && !strings.Contains(line[len(m):], " # ") && !strings.Contains(m, "overrides") {
			t.Errorf("template.yaml:%d: a key without a word about it: %s", i+1, line)
		}
	}
}

// The words beside a key name every value that it takes, where there are only so
// many: whoever starts from the template sees what there is to choose from.
func TestTemplateNamesEveryValue(t *testing.T) {
	lines := strings.Split(Template(), "\n")
	var errs Errors
	p := parser{errs: &errs}
	root := p.file(Source{"template.yaml", []byte(commented.ReplaceAllString(Template(), "$1$2"))}, 0)
	for _, e := range reference(t) {
		n := root.path(e.key)
		if n == nil || !e.closed || slices.Equal(e.values, []string{"true", "false"}) {
			continue
		}
		line := lines[n.place.Line-1]
		for _, value := range e.values {
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(value) + `\b`).MatchString(line) {
				t.Errorf("template.yaml:%d: %s is also %s", n.place.Line, e.key, value)
			}
		}
	}
}

// path returns the node of a dotted key, or nil.
func (n *node) path(key string) *node {
	for name := range strings.SplitSeq(key, ".") {
		if n = n.get(name); n == nil {
			return nil
		}
	}
	return n
}
