// Package calibrate steps the load of this machine from idle to full and measures the power
// at each step with the machine's energy meters.
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
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/x/sleep"
)

// A Config configures a calibration.
type Config struct {
	// Machine configures the meters; Run derives the sampling interval from Step.
	Machine sources.Config
	Step    time.Duration // how long to measure each load
	Steps   int           // load steps above idle
}

// Default returns eleven loads of five seconds each.
func Default() Config {
	return Config{Machine: sources.Config{Reader: sources.Files}, Step: 5 * time.Second, Steps: 10}
}

// Validate returns an error wrapping fault.ErrInvalid if c cannot work.
func (c Config) Validate() error {
	switch {
	case c.Step < time.Second || c.Step > 10*time.Minute:
		return fmt.Errorf("step %v is not between 1s and 10m: %w", c.Step, fault.ErrInvalid)
	case c.Steps < 2 || c.Steps > 100:
		return fmt.Errorf("steps %d is not between 2 and 100: %w", c.Steps, fault.ErrInvalid)
	}
	return nil
}

// A Result holds the measured samples.
type Result struct {
	Processor string // the machine's CPU model and number of threads
	Threads   int
	Domain    power.Domain // of the samples: Package, or Rest for the whole machine
	Meters    []string     // the meters that measured it
	ClassPPM  int64        // the error of those meters
	Samples   []energy.Sample
}

// Run steps the load, and calls step with the mean load of each step, in ppm of all CPUs,
// and the mean power. The load is that of the whole machine: on a busy machine the lowest
// loads are missing, and the error wraps fault.ErrUnavailable if too few remain. Run drops
// samples whose load differs from the others of their step. The error wraps
// fault.ErrUnsupported if no meter measures the CPUs.
func Run(ctx context.Context, cfg Config, step func(energy.Sample), log *slog.Logger) (_ *Result, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	sample := min(time.Second, cfg.Step/5)
	cfg.Machine.Tick, cfg.Machine.Window = sample, cfg.Step
	m, err := sources.Open(cfg.Machine, log)
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

// choose selects the meters: those that cover the whole machine if there are any, else
// those of the packages. It returns how long a new load takes to show in their readings.
func (r *Result) choose(p *sources.Power) (settle time.Duration, err error) {
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
			return 0, fault.WithHint(fmt.Errorf("no meter measures the power of this machine or of its CPU packages: %w", fault.ErrUnsupported),
				"calibrate a machine of the same model that has one, and pass its file to mete-agent --power-curve on this machine")
		}
		return 0, fault.WithHint(fmt.Errorf("no meter can be read: %w", why), fault.Hint(why))
	}
	return settle, nil
}

// span is the minimum range of loads for a curve.
const span = power.PPM / 2

func (r *Result) check() error {
	low, high := int64(power.PPM), int64(0)
	for _, s := range r.Samples {
		low, high = min(low, s.Load), max(high, s.Load)
	}
	if high-low < span {
		return fault.WithHint(fmt.Errorf("loads from %d %% to %d %% are too few for a curve: %w", low*100/power.PPM, high*100/power.PPM, fault.ErrUnavailable),
			"try again while the machine is less busy, or longer with --for")
	}
	return nil
}

// A collector collects samples.
type collector struct {
	machine *sources.Machine
	every   time.Duration
	domain  power.Domain
	at      int64           // of the previous tick, ns of CLOCK_BOOTTIME
	broken  map[string]bool // meters that are not used at present

	readings, now []power.Reading // see waitForStep
}

// collect collects samples for the given time. It leaves out samples during which a meter
// is not used, because those book modelled energy.
func (c *collector) collect(ctx context.Context, length time.Duration) (list []energy.Sample, err error) {
	if _, _, err := c.tick(ctx); err != nil {
		return nil, err
	}
	for range length / c.every {
		if err := sleep.For(ctx, c.every); err != nil {
			return nil, err
		}
		s, ok, err := c.tick(ctx)
		if err != nil {
			return nil, err
		}
		if ok {
			list = append(list, s)
		}
	}
	return list, nil
}

// waitForStep returns just after a counter moved, so that a sample covers whole update
// intervals: with a counter that updates every 20 ms, a sample of a second would otherwise
// be off by 2 %. It waits no longer than one interval for each counter.
func (c *collector) waitForStep(ctx context.Context) error {
	src := c.machine.Power().Meters
	step := time.Duration(0)
	for _, m := range src.Meters() {
		if m.Kind == power.Energy {
			step = max(step, 2*time.Duration(m.Every))
		}
	}
	var err error
	if c.readings, err = src.Read(c.readings[:0]); err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < step; {
		if err := sleep.For(ctx, pollInterval); err != nil {
			return err
		}
		c.now, err = src.Read(c.now[:0])
		if err != nil {
			return err
		}
		for i, r := range c.now {
			if r.Value != c.readings[i].Value {
				return nil
			}
		}
	}
	return nil
}

// pollInterval is the interval between checks whether a counter moved.
const pollInterval = 500 * time.Microsecond

// tick reads the machine and returns its mean load and power since the previous tick.
func (c *collector) tick(ctx context.Context) (s energy.Sample, ok bool, err error) {
	if err := c.waitForStep(ctx); err != nil {
		return s, false, err
	}
	b, err := c.machine.Tick()
	if err != nil {
		return s, false, err
	}
	for _, e := range c.machine.Accounts().Events() {
		c.broken[e.Meter] = e.To == 0
	}
	at := c.machine.Snapshot().At
	elapsed := at - c.at
	c.at = at
	var uJ int64
	for _, res := range usage.Energies {
		if c.domain == power.Rest || res == usage.EnergyOf(c.domain) {
			uJ += b.Whole.Get(res)
		}
	}
	whole := b.Whole.Get(usage.CPU)
	if whole <= 0 || elapsed <= 0 || uJ <= 0 {
		return s, false, nil
	}
	for _, is := range c.broken {
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

// maxLoadDeviation is how much a sample's load may differ from the others of its step, in
// ppm of all CPUs.
const maxLoadDeviation = power.PPM / 100

// steadySamples returns, in order, the samples whose load is near the median, and at least
// the nearest half of them. A burst of other load raises the mean load of a sample along a
// chord of the curve, so that its power is too low where the curve bends.
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

// mean returns the mean of samples.
func mean(list []energy.Sample) (m energy.Sample) {
	for _, s := range list {
		m.Load += s.Load
		m.Power += s.Power
	}
	m.Load /= int64(len(list))
	m.Power /= int64(len(list))
	return m
}

// Fit fits the curve to the samples.
func (r *Result) Fit(day time.Time) *energy.Calibration {
	source := fmt.Sprintf("calibrated %s on %s with %s", day.UTC().Format(time.DateOnly), r.Processor, strings.Join(r.Meters, " + "))
	return energy.Calibrate(r.Processor, r.Threads, r.Domain, r.ClassPPM, source, r.Samples)
}
