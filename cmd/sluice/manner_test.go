package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every verb that tells something tells it as JSON too, and every verb that
// changes something can be asked first what it would do.
func TestVerbsHaveOneManner(t *testing.T) {
	var (
		// What these print is no answer: logs, a file, a screen, or one line.
		noJSON = []string{"run", "demo", "init", "man", "top", "skip", "target release", "version decode", "deadletter replay", "parked replay"}
		// Of those that change something. skip and target release do one thing, to
		// what is named; what is parked is shown by parked list.
		dryRun = []string{"purge", "reset", "generation raise", "deadletter replay", "routes init", "routes set"}
	)
	seen := map[string]bool{}
	var walk func(c *cobra.Command, path string)
	walk = func(c *cobra.Command, path string) {
		for _, sub := range c.Commands() {
			name := strings.TrimPrefix(path+" "+sub.Name(), " ")
			walk(sub, name)
			if sub.HasSubCommands() || sub.Name() == "help" || strings.HasPrefix(name, "completion") {
				continue
			}
			seen[name] = true
			if has := sub.Flags().Lookup("json") != nil; has == slices.Contains(noJSON, name) {
				t.Errorf("%s: --json: %t", name, has)
			}
			changes := slices.Contains(dryRun, name) || strings.HasPrefix(name, "migrate ")
			if changes && sub.Flags().Lookup("dry-run") == nil {
				t.Errorf("%s has no --dry-run", name)
			}
			if sub.Short == "" || sub.Long == "" && sub.Example == "" && sub.Parent().Long == "" {
				t.Errorf("%s teaches nothing", name)
			}
		}
	}
	walk(newRoot(), "")
	for _, name := range slices.Concat(noJSON, dryRun) {
		if !seen[name] {
			t.Errorf("there is no verb %s", name)
		}
	}
}
