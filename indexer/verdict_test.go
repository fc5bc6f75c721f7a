package indexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// recorded is one exchange with a real server (testdata/*.json, recorded by
// TestRecord).
type recorded struct {
	Name    string            `json:"name"`
	Request []string          `json:"request"` // lines, long ones cut
	Actions int               `json:"actions"`
	Status  int               `json:"status"` // 0: no answer
	Header  map[string]string `json:"header"` // those that tell something
	Answer  string            `json:"answer"`
}

// itemAttempts is retry.item_attempts in these tests.
const itemAttempts = 10

func (v requestVerdict) String() string {
	s := map[requestKind]string{
		requestAnswered: "answered", requestUnknown: "unknown", requestThrottled: "throttled",
		requestSplit: "split", requestHoldAll: "hold all", requestCredentials: "hold all, credentials",
	}[v.kind]
	if v.final {
		s += ", final"
	}
	return s
}

func (v itemVerdict) String() string {
	switch v.kind {
	case itemDone:
		return [...]string{"", "indexed", "deleted", "stale", "ignored"}[v.outcome]
	case itemConflict:
		return fmt.Sprintf("conflict %d", v.stored)
	}
	return map[itemKind]string{
		itemLostRace: "lost race", itemThrottled: "throttled", itemUnknown: "unknown", itemHold: "hold",
		itemHoldCredentials: "hold, credentials", itemSecondTry: "second try", itemFailed: "failed", itemReject: "reject",
	}[v.kind]
}

// expected says, per recorded exchange, the verdict on the request or, where
// it is answered, on its actions, each on its first try.
var expected = map[string][]string{
	"written and deleted":               {"indexed", "indexed", "indexed", "indexed", "indexed", "deleted", "deleted", "deleted", "indexed", "indexed"},
	"update that changes nothing":       {"indexed", "indexed"},
	"dropped by a pipeline":             {"ignored"},
	"versions":                          {"indexed", "stale", "conflict 10", "conflict 10", "indexed", "conflict 10", "indexed", "stale", "conflict 9223372036854775807", "indexed", "conflict 12", "stale"},
	"deleted, then an older write":      {"deleted", "conflict 10"},
	"seqNo that moved":                  {"second try", "second try"}, // Sluice sends none with an index
	"bad documents":                     {"second try", "second try", "second try", "second try", "second try", "second try", "second try", "indexed", "second try", "second try"},
	"too many fields":                   {"second try"},
	"bad index names":                   {"second try", "second try", "second try"},
	"update of an absent document":      {"reject"},
	"closed index":                      {"hold"},
	"alias without a write index":       {"hold"},
	"require_alias":                     {"hold", "hold"},
	"require_alias for the request":     {"hold"},
	"auto-create off":                   {"hold", "hold", "hold"},
	"delete in a missing index":         {"hold"},
	"missing pipeline":                  {"hold"},
	"data stream":                       {"indexed", "hold", "second try", "stale"},
	"failure store":                     {"second try"},
	"write block":                       {"hold", "hold"},
	"read-only index":                   {"hold"},
	"flood stage":                       {"hold", "hold", "indexed"},
	"maximum shards":                    {"hold"},
	"unavailable shards":                {"hold"},
	"pipeline that fails":               {"failed"},
	"pipeline that calls itself":        {"failed"},
	"pipeline that calls a missing one": {"failed"},
	"rights: on one index only":         {"indexed", "hold, credentials", "hold, credentials"},

	"read-only cluster":                     {"hold all"},
	"request: id too long":                  {"split"},
	"request: create with a version":        {"split"},
	"request: update with a version":        {"split"},
	"request: version without id":           {"split"},
	"request: no last line break":           {"split"},
	"request: empty":                        {"split"},
	"request: unknown action":               {"split"},
	"request: unknown parameter":            {"split"},
	"request: body over the server's limit": {"split, final"},
	"request: indexing pressure":            {"split, final"}, // larger than all the room there is
	"request: circuit breaker":              {"throttled"},
	"request: wrong method":                 {"hold all"},
	"request: wrong path":                   {"hold all"},
	"request: wrong content type":           {"hold all"},
	"request: no gzip":                      {"unknown"},
	"rights: no credentials":                {"hold all, credentials"},
	"rights: wrong password":                {"hold all, credentials"},
	"rights: wrong API key":                 {"hold all, credentials"},
	"rights: none at all":                   {"hold all, credentials"},
}

// What real servers answer.
func TestRecordedAnswers(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no recorded answers", err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var exchanges []recorded
		if err := json.Unmarshal(raw, &exchanges); err != nil {
			t.Fatal(err)
		}
		for _, r := range exchanges {
			t.Run(filepath.Base(file)+"/"+r.Name, func(t *testing.T) {
				seen[r.Name] = true
				if got := judgeRecorded(t, r); !slices.Equal(got, expected[r.Name]) {
					t.Errorf("status %d, %s:\ngot  %q\nwant %q", r.Status, r.Answer, got, expected[r.Name])
				}
			})
		}
	}
	for name := range expected {
		if !seen[name] {
			t.Errorf("no server recorded %q", name)
		}
	}
}

// judgeRecorded returns the verdict on the request or on each of its actions.
func judgeRecorded(t *testing.T, r recorded) []string {
	var noAnswer error
	if r.Status == 0 {
		noAnswer = errors.New("EOF")
	}
	v := judgeRequest(noAnswer, r.Status, []byte(r.Answer))
	if v.kind != requestAnswered {
		return []string{v.String()}
	}
	var sent []bulk.Sent
	for lines := r.Request; len(lines) > 0; {
		n := 2
		if strings.HasPrefix(lines[0], `{"delete"`) {
			n = 1
		}
		sent = append(sent, bulk.Open([]byte(strings.Join(lines[:n], "\n")+"\n")))
		lines = lines[n:]
	}
	verdicts := make([]string, len(sent))
	for i, s := range sent {
		verdicts[i] = "indexed"
		if s.Op == bulk.Delete {
			verdicts[i] = "deleted"
		}
	}
	var failures []failure
	refs := make([]ref, len(sent))
	for i, s := range sent {
		refs[i] = ref{c: &chunk{entries: []entry{{op: s.Op}}}}
	}
	sum, err := bulk.Decode([]byte(r.Answer), r.Actions, func(i int, it bulk.Item) {
		failures = append(failures, failure{i, it})
		a := tried{op: sent[i].Op, versionType: sent[i].VersionType, version: sent[i].Version}
		verdicts[i] = judgeItem(&it, a, itemAttempts).String()
	})
	if err != nil {
		t.Fatal(err)
	}
	if !tellsOf(refs, failures, sum.Deleted) {
		t.Error("it is taken for the answer to other actions")
	}
	for n := range r.Answer { // wherever it is cut
		if _, err := bulk.Decode([]byte(r.Answer[:n]), r.Actions, func(int, bulk.Item) {}); err == nil {
			t.Fatalf("accepted when cut after %d bytes", n)
		}
	}
	return verdicts
}

func TestJudgeRequest(t *testing.T) {
	typed := func(errorType string) string {
		return `{"error":{"root_cause":[{"type":"other","reason":"r"}],"type":"` + errorType + `","reason":"r"},"status":0}`
	}
	for _, c := range []struct {
		err    error
		status int
		body   string
		want   string
	}{
		{errors.New("connection reset by peer"), 0, "", "unknown"},
		{errors.New("unexpected EOF"), 200, `{"errors":false,`, "unknown"},
		{nil, 200, `{"errors":false,"items":[]}`, "answered"},
		{nil, 200, `<html>`, "answered"}, // bulk.Decode refuses it
		{nil, 201, ``, "unknown"},
		{nil, 204, ``, "unknown"},
		{nil, 206, ``, "unknown"},
		{nil, 0, ``, "unknown"},
		{nil, 301, ``, "hold all"},
		{nil, 307, `<html>`, "hold all"},
		{nil, 400, typed("illegal_argument_exception"), "split"},
		{nil, 400, typed("never_heard_of_exception"), "split"},
		{nil, 400, `<html>Bad Request</html>`, "split"},
		{nil, 400, `{"error":"no handler found for uri [/x/_bulk] and method [POST]"}`, "hold all"},
		{nil, 401, ``, "hold all, credentials"},
		{nil, 403, `<html>Forbidden</html>`, "hold all, credentials"},
		{nil, 403, typed("security_exception"), "hold all, credentials"},
		{nil, 403, typed("cluster_block_exception"), "hold all"},
		{nil, 429, typed("cluster_block_exception"), "hold all"},
		{nil, 503, typed("cluster_block_exception"), "unknown"}, // no master, not recovered
		{nil, 404, `<html>Not Found</html>`, "hold all"},
		{nil, 404, typed("index_not_found_exception"), "hold all"},
		{nil, 405, ``, "hold all"},
		{nil, 406, ``, "hold all"},
		{nil, 415, ``, "hold all"},
		{nil, 408, ``, "unknown"},
		{nil, 425, ``, "unknown"},
		{nil, 413, ``, "split, final"},
		{nil, 413, `<html>`, "split, final"},
		{nil, 422, ``, "split"},
		{nil, 429, ``, "throttled"},
		{nil, 429, typed("es_rejected_execution_exception"), "throttled"},
		{nil, 429, typed("rejected_execution_exception"), "throttled"},
		{nil, 429, typed("circuit_breaking_exception"), "throttled"},
		{nil, 503, typed("es_rejected_execution_exception"), "throttled"},
		{nil, 503, typed("circuit_breaking_exception"), "throttled"},
		{nil, 400, typed("es_rejected_execution_exception"), "throttled"},
		{nil, 500, typed("null_pointer_exception"), "unknown"},
		{nil, 500, ``, "unknown"},
		{nil, 502, `<html>`, "unknown"},
		{nil, 503, `upstream connect error`, "unknown"},
		{nil, 504, ``, "unknown"},
		{nil, 503, typed("security_exception"), "unknown"}, // the security index is away
		{nil, 520, ``, "unknown"},
	} {
		if v := judgeRequest(c.err, c.status, []byte(c.body)); v.String() != c.want {
			t.Errorf("%v %d %s: %v, want %s", c.err, c.status, c.body, v, c.want)
		} else if v.kind != requestAnswered && v.errorType == "" {
			t.Errorf("%v %d %s: no error type", c.err, c.status, c.body)
		}
	}
}

func TestJudgeItem(t *testing.T) {
	const (
		higher  = "[k]: version conflict, current version [12] is higher or equal to the one provided [10]"
		same    = "[k]: version conflict, current version [10] is higher or equal to the one provided [10]"
		lower   = "[k]: version conflict, current version [9] is higher or equal to the one provided [10]"
		other   = "[k]: version conflict, current version [12] is higher or equal to the one provided [11]"
		gte     = "[k]: version conflict, current version [12] is higher than the one provided [10]"
		exists  = "[k]: version conflict, document already exists (current version [1])"
		seqNo   = "[k]: version conflict, required seqNo [5], primary term [1]. current document has seqNo [6] and primary term [1]"
		vce     = "version_conflict_engine_exception"
		illegal = "illegal_argument_exception"
	)
	index := tried{op: bulk.Index, versionType: bulk.External, version: 10}
	gteIndex := tried{op: bulk.Index, versionType: bulk.ExternalGTE, version: 10}
	plain := tried{op: bulk.Index}
	create := tried{op: bulk.Create}
	update := tried{op: bulk.Update}
	upsert := tried{op: bulk.Upsert}
	del := tried{op: bulk.Delete, versionType: bulk.External, version: 10}
	with := func(a tried, change func(*tried)) tried { change(&a); return a }
	refused := func(a tried) tried { return with(a, func(a *tried) { a.refused = 1 }) }

	for _, c := range []struct {
		status    int
		result    bulk.Result
		errorType string // "": no error; "-": an error without a type
		reason    string
		a         tried
		want      string
	}{
		// Done. Decode visits the first four only where something is odd.
		{201, bulk.Created, "", "", index, "indexed"},
		{200, bulk.Updated, "", "", index, "indexed"},
		{200, bulk.Deleted, "", "", del, "deleted"},
		{404, bulk.NotFound, "", "", del, "deleted"},
		{200, bulk.Noop, "", "", index, "ignored"},
		{200, bulk.Noop, "", "", create, "ignored"},
		{200, bulk.Noop, "", "", update, "indexed"},
		{200, bulk.Noop, "", "", upsert, "indexed"},
		{200, bulk.Other, "", "", index, "indexed"},

		// Successes that are none.
		{404, bulk.NotFound, "", "", index, "second try"},
		{404, bulk.Other, "", "", del, "second try"},
		{202, bulk.Created, "", "", index, "failed"},
		{200, bulk.Created, "never_heard_of_exception", "", index, "failed"},
		{200, bulk.Created, "-", "", index, "failed"},
		{0, bulk.Other, "", "", index, "failed"},

		// Conflicts (5.3).
		{409, 0, vce, same, index, "stale"},
		{409, 0, vce, same, del, "stale"},
		{409, 0, vce, higher, index, "conflict 12"},
		{409, 0, vce, higher, del, "conflict 12"},
		{409, 0, vce, gte, gteIndex, "conflict 12"},
		{409, 0, vce, exists, create, "stale"},
		{409, 0, vce, seqNo, update, "lost race"},
		{409, 0, vce, seqNo, upsert, "lost race"},
		{409, 0, vce, exists, upsert, "lost race"}, // another made it first
		// Not understood: never swallowed.
		{409, 0, vce, lower, index, "second try"},
		{409, 0, vce, other, index, "second try"},
		{409, 0, vce, higher, plain, "second try"},
		{409, 0, vce, exists, index, "second try"},
		{409, 0, vce, seqNo, index, "second try"},
		{409, 0, vce, "", refused(index), "reject"},
		{409, 0, "never_heard_of_exception", "", index, "second try"},

		// Throttled.
		{429, 0, "es_rejected_execution_exception", "", index, "throttled"},
		{429, 0, "rejected_execution_exception", "", index, "throttled"},
		{503, 0, "es_rejected_execution_exception", "", index, "throttled"},
		{429, 0, "circuit_breaking_exception", "", index, "throttled"},
		{503, 0, "circuit_breaking_exception", "", index, "throttled"},
		{429, 0, "never_heard_of_exception", "", index, "throttled"},
		{429, 0, "-", "", index, "throttled"},

		// The target's fault, whatever the status.
		{403, 0, "cluster_block_exception", "", index, "hold"},
		{429, 0, "cluster_block_exception", "", index, "hold"},
		{503, 0, "cluster_block_exception", "", del, "hold"},
		{400, 0, "index_closed_exception", "", index, "hold"},
		{404, 0, "index_not_found_exception", "", index, "hold"},
		{404, 0, "index_not_found_exception", "", del, "hold"},
		{503, 0, "unavailable_shards_exception", "", index, "hold"},
		{503, 0, "no_shard_available_action_exception", "", index, "hold"},
		{503, 0, "process_cluster_event_timeout_exception", "", index, "hold"},
		{503, 0, "master_not_discovered_exception", "", index, "hold"},
		{500, 0, "not_master_exception", "", index, "hold"},
		{502, 0, "never_heard_of_exception", "", index, "hold"},
		{503, 0, "never_heard_of_exception", "", index, "hold"},
		{504, 0, "-", "", index, "hold"},
		{400, 0, "validation_exception", "Validation Failed: 1: this action would add [2] shards, but this cluster currently has [22]/[1] maximum normal shards open;", index, "hold"},
		{400, 0, "validation_exception", "Validation Failed: 1: type is missing;", index, "second try"},
		{400, 0, illegal, "no write index is defined for alias [al]. The write index", index, "hold"},
		{400, 0, illegal, "pipeline with id [p] does not exist", index, "hold"},
		{400, 0, illegal, "only write ops with an op_type of create are allowed in data streams", index, "hold"},
		// A document cannot hold its target by quoting such a text.
		{400, 0, illegal, "failed at 'no write index is defined for alias [al]'", index, "second try"},
		{400, 0, "document_parsing_exception", "no write index is defined for alias [al]", index, "second try"},

		// Rights.
		{403, 0, "security_exception", "", index, "hold, credentials"},
		{401, 0, "security_exception", "", index, "hold, credentials"},
		{403, 0, "never_heard_of_exception", "", index, "hold, credentials"},
		{401, 0, "-", "", index, "hold, credentials"},

		// Interrupted.
		{500, 0, "node_disconnected_exception", "", index, "unknown"},
		{503, 0, "node_closed_exception", "", index, "unknown"},
		{500, 0, "already_closed_exception", "", index, "unknown"},
		{404, 0, "shard_not_found_exception", "", index, "unknown"},

		// The record's fault: one second try.
		{404, 0, "document_missing_exception", "", update, "reject"},
		{400, 0, "document_parsing_exception", "", index, "second try"},
		{400, 0, "mapper_parsing_exception", "", index, "second try"},
		{400, 0, "strict_dynamic_mapping_exception", "", index, "second try"},
		{400, 0, "invalid_index_name_exception", "", index, "second try"},
		{400, 0, illegal, "Limit of total fields [1] has been exceeded", index, "second try"},
		{400, 0, "never_heard_of_exception", "", index, "second try"},
		{400, 0, "-", "", index, "second try"},
		{413, 0, "never_heard_of_exception", "", index, "second try"},
		{400, 0, "document_parsing_exception", "", refused(index), "reject"},
		{404, 0, "never_heard_of_exception", "", refused(index), "reject"},

		// The server's failure: counted.
		{500, 0, "null_pointer_exception", "", index, "failed"},
		{500, 0, "fail_processor_exception", "", with(index, func(a *tried) { a.failed = itemAttempts - 2; a.neighbours = true }), "failed"},
		{500, 0, "fail_processor_exception", "", with(index, func(a *tried) { a.failed = itemAttempts - 1; a.neighbours = true }), "reject"},
		{500, 0, "fail_processor_exception", "", with(index, func(a *tried) { a.failed = itemAttempts - 1 }), "hold"},
		{500, 0, "fail_processor_exception", "", with(index, func(a *tried) { a.failed = 1000 }), "hold"},
		{500, 0, "fail_processor_exception", "", with(index, func(a *tried) { a.refused = 1 }), "failed"},
		{400, 0, "document_parsing_exception", "", with(index, func(a *tried) { a.failed = 3 }), "second try"},
	} {
		it := bulk.Item{Op: c.a.op, Status: c.status, Result: c.result, Failed: c.errorType != "", Reason: bulk.Text(c.reason)}
		if c.errorType != "" && c.errorType != "-" {
			it.Type = bulk.Text(c.errorType)
		}
		if got := judgeItem(&it, c.a, itemAttempts).String(); got != c.want {
			t.Errorf("%d %s %q of %+v: %s, want %s", c.status, c.errorType, c.reason, c.a, got, c.want)
		}
	}
}

// Every answer has a verdict; no refusal is taken for a success; nothing is
// tried for ever unless its cause is known to lie outside the record.
func FuzzJudgeItem(f *testing.F) {
	f.Add(409, uint8(0), true, "version_conflict_engine_exception", "[1]: version conflict, current version [10] is higher or equal to the one provided [10]", uint8(1), uint8(1), int64(10), 0, 0, false)
	f.Add(500, uint8(0), true, "null_pointer_exception", "", uint8(2), uint8(0), int64(0), 0, 9, true)
	f.Add(200, uint8(5), false, "", "", uint8(1), uint8(0), int64(0), 0, 0, false)
	f.Fuzz(func(t *testing.T, status int, result uint8, failed bool, errorType, reason string, op, versionType uint8, version int64, refused, fails int, neighbours bool) {
		it := bulk.Item{Status: status, Result: bulk.Result(result), Failed: failed, Type: bulk.Text(errorType), Reason: bulk.Text(reason)}
		a := tried{op: bulk.Index + bulk.Op(op%5), versionType: bulk.VersionType(versionType % 3), version: version, refused: max(refused, 0), failed: max(fails, 0), neighbours: neighbours}
		if !failed {
			it.Type, it.Reason = nil, nil
		}
		v := judgeItem(&it, a, itemAttempts)
		switch v.kind {
		case itemDone:
			if v.outcome < Indexed || v.outcome > Ignored {
				t.Fatalf("done without an outcome: %+v", v)
			}
			if failed && errorType != "version_conflict_engine_exception" {
				t.Fatalf("%d %s is done", status, errorType)
			}
		case itemConflict:
			if v.stored <= a.version {
				t.Fatalf("conflict with a version that is not higher: %d, sent %d", v.stored, a.version)
			}
		case itemSecondTry:
			if a.refused > 0 {
				t.Fatal("a third try")
			}
		case itemFailed:
			if a.failed+1 >= itemAttempts {
				t.Fatalf("failed %d times and is tried again", a.failed+1)
			}
		case itemLostRace, itemThrottled, itemUnknown, itemHold, itemHoldCredentials, itemReject:
		default:
			t.Fatalf("no verdict: %+v", v)
		}
		if errorTypeOf(&it) == "" {
			t.Fatal("no error type")
		}
	})
}

func FuzzJudgeRequest(f *testing.F) {
	f.Add(413, []byte(nil))
	f.Add(400, []byte(`{"error":{"type":"illegal_argument_exception","reason":"r"},"status":400}`))
	f.Add(429, []byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		v := judgeRequest(nil, status, body)
		if v.kind < requestAnswered || v.kind > requestCredentials {
			t.Fatalf("no verdict: %+v", v)
		}
		if (v.kind == requestAnswered) != (status == 200) {
			t.Fatalf("status %d: %v", status, v)
		}
		if v.final && v.kind != requestSplit {
			t.Fatalf("final, but not split: %v", v)
		}
	})
}

// What holds a target for want of a right names it, and never quotes a reason
// that may hold a document.
func TestHeldByNamesTheRight(t *testing.T) {
	const refused = "action [indices:data/write/index:op_type/index] is unauthorized for user [u] with effective roles [r] on indices [i], this action is granted by the index privileges [index,write,all]"
	for _, c := range []struct {
		errorType string
		status    int
		reason    string
		want      string
	}{
		{"security_exception", 403, refused, "security_exception: the credentials' role must hold one of the privileges index, write, all on it"},
		{"security_exception", 403, "no permissions for [indices:data/write/bulk] and User [name=u]", "security_exception: the credentials' role must allow indices:data/write/bulk on it"},
		{"security_exception", 403, "this action is granted by the index privileges [", "security_exception"},
		{
			"security_exception", 403, "no permissions for [indices:data/write/bulk[s], indices:data/write/delete] and User [name=sluice, backend_roles=[], requestedTenant=null]",
			"security_exception: the credentials' role must allow indices:data/write/bulk[s], indices:data/write/delete on it",
		},
		{"security_exception", 403, "no permissions for [] and User [name=sluice, backend_roles=[], requestedTenant=null]", "security_exception"},
		{"security_exception", 401, "api key [x] has been invalidated", "security_exception: the credentials are refused: correct the API key, or username and password"},
		{"http_401", 401, "", "http_401: the credentials are refused: correct the API key, or username and password"},
		{"index_closed_exception", 400, refused, "index_closed_exception"},
	} {
		if got := heldBy(c.errorType, c.status, c.reason); got != c.want {
			t.Errorf("%s %d %s: %s, want %s", c.errorType, c.status, c.reason, got, c.want)
		}
	}
}
