//go:build record

package indexer_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/indexer/bulk"
)

// TestRecord records what a real server answers to each exchange below, into
// testdata/RECORD_AS.json. The server needs no data, and should be started with
// http.max_content_length=1mb, indexing_pressure.memory.limit=200kb and
// cluster.routing.allocation.disk.threshold_enabled=false. With
// RECORD_PASSWORD (user elastic) the exchanges about rights are recorded.
//
//	RECORD_URL=http://127.0.0.1:9200 RECORD_AS=elasticsearch-8.19.21 go test -tags record -run TestRecord ./indexer
func TestRecord(t *testing.T) {
	r := recorder{t: t, url: os.Getenv("RECORD_URL"), password: os.Getenv("RECORD_PASSWORD")}
	if r.url == "" {
		t.Skip("RECORD_URL is not set")
	}
	if r.password == "" {
		for _, e := range exchanges {
			r.record(e)
		}
	} else {
		r.rights()
	}
	file, err := os.Create(filepath.Join("testdata", os.Getenv("RECORD_AS")+".json"))
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(file)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(r.out); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

type recorder struct {
	t             *testing.T
	url, password string
	auth          string
	out           []recorded
}

// recorded is as in verdict_test.go.
type recorded struct {
	Name    string            `json:"name"`
	Request []string          `json:"request"`
	Actions int               `json:"actions"`
	Status  int               `json:"status"`
	Header  map[string]string `json:"header"`
	Answer  string            `json:"answer"`
}

type call struct{ method, path, body string }

// exchange is setup calls, one request that is recorded, and calls that undo
// the setup. Where a setup call fails, the server lacks what it takes.
type exchange struct {
	name    string
	setup   []call
	actions []bulk.Action
	raw     string // instead of actions
	n       int    // actions in raw
	method  string // POST
	path    string // /_bulk
	query   string
	typ     string // application/x-ndjson
	undo    []call
}

func put(path, body string) call { return call{"PUT", path, body} }

func setting(k, v string) call {
	return put("/_cluster/settings", fmt.Sprintf(`{"persistent":{%q:%s}}`, k, v))
}

func index(target, id, body string) bulk.Action {
	return bulk.Action{Op: bulk.Index, Target: target, ID: []byte(id), Body: []byte(body)}
}

func external(a bulk.Action, version int64) bulk.Action {
	a.VersionType, a.Version = bulk.External, version
	return a
}

func as(op bulk.Op, a bulk.Action) bulk.Action {
	a.Op = op
	if op == bulk.Delete {
		a.Body = nil
	}
	return a
}

func routed(a bulk.Action, pipeline string, requireAlias bool) bulk.Action {
	a.Pipeline, a.RequireAlias = pipeline, requireAlias
	return a
}

const imitation = "1]: version conflict, current version [7] is higher or equal to the one provided [7]"

var exchanges = []exchange{
	{
		name: "written and deleted",
		actions: []bulk.Action{
			index("ok", "1", `{"a":1}`), index("ok", "1", `{"a":2}`), external(index("ok", "2", `{}`), 5), as(bulk.Create, index("ok", "3", `{}`)),
			index("ok", "", `{}`), as(bulk.Delete, index("ok", "1", "")), as(bulk.Delete, index("ok", "absent", "")),
			external(as(bulk.Delete, index("ok", "absent too", "")), 7), as(bulk.Upsert, index("ok", "u", `{"a":1}`)), as(bulk.Update, index("ok", "u", `{"a":2}`)),
		},
	},
	{name: "update that changes nothing", actions: []bulk.Action{as(bulk.Upsert, index("ok", "n", `{"a":1}`)), as(bulk.Upsert, index("ok", "n", `{"a":1}`))}},
	{name: "dropped by a pipeline", setup: []call{put("/_ingest/pipeline/drop", `{"processors":[{"drop":{}}]}`)}, actions: []bulk.Action{routed(index("ok", "d", `{}`), "drop", false)}},
	{
		name: "versions",
		actions: []bulk.Action{
			external(index("v", "1", `{}`), 10), external(index("v", "1", `{}`), 10), external(index("v", "1", `{}`), 9), external(as(bulk.Delete, index("v", "1", "")), 9),
			{Op: bulk.Index, Target: "v", ID: []byte("1"), VersionType: bulk.ExternalGTE, Version: 10, Body: []byte(`{}`)},
			{Op: bulk.Index, Target: "v", ID: []byte("1"), VersionType: bulk.ExternalGTE, Version: 9, Body: []byte(`{}`)},
			external(index("v", "top", `{}`), 1<<63-1), external(index("v", "top", `{}`), 1<<63-1), external(index("v", "top", `{}`), 9007199254741248),
			external(index("v", imitation, `{}`), 12), external(index("v", imitation, `{}`), 3), as(bulk.Create, index("v", imitation, `{}`)),
		},
	},
	{name: "deleted, then an older write", actions: []bulk.Action{external(as(bulk.Delete, index("v", "gone", "")), 10), external(index("v", "gone", `{}`), 5)}},
	{name: "seqNo that moved", n: 2, raw: `{"index":{"_index":"v","_id":"1","if_seq_no":5000,"if_primary_term":1}}` + "\n{}\n" + `{"index":{"_index":"v","_id":"none","if_seq_no":5,"if_primary_term":1}}` + "\n{}\n"},
	{
		name:  "bad documents",
		setup: []call{put("/strict", `{"mappings":{"dynamic":"strict","properties":{"a":{"type":"long"}}}}`)},
		actions: []bulk.Action{
			index("strict", "1", `{"a":"x"}`), index("strict", "2", `{"b":1}`), index("strict", "3", `{"a":`), index("strict", "4", `{"a":1}{"a":2}`),
			index("strict", "5", `{"a":NaN}`), index("strict", "6", `[1]`), index("strict", "7", `{"a":1,"_id":"x"}`), index("strict", "ok", `{"a":1}`),
			index("strict", "8", `{"a":"no write index is defined for alias [x]"}`), index("strict", "9", `{"pipeline with id [x] does not exist":1}`),
		},
	},
	{name: "too many fields", setup: []call{put("/few", `{"settings":{"index.mapping.total_fields.limit":1}}`)}, actions: []bulk.Action{index("few", "1", `{"a":1,"b":2}`)}},
	{name: "bad index names", actions: []bulk.Action{index("UPPER", "1", `{}`), index("_under", "1", `{}`), index("a*b", "1", `{}`)}},
	{name: "update of an absent document", actions: []bulk.Action{as(bulk.Update, index("ok", "nobody", `{}`))}},
	{name: "closed index", setup: []call{put("/closed", `{}`), {"POST", "/closed/_close", ""}}, actions: []bulk.Action{index("closed", "1", `{}`)}},
	{
		name:    "alias without a write index",
		setup:   []call{put("/al1", `{}`), put("/al2", `{}`), {"POST", "/_aliases", `{"actions":[{"add":{"indices":["al1","al2"],"alias":"al"}}]}`}},
		actions: []bulk.Action{index("al", "1", `{}`)},
	},
	{name: "require_alias", actions: []bulk.Action{routed(index("noalias", "1", `{}`), "", true), routed(index("ok", "1", `{}`), "", true)}},
	{name: "require_alias for the request", query: "&require_alias=true", actions: []bulk.Action{index("noalias", "1", `{}`)}},
	{
		name: "auto-create off", setup: []call{setting("action.auto_create_index", `"-noauto*,+*"`)}, undo: []call{setting("action.auto_create_index", "null")},
		actions: []bulk.Action{index("noauto", "1", `{}`), external(as(bulk.Delete, index("noauto", "1", "")), 3), as(bulk.Delete, index("noauto", "1", ""))},
	},
	{name: "delete in a missing index", actions: []bulk.Action{as(bulk.Delete, index("nothere", "1", ""))}},
	{name: "missing pipeline", actions: []bulk.Action{routed(index("ok", "1", `{}`), "nopipeline", false)}},
	{
		name: "data stream", setup: []call{put("/_index_template/ds", `{"index_patterns":["ds-*"],"data_stream":{}}`)},
		actions: []bulk.Action{
			as(bulk.Create, index("ds-a", "1", `{"@timestamp":"2026-01-01"}`)), index("ds-a", "1", `{"@timestamp":"2026-01-01"}`), as(bulk.Create, index("ds-a", "2", `{}`)),
			as(bulk.Create, index("ds-a", "1", `{"@timestamp":"2026-01-01"}`)),
		},
	},
	{
		name: "failure store", setup: []call{put("/_index_template/fs", `{"index_patterns":["fs-*"],"priority":5,"data_stream":{},"template":{"data_stream_options":{"failure_store":{"enabled":true}}}}`)},
		actions: []bulk.Action{as(bulk.Create, index("fs-a", "1", `{"@timestamp":"not a date"}`))},
	},
	{name: "write block", setup: []call{put("/wb", `{"settings":{"index.blocks.write":true}}`)}, actions: []bulk.Action{index("wb", "1", `{}`), as(bulk.Delete, index("wb", "1", ""))}},
	{name: "read-only index", setup: []call{put("/ro", `{}`), put("/ro/_settings", `{"index.blocks.read_only":true}`)}, actions: []bulk.Action{index("ro", "1", `{}`)}},
	{
		name:  "flood stage",
		setup: []call{put("/flood", `{}`), put("/flood/_settings", `{"index.blocks.read_only_allow_delete":true}`)}, actions: []bulk.Action{index("flood", "1", `{}`), as(bulk.Delete, index("flood", "1", "")), index("ok", "1", `{}`)},
	},
	{name: "read-only cluster", setup: []call{setting("cluster.blocks.read_only", "true")}, undo: []call{setting("cluster.blocks.read_only", "null")}, actions: []bulk.Action{index("ok", "1", `{}`)}},
	{name: "maximum shards", setup: []call{setting("cluster.max_shards_per_node", "1")}, undo: []call{setting("cluster.max_shards_per_node", "null")}, actions: []bulk.Action{index("onemore", "1", `{}`)}},
	{
		name: "unavailable shards", setup: []call{put("/nowhere?wait_for_active_shards=0", `{"settings":{"index.routing.allocation.require.x":"y"}}`)},
		query: "&timeout=100ms", actions: []bulk.Action{index("nowhere", "1", `{}`)},
	},
	{
		name: "pipeline that fails", setup: []call{put("/_ingest/pipeline/fails", `{"processors":[{"fail":{"message":"on purpose"}}]}`)},
		actions: []bulk.Action{routed(index("ok", "1", `{}`), "fails", false)},
	},
	{
		name: "pipeline that calls itself", setup: []call{put("/_ingest/pipeline/cycle", `{"processors":[{"pipeline":{"name":"cycle"}}]}`)},
		actions: []bulk.Action{routed(index("ok", "1", `{}`), "cycle", false)},
	},
	{
		name: "pipeline that calls a missing one", setup: []call{put("/_ingest/pipeline/calls", `{"processors":[{"pipeline":{"name":"nopipeline"}}]}`)},
		actions: []bulk.Action{routed(index("ok", "1", `{}`), "calls", false)},
	},
	{name: "request: id too long", actions: []bulk.Action{index("ok", "1", `{}`), index("ok", strings.Repeat("x", 513), `{}`)}},
	{name: "request: create with a version", actions: []bulk.Action{external(as(bulk.Create, index("ok", "1", `{}`)), 1)}},
	{name: "request: update with a version", actions: []bulk.Action{external(as(bulk.Upsert, index("ok", "1", `{}`)), 1)}},
	{name: "request: version without id", actions: []bulk.Action{external(index("ok", "", `{}`), 1)}},
	{name: "request: no last line break", n: 1, raw: `{"index":{"_index":"ok"}}` + "\n{}"},
	{name: "request: empty", n: 0, raw: ""},
	{name: "request: unknown action", n: 1, raw: `{"put":{"_index":"ok"}}` + "\n{}\n"},
	{name: "request: unknown parameter", n: 1, raw: `{"index":{"_index":"ok","_colour":"red"}}` + "\n{}\n"},
	{name: "request: body over the server's limit", actions: []bulk.Action{index("ok", "1", `{"a":"`+strings.Repeat("x", 1<<21)+`"}`)}},
	{name: "request: indexing pressure", actions: []bulk.Action{index("ok", "1", `{"a":"`+strings.Repeat("x", 300<<10)+`"}`)}},
	{
		name: "request: circuit breaker", setup: []call{setting("network.breaker.inflight_requests.limit", `"1kb"`)}, undo: []call{setting("network.breaker.inflight_requests.limit", "null")},
		actions: []bulk.Action{index("ok", "1", `{"a":"`+strings.Repeat("x", 2<<10)+`"}`)},
	},
	{name: "request: wrong method", method: "DELETE", actions: []bulk.Action{index("ok", "1", `{}`)}},
	{name: "request: wrong path", path: "/nothing/here/at/all", actions: []bulk.Action{index("ok", "1", `{}`)}},
	{name: "request: wrong content type", typ: "text/plain", actions: []bulk.Action{index("ok", "1", `{}`)}},
	{name: "request: no gzip", typ: "gzip", actions: []bulk.Action{index("ok", "1", `{}`)}},
}

// rights records what users without rights are told.
func (r *recorder) rights() {
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	admin := basic("elastic", r.password)
	one := []bulk.Action{index("mine", "1", `{}`)}
	both := []bulk.Action{index("mine", "1", `{}`), index("theirs", "1", `{}`), as(bulk.Delete, index("theirs", "1", ""))}

	r.auth = admin
	for _, c := range []call{
		put("/_security/role/mine", `{"indices":[{"names":["mine"],"privileges":["all"]}]}`),
		put("/_security/user/mine", `{"password":"only-for-tests","roles":["mine"]}`),
		put("/_security/user/none", `{"password":"only-for-tests","roles":[]}`),
	} {
		if !r.call(c) {
			r.t.Fatalf("%s %s failed", c.method, c.path)
		}
	}
	for _, c := range []struct {
		exchange
		auth string
	}{
		{exchange{name: "rights: no credentials", actions: one}, ""},
		{exchange{name: "rights: wrong password", actions: one}, basic("mine", "wrong")},
		{exchange{name: "rights: wrong API key", actions: one}, "ApiKey bm90OnJpZ2h0"},
		{exchange{name: "rights: none at all", actions: one}, basic("none", "only-for-tests")},
		{exchange{name: "rights: on one index only", actions: both}, basic("mine", "only-for-tests")},
	} {
		r.auth = c.auth
		r.record(c.exchange)
	}
}

func (r *recorder) call(c call) bool {
	resp, body := r.do(c.method, c.path, "application/json", []byte(c.body))
	if resp == nil {
		r.t.Fatalf("%s %s: no answer", c.method, c.path)
	}
	if resp.StatusCode >= 300 {
		r.t.Logf("%s %s: %d %.300s", c.method, c.path, resp.StatusCode, body)
	}
	return resp.StatusCode < 300
}

// do returns nil where no answer comes.
func (r *recorder) do(method, path, typ string, body []byte) (*http.Response, []byte) {
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if typ == "gzip" {
		req.Header.Set("Content-Encoding", "gzip")
		typ = "application/x-ndjson"
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", typ)
	}
	if r.auth != "" {
		req.Header.Set("Authorization", r.auth)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Log(err)
		return nil, nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, answer
}

func (r *recorder) record(e exchange) {
	defer func() {
		for _, c := range e.undo {
			if !r.call(c) {
				r.t.Errorf("%s: cannot undo %s", e.name, c.path)
			}
		}
	}()
	for _, c := range e.setup {
		if !r.call(c) {
			r.t.Logf("%s: not recorded", e.name)
			return
		}
	}
	body, n := []byte(e.raw), e.n
	var request []string
	for i := range e.actions {
		body = bulk.Append(body, &e.actions[i])
		n++
	}
	for _, line := range strings.Split(strings.TrimSuffix(string(body), "\n"), "\n") {
		if len(line) > 600 {
			line = line[:40] + "…"
		}
		request = append(request, line)
	}
	method, path, typ := "POST", "/_bulk", "application/x-ndjson"
	if e.method != "" {
		method = e.method
	}
	if e.path != "" {
		path = e.path
	}
	if e.typ != "" {
		typ = e.typ
	}
	resp, answer := r.do(method, path+"?filter_path="+bulk.FilterPath+e.query, typ, body)
	if resp != nil && resp.StatusCode == 200 && strings.HasPrefix(e.name, "request: ") {
		r.t.Logf("%s: not recorded, the server accepts it", e.name)
		return
	}
	rec := recorded{Name: e.name, Request: request, Actions: n}
	if resp != nil {
		rec.Status, rec.Header, rec.Answer = resp.StatusCode, map[string]string{}, string(answer)
		for _, h := range []string{"Content-Type", "X-Elastic-Product", "Retry-After", "Www-Authenticate", "Connection"} {
			if v := resp.Header.Get(h); v != "" {
				rec.Header[h] = v
			}
		}
	}
	r.out = append(r.out, rec)
}
