package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/deadletter"
	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/elastic"
	"github.com/sluicehq/sluice/memory"
	"github.com/sluicehq/sluice/partition"
)

const (
	// checkTimeout bounds each question to a server.
	checkTimeout = 15 * time.Second
	// safeGCDeletes is how long deletes should be remembered: a write that
	// was held up for longer brings a deleted document back.
	safeGCDeletes = 15 * time.Minute
	// letterOverhead is what a letter may have on top of its record, in bytes.
	letterOverhead = 2048
)

func newValidate() *cobra.Command {
	var flags configFlags
	var offline, show, asJSON bool
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Checks a configuration and the servers that it names",
		Long: `Checks the configuration, prints what each "auto" became, and then asks Kafka and
Elasticsearch: connections, versions, topics, group, dead letters, indices,
rights. It changes nothing.

Exit codes: 0 all is well (there may be warnings), 1 a server is not as it must
be, 78 the configuration is wrong.`,
		Example: `  sluice validate -c sluice.yaml
  sluice validate -c sluice.yaml --offline     in a build pipeline`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			cfg, mapper, err := flags.load()
			if err != nil {
				return err
			}
			v := &validation{out: cmd.OutOrStdout(), Findings: []finding{}}
			if asJSON {
				v.out = io.Discard
			}
			if show {
				fmt.Fprintf(v.out, "%s\n", config.Redacted(cfg))
			}
			v.settled(cfg, mapper)
			if !offline {
				v.kafka(ctx, cfg)
				v.elastic(ctx, cfg, mapper)
			}
			fmt.Fprintf(v.out, "\n%d errors, %d warnings\n", v.Errors, v.Warnings)
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), v)
			}
			if v.Errors > 0 {
				err = errors.Join(fmt.Errorf("%d checks failed", v.Errors), err)
			}
			return err
		}),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&offline, "offline", false, "checks the configuration only")
	cmd.Flags().BoolVar(&show, "print", false, "prints every key with the value in force, secrets redacted")
	cmd.Flags().BoolVar(&asJSON, "json", false, "the findings as JSON")
	cmd.MarkFlagsMutuallyExclusive("print", "json")
	return cmd
}

// validation prints findings and keeps them.
type validation struct {
	out      io.Writer
	about    string
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []finding `json:"findings"`
}

type finding struct {
	About string `json:"about"` // the section: configuration, kafka and its brokers, elasticsearch
	Level string `json:"level"` // ok, warning or error
	Text  string `json:"text"`
}

func (v *validation) section(title string) {
	v.about = title
	fmt.Fprintf(v.out, "\n%s\n", title)
}

func (v *validation) find(level, format string, args ...any) {
	f := finding{v.about, level, fmt.Sprintf(format, args...)}
	v.Findings = append(v.Findings, f)
	fmt.Fprintf(v.out, "  %-7s  %s\n", f.Level, f.Text)
}

func (v *validation) ok(format string, args ...any) { v.find("ok", format, args...) }

func (v *validation) warn(format string, args ...any) {
	v.Warnings++
	v.find("warning", format, args...)
}

func (v *validation) fail(format string, args ...any) {
	v.Errors++
	v.find("error", format, args...)
}

// settled prints what the configuration comes to.
func (v *validation) settled(cfg *config.Config, mapper *document.Mapper) {
	v.about = "configuration"
	fmt.Fprintln(v.out, v.about)
	for _, d := range mapper.Describe() {
		topics := ""
		if d.Topics != nil {
			topics = " (" + strings.Join(d.Topics, ", ") + ")"
		}
		fmt.Fprintf(v.out, "  %s%s: index %s, id %s, op %s, version %s, on_null %s, on_rejected %s",
			d.Key, topics, d.Index, d.ID, d.Op, d.Version, d.OnNull, d.OnRejected)
		if d.Customer != "" {
			fmt.Fprintf(v.out, ", customer %s", d.Customer)
		}
		fmt.Fprintln(v.out)
		for _, note := range d.Notes {
			v.warn("%s: %s", d.Key, note)
		}
	}
	if stream := cfg.Routing.Stream; stream != "" {
		fmt.Fprintf(v.out, "  routing: stream %s, by customer, table in %s\n", stream, cfg.Routing.ControlIndex)
		if err := mapper.CheckDualWrite(); err != nil {
			v.warn("stream %s cannot be migrated as it is configured: %v", stream, err)
		}
	}
	limit, maxRecord, goLimit := memory.Auto(cfg.Memory)
	fmt.Fprintf(v.out, "  memory: limit %s, max_record %s", mebibytes(limit), mebibytes(maxRecord))
	if goLimit > 0 {
		fmt.Fprintf(v.out, ", GOMEMLIMIT %s", mebibytes(goLimit))
	}
	fmt.Fprintln(v.out)
	if err := app.CheckMemory(cfg); err != nil {
		v.warn("%v; `sluice run` refuses it here", err) // another machine may do
	}
	if !cfg.DeadLetter.Enabled() {
		v.warn("neither dead_letter.topic nor index is set: a record that is refused stops its partition until `sluice skip`")
	}
}

// mebibytes writes a size to the thousandth of a MiB, and no digits that say nothing.
func mebibytes(n int64) string {
	return strconv.FormatFloat(math.Round(float64(n)/(1<<20)*1000)/1000, 'f', -1, 64) + "MiB"
}

func (v *validation) kafka(ctx context.Context, cfg *config.Config) {
	v.section("kafka " + strings.Join(cfg.Kafka.Brokers, ", "))
	client, err := app.KafkaClient(cfg)
	if err != nil {
		v.fail("%v", err)
		return
	}
	admin := kadm.NewClient(client)
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	metadata, err := admin.BrokerMetadata(ctx)
	if errors.Is(err, kerr.IllegalSaslState) {
		v.fail("this listener takes no login: remove kafka.sasl, or name the port of one that does (%v)", err)
		return
	}
	if consumer.MissesTLS(cfg.Kafka, err) {
		v.fail("no broker answers: %v: %s", err, consumer.SetTLS)
		return
	}
	if err != nil {
		v.fail("no broker answers: %v", err)
		return
	}
	v.ok("%d brokers answer", len(metadata.Brokers))
	topics, err := admin.ListTopics(kadm.WithAuthorizedOps(ctx))
	if err != nil {
		v.fail("topics: %v", err)
		return
	}
	sources := v.sources(cfg, topics)
	v.group(ctx, admin, cfg)
	v.deadLetters(ctx, admin, cfg, topics, sources)
	v.parkedTopic(ctx, admin, cfg, topics)
}

// sources checks kafka.topics and returns the topics that are consumed.
func (v *validation) sources(cfg *config.Config, topics kadm.TopicDetails) (names []string) {
	for _, wanted := range cfg.Kafka.Topics {
		matched := []string{wanted}
		if strings.HasPrefix(wanted, "^") {
			fits, err := consumer.MatchTopic(wanted, deadLetterTopics(cfg))
			if err != nil {
				v.fail("%v", err)
				continue
			}
			matched = slices.DeleteFunc(topics.Names(), func(name string) bool { return !fits(name) })
			if len(matched) == 0 {
				v.warn("kafka.topics: %s matches no topic yet", wanted)
			}
		}
		for _, name := range matched {
			detail, ok := topics[name]
			switch {
			case !ok:
				v.fail("topic %s does not exist, or may not be seen: create it, or allow READ on it", name)
			case detail.Err != nil:
				v.fail("topic %s: %v", name, detail.Err)
			case !permits(detail.AuthorizedOperations, kadm.OpRead):
				v.fail("topic %s may not be read: allow READ on it", name)
			case withoutLeader(detail) > 0:
				v.warn("topic %s: %d of %d partitions have no leader", name, withoutLeader(detail), len(detail.Partitions))
			default:
				v.ok("topic %s: %d partitions", name, len(detail.Partitions))
			}
			names = append(names, name)
		}
	}
	return names
}

func deadLetterTopics(cfg *config.Config) []string {
	return []string{cfg.DeadLetter.Topic, app.ParkedTopic(cfg.DeadLetter.Topic)}
}

// permits says whether an operation is among those that the broker allows. A
// broker without authorization names none, or all.
func permits(allowed []kadm.ACLOperation, op kadm.ACLOperation) bool {
	return len(allowed) == 0 || slices.Contains(allowed, op) || slices.Contains(allowed, kadm.OpAll)
}

func withoutLeader(detail kadm.TopicDetail) (n int) {
	for _, p := range detail.Partitions {
		if p.Leader < 0 {
			n++
		}
	}
	return n
}

func (v *validation) group(ctx context.Context, admin *kadm.Client, cfg *config.Config) {
	group := cfg.Kafka.GroupID
	_, err := groupOffsets(ctx, admin, group)
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		v.fail("group %s may not be used: allow READ on it", group)
		return
	case err != nil && !errors.Is(err, kerr.GroupIDNotFound):
		v.fail("group %s: its commits cannot be read: %v", group, err)
		return
	}
	members, err := groupMembers(ctx, admin, group)
	if err != nil {
		v.warn("group %s: its members cannot be seen: %v", group, err)
		return
	}
	v.ok("group %s: %d members now", group, members)
}

// deadLetters checks that letters fit: the topic exists, may be written, and
// takes records as large as the sources'.
func (v *validation) deadLetters(ctx context.Context, admin *kadm.Client, cfg *config.Config, topics kadm.TopicDetails, sources []string) {
	name := cfg.DeadLetter.Topic
	if name == "" {
		return
	}
	detail, ok := topics[name]
	switch {
	case !ok || detail.Err != nil:
		v.fail("dead_letter.topic %s does not exist, or may not be seen: create it, or allow WRITE on it", name)
		return
	case !permits(detail.AuthorizedOperations, kadm.OpWrite):
		v.fail("dead_letter.topic %s may not be written: allow WRITE on it", name)
		return
	}
	configs, err := topicConfigs(ctx, admin, name)
	if err != nil {
		v.warn("dead_letter.topic %s: its configuration cannot be read, so whether it keeps letters, and of what size, is not known: allow DESCRIBE_CONFIGS on it: %v", name, err)
		return
	}
	if strings.Contains(configs["cleanup.policy"], "compact") {
		v.fail("dead_letter.topic %s is compacted (cleanup.policy: %s): it keeps one letter for each key, and refuses those without: kafka-configs --alter --entity-type topics --entity-name %s --add-config cleanup.policy=delete", name, configs["cleanup.policy"], name)
	}
	largest := func(configs map[string]string) int64 {
		n, _ := strconv.ParseInt(configs["max.message.bytes"], 10, 64) // 0: not known
		return n
	}
	fits := largest(configs)
	for _, source := range sources {
		configs, err := topicConfigs(ctx, admin, source)
		if err != nil {
			continue // not needed for anything else
		}
		if n := largest(configs); fits > 0 && n > fits {
			v.warn("dead_letter.topic %s takes records up to %d bytes, %s up to %d: a larger one that is refused blocks its partition (dead_letter.oversize: %s); kafka-configs --alter --entity-type topics --entity-name %s --add-config max.message.bytes=%d", name, fits, source, n, cfg.DeadLetter.Oversize, name, n+letterOverhead)
		}
	}
	v.ok("dead_letter.topic %s: %d partitions", name, len(detail.Partitions))
}

// parkedTopic checks that the topic of parked records is there and keeps them
// until they are replayed, or that it may be made.
func (v *validation) parkedTopic(ctx context.Context, admin *kadm.Client, cfg *config.Config, topics kadm.TopicDetails) {
	if !app.Parks(cfg) {
		return
	}
	name := app.ParkedTopic(cfg.DeadLetter.Topic)
	detail, ok := topics[name]
	switch {
	case !ok:
		like := topics[cfg.DeadLetter.Topic]
		if like.Err != nil || len(like.Partitions) == 0 {
			return // said before
		}
		res, err := admin.ValidateCreateTopics(ctx, int32(len(like.Partitions)), int16(like.Partitions.NumReplicas()), deadletter.ParkedConfigs(), name)
		if err == nil {
			err = res[name].Err
		}
		if err != nil {
			v.fail("indexer.held is park, and the topic %s does not exist and may not be made: create it with cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1, or allow CREATE on it: %v", name, err)
			return
		}
		v.ok("topic %s does not exist: the first parked record makes it, with %d partitions", name, len(like.Partitions))
		return
	case detail.Err != nil:
		v.fail("topic %s, where held records are parked: %v", name, detail.Err)
		return
	case !permits(detail.AuthorizedOperations, kadm.OpWrite) || !permits(detail.AuthorizedOperations, kadm.OpRead):
		v.fail("topic %s, where held records are parked, may not be written and read: allow WRITE and READ on it", name)
		return
	}
	configs, err := topicConfigs(ctx, admin, name)
	switch {
	case err != nil:
		v.warn("topic %s: its configuration cannot be read, so whether it keeps parked records is not known: allow DESCRIBE_CONFIGS on it: %v", name, err)
	case strings.Contains(configs["cleanup.policy"], "compact"):
		v.fail("topic %s is compacted (cleanup.policy: %s): of the parked records of a key it keeps one: kafka-configs --alter --entity-type topics --entity-name %s --add-config cleanup.policy=delete", name, configs["cleanup.policy"], name)
	case configs["retention.ms"] != "-1" || configs["retention.bytes"] != "-1":
		v.warn("topic %s keeps records for retention.ms=%s, retention.bytes=%s: what is parked for longer, or beyond that, is lost: kafka-configs --alter --entity-type topics --entity-name %s --add-config retention.ms=-1,retention.bytes=-1", name, configs["retention.ms"], configs["retention.bytes"], name)
	default:
		v.ok("topic %s: %d partitions", name, len(detail.Partitions))
	}
}

func (v *validation) elastic(ctx context.Context, cfg *config.Config, mapper *document.Mapper) {
	v.section("elasticsearch")
	client, err := elastic.New(cfg.Elasticsearch)
	if err != nil {
		v.fail("%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*checkTimeout)
	defer cancel()
	defer func() { _ = client.Close(ctx) }() // nothing is left in flight
	info, err := client.Info(ctx)
	if err != nil {
		v.fail("%v", err)
		return
	}
	v.ok("%s %s, cluster %s", info.Flavour, info.Version, info.Cluster)
	if health, err := client.Health(ctx); err == nil && health.Status == "red" {
		v.warn("the cluster is red: %d shards are not assigned", health.UnassignedShards)
	}
	needControl := app.Parks(cfg)
	for _, d := range mapper.Describe() {
		needControl = needControl || d.NeedControl
	}
	table := v.routing(ctx, client, cfg, mapper)
	for _, section := range sections(cfg, mapper) {
		if table == nil || table.Write.Legacy() {
			v.target(ctx, client, section)
		}
		if table != nil && table.Write.New() {
			v.partitions(ctx, client, section, table)
		}
	}
	if index := cfg.DeadLetter.Index; index != "" {
		v.letterIndex(ctx, client, index)
	}
	if needControl {
		v.control(ctx, client, cfg.Routing.ControlIndex)
	}
}

// routing checks the routing table of a routed stream and returns it; nil: there
// is none.
func (v *validation) routing(ctx context.Context, client *elastic.Client, cfg *config.Config, mapper *document.Mapper) *partition.Table {
	stream := cfg.Routing.Stream
	if stream == "" {
		return nil
	}
	t, err := partition.NewStore(client.Control(cfg.Routing.ControlIndex)).Load(ctx, stream)
	if isMissing(err) {
		err = fmt.Errorf("stream %s has no routing table: make one with sluice routes init", stream)
	}
	if err == nil {
		err = app.CheckTable(cfg, mapper, t.Table)
	}
	if err != nil {
		v.fail("%v", err)
		return nil
	}
	v.ok("stream %s: epoch %d, %s, %d index partitions", stream, t.Epoch, writes(t.Write), len(t.Partitions))
	return t.Table
}

// partitions checks the index partitions of a routed stream: that they are
// there, and, of the first one, what makes a good target of a section.
func (v *validation) partitions(ctx context.Context, client *elastic.Client, s section, t *partition.Table) {
	s.cfg.RequireAlias = false // they are written by their own names
	s.Index = ""
	missing := 0
	for _, name := range slices.Sorted(maps.Keys(t.Partitions)) {
		p := t.Partitions[name]
		if p.State != partition.Active {
			continue
		}
		info, err := client.IndexInfo(ctx, p.Index)
		switch {
		case err != nil:
			v.warn("%s cannot be looked at: %v", p.Index, err)
			return
		case info.Kind != elastic.Index:
			missing++
			v.fail("index partition %s: %s is %s: the records of its customers wait; restore the index", name, p.Index, info.Kind)
		case s.Index == "":
			s.Index = p.Index
		}
	}
	if missing == 0 {
		v.ok("all index partitions are there")
	}
	if s.Index != "" {
		v.target(ctx, client, s)
	}
}

// section is one set of document rules: as configured, and what they became.
type section struct {
	cfg document.Config
	document.Description
}

func sections(cfg *config.Config, mapper *document.Mapper) []section {
	described := mapper.Describe()
	all := []section{{cfg.Documents, described[0]}}
	for i, o := range cfg.Overrides {
		all = append(all, section{o.Documents, described[i+1]})
	}
	return all
}

// variable finds what a record decides in an index name.
var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// target checks where a section's documents go.
func (v *validation) target(ctx context.Context, client *elastic.Client, s section) {
	deletes := s.OnNull == "delete"
	privileges := []string{"index"}
	if s.Op == "create" {
		privileges = []string{"create_doc"}
	} else if deletes && s.cfg.Deletes == "hard" {
		privileges = append(privileges, "delete")
	}
	pattern := variable.ReplaceAllString(s.Index, "*")
	missing, err := client.MissingPrivileges(ctx, pattern, privileges...)
	switch {
	case errors.Is(err, elastic.ErrNoSecurity):
		v.ok("%s: rights are not checked by this cluster", pattern)
	case err != nil:
		v.warn("%s: rights cannot be read: %v", pattern, err)
	case len(missing) > 0:
		v.fail("%s: the credentials lack %s: add the privileges to their role, for these indices", pattern, strings.Join(missing, ", "))
	default:
		v.ok("%s: may be written", pattern)
	}
	if pattern != s.Index {
		return // which indices there will be, only records can tell
	}
	info, err := client.IndexInfo(ctx, s.Index)
	switch {
	case err != nil:
		v.warn("%s cannot be looked at: %v", s.Index, err)
		return
	case info.Kind == elastic.Missing && s.cfg.RequireAlias:
		v.fail("%s does not exist, and require_alias needs an alias", s.Index)
		return
	case info.Kind == elastic.Missing:
		// Any of the three makes an index with its first document.
		missing, err := client.MissingPrivileges(ctx, s.Index, "auto_configure", "create_index", "manage")
		if err == nil && len(missing) == 3 {
			v.fail("%s does not exist, and the credentials lack auto_configure: make it, or add that privilege to their role, for this index", s.Index)
			return
		}
		v.warn("%s does not exist: the first record makes it, where the cluster allows that, with the mapping that its templates and documents give", s.Index)
		return
	case info.WriteIndex == "":
		v.fail("%s is an alias of %d indices without a write index", s.Index, len(info.Indices))
	case s.cfg.RequireAlias && info.Kind != elastic.Alias:
		v.fail("%s is an %s, and require_alias needs an alias", s.Index, info.Kind)
	case info.Kind == elastic.DataStream && s.Op != "create":
		v.fail("%s is a data stream, which takes op: create only: set documents.data_stream: true", s.Index)
	case s.cfg.DataStream && info.Kind != elastic.DataStream:
		v.fail("%s is an %s, and documents.data_stream is true", s.Index, info.Kind)
	default:
		v.ok("%s is an %s, written to %s", s.Index, info.Kind, info.WriteIndex)
	}
	if deletes && s.cfg.Deletes == "hard" && info.GCDeletes >= 0 && info.GCDeletes < safeGCDeletes {
		v.warn("%s: index.gc_deletes is %s: an older write that lands later than that after a delete brings the document back: PUT /%s/_settings {\"index.gc_deletes\": \"15m\"}, and the same in its template", info.WriteIndex, info.GCDeletes, info.WriteIndex)
	}
	if deletes && s.cfg.Deletes == "tombstone" && info.WriteIndex != "" {
		v.tombstones(ctx, client, info.WriteIndex)
	}
}

// tombstones checks that an index takes tombstones, and that `sluice purge` and
// the filter of the readers' alias will find them.
func (v *validation) tombstones(ctx context.Context, client *elastic.Client, index string) {
	mappings, err := client.Mappings(ctx, index)
	if err != nil {
		v.warn("%s: its mapping cannot be looked at: %v", index, err)
		return
	}
	switch problem, refused := tombstoneProblem(mappings[index]); {
	case refused:
		v.fail("%s: tombstones would be refused: %s: %s", index, problem, tombstoneRemedy(index))
	case problem != "":
		v.warn("%s: tombstones would not be found, neither by sluice purge nor by a filtered alias: %s: %s", index, problem, tombstoneRemedy(index))
	}
}

// letterIndex checks the index of dead letters.
func (v *validation) letterIndex(ctx context.Context, client *elastic.Client, index string) {
	missing, err := deadletter.CheckIndex(ctx, client, index)
	switch {
	case err != nil:
		v.fail("dead_letter.index: %v", err)
		return
	case missing:
		v.warn("dead_letter.index %s does not exist: the first start makes it, where rights allow", index)
	default:
		v.ok("dead_letter.index %s is there", index)
	}
	if missing, err := client.MissingPrivileges(ctx, index, "create_index", "view_index_metadata", "create_doc"); err == nil && len(missing) > 0 {
		v.fail("dead_letter.index %s: the credentials lack %s", index, strings.Join(missing, ", "))
	}
}

func (v *validation) control(ctx context.Context, client *elastic.Client, index string) {
	err := client.Control(index).Check(ctx)
	privileges := []string{"read", "index", "view_index_metadata"}
	var refused *elastic.Error
	switch {
	case err == nil:
		v.ok("control index %s is there", index)
	case errors.As(err, &refused) && refused.Status == 404:
		v.warn("control index %s does not exist: the first start makes it, where rights allow", index)
		privileges = append(privileges, "create_index")
	default:
		v.fail("control index: %v", err)
		return
	}
	if missing, err := client.MissingPrivileges(ctx, index, privileges...); err == nil && len(missing) > 0 {
		v.fail("control index %s: the credentials lack %s: add the privileges to their role, for this index", index, strings.Join(missing, ", "))
	}
}
