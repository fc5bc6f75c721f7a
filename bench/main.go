// Bench measures Sluice beside other programs that move documents from Kafka to
// Elasticsearch. It knows none of them from inside: each is run as a child
// process between the same broker and the same sink, which checks every
// document, and is timed from outside.
//
// It is part of the module because all that it needs is there already, the
// embedded Elasticsearch that answers for the control index included. Only the
// OpenTelemetry collector (peers/otelcol) has a module of its own: its
// dependencies are some hundred.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

var commands = map[string]func(ctx context.Context, args []string) error{
	"compare":  compare,
	"real":     compareReal,
	"copy":     copyIndices,
	"limiter":  limiter,
	"quota":    quota,
	"charts":   charts,
	"kfakesrv": kfakesrv,
	"nullsink": nullsink,
	"load":     load,
	"floor":    floor,
	"copier":   copier,
}

const usage = `usage: bench COMMAND [FLAGS]

measurements, each with a table to read and a JSON file to keep:
  compare   programs in turns, between an in-memory Kafka and a sink
  real      programs in turns, between a real Kafka and a real Elasticsearch
  copy      a migration's copy and other ways to copy, in a real Elasticsearch
  quota     procs.mode under CPU quotas (Linux, root)
  limiter   requests in flight, before a real Elasticsearch behind a slow proxy
  charts    draws the JSON files

what they are made of:
  kfakesrv  an in-memory Kafka, preloaded with documents
  nullsink  an Elasticsearch that answers bulk requests and keeps nothing
  load      fills a topic of a real Kafka with the same documents
  floor     the least that any consumer must do
  copier    copies an index by a plain loop, or by _reindex

bench COMMAND -h lists the flags of a command.
`

func main() { os.Exit(command(os.Args[1:])) }

// command runs the command that args begin with, and returns the exit code.
func command(args []string) int {
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch err := commands[args[0]](ctx, args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

// say prints v as one line of JSON, for whoever started this process.
func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }
