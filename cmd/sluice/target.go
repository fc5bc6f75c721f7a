package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/admin"
)

func newTarget() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Lists held targets, and lets one go",
		Long: `A target (an index, alias or data stream) is held while Elasticsearch takes nothing
for it, or after it has refused too many records: its records wait, and it is tried
once a second. docs/operations.md says what to do about each reason.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("say what to do: list or release")
		},
	}
	cmd.AddCommand(newTargetList(), newTargetRelease())
	return cmd
}

// heldTarget is a target as the replicas that hold it see it.
type heldTarget struct {
	Target   string    `json:"target"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"` // the earliest
	Bytes    int64     `json:"bytes"` // of all of them
	Replicas []string  `json:"replicas"`
}

// held sums what the replicas' health says, by target.
func held(healths map[string]admin.Health) []heldTarget {
	by := map[string]*heldTarget{}
	for _, url := range slices.Sorted(maps.Keys(healths)) {
		for _, t := range healths[url].Held {
			h := by[t.Target]
			if h == nil {
				h = &heldTarget{Target: t.Target, Reason: t.Reason, Since: t.Since}
				by[t.Target] = h
			}
			if t.Since.Before(h.Since) {
				h.Since, h.Reason = t.Since, t.Reason
			}
			h.Bytes += t.Bytes
			h.Replicas = append(h.Replicas, url)
		}
	}
	targets := []heldTarget{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		targets = append(targets, *by[name])
	}
	return targets
}

func showHeld(out io.Writer, targets []heldTarget) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TARGET\tREASON\tSINCE\tWAITING\tREPLICAS")
	for _, t := range targets {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", plain(t.Target), plain(t.Reason), ago(t.Since), bytesText(t.Bytes), len(t.Replicas))
	}
	_ = table.Flush() // as good as the writes to out
}

// ago says how long ago a moment was.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return time.Since(t).Round(time.Second).String()
}

// bytesText writes n in the largest unit that fits.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1fGiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1fMiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1fKiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%dB", n)
}

func newTargetList() *cobra.Command {
	var flags configFlags
	var replicas adminFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Lists the targets that replicas hold",
		Example: `  sluice target list -c sluice.yaml
  sluice target list --admin http://10.0.0.7:9600 --admin http://10.0.0.8:9600`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			client, err := replicas.connect(cmd.Context(), &flags)
			if err != nil {
				return err
			}
			healths, failed := askHealth(cmd.Context(), client)
			if len(healths) == 0 {
				return failed
			}
			targets := held(healths)
			switch out := cmd.OutOrStdout(); {
			case asJSON:
				err = json.NewEncoder(out).Encode(targets)
			case len(targets) > 0:
				showHeld(out, targets)
			default:
				fmt.Fprintf(out, "no target is held by the %d replicas that were asked\n", len(healths))
			}
			return errors.Join(err, failed)
		}),
	}
	flags.add(cmd)
	replicas.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "prints JSON")
	return cmd
}

// connect is client for verbs that only talk to replicas.
func (f *adminFlags) connect(ctx context.Context, flags *configFlags) (*adminClient, error) {
	cfg, _, err := f.load(flags)
	if err != nil {
		return nil, err
	}
	return f.named(ctx, cfg.Admin)
}

// named is client for verbs that need a replica to be named.
func (f *adminFlags) named(ctx context.Context, cfg admin.Config) (*adminClient, error) {
	client, err := f.client(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if len(client.urls) == 0 {
		return nil, &exit{exitUsage, errors.New("no replica is named: pass --admin URL, or set admin.address")}
	}
	return client, nil
}

// askHealth asks each replica; failed joins what those said that cannot be
// asked.
func askHealth(ctx context.Context, client *adminClient) (healths map[string]admin.Health, failed error) {
	healths = map[string]admin.Health{}
	for _, url := range client.urls {
		var h admin.Health
		if err := client.call(ctx, url, http.MethodGet, "/healthz", nil, &h); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		healths[url] = h
	}
	return healths, failed
}

func newTargetRelease() *cobra.Command {
	var flags configFlags
	var replicas adminFlags
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Lets a held target go on",
		Long: `Lets a held target go on at once in every replica that is named, as an operator's
word that its cause is gone. If it is not, the target is held again. A target that
was held for refusing too many records goes on dead-lettering them.

Exit code 1: no replica that was asked holds the target, or one could not be asked.`,
		Example: `  sluice target release -c sluice.yaml events-2026-01
  sluice target release events-2026-01 --admin http://10.0.0.7:9600 --admin-token-file token`,
		Args: cobra.ExactArgs(1),
		RunE: action(func(cmd *cobra.Command, args []string) error {
			client, err := replicas.connect(cmd.Context(), &flags)
			if err != nil {
				return err
			}
			released := 0
			var failed error
			for _, replica := range client.urls {
				err := client.call(cmd.Context(), replica, http.MethodPost, "/v1/targets/"+url.PathEscape(args[0])+"/release", nil, nil)
				var refused *refusal
				switch {
				case err == nil:
					released++
					fmt.Fprintf(cmd.OutOrStdout(), "released %s by the replica at %s\n", args[0], replica)
				case errors.As(err, &refused) && refused.status == http.StatusNotFound:
				default:
					failed = errors.Join(failed, err)
				}
			}
			if released == 0 && failed == nil {
				return fmt.Errorf("%s is held by none of the %d replicas that were asked: `sluice target list` shows what is", args[0], len(client.urls))
			}
			return failed
		}),
	}
	flags.add(cmd)
	replicas.add(cmd)
	return cmd
}
