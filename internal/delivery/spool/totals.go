package spool

import (
	"math/rand/v2"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// totalInterval is the number of windows after which a row has its Total even if it is
// derivable.
const totalInterval = 30

// totals has the last totals of the live stream, so that totals that a reader can derive are
// omitted.
type totals map[workload.ShortID]lastTotal

type lastTotal struct {
	has    usage.Set
	digest uint64 // of its totals
	window uint64 // number of its last window
}

// digestOf returns a linear hash of the amounts of the resources in set: the digests of two
// lists of amounts add up to the digest of their sums. Digests of different lists are equal
// with a probability of 2^-64.
func digestOf(set usage.Set, amount *[usage.Limit]int64) (mix uint64) {
	for r := range set.All() {
		mix += uint64(amount[r]) * factors[r]
	}
	return mix
}

// factors are arbitrary numbers. Digests are not stored, so they differ in each process.
var factors = func() (f [usage.Limit]uint64) {
	for r := range f {
		f[r] = rand.Uint64()
	}
	return f
}()

// omitDerivable takes the Totals out of rows that follow from earlier rows, and updates t. It appends
// to had what rows had totals of, for restoreTotals.
func (t totals) omitDerivable(had []usage.Set, rows []usage.Row, window uint64) []usage.Set {
	for i := range rows {
		row := &rows[i]
		had = append(had, row.Has)
		before := t[row.ShortID]
		now := lastTotal{row.Has, digestOf(row.Has, &row.Total), window}
		// The last row of a life has its total: no later row could supply it.
		follows := !row.Ended && before.has == row.Has && (window+uint64(row.ShortID))%totalInterval != 0 &&
			before.digest+digestOf(row.Has&row.Usage.Present, &row.Usage.Amount) == now.digest
		t[row.ShortID] = now
		if follows {
			row.Has = 0
		}
		if row.Ended {
			delete(t, row.ShortID)
		}
	}
	// Forget workloads that have not ended but had no row for long.
	if window%totalInterval == 0 {
		for short, before := range t {
			if before.window+12*totalInterval < window {
				delete(t, short)
			}
		}
	}
	return had
}

// restoreTotals undoes what omitDerivable did to rows.
func restoreTotals(had []usage.Set, rows []usage.Row) {
	for i := range rows {
		rows[i].Has = had[i]
	}
}
