// Mete-server is what mete becomes for the commands that keep a ledger: it links
// databases and all else that a server needs, and nothing of it slows mete run.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/ui/cli"
)

func main() {
	powersim.Main() // returns, but in a simulator of mete up --demo-power
	os.Exit(cli.Run(context.Background(), command(), os.Args[1:]))
}

// command returns the program with its commands, by the name that people call.
func command() *cobra.Command {
	info, _ := debug.ReadBuildInfo() // nil where the go command did not build it
	root := cli.Root("mete", "Measure what every job on this machine uses: the commands that keep a ledger", info)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		cmd.SetContext(ctx)
	}
	root.AddCommand(up.Command(openAllInOne), server.Command())
	cli.Complete(root)
	return root
}
