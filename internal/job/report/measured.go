package report

import (
	"time"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// Measurement is what was measured of a job while it ran.
type Measurement struct {
	// Started and Ended are wall time, for display.
	Started, Ended time.Time
	Wall           int64 // ns of CLOCK_BOOTTIME, suspend included
	LivesOn        []Process
	Notes          []string
}

// A Metered is what the meter of a job booked to it.
type Metered struct {
	Use  usage.Usage
	Span int64 // ns that Use is of, from just before the start of the job
	// AnonPeak and FilePeak are the highest samples, in bytes.
	AnonPeak, FilePeak int64
	// IdleEnergy is the job's part of the machine's idle energy in uJ, by CPU time, and its error.
	IdleEnergy, IdleEnergyError int64
	MachineCPU                  int64 // ns of CPU time that the machine had
	CPUs                        int   // online; 0 if unknown
}

// Fill sets the report's times and what it says of processes from m.
func (r *Report) Fill(m *Measurement) {
	r.Started, r.Ended, r.LivesOn = m.Started, m.Ended, m.LivesOn
	r.Notes = append(r.Notes, m.Notes...)
	r.Put(Wall, m.Wall, usage.Measured)
}

// FillUse sets the report's figures from m.
func (r *Report) FillUse(m *Metered) {
	for _, c := range []struct {
		key Key
		res usage.Resource
	}{
		{CPU, usage.CPU}, {CPUUser, usage.CPUUser}, {CPUSystem, usage.CPUSystem}, {CPUThrottled, usage.CPUThrottled},
		{MemoryPeak, usage.MemoryPeak}, {DiskRead, usage.DiskRead}, {DiskWritten, usage.DiskWritten},
		{NetworkRx, usage.NetworkRx}, {NetworkTx, usage.NetworkTx}, {Processes, usage.Processes},
		{PIDsPeak, usage.PIDsPeak}, {OOMKills, usage.OOMKills},
	} {
		if v, ok := m.Use.Get(c.res); ok {
			r.Put(c.key, v, m.Use.Quality.Get(c.res))
		}
	}
	for _, c := range []struct {
		key Key
		res usage.Resource
	}{{MemoryAverage, usage.Memory}, {AnonAverage, usage.MemoryAnon}, {FileAverage, usage.MemoryFile}} {
		if v, ok := m.Use.Get(c.res); ok && m.Span > 0 {
			r.Put(c.key, int64(float64(v)/time.Duration(m.Span).Seconds()), m.Use.Quality.Get(c.res))
		}
	}
	if m.Use.Present.Has(usage.MemoryAnon) {
		r.Put(AnonPeak, m.AnonPeak, m.Use.Quality.Get(usage.MemoryAnon))
	}
	if m.Use.Present.Has(usage.MemoryFile) {
		r.Put(FilePeak, m.FilePeak, m.Use.Quality.Get(usage.MemoryFile))
	}
	if r.CPUs = m.CPUs; m.CPUs > 0 {
		r.Put(MachineCPU, m.MachineCPU, usage.Measured)
	}
	r.fillEnergy(m)
}

// fillEnergy sets the energy of all domains together.
func (r *Report) fillEnergy(m *Metered) {
	q, sum := usage.Absent, int64(0)
	for d := power.Package; d < power.DomainLimit; d++ {
		if v, ok := m.Use.Get(usage.EnergyOf(d)); ok {
			sum, q = sum+v, max(q, m.Use.Quality.Get(usage.EnergyOf(d)))
		}
	}
	if q == usage.Absent {
		return
	}
	r.Put(Energy, sum, q)
	r.Put(EnergyError, m.Use.Amount[usage.EnergyError], q)
	r.Put(EnergyIdle, m.IdleEnergy, q)
	r.Put(EnergyIdleError, m.IdleEnergyError, q)
}
