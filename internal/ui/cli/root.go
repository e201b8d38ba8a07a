package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Root returns a program without commands. build is the build information of the program,
// nil if it has none.
func Root(name, short string, build *debug.BuildInfo) *cobra.Command {
	root := &cobra.Command{Use: name, Short: short, Version: Version(build), SilenceErrors: true, SilenceUsage: true}
	root.SetVersionTemplate(name + " {{.Version}}\n")
	root.AddCommand(&cobra.Command{Use: "version", Short: "Print the version, like --version",
		Example: "  " + name + " version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), name, root.Version) }})
	return root
}

// An Exit is an error with an exit code of its own.
type Exit interface {
	error
	// Exit returns the exit code, and the error to print, nil if everything was printed.
	Exit() (code int, show error)
}

// Run runs a command line of root, prints its error to standard error, and returns the exit
// code.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		unquote(root)
	}
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

// unquote removes the backticks from the help of all flags, which completion shows as it is.
func unquote(c *cobra.Command) {
	plain := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	c.Flags().VisitAll(plain)
	c.PersistentFlags().VisitAll(plain)
	for _, sub := range c.Commands() {
		unquote(sub)
	}
}
