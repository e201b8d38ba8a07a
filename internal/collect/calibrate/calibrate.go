// Package calibrate steps the load of this machine from nothing to all of it,
// and measures with its energy meters what power each load takes.
package calibrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/machine"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/sleep"
)

// A Config says how to calibrate.
type Config struct {
	// Machine says which meters to open; how often to read them follows from Step.
	Machine machine.Config
	Step    time.Duration // for which each load is measured
	Steps   int           // from nothing to all, besides nothing
}

// Default takes eleven loads, for five seconds each.
func Default() Config {
	return Config{Machine: machine.Config{Reader: machine.Files}, Step: 5 * time.Second, Steps: 10}
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	switch {
	case c.Step < time.Second || c.Step > 10*time.Minute:
		return fmt.Errorf("%v for each load is not between 1s and 10m: %w", c.Step, fault.ErrInvalid)
	case c.Steps < 2 || c.Steps > 100:
		return fmt.Errorf("%d steps are not 2 to 100: %w", c.Steps, fault.ErrInvalid)
	}
	return nil
}

// A Result is what was measured.
type Result struct {
	Processor string // the machine's CPUs, and how many threads there are
	Threads   int
	Domain    power.Domain // of the samples: Package, or Rest for the whole machine
	Meters    []string     // that measured it
	ClassPPM  int64        // by how much those may be off
	Samples   []energy.Sample
}

// Run steps the load, and calls step with what was measured at each: the mean
// load, in ppm of all CPUs, and the mean power. A load is what the machine as a
// whole used, whoever used it: on a busy machine the lowest loads are missing,
// which is an error wrapping fault.ErrUnavailable where too few are left. Samples
// whose load is not like the others' of its step are left out. It wraps
// fault.ErrUnsupported where no meter shows what the CPUs take.
func Run(ctx context.Context, cfg Config, step func(energy.Sample), log *slog.Logger) (_ *Result, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	sample := min(time.Second, cfg.Step/5)
	cfg.Machine.Tick, cfg.Machine.Window = sample, cfg.Step
	m, err := machine.Open(cfg.Machine, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	p := m.Power()
	r := &Result{Processor: p.Processor, Threads: p.Threads}
	settle, err := r.choose(p)
	if err != nil {
		return nil, err
	}
	l := newCPULoad(p.Threads)
	defer l.close()
	g := &collector{machine: m, every: sample, domain: r.Domain, broken: map[string]bool{}}
	for i := range cfg.Steps + 1 {
		l.setShare(float64(i) / float64(cfg.Steps))
		if err := sleep.For(ctx, settle); err != nil {
			return nil, err
		}
		got, err := g.collect(ctx, cfg.Step)
		if err != nil {
			return nil, err
		}
		got = steadySamples(got)
		r.Samples = append(r.Samples, got...)
		if len(got) > 0 {
			step(mean(got))
		}
	}
	return r, r.check()
}

// choose takes the meters to go by: those that see the whole machine, where there
// are such, else those of the packages. It returns for how long a new load has to
// last before they show it.
func (r *Result) choose(p *machine.Power) (settle time.Duration, err error) {
	settle = time.Second
	meters := p.Meters.Meters()
	r.Domain = power.Package
	for _, m := range meters {
		if m.Level > power.Part {
			r.Domain = power.Rest
		}
	}
	for _, m := range meters {
		if r.Domain == power.Package && m.Domain != power.Package {
			continue
		}
		r.Meters = append(r.Meters, m.Name)
		r.ClassPPM = max(r.ClassPPM, m.ErrorPPM)
		settle = max(settle, 2*time.Duration(m.Every))
	}
	if len(r.Meters) == 0 {
		why := errors.Join(p.Meters.OpenErrors()...)
		if why == nil {
			return 0, fault.WithHint(fmt.Errorf("no meter shows the power of this machine or of its CPU packages: %w", fault.ErrUnsupported),
				"calibrate a machine of the same make that has one, and give its file to mete-agent -power-curve here")
		}
		return 0, fault.WithHint(fmt.Errorf("no meter can be read: %w", why), fault.Hint(why))
	}
	return settle, nil
}

// span is the part of the loads that has to be seen, at least, for a curve.
const span = power.PPM / 2

func (r *Result) check() error {
	low, high := int64(power.PPM), int64(0)
	for _, s := range r.Samples {
		low, high = min(low, s.Load), max(high, s.Load)
	}
	if high-low < span {
		return fault.WithHint(fmt.Errorf("the load went from %d %% to %d %%, too little for a curve: %w", low*100/power.PPM, high*100/power.PPM, fault.ErrUnavailable),
			"try again when the machine has little else to do, or for longer with --for")
	}
	return nil
}

// A gatherer takes samples.
type collector struct {
	machine *machine.Machine
	every   time.Duration
	domain  power.Domain
	at      int64           // of the tick before, ns of CLOCK_BOOTTIME
	broken  map[string]bool // meters that are not used at present

	readings, now []power.Reading // see waitForStep
}

// collect takes samples for some time. Those in which a meter is not used, and
// what is booked is not measured, are left out.
func (g *collector) collect(ctx context.Context, length time.Duration) (list []energy.Sample, err error) {
	if _, _, err := g.tick(ctx); err != nil {
		return nil, err
	}
	for range length / g.every {
		if err := sleep.For(ctx, g.every); err != nil {
			return nil, err
		}
		s, ok, err := g.tick(ctx)
		if err != nil {
			return nil, err
		}
		if ok {
			list = append(list, s)
		}
	}
	return list, nil
}

// waitForStep returns just after a counter moved, so that a sample has whole steps of it:
// one that moves every 20 ms would be off by 2 % of a second else. One that does
// not move is waited for no longer than its step.
func (g *collector) waitForStep(ctx context.Context) error {
	src := g.machine.Power().Meters
	step := time.Duration(0)
	for _, m := range src.Meters() {
		if m.Kind == power.Energy {
			step = max(step, 2*time.Duration(m.Every))
		}
	}
	var err error
	if g.readings, err = src.Read(g.readings[:0]); err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < step; {
		if err := sleep.For(ctx, pollInterval); err != nil {
			return err
		}
		g.now, err = src.Read(g.now[:0])
		if err != nil {
			return err
		}
		for i, r := range g.now {
			if r.Value != g.readings[i].Value {
				return nil
			}
		}
	}
	return nil
}

// pollInterval is the time between two looks at whether a counter moved.
const pollInterval = 500 * time.Microsecond

// tick reads the machine, and returns its mean load and power since the last time.
func (g *collector) tick(ctx context.Context) (s energy.Sample, ok bool, err error) {
	if err := g.waitForStep(ctx); err != nil {
		return s, false, err
	}
	b, err := g.machine.Tick()
	if err != nil {
		return s, false, err
	}
	for _, e := range g.machine.Accounts().Events() {
		g.broken[e.Meter] = e.To == 0
	}
	at := g.machine.Snapshot().At
	elapsed := at - g.at
	g.at = at
	var uJ int64
	for _, res := range usage.Energies {
		if g.domain == power.Rest || res == usage.EnergyOf(g.domain) {
			uJ += b.Whole.Get(res)
		}
	}
	whole := b.Whole.Get(usage.CPU)
	if whole <= 0 || elapsed <= 0 || uJ <= 0 {
		return s, false, nil
	}
	for _, is := range g.broken {
		if is {
			return s, false, nil
		}
	}
	used := min(whole, b.Workloads.Get(usage.CPU)+b.System.Get(usage.CPU))
	return energy.Sample{
		Load:  int64(float64(used) / float64(whole) * power.PPM),
		Power: int64(float64(uJ) / float64(elapsed) * 1e9),
	}, true, nil
}

// maxLoadDeviation is by how much a sample's load may stray from the others of its step, in
// ppm of all CPUs.
const maxLoadDeviation = power.PPM / 100

// steadySamples returns the samples whose load is near the median, and half of them at
// least, the nearest. What else runs in bursts raises the mean load of a sample,
// but along a chord of the curve: where that bends, the power is too low for the
// load. They stay in their order.
func steadySamples(list []energy.Sample) []energy.Sample {
	if len(list) < 3 {
		return list
	}
	loads := make([]int64, len(list))
	for i, s := range list {
		loads[i] = s.Load
	}
	slices.Sort(loads)
	median := loads[len(loads)/2]
	for i, l := range loads {
		loads[i] = max(l-median, median-l)
	}
	slices.Sort(loads)
	most := max(maxLoadDeviation, loads[(len(loads)-1)/2])
	return slices.DeleteFunc(list, func(s energy.Sample) bool { return max(s.Load-median, median-s.Load) > most })
}

// mean is the mean of samples.
func mean(list []energy.Sample) (m energy.Sample) {
	for _, s := range list {
		m.Load += s.Load
		m.Power += s.Power
	}
	m.Load /= int64(len(list))
	m.Power /= int64(len(list))
	return m
}

// Fit makes the curve of what was measured.
func (r *Result) Fit(day time.Time) *energy.Calibration {
	source := fmt.Sprintf("calibrated %s on %s with %s", day.UTC().Format(time.DateOnly), r.Processor, strings.Join(r.Meters, " + "))
	return energy.Calibrate(r.Processor, r.Threads, r.Domain, r.ClassPPM, source, r.Samples)
}
