package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/cmd/sluice/internal/flood"
)

func newRun() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Runs the deployment",
		Long: `Consumes the configured topics until it is told to stop. Servers that cannot be
reached are waited for; it says so in the log and on /healthz.

SIGTERM and SIGINT stop it: what is on its way is waited for up to
shutdown_timeout and committed. A second one ends it at once; nothing is lost
then either, but more is delivered again. SIGHUP reads credentials and
certificates anew.`,
		Example: `  sluice run -c sluice.yaml
  sluice run -c base.yaml -c production.yaml --set log.level=debug`,
		Args: cobra.NoArgs,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := flags.load()
			if err != nil {
				return err
			}
			log, err := newLogger(cmd.ErrOrStderr(), cfg.Log.Format, cfg.Log.Level)
			if err != nil {
				return &exit{exitBadConfig, err}
			}
			ctx, stop := untilSignal(cmd.Context(), func(s os.Signal) {
				log.Info().Str("signal", s.String()).Dur("at_most_ms", cfg.ShutdownTimeout).Msg("stopping; a second signal ends the process at once")
			})
			defer stop()
			limiter := flood.New()
			log = log.Hook(limiter)
			sluice, err := app.New(cfg, app.Options{Log: log, Version: readBuild().version})
			if err != nil {
				return &exit{exitBadConfig, err}
			}
			go onHangUp(ctx, sluice.Reload)
			var wg sync.WaitGroup
			running, end := context.WithCancel(context.WithoutCancel(ctx))
			wg.Go(func() { limiter.Summarise(running, log) })
			err = sluice.Run(ctx)
			end()
			wg.Wait()
			if err != nil {
				return err
			}
			log.Info().Msg("stopped")
			return nil
		}),
	}
	flags.add(cmd)
	return cmd
}

// onHangUp calls reload at every SIGHUP until ctx ends.
func onHangUp(ctx context.Context, reload func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			reload()
		case <-ctx.Done():
			return
		}
	}
}
