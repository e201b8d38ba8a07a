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
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
)

// A demo is a station whose power meters are played.
type demo struct {
	*up.Station
	sim *powersim.Process
	dir string
}

// Close ends the station, then what it read, and removes what was kept.
func (d *demo) Close() error {
	var err error
	if d.Station != nil {
		err = d.Station.Close()
	}
	if d.sim != nil {
		err = errors.Join(err, d.sim.Stop())
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// demonstrate opens this machine with power meters that are played over its real
// load, and a ledger that goes with the end. No job of mete run is registered at it:
// its record would go too.
func demonstrate(ctx context.Context, o up.Options) (_ up.Meter, _ http.Handler, err error) {
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
	cfg := up.DefaultStation(filepath.Join(d.dir, "state"))
	cfg.Agent.Machine = machine.Live(o.Tick, o.Reader, energy.Config{Powercap: sim.Dir, NVML: gpu.Off})
	d.Station, err = up.OpenStation(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	opened = true
	return d, d.Handler(), nil
}
