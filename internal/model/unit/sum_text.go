package unit

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// Plus returns the sum of s and o.
func (s Sum) Plus(o Sum) Sum {
	lo, carry := bits.Add64(s.lo, o.lo, 0)
	hi, _ := bits.Add64(s.hi, o.hi, carry)
	return Sum{hi, lo}
}

// Less returns s without o; 0 if o is more.
func (s Sum) Less(o Sum) Sum {
	if s.Compare(o) <= 0 {
		return Sum{}
	}
	lo, borrow := bits.Sub64(s.lo, o.lo, 0)
	hi, _ := bits.Sub64(s.hi, o.hi, borrow)
	return Sum{hi, lo}
}

// Float returns s, an amount of u, in the base unit, for display, averages and rates only.
func (s Sum) Float(u Unit) float64 {
	return (math.Ldexp(float64(s.hi), 64) + float64(s.lo)) / u.One()
}

// ParseSum parses what [Sum.Decimal] wrote. The error wraps fault.ErrInvalid if s is not a number,
// is negative, has too many decimals or exceeds 127 bits.
func ParseSum(s string, u Unit) (Sum, error) {
	whole, part, _ := strings.Cut(s, ".")
	d := u.Digits()
	if whole == "" || len(part) > d {
		return Sum{}, fmt.Errorf("%q is not an amount of %s: %w", s, u, fault.ErrInvalid)
	}
	var sum Sum
	for _, c := range []byte(whole + part + strings.Repeat("0", d-len(part))) {
		over, hi := bits.Mul64(sum.hi, 10)
		carry, lo := bits.Mul64(sum.lo, 10)
		lo, more := bits.Add64(lo, uint64(c-'0'), 0)
		hi, wrapped := bits.Add64(hi, carry, more)
		if c < '0' || c > '9' || over != 0 || wrapped != 0 || hi >= 1<<63 {
			return Sum{}, fmt.Errorf("%q is not an amount of %s: %w", s, u, fault.ErrInvalid)
		}
		sum = Sum{hi, lo}
	}
	return sum, nil
}
