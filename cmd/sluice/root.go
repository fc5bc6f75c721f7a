package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluicehq/sluice/admin"
)

// Exit codes, also in the root command's help. 75 and 78 are those of
// sysexits.h.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitTryLater  = 75
	exitBadConfig = 78
)

// exitCode is a row of the table of exit codes, which help, manual and docs/cli.md
// show.
type exitCode struct {
	code    int
	meaning string
}

var exitCodes = []exitCode{
	{0, "done"},
	{exitFailed, "failed, or (status, validate, verify) something is not as it should be"},
	{exitUsage, "wrong usage: a verb, flag or argument"},
	{exitTryLater, "not now: members run, another runner works, a fence has not passed; try again later"},
	{exitBadConfig, "bad configuration: trying again does not help"},
}

// exitTable is the table as text.
func exitTable() string {
	var b strings.Builder
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "\n  %2d  %s", e.code, e.meaning)
	}
	return b.String()
}

// exit is an error that ends the program with a code of its own.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string { return e.err.Error() }
func (e *exit) Unwrap() error { return e.err }

// execute runs the program and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "Error:", err)
	var failed *exit
	if errors.As(err, &failed) {
		return failed.code
	}
	// Only what runs a verb makes an exit: all else is cobra's, about the words
	// that were typed.
	fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
	return exitUsage
}

// action is a verb's body. Its errors end the program with exit code 1 unless
// they carry another one.
func action(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		var coded *exit
		if err == nil || errors.As(err, &coded) {
			return err
		}
		return &exit{exitFailed, err}
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Moves records from Kafka into Elasticsearch and OpenSearch, and loses none",
		Long: `Sluice moves records from Kafka topics into Elasticsearch (7.17, 8, 9) and
OpenSearch (2, 3). Nothing below a committed offset is missing, and an index
ends up as the fold of the log, whatever was retried, redelivered or killed.

Exit codes:` + exitTable(),
		Example: `  sluice demo                          see it work; needs nothing installed
  sluice init > sluice.yaml            a commented configuration to start from
  sluice validate -c sluice.yaml       checks it, and the servers it names
  sluice run -c sluice.yaml            the deployment`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRun(), newDemo(), newValidate(), newInit(), newVersion(), newGeneration(), newSkip(), newReset(), newDeadLetter(), newParked(), newTarget(), newStatus(), newTop(), newMan(), newPurge(), newDryRun(), newLag(), newExplain(), newMigrate(), newRoutes())
	return root
}

// configFlags are the flags of every verb that reads a configuration.
type configFlags struct {
	files []string
	sets  []string
	log   logFlags
}

func (f *configFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.files, "config", "c", nil, "configuration file; repeatable, later files win key by key")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // fails for a flag that is not there
	f.addSet(cmd)
	f.log.add(cmd)
}

func (f *configFlags) addSet(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.sets, "set", nil, "sets one key, as in --set kafka.group_id=g; repeatable, wins over files")
}

// logFlags win over the configuration's log section.
type logFlags struct{ format, level string }

func (f *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "log-format", "", "text or json (default: text on a terminal, else json)")
	cmd.Flags().StringVar(&f.level, "log-level", "", "trace, debug, info, warn or error")
	// Both fail for a flag that is not there.
	_ = cmd.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"trace", "debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
}

// settings returns the flags as configuration keys.
func (f *logFlags) settings() []string {
	var sets []string
	if f.format != "" {
		sets = append(sets, "log.format="+f.format)
	}
	if f.level != "" {
		sets = append(sets, "log.level="+f.level)
	}
	return sets
}

// newLogger writes to w as the checked configuration says: format "auto" is
// text on a terminal and JSON elsewhere.
func newLogger(w io.Writer, format, level string) (zerolog.Logger, error) {
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		return zerolog.Nop(), fmt.Errorf("log.level: %w", err)
	}
	if format == "text" || format == "auto" && isTerminal(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !isTerminal(w) || os.Getenv("NO_COLOR") != ""}
	}
	return zerolog.New(w).Level(parsed).With().Timestamp().Logger(), nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// untilSignal returns a context that ends with the first SIGTERM or SIGINT; a
// second one ends the process at once. Stop releases it.
func untilSignal(ctx context.Context, note func(os.Signal)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() { // ends with stop
		for first := true; ; first = false {
			select {
			case s := <-signals:
				if !first {
					os.Exit(exitFailed)
				}
				note(s)
				cancel(fmt.Errorf("signal: %s", s))
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// parsePosition reads TOPIC/PARTITION/OFFSET. Topic names hold no slash.
func parsePosition(text string) (admin.SkipRequest, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 3 && parts[0] != "" {
		partition, err1 := strconv.ParseInt(parts[1], 10, 32)
		offset, err2 := strconv.ParseInt(parts[2], 10, 64)
		if err1 == nil && err2 == nil && partition >= 0 && offset >= 0 {
			return admin.SkipRequest{Topic: parts[0], Partition: int32(partition), Offset: offset}, nil
		}
	}
	return admin.SkipRequest{}, fmt.Errorf("%q: want TOPIC/PARTITION/OFFSET, as in events/3/1024", text)
}
