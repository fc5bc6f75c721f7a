package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// reply answers v as JSON.
func reply(status int, v any) *answer {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("embedded: an answer that is not JSON: " + err.Error()) // a mistake of this package
	}
	return &answer{status: status, body: bytes.TrimSuffix(b.Bytes(), []byte("\n"))}
}

func acknowledged() *answer { return reply(http.StatusOK, map[string]any{"acknowledged": true}) }

func parameterSet(names ...string) map[string]bool {
	set := map[string]bool{"pretty": true, "human": true, "error_trace": true, "filter_path": true, "format": true}
	for _, n := range names {
		set[n] = true
	}
	return set
}

// unknownParameter refuses URL parameters outside a set.
func (r *Request) unknownParameter(known map[string]bool) *apiError {
	for _, k := range sortedKeys(r.Query) {
		if !known[k] {
			return illegalArgument("request [" + r.Path + "] contains unrecognized parameter: [" + k + "]")
		}
	}
	return nil
}

// contentType refuses bodies that do not say what they are, or that are not
// JSON. lines allows newline-delimited JSON.
func (r *Request) contentType(es *Elasticsearch, lines bool) *apiError {
	if len(r.wire) == 0 {
		return nil
	}
	header := r.Header.Get("Content-Type")
	kind, _, _ := strings.Cut(header, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	compat := es.cfg.Flavour == FlavourElasticsearch
	switch {
	case kind == "application/json", lines && kind == "application/x-ndjson",
		compat && kind == "application/vnd.elasticsearch+json", compat && lines && kind == "application/vnd.elasticsearch+x-ndjson":
		return nil
	}
	return &apiError{status: http.StatusNotAcceptable, reason: "Content-Type header [" + header + "] is not supported", plain: true}
}

// object reads the request's body as a JSON object; an empty body is an empty
// one.
func (r *Request) object(es *Elasticsearch) (map[string]any, *apiError) {
	if err := r.contentType(es, false); err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(r.Body)) == 0 {
		return map[string]any{}, nil
	}
	l := lexer{b: r.Body}
	k := l.value()
	l.skip(k)
	if l.err != nil {
		return nil, l.err.request(r.Body)
	}
	d := json.NewDecoder(bytes.NewReader(r.Body))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return nil, newError(http.StatusBadRequest, "parsing_exception", "Expected [START_OBJECT] but found ["+k.String()+"]")
	}
	return v, nil
}

func (r *Request) wrongMethod(allowed ...string) *answer {
	return failure(&apiError{status: http.StatusMethodNotAllowed, plain: true, reason: "Incorrect HTTP method for uri [" + r.Path +
		"] and method [" + r.Method + "], allowed: [" + strings.Join(allowed, ", ") + "]"})
}

func (r *Request) noHandler() *answer {
	return failure(&apiError{
		status: http.StatusBadRequest, plain: true, typ: "no_status",
		reason: "no handler found for uri [" + r.Path + "] and method [" + r.Method + "]",
	})
}

// is says whether the method is one of these; HEAD counts as GET.
func (r *Request) is(methods ...string) bool {
	m := r.Method
	if m == http.MethodHead {
		m = http.MethodGet
	}
	return slices.Contains(methods, m)
}

// route finds what a request asks for.
func (es *Elasticsearch) route(ctx context.Context, r *Request, f *Fault) *answer {
	s := r.segments
	if len(s) == 0 {
		if !r.is("GET") {
			return r.wrongMethod("GET", "DELETE", "HEAD")
		}
		return es.info()
	}
	if s[0] == "_all" || s[0] == "" || s[0][0] != '_' {
		return es.routeIndex(ctx, r, f)
	}
	rest := s[1:]
	switch s[0] {
	case "_bulk":
		if len(rest) == 0 {
			if !r.is("POST", "PUT") {
				return r.wrongMethod("POST", "PUT")
			}
			return es.bulk(ctx, r, "", f)
		}
	case "_mget":
		return es.mget(r, "")
	case "_search":
		return es.search(r, "", f)
	case "_count":
		return es.count(r, "")
	case "_pit":
		return es.closePIT(r)
	case "_refresh", "_flush":
		return es.shardsCall(r, "")
	case "_stats":
		return es.stats(r, "")
	case "_aliases":
		return es.postAliases(r)
	case "_alias":
		return es.getAlias("", strings.Join(rest, ","))
	case "_mapping":
		return es.mappingCall(r, "_all")
	case "_settings":
		return es.settingsCall(r, "_all", strings.Join(rest, ","))
	case "_cluster":
		return es.clusterCall(r, rest)
	case "_index_template":
		if len(rest) == 2 && rest[0] == "_simulate_index" {
			return es.simulateIndex(r, rest[1])
		}
		return es.templateCall(r, strings.Join(rest, ""))
	case "_ingest":
		if len(rest) > 0 && rest[0] == "pipeline" {
			return es.pipelineCall(r, strings.Join(rest[1:], ""))
		}
	case "_nodes":
		return es.nodes(rest)
	case "_cat":
		return es.cat(rest)
	case "_resolve":
		if len(rest) == 2 && rest[0] == "index" {
			return es.resolveCall(rest[1])
		}
	case "_license":
		if es.cfg.Flavour == FlavourElasticsearch {
			return reply(http.StatusOK, map[string]any{"license": map[string]any{"status": "active", "uid": es.uuid, "type": "basic"}})
		}
	default:
		if len(s) == 1 && es.cfg.Flavour == FlavourElasticsearch {
			return failure(newError(http.StatusBadRequest, "invalid_index_name_exception", "Invalid index name ["+s[0]+"], must not start with '_'.",
				"index_uuid", "_na_", "index", s[0]))
		}
	}
	return r.noHandler()
}

func (es *Elasticsearch) routeIndex(ctx context.Context, r *Request, f *Fault) *answer {
	name, s := r.segments[0], r.segments[1:]
	if len(s) == 0 {
		return es.indexCall(r, name)
	}
	rest := s[1:]
	switch s[0] {
	case "_bulk":
		if !r.is("POST", "PUT") || r.Method == http.MethodHead {
			return r.wrongMethod("POST", "PUT")
		}
		return es.bulk(ctx, r, name, f)
	case "_doc":
		return es.docCall(r, name, rest)
	case "_create":
		if len(rest) == 1 && r.is("PUT", "POST") {
			return es.putDoc(r, name, rest[0], true, opCreate)
		}
	case "_update":
		if len(rest) == 1 && r.is("POST") {
			return es.putDoc(r, name, rest[0], true, opUpdate)
		}
	case "_source":
		if len(rest) == 1 && r.is("GET") {
			return es.getSource(r, name, rest[0])
		}
	case "_mget":
		return es.mget(r, name)
	case "_search":
		if len(rest) == 0 || rest[0] != "point_in_time" {
			return es.search(r, name, f)
		}
		if es.cfg.Flavour == FlavourOpenSearch {
			return es.openPIT(r, name)
		}
	case "_count":
		return es.count(r, name)
	case "_pit":
		if es.cfg.Flavour == FlavourElasticsearch {
			return es.openPIT(r, name)
		}
	case "_refresh", "_flush", "_forcemerge":
		return es.shardsCall(r, name)
	case "_stats":
		return es.stats(r, name)
	case "_settings":
		return es.settingsCall(r, name, strings.Join(rest, ","))
	case "_mapping":
		return es.mappingCall(r, name)
	case "_alias", "_aliases":
		return es.indexAlias(r, name, rest)
	case "_block":
		if len(rest) == 1 && r.is("PUT") {
			places, err := es.expand(name, false)
			if err != nil {
				return failure(err)
			}
			return es.blockIndex(ctx, places, rest[0])
		}
	case "_open", "_close":
		return es.openClose(r, name, s[0] == "_open")
	}
	return r.noHandler()
}

func (es *Elasticsearch) info() *answer {
	version := map[string]any{"number": es.cfg.Version, "build_type": "embedded", "build_hash": "unknown", "build_snapshot": false, "lucene_version": "9.12.2"}
	tagline := "You Know, for Search"
	if es.cfg.Flavour == FlavourOpenSearch {
		version["distribution"] = "opensearch"
		version["minimum_wire_compatibility_version"], version["minimum_index_compatibility_version"] = "7.10.0", "7.0.0"
		tagline = "The OpenSearch Project: https://opensearch.org/"
	} else {
		version["build_flavor"] = "default"
		version["minimum_wire_compatibility_version"], version["minimum_index_compatibility_version"] = "7.17.0", "7.0.0"
	}
	return reply(http.StatusOK, map[string]any{"name": "embedded", "cluster_name": "embedded", "cluster_uuid": es.uuid, "version": version, "tagline": tagline})
}

var docParameters = parameterSet("refresh", "timeout", "pipeline", "routing", "require_alias", "require_data_stream", "wait_for_active_shards",
	"version", "version_type", "if_seq_no", "if_primary_term", "op_type", "realtime", "preference", "stored_fields", "_source", "_source_includes",
	"_source_excludes", "retry_on_conflict", "lang", "include_source_on_error")

func (es *Elasticsearch) docCall(r *Request, name string, rest []string) *answer {
	if len(rest) > 1 {
		return r.noHandler()
	}
	if len(rest) == 0 {
		if r.Method != http.MethodPost {
			return r.wrongMethod("POST")
		}
		return es.putDoc(r, name, "", false, opIndex)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return es.getDoc(r, name, rest[0])
	case http.MethodPut, http.MethodPost:
		return es.putDoc(r, name, rest[0], true, opIndex)
	case http.MethodDelete:
		return es.putDoc(r, name, rest[0], true, opDelete)
	}
	return r.wrongMethod("GET", "PUT", "DELETE", "HEAD", "POST")
}

// putDoc writes one document. It is a bulk request of one item, answered as the
// document APIs do.
func (es *Elasticsearch) putDoc(r *Request, name, id string, hasID bool, op opType) *answer {
	if err := r.unknownParameter(docParameters); err != nil {
		return failure(err)
	}
	q := r.Query
	it := bulkItem{
		write: write{op: op, id: []byte(id), version: unset, ifSeq: unset, routing: []byte(q.Get("routing")), source: r.Body},
		index: []byte(name), hasIndex: true, hasID: hasID, pipeline: []byte(q.Get("pipeline")),
		alias: q.Get("require_alias") == "true", dataStream: q.Get("require_data_stream") == "true",
	}
	if op == opIndex && q.Get("op_type") == "create" {
		it.op = opCreate
	}
	if err := it.fromQuery(q); err != nil {
		return failure(err)
	}
	if op == opDelete {
		it.source = nil
	} else {
		if err := r.contentType(es, false); err != nil {
			return failure(err)
		}
		if len(r.Body) == 0 {
			return failure(parseError("request body is required"))
		}
	}
	if op == opUpdate {
		if err := it.updateBody(); err != nil {
			return failure(err)
		}
	}
	if reasons := it.validate(nil, maxIDLength); reasons != nil {
		return failure(validation(reasons...))
	}
	b := &bulkRequest{}
	t := resolved{name: it.index}
	es.resolve(&t, &it)
	if t.ix != nil {
		if t.blocked = t.ix.enter(); t.blocked == nil {
			defer t.ix.leave()
		}
	}
	res, _ := es.writeItem(b, &t, &it, nanos())
	if res.err != nil {
		return failure(res.err)
	}
	refresh, forced := q["refresh"]
	var shardsOff uint32
	if forced && refresh[0] != "false" {
		t.ix.refresh(nanos())
	}
	out := append([]byte(`{"_index":`), appendString(nil, t.ix.name)...)
	out = append(append(out, `,"_id":`...), appendString(nil, it.id)...)
	out = append(out, ',')
	if op == opUpdate && res.result == "noop" {
		shardsOff = itemShards
		out = append(out, `"_shards":{"total":0,"successful":0,"failed":0},`...)
	}
	out = appendResult(out, everyMember&^shardsOff, &res, forced && refresh[0] != "wait_for" && refresh[0] != "false")
	out[len(out)-1] = '}'
	return &answer{status: res.status, body: out}
}

// fromQuery reads version and sequence number from a URL.
func (it *bulkItem) fromQuery(q url.Values) *apiError {
	number := func(name string, dst *int64) *apiError {
		v := q.Get(name)
		if v == "" {
			return nil
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return illegalArgument("Failed to parse long parameter [" + name + "] with value [" + v + "]")
		}
		*dst = n
		return nil
	}
	if it.op == opUpdate && (q.Get("version") != "" || q.Get("version_type") != "") {
		return validation("internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and `if_primary_term` instead")
	}
	switch v := q.Get("version_type"); v {
	case "", "internal":
	case "external", "external_gt":
		it.vtype = external
	case "external_gte":
		it.vtype = externalGTE
	default:
		return illegalArgument("No version type match [" + v + "]")
	}
	for name, dst := range map[string]*int64{"version": &it.version, "if_seq_no": &it.ifSeq, "if_primary_term": &it.ifTerm} {
		if err := number(name, dst); err != nil {
			return err
		}
	}
	return nil
}

// readable finds the index of a real-time read.
func (es *Elasticsearch) readable(name string) (*index, *apiError) {
	places, err := es.expand(name, false)
	if err != nil {
		return nil, err
	}
	if len(places) != 1 {
		return nil, illegalArgument("alias [" + name + "] has more than one index associated with it, can't execute a single index op")
	}
	ix := places[0].ix
	if ix.isClosed() {
		return nil, newError(http.StatusBadRequest, "index_closed_exception", "closed", "index_uuid", ix.uuid, "index", ix.name)
	}
	return ix, ix.blocked(blockRead)
}

// find returns a document's state, real-time or searchable; nil: absent.
func (ix *index) find(id, routing string, realtime bool) *doc {
	s := ix.shard([]byte(id), []byte(routing))
	if realtime {
		return s.get(id)
	}
	return s.shownDoc(id, nanos())
}

func (es *Elasticsearch) getDoc(r *Request, name, id string) *answer {
	if err := r.unknownParameter(docParameters); err != nil {
		return failure(err)
	}
	ix, err := es.readable(name)
	if err != nil {
		return failure(err)
	}
	d := ix.find(id, r.Query.Get("routing"), r.Query.Get("realtime") != "false")
	if d == nil {
		out := append([]byte(`{"_index":`), appendString(nil, ix.name)...)
		out = append(append(out, `,"_id":`...), appendString(nil, id)...)
		return &answer{status: http.StatusNotFound, body: append(out, `,"found":false}`...)}
	}
	if v, perr := strconv.ParseInt(r.Query.Get("version"), 10, 64); perr == nil && v != d.version {
		return failure(d.slotConflict(ix, "current version ["+strconv.FormatInt(d.version, 10)+"] is different than the one provided ["+strconv.FormatInt(v, 10)+"]"))
	}
	return &answer{status: http.StatusOK, body: appendFound(nil, ix.name, d, querySource(r.Query))}
}

func (d *doc) slotConflict(ix *index, reason string) *apiError {
	return newError(http.StatusConflict, "version_conflict_engine_exception", "["+d.id+"]: version conflict, "+reason,
		"index_uuid", ix.uuid, "shard", "0", "index", ix.name)
}

func (es *Elasticsearch) getSource(r *Request, name, id string) *answer {
	ix, err := es.readable(name)
	if err != nil {
		return failure(err)
	}
	d := ix.find(id, r.Query.Get("routing"), true)
	if d == nil {
		return failure(newError(http.StatusNotFound, "resource_not_found_exception", "Document not found ["+ix.name+"]/["+id+"]"))
	}
	return &answer{status: http.StatusOK, body: bytes.Clone(d.source)}
}

// appendFound appends a document as GET shows it.
func appendFound(out []byte, name string, d *doc, src sourceFilter) []byte {
	out = append(out, `{"_index":`...)
	out = appendString(out, name)
	out = append(append(out, `,"_id":`...), appendString(nil, d.id)...)
	out = append(append(out, `,"_version":`...), strconv.FormatInt(d.version, 10)...)
	out = append(append(out, `,"_seq_no":`...), strconv.FormatInt(d.seq, 10)...)
	out = append(append(out, `,"_primary_term":`...), strconv.FormatInt(d.term, 10)...)
	if d.routing != "" {
		out = append(append(out, `,"_routing":`...), appendString(nil, d.routing)...)
	}
	out = append(out, `,"found":true`...)
	if s, ok := src.apply(d.source); ok {
		out = append(append(out, `,"_source":`...), s...)
	}
	return append(out, '}')
}

func appendGet(out []byte, d *doc) []byte {
	out = append(append(out, `{"_seq_no":`...), strconv.FormatInt(d.seq, 10)...)
	out = append(append(out, `,"_primary_term":`...), strconv.FormatInt(d.term, 10)...)
	out = append(append(out, `,"found":true,"_source":`...), d.source...)
	return append(out, '}')
}

func (es *Elasticsearch) mget(r *Request, index string) *answer {
	if !r.is("GET", "POST") {
		return r.wrongMethod("GET", "POST")
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	docs, _ := body["docs"].([]any)
	for _, id := range stringList(body, "ids") {
		docs = append(docs, map[string]any{"_id": id})
	}
	if len(docs) == 0 {
		return failure(validation("no documents to get"))
	}
	def := querySource(r.Query)
	realtime := r.Query.Get("realtime") != "false"
	out := []byte(`{"docs":[`)
	for i, v := range docs {
		if i > 0 {
			out = append(out, ',')
		}
		o, _ := v.(map[string]any)
		name, id := index, fmt.Sprint(o["_id"])
		if n, ok := o["_index"].(string); ok {
			name = n
		}
		src := def
		if s, ok := o["_source"]; ok {
			src = bodySource(s)
		}
		routing, _ := o["routing"].(string)
		ix, err := es.readable(name)
		if err != nil {
			e := *err
			out = append(append(out, `{"_index":`...), appendString(nil, name)...)
			out = append(append(out, `,"_id":`...), appendString(nil, id)...)
			out = append(append(out, `,"error":{"root_cause":[`...), err.append(nil)...)
			out = append(append(e.members(append(out, `],`...)), '}'), '}')
			continue
		}
		if d := ix.find(id, routing, realtime); d != nil {
			out = appendFound(out, ix.name, d, src)
			continue
		}
		out = append(append(out, `{"_index":`...), appendString(nil, ix.name)...)
		out = append(append(append(out, `,"_id":`...), appendString(nil, id)...), `,"found":false}`...)
	}
	return &answer{status: http.StatusOK, body: append(out, `]}`...)}
}

func (es *Elasticsearch) indexCall(r *Request, name string) *answer {
	switch r.Method {
	case http.MethodPut:
		body, err := r.object(es)
		if err != nil {
			return failure(err)
		}
		es.mu.Lock()
		defer es.mu.Unlock()
		tm := es.templateFor(name)
		if tm != nil && tm.stream && checkIndexName(name) == nil {
			return failure(illegalArgument("cannot create index with name [" + name + "], because it matches with template [" + tm.name +
				"] that creates data streams only, use create data stream api instead"))
		}
		if _, err := es.createIndex(name, body, tm, ""); err != nil {
			return failure(err)
		}
		return reply(http.StatusOK, map[string]any{"acknowledged": true, "shards_acknowledged": true, "index": name})
	case http.MethodDelete:
		return es.deleteCall(r, name)
	case http.MethodGet, http.MethodHead:
		places, err := es.expand(name, r.Query.Get("ignore_unavailable") == "true")
		if err != nil {
			return failure(err)
		}
		es.mu.RLock()
		defer es.mu.RUnlock()
		out := map[string]any{}
		for _, p := range places {
			settings := p.ix.settingsSource()
			if r.Query.Get("flat_settings") == "true" {
				flat := map[string]any{}
				for k, v := range flatSettings(settings) {
					flat["index."+k] = fmt.Sprint(v)
				}
				settings = flat
			}
			o := map[string]any{"aliases": es.aliasesOf(p.ix.name), "mappings": p.ix.mapping.Load().source(), "settings": settings}
			if p.ix.stream != "" {
				o["data_stream"] = p.ix.stream
			}
			out[p.ix.name] = o
		}
		return reply(http.StatusOK, out)
	}
	return r.wrongMethod("GET", "PUT", "DELETE", "HEAD")
}

func (es *Elasticsearch) deleteCall(r *Request, name string) *answer {
	if name == "_all" || strings.Contains(name, "*") {
		return failure(illegalArgument("Wildcard expressions or all indices are not allowed"))
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	names := strings.Split(name, ",")
	ignore := r.Query.Get("ignore_unavailable") == "true"
	for _, n := range names {
		switch {
		case len(es.aliases[n]) > 0:
			return failure(illegalArgument("The provided expression [" + n + "] matches an alias, specify the corresponding concrete indices instead."))
		case es.indices[n] == nil && !ignore:
			return failure(indexMissing(n))
		}
	}
	for _, n := range names {
		if es.indices[n] != nil {
			es.deleteIndex(n)
		}
	}
	return acknowledged()
}

func (ix *index) settingsSource() map[string]any {
	flat := map[string]string{
		"index.uuid": ix.uuid, "index.provided_name": ix.name,
		"index.creation_date": strconv.FormatInt(ix.created.UnixMilli(), 10), "index.version.created": "8537000",
	}
	for k, v := range ix.settings {
		flat["index."+k] = v
	}
	return nest(flat)
}

func nest(flat map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range flat {
		parts := strings.Split(k, ".")
		m := out
		for _, p := range parts[:len(parts)-1] {
			next, ok := m[p].(map[string]any)
			if !ok {
				next = map[string]any{}
				m[p] = next
			}
			m = next
		}
		m[parts[len(parts)-1]] = v
	}
	return out
}

// aliasesOf returns an index's aliases as the API shows them. Callers hold es.mu.
func (es *Elasticsearch) aliasesOf(name string) map[string]any {
	out := map[string]any{}
	for a, places := range es.aliases {
		if p := places[name]; p != nil {
			out[a] = p.source()
		}
	}
	return out
}

func (es *Elasticsearch) settingsCall(r *Request, name, only string) *answer {
	places, err := es.expand(name, r.Query.Get("ignore_unavailable") == "true")
	if err != nil {
		return failure(err)
	}
	if r.is("GET") {
		es.mu.RLock()
		defer es.mu.RUnlock()
		out := map[string]any{}
		for _, p := range places {
			s := p.ix.settingsSource()
			o := map[string]any{}
			if r.Query.Get("flat_settings") == "true" || only != "" {
				flat := flatSettings(s)
				keep := map[string]string{}
				for k, v := range flat {
					if only == "" || slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return glob(p, "index."+k) }) {
						keep["index."+k] = fmt.Sprint(v)
					}
				}
				s = map[string]any{}
				for k, v := range keep {
					s[k] = v
				}
				if r.Query.Get("flat_settings") != "true" {
					s = nest(keep)
				}
			}
			o["settings"] = s
			if r.Query.Get("include_defaults") == "true" {
				defaults := map[string]string{}
				for k, v := range map[string]string{
					"gc_deletes": "60s", "refresh_interval": "1s", "max_result_window": "10000",
					"mapping.total_fields.limit": "1000", "mapping.depth.limit": "20",
				} {
					if _, set := p.ix.settings[k]; !set {
						defaults["index."+k] = v
					}
				}
				o["defaults"] = nest(defaults)
				if r.Query.Get("flat_settings") == "true" {
					o["defaults"] = defaults
				}
			}
			out[p.ix.name] = o
		}
		return reply(http.StatusOK, out)
	}
	if !r.is("PUT") {
		return r.wrongMethod("GET", "PUT")
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	if inner, ok := body["settings"].(map[string]any); ok {
		body = inner
	}
	flat := flatSettings(body)
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, p := range places {
		p.ix.mappingMu.Lock()
		m := p.ix.mapping.Load().clone()
		var err *apiError
		for _, k := range sortedKeys(flat) {
			if err = p.ix.configure(m, k, flat[k], false); err != nil {
				break
			}
		}
		p.ix.mapping.Store(m)
		p.ix.mappingMu.Unlock()
		if err != nil {
			return failure(err)
		}
	}
	return acknowledged()
}

func (es *Elasticsearch) mappingCall(r *Request, name string) *answer {
	places, err := es.expand(name, false)
	if err != nil {
		return failure(err)
	}
	if r.is("GET") {
		out := map[string]any{}
		for _, p := range places {
			out[p.ix.name] = map[string]any{"mappings": p.ix.mapping.Load().source()}
		}
		return reply(http.StatusOK, out)
	}
	if !r.is("PUT", "POST") {
		return r.wrongMethod("GET", "PUT", "POST")
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	for _, p := range places {
		if err := p.ix.putMapping(body); err != nil {
			return failure(err)
		}
	}
	return acknowledged()
}

func (ix *index) putMapping(body map[string]any) *apiError {
	if err := ix.blocked(blockMetadata | blockReadOnly | blockAllowDelete); err != nil {
		return err
	}
	ix.mappingMu.Lock()
	defer ix.mappingMu.Unlock()
	m := ix.mapping.Load().clone()
	if err := m.merge(body); err != nil {
		return err
	}
	ix.mapping.Store(m)
	return nil
}

func (es *Elasticsearch) postAliases(r *Request) *answer {
	if !r.is("POST") {
		return r.wrongMethod("POST")
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	actions, _ := body["actions"].([]any)
	if err := es.updateAliases(actions); err != nil {
		return failure(err)
	}
	return aliasesDone(es)
}

func aliasesDone(es *Elasticsearch) *answer {
	if es.cfg.Flavour == FlavourOpenSearch {
		return acknowledged()
	}
	return reply(http.StatusOK, map[string]any{"acknowledged": true, "errors": false})
}

func (es *Elasticsearch) indexAlias(r *Request, name string, rest []string) *answer {
	names := strings.Join(rest, ",")
	if r.is("GET") {
		return es.getAlias(name, names)
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	action := map[string]any{"index": name, "alias": names}
	verb := "remove"
	if r.is("PUT", "POST") {
		verb = "add"
		for k, v := range body {
			action[k] = v
		}
	} else if !r.is("DELETE") {
		return r.wrongMethod("GET", "PUT", "POST", "DELETE")
	}
	if err := es.updateAliases([]any{map[string]any{verb: action}}); err != nil {
		return failure(err)
	}
	return aliasesDone(es)
}

func (es *Elasticsearch) getAlias(indexName, names string) *answer {
	places, err := es.expand(indexName, false)
	if err != nil {
		return failure(err)
	}
	es.mu.RLock()
	defer es.mu.RUnlock()
	out := map[string]any{}
	wanted := strings.Split(names, ",")
	seen := map[string]bool{}
	for _, p := range places {
		all := es.aliasesOf(p.ix.name)
		if names != "" {
			for a := range all {
				if !slices.ContainsFunc(wanted, func(w string) bool { return w == a || strings.Contains(w, "*") && glob(w, a) }) {
					delete(all, a)
				}
				seen[a] = true
			}
			if len(all) == 0 {
				continue
			}
		}
		out[p.ix.name] = map[string]any{"aliases": all}
	}
	if names != "" {
		for _, w := range wanted {
			if !strings.Contains(w, "*") && w != "_all" && !seen[w] {
				e := &apiError{status: http.StatusNotFound, reason: "alias [" + w + "] missing", plain: true}
				return failure(e)
			}
		}
	}
	return reply(http.StatusOK, out)
}

func (es *Elasticsearch) openClose(r *Request, name string, open bool) *answer {
	if !r.is("POST") {
		return r.wrongMethod("POST")
	}
	places, err := es.expand(name, false)
	if err != nil {
		return failure(err)
	}
	indices := map[string]any{}
	for _, p := range places {
		p.ix.gate.Lock()
		p.ix.gate.closed = !open
		p.ix.gate.Unlock()
		indices[p.ix.name] = map[string]any{"closed": true}
	}
	if open {
		return reply(http.StatusOK, map[string]any{"acknowledged": true, "shards_acknowledged": true})
	}
	return reply(http.StatusOK, map[string]any{"acknowledged": true, "shards_acknowledged": true, "indices": indices})
}

func shardsHeader(n, copies int) map[string]any {
	return map[string]any{"total": n * copies, "successful": n, "failed": 0}
}

func (es *Elasticsearch) shardsCall(r *Request, name string) *answer {
	if !r.is("GET", "POST") {
		return r.wrongMethod("GET", "POST")
	}
	places, err := es.expand(name, false)
	if err != nil {
		return failure(err)
	}
	n := 0
	for _, p := range places {
		if p.ix.isClosed() {
			return failure(newError(http.StatusBadRequest, "index_closed_exception", "closed", "index_uuid", p.ix.uuid, "index", p.ix.name))
		}
		n += len(p.ix.shards)
		if r.segments[len(r.segments)-1] == "_refresh" {
			p.ix.refresh(nanos())
		}
	}
	return reply(http.StatusOK, map[string]any{"_shards": shardsHeader(n, 2)})
}

func (es *Elasticsearch) stats(r *Request, name string) *answer {
	places, err := es.expand(name, false)
	if err != nil {
		return failure(err)
	}
	now := nanos()
	all := shardStats{}
	total := 0
	indices := map[string]any{}
	group := func(s shardStats) map[string]any {
		g := map[string]any{"docs": map[string]any{"count": s.docs, "deleted": s.deleted}, "store": map[string]any{"size_in_bytes": s.bytes}, "search": map[string]any{"query_total": s.searches}}
		return map[string]any{"primaries": g, "total": g}
	}
	for _, p := range places {
		sum := shardStats{}
		shards := map[string]any{}
		for _, s := range p.ix.shards {
			st := s.stats(now)
			sum.docs, sum.deleted, sum.bytes, sum.searches = sum.docs+st.docs, sum.deleted+st.deleted, sum.bytes+st.bytes, sum.searches+st.searches
			total++
			shards[strconv.Itoa(s.n)] = []any{map[string]any{
				"routing": map[string]any{"state": "STARTED", "primary": true, "node": "embedded", "relocating_node": nil},
				"docs":    map[string]any{"count": st.docs, "deleted": st.deleted}, "store": map[string]any{"size_in_bytes": st.bytes},
				"seq_no": map[string]any{"max_seq_no": st.maxSeq, "local_checkpoint": st.maxSeq, "global_checkpoint": st.maxSeq},
			}}
		}
		g := group(sum)
		g["uuid"], g["health"], g["status"] = p.ix.uuid, "yellow", "open"
		if r.Query.Get("level") == "shards" {
			g["shards"] = shards
		}
		indices[p.ix.name] = g
		all.docs, all.deleted, all.bytes, all.searches = all.docs+sum.docs, all.deleted+sum.deleted, all.bytes+sum.bytes, all.searches+sum.searches
	}
	out := map[string]any{"_shards": shardsHeader(total, 2), "_all": group(all)}
	if r.Query.Get("level") != "cluster" {
		out["indices"] = indices
	}
	return reply(http.StatusOK, out)
}

func (es *Elasticsearch) clusterCall(r *Request, rest []string) *answer {
	if len(rest) == 0 {
		return r.noHandler()
	}
	switch rest[0] {
	case "health":
		return es.healthCall(r, strings.Join(rest[1:], ""))
	case "settings":
		return es.clusterSettings(r)
	}
	return r.noHandler()
}

func (es *Elasticsearch) healthCall(r *Request, name string) *answer {
	places, err := es.expand(name, true)
	if err != nil {
		return failure(err)
	}
	shards, replicas := 0, 0
	es.mu.RLock()
	for _, p := range places {
		shards += len(p.ix.shards)
		replicas += len(p.ix.shards) * p.ix.replicas()
	}
	es.mu.RUnlock()
	status := "green"
	if replicas > 0 {
		status = "yellow"
	}
	if forced, _ := es.health.Load().(string); forced != "" {
		status = forced
	}
	rank := map[string]int{"": 0, "red": 1, "yellow": 2, "green": 3}
	late := rank[status] < rank[r.Query.Get("wait_for_status")]
	code := http.StatusOK
	if late {
		code = http.StatusRequestTimeout
	}
	percent := 100.0
	if shards+replicas > 0 {
		percent = 100 * float64(shards) / float64(shards+replicas)
	}
	return reply(code, map[string]any{
		"cluster_name": "embedded", "status": status, "timed_out": late, "number_of_nodes": 1,
		"number_of_data_nodes": 1, "active_primary_shards": shards, "active_shards": shards, "relocating_shards": 0, "initializing_shards": 0,
		"unassigned_shards": replicas, "delayed_unassigned_shards": 0, "number_of_pending_tasks": 0, "number_of_in_flight_fetch": 0,
		"task_max_waiting_in_queue_millis": 0, "active_shards_percent_as_number": percent,
	})
}

// clusterPrefixes are what names of cluster settings begin with.
var clusterPrefixes = []string{"action.", "cluster.", "indices.", "logger.", "xpack.", "search.", "ingest.", "indexing_pressure.", "plugins."}

func (es *Elasticsearch) clusterSettings(r *Request) *answer {
	var changed map[string]any
	if r.is("PUT") {
		body, err := r.object(es)
		if err != nil {
			return failure(err)
		}
		changed = map[string]any{"acknowledged": true}
		es.mu.Lock()
		defer es.mu.Unlock()
		for _, scope := range []string{"persistent", "transient"} {
			in, _ := body[scope].(map[string]any)
			flat := flatSettings(in)
			set := map[string]string{}
			for k, v := range flat {
				if !slices.ContainsFunc(clusterPrefixes, func(p string) bool { return strings.HasPrefix(k, p) }) {
					return failure(illegalArgument(scope + " setting [" + k + "], not recognized"))
				}
				if v == nil {
					delete(es.cluster[scope], k)
				} else {
					es.cluster[scope][k] = v
					set[k] = fmt.Sprint(v)
				}
			}
			changed[scope] = nest(set)
		}
		return reply(http.StatusOK, changed)
	}
	if !r.is("GET") {
		return r.wrongMethod("GET", "PUT")
	}
	es.mu.RLock()
	defer es.mu.RUnlock()
	out := map[string]any{}
	for scope, flat := range es.cluster {
		if r.Query.Get("flat_settings") == "true" {
			out[scope] = flat
			continue
		}
		text := map[string]string{}
		for k, v := range flat {
			text[k] = fmt.Sprint(v)
		}
		out[scope] = nest(text)
	}
	return reply(http.StatusOK, out)
}

func (es *Elasticsearch) templateCall(r *Request, name string) *answer {
	es.mu.Lock()
	defer es.mu.Unlock()
	switch {
	case r.is("PUT", "POST") && name != "":
		body, err := r.object(es)
		if err != nil {
			return failure(err)
		}
		if _, ok := body["allow_auto_create"]; ok && es.cfg.Flavour == FlavourOpenSearch {
			return failure(newError(http.StatusBadRequest, "x_content_parse_exception", "[1:1] [index_template] unknown field [allow_auto_create]"))
		}
		t, err := newTemplate(name, body)
		if err != nil {
			return failure(err)
		}
		for _, o := range es.templates {
			if o.name != name && o.priority == t.priority && slices.ContainsFunc(o.patterns, func(p string) bool {
				return slices.ContainsFunc(t.patterns, func(q string) bool { return overlap(p, q) })
			}) {
				return failure(illegalArgument("index template [" + name + "] has index patterns " + fmt.Sprint(t.patterns) +
					" matching patterns from existing templates [" + o.name + "] with patterns (" + o.name + " => " + fmt.Sprint(o.patterns) +
					") that have the same priority [" + strconv.FormatInt(t.priority, 10) + "], multiple index templates may not match during index creation, please use a different priority"))
			}
		}
		es.templates[name] = t
		return acknowledged()
	case r.is("DELETE"):
		if es.templates[name] == nil {
			return failure(newError(http.StatusNotFound, "index_template_missing_exception", "index_template ["+name+"] missing"))
		}
		delete(es.templates, name)
		return acknowledged()
	case r.is("GET"):
		list := []any{}
		for _, n := range sortedKeys(es.templates) {
			if name == "" || n == name || strings.Contains(name, "*") && glob(name, n) {
				list = append(list, map[string]any{"name": n, "index_template": es.templates[n].source})
			}
		}
		if name != "" && !strings.Contains(name, "*") && len(list) == 0 {
			return failure(newError(http.StatusNotFound, "resource_not_found_exception", "index template matching ["+name+"] not found"))
		}
		return reply(http.StatusOK, map[string]any{"index_templates": list})
	}
	return r.wrongMethod("GET", "PUT", "POST", "DELETE")
}

// simulateIndex says what the templates give an index of this name.
func (es *Elasticsearch) simulateIndex(r *Request, name string) *answer {
	if !r.is("POST") {
		return r.wrongMethod("POST")
	}
	if r.Query.Has("flat_settings") {
		return failure(illegalArgument("request [" + r.Path + "] contains unrecognized parameter: [flat_settings]"))
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	t := es.templateFor(name)
	if t == nil {
		return reply(http.StatusOK, map[string]any{})
	}
	settings := map[string]string{}
	for k, v := range flatSettings(t.settings) {
		settings["index."+k] = fmt.Sprint(v)
	}
	m := newMapping()
	if err := m.merge(t.mappings); err != nil {
		return failure(err)
	}
	return reply(http.StatusOK, map[string]any{"template": map[string]any{"settings": nest(settings), "mappings": m.source(), "aliases": t.aliases}, "overlapping": []any{}})
}

// overlap says whether there is a name that two patterns with wildcards match.
func overlap(p, q string) bool {
	switch {
	case p == "" && q == "":
		return true
	case p != "" && p[0] == '*':
		return overlap(p[1:], q) || q != "" && overlap(p, q[1:])
	case q != "" && q[0] == '*':
		return overlap(q, p)
	}
	return p != "" && q != "" && p[0] == q[0] && overlap(p[1:], q[1:])
}

func newTemplate(name string, body map[string]any) (*template, *apiError) {
	t := &template{name: name, patterns: stringList(body, "index_patterns"), source: body}
	if len(t.patterns) == 0 {
		return nil, illegalArgument("Required [index_patterns]")
	}
	if v, ok := body["allow_auto_create"]; ok {
		on := fmt.Sprint(v) == "true"
		t.autoCreate = &on
	}
	if v, ok := body["priority"].(json.Number); ok {
		t.priority, _ = v.Int64()
	}
	_, t.stream = body["data_stream"]
	inner, _ := body["template"].(map[string]any)
	t.settings, _ = inner["settings"].(map[string]any)
	t.mappings, _ = inner["mappings"].(map[string]any)
	t.aliases, _ = inner["aliases"].(map[string]any)
	if err := newMapping().merge(t.mappings); err != nil {
		return nil, err
	}
	if _, ok := body["composed_of"]; !ok {
		body["composed_of"] = []any{}
	}
	return t, nil
}

func (es *Elasticsearch) pipelineCall(r *Request, name string) *answer {
	es.mu.Lock()
	defer es.mu.Unlock()
	switch {
	case r.is("PUT") && name != "":
		body, err := r.object(es)
		if err != nil {
			return failure(err)
		}
		list, ok := body["processors"].([]any)
		if !ok {
			return failure(parseError("[processors] required property is missing", "property_name", "processors"))
		}
		p := &pipeline{source: bytes.Clone(r.Body)}
		for _, v := range list {
			o, _ := v.(map[string]any)
			for kind := range o {
				if kind != "drop" {
					return failure(parseError("No processor type exists with name ["+kind+"]", "processor_type", kind))
				}
				p.drops = true
			}
		}
		es.pipelines[name] = p
		return acknowledged()
	case r.is("DELETE"):
		if es.pipelines[name] == nil {
			return failure(newError(http.StatusNotFound, "resource_not_found_exception", "pipeline ["+name+"] is missing"))
		}
		delete(es.pipelines, name)
		return acknowledged()
	case r.is("GET"):
		out := map[string]any{}
		for n, p := range es.pipelines {
			if name == "" || n == name || strings.Contains(name, "*") && glob(name, n) {
				out[n] = p.source
			}
		}
		if len(out) == 0 && name != "" {
			return reply(http.StatusNotFound, out)
		}
		return reply(http.StatusOK, out)
	}
	return r.wrongMethod("GET", "PUT", "DELETE")
}

func (es *Elasticsearch) nodes(rest []string) *answer {
	node := map[string]any{"name": "embedded", "version": es.cfg.Version, "roles": []string{"data", "ingest", "master"}}
	if slices.Contains(rest, "stats") {
		node["fs"] = map[string]any{"total": map[string]any{"total_in_bytes": 1 << 40, "free_in_bytes": 1 << 39, "available_in_bytes": 1 << 39}}
		node["jvm"] = map[string]any{"mem": map[string]any{"heap_used_percent": 10, "heap_max_in_bytes": 1 << 30}}
		node["thread_pool"] = map[string]any{"write": map[string]any{"threads": 2, "queue": 0, "active": 0, "rejected": 0, "completed": 0}}
		node["indexing_pressure"] = map[string]any{"memory": map[string]any{"current": map[string]any{"all_in_bytes": 0}, "limit_in_bytes": 1 << 28}}
		node["os"] = map[string]any{"cpu": map[string]any{"percent": 10}}
	}
	return reply(http.StatusOK, map[string]any{
		"_nodes": map[string]any{"total": 1, "successful": 1, "failed": 0}, "cluster_name": "embedded",
		"nodes": map[string]any{es.uuid: node},
	})
}

func (es *Elasticsearch) cat(rest []string) *answer {
	if len(rest) == 0 || rest[0] != "indices" {
		return reply(http.StatusOK, []any{})
	}
	places, err := es.expand(strings.Join(rest[1:], ""), false)
	if err != nil {
		return failure(err)
	}
	rows := []any{}
	now := nanos()
	for _, p := range places {
		docs := 0
		for _, s := range p.ix.shards {
			docs += s.stats(now).docs
		}
		rows = append(rows, map[string]any{
			"health": "yellow", "status": "open", "index": p.ix.name, "uuid": p.ix.uuid,
			"pri": strconv.Itoa(len(p.ix.shards)), "rep": "1", "docs.count": strconv.Itoa(docs),
		})
	}
	return reply(http.StatusOK, rows)
}

func (es *Elasticsearch) resolveCall(expression string) *answer {
	es.mu.RLock()
	defer es.mu.RUnlock()
	indices, aliases, streams := []any{}, []any{}, []any{}
	match := func(n string) bool {
		return slices.ContainsFunc(strings.Split(expression, ","), func(p string) bool { return glob(p, n) })
	}
	for _, n := range sortedKeys(es.indices) {
		if match(n) {
			indices = append(indices, map[string]any{"name": n, "attributes": []string{"open"}})
		}
	}
	for _, n := range sortedKeys(es.aliases) {
		if match(n) {
			to := sortedKeys(es.aliases[n])
			sort.Strings(to)
			aliases = append(aliases, map[string]any{"name": n, "indices": to})
		}
	}
	for _, n := range sortedKeys(es.streams) {
		if match(n) {
			streams = append(streams, map[string]any{"name": n, "backing_indices": es.streams[n].indices, "timestamp_field": "@timestamp"})
		}
	}
	return reply(http.StatusOK, map[string]any{"indices": indices, "aliases": aliases, "data_streams": streams})
}
