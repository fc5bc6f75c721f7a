// Command sluice moves records from Kafka topics into Elasticsearch and
// OpenSearch. Each verb has a file of its own; package app builds the rooms
// and runs them.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
