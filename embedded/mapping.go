package embedded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"
)

type dynamicMode uint8

const (
	inherit dynamicMode = iota
	dynamicTrue
	dynamicFalse
	dynamicStrict
)

// A field is a node of a mapping: an object with properties, or a leaf.
// Published fields are never changed; a document that brings new ones works on
// a clone.
type field struct {
	typ     string // keyword, long, ...; "object" for objects and the root
	dynamic dynamicMode
	off     bool // enabled: false
	props   map[string]*field
	subs    map[string]*field // multi-fields
	params  map[string]any    // further parameters, shown as they were given
	fresh   bool              // introduced by the document that is being read
}

func (f *field) isObject() bool { return f.props != nil }

// A mapping is an index's mapping. It is immutable once published.
type mapping struct {
	root  *field
	meta  map[string]any // _meta, _source and the like, shown as they were given
	count int            // fields, objects and multi-fields

	fieldLimit, depthLimit int
	timestamp              bool // a data stream's: @timestamp is required
}

func newMapping() *mapping {
	return &mapping{root: &field{typ: "object", props: map[string]*field{}}, fieldLimit: 1000, depthLimit: 20}
}

func (f *field) clone() *field {
	c := *f
	if f.props != nil {
		c.props = make(map[string]*field, len(f.props))
		for k, v := range f.props {
			c.props[k] = v.clone()
		}
	}
	return &c
}

// settle ends the newness of the fields that a document brought.
func (f *field) settle() {
	f.fresh = false
	for _, c := range f.props {
		c.settle()
	}
}

func (m *mapping) clone() *mapping {
	c := *m
	c.root = m.root.clone()
	return &c
}

// leafTypes are the field types that mappings may name; values of those not
// checked in value are taken as they are.
var leafTypes = map[string]bool{
	"keyword": true, "text": true, "match_only_text": true, "constant_keyword": true, "wildcard": true,
	"long": true, "integer": true, "short": true, "byte": true, "double": true, "float": true, "half_float": true,
	"scaled_float": true, "unsigned_long": true, "boolean": true, "date": true, "date_nanos": true, "ip": true,
	"flattened": true, "binary": true, "alias": true, "version": true, "geo_point": true, "dense_vector": true,
}

// merge adds a mapping's source, such as {"dynamic":false,"properties":{...}}.
func (m *mapping) merge(src map[string]any) *apiError {
	for k, v := range src {
		switch k {
		case "properties", "dynamic", "enabled":
		case "_meta", "_source", "_routing", "dynamic_templates", "date_detection", "numeric_detection",
			"dynamic_date_formats", "_data_stream_timestamp", "runtime":
			if m.meta == nil {
				m.meta = map[string]any{}
			}
			m.meta[k] = v
		default:
			return newError(http.StatusBadRequest, "mapper_parsing_exception",
				"Root mapping definition has unsupported parameters:  ["+k+" : "+javaString(v)+"]")
		}
	}
	if err := m.mergeObject(m.root, src, ""); err != nil {
		return err
	}
	if m.count > m.fieldLimit {
		return illegalArgument("Limit of total fields [" + strconv.Itoa(m.fieldLimit) + "] has been exceeded")
	}
	return nil
}

func (m *mapping) mergeObject(f *field, src map[string]any, path string) *apiError {
	if v, ok := src["dynamic"]; ok {
		switch fmt.Sprint(v) {
		case "true", "runtime":
			f.dynamic = dynamicTrue
		case "false":
			f.dynamic = dynamicFalse
		case "strict":
			f.dynamic = dynamicStrict
		}
	}
	if v, ok := src["enabled"]; ok {
		f.off = fmt.Sprint(v) == "false"
	}
	props, _ := src["properties"].(map[string]any)
	for _, name := range sortedKeys(props) {
		def, ok := props[name].(map[string]any)
		if !ok {
			return newError(http.StatusBadRequest, "mapper_parsing_exception", "Expected map for property [fields] on field ["+name+"] but got a class java.lang.String")
		}
		if err := m.mergeField(f, name, path+name, def); err != nil {
			return err
		}
	}
	return nil
}

func (m *mapping) mergeField(parent *field, name, path string, def map[string]any) *apiError {
	if head, rest, dotted := strings.Cut(name, "."); dotted {
		o := parent.props[head]
		if o == nil {
			o = &field{typ: "object", props: map[string]*field{}}
			parent.props[head] = o
			m.count++
		}
		return m.mergeField(o, rest, path, def)
	}
	typ, _ := def["type"].(string)
	_, hasProps := def["properties"]
	object := typ == "object" || typ == "nested" || typ == "" && (hasProps || def["enabled"] != nil || def["dynamic"] != nil)
	old := parent.props[name]
	if object {
		if old != nil && !old.isObject() {
			return illegalArgument("can't merge a non object mapping [" + path + "] with an object mapping")
		}
		if old == nil {
			old = &field{typ: "object", props: map[string]*field{}}
			if typ == "nested" {
				old.typ = typ
			}
			parent.props[name] = old
			m.count++
		}
		return m.mergeObject(old, def, path+".")
	}
	if typ == "" {
		return mapperParsing("No type specified for field [" + name + "]")
	}
	if !leafTypes[typ] {
		return mapperParsing("The mapper type [" + typ + "] declared on field [" + name +
			"] does not exist. It might have been created within a future version or requires a plugin to be installed. Check the documentation.")
	}
	if old != nil && old.typ != typ {
		return illegalArgument("mapper [" + path + "] cannot be changed from type [" + old.kindName() + "] to [" + typ + "]")
	}
	f := &field{typ: typ, params: map[string]any{}}
	for k, v := range def {
		switch k {
		case "type":
		case "fields":
			subs, _ := v.(map[string]any)
			f.subs = map[string]*field{}
			for _, sub := range sortedKeys(subs) {
				d, _ := subs[sub].(map[string]any)
				t, _ := d["type"].(string)
				s := &field{typ: t, params: map[string]any{}}
				for pk, pv := range d {
					if pk != "type" {
						s.params[pk] = pv
					}
				}
				f.subs[sub] = s
			}
		default:
			f.params[k] = v
		}
	}
	if old == nil {
		m.count += 1 + len(f.subs)
	} else {
		m.count += len(f.subs) - len(old.subs)
	}
	parent.props[name] = f
	return nil
}

func mapperParsing(reason string) *apiError {
	inner := newError(http.StatusBadRequest, "mapper_parsing_exception", reason)
	return &apiError{status: http.StatusBadRequest, typ: inner.typ, reason: "Failed to parse mapping: " + reason, cause: inner, root: inner}
}

func (f *field) kindName() string {
	if f.isObject() {
		return "ObjectMapper"
	}
	return f.typ
}

// source returns the mapping as the API shows it.
func (m *mapping) source() map[string]any {
	out := m.root.source(true)
	for k, v := range m.meta {
		out[k] = v
	}
	return out
}

func (f *field) source(root bool) map[string]any {
	out := map[string]any{}
	for k, v := range f.params {
		out[k] = v
	}
	if !f.isObject() {
		out["type"] = f.typ
		if len(f.subs) > 0 {
			subs := map[string]any{}
			for k, s := range f.subs {
				subs[k] = s.source(false)
			}
			out["fields"] = subs
		}
		return out
	}
	switch f.dynamic {
	case dynamicTrue:
		out["dynamic"] = "true"
	case dynamicFalse:
		out["dynamic"] = "false"
	case dynamicStrict:
		out["dynamic"] = "strict"
	}
	if f.off {
		out["enabled"] = false
	}
	if len(f.props) > 0 {
		props := map[string]any{}
		for k, p := range f.props {
			props[k] = p.source(false)
		}
		out["properties"] = props
	}
	if !root && (len(f.props) == 0 || f.typ == "nested") {
		out["type"] = f.typ
	}
	return out
}

// lookup returns the field at a dotted path, multi-fields included, or nil.
func (m *mapping) lookup(path string) *field {
	f := m.root
	for path != "" {
		head, rest, _ := strings.Cut(path, ".")
		next := f.props[head]
		if next == nil {
			next = f.subs[head]
		}
		if next == nil {
			return nil
		}
		f, path = next, rest
	}
	return f
}

// metadataFields cannot stand at the top of a document.
var metadataFields = map[string]bool{
	"_id": true, "_source": true, "_index": true, "_routing": true, "_version": true,
	"_seq_no": true, "_primary_term": true, "_field_names": true, "_ignored": true, "_tier": true, "_nested_path": true,
}

// A docParser reads a document against a mapping. With grow it adds what the
// mapping lacks to m, which is its own then; without, it stops at the first new
// field with needGrow.
type docParser struct {
	lexer
	m        *mapping
	id       []byte
	grow     bool
	needGrow bool
	added    int
	depth    int
	names    []name // of all open objects
	path     []byte // of the open object: a.b.
	bad      *apiError
	stamped  bool // @timestamp was seen
}

type name struct{ from, to int }

// parse checks a document and returns the error of its item, or nil.
func (p *docParser) parse() *apiError {
	p.bom()
	k := p.value()
	if p.err != nil {
		return p.wholeError()
	}
	if k != tokObject {
		return docParsing("Malformed content, must start with an object")
	}
	root := p.m.root
	if root.off {
		p.skip(k)
	} else {
		p.object(root, root.dynamic, 0)
	}
	if p.bad != nil || p.needGrow {
		return p.bad
	}
	if p.err != nil {
		return p.syntaxError()
	}
	end := p.i
	k = p.value()
	if p.err != nil {
		return p.wholeError()
	}
	if k == tokObjectEnd || k == tokArrayEnd {
		p.fail(p.start, "Unexpected close marker '"+string(p.b[p.start])+"': expected '}' (for root starting at [line: 1, column: 0])")
		return p.wholeError()
	}
	if k != tokEOF {
		return illegalArgument("Malformed content, found extra data after parsing: " + k.String())
	}
	if p.m.timestamp && !p.stamped {
		return docFailed(end, illegalArgument("data stream timestamp field [@timestamp] is missing"))
	}
	return nil
}

func docParsing(reason string) *apiError {
	return newError(http.StatusBadRequest, "document_parsing_exception", reason)
}

func docFailed(at int, cause *apiError) *apiError {
	return &apiError{
		status: http.StatusBadRequest, typ: "document_parsing_exception",
		reason: "[1:" + strconv.Itoa(at+1) + "] failed to parse: " + cause.reason, cause: cause,
	}
}

// syntaxError is the error of a document whose JSON breaks inside its object.
func (p *docParser) syntaxError() *apiError {
	if strings.HasPrefix(p.err.msg, "Document nesting depth") {
		return docFailed(p.start, newError(0, "stream_constraints_exception", p.err.msg))
	}
	inner := p.err.request(p.b)
	if p.err.eof {
		inner.typ = "x_content_e_o_f_exception"
		inner.reason = "[1:" + strconv.Itoa(p.err.at+1) + "] Unexpected end of file"
	}
	return docFailed(p.start, inner)
}

// wholeError is the error of a document that breaks before or after its object.
func (p *docParser) wholeError() *apiError {
	inner := p.err.request(p.b)
	return &apiError{
		status: http.StatusBadRequest, typ: "document_parsing_exception",
		reason: "[1:" + strconv.Itoa(p.err.at+1) + "] " + inner.reason, cause: inner,
	}
}

func (p *docParser) reject(e *apiError) {
	if p.bad == nil {
		p.bad = e
	}
}

// full returns the path of member nm of the open object.
func (p *docParser) full(nm []byte) string { return string(p.path) + string(nm) }

func (p *docParser) stopped() bool { return p.bad != nil || p.err != nil || p.needGrow }

// object reads an object's members; its opening brace was read. A nil f means
// that nothing of it is mapped. level counts the components of path.
func (p *docParser) object(f *field, dyn dynamicMode, level int) {
	if p.depth++; p.depth > maxNesting {
		p.fail(p.start, "Document nesting depth (1001) exceeds the maximum allowed (1000, from `StreamReadConstraints.getMaxNestingDepth()`)")
		return
	}
	open := len(p.names)
	var seen map[string]struct{}
	for first := true; p.name(first); first = false {
		at := p.start
		raw := p.val
		nm := name{at + 1, at + 1 + len(raw)}
		if p.escaped {
			raw = unescape(nil, raw)
		}
		if seen = p.unique(open, nm, raw, p.escaped, seen); p.stopped() {
			return
		}
		p.memberOf(f, dyn, level, raw, at)
		if p.stopped() {
			return
		}
	}
	p.names = p.names[:open]
	p.depth--
}

// manyNames is where names are kept in a set instead of being compared.
const manyNames = 24

// unique refuses a name that the open object has already.
func (p *docParser) unique(open int, nm name, raw []byte, escaped bool, seen map[string]struct{}) map[string]struct{} {
	dup := false
	if seen == nil && (escaped || len(p.names)-open >= manyNames) {
		seen = make(map[string]struct{}, 2*manyNames)
		for _, o := range p.names[open:] {
			seen[string(p.b[o.from:o.to])] = struct{}{}
		}
	}
	if seen != nil {
		_, dup = seen[string(raw)]
		seen[string(raw)] = struct{}{}
	} else {
		for _, o := range p.names[open:] {
			if o.to-o.from == len(raw) && bytes.Equal(p.b[o.from:o.to], raw) {
				dup = true
				break
			}
		}
		p.names = append(p.names, nm)
	}
	if dup {
		p.fail(p.i, "Duplicate field '"+string(raw)+"'")
	}
	return seen
}

// memberOf reads the value of member raw of object f.
func (p *docParser) memberOf(f *field, dyn dynamicMode, level int, raw []byte, at int) {
	if f == nil {
		p.unmapped(p.member())
		return
	}
	if level == 0 && len(raw) > 1 && raw[0] == '_' && metadataFields[string(raw)] {
		p.metadata(string(raw))
		return
	}
	// The common case first: a mapped name without dots.
	if c, ok := f.props[string(raw)]; ok {
		p.mapped(f, c, dyn, level, raw)
		return
	}
	if e := checkName(raw); e != nil {
		p.reject(e.at(at))
		return
	}
	if bytes.IndexByte(raw, '.') >= 0 {
		p.dotted(f, dyn, level, string(raw))
		return
	}
	p.mapped(f, nil, dyn, level, raw)
}

// nameError is why a member's name is refused.
type nameError struct {
	reason string
	bare   bool
}

func (e *nameError) at(pos int) *apiError {
	if e.bare {
		return docParsing("[1:" + strconv.Itoa(pos+1) + "] " + e.reason)
	}
	return docFailed(pos, illegalArgument(e.reason))
}

func checkName(raw []byte) *nameError {
	if len(raw) == 0 {
		return &nameError{reason: "field name cannot be an empty string"}
	}
	if bytes.IndexByte(raw, '.') < 0 {
		if len(bytes.TrimSpace(raw)) == 0 {
			return &nameError{reason: "Field name cannot contain only whitespace: [" + string(raw) + "]", bare: true}
		}
		return nil
	}
	parts := strings.Split(strings.TrimRight(string(raw), "."), ".")
	if len(parts) == 1 && parts[0] == "" {
		return &nameError{reason: "field name cannot contain only dots"}
	}
	for _, part := range parts {
		if part == "" {
			return &nameError{reason: "field name cannot contain only whitespace: ['" + string(raw) + "']"}
		}
		if strings.TrimSpace(part) == "" {
			return &nameError{reason: "field name starting or ending with a [.] makes object resolution ambiguous: [" + string(raw) + "]"}
		}
	}
	return nil
}

// dotted reads the value of a name such as a.b as if it were {"a":{"b":value}}.
func (p *docParser) dotted(f *field, dyn dynamicMode, level int, raw string) {
	parts := strings.Split(strings.TrimRight(raw, "."), ".")
	outer := len(p.path)
	defer func() { p.path = p.path[:outer] }()
	for _, part := range parts[:len(parts)-1] {
		c := f.props[part]
		if c == nil {
			switch dyn {
			case dynamicFalse:
				p.unmapped(p.member())
				return
			case dynamicStrict:
				p.member()
				p.strict(part)
				return
			}
			if c = p.addObject(f, []byte(part), level+1); c == nil {
				return
			}
		}
		if !c.isObject() {
			k := p.member()
			if c.fresh {
				p.reject(illegalArgument("mapper [" + p.full([]byte(part)) + "] cannot be changed from type [" + c.typ + "] to [ObjectMapper]"))
				return
			}
			preview := "{" + strings.Join(parts[1:], ".") + "=" + p.preview(k) + "}"
			p.reject(valueError(p.i-1, p.full([]byte(part)), c.typ, p.id, preview, objectRefusal(c, p.start)))
			return
		}
		if c.off {
			p.skip(p.member())
			return
		}
		if c.dynamic != inherit {
			dyn = c.dynamic
		}
		p.path = append(append(p.path, part...), '.')
		level++
		f = c
	}
	last := parts[len(parts)-1]
	p.mapped(f, f.props[last], dyn, level, []byte(last))
}

// mapped reads the value of member nm of object f; c is its field, nil where it
// is not mapped.
func (p *docParser) mapped(f, c *field, dyn dynamicMode, level int, nm []byte) {
	k := p.member()
	if p.err != nil {
		return
	}
	if c == nil {
		p.unknown(f, dyn, level, nm, k)
		return
	}
	if level == 0 && string(nm) == "@timestamp" && k != tokNull {
		p.stamped = true
	}
	p.typed(f, c, dyn, level, nm, k, false)
}

// typed reads a value, whose first token is k, for field c.
func (p *docParser) typed(f, c *field, dyn dynamicMode, level int, nm []byte, k tokenKind, element bool) {
	if c.isObject() {
		p.typedObject(f, c, dyn, level, nm, k, element)
		return
	}
	switch k {
	case tokNull:
	case tokArray:
		p.elements(func(k tokenKind) { p.typed(f, c, dyn, level, nm, k, true) })
	default:
		if c.fresh && !p.sameFresh(c, nm, k) {
			return
		}
		p.leaf(c, nm, k)
	}
}

func (p *docParser) typedObject(f, c *field, dyn dynamicMode, level int, nm []byte, k tokenKind, element bool) {
	switch {
	case c.off:
		p.skip(k)
	case k == tokNull:
	case k == tokArray:
		p.elements(func(k tokenKind) { p.typedObject(f, c, dyn, level, nm, k, true) })
	case k == tokObject:
		if c.dynamic != inherit {
			dyn = c.dynamic
		}
		n := len(p.path)
		p.path = append(append(p.path, nm...), '.')
		p.object(c, dyn, level+1)
		p.path = p.path[:n]
	case c.fresh:
		p.reject(illegalArgument("can't merge a non object mapping [" + p.full(nm) + "] with an object mapping"))
	default:
		field := string(nm)
		if element {
			field = "null"
		}
		p.reject(docParsing("[1:" + strconv.Itoa(p.start+1) + "] object mapping for [" + p.full(nm) + "] tried to parse field [" +
			field + "] as object, but found a concrete value"))
	}
}

// elements reads an array's elements; its bracket was read.
func (p *docParser) elements(each func(k tokenKind)) {
	if p.depth++; p.depth > maxNesting {
		p.fail(p.start, "Document nesting depth (1001) exceeds the maximum allowed (1000, from `StreamReadConstraints.getMaxNestingDepth()`)")
		return
	}
	for first := true; p.more(first); first = false {
		k := p.member()
		if p.stopped() {
			return
		}
		each(k)
		if p.stopped() {
			return
		}
	}
	p.depth--
}

// unmapped reads a value of which nothing is mapped, for its JSON and names.
func (p *docParser) unmapped(k tokenKind) {
	switch k {
	case tokObject:
		p.object(nil, dynamicFalse, 1)
	case tokArray:
		p.elements(p.unmapped)
	}
}

func (p *docParser) strict(nm string) {
	if p.err != nil {
		return
	}
	within := strings.TrimSuffix(string(p.path), ".")
	if within == "" {
		within = "_doc"
	}
	p.reject(newError(http.StatusBadRequest, "strict_dynamic_mapping_exception", "[1:"+strconv.Itoa(p.start+1)+
		"] mapping set to strict, dynamic introduction of ["+nm+"] within ["+within+"] is not allowed"))
}

// unknown reads the value of a member that is not mapped.
func (p *docParser) unknown(f *field, dyn dynamicMode, level int, nm []byte, k tokenKind) {
	switch {
	case dyn == dynamicStrict:
		p.strict(string(nm))
		return
	case dyn == dynamicFalse:
		p.unmapped(k)
		return
	case k == tokNull:
		return
	case k == tokObject:
		at := p.start
		c := p.addObject(f, nm, level+1)
		if c != nil {
			p.start = at
			p.typedObject(f, c, dyn, level, nm, k, false)
		}
		return
	case k == tokArray:
		p.elements(func(k tokenKind) {
			if c := f.props[string(nm)]; c != nil {
				p.typed(f, c, dyn, level, nm, k, true)
				return
			}
			p.unknown(f, dyn, level, nm, k)
		})
		return
	}
	if !p.grow {
		p.needGrow = true
		return
	}
	c := &field{typ: p.infer(k), fresh: true}
	n := 1
	if c.typ == "text" {
		c.subs = map[string]*field{"keyword": {typ: "keyword", params: map[string]any{"ignore_above": 256}}}
		n = 2
	}
	if p.room(n) {
		f.props[string(nm)] = c
		p.leaf(c, nm, k)
	}
}

// room counts n new fields against the limit.
func (p *docParser) room(n int) bool {
	p.added += n
	if p.m.count+n > p.m.fieldLimit {
		p.reject(docFailed(p.start, illegalArgument("Limit of total fields ["+strconv.Itoa(p.m.fieldLimit)+
			"] has been exceeded while adding new fields ["+strconv.Itoa(p.added)+"]")))
		return false
	}
	p.m.count += n
	return true
}

func (p *docParser) addObject(f *field, nm []byte, level int) *field {
	if !p.grow {
		p.needGrow = true
		return nil
	}
	if level >= p.m.depthLimit {
		p.reject(docFailed(p.start, illegalArgument("Limit of mapping depth ["+strconv.Itoa(p.m.depthLimit)+
			"] has been exceeded due to object field ["+p.full(nm)+"]")))
		return nil
	}
	if !p.room(1) {
		return nil
	}
	c := &field{typ: "object", props: map[string]*field{}, fresh: true}
	f.props[string(nm)] = c
	return c
}

// infer returns the type that dynamic mapping gives a value.
func (p *docParser) infer(k tokenKind) string {
	switch k {
	case tokInt:
		return "long"
	case tokFloat:
		return "float"
	case tokTrue, tokFalse:
		return "boolean"
	}
	s := string(p.text())
	if strings.ContainsAny(s, ":-/") && (parseDate(s) || dynamicDate(s)) {
		return "date"
	}
	return "text"
}

// sameFresh refuses two types for a field within the document that brings it.
func (p *docParser) sameFresh(c *field, nm []byte, k tokenKind) bool {
	to := "ObjectMapper"
	if k != tokObject {
		to = p.infer(k)
	}
	if to == c.typ || c.typ == "text" && k == tokString {
		return true
	}
	p.reject(illegalArgument("mapper [" + p.full(nm) + "] cannot be changed from type [" + c.typ + "] to [" + to + "]"))
	return false
}

// metadata refuses a metadata field.
func (p *docParser) metadata(nm string) {
	k := p.member()
	preview := p.preview(k)
	if p.err != nil {
		return
	}
	pos := "[1:" + strconv.Itoa(p.start+1) + "] "
	p.reject(&apiError{
		status: http.StatusBadRequest, typ: "document_parsing_exception",
		reason: pos + "failed to parse field [" + nm + "] of type [" + nm + "] in document with id '" + string(p.id) + "'. Preview of field's value: '" + preview + "'",
		cause:  docParsing(pos + "Field [" + nm + "] is a metadata field and cannot be added inside a document. Use the index API request parameters."),
	})
}

// preview reads a value and shows it as the server's messages do.
func (p *docParser) preview(k tokenKind) string {
	switch k {
	case tokString:
		return string(p.text())
	case tokObject, tokArray:
		from := p.start
		p.skip(k)
		if p.err != nil {
			return ""
		}
		d := json.NewDecoder(bytes.NewReader(p.b[from:p.i]))
		d.UseNumber()
		var v any
		if d.Decode(&v) != nil {
			return ""
		}
		return javaString(v)
	case tokFloat:
		if f, err := strconv.ParseFloat(string(p.val), 64); err != nil {
			return strings.Replace(strconv.FormatFloat(f, 'g', -1, 64), "+Inf", "Infinity", 1)
		}
	}
	return string(p.val)
}

// javaString shows a decoded JSON value as Java's maps and lists print.
func javaString(v any) string {
	switch v := v.(type) {
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range sortedKeys(v) {
			parts = append(parts, k+"="+javaString(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = javaString(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case nil:
		return "null"
	default:
		return fmt.Sprint(v)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func valueError(at int, path, typ string, id []byte, preview string, cause *apiError) *apiError {
	return &apiError{
		status: http.StatusBadRequest, typ: "document_parsing_exception",
		reason: "[1:" + strconv.Itoa(at+1) + "] failed to parse field [" + path + "] of type [" + typ + "] in document with id '" +
			string(id) + "'. Preview of field's value: '" + preview + "'", cause: cause,
	}
}

func objectRefusal(f *field, at int) *apiError {
	switch f.typ {
	case "long", "integer", "short", "byte", "double", "float", "half_float":
		return illegalArgument("Cannot parse object as number")
	case "boolean":
		return newError(0, "x_content_parse_exception", "[1:"+strconv.Itoa(at+1)+"] Current token (START_OBJECT) not of boolean type")
	}
	return illegalArgument("Expected text at 1:" + strconv.Itoa(at+1) + " but found START_OBJECT")
}

// leaf checks one value, not an array or null, against a leaf's type.
func (p *docParser) leaf(c *field, nm []byte, k tokenKind) {
	start, end := p.start, p.i
	bad := func(cause *apiError) {
		p.reject(valueError(start, p.full(nm), c.typ, p.id, p.preview(k), cause))
	}
	if k == tokObject {
		switch c.typ {
		case "flattened", "geo_point":
			p.skip(k)
		default:
			preview := p.preview(k)
			if p.err == nil {
				p.reject(valueError(p.i-1, p.full(nm), c.typ, p.id, preview, objectRefusal(c, start)))
			}
		}
		return
	}
	switch c.typ {
	case "long", "integer", "short", "byte":
		p.integer(c.typ, k, end, bad)
	case "double", "float", "half_float":
		p.float(c.typ, k, end, bad)
	case "keyword":
		// Lucene refuses terms over 32,766 bytes; ignore_above drops the value first.
		if len(p.val) > 32766 && c.params["ignore_above"] == nil && !c.fresh {
			bad(illegalArgument("Document contains at least one immense term in field=\"" + p.full(nm) +
				"\" (whose UTF8 encoding is longer than the max length 32766)"))
		}
	case "boolean":
		switch k {
		case tokTrue, tokFalse:
		case tokString:
			if s := string(p.text()); s != "true" && s != "false" && s != "" {
				bad(illegalArgument("Failed to parse value [" + s + "] as only [true] or [false] are allowed."))
			}
		default:
			bad(p.tokenError(end, "Current token ("+k.String()+") not of boolean type"))
		}
	case "date", "date_nanos":
		s := string(p.text())
		switch {
		case k == tokInt || k == tokFloat:
		case k == tokString && s == "":
			bad(illegalArgument("cannot parse empty datetime"))
		case k != tokString || !parseDate(s) && (!c.fresh || !dynamicDate(s)):
			format, ok := c.params["format"].(string)
			if ok && k == tokString {
				return // formats of one's own are not checked
			}
			if !ok {
				format = "strict_date_optional_time||epoch_millis"
			}
			bad(&apiError{
				typ: "illegal_argument_exception", reason: "failed to parse date field [" + s + "] with format [" + format + "]",
				cause: newError(0, "date_time_parse_exception", "Failed to parse with all enclosed parsers"),
			})
		}
	}
}

func (p *docParser) tokenError(at int, msg string) *apiError {
	return (&syntaxError{msg: msg, at: at - 1}).request(p.b)
}

var intRanges = map[string]struct {
	article  string
	lo, hi   int64
	outRange string
}{
	"long":    {"a long", math.MinInt64, math.MaxInt64, "long (-9223372036854775808 - 9223372036854775807)"},
	"integer": {"an integer", math.MinInt32, math.MaxInt32, "int (-2147483648 - 2147483647)"},
	"short":   {"a short", math.MinInt16, math.MaxInt16, "Java short"},
	"byte":    {"a byte", math.MinInt8, math.MaxInt8, "Java byte"},
}

func (p *docParser) integer(typ string, k tokenKind, end int, bad func(*apiError)) {
	if k == tokInt && len(p.val) <= 18 && typ == "long" {
		return
	}
	r := intRanges[typ]
	switch k {
	case tokString:
		s := string(p.text())
		if s == "" {
			return
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			bad(illegalArgument("For input string: \"" + s + "\""))
			return
		}
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= r.lo && n <= r.hi || err != nil && inRange(f, r.lo, r.hi) {
			return
		}
		bad(illegalArgument("Value [" + s + "] is out of range for " + r.article))
	case tokInt, tokFloat:
		n, err := strconv.ParseInt(string(p.val), 10, 64)
		if err == nil && n >= r.lo && n <= r.hi {
			return
		}
		if k == tokFloat {
			if f, _ := strconv.ParseFloat(string(p.val), 64); inRange(f, r.lo, r.hi) {
				return
			}
		}
		if typ == "byte" {
			bad(illegalArgument("Value [" + string(p.val) + "] is out of range for " + r.article))
			return
		}
		bad(p.tokenError(end, "Numeric value ("+string(p.val)+") out of range of "+r.outRange))
	default:
		bad(p.tokenError(end, "Current token ("+k.String()+") not numeric, can not use numeric value accessors"))
	}
}

func inRange(f float64, lo, hi int64) bool {
	f = math.Trunc(f)
	return f >= float64(lo) && f <= float64(hi) && (hi != math.MaxInt64 || f < 1<<63)
}

func (p *docParser) float(typ string, k tokenKind, end int, bad func(*apiError)) {
	if k != tokString && k != tokInt && k != tokFloat {
		bad(p.tokenError(end, "Current token ("+k.String()+") not numeric, can not use numeric value accessors"))
		return
	}
	s := string(p.val)
	if k == tokString {
		if s = string(p.text()); s == "" {
			return
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		bad(newError(0, "number_format_exception", "For input string: \""+s+"\""))
		return
	}
	limit := math.MaxFloat64
	switch typ {
	case "float":
		limit = math.MaxFloat32
	case "half_float":
		limit = 65504
	}
	switch {
	case math.IsNaN(f):
		bad(illegalArgument("[" + typ + "] supports only finite values, but got [NaN]"))
	case f > limit:
		bad(illegalArgument("[" + typ + "] supports only finite values, but got [Infinity]"))
	case f < -limit:
		bad(illegalArgument("[" + typ + "] supports only finite values, but got [-Infinity]"))
	}
}

// dateLayouts are what strict_date_optional_time takes; fractions are read by
// Go wherever seconds stand.
var dateLayouts = []string{
	"2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04Z07:00", "2006-01-02T15:04",
	"2006-01-02T15Z07:00", "2006-01-02T15", "2006-01-02", "2006-01", "2006", "2006-01-02T15:04:05Z0700",
}

// parseDate says whether s is a date by strict_date_optional_time||epoch_millis.
func parseDate(s string) bool {
	if len(s) > 0 && len(s) != 4 {
		if _, err := strconv.ParseInt(s, 10, 64); err == nil {
			return true
		}
	}
	for _, layout := range dateLayouts {
		if _, err := time.Parse(layout, s); err == nil {
			return true
		}
	}
	return false
}

// dynamicDate knows the other formats of date detection.
func dynamicDate(s string) bool {
	for _, layout := range []string{"2006/01/02 15:04:05", "2006/01/02"} {
		if _, err := time.Parse(layout, s); err == nil {
			return true
		}
	}
	return false
}
