package embedded

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
)

// A bulkItem is one parsed action. Its slices share the request's body.
type bulkItem struct {
	write
	index       []byte
	pipeline    []byte
	hasIndex    bool
	hasID       bool // named, be it empty
	autoID      bool
	alias       bool   // require_alias
	dataStream  bool   // require_data_stream
	upsert      []byte // of an update
	asUpsert    bool
	keepNoop    bool // detect_noop: false
	wantsSource bool
}

// A bulkRequest is a parsed bulk request. It is pooled.
type bulkRequest struct {
	items []bulkItem
	out   []byte
	doc   docParser
}

var bulkRequests = sync.Pool{New: func() any { return &bulkRequest{} }}

// defaults are the URL's parameters for items that do not name their own.
type bulkDefaults struct {
	pipeline, routing []byte
	alias, stream     bool
}

// parse reads all actions; the first mistake fails the whole request. limit is
// the longest id; 0 leaves validation out.
func (b *bulkRequest) parse(body []byte, index string, maxID int) *apiError {
	b.items = b.items[:0]
	line := 0
	for pos := 0; pos < len(body); {
		line++
		end := bytes.IndexByte(body[pos:], '\n')
		if end < 0 {
			return illegalArgument("The bulk request must be terminated by a newline [\\n]")
		}
		action := body[pos : pos+end]
		pos += end + 1
		if len(bytes.TrimSpace(action)) == 0 {
			continue
		}
		if len(b.items) < cap(b.items) {
			b.items = b.items[:len(b.items)+1]
		} else {
			b.items = append(b.items, bulkItem{})
		}
		it := &b.items[len(b.items)-1]
		*it = bulkItem{write: write{version: unset, ifSeq: unset}}
		if err := it.action(action, line); err != nil {
			return err
		}
		if !it.hasIndex && index != "" {
			it.index, it.hasIndex = []byte(index), true
		}
		if it.op == opDelete {
			continue
		}
		line++
		end = bytes.IndexByte(body[pos:], '\n')
		if end < 0 {
			if pos < len(body) {
				return illegalArgument("The bulk request must be terminated by a newline [\\n]")
			}
			b.items = b.items[:len(b.items)-1] // an action without its document is left out
			break
		}
		it.source = body[pos : pos+end]
		pos += end + 1
		if n := len(it.source); n > 0 && it.source[n-1] == '\r' {
			it.source = it.source[:n-1]
		}
		if it.op == opUpdate {
			if err := it.updateBody(); err != nil {
				return err
			}
		}
	}
	if maxID == 0 {
		return nil
	}
	return b.validate(maxID)
}

func (b *bulkRequest) validate(maxID int) *apiError {
	if len(b.items) == 0 {
		return validation("no requests added")
	}
	var reasons []string
	for i := range b.items {
		reasons = b.items[i].validate(reasons, maxID)
	}
	if reasons != nil {
		return validation(reasons...)
	}
	return nil
}

// maxIDLength is the longest document id in bytes.
const maxIDLength = 512

func (it *bulkItem) validate(reasons []string, maxID int) []string {
	if !it.hasIndex {
		reasons = append(reasons, "index is missing")
	}
	if len(it.id) == 0 && (it.op == opUpdate || it.op == opDelete) {
		reasons = append(reasons, "id is missing")
	}
	versioned := it.version != unset || it.vtype != internal
	switch {
	case it.op == opCreate && versioned:
		reasons = append(reasons, "create operations only support internal versioning. use index instead")
	case it.op == opCreate && it.ifSeq != unset:
		reasons = append(reasons, "create operations do not support compare and set. use index instead")
	case versioned && !it.hasID && it.op == opIndex:
		reasons = append(reasons, "an id must be provided if version type or value are set")
	case it.ifSeq != unset && versioned:
		reasons = append(reasons, "compare and write operations can not use versioning")
	case it.vtype == internal && it.version != unset:
		reasons = append(reasons, "internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and `if_primary_term` instead")
	case it.vtype != internal && it.version < 0:
		v := it.version
		if v == unset {
			v = -3
		}
		name := "EXTERNAL"
		if it.vtype == externalGTE {
			name = "EXTERNAL_GTE"
		}
		reasons = append(reasons, "illegal version value ["+strconv.FormatInt(v, 10)+"] for version type ["+name+"]")
	}
	if it.ifSeq != unset && it.ifTerm == 0 {
		reasons = append(reasons, "ifSeqNo is set, but primary term is [0]")
	}
	if it.ifSeq == unset && it.ifTerm != 0 {
		reasons = append(reasons, "ifSeqNo is unassigned, but primary term is ["+strconv.FormatInt(it.ifTerm, 10)+"]")
	}
	if len(it.id) > maxID && (it.op == opIndex || it.op == opCreate) {
		reasons = append(reasons, "id ["+string(it.id)+"] is too long, must be no longer than "+strconv.Itoa(maxID)+
			" bytes but was: "+strconv.Itoa(len(it.id)))
	}
	if it.op == opUpdate && it.source == nil && it.upsert == nil {
		reasons = append(reasons, "script or doc is missing")
	}
	return reasons
}

// action reads an action line.
func (it *bulkItem) action(b []byte, line int) *apiError {
	l := lexer{b: b}
	l.bom()
	at := "[" + strconv.Itoa(line) + "]"
	malformed := func(expected string) *apiError {
		return illegalArgument("Malformed action/metadata line " + at + ", expected " + expected)
	}
	k := l.value()
	if l.err != nil {
		return l.err.request(b)
	}
	if k != tokObject {
		return malformed("START_OBJECT but found [" + k.String() + "]")
	}
	if !l.name(true) {
		if l.err != nil {
			return l.err.request(b)
		}
		return malformed("FIELD_NAME but found [END_OBJECT]")
	}
	switch string(l.val) {
	case "index":
		it.op = opIndex
	case "create":
		it.op = opCreate
	case "update":
		it.op = opUpdate
	case "delete":
		it.op = opDelete
	default:
		return malformed("field [create], [delete], [index] or [update] but found [" + string(l.text()) + "]")
	}
	if k = l.member(); k != tokObject {
		if l.err != nil {
			return l.err.request(b)
		}
		return malformed("START_OBJECT or END_OBJECT but found [" + k.String() + "]")
	}
	for first := true; l.name(first); first = false {
		if err := it.parameter(&l, at); err != nil {
			return err
		}
		if l.err != nil {
			return l.err.request(b)
		}
	}
	if l.err != nil {
		return l.err.request(b)
	}
	// What follows in the line is looked at only as far as it is not JSON: the
	// real one stops at the action's end, too.
	if l.name(false) {
		return nil
	}
	if l.err != nil {
		if l.err.eof {
			return nil
		}
		return l.err.request(b)
	}
	if l.value(); l.err != nil {
		return l.err.request(b)
	}
	return nil
}

func (it *bulkItem) parameter(l *lexer, at string) *apiError {
	nm := l.text()
	k := l.member()
	if k == tokObject || k == tokArray {
		switch string(nm) {
		case "_source", "dynamic_templates":
			l.skip(k)
			return nil
		}
		return illegalArgument("Malformed action/metadata line " + at + ", expected a simple value for field [" + string(nm) + "] but found [" + k.String() + "]")
	}
	if l.err != nil {
		return nil
	}
	v := l.val
	if k == tokString {
		v = l.text()
	}
	if k == tokNull {
		switch string(nm) {
		case "_index", "_id", "routing", "pipeline":
			return nil
		}
	}
	number := func(dst *int64) *apiError {
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			f, ferr := strconv.ParseFloat(string(v), 64)
			if ferr != nil && k == tokString {
				return illegalArgument("For input string: \"" + string(v) + "\"")
			}
			if !inRange(f, -1<<63, 1<<63-1) {
				return (&syntaxError{msg: "Numeric value (" + string(v) + ") out of range of long (-9223372036854775808 - 9223372036854775807)", at: l.i - 1}).request(l.b)
			}
			n = int64(f)
		}
		*dst = n
		return nil
	}
	switch string(nm) {
	case "_index":
		it.index, it.hasIndex = v, true
	case "_id":
		it.id, it.hasID = v, true
	case "routing":
		it.routing = v
	case "pipeline":
		it.pipeline = v
	case "op_type":
		if it.op == opIndex && string(v) == "create" {
			it.op = opCreate
		}
	case "version":
		if it.op == opUpdate {
			return illegalArgument("Update requests do not support versioning. Please use `if_seq_no` and `if_primary_term` instead")
		}
		return number(&it.version)
	case "version_type":
		switch string(v) {
		case "internal":
		case "external", "external_gt":
			it.vtype = external
		case "external_gte":
			it.vtype = externalGTE
		default:
			return illegalArgument("No version type match [" + string(v) + "]")
		}
		if it.op == opUpdate && it.vtype != internal {
			return illegalArgument("Update requests do not support versioning. Please use `if_seq_no` and `if_primary_term` instead")
		}
	case "if_seq_no":
		return number(&it.ifSeq)
	case "if_primary_term":
		return number(&it.ifTerm)
	case "require_alias":
		it.alias = string(v) == "true"
	case "require_data_stream":
		it.dataStream = string(v) == "true"
	case "_source":
		it.wantsSource = string(v) == "true"
	case "retry_on_conflict", "list_executed_pipelines":
	default:
		return illegalArgument("Action/metadata line " + at + " contains an unknown parameter [" + string(nm) + "]")
	}
	return nil
}

// updateBody reads the wrapper of an update's document.
func (it *bulkItem) updateBody() *apiError {
	b := it.source
	it.source = nil
	l := lexer{b: b}
	k := l.value()
	if k != tokObject {
		if l.err == nil {
			l.fail(l.start, "Expected START_OBJECT")
		}
		return l.err.request(b)
	}
	for first := true; l.name(first); first = false {
		nm, at := string(l.text()), l.start
		k := l.member()
		from := l.start
		l.skip(k)
		if l.err != nil {
			break
		}
		v := b[from:l.i]
		switch nm {
		case "doc":
			it.source = v
		case "upsert":
			it.upsert = v
		case "doc_as_upsert":
			it.asUpsert = string(v) == "true"
		case "detect_noop":
			it.keepNoop = string(v) == "false"
		case "script":
			return illegalArgument("script_lang not supported [painless]")
		case "scripted_upsert", "_source", "if_seq_no", "if_primary_term":
		default:
			return newError(http.StatusBadRequest, "x_content_parse_exception",
				"[1:"+strconv.Itoa(at+1)+"] [UpdateRequest] unknown field ["+nm+"]")
		}
	}
	if l.err != nil {
		return l.err.request(b)
	}
	return nil
}

// A resolved is what a name in a request leads to, for the time of the request.
type resolved struct {
	name    []byte
	alias   bool   // the name is an alias
	ix      *index // nil: err
	stream  string
	entered bool
	err     *apiError // of every write
	blocked *apiError // of writes that reach the index
}

// bulkParameters are the URL parameters that a bulk request may carry.
var bulkParameters = parameterSet("refresh", "timeout", "pipeline", "routing", "require_alias", "require_data_stream",
	"wait_for_active_shards", "_source", "_source_includes", "_source_excludes", "type", "list_executed_pipelines", "include_source_on_error")

func (es *Elasticsearch) bulk(ctx context.Context, r *Request, index string, f *Fault) *answer {
	if err := r.unknownParameter(bulkParameters); err != nil {
		return failure(err)
	}
	if err := r.contentType(es, true); err != nil {
		return failure(err)
	}
	if len(r.Body) == 0 || r.badGzip {
		return failure(parseError("request body is required"))
	}
	refresh := r.Query.Get("refresh")
	if _, named := r.Query["refresh"]; named && refresh == "" {
		refresh = "true"
	}
	switch refresh {
	case "", "true", "false", "wait_for":
	default:
		return failure(illegalArgument("Unknown value for refresh: [" + refresh + "]."))
	}
	b := bulkRequests.Get().(*bulkRequest)
	if err := b.parse(r.Body, index, maxIDLength); err != nil {
		bulkRequests.Put(b)
		return failure(err)
	}
	d := bulkDefaults{
		pipeline: []byte(r.Query.Get("pipeline")), routing: []byte(r.Query.Get("routing")),
		alias: r.Query.Get("require_alias") == "true", stream: r.Query.Get("require_data_stream") == "true",
	}
	body, err := es.runBulk(ctx, b, &d, f, refresh, newBulkFilter(r.Query.Get("filter_path")))
	if err != nil {
		bulkRequests.Put(b)
		return failure(err)
	}
	return &answer{status: http.StatusOK, body: body, release: func() { bulkRequests.Put(b) }}
}

// headroom is where the head of a bulk answer, known last, is written.
const headroom = 96

func (es *Elasticsearch) runBulk(ctx context.Context, b *bulkRequest, d *bulkDefaults, f *Fault, refresh string, keep *bulkFilter) ([]byte, *apiError) {
	targets := make([]resolved, 0, 4)
	find := func(it *bulkItem) *resolved {
		for i := range targets {
			if bytes.Equal(targets[i].name, it.index) {
				return &targets[i]
			}
		}
		targets = append(targets, resolved{name: it.index})
		return &targets[len(targets)-1]
	}
	// Missing indices are created before anything is written, but not for the
	// sake of deletes without an external version.
	for i := range b.items {
		it := &b.items[i]
		it.alias = it.alias || d.alias
		it.dataStream = it.dataStream || d.stream
		if len(it.routing) == 0 {
			it.routing = d.routing
		}
		if len(it.pipeline) == 0 {
			it.pipeline = d.pipeline
		}
		t := find(it)
		if t.ix == nil && t.err == nil || t.err != nil && t.err.typ == "index_not_found_exception" {
			es.resolve(t, it)
		}
	}
	defer func() {
		for i := range targets {
			if targets[i].entered {
				targets[i].ix.leave()
			}
		}
	}()
	for i := range targets {
		if t := &targets[i]; t.ix != nil {
			if t.blocked = t.ix.enter(); t.blocked == nil {
				t.entered = true
			}
		}
	}
	if err := es.hold(ctx, f.HoldWrite, true); err != nil {
		return nil, newError(http.StatusServiceUnavailable, "node_closed_exception", "node closed")
	}
	w := bulkWriter{b: b, keep: keep, refresh: refresh}
	if cap(b.out) < headroom {
		b.out = make([]byte, headroom, 4096)
	}
	w.out = b.out[:headroom]
	now := nanos()
	var order []int
	if es.cfg.Flavour == FlavourOpenSearch {
		order = es.ingestOrder(b, find)
	}
	for i := range b.items {
		if order != nil {
			i = order[i]
		}
		it := &b.items[i]
		t := find(it)
		res := result{}
		var got *doc
		if f.Items != nil {
			if e := f.Items(Action{Op: it.op.String(), Index: string(it.index), ID: it.id, Version: max(it.version, 0), Source: it.source}); e != nil {
				res.err = newError(e.Status, e.Type, e.Reason)
			}
		}
		if res.err == nil {
			res, got = es.writeItem(b, t, it, now)
		}
		w.item(t, it, &res, got)
	}
	if refresh == "true" || refresh == "wait_for" {
		for i := range targets {
			if targets[i].ix != nil {
				targets[i].ix.refresh(nanos())
			}
		}
	}
	return w.finish(es.cfg.Flavour), nil
}

// ingestOrder is the order of OpenSearch's answers, or nil for that of the
// request: an OpenSearch 2.19 fills the places of all items that ingest pipelines
// have kept from being written with the failed and the dropped ones in the order
// in which it noticed them: missing pipelines, then drops.
func (es *Elasticsearch) ingestOrder(b *bulkRequest, find func(*bulkItem) *resolved) []int {
	var places, missing, dropped []int
	for i := range b.items {
		it := &b.items[i]
		t := find(it)
		if t.ix == nil || it.op != opIndex && it.op != opCreate {
			continue
		}
		drop, err := es.ingest(t.ix, it)
		switch {
		case err != nil:
			missing = append(missing, i)
		case drop:
			dropped = append(dropped, i)
		default:
			continue
		}
		places = append(places, i)
	}
	if len(missing) == 0 || len(dropped) == 0 {
		return nil
	}
	order := make([]int, len(b.items))
	for i := range order {
		order[i] = i
	}
	for n, i := range append(missing, dropped...) {
		order[places[n]] = i
	}
	return order
}

func (ix *index) refresh(now int64) {
	for _, s := range ix.shards {
		s.refresh(now)
	}
}

// pipelineNone is the name that switches a default pipeline off.
const pipelineNone = "_none"

// writeItem carries one action out.
func (es *Elasticsearch) writeItem(b *bulkRequest, t *resolved, it *bulkItem, now int64) (result, *doc) {
	if it.alias && !t.alias && it.op != opDelete {
		name := string(it.index)
		return result{err: newError(http.StatusNotFound, "index_not_found_exception",
			"no such index ["+name+"] and [require_alias] request flag is [true] and ["+name+"] is not an alias",
			"index_uuid", "_na_", "index", name)}, nil
	}
	if it.dataStream && t.stream == "" {
		return result{err: newError(http.StatusNotFound, "resource_not_found_exception",
			"[require_data_stream] request flag is [true] and ["+string(it.index)+"] is not a data stream")}, nil
	}
	if t.err != nil {
		return result{err: t.err}, nil
	}
	if err := es.streamRule(t, it); err != nil {
		return result{err: err}, nil
	}
	if t.blocked != nil {
		return result{err: t.blocked}, nil
	}
	if it.hasID && len(it.id) == 0 && it.op != opDelete {
		return result{err: illegalArgument("if _id is specified it must not be empty")}, nil
	}
	if it.op == opIndex || it.op == opCreate {
		switch dropped, err := es.ingest(t.ix, it); {
		case err != nil:
			return result{err: err}, nil
		case dropped:
			v := int64(-3)
			if it.op == opCreate {
				v = -4
			}
			if !it.hasID {
				it.id = []byte("auto-generated")
			}
			return result{status: http.StatusOK, result: "noop", version: v, seq: unset}, nil
		}
	}
	if !it.hasID {
		it.id = []byte(es.newID())
		it.autoID = true
	}
	s := t.ix.shard(it.id, it.routing)
	switch it.op {
	case opDelete:
		return s.apply(&it.write, now), nil
	case opUpdate:
		return es.update(b, t.ix, s, it, now)
	}
	if err := t.ix.check(&b.doc, it.id, it.source); err != nil {
		return result{err: err}, nil
	}
	return s.apply(&it.write, now), nil
}

// ingest runs the item's pipeline and says whether it drops the document.
func (es *Elasticsearch) ingest(ix *index, it *bulkItem) (bool, *apiError) {
	name := string(it.pipeline)
	if name == "" {
		es.mu.RLock()
		name = ix.settings["default_pipeline"]
		es.mu.RUnlock()
	}
	if name == "" || name == pipelineNone {
		return false, nil
	}
	es.mu.RLock()
	p := es.pipelines[name]
	es.mu.RUnlock()
	if p == nil {
		return false, illegalArgument("pipeline with id [" + name + "] does not exist")
	}
	return p.drops, nil
}

// A bulkWriter builds a bulk answer item by item.
type bulkWriter struct {
	b       *bulkRequest
	keep    *bulkFilter
	refresh string
	out     []byte
	errors  bool
	items   int
	ingest  bool
}

func (w *bulkWriter) item(t *resolved, it *bulkItem, r *result, got *doc) {
	if len(it.pipeline) > 0 && string(it.pipeline) != pipelineNone {
		w.ingest = true
	}
	if r.err != nil {
		w.errors = true
	}
	set := w.keep.items[it.op]
	if set == 0 || r.err == nil && set&(itemError-1) == 0 {
		return
	}
	mark := len(w.out)
	out := w.out
	if w.items > 0 {
		out = append(out, ',')
	}
	out = append(out, `{"`...)
	out = append(out, it.op.String()...)
	out = append(out, `":{`...)
	start := len(out)
	if set&itemIndex != 0 {
		out = append(out, `"_index":`...)
		if t.ix != nil && (r.err == nil || reached(r.err)) {
			out = append(append(out, t.ix.quoted...), ',')
		} else {
			out = append(appendString(out, it.index), ',')
		}
	}
	if set&itemID != 0 {
		out = append(out, `"_id":`...)
		if it.hasID || it.autoID || r.result == "noop" {
			out = appendString(out, it.id)
		} else {
			out = append(out, "null"...)
		}
		out = append(out, ',')
	}
	if r.err == nil {
		out = appendResult(out, set, r, w.refresh == "true")
		if got != nil && set&itemGet != 0 {
			out = append(out, `"get":`...)
			out = append(appendGet(out, got), ',')
		}
	}
	if set&itemStatus != 0 {
		status := r.status
		if r.err != nil {
			status = r.err.status
		}
		out = append(out, `"status":`...)
		out = append(strconv.AppendInt(out, int64(status), 10), ',')
	}
	if r.err != nil && set&itemError != 0 {
		n := len(out)
		out = append(out, `"error":{`...)
		inner := len(out)
		out = appendItemError(out, set, r.err)
		if len(out) == inner {
			out = out[:n]
		} else {
			out[len(out)-1] = '}' // in place of the last comma
			out = append(out, ',')
		}
	}
	if len(out) == start {
		w.out = out[:mark]
		return
	}
	out[len(out)-1] = '}'
	out = append(out, '}')
	w.out = out
	w.items++
}

// reached says whether an item failed in its index, so that the answer names the
// index and not the alias.
func reached(e *apiError) bool {
	switch e.typ {
	case "version_conflict_engine_exception", "document_parsing_exception", "mapper_parsing_exception",
		"strict_dynamic_mapping_exception", "document_missing_exception", "index_closed_exception":
		return true
	}
	return false
}

func appendResult(out []byte, set uint32, r *result, forced bool) []byte {
	if set&itemVersion != 0 {
		out = append(out, `"_version":`...)
		out = append(strconv.AppendInt(out, r.version, 10), ',')
	}
	if set&itemResult != 0 {
		out = append(out, `"result":"`...)
		out = append(append(out, r.result...), `",`...)
	}
	if forced && r.seq != unset && set&itemRefresh != 0 {
		out = append(out, `"forced_refresh":true,`...)
	}
	if set&itemShards != 0 {
		if r.seq == unset {
			out = append(out, `"_shards":{"total":0,"successful":0,"failed":0},`...)
		} else {
			out = append(out, `"_shards":{"total":2,"successful":1,"failed":0},`...)
		}
	}
	if r.seq != unset {
		if set&itemSeq != 0 {
			out = append(out, `"_seq_no":`...)
			out = append(strconv.AppendInt(out, r.seq, 10), ',')
		}
		if set&itemTerm != 0 {
			out = append(out, `"_primary_term":`...)
			out = append(strconv.AppendInt(out, r.term, 10), ',')
		}
	}
	return out
}

func appendItemError(out []byte, set uint32, e *apiError) []byte {
	if set&errorType != 0 {
		out = append(out, `"type":`...)
		out = append(appendString(out, e.typ), ',')
	}
	if set&errorReason != 0 {
		out = append(out, `"reason":`...)
		out = append(appendString(out, e.reason), ',')
	}
	if set&errorCause != 0 && e.cause != nil {
		out = append(out, `"caused_by":`...)
		out = append(e.cause.append(out), ',')
	}
	for i := 0; i+1 < len(e.attrs); i += 2 {
		bit, known := errorMembers[e.attrs[i]]
		if known && set&bit == 0 || !known && set&errorCause == 0 {
			continue
		}
		out = append(appendString(out, e.attrs[i]), ':')
		out = append(appendString(out, e.attrs[i+1]), ',')
	}
	return out
}

// finish writes the head before the items and returns the whole answer.
func (w *bulkWriter) finish(flavour Flavour) []byte {
	var room [headroom]byte
	head := append(room[:0], '{')
	failed := "false"
	if w.errors {
		failed = "true"
	}
	took := func() {
		if w.keep.took {
			head = append(head, `"took":0,`...)
		}
	}
	if flavour == FlavourOpenSearch {
		took()
	}
	if w.keep.errors {
		head = append(append(append(head, `"errors":`...), failed...), ',')
	}
	if flavour != FlavourOpenSearch {
		took()
		if w.ingest && w.keep.ingest {
			head = append(head, `"ingest_took":0,`...)
		}
	}
	if w.items > 0 {
		head = append(head, `"items":[`...)
		w.out = append(w.out, `]}`...)
	} else {
		head[len(head)-1] = '}'
		if len(head) == 1 {
			head = append(head[:0], '{', '}')
		}
	}
	w.b.out = w.out
	from := headroom - len(head)
	copy(w.out[from:], head)
	if w.keep.whole != nil {
		return w.keep.whole.apply(w.out[from:])
	}
	return w.out[from:]
}
