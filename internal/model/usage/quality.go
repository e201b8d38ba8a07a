package usage

import "fmt"

// Quality says how a figure came about. Worse is larger, and in a sum the
// worse wins.
type Quality uint8

const (
	// Absent: nobody saw it. It is not zero, and it is never shown as zero.
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

// Qualities holds the quality of each resource, two bits each.
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

// spread moves bit i to bit 2i.
func (s Set) spread() Qualities {
	x := uint64(s) & (1<<32 - 1)
	x = (x | x<<16) & 0x0000ffff_0000ffff
	x = (x | x<<8) & 0x00ff00ff_00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f_0f0f0f0f
	x = (x | x<<2) & 0x33333333_33333333
	return Qualities((x | x<<1) & 0x55555555_55555555)
}
