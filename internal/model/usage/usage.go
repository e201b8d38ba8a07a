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
func (u *Usage) Put(r Resource, amount int64, q Quality) { u.fields().put(r, amount, q) }

// Add adds v to u, resource by resource. A resource that is absent in both stays absent.
func (u *Usage) Add(v *Usage) { u.fields().add(v.fields(), All) }

func (u *Usage) fields() fields { return fields{&u.Present, &u.Quality, &u.Covered, u.Amount[:]} }

// fields are the parts of a Usage or of a GroupUsage.
type fields struct {
	present *Set
	quality *Qualities
	covered *time.Duration
	amount  []int64
}

func (f fields) put(r Resource, amount int64, q Quality) {
	f.quality.Worsen(r, q)
	switch to := &f.amount[r]; {
	case !f.present.Has(r):
		*f.present |= 1 << r
		*to = amount
	case peaks.Has(r):
		*to = max(*to, amount)
	default:
		*to = add(*to, amount)
	}
}

// add adds the resources of v that are in a set, and the time that v covers.
func (f fields) add(v fields, of Set) {
	of &= *v.present
	if *f.quality != *v.quality { // else they stay, as of most groups in most ticks
		*f.quality = f.quality.Worst(v.quality.Only(of))
	}
	for set := of &^ *f.present; set != 0; set &= set - 1 {
		r := bits.TrailingZeros64(uint64(set))
		f.amount[r] = v.amount[r]
	}
	for set := of & *f.present; set != 0; set &= set - 1 {
		r := Resource(bits.TrailingZeros64(uint64(set)))
		switch to, a := &f.amount[r], v.amount[r]; {
		case peaks.Has(r):
			*to = max(*to, a)
		case a != 0: // most groups do nothing most of the time
			*to = add(*to, a)
		}
	}
	*f.present |= of
	*f.covered += *v.covered
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
