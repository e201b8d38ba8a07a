package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/audit"
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
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/ui/cli"
)

// command returns the program with its commands, those of mete-server only by name.
func command() *cobra.Command { return commandWith(serverCommand) }

// commandWith returns the program with its commands. server returns a command of mete-server.
func commandWith(server func(name string) *cobra.Command) *cobra.Command {
	info, _ := debug.ReadBuildInfo() // nil unless built by the go command
	root := cli.Root("mete", "Measure what every job on this machine uses", info)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		if cmd.Name() == "run" {
			return // mete run handles signals itself, for its command
		}
		ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		cmd.SetContext(ctx)
	}
	root.Long = `Measure what every job on this machine uses: CPU, memory, disk, network and energy.

mete up measures this machine and serves a page of it; mete run measures one command.
Guides and the reference are in docs/ of the source: https://mete.dev/mete`
	root.Example = `  mete up
  mete run --name build -- make -j8
  mete usage --from -1h
  mete top`
	cli.AddGroup(root, "Measure", server("up"), run.Command(), top.Command(meter))
	cli.AddGroup(root, "See what was used", usage.Usage(), usage.Runs(), usage.Compare(), run.Report(), usage.Workloads(), usage.Connections(), query.Command(), usage.Gaps())
	cli.AddGroup(root, "Operate servers and agents", server("server"), usage.Nodes(), usage.Sources(), token.Command(), silence.Command(), audit.Command(), backup.Command(), server("check"), server("config"), server("doctor"))
	cli.AddGroup(root, "Examine a machine", power.Command(), usage.VMs(), capture.Command())
	cli.Complete(root)
	return root
}

// serverCommand returns a command of mete-server for the list of commands.
func serverCommand(name string) *cobra.Command {
	i := slices.IndexFunc(serverCommands, func(c farCommand) bool { return c.name == name })
	return &cobra.Command{Use: name, Short: serverCommands[i].short, Run: func(*cobra.Command, []string) {}}
}

// meter opens this machine.
func meter(_ context.Context, o top.Options) (top.Meter, error) {
	// top shows errors with the figures; a log would disturb the screen.
	m, err := sources.Open(sources.LiveConfig(o.Tick, o.Reader, energy.Config{Powercap: o.Powercap, NVML: gpu.Auto}), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, err
	}
	return top.Named(m), nil
}
