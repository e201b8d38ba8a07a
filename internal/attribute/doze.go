package attribute

import (
	"math/bits"

	"mete.dev/mete/internal/model/usage"
)

// Most groups of a machine do nothing most of the time, and it is their number that
// a tick costs. An account that showed the same in two ticks, with nothing below it,
// is asleep: as long as that lasts its share is that of the tick before, but for what
// goes by time.

// quiet reports whether nothing was seen of a that could change its share.
func (b *Books) quiet(a *account) bool {
	return a.same && a.below == [inner]int64{} && a.parent != nil && a.guest == nil &&
		!a.final && !a.blur && a.stale.set == 0 && b.now == usage.Continues && !b.awake
}

// used is the sum of a's shares of several resources.
func (a *account) used(of usage.Set) (sum int64) {
	for set := a.share.Present & of; set != 0; set &= set - 1 {
		sum += a.share.Amount[bits.TrailingZeros64(uint64(set))]
	}
	return sum
}

// doze gives a the share of a tick in which it sleeps. Its energy comes later.
func (b *Books) doze(a *account) {
	u := &a.share
	for set := u.Present & energies; set != 0; set &= set - 1 {
		u.Amount[bits.TrailingZeros64(uint64(set))] = 0
	}
	u.Present &^= energies
	u.Quality = u.Quality.Only(u.Present)
	u.Covered = b.covered()
	for set := a.reading.Has & integrals; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		i := lasting[r]
		u.Amount[r] = a.rest[i].Add(a.level[i], a.level[i], b.elapsed)
	}
}

var energies = usage.SetOf(append(usage.Energies[:], usage.EnergyError, usage.EnergyIdle)...)
