package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"

	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// A demo is an AllInOne with simulated power meters.
type demo struct {
	*up.AllInOne
	sim *powersim.Process
	dir string
}

// Close stops the AllInOne and the simulator and removes their data.
func (d *demo) Close() error {
	var err error
	if d.AllInOne != nil {
		err = d.AllInOne.Close()
	}
	if d.sim != nil {
		err = errors.Join(err, d.sim.Stop())
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// openDemo starts an AllInOne with power meters simulated from the real load and with a temporary
// ledger. It does not register jobs of mete run, whose records would be deleted too.
func openDemo(ctx context.Context, o up.Options, version string) (_ up.Meter, _ http.Handler, err error) {
	if o.Powercap != "" {
		return nil, nil, fault.WithHint(fmt.Errorf("--demo-power with --powercap %s: %w", o.Powercap, fault.ErrInvalid), "give one of the two")
	}
	h, err := hostfs.Open("/")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	d := &demo{}
	if d.dir, err = os.MkdirTemp("", "mete-demo-"); err != nil {
		return nil, nil, err
	}
	opened := false
	defer func() {
		if !opened {
			err = errors.Join(err, d.Close())
		}
	}()
	sim, err := powersim.Demo(h, filepath.Join(d.dir, "powercap"), runtime.NumCPU())
	if err != nil {
		return nil, nil, err
	}
	if d.sim, err = powersim.Start(sim); err != nil {
		return nil, nil, err
	}
	cfg := up.DefaultAllInOne(filepath.Join(d.dir, "state"))
	cfg.Server.Version = version
	cfg.Agent.Machine = sources.LiveConfig(o.Tick, o.Reader, energy.Config{Powercap: sim.Dir, NVML: gpu.Off})
	cfg.Agent.Machine.Connections = o.Connections
	cfg.Agent.Containers, cfg.Agent.Domains = o.Containers, o.Domains
	d.AllInOne, err = up.OpenAllInOne(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	opened = true
	return d, d.Handler(), nil
}
