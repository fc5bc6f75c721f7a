//go:build integration

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// securityFiles is where the least rights are kept for users, in the form in
// which they are given.
const securityFiles = "../deploy/security"

// acl is one right on Kafka.
type acl struct {
	operation, kind, name string // such as Read, topic, events
}

func (a acl) String() string { return strings.ToUpper(a.operation) + " on " + a.kind + " " + a.name }

// acls runs kafka-acls.sh for some parts, as a user would, and returns what it
// asks of kafka-acls.
func acls(t *testing.T, topic, group, letters string, parts ...string) []acl {
	t.Helper()
	dir := t.TempDir()
	said, stub := filepath.Join(dir, "said"), filepath.Join(dir, "kafka-acls")
	must(t, os.WriteFile(stub, []byte("#!/bin/sh\necho \"$@\" >>"+said+"\n"), 0o700)) //nolint:gosec // it is run
	cmd := exec.Command(filepath.Join(securityFiles, "kafka-acls.sh"), parts...)
	cmd.Env = append(os.Environ(), "KAFKA_ACLS="+stub, "BOOTSTRAP=broker:1", "PRINCIPAL=User:"+sluiceUser, "TOPICS="+topic, "GROUP="+group, "DEAD_LETTERS="+letters)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kafka-acls.sh: %v: %s", err, out)
	}
	text, err := os.ReadFile(said)
	must(t, err)
	var all []acl
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		const before = "--bootstrap-server broker:1 --add --allow-principal User:" + sluiceUser + " --operation"
		if len(words) != 9 || strings.Join(words[:6], " ") != before {
			t.Fatalf("kafka-acls.sh calls kafka-acls %s", line)
		}
		all = append(all, acl{words[6], strings.TrimPrefix(words[7], "--"), words[8]})
	}
	return all
}

// builder is a, for a user, as kadm wants it.
func (a acl) builder(t *testing.T, user string) *kadm.ACLBuilder {
	t.Helper()
	var operation kmsg.ACLOperation
	must(t, operation.UnmarshalText([]byte(strings.ToLower(a.operation))))
	b := kadm.NewACLs().Allow("User:" + user).AllowHosts("*").Operations(operation).ResourcePatternType(kadm.ACLPatternLiteral)
	switch a.kind {
	case "topic":
		return b.Topics(a.name)
	case "group":
		return b.Groups(a.name)
	}
	t.Fatalf("%s: a right on what?", a)
	return nil
}

// Allow gives Sluice's user rights.
func (k *securedKafka) Allow(t *testing.T, rights ...acl) {
	t.Helper()
	k.AllowTo(t, sluiceUser, rights...)
}

// AllowTo gives a user rights.
func (k *securedKafka) AllowTo(t *testing.T, user string, rights ...acl) {
	t.Helper()
	for _, a := range rights {
		done, err := k.Admin.CreateACLs(t.Context(), a.builder(t, user))
		must(t, err)
		for _, d := range done {
			if d.Err != nil {
				t.Fatalf("%s: %v", a, d.Err)
			}
		}
	}
}

// Forbid takes rights away.
func (k *securedKafka) Forbid(t *testing.T, rights ...acl) {
	t.Helper()
	for _, a := range rights {
		done, err := k.Admin.DeleteACLs(t.Context(), a.builder(t, sluiceUser))
		must(t, err)
		for _, d := range done {
			if d.Err != nil || len(d.Deleted) != 1 {
				t.Fatalf("taking away %s: %d rights, %v", a, len(d.Deleted), d.Err)
			}
		}
	}
}

// role is one of Elasticsearch, as its API takes it.
type role struct {
	Cluster []string     `json:"cluster"`
	Indices []indexRight `json:"indices"`
}

type indexRight struct {
	Names      []string `json:"names"`
	Privileges []string `json:"privileges"`
}

// readRole reads one of the files with roles.
func readRole(t *testing.T, name string) role {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(securityFiles, name+".json"))
	must(t, err)
	var r role
	must(t, json.Unmarshal(text, &r))
	return r
}

// esRight is one privilege of a role.
type esRight struct {
	on, privilege string // on: "cluster", or the name of indices
}

func (r esRight) String() string { return r.privilege + " on " + r.on }

// each are the single rights of a role.
func (r role) each() (rights []esRight) {
	for _, p := range r.Cluster {
		rights = append(rights, esRight{"cluster", p})
	}
	for _, i := range r.Indices {
		for _, p := range i.Privileges {
			rights = append(rights, esRight{i.Names[0], p})
		}
	}
	return rights
}

// without is a role that lacks a right.
func (r role) without(right esRight) role {
	lacks := func(on string, privileges []string) []string {
		return slices.DeleteFunc(slices.Clone(privileges), func(p string) bool { return on == right.on && p == right.privilege })
	}
	lesser := role{Cluster: lacks("cluster", r.Cluster)}
	for _, i := range r.Indices {
		lesser.Indices = append(lesser.Indices, indexRight{i.Names, lacks(i.Names[0], i.Privileges)})
	}
	return lesser
}

// and joins two roles.
func (r role) and(o role) role {
	return role{slices.Concat(r.Cluster, o.Cluster), slices.Concat(r.Indices, o.Indices)}
}

// Allow gives Sluice's user exactly a role.
func (e *securedElasticsearch) Allow(t *testing.T, r role) {
	t.Helper()
	e.AllowTo(t, sluiceUser, r)
}

// AllowTo gives a user exactly a role.
func (e *securedElasticsearch) AllowTo(t *testing.T, user string, r role) {
	t.Helper()
	body, err := json.Marshal(r)
	must(t, err)
	e.Do(t, http.MethodPut, "/_security/role/"+user, string(body))
}

// page reads one of Sluice's pages.
func (s *Sluice) page(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// AwaitWord waits until /healthz or /v1/status holds all the words.
func (s *Sluice) AwaitWord(t *testing.T, timeout time.Duration, words ...string) string {
	t.Helper()
	var text string
	await(t, timeout, fmt.Sprintf("the status to say %q", words), func() error {
		if err := s.Check(); err != nil {
			return err
		}
		health, err := s.page(t.Context(), "/healthz")
		if err != nil {
			return err
		}
		status, err := s.page(t.Context(), "/v1/status")
		if err != nil {
			return err
		}
		text = health + status
		for _, word := range words {
			if !strings.Contains(text, word) {
				return fmt.Errorf("it does not say %q: %.1500s", word, text)
			}
		}
		return nil
	})
	return text
}

// sluiceSays runs a verb and gives its exit code and what it printed.
func sluiceSays(t *testing.T, config string, args ...string) (code int, said string) {
	t.Helper()
	path, err := binary()
	must(t, err)
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, append(args, "-c", file)...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), string(out)
	}
	must(t, err)
	return 0, string(out)
}

// flow is a stream of records of its own, and what must come of them.
type flow struct {
	s                             *secured
	topic, group, letters, parked string
	index                         string
	n, bad                        int
	want                          map[string]string
}

// flow makes the topics of a flow; nothing may be done with them yet.
func (s *secured) flow(t *testing.T) *flow {
	t.Helper()
	f := &flow{
		s: s, topic: unique(t, "events"), group: unique(t, "sluice"), letters: unique(t, "letters"), index: unique(t, "events"),
		want: map[string]string{},
	}
	f.parked = f.letters + ".parked"
	s.kafka.CreateTopic(t, f.topic, 3)
	s.kafka.CreateTopic(t, f.letters, 1)
	return f
}

func (f *flow) config(more string) string {
	return f.s.config(f.topic, f.group, f.index, f.letters, more)
}

func (f *flow) acls(t *testing.T, parts ...string) []acl {
	t.Helper()
	return acls(t, f.topic, f.group, f.letters, parts...)
}

// produce writes documents, of which one is deleted again, and a record that is
// refused: all that Sluice does needs its rights.
func (f *flow) produce(t *testing.T, documents int, filler string) {
	t.Helper()
	var records []*kgo.Record
	put := func(key, value string) {
		r := &kgo.Record{Topic: f.topic, Key: []byte(key)}
		if value != "" {
			r.Value = []byte(value)
		}
		records = append(records, r)
	}
	for range documents {
		key, value := fmt.Sprintf("k%d", f.n), fmt.Sprintf(`{"n":%d,"filler":%q}`, f.n, filler)
		f.n++
		f.want[key] = value
		put(key, value)
	}
	last := fmt.Sprintf("k%d", f.n-1)
	delete(f.want, last)
	put(last, "")
	put(fmt.Sprintf("bad%d", f.bad), "{bad")
	f.bad++
	must(t, f.s.kafka.Client.ProduceSync(t.Context(), records...).FirstErr())
}

// settled waits until all is committed, and looks whether anything is missing.
func (f *flow) settled(t *testing.T, sluice *Sluice) {
	t.Helper()
	began := time.Now()
	f.s.kafka.AwaitNoLag(t, time.Minute, f.group, f.topic, sluice.Check)
	t.Logf("all committed after %.1f s", time.Since(began).Seconds())
	compare(t, f.s.elasticsearch.Documents(t, f.index), f.want)
	if n := f.lettered(t); n != f.bad {
		t.Errorf("dead letters of %d records, want %d", n, f.bad)
	}
}

// lettered counts the records with a dead letter. A member that is thrown out of
// its group before it has committed leaves a second letter of the same record.
func (f *flow) lettered(t *testing.T) int {
	t.Helper()
	places := map[string]bool{}
	for _, letter := range f.s.kafka.ReadAll(t, f.letters) {
		var place string
		for _, h := range letter.Headers {
			if h.Key == "sluice.partition" || h.Key == "sluice.offset" {
				place += h.Key + "=" + string(h.Value) + " "
			}
		}
		places[place] = true
	}
	return len(places)
}

// end ends the process in an orderly way.
func end(t *testing.T, sluice *Sluice) {
	t.Helper()
	if code := sluice.End(t, syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM ended sluice with exit code %d", code)
	}
}

// TestSecured runs Sluice through servers that let nobody in who may not, with
// the rights that deploy/security gives, and takes from it what can be taken.
func TestSecured(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	t.Run("rights on Kafka", s.testKafkaRights)
	t.Run("rights on Elasticsearch", s.testElasticsearchRights)
	t.Run("refusals", s.testRefusals)
	if everything() {
		t.Run("rights to park", s.testParkedRights)
		t.Run("rights to migrate", s.testMigrateRights)
		t.Run("rotation", s.testRotation)
	}
}

// everything says that each right, refusal and rotation is tried, not some of
// them.
func everything() bool { return os.Getenv("SLUICE_TEST_SECURED") == "full" }

// Without a right Sluice says which one it wants, goes on living, and goes on
// by itself once it has it; so do those that start without any.
func (s *secured) testKafkaRights(t *testing.T) {
	f := s.flow(t)
	rights := f.acls(t, "run", "dead-letters")
	s.elasticsearch.Allow(t, readRole(t, "run"))
	sluice := startSluice(t, f.config(""))
	f.produce(t, 5, "")
	wanted := func(a acl) {
		t.Helper()
		said := sluice.AwaitWord(t, 30*time.Second, "allow "+strings.ToUpper(a.operation), a.name)
		if log := sluice.log.tail(); !strings.Contains(log, "allow "+strings.ToUpper(a.operation)) {
			t.Errorf("without %s the log does not say what is missing:\n%s", a, log)
		}
		if code, said := sluiceSays(t, f.config(""), "validate"); code != 1 || !strings.Contains(said, "allow "+strings.ToUpper(a.operation)+" on it") || !strings.Contains(said, a.name) {
			t.Errorf("without %s validate says, with exit code %d:\n%s", a, code, said)
		}
		t.Logf("without %s: %.400s", a, said)
	}
	for _, a := range rights {
		wanted(a)
		s.kafka.Allow(t, a)
	}
	f.settled(t, sluice)
	if code, said := sluiceSays(t, f.config(""), "validate"); code != 0 {
		t.Errorf("with all rights validate says, with exit code %d:\n%s", code, said)
	}
	for _, a := range rights {
		s.kafka.Forbid(t, a)
		f.produce(t, 5, "")
		wanted(a)
		s.kafka.Allow(t, a)
		f.settled(t, sluice)
	}
	end(t, sluice)

	// What else the files give is enough for what they name.
	s.kafka.Allow(t, f.acls(t, "validate", "letters")...)
	s.elasticsearch.Allow(t, readRole(t, "run").and(readRole(t, "validate")))
	for _, args := range [][]string{
		{"validate"},
		{"lag"},
		{"deadletter", "list"},
		{"generation", "show", "--topic", f.topic},
		{"reset", "--topic", f.topic, "--to", "earliest", "--yes"},
	} {
		code, said := sluiceSays(t, f.config(""), args...)
		if code != 0 || args[0] == "validate" && !strings.Contains(said, "0 errors, 1 warnings") { // index.gc_deletes
			t.Errorf("%v: exit code %d: %s", args, code, said)
		}
	}
}

// Streams are routed and migrated by a user with exactly what the files give for
// that, beside processes with exactly theirs: from the index, and from the topics.
func (s *secured) testMigrateRights(t *testing.T) {
	const operator, password = "operator", "operator-1"
	s.kafka.SetPassword(t, operator, password)
	s.put(t, "operator-password", password)
	s.elasticsearch.Do(t, http.MethodPut, "/_security/user/"+operator, fmt.Sprintf(`{"password":%q,"roles":[%q]}`, password, operator))
	s.elasticsearch.Allow(t, readRole(t, "run"))
	// The machine's disk may be as full as a plan refuses.
	s.elasticsearch.Do(t, http.MethodPut, "/_cluster/settings", `{"persistent":{"cluster.routing.allocation.disk.watermark":{"low":"99.9%","high":"99.9%","flood_stage":"99.9%"}}}`)
	for _, source := range []string{"index", "kafka"} {
		t.Run(source, func(t *testing.T) {
			f := s.flow(t)
			s.kafka.Allow(t, f.acls(t, "run", "dead-letters")...)
			s.elasticsearch.Do(t, http.MethodPut, "/"+f.index, `{"settings":{"number_of_replicas":0}}`)
			config := strings.Replace(f.config(fmt.Sprintf("routing: {stream: %s, refresh_interval: 200ms, max_staleness: 1s}", f.index)),
				"documents: {", `documents: {id: key, customer: "key:^(k[0-9])", `, 1)
			theirs := strings.NewReplacer("username: "+sluiceUser+"\n", "username: "+operator+"\n", "username: "+sluiceUser+",", "username: "+operator+",",
				s.file("sasl-password"), s.file("operator-password"), s.file("basic-password"), s.file("operator-password")).Replace(config)

			s.elasticsearch.AllowTo(t, operator, readRole(t, "init"))
			s.kafka.AllowTo(t, operator, f.acls(t, "init")...)
			runCommand(t, theirs, "routes", "init")
			sluice := startSluice(t, config)
			f.produce(t, 50, "")
			f.settled(t, sluice)

			s.elasticsearch.AllowTo(t, operator, readRole(t, "migrate"))
			parts := []string{"migrate"}
			if source == "kafka" {
				parts = append(parts, "migrate-topics")
			}
			s.kafka.AllowTo(t, operator, f.acls(t, parts...)...)
			plan := filepath.Join(t.TempDir(), "plan.json")
			job := "rights-" + source
			verb := func(args ...string) {
				t.Helper()
				t.Logf("%s: %.300s", args[0], runCommand(t, theirs, append([]string{"migrate", args[0], "--job", job}, args[1:]...)...))
			}
			s.elasticsearch.Do(t, http.MethodPost, "/"+f.index+"/_refresh", "")
			runCommand(t, theirs, "migrate", "plan", "--source", f.index, "--partitions", "2", "--replicas", "0", "-o", plan)
			verb("create", "--plan", plan)
			verb("throttle", "--set", "lag=1m", "--set", "disk=99", "--set", "queue=10000")
			verb("run", "--source", source)
			f.produce(t, 50, "") // to both sides
			s.kafka.AwaitNoLag(t, time.Minute, f.group, f.topic, sluice.Check)
			verb("verify", "--level", "L2", "--full", "--repair")
			verb("verify", "--level", "L2", "--full")
			verb("cutover", "--all", "--yes")
			verb("verify", "--level", "L2", "--full")
			verb("complete", "--min-bake", "0s", "--keep-old", "0s", "--yes")
			verb("drop", "--confirm", f.index, "--searched")
			f.produce(t, 5, "") // to the new side only
			s.kafka.AwaitNoLag(t, time.Minute, f.group, f.topic, sluice.Check)
			compare(t, s.elasticsearch.Documents(t, f.index+"-p*"), f.want)
			if n := f.lettered(t); n != f.bad {
				t.Errorf("%d dead letters, want %d", n, f.bad)
			}
			end(t, sluice)
		})
	}
}

// The same for the topic of parked records.
func (s *secured) testParkedRights(t *testing.T) {
	s.elasticsearch.Allow(t, readRole(t, "run"))
	for _, missing := range []string{"Read", "Write", "Create"} {
		t.Run(missing, func(t *testing.T) {
			f := s.flow(t)
			if missing != "Create" {
				s.kafka.CreateTopic(t, f.parked, 1)
			}
			var want acl
			for _, a := range f.acls(t, "run", "dead-letters", "parked") {
				if a.operation == missing && a.name == f.parked {
					want = a
					continue
				}
				s.kafka.Allow(t, a)
			}
			s.elasticsearch.Do(t, http.MethodPut, "/"+f.index, `{"settings":{"number_of_replicas":0}}`)
			block := func(on bool) {
				s.elasticsearch.Do(t, http.MethodPut, "/"+f.index+"/_settings", fmt.Sprintf(`{"index.blocks.write":%t}`, on))
			}
			block(true)
			config := strings.Replace(f.config("memory: {limit: 16MiB, held_share: 3%}"), "indexer: {", "indexer: {held: park, ", 1)
			sluice := startSluice(t, config)
			f.produce(t, 1000, strings.Repeat("x", 1000))
			if missing == "Read" { // it is wanted once records come back
				await(t, time.Minute, "parked records", func() error {
					if err := sluice.Check(); err != nil {
						return err
					}
					if sluice.Metrics().Sum("sluice_records_total", `outcome="parked"`) == 0 {
						return errors.New("none")
					}
					return nil
				})
				block(false)
			}
			said := sluice.AwaitWord(t, 30*time.Second, "allow "+strings.ToUpper(missing), f.parked)
			t.Logf("without %s: %.400s", want, said)
			if code, said := sluiceSays(t, config, "validate"); code != 1 || !strings.Contains(said, strings.ToUpper(missing)) || !strings.Contains(said, f.parked) {
				t.Errorf("without %s validate says, with exit code %d:\n%s", want, code, said)
			}
			s.kafka.Allow(t, want)
			block(false)
			await(t, time.Minute, "what is parked to come back", func() error {
				if err := sluice.Check(); err != nil {
					return err
				}
				if m := sluice.Metrics(); m.Sum("sluice_records_total") < float64(f.n) || m.Sum("sluice_parked_targets") > 0 {
					return errors.New("some is parked")
				}
				return nil
			})
			f.settled(t, sluice)
			end(t, sluice)
		})
	}
}

// control is what is said of all rights on the control index, whichever is
// missing.
var control = regexp.MustCompile(`\\nThe control index keeps[^"]*`)

// The same for each right on Elasticsearch: Sluice starts without it.
func (s *secured) testElasticsearchRights(t *testing.T) {
	run, validate := readRole(t, "run"), readRole(t, "validate")
	for i, right := range run.each() {
		if i%3 != 0 && !everything() {
			continue
		}
		t.Run(strings.ReplaceAll(right.privilege+" "+strings.Trim(right.on, ".*"), " ", "-"), func(t *testing.T) {
			f := s.flow(t)
			s.kafka.Allow(t, f.acls(t, "run", "dead-letters", "validate")...)
			s.elasticsearch.removeControl(t) // so that it must be made
			s.elasticsearch.Allow(t, run.without(right))
			sluice := startSluice(t, f.config(""))
			f.produce(t, 5, "")
			named := regexp.MustCompile(`privileges? \[?([a-z_]+, ?)*` + right.privilege + `\b`)
			var said string
			await(t, 30*time.Second, "the status to name "+right.String(), func() error {
				if err := sluice.Check(); err != nil {
					return err
				}
				var err error
				said, err = sluice.page(t.Context(), "/healthz")
				if err == nil && !named.MatchString(control.ReplaceAllString(said, "")) {
					err = fmt.Errorf("it says %s", said)
				}
				return err
			})
			t.Logf("without %s: %.600s", right, said)
			if log := sluice.log.tail(); !named.MatchString(control.ReplaceAllString(log, "")) {
				t.Errorf("without %s the log does not say what is missing:\n%s", right, log)
			}
			s.elasticsearch.Allow(t, run.and(validate).without(right))
			if code, said := sluiceSays(t, f.config(""), "validate"); code != 1 || !strings.Contains(said, right.privilege) {
				t.Errorf("without %s validate says, with exit code %d:\n%s", right, code, said)
			}
			s.elasticsearch.Allow(t, run)
			f.settled(t, sluice)
			end(t, sluice)
		})
	}
}

// removeControl removes the control index, which may not be there.
func (e *securedElasticsearch) removeControl(t *testing.T) {
	t.Helper()
	_, err := e.request(t.Context(), http.MethodDelete, "/.sluice-control?ignore_unavailable=true", nil)
	must(t, err)
}
