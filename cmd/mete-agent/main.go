// Mete-agent measures what every workload of this machine uses. It only needs the kernel, and is a
// separate program to stay small.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/model/fault"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run measures until a signal ends it, and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	cfg := agent.Default()
	flags := flag.NewFlagSet("mete-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // explain prints errors
	set := cfg.Flags(flags)
	info, _ := debug.ReadBuildInfo() // nil unless built by the go command
	cfg.Version = version(info)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "Usage: mete-agent [flags]\n\n%s\n\n", agent.Long)
		set.PrintFlags(stdout)
		return 0
	case err == nil && cfg.ShowVersion:
		fmt.Fprintln(stdout, "mete-agent", cfg.Version)
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		return explain(stderr, fault.WithHint(err, "mete-agent --help lists the flags"), 2)
	}
	if err := set.Load(os.Getenv); err != nil {
		return explain(stderr, err, code(err))
	}
	agent.TuneRuntime()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = agent.Run(ctx, cfg, stdout, slog.New(slog.NewTextHandler(stderr, nil)))
	if err != nil {
		return explain(stderr, err, code(err))
	}
	return 0
}

// code returns the exit code of an error.
func code(err error) int {
	if errors.Is(err, fault.ErrInvalid) {
		return 2
	}
	return 1
}

// version returns the version that the go command recorded.
func version(b *debug.BuildInfo) string {
	if b == nil || b.Main.Version == "" || b.Main.Version == "(devel)" {
		return "devel"
	}
	return b.Main.Version
}

// explain prints an error with its hint and returns code.
func explain(w io.Writer, err error, code int) int {
	fmt.Fprintln(w, "mete-agent: error:", err)
	if hint := fault.Hint(err); hint != "" {
		fmt.Fprintln(w, "hint:", hint)
	}
	return code
}
