package spool

import (
	"math/bits"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// totalInterval is after how many windows a row carries its Total although it need not.
const totalInterval = 30

// totals knows what the rows that came last in the live stream said, so that
// what a reader can add up itself is not sent.
type totals map[workload.ShortID]lastTotal

type lastTotal struct {
	has    usage.Set
	digest uint64 // of its amounts
	window uint64 // in which it was last seen
}

// digestOf makes one number of the amounts of the resources in set. The numbers of
// two lists of amounts add up to that of their sums, and those of lists that
// differ are alike by an accident of one in 2^64.
func digestOf(set usage.Set, amount *[usage.Limit]int64) (mix uint64) {
	for ; set != 0; set &= set - 1 {
		r := bits.TrailingZeros64(uint64(set))
		mix += uint64(amount[r]) * factors[r]
	}
	return mix
}

// factors are odd and otherwise arbitrary: multiples of 2^64 over the golden
// ratio.
var factors = func() (f [usage.Limit]uint64) {
	const golden = 0x9e3779b97f4a7c15
	for r := range f {
		x := uint64(r+1) * golden
		f[r] = (x ^ x>>29) | 1
	}
	return f
}()

// omitDerivable copies rows to dst without the Totals that follow from those before. What
// it leaves in t is what the rows say.
func (t totals) omitDerivable(dst, rows []usage.Row, window uint64) []usage.Row {
	for i := range rows {
		row := rows[i]
		before := t[row.ShortID]
		now := lastTotal{row.Has, digestOf(row.Has, &row.Total), window}
		follows := before.has == row.Has && row.Has != 0 && (window+uint64(row.ShortID))%totalInterval != 0 &&
			before.digest+digestOf(row.Has&row.Usage.Present, &row.Usage.Amount) == now.digest
		t[row.ShortID] = now
		if follows {
			row.OmitTotals()
		}
		if row.Ended {
			delete(t, row.ShortID)
		}
		dst = append(dst, row)
	}
	// Rows that did not end may yet never come again.
	if window%totalInterval == 0 {
		for short, before := range t {
			if before.window+12*totalInterval < window {
				delete(t, short)
			}
		}
	}
	return dst
}
