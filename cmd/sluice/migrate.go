package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/migrate"
	"github.com/sluicehq/sluice/partition"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Splits a live index into index partitions by customer",
		Long: `Splits a live index into index partitions by customer, without a stop: plan,
create, dual-write, backfill, verify, cutover, complete, drop. Until complete a
roll-back is one flag. run walks a job from CREATED to SYNCED.

docs/migrations.md is the runbook.`,
		Example: `  sluice migrate plan     -c sluice.yaml --source events -o plan.json
  sluice migrate create   -c sluice.yaml --plan plan.json --job j7
  sluice migrate run      -c sluice.yaml --job j7
  sluice migrate cutover  -c sluice.yaml --job j7 --percent 1
  sluice migrate status   -c sluice.yaml --job j7 --watch`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMigratePlan(), newMigrateCreate(), newMigrateRun(), newMigrateDualWrite(), newMigrateBackfill(),
		newMigratePause(), newMigrateResume(), newMigrateThrottle(), newMigrateVerify(), newMigrateReports(), newMigrateCutover(), newMigrateRollback(),
		newMigrateComplete(), newMigrateDrop(), newMigrateCancel(), newMigrateDetach(), newMigrateStatus(), newMigrateEvents())
	return cmd
}

// migrateFlags are those of every verb of migrate.
type migrateFlags struct {
	configFlags
	job, actor, reason string
	dryRun, json, yes  bool
}

func (f *migrateFlags) add(cmd *cobra.Command, needsJob bool) {
	f.configFlags.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.dryRun, "dry-run", false, "says what would be done or refused, and changes nothing")
	flags.BoolVar(&f.json, "json", false, "prints JSON")
	flags.StringVar(&f.actor, "actor", "", "who asks, for the audit log (default: the user and the machine)")
	flags.StringVar(&f.reason, "reason", "", "why, for the audit log")
	flags.BoolVar(&f.yes, "yes", false, "do it although it reaches far")
	flags.StringVar(&f.job, "job", "", "name of the job")
	if needsJob {
		if err := cmd.MarkFlagRequired("job"); err != nil {
			panic(err) // the flag is defined in the line before
		}
	}
}

func (f *migrateFlags) request(args ...string) migrate.Request {
	return migrate.Request{
		Job: f.job, Actor: cmp.Or(f.actor, actor()), Reason: f.reason, DryRun: f.dryRun, Yes: f.yes, Args: strings.Join(args, " "),
	}
}

// migration is a verb of migrate at work.
type migration struct {
	*servers
	*migrate.Manager
	flags    *migrateFlags
	out      io.Writer
	progress *progress
}

// manager connects and makes the manager of the configured stream.
func (f *migrateFlags) manager(cmd *cobra.Command) (*migration, error) {
	s, err := f.connect()
	if err != nil {
		return nil, err
	}
	if s.cfg.Routing.Stream == "" {
		s.close(cmd.Context())
		return nil, &exit{exitBadConfig, errors.New("routing.stream is empty: name the stream, restart the consumers with it, then migrate (docs/migrations.md)")}
	}
	log, err := newLogger(cmd.ErrOrStderr(), s.cfg.Log.Format, s.cfg.Log.Level)
	if err != nil {
		s.close(cmd.Context())
		return nil, &exit{exitBadConfig, err}
	}
	manager := app.NewMigrations(s.cfg, s.mapper, s.elastic,
		app.Group{Config: s.cfg, Kafka: s.kafka, Control: s.control, Replaying: s.replaying}, fmt.Sprintf("%s/%d", actor(), os.Getpid()), log)
	manager.Records = records{s}
	return &migration{servers: s, Manager: manager, flags: f, out: cmd.OutOrStdout(), progress: newProgress(cmd.ErrOrStderr())}, nil
}

func (m *migration) close(ctx context.Context) {
	m.progress.clear()
	m.servers.close(ctx)
}

// tell shows what is being waited for.
func (m *migration) tell(text string) { m.progress.show("%s", text) }

// end prints a result and gives refusals the exit code that says whether they
// pass by themselves.
func (m *migration) end(result migrate.Result, err error) error {
	m.progress.clear()
	var refused *migrate.RefusedError
	later := errors.As(err, &refused) && refused.Later
	would := err == nil && len(result.Refusals) > 0 // of a dry run
	if would {
		err, later = fmt.Errorf("%s would be refused", result.Verb), result.Later
	}
	if later {
		err = &exit{exitTryLater, err}
	}
	if m.flags.json {
		return errors.Join(err, printJSON(m.out, result))
	}
	if err != nil && !would {
		return err
	}
	verb := "done"
	if result.DryRun {
		verb = "would do"
	}
	for _, action := range result.Actions {
		fmt.Fprintf(m.out, "%s: %s\n", verb, action)
	}
	for _, r := range result.Refusals {
		fmt.Fprintf(m.out, "would be refused: %s: %s\n", r.Why, r.Remedy)
	}
	if !result.DryRun && result.To != "" {
		fmt.Fprintf(m.out, "job %s is %s, routing epoch %d\n", result.Job, result.To, result.Epoch)
	}
	return err
}

// verb makes a command that does one thing with a job.
func (f *migrateFlags) verb(use, short, long string, do func(context.Context, *migration) (migrate.Result, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			m, err := f.manager(cmd)
			if err != nil {
				return err
			}
			defer m.close(cmd.Context())
			// Asked to end, a runner gives its lease back, so that nobody waits for it.
			ctx, stop := untilSignal(cmd.Context(), func(os.Signal) {})
			defer stop()
			result, err := do(ctx, m)
			return m.end(result, err)
		}),
	}
	f.add(cmd, true)
	return cmd
}

func newMigratePlan() *cobra.Command {
	var flags migrateFlags
	wish := migrate.Wish{}
	var target, sizes, output, simulate string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Proposes how to split an index; changes nothing",
		Long: `Measures an index and proposes index partitions: customers and their sizes,
shards of about 30 GB, big customers by themselves. It changes nothing but the
plan's file, which create takes.`,
		Example: `  sluice migrate plan -c sluice.yaml --source events -o plan.json
  sluice migrate plan -c sluice.yaml --source events --partitions 8 --simulate growth=2`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			m, err := flags.manager(cmd)
			if err != nil {
				return err
			}
			defer m.close(cmd.Context())
			if wish.Source == "" {
				wish.Source = m.cfg.Documents.Index
			}
			if wish.Customer == "" {
				if wish.Customer, err = storedCustomer(m.cfg); err != nil {
					return &exit{exitUsage, err}
				}
			}
			if target != "" {
				if wish.TargetShard, err = config.ParseSize(target); err != nil {
					return &exit{exitUsage, fmt.Errorf("--target-shard-size: %w", err)}
				}
			}
			growth := 0.0
			if simulate != "" {
				text, ok := strings.CutPrefix(simulate, "growth=")
				if growth, err = strconv.ParseFloat(text, 64); err != nil || !ok {
					return &exit{exitUsage, fmt.Errorf("--simulate %s: want growth=FACTOR", simulate)}
				}
			}
			if sizes != "" {
				if wish.Sizes, err = readSizes(sizes); err != nil {
					return &exit{exitUsage, fmt.Errorf("--sizes: %w", err)}
				}
			}
			plan, err := m.Plan(cmd.Context(), wish)
			if err != nil {
				return err
			}
			return m.showPlan(plan, output, growth)
		}),
	}
	flags.add(cmd, false)
	cmd.Flags().StringVar(&wish.Source, "source", "", "index to split (default: documents.index)")
	cmd.Flags().StringVar(&wish.Customer, "customer", "", "where its documents name their customer: field:/POINTER, id, id:REGEXP or routing (default: as documents.customer says)")
	cmd.Flags().IntVar(&wish.Partitions, "partitions", 0, "index partitions that customers share (default: as many as the size needs)")
	cmd.Flags().IntVar(&wish.Primaries, "primaries", 0, "primary shards of each (default: 1)")
	cmd.Flags().IntVar(&wish.Replicas, "replicas", -1, "replicas of each (default: those of the source)")
	cmd.Flags().StringVar(&target, "target-shard-size", "", "size that a shard is to have, such as 30GB")
	cmd.Flags().Float64Var(&wish.Growth, "growth", 0, "room for growth (default: 1.5)")
	cmd.Flags().StringVar(&sizes, "sizes", "", "file with CUSTOMER,DOCUMENTS,BYTES lines in place of measuring")
	cmd.Flags().StringVar(&simulate, "simulate", "", "growth=FACTOR: what the partitions hold once all have grown so much")
	cmd.Flags().StringVarP(&output, "output", "o", "", "file for the plan")
	return cmd
}

// storedCustomer says where documents that are in the index name the customer
// that documents.customer takes from the record.
func storedCustomer(cfg *config.Config) (string, error) {
	from := cfg.Documents.Customer
	keyed := cfg.Documents.ID == "key" && cfg.Documents.LongIDs != "hash"
	switch {
	case strings.HasPrefix(from, "field:"):
		return from, nil
	case from == "key" && keyed:
		return "id", nil
	case strings.HasPrefix(from, "key:") && keyed:
		return "id:" + strings.TrimPrefix(from, "key:"), nil
	}
	return "", fmt.Errorf("documents.customer is %q, which a stored document does not tell: say with --customer where it stands in the documents", from)
}

// readSizes reads CUSTOMER,DOCUMENTS,BYTES lines.
func readSizes(file string) ([]partition.CustomerSize, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sizes := []partition.CustomerSize{}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ",")
		if len(fields) < 3 {
			return nil, fmt.Errorf("line %d: want CUSTOMER,DOCUMENTS,BYTES", i+1)
		}
		n := len(fields) // a customer may hold commas
		documents, err1 := strconv.ParseInt(strings.TrimSpace(fields[n-2]), 10, 64)
		bytes, err2 := strconv.ParseInt(strings.TrimSpace(fields[n-1]), 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("line %d: want CUSTOMER,DOCUMENTS,BYTES", i+1)
		}
		sizes = append(sizes, partition.CustomerSize{
			Customer: strings.Join(fields[:n-2], ","), Size: partition.Size{Documents: documents, Bytes: bytes},
		})
	}
	return sizes, nil
}

func (m *migration) showPlan(plan migrate.Plan, output string, growth float64) error {
	if output != "" && !m.flags.dryRun {
		text, err := json.MarshalIndent(plan, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(output, append(text, '\n'), 0o644); err != nil { //nolint:gosec // a plan holds no secrets
			return err
		}
	}
	layout := plan.Layout
	if m.flags.json {
		return printJSON(m.out, plan)
	}
	fmt.Fprintf(m.out, "%s: %d documents, %s, %d customers\n", plan.Source, plan.Docs, bytesText(plan.Bytes), layout.Customers)
	fmt.Fprintf(m.out, "%-12s %6s %12s %10s %10s  %s\n", "partition", "shards", "documents", "size", "customers", "largest")
	for _, p := range layout.Partitions {
		names := make([]string, len(p.Largest))
		for i, c := range p.Largest {
			names[i] = plain(c.Customer)
		}
		if p.Own != "" {
			names = []string{plain(p.Own)}
		}
		fmt.Fprintf(m.out, "%-12s %6d %12d %10s %10d  %s\n", p.Name, p.Primaries, p.Documents, bytesText(p.Bytes), p.Customers, strings.Join(names, ", "))
	}
	fmt.Fprintf(m.out, "fullest/mean %.2f, replicas %d\n", layout.MaxOverMean, layout.Replicas)
	for _, f := range layout.Findings {
		kind := "warning"
		if f.Refused {
			kind = "refused"
		}
		fmt.Fprintf(m.out, "%s: %s\n", kind, f.Text)
	}
	if growth > 0 {
		simulated, err := layout.Simulate(growth)
		if err != nil {
			return err
		}
		for _, s := range simulated {
			state := "fits"
			if s.Overflows {
				state = "overflows"
			}
			fmt.Fprintf(m.out, "at %gx: %-12s %s a shard, %s (from %.1fx on it overflows)\n", growth, s.Name, bytesText(s.ShardBytes), state, s.At)
		}
	}
	if output != "" && !m.flags.dryRun {
		fmt.Fprintf(m.out, "written to %s: sluice migrate create --plan %s --job NAME\n", output, output)
	}
	if layout.Refused() {
		return errors.New("create would refuse this plan")
	}
	return nil
}

func newMigrateCreate() *cobra.Command {
	var flags migrateFlags
	var file string
	cmd := flags.verb("create", "Makes the new indices; nothing is written to them yet",
		`Makes the job, the new indices with their read aliases, a template that keeps
late writes from making an index, and the partitions' places in the routing
table. All records go to the old index as before. Repeat it where it was
interrupted.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			text, err := os.ReadFile(file)
			if err != nil {
				return migrate.Result{}, err
			}
			plan, err := migrate.ParsePlan(text)
			if err != nil {
				return migrate.Result{}, err
			}
			if !flags.dryRun {
				if err := m.control.Open(ctx); err != nil {
					return migrate.Result{}, err
				}
			}
			return m.Create(ctx, flags.request("--plan", file), plan)
		})
	cmd.Flags().StringVar(&file, "plan", "", "file that plan wrote")
	if err := cmd.MarkFlagRequired("plan"); err != nil {
		panic(err) // the flag is defined in the line before
	}
	return cmd
}

func newMigrateDualWrite() *cobra.Command {
	var flags migrateFlags
	return flags.verb("dual-write", "Writes live records to both sides",
		`Publishes write mode W1: live records go to both sides, deletes on the new side
as tombstone documents. It holds for a source partition once its owner has
committed under the new epoch, which status shows as the fence.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			return m.DualWrite(ctx, flags.request())
		})
}

func newMigrateBackfill() *cobra.Command {
	var flags migrateFlags
	var waive []string
	var from copyFrom
	cmd := flags.verb("backfill", "Copies what was there before, up to SYNCED",
		`Copies the documents from before the fence, shuts late copies out, makes deletes
real again and removes the tombstones. It may be killed and repeated at any
time; several may run, one works and the others stand by.

Exit code 75 says that the fence has not passed yet.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			if result, over, err := from.choose(ctx, m); over || err != nil {
				return result, err
			}
			defer m.serve()()
			return m.Backfill(ctx, flags.request(listed("--waive", waive)...), waive, m.watch(ctx))
		})
	from.add(cmd)
	cmd.Flags().StringArrayVar(&waive, "waive", nil, "id of a document that could not be copied and may be missing; * is all; repeatable")
	return cmd
}

// copyFrom is the flag --source.
type copyFrom struct{ name string }

func (f *copyFrom) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "source", "", "what the copy reads: index, or kafka where the topics hold everything (default: what was named before, else index)")
}

// choose notes it in the job. over says that the verb ends here.
func (f *copyFrom) choose(ctx context.Context, m *migration) (result migrate.Result, over bool, err error) {
	switch from := migrate.From(f.name); from {
	case "":
		return result, false, nil
	case migrate.FromIndex, migrate.FromKafka:
		result, err = m.Source(ctx, m.flags.request("--source", f.name), from)
		return result, m.flags.dryRun && len(result.Refusals) > 0, err
	}
	return result, true, &exit{exitUsage, fmt.Errorf("--source %s: want index or kafka", f.name)}
}

// watch returns what tells of waiting, and shows the job's status line beside.
func (m *migration) watch(ctx context.Context) func(string) {
	return func(text string) {
		if status, err := m.Status(ctx, m.flags.job); err == nil {
			text = status.Line() + " - " + text
		}
		m.tell(text)
	}
}

func newMigrateRun() *cobra.Command {
	var flags migrateFlags
	var from copyFrom
	cmd := flags.verb("run", "Walks a job to SYNCED: dual-write, backfill, verify",
		`Walks a job from CREATED to SYNCED and verifies it. It waits for the fences by
itself, may be killed and repeated at any time, and several may run. While it works,
/metrics and /v1/jobs are served on admin.address.

With --source kafka it does not copy the old index but reads the topics again,
from their beginning to the fence, and writes what the consumers write. It is
refused where the topics do not hold all that the index holds.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			if result, over, err := from.choose(ctx, m); over || err != nil {
				return result, err
			}
			return m.run(ctx)
		})
	from.add(cmd)
	return cmd
}

// serve shows the job on the admin address while this process works on it. Where
// that is taken, by a replica for one, the work goes on without.
func (m *migration) serve() (stop func()) {
	if m.cfg.Admin.Address == "" || m.flags.dryRun {
		return func() {}
	}
	url, stop, err := app.ServeJobs(m.cfg.Admin, m.Manager, m.Log)
	if err != nil {
		m.tell(fmt.Sprintf("no metrics of this process: %v (another address: --set admin.address=HOST:PORT)", err))
		return func() {}
	}
	m.tell("metrics: " + url + "/metrics")
	return stop
}

func (m *migration) run(ctx context.Context) (migrate.Result, error) {
	defer m.serve()()
	status, err := m.Status(ctx, m.flags.job)
	if err != nil {
		return migrate.Result{}, err
	}
	if status.State == migrate.Created {
		if result, err := m.DualWrite(ctx, m.flags.request()); err != nil || m.flags.dryRun {
			return result, err
		}
		status.State = migrate.Dual
	}
	if status.State != migrate.Synced && status.State != migrate.Cutover {
		if result, err := m.copyAll(ctx); err != nil || m.flags.dryRun {
			return result, err
		}
	}
	_, result, err := m.Verify(ctx, m.flags.request(), migrate.Check{Level: migrate.L2}, m.tell)
	return result, err
}

// copyAll works on the job up to SYNCED and shows its status line meanwhile.
func (m *migration) copyAll(ctx context.Context) (migrate.Result, error) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	done := make(chan struct{})
	shown := make(chan struct{})
	go func() { // ends with done
		defer close(shown)
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if status, err := m.Status(ctx, m.flags.job); err == nil {
					m.tell(status.Line())
				}
			}
		}
	}()
	result, err := m.Run(ctx, m.flags.request(), nil)
	close(done)
	<-shown
	return result, err
}

func newMigratePause() *cobra.Command {
	var flags migrateFlags
	return flags.verb("pause", "Stops the copy until resume; it may take weeks", "Stops the copy after the pages that are under way. Live records go on to both sides.",
		func(ctx context.Context, m *migration) (migrate.Result, error) { return m.Pause(ctx, flags.request()) })
}

func newMigrateResume() *cobra.Command {
	var flags migrateFlags
	var apply bool
	cmd := flags.verb("resume", "Ends a pause", "Ends a pause, be it an operator's or one that the job has made itself.",
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			var args []string
			if apply {
				args = []string{"--apply-mapping"}
			}
			return m.Resume(ctx, flags.request(args...), apply)
		})
	cmd.Flags().BoolVar(&apply, "apply-mapping", false, "make changes of the source's mapping on the new indices too, now and from now on")
	return cmd
}

func newMigrateThrottle() *cobra.Command {
	var flags migrateFlags
	limits := map[string]string{}
	cmd := flags.verb("throttle", "Changes the copy's limits while it runs",
		`Changes limits of the copy: concurrency (0 pauses), bulk (bytes), lag, slower,
search, queue, disk (percent), probe (URL), window (HH:MM-HH:MM in UTC), each as
--set LIMIT=VALUE. A --set with a dot in its key is one of the configuration.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			var args []string
			for _, name := range slices.Sorted(maps.Keys(limits)) {
				args = append(args, name+"="+limits[name])
			}
			return m.SetLimits(ctx, flags.request(args...), limits)
		})
	cmd.Example = "  sluice migrate throttle -c sluice.yaml --job j7 --set lag=10s --set concurrency=4"
	cmd.PreRunE = func(*cobra.Command, []string) error {
		flags.sets = slices.DeleteFunc(flags.sets, func(set string) bool {
			name, value, ok := strings.Cut(set, "=")
			if !ok || strings.Contains(name, ".") {
				return false
			}
			limits[name] = value
			return true
		})
		return nil
	}
	return cmd
}

func newMigrateVerify() *cobra.Command {
	var flags migrateFlags
	check := migrate.Check{}
	var level string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compares both sides, while records go on",
		Long: `Compares both sides customer by customer: L0 their numbers of documents, L1 ids
and versions, L2 the contents of a sample too (--full: of all). A difference
counts if it outlives the consumers' passage of the log end of its first sight.
--repair mends what differs, each write guarded by its version. --accept lets
differences stand that block nothing then, for this report: ` + strings.Join(migrate.Acceptable(), ", ") + `, where
what was written last is on the new side, and the old one refuses it.

Exit code 1 says that they differ.`,
		Example: `  sluice migrate verify -c sluice.yaml --job j7
  sluice migrate verify -c sluice.yaml --job j7 --repair --customer acme
  sluice migrate verify -c sluice.yaml --job j7 --repair --accept old_older --reason "a field of the old mapping"`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			check.Level = migrate.Level(level)
			if !slices.Contains([]migrate.Level{migrate.L0, migrate.L1, migrate.L2}, check.Level) {
				return &exit{exitUsage, fmt.Errorf("--level %s: want L0, L1 or L2", level)}
			}
			if !slices.Contains([]string{"", "old", "new"}, check.Authority) {
				return &exit{exitUsage, fmt.Errorf("--authority %s: want old or new", check.Authority)}
			}
			m, err := flags.manager(cmd)
			if err != nil {
				return err
			}
			defer m.close(cmd.Context())
			args := []string{"--level", level}
			if check.Repair {
				args = append(args, "--repair")
			}
			if check.Customer != "" {
				args = append(args, "--customer", check.Customer)
			}
			args = append(args, listed("--accept", check.Accept)...)
			report, result, err := m.Verify(cmd.Context(), flags.request(args...), check, m.tell)
			if report == nil || err != nil {
				return m.end(result, err)
			}
			m.progress.clear()
			if flags.json {
				err = printJSON(m.out, report)
			} else {
				showReport(m.out, report)
			}
			if err == nil && !report.Clean() {
				err = errors.New("the sides differ")
			}
			return err
		}),
	}
	flags.add(cmd, true)
	cmd.Flags().StringVar(&level, "level", "L2", "L0, L1 or L2")
	cmd.Flags().BoolVar(&check.Full, "full", false, "with L2: the contents of all documents")
	cmd.Flags().BoolVar(&check.Repair, "repair", false, "mend what differs")
	cmd.Flags().StringVar(&check.Customer, "customer", "", "only this customer")
	cmd.Flags().StringVar(&check.Authority, "authority", "", "the side that is right: old or new (default: old before a customer's cut-over, new after it)")
	cmd.Flags().StringSliceVar(&check.Accept, "accept", nil, "let differences of a class stand, with --reason: "+strings.Join(migrate.Acceptable(), ", "))
	cmd.Flags().StringSliceVar(&check.Ignore, "ignore-fields", nil, "fields at the top of documents that may differ")
	return cmd
}

func showReport(out io.Writer, r *migrate.Report) {
	fmt.Fprintf(out, "%s %s: %d customers, %d documents on the old side, %d on the new, contents of %d compared, in %s\n",
		r.ID, r.Level, r.Customers, r.Old, r.New, r.Sampled, r.Took)
	if r.Ahead > 0 {
		fmt.Fprintf(out, "among them all of the customers that a cut-over to %.4g %% reaches\n", r.Ahead)
	}
	fmt.Fprintf(out, "settled %d, unsettled %d, foreign %d, repaired %d\n", r.Settled, r.Unsettled, r.Foreign, r.Repaired)
	for _, class := range slices.Sorted(maps.Keys(r.Classes)) {
		fmt.Fprintf(out, "%s: %d, such as %s\n", class, r.Classes[class], plain(strings.Join(r.Samples[class], ", ")))
	}
	for _, class := range slices.Sorted(maps.Keys(r.Accepted)) {
		fmt.Fprintf(out, "accepted by %s: %d %s (%s)\n", r.AcceptedBy, r.Accepted[class], class, r.Why)
	}
	if r.Clean() {
		fmt.Fprintln(out, "clean")
	}
}

func newMigrateReports() *cobra.Command {
	var flags migrateFlags
	var which string
	cmd := &cobra.Command{
		Use:   "reports",
		Short: "What the last verifications have found",
		Long: `Shows the last five verifications of a job, the newest first, in one line each, or
one of them whole: by its number in this list, or by its id. It starts none.`,
		Example: `  sluice migrate reports -c sluice.yaml --job j7
  sluice migrate reports -c sluice.yaml --job j7 --report 1 --json`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			m, err := flags.manager(cmd)
			if err != nil {
				return err
			}
			defer m.close(cmd.Context())
			reports, err := m.Reports(cmd.Context(), flags.job)
			if err != nil {
				return err
			}
			if which != "" {
				i := slices.IndexFunc(reports, func(r *migrate.Report) bool { return r.ID == which })
				if n, err := strconv.Atoi(which); err == nil && n >= 1 && n <= len(reports) {
					i = n - 1
				}
				if i < 0 {
					return &exit{exitUsage, fmt.Errorf("--report %s: job %s keeps %d reports: want the number or the id of one of them", which, flags.job, len(reports))}
				}
				if flags.json {
					return printJSON(m.out, reports[i])
				}
				showReport(m.out, reports[i])
				return nil
			}
			if flags.json {
				return printJSON(m.out, reports)
			}
			for i, r := range reports {
				fmt.Fprintf(m.out, "%d %s\n", i+1, r.Summary())
			}
			if len(reports) == 0 {
				fmt.Fprintf(m.out, "no reports: sluice migrate verify --job %s\n", flags.job)
			}
			return nil
		}),
	}
	flags.add(cmd, true)
	cmd.Flags().StringVar(&which, "report", "", "number (1 is the newest) or id of one report, shown whole")
	return cmd
}

func newMigrateCutover() *cobra.Command {
	var flags migrateFlags
	cut := migrate.Cut{}
	var percent float64
	var cmd *cobra.Command
	cmd = flags.verb("cutover", "Sends readers of customers to the new side",
		`Changes the read rules: customers by name, a percent of all (the same ones
whenever it is asked; a higher percent only adds), all, or the next step of 1, 5,
25, 100 percent. Both sides go on being written.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			args := listed("--customers", cut.Customers)
			if cmd.Flags().Changed("percent") {
				cut.Percent = &percent
				args = append(args, "--percent", strconv.FormatFloat(percent, 'g', -1, 64))
			}
			if cut.All {
				args = append(args, "--all")
			}
			if cut.Next {
				args = append(args, "--next")
			}
			return m.Cutover(ctx, flags.request(args...), cut)
		})
	cmd.Flags().StringSliceVar(&cut.Customers, "customers", nil, "customers, by name")
	cmd.Flags().Float64Var(&percent, "percent", 0, "percent of all customers; a lower one takes exactly those back")
	cmd.Flags().BoolVar(&cut.All, "all", false, "all customers")
	cmd.Flags().BoolVar(&cut.Next, "next", false, "the next step of 1, 5, 25, 100 percent")
	cmd.Flags().DurationVar(&cut.Bake, "bake", time.Hour, "with --next: how long the step before must have been in force")
	cmd.MarkFlagsMutuallyExclusive("customers", "percent", "all", "next")
	cmd.MarkFlagsOneRequired("customers", "percent", "all", "next")
	return cmd
}

// listed are a repeatable flag's values as they were typed.
func listed(flag string, values []string) []string {
	if len(values) == 0 {
		return nil
	}
	return []string{flag, strings.Join(values, ",")}
}

func newMigrateRollback() *cobra.Command {
	var flags migrateFlags
	var customers []string
	var all bool
	cmd := flags.verb("rollback", "Sends readers back to the old index",
		"Changes the read rules back. No documents are moved: the old index is current until complete.",
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			args := listed("--customers", customers)
			if all {
				args = []string{"--all"}
			}
			return m.Rollback(ctx, flags.request(args...), customers)
		})
	cmd.Flags().StringSliceVar(&customers, "customers", nil, "customers, by name; they are held back from then on, also from a percent")
	cmd.Flags().BoolVar(&all, "all", false, "all customers")
	cmd.MarkFlagsMutuallyExclusive("customers", "all")
	cmd.MarkFlagsOneRequired("customers", "all")
	return cmd
}

func newMigrateComplete() *cobra.Command {
	var flags migrateFlags
	var bake, keep time.Duration
	cmd := flags.verb("complete", "Writes to the new side only; there is no way back by a flag",
		`Waits until no reader can use an older routing table, writes to the new side
only, waits for the fence, and blocks writes to the old index, which is kept.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			return m.Complete(ctx, flags.request(), bake, keep)
		})
	cmd.Flags().DurationVar(&bake, "min-bake", 24*time.Hour, "how long all customers must have been cut over")
	cmd.Flags().DurationVar(&keep, "keep-old", 14*24*time.Hour, "how long the old index is kept at least")
	return cmd
}

func newMigrateDrop() *cobra.Command {
	var flags migrateFlags
	var confirm string
	var searched bool
	cmd := flags.verb("drop", "Deletes the old index of a completed job", "Deletes the old index, once its time is over and nothing reads it.",
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			return m.Drop(ctx, flags.request("--confirm", confirm), confirm, searched)
		})
	cmd.Flags().StringVar(&confirm, "confirm", "", "name of the old index")
	cmd.Flags().BoolVar(&searched, "searched", false, "although it has been searched since the job was completed")
	return cmd
}

func newMigrateCancel() *cobra.Command {
	var flags migrateFlags
	return flags.verb("cancel", "Ends a job before its cut-over and deletes what it made",
		"Writes to the old index only, waits for the fence, deletes the new indices. The old index is not touched. Repeat it where it was interrupted.",
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			return m.Cancel(ctx, flags.request(), m.tell)
		})
}

func newMigrateDetach() *cobra.Command {
	var flags migrateFlags
	return flags.verb("detach", "Takes the new side out and makes it anew",
		`Writes to the old index only, waits for the fence, deletes the new indices and
makes others: the job is CREATED again. It is the way out of a new side that
cannot take its records.`,
		func(ctx context.Context, m *migration) (migrate.Result, error) {
			return m.Detach(ctx, flags.request(), m.tell)
		})
}

// anotherLook waits until it is time to look again at what is watched; false: it
// is over.
func anotherLook(ctx context.Context) bool {
	select {
	case <-time.After(2 * time.Second):
		return true
	case <-ctx.Done():
		return false
	}
}

func newMigrateStatus() *cobra.Command {
	var flags migrateFlags
	var watch, failed bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "One line for each job, or all of one",
		Long: `Shows each job in one line: state, progress, pace, the time that it needs, the lag
of the live consumers, what holds it back, fence, verification, and how many
customers are cut over. With --job it says below what the job does, whose readers
are where, and what to type next.`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			m, err := flags.manager(cmd)
			if err != nil {
				return err
			}
			defer m.close(cmd.Context())
			if failed {
				return m.showFailures(cmd.Context())
			}
			screen := watch && !flags.json && isTerminal(m.out)
			for {
				if screen {
					fmt.Fprint(m.out, cursorHome+eraseBelow)
				}
				if err := m.showStatus(cmd.Context()); err != nil || !watch {
					return err
				}
				if !anotherLook(cmd.Context()) {
					return nil
				}
			}
		}),
	}
	flags.add(cmd, false)
	cmd.Flags().BoolVar(&watch, "watch", false, "again every two seconds")
	cmd.Flags().BoolVar(&failed, "failed", false, "the documents that could not be copied")
	return cmd
}

func (m *migration) showStatus(ctx context.Context) error {
	names := []string{m.flags.job}
	if m.flags.job == "" {
		var err error
		if names, err = m.Jobs(ctx); err != nil {
			return err
		}
	}
	statuses := []*migrate.Status{}
	for _, name := range names {
		status, err := m.Status(ctx, name)
		if err != nil {
			return err
		}
		statuses = append(statuses, status)
	}
	if m.flags.json {
		return printJSON(m.out, statuses)
	}
	for _, status := range statuses {
		fmt.Fprintln(m.out, status.Line())
		if m.flags.job != "" {
			fmt.Fprintln(m.out, strings.Join(status.Details(), "\n"))
		}
	}
	if len(statuses) == 0 {
		fmt.Fprintln(m.out, "no jobs")
	}
	return nil
}

func (m *migration) showFailures(ctx context.Context) error {
	if m.flags.job == "" {
		return &exit{exitUsage, errors.New("--failed needs --job")}
	}
	failures, err := m.Failures(ctx, m.flags.job)
	if err != nil {
		return err
	}
	if m.flags.json {
		return printJSON(m.out, failures)
	}
	for _, f := range failures {
		fmt.Fprintf(m.out, "%s\t%d %s\tto %s\n", plain(f.ID), f.Status, plain(f.Type), f.Target)
	}
	return nil
}

func newMigrateEvents() *cobra.Command {
	var flags migrateFlags
	var follow bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "The audit log of a job, refusals too",
		Args:  cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			m, err := flags.manager(cmd)
			if err != nil {
				return err
			}
			defer m.close(cmd.Context())
			for next := 1; ; {
				events, err := m.Events(cmd.Context(), flags.job, next)
				if err != nil {
					return err
				}
				next += len(events)
				if flags.json {
					for _, e := range events {
						if err := json.NewEncoder(m.out).Encode(e); err != nil {
							return err
						}
					}
				} else {
					showEvents(m.out, events)
				}
				if !follow {
					return nil
				}
				if !anotherLook(cmd.Context()) {
					return nil
				}
			}
		}),
	}
	flags.add(cmd, true)
	cmd.Flags().BoolVar(&follow, "follow", false, "and what comes")
	return cmd
}

func showEvents(out io.Writer, events []migrate.Event) {
	for _, e := range events {
		fmt.Fprintf(out, "%d %s %s: %s", e.Seq, e.Time.Format(time.RFC3339), plain(e.Actor), e.Verb)
		if e.Args != "" {
			fmt.Fprintf(out, " %s", plain(e.Args))
		}
		if e.From != e.To {
			fmt.Fprintf(out, " %s -> %s", e.From, e.To)
		}
		fmt.Fprintf(out, " epoch %d: %s", e.Epoch, plain(e.Result))
		if e.Reason != "" {
			fmt.Fprintf(out, " (%s)", plain(e.Reason))
		}
		fmt.Fprintln(out)
	}
}

// notConsumed are topics that a pattern may match and nobody consumes.
func (s *servers) notConsumed() []string {
	if topic := s.cfg.DeadLetter.Topic; topic != "" {
		return []string{topic, app.ParkedTopic(topic)}
	}
	return nil
}
