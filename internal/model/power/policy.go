package power

import (
	"fmt"

	"mete.dev/mete/internal/model/fault"
)

// A Policy says how idle energy is divided in an answer. It changes no stored data.
type Policy uint8

const (
	// None leaves it with the machine.
	None Policy = iota
	// Equal divides it by the time that each workload existed.
	Equal
	// Reserved divides it in proportion to reserved CPU time.
	Reserved
	// Used divides it in proportion to used CPU time.
	Used
)

var policyNames = [...]string{"none", "equal", "reserved", "used"}

// String returns the word used in requests and output.
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
