package attribute

import (
	"math/bits"

	"mete.dev/mete/internal/model/usage"
)

// Most groups of a machine do nothing most of the time, and it is their number that
// a tick costs. An account that showed the same in two ticks, with nothing below it,
// is dormant: as long as that lasts its share is that of the tick before, but for what
// goes by time.

// canBeDormant reports whether nothing was seen of a that could change its share.
func (acc *Accounts) canBeDormant(a *account) bool {
	return a.unchanged && a.childValues == [nestedSlots]int64{} && a.parent != nil && a.guest == nil &&
		!a.final && !a.uncertain && a.stale.set == 0 && acc.tickStart == usage.StartContinued && !acc.noDormancy
}

// sumShares is the sum of a's shares of several resources.
func (a *account) sumShares(of usage.Set) (sum int64) {
	for set := a.share.Present & of; set != 0; set &= set - 1 {
		sum += a.share.Amount[bits.TrailingZeros64(uint64(set))]
	}
	return sum
}

// bookDormant gives a the share of a tick in which it sleeps. Its energy comes later.
func (acc *Accounts) bookDormant(a *account) {
	u := &a.share
	for set := u.Present & energySet; set != 0; set &= set - 1 {
		u.Amount[bits.TrailingZeros64(uint64(set))] = 0
	}
	u.Present &^= energySet
	u.Quality = u.Quality.Only(u.Present)
	u.Covered = acc.coveredTime()
	for set := a.reading.Has & integralSet; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		i := levelSlot[r]
		u.Amount[r] = a.remainders[i].Add(a.level[i], a.level[i], acc.elapsed)
	}
}

var energySet = usage.SetOf(append(usage.Energies[:], usage.EnergyError, usage.EnergyIdle)...)
