package config

import (
	"os"
	"reflect"
	"regexp"
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

// path returns the node of a dotted key, or nil.
func (n *node) path(key string) *node {
	for name := range strings.SplitSeq(key, ".") {
		if n = n.get(name); n == nil {
			return nil
		}
	}
	return n
}

// docs/configuration.md has a row for every key, with its type, default and
// meaning.
func TestEveryKeyIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]string{} // by key, as the document writes them
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.Trim(line, "| \n"), "|")
		key := strings.Trim(cells[0], "` ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 4 || len(strings.TrimSpace(cells[3])) < 5 {
			t.Errorf("the row of %s has not the four cells key, type, default and meaning", key)
			continue
		}
		defaults[key] = strings.Trim(cells[2], "` ")
	}
	for _, key := range keys("", reflect.TypeFor[Config]()) {
		written, ok := defaults[key]
		isOverride := strings.HasPrefix(key, "overrides[]")
		switch {
		case strings.HasPrefix(key, "overrides[].documents."):
			continue
		case !isOverride && lookup(reflect.ValueOf(Default()).Elem(), key).Kind() == reflect.Struct:
			continue // a section
		case !ok:
			t.Errorf("docs/configuration.md does not describe %s", key)
		case !isOverride:
			if got := parse(t, "", key+"="+written); !reflect.DeepEqual(got, Default()) {
				t.Errorf("docs/configuration.md says that the default of %s is %s", key, written)
			}
		}
		delete(defaults, key)
	}
	for key := range defaults {
		t.Errorf("docs/configuration.md describes %s, which is no key", key)
	}
}
