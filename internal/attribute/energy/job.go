package energy

import (
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// A JobUse is what one job used of something that the whole machine used All of.
// All may be off by Off.
type JobUse struct {
	Job, All, AllError int64
}

// A Job adds up the energy of one job, where nothing more is known of the others
// than what all of the machine used. Errors of ticks add up, as what is wrong with a
// meter or a curve is wrong in all of them. Its zero value is ready.
type Job struct {
	Quality     usage.Quality // Absent until there is energy
	Active      int64         // uJ that its activity took
	ActiveError int64
	Idle        int64 // uJ of its share of the idle energy, by the CPU time that it used
	IdleError   int64
	weights     [2]int64
	parts, offs [2]int64
}

// Add adds a tick, in which the job used so much CPU time and held so much
// memory. Packages and what only the whole machine shows go by CPU time, memory
// by bytes held. What accelerators use beyond idling is nobody's here, as it is
// not known whose work they do.
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
		if all := max(cpu.All, cpu.Job); all > 0 {
			j.IdleError = AddSaturated(j.IdleError, rootSumSquare(MulDiv(a.IdleError, cpu.Job, all), MulDiv(j.parts[0], cpu.AllError, all)))
		}
	}
}

// divideActive gives the job its part of the active energy, and returns what nobody gets.
func (j *Job) divideActive(a *DomainEnergy, by Rule, u JobUse) (left int64) {
	all := max(u.All, u.Job)
	j.weights = [2]int64{u.Job, all - u.Job}
	left = a.Split(by, j.weights[:], j.parts[:], j.offs[:])
	off := j.offs[0]
	if all > u.Job { // else it is the only one, however much all of it is
		off = rootSumSquare(off, MulDiv(j.parts[0], u.AllError, all))
	}
	j.Active, j.ActiveError = AddSaturated(j.Active, j.parts[0]), AddSaturated(j.ActiveError, off)
	return left
}
