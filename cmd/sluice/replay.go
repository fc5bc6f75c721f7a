package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/generation"
	"github.com/sluicehq/sluice/indexer"
	"github.com/sluicehq/sluice/indexer/bulk"
)

const (
	// freshFor is how long it counts that a letter's id has no later record:
	// requests start only so soon after the logs were read to their ends. With
	// request_timeout on top it stays below index.gc_deletes, within which
	// Elasticsearch itself refuses what is older than a delete.
	freshFor = 10 * time.Second
	// A batch of letters.
	replayBatch = 500
	replayBytes = 4 << 20
)

func newDeadLetterReplay() *cobra.Command {
	var flags configFlags
	var which letterFlags
	r := &replay{fresh: freshFor}
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Writes dead letters to Elasticsearch again",
		Long: `Writes the records of dead letters again, after what refused them was repaired: by
the rules that are configured now, each with the version that it had. A letter is
skipped if its id has a later record, so that a replay neither overwrites what is
newer nor brings a deleted document back: of several letters of one id the newest
is written. For that the topics are read, from the oldest letter on, and anew
before each batch. Groups may go on consuming.

--force writes also letters of which that cannot be known: where the log no
longer reaches back to the letter, or the topic was re-created, and on a
compacted topic for letters older than its delete.retention.ms. Of those, ids
with a later record that can be seen are skipped all the same.

Of a stream that is routed by customer a letter goes where the routing table says
now, to both sides under dual write; one replay runs at a time, and a migration
waits for it where it must.

Letters stay where they are: one that is written counts as stale when it is
replayed again, one that is refused again stays a letter. About 200 bytes of
memory are needed for each letter, for the letters' ids and places.

Exit code 1 says that letters were refused again or could not be written.`,
		Example: `  sluice deadletter replay -c sluice.yaml --type document_parsing_exception --dry-run
  sluice deadletter replay -c sluice.yaml --topic events --since 2026-01-31T08:00:00Z`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			filter, err := which.filter(time.Now())
			if err != nil {
				return err
			}
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(cmd.Context())
			r.servers, r.filter, r.limit = s, filter, which.limit
			r.out, r.progress = cmd.OutOrStdout(), newProgress(cmd.ErrOrStderr())
			defer r.progress.clear()
			return r.run(cmd.Context())
		}),
	}
	flags.add(cmd)
	which.add(cmd)
	cmd.Flags().BoolVar(&r.force, "force", false, "also letters whose ids may have later records that cannot be seen any more")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "says what would become of each letter, and writes nothing")
	cmd.Flags().BoolVar(&r.takeOver, "take-over", false, "of a routed stream: in place of a replay that was killed")
	return cmd
}

// replay is one run of the verb. It goes over the letters twice: first their
// ids and places are noted, then, with what the logs say of them, they are
// written.
type replay struct {
	*servers
	filter   deadletter.Filter
	limit    int
	force    bool
	dryRun   bool
	fresh    time.Duration // see freshFor
	takeOver bool
	lease    replayLease // of a routed stream; zero: none is held
	out      io.Writer
	progress *progress

	topics map[string]*replayTopic
	tail   *tail
	bulk   *bulkWriter
	result document.Result
	count  replayCounts
}

// replayCounts is how letters ended. Their sum is selected.
type replayCounts struct {
	selected, written, deleted, stale, ignored int
	superseded                                 int // by a later record
	repeated                                   int // the same letter, written twice
	unproven                                   int // need --force
	refused                                    int // again, or still
	unfit                                      int // cannot be placed
}

// replayTopic is a topic that letters came from.
type replayTopic struct {
	name  string
	rules *document.Rules
	list  generation.List
	// missing says that the topic does not exist any more; id, starts and ends
	// are empty then.
	missing bool
	topicState
	// retention is how long deletes are kept in a compacted topic; below 0: it
	// is not compacted.
	retention time.Duration
	// heirs are the generations of other topics that write to the same
	// documents: a topic that took this one's place.
	heirs map[string]generation.List

	// newest holds, by target and id, the newest of the selected letters.
	newest map[string]*candidate
	from   map[int32]int64 // where reading begins
}

// candidate is the newest letter of an id.
type candidate struct {
	generation int
	partition  int32
	offset     int64
	rank       int64
	superseded bool // a later record of its id was seen
	done       bool // its letter was met in the second pass
	unproven   string
}

func (r *replay) run(ctx context.Context) error {
	end, err := r.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := r.note(ctx); err != nil {
		return err
	}
	from := map[sourcePartition]int64{}
	for _, t := range r.topics {
		for p, offset := range t.from {
			from[sourcePartition{t.name, p}] = max(offset, t.starts[p])
		}
	}
	opts, err := app.KafkaOptions(r.cfg)
	if err != nil {
		return err
	}
	r.tail, err = newTail(from, r.cfg.Kafka.IsolationLevel != "read_uncommitted", opts)
	if err != nil {
		return err
	}
	defer r.tail.close()
	if _, err := r.catchUp(ctx); err != nil {
		return err
	}
	if r.dryRun {
		r.preview()
	} else if err := r.write(ctx); err != nil {
		r.summary()
		return err
	}
	r.summary()
	if bad := r.count.refused + r.count.unfit + r.count.unproven; bad > 0 {
		return fmt.Errorf("%d of %d letters were not written", bad, r.count.selected)
	}
	return nil
}

// note makes the first pass.
func (r *replay) note(ctx context.Context) error {
	r.topics = map[string]*replayTopic{}
	letters, err := r.letters(ctx, r.filter, r.limit, r.progress.out)
	if err != nil {
		return err
	}
	for l, err := range letters {
		if err != nil {
			return err
		}
		r.count.selected++
		r.progress.show("reading letters: %d", r.count.selected)
		t := r.topics[l.Topic]
		if t == nil {
			if t, err = r.topic(ctx, l.Topic); err != nil {
				return err
			}
			r.topics[l.Topic] = t
		}
		key, problem := r.read(t, &l)
		if problem != "" {
			if r.result.Verdict == document.Send {
				r.count.unfit++
			} else {
				r.count.refused++
			}
			r.tell(&l, "not written: "+problem)
			continue
		}
		c := &candidate{generation: l.Generation, partition: l.Partition, offset: l.Offset, rank: rank(&r.result.Action, l.Generation, l.Offset)}
		switch old := t.newest[key]; {
		case old != nil && old.same(c):
			r.count.repeated++
			continue
		case old != nil && !c.mayFollow(old):
			r.count.superseded++
			continue
		case old != nil:
			r.count.superseded++
		}
		if r.result.Ordered {
			c.unproven = t.plan(&l, time.Now())
		}
		t.newest[key] = c
	}
	return nil
}

// topic asks what is to be known of a topic before its letters are placed.
func (r *replay) topic(ctx context.Context, name string) (*replayTopic, error) {
	t := &replayTopic{name: name, rules: r.mapper.Rules(name), retention: -1, newest: map[string]*candidate{}, from: map[int32]int64{}}
	state, err := describeTopic(ctx, r.kafka, name)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		t.missing = true
	case err != nil:
		return nil, err
	default:
		t.topicState = *state
		if t.retention, err = deleteRetention(ctx, r.kafka, name); err != nil {
			return nil, err
		}
	}
	if t.rules.NeedsGeneration() {
		if t.list, err = r.generations(ctx, name); err != nil {
			return nil, err
		}
	}
	if index, shared := r.mapper.SharedIndex(name); shared && len(t.list) > 0 {
		others, err := generation.Join(ctx, r.control, index, name) // it has joined when it was consumed
		if err != nil {
			return nil, err
		}
		t.heirs = map[string]generation.List{}
		for _, other := range others {
			if t.heirs[other], err = r.generations(ctx, other); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// deleteRetention returns how long a compacted topic keeps deletes; below 0:
// the topic is not compacted.
func deleteRetention(ctx context.Context, kafka *kadm.Client, topic string) (time.Duration, error) {
	configs, err := topicConfigs(ctx, kafka, topic)
	if err != nil {
		return 0, fmt.Errorf("topic %s: its configuration (DESCRIBE_CONFIGS must be allowed): %w", topic, err)
	}
	if !strings.Contains(configs["cleanup.policy"], "compact") {
		return -1, nil
	}
	ms, err := strconv.ParseInt(configs["delete.retention.ms"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("topic %s: delete.retention.ms: %w", topic, err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// topicConfigs returns the configuration of a topic.
func topicConfigs(ctx context.Context, kafka *kadm.Client, topic string) (map[string]string, error) {
	resources, err := kafka.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, err
	}
	resource, err := resources.On(topic, nil)
	if err := errors.Join(err, resource.Err); err != nil {
		return nil, err
	}
	configs := map[string]string{}
	for _, c := range resource.Configs {
		configs[c.Key] = c.MaybeValue()
	}
	return configs, nil
}

// read maps a letter's record, into r.result, and returns the name of its
// document. A problem says why it cannot be written.
func (r *replay) read(t *replayTopic, l *deadletter.Letter) (key, problem string) {
	if t.rules.NeedsGeneration() && l.Generation == 0 {
		r.result.Verdict = document.Send // the letter is at fault, not its record
		return "", "the letter names no generation, and documents.id or version need one: it was written under other rules"
	}
	t.rules.Map(letterRecord(l), l.Generation, &r.result)
	a := &r.result.Action
	switch {
	case r.result.Verdict != document.Send:
		return "", cmp.Or(r.result.Type, "ignored by the rules")
	case a.VersionType != bulk.Internal && l.Sequence != 0 && l.Sequence != a.Version:
		return "", fmt.Sprintf("the letter had version %d, by the rules of now it has %d: set documents.version as it was", l.Sequence, a.Version)
	}
	return r.key(a), ""
}

// key names a document. In a routed stream a table may send it elsewhere while
// letters are replayed, and it stays the same document.
func (r *replay) key(a *bulk.Action) string {
	return cmp.Or(r.cfg.Routing.Stream, a.Target) + "\x00" + string(a.ID)
}

func letterRecord(l *deadletter.Letter) *kgo.Record {
	return &kgo.Record{
		Topic: l.Topic, Partition: l.Partition, Offset: l.Offset, Timestamp: l.Timestamp,
		Key: l.Key, Value: l.Value, Headers: l.Headers,
	}
}

// rank orders the records of an id: by the version where there is one, else by
// generation and offset.
func rank(a *bulk.Action, generation int, offset int64) int64 {
	if a.VersionType != bulk.Internal {
		return a.Version
	}
	if n, err := document.Sequence(max(generation, 1), offset); err == nil {
		return n
	}
	return offset
}

func (c *candidate) same(o *candidate) bool {
	return c.generation == o.generation && c.partition == o.partition && c.offset == o.offset
}

// mayFollow says whether c's record may be a later one than o's. Of two with one
// rank the later offset wins; in different partitions it is not known which.
func (c *candidate) mayFollow(o *candidate) bool {
	if c.rank == o.rank && c.generation == o.generation && c.partition == o.partition {
		return c.offset > o.offset
	}
	return c.rank >= o.rank
}

// plan has everything read that may hold a later record of the letter's id, and
// says why that does not prove that there is none; "": it does.
func (t *replayTopic) plan(l *deadletter.Letter, now time.Time) (unproven string) {
	if t.missing {
		return "the topic does not exist any more"
	}
	reach := func(p int32, offset, needed int64) {
		if from, ok := t.from[p]; !ok || offset < from {
			t.from[p] = offset
		}
		if start := t.starts[p]; start > needed && unproven == "" {
			unproven = fmt.Sprintf("the log of partition %d begins at %d, and is needed from %d on", p, start, needed)
		}
	}
	// Its own generation, which ends where the next one begins or at the end.
	current := len(t.list) == 0
	for _, e := range t.list {
		current = current || e.Generation == l.Generation && e.TopicID == t.id
	}
	end, exists := t.ends[l.Partition]
	switch {
	case !current:
		unproven = "the topic was re-created since"
	case !exists || end <= l.Offset:
		unproven = fmt.Sprintf("partition %d ends at %d: the topic was re-created or truncated since", l.Partition, end)
	default:
		after := l.Offset + 1
		from := after
		switch t.rules.Version() {
		case document.VersionTimestamp, document.VersionField, document.VersionHeader:
			from = 0 // an earlier record may carry a higher version
		}
		if t.rules.KeyedByKey() {
			reach(l.Partition, from, after)
			break
		}
		for p := range t.ends {
			reach(p, from, after)
		}
	}
	for _, e := range t.list {
		switch {
		case e.Generation <= l.Generation:
		case e.TopicID != t.id:
			unproven = cmp.Or(unproven, "the topic was re-created since")
		default:
			for p := range t.ends {
				reach(p, e.Start[p], e.Start[p])
			}
		}
	}
	for _, other := range slices.Sorted(maps.Keys(t.heirs)) {
		if t.heirs[other].Highest() > l.Generation {
			unproven = cmp.Or(unproven, fmt.Sprintf("the topic %s has written to the same index since", other))
		}
	}
	// When the record was written counts, not when it was refused: its delete
	// may be older than the letter. Clocks of producers may run ahead.
	written := l.Timestamp
	if l.Stored.Time.Before(written) {
		written = l.Stored.Time
	}
	if age := now.Sub(written); t.retention >= 0 && age >= t.retention {
		unproven = cmp.Or(unproven, fmt.Sprintf("the topic is compacted and the record is %s old: a delete since may be gone (delete.retention.ms is %s)", age.Round(time.Second), t.retention))
	}
	return unproven
}

// catchUp reads the logs to their ends and marks the letters that have a later
// record. It returns when the ends were asked for.
func (r *replay) catchUp(ctx context.Context) (asked time.Time, err error) {
	asked = time.Now()
	var result document.Result
	n := 0
	return asked, r.tail.catchUp(ctx, func(rec *kgo.Record) {
		n++
		if n%1000 == 0 {
			r.progress.show("reading topics for later records: %d records", n)
		}
		t := r.topics[rec.Topic]
		gen := 0
		if t.rules.NeedsGeneration() {
			gen, _ = t.list.At(t.id, rec.Partition, rec.Offset)
		}
		t.rules.Map(rec, gen, &result)
		if result.Verdict != document.Send || !result.Ordered {
			return // it wrote nothing, or its id comes once
		}
		c := t.newest[r.key(&result.Action)]
		if c == nil {
			return
		}
		later := &candidate{generation: gen, partition: rec.Partition, offset: rec.Offset, rank: rank(&result.Action, gen, rec.Offset)}
		if later.mayFollow(c) {
			c.superseded = true
		}
	})
}

// write makes the second pass.
func (r *replay) write(ctx context.Context) error {
	r.bulk = r.newBulkWriter()
	defer r.bulk.close()
	letters, err := r.letters(ctx, r.filter, 0, nil)
	if err != nil {
		return err
	}
	var batch []*deadletter.Letter
	size := 0
	for l, err := range letters {
		if err != nil {
			return err
		}
		c := r.candidate(&l)
		if c == nil || c.done {
			continue // not selected, or not the newest of its id, or met before
		}
		c.done = true
		if c.unproven != "" && !r.force && !c.superseded {
			r.count.unproven++
			r.tell(&l, "not written: "+c.unproven+": --force writes it")
			continue
		}
		batch = append(batch, &l)
		size += len(l.Value)
		if len(batch) >= replayBatch || size >= replayBytes {
			if err := r.flush(ctx, batch); err != nil {
				return err
			}
			batch, size = nil, 0
		}
	}
	return r.flush(ctx, batch)
}

// candidate returns what the first pass noted of a letter; nil: another letter,
// or nothing.
func (r *replay) candidate(l *deadletter.Letter) *candidate {
	t := r.topics[l.Topic]
	if t == nil {
		return nil
	}
	key, problem := r.read(t, l)
	if problem != "" {
		return nil
	}
	c := t.newest[key]
	if c == nil || !c.same(&candidate{generation: l.Generation, partition: l.Partition, offset: l.Offset}) {
		return nil
	}
	return c
}

// flush writes a batch: as often as it takes, each time with what the logs say
// then.
func (r *replay) flush(ctx context.Context, batch []*deadletter.Letter) error {
	for len(batch) > 0 {
		asked, err := r.catchUp(ctx)
		if err != nil {
			return err
		}
		if time.Since(asked) > r.fresh/2 {
			continue // what came meanwhile is read sooner
		}
		batch = slices.DeleteFunc(batch, func(l *deadletter.Letter) bool {
			c := r.candidate(l)
			if c != nil && !c.superseded {
				return false
			}
			r.count.superseded++
			return true
		})
		if len(batch) == 0 {
			return nil
		}
		if err := r.follow(ctx); err != nil {
			return err
		}
		endings, err := r.bulk.write(ctx, len(batch), r.actionOf(batch), asked.Add(r.fresh))
		if err == nil {
			err = r.twins(ctx, len(batch), r.actionOf(batch), endings, asked.Add(r.fresh))
		}
		if err != nil {
			return err
		}
		var left []*deadletter.Letter
		for i, end := range endings {
			switch {
			case end.rejected != nil:
				r.count.refused++
				r.tell(batch[i], fmt.Sprintf("refused again: %s %d", end.rejected.Type, end.rejected.Status))
			case end.outcome == indexer.Indexed:
				r.count.written++
			case end.outcome == indexer.Deleted:
				r.count.deleted++
			case end.outcome == indexer.Stale:
				r.count.stale++
			case end.outcome == indexer.Ignored:
				r.count.ignored++
			default:
				left = append(left, batch[i])
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		trouble := ""
		if len(left) > 0 {
			trouble = "; trying again: " + cmp.Or(r.bulk.trouble(), "Elasticsearch does not answer")
		}
		r.progress.show("%d of %d letters written%s", r.count.written+r.count.deleted, r.count.selected, trouble)
		batch = left
	}
	return nil
}

// actionOf maps the letters of a batch, one after another: an action holds
// until the next is asked for.
func (r *replay) actionOf(batch []*deadletter.Letter) func(i int) indexer.Action {
	return func(i int) indexer.Action {
		l := batch[i]
		r.read(r.topics[l.Topic], l) // the first pass has found nothing wrong
		return indexer.Action{Action: r.result.Action, Ordered: r.result.Ordered, Tombstone: r.result.Tombstone}
	}
}

// preview says what would become of each letter.
func (r *replay) preview() {
	for _, name := range slices.Sorted(maps.Keys(r.topics)) {
		t := r.topics[name]
		keys := slices.SortedFunc(maps.Keys(t.newest), func(a, b string) int {
			x, y := t.newest[a], t.newest[b]
			return cmp.Or(cmp.Compare(x.generation, y.generation), cmp.Compare(x.partition, y.partition), cmp.Compare(x.offset, y.offset))
		})
		for _, key := range keys {
			c := t.newest[key]
			target, _, _ := strings.Cut(key, "\x00")
			l := &deadletter.Letter{Topic: name, Partition: c.partition, Offset: c.offset}
			switch {
			case c.superseded:
				r.count.superseded++
				r.tell(l, "would be skipped: its id has a later record")
			case c.unproven != "" && !r.force:
				r.count.unproven++
				r.tell(l, "would not be written: "+c.unproven+": --force writes it")
			default:
				r.count.written++
				r.tell(l, "would be sent to "+target)
			}
		}
	}
}

// tell prints a line about one letter.
func (r *replay) tell(l *deadletter.Letter, text string) {
	r.progress.clear()
	fmt.Fprintf(r.out, "%s  %s\n", source(l), text)
}

func (r *replay) summary() {
	r.progress.clear()
	c := r.count
	written := "written"
	if r.dryRun {
		written = "to be sent" // what Elasticsearch says to it is not known
	}
	fmt.Fprintf(r.out, "%d letters", c.selected)
	for _, part := range []struct {
		n    int
		text string
	}{
		{c.written, written},
		{c.deleted, "deleted"},
		{c.stale, "there already, or something newer"},
		{c.ignored, "dropped by a pipeline"},
		{c.superseded, "skipped: their ids have later records"},
		{c.repeated, "repeats"},
		{c.refused, "refused again, and still letters"},
		{c.unproven, "need --force"},
		{c.unfit, "do not fit the rules of now"},
	} {
		if part.n > 0 {
			fmt.Fprintf(r.out, ", %d %s", part.n, part.text)
		}
	}
	if r.dryRun {
		fmt.Fprint(r.out, " (dry run: nothing was written)")
	}
	fmt.Fprintln(r.out)
}
