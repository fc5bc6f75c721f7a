package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/consumer"
	"github.com/sluicehq/sluice/partition"
)

func newRoutes() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "routes",
		Short: "Shows or changes which index holds which customer",
		Long: `A stream that is routed by customer (routing.stream) has a routing table in the
control index. It says which index partition holds which customer: the one that an
override names, else that of the customer's slot, which is a hash. And it says
which sides a record is written to:

  W0  the legacy index (documents.index) only
  W1  both; deletes on the new side are documents that keep their version
  W2  both
  W3  the index partitions only

Each change makes a new epoch, which every replica adopts within
routing.refresh_interval and notes in its commits. Write modes and read rules are
changed by migrations (sluice migrate); a customer that has documents moves only
by one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("say what to do: init, show, set, watch or explain")
		},
	}
	cmd.AddCommand(newRoutesInit(), newRoutesShow(), newRoutesSet(), newRoutesWatch(), newRoutesExplain())
	return cmd
}

// routes are the servers of a verb that looks after a routing table.
type routes struct {
	*servers
	stream string
	store  *partition.Store
	out    io.Writer
	asJSON bool
}

// routesFlags are the flags of all verbs of routes.
type routesFlags struct {
	configFlags
	asJSON bool
}

func (f *routesFlags) add(cmd *cobra.Command) {
	f.configFlags.add(cmd)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "prints JSON")
}

func (f *routesFlags) connect(cmd *cobra.Command) (*routes, error) {
	s, err := f.configFlags.connect()
	if err != nil {
		return nil, err
	}
	stream := s.cfg.Routing.Stream
	if stream == "" {
		s.close(cmd.Context())
		return nil, &exit{exitBadConfig, errors.New("routing.stream is not set: no stream of this configuration is routed by customer")}
	}
	return &routes{s, stream, partition.NewStore(s.control), cmd.OutOrStdout(), f.asJSON}, nil
}

// print writes v as JSON, or what text writes.
func (r *routes) print(v any, text func(out io.Writer)) error {
	if !r.asJSON {
		text(r.out)
		return nil
	}
	return printJSON(r.out, v)
}

func printJSON(out io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// storeError gives a refusal that ends by itself the exit code that says so.
func storeError(err error) error {
	if conflict := (*partition.ConflictError)(nil); errors.As(err, &conflict) {
		return &exit{exitTryLater, err}
	}
	return err
}

// actor names who makes a change: the user, at this machine.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func newRoutesShow() *cobra.Command {
	var flags routesFlags
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Shows the routing table, and which source partitions are behind",
		Long: `Shows the routing table as it stands in the control index, and the epochs that the
group's commits carry: while one is below the table's, some replica may still write
by an older table.

With --json it prints the table as it is stored.`,
		Example: "  sluice routes show -c sluice.yaml",
		Args:    cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			r, err := flags.connect(cmd)
			if err != nil {
				return err
			}
			defer r.close(ctx)
			t, err := r.store.Load(ctx, r.stream)
			if err != nil {
				return err
			}
			return r.print(t.Table, func(out io.Writer) {
				showTable(out, t.Table)
				r.showFence(ctx, t.Epoch)
			})
		}),
	}
	flags.add(cmd)
	return cmd
}

// writes says in words where a mode writes.
func writes(m partition.Mode) string {
	switch m {
	case partition.W0:
		return "W0: the legacy index only"
	case partition.W1:
		return "W1: both sides, deletes on the new one are tombstone documents"
	case partition.W2:
		return "W2: both sides"
	default:
		return "W3: the index partitions only"
	}
}

func showTable(out io.Writer, t *partition.Table) {
	fmt.Fprintf(out, "stream %s, epoch %d, %s\n", t.Name, t.Epoch, writes(t.Write))
	if !t.UpdatedAt.IsZero() {
		fmt.Fprintf(out, "  changed  %s by %s\n", t.UpdatedAt.UTC().Format(time.RFC3339), t.UpdatedBy)
	}
	if t.Job != "" {
		fmt.Fprintf(out, "  job      %s\n", t.Job)
	}
	if t.Legacy != nil {
		fmt.Fprintf(out, "  legacy   %s (%s)\n", t.Legacy.Index, t.Legacy.State)
	}
	if t.Write.New() {
		fmt.Fprintf(out, "  reads    %s\n", reads(t))
	}
	fmt.Fprintf(out, "  hash     %s, %d slots\n", t.Hash, t.Slots)
	if len(t.Partitions) == 0 {
		return
	}
	slots := map[string]int{}
	for _, name := range t.SlotMap {
		slots[name]++
	}
	overrides := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(t.Overrides)) {
		overrides[t.Overrides[key]] = append(overrides[t.Overrides[key]], key)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PARTITION\tINDEX\tREAD BY\tSTATE\tSLOTS\tOVERRIDES")
	for _, name := range slices.Sorted(maps.Keys(t.Partitions)) {
		p := t.Partitions[name]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", name, p.Index, p.ReadName(), p.State, slots[name], someOf(overrides[name]))
	}
	_ = table.Flush() // as good as the writes to out
}

// reads says in words who is read from the new side.
func reads(t *partition.Table) string {
	switch {
	case t.Write == partition.W3 || t.Read.AllNew():
		return "all customers from their index partitions"
	case !t.Read.AnyNew():
		return "all customers from the legacy index"
	}
	return fmt.Sprintf("%d allowed, %d denied, %.2f %% of the others from their index partitions", len(t.Read.Allow), len(t.Read.Deny), float64(t.Read.Percent)/100)
}

// someOf lists a few names.
func someOf(names []string) string {
	const most = 5
	if len(names) <= most {
		return plain(strings.Join(names, ", "))
	}
	return fmt.Sprintf("%s and %d more", plain(strings.Join(names[:most], ", ")), len(names)-most)
}

// fence reads how far the group has come under an epoch.
func (r *routes) fence(ctx context.Context, epoch int64) (consumer.Fence, error) {
	return consumer.ReadFence(ctx, r.kafka, r.cfg.Kafka, r.notConsumed(), epoch)
}

// showFence says how far the group follows the table.
func (r *routes) showFence(ctx context.Context, epoch int64) {
	group := r.cfg.Kafka.GroupID
	fence, err := r.fence(ctx, epoch)
	if err != nil {
		fmt.Fprintf(r.out, "how far group %s has come cannot be seen: %v\n", group, err)
		return
	}
	behind := fence.Laggards()
	fmt.Fprintf(r.out, "group %s: %d of %d source partitions have committed under epoch %d\n", group, len(fence.Positions)-len(behind), len(fence.Positions), epoch)
	for i, p := range behind {
		if i == mostLaggards {
			fmt.Fprintf(r.out, "  and %d more\n", len(behind)-i)
			break
		}
		fmt.Fprintf(r.out, "  behind  %s\n", p)
	}
}

// mostLaggards is how many source partitions are named that are behind.
const mostLaggards = 10
