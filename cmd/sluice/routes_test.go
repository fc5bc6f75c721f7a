package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicehq/sluice/embedded"
	"github.com/sluicehq/sluice/partition"
)

// routedYAML is a configuration whose stream is routed by customer.
const routedYAML = `
documents: {index: legacy, id: key, customer: "field:/org/id", on_null: ignore}
routing: {stream: events, refresh_interval: 10ms}
`

// routes runs a verb of routes and checks its exit code and that it says
// something.
func (s *site) routes(code int, say string, args ...string) string {
	s.Helper()
	got, stdout, stderr := sluice(s.T, append(append([]string{"routes"}, args...), "-c", s.config)...)
	if got != code || !strings.Contains(stdout+stderr, say) {
		s.Errorf("routes %v: exit code %d, want %d and %q:\n%s%s", args, got, code, say, stdout, stderr)
	}
	return stdout
}

func (s *site) table() *partition.Table {
	s.Helper()
	t, err := partition.NewStore(s.servers.control).Load(s.Context(), "events")
	if err != nil {
		s.Fatal(err)
	}
	return t.Table
}

func TestRoutesInitWithALegacyIndex(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(1, "no routing table", "show")
	s.routes(0, "does not exist yet", "init", "--dry-run")
	s.routes(1, "no routing table", "show")
	// Members never go back: a new table begins above what they committed.
	s.commitEpoch(41)
	s.routes(0, "epoch 42", "init")
	table := s.table()
	if table.Write != partition.W0 || table.Epoch != 42 || table.Legacy == nil || table.Legacy.Index != "legacy" || len(table.Partitions) != 0 {
		t.Errorf("made epoch %d, %s, legacy %+v, %d partitions", table.Epoch, table.Write, table.Legacy, len(table.Partitions))
	}
	s.routes(1, "has a routing table already, epoch 42", "init")
	s.routes(0, "0 of 2 source partitions have committed under epoch 42", "show")
	s.routes(1, "sluice migrate plan", "set", "--override", "a=p000")
	s.routes(0, "written to legacy (W0)", "explain", "acme")
}

// commitEpoch commits under an epoch, as a member would, and beside it as another
// program does.
func (s *site) commitEpoch(epoch int64) {
	s.Helper()
	err := s.fresh().CommitAllOffsets(s.Context(), "g", kadm.Offsets{"events": {
		0: {Topic: "events", At: 1, LeaderEpoch: -1, Metadata: fmt.Sprintf(`{"v":1,"e":%d,"g":1,"t":"x","n":2}`, epoch)},
		1: {Topic: "events", Partition: 1, At: 1, LeaderEpoch: -1, Metadata: "another program's"},
	}})
	if err != nil {
		s.Fatal(err)
	}
}

func TestRoutesInitPartitioned(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	// What people have for such names stays in force.
	s.must(http.MethodPut, "/_index_template/own", `{"index_patterns":["events-*"],"priority":5,"template":{"settings":{"number_of_shards":2},"mappings":{"dynamic":"strict","properties":{"org":{"properties":{"id":{"type":"keyword"}}},"n":{"type":"long"}}}}}`)
	body := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(body, []byte(`{"settings":{"index":{"refresh_interval":"5s"}},"mappings":{"properties":{"m":{"type":"long"}}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var plan struct {
		DryRun bool `json:"dry_run"`
		Table  struct {
			Partitions map[string]partition.Partition `json:"partitions"`
		} `json:"table"`
	}
	text := s.routes(0, "", "init", "--partitions", "3", "--replicas", "0", "--body", body, "--dry-run", "--json")
	if err := json.Unmarshal([]byte(text), &plan); err != nil || !plan.DryRun || len(plan.Table.Partitions) != 3 {
		t.Fatalf("%v: %s", err, text)
	}
	if found, err := s.servers.elastic.Definitions(t.Context(), "events-*"); err != nil || len(found) != 0 {
		t.Fatalf("a dry run made %v, %v", found, err)
	}

	// Interrupted on the way, and then repeated.
	s.es.Inject(embedded.Rule{Index: "events-p001", Next: 1, Match: func(r *embedded.Request) bool { return r.Method == http.MethodPut }, Fault: embedded.Fault{Status: http.StatusServiceUnavailable}})
	s.routes(1, "events-p001", "init", "--partitions", "3", "--replicas", "0", "--body", body)
	s.routes(1, "no routing table", "show")
	s.routes(0, "W3: the index partitions only", "init", "--partitions", "3", "--replicas", "0", "--body", body)
	table := s.table()
	if table.Write != partition.W3 || table.Legacy != nil || len(table.SlotMap) != partition.Slots || table.SlotMap[0] != "p000" || table.SlotMap[partition.Slots-1] != "p002" {
		t.Errorf("made %s, legacy %v, %d slots", table.Write, table.Legacy, len(table.SlotMap))
	}
	found, err := s.servers.elastic.Definitions(t.Context(), "events-p*")
	if err != nil || len(found) != 3 {
		t.Fatalf("indices %v, %v", found, err)
	}
	for name, d := range found {
		var m struct {
			Dynamic    string                    `json:"dynamic"`
			Properties map[string]map[string]any `json:"properties"`
			Meta       struct {
				Sluice partitionMeta `json:"sluice"`
			} `json:"_meta"`
		}
		if err := json.Unmarshal(d.Mappings, &m); err != nil {
			t.Fatal(err)
		}
		primaries, replicas := d.Shards()
		if m.Dynamic != "strict" || m.Properties["n"] == nil || m.Properties["m"] == nil || m.Properties["_sluice_deleted"]["type"] != "boolean" ||
			m.Meta.Sluice != (partitionMeta{"events", "partition"}) || primaries != 2 || replicas != 0 ||
			fmt.Sprint(d.Settings["index.gc_deletes"]) != "15m" || fmt.Sprint(d.Settings["index.refresh_interval"]) != "5s" {
			t.Errorf("%s: %s %v", name, d.Mappings, d.Settings)
		}
		for _, alias := range []string{name + "-read", "events-all"} {
			if !strings.Contains(string(d.Aliases[alias]), "_sluice_deleted") {
				t.Errorf("%s: alias %s is %s", name, alias, d.Aliases[alias])
			}
		}
	}
	// No late write makes an index of the prefix.
	if err := s.write("/events-p009/_doc/1", `{"n":1}`); err == nil {
		t.Error("an index came into being by itself")
	}
	s.routes(1, "has a routing table already", "init", "--partitions", "3")
}

// write sends a document to Elasticsearch.
func (s *site) write(path, body string) error {
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPut, s.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return errors.New(res.Status)
	}
	return nil
}

func TestRoutesInitRefusals(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(2, "--partitions: 0", "init", "--partitions", "0")
	s.routes(2, "--partitions: 4097", "init", "--partitions", "4097")
	s.routes(2, "--prefix", "init", "--partitions", "2", "--prefix", "Upper")
	s.routes(2, "--body", "init", "--partitions", "2", "--body", s.config)
	s.must(http.MethodPut, "/events-p001", `{}`)
	s.routes(1, "events-p001 exists, and is no partition of stream events", "init", "--partitions", "2")
	s.routes(0, "", "init", "--partitions", "2", "--prefix", "other")
	if got := s.table().Partitions["p001"]; got != (partition.Partition{Index: "other-p001", Alias: "other-p001-read", State: partition.Active}) {
		t.Errorf("made %+v", got)
	}
	// A stream that is not configured.
	if code, _, stderr := sluice(t, "routes", "show", "-c", s.config, "--set", "routing.stream="); code != 78 || !strings.Contains(stderr, "routing.stream is not set") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A table that was lost is made anew, above all that was committed.
func TestRoutesInitFromAKeptTable(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(0, "", "init", "--partitions", "4")
	s.routes(0, "", "set", "--override", "acme=p003")
	file := filepath.Join(t.TempDir(), "table.json")
	if err := os.WriteFile(file, []byte(s.routes(0, "", "show", "--json")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(http.MethodPut, "/events-p003/_doc/1", `{"org":{"id":"acme"}}`)
	s.must(http.MethodDelete, "/.sluice-control", "")
	s.routes(2, "--partitions", "init", "--from", file, "--partitions", "4")
	s.routes(1, "holds 1 documents", "init", "--partitions", "4")
	s.routes(0, "epoch 3", "init", "--from", file)
	if table := s.table(); table.Overrides["acme"] != "p003" || table.Epoch != 3 {
		t.Errorf("made epoch %d, overrides %v", table.Epoch, table.Overrides)
	}
	// Put back from a backup, or edited: what was committed since stays true.
	s.commitEpoch(9)
	s.routes(1, "pass --from with the right one", "init")
	s.routes(0, "epoch 10", "init", "--from", file)
	s.must(http.MethodPut, "/.sluice-control/_doc/routing:events", `{"schema":1,"epoch":12,"slots":"many"}`)
	s.routes(1, "is damaged", "init")
	s.routes(0, "epoch 13", "init", "--from", file)
	if table := s.table(); table.Overrides["acme"] != "p003" {
		t.Errorf("overrides %v", table.Overrides)
	}
	if code, _, stderr := sluice(t, "routes", "init", "--from", file, "-c", s.config, "--set", "routing.stream=others"); code != 2 || !strings.Contains(stderr, "the table of stream events") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestRoutesSet(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(0, "", "init", "--partitions", "4")
	home := func(customer string) string {
		p, _ := s.table().Place(customer)
		return p.Partition
	}
	other := func(customer string) string {
		if home(customer) == "p000" {
			return "p001"
		}
		return "p000"
	}
	doc := func(id, customer string) {
		t.Helper()
		s.must(http.MethodPut, fmt.Sprintf("/events-%s/_doc/%s", home(customer), id), fmt.Sprintf(`{"org":{"id":%q}}`, customer))
	}
	doc("1", "acme")
	doc("2", "acme-eu")
	doc("3", "bigcorp")

	s.routes(2, "nothing to change", "set")
	s.routes(2, "want CUSTOMER=PARTITION", "set", "--override", "acme")
	s.routes(1, "p009", "set", "--override", "new=p009")
	s.routes(1, "there is no override x", "set", "--remove", "x")
	s.routes(2, "begins with p", "set", "--add", "x01")
	s.routes(2, "there is a partition p001 already", "set", "--add", "p001")

	// Who has documents stays.
	s.routes(1, "acme have documents and would move", "set", "--override", "acme="+other("acme"))
	s.routes(1, "acme-eu have documents", "set", "--override", "acme-*="+other("acme-eu"))
	s.routes(1, "migration", "set", "--override", `*corp=`+other("bigcorp"))
	if s.table().Epoch != 1 {
		t.Fatalf("epoch %d after refusals", s.table().Epoch)
	}
	// To where it is already it does not move; who has none may.
	s.routes(0, "dry run: nothing was changed", "set", "--override", "acme="+home("acme"), "--override", "new=p003", "--dry-run")
	if s.table().Epoch != 1 {
		t.Fatal("a dry run changed the table")
	}
	s.routes(0, "epoch 2 follows epoch 1", "set", "--override", "acme="+home("acme"), "--override", "new=p003", "--override", "new-*=p002")
	s.routes(0, "epoch 3", "set", "--add", "p004", "--override", "new=p004", "--remove", "new-*")
	table := s.table()
	if table.Overrides["new"] != "p004" || len(table.Overrides) != 2 || table.Partitions["p004"].Index != "events-p004" || table.UpdatedBy == "" {
		t.Errorf("overrides %v, p004 is %+v, by %q", table.Overrides, table.Partitions["p004"], table.UpdatedBy)
	}
	found, err := s.servers.elastic.Definitions(t.Context(), "events-all")
	if err != nil || len(found) != 5 || found["events-p004"].Aliases["events-p004-read"] == nil {
		t.Errorf("%d indices, aliases of the new one %v, %v", len(found), found["events-p004"].Aliases, err)
	}
	s.routes(0, "p004, by the override new", "explain", "new")
	s.routes(0, "by slot", "explain", "newer")

	// What is known of nobody may be of anybody.
	s.must(http.MethodPut, "/events-p002/_doc/t", `{"_sluice_deleted":true}`)
	s.routes(1, "events-p002 holds 1 documents without the field org.id ", "set", "--override", "next=p001")
}

// Without a field that holds the customer, only empty indices let anybody move.
func TestRoutesSetWithoutAField(t *testing.T) {
	s := newSite(t, nil, strings.Replace(routedYAML, `"field:/org/id", on_null: ignore`, `"header:c"`, 1))
	s.routes(0, "", "init", "--partitions", "2")
	s.routes(0, "epoch 2", "set", "--override", "a=p001")
	home, _ := s.table().Place("b")
	s.must(http.MethodPut, "/events-"+home.Partition+"/_doc/1", `{"owner":"b"}`)
	s.routes(1, "--field", "set", "--override", "a=p000")
	s.routes(0, "epoch 3", "set", "--override", "a=p000", "--field", "owner")
	other := map[string]string{"p000": "p001", "p001": "p000"}[home.Partition]
	s.routes(1, "b have documents", "set", "--override", "b="+other, "--field", "owner")
}

// validate shows the stream, its table, and what is missing.
func TestValidateOfARoutedStream(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	validate := func(code int, says ...string) {
		t.Helper()
		got, stdout, stderr := sluice(t, "validate", "-c", s.config)
		for _, say := range says {
			if got != code || !strings.Contains(stdout, say) {
				t.Errorf("validate: exit code %d, want %d and %q:\n%s%s", got, code, say, stdout, stderr)
			}
		}
	}
	validate(1, "make one with sluice routes init", "routing: stream events")
	s.routes(0, "", "init", "--partitions", "2")
	validate(0, "stream events: epoch 1, W3: the index partitions only, 2 index partitions", "all index partitions are there")
	s.must(http.MethodDelete, "/events-p001", "")
	validate(1, "index partition p001: events-p001 is missing")

	s = newSite(t, nil, strings.Replace(routedYAML, "id: key, ", "", 1))
	s.routes(0, "", "init")
	validate(0, "stream events cannot be migrated as it is configured: documents.id")
	if code, stdout, stderr := sluice(t, "validate", "-c", s.config, "--set", "documents.index=others"); code != 1 || !strings.Contains(stdout, "documents.index is others") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
}

// A letter goes where the table says now, on both sides under dual write, and
// one replay runs at a time.
func TestReplayOfARoutedStream(t *testing.T) {
	s := newSite(t, nil, strings.Replace(routedYAML, `"field:/org/id", on_null: ignore`, `"header:id"`, 1))
	s.routes(0, "", "init", "--partitions", "2")
	letter := func(key, value string) {
		s.produce(0, "other", "{}")
		s.letter(s.produce(0, key, value), 1)
	}
	at := func(customer string) string {
		p, _ := s.table().Place(customer)
		return s.table().Partitions[p.Partition].Index
	}
	holds := func(index, id string, want bool) {
		t.Helper()
		if _, _, found := s.es.Get(index, id); found != want {
			t.Errorf("%s/%s is there: %t, want %t", index, id, found, want)
		}
	}
	letter("a", `{"n":1}`)
	s.replay(0, "1 letters, 1 written")
	holds(at("a"), "a", true)
	holds("legacy", "a", false)

	// Another one runs, or was killed.
	if err := s.servers.control.Create(t.Context(), "lease:replay:g", replayLease{Schema: 1, Epoch: 1, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if by, err := s.servers.replaying(t.Context(), 2); err != nil || !strings.Contains(by, "by ann") {
		t.Errorf("a fence waits for %q, %v", by, err)
	}
	if by, err := s.servers.replaying(t.Context(), 1); err != nil || by != "" {
		t.Errorf("a fence of its own epoch waits for %q, %v", by, err)
	}
	if code, _, stderr := sluice(t, "deadletter", "replay", "-c", s.config); code != 75 || !strings.Contains(stderr, "--take-over") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	s.replay(0, "1 there already", "--take-over")
	if by, err := s.servers.replaying(t.Context(), 2); err != nil || by != "" {
		t.Errorf("after the replay a fence waits for %q, %v", by, err)
	}

	s = newSite(t, nil, strings.Replace(routedYAML, `"field:/org/id", on_null: ignore`, `"header:id"`, 1))
	s.routes(0, "", "init")
	store := partition.NewStore(s.servers.control)
	for _, mode := range []partition.Mode{partition.W0, partition.W1} {
		read, err := store.Load(t.Context(), "events")
		if err != nil {
			t.Fatal(err)
		}
		next, err := read.Change(partition.Change{Edit: func(t *partition.Table) error {
			t.Job, t.Write = "j", mode
			t.Partitions = map[string]partition.Partition{"p000": {Index: "new", State: partition.Active}}
			t.SlotMap = slices.Repeat(partition.SlotMap{"p000"}, t.Slots)
			return nil
		}})
		if err == nil {
			err = store.Update(t.Context(), read, next)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	letter("b", `{"n":2}`)
	letter("c", "")
	s.replay(0, "2 letters, 1 written, 1 deleted")
	holds("legacy", "b", true)
	holds("new", "b", true)
	holds("legacy", "c", false)
	if source, _, found := s.es.Get("new", "c"); !found || !strings.Contains(string(source), "_sluice_deleted") {
		t.Errorf("in W1 a delete is a document on the new side, not %s", source)
	}
}

// S37: of two operators at once the second is refused, and shown both epochs.
func TestRoutesSetByTwoAtOnce(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(0, "", "init", "--partitions", "2")
	reached, release := make(chan struct{}), make(chan struct{})
	s.es.Inject(embedded.Rule{Index: ".sluice-control", Next: 1, Fault: embedded.Fault{Hold: release}, Match: func(r *embedded.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		close(reached)
		return true
	}})
	type outcome struct {
		code int
		said string
	}
	late := make(chan outcome, 1)
	go func() {
		code, stdout, stderr := sluice(t, "routes", "set", "-c", s.config, "--override", "late=p000")
		late <- outcome{code, stdout + stderr}
	}()
	<-reached
	s.routes(0, "epoch 2", "set", "--override", "first=p001")
	close(release)
	if o := <-late; o.code != 75 || !strings.Contains(o.said, "epoch 1 was read and epoch 2 is stored") {
		t.Errorf("exit code %d: %s", o.code, o.said)
	}
	if table := s.table(); table.Epoch != 2 || table.Overrides["first"] != "p001" || table.Overrides["late"] != "" {
		t.Errorf("epoch %d, overrides %v: merged in silence", table.Epoch, table.Overrides)
	}
}

func TestRoutesExplain(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(0, "", "init", "--partitions", "2")
	var e explanation
	if err := json.Unmarshal([]byte(s.routes(0, "", "explain", "acme", "--json")), &e); err != nil {
		t.Fatal(err)
	}
	slot := partition.Slot([]byte("acme"), partition.Slots)
	name := []string{"p000", "p001"}[slot/(partition.Slots/2)]
	if e.Slot == nil || *e.Slot != slot || e.Partition != name || e.Read != "events-"+name+"-read" || !slices.Equal(e.Write, []string{"events-" + name}) || e.Epoch != 1 {
		t.Errorf("%+v", e)
	}
	s.routes(2, "1 to 256 bytes", "explain", strings.Repeat("x", 257))
	s.routes(2, "accepts 1 arg", "explain")
}

// watch prints each epoch once, and trouble once.
func TestRoutesWatch(t *testing.T) {
	s := newSite(t, nil, routedYAML)
	s.routes(0, "", "init", "--partitions", "2")
	ctx, stop := context.WithCancel(t.Context())
	out, trouble := &lines{seen: map[string]chan struct{}{}}, &lines{seen: map[string]chan struct{}{}}
	first, second, broken := out.wait("epoch 1 "), out.wait("epoch 2 "), trouble.wait("Error:")
	done := make(chan int, 1)
	go func() { done <- execute(ctx, []string{"routes", "watch", "-c", s.config}, out, trouble) }()
	<-first
	down := s.es.Inject(embedded.Rule{Index: ".sluice-control", Fault: embedded.Fault{Status: http.StatusServiceUnavailable}})
	<-broken
	down.Remove()
	s.routes(0, "", "set", "--override", "a=p001")
	<-second
	stop()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, out)
	}
	if n := strings.Count(trouble.String(), "\n"); n != 1 {
		t.Errorf("%d complaints:\n%s", n, trouble)
	}
}

// lines is a writer that tells when it has been given a text.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	seen map[string]chan struct{}
}

// wait returns a channel that is closed once the text was written.
func (l *lines) wait(text string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[text] = make(chan struct{})
	return l.seen[text]
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	for text, seen := range l.seen {
		if strings.Contains(l.text.String(), text) {
			close(seen)
			delete(l.seen, text)
		}
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
