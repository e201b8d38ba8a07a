// Command server is mete server as the torture tests run it: the environment
// shortens its times, so that much happens between two deaths.
//
//	METE_TORTURE_FOLD      by how much hours and days are folded before they end
//	METE_TORTURE_UPSTREAM  how often rows go to the server above, those of open minutes too
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	app "mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/ui/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := cli.Root("mete", "Keep a ledger", nil)
	root.AddCommand(app.Command(configure))
	os.Exit(cli.Run(ctx, root, os.Args[1:]))
}

// configure does what the environment says.
func configure(cfg *server.Config) {
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
