package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/admin"
	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/deadletter"
)

func newDeadLetter() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletter",
		Short: "Lists, shows and replays dead letters",
		Long: `A dead letter is a record that Elasticsearch can never take: it stands, as it was,
in dead_letter.topic or dead_letter.index, with the reason.

Only show prints what records hold.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("say what to do: list, show or replay")
		},
	}
	cmd.AddCommand(newDeadLetterList(), newDeadLetterShow(), newDeadLetterReplay())
	return cmd
}

// letterFlags select letters.
type letterFlags struct {
	typ, topic, since, until string
	limit                    int
}

func (f *letterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.typ, "type", "", "only those of this error type, such as document_parsing_exception")
	cmd.Flags().StringVar(&f.topic, "topic", "", "only those of records from this topic")
	cmd.Flags().StringVar(&f.since, "since", "", "only those written from then on: an RFC 3339 time, or a duration back from now, as in 2h")
	cmd.Flags().StringVar(&f.until, "until", "", "only those written before then")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "at most so many (0: all)")
}

// filter reads the flags; its errors are those of usage.
func (f *letterFlags) filter(now time.Time) (deadletter.Filter, error) {
	since, err1 := moment(f.since, now)
	until, err2 := moment(f.until, now)
	if err1 != nil {
		err1 = fmt.Errorf("--since: %w", err1)
	}
	if err2 != nil {
		err2 = fmt.Errorf("--until: %w", err2)
	}
	if err := errors.Join(err1, err2); err != nil {
		return deadletter.Filter{}, &exit{exitUsage, err}
	}
	if f.limit < 0 {
		return deadletter.Filter{}, &exit{exitUsage, errors.New("--limit must not be negative")}
	}
	return deadletter.Filter{Type: f.typ, Topic: f.topic, Since: since, Until: until}, nil
}

// moment reads a time, or how long ago it was.
func moment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("%q is neither an RFC 3339 time such as 2026-01-31T08:00:00Z nor a duration such as 2h", text)
}

// letters reads the letters that a filter selects. What is no letter is told
// and passed over.
func (s *servers) letters(ctx context.Context, f deadletter.Filter, limit int, tell io.Writer) (iter.Seq2[deadletter.Letter, error], error) {
	opts, err := app.KafkaOptions(s.cfg)
	if err != nil {
		return nil, err
	}
	reader := app.NewLetterReader(s.cfg, opts, s.elastic)
	if reader == nil {
		return nil, &exit{exitBadConfig, errors.New("neither dead_letter.topic nor dead_letter.index is set: there are no dead letters")}
	}
	return func(yield func(deadletter.Letter, error) bool) {
		n := 0
		for l, err := range reader.List(ctx, f) {
			if deadletter.IsNotLetter(err) {
				if tell != nil {
					fmt.Fprintf(tell, "%s/%d/%d: %v\n", s.cfg.DeadLetter.Topic, l.Stored.Partition, l.Stored.Offset, err)
				}
				continue
			}
			if !yield(l, err) || err != nil {
				return
			}
			if n++; n == limit {
				return
			}
		}
	}, nil
}

func newDeadLetterList() *cobra.Command {
	var flags configFlags
	var which letterFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Lists dead letters, without what they hold",
		Long: `Lists where the records of dead letters came from, and why they were refused.
Neither keys, values nor headers are printed, and no values of fields in reasons.`,
		Example: `  sluice deadletter list -c sluice.yaml --since 24h
  sluice deadletter list -c sluice.yaml --type document_parsing_exception --json | jq -s 'group_by(.target) | map({(.[0].target): length})'`,
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
			letters, err := s.letters(cmd.Context(), filter, which.limit, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			out, n := cmd.OutOrStdout(), 0
			encoder := json.NewEncoder(out)
			for l, err := range letters {
				if err != nil {
					return err
				}
				n++
				if asJSON {
					facts := struct {
						Written time.Time `json:"written"`
						deadletter.Facts
					}{l.Stored.Time.UTC(), l.Facts()}
					if err := encoder.Encode(facts); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(out, "%s  %s  %s", l.Stored.Time.UTC().Format(time.RFC3339), source(&l), orDash(l.Type))
				if l.Status != 0 {
					fmt.Fprintf(out, " %d", l.Status)
				}
				fmt.Fprintf(out, "  %s  %s\n", orDash(l.Target), deadletter.Shorten(l.Reason))
			}
			if !asJSON {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d letters\n", n)
			}
			return nil
		}),
	}
	flags.add(cmd)
	which.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

// source is where a letter's record came from.
func source(l *deadletter.Letter) string {
	return fmt.Sprintf("%s/%d/%d", l.Topic, l.Partition, l.Offset)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func newDeadLetterShow() *cobra.Command {
	var flags configFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show TOPIC/PARTITION/OFFSET",
		Short: "Shows a dead letter with all that it holds",
		Long: `Shows the letters of a record, named by where the record came from, or one letter,
named by where it stands in the dead-letter topic itself.

This prints the record's key, value and headers: mind who looks on, and where it
goes. With --json they are base64.`,
		Example: `  sluice deadletter show -c sluice.yaml events/3/1024
  sluice deadletter show -c sluice.yaml events/3/1024 --json | jq -r .value | base64 -d`,
		Args: cobra.ExactArgs(1),
		RunE: action(func(cmd *cobra.Command, args []string) error {
			at, err := parsePosition(args[0])
			if err != nil {
				return &exit{exitUsage, err}
			}
			s, err := flags.connect()
			if err != nil {
				return err
			}
			defer s.close(cmd.Context())
			itself := at.Topic == s.cfg.DeadLetter.Topic
			filter := deadletter.Filter{Topic: at.Topic}
			if itself {
				filter.Topic = ""
			}
			letters, err := s.letters(cmd.Context(), filter, 0, nil)
			if err != nil {
				return err
			}
			out, n := cmd.OutOrStdout(), 0
			for l, err := range letters {
				if err != nil {
					return err
				}
				if found := at == (admin.SkipRequest{Topic: l.Topic, Partition: l.Partition, Offset: l.Offset}) ||
					itself && at.Partition == l.Stored.Partition && at.Offset == l.Stored.Offset; !found {
					continue
				}
				n++
				if !asJSON {
					showLetter(out, &l)
				} else if err := json.NewEncoder(out).Encode(l.Document()); err != nil {
					return err
				}
			}
			if n == 0 {
				return fmt.Errorf("there is no dead letter of %s", args[0])
			}
			return nil
		}),
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line, key, value and headers in base64")
	return cmd
}

func showLetter(out io.Writer, l *deadletter.Letter) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("record", "%s of %s", source(l), l.Timestamp.UTC().Format(time.RFC3339Nano))
	if l.Stored.Offset >= 0 {
		line("letter", "%d/%d written %s by Sluice %s", l.Stored.Partition, l.Stored.Offset, l.Stored.Time.UTC().Format(time.RFC3339Nano), orDash(l.Release))
	} else {
		line("letter", "written %s by Sluice %s", l.Stored.Time.UTC().Format(time.RFC3339Nano), orDash(l.Release))
	}
	line("target", "%s", orDash(l.Target))
	line("type", "%s, status %d, after %d tries", orDash(l.Type), l.Status, l.Attempts)
	line("reason", "%s", deadletter.Shorten(l.Reason))
	line("version", "%d, generation %d", l.Sequence, l.Generation)
	line("key", "%s", printable(l.Key))
	for _, h := range l.Headers {
		line("header", "%s: %s", strconv.Quote(h.Key), printable(h.Value))
	}
	line("value", "%s", printable(l.Value))
	fmt.Fprintln(out)
}

// printable shows bytes as they are where they are text, else quoted: a record
// must not send commands to a terminal.
func printable(b []byte) string {
	if b == nil {
		return "(null)"
	}
	text := string(b)
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 }) {
		return strconv.Quote(text)
	}
	return text
}
