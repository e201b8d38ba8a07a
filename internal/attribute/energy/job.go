package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A JobUse is what one job used of the machine's total use All, which has an error of AllError.
type JobUse struct {
	Job, All, AllError int64
}

// A Job sums the energy of one job where only the machine's total use is known. Errors of ticks add
// up, as an error of a meter or curve is the same in all ticks. The zero value is ready to use.
type Job struct {
	Quality     usage.Quality // Absent until there is energy
	Active      int64         // uJ of its activity
	ActiveError int64
	Idle        int64 // uJ of idle energy in proportion to CPU time used
	IdleError   int64
	weights     [2]int64
	parts, offs [2]int64
}

// Add adds a tick with the job's use of CPU time and memory. Energy of packages and of the rest is
// divided by CPU time, of memory by bytes held. The job gets no active energy of accelerators, as
// it is unknown for whom they work.
func (j *Job) Add(t *Tick, cpu, memory JobUse) {
	for d := power.Package; d < power.DomainLimit; d++ {
		a := &t.Domain[d]
		if a.Quality == usage.Absent {
			continue
		}
		j.Quality = max(j.Quality, a.Quality, usage.Apportioned)
		idle := a.Idle
		switch d {
		case power.DRAM:
			idle += j.divideActive(a, ByResident, memory)
		case power.GPU:
		default:
			idle += j.divideActive(a, ByCPU, cpu)
		}
		DivideIdle(power.Used, idle, []Claim{{Used: cpu.Job}, {Used: max(0, cpu.All-cpu.Job)}}, j.parts[:])
		j.Idle = AddSaturated(j.Idle, j.parts[0])
		all := max(cpu.All, cpu.Job)
		j.IdleError = AddSaturated(j.IdleError, rootSumSquare(MulDiv(a.IdleError, cpu.Job, all), MulDiv(j.parts[0], cpu.AllError, all)))
	}
}

// divideActive adds the job's part of the active energy, and returns what is left.
func (j *Job) divideActive(a *DomainEnergy, by Rule, u JobUse) (left int64) {
	all := max(u.All, u.Job)
	j.weights = [2]int64{u.Job, all - u.Job}
	left = a.Split(by, j.weights[:], j.parts[:], j.offs[:])
	off := j.offs[0]
	if all > u.Job { // otherwise the job gets everything, whatever the total
		off = rootSumSquare(off, MulDiv(j.parts[0], u.AllError, all))
	}
	j.Active, j.ActiveError = AddSaturated(j.Active, j.parts[0]), AddSaturated(j.ActiveError, off)
	return left
}
