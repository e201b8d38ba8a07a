// Command server is mete server for the torture tests: the environment shortens its intervals,
// so that much happens between two kills.
//
//	METE_TORTURE_FOLD      time by which hours and days are folded before their end
//	METE_TORTURE_UPSTREAM  interval of replication, which then includes open minutes
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"mete.dev/mete/internal/app/check"
	app "mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/ui/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := cli.Root("mete", "Keep a ledger", nil)
	root.AddCommand(app.Command(configure), check.Command())
	os.Exit(cli.Run(ctx, root, os.Args[1:]))
}

// configure applies the environment to the configuration.
func configure(cfg *server.Config) {
	cfg.Metrics.Reserve = 1 << 20 // of the small disk
	if ahead, err := time.ParseDuration(os.Getenv("METE_TORTURE_FOLD")); err == nil {
		cfg.Ledger.Grace, cfg.Ledger.Every = -ahead, 200*time.Millisecond
	}
	if d, err := time.ParseDuration(os.Getenv("METE_TORTURE_UPSTREAM")); err == nil {
		for i := range cfg.Upstreams {
			u := &cfg.Upstreams[i]
			u.Interval, u.MinBackoff, u.MaxBackoff, u.IncludeOpen = d, d, 4*d, true
		}
	}
}
