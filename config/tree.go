package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// node is one value of the merged configuration: a text that nobody has given
// a meaning yet, or a list or mapping of nodes, and where it was written.
type node struct {
	kind    kind
	place   Position // of the key in a mapping, of the element in a list
	text    string   // of a scalar
	list    []*node  // of a list
	entries []entry  // of a mapping, in the order of the file; keys are unique
}

type entry struct {
	key   string
	value *node
}

type kind uint8

const (
	null kind = iota // nothing is written after the key
	scalar
	list
	mapping
)

// String names the kind as an error message does.
func (k kind) String() string {
	return [...]string{"nothing", "a single value", "a list", "a mapping"}[k]
}

// get returns the value of a mapping's key, or nil.
func (n *node) get(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// merge lays a later mapping over n: mappings merge, anything else replaces.
// An empty later section, all of whose keys are commented out, changes
// nothing.
func (n *node) merge(later *node) {
	for _, e := range later.entries {
		old := n.get(e.key)
		switch {
		case old == nil:
			n.entries = append(n.entries, e)
		case old.kind == mapping && e.value.kind == mapping:
			old.merge(e.value)
		case old.kind == mapping && e.value.kind == null:
		default:
			*old = *e.value
		}
	}
}

// parser turns sources into trees and collects what is wrong with them.
type parser struct {
	errs   *Errors
	broken bool // a source, or a part of one, is missing from the tree
}

func (p *parser) fail(at Position, problem, remedy string) {
	p.broken = true
	*p.errs = append(*p.errs, &Error{Position: at, Problem: problem, Remedy: remedy})
}

// file returns the tree of one source, the order-th of all.
func (p *parser) file(s Source, order int) *node {
	at := func(n *yaml.Node) Position { return Position{s.Name, n.Line, n.Column, order} }
	root := &node{kind: mapping, place: Position{s.Name, 1, 1, order}}
	decoder := yaml.NewDecoder(bytes.NewReader(s.Data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) { // nothing but comments
			p.syntax(err, Position{s.Name, 1, 0, order})
		}
		return root
	}
	if err := decoder.Decode(&second); err == nil {
		p.fail(at(&second), "a second YAML document begins here", "keep one document in a file; several files can be given with several --config")
	} else if !errors.Is(err, io.EOF) {
		p.syntax(err, Position{s.Name, 1, 0, order})
	}
	top := p.convert(doc.Content[0], at, root.place)
	switch {
	case top == nil || top.kind == null: // reported, or the file is empty
	case top.kind == mapping:
		return top
	default:
		p.fail(at(doc.Content[0]), fmt.Sprintf("the file holds %v, not sections", top.kind), "begin with a section such as `kafka:`; `sluice init` prints a whole file")
	}
	return root
}

var (
	setKey    = regexp.MustCompile(`^[a-z0-9_.]*`)
	yamlLine  = regexp.MustCompile(`^line (\d+): `)
	yamlNamed = regexp.MustCompile(`'[^']*'`)
)

// set returns the tree of one --set flag, the order-th of all sources.
func (p *parser) set(flag string, order int) *node {
	root := &node{kind: mapping}
	key, text, found := strings.Cut(flag, "=")
	if !found {
		key = setKey.FindString(flag) // what follows may be a secret
	}
	place := Position{Name: "--set " + key, order: order}
	if !found || key == "" {
		p.fail(place, "is not KEY=VALUE", "write it like --set kafka.group_id=sluice")
		return root
	}
	value := &node{kind: scalar, place: place} // KEY=, an empty text
	if text != "" {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			p.syntax(err, place)
			return root
		}
		if len(doc.Content) > 0 { // more than a comment
			value = p.convert(doc.Content[0], func(*yaml.Node) Position { return place }, place)
		}
		if value == nil {
			return root
		}
	}
	names := strings.Split(key, ".")
	for i := len(names) - 1; i >= 0; i-- {
		value = &node{kind: mapping, place: place, entries: []entry{{names[i], value}}}
	}
	return value
}

// syntax reports an error of the YAML parser, with its line in a file.
func (p *parser) syntax(err error, at Position) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if at.Line > 0 {
			at.Line, _ = strconv.Atoi(m[1]) // digits; 0 if there are too many
			at.Line = max(at.Line, 1)
		}
	}
	remedy := "check the indentation, and quote texts that hold : # { } [ ] & * or begin with % @ `"
	if strings.Contains(text, "unknown anchor") {
		remedy = "quote a text that begins with *"
	}
	// Only names of anchors are quoted by the YAML parser, and `password: *x`
	// makes one of a secret.
	p.fail(at, "not YAML: "+yamlNamed.ReplaceAllString(text, "..."), remedy)
}

// convert turns a YAML node into ours; place is that of its key or element.
// What is not supported is reported and gives nil.
func (p *parser) convert(y *yaml.Node, at func(*yaml.Node) Position, place Position) *node {
	n := &node{place: place}
	if y.Anchor != "" || y.Kind == yaml.AliasNode {
		p.fail(at(y), "anchors and aliases are not supported", "write the value out, or quote a text that begins with & or *")
		return nil
	}
	if y.Style&yaml.TaggedStyle != 0 {
		p.fail(at(y), "tags are not supported", "remove it, or quote a text that begins with !")
		return nil
	}
	switch y.Kind {
	case yaml.ScalarNode:
		if y.Tag != "!!null" {
			n.kind, n.text = scalar, y.Value
		}
	case yaml.SequenceNode:
		n.kind = list
		for _, item := range y.Content {
			if value := p.convert(item, at, at(item)); value != nil {
				n.list = append(n.list, value)
			}
		}
	case yaml.MappingNode:
		n.kind = mapping
		for i := 0; i+1 < len(y.Content); i += 2 {
			key, place := y.Content[i], at(y.Content[i])
			switch {
			case key.Tag == "!!merge":
				p.fail(place, "merge keys are not supported", "write the keys out; later files given with --config are laid over earlier ones")
			case key.Kind != yaml.ScalarNode:
				p.fail(place, "a key must be a single word", "quote a text that begins with { or [")
			default:
				if first := n.get(key.Value); first != nil {
					p.fail(place, fmt.Sprintf("%s stands twice in this section, first at %s", show(key.Value), first.place), "keep one of the two")
					continue
				}
				if value := p.convert(y.Content[i+1], at, place); value != nil {
					n.entries = append(n.entries, entry{key.Value, value})
				}
			}
		}
	}
	return n
}

// show quotes a text for an error message, cut to a readable length.
func show(text string) string {
	const most = 60
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return strconv.Quote(text)
}
