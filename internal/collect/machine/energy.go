package machine

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

// A Power is what shows a machine's power, and what is known of it besides.
type Power struct {
	Meters *energymeters.Source
	// OpenErrors says which meters could not be opened, and why.
	OpenErrors []error
	// Processor names the machine's CPUs and how many threads there are: what is
	// learned of its power holds for that.
	Processor string
	Threads   int
	// Curve is what to go by while no meter shows anything.
	Curve power.Curve
}

// OpenPower opens the energy meters of the machine that h is. The caller closes
// them.
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

// openEnergy opens the meters of the machine's energy, and gives the accounts what
// they need to go by them, or without them. What an earlier run learned of the
// machine's power is taken over where it fits.
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
			log.Warn("power is not sampled any more", "err", err)
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
		// Of the machine's own meters, which have the same names, they say nothing.
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
			continue // a host may begin to give something at any time
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

// Power returns what shows the machine's power.
func (m *Machine) Power() *Power { return m.power }

// PowerModels returns what was learned of the machine's power, for Config.PowerModels of a
// later run. It is called between ticks.
func (m *Machine) PowerModels() []byte { return m.Accounts().Meters().EncodeModels(m.modelsFor) }

// PowerModelsError says why Config.PowerModels was not taken over: it wraps
// fault.ErrInvalid where that is broken, and fault.ErrConflict where it is of
// another machine. It is nil where it was, or where there is none.
func (m *Machine) PowerModelsError() error { return m.modelsErr }

// processor returns what the machine's CPUs are called, "" where nothing says
// so, and how many threads are online.
func processor(h *hostfs.FS) (model string, threads int, err error) {
	b, err := h.ReadFile("/proc/cpuinfo")
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return "", 0, err
	}
	model, threads = procfmt.CPUInfo(b)
	return model, max(1, threads), nil
}
