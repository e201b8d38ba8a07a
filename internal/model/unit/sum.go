package unit

import (
	"cmp"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// A Sum is a total of amounts that does not overflow: 128 bits. A terabyte held
// for three months is more byte-seconds than an int64 has.
type Sum struct{ hi, lo uint64 }

// Add returns s and v more. Neither s nor what comes out may be negative.
func (s Sum) Add(v int64) Sum {
	lo, carry := bits.Add64(s.lo, uint64(v), 0)
	hi, _ := bits.Add64(s.hi, uint64(v>>63), carry)
	return Sum{hi, lo}
}

// Compare is -1 where s is less than o, +1 where it is more, else 0.
func (s Sum) Compare(o Sum) int {
	return cmp.Or(cmp.Compare(s.hi, o.hi), cmp.Compare(s.lo, o.lo))
}

// Decimal writes s, which is an amount of u, as [Unit.Decimal] does.
func (s Sum) Decimal(u Unit) string {
	if s.hi == 0 && s.lo < 1<<63 {
		return u.Decimal(int64(s.lo))
	}
	// By groups of 18 digits, the lowest first.
	const group = 1e18
	var digits string
	for s != (Sum{}) {
		var rest uint64
		s.hi, rest = s.hi/group, s.hi%group
		s.lo, rest = bits.Div64(rest, s.lo, group)
		digits = fmt.Sprintf("%018d", rest) + digits
	}
	digits = strings.TrimLeft(digits, "0")
	d := len(digits) - u.digits()
	whole, fraction := digits[:d], strings.TrimRight(digits[d:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// String writes s as a plain integer.
func (s Sum) String() string {
	if s.hi == 0 {
		return strconv.FormatUint(s.lo, 10)
	}
	return s.Decimal(Count)
}
