package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/backup"
	"mete.dev/mete/internal/app/capture"
	"mete.dev/mete/internal/app/power"
	"mete.dev/mete/internal/app/query"
	"mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/app/silence"
	"mete.dev/mete/internal/app/token"
	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/app/usage"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/ui/cli"
)

// command returns the program with its commands.
func command() *cobra.Command {
	info, _ := debug.ReadBuildInfo() // nil unless built by the go command
	root := cli.Root("mete", "Measure what every job on this machine uses", info)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		if cmd.Name() == "run" {
			return // mete run handles signals itself, for its command
		}
		ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		cmd.SetContext(ctx)
	}
	root.AddCommand(run.Command(), run.Report(), top.Command(meter),
		usage.Usage(), usage.Runs(), usage.Compare(), usage.Nodes(), usage.Sources(), usage.Gaps(), usage.Workloads(), usage.VMs(), query.Command(),
		token.Command(), silence.Command(), backup.Command(), power.Command(), capture.Command())
	for _, c := range serverCommands { // list the commands of mete-server
		root.AddCommand(&cobra.Command{Use: c.name, Short: c.short, Run: func(*cobra.Command, []string) {}})
	}
	cli.Complete(root)
	return root
}

// meter opens this machine.
func meter(_ context.Context, o top.Options) (top.Meter, error) {
	// top shows errors with the figures; a log would disturb the screen.
	m, err := machine.Open(machine.LiveConfig(o.Tick, o.Reader, energy.Config{Powercap: o.Powercap, NVML: gpu.Auto}), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, err
	}
	return top.NameJobs(m), nil
}
