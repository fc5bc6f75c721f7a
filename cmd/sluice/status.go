package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/cmd/sluice/internal/heavy"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
)

func newStatus() *cobra.Command {
	var flags configFlags
	var replicas adminFlags
	var asJSON bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Shows what replicas are doing",
		Long: `Asks the replicas twice, an interval apart, all at once, and shows what they do together: state,
lag and how it moves, records, requests, held targets, halted partitions. It says
how many of the group's members it saw: what others do is not in the sums.

Exit code 1: a replica could not be asked, or records do not flow everywhere.`,
		Example: `  sluice status -c sluice.yaml
  sluice status --admin http://10.0.0.7:9600 --admin http://10.0.0.8:9600 --json`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			cfg, known, err := replicas.load(&flags)
			if err != nil {
				return err
			}
			client, err := replicas.named(cmd.Context(), cfg.Admin)
			if err != nil {
				return err
			}
			if interval <= 0 {
				return &exit{exitUsage, fmt.Errorf("--interval %s: want more than 0", interval)}
			}
			ctx := cmd.Context()
			before := askStatus(ctx, client)
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			all := askStatus(ctx, client)
			sum := summarise(before, all)
			sum.Jobs = askJobs(ctx, client)
			if known {
				sum.Members = countMembers(ctx, cfg)
			}
			if out := cmd.OutOrStdout(); asJSON {
				err = json.NewEncoder(out).Encode(sum)
			} else {
				sum.show(out)
			}
			return errors.Join(err, sum.trouble())
		}),
	}
	flags.add(cmd)
	replicas.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "prints JSON")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "between the two looks that rates come from")
	return cmd
}

// countMembers returns how many members the group has; -1: it is not known.
func countMembers(ctx context.Context, cfg *config.Config) int {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client, err := app.KafkaClient(cfg)
	if err != nil {
		return -1
	}
	defer client.Close()
	n, err := groupMembers(ctx, kadm.NewClient(client), cfg.Kafka.GroupID)
	if err != nil {
		return -1
	}
	return n
}

// replicaStatus is what one replica says.
type replicaStatus struct {
	URL    string       `json:"url"`
	Error  string       `json:"error,omitempty"` // it could not be asked: the rest is empty
	Status app.Status   `json:"status"`
	Health admin.Health `json:"health"`

	at time.Time // of the answer: rates are over the time between two
}

// askStatus asks all replicas at once: a slow one does not make the others'
// answers older.
func askStatus(ctx context.Context, client *adminClient) []replicaStatus {
	all := make([]replicaStatus, len(client.urls))
	var wg sync.WaitGroup
	for i, url := range client.urls {
		wg.Go(func() {
			r := replicaStatus{URL: url}
			err := client.call(ctx, url, http.MethodGet, "/v1/status", nil, &r.Status)
			r.at = time.Now()
			if err == nil {
				err = client.call(ctx, url, http.MethodGet, "/healthz", nil, &r.Health)
			}
			if err != nil {
				r = replicaStatus{URL: url, Error: err.Error()}
			}
			all[i] = r
		})
	}
	wg.Wait()
	return all
}

// statusSum is what replicas do together. Counts of records are those of the
// partitions that are held now.
type statusSum struct {
	Group       string                  `json:"group"`
	Members     int                     `json:"members"`      // of the group; -1: not known
	MembersSeen int                     `json:"members_seen"` // among the replicas
	Partitions  int                     `json:"partitions"`
	Lag         int64                   `json:"lag"`         // offsets
	LagUnknown  int                     `json:"lag_unknown"` // partitions whose lag is not known yet
	LagSeconds  float64                 `json:"lag_seconds"` // the largest
	ReadRate    float64                 `json:"read_rate"`   // records that are taken from Kafka, a second
	Rate        float64                 `json:"rate"`        // records that end, a second
	ETASeconds  float64                 `json:"eta_seconds"` // until the lag is 0, if it goes on falling like this; -1: it does not fall
	Records     consumer.LedgerStatus   `json:"records"`
	Memory      app.MemoryStatus        `json:"memory"`
	Indexer     app.IndexerStatus       `json:"indexer"`
	DeadLetters int                     `json:"dead_letters_waiting"`
	Reasons     map[string]uint64       `json:"dead_letters_by_reason"` // acknowledged ones, since the replicas started
	Topics      []topicStatus           `json:"topics"`                 // by name
	Customers   []heavy.Share           `json:"customers,omitempty"`    // with the most bytes in the last minutes
	Jobs        []jobLine               `json:"jobs,omitempty"`
	Parked      []string                `json:"parked_targets,omitempty"` // sorted
	Held        []heldTarget            `json:"held_targets"`
	Halted      []admin.HaltedPartition `json:"halted_partitions"`
	Replicas    []replicaStatus         `json:"replicas"`
}

// topicStatus is what the partitions of a topic do that the replicas hold.
type topicStatus struct {
	Topic      string  `json:"topic"`
	Partitions int     `json:"partitions"`
	Halted     int     `json:"partitions_halted"`
	Paused     int     `json:"partitions_paused"` // paused, or waiting for something
	Lag        int64   `json:"lag"`               // offsets
	LagUnknown int     `json:"lag_unknown"`       // partitions whose lag is not known yet
	LagSeconds float64 `json:"lag_seconds"`       // the largest
	Rate       float64 `json:"rate"`              // records that end, a second
	ETASeconds float64 `json:"eta_seconds"`       // as that of all
}

// jobLine is a migration.
type jobLine struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Line  string `json:"line"` // all of it
}

// holding is a partition, and the replica that holds it.
type holding struct {
	url, topic string
	partition  int32
}

// reading is what a replica said of a partition at one moment.
type reading struct {
	lag             int64 // negative: not known
	consumed, ended uint64
	at              time.Time
}

func readings(replicas []replicaStatus) map[holding]reading {
	all := map[holding]reading{}
	for _, r := range replicas {
		for _, p := range r.Status.Consumer.Partitions {
			all[holding{r.URL, p.Topic, p.Partition}] = reading{p.Lag, p.Ledger.Consumed, ended(p.Ledger), r.at}
		}
	}
	return all
}

// rates are what partitions do a second.
type rates struct{ read, ended, lagFalls float64 }

// add adds those of a partition. What a replica did not hold before, or started
// to count anew, counts as nothing.
func (r *rates) add(before, now reading) {
	seconds := now.at.Sub(before.at).Seconds()
	if before.at.IsZero() || seconds <= 0 {
		return
	}
	if now.consumed >= before.consumed && now.ended >= before.ended {
		r.read += float64(now.consumed-before.consumed) / seconds
		r.ended += float64(now.ended-before.ended) / seconds
	}
	if before.lag >= 0 && now.lag >= 0 {
		r.lagFalls += float64(before.lag-now.lag) / seconds
	}
}

// eta is for how long a lag lasts that falls like this, in seconds; -1: it does
// not fall.
func (r *rates) eta(lag int64) float64 {
	switch {
	case lag == 0:
		return 0
	case r.lagFalls <= 0:
		return -1
	}
	return float64(lag) / r.lagFalls
}

// topics returns what each topic's partitions do.
func topics(earlier map[holding]reading, now []replicaStatus) []topicStatus {
	by, rate := map[string]*topicStatus{}, map[string]*rates{}
	for at, is := range readings(now) {
		if rate[at.topic] == nil {
			rate[at.topic] = &rates{}
		}
		rate[at.topic].add(earlier[at], is)
	}
	for _, r := range now {
		for _, p := range r.Status.Consumer.Partitions {
			t := by[p.Topic]
			if t == nil {
				t = &topicStatus{Topic: p.Topic, Rate: rate[p.Topic].ended}
				by[p.Topic] = t
			}
			t.Partitions++
			switch p.State {
			case consumer.StateRunning:
			case consumer.StateHalted:
				t.Halted++
			default:
				t.Paused++
			}
			if p.Lag < 0 {
				t.LagUnknown++
			} else {
				t.Lag += p.Lag
			}
			t.LagSeconds = max(t.LagSeconds, p.LagSeconds)
		}
	}
	all := make([]topicStatus, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		by[name].ETASeconds = rate[name].eta(by[name].Lag)
		all = append(all, *by[name])
	}
	return all
}

// mostCustomers is how many customers are shown.
const mostCustomers = 20

// customers adds up what replicas say of their customers. One that is not among a
// replica's largest counts there as nothing.
func customers(replicas []replicaStatus) []heavy.Share {
	rates, total := map[string]float64{}, 0.0
	for _, r := range replicas {
		for i, c := range r.Status.Customers {
			rates[c.Customer] += c.BytesPerSecond
			if i == 0 && c.Share > 0 {
				total += c.BytesPerSecond / c.Share
			}
		}
	}
	all := make([]heavy.Share, 0, len(rates))
	for customer, rate := range rates {
		all = append(all, heavy.Share{Customer: customer, BytesPerSecond: rate, Share: rate / total})
	}
	slices.SortFunc(all, func(a, b heavy.Share) int {
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), cmp.Compare(a.Customer, b.Customer))
	})
	return all[:min(len(all), mostCustomers)]
}

// jobsTimeout bounds the question for migrations: a replica reads them from
// Elasticsearch, and all else is to be shown just when that does not answer.
const jobsTimeout = 2 * time.Second

// askJobs returns the migrations, of which every replica of a routed stream
// knows. nil: the stream is not routed, or none answers within jobsTimeout.
func askJobs(ctx context.Context, client *adminClient) (jobs []jobLine) {
	ctx, cancel := context.WithTimeout(ctx, jobsTimeout)
	defer cancel()
	for _, url := range client.urls {
		if client.call(ctx, url, http.MethodGet, "/v1/jobs", nil, &jobs) == nil {
			return jobs
		}
	}
	return nil
}

// summarise adds up what replicas say; before is what they said earlier.
func summarise(before, now []replicaStatus) *statusSum {
	s := &statusSum{Members: -1, Halted: []admin.HaltedPartition{}, Reasons: map[string]uint64{}, Replicas: now}
	healths := map[string]admin.Health{}
	members := map[string]bool{}
	for _, r := range now {
		if r.Error != "" {
			continue
		}
		healths[r.URL] = r.Health
		s.Halted = append(s.Halted, r.Health.Halted...)
		c := r.Status.Consumer
		s.Group = c.Group
		if c.Member != "" {
			members[c.Member] = true
		}
		s.Memory.UsedBytes += r.Status.Memory.UsedBytes
		s.Memory.LimitBytes += r.Status.Memory.LimitBytes
		x := r.Status.Indexer
		s.Indexer.Indexers += x.Indexers
		s.Indexer.InFlight += x.InFlight
		s.Indexer.RequestsLimit += x.RequestsLimit
		s.Indexer.Bytes += x.Bytes
		s.Indexer.BlockedOn += x.BlockedOn
		s.Indexer.Throttled = s.Indexer.Throttled || x.Throttled
		if d := r.Status.DeadLetters; d != nil {
			s.DeadLetters += d.Waiting
			for reason, n := range d.Reasons {
				s.Reasons[reason] += n
			}
		}
		for _, p := range c.Partitions {
			s.Partitions++
			if p.Lag < 0 {
				s.LagUnknown++
			} else {
				s.Lag += p.Lag
			}
			s.LagSeconds = max(s.LagSeconds, p.LagSeconds)
			s.Records.Add(p.Ledger)
			for _, l := range p.Parked {
				s.Parked = append(s.Parked, l.Target)
			}
		}
	}
	slices.Sort(s.Parked)
	s.Parked = slices.Compact(s.Parked)
	s.MembersSeen, s.Held = len(members), held(healths)
	s.Indexer.HeldTargets = len(s.Held)

	earlier := readings(before)
	var all rates
	for at, is := range readings(now) {
		all.add(earlier[at], is)
	}
	s.ReadRate, s.Rate, s.ETASeconds = all.read, all.ended, all.eta(s.Lag)
	s.Topics, s.Customers = topics(earlier, now), customers(now)
	return s
}

// ended is how many records need no more work.
func ended(l consumer.LedgerStatus) uint64 {
	return l.Indexed + l.Deleted + l.Stale + l.DeadLettered + l.Parked + l.Ignored
}

func (s *statusSum) trouble() error {
	var errs []error
	for _, r := range s.Replicas {
		switch {
		case r.Error != "":
			errs = append(errs, errors.New(r.Error))
		case !r.Health.OK():
			errs = append(errs, fmt.Errorf("%s: records do not flow everywhere: %s", r.URL, standing(r.Health)))
		}
	}
	return errors.Join(errs...)
}

// standing is a replica's state, and what stands whatever the state is.
func standing(h admin.Health) string {
	text := string(h.State)
	if n := len(h.Held); n > 0 {
		text += fmt.Sprintf(", %d held targets", n)
	}
	if n := len(h.Halted); n > 0 {
		text += fmt.Sprintf(", %d halted partitions", n)
	}
	if h.Routing != nil && h.Routing.Trouble != "" {
		text += ", " + h.Routing.Trouble
	}
	return text
}

// show prints one screen.
func (s *statusSum) show(out io.Writer) {
	members := "?"
	if s.Members >= 0 {
		members = fmt.Sprint(s.Members)
	}
	eta := "never, as the lag does not fall"
	if s.ETASeconds >= 0 {
		eta = (time.Duration(s.ETASeconds) * time.Second).String()
	}
	r := s.Records
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("group", "%s, %d of %s members seen, %d partitions", orDash(s.Group), s.MembersSeen, members, s.Partitions)
	if s.Partitions > 0 {
		line("lag", "%d records, oldest %.1fs", s.Lag, s.LagSeconds)
	} else {
		line("lag", "not known: none of these replicas holds a partition")
		eta = "-"
	}
	if s.LagUnknown > 0 {
		line("", "and that of %d partitions, which is not known yet", s.LagUnknown)
	}
	line("rate", "%.0f/s, eta %s", s.Rate, eta)
	line("records", "consumed %d, indexed %d, deleted %d, stale %d, dead-lettered %d, parked %d, ignored %d, abandoned %d, in flight %d",
		r.Consumed, r.Indexed, r.Deleted, r.Stale, r.DeadLettered, r.Parked, r.Ignored, r.Abandoned, r.InFlight)
	throttled := ""
	if s.Indexer.Throttled {
		throttled = ", throttled by Elasticsearch"
	}
	line("requests", "%d in flight of %d, %d indexers%s", s.Indexer.InFlight, s.Indexer.RequestsLimit, s.Indexer.Indexers, throttled)
	line("memory", "%s of %s", bytesText(s.Memory.UsedBytes), bytesText(s.Memory.LimitBytes))
	if s.Indexer.BlockedOn > 0 {
		line("blocked", "%d records are never answered by Elasticsearch", s.Indexer.BlockedOn)
	}
	if s.DeadLetters > 0 {
		line("dead letters", "%d wait to be written", s.DeadLetters)
	}
	if len(s.Parked) > 0 {
		line("parked", "records for %s: sluice parked list", strings.Join(s.Parked, ", "))
	}
	_ = table.Flush() // as good as the writes to out

	fmt.Fprintln(out)
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REPLICA\tSTATE\tSINCE\tPARTITIONS\tVERSION\tWHY")
	for _, r := range s.Replicas {
		if r.Error != "" {
			fmt.Fprintf(table, "%s\tnot asked\t-\t-\t-\t%s\n", r.URL, oneLine(r.Error))
			continue
		}
		why := r.Status.Reason
		if es := r.Status.Elasticsearch; !es.Available && why == "" {
			why = "Elasticsearch: " + es.Reason
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\n", r.URL, r.Status.State, ago(r.Status.Since), len(r.Status.Consumer.Partitions), r.Status.Version, oneLine(why))
	}
	_ = table.Flush()
	if len(s.Held) > 0 {
		fmt.Fprintln(out, "\nheld targets")
		showHeld(out, s.Held)
	}
	if len(s.Reasons) > 0 {
		fmt.Fprintln(out, "\ndead letters by reason, since the replicas started")
		table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, reason := range s.reasons() {
			fmt.Fprintf(table, "%s\t%d\n", plain(reason), s.Reasons[reason])
		}
		_ = table.Flush()
	}
	if len(s.Customers) > 0 {
		fmt.Fprintln(out, "\ncustomers with the most bytes in the last minutes")
		table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "CUSTOMER\tBYTES/S\tSHARE")
		for _, c := range s.Customers {
			fmt.Fprintf(table, "%s\t%s\t%.1f%%\n", plain(c.Customer), bytesText(int64(c.BytesPerSecond)), 100*c.Share)
		}
		_ = table.Flush()
	}
	if len(s.Jobs) > 0 {
		fmt.Fprintln(out, "\nmigrations")
		for _, j := range s.Jobs {
			fmt.Fprintln(out, oneLine(j.Line))
		}
	}
	if len(s.Halted) > 0 {
		fmt.Fprintln(out, "\nhalted partitions")
		slices.SortFunc(s.Halted, func(a, b admin.HaltedPartition) int { return a.Since.Compare(b.Since) })
		table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "PARTITION\tAT\tKIND\tSINCE\tWHY")
		for _, h := range s.Halted {
			fmt.Fprintf(table, "%s/%d\t%d\t%s\t%s\t%s\n", plain(h.Topic), h.Partition, h.Offset, h.Kind, ago(h.Since), oneLine(h.Reason))
		}
		_ = table.Flush()
	}
}

// reasons are those of the dead letters, the most frequent first.
func (s *statusSum) reasons() []string {
	return slices.SortedFunc(maps.Keys(s.Reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Reasons[b], s.Reasons[a]), cmp.Compare(a, b))
	})
}

func oneLine(text string) string { return plain(strings.Join(strings.Fields(text), " ")) }

// plain is a text that a terminal shows and does not obey: names of customers are
// whatever somebody sent.
func plain(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}
