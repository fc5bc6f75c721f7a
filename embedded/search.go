package embedded

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A pit is a point in time: the searchable documents of that moment.
type pit struct {
	id     string
	shards []shardDocs
	until  time.Time
}

// shardDocs are documents of one shard in the order of their sequence numbers.
type shardDocs struct {
	ix   *index
	n    int
	docs []*doc
}

// A plan is a compiled query: a range of sequence numbers and a predicate.
type plan struct {
	from, to int64
	match    func(ix *index, d *doc) bool // nil: all
}

func everything() plan { return plan{from: 0, to: maxRange} }

func (p plan) and(o plan) plan {
	p.from, p.to = max(p.from, o.from), min(p.to, o.to)
	a, b := p.match, o.match
	switch {
	case a == nil:
		p.match = b
	case b != nil:
		p.match = func(ix *index, d *doc) bool { return a(ix, d) && b(ix, d) }
	}
	return p
}

func (p plan) holds(ix *index, d *doc) bool {
	return d.seq >= p.from && d.seq <= p.to && (p.match == nil || p.match(ix, d))
}

func unknownQuery(name string) *apiError {
	return newError(http.StatusBadRequest, "parsing_exception", "unknown query ["+name+"]")
}

// compile reads a query clause.
func compile(q map[string]any) (plan, *apiError) {
	if len(q) == 0 {
		return everything(), nil
	}
	if len(q) > 1 {
		return plan{}, newError(http.StatusBadRequest, "parsing_exception", "["+sortedKeys(q)[0]+"] malformed query, expected [END_OBJECT] but found [FIELD_NAME]")
	}
	kind := sortedKeys(q)[0]
	body, _ := q[kind].(map[string]any)
	switch kind {
	case "match_all":
		return everything(), nil
	case "match_none":
		return plan{from: 1, to: 0}, nil
	case "ids":
		return idsPlan(stringList(body, "values")), nil
	case "bool":
		return compileBool(body)
	case "constant_score":
		inner, _ := body["filter"].(map[string]any)
		return compile(inner)
	case "exists":
		name := fmt.Sprint(body["field"])
		path := strings.Split(name, ".")
		return matching(func(ix *index, d *doc) bool {
			return ix.mapping.Load().lookup(name) != nil && visit(d.source, path, func(tokenKind, *lexer) bool { return true })
		}), nil
	case "term", "match", "terms", "range", "prefix":
		for field, v := range body {
			if field == "boost" || field == "_name" {
				continue
			}
			return compileField(kind, field, v)
		}
	}
	return plan{}, unknownQuery(kind)
}

func matching(f func(*index, *doc) bool) plan {
	p := everything()
	p.match = f
	return p
}

func idsPlan(ids []string) plan {
	set := map[string]bool{}
	for _, id := range ids {
		set[id] = true
	}
	return matching(func(_ *index, d *doc) bool { return set[d.id] })
}

func compileBool(body map[string]any) (plan, *apiError) {
	out := everything()
	clauses := func(name string) ([]plan, *apiError) {
		var list []any
		switch v := body[name].(type) {
		case []any:
			list = v
		case map[string]any:
			list = []any{v}
		}
		var plans []plan
		for _, c := range list {
			q, _ := c.(map[string]any)
			p, err := compile(q)
			if err != nil {
				return nil, err
			}
			plans = append(plans, p)
		}
		return plans, nil
	}
	for name := range body {
		switch name {
		case "must", "filter", "must_not", "should", "minimum_should_match", "boost", "_name":
		default:
			return out, newError(http.StatusBadRequest, "x_content_parse_exception", "[bool] unknown field ["+name+"]")
		}
	}
	required := 0
	for _, name := range []string{"must", "filter"} {
		plans, err := clauses(name)
		if err != nil {
			return out, err
		}
		required += len(plans)
		for _, p := range plans {
			out = out.and(p)
		}
	}
	nots, err := clauses("must_not")
	if err != nil {
		return out, err
	}
	for _, p := range nots {
		out = out.and(matching(func(ix *index, d *doc) bool { return !p.holds(ix, d) }))
	}
	shoulds, err := clauses("should")
	if err != nil {
		return out, err
	}
	least := 0
	if len(shoulds) > 0 && required == 0 {
		least = 1
	}
	if v, ok := body["minimum_should_match"]; ok {
		least, _ = strconv.Atoi(fmt.Sprint(v))
	}
	if least > 0 {
		out = out.and(matching(func(ix *index, d *doc) bool {
			n := 0
			for _, p := range shoulds {
				if p.holds(ix, d) {
					n++
				}
			}
			return n >= least
		}))
	}
	return out, nil
}

// compileField reads a clause about one field.
func compileField(kind, field string, v any) (plan, *apiError) {
	o, isObject := v.(map[string]any)
	if kind == "range" {
		return compileRange(field, o)
	}
	var wanted []string
	switch {
	case kind == "terms":
		wanted = stringList(map[string]any{"v": v}, "v")
	case isObject:
		for _, k := range []string{"value", "query"} {
			if x, ok := o[k]; ok {
				wanted = []string{fmt.Sprint(x)}
			}
		}
	default:
		wanted = []string{fmt.Sprint(v)}
	}
	switch field {
	case "_id":
		return idsPlan(wanted), nil
	case "_index":
		return matching(func(ix *index, _ *doc) bool { return slices.Contains(wanted, ix.name) }), nil
	case "_routing":
		return matching(func(_ *index, d *doc) bool { return slices.Contains(wanted, d.routing) }), nil
	case "_seq_no":
		return matching(func(_ *index, d *doc) bool { return slices.Contains(wanted, strconv.FormatInt(d.seq, 10)) }), nil
	}
	return fieldPlan(field, func(f *queryField, s string) bool {
		for _, w := range wanted {
			if f.equal(s, w, kind) {
				return true
			}
		}
		return false
	}), nil
}

// A queryField is a mapped field as queries see it.
type queryField struct {
	typ    string
	ignore int // ignore_above; 0: none
}

func (f *queryField) number() bool {
	switch f.typ {
	case "long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long":
		return true
	}
	return false
}

func (f *queryField) equal(have, want, kind string) bool {
	switch {
	case f.number():
		a, err1 := strconv.ParseFloat(have, 64)
		b, err2 := strconv.ParseFloat(want, 64)
		return err1 == nil && err2 == nil && a == b
	case f.typ == "text":
		words := strings.FieldsFunc(strings.ToLower(have), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if kind == "match" {
			want = strings.ToLower(want)
		}
		return slices.Contains(words, want)
	case f.ignore > 0 && len(have) > f.ignore:
		return false
	case kind == "prefix":
		return strings.HasPrefix(have, want)
	}
	return have == want
}

// fieldPlan tests the values of a mapped field.
func fieldPlan(name string, test func(*queryField, string) bool) plan {
	path := strings.Split(name, ".")
	return matching(func(ix *index, d *doc) bool {
		m := ix.mapping.Load()
		f := m.lookup(name)
		if f == nil || f.isObject() {
			return false
		}
		at := path
		if len(path) > 1 {
			if parent := m.lookup(strings.Join(path[:len(path)-1], ".")); parent != nil && !parent.isObject() {
				at = path[:len(path)-1] // a multi-field
			}
		}
		q := &queryField{typ: f.typ}
		if v, ok := f.params["ignore_above"]; ok {
			q.ignore, _ = strconv.Atoi(fmt.Sprint(v))
		}
		return visit(d.source, at, func(k tokenKind, l *lexer) bool {
			if k == tokString {
				return test(q, string(l.text()))
			}
			return k != tokObject && test(q, string(l.val))
		})
	})
}

// visit calls f for each value other than null at a path of a document until it
// returns true.
func visit(source []byte, path []string, f func(tokenKind, *lexer) bool) bool {
	l := &lexer{b: source}
	l.bom()
	return visitValue(l, l.value(), path, f)
}

func visitValue(l *lexer, k tokenKind, path []string, f func(tokenKind, *lexer) bool) bool {
	switch {
	case k == tokArray:
		found := false
		for first := true; l.more(first); first = false {
			found = visitValue(l, l.member(), path, f) || found
		}
		return found
	case len(path) == 0:
		if k == tokNull {
			return false
		}
		found := f(k, l)
		if k == tokObject {
			l.skip(k)
		}
		return found
	case k != tokObject:
		return false
	}
	found := false
	for first := true; l.name(first); first = false {
		name := string(l.text())
		k := l.member()
		if n := namePrefix(name, path); n > 0 {
			found = visitValue(l, k, path[n:], f) || found
			continue
		}
		l.skip(k)
	}
	return found
}

// namePrefix returns how many components of path a member's name covers; 0:
// none.
func namePrefix(name string, path []string) int {
	if name == path[0] {
		return 1
	}
	if !strings.Contains(name, ".") {
		return 0
	}
	parts := strings.Split(name, ".")
	if len(parts) <= len(path) && slices.Equal(parts, path[:len(parts)]) {
		return len(parts)
	}
	return 0
}

func compileRange(name string, o map[string]any) (plan, *apiError) {
	if name == "_seq_no" {
		p := everything()
		for k, v := range o {
			n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
			if err != nil && k != "boost" {
				return p, illegalArgument("For input string: \"" + fmt.Sprint(v) + "\"")
			}
			switch k {
			case "gt":
				p.from = max(p.from, n+1)
			case "gte":
				p.from = max(p.from, n)
			case "lt":
				p.to = min(p.to, n-1)
			case "lte":
				p.to = min(p.to, n)
			}
		}
		return p, nil
	}
	return fieldPlan(name, func(f *queryField, s string) bool {
		for k, v := range o {
			c, ok := f.compare(s, fmt.Sprint(v))
			switch {
			case k == "gt" && (!ok || c <= 0), k == "gte" && (!ok || c < 0), k == "lt" && (!ok || c >= 0), k == "lte" && (!ok || c > 0):
				return false
			}
		}
		return true
	}), nil
}

func (f *queryField) compare(a, b string) (int, bool) {
	if f.number() {
		x, err1 := strconv.ParseFloat(a, 64)
		y, err2 := strconv.ParseFloat(b, 64)
		return cmp.Compare(x, y), err1 == nil && err2 == nil
	}
	if f.typ == "date" || f.typ == "date_nanos" {
		x, ok1 := instant(a)
		y, ok2 := instant(b)
		return cmp.Compare(x, y), ok1 && ok2
	}
	return cmp.Compare(a, b), true
}

// instant returns a date as Unix milliseconds. "now" is the only date math.
func instant(s string) (int64, bool) {
	if s == "now" {
		return time.Now().UnixMilli(), true
	}
	if rest, ok := strings.CutPrefix(s, "now-"); ok {
		d, ok := parseDuration(rest)
		return time.Now().Add(-d).UnixMilli(), ok
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && len(s) != 4 {
		return n, true
	}
	for _, layout := range dateLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UnixMilli(), true
		}
	}
	return 0, false
}

// searchParameters are the URL parameters of a search.
var searchParameters = parameterSet("preference", "size", "from", "sort", "q", "routing", "allow_partial_search_results", "ignore_unavailable",
	"allow_no_indices", "expand_wildcards", "version", "seq_no_primary_term", "track_total_hits", "_source", "_source_includes", "_source_excludes",
	"request_cache", "timeout", "rest_total_hits_as_int", "typed_keys", "keep_alive", "search_type", "terminate_after", "min_score")

// A searchRequest is a parsed search.
type searchRequest struct {
	plan       plan
	size, from int
	sort       []sortKey
	after      []any
	version    bool
	seqNo      bool
	total      int // hits counted exactly; -1: not counted
	source     sourceFilter
	pit        string
	slice      [2]int // id, max; max 0: none
	aggs       []composite
}

type sortKey struct {
	field string
	desc  bool
}

func parseSearch(r *Request, body map[string]any, ids bool) (*searchRequest, *apiError) {
	s := &searchRequest{plan: everything(), size: 10, total: 10000, source: querySource(r.Query)}
	number := func(v any, dst *int) *apiError {
		n, err := strconv.Atoi(fmt.Sprint(v))
		if err != nil || n < 0 {
			return illegalArgument("[size] parameter cannot be negative, found [" + fmt.Sprint(v) + "]")
		}
		*dst = n
		return nil
	}
	for _, k := range sortedKeys(r.Query) {
		if _, inBody := body[k]; inBody {
			continue
		}
		switch k {
		case "size", "from", "version", "seq_no_primary_term", "track_total_hits":
			body[k] = r.Query.Get(k)
		case "sort":
			var list []any
			for _, f := range strings.Split(r.Query.Get(k), ",") {
				name, order, _ := strings.Cut(f, ":")
				list = append(list, map[string]any{name: map[string]any{"order": order}})
			}
			body[k] = list
		}
	}
	for _, k := range sortedKeys(body) {
		v := body[k]
		var err *apiError
		switch k {
		case "query":
			q, _ := v.(map[string]any)
			s.plan, err = compile(q)
		case "size":
			err = number(v, &s.size)
		case "from":
			err = number(v, &s.from)
		case "sort":
			s.sort, err = parseSort(v, ids)
		case "search_after":
			s.after, _ = v.([]any)
		case "version":
			s.version = fmt.Sprint(v) == "true"
		case "seq_no_primary_term":
			s.seqNo = fmt.Sprint(v) == "true"
		case "track_total_hits":
			switch t := fmt.Sprint(v); t {
			case "true":
				s.total = math.MaxInt
			case "false":
				s.total = -1
			default:
				err = number(v, &s.total)
			}
		case "_source":
			s.source = bodySource(v)
		case "aggs", "aggregations":
			s.aggs, err = parseAggregations(v)
		case "pit":
			p, _ := v.(map[string]any)
			s.pit, _ = p["id"].(string)
		case "slice":
			p, _ := v.(map[string]any)
			if err = number(p["id"], &s.slice[0]); err == nil {
				err = number(p["max"], &s.slice[1])
			}
		case "track_scores", "timeout", "stored_fields", "explain", "profile", "min_score", "terminate_after":
		default:
			err = newError(http.StatusBadRequest, "parsing_exception", "Unknown key for a "+valueToken(v)+" in ["+k+"].")
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func valueToken(v any) string {
	switch v.(type) {
	case map[string]any:
		return "START_OBJECT"
	case []any:
		return "START_ARRAY"
	case bool:
		return "VALUE_BOOLEAN"
	case string:
		return "VALUE_STRING"
	}
	return "VALUE_NUMBER"
}

// parseSort reads sort keys. ids allows _id, which Elasticsearch refuses by default.
func parseSort(v any, ids bool) ([]sortKey, *apiError) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var keys []sortKey
	for _, e := range list {
		switch e := e.(type) {
		case string:
			keys = append(keys, sortKey{field: e, desc: e == "_score"})
		case map[string]any:
			for f, o := range e {
				order := fmt.Sprint(o)
				if m, ok := o.(map[string]any); ok {
					order = fmt.Sprint(m["order"])
				}
				keys = append(keys, sortKey{field: f, desc: order == "desc"})
			}
		}
	}
	for _, k := range keys {
		if k.field == "_id" && !ids {
			return nil, phaseFailure(illegalArgument("Fielddata access on the _id field is disallowed, you can re-enable it by updating the dynamic cluster setting: indices.id_field_data.enabled"))
		}
	}
	return keys, nil
}

// phaseFailure is a search that failed on every shard.
func phaseFailure(cause *apiError) *apiError {
	return &apiError{
		status: cause.status, typ: "search_phase_execution_exception", reason: "all shards failed",
		attrs: []string{"phase", "query"}, root: cause, cause: cause,
	}
}

// A hit is a document found, with the values it is sorted by.
type hit struct {
	ix   *index
	n    int // shard
	doc  *doc
	keys []any
}

// collect returns the matching documents and how many shards were asked.
func (es *Elasticsearch) collect(r *Request, name string, s *searchRequest) ([]hit, int, *apiError) {
	parts, filters, err := es.searchParts(r, name, s)
	if err != nil {
		return nil, 0, err
	}
	var hits []hit
	for i, part := range parts {
		p := s.plan.and(filters[i])
		for j, d := range part.docs {
			if s.slice[1] > 0 && j%s.slice[1] != s.slice[0] {
				continue
			}
			if p.holds(part.ix, d) {
				hits = append(hits, hit{ix: part.ix, n: part.n, doc: d})
			}
		}
	}
	return hits, len(parts), nil
}

// searchParts returns the shards to search, each with its candidates, and the
// alias filters that apply to them.
func (es *Elasticsearch) searchParts(r *Request, name string, s *searchRequest) ([]shardDocs, []plan, *apiError) {
	if s.pit != "" {
		p := es.pit(s.pit)
		if p == nil {
			return nil, nil, phaseFailure(newError(http.StatusNotFound, "search_context_missing_exception", "No search context found for id ["+s.pit+"]"))
		}
		filters := make([]plan, len(p.shards))
		for i := range filters {
			filters[i] = everything()
		}
		return p.shards, filters, nil
	}
	places, err := es.expand(name, r.Query.Get("ignore_unavailable") == "true")
	if err != nil {
		return nil, nil, err
	}
	only, limited := shardPreference(r.Query.Get("preference"))
	// A page in the order of sequence numbers that counts nothing is all that is
	// read of a single shard.
	limit := -1
	if s.total < 0 && s.aggs == nil && s.plan.match == nil && s.slice[1] == 0 && len(places) == 1 && places[0].filters == nil && s.inOrder() {
		limit = s.from + s.size
	}
	var parts []shardDocs
	var filters []plan
	now := nanos()
	for _, p := range places {
		if p.ix.isClosed() {
			return nil, nil, newError(http.StatusBadRequest, "index_closed_exception", "closed", "index_uuid", p.ix.uuid, "index", p.ix.name)
		}
		if err := p.ix.blocked(blockRead); err != nil {
			return nil, nil, err
		}
		f, err := aliasFilter(p.filters)
		if err != nil {
			return nil, nil, err
		}
		from, to := max(s.plan.from, f.from), min(s.plan.to, f.to)
		if s.total < 0 && len(s.after) == 1 && s.inOrder() && s.sort != nil {
			if n, err := strconv.ParseInt(fmt.Sprint(s.after[0]), 10, 64); err == nil {
				from = max(from, n+1)
			}
		}
		for _, sh := range p.ix.shards {
			if limited && !slices.Contains(only, sh.n) {
				continue
			}
			sh.searches.Add(1)
			parts = append(parts, shardDocs{ix: p.ix, n: sh.n, docs: sh.snapshot(now, from, to, limit)})
			filters = append(filters, f)
		}
	}
	return parts, filters, nil
}

// inOrder says whether hits come in the order of their sequence numbers.
func (s *searchRequest) inOrder() bool {
	return len(s.sort) == 0 || len(s.sort) == 1 && !s.sort[0].desc && (s.sort[0].field == "_seq_no" || s.sort[0].field == "_doc")
}

// aliasFilter is what an index shows through aliases: what any of them shows.
func aliasFilter(filters []map[string]any) (plan, *apiError) {
	if filters == nil {
		return everything(), nil
	}
	should := make([]any, len(filters))
	for i, f := range filters {
		should[i] = f
	}
	return compileBool(map[string]any{"should": should})
}

// shardPreference reads _shards:0,1 with further preferences after a |.
func shardPreference(p string) ([]int, bool) {
	list, ok := strings.CutPrefix(p, "_shards:")
	if !ok {
		return nil, false
	}
	list, _, _ = strings.Cut(list, "|")
	var out []int
	for _, s := range strings.Split(list, ",") {
		if n, err := strconv.Atoi(s); err == nil {
			out = append(out, n)
		}
	}
	return out, true
}

// sortHits orders hits by the sort keys and fills in their values.
func (s *searchRequest) sortHits(hits []hit) *apiError {
	if len(s.sort) == 0 {
		return nil
	}
	for i := range hits {
		h := &hits[i]
		h.keys = make([]any, len(s.sort))
		for k, key := range s.sort {
			v, err := h.sortValue(key.field)
			if err != nil {
				return err
			}
			h.keys[k] = v
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return s.compareKeys(a.keys, b.keys) })
	return nil
}

func (s *searchRequest) compareKeys(a, b []any) int {
	for k := range s.sort {
		if k >= len(a) || k >= len(b) {
			break
		}
		if c := compareValues(a[k], b[k]); c != 0 {
			if s.sort[k].desc {
				return -c
			}
			return c
		}
	}
	return 0
}

func (h *hit) sortValue(name string) (any, *apiError) {
	switch name {
	case "_seq_no", "_doc":
		return h.doc.seq, nil
	case "_shard_doc":
		return int64(h.n)<<40 | h.doc.seq, nil
	case "_score":
		return 1.0, nil
	case "_id":
		return h.doc.id, nil
	}
	f := h.ix.mapping.Load().lookup(name)
	if f == nil || f.isObject() {
		return nil, phaseFailure(newError(http.StatusBadRequest, "query_shard_exception", "No mapping found for ["+name+"] in order to sort on",
			"index_uuid", h.ix.uuid, "index", h.ix.name))
	}
	q := queryField{typ: f.typ}
	var out any
	visit(h.doc.source, strings.Split(name, "."), func(k tokenKind, l *lexer) bool {
		text := string(l.val)
		if k == tokString {
			text = string(l.text())
		}
		switch {
		case f.typ == "date":
			if n, ok := instant(text); ok {
				out = n
			}
		case q.number():
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				out = n
			} else if x, err := strconv.ParseFloat(text, 64); err == nil {
				out = x
			}
		default:
			out = text
		}
		return true
	})
	return out, nil
}

// compareValues orders sort values; missing ones come last.
func compareValues(a, b any) int {
	x, xok := numeric(a)
	y, yok := numeric(b)
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	case xok && yok:
		return x.compare(y)
	}
	return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

// A num is a sort value that is exact where it can be: versions and sequence
// numbers need all 63 bits.
type num struct {
	i     int64
	f     float64
	exact bool
}

func (n num) compare(o num) int {
	if n.exact && o.exact {
		return cmp.Compare(n.i, o.i)
	}
	return cmp.Compare(n.f, o.f)
}

func numeric(v any) (num, bool) {
	switch v := v.(type) {
	case int64:
		return num{v, float64(v), true}, true
	case float64:
		return num{f: v}, true
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return num{n, float64(n), true}, true
		}
		f, err := v.Float64()
		return num{f: f}, err == nil
	}
	return num{}, false
}

func (es *Elasticsearch) search(r *Request, name string, fault *Fault) *answer {
	if !r.is("GET", "POST") {
		return r.wrongMethod("GET", "POST")
	}
	if err := r.unknownParameter(searchParameters); err != nil {
		return failure(err)
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	s, err := parseSearch(r, body, es.cfg.Flavour == FlavourOpenSearch)
	if err != nil {
		return failure(err)
	}
	if s.from+s.size > 10000 {
		return failure(phaseFailure(illegalArgument("Result window is too large, from + size must be less than or equal to: [10000] but was [" +
			strconv.Itoa(s.from+s.size) + "]. See the scroll api for a more efficient way to request large data sets. This limit can be set by changing the [index.max_result_window] index level setting.")))
	}
	failed := 0
	if fault.FailShards {
		failed = 1
		if r.Query.Get("allow_partial_search_results") == "false" {
			return failure(&apiError{
				status: http.StatusServiceUnavailable, typ: "search_phase_execution_exception", reason: "Partial shards failure",
				attrs: []string{"phase", "query"},
			})
		}
	}
	hits, shards, err := es.collect(r, name, s)
	if err != nil {
		return failure(err)
	}
	total := len(hits)
	aggregations, err := s.aggregate(hits)
	if err != nil {
		return failure(err)
	}
	if err := s.sortHits(hits); err != nil {
		return failure(err)
	}
	if s.after != nil {
		hits = hits[countUpTo(s, hits):]
	}
	hits = hits[min(s.from, len(hits)):]
	hits = hits[:min(s.size, len(hits))]
	if failed > 0 {
		hits = hits[:len(hits)/2]
	}
	text := s.answer(hits, total, shards, min(failed, shards))
	if aggregations != nil {
		text = append(append(append(text[:len(text)-1], `,"aggregations":`...), aggregations...), '}')
	}
	return &answer{status: http.StatusOK, body: text}
}

// countUpTo returns how many hits stand at or before search_after.
func countUpTo(s *searchRequest, hits []hit) int {
	n := 0
	for n < len(hits) && s.compareKeys(hits[n].keys, s.after) <= 0 {
		n++
	}
	return n
}

func (s *searchRequest) answer(hits []hit, total, shards, failed int) []byte {
	out := []byte{'{'}
	if s.pit != "" {
		out = append(append(append(out, `"pit_id":`...), appendString(nil, s.pit)...), ',')
	}
	out = append(out, fmt.Sprintf(`"took":0,"timed_out":false,"_shards":{"total":%d,"successful":%d,"skipped":0,"failed":%d`, shards, shards-failed, failed)...)
	if failed > 0 {
		out = append(out, `,"failures":[{"shard":0,"index":null,"node":"embedded","reason":{"type":"node_disconnected_exception","reason":"disconnected"}}]`...)
	}
	out = append(out, `},"hits":{`...)
	switch {
	case s.total < 0:
	case total > s.total:
		out = append(out, fmt.Sprintf(`"total":{"value":%d,"relation":"gte"},`, s.total)...)
	default:
		out = append(out, fmt.Sprintf(`"total":{"value":%d,"relation":"eq"},`, total)...)
	}
	score := "1.0"
	if len(s.sort) > 0 {
		score = "null"
	}
	if len(hits) == 0 {
		out = append(out, `"max_score":null,"hits":[`...)
	} else {
		out = append(append(append(out, `"max_score":`...), score...), `,"hits":[`...)
	}
	for i, h := range hits {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, `{"_index":`...), appendString(nil, h.ix.name)...)
		out = append(append(out, `,"_id":`...), appendString(nil, h.doc.id)...)
		if s.version {
			out = strconv.AppendInt(append(out, `,"_version":`...), h.doc.version, 10)
		}
		if s.seqNo {
			out = strconv.AppendInt(append(out, `,"_seq_no":`...), h.doc.seq, 10)
			out = strconv.AppendInt(append(out, `,"_primary_term":`...), h.doc.term, 10)
		}
		out = append(append(out, `,"_score":`...), score...)
		if h.doc.routing != "" {
			out = append(append(out, `,"_routing":`...), appendString(nil, h.doc.routing)...)
		}
		if src, ok := s.source.apply(h.doc.source); ok {
			out = append(append(out, `,"_source":`...), bytes.TrimSpace(src)...)
		}
		if len(h.keys) > 0 {
			keys, err := json.Marshal(h.keys)
			if err == nil {
				out = append(append(out, `,"sort":`...), keys...)
			}
		}
		out = append(out, '}')
	}
	return append(out, `]}}`...)
}

func (es *Elasticsearch) count(r *Request, name string) *answer {
	if !r.is("GET", "POST") {
		return r.wrongMethod("GET", "POST")
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	q, _ := body["query"].(map[string]any)
	p, err := compile(q)
	if err != nil {
		return failure(err)
	}
	hits, shards, err := es.collect(r, name, &searchRequest{plan: p})
	if err != nil {
		return failure(err)
	}
	return reply(http.StatusOK, map[string]any{
		"count":   len(hits),
		"_shards": map[string]any{"total": shards, "successful": shards, "skipped": 0, "failed": 0},
	})
}

// maxKeepAlive is how long a point in time may be kept at most.
const maxKeepAlive = 24 * time.Hour

func (es *Elasticsearch) openPIT(r *Request, name string) *answer {
	if !r.is("POST") {
		return r.wrongMethod("POST")
	}
	keep, ok := parseDuration(r.Query.Get("keep_alive"))
	if !ok || keep <= 0 || keep > maxKeepAlive {
		return failure(validation("[keep_alive] is required for an open point in time request"))
	}
	s := &searchRequest{plan: everything()}
	parts, filters, err := es.searchParts(r, name, s)
	if err != nil {
		return failure(err)
	}
	for i := range parts {
		if filters[i].match != nil {
			parts[i].docs = slices.DeleteFunc(parts[i].docs, func(d *doc) bool { return !filters[i].holds(parts[i].ix, d) })
		}
	}
	p := &pit{id: es.newID(), shards: parts, until: time.Now().Add(keep)}
	es.pits.Lock()
	es.pits.open[p.id] = p
	es.pits.Unlock()
	key := "id"
	if es.cfg.Flavour == FlavourOpenSearch {
		key = "pit_id"
	}
	return reply(http.StatusOK, map[string]any{
		key:       p.id,
		"_shards": map[string]any{"total": len(parts), "successful": len(parts), "skipped": 0, "failed": 0},
	})
}

func (es *Elasticsearch) pit(id string) *pit {
	es.pits.Lock()
	defer es.pits.Unlock()
	p := es.pits.open[id]
	if p != nil && time.Now().After(p.until) {
		delete(es.pits.open, id)
		return nil
	}
	return p
}

func (es *Elasticsearch) closePIT(r *Request) *answer {
	if !r.is("DELETE") {
		return r.wrongMethod("DELETE")
	}
	body, err := r.object(es)
	if err != nil {
		return failure(err)
	}
	es.pits.Lock()
	defer es.pits.Unlock()
	freed := 0
	for _, id := range stringList(body, "id") {
		if es.pits.open[id] != nil {
			delete(es.pits.open, id)
			freed++
		}
	}
	return reply(http.StatusOK, map[string]any{"succeeded": true, "num_freed": freed})
}
