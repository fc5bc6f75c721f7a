package document

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// Policy is what follows a rejection.
type Policy uint8

// The policies of on_rejected.
const (
	ToDeadLetter Policy = iota + 1 // the record goes to the dead letters
	Stop                           // its source partition halts
	Drop                           // it is dropped, and counted as ignored
)

// VersionMode is where versions come from.
type VersionMode uint8

// The version modes. VersionTimestamp, VersionField and VersionHeader are sent
// as external_gte, so that equal versions are real updates; VersionSequence
// and VersionOffset as external.
const (
	VersionNone VersionMode = iota
	VersionSequence
	VersionOffset
	VersionTimestamp // the record's, in Unix milliseconds
	VersionField
	VersionHeader
)

type idKind uint8

const (
	idAuto     idKind = iota // the key, else the position
	idPosition               // topic+partition+offset
	idParts                  // from the record
	idNone                   // the server's own
)

type nullRule uint8

const (
	nullDelete nullRule = iota
	nullIgnore
	nullFail
	nullDeadLetter
)

// plan is how a record with a certain kind of id is written.
type plan struct {
	op          bulk.Op
	version     VersionMode
	versionType bulk.VersionType
	ordered     bool
}

// Rules are the resolved rules of one topic. They never change, but for the
// routing table that the rules of all topics share.
type Rules struct {
	key       string // of the section, for errors
	stream    *stream
	described Description

	format   format
	rawField string
	strict   bool
	strip    bool
	maxDepth int

	idKind   idKind
	id       template
	hashLong bool
	keyed    plan // for ids that may come again
	single   plan // for positions and ids of the server's own
	version  source
	onNull   nullRule
	tomb     bool

	index     nameTemplate
	indexText string // as configured
	place     string // see Place
	timeNamed bool
	past      time.Duration
	future    time.Duration
	newPerHr  int
	routing   *source
	customer  *source
	legacy    bool // on_no_customer
	pipeline  string
	alias     bool
	disjoint  bool

	splices      bool
	metadata     []func([]byte, *kgo.Record) []byte
	metadataOpen string
	timestamps   []source // fromField or fromTimestamp

	onRejected Policy
}

// OnRejected says what follows the verdict Reject, and a rejection by the
// server.
func (r *Rules) OnRejected() Policy { return r.onRejected }

// Version returns where the versions of records with ids that may come again
// are from.
func (r *Rules) Version() VersionMode { return r.keyed.version }

// TimeNamed says whether index names hold a timestamp, so that time_window
// applies; newPerHour is time_window.new_indices_per_hour.
func (r *Rules) TimeNamed() (newPerHour int, ok bool) { return r.newPerHr, r.timeNamed }

// KeyedByKey says that an id comes from the record's key alone: records of one
// id are in one partition then, where the topic's producers go by the key.
func (r *Rules) KeyedByKey() bool {
	return r.idKind == idAuto || r.idKind == idParts && len(r.id) == 1 && r.id[0].kind == fromKey
}

// NeedsGeneration says whether ids or versions depend on the topic's recorded
// generations.
func (r *Rules) NeedsGeneration() bool {
	return r.idKind == idPosition || r.idKind == idAuto || r.keyed.version == VersionSequence || r.single.version == VersionSequence
}

// NeedsRaise says whether a changed partition count needs a new generation:
// whether versions of one id from different partitions are compared.
func (r *Rules) NeedsRaise() bool {
	return r.idKind != idPosition && r.idKind != idNone && r.keyed.version == VersionSequence
}

// Place is a text of all that decides which document of which index a record of
// these rules is written to, but for the routing table: while it stays the same,
// so does every record's place. Rules by which no two records ever meet in one
// document have none: "".
func (r *Rules) Place() string {
	if r.idKind == idPosition || r.idKind == idNone {
		return ""
	}
	routed := r.stream != nil && r.stream.routing.Load() != nil
	if !routed && !r.id.has(fromCustomer) && !slices.ContainsFunc(r.index, func(p namePart) bool { return p.kind == fromCustomer }) {
		return r.place
	}
	return fmt.Sprintf("%s customer=%q legacy=%t", r.place, r.described.Customer, routed && r.legacy)
}

// sharesIDs reports whether records of two topics with these rules may meet
// in one document.
func (r *Rules) sharesIDs() bool {
	switch r.idKind {
	case idPosition, idNone:
		return false
	case idParts:
		if r.id.has(fromTopic) {
			return false
		}
	}
	return !slices.ContainsFunc(r.index, func(p namePart) bool { return p.kind == fromTopic })
}

// forTopic returns r with the topic's name in its index name, so that most
// names are constant.
func (r *Rules) forTopic(topic string) *Rules {
	if !slices.ContainsFunc(r.index, func(p namePart) bool { return p.kind == fromTopic }) {
		return r
	}
	folded := *r
	folded.index = r.index.foldTopic(topic)
	return &folded
}

// compiler collects what is wrong in one section.
type compiler struct {
	cfg  Config
	key  string
	errs []*ConfigError
	r    *Rules
	d    *Description
}

func (c *compiler) fail(key, problem, remedy string) {
	c.errs = append(c.errs, &ConfigError{c.key + "." + key, problem, remedy})
}

// choose returns the value of a key that knows certain words, the first of
// which is its default.
func (c *compiler) choose(key, value string, words ...string) string {
	switch {
	case value == "":
		return words[0]
	case !slices.Contains(words, value):
		c.fail(key, fmt.Sprintf("%q is not known", value), "use "+strings.Join(words, ", "))
		return words[0]
	}
	return value
}

// source reads an optional key | header:h | field:/p.
func (c *compiler) source(key, value string) *source {
	if value == "" {
		return nil
	}
	src, ok, err := parseSource(value)
	if !ok {
		c.fail(key, fmt.Sprintf("%q is not known", value), sourceRemedy(err, "use key, header:NAME or field:/POINTER"))
		return nil
	}
	c.needsJSON(key, src.kind)
	return &src
}

func sourceRemedy(err error, remedy string) string {
	if err != nil {
		return err.Error()
	}
	return remedy
}

// needsJSON refuses fields of values that are not read as JSON.
func (c *compiler) needsJSON(key string, k kind) {
	if k == fromField && c.r.format != formatJSON {
		c.fail(key, "there are no fields to read under format: "+c.cfg.Format, "use format: json, or a key or header")
	}
}

func compile(cfg Config, key string, topics []string, deadLetters bool) (*Rules, []*ConfigError) {
	c := &compiler{cfg: cfg, key: key, r: &Rules{key: key, disjoint: cfg.DisjointKeys}}
	c.r.described = Description{Key: key, Topics: topics}
	c.d = &c.r.described
	c.value()
	c.customer()
	c.identity()
	c.target()
	c.operation()
	c.nulls(deadLetters)
	c.rejections(deadLetters)
	c.additions()
	c.d.NeedControl = c.r.NeedsGeneration()
	c.r.place = fmt.Sprintf("index=%q id=%q long=%t routing=%q pipeline=%q", cfg.Index, c.d.ID, c.r.hashLong, cfg.Routing, cfg.Pipeline)
	if c.r.timeNamed && c.r.idKind != idPosition && c.r.idKind != idNone {
		c.d.Notes = append(c.d.Notes, "with a timestamp in the index name, a newer record of an id, or its delete, does not reach the copy in an older index")
	}
	return c.r, c.errs
}

// value resolves how values are read.
func (c *compiler) value() {
	switch f := c.choose("format", c.cfg.Format, "json", "raw", "text", "avro", "protobuf", "json_schema"); f {
	case "json":
	case "text":
		c.r.format = formatText
	case "raw":
		c.r.format = formatRaw
	default:
		c.fail("format", f+" cannot be read by this release", "use json, raw or text")
	}
	c.r.rawField = c.cfg.RawField
	if c.r.rawField == "" {
		c.r.rawField = "message"
	}
	if c.r.format != formatJSON {
		c.fieldName("raw_field", c.r.rawField)
	}
	c.r.strict = c.choose("validate", c.cfg.Validate, "server", "strict") == "strict"
	c.r.strip = c.choose("metadata_fields", c.cfg.MetadataFields, "reject", "strip") == "strip"
	if c.r.strip && !c.r.strict {
		c.fail("metadata_fields", "strip needs a value that is read, and validate: server does not read it", "use validate: strict, or metadata_fields: reject")
	}
	c.r.maxDepth = c.cfg.MaxDepth
	if c.r.maxDepth == 0 {
		c.r.maxDepth = 200
	}
	if c.r.maxDepth < 1 || c.r.maxDepth > 100_000 {
		c.fail("max_depth", fmt.Sprintf("%d is outside 1 to 100000", c.r.maxDepth), "use 200; servers read no deeper than 1000")
	}
}

func (c *compiler) fieldName(key, name string) {
	if !acceptedName([]byte(name)) || isMetadata([]byte(name)) {
		c.fail(key, fmt.Sprintf("%q cannot be a field's name", name), "use a name without empty parts between dots that is no metadata field's")
	}
}

// customer resolves where customers come from.
func (c *compiler) customer() {
	c.r.legacy = c.choose("on_no_customer", c.cfg.OnNoCustomer, "dead_letter", "legacy") == "legacy"
	c.d.Customer = c.cfg.Customer
	text, ok := strings.CutPrefix(c.cfg.Customer, "key:")
	if !ok {
		c.r.customer = c.source("customer", c.cfg.Customer)
		return
	}
	re, err := regexp.Compile(text)
	switch {
	case err != nil:
		c.fail("customer", "this is not a regular expression", err.Error())
	case re.NumSubexp() != 1:
		c.fail("customer", fmt.Sprintf("the pattern has %d groups", re.NumSubexp()), "put one pair of brackets around the customer, and write others as (?:...)")
	default:
		c.r.customer = &source{kind: fromKey, pattern: re}
	}
}

// identity resolves the id.
func (c *compiler) identity() {
	c.r.hashLong = c.choose("long_ids", c.cfg.LongIDs, "reject", "hash") == "hash"
	c.d.ID = c.cfg.ID
	switch c.cfg.ID {
	case "auto", "":
		c.r.idKind = idAuto
		c.r.id = template{{kind: fromKey}}
		c.d.ID = "key (position where a record has none)"
		return
	case "position":
		c.r.idKind = idPosition
		return
	case "none":
		c.r.idKind = idNone
		return
	}
	c.r.idKind = idParts
	if src, ok, err := parseSource(c.cfg.ID); ok || err != nil {
		if err != nil {
			c.fail("id", fmt.Sprintf("%q is not known", c.cfg.ID), err.Error())
			return
		}
		c.needsJSON("id", src.kind)
		c.r.id = template{src}
		return
	}
	t, err := parseTemplate(c.cfg.ID)
	if err != nil {
		c.fail("id", err.Error(), "an id knows ${topic}, ${partition}, ${offset}, ${key}, ${customer}, ${timestamp:LAYOUT}, ${header:NAME} and ${field:/POINTER}")
		return
	}
	if !slices.ContainsFunc(t, func(s source) bool { return s.kind != literal && s.kind != fromTopic }) {
		c.fail("id", fmt.Sprintf("%q is the same for every record", c.cfg.ID), "use auto, key, position, field:/POINTER, header:NAME, none, or a template with variables")
	}
	for _, s := range t {
		c.needsJSON("id", s.kind)
	}
	if t.has(fromCustomer) && c.cfg.Customer == "" {
		c.fail("id", "${customer} is used but none is configured", "set customer")
	}
	c.r.id = t
}

// target resolves the index, the routing and the pipeline.
func (c *compiler) target() {
	c.r.indexText = c.cfg.Index
	c.d.Index = c.cfg.Index
	n, err := compileName(c.cfg.Index)
	if err != nil {
		c.fail("index", err.Error(), "write a literal name, or one such as events-${customer}")
	}
	c.r.index = n
	for _, p := range n {
		c.needsJSON("index", p.kind)
		if p.kind == fromCustomer && c.cfg.Customer == "" {
			c.fail("index", "${customer} is used but none is configured", "set customer")
		}
	}
	w := c.cfg.TimeWindow
	c.r.timeNamed = n.timeNamed()
	c.r.past, c.r.future, c.r.newPerHr = w.Past, w.Future, w.NewIndicesPerHour
	if c.r.past == 0 {
		c.r.past = 365 * 24 * time.Hour
	}
	if c.r.future == 0 {
		c.r.future = 24 * time.Hour
	}
	if c.r.newPerHr == 0 {
		c.r.newPerHr = 50
	}
	if c.r.past < 0 || c.r.future < 0 || c.r.newPerHr < 0 {
		c.fail("time_window", "a negative value lets nothing through", "use positive ones")
	}
	c.r.routing = c.source("routing", c.cfg.Routing)
	c.r.pipeline = c.cfg.Pipeline
	c.r.alias = c.cfg.RequireAlias
	c.d.DataStream = c.cfg.DataStream
	if c.cfg.RequireAlias && c.cfg.DataStream {
		c.fail("require_alias", "a data stream is not an alias, so every record would be refused", "use one of require_alias and data_stream")
	}
}

// operation resolves op and version, for ids that may come again and for those
// that do not.
func (c *compiler) operation() {
	ops := map[string]bulk.Op{"index": bulk.Index, "create": bulk.Create, "update": bulk.Update, "upsert": bulk.Upsert}
	op := c.choose("op", c.cfg.Op, "auto", "index", "create", "update", "upsert")
	keyed, single := op, op
	if op == "auto" {
		keyed, single = "index", "index"
		if c.r.idKind == idPosition || c.r.idKind == idAuto {
			single = "create"
		}
		if c.cfg.DataStream {
			keyed, single = "create", "create"
		}
	} else if c.cfg.DataStream && op != "create" {
		c.fail("op", "a data stream takes op: create only", "use op: auto")
	}
	if op == "update" || op == "upsert" {
		if c.r.idKind == idPosition || c.r.idKind == idNone {
			c.fail("op", op+" needs an id that comes again", "take ids from key, field or header, or use op: index")
		}
		if c.cfg.Pipeline != "" {
			c.fail("pipeline", "with op: "+op+" the server runs a pipeline at most where a document is new", "use op: index, or no pipeline")
		}
	}
	c.r.keyed = plan{op: ops[keyed], ordered: true}
	c.r.single = plan{op: ops[single]}
	c.versions()

	same := c.r.keyed.op == c.r.single.op && c.r.keyed.version == c.r.single.version
	switch {
	case c.r.idKind == idPosition || c.r.idKind == idNone:
		c.r.keyed = c.r.single
		c.d.Op = single
	case c.r.idKind == idAuto && !same:
		c.d.Op = keyed + " (" + single + " where a record has no key)"
		if c.r.single.version != c.r.keyed.version {
			c.d.Version += " (none where a record has no key)"
		}
	default:
		c.d.Op = keyed
	}
	if c.r.keyed.op == bulk.Create && c.r.keyed.ordered {
		c.d.Notes = append(c.d.Notes, "op: create keeps the first record of each id; later ones count as stale")
	}
}

// versions resolves where versions come from. A plan carries one where the
// server takes external versions: with op index and an id of our own.
func (c *compiler) versions() {
	word := c.cfg.Version
	mode, versionType := VersionSequence, bulk.External
	auto := word == "auto" || word == ""
	switch {
	case auto:
		word = "sequence"
	case word == "sequence":
	case word == "offset":
		mode = VersionOffset
	case word == "timestamp":
		mode, versionType = VersionTimestamp, bulk.ExternalGTE
	case word == "none":
		mode, versionType = VersionNone, bulk.Internal
	default:
		src, ok, err := parseSource(word)
		if !ok || src.kind == fromKey {
			c.fail("version", fmt.Sprintf("%q is not known", word), sourceRemedy(err, "use auto, sequence, offset, timestamp, field:/POINTER, header:NAME or none"))
			return
		}
		c.needsJSON("version", src.kind)
		mode, versionType = VersionField, bulk.ExternalGTE
		if src.kind == fromHeader {
			mode = VersionHeader
		}
		c.r.version = src
	}
	carries := false
	if c.r.keyed.op == bulk.Index && c.r.idKind != idPosition && c.r.idKind != idNone {
		c.r.keyed.version, c.r.keyed.versionType = mode, versionType
		carries = true
	}
	if c.r.single.op == bulk.Index && (c.r.idKind == idPosition || c.r.idKind == idAuto) {
		c.r.single.version, c.r.single.versionType = mode, versionType
		carries = true
	}
	if !carries && !auto && mode != VersionNone {
		c.fail("version", "the server takes external versions with op: index and an id only", "use version: auto, or op: index and an id")
	}
	if !carries {
		word = "none"
	}
	c.d.Version = word
}

// nulls resolves what a null value means.
func (c *compiler) nulls(deadLetters bool) {
	word := c.choose("on_null", c.cfg.OnNull, "auto", "delete", "ignore", "fail", "dead_letter")
	auto := word == "auto"
	lost := c.r.id.lostByNull(c.r.customer)
	recurs := (c.r.idKind == idAuto || c.r.idKind == idParts) && lost == nil
	if auto {
		word = "ignore"
		if recurs && c.r.keyed.op != bulk.Create {
			word = "delete"
		}
	}
	c.d.OnNull = word
	switch word {
	case "ignore":
		c.r.onNull = nullIgnore
	case "fail":
		c.r.onNull = nullFail
	case "dead_letter":
		c.r.onNull = nullDeadLetter
		if !deadLetters {
			c.fail("on_null", "there is no place for dead letters", "set dead_letter.topic or index, or another on_null")
		}
	case "delete":
		c.deletes(recurs)
		if c.r.keyed.version != VersionField {
			break
		}
		if !auto {
			c.fail("version", "a null value is a delete, but has no field to take the version from", "use another version, or set on_null to ignore, fail or dead_letter")
		}
		// A delete without a version among writes that carry one would be
		// undone by an older write: it is rejected, for somebody to see.
		c.d.OnNull = "reject (a null value has no field to take the version from)"
	}
	c.r.tomb = c.choose("deletes", c.cfg.Deletes, "hard", "tombstone") == "tombstone"
	if c.r.tomb && word == "delete" && c.r.keyed.versionType == bulk.Internal {
		c.fail("deletes", "a tombstone keeps the version of its delete, and there is none", "use deletes: hard, or op: index with a version")
	}
}

// deletes checks that a record without a value still says what to delete.
func (c *compiler) deletes(recurs bool) {
	const remedy = "take it from the key, a header, the topic or the record's timestamp, or set on_null to ignore, fail or dead_letter"
	if c.r.keyed.op == bulk.Create {
		c.fail("on_null", "op: create and data streams delete nothing", "set on_null to ignore, fail or dead_letter")
	} else if !recurs {
		c.fail("on_null", "a null value is a delete, but has no such id: "+c.cfg.ID, remedy)
	}
	if slices.ContainsFunc(c.r.index, func(p namePart) bool { return p.kind == fromField }) {
		c.fail("index", "a null value is a delete, but has no field to name the index by", remedy)
	}
	if c.r.routing != nil && !c.r.routing.keptByNull(nil) {
		c.fail("routing", "a null value is a delete, but has no field to take the routing from", remedy)
	}
	if c.r.customer != nil && !c.r.customer.keptByNull(nil) {
		c.fail("customer", "a null value is a delete, but has no field to take the customer from", remedy)
	}
}

// rejections resolves on_rejected.
func (c *compiler) rejections(deadLetters bool) {
	word := c.choose("on_rejected", c.cfg.OnRejected, "auto", "dead_letter", "stop", "drop")
	if word == "auto" {
		word = "stop"
		if deadLetters {
			word = "dead_letter"
		}
	}
	c.d.OnRejected = word
	switch word {
	case "dead_letter":
		c.r.onRejected = ToDeadLetter
		if !deadLetters {
			c.fail("on_rejected", "there is no place for dead letters", "set dead_letter.topic or index, or use stop or drop")
		}
	case "stop":
		c.r.onRejected = Stop
	case "drop":
		c.r.onRejected = Drop
	}
}

// additions resolves what is put into documents.
func (c *compiler) additions() {
	if field := c.cfg.Metadata.Field; field != "" {
		c.fieldName("metadata.field", field)
		if strings.Contains(field, ".") {
			c.fail("metadata.field", "a name with dots may meet an object of the document", "use one name")
		}
		c.r.metadataOpen = string(append(appendString(nil, field), ':', '{'))
		c.r.metadata = []func([]byte, *kgo.Record) []byte{}
		include := c.cfg.Metadata.Include
		if len(include) == 0 {
			include = []string{"topic", "partition", "offset", "timestamp", "key", "headers"}
		}
		for i, name := range include {
			part, ok := metadataParts[name]
			if !ok || slices.Contains(include[:i], name) {
				c.fail("metadata.include", fmt.Sprintf("%q is not known, or named twice", name), "use topic, partition, offset, timestamp, key, headers")
				continue
			}
			c.r.metadata = append(c.r.metadata, part)
		}
	}
	if c.cfg.Timestamp != "" {
		for entry := range strings.SplitSeq(c.cfg.Timestamp, ",") {
			if entry == "record" {
				c.r.timestamps = append(c.r.timestamps, source{kind: fromTimestamp})
				continue
			}
			src, ok, err := parseSource(entry)
			if !ok || src.kind != fromField {
				c.fail("timestamp", fmt.Sprintf("%q is not known", entry), sourceRemedy(err, "use record, or field:/POINTER, or several of them with commas"))
				continue
			}
			c.needsJSON("timestamp", src.kind)
			c.r.timestamps = append(c.r.timestamps, src)
		}
	}
	c.r.splices = c.r.metadata != nil || len(c.r.timestamps) > 0
}
