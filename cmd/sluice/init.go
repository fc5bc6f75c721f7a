package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/config"
)

func newInit() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Writes a commented configuration to start from",
		Example: `  sluice init > sluice.yaml
  sluice init -o sluice.yaml`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				_, err := io.WriteString(cmd.OutOrStdout(), config.Template())
				return err
			}
			file, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s exists: name another file, or take it away", output)
			}
			if err != nil {
				return err
			}
			_, err = file.WriteString(config.Template())
			if closeErr := file.Close(); err == nil {
				err = closeErr
			}
			if err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s; next: sluice validate -c %s\n", output, output)
			}
			return err
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, which must not exist yet (default: standard output)")
	return cmd
}
