// Mete-agent measures what every workload of this machine uses. It knows only
// the kernel, and is a program of its own to stay small.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/collect"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/machine"
)

func main() {
	cfg := agent.Config{Machine: machine.Config{Config: collect.Default(), Reader: machine.Auto}}
	flag.DurationVar(&cfg.Machine.Tick, "tick", cfg.Machine.Tick, "time between readings")
	flag.DurationVar(&cfg.Machine.Window, "window", cfg.Machine.Window, "length of a window")
	flag.StringVar(&cfg.Machine.Reader, "reader", cfg.Machine.Reader, "how to read the kernel: "+strings.Join(machine.Readers, ", "))
	flag.BoolVar(&cfg.Print, "print", false, "write each window to standard output, a JSON line a workload")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "mete-agent: error: unexpected argument %q\nhint: mete-agent -help lists the flags\n", flag.Arg(0))
		os.Exit(2)
	}
	// Little is allocated once all groups are known, so that collecting it sooner
	// costs next to nothing and saves a third of the memory.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := agent.Run(ctx, cfg, os.Stdout, log); err != nil {
		fmt.Fprintln(os.Stderr, "mete-agent: error:", err)
		if hint := fault.Hint(err); hint != "" {
			fmt.Fprintln(os.Stderr, "hint:", hint)
		}
		os.Exit(1)
	}
}
