package unit

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// A Sum is a 128-bit total of amounts. A terabyte held for three months exceeds the byte-seconds of
// an int64.
type Sum struct{ hi, lo uint64 }

// Add returns s plus v. Neither s nor the result may be negative.
func (s Sum) Add(v int64) Sum {
	lo, carry := bits.Add64(s.lo, uint64(v), 0)
	hi, _ := bits.Add64(s.hi, uint64(v>>63), carry)
	return Sum{hi, lo}
}

// Compare returns -1 if s is less than o, +1 if it is more, else 0.
func (s Sum) Compare(o Sum) int {
	return cmp.Or(cmp.Compare(s.hi, o.hi), cmp.Compare(s.lo, o.lo))
}

// Max returns the larger of s and o.
func (s Sum) Max(o Sum) Sum { return slices.MaxFunc([]Sum{s, o}, Sum.Compare) }

// Decimal formats s, an amount of u, like [Unit.Decimal].
func (s Sum) Decimal(u Unit) string {
	if s.hi == 0 && s.lo < 1<<63 {
		return u.Decimal(int64(s.lo))
	}
	// In groups of 18 digits, the lowest first.
	const group = 1e18
	var digits string
	for s != (Sum{}) {
		var rest uint64
		s.hi, rest = s.hi/group, s.hi%group
		s.lo, rest = bits.Div64(rest, s.lo, group)
		digits = fmt.Sprintf("%018d", rest) + digits
	}
	digits = strings.TrimLeft(digits, "0")
	d := len(digits) - u.Digits()
	whole, fraction := digits[:d], strings.TrimRight(digits[d:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// String formats s as an integer.
func (s Sum) String() string {
	if s.hi == 0 {
		return strconv.FormatUint(s.lo, 10)
	}
	return s.Decimal(Count)
}
