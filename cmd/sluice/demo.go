package main

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluicehq/sluice/cmd/sluice/internal/demo"
	"github.com/sluicehq/sluice/config"
)

func newDemo() *cobra.Command {
	var o demo.Options
	var flags configFlags
	var noFaults bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Shows all of it in one process, and proves that nothing was lost",
		Long: `Runs a Kafka, an Elasticsearch, a generator of customers' events and Sluice in one
process: nothing needs to be installed. Storms of 429s and broker failures are
part of it. In the end a checker that shares no code with Sluice reads the topic
and the index and compares them, byte for byte. Exit code 0: nothing was lost.

With --migrate the index is split by customer while events go on: plan, copy,
verification, cut-overs with a roll-back, the end of the old index, each told in a
line. The proof is then of the new indices. It takes about a minute, with 1,000
events a second of 2,000 customers unless told otherwise, and no faults.

With --kafka and --elasticsearch the same happens on real servers, without
injected faults, with a topic and an index of its own, which are removed in the
end.`,
		Example: `  sluice demo
  sluice demo --migrate
  sluice demo --duration 2m --rate 20000 --customers 100000
  sluice demo --rate 0 --set indexer.flush_bytes=1MiB
  sluice demo --kafka localhost:9092 --elasticsearch http://localhost:9200`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return &exit{exitUsage, err}
			}
			var width func() int
			if isTerminal(cmd.OutOrStdout()) {
				width = func() int {
					columns, _, err := term.GetSize(int(os.Stdout.Fd()))
					if err != nil {
						return 80
					}
					return columns
				}
			}
			if o.Migrate {
				unless(cmd, "duration", &o.Duration, time.Minute)
				unless(cmd, "rate", &o.Rate, 1000)
				unless(cmd, "customers", &o.Customers, 2000)
			}
			o.View = demo.NewView(cmd.OutOrStdout(), width)
			// Between redrawn lines, only what needs attention is worth one.
			level := "warn"
			if flags.log.level != "" {
				level = flags.log.level
			}
			log, err := newLogger(o.View, logFormat(flags.log.format, width != nil), level)
			if err != nil {
				return &exit{exitUsage, err}
			}
			o.Log, o.Faults, o.Version = log, !noFaults && !o.Migrate, readBuild().version
			o.Sets = slices.Concat(flags.sets, flags.log.settings())
			ctx, stop := untilSignal(cmd.Context(), func(os.Signal) {})
			defer stop()
			err = demo.Run(ctx, o)
			var bad config.Errors
			if errors.As(err, &bad) {
				return &exit{exitBadConfig, err}
			}
			return err
		}),
	}
	flags.addSet(cmd)
	flags.log.add(cmd)
	cmd.Flags().DurationVar(&o.Duration, "duration", 30*time.Second, "how long events are generated")
	cmd.Flags().BoolVar(&o.Migrate, "migrate", false, "splits the index by customer meanwhile, in place of faults")
	cmd.Flags().IntVar(&o.Rate, "rate", 5000, "events a second; 0: as fast as it goes")
	cmd.Flags().IntVar(&o.Customers, "customers", 10_000, "how many customers there are")
	cmd.Flags().IntVar(&o.Partitions, "partitions", 12, "partitions of the topic")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "what the events follow from")
	cmd.Flags().BoolVar(&noFaults, "no-faults", false, "lets all servers behave")
	cmd.Flags().StringSliceVar(&o.Kafka, "kafka", nil, "real brokers, host:port,...")
	cmd.Flags().StringVar(&o.Elasticsearch, "elasticsearch", "", "URL of a real Elasticsearch or OpenSearch")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leaves topics and indices on the real servers")
	return cmd
}

// unless gives an option another default: the value that it has where the flag
// was not given.
func unless[T any](cmd *cobra.Command, flag string, option *T, value T) {
	if !cmd.Flags().Changed(flag) {
		*option = value
	}
}

// logFormat resolves "auto" for a log that goes through the view.
func logFormat(format string, terminal bool) string {
	switch {
	case format != "":
		return format
	case terminal:
		return "text"
	default:
		return "json"
	}
}
