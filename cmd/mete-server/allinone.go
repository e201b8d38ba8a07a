package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"

	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/storage"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/job/socket"
)

// openAllInOne starts a server and an agent for this machine. version is that of the program.
func openAllInOne(ctx context.Context, o up.Options, version string) (up.Meter, http.Handler, error) {
	if o.Demo {
		return openDemo(ctx, o, version)
	}
	cfg := up.DefaultAllInOne(o.State)
	cfg.Server.Version = version
	cfg.Agent.Machine = sources.LiveConfig(o.Tick, o.Reader, energy.Config{Powercap: o.Powercap, NVML: gpu.Auto})
	cfg.Agent.Machine.Storage = storage.Default()
	cfg.Agent.Machine.Energy.Shares, cfg.Agent.Machine.Energy.VSock = energy.DefaultShares, energy.DefaultVSock(os.Getenv)
	cfg.Agent.Handover = publish.Default()
	cfg.Agent.Machine.Connections = o.Connections
	cfg.Agent.Containers, cfg.Agent.Domains = o.Containers, o.Domains
	cfg.Agent.Socket = socket.Path(os.Getenv, os.Geteuid())
	s, err := up.OpenAllInOne(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	return s, s.Handler(), nil
}
