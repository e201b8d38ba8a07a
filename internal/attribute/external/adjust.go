package external

import (
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Row is what one workload of a machine used in a minute.
type Row struct {
	Key   int64 // of the ledger; 0 is the row idle, which the machine had not yet
	Kind  workload.Kind
	Usage usage.Usage
}

// totalEnergy is the energy of all domains.
func (r *Row) totalEnergy() (sum int64) {
	for _, res := range usage.Energies {
		if v, ok := r.Usage.Get(res); ok {
			sum = energy.AddSaturated(sum, v)
		}
	}
	return sum
}

// idleEnergy is how much of that the machine draws anyway.
func (r *Row) idleEnergy(all int64) int64 {
	if r.Kind == workload.Idle {
		return all
	}
	v, _ := r.Usage.Get(usage.EnergyIdle)
	return min(v, all)
}

// An Adjustment is what became of a machine's minute.
type Adjustment struct {
	Minute int64
	Node   string // id
	Meter  int64  // energy that its meters showed, uJ
	Inside int64  // that its rows had before, uJ
	// Measured is how much of Inside was measured, in uJ. Where it is more than
	// Meter, nothing was taken away: one of the two is wrong.
	Measured int64
	// Changed are by how much each domain's energy changed.
	Changed [power.DomainLimit]int64
}

// Adjust makes the energy of a machine's rows what its meters showed: e uJ that may
// be off by off. covered is for how much of the minute there are rows.
//
// What was measured inside stays. What a model said is replaced: it was there as no
// meter was. What the meters show above what was measured is energy of the rest, and
// is divided as that inside was: the part of it that was idle goes to who had idle
// energy, and the other by the CPU time that each used. Of time that no row covers
// all is the row idle's. So the rows sum to e exactly, or to what was measured where
// that is more.
//
// The error of what is added is the meter's, and that of what was measured, as it is
// the difference of both; where a model said how much is idle, half of what that
// leaves open too. It is put into the rows, of which idle may be new.
func Adjust(rows []Row, covered time.Duration, e, off int64) ([]Row, Adjustment) {
	a := adjuster{rows: rows, result: Adjustment{Meter: e}}
	a.sumBefore()
	a.idleRow() // there is one now
	a.removeModelled()
	above := max(0, e-a.result.Measured)
	empty := min(above, e-energy.MulDiv(e, int64(min(max(0, covered), time.Minute)), minute))
	a.distribute(above-empty, empty, off)
	for i := range a.rows {
		for d := power.Package; d < power.DomainLimit; d++ {
			v, _ := a.rows[i].Usage.Get(usage.EnergyOf(d))
			a.result.Changed[d] += v
		}
	}
	return a.rows, a.result
}

type adjuster struct {
	rows          []Row
	result        Adjustment
	modelled      [power.DomainLimit]bool
	anyModelled   bool    // one of them is
	energy        []int64 // of each row before
	idleEnergy    []int64 // how much of it is idle
	errors        int64   // of all rows, before
	measuredError int64   // errors of what was measured
}

// sumBefore sums what is there.
func (a *adjuster) sumBefore() {
	for i := range a.rows {
		r := &a.rows[i]
		for d := power.Package; d < power.DomainLimit; d++ {
			v, ok := r.Usage.Get(usage.EnergyOf(d))
			if ok && r.Usage.Quality.Get(usage.EnergyOf(d)) == usage.Modelled {
				a.modelled[d], a.anyModelled = true, true
			}
			a.result.Changed[d] -= v
		}
		all := r.totalEnergy()
		off, _ := r.Usage.Get(usage.EnergyError)
		a.energy, a.idleEnergy = append(a.energy, all), append(a.idleEnergy, r.idleEnergy(all))
		a.result.Inside, a.errors = energy.AddSaturated(a.result.Inside, all), energy.AddSaturated(a.errors, off)
	}
}

// idleRow is the place of the row idle, which is made where there is none.
func (a *adjuster) idleRow() int {
	for i := range a.rows {
		if a.rows[i].Kind == workload.Idle {
			return i
		}
	}
	a.rows = append(a.rows, Row{Kind: workload.Idle})
	a.energy, a.idleEnergy = append(a.energy, 0), append(a.idleEnergy, 0)
	return len(a.rows) - 1
}

// removeModelled takes what was modelled out of the rows, with its part of their errors.
func (a *adjuster) removeModelled() {
	for i := range a.rows {
		u := &a.rows[i].Usage
		for d := power.Package; d < power.DomainLimit; d++ {
			if a.modelled[d] {
				clearResource(u, usage.EnergyOf(d))
			}
		}
		left := a.rows[i].totalEnergy()
		a.result.Measured = energy.AddSaturated(a.result.Measured, left)
		if !a.anyModelled {
			a.measuredError = a.errors
			continue
		}
		for _, r := range []usage.Resource{usage.EnergyError, usage.EnergyIdle} {
			if v, ok := u.Get(r); ok {
				clearResource(u, r)
				u.Put(r, energy.MulDiv(v, left, a.energy[i]), usage.Apportioned)
			}
		}
		off, _ := u.Get(usage.EnergyError)
		a.measuredError = energy.AddSaturated(a.measuredError, off)
	}
}

// clearResource makes a resource absent.
func clearResource(u *usage.Usage, r usage.Resource) {
	u.Present &^= usage.SetOf(r)
	u.Amount[r] = 0
	u.Quality.Set(r, usage.Absent)
}

// distribute gives out energy above what was measured, and of time without rows, which may
// together be off by off and by what was measured inside.
func (a *adjuster) distribute(above, empty, off int64) {
	n := len(a.rows)
	used, active, resting := make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range a.rows {
		if a.rows[i].Kind != workload.Idle {
			used[i], _ = a.rows[i].Usage.Get(usage.CPU)
		}
	}
	still := above
	if a.result.Inside > 0 {
		still = energy.MulDiv(above, sumOf(a.idleEnergy), a.result.Inside)
	}
	spread := int64(0) // how far the border between the two may be off
	if a.anyModelled {
		p := min(a.errors, a.result.Inside)
		spread = energy.MulDiv(energy.MulDiv(still, above-still, max(1, above)), p, max(1, a.result.Inside))
	}
	place := a.idleRow()
	if !energy.Divide(above-still, used, active) {
		resting[place] += above - still
	}
	parts := make([]int64, n)
	if energy.Divide(still, a.idleEnergy, parts) {
		for i, p := range parts {
			resting[i] += p
		}
	} else {
		resting[place] += still
	}
	resting[place] += empty
	offs := make([]int64, n)
	for i := range offs {
		parts[i] = active[i] + resting[i]
	}
	energy.Divide(energy.AddSaturated(off, a.measuredError), parts, offs)
	for _, of := range [][]int64{active, resting} {
		if energy.Divide(spread, of, parts) {
			for i, p := range parts {
				offs[i] = energy.AddSaturated(offs[i], p)
			}
		}
	}
	a.writeRows(used, active, resting, offs)
}

// writeRows writes into the rows what each gets.
func (a *adjuster) writeRows(used, active, resting, offs []int64) {
	for i := range a.rows {
		r := &a.rows[i]
		if r.Kind != workload.Idle && used[i] == 0 && resting[i] == 0 && !r.Usage.Present.Has(usage.EnergyRest) && !r.Usage.Present.Has(usage.CPU) {
			continue // of what it used nothing is known
		}
		r.Usage.Put(usage.EnergyRest, active[i]+resting[i], usage.Apportioned)
		r.Usage.Put(usage.EnergyError, offs[i], usage.Apportioned)
		switch {
		case r.Kind == workload.Idle:
			clearResource(&r.Usage, usage.EnergyIdle)
			r.Usage.Put(usage.EnergyIdle, r.totalEnergy(), usage.Apportioned)
		case r.Usage.Present.Has(usage.EnergyIdle):
			r.Usage.Put(usage.EnergyIdle, resting[i], usage.Apportioned)
		}
	}
}
