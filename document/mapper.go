package document

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// ConfigError is a configuration that cannot work.
type ConfigError struct {
	// Key is the path of the key at fault, such as documents.id or
	// overrides[0].documents.id.
	Key string
	// Problem says what is wrong, Remedy what would be right.
	Problem, Remedy string
}

func (e *ConfigError) Error() string {
	return e.Key + ": " + e.Problem + ": " + e.Remedy
}

// Mapper holds the rules of every topic. It is safe for concurrent use.
type Mapper struct {
	base      *Rules
	overrides []override
	stream    stream

	mu      sync.Mutex
	byTopic map[string]*Rules
}

type override struct {
	topics []topicPattern
	rules  *Rules
}

// topicPattern is one entry of a list of topics.
type topicPattern struct {
	text string
	re   *regexp.Regexp // nil: text is the name
}

func parseTopic(s string) (topicPattern, error) {
	if !strings.HasPrefix(s, "^") {
		return topicPattern{text: s}, nil
	}
	re, err := regexp.Compile(s)
	return topicPattern{s, re}, err
}

func (p topicPattern) match(topic string) bool {
	if p.re != nil {
		return p.re.MatchString(topic)
	}
	return p.text == topic
}

// New resolves every `auto` and compiles the rules of base and overrides. In
// place of an empty text it takes the key's default. topics is kafka.topics,
// for the question whether several topics may meet in one index; deadLetters
// says whether dead letters have a place to go. The error joins a
// *ConfigError for each thing that is wrong.
func New(base Config, overrides []Override, topics []string, deadLetters bool) (*Mapper, error) {
	m := &Mapper{byTopic: map[string]*Rules{}}
	rules, problems := compile(base, "documents", nil, deadLetters)
	m.base = rules
	errs := slices.Clone(problems)
	for i, o := range overrides {
		key := fmt.Sprintf("overrides[%d]", i)
		patterns, found := compileTopics(o.Topics, key+".topics")
		rules, own := compile(o.Documents, key+".documents", o.Topics, deadLetters)
		// What is wrong in the base is wrong in every override that does not
		// change it: it is reported once, where it stands.
		own = slices.DeleteFunc(own, func(e *ConfigError) bool {
			return slices.ContainsFunc(problems, func(b *ConfigError) bool {
				return e.Key == key+"."+b.Key && e.Problem == b.Problem
			})
		})
		errs = append(append(errs, found...), own...)
		m.overrides = append(m.overrides, override{patterns, rules})
	}
	if len(errs) == 0 {
		errs = m.checkSharing(topics)
	}
	if len(errs) == 0 {
		for _, r := range m.sections() {
			r.stream = &m.stream
		}
		return m, nil
	}
	joined := make([]error, len(errs))
	for i, e := range errs {
		joined[i] = e
	}
	return nil, errors.Join(joined...)
}

func compileTopics(topics []string, key string) (patterns []topicPattern, errs []*ConfigError) {
	if len(topics) == 0 {
		errs = append(errs, &ConfigError{key, "an override without topics never applies", "name topics, or take it out"})
	}
	for _, t := range topics {
		p, err := parseTopic(t)
		if err != nil {
			errs = append(errs, &ConfigError{key, fmt.Sprintf("%q is not a regular expression", t), err.Error()})
		}
		patterns = append(patterns, p)
	}
	return patterns, errs
}

// Rules returns the rules of a topic: of the first override that matches it,
// else of the base.
func (m *Mapper) Rules(topic string) *Rules {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.byTopic[topic]
	if r == nil {
		r = m.match(topic).forTopic(topic)
		m.byTopic[topic] = r
	}
	return r
}

func (m *Mapper) match(topic string) *Rules {
	for _, o := range m.overrides {
		if slices.ContainsFunc(o.topics, func(p topicPattern) bool { return p.match(topic) }) {
			return o.rules
		}
	}
	return m.base
}

// SharedIndex returns the index (its name or template, as configured) to which
// a topic writes with ids that records of another topic may have: a new topic's
// first generation must stand above those of all topics that ever wrote there.
// False: its ids are its own, by their making or by disjoint_keys.
func (m *Mapper) SharedIndex(topic string) (index string, shared bool) {
	r := m.match(topic)
	return r.indexText, r.sharesIDs() && !r.disjoint
}

// checkSharing refuses several topics with ids that may be equal in one index,
// unless every one of them says that they are not.
func (m *Mapper) checkSharing(topics []string) (errs []*ConfigError) {
	type group struct {
		rules   []*Rules
		members []string
	}
	groups := map[string]*group{}
	var order []string
	add := func(r *Rules, topic string, many bool) {
		if !r.sharesIDs() || r.disjoint {
			return
		}
		g := groups[r.indexText]
		if g == nil {
			g = &group{}
			groups[r.indexText] = g
			order = append(order, r.indexText)
		}
		g.rules = append(g.rules, r)
		g.members = append(g.members, topic)
		if many {
			g.members = append(g.members, topic)
		}
	}
	for i, t := range topics {
		if slices.Contains(topics[:i], t) {
			continue
		}
		p, err := parseTopic(t)
		if err != nil {
			errs = append(errs, &ConfigError{"kafka.topics", fmt.Sprintf("%q is not a regular expression", t), err.Error()})
			continue
		}
		if p.re == nil {
			add(m.match(t), t, false)
			continue
		}
		// A regular expression stands for any number of topics: of the base,
		// and of each override that may match some of them.
		whole := false
		for _, o := range m.overrides {
			for _, q := range o.topics {
				if q.re != nil {
					add(o.rules, t, true)
				} else if p.match(q.text) && !slices.Contains(topics, q.text) {
					add(o.rules, q.text, false)
				}
				whole = whole || q.text == t
			}
			if whole {
				break
			}
		}
		if !whole {
			add(m.base, t, true)
		}
	}
	for _, index := range order {
		g := groups[index]
		if len(g.members) < 2 {
			continue
		}
		members := slices.Clone(g.members)
		slices.Sort(members)
		errs = append(errs, &ConfigError{
			Key:     g.rules[len(g.rules)-1].key + ".id",
			Problem: fmt.Sprintf("several topics (%s) write to %q with ids that may be equal, so that one topic's record replaces another's", strings.Join(slices.Compact(members), ", "), index),
			Remedy:  "put ${topic} into the id or the index, or say disjoint_keys: true where no two topics share a key",
		})
	}
	return errs
}

// Description says what the rules of one section became.
type Description struct {
	Key         string   // documents, or overrides[N].documents
	Topics      []string // of the override; nil for the base
	Index       string
	ID          string
	Op          string
	Version     string
	OnNull      string
	OnRejected  string
	Customer    string // "": none
	DataStream  bool
	NeedControl bool // generations are recorded in the control index
	// Notes are consequences that surprise: worth a warning, no error.
	Notes []string
}

// Describe says what every `auto` became, the base first, then each override
// in order.
func (m *Mapper) Describe() []Description {
	var d []Description
	for _, r := range m.sections() {
		d = append(d, r.described)
	}
	return d
}
