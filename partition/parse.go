package partition

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Parse reads a table as strictly as it will be followed: keys that are
// unknown, named twice or in another case, values of another type, text after
// the end and everything that Validate reports are errors. They name the place
// (*InvalidError, several joined; *SchemaError for a later layout, which is
// looked at first). Parse never panics, whatever the bytes.
func Parse(document []byte) (*Table, error) {
	if !utf8.Valid(document) {
		return nil, &InvalidError{whole(""), "is not UTF-8", "restore the document"}
	}
	if schema, ok := schemaOf(document); ok && schema > Schema {
		return nil, &SchemaError{schema}
	}
	var t Table
	err := readObject("", document, map[string]reader{
		"schema":     into(&t.Schema, "an integer"),
		"name":       into(&t.Name, "a text"),
		"epoch":      into(&t.Epoch, "an integer"),
		"generation": into(&t.Generation, "an integer"),
		"hash":       into(&t.Hash, "a text"),
		"slots":      into(&t.Slots, "an integer"),
		"slot_map":   t.readSlotMap,
		"overrides":  readMap(&t.Overrides, func(s *string) reader { return into(s, "the name of a partition") }),
		"partitions": readMap(&t.Partitions, readPartition),
		"legacy": func(path string, raw []byte) error {
			if string(raw) == "null" {
				return nil
			}
			t.Legacy = new(Partition)
			return readPartition(t.Legacy)(path, raw)
		},
		"job":   into(&t.Job, "a text"),
		"write": into(&t.Write, "legacy, dual_shadow, dual or new"),
		"read": func(path string, raw []byte) error {
			return readObject(path, raw, map[string]reader{
				"allow":   into(&t.Read.Allow, "a list of texts"),
				"deny":    into(&t.Read.Deny, "a list of texts"),
				"percent": into(&t.Read.Percent, "an integer (basis points)"),
				"salt":    into(&t.Read.Salt, "a text"),
			})
		},
		"updated_by": into(&t.UpdatedBy, "a text"),
		"updated_at": into[time.Time](&t.UpdatedAt, "a time as in 2006-01-02T15:04:05Z"),
	})
	if err != nil {
		return nil, err
	}
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return &t, nil
}

// schemaOf finds the schema of what may be a later layout.
func schemaOf(document []byte) (int, bool) {
	var head struct {
		Schema int `json:"schema"`
	}
	return head.Schema, json.Unmarshal(document, &head) == nil
}

// reader reads one value.
type reader func(path string, raw []byte) error

// into reads a value by its Go type; want says in words what it must be.
func into[T any](value *T, want string) reader {
	return func(path string, raw []byte) error {
		if string(raw) == "null" || json.Unmarshal(raw, value) != nil {
			return &InvalidError{path, "is " + excerpt(raw), "write " + want}
		}
		return nil
	}
}

// excerpt shows a value, shortened.
func excerpt(raw []byte) string {
	const most = 40
	if len(raw) <= most {
		return string(raw)
	}
	return strings.ToValidUTF8(string(raw[:most]), "") + "..."
}

func readPartition(p *Partition) reader {
	return func(path string, raw []byte) error {
		return readObject(path, raw, map[string]reader{
			"index": into(&p.Index, "an index's name"),
			"alias": into(&p.Alias, "an alias's name"),
			"state": into(&p.State, "active or retired"),
		})
	}
}

// readMap reads an object whose keys are free.
func readMap[V any](m *map[string]V, value func(*V) reader) reader {
	return func(path string, raw []byte) error {
		*m = map[string]V{}
		return eachMember(path, raw, func(key, path string, raw []byte) error {
			var v V
			err := value(&v)(path, raw)
			(*m)[key] = v
			return err
		})
	}
}

// readObject reads an object whose keys are fixed. Any may be left out: what
// must be there fails in Validate.
func readObject(path string, raw []byte, members map[string]reader) error {
	return eachMember(path, raw, func(key, path string, raw []byte) error {
		read, known := members[key]
		if !known {
			keys := make([]string, 0, len(members))
			for k := range members {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			return &InvalidError{path, "is no key that this program knows", "use " + strings.Join(keys, ", ")}
		}
		return read(path, raw)
	})
}

// eachMember calls visit for each key of an object, each of which stands there
// once.
func eachMember(path string, raw []byte, visit func(key, path string, raw []byte) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return &InvalidError{whole(path), "is " + excerpt(raw), "write an object"}
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			return broken(path, d)
		}
		if seen[key] {
			return &InvalidError{member(path, key), "is there twice", "keep one"}
		}
		seen[key] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return broken(member(path, key), d)
		}
		if err := visit(key, member(path, key), value); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return broken(path, d)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return &InvalidError{whole(path), "something follows its end", "remove it"}
	}
	return nil
}

func broken(path string, d *json.Decoder) error {
	return &InvalidError{whole(path), fmt.Sprintf("is no JSON from byte %d on", d.InputOffset()), "restore the document"}
}

// whole names the document itself where there is no path.
func whole(path string) string { return cmp.Or(path, "the document") }

// member returns the path of a key: partitions.p000, overrides["a b"].
func member(path, key string) string {
	switch {
	case key == "" || strings.ContainsFunc(key, func(r rune) bool {
		return r >= utf8.RuneSelf || !isLetterOrDigit(byte(r)) && !strings.ContainsRune("_-=*", r)
	}):
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}

func (t *Table) readSlotMap(path string, raw []byte) error {
	var text string
	if err := into(&text, `runs of slots, as in "0-2047=p000 2048-4095=p001"`)(path, raw); err != nil {
		return err
	}
	return t.SlotMap.UnmarshalText([]byte(text))
}

// UnmarshalText reads run-length text. Runs begin with slot 0 and leave none
// out. Errors are *InvalidError.
func (m *SlotMap) UnmarshalText(text []byte) error {
	*m = nil
	next := 0
	for field := range strings.FieldsSeq(string(text)) {
		slots, name, ok := strings.Cut(field, "=")
		from, to, isRange := strings.Cut(slots, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		at := "slot_map." + excerpt([]byte(slots))
		switch {
		case !ok || name == "" || err1 != nil || err2 != nil || last < first || last >= MaxSlots:
			return &InvalidError{at, "is no run of slots", "write FIRST-LAST=PARTITION or SLOT=PARTITION"}
		case first != next:
			return &InvalidError{at, fmt.Sprintf("begins with slot %d and the next one is %d", first, next), "name each slot once, in order"}
		}
		for range last - first + 1 {
			*m = append(*m, name)
		}
		next = last + 1
	}
	return nil
}

// MarshalText returns the map as run-length text, one way for each map.
func (m SlotMap) MarshalText() ([]byte, error) {
	var b []byte
	for first, r := range m.runs() {
		if first > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(first), 10)
		if r.last > first {
			b = append(b, '-')
			b = strconv.AppendInt(b, int64(r.last), 10)
		}
		b = append(b, '=')
		b = append(b, r.partition...)
	}
	return b, nil
}

// MarshalJSON returns the table as Parse reads it.
func (t Table) MarshalJSON() ([]byte, error) {
	type plain Table // has no methods
	p := plain(t)
	if p.Overrides == nil {
		p.Overrides = map[string]string{}
	}
	if p.Partitions == nil {
		p.Partitions = map[string]Partition{}
	}
	p.Read.Allow = append([]string{}, p.Read.Allow...)
	p.Read.Deny = append([]string{}, p.Read.Deny...)
	return json.Marshal(p)
}
