package attribute

import (
	"mete.dev/mete/internal/model/usage"
)

// A tick takes time for each group, and most groups do nothing most of the time. An account is dormant
// if its readings were the same in two ticks, its counters did not grow, and it has no children. While
// that lasts, its share of the previous tick is used again, except for integrals over time.

// canBeDormant reports whether a's share must be that of the previous tick: its readings are the same,
// and no child, virtual machine, end, restart of measuring, late tick, long pause or restored reading can change the share.
func (acc *Accounts) canBeDormant(a *account) bool {
	return a.unchanged && a.childValues == [nestedSlots]int64{} && a.parent != nil && a.guest == nil && a.held == nil &&
		!a.final && !a.uncertain && a.stale.set == 0 && acc.tickStart == usage.StartContinued && !acc.tooLong && acc.coveredTime() > 0 && !acc.noDormancy
}

// sumShares returns the sum of a's shares of several resources.
func (a *account) sumShares(of usage.Set) (sum int64) {
	for r := range (a.share.Present & of).All() {
		sum += a.share.Amount[r]
	}
	return sum
}

// bookDormant books a's share of a tick in which it is dormant. It removes the energy of the previous
// tick: divideEnergy books that of this tick, after all accounts are booked.
func (acc *Accounts) bookDormant(a *account) {
	u := &a.share
	for r := range (u.Present & energySet).All() {
		u.Amount[r] = 0
	}
	u.Present &^= energySet
	u.Quality = u.Quality.Without(energyMask)
	u.Covered = acc.coveredTime()
	for r := range (a.reading.Has & integralSet).All() {
		i := levelSlot[r]
		u.Amount[r] = a.remainders[i].Add(a.level[i], a.level[i], acc.elapsed)
	}
}

// repeatInWindow adds the share of a dormant account to the open window, which has one of an earlier tick: its
// counters are 0, and its peaks and qualities the same.
func (a *account) repeatInWindow() {
	a.window.AddOnly(&a.share, integralSet|energySet)
	a.markUsed(energySet | peaksSet)
}

// energySet are the resources that divideEnergy books.
var energySet = usage.SetOf(append(usage.Energies[:], usage.EnergyError, usage.EnergyIdle)...)

var energyMask = energySet.Mask()
