package main

import (
	"fmt"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/document"
)

// build describes the program that runs, as far as the Go toolchain recorded
// it.
type build struct{ version, commit, goVersion string }

func readBuild() build {
	b := build{version: "unknown", commit: "unknown", goVersion: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.version, b.goVersion = info.Main.Version, info.GoVersion
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+changes"
		}
	}
	b.commit += modified
	return b
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Shows version, commit and Go version",
		Args:  cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			b := readBuild()
			fmt.Fprintf(cmd.OutOrStdout(), "sluice %s\ncommit %s\n%s\n", b.version, b.commit, b.goVersion)
			return nil
		}),
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "decode N",
		Short: "Explains a document version that Sluice wrote",
		Long: `Explains the _version of a document that Sluice wrote with version: sequence:
generation (10 bits), offset + 1 (45 bits) and 8 spare bits.`,
		Example: "  sluice version decode 36028797019225344",
		Args:    cobra.ExactArgs(1),
		RunE: action(func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return &exit{exitUsage, fmt.Errorf("%q is not a document version: want a whole number below 2^63", args[0])}
			}
			generation, offset, spare, ok := document.DecodeSequence(n)
			if !ok {
				return fmt.Errorf("%d is not a version that Sluice writes with version: sequence: its generation or offset would be 0 (an internal version, a bare offset or another writer's)", n)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "generation %d\noffset     %d\nspare      %d\n", generation, offset, spare)
			return nil
		}),
	})
	return cmd
}
