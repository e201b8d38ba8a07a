package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"mete.dev/mete/internal/attribute"
	energymeters "mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/host/procfmt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"

	"mete.dev/mete/internal/attribute/energy"
)

// A Power is the meters of a machine's power and what else is known of it.
type Power struct {
	Meters *energymeters.Source
	// OpenErrors are the errors of meters that could not be opened.
	OpenErrors []error
	// Processor names the machine's CPUs and their number of threads, for which learned
	// power models are valid.
	Processor string
	Threads   int
	// Curve is the power model to use while no meter can be read.
	Curve power.Curve
}

// OpenPower opens the energy meters of the machine h. The caller closes them.
func OpenPower(h *hostfs.FS, cfg Config) (*Power, error) {
	model, threads, err := processor(h)
	if err != nil {
		return nil, err
	}
	p := &Power{Processor: fmt.Sprintf("%s, %d threads", model, threads), Threads: threads, Curve: energy.ScaleCurve(cfg.Curve, threads)}
	if len(p.Curve.Points) == 0 {
		p.Curve, _ = energy.LookupCurve(model, threads)
	}
	if p.Meters, err = energymeters.Open(h, cfg.Energy); err == nil {
		p.OpenErrors = p.Meters.OpenErrors()
	}
	return p, err
}

// openEnergy opens the machine's energy meters and configures the accounts to use them, or
// a model. It restores the power models of an earlier run if they fit.
func (m *Machine) openEnergy(cfg Config, accounts *attribute.Accounts, log *slog.Logger) error {
	p, err := OpenPower(m.host, cfg)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Meters.Run(ctx); err != nil && ctx.Err() == nil {
			log.Warn("sampling of power ended", "err", err)
		}
	}()
	m.closers = append(m.closers, func() error {
		stop()
		<-ended
		return p.Meters.Close()
	})
	known := energy.New(energy.Config{Meters: p.Meters.Meters(), Curve: p.Curve, Static: cfg.Static})
	m.power, m.modelsFor = p, p.Processor
	if dir := cfg.Energy.Powercap; dir != "" {
		// They say nothing about the machine's own meters, which have the same names.
		m.modelsFor += ", by the counters in " + dir
	}
	if len(cfg.PowerModels) > 0 {
		m.modelsErr = known.RestoreModels(m.modelsFor, cfg.PowerModels)
	}
	accounts.SetMeters(known)
	for _, err := range p.Meters.OpenErrors() {
		log.Warn("an energy meter cannot be read", "err", err, "hint", fault.Hint(err))
	}
	var names []string
	given, _ := p.Meters.HostShare()
	for _, d := range p.Meters.Meters() {
		if d.From == power.Host && !given.Seen {
			continue // a host may start to send shares at any time
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		log.Info("no energy meter: energy is modelled", "curve", p.Curve.Source, "error_percent", float64(p.Curve.ErrorPPM)/power.PPM*100,
			"idle_error_percent", float64(max(p.Curve.ErrorPPM, p.Curve.IdleErrorPPM))/power.PPM*100)
	} else {
		log.Info("energy meters", "meters", strings.Join(names, " "))
	}
	return nil
}

// Power returns the machine's power meters.
func (m *Machine) Power() *Power { return m.power }

// PowerModels returns the learned power models, for Config.PowerModels of a later run. Call
// it between ticks.
func (m *Machine) PowerModels() []byte { return m.Accounts().Meters().EncodeModels(m.modelsFor) }

// PowerModelsError returns why Config.PowerModels was not restored: it wraps
// fault.ErrInvalid if they are malformed, and fault.ErrConflict if they belong to another
// machine. It is nil if they were restored or none were given.
func (m *Machine) PowerModelsError() error { return m.modelsErr }

// processor returns the model name of the machine's CPUs, "" if unknown, and the number of
// online threads.
func processor(h *hostfs.FS) (model string, threads int, err error) {
	b, err := h.ReadFile("/proc/cpuinfo")
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return "", 0, err
	}
	model, threads = procfmt.CPUInfo(b)
	return model, max(1, threads), nil
}
