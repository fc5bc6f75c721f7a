package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer/bulk"
)

// lookTimeout bounds the questions of a verb that only looks.
const lookTimeout = time.Minute

func newDryRun() *cobra.Command {
	var flags configFlags
	var n int
	var from string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dry-run",
		Short: "Shows the actions that the next records would become",
		Long: `Reads the next records of each topic from where the group stands, and shows what
they would become: operation, index, id, version, or why they would be refused.
It joins no group and writes nothing, neither to Elasticsearch nor to Kafka. Values
are not shown.

Whether Elasticsearch would take a document, only Elasticsearch knows: its mapping
is not asked.`,
		Example: `  sluice dry-run -c sluice.yaml -n 20
  sluice dry-run -c sluice.yaml --from earliest --json | jq -r .target | sort | uniq -c`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if n < 1 {
				return &exit{exitUsage, errors.New("-n must be 1 or more")}
			}
			if from != "" && from != "earliest" && from != "latest" {
				return &exit{exitUsage, fmt.Errorf("--from %q: use earliest or latest, or leave it out: from the group's commits", from)}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), lookTimeout)
			defer cancel()
			l, err := flags.look(ctx)
			if err != nil {
				return err
			}
			defer l.close(cmd.Context())
			return l.dryRun(ctx, cmd.OutOrStdout(), n, from, asJSON)
		}),
	}
	flags.add(cmd)
	cmd.Flags().IntVarP(&n, "records", "n", 20, "how many records")
	cmd.Flags().StringVar(&from, "from", "", "earliest or latest: not from the group's commits (latest: the last records)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "prints one JSON object a line")
	return cmd
}

// looker maps records as a member would, and asks what is known of them.
type looker struct {
	*servers
	topics map[string]*lookedTopic
	result document.Result
}

// lookedTopic is what a member would know of a topic.
type lookedTopic struct {
	*topicState
	rules *document.Rules
	list  generation.List // nil where the rules need none
}

func (f *configFlags) look(ctx context.Context) (*looker, error) {
	s, err := f.connect()
	if err != nil {
		return nil, err
	}
	if _, err := s.route(ctx); err != nil {
		s.close(ctx)
		return nil, err
	}
	return &looker{servers: s, topics: map[string]*lookedTopic{}}, nil
}

func (l *looker) topic(ctx context.Context, name string) (*lookedTopic, error) {
	if t := l.topics[name]; t != nil {
		return t, nil
	}
	state, err := describeTopic(ctx, l.kafka, name)
	if err != nil {
		return nil, err
	}
	t := &lookedTopic{topicState: state, rules: l.mapper.Rules(name)}
	if t.rules.NeedsGeneration() {
		if t.list, err = l.generations(ctx, name); err != nil {
			return nil, err
		}
	}
	l.topics[name] = t
	return t, nil
}

// outcome is what a record becomes.
type outcome struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	Offset     int64  `json:"offset"`
	Verdict    string `json:"verdict"` // send, ignore, reject, dead letter, halt
	Type       string `json:"type,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Op         string `json:"op,omitempty"`
	Target     string `json:"target,omitempty"`
	Twin       string `json:"second_target,omitempty"` // under dual write
	ID         string `json:"id,omitempty"`
	Routing    string `json:"routing,omitempty"`
	Customer   string `json:"customer,omitempty"`
	Version    int64  `json:"version,omitempty"`
	Generation int    `json:"generation,omitempty"` // recorded; 0: none yet, or none is needed
	Bytes      int    `json:"bytes"`                // of the document
}

var (
	verdictNames = map[document.Verdict]string{
		document.Send: "send", document.Ignore: "ignore", document.Reject: "reject", document.DeadLetter: "dead letter", document.Halt: "halt",
	}
	policyNames = map[document.Policy]string{document.ToDeadLetter: "dead letter", document.Stop: "stop", document.Drop: "drop"}
	opNames     = map[bulk.Op]string{bulk.Index: "index", bulk.Create: "create", bulk.Update: "update", bulk.Upsert: "upsert", bulk.Delete: "delete"}
)

// mapRecord says what a record becomes. A topic that no member has seen yet gets
// the first generation, as it would.
func (l *looker) mapRecord(t *lookedTopic, r *kgo.Record) outcome {
	o := outcome{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
	recorded := 0
	if t.rules.NeedsGeneration() {
		if recorded, _ = t.list.At(t.id, r.Partition, r.Offset); recorded == 0 && len(t.list) > 0 {
			o.Verdict, o.Type = "halt", "needs_generation"
			o.Reason = "the topic was re-created, or read from before what is recorded: sluice generation show, and raise"
			return o
		}
	}
	l.mapper.Rules(r.Topic).Map(r, max(recorded, 1), &l.result)
	a := &l.result.Action
	o.Verdict, o.Type, o.Reason = verdictNames[l.result.Verdict], l.result.Type, l.result.Reason
	o.Customer, o.Generation = string(l.result.Customer), recorded
	if l.result.Verdict == document.Reject {
		o.Verdict = "reject, then " + policyNames[t.rules.OnRejected()]
	}
	if l.result.Verdict == document.Send {
		o.Op, o.Target, o.ID, o.Routing, o.Version, o.Bytes = opNames[a.Op], a.Target, string(a.ID), string(a.Routing), a.Version, len(a.Body)
		if l.result.Twin.Op != 0 {
			o.Twin = l.result.Twin.Target
		}
	}
	return o
}

// where is the record's place.
func (o *outcome) where() string { return fmt.Sprintf("%s/%d/%d", o.Topic, o.Partition, o.Offset) }

// sources returns the topics of the configuration that exist.
func (l *looker) sources(ctx context.Context) (names []string, err error) {
	listed, err := l.kafka.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("no broker tells of the topics: %w", err)
	}
	for _, wanted := range l.cfg.Kafka.Topics {
		fits, err := consumer.MatchTopic(wanted, deadLetterTopics(l.cfg))
		if err != nil {
			return nil, &exit{exitBadConfig, err}
		}
		names = append(names, slices.DeleteFunc(listed.Names(), func(name string) bool { return !fits(name) || !listed.Has(name) })...)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("none of kafka.topics exists: %s", strings.Join(l.cfg.Kafka.Topics, ", "))
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// dryRun shows what the next n records become.
func (l *looker) dryRun(ctx context.Context, out io.Writer, n int, from string, asJSON bool) error {
	names, err := l.sources(ctx)
	if err != nil {
		return err
	}
	start, behind := map[sourcePartition]int64{}, int64(0)
	for _, name := range names {
		t, err := l.topic(ctx, name)
		if err != nil {
			return err
		}
		commits, err := fetchCommits(ctx, l.kafka, l.cfg.Kafka.GroupID, name)
		if err != nil {
			return err
		}
		for p, end := range t.ends {
			at := t.starts[p]
			commit, committed := commits[p]
			switch {
			case from == "latest":
				at = max(at, end-int64(n))
			case from == "" && committed:
				at = min(max(at, commit.At), end)
			case from == "" && l.cfg.Kafka.Reset == "latest":
				at = end
			}
			start[sourcePartition{name, p}] = at
			behind += end - at
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	shown := 0
	if behind > 0 {
		shown, err = l.showRecords(ctx, start, n, func(o outcome) error {
			if asJSON {
				return json.NewEncoder(out).Encode(o)
			}
			fmt.Fprintf(table, "%s\t%s\n", o.where(), o.line())
			return nil
		})
	}
	_ = table.Flush() // as good as the writes to out
	if err == nil && !asJSON {
		if shown == 0 {
			fmt.Fprintln(out, "no record is waiting for the group; --from latest shows the last ones")
		}
		fmt.Fprintln(out, "nothing was written")
	}
	return err
}

// showRecords hands on what the records become that the partitions hold from
// given offsets on, at most n.
func (l *looker) showRecords(ctx context.Context, start map[sourcePartition]int64, n int, show func(outcome) error) (shown int, err error) {
	opts, err := app.KafkaOptions(l.cfg)
	if err != nil {
		return 0, err
	}
	t, err := newTail(start, l.cfg.Kafka.IsolationLevel != "read_uncommitted", opts)
	if err != nil {
		return 0, err
	}
	defer t.close()
	enough := errors.New("enough")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = t.catchUp(ctx, func(r *kgo.Record) {
		if shown == n || ctx.Err() != nil {
			return
		}
		if err := show(l.mapRecord(l.topics[r.Topic], r)); err != nil {
			stop(err)
		} else if shown++; shown == n {
			stop(enough)
		}
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return shown, err
}

// line says on one line what a record becomes. A name of a record is quoted: it
// may hold anything.
func (o *outcome) line() string {
	if o.Verdict != "send" {
		return strings.Join(slices.DeleteFunc([]string{o.Verdict, o.Type, o.Reason}, func(s string) bool { return s == "" }), ": ")
	}
	parts := []string{o.Op, o.Target}
	if o.Twin != "" {
		parts = append(parts, "and "+o.Twin)
	}
	if o.ID != "" {
		parts = append(parts, fmt.Sprintf("id %q", o.ID))
	} else {
		parts = append(parts, "id of the server's")
	}
	if o.Routing != "" {
		parts = append(parts, fmt.Sprintf("routing %q", o.Routing))
	}
	if o.Customer != "" {
		parts = append(parts, fmt.Sprintf("customer %q", o.Customer))
	}
	if o.Version != 0 {
		parts = append(parts, fmt.Sprintf("version %d", o.Version))
	}
	return strings.Join(append(parts, fmt.Sprintf("%d bytes", o.Bytes)), ", ")
}

func newLag() *cobra.Command {
	var flags configFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lag",
		Short: "Shows how far the group is behind, partition by partition",
		Long: `Compares the group's commits with the ends of the logs. It asks Kafka alone, so it
works with no member running. Offsets are counted: where a log has holes (compaction,
transactions), there are fewer records.

Exit code 0 whatever the lag is.`,
		Example: `  sluice lag -c sluice.yaml
  sluice lag -c sluice.yaml --json | jq '[.[].lag] | add'`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), lookTimeout)
			defer cancel()
			s, err := flags.connect()
			if err != nil {
				return err
			}
			l := &looker{servers: s}
			defer l.close(cmd.Context())
			all, err := l.lag(ctx)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return json.NewEncoder(out).Encode(all)
			}
			table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(table, "partition\tlog start\tcommitted\tlog end\tlag\t")
			sum := int64(0)
			for _, p := range all {
				committed := "-"
				if p.Committed >= 0 {
					committed = fmt.Sprint(p.Committed)
				}
				fmt.Fprintf(table, "%s/%d\t%d\t%s\t%d\t%d\t\n", p.Topic, p.Partition, p.Start, committed, p.End, p.Lag)
				sum += p.Lag
			}
			fmt.Fprintf(table, "group %s\t\t\t\t%d\t\n", s.cfg.Kafka.GroupID, sum)
			return table.Flush()
		}),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "prints JSON")
	return cmd
}

// partitionLag is how far the group is behind in one partition.
type partitionLag struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Start     int64  `json:"start"`
	Committed int64  `json:"committed"` // -1: nothing
	End       int64  `json:"end"`
	// Lag counts offsets from the commit, or where there is none from where
	// kafka.reset leads, to the end.
	Lag int64 `json:"lag"`
}

func (l *looker) lag(ctx context.Context) ([]partitionLag, error) {
	names, err := l.sources(ctx)
	if err != nil {
		return nil, err
	}
	all := []partitionLag{}
	for _, name := range names {
		state, err := describeTopic(ctx, l.kafka, name)
		if err != nil {
			return nil, err
		}
		commits, err := fetchCommits(ctx, l.kafka, l.cfg.Kafka.GroupID, name)
		if err != nil {
			return nil, err
		}
		for number, end := range state.ends {
			p := partitionLag{Topic: name, Partition: number, Start: state.starts[number], Committed: -1, End: end}
			from := p.Start
			if commit, ok := commits[number]; ok {
				p.Committed = commit.At
				from = max(from, commit.At)
			} else if l.cfg.Kafka.Reset == "latest" {
				from = end
			}
			p.Lag = max(0, end-from)
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b partitionLag) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all, nil
}

func newExplain() *cobra.Command {
	var flags configFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain TOPIC/PARTITION/OFFSET",
		Short: "Tells what became of a record, or what will",
		Long: `Reads the record from Kafka and says what the configuration makes of it, whether
the group has passed it, what Elasticsearch holds under its id now, and whether a
dead letter of it exists. Keys, ids and customers are shown, values are not.`,
		Example: `  sluice explain -c sluice.yaml events/3/1024`,
		Args:    cobra.ExactArgs(1),
		RunE: action(func(cmd *cobra.Command, args []string) error {
			at, err := parsePosition(args[0])
			if err != nil {
				return &exit{exitUsage, err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), lookTimeout)
			defer cancel()
			l, err := flags.look(ctx)
			if err != nil {
				return err
			}
			defer l.close(cmd.Context())
			story, err := l.explain(ctx, at.Topic, at.Partition, at.Offset)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(story)
			}
			story.show(cmd.OutOrStdout())
			return nil
		}),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "prints JSON")
	return cmd
}

// story is all that can be known of a record from outside.
type story struct {
	Record     *outcome     `json:"record,omitempty"` // nil: Kafka has none at that offset
	InLog      string       `json:"log"`              // what Kafka has there
	Written    time.Time    `json:"written,omitzero"` // the record's own time
	Group      string       `json:"group"`            // where the group stands
	Documents  []foundState `json:"documents,omitempty"`
	Letters    []string     `json:"dead_letters,omitempty"`
	LetterNote string       `json:"dead_letters_note,omitempty"`
}

// foundState is what Elasticsearch holds under the record's id.
type foundState struct {
	Target  string `json:"target"`
	Found   bool   `json:"found"`
	Version int64  `json:"version,omitempty"`
	Meaning string `json:"meaning"`
}

func (l *looker) explain(ctx context.Context, topic string, number int32, offset int64) (*story, error) {
	t, err := l.topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	end, exists := t.ends[number]
	if !exists {
		return nil, &exit{exitUsage, fmt.Errorf("topic %s has no partition %d", topic, number)}
	}
	s := &story{}
	commits, err := fetchCommits(ctx, l.kafka, l.cfg.Kafka.GroupID, topic)
	if err != nil {
		return nil, err
	}
	s.Group = groupStory(l.cfg.Kafka.GroupID, commits, number, offset)
	switch {
	case offset >= end:
		s.InLog = fmt.Sprintf("nothing yet: the log ends at %d", end)
		return s, nil
	case offset < t.starts[number]:
		s.InLog = fmt.Sprintf("nothing any more: the log begins at %d", t.starts[number])
	default:
		r, err := l.read(ctx, topic, number, offset)
		if err != nil {
			return nil, err
		}
		if r.Offset != offset {
			s.InLog = fmt.Sprintf("no record: it was compacted away, aborted, or is a marker; the next one is %d", r.Offset)
			break
		}
		o := l.mapRecord(t, r)
		s.Record, s.InLog, s.Written = &o, "a record", r.Timestamp
		if o.Verdict == "send" && o.ID != "" {
			for _, target := range slices.DeleteFunc([]string{o.Target, o.Twin}, func(s string) bool { return s == "" }) {
				s.Documents = append(s.Documents, l.stored(ctx, &o, target))
			}
		}
	}
	s.Letters, s.LetterNote = l.lettersOf(ctx, topic, number, offset)
	return s, nil
}

func groupStory(group string, commits map[int32]kadm.Offset, number int32, offset int64) string {
	commit, ok := commits[number]
	switch {
	case !ok:
		return fmt.Sprintf("group %s has committed nothing for this partition: the record is not known to be handled", group)
	case offset < commit.At:
		return fmt.Sprintf("group %s has committed %d, behind the record: it is handled", group, commit.At)
	default:
		return fmt.Sprintf("group %s has committed %d: the record is not known to be handled (%d offsets lie before it)", group, commit.At, offset-commit.At)
	}
}

// stored says what a target holds under a record's id.
func (l *looker) stored(ctx context.Context, o *outcome, target string) foundState {
	found := foundState{Target: target}
	docs, err := l.elastic.GetMany(ctx, []elastic.DocID{{Index: target, ID: o.ID, Routing: o.Routing}})
	if err != nil {
		found.Meaning = "cannot be looked at: " + err.Error()
		return found
	}
	found.Found, found.Version = docs[0].Found, docs[0].Version
	generation, offset, _, ours := document.DecodeSequence(found.Version)
	switch {
	case !found.Found && o.Op == "delete":
		found.Meaning = "no document: the record asks for that"
	case !found.Found:
		found.Meaning = "no document: a later record deleted it, or this one is not written"
	case o.Version == 0:
		found.Meaning = "a document; which record wrote it cannot be told, since none carries a version"
	case found.Version == o.Version:
		found.Meaning = "this record's document"
	case found.Version < o.Version:
		found.Meaning = "an older record's document: this one is not written yet, or was refused"
	case ours:
		found.Meaning = fmt.Sprintf("a later record's document: generation %d, offset %d of the partition that holds its key", generation, offset)
	default:
		found.Meaning = "a later version, which no sequence of Sluice's is"
	}
	return found
}

// lettersOf finds the dead letters of a record.
func (l *looker) lettersOf(ctx context.Context, topic string, number int32, offset int64) (found []string, note string) {
	if !l.cfg.DeadLetter.Enabled() {
		return nil, "no place for dead letters is configured"
	}
	letters, err := l.letters(ctx, deadletter.Filter{Topic: topic}, 0, nil)
	if err != nil {
		return nil, err.Error()
	}
	for letter, err := range letters {
		if err != nil {
			return found, "they cannot be read: " + err.Error()
		}
		if letter.Partition == number && letter.Offset == offset {
			found = append(found, fmt.Sprintf("%d/%d of %s: %s, status %d, at %s", letter.Stored.Partition, letter.Stored.Offset,
				letter.Stored.Time.UTC().Format(time.RFC3339), letter.Type, letter.Status, letter.Target))
		}
	}
	return found, ""
}

func (s *story) show(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, text string) { fmt.Fprintf(table, "%s\t%s\n", name, oneLine(text)) }
	line("log", s.InLog)
	if s.Record != nil {
		line("written", s.Written.UTC().Format(time.RFC3339Nano))
		line("becomes", s.Record.line())
		if s.Record.Generation > 0 {
			line("generation", fmt.Sprint(s.Record.Generation))
		}
	}
	line("group", s.Group)
	for _, d := range s.Documents {
		text := d.Meaning
		if d.Found {
			text = fmt.Sprintf("version %d: %s", d.Version, d.Meaning)
		}
		line("in "+d.Target, text)
	}
	for _, letter := range s.Letters {
		line("dead letter", letter)
	}
	if len(s.Letters) == 0 {
		line("dead letter", cmp.Or(s.LetterNote, "none"))
	}
	_ = table.Flush() // as good as the writes to out
}
