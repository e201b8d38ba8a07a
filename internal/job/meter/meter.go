// Package meter measures a job of mete run with the sampler and the accounts of an agent, of a machine
// on which it knows the job's group only. So mete run and an agent have the same figures of a job. The
// use of the rest of the machine is one figure, from which the job's share of the energy follows.
package meter

import (
	"errors"
	"log/slog"
	"time"

	"mete.dev/mete/internal/attribute"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/totals"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A Job is what a Meter reads: a [launch.Group] or a [launch.Tree].
type Job interface {
	// Read adds the job's use so far to r. Without CPU time nothing could be read.
	Read(r *usage.Reading)
	// ReadLevels adds what the job holds now.
	ReadLevels(r *usage.Reading)
}

// A Meter measures one job. It is not safe for concurrent use.
type Meter struct {
	sampler *sampler.Sampler
	node    *totals.Source
	job     *source
	known   *energy.Meters // nil without energy

	booked  report.Metered // in closed windows
	idle    energy.IdleShare
	started int64 // ns of CLOCK_BOOTTIME
	closed  int64 // end of the latest window, or started
	events  []energy.Event

	statError int64 // uJ that were added to the error of the job's energy
}

// Open returns the meter of a job that has not started. more, which may be nil, adds to a reading
// what the job's files do not show. The caller closes the Meter.
func Open(h *hostfs.FS, job Job, more func(*usage.Reading)) (*Meter, error) {
	boot, err := h.BootID()
	if err != nil {
		return nil, err
	}
	totals, err := totals.OpenWithoutDisks(h)
	if err != nil {
		return nil, err
	}
	m := &Meter{node: totals, job: newSource(h, job, more)}
	accounts := attribute.New("")
	m.sampler = sampler.NewSampler(sampler.Default(), accounts, boot, sources.Clock{FS: h},
		[]sampler.Source{m.job, totals}, slog.New(slog.DiscardHandler))
	return m, nil
}

// Close closes what Open opened.
func (m *Meter) Close() error { return errors.Join(m.node.Close(), m.job.close()) }

// SetPower sets the machine's meters of energy, and what is known of them. Without it energy is
// absent. Call it before Begin.
func (m *Meter) SetPower(meters sampler.Meters, known *energy.Meters) {
	m.known = known
	m.sampler.SetMeters(meters)
	m.sampler.Accounts().SetMeters(known)
}

// Begin starts counting, just before the job starts.
func (m *Meter) Begin() error {
	_, err := m.sampler.Sample()
	m.started = m.sampler.Snapshot().At
	m.closed = m.started
	m.job.running = true
	return err
}

// Sample books what the job used since the previous sample, or samples only what it holds if the job
// is young. It reports whether the job could be read; if not, the next sample makes up for it.
func (m *Meter) Sample(at launch.Moment) bool {
	if at == launch.Early {
		return m.job.sampleLevels()
	}
	m.job.ended = at == launch.Last
	b, err := m.sampler.Sample()
	if err != nil {
		return false
	}
	m.addIdle(&b)
	m.events = append(m.events, m.sampler.Accounts().Events()...)
	return m.job.seen
}

// addIdle adds the job's part of the tick's idle energy.
func (m *Meter) addIdle(b *usage.Balance) {
	if m.known == nil {
		return
	}
	used := b.Workloads.Get(usage.CPU)
	all := used + b.System.Get(usage.CPU)
	for d := power.Package; d < power.DomainLimit; d++ {
		if a := &m.known.Latest().Domain[d]; a.Quality != usage.Absent {
			m.idle.Add(b.Idle.Get(usage.EnergyOf(d)), a.IdleError, used, all)
		}
	}
}

// Events returns what happened to the meters of energy while the job ran.
func (m *Meter) Events() []energy.Event { return m.events }

// CloseWindow returns what the job used since the previous window, as a window of a scope without a
// whole: its only row is that of the job, without an identity.
func (m *Meter) CloseWindow() usage.Window {
	w := *m.sampler.CloseWindow()
	var row usage.Row
	for i := range w.Rows {
		if w.Rows[i].Workload.Kind == jobKind {
			row = w.Rows[i]
		}
	}
	row.Workload, row.ShortID = nil, 0
	m.job.splitCPU(&row)
	if m.job.partial && row.Usage.Present.Has(usage.EnergyError) {
		// The machine's CPU time is that of clock ticks, and so is the job's part of it.
		var off int64
		for _, r := range usage.Energies {
			off += energy.MulDiv(row.Usage.Amount[r], statError, power.PPM)
		}
		m.statError += off
		row.Usage.Amount[usage.EnergyError] += off
		row.Total[usage.EnergyError] += m.statError
	}
	m.booked.Use.Add(&row.Usage)
	m.booked.MachineCPU += w.Balance.Whole.Get(usage.CPU)
	m.booked.CPUs = w.CPUs
	m.closed = w.End
	w.Rows, w.Balance = []usage.Row{row}, usage.Balance{}
	for i, r := range usage.Wholes {
		if v, ok := row.Usage.Get(r); ok {
			w.Balance.Workloads[i], w.Balance.Skew[i] = v, v
		}
	}
	w.StartReason, w.CPUs, w.Total, w.Gaps = usage.StartContinued, 0, usage.Usage{}, nil
	return w
}

// Metered returns what the job used in the windows that were closed.
func (m *Meter) Metered() report.Metered {
	b := m.booked
	b.Span = m.closed - m.started
	b.AnonPeak, b.FilePeak = m.job.held.peak(usage.MemoryAnon), m.job.held.peak(usage.MemoryFile)
	b.IdleEnergy, b.IdleEnergyError = m.idle.Energy, m.idle.Error
	if m.job.partial {
		b.IdleEnergyError += energy.MulDiv(b.IdleEnergy, statError, power.PPM)
	}
	return b
}

// statError is the error of the CPU time of /proc/stat in ppm. The kernel samples it at clock ticks: up
// to 3 % too low was observed.
const statError = 30_000

// firstWindow is the length of a job's first window: so little is lost of a short job whose mete run is
// killed. A later one closes when the job's age has doubled, up to the length of an agent's windows.
const firstWindow = time.Second

// IsDue reports whether a window should be closed now; longest is the maximum length.
func (m *Meter) IsDue(longest time.Duration) bool {
	length := time.Duration(m.sampler.Snapshot().At - m.closed)
	return length >= min(longest, max(firstWindow, time.Duration(m.closed-m.started)))
}
