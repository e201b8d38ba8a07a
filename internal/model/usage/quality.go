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

// perWord is how many resources a word of two bits each holds.
const perWord = 32

// Qualities holds the quality of each resource, two bits each: those of resources below
// 32 in the first word, those of the others in the second. These bits are also in
// checkpoints and in pages of states: they are never changed. A form that existed when
// there were 31 resources has the second word only where one of its resources is present,
// see [Set.Words].
//
// Batches and the ledger have other forms, see [Qualities.Sets] and
// [Qualities.Uncertainty].
type Qualities [2]uint64

// Get returns the quality of r.
func (q Qualities) Get(r Resource) Quality { return Quality(q[r/perWord] >> (2 * (r % perWord)) & 3) }

// Set sets the quality of r.
func (q *Qualities) Set(r Resource, v Quality) {
	w, at := &q[r/perWord], 2*(r%perWord)
	*w = *w&^(3<<at) | uint64(v)<<at
}

// Worsen sets the quality of r to v if v is worse than what it is.
func (q *Qualities) Worsen(r Resource, v Quality) {
	if q.Get(r) < v {
		q.Set(r, v)
	}
}

const (
	lowBits  = 0x5555_5555_5555_5555 // of all resources in a word
	highBits = lowBits << 1
)

// Worst returns of each resource the worse quality of q's and p's.
func (q Qualities) Worst(p Qualities) Qualities {
	for i, p := range p {
		q, qh, ph := &q[i], q[i]&highBits, p&highBits
		*q = qh | ph | *q&lowBits&^((ph&^qh)>>1) | p&lowBits&^((qh&^ph)>>1)
	}
	return q
}

// Only returns the qualities of the resources in s; all others are Absent.
func (q Qualities) Only(s Set) Qualities {
	for i, bits := range s.Mask() {
		q[i] &= bits
	}
	return q
}

// Mask returns all bits of the resources in s.
func (s Set) Mask() (mask Qualities) {
	for i, w := range s.spread() {
		mask[i] = 3 * w
	}
	return mask
}

// Without returns q with the resources of a [Set.Mask] Absent.
func (q Qualities) Without(mask Qualities) Qualities {
	for i := range q {
		q[i] &^= mask[i]
	}
	return q
}

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
func QualitiesOfSets(measured, apportioned, modelled Set) (q Qualities, ok bool) {
	all := measured | apportioned | modelled
	if all&^All != 0 || measured&apportioned|modelled&(measured|apportioned) != 0 {
		return q, false
	}
	m, a, c := measured.spread(), apportioned.spread(), modelled.spread()
	for i := range q {
		q[i] = m[i] | a[i]<<1 | c[i]*3
	}
	return q, true
}

// Uncertainty is the form of Qualities in the ledger, where each word is a column: of each
// resource, measured is 00, apportioned 01, modelled 11, so that the OR of two numbers has
// the worse. A database that adds up rows has no other operator that
// does so for all resources at once, and two bits hold no fourth value in such an
// order. So absence is not in them: it is in the set of what is present, which is a
// column beside. Bits of absent resources mean nothing.
type Uncertainty [2]int64

// Uncertainty returns the qualities of the resources in present as the ledger has them.
// A resource that is present without a quality counts as modelled.
func (q Qualities) Uncertainty(present Set) (u Uncertainty) {
	for i, there := range present.spread() {
		h, l := q[i]>>1&lowBits, q[i]&lowBits
		u[i] = int64(h | (h&l)<<1 | 3*(there&^(h|l)))
	}
	return u
}

// Qualities is the inverse of [Qualities.Uncertainty].
func (u Uncertainty) Qualities(present Set) (q Qualities) {
	present.Each(func(r Resource) {
		q.Set(r, [...]Quality{Measured, Apportioned, Modelled, Modelled}[uint64(u[r/perWord])>>(2*(r%perWord))&3])
	})
	return q
}

// Or returns of each resource the worse of u's and v's.
func (u Uncertainty) Or(v Uncertainty) Uncertainty { return Uncertainty{u[0] | v[0], u[1] | v[1]} }

// Only drops the bits of resources that are not in present.
func (u Uncertainty) Only(present Set) Uncertainty {
	q := Qualities{uint64(u[0]), uint64(u[1])}.Only(present) // both have two bits for each resource
	return Uncertainty{int64(q[0]), int64(q[1])}
}

// Words returns how many words the qualities of the resources in s need.
func (s Set) Words() int {
	if s>>perWord != 0 {
		return 2
	}
	return 1
}

// spread moves bit i to bit 2i, and bit 32+i to bit 2i of the second word.
func (s Set) spread() (words Qualities) {
	for i := range words {
		x := uint64(s) >> (perWord * i) & (1<<perWord - 1)
		x = (x | x<<16) & 0x0000ffff_0000ffff
		x = (x | x<<8) & 0x00ff00ff_00ff00ff
		x = (x | x<<4) & 0x0f0f0f0f_0f0f0f0f
		x = (x | x<<2) & 0x33333333_33333333
		words[i] = (x | x<<1) & lowBits
	}
	return words
}
