package embedded

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// An alias is an alias's place on one index.
type alias struct {
	filter  map[string]any
	routing string
	write   *bool // is_write_index, where given
	hidden  bool
}

// A stream is a data stream: the names of its backing indices, the last one
// being written to.
type stream struct {
	name     string
	indices  []string
	template string
}

// A template is a composable index template.
type template struct {
	name       string
	patterns   []string
	priority   int64
	autoCreate *bool
	stream     bool
	settings   map[string]any
	mappings   map[string]any
	aliases    map[string]any
	source     map[string]any
}

// A pipeline is an ingest pipeline; the only processor is drop.
type pipeline struct {
	drops  bool
	source json.RawMessage
}

// lookup finds where writes to a name go. It returns false for a name that does
// not exist. Callers hold es.mu.
func (es *Elasticsearch) lookup(t *resolved) bool {
	name := string(t.name)
	if ix := es.indices[name]; ix != nil {
		t.ix, t.stream, t.err = ix, "", nil
		return true
	}
	if s := es.streams[name]; s != nil {
		t.ix, t.stream, t.err = es.indices[s.indices[len(s.indices)-1]], name, nil
		return true
	}
	places := es.aliases[name]
	if len(places) == 0 {
		return false
	}
	t.alias = true
	var write *index
	for ixName, a := range places {
		if a.write != nil && *a.write || len(places) == 1 && a.write == nil {
			write = es.indices[ixName]
		}
	}
	if write == nil {
		t.err = illegalArgument("no write index is defined for alias [" + name + "]. The write index may be explicitly disabled using is_write_index=false or the alias points to multiple indices without one being designated as a write index")
		return true
	}
	t.ix, t.err = write, nil
	return true
}

// resolve finds the target of an item, creating the index where that is allowed.
func (es *Elasticsearch) resolve(t *resolved, it *bulkItem) {
	es.mu.RLock()
	found := es.lookup(t)
	es.mu.RUnlock()
	if found {
		return
	}
	name := string(t.name)
	if it.op == opDelete && it.vtype == internal || it.alias && it.op != opDelete || it.dataStream {
		if t.err == nil { // else the refusal to create it stands
			if t.err = checkIndexName(name); t.err == nil {
				t.err = indexMissing(name)
			}
		}
		return
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.lookup(t) { // somebody else was faster
		return
	}
	t.err = es.autoCreate(name)
	if t.err == nil {
		es.lookup(t)
	}
}

// streamRule refuses writes that data streams do not take.
func (es *Elasticsearch) streamRule(t *resolved, it *bulkItem) *apiError {
	if t.stream != "" {
		if it.op == opCreate {
			return nil
		}
		err := illegalArgument("only write ops with an op_type of create are allowed in data streams")
		err.cause = indexMissing(t.stream)
		err.cause.attrs = append([]string{"resource.type", "index_or_alias", "excluded_ds", "true"}, err.cause.attrs[2:]...)
		return err
	}
	if t.ix.stream != "" && (it.op == opIndex || it.op == opCreate) && it.ifSeq == unset {
		return illegalArgument("index request with op_type=" + it.op.String() +
			" and no if_primary_term and if_seq_no set targeting backing indices is disallowed, target corresponding data stream [" + t.ix.stream + "] instead")
	}
	return nil
}

// autoCreate creates an index for a write. Callers hold es.mu.
func (es *Elasticsearch) autoCreate(name string) *apiError {
	if err := checkIndexName(name); err != nil {
		return err
	}
	tm := es.templateFor(name)
	if tm != nil && tm.autoCreate != nil && !*tm.autoCreate {
		text := "composable template [" + strings.Join(tm.patterns, ", ") + "] forbids index auto creation"
		return newError(http.StatusNotFound, "index_not_found_exception", "no such index ["+text+"]", "index_uuid", "_na_", "index", text)
	}
	if tm == nil || tm.autoCreate == nil {
		if why := es.autoCreateRefusal(name); why != "" {
			if es.cfg.Flavour == FlavourOpenSearch {
				return indexMissing(name)
			}
			return newError(http.StatusNotFound, "index_not_found_exception", "no such index ["+name+"] and "+why,
				"index_uuid", "_na_", "index", name)
		}
	}
	if tm != nil && tm.stream {
		return es.createStream(name, tm)
	}
	_, err := es.createIndex(name, nil, tm, "")
	return err
}

// autoCreateRefusal returns why action.auto_create_index forbids an index, or "".
func (es *Elasticsearch) autoCreateRefusal(name string) string {
	v := es.setting("action.auto_create_index")
	switch v {
	case "", "true":
		return ""
	case "false":
		return "[action.auto_create_index] is [false]"
	}
	for _, p := range strings.Split(v, ",") {
		p = strings.TrimSpace(p)
		if glob(strings.TrimLeft(p, "+-"), name) {
			if strings.HasPrefix(p, "-") {
				return "[action.auto_create_index] contains [" + p + "] which forbids automatic creation of the index"
			}
			return ""
		}
	}
	return "[action.auto_create_index] ([" + v + "]) doesn't match"
}

// setting returns a cluster setting, or "". Callers hold es.mu.
func (es *Elasticsearch) setting(name string) string {
	for _, scope := range []string{"transient", "persistent"} {
		if v, ok := es.cluster[scope][name]; ok {
			return fmt.Sprint(v)
		}
	}
	return ""
}

func (es *Elasticsearch) templateFor(name string) *template {
	var best *template
	for _, n := range sortedKeys(es.templates) {
		t := es.templates[n]
		if slices.ContainsFunc(t.patterns, func(p string) bool { return glob(p, name) }) && (best == nil || t.priority > best.priority) {
			best = t
		}
	}
	return best
}

func (es *Elasticsearch) createStream(name string, tm *template) *apiError {
	backing := ".ds-" + name + "-" + time.Now().UTC().Format("2006.01.02") + "-000001"
	if es.cfg.Flavour == FlavourOpenSearch {
		backing = ".ds-" + name + "-000001"
	}
	ix, err := es.createIndex(backing, nil, tm, name)
	if err != nil {
		return err
	}
	m := ix.mapping.Load()
	m.timestamp = true
	m.meta = map[string]any{"_data_stream_timestamp": map[string]any{"enabled": true}}
	if m.root.props["@timestamp"] == nil {
		m.root.props["@timestamp"] = &field{typ: "date"}
		m.count++
	}
	ix.settings["hidden"] = "true"
	es.streams[name] = &stream{name: name, indices: []string{backing}, template: tm.name}
	return nil
}

// checkIndexName refuses names that no index can have.
func checkIndexName(name string) *apiError {
	bad := func(why string) *apiError {
		return newError(http.StatusBadRequest, "invalid_index_name_exception", "Invalid index name ["+name+"], "+why,
			"index_uuid", "_na_", "index", name)
	}
	switch {
	case name == "":
		return bad("must not be empty")
	case strings.ContainsAny(name, " \"*,/<>?\\|"):
		return bad(`must not contain the following characters [' ','"','*',',','/','<','>','?','\','|']`)
	case strings.Contains(name, "#"):
		return bad("must not contain '#'")
	case strings.Contains(name, ":"):
		return bad("must not contain ':'")
	case name[0] == '_' || name[0] == '-' || name[0] == '+':
		return bad("must not start with '_', '-', or '+'")
	case len(name) > 255:
		return bad("index name is too long, (" + strconv.Itoa(len(name)) + " > 255)")
	case name == "." || name == "..":
		return bad("must not be '.' or '..'")
	case strings.ToLower(name) != name:
		return bad("must be lowercase")
	}
	return nil
}

// createIndex makes an index from a create request's body and a template.
// Callers hold es.mu.
func (es *Elasticsearch) createIndex(name string, body map[string]any, tm *template, stream string) (*index, *apiError) {
	if err := checkIndexName(name); err != nil {
		return nil, err
	}
	if ix := es.indices[name]; ix != nil {
		return nil, newError(http.StatusBadRequest, "resource_already_exists_exception",
			"index ["+name+"/"+ix.uuid+"] already exists", "index_uuid", ix.uuid, "index", name)
	}
	if len(es.aliases[name]) > 0 {
		return nil, newError(http.StatusBadRequest, "invalid_index_name_exception",
			"Invalid index name ["+name+"], already exists as alias", "index_uuid", "_na_", "index", name)
	}
	ix := &index{
		es: es, name: name, quoted: appendString(nil, name), uuid: es.newID(), created: time.Now(), stream: stream,
		settings: map[string]string{"number_of_shards": "1", "number_of_replicas": "1"},
	}
	ix.term.Store(1)
	m := newMapping()
	aliases := map[string]any{}
	apply := func(settings, mappings, al map[string]any) *apiError {
		flat := flatSettings(settings)
		for _, k := range sortedKeys(flat) {
			if err := ix.configure(m, k, flat[k], true); err != nil {
				return err
			}
		}
		for k, v := range al {
			aliases[k] = v
		}
		return m.merge(mappings)
	}
	if tm != nil {
		if err := apply(tm.settings, tm.mappings, tm.aliases); err != nil {
			return nil, err
		}
	}
	settings, mappings, al, err := createBody(body)
	if err != nil {
		return nil, err
	}
	if err := apply(settings, mappings, al); err != nil {
		return nil, err
	}
	shards, _ := strconv.Atoi(ix.settings["number_of_shards"])
	if err := es.shardLimit(shards * (1 + ix.replicas())); err != nil {
		return nil, err
	}
	for n := range shards {
		ix.shards = append(ix.shards, newShard(ix, n))
	}
	if ix.settings["gc_deletes"] == "" {
		ix.gcDeletes.Store(int64(time.Minute))
	}
	if ix.settings["refresh_interval"] == "" {
		ix.refreshEvery.Store(int64(time.Second))
	}
	ix.mapping.Store(m)
	es.indices[name] = ix
	for a, def := range aliases {
		d, _ := def.(map[string]any)
		es.putAlias(name, a, d)
	}
	return ix, nil
}

func createBody(body map[string]any) (settings, mappings, aliases map[string]any, err *apiError) {
	for k, v := range body {
		o, _ := v.(map[string]any)
		switch k {
		case "settings":
			settings = o
		case "mappings":
			mappings = o
		case "aliases":
			aliases = o
		default:
			return nil, nil, nil, parseError("unknown key [" + k + "] for create index")
		}
	}
	return settings, mappings, aliases, nil
}

// shardLimit refuses n more shards over cluster.max_shards_per_node.
func (es *Elasticsearch) shardLimit(n int) *apiError {
	limit := 1000
	if v, err := strconv.Atoi(es.setting("cluster.max_shards_per_node")); err == nil {
		limit = v
	}
	open := 0
	for _, ix := range es.indices {
		if !ix.isClosed() {
			open += len(ix.shards) * (1 + ix.replicas())
		}
	}
	if open+n <= limit {
		return nil
	}
	text := "this action would add [" + strconv.Itoa(n) + "] shards, but this cluster currently has [" + strconv.Itoa(open) + "]/[" +
		strconv.Itoa(limit) + "] maximum normal shards open"
	if es.cfg.Flavour == FlavourOpenSearch {
		text = "this action would add [" + strconv.Itoa(n) + "] total shards, but this cluster currently has [" + strconv.Itoa(open) + "]/[" +
			strconv.Itoa(limit) + "] maximum shards open"
	} else {
		text += "; for more information, see https://www.elastic.co/guide/en/elasticsearch/reference/8.19/size-your-shards.html#troubleshooting-max-shards-open"
	}
	return newError(http.StatusBadRequest, "validation_exception", "Validation Failed: 1: "+text+";")
}

func (ix *index) replicas() int {
	n, _ := strconv.Atoi(ix.settings["number_of_replicas"])
	return n
}

// flatSettings turns nested settings into dotted names without "index.".
func flatSettings(src map[string]any) map[string]any {
	flat := map[string]any{}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for k, v := range m {
			if o, ok := v.(map[string]any); ok {
				walk(prefix+k+".", o)
				continue
			}
			flat[strings.TrimPrefix(prefix+k, "index.")] = v
		}
	}
	walk("", src)
	return flat
}

var blockSettings = map[string]uint32{
	"blocks.write": blockWrite, "blocks.read_only": blockReadOnly,
	"blocks.read_only_allow_delete": blockAllowDelete, "blocks.metadata": blockMetadata, "blocks.read": blockRead,
}

// settingGroups are prefixes of index settings that are kept without effect.
var settingGroups = []string{
	"routing.", "translog.", "merge.", "lifecycle.", "analysis.", "sort.", "search.", "query.", "indexing.",
	"mapping.", "similarity.", "soft_deletes.", "unassigned.", "store.", "queries.", "highlight.", "version.", "write.",
}

var plainSettings = map[string]bool{
	"number_of_replicas": true, "auto_expand_replicas": true, "default_pipeline": true, "final_pipeline": true,
	"hidden": true, "max_result_window": true, "codec": true, "priority": true, "number_of_routing_shards": true, "max_ngram_diff": true,
	"mode": true, "load_fixed_bitset_filters_eagerly": true, "flush_after_merge": true, "shard.check_on_startup": true, "plugins.": true,
}

// configure sets one index setting; nil resets it. m is the mapping to be
// limited.
func (ix *index) configure(m *mapping, name string, v any, creating bool) *apiError {
	text := ""
	if v != nil {
		text = fmt.Sprint(v)
	}
	duration := func(unset time.Duration) (int64, *apiError) {
		if v == nil {
			return int64(unset), nil
		}
		d, ok := parseDuration(text)
		if !ok {
			return 0, illegalArgument("failed to parse setting [index." + name + "] with value [" + text + "] as a time value: unit is missing or unrecognized")
		}
		return int64(d), nil
	}
	number := func() (int, *apiError) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, illegalArgument("Failed to parse value [" + text + "] for setting [index." + name + "]")
		}
		return n, nil
	}
	switch name {
	case "gc_deletes":
		d, err := duration(time.Minute)
		if err != nil {
			return err
		}
		ix.gcDeletes.Store(d)
	case "refresh_interval":
		d, err := duration(time.Second)
		if err != nil {
			return err
		}
		ix.refreshEvery.Store(d)
	case "number_of_shards":
		if !creating {
			return illegalArgument("Can't update non dynamic settings [[index.number_of_shards]] for open indices [[" + ix.name + "/" + ix.uuid +
				"]] unless the `reopen` query parameter is set to true. Alternatively, close the indices, apply the settings changes, and reopen the indices")
		}
		if n, err := number(); err != nil || n < 1 || n > 1024 {
			return illegalArgument("Failed to parse value [" + text + "] for setting [index.number_of_shards] must be >= 1")
		}
	case "mapping.total_fields.limit", "mapping.depth.limit":
		n, err := number()
		if v != nil && err != nil {
			return err
		}
		switch {
		case name == "mapping.depth.limit" && v == nil:
			m.depthLimit = 20
		case name == "mapping.depth.limit":
			m.depthLimit = n
		case v == nil:
			m.fieldLimit = 1000
		default:
			m.fieldLimit = n
		}
	default:
		if block, ok := blockSettings[name]; ok {
			ix.setBlock(block, text == "true")
			break
		}
		if !plainSettings[name] && !slices.ContainsFunc(settingGroups, func(p string) bool { return strings.HasPrefix(name, p) }) {
			return illegalArgument("unknown setting [index." + name + "] please check that any required plugins are installed, or check the breaking changes documentation for removed settings")
		}
	}
	if v == nil {
		delete(ix.settings, name)
	} else {
		ix.settings[name] = text
	}
	return nil
}

// parseDuration reads a time value such as 30s, 500ms or -1.
func parseDuration(s string) (time.Duration, bool) {
	if s == "-1" {
		return -1, true
	}
	if s == "0" {
		return 0, true
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		return time.Duration(n * 24 * float64(time.Hour)), err == nil
	}
	s = strings.NewReplacer("micros", "us", "nanos", "ns").Replace(s)
	d, err := time.ParseDuration(s)
	return d, err == nil
}

// putAlias adds an alias to an index. Callers hold es.mu and have checked it.
func (es *Elasticsearch) putAlias(indexName, name string, def map[string]any) {
	a := &alias{}
	a.filter, _ = def["filter"].(map[string]any)
	if w, ok := def["is_write_index"]; ok {
		on := fmt.Sprint(w) == "true"
		a.write = &on
	}
	if r, ok := def["routing"]; ok {
		a.routing = fmt.Sprint(r)
	}
	a.hidden = fmt.Sprint(def["is_hidden"]) == "true"
	if es.aliases[name] == nil {
		es.aliases[name] = map[string]*alias{}
	}
	es.aliases[name][indexName] = a
}

func (a *alias) source() map[string]any {
	out := map[string]any{}
	if a.filter != nil {
		out["filter"] = a.filter
	}
	if a.write != nil {
		out["is_write_index"] = *a.write
	}
	if a.routing != "" {
		out["index_routing"], out["search_routing"] = a.routing, a.routing
	}
	if a.hidden {
		out["is_hidden"] = true
	}
	return out
}

// A place is an index that an expression leads to, with the filters of the
// aliases it was reached by; nil filters mean all documents.
type place struct {
	ix      *index
	filters []map[string]any
}

// expand resolves names, lists and wildcards. A wildcard that matches nothing is
// fine; a missing name is an error unless ignore is set. Callers do not hold
// es.mu.
func (es *Elasticsearch) expand(expression string, ignore bool) ([]place, *apiError) {
	es.mu.RLock()
	defer es.mu.RUnlock()
	found := map[string]*place{}
	whole := map[string]bool{}
	add := func(name string, filter map[string]any) {
		ix := es.indices[name]
		if ix == nil {
			return
		}
		p := found[name]
		if p == nil {
			p = &place{ix: ix}
			found[name] = p
		}
		if filter == nil {
			whole[name] = true
		} else {
			p.filters = append(p.filters, filter)
		}
	}
	one := func(name string) bool {
		if es.indices[name] != nil {
			add(name, nil)
			return true
		}
		if s := es.streams[name]; s != nil {
			for _, n := range s.indices {
				add(n, nil)
			}
			return true
		}
		for n, a := range es.aliases[name] {
			add(n, a.filter)
		}
		return len(es.aliases[name]) > 0
	}
	if expression == "" || expression == "_all" {
		expression = "*"
	}
	for _, name := range strings.Split(expression, ",") {
		if !strings.Contains(name, "*") {
			if !one(name) && !ignore {
				return nil, indexMissing(name)
			}
			continue
		}
		for n, ix := range es.indices {
			if glob(name, n) && (ix.stream == "" && ix.settings["hidden"] != "true" || strings.HasPrefix(name, ".")) {
				add(n, nil)
			}
		}
		for n := range es.aliases {
			if glob(name, n) {
				one(n)
			}
		}
		for n := range es.streams {
			if glob(name, n) {
				one(n)
			}
		}
	}
	out := make([]place, 0, len(found))
	for _, n := range sortedKeys(found) {
		if whole[n] {
			found[n].filters = nil
		}
		out = append(out, *found[n])
	}
	return out, nil
}

// blockIndex sets a block and waits for the writes that were admitted before.
func (es *Elasticsearch) blockIndex(ctx context.Context, places []place, kind string) *answer {
	bit, ok := blockSettings["blocks."+kind]
	if !ok {
		return failure(illegalArgument("No block found with name " + kind))
	}
	blocked := []any{}
	for _, p := range places {
		es.mu.Lock()
		p.ix.settings["blocks."+kind] = "true"
		es.mu.Unlock()
		p.ix.setBlock(bit, true)
		if err := es.hold(ctx, p.ix.drained(), false); err != nil {
			return failure(newError(http.StatusServiceUnavailable, "process_cluster_event_timeout_exception", "waiting for writes of ["+p.ix.name+"]"))
		}
		blocked = append(blocked, map[string]any{"name": p.ix.name, "blocked": true})
	}
	return reply(http.StatusOK, map[string]any{"acknowledged": true, "shards_acknowledged": true, "indices": blocked})
}

// deleteIndex removes an index and its aliases. Callers hold es.mu.
func (es *Elasticsearch) deleteIndex(name string) {
	ix := es.indices[name]
	ix.gate.Lock()
	ix.gate.deleted = true
	ix.gate.Unlock()
	delete(es.indices, name)
	for a, places := range es.aliases {
		delete(places, name)
		if len(places) == 0 {
			delete(es.aliases, a)
		}
	}
}

// updateAliases carries out the actions of an _aliases request, all or none.
func (es *Elasticsearch) updateAliases(actions []any) *apiError {
	if len(actions) == 0 {
		return illegalArgument("No action specified")
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	before := make(map[string]map[string]*alias, len(es.aliases))
	for n, places := range es.aliases {
		c := make(map[string]*alias, len(places))
		for k, v := range places {
			c[k] = v
		}
		before[n] = c
	}
	var dropped []string
	for _, a := range actions {
		if err := es.aliasAction(a, &dropped); err != nil {
			es.aliases = before
			return err
		}
	}
	for n, places := range es.aliases {
		var writers []string
		for ix, a := range places {
			if a.write != nil && *a.write {
				writers = append(writers, ix)
			}
		}
		if len(writers) > 1 {
			es.aliases = before
			sort.Strings(writers)
			return newError(http.StatusInternalServerError, "illegal_state_exception",
				"alias ["+n+"] has more than one write index ["+strings.Join(writers, ",")+"]")
		}
	}
	for _, n := range dropped {
		es.deleteIndex(n)
	}
	return nil
}

func (es *Elasticsearch) aliasAction(a any, dropped *[]string) *apiError {
	o, _ := a.(map[string]any)
	if len(o) != 1 {
		return newError(http.StatusBadRequest, "parsing_exception", "Expected one action")
	}
	verb := sortedKeys(o)[0]
	def, _ := o[verb].(map[string]any)
	indices, names := stringList(def, "index", "indices"), stringList(def, "alias", "aliases")
	if verb != "add" && verb != "remove" && verb != "remove_index" {
		return newError(http.StatusBadRequest, "x_content_parse_exception", "[1:15] [alias_action] unknown field ["+verb+"]")
	}
	var concrete []string
	for _, n := range indices {
		found := false
		for ix := range es.indices {
			if ix == n || strings.Contains(n, "*") && glob(n, ix) {
				concrete = append(concrete, ix)
				found = true
			}
		}
		if !found && !strings.Contains(n, "*") {
			return indexMissing(n)
		}
	}
	sort.Strings(concrete)
	switch verb {
	case "remove_index":
		*dropped = append(*dropped, concrete...)
	case "add":
		for _, n := range names {
			if es.indices[n] != nil || es.streams[n] != nil {
				return newError(http.StatusBadRequest, "invalid_alias_name_exception",
					"Invalid alias name ["+n+"]: an index or data stream exists with the same name as the alias")
			}
			for _, ix := range concrete {
				es.putAlias(ix, n, def)
			}
		}
	case "remove":
		removed := false
		for _, n := range names {
			for have := range es.aliases {
				if have != n && (!strings.Contains(n, "*") || !glob(n, have)) {
					continue
				}
				for _, ix := range concrete {
					if _, ok := es.aliases[have][ix]; ok {
						removed = true
						delete(es.aliases[have], ix)
					}
				}
				if len(es.aliases[have]) == 0 {
					delete(es.aliases, have)
				}
			}
		}
		if mustExist, given := def["must_exist"]; !removed && (!given || fmt.Sprint(mustExist) == "true") {
			list := strings.Join(names, ",")
			return newError(http.StatusNotFound, "aliases_not_found_exception", "aliases ["+list+"] missing",
				"resource.type", "aliases", "resource.id", list)
		}
	}
	return nil
}

func stringList(m map[string]any, keys ...string) []string {
	var out []string
	for _, k := range keys {
		switch v := m[k].(type) {
		case string:
			out = append(out, v)
		case []any:
			for _, e := range v {
				out = append(out, fmt.Sprint(e))
			}
		}
	}
	return out
}
