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

// energyOf is the energy of all domains.
func (r *Row) energyOf() (sum int64) {
	for _, res := range usage.Energies {
		if v, ok := r.Usage.Get(res); ok {
			sum = plus(sum, v)
		}
	}
	return sum
}

// idleOf is how much of that the machine draws anyway.
func (r *Row) idleOf(all int64) int64 {
	if r.Kind == workload.Idle {
		return all
	}
	v, _ := r.Usage.Get(usage.EnergyIdle)
	return min(v, all)
}

// An Outcome is what became of a machine's minute.
type Outcome struct {
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
func Adjust(rows []Row, covered time.Duration, e, off int64) ([]Row, Outcome) {
	a := adjusting{rows: rows, out: Outcome{Meter: e}}
	a.look()
	a.idle() // there is one now
	a.strip()
	above := max(0, e-a.out.Measured)
	empty := min(above, e-share(e, int64(min(max(0, covered), time.Minute)), minute))
	a.add(above-empty, empty, off)
	for i := range a.rows {
		for d := power.Package; d < power.DomainLimit; d++ {
			v, _ := a.rows[i].Usage.Get(usage.EnergyOf(d))
			a.out.Changed[d] += v
		}
	}
	return a.rows, a.out
}

type adjusting struct {
	rows     []Row
	out      Outcome
	modelled [power.DomainLimit]bool
	any      bool    // one of them is
	energy   []int64 // of each row before
	idles    []int64 // how much of it is idle
	errors   int64   // of all rows, before
	kept     int64   // errors of what was measured
}

// look sums what is there.
func (a *adjusting) look() {
	for i := range a.rows {
		r := &a.rows[i]
		for d := power.Package; d < power.DomainLimit; d++ {
			v, ok := r.Usage.Get(usage.EnergyOf(d))
			if ok && r.Usage.Quality.Get(usage.EnergyOf(d)) == usage.Modelled {
				a.modelled[d], a.any = true, true
			}
			a.out.Changed[d] -= v
		}
		all := r.energyOf()
		off, _ := r.Usage.Get(usage.EnergyError)
		a.energy, a.idles = append(a.energy, all), append(a.idles, r.idleOf(all))
		a.out.Inside, a.errors = plus(a.out.Inside, all), plus(a.errors, off)
	}
}

// idle is the place of the row idle, which is made where there is none.
func (a *adjusting) idle() int {
	for i := range a.rows {
		if a.rows[i].Kind == workload.Idle {
			return i
		}
	}
	a.rows = append(a.rows, Row{Kind: workload.Idle})
	a.energy, a.idles = append(a.energy, 0), append(a.idles, 0)
	return len(a.rows) - 1
}

// strip takes what was modelled out of the rows, with its part of their errors.
func (a *adjusting) strip() {
	for i := range a.rows {
		u := &a.rows[i].Usage
		for d := power.Package; d < power.DomainLimit; d++ {
			if a.modelled[d] {
				drop(u, usage.EnergyOf(d))
			}
		}
		left := a.rows[i].energyOf()
		a.out.Measured = plus(a.out.Measured, left)
		if !a.any {
			a.kept = a.errors
			continue
		}
		for _, r := range []usage.Resource{usage.EnergyError, usage.EnergyIdle} {
			if v, ok := u.Get(r); ok {
				drop(u, r)
				u.Put(r, share(v, left, a.energy[i]), usage.Apportioned)
			}
		}
		off, _ := u.Get(usage.EnergyError)
		a.kept = plus(a.kept, off)
	}
}

// drop makes a resource absent.
func drop(u *usage.Usage, r usage.Resource) {
	u.Present &^= usage.SetOf(r)
	u.Amount[r] = 0
	u.Quality.Set(r, usage.Absent)
}

// add gives out energy above what was measured, and of time without rows, which may
// together be off by off and by what was measured inside.
func (a *adjusting) add(above, empty, off int64) {
	n := len(a.rows)
	used, active, resting := make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range a.rows {
		if a.rows[i].Kind != workload.Idle {
			used[i], _ = a.rows[i].Usage.Get(usage.CPU)
		}
	}
	still := above
	if a.out.Inside > 0 {
		still = share(above, total(a.idles), a.out.Inside)
	}
	spread := int64(0) // how far the border between the two may be off
	if a.any {
		p := min(a.errors, a.out.Inside)
		spread = share(share(still, above-still, max(1, above)), p, max(1, a.out.Inside))
	}
	place := a.idle()
	if !energy.Divide(above-still, used, active) {
		resting[place] += above - still
	}
	parts := make([]int64, n)
	if energy.Divide(still, a.idles, parts) {
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
	energy.Divide(plus(off, a.kept), parts, offs)
	for _, of := range [][]int64{active, resting} {
		if energy.Divide(spread, of, parts) {
			for i, p := range parts {
				offs[i] = plus(offs[i], p)
			}
		}
	}
	a.put(used, active, resting, offs)
}

// put writes into the rows what each gets.
func (a *adjusting) put(used, active, resting, offs []int64) {
	for i := range a.rows {
		r := &a.rows[i]
		if r.Kind != workload.Idle && used[i] == 0 && resting[i] == 0 && !r.Usage.Present.Has(usage.EnergyRest) && !r.Usage.Present.Has(usage.CPU) {
			continue // of what it used nothing is known
		}
		r.Usage.Put(usage.EnergyRest, active[i]+resting[i], usage.Apportioned)
		r.Usage.Put(usage.EnergyError, offs[i], usage.Apportioned)
		switch {
		case r.Kind == workload.Idle:
			drop(&r.Usage, usage.EnergyIdle)
			r.Usage.Put(usage.EnergyIdle, r.energyOf(), usage.Apportioned)
		case r.Usage.Present.Has(usage.EnergyIdle):
			r.Usage.Put(usage.EnergyIdle, resting[i], usage.Apportioned)
		}
	}
}
