package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "writes the tables of docs/configuration.md anew")

const referencePage = "../docs/configuration.md"

// described is a key as its field's comment describes it.
type described struct {
	key      string
	fallback string // the default, as YAML; "" where a key has none of its own
	allowed  string
	example  string // as YAML
	meaning  string
	values   []string // of allowed, those that stand in backticks: values as they are
	closed   bool     // there are no others
}

// manual reads the comments of the rooms' config.go files.
type manual struct {
	t     *testing.T
	files map[string]map[string]map[string]string // package path, struct, field: comment
}

// comment returns what stands above a field of a struct.
func (m *manual) comment(owner reflect.Type, field string) string {
	structs := m.files[owner.PkgPath()]
	if structs == nil {
		structs = map[string]map[string]string{}
		name := "../" + path.Base(owner.PkgPath()) + "/config.go"
		file, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.ParseComments)
		if err != nil {
			m.t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					structs[spec.Name.Name] = map[string]string{}
					for _, f := range s.Fields.List {
						for _, name := range f.Names {
							structs[spec.Name.Name][name.Name] = f.Doc.Text()
						}
					}
				}
			}
			return true
		})
		m.files[owner.PkgPath()] = structs
	}
	return structs[owner.Name()][field]
}

// tail is a line behind the text of a comment.
var tail = regexp.MustCompile(`(?m)^(Values|Example): (.*)\n`)

// allowed is what a type says by itself.
func allowed(key string, t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case t == sizeType && autoSizes[key]:
		return "size or `auto`"
	case t == sizeType:
		return "size"
	case t == shareType:
		return "share"
	case t == secretType:
		return "secret"
	case t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case t.Kind() == reflect.Int:
		return "whole number"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Slice:
		return "list of texts"
	case strings.Contains(key, "tls.") && strings.HasSuffix(key, "_file"):
		return "path, PEM"
	case strings.HasSuffix(key, "_file"):
		return "path"
	}
	return "text"
}

// entries returns the keys of a section, those of sections in it among them.
func (m *manual) entries(section string, t reflect.Type, defaults reflect.Value) []described {
	var out []described
	for _, f := range fields(t) {
		owner := t
		for _, i := range f.index[:len(f.index)-1] {
			owner = owner.Field(i).Type
		}
		of, key := t.FieldByIndex(f.index), join(section, f.key)
		value := reflect.Value{}
		if defaults.IsValid() {
			value = defaults.FieldByIndex(f.index)
		}
		// Within an override `documents` is written as it stands above.
		if of.Type.Kind() == reflect.Struct && defaults.IsValid() {
			out = append(out, m.entries(key, of.Type, value)...)
			continue
		}
		e := described{key: key, allowed: allowed(key, of.Type)}
		text := m.comment(owner, of.Name)
		for _, line := range tail.FindAllStringSubmatch(text, -1) {
			if line[1] == "Values" {
				e.allowed = line[2]
			} else {
				e.example = line[2]
			}
		}
		e.meaning = strings.Join(strings.Fields(tail.ReplaceAllString(text, "")), " ")
		for _, word := range code.FindAllStringSubmatch(e.allowed, -1) {
			e.values = append(e.values, word[1])
		}
		e.closed = e.values != nil && strings.Trim(code.ReplaceAllString(e.allowed, ""), " ,") == ""
		if value.IsValid() {
			node := encode(key, value)
			if node.Kind == yaml.SequenceNode {
				node.Style = yaml.FlowStyle
			}
			written, err := yaml.Marshal(node)
			if err != nil {
				m.t.Fatal(err)
			}
			e.fallback = strings.ReplaceAll(strings.TrimSpace(string(written)), "'", `"`)
		}
		out = append(out, e)
		if of.Type.Kind() == reflect.Slice && of.Type.Elem().Kind() == reflect.Struct {
			out = append(out, m.entries(key+"[]", of.Type.Elem(), reflect.Value{})...)
		}
	}
	return out
}

var code = regexp.MustCompile("`([^`]*)`")

func reference(t *testing.T) []described {
	m := &manual{t, map[string]map[string]map[string]string{}}
	return m.entries("", reflect.TypeFor[Config](), reflect.ValueOf(*Default()))
}

// keysOf is where the page wants the tables of some sections.
var keysOf = regexp.MustCompile(`(?ms)^<!-- keys: ([a-z_ ]+) -->\n.*?^<!-- end -->$`)

// docs/configuration.md is made of the comments: run go test ./config -update
// after a change of one.
func TestReferenceIsUpToDate(t *testing.T) {
	page, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string][]described{}
	for _, e := range reference(t) {
		name := strings.FieldsFunc(e.key, func(r rune) bool { return r == '.' || r == '[' })[0]
		sections[name] = append(sections[name], e)
	}
	made := keysOf.ReplaceAllFunc(page, func(block []byte) []byte {
		var out bytes.Buffer
		names := string(keysOf.FindSubmatch(block)[1])
		fmt.Fprintf(&out, "<!-- keys: %s -->\n\n| key | allowed | default | meaning |\n| --- | --- | --- | --- |\n", names)
		for name := range strings.FieldsSeq(names) {
			if sections[name] == nil {
				t.Errorf("the page wants the keys of %s: there are none, or they stand there twice", name)
			}
			for _, e := range sections[name] {
				meaning := e.meaning
				if e.example != "" {
					meaning += " Example: `" + e.example + "`"
				}
				fallback := e.fallback
				if fallback != "" {
					fallback = "`" + fallback + "`"
				}
				fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", e.key, cell(e.allowed), cell(fallback), cell(meaning))
			}
			delete(sections, name)
		}
		out.WriteString("\n<!-- end -->")
		return out.Bytes()
	})
	for name := range sections {
		t.Errorf("%s has no place for the keys of %s: <!-- keys: %s --> and <!-- end -->", referencePage, name, name)
	}
	if bytes.Equal(made, page) {
		return
	}
	if *update {
		if err := os.WriteFile(referencePage, made, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, want := strings.Split(string(page), "\n"), strings.Split(string(made), "\n")
	for i := range got {
		if i >= len(want) || got[i] != want[i] {
			t.Fatalf("%s:%d is not what the comments say: run go test ./config -update\n%s", referencePage, i+1, got[i])
		}
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// together are what some examples need beside them to mean anything.
var together = map[string][]string{
	"kafka.topics":              {"documents.index=${topic}"},
	"kafka.tls":                 {"kafka.tls.enabled=true"},
	"kafka.sasl.mechanism":      {"kafka.sasl.username=u", "kafka.sasl.password=p"},
	"kafka.sasl.username":       {"kafka.sasl.mechanism=PLAIN", "kafka.sasl.password=p"},
	"kafka.sasl.password":       {"kafka.sasl.mechanism=PLAIN", "kafka.sasl.username=u"},
	"elasticsearch.username":    {"elasticsearch.password=p"},
	"elasticsearch.password":    {"elasticsearch.username=u"},
	"elasticsearch.cloud_id":    {"elasticsearch.addresses=[]"},
	"elasticsearch.tls":         {`elasticsearch.addresses=["https://localhost:9200"]`},
	"documents.metadata_fields": {"documents.validate=strict"},
	"indexer.held":              {"dead_letter.topic=d"},
	"admin.address":             {"admin.token_file=t"},
	"documents.on_rejected":     {"dead_letter.topic=d"},
	"documents.on_null":         {"dead_letter.topic=d"},
	"routing.stream":            {"documents.customer=key", "dead_letter.topic=d"},
	"documents.on_no_customer":  {"routing.stream=s", "documents.customer=key", "dead_letter.topic=d"},
	"documents.op":              {"documents.id=key"},
	"documents.raw_field":       {"documents.format=text"},
	"overrides":                 {"kafka.topics=[audit, events]"},
}

// Each key has a meaning and an example that the program takes; of what is
// allowed, the program takes each value that the page names, and where the page
// says that there are no others, no other.
func TestReferenceIsTrue(t *testing.T) {
	try := func(key, value string) (problems []string) {
		sets := []string{key + "=" + value}
		for prefix, more := range together {
			if strings.HasPrefix(key, prefix) {
				for _, set := range more {
					if name, _, _ := strings.Cut(set, "="); name != key {
						sets = append(sets, set)
					}
				}
			}
		}
		_, err := Parse(nil, sets, env(map[string]string{"POD_NAME": "sluice-0", "KAFKA_PASSWORD": "p", "ELASTICSEARCH_PASSWORD": "p", "ELASTICSEARCH_API_KEY": "aWQ6a2V5"}))
		var errs Errors
		errors.As(err, &errs)
		for _, e := range errs {
			// The token of admin.address is not here.
			if !strings.Contains(e.Problem, "no such file") {
				problems = append(problems, e.Error())
			}
		}
		return problems
	}
	for _, e := range reference(t) {
		if len(strings.Fields(e.meaning)) < 3 {
			t.Errorf("%s: the comment of its field says too little for its user: %q", e.key, e.meaning)
		}
		later := strings.HasPrefix(e.key, "documents.schema_registry.") // refused: see later
		if e.example == "" && e.allowed != "`true`, `false`" && !later {
			t.Errorf("%s: its comment has no Example", e.key)
		}
		if e.fallback != "" {
			if got := parse(t, "", e.key+"="+e.fallback); !reflect.DeepEqual(got, Default()) {
				t.Errorf("%s=%s is not the default", e.key, e.fallback)
			}
		}
		inOverride := strings.Contains(e.key, "[]")
		if inOverride || later || strings.HasPrefix(e.allowed, "path") {
			continue
		}
		if problems := try(e.key, e.example); e.example != "" && problems != nil {
			t.Errorf("the example of %s, %s, is refused: %s", e.key, e.example, strings.Join(problems, "\n"))
		}
		if e.allowed == "size or `auto`" || strings.HasPrefix(e.allowed, "list") {
			continue
		}
		for _, value := range e.values {
			for _, problem := range try(e.key, value) {
				if strings.Contains(problem, "is not") {
					t.Errorf("%s is said to take %s: %s", e.key, value, problem)
				}
			}
		}
		if e.closed && try(e.key, "something-else") == nil {
			t.Errorf("%s takes more than %s", e.key, e.allowed)
		}
	}
}

// A key that no comment of the manual describes cannot be missed: the tables
// hold as many as the program knows.
func TestReferenceHasEveryKey(t *testing.T) {
	known := map[string]bool{}
	for _, e := range reference(t) {
		known[e.key] = true
	}
	for _, key := range keys("", reflect.TypeFor[Config]()) {
		_, within, inOverride := strings.Cut(key, "[].documents.")
		isSection := slices.ContainsFunc(keys("", reflect.TypeFor[Config]()), func(k string) bool { return strings.HasPrefix(k, key+".") })
		if !known[key] && !isSection && (!inOverride || !known["documents."+within]) {
			t.Errorf("%s is not described", key)
		}
	}
}
