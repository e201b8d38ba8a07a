package unit

import "math"

// Halves returns the upper and the lower 64 bits of s for storage.
func (s Sum) Halves() (hi, lo uint64) { return s.hi, s.lo }

// SumOf returns the sum of [Sum.Halves].
func SumOf(hi, lo uint64) Sum { return Sum{hi, lo} }

// Int64 returns s, saturated at the largest int64.
func (s Sum) Int64() int64 {
	if s.hi != 0 || s.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(s.lo)
}

// Rest returns the remainder of i for storage.
func (i Integral) Rest() uint64 { return i.rest }

// IntegralOf returns the integral with a stored remainder, or false if it is too large.
func IntegralOf(rest uint64) (Integral, bool) { return Integral{rest}, rest < 2e9 }

// Fits reports whether [Integral.Add] can hold level b for ns nanoseconds.
func Fits(b, ns int64) bool {
	if b < 0 || ns < 0 {
		return false
	}
	seconds := ns/1e9 + 2
	return b == 0 || seconds < math.MaxInt64/b
}
