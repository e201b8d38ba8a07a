// Mete-server provides the commands that need a ledger. It links the databases and everything else
// that a server needs, so that mete run starts fast without them.
package main

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/app/check"
	"mete.dev/mete/internal/app/config"
	"mete.dev/mete/internal/app/doctor"
	"mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/settings"

	serving "mete.dev/mete/internal/server"
)

func main() {
	powersim.Main() // returns except in a simulator of mete up --demo-power
	os.Exit(cli.Run(context.Background(), command(), os.Args[1:]))
}

// programs are those that read the file of settings.
func programs() []config.Program {
	return []config.Program{
		{Command: "mete server", Settings: server.Settings},
		{Command: "mete up", Settings: up.Settings},
		{Command: "mete-agent", Settings: func() *settings.Set { c := agent.Default(); return c.Settings() }},
	}
}

// command returns the program with its commands, under the name mete.
func command() *cobra.Command {
	info, _ := debug.ReadBuildInfo() // nil unless built by the go command
	root := cli.Root("mete", "Measure what every job on this machine uses: the commands that keep a ledger", info)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		cmd.SetContext(ctx)
	}
	open := func(ctx context.Context, o up.Options) (up.Meter, http.Handler, error) {
		return openAllInOne(ctx, o, root.Version)
	}
	root.AddCommand(up.Command(open), server.Command(func(c *serving.Config) { c.Version = root.Version }), check.Command(), config.Command(programs()...), doctor.Command(server.Settings, up.Settings))
	cli.Complete(root)
	return root
}
