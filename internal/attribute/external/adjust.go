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

// An Adjustment describes how a machine's meters changed the energy of its rows in one minute.
type Adjustment struct {
	Minute int64
	Node   string // id
	Meter  int64  // energy by the machine's meters, uJ
	Inside int64  // energy of the machine's rows before, uJ
	// Measured is the measured part of Inside, in uJ. If it is more than Meter, Adjust removes no
	// measured energy: one of the two is wrong.
	Measured int64
	// Changed is the change of each domain's energy, in uJ.
	Changed [power.DomainLimit]int64
}

// Adjust makes the energy of a machine's rows equal to that of its meters: e uJ, with an error of
// up to off uJ. covered is the part of the minute for which there are rows.
//
// Measured energy of the rows stays. Modelled energy is removed: it stood in for a missing meter.
// The meters' energy above the measured energy goes to the domain rest. It has the same idle
// fraction as the rows' energy before: rows that had idle energy get the idle part in proportion to
// it, and the active part is divided by the rows' CPU time. The energy of time that no row covers
// goes to the row idle. So the rows sum to e exactly, or to the measured energy if that is more.
//
// The error of the added energy is the sum of the errors of the meters and of the measured energy,
// as the added energy is their difference. If a model determined the idle fraction, the uncertainty
// of that fraction is added. The errors are put into the rows. The row idle is created if it is
// missing.
func Adjust(rows []Row, covered time.Duration, e, off int64) ([]Row, Adjustment) {
	a := adjuster{rows: rows, result: Adjustment{Meter: e}}
	a.findIdleRow()
	a.sumBefore()
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
	idle          int // index of the row idle
	result        Adjustment
	modelled      [power.DomainLimit]bool
	anyModelled   bool    // one of them is
	energy        []int64 // of each row before
	idleEnergy    []int64 // how much of it is idle
	errors        int64   // of all rows, before
	measuredError int64   // errors of the measured energy
}

// findIdleRow finds the row idle. It adds the row if it is missing.
func (a *adjuster) findIdleRow() {
	for a.idle < len(a.rows) && a.rows[a.idle].Kind != workload.Idle {
		a.idle++
	}
	if a.idle == len(a.rows) {
		a.rows = append(a.rows, Row{Kind: workload.Idle})
	}
}

// sumBefore sums the energy and the errors that the rows have before the adjustment.
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
		spread = energy.MulDiv(energy.MulDiv(still, above-still, above), p, a.result.Inside)
	}
	if !energy.Divide(above-still, used, active) {
		resting[a.idle] += above - still
	}
	parts := make([]int64, n)
	if energy.Divide(still, a.idleEnergy, parts) {
		for i, p := range parts {
			resting[i] += p
		}
	} else {
		resting[a.idle] += still
	}
	resting[a.idle] += empty
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
	a.writeRows(active, resting, offs)
}

// writeRows writes into the rows what each gets.
func (a *adjuster) writeRows(active, resting, offs []int64) {
	for i := range a.rows {
		r := &a.rows[i]
		if r.Kind != workload.Idle && resting[i] == 0 && !r.Usage.Present.Has(usage.EnergyRest) && !r.Usage.Present.Has(usage.CPU) {
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
