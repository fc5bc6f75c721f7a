package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newMan() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man",
		Short: "Writes the manual pages",
		Long: `Writes a manual page for each verb into a folder: for packages, and to read with
man where none is installed.`,
		Example: `  sluice man -o /usr/local/share/man/man1
  sluice man -o man && man man/sluice-run.1`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same pages for the same program, whenever they are written
			header := &doc.GenManHeader{Title: "SLUICE", Section: "1", Source: "Sluice", Manual: "Sluice Manual"}
			if err := doc.GenManTree(root, header, dir); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			return nil
		}),
	}
	cmd.Flags().StringVarP(&dir, "output", "o", ".", "folder that the pages are written to")
	return cmd
}
