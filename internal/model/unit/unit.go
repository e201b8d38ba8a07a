// Package unit defines the units of quantities and how they are formatted.
//
// Amounts are int64 in a fine unit that keeps them exact: nanoseconds, bytes, byte-seconds,
// microjoules, millicores, counts. Output, JSON and CSV use decimals of the base unit: seconds,
// bytes, byte-seconds, joules, cores.
package unit

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// A Unit is what an int64 amount counts.
type Unit uint8

const (
	Unknown    Unit = iota
	Count           // things, events
	Nanosecond      // time: of a CPU, of waiting
	Byte            // size or traffic
	ByteSecond      // size held over time
	Microjoule      // energy
	Millicore       // CPU time per time, in thousandths of a CPU
)

// String returns the name of the fine unit.
func (u Unit) String() string {
	switch u {
	case Count:
		return "count"
	case Nanosecond:
		return "ns"
	case Byte:
		return "bytes"
	case ByteSecond:
		return "byte_s"
	case Microjoule:
		return "uJ"
	case Millicore:
		return "millicores"
	}
	return "unknown"
}

// Base returns the name of the base unit in metric names and JSON keys; empty for counts.
func (u Unit) Base() string {
	switch u {
	case Nanosecond:
		return "seconds"
	case Byte:
		return "bytes"
	case ByteSecond:
		return "byte_seconds"
	case Microjoule:
		return "joules"
	case Millicore:
		return "cores"
	}
	return ""
}

// Digits returns the number of decimals of a base unit in the fine unit; 0 if amounts are integers
// of the base unit.
func (u Unit) Digits() int {
	switch u {
	case Nanosecond:
		return 9
	case Microjoule:
		return 6
	case Millicore:
		return 3
	}
	return 0
}

// Decimal formats an amount exactly, as a decimal of the base unit without trailing zeros:
// 1500000000 ns is "1.5".
func (u Unit) Decimal(amount int64) string {
	d := u.Digits()
	if d == 0 {
		return strconv.FormatInt(amount, 10)
	}
	s := strconv.FormatUint(magnitude(amount), 10)
	if len(s) <= d {
		s = strings.Repeat("0", d+1-len(s)) + s
	}
	s = strings.TrimRight(s[:len(s)-d]+"."+s[len(s)-d:], "0")
	s = strings.TrimSuffix(s, ".")
	if amount < 0 {
		s = "-" + s
	}
	return s
}

// Parse parses what Decimal wrote. The error wraps fault.ErrInvalid if s is not a number, has too
// many decimals or exceeds 63 bits.
func (u Unit) Parse(s string) (int64, error) {
	whole, part, _ := strings.Cut(s, ".")
	if d := u.Digits(); len(part) <= d && strings.TrimLeft(whole, "+-") != "" {
		v, err := strconv.ParseInt(whole+part+strings.Repeat("0", d-len(part)), 10, 64)
		if err == nil {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%q is not an amount of %s: %w", s, u, fault.ErrInvalid)
}

// One returns the number of fine units in a base unit.
func (u Unit) One() float64 { return math.Pow10(u.Digits()) }

// Float returns an amount in the base unit, for display and rates only.
func (u Unit) Float(amount int64) float64 {
	return float64(amount) / u.One()
}

func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}

// An Integral sums a level over time without rounding errors: fractions of a unit-second are kept
// for the next call.
type Integral struct {
	rest uint64 // level x ns x 2, below 2e9
}

// Add returns the whole level-seconds under the straight line from level a to level b over ns
// nanoseconds, plus the fraction left from earlier calls. Levels and ns are not negative, and the
// mean level x seconds is less than 2^63.
func (i *Integral) Add(a, b, ns int64) int64 {
	hi, lo := bits.Mul64(uint64(a)+uint64(b), uint64(ns))
	lo, carry := bits.Add64(lo, i.rest, 0)
	q, rest := bits.Div64(hi+carry, lo, 2e9)
	i.rest = rest
	return int64(q)
}
