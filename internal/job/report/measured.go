package report

import (
	"time"

	"mete.dev/mete/internal/model/usage"
)

// Measurement is what was measured of a job while it ran.
type Measurement struct {
	// Started and Ended are wall time, for display.
	Started, Ended time.Time
	Wall           int64 // ns of CLOCK_BOOTTIME, suspend included
	Awake          int64 // ns of CLOCK_MONOTONIC
	Stolen         int64 // CPU ns of steal time
	CPUs           int   // online; 0 if unknown

	Final usage.Reading // the last reading with the job's values

	Memory, Anon, File, PIDs Gauge
	// Apportioned are the levels with an apportioned sample, which the last reading may lack.
	Apportioned usage.Set

	LivesOn []Process
	Notes   []string
}

// Fill sets the report's figures from m.
func (r *Report) Fill(m *Measurement) {
	r.Started, r.Ended, r.CPUs, r.LivesOn = m.Started, m.Ended, m.CPUs, m.LivesOn
	r.Notes = append(r.Notes, m.Notes...)
	r.Put(Wall, m.Wall, usage.Measured)
	for _, c := range []struct {
		key Key
		res usage.Resource
	}{
		{CPU, usage.CPU}, {CPUUser, usage.CPUUser}, {CPUSystem, usage.CPUSystem}, {CPUThrottled, usage.CPUThrottled},
		{MemoryPeak, usage.MemoryPeak}, {DiskRead, usage.DiskRead}, {DiskWritten, usage.DiskWritten},
		{NetworkRx, usage.NetworkRx}, {NetworkTx, usage.NetworkTx}, {Processes, usage.Processes},
		{PIDsPeak, usage.PIDsPeak}, {OOMKills, usage.OOMKills},
	} {
		if m.Final.Has.Has(c.res) {
			r.Put(c.key, m.Final.Value[c.res], quality(m.Final.Apportioned, c.res))
		}
	}
	r.putGauge(&m.Memory, MemoryAverage, MemoryPeak, quality(m.Apportioned, usage.Memory))
	r.putGauge(&m.Anon, AnonAverage, AnonPeak, quality(m.Apportioned, usage.MemoryAnon))
	r.putGauge(&m.File, FileAverage, FilePeak, quality(m.Apportioned, usage.MemoryFile))
	if _, ok := r.Get(PIDsPeak); !ok {
		if v, ok := m.PIDs.Peak(); ok && v > 0 {
			r.Put(PIDsPeak, v, quality(m.Apportioned, usage.PIDs))
		}
	}
	if m.CPUs > 0 {
		r.Put(MachineCPU, max(0, int64(m.CPUs)*m.Awake-m.Stolen), usage.Measured)
	}
}

func quality(apportioned usage.Set, res usage.Resource) usage.Quality {
	if apportioned.Has(res) {
		return usage.Apportioned
	}
	return usage.Measured
}

// putGauge sets average and peak from samples; an exact peak of the kernel takes precedence.
func (r *Report) putGauge(l *Gauge, average, peak Key, q usage.Quality) {
	if v, ok := l.Average(); ok {
		r.Put(average, v, q)
	}
	v, ok := l.Peak()
	if _, kept := r.Get(peak); ok && !kept {
		r.Put(peak, v, q)
	}
}
