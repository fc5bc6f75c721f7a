package conformance

import (
	"net/http"
	"strings"
	"time"
)

// act builds a bulk line: an operation and its parameters, which end the
// object.
func act(op, index, id, more string) string {
	return `{"` + op + `":{"_index":"` + index + `","_id":"` + id + `"` + more + `}}`
}

func index(id, more string) string  { return act("index", "{i}", id, more) }
func remove(id, more string) string { return act("delete", "{i}", id, more) }

func version(v string) string    { return `,"version":` + v + `,"version_type":"external"` }
func versionGTE(v string) string { return `,"version":` + v + `,"version_type":"external_gte"` }

func lines(l ...string) []string { return l }

// doc writes one document and says how its item must end.
func doc(id, source string, want ...string) step {
	return step{lines: lines(index(id, ""), source), items: want}
}

func create(name, body string) step {
	return step{method: http.MethodPut, path: "/" + name, body: body}
}

func settings(body string) step {
	return step{method: http.MethodPut, path: "/{i}/_settings", body: body}
}

func refresh() step { return step{path: "/{i}/_refresh"} }

const (
	writeBlock = "403 cluster_block_exception: index [{i}] blocked by: [FORBIDDEN/8/index write (api)];"
	flood      = "429 cluster_block_exception: index [{i}] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block..."
	noWrite    = "400 illegal_argument_exception: no write index is defined for alias [{a}]. The write index may be explicitly disabled using is_write_index=false or the alias points to multiple indices without one being designated as a write index"
	invalid    = "action_request_validation_exception: Validation Failed: 1: "
)

func cases() []tcase {
	var all []tcase
	for _, group := range [][]tcase{versionCases(), requestCases(), targetCases(), documentCases(), streamCases(), readCases(), clusterCases()} {
		all = append(all, group...)
	}
	return all
}

func versionCases() []tcase {
	return []tcase{
		{name: "external versions", steps: []step{
			{
				lines: lines(index("1", version("5")), `{}`, index("1", version("5")), `{}`, index("1", version("4")), `{}`, index("1", version("6")), `{}`,
					remove("1", version("6")), remove("1", version("7")), index("1", version("7")), `{}`, index("1", version("8")), `{}`),
				items: lines("201 created v5",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [5] is higher or equal to the one provided [5]",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [5] is higher or equal to the one provided [4]",
					"200 updated v6",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [6] is higher or equal to the one provided [6]",
					"200 deleted v7",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [7] is higher or equal to the one provided [7]",
					"201 created v8"),
			},
		}},
		{name: "external_gte versions", steps: []step{
			{
				lines: lines(index("1", versionGTE("5")), `{}`, index("1", versionGTE("5")), `{}`, index("1", versionGTE("4")), `{}`, remove("1", versionGTE("5")), remove("1", versionGTE("4"))),
				items: lines("201 created v5", "200 updated v5",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [5] is higher than the one provided [4]",
					"200 deleted v5",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [5] is higher than the one provided [4]"),
			},
		}},
		{name: "versions at the limits", steps: []step{
			{
				lines: lines(index("a", version("0")), `{}`, index("b", version("9223372036854775807")), `{}`, index("b", versionGTE("9223372036854775807")), `{}`),
				items: lines("201 created v0", "201 created v9223372036854775807", "200 updated v9223372036854775807"),
			},
			{lines: lines(index("c", version("9223372036854775808")), `{}`), status: 400, err: "...out of range of long..."},
		}},
		{name: "internal versions", steps: []step{
			{
				lines: lines(index("1", ""), `{}`, index("1", ""), `{}`, remove("1", ""), index("1", ""), `{}`, act("create", "{i}", "1", ""), `{}`),
				items: lines("201 created v1", "200 updated v2", "200 deleted v3", "201 created v4",
					"409 version_conflict_engine_exception: [1]: version conflict, document already exists (current version [4])"),
			},
		}},
		{name: "create after a delete", steps: []step{
			{
				lines: lines(index("1", version("7")), `{}`, remove("1", version("9")), act("create", "{i}", "1", ""), `{}`),
				items: lines("201 created v7", "200 deleted v9", "201 created v10"),
			},
		}},
		{name: "if_seq_no", steps: []step{
			{
				lines: lines(index("1", version("100")), `{}`, index("1", `,"if_seq_no":5,"if_primary_term":1`), `{}`, index("2", `,"if_seq_no":5,"if_primary_term":1`), `{}`,
					index("1", `,"if_seq_no":0,"if_primary_term":1`), `{}`, remove("1", `,"if_seq_no":1,"if_primary_term":1`), index("1", version("101")), `{}`),
				items: lines("201 created v100",
					"409 version_conflict_engine_exception: [1]: version conflict, required seqNo [5], primary term [1]. current document has seqNo [0] and primary term [1]",
					"409 version_conflict_engine_exception: [2]: version conflict, required seqNo [5], primary term [1]. but no document was found",
					"200 updated v101", "200 deleted v102",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [102] is higher or equal to the one provided [101]"),
			},
		}},
		{name: "sequence numbers", steps: []step{
			{
				lines: lines(index("1", ""), `{}`, remove("none", ""), index("1", version("0")), `{}`, index("2", ""), `{}`), items: lines("201 created v1", "404 not_found v1",
					"409 version_conflict_engine_exception: ...", "201 created v1"),
				json: map[string]string{"items.0.index._seq_no": "0", "items.1.delete._seq_no": "1", "items.3.index._seq_no": "2", "items.0.index._primary_term": "1"},
			},
		}},
		{name: "delete of an absent document", steps: []step{
			create("{i}", ""),
			{lines: lines(remove("x", "")), items: lines("404 not_found v1"), json: map[string]string{"errors": "false"}, without: lines("items.0.delete.error")},
			{
				lines: lines(remove("y", version("20")), index("y", version("15")), `{}`, index("y", version("21")), `{}`),
				items: lines("404 not_found v20", "409 version_conflict_engine_exception: [y]: version conflict, current version [20] is higher or equal to the one provided [15]", "201 created v21"),
			},
		}},
		{name: "an external delete creates the index", steps: []step{
			{lines: lines(act("delete", "{i}", "1", "")), items: lines("404 index_not_found_exception: no such index [{i}]")},
			{lines: lines(act("delete", "{i}", "1", version("3"))), items: lines("404 not_found v3")},
			{lines: lines(act("delete", "{j}", "1", version("3")+`,"require_alias":true`)), items: lines("404 not_found v3")},
			{method: http.MethodHead, path: "/{i}"},
			{method: http.MethodHead, path: "/{j}"},
		}},
		{name: "a refresh does not forget deletes", steps: []step{
			{lines: lines(index("1", version("10")), `{}`, remove("1", version("20"))), items: lines("201 created v10", "200 deleted v20")},
			refresh(),
			{lines: lines(index("1", version("15")), `{}`), items: lines("409 version_conflict_engine_exception: [1]: version conflict, current version [20] is higher or equal to the one provided [15]")},
		}},
		{name: "deletes are forgotten after gc_deletes", needs: Waiting, steps: []step{
			create("{i}", `{"settings":{"gc_deletes":"1s"}}`),
			{
				lines: lines(remove("1", version("10")), index("1", version("5")), `{}`),
				items: lines("404 not_found v10", "409 version_conflict_engine_exception: [1]: version conflict, current version [10] is higher or equal to the one provided [5]"),
			},
			{wait: 4 * time.Second, lines: lines(index("1", version("5")), `{}`), items: lines("201 created v5")},
		}},
		{name: "deletes are forgotten at a restart", restart: true, steps: []step{
			{lines: lines(index("1", version("10")), `{}`, remove("1", version("20"))), items: lines("201 created v10", "200 deleted v20")},
			{path: "/{i}/_flush"},
			{restart: true, method: http.MethodGet, path: "/_cluster/health/{i}?wait_for_status=yellow", json: map[string]string{"timed_out": "false"}},
			{lines: lines(index("1", version("15")), `{}`), items: lines("201 created v15")},
		}},
		{name: "a tombstone document and its purge", steps: []step{
			{
				lines: lines(index("1", version("100")), `{"gone":true}`, index("1", version("90")), `{}`, remove("1", versionGTE("100")), index("1", version("101")), `{}`),
				items: lines("201 created v100", "409 version_conflict_engine_exception: [1]: version conflict, current version [100] is higher or equal to the one provided [90]",
					"200 deleted v100", "201 created v101"),
			},
		}},
		{name: "update", steps: []step{
			{
				lines: lines(act("update", "{i}", "1", ""), `{"doc":{"a":1}}`, act("update", "{i}", "1", ""), `{"doc":{"a":1},"doc_as_upsert":true}`,
					act("update", "{i}", "1", ""), `{"doc":{"a":1}}`, act("update", "{i}", "1", ""), `{"doc":{"b":{"c":2}}}`,
					act("update", "{i}", "1", `,"if_seq_no":77,"if_primary_term":1`), `{"doc":{"a":3}}`, act("update", "{i}", "2", ""), `{"doc":{"a":1},"upsert":{"z":1}}`),
				items: lines("404 document_missing_exception: [1]: document missing", "201 created v1", "200 noop v1", "200 updated v2",
					"409 version_conflict_engine_exception: [1]: version conflict, required seqNo [77], primary term [1]. current document has seqNo [1] and primary term [1]",
					"201 created v1"),
			},
			{method: http.MethodGet, path: "/{i}/_doc/1", json: map[string]string{"_source.a": "1", "_source.b.c": "2", "_version": "2"}},
			{method: http.MethodGet, path: "/{i}/_doc/2", json: map[string]string{"_source.z": "1", "_source.a": "-"}},
		}},
		{name: "an update raises the version", steps: []step{
			{
				lines: lines(index("1", version("10")), `{"a":1}`, act("update", "{i}", "1", ""), `{"doc":{"a":2}}`, index("1", version("11")), `{}`),
				items: lines("201 created v10", "200 updated v11",
					"409 version_conflict_engine_exception: [1]: version conflict, current version [11] is higher or equal to the one provided [11]"),
			},
		}},
	}
}

func requestCases() []tcase {
	bad := func(name, err string, l ...string) tcase {
		return tcase{name: name, steps: []step{
			{lines: append(lines(index("good", ""), `{}`), l...), status: 400, err: err},
			{method: http.MethodGet, path: "/{i}/_doc/good", status: 404},
		}}
	}
	empty := ""
	all := []tcase{
		bad("an id that is too long", invalid+"id ["+strings.Repeat("x", 513)+"] is too long, must be no longer than 512 bytes but was: 513;", index(strings.Repeat("x", 513), ""), `{}`),
		bad("create with an external version", invalid+"create operations only support internal versioning. use index instead;", act("create", "{i}", "1", version("1")), `{}`),
		bad("update with a version", "illegal_argument_exception: Update requests do not support versioning. Please use `if_seq_no` and `if_primary_term` instead",
			act("update", "{i}", "1", version("1")), `{"doc":{}}`),
		bad("external version with if_seq_no", invalid+"compare and write operations can not use versioning;", index("1", version("1")+`,"if_seq_no":1,"if_primary_term":1`), `{}`),
		bad("a negative version", invalid+"illegal version value [-1] for version type [EXTERNAL];", index("1", version("-1")), `{}`),
		bad("an internal version", invalid+"internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and `if_primary_term` instead;", index("1", `,"version":1`), `{}`),
		bad("an external version without id", invalid+"an id must be provided if version type or value are set;", `{"index":{"_index":"{i}","version":1,"version_type":"external"}}`, `{}`),
		bad("no index", invalid+"index is missing;", `{"index":{"_id":"1"}}`, `{}`),
		bad("a delete without id", invalid+"id is missing;", `{"delete":{"_index":"{i}"}}`),
		bad("several mistakes", "action_request_validation_exception: Validation Failed: 1: index is missing;2: id is missing;", `{"index":{"_id":"1"}}`, `{}`, `{"delete":{"_index":"{i}"}}`),
		bad("an unknown action", "illegal_argument_exception: Malformed action/metadata line [3], expected ... but found [foo]", act("foo", "{i}", "1", ""), `{}`),
		bad("an unknown parameter", "illegal_argument_exception: Action/metadata line [3] contains an unknown parameter [foo]", index("1", `,"foo":1`), `{}`),
		bad("_version as a parameter", "illegal_argument_exception: Action/metadata line [3] contains an unknown parameter [_version]", index("1", `,"_version":1`), `{}`),
		bad("an unknown version type", "illegal_argument_exception: No version type match [foo]", index("1", `,"version":1,"version_type":"foo"`), `{}`),
		bad("an update without doc", invalid+"script or doc is missing;", act("update", "{i}", "1", ""), `{}`),
		{name: "no final newline", steps: []step{
			{body: index("1", "") + "\n{}", status: 400, err: `illegal_argument_exception: The bulk request must be terminated by a newline [\n]`},
		}},
		{name: "an empty body", steps: []step{{status: 400, err: "parse_exception: request body is required"}}},
		{name: "no actions", steps: []step{{body: "\n", status: 400, err: invalid + "no requests added;"}}},
		{name: "gzip", steps: []step{
			{gzip: true, lines: lines(index("1", ""), `{"a":1}`), items: lines("201 created v1")},
			{body: "xx\n", header: map[string]string{"Content-Encoding": "gzip"}, status: 400, err: "parse_exception: request body is required"},
		}},
		{name: "content types", steps: []step{
			{lines: lines(index("1", ""), `{}`), header: map[string]string{"Content-Type": "application/x-ndjson"}, items: lines("201 created v1")},
			{lines: lines(index("1", ""), `{}`), header: map[string]string{"Content-Type": "text/plain"}, status: 406, err: "Content-Type header [text/plain] is not supported"},
		}},
		{name: "a body that is too large", needs: SmallContentLength, steps: []step{
			{lines: lines(index("1", ""), `{"a":"`+strings.Repeat("x", 1<<20)+`"}`), status: 413, raw: &empty, noProduct: true},
			{gzip: true, lines: lines(index("1", ""), `{"a":"`+strings.Repeat("x", 1<<20)+`"}`), status: 413, raw: &empty, noProduct: true},
		}},
		{name: "unknown URL parameter", steps: []step{
			{path: "/_bulk?foo=1", lines: lines(index("1", ""), `{}`), status: 400, err: "illegal_argument_exception: request [/_bulk] contains unrecognized parameter: [foo]"},
		}},
		{name: "wrong method", steps: []step{
			{method: http.MethodDelete, path: "/{i}/_bulk", status: 405, err: "Incorrect HTTP method for uri [/{i}/_bulk] and method [DELETE], allowed: [...]"},
		}},
		{name: "lenient lines", steps: []step{
			{body: "\n" + index("1", "") + "\r\n{}\r\n\n" + `{"delete":{"_index":"{i}","_id":"1"}}` + "\n", items: lines("201 created v1", "200 deleted v2")},
			{
				lines: lines(`{"index":{"_index":"{i}","_id":7,"routing":8,"version":"9","version_type":"external"}}`, `{}`), items: lines("201 created v9"),
				json: map[string]string{"items.0.index._id": "7"},
			},
		}},
		{name: "ids", steps: []step{
			{
				lines: lines(`{"index":{"_index":"{i}"}}`, `{}`, index("", ""), `{}`, act("create", "{i}", "", ""), `{}`, index(`\u00e9\"`, ""), `{}`),
				items: lines("201 created v1", "400 illegal_argument_exception: if _id is specified it must not be empty",
					"400 illegal_argument_exception: if _id is specified it must not be empty", "201 created v1"),
				json: map[string]string{"items.3.index._id": `é"`},
			},
			{lines: lines(index(strings.Repeat("x", 512), ""), `{}`), items: lines("201 created v1")},
		}},
		{name: "index in the path", steps: []step{
			{
				path: "/{i}/_bulk", lines: lines(`{"index":{"_id":"1"}}`, `{}`, act("index", "{j}", "1", ""), `{}`), items: lines("201 created v1", "201 created v1"),
				json: map[string]string{"items.0.index._index": "{i}", "items.1.index._index": "{j}"},
			},
		}},
	}
	return append(all, filterCases()...)
}

func filterCases() []tcase {
	answer := func(path, body string) step {
		return step{path: "/_bulk?filter_path=" + path, lines: lines(index("1", ""), `{"a":1}`, act("create", "{i}", "1", ""), `{"a":1}`), raw: &body}
	}
	good := func(path, body string) step {
		return step{path: "/_bulk?filter_path=" + path, lines: lines(index("1", ""), `{"a":1}`), raw: &body}
	}
	const conflict = "version_conflict_engine_exception"
	return []tcase{{name: "filter_path", elastic: true, steps: []step{
		doc("1", `{"a":1}`, "201 created v1"),
		answer("errors,items.*.status", `{"errors":true,"items":[{"index":{"status":200}},{"create":{"status":409}}]}`),
		answer("items.*.error.type", `{"items":[{"create":{"error":{"type":"`+conflict+`"}}}]}`),
		answer("errors,items.*.status,items.*.error.type", `{"errors":true,"items":[{"index":{"status":200}},{"create":{"status":409,"error":{"type":"`+conflict+`"}}}]}`),
		answer("errors,items.*.error.t*,-items.index", `{"errors":true,"items":[{"create":{"error":{"type":"`+conflict+`"}}}]}`),
		answer("**.type", `{"items":[{"create":{"error":{"type":"`+conflict+`"}}}]}`),
		answer("items.index._id,-items.index._seq_no", `{"items":[{"index":{"_id":"1"}}]}`),
		answer("errors,items.*.error,items.*.status,-items.index.status,-items.*.error.reason,-items.*.error.index_uuid",
			`{"errors":true,"items":[{"create":{"status":409,"error":{"type":"`+conflict+`","shard":"0","index":"{i}"}}}]}`),
		answer("nope", `{}`),
		answer("-took,-items", `{"errors":true}`),
		good("errors,items.*.error", `{"errors":false}`),
		good("items.*.error", `{}`),
		good("-items.index,-took", `{"errors":false}`),
		good("errors,items.index._shards.total", `{"errors":false,"items":[{"index":{"_shards":{"total":2}}}]}`),
	}}}
}

func targetCases() []tcase {
	aliases := func(actions string) step { return step{path: "/_aliases", body: `{"actions":[` + actions + `]}`} }
	add := func(ix, alias, more string) string {
		return `{"add":{"index":"` + ix + `","alias":"` + alias + `"` + more + `}}`
	}
	return []tcase{
		{name: "aliases", steps: []step{
			create("{i}", ""), create("{j}", ""), aliases(add("{i}", "{a}", "")),
			{lines: lines(act("index", "{a}", "1", ""), `{}`), items: lines("201 created v1"), json: map[string]string{"items.0.index._index": "{i}"}},
			aliases(add("{j}", "{a}", "")),
			{lines: lines(act("index", "{a}", "1", ""), `{}`, act("delete", "{a}", "1", ""), act("index", "{i}", "2", ""), `{}`), items: lines(noWrite, noWrite, "201 created v1")},
			aliases(add("{j}", "{a}", `,"is_write_index":true`)),
			{lines: lines(act("index", "{a}", "1", ""), `{}`), items: lines("201 created v1"), json: map[string]string{"items.0.index._index": "{j}"}},
			aliases(`{"remove":{"index":"{i}","alias":"{a}"}},` + add("{j}", "{a}", `,"is_write_index":false`)),
			{lines: lines(act("index", "{a}", "1", ""), `{}`), items: lines(noWrite)},
			{path: "/_aliases", body: `{"actions":[{"remove":{"index":"{j}","alias":"{b}"}}]}`, status: 404, err: "aliases_not_found_exception: aliases [{b}] missing"},
			{path: "/_aliases", body: `{"actions":[` + add("{k}", "{b}", "") + `]}`, status: 404, err: "index_not_found_exception: no such index [{k}]"},
			{
				path: "/_aliases", body: `{"actions":[` + add("{i}", "{j}", "") + `]}`, status: 400,
				err: "invalid_alias_name_exception: Invalid alias name [{j}]... exists with the same name as the alias",
			},
			{method: http.MethodDelete, path: "/{a}", status: 400, err: "illegal_argument_exception: The provided expression [{a}] matches an alias, specify the corresponding concrete indices instead."},
			{method: http.MethodGet, path: "/_alias/{a}", json: map[string]string{"{j}.aliases.{a}.is_write_index": "false", "{i}": "-"}},
			{method: http.MethodGet, path: "/_alias/{b}", status: 404, err: "alias [{b}] missing"},
		}},
		{name: "all alias actions or none", steps: []step{
			create("{i}", ""),
			{path: "/_aliases", body: `{"actions":[` + add("{i}", "{a}", "") + `,` + add("{k}", "{a}", "") + `]}`, status: 404, err: "index_not_found_exception: no such index [{k}]"},
			{method: http.MethodHead, path: "/_alias/{a}", status: 404},
		}},
		{name: "require_alias", steps: []step{
			create("{i}", `{"aliases":{"{a}":{}}}`),
			{
				lines: lines(index("1", `,"require_alias":true`), `{}`, act("index", "{j}", "1", `,"require_alias":true`), `{}`, act("index", "{a}", "1", `,"require_alias":true`), `{}`, remove("1", `,"require_alias":true`)),
				items: lines("404 index_not_found_exception: no such index [{i}] and [require_alias] request flag is [true] and [{i}] is not an alias",
					"404 index_not_found_exception: no such index [{j}] and [require_alias] request flag is [true] and [{j}] is not an alias", "201 created v1", "200 deleted v2"),
			},
			{
				path: "/_bulk?require_alias=true", lines: lines(index("1", ""), `{}`),
				items: lines("404 index_not_found_exception: no such index [{i}] and [require_alias] request flag is [true] and [{i}] is not an alias"),
			},
			{method: http.MethodHead, path: "/{j}", status: 404},
		}},
		{name: "index names", steps: []step{
			{
				lines: lines(act("index", "{i}A", "1", ""), `{}`, act("index", "_x", "1", ""), `{}`, act("index", "a b", "1", ""), `{}`, act("index", "a#", "1", ""), `{}`, act("index", "", "1", ""), `{}`,
					act("index", "..", "1", ""), `{}`, act("index", strings.Repeat("x", 256), "1", ""), `{}`, act("index", "{i}", "1", ""), `{}`),
				items: lines("400 invalid_index_name_exception: Invalid index name [{i}A], must be lowercase",
					"400 invalid_index_name_exception: Invalid index name [_x], must not start with '_', '-', or '+'",
					`400 invalid_index_name_exception: Invalid index name [a b], must not contain the following characters [...`,
					"400 invalid_index_name_exception: Invalid index name [a#], must not contain '#'",
					"400 invalid_index_name_exception: Invalid index name [], must not be empty",
					"400 invalid_index_name_exception: Invalid index name [..], must not be '.' or '..'",
					"400 invalid_index_name_exception: Invalid index name ["+strings.Repeat("x", 256)+"], index name is too long, (256 > 255)",
					"201 created v1"),
			},
		}},
		{name: "write block", steps: []step{
			create("{i}", ""),
			{method: http.MethodPut, path: "/{i}/_block/write", json: map[string]string{"acknowledged": "true", "indices.0.blocked": "true"}},
			{lines: lines(index("1", ""), `{}`, remove("1", ""), act("index", "{j}", "1", ""), `{}`), items: lines(writeBlock, writeBlock, "201 created v1")},
			settings(`{"index.blocks.write":false}`),
			doc("1", `{}`, "201 created v1"),
			settings(`{"index":{"blocks":{"write":true}}}`),
			doc("1", `{}`, writeBlock),
			settings(`{"index.blocks.write":null}`),
			doc("1", `{}`, "200 updated v2"),
		}},
		{name: "flat settings", steps: []step{
			create("{i}", `{"settings":{"gc_deletes":"5m"}}`),
			{method: http.MethodGet, path: "/{i}", json: map[string]string{"{i}.settings.index.gc_deletes": "5m"}},
			{method: http.MethodGet, path: "/{i}?flat_settings=true", without: []string{"{i}.settings.index"}},
		}},
		{name: "flood stage", steps: []step{
			create("{i}", ""),
			settings(`{"index.blocks.read_only_allow_delete":true}`),
			{lines: lines(index("1", ""), `{}`, remove("1", "")), items: lines(flood, flood)},
			{method: http.MethodPut, path: "/{i}/_doc/1", body: `{}`, status: 429, err: strings.TrimPrefix(flood, "429 ")},
			settings(`{"index.blocks.read_only_allow_delete":null}`),
			doc("1", `{}`, "201 created v1"),
		}},
		{name: "read-only", steps: []step{
			create("{i}", ""), settings(`{"index.blocks.read_only":true}`),
			doc("1", `{}`, "403 cluster_block_exception: index [{i}] blocked by: [FORBIDDEN/5/index read-only (api)];"),
			settings(`{"index.blocks.read_only":null}`),
		}},
		{name: "closed index", steps: []step{
			create("{i}", ""),
			{path: "/{i}/_close"},
			{lines: lines(index("1", ""), `{}`, remove("1", "")), items: lines("400 index_closed_exception: closed", "400 index_closed_exception: closed")},
			{method: http.MethodGet, path: "/{i}/_doc/1", status: 400, err: "index_closed_exception: closed"},
			{path: "/{i}/_open"},
			{method: http.MethodGet, path: "/_cluster/health/{i}?wait_for_status=yellow", json: map[string]string{"timed_out": "false"}},
			doc("1", `{}`, "201 created v1"),
		}},
		{name: "a template that forbids auto-creation", elastic: true, steps: []step{
			{method: http.MethodPut, path: "/_index_template/{i}", body: `{"index_patterns":["{i}*"],"priority":900,"allow_auto_create":false}`},
			{
				lines: lines(index("1", ""), `{}`, remove("1", version("1"))),
				items: lines("404 index_not_found_exception: no such index [composable template [{i}*] forbids index auto creation]",
					"404 index_not_found_exception: no such index [composable template [{i}*] forbids index auto creation]"),
			},
			{method: http.MethodHead, path: "/{i}", status: 404},
			create("{i}", ""),
			doc("1", `{}`, "201 created v1"),
		}},
		{name: "a template", steps: []step{
			{method: http.MethodPut, path: "/_index_template/{i}", body: `{"index_patterns":["{i}*"],"priority":900,"template":{"settings":{"number_of_shards":2,"gc_deletes":"15m"},"mappings":{"dynamic":"strict"},"aliases":{"{a}":{}}}}`},
			{
				lines: lines(index("1", ""), `{"a":1}`, act("index", "{j}", "1", ""), `{"a":1}`),
				items: lines("400 strict_dynamic_mapping_exception: ...mapping set to strict, dynamic introduction of [a] within [_doc] is not allowed", "201 created v1"),
			},
			{method: http.MethodGet, path: "/{i}", json: map[string]string{"{i}.settings.index.number_of_shards": "2", "{i}.settings.index.gc_deletes": "15m", "{i}.mappings.dynamic": "strict", "{i}.aliases.{a}": "map[]"}},
			{method: http.MethodPost, path: "/_index_template/_simulate_index/{i}2", json: map[string]string{"template.settings.index.number_of_shards": "2", "template.settings.index.gc_deletes": "15m", "template.mappings.dynamic": "strict"}},
			{method: http.MethodPost, path: "/_index_template/_simulate_index/{i}2?flat_settings=true", status: 400, err: "illegal_argument_exception: request [/_index_template/_simulate_index/{i}2] contains unrecognized parameter: [flat_settings]..."},
			{method: http.MethodDelete, path: "/_index_template/{i}"},
			{method: http.MethodPost, path: "/_index_template/_simulate_index/{i}2", json: map[string]string{"template.settings.index.gc_deletes": "-"}},
			{method: http.MethodDelete, path: "/_index_template/{i}", status: 404, err: "index_template_missing_exception: index_template [{i}] missing"},
		}},
		{name: "create and delete an index", steps: []step{
			create("{i}", `{"mappings":{"_meta":{"job":"j"},"properties":{"k":{"type":"keyword"}}}}`),
			{method: http.MethodPut, path: "/{i}", status: 400, err: "resource_already_exists_exception: index [{i}/...] already exists"},
			{method: http.MethodPut, path: "/{j}", body: `{"foo":{}}`, status: 400, err: "parse_exception: unknown key [foo] for create index"},
			{method: http.MethodPut, path: "/{j}", body: `{"settings":{"foo":1}}`, status: 400, err: "illegal_argument_exception: unknown setting [index.foo] please check that any required plugins are installed, or check the breaking changes documentation for removed settings"},
			{method: http.MethodGet, path: "/{i}/_mapping", json: map[string]string{"{i}.mappings._meta.job": "j", "{i}.mappings.properties.k.type": "keyword"}},
			{method: http.MethodPut, path: "/{i}/_mapping", body: `{"properties":{"n":{"type":"long"}}}`},
			{method: http.MethodPut, path: "/{i}/_mapping", body: `{"properties":{"k":{"type":"long"}}}`, status: 400, err: "illegal_argument_exception: mapper [k] cannot be changed from type [keyword] to [long]"},
			{method: http.MethodDelete, path: "/{i}"},
			{method: http.MethodDelete, path: "/{i}", status: 404, err: "index_not_found_exception: no such index [{i}]"},
		}},
	}
}

func documentCases() []tcase {
	parsing := "400 document_parsing_exception: ..."
	var bad, fine, accepted, refused []string
	for _, d := range []string{
		`{"a":NaN}`, `{"a":-Infinity}`, `{"a":1}{"b":2}`, `{"a":1} x`, `{"_id":"x"}`, `{"_source":1}`, `[]`, `1`, `"x"`, `null`, `   `, `{a:1}`, `{'a':1}`,
		`{"a":1,"a":2}`, `{"a":{"b":1,"b":2}}`, `{"":1}`, `{"a..b":1}`, `{".":1}`, `{" ":1}`, `{"a":1`, `{"a":"x`, `{`, "{\"a\":\"\x01\"}", `{"a":tru}`, `{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":1,}`,
		`{"a":[1,]}`, `{"a":"\x"}`, "{\"a\":\"\xff\"}", "{\"a\":\"\xc3(\"}", `{"a\u0062":1,"ab":2}`, "#x", `{"a":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`,
	} {
		want := parsing
		if d == `{"a":1}{"b":2}` {
			want = "400 illegal_argument_exception: Malformed content, found extra data after parsing: START_OBJECT"
		}
		bad = append(bad, index("x", ""), d, index("good", ""), `{}`)
		refused = append(refused, want, "200 updated v*")
	}
	for _, d := range []string{
		`{}`, "\xef\xbb\xbf{}", `/*x*/{}`, `{}//x`, "\t{} ", `{"a":1e400}`, `{"a":"\ud800"}`, `{"a":99999999999999999999}`, "{\"a\":\"\xed\xa0\x80\"}", `{"a.":1}`,
		`{"x":{"_id":1}}`, `{"q.w":1,"q":{"w":2}}`, `{"a":` + strings.Repeat(`{"a":`, 25) + "1" + strings.Repeat("}", 26), `{"a":{"":1}}`,
	} {
		fine = append(fine, index("x", ""), d)
		accepted = append(accepted, "200 updated v*")
	}
	off := create("{i}", `{"mappings":{"dynamic":false}}`)
	fieldError := func(source, want string) step { return doc("1", source, "400 document_parsing_exception: "+want) }
	return []tcase{
		{name: "bad documents beside good ones", elastic: true, steps: []step{off, doc("good", `{}`, "201 created v1"), {lines: bad, items: refused}}},
		{name: "odd documents that are accepted", elastic: true, steps: []step{off, doc("x", `{}`, "201 created v1"), {lines: fine, items: accepted}}},
		{name: "field types", elastic: true, steps: []step{
			create("{i}", `{"mappings":{"properties":{"l":{"type":"long"},"i":{"type":"integer"},"f":{"type":"double"},"b":{"type":"boolean"},"d":{"type":"date"},"k":{"type":"keyword"},"t":{"type":"text"},"o":{"properties":{"x":{"type":"long"}}},"n":{"type":"object","enabled":false}}}}`),
			doc("1", `{"l":1,"i":1.5,"f":"1.5","b":"true","d":"2020-01-01","k":1,"t":true,"o":{"x":"3"},"n":[1,"x",{"y":2}]}`, "201 created v1"),
			doc("1", `{"l":"1.7","i":"","f":1e5,"b":false,"d":1577836800000,"k":["a",1],"t":null,"o":[{"x":1},{"x":2}],"n":1}`, "200 updated v2"),
			doc("1", `{"l":1e5,"d":"2020-01-01T00:00:00.123456789+02:00","o":null,"b":"","o.x":5}`, "200 updated v3"),
			fieldError(`{"l":"secret"}`, "[1:6] failed to parse field [l] of type [long] in document with id '1'. Preview of field's value: 'secret'"),
			fieldError(`{"l":[1,"x"]}`, "[1:9] failed to parse field [l] of type [long] in document with id '1'. Preview of field's value: 'x'"),
			fieldError(`{"l":{"a":1}}`, "[1:12] failed to parse field [l] of type [long] in document with id '1'. Preview of field's value: '{a=1}'"),
			fieldError(`{"l":99999999999999999999}`, "[1:6] failed to parse field [l] of type [long] in document with id '1'. Preview of field's value: '99999999999999999999'"),
			fieldError(`{"l":true}`, "[1:6] failed to parse field [l] of type [long] in document with id '1'. Preview of field's value: 'true'"),
			fieldError(`{"i":2147483648}`, "[1:6] failed to parse field [i] of type [integer] in document with id '1'. Preview of field's value: '2147483648'"),
			fieldError(`{"f":1e400}`, "[1:6] failed to parse field [f] of type [double] in document with id '1'. Preview of field's value: 'Infinity'"),
			fieldError(`{"b":1}`, "[1:6] failed to parse field [b] of type [boolean] in document with id '1'. Preview of field's value: '1'"),
			fieldError(`{"d":"2020-13-01"}`, "[1:6] failed to parse field [d] of type [date] in document with id '1'. Preview of field's value: '2020-13-01'"),
			fieldError(`{"k":{}}`, "[1:7] failed to parse field [k] of type [keyword] in document with id '1'. Preview of field's value: '{}'"),
			fieldError(`{"k":"`+strings.Repeat("x", 32767)+`"}`, "..."),
			fieldError(`{"o":1}`, "[1:6] object mapping for [o] tried to parse field [o] as object, but found a concrete value"),
			fieldError(`{"o":{"x":"y"}}`, "[1:11] failed to parse field [o.x] of type [long] in document with id '1'. Preview of field's value: 'y'"),
		}},
		{name: "strict mapping", steps: []step{
			create("{i}", `{"mappings":{"dynamic":"strict","properties":{"a":{"type":"long"},"o":{"properties":{"x":{"type":"long"}}}}}}`),
			doc("1", `{"a":1}`, "201 created v1"),
			doc("1", `{"b":1}`, "400 strict_dynamic_mapping_exception: ...mapping set to strict, dynamic introduction of [b] within [_doc] is not allowed"),
			doc("1", `{"o":{"y":1}}`, "400 strict_dynamic_mapping_exception: ...mapping set to strict, dynamic introduction of [y] within [o] is not allowed"),
		}},
		{name: "dynamic mapping", elastic: true, steps: []step{
			doc("1", `{"s":"x","l":1,"f":1.5,"b":true,"o":{"x":"y"},"d":"2020-01-01","n":null,"e":[],"p.q":1,"num":"12"}`, "201 created v1"),
			{method: http.MethodGet, path: "/{i}/_mapping", json: map[string]string{
				"{i}.mappings.properties.s.fields.keyword.type": "keyword", "{i}.mappings.properties.l.type": "long",
				"{i}.mappings.properties.f.type": "float", "{i}.mappings.properties.b.type": "boolean", "{i}.mappings.properties.o.properties.x.type": "text", "{i}.mappings.properties.d.type": "date",
				"{i}.mappings.properties.n": "-", "{i}.mappings.properties.e": "-", "{i}.mappings.properties.p.properties.q.type": "long", "{i}.mappings.properties.num.type": "text",
			}},
			doc("1", `{"l":"x"}`, parsing),
			doc("1", `{"mix":[1,"x"]}`, "400 ..."),
			doc("1", `{"a":`+strings.Repeat(`{"a":`, 25)+"1"+strings.Repeat("}", 26), "400 document_parsing_exception: ...Limit of mapping depth [20] has been exceeded..."),
		}},
		{name: "a refused document leaves the mapping alone", steps: []step{
			create("{i}", `{"mappings":{"properties":{"l":{"type":"long"}}}}`),
			doc("1", `{"fresh":1,"l":"x"}`, parsing),
			{method: http.MethodGet, path: "/{i}/_mapping", json: map[string]string{"{i}.mappings.properties.fresh": "-"}},
		}},
		{name: "a bad document before a stale version", steps: []step{
			create("{i}", `{"mappings":{"properties":{"l":{"type":"long"}}}}`),
			{lines: lines(index("1", version("5")), `{}`, index("1", version("4")), `{"l":"x"}`), items: lines("201 created v5", parsing)},
		}},
		{name: "field limit", elastic: true, steps: []step{
			create("{i}", `{"settings":{"index.mapping.total_fields.limit":3}}`),
			doc("1", `{"a":1,"b":2}`, "201 created v1"),
			doc("1", `{"c":1,"d":2}`, "400 document_parsing_exception: ...Limit of total fields [3] has been exceeded while adding new fields [2]"),
			doc("1", `{"s":"x"}`, "400 document_parsing_exception: ...Limit of total fields [3] has been exceeded while adding new fields [2]"),
			doc("1", `{"a":3}`, "200 updated v2"),
		}},
	}
}

func streamCases() []tcase {
	return []tcase{
		{name: "data streams", needs: DataStreams, elastic: true, steps: []step{
			{method: http.MethodPut, path: "/_index_template/{i}", body: `{"index_patterns":["{i}*"],"data_stream":{},"priority":901}`},
			{
				lines: lines(index("1", ""), `{"@timestamp":"2020-01-01T00:00:00Z"}`, act("create", "{i}", "1", ""), `{"@timestamp":"2020-01-01T00:00:00Z"}`, act("create", "{i}", "1", ""), `{"@timestamp":"2020-01-01T00:00:00Z"}`,
					act("create", "{i}", "2", ""), `{}`, act("create", "{i}", "3", ""), `{"@timestamp":"x"}`, remove("1", "")),
				items: lines("400 illegal_argument_exception: only write ops with an op_type of create are allowed in data streams", "201 created v1",
					"409 version_conflict_engine_exception: [1]: version conflict, document already exists (current version [1])",
					"400 document_parsing_exception: ...data stream timestamp field [@timestamp] is missing", "400 document_parsing_exception: ...failed to parse field [@timestamp] of type [date]...",
					"400 illegal_argument_exception: only write ops with an op_type of create are allowed in data streams"),
				json: map[string]string{"items.0.index._index": "{i}", "items.1.create._index": ".ds-{i}-...-000001"},
			},
			{method: http.MethodPut, path: "/{i}2", status: 400, err: "illegal_argument_exception: cannot create index with name [{i}2], because it matches with template [{i}] that creates data streams only, use create data stream api instead"},
		}},
		{name: "a drop processor", needs: DropProcessor, steps: []step{
			{method: http.MethodPut, path: "/_ingest/pipeline/{i}", body: `{"processors":[{"drop":{}}]}`},
			{
				lines: lines(index("1", `,"pipeline":"{i}"`), `{}`, act("create", "{i}", "2", `,"pipeline":"{i}"`), `{}`, index("3", ""), `{}`, index("4", `,"pipeline":"_none"`), `{}`),
				items: lines("200 noop v-3", "200 noop v-4", "201 created v1", "201 created v1"),
			},
			{lines: lines(index("4", ""), `{}`, index("5", `,"pipeline":"{j}"`), `{}`), items: lines("200 updated v2", "400 illegal_argument_exception: pipeline with id [{j}] does not exist")},
			{path: "/_bulk?pipeline={i}", lines: lines(index("6", ""), `{}`), items: lines("200 noop v-3")},
			{method: http.MethodGet, path: "/{i}/_doc/1", status: 404},
		}},
		{name: "drops and failures keep their places", needs: DropProcessor, elastic: true, steps: []step{
			{method: http.MethodPut, path: "/_ingest/pipeline/{i}", body: `{"processors":[{"drop":{}}]}`},
			{
				lines: lines(index("1", `,"pipeline":"{i}"`), `{}`, index("2", ""), `{}`, index("3", `,"pipeline":"{j}"`), `{}`, index("4", `,"pipeline":"{i}"`), `{}`),
				items: lines("200 noop v-3", "201 created v1", "400 illegal_argument_exception: ...", "200 noop v-3"),
			},
		}},
		{name: "drops and failures swap their places", needs: DropProcessor, opensearch: true, steps: []step{
			{method: http.MethodPut, path: "/_ingest/pipeline/{i}", body: `{"processors":[{"drop":{}}]}`},
			{
				lines: lines(index("1", `,"pipeline":"{i}"`), `{}`, index("2", ""), `{}`, index("3", `,"pipeline":"{j}"`), `{}`, index("4", `,"pipeline":"{i}"`), `{}`),
				// The pipelines end in the order of their threads.
				items:    lines("1 200 noop v-3", "2 201 created v1", "3 400 illegal_argument_exception: ...", "4 200 noop v-3"),
				anyOrder: true,
			},
		}},
		{name: "no template can forbid auto-creation", opensearch: true, steps: []step{
			{method: http.MethodPut, path: "/_index_template/{i}", body: `{"index_patterns":["{i}*"],"allow_auto_create":false}`, status: 400, err: "x_content_parse_exception: ...unknown field [allow_auto_create]"},
		}},
	}
}

func readCases() []tcase {
	return []tcase{
		{name: "documents one by one", steps: []step{
			{method: http.MethodPut, path: "/{i}/_doc/1?version=5&version_type=external", body: `{"a":1}`, status: 201, json: map[string]string{"_version": "5", "result": "created", "_seq_no": "0"}},
			{method: http.MethodPut, path: "/{i}/_doc/1?version=5&version_type=external", body: `{"a":1}`, status: 409, err: "version_conflict_engine_exception: [1]: version conflict, current version [5] is higher or equal to the one provided [5]"},
			{method: http.MethodPut, path: "/{i}/_create/1", body: `{}`, status: 409, err: "version_conflict_engine_exception: [1]: version conflict, document already exists (current version [5])"},
			{method: http.MethodPut, path: "/{i}/_doc/1?op_type=create", body: `{}`, status: 409, err: "version_conflict_engine_exception: ..."},
			{method: http.MethodPut, path: "/{i}/_doc/1?if_seq_no=7&if_primary_term=1", body: `{}`, status: 409, err: "version_conflict_engine_exception: [1]: version conflict, required seqNo [7], primary term [1]. current document has seqNo [0] and primary term [1]"},
			{method: http.MethodPut, path: "/{i}/_doc/1?if_seq_no=0&if_primary_term=1", body: `{"b":2}`, json: map[string]string{"_version": "6", "result": "updated"}},
			{method: http.MethodPut, path: "/{i}/_doc/2?if_seq_no=0&if_primary_term=1", body: `{}`, status: 409, err: "version_conflict_engine_exception: [2]: version conflict, required seqNo [0], primary term [1]. but no document was found"},
			{method: http.MethodGet, path: "/{i}/_doc/1", json: map[string]string{"found": "true", "_version": "6", "_seq_no": "1", "_primary_term": "1", "_source.b": "2"}},
			{method: http.MethodGet, path: "/{i}/_doc/none", status: 404, json: map[string]string{"found": "false"}, without: lines("error")},
			{method: http.MethodGet, path: "/{j}/_doc/1", status: 404, err: "index_not_found_exception: no such index [{j}]"},
			{method: http.MethodDelete, path: "/{i}/_doc/none", status: 404, json: map[string]string{"result": "not_found", "_version": "1"}},
			{method: http.MethodDelete, path: "/{i}/_doc/1?version=9&version_type=external", json: map[string]string{"result": "deleted", "_version": "9"}},
			{method: http.MethodPut, path: "/{i}/_doc/1?version=1", body: `{}`, status: 400, err: invalid + "internal versioning can not be used for optimistic concurrency control. Please use `if_seq_no` and `if_primary_term` instead;"},
			{method: http.MethodPut, path: "/{i}/_doc/1", status: 400, err: "parse_exception: request body is required"},
			{path: "/{i}/_mget", body: `{"ids":["1","2"]}`, json: map[string]string{"docs.0.found": "false", "docs.1.found": "false"}},
		}},
		{name: "searches see the refreshed state", steps: []step{
			create("{i}", `{"settings":{"refresh_interval":"-1"}}`),
			doc("1", `{"a":1}`, "201 created v1"),
			{method: http.MethodGet, path: "/{i}/_doc/1", json: map[string]string{"found": "true"}},
			{method: http.MethodGet, path: "/{i}/_doc/1?realtime=false", status: 404},
			{path: "/{i}/_count", json: map[string]string{"count": "0"}},
			refresh(),
			{path: "/{i}/_count", json: map[string]string{"count": "1"}},
			{lines: lines(remove("1", "")), items: lines("200 deleted v2")},
			{path: "/{i}/_count", json: map[string]string{"count": "1"}},
			{method: http.MethodGet, path: "/{i}/_doc/1", status: 404},
			{path: "/_bulk?refresh=true", lines: lines(index("2", ""), `{"a":2}`), items: lines("201 created v1"), json: map[string]string{"items.0.index.forced_refresh": "true"}},
			{path: "/{i}/_search", json: map[string]string{"hits.total.value": "1", "hits.hits.0._id": "2"}},
		}},
		{name: "pages by sequence number", steps: []step{
			create("{i}", `{"mappings":{"properties":{"k":{"type":"keyword"}}}}`),
			{
				path: "/_bulk?refresh=true", lines: lines(index("a", version("7")), `{"k":"x"}`, index("b", version("8")), `{"k":"y"}`, index("a", version("9")), `{"k":"z"}`, index("c", ""), `{}`),
				items: lines("201 created v7", "201 created v8", "200 updated v9", "201 created v1"),
			},
			{
				path: "/{i}/_search?preference=_shards:0&allow_partial_search_results=false", body: `{"size":2,"sort":["_seq_no"],"version":true,"seq_no_primary_term":true,"track_total_hits":false,"query":{"range":{"_seq_no":{"gt":0,"lte":3}}}}`,
				json: map[string]string{"_shards.total": "1", "hits.total": "-", "hits.hits.0._id": "b", "hits.hits.0._version": "8", "hits.hits.0._seq_no": "1", "hits.hits.1._id": "a", "hits.hits.1._version": "9", "hits.hits.1.sort.0": "2", "hits.hits.2": "-"},
			},
			{path: "/{i}/_search", body: `{"size":2,"sort":[{"_seq_no":"asc"}],"search_after":[2]}`, json: map[string]string{"hits.hits.0._id": "c", "hits.hits.1": "-", "hits.total.value": "3"}},
			{path: "/{i}/_search", body: `{"size":10001}`, status: 400, err: "search_phase_execution_exception: all shards failed"},
			{path: "/{i}/_search", body: `{"query":{"nope":{}}}`, status: 400, err: "parsing_exception: unknown query [nope]"},
			{path: "/{i}/_count", body: `{"query":{"term":{"k":"z"}}}`, json: map[string]string{"count": "1"}},
			{path: "/{i}/_count", body: `{"query":{"term":{"k":"x"}}}`, json: map[string]string{"count": "0"}},
			{path: "/{i}/_count", body: `{"query":{"terms":{"k":["y","z"]}}}`, json: map[string]string{"count": "2"}},
			{path: "/{i}/_count", body: `{"query":{"exists":{"field":"k"}}}`, json: map[string]string{"count": "2"}},
			{path: "/{i}/_count", body: `{"query":{"ids":{"values":["a","c","q"]}}}`, json: map[string]string{"count": "2"}},
			{path: "/{i}/_count", body: `{"query":{"bool":{"must_not":{"term":{"k":"z"}}}}}`, json: map[string]string{"count": "2"}},
			{method: http.MethodGet, path: "/{i}/_stats?level=shards", json: map[string]string{"indices.{i}.shards.0.0.seq_no.max_seq_no": "3", "_all.primaries.docs.count": "3"}},
		}},
		{name: "counts by the values of a field", steps: []step{
			create("{i}", `{"mappings":{"properties":{"k":{"type":"keyword","ignore_above":4},"t":{"type":"text"}}}}`),
			{
				path:  "/_bulk?refresh=true",
				lines: lines(index("1", ""), `{"k":"b","t":"x"}`, index("2", ""), `{"k":["a","b","b"]}`, index("3", ""), `{"k":"c"}`, index("4", ""), `{"k":"longer"}`, index("5", ""), `{}`),
				items: lines("201 created v1", "201 created v1", "201 created v1", "201 created v1", "201 created v1"),
			},
			{
				path: "/{i}/_search", body: `{"size":0,"track_total_hits":false,"aggs":{"by":{"composite":{"size":2,"sources":[{"value":{"terms":{"field":"k"}}}]}}}}`,
				json: map[string]string{
					"aggregations.by.buckets.0.key.value": "a", "aggregations.by.buckets.0.doc_count": "1", "aggregations.by.buckets.1.key.value": "b",
					"aggregations.by.buckets.1.doc_count": "2", "aggregations.by.buckets.2": "-", "aggregations.by.after_key.value": "b",
				},
			},
			{
				path: "/{i}/_search", body: `{"size":0,"aggs":{"by":{"composite":{"size":2,"sources":[{"value":{"terms":{"field":"k"}}}],"after":{"value":"b"}}}},"query":{"bool":{"must_not":{"term":{"k":"a"}}}}}`,
				json: map[string]string{"aggregations.by.buckets.0.key.value": "c", "aggregations.by.buckets.1": "-"},
			},
			{
				path: "/{i}/_search", body: `{"size":0,"aggs":{"by":{"composite":{"sources":[{"value":{"terms":{"field":"none"}}}]}}}}`,
				json: map[string]string{"aggregations.by.buckets.0": "-"},
			},
			{path: "/{i}/_search", body: `{"size":0,"aggs":{"by":{"composite":{"sources":[{"value":{"terms":{"field":"t"}}}]}}}}`, status: 400, err: "search_phase_execution_exception: all shards failed"},
		}},
		{name: "searches are counted", steps: []step{
			create("{i}", ``),
			{path: "/{i}/_search"},
			{path: "/{i}/_search"},
			{method: http.MethodGet, path: "/{i}/_stats/docs,store,search?level=shards", json: map[string]string{"indices.{i}.total.search.query_total": "2"}},
		}},
		{name: "an alias with a filter", steps: []step{
			create("{i}", `{"mappings":{"properties":{"gone":{"type":"boolean"}}},"aliases":{"{a}":{"filter":{"bool":{"must_not":{"term":{"gone":true}}}}}}}`),
			{path: "/_bulk?refresh=true", lines: lines(index("1", ""), `{"gone":true}`, index("2", ""), `{}`), items: lines("201 created v1", "201 created v1")},
			{path: "/{a}/_count", json: map[string]string{"count": "1"}},
			{path: "/{i}/_count", json: map[string]string{"count": "2"}},
			{path: "/{a}/_search", json: map[string]string{"hits.hits.0._id": "2", "hits.total.value": "1"}},
		}},
		{name: "routing", steps: []step{
			create("{i}", `{"settings":{"number_of_shards":3}}`),
			{path: "/_bulk?refresh=true", lines: lines(index("1", `,"routing":"r"`), `{}`), items: lines("201 created v1")},
			{method: http.MethodGet, path: "/{i}/_doc/1?routing=r", json: map[string]string{"_routing": "r", "found": "true"}},
			{path: "/{i}/_search", json: map[string]string{"hits.hits.0._routing": "r"}},
		}},
		{name: "no sort by id", elastic: true, steps: []step{
			create("{i}", ""),
			{path: "/{i}/_search", body: `{"sort":["_id"]}`, status: 400, err: "search_phase_execution_exception: all shards failed"},
		}},
		{name: "point in time", elastic: true, steps: []step{
			{path: "/_bulk?refresh=true", lines: lines(index("1", ""), `{}`), items: lines("201 created v1")},
			{path: "/{i}/_pit?keep_alive=1m", json: map[string]string{"_shards.failed": "0"}},
		}},
	}
}

func clusterCases() []tcase {
	return []tcase{
		{name: "no auto-creation", needs: Exclusive, steps: []step{
			{method: http.MethodPut, path: "/_cluster/settings", body: `{"persistent":{"action.auto_create_index":"false"}}`},
			{
				lines: lines(index("1", ""), `{}`, remove("1", version("1"))),
				items: lines("404 index_not_found_exception: no such index [{i}]...", "404 index_not_found_exception: no such index [{i}]..."),
			},
			{method: http.MethodPut, path: "/_cluster/settings", body: `{"persistent":{"action.auto_create_index":"-{i}*,+{j}*"}}`},
			{
				lines: lines(index("1", ""), `{}`, act("index", "{j}", "1", ""), `{}`, act("index", "{k}", "1", ""), `{}`),
				items: lines("404 index_not_found_exception: no such index [{i}]...", "201 created v1",
					"404 index_not_found_exception: no such index [{k}]..."),
			},
			{method: http.MethodPut, path: "/_cluster/settings", body: `{"persistent":{"action.auto_create_index":null}}`},
		}},
		{name: "shard limit", needs: Exclusive, steps: []step{
			{method: http.MethodPut, path: "/_cluster/settings", body: `{"persistent":{"cluster.max_shards_per_node":1}}`},
			{lines: lines(index("1", ""), `{}`), items: lines("400 validation_exception: Validation Failed: 1: this action would add [2] ...shards, but this cluster currently has [.../[1] maximum ...shards open...")},
			{method: http.MethodPut, path: "/_cluster/settings", body: `{"persistent":{"cluster.max_shards_per_node":null}}`},
			doc("1", `{}`, "201 created v1"),
		}},
		{name: "cluster", steps: []step{
			{method: http.MethodGet, path: "/", json: map[string]string{"version.number": "..."}},
			{method: http.MethodHead, path: "/"},
			{method: http.MethodGet, path: "/_cluster/health", json: map[string]string{"timed_out": "false"}},
			{method: http.MethodGet, path: "/?filter_path=version.number", without: lines("name", "version.lucene_version")},
			{method: http.MethodPut, path: "/_cluster/settings", body: `{"persistent":{"foo":1}}`, status: 400, err: "illegal_argument_exception: persistent setting [foo], not recognized"},
		}},
	}
}
