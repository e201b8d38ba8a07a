// Command agent is mete-agent for the torture tests: the environment shortens its intervals
// and sizes, so that hours of work happen in seconds, and replaces the file system of its
// spool.
//
//	METE_TORTURE_SEGMENT  segment size of the spool in bytes; small segments merge early
//	METE_TORTURE_DROP     if set, the process loses the spool's unsynced data at its end
//	METE_TORTURE_BACKOFF  minimum delay before a failed offer is repeated
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
	"mete.dev/mete/internal/testkit/faultfs"
)

func main() {
	cfg := agent.Default()
	set := cfg.Flags(flag.CommandLine)
	flag.Parse()
	if err := set.Load(os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "mete-agent: error:", err)
		os.Exit(2)
	}
	configure(&cfg)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := agent.Run(ctx, cfg, os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "mete-agent: error:", err)
		os.Exit(1)
	}
}

// configure applies the environment to the configuration.
func configure(cfg *agent.Config) {
	sp, se := &cfg.Agent.Spool, &cfg.Agent.Sender
	if n, err := strconv.ParseInt(os.Getenv("METE_TORTURE_SEGMENT"), 10, 64); err == nil {
		sp.SegmentBytes = n
		sp.MergeRules = []spool.MergeRule{{After: time.Second, Span: 2 * time.Second}, {After: 6 * time.Second, Span: 10 * time.Second}}
	}
	if os.Getenv("METE_TORTURE_DROP") != "" {
		sp.FS = &faultfs.Volatile{}
	}
	if d, err := time.ParseDuration(os.Getenv("METE_TORTURE_BACKOFF")); err == nil {
		se.MinBackoff, se.MaxBackoff, se.DrainRate = d, 10*d, 20
	}
}
