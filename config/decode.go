package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/credentials"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/memory"
)

// decoder fills cfg from a tree and remembers what validation needs.
type decoder struct {
	cfg *Config
	env func(string) (string, bool)
	// places holds where each key that was written down stands, by its path:
	// "kafka", "kafka.topics", "kafka.topics[0]"; "" is the whole.
	places map[string]Position
	// hidden holds the paths whose values errors must not show: secrets, and
	// what holds a variable.
	hidden map[string]bool
	errs   *Errors
}

// autoSizes are the sizes that may be `auto`, which is 0 in their structs.
var autoSizes = map[string]bool{"kafka.fetch.max_bytes": true, "memory.limit": true, "memory.max_record": true}

// bareSizes are the sizes that may be a plain number of bytes, for its Kafka
// name makes everybody write 1.
var bareSizes = map[string]bool{"kafka.fetch.min_bytes": true}

// fail adds an error about a key, at its own place or at the nearest one above
// it that was written down.
func (d *decoder) fail(path, problem, remedy string) {
	*d.errs = append(*d.errs, &Error{Position: d.place(path), Key: path, Problem: problem, Remedy: remedy})
}

func (d *decoder) place(path string) Position {
	for {
		if p, ok := d.places[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

// show quotes a key's value for an error message, unless it must not be shown.
func (d *decoder) show(path, value string) string {
	if d.hidden[path] {
		return "the value (not shown)"
	}
	return show(value)
}

// config decodes the whole tree.
func (d *decoder) config(root *node) {
	d.section("", root, reflect.ValueOf(d.cfg).Elem())
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// field is one key of a section.
type field struct {
	key   string
	index []int
}

// fields returns the keys of a section's struct in order, those of inlined
// structs among them.
func fields(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if options == "inline" {
			for _, inner := range fields(f.Type) {
				out = append(out, field{inner.key, append([]int{i}, inner.index...)})
			}
			continue
		}
		out = append(out, field{key, []int{i}})
	}
	return out
}

// section decodes a mapping into a struct. It follows the order of the struct,
// because `overrides` needs `documents` first.
func (d *decoder) section(path string, n *node, v reflect.Value) {
	if n.kind == null { // all keys are commented out
		return
	}
	if n.kind != mapping {
		d.fail(path, fmt.Sprintf("%v where a section belongs", n.kind), "write its keys below it, indented")
		return
	}
	known := fields(v.Type())
	for _, e := range n.entries {
		if !slices.ContainsFunc(known, func(f field) bool { return f.key == e.key }) {
			at := join(path, e.key)
			d.places[at] = e.value.place
			d.fail(at, "unknown key", suggest(at, e.key, known))
		}
	}
	for _, f := range known {
		if value := n.get(f.key); value != nil {
			d.value(join(path, f.key), value, v.FieldByIndex(f.index))
		}
	}
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[memory.Size]()
	shareType    = reflect.TypeFor[memory.Share]()
	secretType   = reflect.TypeFor[credentials.Secret]()
	overrideType = reflect.TypeFor[document.Override]()
)

// value decodes what stands at path into v.
func (d *decoder) value(path string, n *node, v reflect.Value) {
	d.places[path] = n.place
	switch v.Kind() {
	case reflect.Struct:
		d.section(path, n, v)
	case reflect.Slice:
		d.list(path, n, v)
	default:
		d.scalar(path, n, v)
	}
}

func (d *decoder) list(path string, n *node, v reflect.Value) {
	if n.kind != list {
		d.fail(path, fmt.Sprintf("%v where a list belongs", n.kind), "write [a, b], or one `- ` line for each; [] for none")
		return
	}
	out := reflect.Zero(v.Type()) // an empty list is nil
	if len(n.list) > 0 {
		out = reflect.MakeSlice(v.Type(), len(n.list), len(n.list))
	}
	for i, item := range n.list {
		if v.Type().Elem() == overrideType {
			// What an override does not name comes from `documents`.
			out.Index(i).Set(reflect.ValueOf(document.Override{Documents: d.cfg.Documents}))
		}
		d.value(fmt.Sprintf("%s[%d]", path, i), item, out.Index(i))
	}
	v.Set(out)
}

// scalar decodes a single value. Quoted or not, it is its text that counts, so
// that a variable can stand for a number too.
func (d *decoder) scalar(path string, n *node, v reflect.Value) {
	d.hidden[path] = v.Type() == secretType
	if n.kind != scalar {
		problem := fmt.Sprintf("%v where a single value belongs", n.kind)
		if n.kind == null {
			problem = "no value"
		}
		d.fail(path, problem, `write one after the colon ("" for an empty text), or remove the key`)
		return
	}
	text, used, failed := substitute(n.text, d.env)
	if used {
		d.hidden[path] = true
	}
	if failed != nil {
		d.fail(path, failed.problem, failed.remedy)
		return
	}
	refuse := func(what, remedy string) { d.fail(path, d.show(path, text)+" is not "+what, remedy) }
	switch v.Type() {
	case durationType:
		n, ok := parseDuration(text)
		if !ok {
			refuse("a duration", durationRemedy)
			return
		}
		v.SetInt(int64(n))
		return
	case sizeType:
		d.size(path, text, v)
		return
	case shareType:
		n, ok := parseShare(text)
		if !ok {
			refuse("a percentage", shareRemedy)
			return
		}
		v.SetFloat(float64(n))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			refuse("true or false", "write true or false")
			return
		}
		v.SetBool(text == "true")
	case reflect.Int:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			refuse("a whole number", "write digits only, such as 10")
			return
		}
		v.SetInt(n)
	case reflect.Float64:
		n, ok := parseFloat(text)
		if !ok {
			refuse("a number", "write one such as 0.5")
			return
		}
		v.SetFloat(n)
	default:
		panic("config: no decoder for " + v.Type().String() + " at " + path)
	}
}

func (d *decoder) size(path, text string, v reflect.Value) {
	if text == "auto" && autoSizes[path] {
		v.SetInt(0)
		return
	}
	if n, err := strconv.ParseUint(text, 10, 53); err == nil && bareSizes[path] {
		v.SetInt(int64(n))
		return
	}
	n, ok := parseSize(text)
	remedy := sizeRemedy
	if autoSizes[path] {
		remedy += ", or auto"
	}
	switch {
	case !ok:
		d.fail(path, d.show(path, text)+" is not a size", remedy)
	case n == 0 && autoSizes[path]:
		d.fail(path, "must be above 0", remedy)
	default:
		v.SetInt(int64(n))
	}
}

// suggest returns the remedy for an unknown key among the known ones.
func suggest(path, key string, known []field) string {
	best, distance := "", len(key)/3+1
	for _, f := range known {
		if n := editDistance(plain(key), plain(f.key)); n <= distance && (best == "" || n < distance) {
			best, distance = f.key, n
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	var elsewhere []string
	for _, k := range keys("", reflect.TypeFor[Config]()) {
		if k != path && k[strings.LastIndex(k, ".")+1:] == key {
			elsewhere = append(elsewhere, k)
		}
	}
	if len(elsewhere) == 1 {
		return fmt.Sprintf("did you mean %s?", elsewhere[0])
	}
	names := make([]string, len(known))
	for i, f := range known {
		names[i] = f.key
	}
	return "the keys here are " + strings.Join(names, ", ")
}

// plain drops what people write differently: groupId, group-id, GROUP_ID.
func plain(key string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key))
}

// editDistance counts the letters to add, drop or change between a and b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// keys returns the path of every key of a section's struct, sections included;
// a list of sections has [].
func keys(path string, t reflect.Type) []string {
	var out []string
	for _, f := range fields(t) {
		at, ft := join(path, f.key), t.FieldByIndex(f.index).Type
		out = append(out, at)
		if ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct {
			at, ft = at+"[]", ft.Elem()
		}
		if ft.Kind() == reflect.Struct {
			out = append(out, keys(at, ft)...)
		}
	}
	return out
}
