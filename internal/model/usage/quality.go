package usage

import "fmt"

// Quality says how a figure came about. Worse is larger, and in a sum the
// worse wins.
type Quality uint8

const (
	// Absent: not known. It is not zero, and is never shown as zero.
	Absent Quality = iota
	// Measured: read from a counter that belongs to the workload.
	Measured
	// Apportioned: a measured total, divided by a rule.
	Apportioned
	// Modelled: computed from something else.
	Modelled
)

var qualityNames = [...]string{"absent", "measured", "apportioned", "modelled"}

// String returns the word that people and JSON see.
func (q Quality) String() string { return qualityNames[q&3] }

// MarshalText implements encoding.TextMarshaler.
func (q Quality) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *Quality) UnmarshalText(b []byte) error {
	for i, n := range qualityNames {
		if n == string(b) {
			*q = Quality(i)
			return nil
		}
	}
	return fmt.Errorf("quality %q is none of %v", b, qualityNames)
}

// Qualities holds the quality of each resource, two bits each. These bits are also
// in checkpoints and in pages of states: they are never changed.
//
// Batches and the ledger have other forms, see [Qualities.Sets] and
// [Qualities.Uncertainty].
type Qualities uint64

// Get returns the quality of r.
func (q Qualities) Get(r Resource) Quality { return Quality(q >> (2 * r) & 3) }

// Set sets the quality of r.
func (q *Qualities) Set(r Resource, v Quality) {
	*q = *q&^(3<<(2*r)) | Qualities(v)<<(2*r)
}

// Worsen sets the quality of r to v if v is worse than what it is.
func (q *Qualities) Worsen(r Resource, v Quality) {
	if q.Get(r) < v {
		q.Set(r, v)
	}
}

// Worst returns of each resource the worse quality of q's and p's.
func (q Qualities) Worst(p Qualities) Qualities {
	const high = 0xaaaa_aaaa_aaaa_aaaa // bits of all resources
	qh, ph := q&high, p&high
	return (q|p)&high | q&^high&^((ph&^qh)>>1) | p&^high&^((qh&^ph)>>1)
}

// Only returns the qualities of the resources in s; all others are Absent.
func (q Qualities) Only(s Set) Qualities { return q & (3 * s.spread()) }

// Sets returns which resources are of each quality, as the shapes of a batch have it.
func (q Qualities) Sets() (measured, apportioned, modelled Set) {
	All.Each(func(r Resource) {
		switch q.Get(r) {
		case Measured:
			measured |= 1 << r
		case Apportioned:
			apportioned |= 1 << r
		case Modelled:
			modelled |= 1 << r
		}
	})
	return measured, apportioned, modelled
}

// QualitiesOfSets is the inverse of Sets. It is false where a resource is in two sets
// or is not known.
func QualitiesOfSets(measured, apportioned, modelled Set) (Qualities, bool) {
	all := measured | apportioned | modelled
	if all&^All != 0 || measured&apportioned|modelled&(measured|apportioned) != 0 {
		return 0, false
	}
	return measured.spread() | apportioned.spread()<<1 | modelled.spread()*3, true
}

// Two bits for each resource fit the int64 that databases have.
var _ [32 - Limit]struct{}

// Uncertainty returns the qualities of the resources in present as the ledger has them:
// measured 00, apportioned 01, modelled 11, so that the OR of two numbers has of
// each resource the worse. A database that adds up rows has no other operator that
// does so for all resources at once, and two bits hold no fourth value in such an
// order. So absence is not in them: it is in the set of what is present, which is a
// column beside. A resource that is present without a quality counts as modelled.
func (q Qualities) Uncertainty(present Set) int64 {
	const low = 0x5555555555555555
	h, l := q>>1&low, q&low
	absent := present.spread() &^ (h | l)
	return int64(h | (h&l)<<1 | 3*absent)
}

// QualitiesOfUncertainty is the inverse of Uncertainty.
func QualitiesOfUncertainty(present Set, bits int64) (q Qualities) {
	present.Each(func(r Resource) {
		q.Set(r, [...]Quality{Measured, Apportioned, Modelled, Modelled}[uint64(bits)>>(2*r)&3])
	})
	return q
}

// spread moves bit i to bit 2i.
func (s Set) spread() Qualities {
	x := uint64(s) & (1<<32 - 1)
	x = (x | x<<16) & 0x0000ffff_0000ffff
	x = (x | x<<8) & 0x00ff00ff_00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f_0f0f0f0f
	x = (x | x<<2) & 0x33333333_33333333
	return Qualities((x | x<<1) & 0x55555555_55555555)
}
