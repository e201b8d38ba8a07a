package energy

import (
	"fmt"

	"mete.dev/mete/internal/fault"
)

// A Policy says to whom idle energy goes when it is read. It changes nothing
// that is kept.
type Policy uint8

const (
	// None leaves it with the machine.
	None Policy = iota
	// Equal gives each workload the same for each second that it was there.
	Equal
	// Reserved gives to each in proportion to what was reserved for it.
	Reserved
	// Used gives to each in proportion to what it used.
	Used
)

var policyNames = [...]string{"none", "equal", "reserved", "used"}

// String returns the word that people and requests use.
func (p Policy) String() string { return policyNames[p&3] }

// MarshalText implements encoding.TextMarshaler.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Policy) UnmarshalText(b []byte) error {
	for i, n := range policyNames {
		if n == string(b) {
			*p = Policy(i)
			return nil
		}
	}
	return fmt.Errorf("idle policy %q is none of %v: %w", b, policyNames, fault.ErrInvalid)
}

// A Claim is what one workload can claim idle energy with, over the time of
// the energy. Amounts are not negative.
type Claim struct {
	Present  int64 // time that it was there, ns
	Reserved int64 // CPU time reserved for it, ns
	Used     int64 // CPU time that it used, ns
}

// Divide gives the idle energy of one machine to claims. What it returns is
// left with the machine: all of it under None, and where nobody has a claim;
// else nothing. out is as long as claims; the parts and what is left sum to
// idle exactly.
func (p Policy) Divide(idle int64, claims []Claim, out []int64) (left int64) {
	for i := range claims {
		switch p {
		case Equal:
			out[i] = claims[i].Present
		case Reserved:
			out[i] = claims[i].Reserved
		case Used:
			out[i] = claims[i].Used
		default:
			out[i] = 0
		}
	}
	if !Divide(idle, out, out) {
		return idle
	}
	return 0
}
