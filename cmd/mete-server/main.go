// Mete-server provides the commands that need a ledger. It links the databases and everything else
// that a server needs, so that mete run starts fast without them.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/check"
	"mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/ui/cli"
)

func main() {
	powersim.Main() // returns except in a simulator of mete up --demo-power
	os.Exit(cli.Run(context.Background(), command(), os.Args[1:]))
}

// command returns the program with its commands, under the name mete.
func command() *cobra.Command {
	info, _ := debug.ReadBuildInfo() // nil unless built by the go command
	root := cli.Root("mete", "Measure what every job on this machine uses: the commands that keep a ledger", info)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		cmd.SetContext(ctx)
	}
	root.AddCommand(up.Command(openAllInOne), server.Command(), check.Command())
	cli.Complete(root)
	return root
}
