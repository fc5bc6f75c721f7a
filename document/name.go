package document

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/partition"
)

// maxName is the longest index name that the server takes, in bytes.
const maxName = 255

// maxNames bounds the names that one Result remembers.
const maxNames = 1024

// nameTemplate is an index name with variables. It is one-to-one: two records
// whose variables differ get different names. Three rules make it so, and a
// test tries to break them:
//
//   - What a name cannot hold, upper case included, is escaped byte by byte as
//     =xx, the equals sign too: partition.AppendName can be read backwards.
//   - A timestamp always has the same length.
//   - Of several variables each but the first stands after a separator, which
//     is escaped in it. So, read from the end, each begins after the last
//     separator that is left.
type nameTemplate []namePart

type namePart struct {
	source
	separator byte // escaped in this part; 0: none
	leads     bool // the name begins with it: its first byte is a letter or digit, or escaped
}

// compileName checks an index name and makes it ready.
func compileName(s string) (nameTemplate, error) {
	t, err := parseTemplate(s)
	if err != nil {
		return nil, err
	}
	if len(t) == 0 {
		return nil, errors.New("an index needs a name")
	}
	if k := t[0].kind; k != literal && k != fromTopic {
		return nil, errors.New("the name must begin with text of its own or with ${topic}: nothing in a record may choose any index")
	}
	n := make(nameTemplate, 0, len(t))
	free := 0 // variables of any length so far
	for i, src := range t {
		p := namePart{source: src, leads: i == 0}
		switch src.kind {
		case literal:
			if err := checkLiteral(src.text, i == 0, len(t) == 1); err != nil {
				return nil, err
			}
		case fromTimestamp:
			if err := checkLayout(src.text); err != nil {
				return nil, err
			}
		case fromTopic, fromCustomer, fromHeader, fromField:
			if free++; free > 1 {
				if t[i-1].kind == literal {
					p.separator = t[i-1].text[len(t[i-1].text)-1]
				}
				if p.separator != '-' && p.separator != '_' && p.separator != '.' {
					return nil, errors.New("a second variable must stand after one of - _ . so that no two records share a name by chance")
				}
			}
		default:
			return nil, errors.New("an index name knows ${topic}, ${customer}, ${timestamp:LAYOUT}, ${header:NAME} and ${field:/POINTER} only")
		}
		n = append(n, p)
	}
	return n, nil
}

// checkLiteral applies the server's rules for names.
func checkLiteral(s string, first, whole bool) error {
	if i := strings.IndexAny(s, "\\/*?\"<>| ,#:\x00\t\n\r"); i >= 0 {
		return fmt.Errorf("%q cannot stand in an index name", s[i])
	}
	switch {
	case strings.ToLower(s) != s:
		return errors.New("an index name has no upper case")
	case first && strings.IndexByte("-_+", s[0]) >= 0:
		return fmt.Errorf("an index name cannot begin with %q", s[0])
	case first && (s == ".." || s == "."):
		return fmt.Errorf("%q cannot be or begin an index name", s)
	case whole && len(s) > maxName:
		return fmt.Errorf("the name has %d bytes and the server takes %d", len(s), maxName)
	}
	return nil
}

// checkLayout refuses layouts whose text cannot stand in a name, or has not
// always the same length.
func checkLayout(layout string) error {
	if layout == time.Date(2024, time.November, 28, 23, 59, 59, 0, time.UTC).Format(layout) {
		return fmt.Errorf("the layout %q has no part of a time in it, so all records would share one name: write it for the moment 2006-01-02 15:04:05, as in 2006-01-02", layout)
	}
	var length int
	for month := time.January; month <= time.December; month++ {
		for _, t := range []time.Time{
			time.Date(2001, month, int(month), int(month), int(month), int(month), int(month), time.UTC),
			time.Date(2024, month, 28, 23, 59, 59, 120_000_000, time.UTC),
		} {
			s := t.Format(layout)
			if length == 0 {
				length = len(s)
			}
			if len(s) != length {
				return fmt.Errorf("the layout %q has no fixed length: write 01 and 02, not 1 and 2", layout)
			}
			for i := range len(s) {
				if !partition.InName(s[i]) {
					return fmt.Errorf("the layout %q makes %q, which cannot stand in an index name: use digits, lower-case letters and any of - . _", layout, s)
				}
			}
		}
	}
	return nil
}

// timeNamed reports whether the name holds a timestamp.
func (n nameTemplate) timeNamed() bool {
	for i := range n {
		if n[i].kind == fromTimestamp {
			return true
		}
	}
	return false
}

// resolve returns the name for rec, or why there is none.
func (n nameTemplate) resolve(rec *kgo.Record, doc []byte, out *Result) (string, *problem) {
	if len(n) == 1 && n[0].kind == literal && len(n[0].text) <= maxName {
		return n[0].text, nil
	}
	name := out.name[:0]
	for i := range n {
		p := &n[i]
		switch p.kind {
		case literal, fromTimestamp:
			name = p.appendOwn(name, rec)
		case fromTopic:
			name = partition.AppendName(name, rec.Topic, p.separator, p.leads)
		default:
			text, l := p.value(rec, doc, out)
			if l != lacksNothing {
				return "", namePartProblem(p.kind, l)
			}
			if len(text) > maxName { // so that the buffer stays small
				return "", problemNameTooLong
			}
			name = partition.AppendName(name, text, p.separator, p.leads)
		}
	}
	out.name = name
	if len(name) > maxName {
		return "", problemNameTooLong
	}
	return out.intern(name), nil
}

func namePartProblem(k kind, l lack) *problem {
	switch {
	case l == notJSON:
		return problemNotJSON
	case k == fromCustomer:
		return problemNoCustomer
	default:
		return problemNoIndex
	}
}

// foldTopic returns n with the topic's name, as an index name has it, in
// place of its variable.
func (n nameTemplate) foldTopic(topic string) nameTemplate {
	var folded nameTemplate
	for _, p := range n {
		if p.kind == fromTopic {
			p = namePart{source: source{kind: literal, text: string(partition.AppendName(nil, topic, p.separator, p.leads))}}
		}
		if last := len(folded) - 1; p.kind == literal && last >= 0 && folded[last].kind == literal {
			folded[last].text += p.text
			continue
		}
		folded = append(folded, p)
	}
	return folded
}

// intern returns name as a string that is made once.
func (out *Result) intern(name []byte) string {
	if s, ok := out.names[string(name)]; ok {
		return s
	}
	if out.names == nil || len(out.names) >= maxNames {
		out.names = make(map[string]string)
	}
	s := string(name)
	out.names[s] = s
	return s
}
