package usage

import (
	"math"
	"math/bits"
	"time"
)

// Usage is what one workload itself used over a span: no child's use is in it.
// Amounts are in the unit of their resource; those not Present mean nothing.
type Usage struct {
	Present Set
	Quality Qualities
	// Covered is for how much of the span there were readings.
	Covered time.Duration
	Amount  [Limit]int64
}

// Get returns the amount of r, and whether it is there at all.
func (u *Usage) Get(r Resource) (int64, bool) { return u.Amount[r], u.Present.Has(r) }

// Put adds amount to r, or raises r to it where r is a peak, with quality q.
func (u *Usage) Put(r Resource, amount int64, q Quality) {
	u.Quality.Worsen(r, q)
	switch {
	case !u.Present.Has(r):
		u.Present |= 1 << r
		u.Amount[r] = amount
	case peaks.Has(r):
		u.Amount[r] = max(u.Amount[r], amount)
	default:
		u.Amount[r] = add(u.Amount[r], amount)
	}
}

// Add adds v to u, resource by resource. A resource that is absent in both stays absent.
func (u *Usage) Add(v *Usage) { u.AddOnly(v, All) }

// AddOnly is Add for some resources of v, and the time that it covers.
func (u *Usage) AddOnly(v *Usage, of Set) {
	of &= v.Present
	u.Quality = u.Quality.Worst(v.Quality.Only(of))
	for set := of &^ u.Present; set != 0; set &= set - 1 {
		r := bits.TrailingZeros64(uint64(set))
		u.Amount[r] = v.Amount[r]
	}
	for set := of & u.Present; set != 0; set &= set - 1 {
		r := Resource(bits.TrailingZeros64(uint64(set)))
		switch a := v.Amount[r]; {
		case peaks.Has(r):
			u.Amount[r] = max(u.Amount[r], a)
		case a != 0: // most groups do nothing most of the time
			u.Amount[r] = add(u.Amount[r], a)
		}
	}
	u.Present |= of
	u.Covered += v.Covered
}

var peaks = func() (s Set) {
	All.Each(func(r Resource) {
		if details[r].Kind == Peak {
			s |= SetOf(r)
		}
	})
	return s
}()

// add panics on overflow: an amount past 2^63 is a defect, not a load. (2^63 ns
// are 292 years of one CPU; rows are closed long before.)
func add(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		panic("usage: amount overflows")
	}
	return a + b
}
