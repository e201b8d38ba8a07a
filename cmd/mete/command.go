package main

import (
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/capture"
	"mete.dev/mete/internal/app/power"
	"mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/app/token"
	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/app/usage"
	"mete.dev/mete/internal/cli"
)

// command returns the program with its commands.
func command() *cobra.Command {
	info, _ := debug.ReadBuildInfo() // nil where the go command did not build it
	root := &cobra.Command{
		Use:           "mete",
		Short:         "Measure what every job on this machine uses",
		Version:       cli.Version(info),
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
	root.SetVersionTemplate("mete {{.Version}}\n")
	var show meters
	root.AddCommand(show.flags(up.Command(show.station)), run.Command(), run.Report(), show.flags(top.Command(show.meter)),
		usage.Usage(), usage.Nodes(), usage.Sources(), usage.Gaps(), usage.Workloads(),
		server.Command(), token.Command(), power.Command(), capture.Command())
	cli.Complete(root)
	return root
}
