package attribute

import (
	"mete.dev/mete/internal/model/usage"
)

// The cost of a tick depends on the number of groups, and most groups do nothing most of the time.
// An account that showed the same values in two ticks and has no children is dormant: as long as
// that lasts it repeats its share of the previous tick, except integrals over time.

// canBeDormant reports whether nothing can change a's share.
func (acc *Accounts) canBeDormant(a *account) bool {
	return a.unchanged && a.childValues == [nestedSlots]int64{} && a.parent != nil && a.guest == nil && a.held == nil &&
		!a.final && !a.uncertain && a.stale.set == 0 && acc.tickStart == usage.StartContinued && !acc.noDormancy
}

// sumShares returns the sum of a's shares of several resources.
func (a *account) sumShares(of usage.Set) (sum int64) {
	for r := range (a.share.Present & of).All() {
		sum += a.share.Amount[r]
	}
	return sum
}

// bookDormant books a's share of a tick in which it is dormant. Its energy is booked later.
func (acc *Accounts) bookDormant(a *account) {
	u := &a.share
	for r := range (u.Present & energySet).All() {
		u.Amount[r] = 0
	}
	u.Present &^= energySet
	u.Quality = u.Quality.Only(u.Present)
	u.Covered = acc.coveredTime()
	for r := range (a.reading.Has & integralSet).All() {
		i := levelSlot[r]
		u.Amount[r] = a.remainders[i].Add(a.level[i], a.level[i], acc.elapsed)
	}
}

var energySet = usage.SetOf(append(usage.Energies[:], usage.EnergyError, usage.EnergyIdle)...)
