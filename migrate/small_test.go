package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/indexer/bulk"
	"github.com/sluicehq/sluice/partition"
)

// Consumers and migrations must agree on what a tombstone is.
func TestTombstoneField(t *testing.T) {
	if TombstoneField != document.TombstoneField || TombstoneField+"_at" != document.TombstoneTimeField {
		t.Error("the fields of tombstones have other names in package document")
	}
	if !tombstoneSource(document.AppendTombstone(nil, time.Now())) {
		t.Error("a tombstone is not taken for one")
	}
}

func TestParseCustomers(t *testing.T) {
	doc := []byte(`{"customer":"a","n":7,"t":true,"o":{"x":["p","q"],"a/b":"slash"},"empty":"","null":null,"u":"\u00e9"}`)
	for text, want := range map[string]string{
		"field:/customer": "a", "field:/n": "7", "field:/t": "true", "field:/o/x/1": "q", "field:/o/a~1b": "slash", "field:/u": "é",
		"field:/empty": "-", "field:/null": "-", "field:/o": "-", "field:/none": "-", "field:/customer/x": "-", "field:/o/x/9": "-",
		"id": "a:1", "id:^([^:]+):": "a", "id:^(x)": "-", "routing": "r",
	} {
		c, err := ParseCustomers(text)
		if err != nil {
			t.Error(err)
			continue
		}
		got, ok := c.Of("a:1", "r", doc)
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"", "key", "field:", "field:x", "id:(", "id:x", "id:(a)(b)", "header:h"} {
		if _, err := ParseCustomers(text); err == nil {
			t.Errorf("%q is no error", text)
		}
	}
	c, err := ParseCustomers("field:/customer")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{strings.Repeat("x", partition.MaxCustomer+1), "\xff"} {
		text, err := json.Marshal(map[string]string{"customer": bad})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := c.Of("1", "", text); ok && got == bad {
			t.Errorf("%.20q can be routed", bad)
		}
	}
}

// A field that holds less than the whole text must not be searched by.
func TestCountable(t *testing.T) {
	for mapping, want := range map[string]string{
		`{"properties":{"c":{"type":"keyword"}}}`:                                  "c",
		`{"properties":{"c":{"type":"keyword","ignore_above":256}}}`:               "c",
		`{"properties":{"c":{"type":"keyword","ignore_above":255}}}`:               "",
		`{"properties":{"c":{"type":"keyword","normalizer":"lower"}}}`:             "",
		`{"properties":{"c":{"type":"keyword","doc_values":false}}}`:               "",
		`{"properties":{"c":{"type":"text","fields":{"raw":{"type":"keyword"}}}}}`: "c.raw",
		`{"properties":{"c":{"type":"text"}}}`:                                     "",
		`{"properties":{"c":{"type":"long"}}}`:                                     "",
		`{"properties":{"d":{"type":"keyword"}}}`:                                  "",
		`{}`: "",
	} {
		c, err := ParseCustomers("field:/c")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Countable(json.RawMessage(mapping)); got != want {
			t.Errorf("%s: %q, want %q", mapping, got, want)
		}
	}
}

func TestCanonicalContent(t *testing.T) {
	equal := [][2]string{
		{`{"a":1,"b":2}`, "{ \"b\" : 2.0,\n\"a\": 1e0 }"},
		{`[1.50]`, `[1.5]`},
		{`{"a":-0}`, `{"a":0}`},
		{`1e2`, `100`},
		{`"\u00e9"`, `"é"`},
		{`{"a":1,"when":5}`, `{"a":1,"when":6}`},
		{`{"a":0.1}`, `{"a":1e-1}`},
	}
	differ := [][2]string{
		{`{"a":1}`, `{"a":"1"}`},
		{`{"a":null}`, `{}`},
		{`[1,2]`, `[2,1]`},
		{`9007199254740993`, `9007199254740992`},
		{`{"a":{"when":5}}`, `{"a":{"when":6}}`},
		{`{"a":"x,b"}`, `{"a":"x","b":""}`},
		{`1e1000000`, `1e999999`},
		{`true`, `"true"`},
	}
	hash := func(text string) uint64 {
		h, err := contentHash(json.RawMessage(text), []string{"when"})
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		return h
	}
	for _, pair := range equal {
		if hash(pair[0]) != hash(pair[1]) {
			t.Errorf("%s and %s are the same content", pair[0], pair[1])
		}
	}
	for _, pair := range differ {
		if hash(pair[0]) == hash(pair[1]) {
			t.Errorf("%s and %s are not the same content", pair[0], pair[1])
		}
	}
}

// Digests do not hang on the order, add up, and tell any two sets apart.
func TestDigestProperties(t *testing.T) {
	type doc struct {
		id      string
		version int64
		content uint64
	}
	docs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) doc {
		return doc{rapid.StringN(1, 4, 8).Draw(t, "id"), rapid.Int64Range(0, 1<<62).Draw(t, "version"), rapid.Uint64().Draw(t, "content")}
	}), 0, 20)
	digest := func(docs []doc) (s sum) {
		for _, d := range docs {
			s.add(d.id, d.version, d.content)
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		all := docs.Draw(t, "documents")
		whole := digest(all)
		if digest(rapid.Permutation(all).Draw(t, "order")) != whole {
			t.Error("the order matters")
		}
		cut := rapid.IntRange(0, len(all)).Draw(t, "cut")
		a, b := digest(all[:cut]), digest(all[cut:])
		if (sum{a.count + b.count, a.a + b.a, a.b + b.b}) != whole {
			t.Error("digests of parts do not add up")
		}
		if len(all) > 0 {
			i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
			changed := append([]doc(nil), all...)
			changed[i].version++
			if digest(changed) == whole {
				t.Error("another version is not seen")
			}
			if digest(append(changed, all[i], all[i])) == whole {
				t.Error("two equal documents cancel")
			}
		}
	})
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		item   bulk.Item
		want   ending
		fenced bool
	}{
		{bulk.Item{Status: 201, Result: bulk.Created}, written, false},
		{bulk.Item{Status: 200, Result: bulk.Updated}, written, false},
		{bulk.Item{Status: 404, Result: bulk.NotFound}, written, false},
		{bulk.Item{Status: 409, Failed: true, Type: bulk.Text("version_conflict_engine_exception")}, superseded, false},
		{bulk.Item{Status: 400, Failed: true, Type: bulk.Text("document_parsing_exception")}, failed, false},
		{bulk.Item{Status: 400, Failed: true, Type: bulk.Text("illegal_argument_exception")}, failed, false},
		{bulk.Item{Status: 413, Failed: true, Type: bulk.Text("x")}, failed, false},
		{bulk.Item{Status: 400, Failed: true, Type: bulk.Text("index_closed_exception")}, unsettled, false},
		{bulk.Item{Status: 403, Failed: true, Type: bulk.Text("cluster_block_exception")}, unsettled, false},
		{bulk.Item{Status: 429, Failed: true, Type: bulk.Text("es_rejected_execution_exception")}, unsettled, false},
		{bulk.Item{Status: 503, Failed: true, Type: bulk.Text("unavailable_shards_exception")}, unsettled, false},
		{bulk.Item{Status: 500, Failed: true, Type: bulk.Text("null_pointer_exception")}, unsettled, false},
		{bulk.Item{Status: 404, Failed: true, Type: bulk.Text("index_not_found_exception")}, unsettled, true},
	} {
		got, err := verdict(c.item)
		if got.ending != c.want || errors.Is(err, errFenced) != c.fenced {
			t.Errorf("%d %s: %d, %v", c.item.Status, c.item.Type, got.ending, err)
		}
	}
}

func TestItemsCoverEverySequenceNumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backfill{First: rapid.IntRange(0, 100).Draw(t, "first"), MaxSeqNo: rapid.SliceOfN(rapid.Int64Range(-1, 1_000_000), 1, 6).Draw(t, "max")}
		b.Count = b.split(rapid.IntRange(0, 64).Draw(t, "concurrency"))
		next := make([]int64, len(b.MaxSeqNo))
		for n := b.First; n < b.First+b.Count; n++ {
			i := b.item(n)
			if i.After+1 != next[i.Shard] || i.To < i.After || i.Cursor != i.After {
				t.Fatalf("%+v where %d comes next", i, next[i.Shard])
			}
			next[i.Shard] = i.To + 1
		}
		for shard, most := range b.MaxSeqNo {
			if next[shard] != most+1 {
				t.Fatalf("shard %d ends at %d, not at %d", shard, next[shard]-1, most)
			}
		}
	})
}

func TestForbids(t *testing.T) {
	const pattern = "events-*-j7*"
	for setting, want := range map[string]bool{
		"": false, "true": false, "false": true, "-events-*-j7*,+*": true, "+a*,-events-*-j7*": false, "-x*,-events-*-j7*,+*": true, "-*": true,
	} {
		if got := forbids(setting, pattern); got != want {
			t.Errorf("%q: %t", setting, got)
		}
	}
}

func TestWatermark(t *testing.T) {
	for text, want := range map[string]string{"85%": "85 0 true", "0.95": "95 0 true", "10gb": "0 10737418240 true", "512b": "0 512 true", "1.5T": "0 1649267441664 true", "-1": "-100 0 false", "": "0 0 false", "x": "0 0 false"} {
		percent, free, ok := watermark(text)
		if got := fmt.Sprint(percent, " ", free, " ", ok); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestUnsuitable(t *testing.T) {
	for name, d := range map[string]elastic.Definition{
		"no _source":     {Mappings: json.RawMessage(`{"_source":{"enabled":false}}`)},
		"final pipeline": {Mappings: json.RawMessage(`{}`), Settings: map[string]any{"index.final_pipeline": "p"}},
		"time series":    {Mappings: json.RawMessage(`{}`), Settings: map[string]any{"index.mode": "time_series"}},
		"excludes":       {Mappings: json.RawMessage(`{"_source":{"excludes":["x"]}}`)},
		"includes":       {Mappings: json.RawMessage(`{"_source":{"includes":["x"]}}`)},
		"synthetic":      {Mappings: json.RawMessage(`{"_source":{"mode":"synthetic"}}`)},
		"by a setting":   {Mappings: json.RawMessage(`{}`), Settings: map[string]any{"index.mapping.source.mode": "SYNTHETIC"}},
		"derived source": {Mappings: json.RawMessage(`{}`), Settings: map[string]any{"index.derived_source.enabled": "true"}},
	} {
		if unsuitable(d) == "" {
			t.Errorf("%s: nothing is said", name)
		}
	}
	if problem := unsuitable(elastic.Definition{Mappings: json.RawMessage(`{}`), Settings: map[string]any{"index.final_pipeline": "_none"}}); problem != "" {
		t.Error(problem)
	}
}

func TestStatusLine(t *testing.T) {
	s := Status{
		Job:   &Job{Name: "j7", State: Backfilling, Backfill: Backfill{Count: 4, Total: 673_000_000}, Throttle: Limits{Concurrency: 16}, Fence: Fence{Epoch: 17, Passed: true}},
		Owner: "a", Seen: 412_000_000, Reached: 412_000_000, Epoch: 17, Progress: Progress{Rate: 18_400, Concurrency: 6, Reason: "live lag 9 records > 5s"},
	}
	const want = "j7 BACKFILLING 61.2% 412M/673M docs 18.4k/s eta 3h56m conc 6/16 throttled: live lag 9 records > 5s epoch 17 fence ok verify -"
	if got := s.Line(); got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
	s.Progress.Reason, s.Progress.Lag = "", &Lag{Records: 40, Seconds: 1.23}
	if got, want := s.Line(), " eta 3h56m lag 1.2s conc 6/16 epoch 17"; !strings.Contains(got, want) {
		t.Errorf("%s does not say %q", got, want)
	}
	s.Progress = Progress{}
	if got, want := s.Line(), " docs -/s conc -/16 epoch 17"; !strings.Contains(got, want) {
		t.Errorf("%s does not say %q", got, want)
	}
}

// Who looks at night is told what is going on and what to type.
func TestAdvice(t *testing.T) {
	clean := func() *Report { return &Report{ID: "r1", At: time.Now()} }
	for name, c := range map[string]struct {
		status Status
		say    string
	}{
		"nobody works on it":          {Status{Job: &Job{State: Backfilling}}, "sluice migrate run --job j7"},
		"it works":                    {Status{Job: &Job{State: Backfilling}, Owner: "a"}, "nothing: it goes on by itself"},
		"throttled by lag":            {Status{Job: &Job{State: Backfilling}, Owner: "a", Progress: Progress{Reason: "live lag 9.1s > 5s", Class: "lag"}}, "throttle --job j7 --set lag="},
		"paused":                      {Status{Job: &Job{State: Backfilling, Paused: "by anna"}, Owner: "a"}, "sluice migrate resume --job j7"},
		"the mapping has changed":     {Status{Job: &Job{State: Backfilling, Paused: "sluice migrate resume --job j7 --apply-mapping"}}, "sluice migrate resume --apply-mapping --job j7"},
		"documents failed":            {Status{Job: &Job{State: Backfilling}, Owner: "a", Failed: 3}, "sluice migrate status --failed --job j7"},
		"not verified":                {Status{Job: &Job{State: Synced}}, "sluice migrate verify --job j7"},
		"a verification is under way": {Status{Job: &Job{State: Synced}, Verifying: &Verifying{}}, "nothing: it goes on by itself"},
		"verified":                    {Status{Job: &Job{State: Synced, Verified: clean()}}, "sluice migrate cutover --next --job j7"},
		"stale":                       {Status{Job: &Job{State: Synced, Verified: &Report{At: time.Now(), Stale: "repaired"}}}, "sluice migrate verify --job j7"},
		"old":                         {Status{Job: &Job{State: Synced, Verified: &Report{At: time.Now().Add(-25 * time.Hour)}}}, "sluice migrate verify --job j7"},
		"differs":                     {Status{Job: &Job{State: Cutover, Verified: &Report{At: time.Now(), Classes: map[string]int64{missingOnNew: 1}}}}, "sluice migrate verify --repair --job j7"},
		"dirty":                       {Status{Job: &Job{State: Synced, Verified: clean()}, Dirty: 1, DirtyCustomers: []string{"c3"}}, "sluice migrate verify --repair --customer c3 --job j7"},
		"all are cut over":            {Status{Job: &Job{State: Cutover, Verified: clean(), FullAt: new(time.Time)}}, "sluice migrate complete --job j7"},
		"cancel was cut short":        {Status{Job: &Job{State: Cancelling}}, "sluice migrate cancel --job j7"},
	} {
		s := c.status
		s.Name = "j7"
		s.Next = s.command()
		s.Advice = s.advice()
		if lines := strings.Join(s.Details(), "\n"); !strings.Contains(s.Advice, c.say) || !strings.Contains(lines, "next:     "+s.Advice) || !strings.Contains(lines, "now:      ") {
			t.Errorf("%s: %q does not say %q, or is not in\n%s", name, s.Advice, c.say, lines)
		}
	}
}

// The disks of the cluster are half full. Where it looks at no watermark, none
// stands in the way.
func TestLowWatermark(t *testing.T) {
	inBubble(t, func(w *world) {
		w.call(http.MethodPost, "/"+source+"/_bulk?refresh=true", `{"index":{"_id":"1"}}`+"\n"+`{"customer":"c","n":1}`+"\n")
		for _, c := range []struct {
			settings string
			full     bool
		}{
			{`"cluster.routing.allocation.disk.watermark.low": "40%"`, true},
			{`"cluster.routing.allocation.disk.watermark.low": "600gb"`, true},
			{`"cluster.routing.allocation.disk.watermark.low": "60%"`, false},
			{`"cluster.routing.allocation.disk.watermark.low": "40%", "cluster.routing.allocation.disk.watermark.low.max_headroom": "200gb"`, false},
			{`"cluster.routing.allocation.disk.watermark.low": "40%", "cluster.routing.allocation.disk.watermark.low.max_headroom": "600gb"`, true},
			{`"cluster.routing.allocation.disk.watermark.low": "60%", "cluster.routing.allocation.disk.watermark.low.max_headroom": "-1"`, false},
			{`"cluster.routing.allocation.disk.watermark.low": "40%", "cluster.routing.allocation.disk.threshold_enabled": false`, false},
		} {
			w.call(http.MethodPut, "/_cluster/settings", `{"persistent":{`+c.settings+`}}`)
			s := &step{}
			w.check(w.m.checkDisk(w.Context(), s, 1<<20))
			if got := len(s.refusals) > 0; got != c.full {
				t.Errorf("%s: refused %t, want %t", c.settings, got, c.full)
			}
			room, err := w.m.room(w.Context())
			w.check(err)
			if got := room.LowWatermark*float64(room.DiskBytes) < float64(room.DiskUsed); got != c.full {
				t.Errorf("%s: a plan finds the disks full: %t, want %t", c.settings, got, c.full)
			}
		}
	})
}

// The copy hibernates where the cluster itself would block writes, by the
// cluster's own settings, or where it has done so.
func TestFloodStage(t *testing.T) {
	const half, all = int64(1) << 39, int64(1) << 40 // free of the disk, and the disk
	for _, c := range []struct {
		mark diskMark
		full bool
	}{
		{diskMark{percent: 95}, false},
		{diskMark{percent: 45}, true},
		{diskMark{percent: 45, most: 100 << 30}, false},
		{diskMark{free: half + 1}, true},
		{diskMark{free: half}, false},
		{diskMark{percent: 100}, false},
	} {
		if got := half < c.mark.keep(all); got != c.full {
			t.Errorf("%+v: %t, want %t", c.mark, got, c.full)
		}
	}
	inBubble(t, func(w *world) {
		w.create(2)
		flooded := func(want bool, what string) {
			w.Helper()
			var s Signals
			w.m.ask(w.Context(), w.job(), &s)
			if s.Flood != want || s.Unknown != "" {
				w.Errorf("%s: flood %t, want %t; %s", what, s.Flood, want, s.Unknown)
			}
		}
		const stage = "cluster.routing.allocation.disk.watermark.flood_stage"
		flooded(false, "by default")
		for _, c := range []struct {
			settings string
			full     bool
		}{
			{`"` + stage + `":"40%"`, true},
			{`"` + stage + `":"0.4"`, true},
			{`"` + stage + `":"600gb"`, true},
			{`"` + stage + `":"40%","` + stage + `.max_headroom":"100gb"`, false},
			{`"` + stage + `":"40%","` + stage + `.max_headroom":"-1"`, true},
			{`"` + stage + `":"40%","cluster.routing.allocation.disk.threshold_enabled":false`, false},
		} {
			w.call(http.MethodPut, "/_cluster/settings", `{"persistent":{`+c.settings+`}}`)
			flooded(c.full, c.settings)
		}
		for _, index := range []string{source, w.job().indices()[1]} {
			w.call(http.MethodPut, "/"+index+"/_settings", `{"index.blocks.read_only_allow_delete":true}`)
			flooded(true, index)
			w.call(http.MethodPut, "/"+index+"/_settings", `{"index.blocks.read_only_allow_delete":null}`)
			flooded(false, index)
		}
	})
}
