package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Root returns a program without commands. build is what the go command wrote
// into it, nil where it did not.
func Root(name, short string, build *debug.BuildInfo) *cobra.Command {
	root := &cobra.Command{Use: name, Short: short, Version: Version(build), SilenceErrors: true, SilenceUsage: true}
	root.SetVersionTemplate(name + " {{.Version}}\n")
	root.AddCommand(&cobra.Command{Use: "version", Short: "Say which version this is, as --version does",
		Example: "  " + name + " version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), name, root.Version) }})
	return root
}

// An Exit is an error that ends the program with a code of its own.
type Exit interface {
	error
	// Exit returns the code, and what is yet to be shown of the error, nil where
	// all was said.
	Exit() (code int, show error)
}

// Run runs a command line of root, says on standard error what went wrong, and
// returns the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return OK
	}
	if unknown := Unknown(root, args); unknown != nil {
		err = unknown
	}
	code, show := Code(err), err
	if exit, ok := errors.AsType[Exit](err); ok {
		code, show = exit.Exit()
	}
	if show != nil {
		Explain(os.Stderr, root.Name(), show)
	}
	return code
}
