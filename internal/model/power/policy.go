package power

import (
	"fmt"

	"mete.dev/mete/internal/model/fault"
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
