// Mete measures what every job on this machine uses.
package main

import (
	"context"
	"errors"
	"os"

	"mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/cli"
)

func main() { os.Exit(mete(os.Args[1:])) }

// mete runs a command line and returns its exit code.
func mete(args []string) int {
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return cli.OK
	}
	if unknown := cli.Unknown(root, args); unknown != nil {
		err = unknown
	}
	code, show := cli.Code(err), err
	if exit, ok := errors.AsType[*run.Exit](err); ok {
		code, show = exit.Code, exit.Err
	}
	if show != nil {
		cli.Explain(os.Stderr, "mete", show)
	}
	return code
}
