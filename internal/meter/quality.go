package meter

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
