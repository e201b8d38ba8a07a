package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"mete.dev/mete/internal/app/top"
	"mete.dev/mete/internal/collect"
	"mete.dev/mete/internal/machine"
)

// meter opens this machine for those who look at it live: they see the slow set
// each tick too.
func meter(_ context.Context, tick time.Duration, reader string) (top.Meter, error) {
	cfg := machine.Config{Config: collect.Default(), Reader: reader, Slow: tick}
	cfg.Tick = tick
	cfg.Window = max(cfg.Window, tick)
	// What goes wrong is shown with the figures; a log would disturb the screen.
	m, err := machine.Open(cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return nil, err
	}
	return m, nil
}
