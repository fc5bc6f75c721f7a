package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/embedded"
)

// tombstone writes what a consumer writes for a delete of a certain age, to an
// index of its own name.
func (s *site) tombstone(index, id string, version int64, age time.Duration) {
	s.Helper()
	body := document.AppendTombstone(nil, time.Now().Add(-age))
	s.must(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?version_type=external&version=%d", index, id, version), string(body))
}

func TestPurge(t *testing.T) {
	s := newSite(t, nil, `documents: {deletes: tombstone, tombstone_ttl: 1h, index: "events-${topic}"}
overrides: [{topics: [other], documents: {index: other, tombstone_ttl: 3h}}]
`)
	s.tombstone("events-a", "old", 100, 2*time.Hour)
	s.tombstone("events-b", "old", 200, 2*time.Hour)
	s.tombstone("events-a", "young", 100, time.Minute)
	s.tombstone("other", "young", 100, 2*time.Hour)
	s.must(http.MethodPut, "/events-a/_doc/live?version_type=external&version=7", `{"n":1}`)

	code, stdout, stderr := sluice(t, "purge", "-c", s.config, "--dry-run")
	if code != 0 || !strings.Contains(stdout, "events-*: 2 tombstones") || !strings.Contains(stdout, "other: 0 tombstones") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	if n := s.es.Count("events-a") + s.es.Count("events-b"); n != 4 {
		t.Errorf("a dry run left %d documents of 4", n)
	}
	var results []purged
	code, stdout, stderr = sluice(t, "purge", "-c", s.config, "--dry-run", "--json")
	if err := json.Unmarshal([]byte(stdout), &results); code != 0 || err != nil || len(results) != 2 ||
		results[0].Target != "events-*" || results[0].Tombstones != 2 || results[0].Removed != 0 || !results[0].DryRun {
		t.Errorf("exit code %d, %v:\n%s%s", code, err, stdout, stderr)
	}
	code, stdout, stderr = sluice(t, "purge", "-c", s.config)
	if code != 0 || !strings.Contains(stdout, "events-*: 2 tombstones removed") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	for _, gone := range []string{"events-a/old", "events-b/old"} {
		index, id, _ := strings.Cut(gone, "/")
		if _, _, found := s.es.Get(index, id); found {
			t.Errorf("%s is still there", gone)
		}
	}
	for _, stays := range []string{"events-a/young", "events-a/live", "other/young"} {
		index, id, _ := strings.Cut(stays, "/")
		if _, _, found := s.es.Get(index, id); !found {
			t.Errorf("%s is gone", stays)
		}
	}
	// The delete has the tombstone's own version: an older write stays refused
	// for a while, and the very next version is taken.
	if v, deleted, known := s.es.Known("events-a", "old"); v != 100 || !deleted || !known {
		t.Errorf("version %d, deleted %t, known %t; want that of the tombstone", v, deleted, known)
	}
	s.must(http.MethodPut, "/events-a/_doc/old?version_type=external&version=101", `{"n":2}`)
}

// More tombstones than a page holds, an outage in between, and a write that
// replaces one while it is being purged.
func TestPurgeGoesOn(t *testing.T) {
	s := newSite(t, nil, "documents: {deletes: tombstone, tombstone_ttl: 1h}\n")
	var bulk strings.Builder
	body := document.AppendTombstone(nil, time.Now().Add(-2*time.Hour))
	const n = 2*purgePage + 10
	for i := range n {
		fmt.Fprintf(&bulk, `{"index":{"_id":"%d","version":%d,"version_type":"external"}}`+"\n%s\n", i, i+1, body)
	}
	s.must(http.MethodPost, "/events/_bulk", bulk.String())
	found, replaced := make(chan struct{}, 1), make(chan struct{})
	s.es.Inject(embedded.Rule{API: "bulk", Next: 1, Fault: embedded.Fault{Hold: replaced}, Match: func(*embedded.Request) bool {
		select {
		case found <- struct{}{}:
		default:
		}
		return true
	}})
	type outcome struct {
		code           int
		stdout, stderr string
	}
	done := make(chan outcome, 1)
	go func() {
		code, stdout, stderr := sluice(t, "purge", "-c", s.config)
		done <- outcome{code, stdout, stderr}
	}()
	<-found // and not deleted yet
	s.must(http.MethodPut, "/events/_doc/0?version_type=external&version=9", `{"n":1}`)
	s.es.Inject(embedded.Rule{API: "bulk", Next: 2, Fault: embedded.Fault{Status: http.StatusServiceUnavailable}})
	close(replaced)
	o := <-done
	if want := fmt.Sprintf("events: %d tombstones removed, 1 were replaced meanwhile", n-1); o.code != 0 || !strings.Contains(o.stdout, want) {
		t.Errorf("exit code %d, want %q:\n%s%s", o.code, want, o.stdout, o.stderr)
	}
	if left := s.es.Count("events"); left != 1 {
		t.Errorf("%d documents are left, want the one that was written meanwhile", left)
	}
}

// Tombstones that cannot be searched would stay for ever, in silence.
func TestPurgeOfWhatCannotBeSearched(t *testing.T) {
	s := newSite(t, nil, "documents: {deletes: tombstone}\n")
	for body, say := range map[string]string{
		`{"mappings":{"dynamic":false}}`:    "dynamic is false",
		`{"mappings":{"dynamic":"strict"}}`: "strict",
		`{"mappings":{"properties":{"_sluice_deleted":{"type":"boolean"},"_sluice_deleted_at":{"type":"keyword"}}}}`:                    "mapped as keyword",
		`{"mappings":{"properties":{"_sluice_deleted":{"type":"boolean","index":false},"_sluice_deleted_at":{"type":"date"}}}}`:         "unindexed boolean",
		`{"mappings":{"dynamic":false,"properties":{"_sluice_deleted":{"type":"boolean"},"_sluice_deleted_at":{"type":"date_nanos"}}}}`: "",
		`{"mappings":{"dynamic":"runtime"}}`: "",
		`{}`:                                 "",
	} {
		s.must(http.MethodPut, "/events", body)
		code, _, stderr := sluice(t, "purge", "-c", s.config)
		if (code == 0) != (say == "") || !strings.Contains(stderr, say) || say != "" && !strings.Contains(stderr, "PUT /events/_mapping") {
			t.Errorf("%s: exit code %d, want %q: %s", body, code, say, stderr)
		}
		code, stdout, stderr := sluice(t, "validate", "-c", s.config)
		if refused := say == "strict"; (code != 0) != refused || !strings.Contains(stdout, say) || (say != "") != strings.Contains(stdout, "PUT /events/_mapping") {
			t.Errorf("validate with %s: exit code %d, want %q:\n%s%s", body, code, say, stdout, stderr)
		}
		s.must(http.MethodDelete, "/events", "")
	}
	if code, _, stderr := sluice(t, "purge", "-c", s.config, "--set", "documents.deletes=hard"); code != 78 || !strings.Contains(stderr, "nothing to purge") {
		t.Errorf("without tombstones: exit code %d: %s", code, stderr)
	}
}

// The remedy that is printed is one: with it tombstones are found.
func TestTombstoneRemedy(t *testing.T) {
	s := newSite(t, nil, "documents: {deletes: tombstone, tombstone_ttl: 1h}\n")
	s.must(http.MethodPut, "/events", `{"mappings":{"dynamic":"strict"}}`)
	path, body, _ := strings.Cut(strings.TrimPrefix(tombstoneRemedy("events"), "PUT "), " ")
	s.must(http.MethodPut, path, body)
	s.tombstone("events", "a", 5, 2*time.Hour)
	if code, stdout, stderr := sluice(t, "purge", "-c", s.config); code != 0 || !strings.Contains(stdout, "1 tombstones removed") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}
