// Command agent is mete-agent as the torture tests run it: the environment
// shortens its times and sizes, so that what takes hours happens in seconds, and
// replaces the file system of its spool.
//
//	METE_TORTURE_SEGMENT  size of a segment of the spool in bytes; merging begins early
//	METE_TORTURE_DROP     set: what the spool did not sync is lost with the process
//	METE_TORTURE_BACKOFF  shortest delay before a batch is offered again
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/testkit/spooltest"
)

func main() {
	cfg := agent.Default()
	cfg.Flags(flag.CommandLine)
	flag.Parse()
	configure(&cfg)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := agent.Run(ctx, cfg, os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "mete-agent: error:", err)
		os.Exit(1)
	}
}

// configure does what the environment says.
func configure(cfg *agent.Config) {
	sp, se := &cfg.Agent.Spool, &cfg.Agent.Sender
	if n, err := strconv.ParseInt(os.Getenv("METE_TORTURE_SEGMENT"), 10, 64); err == nil {
		sp.SegmentBytes = n
		sp.MergeRules = []spool.MergeRule{{After: time.Second, Span: 2 * time.Second}, {After: 6 * time.Second, Span: 10 * time.Second}}
	}
	if os.Getenv("METE_TORTURE_DROP") != "" {
		sp.FS = &spooltest.Volatile{}
	}
	if d, err := time.ParseDuration(os.Getenv("METE_TORTURE_BACKOFF")); err == nil {
		se.MinBackoff, se.MaxBackoff, se.DrainRate = d, 10*d, 20
	}
}
