package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/local"
	"mete.dev/mete/internal/machine"
	"mete.dev/mete/internal/socket"
)

// meters opens this machine for those who look at it live.
type meters struct {
	energy energy.Config
}

// flags adds to a command the flags of what it reads.
func (ms *meters) flags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&ms.energy.Powercap, "powercap", "", "read RAPL's counters in `DIR`, in place of this machine's own")
	return cmd
}

// sampling is how the machine is measured: they see the slow set each tick too.
func (ms *meters) sampling(tick time.Duration, reader string) machine.Config {
	cfg := machine.Config{Config: collect.Default(), Reader: reader, Slow: tick, Energy: ms.energy}
	cfg.Tick = tick
	cfg.Window = max(cfg.Window, tick)
	return cfg
}

// meter opens this machine alone.
func (ms *meters) meter(_ context.Context, tick time.Duration, reader string) (top.Meter, error) {
	// What goes wrong is shown with the figures; a log would disturb the screen.
	m, err := machine.Open(ms.sampling(tick, reader), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// station opens this machine with a ledger of its own.
func (ms *meters) station(ctx context.Context, tick time.Duration, reader, state string) (up.Meter, http.Handler, error) {
	cfg := local.Default(state)
	cfg.Agent.Machine = ms.sampling(tick, reader)
	cfg.Agent.Socket = socket.Path(os.Getenv, os.Geteuid())
	s, err := local.Open(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	return s, s.Handler(), nil
}
