package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect"
	"mete.dev/mete/internal/local"
	"mete.dev/mete/internal/machine"
	"mete.dev/mete/internal/socket"
)

// sampling is how those who look at a machine live measure it: they see the
// slow set each tick too.
func sampling(tick time.Duration, reader string) machine.Config {
	cfg := machine.Config{Config: collect.Default(), Reader: reader, Slow: tick}
	cfg.Tick = tick
	cfg.Window = max(cfg.Window, tick)
	return cfg
}

// meter opens this machine for those who look at it live.
func meter(_ context.Context, tick time.Duration, reader string) (top.Meter, error) {
	// What goes wrong is shown with the figures; a log would disturb the screen.
	m, err := machine.Open(sampling(tick, reader), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// station opens this machine with a ledger of its own.
func station(ctx context.Context, tick time.Duration, reader, state string) (up.Meter, http.Handler, error) {
	cfg := local.Default(state)
	cfg.Agent.Machine = sampling(tick, reader)
	cfg.Agent.Socket = socket.Path(os.Getenv, os.Geteuid())
	s, err := local.Open(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	return s, s.Handler(), nil
}
