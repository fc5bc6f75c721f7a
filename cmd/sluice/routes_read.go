package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/partition"
)

func newRoutesExplain() *cobra.Command {
	var flags routesFlags
	cmd := &cobra.Command{
		Use:   "explain CUSTOMER",
		Short: "Says where a customer's documents are, and why",
		Long: `Says which index partition holds a customer and by which rule, which indices its
records are written to, and what a search for its documents must be sent to.`,
		Example: "  sluice routes explain acme -c sluice.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: action(func(cmd *cobra.Command, args []string) error {
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
			e, err := explain(t.Table, args[0])
			if err != nil {
				return &exit{exitUsage, err}
			}
			return r.print(e, e.show)
		}),
	}
	flags.add(cmd)
	return cmd
}

// explanation is where a customer is, and why.
type explanation struct {
	Stream    string   `json:"stream"`
	Epoch     int64    `json:"epoch"`
	Customer  string   `json:"customer"`
	Mode      string   `json:"write_mode"`
	Slot      *int     `json:"slot,omitempty"` // nil: the stream has no partitions yet
	Override  string   `json:"override,omitempty"`
	Partition string   `json:"partition,omitempty"`
	Write     []string `json:"write"` // indices that must have each record
	Read      string   `json:"read"`  // index or alias
	Why       string   `json:"why"`   // of Read
}

func explain(t *partition.Table, customer string) (explanation, error) {
	if customer == "" || len(customer) > partition.MaxCustomer {
		return explanation{}, fmt.Errorf("a customer has 1 to %d bytes", partition.MaxCustomer)
	}
	e := explanation{Stream: t.Name, Epoch: t.Epoch, Customer: customer, Mode: t.Write.String(), Write: []string{}}
	if p, ok := t.Place(customer); ok {
		e.Slot, e.Override, e.Partition = &p.Slot, p.Override, p.Partition
	}
	router := partition.NewRouter(t, partition.CacheOptions{})
	to := router.Route([]byte(customer))
	for _, index := range []string{to.Legacy, to.New} {
		if index != "" {
			e.Write = append(e.Write, index)
		}
	}
	e.Read, e.Why = router.Read([]byte(customer)), router.Why([]byte(customer))
	return e, nil
}

func (e explanation) show(out io.Writer) {
	fmt.Fprintf(out, "%s in stream %s, epoch %d\n", plain(e.Customer), e.Stream, e.Epoch)
	switch {
	case e.Slot == nil:
		fmt.Fprintln(out, "  partition  none: the stream has no index partitions yet")
	case e.Override != "":
		fmt.Fprintf(out, "  partition  %s, by the override %s (slot %d has no say)\n", e.Partition, plain(e.Override), *e.Slot)
	default:
		fmt.Fprintf(out, "  partition  %s, by slot %d\n", e.Partition, *e.Slot)
	}
	fmt.Fprintf(out, "  written to %s (%s)\n", someOf(e.Write), e.Mode)
	fmt.Fprintf(out, "  read from  %s (%s)\n", e.Read, e.Why)
}

func newRoutesWatch() *cobra.Command {
	var flags routesFlags
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Prints each epoch of the routing table as it comes",
		Long: `Prints the routing table's epoch, write mode and author, and again whenever it
changes, until it is stopped. While the table cannot be read it says so, once.

With --json each epoch is one line: the table as it is stored.`,
		Example: "  sluice routes watch -c sluice.yaml",
		Args:    cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			r, err := flags.connect(cmd)
			if err != nil {
				return err
			}
			defer r.close(cmd.Context())
			ctx, stop := untilSignal(cmd.Context(), func(os.Signal) {})
			defer stop()
			return r.watch(ctx, cmd.ErrOrStderr())
		}),
	}
	flags.add(cmd)
	return cmd
}

// watch prints epochs until ctx ends.
func (r *routes) watch(ctx context.Context, trouble io.Writer) error {
	var last int64
	said := ""
	ticker := time.NewTicker(r.cfg.Routing.RefreshInterval)
	defer ticker.Stop()
	for {
		t, err := r.store.Load(ctx, r.stream)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != said:
			said = err.Error()
			fmt.Fprintln(trouble, "Error:", said)
		case err == nil && t.Epoch != last:
			last, said = t.Epoch, ""
			if err := r.printEpoch(t.Table); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *routes) printEpoch(t *partition.Table) error {
	if !r.asJSON {
		_, err := fmt.Fprintf(r.out, "%s  epoch %d  %s  by %s\n", t.UpdatedAt.UTC().Format(time.RFC3339), t.Epoch, writes(t.Write), t.UpdatedBy)
		return err
	}
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(r.out, "%s\n", b)
	return err
}
