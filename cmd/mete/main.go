// Mete measures what every job on this machine uses.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/capture"
	"mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/cli"
)

func main() { os.Exit(mete()) }

// mete runs the command line and returns its exit code.
func mete() int {
	root := &cobra.Command{
		Use:           "mete",
		Short:         "Measure what every job on this machine uses",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			if cmd.Name() == "run" {
				return // it handles signals itself, for its command
			}
			ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			cmd.SetContext(ctx)
		},
	}
	root.AddCommand(up.Command(meter), run.Command(), run.Report(), top.Command(meter), capture.Command())
	err := root.ExecuteContext(context.Background())
	if exit, ok := errors.AsType[*run.Exit](err); ok {
		if exit.Err != nil {
			cli.Explain(os.Stderr, "mete", exit.Err)
		}
		return exit.Code
	}
	if err != nil {
		cli.Explain(os.Stderr, "mete", err)
	}
	return cli.Code(err)
}
