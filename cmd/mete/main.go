// Mete measures what every job on this machine uses.
package main

import (
	"context"
	"os"

	"mete.dev/mete/internal/ui/cli"
)

func main() {
	execServer(os.Args[1:])
	os.Exit(cli.Run(context.Background(), command(), os.Args[1:]))
}
